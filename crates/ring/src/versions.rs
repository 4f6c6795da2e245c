//! Version words: what a client was told stays right until a word of the daemon's has changed.
//!
//! A *thing* is what an answer may depend on: the rights of an inode, its attributes, one name in one directory. Who tells things apart is
//! not known here; a thing is a number. With an answer come the words of all things that it depends on ([`Seen`]), and the client gives the
//! same answer again as long as none of them has changed.
//!
//! [VER1] The words are one file for all clients. The daemon alone writes it: it is sealed against further writable mappings, and against
//!       other sizes, before it is given away.
//! [VER2] A word only rises, by atomic additions of 1 on 64 bits. So a value never comes back, several words have the same sum only while each
//!       has the same value, and threads that raise one word for two things at once lose none of their raises.
//! [VER3] Who changes a thing raises its word while he has the lock under which the thing is read, before he releases it. A change of several
//!       things raises all words before it releases the first of its locks. A word that was raised for nothing costs a miss.
//! [VER4] Who reads a thing for an answer loads its word under that lock. So an unchanged word says that nobody has changed the thing since, or
//!       that nobody can have seen the change yet. What was read twice counts twice: where it changed in between, the sum fits never.
//! [VER5] The client compares after it was asked and before it answers. While the sum is the same, all things are as they were told at the
//!       moment when the comparison began, so the answer is of that moment, and it does not matter in which order the words are loaded.
//! [VER6] Things are hashed to words. Two that share one make each other's changes misses, never a wrong answer. The hash has a secret of the
//!       mount, so nobody can watch a name of which he was not told.
//! [VER7] The words of a daemon that was killed stay as they are. Before it compares, a client looks whether its connection has ended, and at
//!       least every 10 ms it asks the kernel whether the daemon has hung up. Until then nobody changes anything, for the daemon is gone.
//! [VER8] A client that answers by itself says so in its arena after each look that the daemon takes at its credentials; so it is looked at
//!       like one that asks. A client that does not say so knows no more than what it was told.
//! [VER9] Who loads memory of others that words stand for compares before and after ([`Client::load_while_so`](crate::Client::load_while_so)): whoever changes that memory raises the word
//!       before his first store, so a load that has met one of his stores is followed by a comparison that fails. The second comparison stays
//!       behind the loads by a fence.
//!
//! Word file of versions: 0 magic (8), 8 version (4), 12 number of words (4); from 4096 on the words, 8 bytes each.

use std::hash::BuildHasher;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::SealFlags;

use crate::RingError;
use crate::arena::sealed;
use crate::layout::{self, PAGE_BYTES, SEEN_MAX, VERSION_WORDS};
use crate::memory::{Memory, ReadOnly};
use crate::mutant::{self, Mutant};
use crate::sys::Mapping;

const WORDS_OFFSET: usize = PAGE_BYTES as usize;
const BYTES: usize = WORDS_OFFSET + 8 * VERSION_WORDS as usize;

mod header {
    pub(super) const MAGIC: usize = 0;
    pub(super) const VERSION: usize = 8;
    pub(super) const WORDS: usize = 12;
}

/// `TFSVERS\0`.
const MAGIC: u64 = u64::from_le_bytes(*b"TFSVERS\0");

fn place(index: u32) -> usize {
    WORDS_OFFSET + 8 * index as usize
}

/// The words that an answer depends on, and the sum of the values that they had when it was true. None: the answer is not to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    indexes: [u32; SEEN_MAX],
    count: u32,
    sum: u64,
}

impl Default for Seen {
    fn default() -> Self {
        Self { indexes: [0; SEEN_MAX], count: 0, sum: 0 }
    }
}

impl Seen {
    /// Of words with their values; none if they are too many.
    pub fn of(words: impl IntoIterator<Item = (u32, u64)>) -> Self {
        let mut seen = Self::default();
        for (index, value) in words {
            let Some(free) = seen.indexes.get_mut(seen.count as usize) else { return Self::default() };
            *free = index;
            seen.count += 1;
            seen.sum = seen.sum.wrapping_add(value);
        }
        seen
    }

    /// What depends on both; none if one of them is, or they are too many.
    pub fn and(&self, other: &Self) -> Self {
        let (first, second) = (self.parts(), other.parts());
        if self.is_none() || other.is_none() {
            return Self::default();
        }
        let Some(into) = (first.0.len() + second.0.len() <= SEEN_MAX).then(|| first.0.iter().chain(second.0)) else {
            return Self::default();
        };
        let mut both = Self { sum: first.1.wrapping_add(second.1), ..Self::default() };
        for (place, index) in both.indexes.iter_mut().zip(into) {
            *place = *index;
            both.count += 1;
        }
        both
    }

    /// Whether an answer without any: it is not to be kept.
    pub fn is_none(&self) -> bool {
        self.count == 0
    }

    /// The indexes of the words, and the sum of their values.
    pub fn parts(&self) -> (&[u32], u64) {
        (&self.indexes[..self.count as usize], self.sum)
    }

    /// As it is found in shared memory; none if there is no such list of words.
    pub fn found(count: u32, sum: u64, index: impl Fn(usize) -> u32) -> Self {
        if count as usize > SEEN_MAX {
            return Self::default();
        }
        let mut seen = Self { count, sum, ..Self::default() };
        for (at, place) in seen.indexes.iter_mut().enumerate().take(count as usize) {
            *place = index(at);
            if *place >= VERSION_WORDS {
                return Self::default();
            }
        }
        seen
    }
}

/// The words, as the daemon holds them.
#[derive(Debug)]
pub struct VersionWords {
    memory: Memory,
    file: OwnedFd,
    secret: u64,
}

impl VersionWords {
    /// Makes them.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn new() -> Result<Arc<Self>, RingError> {
        let (file, memory) = sealed("tandemfs-versions", BYTES, SealFlags::FUTURE_WRITE)?; // [VER1]
        memory.store_long(header::MAGIC, MAGIC);
        memory.store(header::VERSION, layout::VERSION);
        memory.store(header::WORDS, VERSION_WORDS);
        let secret = std::hash::RandomState::new().hash_one(VERSION_WORDS); // [VER6]
        Ok(Arc::new(Self { memory, file, secret }))
    }

    /// What is sent to clients.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    #[inline]
    fn index(&self, thing: u64) -> u32 {
        let mixed = (thing ^ self.secret).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (mixed >> (64 - VERSION_WORDS.trailing_zeros())) as u32
    }

    /// A thing is about to change; the caller has its lock ([VER3]). Never waits.
    #[inline]
    pub fn raise(&self, thing: u64) {
        let at = place(self.index(thing));
        if mutant::on(Mutant::RaisedInTwoSteps) {
            return self.memory.store_long(at, self.memory.load_long(at) + 1);
        }
        self.memory.raise(at); // [VER2]
    }

    /// The word of a thing and its value; the caller has the thing's lock ([VER4]).
    #[inline]
    pub fn current(&self, thing: u64) -> (u32, u64) {
        let index = self.index(thing);
        (index, self.memory.load_version(place(index)))
    }

    /// The words as a client of the same process has them, on the same mapping.
    #[cfg(feature = "schedules")]
    pub fn beside(&self) -> Versions {
        Versions(ReadOnly(self.memory.clone()))
    }
}

/// The words, as a client sees them.
#[derive(Debug)]
pub struct Versions(ReadOnly);

impl Versions {
    /// Maps what the daemon has sent.
    ///
    /// # Errors
    /// [`RingError::Version`], [`RingError::NoArena`], or what the kernel refuses.
    pub fn map(file: BorrowedFd<'_>) -> Result<Self, RingError> {
        if crate::client::sealed_bytes(file, SealFlags::FUTURE_WRITE)? != BYTES {
            return Err(RingError::NoArena("version words of another size"));
        }
        let words = ReadOnly(Memory(Arc::new(Mapping::new(file, BYTES, false)?)));
        if words.load_long(header::MAGIC) != MAGIC || words.load(header::WORDS) != VERSION_WORDS {
            return Err(RingError::NoArena("version words without their magic"));
        }
        let found = words.load(header::VERSION);
        match found == layout::VERSION {
            true => Ok(Self(words)),
            false => Err(RingError::Version { found, expected: layout::VERSION }),
        }
    }

    /// Whether all that an answer depends on is as it was ([VER5]).
    #[inline]
    pub fn agree(&self, seen: &Seen) -> bool {
        let (indexes, sum) = seen.parts();
        !indexes.is_empty() && indexes.iter().map(|index| self.0.load_version(place(*index))).fold(0, u64::wrapping_add) == sum
    }
}

#[cfg(all(test, not(feature = "schedules")))]
mod tests {
    use super::*;

    fn both() -> (Arc<VersionWords>, Versions) {
        let words = VersionWords::new().expect("made");
        let versions = Versions::map(words.file()).expect("mapped");
        (words, versions)
    }

    #[test]
    fn an_answer_is_right_until_a_word_of_it_is_raised() {
        let (words, versions) = both();
        (0..1000).for_each(|thing| words.raise(thing % 7));
        let seen = Seen::of((0..SEEN_MAX as u64).map(|thing| words.current(thing)));
        assert!(versions.agree(&seen) && !seen.is_none());
        words.raise(1 << 40);
        let still = versions.agree(&seen);
        assert!(still || (0..SEEN_MAX as u64).any(|thing| words.index(thing) == words.index(1 << 40)), "a word that nothing depends on");
        words.raise(SEEN_MAX as u64 - 1);
        assert!(!versions.agree(&seen));
        assert!(!versions.agree(&Seen::default()), "an answer without words is not kept");
        assert!(Seen::of((0..=SEEN_MAX as u64).map(|thing| words.current(thing))).is_none(), "too many");
    }

    #[test]
    fn what_changed_between_two_looks_agrees_never() {
        let (words, versions) = both();
        let first = words.current(3);
        words.raise(3);
        let seen = Seen::of([first, words.current(3)]);
        for _ in 0..3 {
            assert!(!versions.agree(&seen));
            words.raise(3);
        }
    }

    /// [VER1]
    #[test]
    fn a_client_cannot_write_the_words() {
        let (words, _) = both();
        assert!(Mapping::new(words.file(), BYTES, true).is_err(), "a writable mapping");
        assert!(rustix::io::pwrite(words.file(), &[1], WORDS_OFFSET as u64).is_err(), "a write");
        assert!(rustix::fs::ftruncate(words.file(), 0).is_err(), "another size");
        assert!(rustix::fs::fcntl_add_seals(words.file(), SealFlags::WRITE).is_err(), "the seals are sealed");
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&words.file()));
        if let Ok(again) = std::fs::OpenOptions::new().read(true).write(true).open(path) {
            assert!(Mapping::new(again.as_fd(), BYTES, true).is_err(), "a writable mapping of what was opened anew");
            assert!(rustix::io::pwrite(&again, &[1], WORDS_OFFSET as u64).is_err(), "a write");
        }
    }

    #[test]
    fn what_depends_on_two_answers_depends_on_all_their_words() {
        let (words, versions) = both();
        let seen = |things: std::ops::Range<u64>| Seen::of(things.map(|thing| words.current(thing)));
        let (two, both) = (seen(3..5), seen(1..3).and(&seen(2..5)));
        assert!(versions.agree(&both) && both.parts().0.len() == 5, "one of them twice");
        assert!(two.and(&Seen::default()).is_none() && Seen::default().and(&two).is_none());
        assert!(seen(0..SEEN_MAX as u64 - 1).and(&two).is_none() && !seen(0..SEEN_MAX as u64 - 2).and(&two).is_none(), "too many");
        words.raise(1);
        assert!(!versions.agree(&both));
    }

    #[test]
    fn a_list_that_does_not_fit_is_none() {
        assert!(Seen::found(SEEN_MAX as u32 + 1, 0, |_| 0).is_none());
        assert!(Seen::found(2, 0, |at| VERSION_WORDS - 1 + at as u32).is_none());
        let seen = Seen::of([(5, 7), (6, 1)]);
        let (indexes, sum) = seen.parts();
        assert_eq!(Seen::found(2, sum, |at| indexes[at]), seen);
    }
}
