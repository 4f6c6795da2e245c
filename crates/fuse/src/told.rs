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
//! [TLD4] A note stays for [`KEPT`] behind the last reply, ten times as long as what it is about. There is room for a bounded number; what is not
//!        noted is valid for no time.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tandemfs_format::InodeNumber;

use crate::mutant::{self, Mutant};

/// How long the kernel may keep what is noted.
pub(crate) const VALID_BESIDE: Duration = Duration::from_secs(1);
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
        let note = notes.entry(thing).or_insert_with(|| Note { kept: kept.clone(), at: now });
        if note.kept != kept {
            return Duration::ZERO; // another thing of the same number
        }
        note.at = now;
        VALID_BESIDE
    }

    /// A client changes a thing; returns what the kernel has to drop ([TLD2]).
    pub(crate) fn take(&self, thing: u64) -> Option<Kept> {
        let mut notes = self.shard(thing);
        if notes.is_empty() || mutant::on(Mutant::ToldIgnored) {
            return None;
        }
        notes.remove(&thing).map(|note| note.kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutant::is_caught;

    const FILE: InodeNumber = InodeNumber::new(7);

    #[test]
    fn a_change_finds_what_was_told_once() {
        is_caught(Mutant::ToldIgnored, || {
            let told = Told::default();
            assert_eq!(told.tell(1, Kept::Attributes(FILE)), VALID_BESIDE);
            assert_eq!(told.tell(1, Kept::Attributes(FILE)), VALID_BESIDE);
            assert_eq!(told.tell(2, Kept::Name(FILE, b"a"[..].into())), VALID_BESIDE);
            assert_eq!(told.take(1), Some(Kept::Attributes(FILE)));
            assert_eq!((told.take(1), told.take(3)), (None, None));
            assert_eq!(told.take(2), Some(Kept::Name(FILE, b"a"[..].into())));
        });
    }

    #[test]
    fn of_two_things_with_one_number_one_is_noted() {
        let told = Told::default();
        assert_eq!(told.tell(1, Kept::Name(FILE, b"a"[..].into())), VALID_BESIDE);
        assert_eq!(told.tell(1, Kept::Name(FILE, b"b"[..].into())), Duration::ZERO);
        assert_eq!(told.take(1), Some(Kept::Name(FILE, b"a"[..].into())));
    }

    #[test]
    fn what_is_not_noted_is_not_kept() {
        let told = Told::default();
        for number in 0..2 * NOTES_MAX as u64 {
            let is_noted = told.tell(number, Kept::Attributes(InodeNumber::new(number))) == VALID_BESIDE;
            assert_eq!(is_noted, number < NOTES_MAX as u64);
            assert_eq!(told.shard(number).contains_key(&number), is_noted);
        }
    }
}
