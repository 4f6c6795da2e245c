//! Words that threads change beside each other, without taking each other's cache lines.
//!
//! [APT1] What one thread changes while others change its neighbours is an [`Apart`]: it has its cache lines for itself, in pairs (128 B),
//!        since some CPUs fetch the neighbour of a line with it.
//! [APT2] A [`SplitCounter`] is a count that orders nothing. A thread adds to the slot of its number, and the value is the sum of all slots:
//!        exact when nobody adds, otherwise a value that the count had or passed meanwhile. Threads that share a slot lose nothing.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Slots of a counter; more threads than this share them.
const SLOTS: usize = 16;

/// A value on cache lines of its own ([APT1]).
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Apart<T>(T);

impl<T> Apart<T> {
    /// This value.
    pub const fn new(value: T) -> Self {
        Self(value)
    }
}

impl<T> Deref for Apart<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Apart<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// A value for each slot of threads; all of them count ([APT2]).
#[derive(Debug)]
pub(crate) struct Split<T>(Box<[Apart<T>]>);

impl<T: Default> Default for Split<T> {
    fn default() -> Self {
        Self((0..SLOTS).map(|_| Apart::default()).collect())
    }
}

impl<T> Split<T> {
    /// The value of this thread's slot.
    #[inline]
    pub(crate) fn here(&self) -> &T {
        &self.0[slot() % SLOTS]
    }

    /// The values of all slots.
    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(Deref::deref)
    }
}

/// The number of this thread, in the order in which threads asked first: those that begin together have slots of their own.
#[inline]
fn slot() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SLOT: Cell<Option<usize>> = const { Cell::new(None) };
    }
    SLOT.get().unwrap_or_else(|| {
        let slot = NEXT.fetch_add(1, Relaxed);
        SLOT.set(Some(slot));
        slot
    })
}

/// A count to which threads add without sharing a cache line ([APT2]). It takes 2 KiB.
#[derive(Debug, Default)]
pub struct SplitCounter(Split<AtomicU64>);

impl SplitCounter {
    /// Adds.
    #[inline]
    pub fn add(&self, amount: u64) {
        self.0.here().fetch_add(amount, Relaxed);
    }

    /// What was added to this thread's slot.
    #[inline]
    pub fn here(&self) -> u64 {
        self.0.here().load(Relaxed)
    }

    /// The count. It wraps.
    pub fn value(&self) -> u64 {
        self.0.all().fold(0, |sum, slot| sum.wrapping_add(slot.load(Relaxed)))
    }

    /// Begins at zero again. What others add meanwhile may be kept or lost.
    pub fn clear(&self) {
        self.0.all().for_each(|slot| slot.store(0, Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_have_lines_of_their_own() {
        let values: Vec<Apart<u8>> = (0..3).map(Apart::new).collect();
        let places: Vec<usize> = values.iter().map(|value| std::ptr::from_ref(&**value).addr()).collect();
        assert!(places.iter().all(|place| place % 128 == 0) && places.windows(2).all(|pair| pair[1] - pair[0] == 128), "[APT1]");
        assert_eq!(values.iter().map(|value| **value).collect::<Vec<u8>>(), [0, 1, 2]);
    }

    #[test]
    fn threads_have_slots_of_their_own_and_nothing_is_lost() {
        let counter = SplitCounter::default();
        // More threads than slots, so some share one.
        std::thread::scope(|scope| {
            for _ in 0..SLOTS * 3 {
                scope.spawn(|| (0..1000).for_each(|_| counter.add(3)));
            }
        });
        assert_eq!(counter.value(), SLOTS as u64 * 3 * 3000, "[APT2]");
        assert!(counter.0.all().filter(|slot| slot.load(Relaxed) > 0).count() > 1, "all counted in one slot");
        counter.clear();
        assert_eq!((counter.value(), counter.here()), (0, 0));
        counter.add(5);
        assert_eq!((counter.value(), counter.here()), (5, 5));
    }
}
