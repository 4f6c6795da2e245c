//! Decides which sectors get a copy in the memory zone (`data/promote.rs`).

use std::sync::OnceLock;

use crate::sync::EXPLORED;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::types::Promote;

/// Entries of the table of recently read sectors: at least the least, and as many as there can be copies, so that a scan that fits into
/// the copies comes again before its tags are overwritten.
const SEEN_PLACES_MIN: usize = if EXPLORED { 64 } else { 1 << 15 };
const SEEN_PLACES_MAX: usize = if EXPLORED { 64 } else { 1 << 20 };

/// Decides which sectors get a copy.
pub(crate) struct Admission {
    /// Tags of recently read sectors, by hash: a read that finds its own tag is of a hot sector. Made when hot sectors are first asked for.
    seen: OnceLock<Vec<AtomicU64>>,
    reads: AtomicU64,
}

impl Admission {
    /// For so many copies at most.
    pub(crate) fn new(mode: Promote, copies_max: usize) -> Self {
        let admission = Self { seen: OnceLock::new(), reads: AtomicU64::new(0) };
        admission.begin(mode, copies_max);
        admission
    }

    /// Before a mode holds: makes what it needs, for so many copies at most.
    pub(crate) fn begin(&self, mode: Promote, copies_max: usize) {
        if mode == Promote::Hot {
            let places = copies_max.next_power_of_two().clamp(SEEN_PLACES_MIN, SEEN_PLACES_MAX);
            self.seen.get_or_init(|| (0..places).map(|_| AtomicU64::new(0)).collect());
        }
    }

    /// Whether a sector was read recently as well. Only for [`Promote::Hot`].
    pub(crate) fn is_read_again(&self, sector: u64) -> bool {
        // Tags expire: they hold the number of their era, and an era is this many reads.
        let Some(seen) = self.seen.get() else { return false };
        let era = self.reads.fetch_add(1, Relaxed) / (4 * seen.len() as u64);
        let tag = (sector + 1) << 16 | (era & 0xffff);
        let place = (sector.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % seen.len();
        seen[place].swap(tag, Relaxed) == tag
    }
}
