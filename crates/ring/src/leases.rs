//! Lease words: whether the threads of a program may store to memory that the daemon has lent to it, and how many are doing so.
//!
//! A program that is trusted with the memory itself gets one file of words, which it may write. A *lease* is one word with one epoch; what is
//! lent by it, and where that is, is not known here. A thread *enters*, stores, and *leaves*; the daemon *revokes*, and *takes away* what
//! is not given back.
//!
//! [LSE1] Entering and leaving are one atomic addition each, revoking and taking away one atomic OR each, on the one word of the lease. So all
//!       of them are in one order: who entered before a revocation is counted when the daemon looks, and who enters behind it sees it.
//! [LSE2] Who enters and sees that the lease is revoked, or has another epoch, leaves at once and stores nothing. He may be counted for that
//!       moment, which makes the daemon look once more.
//! [LSE3] A word is lent again with the next epoch, while it is revoked, and only when nobody is counted. What a thread knew of an older lease
//!       fits to no later one; a word whose epochs are used up is lent no more.
//! [LSE4] A thread is inside of one lease at most, and outside of all across requests, system calls and callbacks. So a handler of a signal
//!       that interrupted it inside does not enter: it asks the daemon, like a program without leases.
//! [LSE5] The daemon waits for the count only as long as it likes to. If it takes the lease away, it says so first and copies what was lent
//!       afterwards. Who leaves and sees that does not know whether his bytes are in the copy: he has the daemon write them again.
//! [LSE6] Who enters to store notes that something will be stored, before he stores, unless that is noted. Who enters to load notes nothing. The daemon takes the note when it looks. So a
//!       change is noticed at the latest with the second look behind its first byte.
//! [LSE7] Which words are lent, and with which epoch, the daemon knows by itself. What it finds in a word decides when it goes on waiting, and
//!       whether a time is changed, nothing else. It changes words without loops, whatever the program writes meanwhile.
//!
//! Word file of leases: 0 magic (8), 8 version (4), 12 number of words (4); from 4096 on the words, one in a line of 64 bytes: bits 0 to 23 the
//! number of threads inside, 24 *stored*, 25 *revoked*, 26 *taken away*, 32 to 63 the epoch.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::SealFlags;

use crate::RingError;
use crate::arena::sealed;
use crate::layout::{self, PAGE_BYTES};
use crate::memory::Memory;
use crate::mutant::{self, Mutant};
use crate::sync::{self, Mutex};
use crate::sys::Mapping;

/// Leases that a program can have at once.
pub const LEASE_WORDS: u32 = 64;

const LINE: usize = 64;
const WORDS_OFFSET: usize = PAGE_BYTES as usize;
const BYTES: usize = WORDS_OFFSET + LINE * LEASE_WORDS as usize;
/// `TFSLEAS\0`.
const MAGIC: u64 = u64::from_le_bytes(*b"TFSLEAS\0");

mod header {
    pub(super) const MAGIC: usize = 0;
    pub(super) const VERSION: usize = 8;
    pub(super) const WORDS: usize = 12;
}

const INSIDE: u64 = (1 << 24) - 1;
/// More threads than this do not enter, so that the count never reaches the other bits.
const INSIDE_MAX: u64 = 1 << 23;
const STORED: u64 = 1 << 24;
const REVOKED: u64 = 1 << 25;
const TAKEN: u64 = 1 << 26;
const EPOCH: u64 = 1 << 32;

fn place(index: u32) -> usize {
    WORDS_OFFSET + LINE * index as usize
}

fn epoch_of(word: u64) -> u32 {
    (word / EPOCH) as u32
}

/// A lease, as the daemon tells a program of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseToken {
    /// Which word.
    pub index: u32,
    /// Its epoch.
    pub epoch: u32,
}

/// What the daemon knows of a word by itself ([LSE7]).
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    epoch: u32,
    is_lent: bool,
}

/// The words of a program, as the daemon holds them.
#[derive(Debug)]
pub struct LeaseWords {
    memory: Memory,
    file: OwnedFd,
    known: Mutex<Vec<Known>>,
}

impl LeaseWords {
    /// Makes them, all revoked.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn new() -> Result<Arc<Self>, RingError> {
        let (file, memory) = sealed("tandemfs-leases", BYTES, SealFlags::empty())?;
        memory.store_long(header::MAGIC, MAGIC);
        memory.store(header::VERSION, layout::VERSION);
        memory.store(header::WORDS, LEASE_WORDS);
        (0..LEASE_WORDS).for_each(|index| memory.store_long(place(index), REVOKED));
        Ok(Arc::new(Self { memory, file, known: Mutex::new(vec![Known::default(); LEASE_WORDS as usize]) }))
    }

    /// What is sent to the program.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Lends a word. None if all are lent, or have threads inside, or are used up ([LSE3]).
    pub fn lend(self: &Arc<Self>) -> Option<LeaseWord> {
        let mut known = self.known.lock();
        let is_free = |(index, known): &(u32, &mut Known)| {
            !known.is_lent && known.epoch < u32::MAX && self.memory.load_version(place(*index)) & INSIDE == 0
        };
        let (index, found) = (0..).zip(known.iter_mut()).find(is_free)?;
        (found.epoch, found.is_lent) = (found.epoch + 1, true);
        let epoch = found.epoch;
        drop(known);
        let at = place(index);
        self.memory.add(at, EPOCH);
        self.memory.and(at, !(STORED | REVOKED | TAKEN));
        Some(LeaseWord { words: Arc::clone(self), token: LeaseToken { index, epoch } })
    }

    /// The words as a program of the same process has them, on the same mapping.
    #[cfg(feature = "schedules")]
    pub fn beside(&self) -> Leases {
        Leases(self.memory.clone())
    }
}

/// A word that is lent, as the daemon holds it. The end of this ends the lease: nobody enters any more.
#[derive(Debug)]
pub struct LeaseWord {
    words: Arc<LeaseWords>,
    token: LeaseToken,
}

impl LeaseWord {
    /// What the program is told.
    pub fn token(&self) -> LeaseToken {
        self.token
    }

    fn at(&self) -> usize {
        place(self.token.index)
    }

    /// Nobody enters any more. Never waits.
    pub fn revoke(&self) {
        let memory = &self.words.memory;
        if mutant::on(Mutant::RevokedInTwoSteps) {
            return memory.store_long(self.at(), memory.load_version(self.at()) | REVOKED);
        }
        memory.or(self.at(), REVOKED); // [LSE1]
    }

    /// Whether threads are inside; with a program that lies, anything.
    pub fn is_storing(&self) -> bool {
        self.words.memory.load_version(self.at()) & INSIDE != 0
    }

    /// Who is inside learns that his bytes may be lost ([LSE5]). It is revoked as well. Never waits.
    pub fn take_away(&self) {
        self.words.memory.or(self.at(), REVOKED | TAKEN);
    }

    /// Whether somebody has stored since the last call ([LSE6]).
    pub fn has_stored(&self) -> bool {
        self.words.memory.and(self.at(), !STORED) & STORED != 0
    }
}

impl Drop for LeaseWord {
    fn drop(&mut self) {
        self.revoke();
        if let Some(known) = self.words.known.lock().get_mut(self.token.index as usize) {
            known.is_lent = false;
        }
    }
}

/// The words, as the program has them.
#[derive(Debug)]
pub struct Leases(Memory);

impl Leases {
    /// Maps what the daemon has sent. A child process does not inherit the mapping.
    ///
    /// # Errors
    /// [`RingError::Version`], [`RingError::NoArena`], or what the kernel refuses.
    pub fn map(file: BorrowedFd<'_>) -> Result<Self, RingError> {
        if crate::client::sealed_bytes(file, SealFlags::empty())? != BYTES {
            return Err(RingError::NoArena("lease words of another size"));
        }
        let memory = Memory(Arc::new(Mapping::new(file, BYTES, true)?));
        if memory.load_long(header::MAGIC) != MAGIC || memory.load(header::WORDS) != LEASE_WORDS {
            return Err(RingError::NoArena("lease words without their magic"));
        }
        let found = memory.load(header::VERSION);
        match found == layout::VERSION {
            true => Ok(Self(memory)),
            false => Err(RingError::Version { found, expected: layout::VERSION }),
        }
    }

    /// Enters: the calling thread may store to what was lent until it leaves. None if the lease has ended, or the thread is inside already
    /// ([LSE4]); then the daemon is to be asked.
    #[inline]
    pub fn enter(&self, lease: LeaseToken) -> Option<Inside<'_>> {
        self.enter_noting(lease, true)
    }

    /// As [`Leases::enter`], for a thread that loads and stores nothing.
    #[inline]
    pub fn enter_to_load(&self, lease: LeaseToken) -> Option<Inside<'_>> {
        self.enter_noting(lease, false)
    }

    /// Whether a lease had not ended a moment ago. Enters nothing.
    pub fn is_lent(&self, lease: LeaseToken) -> bool {
        let word = if lease.index < LEASE_WORDS { self.0.load_version(place(lease.index)) } else { REVOKED };
        word & (REVOKED | TAKEN) == 0 && epoch_of(word) == lease.epoch
    }

    #[inline]
    fn enter_noting(&self, lease: LeaseToken, stores: bool) -> Option<Inside<'_>> {
        if lease.index >= LEASE_WORDS || !sync::begin_inside() && !mutant::on(Mutant::EntersTwice) {
            return None;
        }
        let at = place(lease.index);
        let before = self.0.add(at, 1);
        let is_revoked = before & (REVOKED | TAKEN) != 0 && !mutant::on(Mutant::EntersRevoked);
        let is_another = epoch_of(before) != lease.epoch && !mutant::on(Mutant::EpochIgnored);
        let inside = Inside { leases: self, at };
        if is_revoked || is_another || before & INSIDE >= INSIDE_MAX {
            return None; // [LSE2]: it leaves
        }
        if stores && before & STORED == 0 {
            self.0.or(at, STORED); // [LSE6]
        }
        Some(inside)
    }
}

/// A thread inside of a lease. It makes no request, no system call and no callback ([LSE4]).
#[derive(Debug)]
#[must_use = "what was stored counts only if `leave` says so"]
pub struct Inside<'l> {
    leases: &'l Leases,
    at: usize,
}

impl Inside<'_> {
    /// Leaves, behind the last store. False if the lease was taken away: whether the bytes count is not known, so they are to be written by the daemon
    /// ([LSE5]).
    #[inline]
    pub fn leave(self) -> bool {
        let before = std::mem::ManuallyDrop::new(self).left();
        before & TAKEN == 0 || mutant::on(Mutant::TakenUnseen)
    }

    #[inline]
    fn left(&self) -> u64 {
        let before = self.leases.0.add(self.at, u64::MAX); // minus one
        sync::end_inside();
        before
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.left();
    }
}

#[cfg(all(test, not(feature = "schedules")))]
mod tests {
    use super::*;

    fn both() -> (Arc<LeaseWords>, Leases) {
        let words = LeaseWords::new().expect("made");
        let leases = Leases::map(words.file()).expect("mapped");
        (words, leases)
    }

    #[test]
    fn threads_enter_until_the_lease_is_revoked() {
        let (words, leases) = both();
        let lease = words.lend().expect("a word");
        assert!(!lease.has_stored() && !lease.is_storing());
        let inside = leases.enter(lease.token()).expect("lent");
        std::thread::scope(|scope| {
            let other = scope.spawn(|| leases.enter(lease.token()).expect("two threads").leave());
            assert!(other.join().expect("it ends"));
        });
        assert!(lease.is_storing() && lease.has_stored() && !lease.has_stored());
        lease.revoke();
        assert!(lease.is_storing(), "who is inside is waited for");
        std::thread::scope(|scope| {
            assert!(scope.spawn(|| leases.enter(lease.token()).is_none()).join().expect("it ends"));
        });
        assert!(lease.is_storing(), "who did not enter is not counted");
        assert!(inside.leave() && !lease.is_storing() && !lease.has_stored());
        assert!(leases.enter(lease.token()).is_none());
    }

    #[test]
    fn who_loads_is_waited_for_and_has_stored_nothing() {
        let (words, leases) = both();
        let lease = words.lend().expect("a word");
        let token = lease.token();
        assert!(leases.is_lent(token) && !leases.is_lent(LeaseToken { epoch: 2, ..token }));
        assert!(!leases.is_lent(LeaseToken { index: LEASE_WORDS, ..token }));
        let inside = leases.enter_to_load(token).expect("lent");
        lease.revoke();
        assert!(lease.is_storing() && !lease.has_stored() && !leases.is_lent(token));
        assert!(inside.leave() && !lease.is_storing());
        assert!(leases.enter_to_load(token).is_none());
    }

    /// [LSE4]
    #[test]
    fn a_thread_is_inside_once() {
        let (words, leases) = both();
        let [one, other] = [words.lend(), words.lend()].map(|lease| lease.expect("a word"));
        let inside = leases.enter(one.token()).expect("lent");
        assert!(leases.enter(one.token()).is_none() && leases.enter(other.token()).is_none() && !other.is_storing());
        drop(inside);
        assert!(!one.is_storing() && leases.enter(other.token()).expect("outside again").leave());
    }

    /// [LSE5]
    #[test]
    fn who_is_inside_learns_that_the_lease_was_taken_away() {
        let (words, leases) = both();
        let lease = words.lend().expect("a word");
        let token = lease.token();
        let inside = leases.enter(token).expect("lent");
        lease.take_away();
        drop(lease);
        let next = words.lend().expect("another word");
        assert_ne!(next.token().index, token.index, "somebody is inside");
        assert!(!inside.leave());
        drop(next);
        let again = words.lend().expect("the first word");
        assert_eq!(again.token(), LeaseToken { epoch: token.epoch + 1, ..token });
        assert!(leases.enter(token).is_none(), "of an older lease");
        assert!(leases.enter(again.token()).expect("lent").leave());
    }

    /// [LSE3]
    #[test]
    fn words_are_bounded_and_their_epochs_too() {
        let (words, leases) = both();
        let all: Vec<_> = std::iter::from_fn(|| words.lend()).collect();
        assert_eq!(all.len(), LEASE_WORDS as usize);
        drop(all);
        words.known.lock().iter_mut().for_each(|known| known.epoch = u32::MAX - 1);
        words.known.lock()[0].epoch = u32::MAX;
        let lease = words.lend().expect("a word");
        assert_eq!(lease.token(), LeaseToken { index: 1, epoch: u32::MAX });
        let beyond = LeaseToken { index: LEASE_WORDS, epoch: 1 };
        assert!(leases.enter(beyond).is_none());
    }

    /// [LSE7]
    #[test]
    fn a_program_that_lies_harms_itself_alone() {
        let (words, leases) = both();
        let lease = words.lend().expect("a word");
        for word in [0, u64::MAX, INSIDE, EPOCH * 77, 1, REVOKED | TAKEN] {
            leases.0.store_long(place(lease.token().index), word);
            lease.revoke();
            let _any = (lease.is_storing(), lease.has_stored());
            lease.take_away();
            let other = words.lend().expect("other words are as they were");
            assert!(leases.enter(other.token()).expect("lent").leave());
        }
    }

    #[test]
    fn what_is_no_file_of_words_is_refused() {
        let (words, _) = both();
        let versions = crate::VersionWords::new().expect("made");
        assert!(matches!(Leases::map(versions.file()), Err(RingError::NoArena(_))));
        words.memory.store(header::VERSION, layout::VERSION + 1);
        assert!(matches!(Leases::map(words.file()), Err(RingError::Version { .. })));
        words.memory.store_long(header::MAGIC, 0);
        assert!(matches!(Leases::map(words.file()), Err(RingError::NoArena(_))));
        assert!(rustix::fs::ftruncate(words.file(), 0).is_err(), "another size");
    }
}
