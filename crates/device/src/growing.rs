//! Values and tables that change while others read them without a lock, where what was there stays valid until the end: sizes and maps of a
//! device that grows in use.
//!
//! [GW1] Nothing moves and nothing is dropped: a reference to an entry, or to an earlier value, stays valid as long as the owner.
//! [GW2] Who reads sees an entry or a value whole, or does not see it yet. Growing does not wait for readers, nor they for it; who grows is one
//!       at a time.
//! [GW3] A table at least doubles each time, so an entry is found in few steps however often it grew.

use std::ops::{Deref, Index};
use std::sync::OnceLock;
// Sizes order no threads: scheduling points at them would only make explored schedules longer.
use std::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Release};

use crate::sync::Mutex;

/// A table that grows at its end ([GW1]–[GW3]).
#[derive(Debug)]
pub struct Growing<T> {
    first: Part<T>,
    /// Entries that can be had; parts may have more room ([GW3]).
    length: AtomicUsize,
}

#[derive(Debug)]
struct Part<T> {
    start: usize,
    entries: Box<[T]>,
    next: OnceLock<Box<Part<T>>>,
}

impl<T> Part<T> {
    fn new(start: usize, entries: Box<[T]>) -> Self {
        Self { start, entries, next: OnceLock::new() }
    }

    fn end(&self) -> usize {
        self.start + self.entries.len()
    }
}

impl<T> FromIterator<T> for Growing<T> {
    fn from_iter<I: IntoIterator<Item = T>>(entries: I) -> Self {
        let entries: Box<[T]> = entries.into_iter().collect();
        Self { length: AtomicUsize::new(entries.len()), first: Part::new(0, entries) }
    }
}

impl<T> Default for Growing<T> {
    fn default() -> Self {
        std::iter::empty().collect()
    }
}

impl<T> Growing<T> {
    /// Number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.length.load(Acquire)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An entry.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        match self.first.entries.get(index) {
            Some(entry) => Some(entry),
            None if index < self.len() => self.further(index),
            None => None,
        }
    }

    #[cold]
    fn further(&self, index: usize) -> Option<&T> {
        let mut part = &self.first;
        while index >= part.end() {
            part = part.next.get()?;
        }
        part.entries.get(index - part.start)
    }

    /// All entries of now.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// Has so many entries from now on, if it has fewer ([GW2]): those of `new`, by their numbers. It may be asked for entries that follow later,
    /// and is not asked for them again, so they are all to be as new.
    pub fn grow(&self, length: usize, mut new: impl FnMut(usize) -> T) {
        let mut part = &self.first;
        while let Some(next) = part.next.get() {
            part = next;
        }
        if part.end() < length {
            let end = length.max(2 * part.end());
            let further = Part::new(part.end(), (part.end()..end).map(&mut new).collect());
            let is_alone = part.next.set(Box::new(further)).is_ok();
            assert!(is_alone, "one grows at a time");
        }
        if self.len() < length {
            self.length.store(length, Release);
        }
    }
}

impl<T> Index<usize> for Growing<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: usize) -> &T {
        match self.get(index) {
            Some(entry) => entry,
            None => panic!("entry {index} of {}", self.len()),
        }
    }
}

/// A value that is replaced while others read it ([GW1], [GW2]).
#[derive(Debug)]
pub struct Replaced<T> {
    values: Growing<OnceLock<T>>,
    changing: Mutex<()>,
}

impl<T> Replaced<T> {
    /// The first value.
    pub fn new(value: T) -> Self {
        Self { values: std::iter::once(OnceLock::from(value)).collect(), changing: Mutex::default() }
    }

    /// The value from now on.
    pub fn replace(&self, value: T) {
        let _one = self.changing.lock();
        let (mut value, at) = (Some(value), self.values.len());
        // Its place may have been made when the table doubled.
        self.values.grow_with(at, |place| {
            let is_free = value.take().is_some_and(|value| place.set(value).is_ok());
            assert!(is_free, "a place is used once");
        });
    }
}

impl<T> Growing<OnceLock<T>> {
    /// One entry more, that `set` has filled before anybody sees it.
    fn grow_with(&self, at: usize, set: impl FnOnce(&OnceLock<T>)) {
        let mut part = &self.first;
        while at >= part.end() {
            part = match part.next.get() {
                Some(next) => next,
                None => part.next.get_or_init(|| {
                    let room = part.end().max(1);
                    Box::new(Part::new(part.end(), (0..room).map(|_| OnceLock::new()).collect()))
                }),
            };
        }
        set(&part.entries[at - part.start]);
        self.length.store(at + 1, Release);
    }
}

impl<T> Deref for Replaced<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        match self.values.get(self.values.len() - 1).and_then(OnceLock::get) {
            Some(value) => value,
            None => unreachable!("a value is seen when it is there"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

    use super::*;

    #[test]
    fn entries_stay_where_they_are_and_new_ones_follow() {
        let table: Growing<AtomicU64> = (0..3).map(AtomicU64::new).collect();
        let first = &table[0];
        for length in [3, 4, 5, 9, 9, 100, 1000] {
            table.grow(length, |index| AtomicU64::new(index as u64));
            assert_eq!(table.len(), length);
            assert!(table.get(length).is_none() && std::ptr::eq(first, &raw const table[0]));
            assert!(table.iter().enumerate().all(|(index, entry)| entry.load(Relaxed) == index as u64));
        }
        let none: Growing<u8> = Growing::default();
        assert!(none.is_empty() && none.get(0).is_none());
        none.grow(1, |_| 7);
        assert_eq!(none[0], 7);
    }

    /// [GW2]
    #[test]
    fn readers_see_whole_values_while_they_are_replaced() {
        let value = Replaced::new([0_u64; 8]);
        let kept = &*value;
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut last = 0;
                while !done.load(Relaxed) {
                    let seen = &*value;
                    assert!(seen.iter().all(|word| *word == seen[0]) && seen[0] >= last);
                    last = seen[0];
                }
            });
            (1..=1000).for_each(|number| value.replace([number; 8]));
            done.store(true, Relaxed);
        });
        assert_eq!((value[0], kept[0]), (1000, 0));
    }
}
