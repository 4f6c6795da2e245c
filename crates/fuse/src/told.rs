//! What the kernel may keep of names and attributes beside clients that change them without it (the mount option `direct`).
//!
//! [TLD1] A name or attributes are noted before they are read for a reply that lets the kernel keep them. Whoever changes them has the lock that
//!        they are read under, and looks for the note there ([VS1] of the file system's `versions.rs`): so either the reply has the new state,
//!        or the change finds the note.
//! [TLD2] A client's change that finds a note takes it, and has the kernel drop what it keeps, behind the change and before its answer. It
//!        holds no lock of the file system then. The mount's own changes are the kernel's affair, and leave notes alone.
//! [TLD3] Only LOOKUP of a name that is there, GETATTR and STATX let the kernel keep something: the kernel does not take up a reply that a
//!        notification has overtaken. Of a name, the notification waits for LOOKUPs of the directory, and takes a name out of the cache for
//!        good that is being asked for once more; attributes of an inode that the kernel has carry a version. Attributes in the reply to a LOOKUP may
//!        be those of an inode that the kernel does not have yet, so they are valid for no time.
//! [TLD5] Where the kernel takes up attributes, it makes them valid before it changes them, and looks at them without a lock (Linux 6.18,
//!        `fuse_change_attributes_common`). So attributes are valid for no time in the first reply behind a change, and in those of [`APPLIED`]
//!        behind it: when they become valid, the kernel has the same ones already.
//! [TLD4] A note stays for [`KEPT`] behind the last reply, ten times as long as what it is about. There is room for a bounded number; what is not
//!        noted is valid for no time.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tandemfs_format::InodeNumber;

use crate::mutant::{self, Mutant};

/// How long the kernel may keep what is noted.
pub(crate) const VALID_BESIDE: Duration = Duration::from_secs(1);
/// [TLD5]
const APPLIED: Duration = Duration::from_millis(100);
/// [TLD4]
const KEPT: Duration = Duration::from_secs(10);
const SHARDS: usize = 64;
/// Most notes of a shard.
const NOTES_MAX: usize = 2048;

/// What the kernel may keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kept {
    Attributes(InodeNumber),
    Name(InodeNumber, Box<[u8]>),
}

#[derive(Debug)]
struct Note {
    kept: Kept,
    at: Instant,
    /// The first reply behind a change ([TLD5]).
    first: Instant,
    is_valid: bool,
}

/// Notes by the number of their thing ([`tandemfs_fs::FileSystem::name_thing`]).
#[derive(Debug)]
pub(crate) struct Told([Mutex<HashMap<u64, Note>>; SHARDS]);

impl Default for Told {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

impl Told {
    fn shard(&self, thing: u64) -> MutexGuard<'_, HashMap<u64, Note>> {
        self.0[(thing >> 32) as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the kernel is about to be told of a thing; returns how long that may be valid ([TLD1]).
    pub(crate) fn tell(&self, thing: u64, kept: Kept) -> Duration {
        let (mut notes, now) = (self.shard(thing), Instant::now());
        if notes.len() >= NOTES_MAX && !notes.contains_key(&thing) {
            notes.retain(|_, note| now.duration_since(note.at) < KEPT); // [TLD4]
            if notes.len() >= NOTES_MAX {
                return Duration::ZERO;
            }
        }
        let note = notes.entry(thing).or_insert_with(|| Note { kept: kept.clone(), at: now, first: now, is_valid: false });
        if note.kept != kept {
            return Duration::ZERO; // another thing of the same number
        }
        note.at = now;
        note.is_valid |= matches!(kept, Kept::Name(..)) || now.duration_since(note.first) >= APPLIED || mutant::on(Mutant::ValidAtOnce);
        if note.is_valid { VALID_BESIDE } else { Duration::ZERO }
    }

    /// A client changes a thing; returns what the kernel has to drop ([TLD2]).
    pub(crate) fn take(&self, thing: u64) -> Option<Kept> {
        let mut notes = self.shard(thing);
        if notes.is_empty() || mutant::on(Mutant::ToldIgnored) {
            return None;
        }
        notes.remove(&thing).filter(|note| note.is_valid).map(|note| note.kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutant::is_caught;

    const FILE: InodeNumber = InodeNumber::new(7);

    fn name(name: &[u8]) -> Kept {
        Kept::Name(FILE, name.into())
    }

    #[test]
    fn a_change_finds_what_was_told_once() {
        is_caught(Mutant::ToldIgnored, || {
            let told = Told::default();
            assert_eq!((told.tell(2, name(b"a")), told.tell(2, name(b"a"))), (VALID_BESIDE, VALID_BESIDE));
            assert_eq!(told.take(3), None);
            assert_eq!((told.take(2), told.take(2)), (Some(name(b"a")), None));
        });
    }

    /// [TLD5]
    #[test]
    fn attributes_are_valid_when_the_kernel_has_had_them_for_a_while() {
        is_caught(Mutant::ValidAtOnce, || {
            let (told, attributes) = (Told::default(), Kept::Attributes(FILE));
            for _ in 0..2 {
                let began = Instant::now();
                assert_eq!(told.tell(1, attributes.clone()), Duration::ZERO);
                while told.tell(1, attributes.clone()) == Duration::ZERO {
                    std::thread::sleep(Duration::from_millis(5));
                }
                assert!(began.elapsed() >= APPLIED);
                assert_eq!(told.take(1), Some(attributes.clone()));
            }
            assert_eq!(told.tell(1, attributes), Duration::ZERO);
            assert_eq!(told.take(1), None, "the kernel keeps nothing");
        });
    }

    #[test]
    fn of_two_things_with_one_number_one_is_noted() {
        let told = Told::default();
        assert_eq!((told.tell(1, name(b"a")), told.tell(1, name(b"b"))), (VALID_BESIDE, Duration::ZERO));
        assert_eq!(told.take(1), Some(name(b"a")));
    }

    #[test]
    fn what_is_not_noted_is_not_kept() {
        let told = Told::default();
        for number in 0..2 * NOTES_MAX as u64 {
            let is_noted = told.tell(number, name(&number.to_le_bytes())) == VALID_BESIDE;
            assert_eq!(is_noted, number < NOTES_MAX as u64);
            assert_eq!(told.shard(number).contains_key(&number), is_noted);
        }
    }
}
