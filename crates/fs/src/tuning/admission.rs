//! Decides which sectors get a copy in the memory zone (`data/promote.rs`).

use crate::sync::EXPLORED;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::types::Promote;

/// Entries of the table of recently read sectors: at least the least, and as many as there can be copies, so that a scan that fits into
/// the copies comes again before its tags are overwritten.
const SEEN_PLACES_MIN: usize = if EXPLORED { 64 } else { 1 << 15 };
const SEEN_PLACES_MAX: usize = if EXPLORED { 64 } else { 1 << 20 };

/// Decides which sectors get a copy.
pub(crate) struct Admission {
    pub(crate) mode: Promote,
    /// Tags of recently read sectors, by hash: a read that finds its own tag is of a hot sector.
    seen: Vec<AtomicU64>,
    reads: AtomicU64,
}

impl Admission {
    /// For so many copies at most.
    pub(crate) fn new(mode: Promote, copies_max: usize) -> Self {
        let places = copies_max.next_power_of_two().clamp(SEEN_PLACES_MIN, SEEN_PLACES_MAX);
        let places = if mode == Promote::Hot { places } else { 0 };
        Self { mode, seen: (0..places).map(|_| AtomicU64::new(0)).collect(), reads: AtomicU64::new(0) }
    }

    /// Whether a sector was read recently as well. Only for [`Promote::Hot`].
    pub(crate) fn is_read_again(&self, sector: u64) -> bool {
        // Tags expire: they hold the number of their era, and an era is this many reads.
        let era = self.reads.fetch_add(1, Relaxed) / (4 * self.seen.len() as u64);
        let tag = (sector + 1) << 16 | (era & 0xffff);
        let place = (sector.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % self.seen.len();
        self.seen[place].swap(tag, Relaxed) == tag
    }
}
