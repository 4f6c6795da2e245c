//! Notes about files, by number, in bounded tables.
//!
//! [NT1] A table is as large as the number of files that somebody has, within limits. A note goes when nobody has the file any more, which is
//!       asked under the lock of the notes: a FORGET may come after a later LOOKUP of the same number. A note that says what is going on now
//!       stays until that has ended.
//! [NT2] Where there is no room, the notes of files that nobody has go. If most are left then, room is never made again: the table counts as
//!       full, and every file that it does not name counts as noted. So nothing that was noted is missed.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use tandemfs_format::InodeNumber;

use crate::mutant::{self, Mutant};

pub(crate) const SHARDS: usize = 64;
/// Notes in a table.
pub(crate) const NOTES_MAX: usize = 1 << 14;
/// If more of them are left when room was made, the table is full.
const SWEPT_MAX: usize = NOTES_MAX / 2;

/// Whether the kernel or a client has a file.
pub(crate) type IsHeld<'a> = dyn Fn(InodeNumber) -> bool + 'a;

/// What is noted about a file.
pub(crate) trait Note: Default {
    /// Whether it says what is going on now ([NT1]).
    fn is_under_way(&self) -> bool {
        false
    }
}

impl Note for () {}

/// Notes of one kind.
#[derive(Debug)]
pub(crate) struct Notes<N> {
    files: HashMap<InodeNumber, N>,
    is_full: bool,
}

impl<N> Default for Notes<N> {
    fn default() -> Self {
        Self { files: HashMap::new(), is_full: false }
    }
}

impl<N: Note> Notes<N> {
    /// The note about a file, made if there is none; nothing if there is no room for it ([NT2]).
    pub(crate) fn note(&mut self, file: InodeNumber, is_held: &IsHeld<'_>) -> Option<&mut N> {
        if self.files.len() >= NOTES_MAX && !self.is_full && !self.files.contains_key(&file) {
            self.files.retain(|file, note| note.is_under_way() || is_held(*file));
            self.is_full = self.files.len() > SWEPT_MAX;
        }
        if self.is_full { self.files.get_mut(&file) } else { Some(self.files.entry(file).or_default()) }
    }

    /// The same where the note must be there, and soon goes again.
    pub(crate) fn note_in_any_case(&mut self, file: InodeNumber) -> &mut N {
        self.files.entry(file).or_default()
    }

    pub(crate) fn get(&self, file: InodeNumber) -> Option<&N> {
        self.files.get(&file)
    }

    pub(crate) fn get_mut(&mut self, file: InodeNumber) -> Option<&mut N> {
        self.files.get_mut(&file)
    }

    pub(crate) fn remove(&mut self, file: InodeNumber) -> Option<N> {
        self.files.remove(&file)
    }

    /// Somebody has the file no more ([NT1]).
    pub(crate) fn forget(&mut self, file: InodeNumber, is_held: &IsHeld<'_>) {
        let has_ended = self.files.get(&file).is_some_and(|note| !note.is_under_way() || mutant::on(Mutant::ForgottenUnderWay));
        if has_ended && (!is_held(file) || mutant::on(Mutant::ForgottenThoughHeld)) {
            self.files.remove(&file);
        }
    }

    /// Whether files without a note count as noted ([NT2]).
    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }

    pub(crate) fn is_noted(&self, file: InodeNumber) -> bool {
        self.is_full && !mutant::on(Mutant::UnnotedWhereFull) || self.files.contains_key(&file)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }
}

/// The notes about some of the files, and a signal to those who wait for a change of them.
#[derive(Debug, Default)]
pub(crate) struct Shard<T> {
    notes: Mutex<T>,
    pub(crate) changed: Condvar,
}

impl<T> Shard<T> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The notes about all files, each file in one shard.
#[derive(Debug)]
pub(crate) struct Shards<T>(Box<[Shard<T>]>);

impl<T: Default> Default for Shards<T> {
    fn default() -> Self {
        Self((0..SHARDS).map(|_| Shard::default()).collect())
    }
}

impl<T> Shards<T> {
    pub(crate) fn of(&self, file: InodeNumber) -> &Shard<T> {
        &self.0[file.get() as usize % SHARDS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutant::is_caught;

    #[derive(Default)]
    struct UnderWay(bool);

    impl Note for UnderWay {
        fn is_under_way(&self) -> bool {
            self.0
        }
    }

    fn filled(is_under_way: bool, is_held: &IsHeld<'_>) -> Notes<UnderWay> {
        let mut notes = Notes::<UnderWay>::default();
        for number in 1..=NOTES_MAX as u64 {
            notes.note(InodeNumber::new(number), is_held).expect("room").0 = is_under_way;
        }
        notes
    }

    const NEXT: InodeNumber = InodeNumber::new(NOTES_MAX as u64 + 1);
    const LAST: InodeNumber = InodeNumber::new(NOTES_MAX as u64 + 2);

    /// [NT2]
    #[test]
    fn files_that_nobody_has_make_room() {
        let mut notes = filled(false, &|_| false);
        assert!(notes.note(NEXT, &|_| false).is_some());
        assert!(!notes.is_full() && !notes.is_noted(LAST) && !notes.is_noted(InodeNumber::new(1)) && notes.is_noted(NEXT));
    }

    /// [NT2]
    #[test]
    fn without_room_every_file_counts_as_noted() {
        for (is_under_way, is_held) in [(true, false), (false, true)] {
            let mut notes = filled(is_under_way, &|_| is_held);
            assert!(notes.note(NEXT, &|_| is_held).is_none());
            assert!(notes.is_full() && notes.is_noted(NEXT) && notes.is_noted(LAST));
            assert!(notes.note(InodeNumber::new(1), &|_| is_held).is_some(), "one that is there can be changed");
        }
    }

    #[test]
    fn bugs_are_caught() {
        is_caught(Mutant::UnnotedWhereFull, without_room_every_file_counts_as_noted);
        is_caught(Mutant::ForgottenThoughHeld, a_note_stays_while_somebody_has_the_file_or_something_is_under_way);
        is_caught(Mutant::ForgottenUnderWay, a_note_stays_while_somebody_has_the_file_or_something_is_under_way);
    }

    /// [NT1]
    #[test]
    fn a_note_stays_while_somebody_has_the_file_or_something_is_under_way() {
        let mut notes = filled(true, &|_| false);
        let file = InodeNumber::new(1);
        notes.forget(file, &|_| false);
        assert!(notes.is_noted(file));
        notes.get_mut(file).expect("there").0 = false;
        notes.forget(file, &|_| true);
        assert!(notes.is_noted(file));
        notes.forget(file, &|_| false);
        assert!(!notes.is_noted(file));
    }
}
