//! Pages of the memory zone that a program may store to although its lease was taken away ([SL5] of `data/lent_stores.rs`).
//!
//! Such pages are noted before a transaction frees them. When it does, they stay out of the allocator until nobody can store to them any
//! more; no structure on the device refers to them meanwhile, and `check` counts them as free. The list is in host memory alone: after a
//! crash of the daemon the next mount looks whether a program of the last one has the memory mapped (`Error::ProgramsLeft`).

use std::ops::Range;

use smallvec::SmallVec;
use tandemfs_format::{LineAddress, PAGE_BYTES};

use crate::mutant::{Mutant, on};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering::SeqCst};

const PAGE: u64 = PAGE_BYTES as u64;

/// Whether somebody can store still.
pub(crate) type IsPossible = Box<dyn Fn() -> bool + Send + Sync>;

/// Extents of pages: the first one, and their number.
pub(crate) type Pages = SmallVec<[(LineAddress, u64); 1]>;

/// The list.
#[derive(Default)]
pub(crate) struct LentPages {
    state: Mutex<State>,
    /// How many were taken away: mostly none, so freeing pages costs one load.
    taken: AtomicUsize,
}

#[derive(Default)]
struct State {
    /// What was taken away, in bytes of the memory zone, and whether it can be stored to.
    taken: Vec<(Vec<Range<u64>>, IsPossible)>,
    /// What of it was freed.
    held: Vec<(LineAddress, u64)>,
}

impl LentPages {
    /// Keeps these whole pages, given as bytes of the memory zone, when they are freed.
    pub(crate) fn keep(&self, pages: Vec<Range<u64>>, is_possible: IsPossible) {
        let mut state = self.state.lock();
        state.taken.push((pages, is_possible));
        self.taken.store(state.taken.len(), SeqCst);
    }

    /// Splits freed pages: keeps those that somebody may store to, and returns the others.
    pub(crate) fn hold_back(&self, address: LineAddress, count: u64) -> Pages {
        if self.taken.load(SeqCst) == 0 || on(Mutant::TakenPagesFreed) {
            return SmallVec::from_iter([(address, count)]);
        }
        let mut state = self.state.lock();
        let State { taken, held } = &mut *state;
        let mut free = Pages::new();
        let (start, lines) = (address.offset_bytes(), PAGE / tandemfs_format::LINE_BYTES as u64);
        for page in 0..count {
            let at = start + page * PAGE;
            let is_taken = taken.iter().flat_map(|(pages, _)| pages).any(|pages| pages.contains(&at));
            let first = address.nth(page * lines);
            match free.last_mut().filter(|(last, count)| !is_taken && last.offset_bytes() + *count * PAGE == at) {
                Some((_, count)) => *count += 1,
                None if is_taken => held.push((first, 1)),
                None => free.push((first, 1)),
            }
        }
        free
    }

    /// Pages that were held back, if some of them may be free now; the caller frees them by [`LentPages::hold_back`].
    pub(crate) fn take_returned(&self) -> Vec<(LineAddress, u64)> {
        if self.taken.load(SeqCst) == 0 {
            return Vec::new();
        }
        let mut state = self.state.lock();
        let before = state.taken.len();
        state.taken.retain(|(_, is_possible)| is_possible());
        self.taken.store(state.taken.len(), SeqCst);
        if state.taken.len() < before { std::mem::take(&mut state.held) } else { Vec::new() }
    }

    /// Bytes that are held back.
    pub(crate) fn bytes(&self) -> u64 {
        self.state.lock().held.iter().map(|(_, count)| count * PAGE).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn pages_are_held_back_until_nobody_can_store_to_them() {
        let (pages, lines) = (LentPages::default(), 64);
        let page = |number: u64| LineAddress::new(number * lines);
        assert_eq!(pages.hold_back(page(0), 100).to_vec(), [(page(0), 100)]);
        let can_store: [Arc<AtomicBool>; 2] = std::array::from_fn(|_| Arc::new(AtomicBool::new(true)));
        for (who, range) in can_store.iter().cloned().zip([10 * PAGE..13 * PAGE, 12 * PAGE..14 * PAGE]) {
            pages.keep(vec![range], Box::new(move || who.load(SeqCst)));
        }
        assert_eq!(pages.hold_back(page(8), 10).to_vec(), [(page(8), 2), (page(14), 4)]);
        assert_eq!((pages.bytes(), pages.take_returned()), (4 * PAGE, Vec::new()));
        can_store[0].store(false, SeqCst);
        let again: Vec<_> = pages.take_returned().into_iter().flat_map(|(page, count)| pages.hold_back(page, count)).collect();
        assert_eq!((again, pages.bytes()), (vec![(page(10), 1), (page(11), 1)], 2 * PAGE));
        can_store[1].store(false, SeqCst);
        let again: Vec<_> = pages.take_returned().into_iter().flat_map(|(page, count)| pages.hold_back(page, count)).collect();
        assert_eq!((again, pages.bytes()), (vec![(page(12), 1), (page(13), 1)], 0));
    }
}
