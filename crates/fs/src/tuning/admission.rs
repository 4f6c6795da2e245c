//! Decides which sectors get a copy in the memory zone (`data/promote.rs`).

use crate::sync::EXPLORED;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::types::Promote;

/// Entries of the table of recently read sectors.
const SEEN_PLACES: usize = if EXPLORED { 64 } else { 1 << 15 };

/// Decides which sectors get a copy.
pub(crate) struct Admission {
    pub(crate) mode: Promote,
    /// Tags of recently read sectors, by hash: a read that finds its own tag is of a hot sector.
    seen: Vec<AtomicU64>,
    reads: AtomicU64,
}

impl Admission {
    pub(crate) fn new(mode: Promote) -> Self {
        let places = if mode == Promote::Hot { SEEN_PLACES } else { 0 };
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
