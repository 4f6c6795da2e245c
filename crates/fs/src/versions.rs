//! What answers depend on, for those who keep them: whoever publishes versions is told of each thing that is about to change, and an operation
//! can be asked which things it has read.
//!
//! A thing is the rights of an inode (all that a walk through it is decided by: type, mode, owner, access list, parent, whether it has names),
//! its attributes (what `stat` shows), its bytes, one name in one directory, the entries of a directory, or everything there is.
//!
//! [VS1] A version is raised where the change enters its transaction, which is under the exclusive lock of the inode that the thing belongs to,
//!       and the lock is kept until the change can be seen. Every change of an inode passes `InCoreInode::put`, every change of a name one of
//!       the three plans of `DirectoryIndex`, and the end of an inode `plan_free`; the one change that is not stored (times of an inode
//!       without names) says so itself. All locks of a change are kept until its last thing is raised.
//! [VS2] A thing is noted where it is read, under the same lock, shared. What was read before it was noted could have changed in between.
//! [VS4] Bytes are noted under the lock of the inode, with their range held: whoever changes bytes has their range exclusively until after the
//!       commit that raises the version, and a new size is raised and seen under the inode's lock. Who finds them in host memory holds no range: he notes them while
//!       their pages are there, which go before the change ([FP4] of `cache/file_pages.rs`). A file that is mapped changes by stores that
//!       nobody sees, so none of its bytes are kept, and a new mapping raises their version while it has the range.
//!       A file that is lent for stores ([SL6] of `data/lent_stores.rs`) has other times after each of them: no attributes of it are kept, and the
//!       lease raises their version, and that of its bytes, when it can be seen that there is one. Whoever reads its bytes ends the lease first.
//! [VS6] That a file has nothing left to be synced depends on its bytes, and is not kept of a file that is mapped. The version is noted before the
//!       look for mappings, and a new mapping raises it behind its pin: so whoever missed the pin has the older version.
//! [VS5] Places of bytes in the memory zone have versions of their own, a window of a file each ([LM1]–[LM5] of `data/lent.rs`).
//! [VS7] The entries of a directory have a version of their own, which each change of one of its names raises with that of the name: its attributes are the
//!       same behind two changes within one tick of the clock. What else a listing shows (`..`, that there is one) is of its rights.
//! [VS8] That somebody may be told by the kernel of what happens to files has a version, which whoever learns first raises before that may be so.
//! [VS9] An inode may lose its last name while somebody holds it. Whoever publishes versions is told so, behind the commit: the versions of its names are
//!       raised by then. No inode is locked at that moment.
//! [VS3] A transaction that fails afterwards has raised versions for nothing, which costs those who keep answers a question.

use std::cell::{Cell, RefCell};
use std::sync::OnceLock;

use smallvec::SmallVec;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::Inode;

use crate::mutant::{Mutant, on};

/// Versions of things, published to those who keep answers. A thing is a number; several may have one version.
pub trait Versions: Send + Sync {
    /// A thing is about to change. Whoever reads it waits for a lock that the caller has. Never waits.
    fn raise(&self, thing: u64);

    /// Where the version of a thing is published, and what it is. Never waits.
    fn current(&self, thing: u64) -> (u32, u64);

    /// An inode that somebody holds has lost its last name: who holds it for later use alone gives it up. The caller has no inode locked ([VS9]).
    fn is_nameless(&self, _: InodeNumber) {}
}

/// What a version is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Thing {
    Everything,
    /// [VS8]
    Watchers,
    Rights(InodeNumber),
    Attributes(InodeNumber),
    Bytes(InodeNumber),
    /// Where the bytes of a window of a file are, and which they are.
    Places(InodeNumber, u64),
    /// The same of all windows of a file.
    AllPlaces(InodeNumber),
    /// A name by its hash, in a directory.
    Name(InodeNumber, u32),
    /// Which names a directory has, and where they lead.
    Entries(InodeNumber),
}

impl Thing {
    /// Numbers of different things may be the same.
    fn number(self) -> u64 {
        let (inode, which) = match self {
            Self::Everything => (0, 0),
            Self::Watchers => (0, 8),
            Self::Rights(inode) => (inode.get(), 1),
            Self::Attributes(inode) => (inode.get(), 2),
            Self::Bytes(inode) => (inode.get(), 4),
            Self::AllPlaces(inode) => (inode.get(), 5),
            Self::Places(inode, window) => (inode.get(), window << 3 | 6),
            Self::Entries(inode) => (inode.get(), 7),
            Self::Name(inode, hash) => (inode.get(), u64::from(hash) << 32 | 3),
        };
        inode.wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(29) ^ which.wrapping_mul(0x94d0_49bb_1331_11eb)
    }
}

/// Windows that one change of a file raises by themselves; more are raised by the version of all.
const WINDOWS_MAX: u64 = 8;
/// Most things of an operation that are noted.
const NOTES_MAX: usize = 64;
/// Of most operations.
const NOTES_USUAL: usize = 16;

#[derive(Debug, Clone, Copy)]
struct Note {
    thing: Thing,
    place: u32,
    version: u64,
}

/// The things that an operation has read, with their versions.
#[derive(Debug, Default, Clone)]
pub struct Noted {
    notes: SmallVec<[Note; NOTES_USUAL]>,
    has_more: bool,
}

impl Noted {
    /// Places of versions and their values, of all things that decide where a path leads and who may go there, and with `attributes_of` what
    /// `stat` shows of that inode and that nobody watches, if that was noted. None if not all were noted.
    pub fn versions(&self, attributes_of: Option<InodeNumber>) -> impl Iterator<Item = (u32, u64)> {
        let is_part = move |thing: Thing| match thing {
            Thing::Attributes(inode) => Some(inode) == attributes_of,
            Thing::Watchers => attributes_of.is_some(),
            _ => true,
        };
        let count = if self.has_more { 0 } else { self.notes.len() };
        self.notes[..count].iter().filter(move |note| is_part(note.thing)).map(|note| (note.place, note.version))
    }
}

thread_local! {
    static IS_NOTING: Cell<bool> = const { Cell::new(false) };
    static NOTED: RefCell<Noted> = RefCell::default();
}

/// Ends the notes of this thread, also by a panic.
struct Noting;

impl Drop for Noting {
    fn drop(&mut self) {
        IS_NOTING.set(false);
    }
}

/// Where versions are published, if anybody keeps answers.
#[derive(Default)]
pub(crate) struct Published(OnceLock<Box<dyn Versions>>);

impl Published {
    /// False if versions are published already.
    pub(crate) fn set(&self, versions: Box<dyn Versions>) -> bool {
        self.0.set(versions).is_ok()
    }

    #[inline]
    fn raise(&self, thing: Thing) {
        if let Some(versions) = self.0.get() {
            versions.raise(thing.number());
        }
    }

    /// A locked inode changes ([VS1]); without an old version it is a new one.
    pub(crate) fn inode_changes(&self, number: InodeNumber, old: Option<&Inode>, new: &Inode) {
        if self.0.get().is_none() {
            return;
        }
        let rights = |inode: &Inode| (inode.mode, inode.uid, inode.gid, inode.parent, inode.nlink == 0, inode.generation);
        if old.is_none_or(|old| (old.attributes != new.attributes || rights(old) != rights(new)) && !on(Mutant::RightsNotRaised)) {
            self.raise(Thing::Rights(number));
        }
        let shown = |inode: &Inode| (inode.ctime, inode.mtime, inode.atime, inode.size, inode.space_512, inode.nlink, inode.attributes);
        if old.is_none_or(|old| (shown(old) != shown(new) || rights(old) != rights(new)) && !on(Mutant::AttributesNotRaised)) {
            self.raise(Thing::Attributes(number));
        }
        if old.is_some_and(|old| old.change_count != new.change_count) && !new.is_directory() && !on(Mutant::BytesNotRaised) {
            self.raise(Thing::Bytes(number));
        }
    }

    /// Bytes of an inode may change from now on without a commit; the caller has their range, or nobody keeps them who asks later ([VS4]).
    pub(crate) fn bytes_change(&self, number: InodeNumber) {
        self.raise(Thing::Bytes(number));
        self.raise(Thing::AllPlaces(number));
    }

    /// A file is lent for stores from now on; the caller has its lock, and whoever has it later sees the lease ([SL6]).
    pub(crate) fn stores_begin(&self, number: InodeNumber) {
        self.raise(Thing::Attributes(number));
        self.bytes_change(number);
    }

    /// Somebody may change these windows of a file, which were lent: he has got their range, and has changed nothing yet ([VS5]).
    pub(crate) fn places_change(&self, number: InodeNumber, first: u64, last: u64) {
        match last - first < WINDOWS_MAX {
            _ if on(Mutant::PlacesNotRaised) => {}
            true => (first..=last).for_each(|window| self.raise(Thing::Places(number, window))),
            false => self.raise(Thing::AllPlaces(number)),
        }
    }

    /// The place of a window of a file is looked up; the caller has its range ([VS5]).
    pub(crate) fn note_places(&self, number: InodeNumber, window: u64) {
        self.note(|| Thing::AllPlaces(number));
        self.note(|| Thing::Places(number, window));
    }

    /// A locked inode is freed ([VS1]).
    pub(crate) fn inode_ends(&self, number: InodeNumber) {
        self.raise(Thing::Rights(number));
        self.raise(Thing::Attributes(number));
        self.raise(Thing::AllPlaces(number));
    }

    /// A name of a locked directory gets, loses or changes its inode ([VS1]).
    pub(crate) fn name_changes(&self, directory: InodeNumber, hash: u32) {
        if !on(Mutant::NameNotRaised) {
            self.raise(Thing::Name(directory, hash));
        }
        if !on(Mutant::EntriesNotRaised) {
            self.raise(Thing::Entries(directory)); // [VS7]
        }
    }

    /// Something changes that any answer may depend on, and is not read from the file system.
    pub(crate) fn everything_changes(&self) {
        self.raise(Thing::Everything);
    }

    /// Somebody may be told by the kernel of what happens to files, from now on ([VS8]).
    pub(crate) fn watchers_come(&self) {
        self.raise(Thing::Watchers);
    }

    /// Nobody is told anything by the kernel, as far as is known when this has been called ([VS8]).
    pub(crate) fn note_watchers(&self) {
        self.note(|| Thing::Watchers);
    }

    pub(crate) fn is_nameless(&self, number: InodeNumber) {
        if let Some(versions) = self.0.get() {
            versions.is_nameless(number);
        }
    }

    #[inline]
    fn note(&self, thing: impl FnOnce() -> Thing) {
        if IS_NOTING.get() {
            self.note_down(thing());
        }
    }

    fn note_down(&self, thing: Thing) {
        let Some(versions) = self.0.get() else { return };
        let (place, version) = versions.current(thing.number());
        NOTED.with_borrow_mut(|noted| match noted.notes.len() < NOTES_MAX {
            true => noted.notes.push(Note { thing, place, version }),
            false => noted.has_more = true,
        });
    }

    /// The rights of an inode were read; the caller has its lock ([VS2]).
    #[inline]
    pub(crate) fn note_rights(&self, inode: InodeNumber) {
        self.note(|| Thing::Rights(inode));
    }

    /// All that is known of an inode was read; the caller has its lock ([VS2]). Nothing is kept of one that is lent for stores.
    #[inline]
    pub(crate) fn note_inode(&self, inode: InodeNumber, is_lent: impl FnOnce() -> bool) {
        if !IS_NOTING.get() {
            return;
        }
        if is_lent() {
            return NOTED.with_borrow_mut(|noted| noted.has_more = true);
        }
        self.note_down(Thing::Rights(inode));
        self.note_down(Thing::Attributes(inode));
    }

    /// Bytes of an inode are read; the caller has its lock and their range ([VS4]).
    #[inline]
    pub(crate) fn note_bytes(&self, inode: InodeNumber, is_mapped: impl FnOnce() -> bool) {
        if !IS_NOTING.get() {
            return;
        }
        match is_mapped() {
            true => NOTED.with_borrow_mut(|noted| noted.has_more = true),
            false => self.note_down(Thing::Bytes(inode)),
        }
    }

    /// All that was written to an inode is durable, unless it is mapped ([VS6]).
    pub(crate) fn note_synced(&self, inode: InodeNumber, is_mapped: impl FnOnce() -> bool) {
        if !IS_NOTING.get() {
            return;
        }
        self.note_down(Thing::Bytes(inode));
        if is_mapped() && !on(Mutant::SyncedThoughMapped) {
            NOTED.with_borrow_mut(|noted| noted.has_more = true);
        }
    }

    /// A name was looked up; the caller has the lock of the directory ([VS2]).
    #[inline]
    pub(crate) fn note_name(&self, directory: InodeNumber, hash: impl FnOnce() -> u32) {
        self.note(|| Thing::Name(directory, hash()));
    }

    /// The entries of a directory are listed; the caller has its lock until they are ([VS2], [VS7]).
    pub(crate) fn note_entries(&self, directory: InodeNumber) {
        self.note_rights(directory);
        self.note(|| Thing::Entries(directory));
    }

    /// Runs an operation, and hands its result on with what it has read. Calls do not nest. Nothing is noted where nothing is published.
    pub(crate) fn noting<T, R>(&self, operation: impl FnOnce() -> T, then: impl FnOnce(T, &Noted) -> R) -> R {
        if self.0.get().is_none() {
            return then(operation(), &Noted::default());
        }
        NOTED.with_borrow_mut(|noted| {
            noted.notes.clear();
            noted.has_more = false;
        });
        IS_NOTING.set(true);
        let noting = Noting;
        self.note(|| Thing::Everything);
        let result = operation();
        drop(noting);
        NOTED.with_borrow(|noted| then(result, noted))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use super::*;

    #[derive(Default)]
    struct Counting(AtomicU64);

    impl Versions for Arc<Counting> {
        fn raise(&self, _: u64) {
            self.0.fetch_add(1, SeqCst);
        }

        fn current(&self, thing: u64) -> (u32, u64) {
            (thing as u32, self.0.load(SeqCst))
        }
    }

    const INODE: InodeNumber = InodeNumber::new(9);

    #[test]
    fn only_what_an_operation_reads_is_noted() {
        let (published, counting) = (Published::default(), Arc::<Counting>::default());
        published.note_inode(INODE, || false);
        let versions = |operation: &dyn Fn(), of| published.noting(operation, |(), noted| noted.versions(of).count());
        assert_eq!(versions(&|| published.note_inode(INODE, || false), Some(INODE)), 0, "nothing is published");
        assert!(published.set(Box::new(counting)) && !published.set(Box::new(Arc::<Counting>::default())));
        published.note_inode(INODE, || false);
        let name_and_inode = || {
            published.note_name(InodeNumber::ROOT, || 7);
            published.note_inode(INODE, || false);
        };
        assert_eq!((versions(&name_and_inode, None), versions(&name_and_inode, Some(INODE))), (3, 4), "with everything");
        published.note_inode(INODE, || false);
        assert_eq!(versions(&|| (), None), 1);
        let many = || (0..100).for_each(|_| published.note_inode(INODE, || false));
        assert_eq!(versions(&many, None), 0, "what was not noted whole is not kept");
    }
}
