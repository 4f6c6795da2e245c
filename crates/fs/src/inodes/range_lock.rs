//! Locks on block ranges of one file: the only locks that are held while the block path works (RULES R9).
//!
//! A shared holder reads. An exclusive holder changes the blocks' records and the space that they name. Freed data space may be reused at
//! once because no reader can still hold its address (RULES R7).

use smallvec::SmallVec;

use crate::mutant::{Mutant, on};
use crate::sync::{Condvar, Mutex};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    first: u64,
    last: u64,
    exclusive: bool,
    id: u64,
}

#[derive(Debug, Default)]
struct State {
    held: SmallVec<[Held; 4]>,
    next_id: u64,
    waiters: usize,
}

impl State {
    /// Whether a holder conflicts.
    fn is_busy(&self, first: u64, last: u64, exclusive: bool) -> bool {
        self.held.iter().any(|held| held.first <= last && first <= held.last && (exclusive || held.exclusive))
    }
}

#[derive(Debug, Default)]
pub(crate) struct RangeLock {
    state: Mutex<State>,
    released: Condvar,
}

/// A held range; released on drop.
#[derive(Debug)]
pub(crate) struct RangeGuard<'l> {
    lock: &'l RangeLock,
    id: u64,
}

impl RangeGuard<'_> {
    /// Returns the guard; with this deliberate bug, releases the range now.
    pub(crate) fn unless(self, released_early: Mutant) -> Option<Self> {
        (!on(released_early)).then_some(self)
    }
}

impl RangeLock {
    /// Whether nobody holds any range at this instant.
    pub(crate) fn is_idle(&self) -> bool {
        self.state.lock().held.is_empty()
    }

    /// Waits until no exclusive holder overlaps `first..=last`.
    pub(crate) fn shared(&self, first: u64, last: u64) -> RangeGuard<'_> {
        self.acquire(first, last, false)
    }

    /// As `shared`, without waiting; `None` if an exclusive holder overlaps.
    pub(crate) fn try_shared(&self, first: u64, last: u64) -> Option<RangeGuard<'_>> {
        let mut state = self.state.lock();
        let overlaps = |held: &Held| held.exclusive && held.first <= last && first <= held.last;
        if state.held.iter().any(overlaps) { None } else { Some(self.hold(&mut state, first, last, false)) }
    }

    /// Waits until no holder overlaps `first..=last`.
    pub(crate) fn exclusive(&self, first: u64, last: u64) -> RangeGuard<'_> {
        self.acquire(first, last, true)
    }

    /// Locks `first..=last` if nobody holds any of it at this instant.
    pub(crate) fn try_exclusive(&self, first: u64, last: u64) -> Option<RangeGuard<'_>> {
        let mut state = self.state.lock();
        (!state.is_busy(first, last, true)).then(|| self.hold(&mut state, first, last, true))
    }

    fn acquire(&self, first: u64, last: u64, exclusive: bool) -> RangeGuard<'_> {
        let mut state = self.state.lock();
        while state.is_busy(first, last, exclusive) {
            state.waiters += 1;
            self.released.wait(&mut state);
            state.waiters -= 1;
        }
        self.hold(&mut state, first, last, exclusive)
    }

    fn hold(&self, state: &mut State, first: u64, last: u64, exclusive: bool) -> RangeGuard<'_> {
        let id = state.next_id;
        state.next_id += 1;
        state.held.push(Held { first, last, exclusive, id });
        RangeGuard { lock: self, id }
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.lock.state.lock();
        if let Some(position) = state.held.iter().position(|held| held.id == self.id) {
            state.held.swap_remove(position);
        }
        if state.waiters > 0 {
            self.lock.released.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use super::*;

    #[test]
    fn a_range_is_had_at_once_or_not_at_all() {
        let lock = RangeLock::default();
        let held = lock.shared(3, 5);
        assert!(lock.try_exclusive(5, 9).is_none());
        let beside = lock.try_exclusive(6, 9);
        assert!(beside.is_some() && lock.try_exclusive(9, 9).is_none());
        drop((held, beside));
        assert!(lock.try_exclusive(0, u64::MAX).is_some() && lock.is_idle());
    }

    #[test]
    fn writers_of_a_block_exclude_each_other_and_its_readers() {
        let lock = RangeLock::default();
        let cells: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (lock, cells) = (&lock, &cells);
                scope.spawn(move || {
                    for round in 0..2000 {
                        let first = (thread * 3 + round) % 7;
                        if round % 3 == 0 {
                            let _guard = lock.shared(first, first + 1);
                            assert_eq!(cells[first as usize].load(SeqCst) % 2, 0, "a writer is inside");
                        } else {
                            let _guard = lock.exclusive(first, first + 1);
                            for cell in &cells[first as usize..first as usize + 2] {
                                assert_eq!(cell.fetch_add(1, SeqCst) % 2, 0);
                            }
                            for cell in &cells[first as usize..first as usize + 2] {
                                assert_eq!(cell.fetch_add(1, SeqCst) % 2, 1);
                            }
                        }
                    }
                });
            }
        });
    }
}
