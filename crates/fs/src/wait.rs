//! Operations that do not wait: a thread that serves many clients from one loop tries an operation inside of [`no_wait`]; what would wait
//! returns `WouldWait`, and the caller hands the whole operation to a thread that may wait.
//!
//! [NW1] A lock that may be held over a commit, a load of metadata, block I/O or another wait is a [`LongMutex`] or a [`LongRwLock`]. Its
//!       `lock`, `read` and `write` return a `Result`, so that no caller can forget the refusal. `lock_waiting` and its like are for work
//!       that never runs in `no_wait`; a debug build panics where it does.
//! [NW2] What waits for anything else asks [`may_wait`] first, before it takes, stores or counts anything for it.
//! [NW3] `WouldWait` means that nothing was changed: no record was written, the space that was taken is given back, no operation is
//!       counted. So the operation can be repeated as a whole. Bytes stored to free slots of logs, or behind the recorded end of a log
//!       (RULES R10), are no change.
//! [NW4] The first commit ends the refusals of its scope, since the scope cannot be repeated any more. So an operation that would commit
//!       twice, or wait after its commit, is refused before it begins. What was refused does not commit, and is answered `WouldWait`, whatever
//!       was made of the refusal on its way (a fallback, damage).
//! [NW5] Giving back waits for no lock of [NW1] either: freed lines of a region that is locked go to a list of their own, which the next
//!       holder of that lock empties (`alloc/regions.rs`). An inode whose last holder goes inside of `no_wait` is removed by the next
//!       removal, by the background thread, or by whoever looks after it (`FileSystem::remove_left_behind`).
//! [NW6] A thread that may wait, but has others to serve, runs an operation inside of [`announcing`]: before its first wait of [NW1] or [NW2]
//!       it says so, once, holding whatever it holds. So what it calls takes no lock of the file system and does not wait. Nothing is
//!       refused there, and the operation runs once.
//!
//! | wait | held or ended by | for | answer |
//! |---|---|---|---|
//! | lock of an inode, of several; a directory's index | a change: its commit, metadata that it loads | a record, page loads | try |
//! | range lock of a file | reads, writes, write-back, compaction | block I/O and commit | look, no waiting |
//! | leases on the range | holders outside of the file system | up to `RECALL_MAX` | refused, nothing is recalled |
//! | a lease for stores on the range | a program's threads inside of it; the closing of its pages | up to `STORES_END_MAX`; a window's checksums | refused, the program is not asked |
//! | rename lock | the move of a directory | a rename | try |
//! | shard of inodes, shard of metadata pages | who loads a page | one page load | try |
//! | a region of the allocator | who raises its mark, lets a unit leave | zeroing, a commit | try; no mark is raised |
//! | journal gate; a ring | a checkpoint, an unmount; a commit | an instant; a record | try; any ring |
//! | room in the ring, too many dirty pages, transaction numbers used up | a checkpoint, a cleaning of the drive | all dirty pages | refused |
//! | a page of metadata that is not in memory | the drive: by loads, or by a block read where the windows overlap | | loads are done, a block read is refused |
//! | the index of a directory that is not in memory | page loads, as many as the directory has | | refused above 16 KiB |
//! | sectors: read, write, FLUSH, discard | the drive, the group of a FLUSH | an I/O | refused |
//! | no space: checkpoint, departure of units, compaction, leaving threads | `shortage.rs` | up to seconds | refused |
//!
//! Short locks are taken in `no_wait` as elsewhere: pools and bits of the allocators, the bytes of one host copy, lists and counters in host
//! memory. Their holders run without a wait, but may move the lines of one page to or from the device.
//!
//! The mode belongs to the thread, not to the arguments: signatures stay as they are, and the doors' layers between (`vfs`) need not know it.
//! It is looked at before a lock of [NW1] is taken: one load of a variable of the thread.

use crate::error::{Error, Result};
use crate::mutant::{Mutant, on};
use crate::sync::patience::{self, Patience};
use crate::sync::{EXPLORED, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::waits::LOCK_WAITS;

/// Runs operations of a file system on this thread without waiting. The outermost of nested calls counts. Operations that always wait
/// (scrubs, unmounts, whatever returns no `Result`) do not belong in here.
///
/// # Errors
/// [`Error::WouldWait`] if the operation would have waited; then it has changed nothing. Else as `operation`.
#[inline]
pub fn no_wait<T, E: From<Error>>(operation: impl FnOnce() -> std::result::Result<T, E>) -> std::result::Result<T, E> {
    let Some(scope) = Scope::open() else { return operation() };
    let result = operation();
    match scope.close() {
        Patience::Refused => Err(E::from(Error::WouldWait)), // [NW4]
        _ => result,
    }
}

/// Runs operations of a file system on this thread, which waits as usual, but calls `tell` once before it first does ([NW6]). Inside of
/// [`no_wait`], or of another such call, nothing is announced to `tell`.
#[inline]
pub fn announcing<T>(tell: fn(), operation: impl FnOnce() -> T) -> T {
    let _scope = patience::begin_announcing(tell).then_some(Scope);
    operation()
}

/// Says that this thread is about to wait, where that is announced; it is never refused. For layers above the file system, before a wait
/// that no operation inside of [`no_wait`] comes to.
#[inline]
pub fn announce_wait() {
    if patience::is_bound() && !on(Mutant::WaitNotAnnounced) {
        patience::announce();
    }
}

/// An open scope; a panic ends it too.
struct Scope;

impl Scope {
    #[inline]
    fn open() -> Option<Self> {
        patience::begin().then_some(Self)
    }

    #[inline]
    fn close(self) -> Patience {
        patience::patience()
    }
}

impl Drop for Scope {
    #[inline]
    fn drop(&mut self) {
        patience::end();
    }
}

/// Refuses the wait that the caller is about to begin, if this thread does not wait ([NW2]). Layers above the file system ask it too: before a
/// wait of their own, and before the first of two changes ([NW4]).
///
/// # Errors
/// [`Error::WouldWait`] inside of [`no_wait`], until something is committed.
#[inline]
pub fn may_wait() -> Result<()> {
    if patience::is_bound() { refused_or_announced() } else { Ok(()) }
}

/// Before a commit: an operation of which something was refused does not commit, even if it found another way ([NW4]).
#[inline]
pub(crate) fn may_commit() -> Result<()> {
    if patience::patience() == Patience::Refused { Err(Error::WouldWait) } else { Ok(()) }
}

/// Whether the calling operation runs inside of [`no_wait`], even if it has committed already: it leaves to others what can be done later.
#[inline]
pub fn leaves_to_others() -> bool {
    matches!(patience::patience(), Patience::Tries | Patience::Refused | Patience::Committed)
}

#[cold]
fn refused_or_announced() -> Result<()> {
    if patience::tries() {
        patience::refuse();
        return Err(Error::WouldWait);
    }
    announce_wait(); // [NW6]
    Ok(())
}

/// Takes a lock of [NW1]: by `attempt` first where a wait is refused or announced.
#[inline]
fn take<G>(attempt: impl FnOnce() -> Option<G>, wait: impl FnOnce() -> G) -> Result<G> {
    if patience::is_bound() {
        if let Some(guard) = attempt() {
            return Ok(guard);
        }
        refused_or_announced()?;
        return Ok(LOCK_WAITS.lock.timed(wait));
    }
    Ok(wait_for(attempt, wait))
}

/// Waits for a lock, and notes how long if it is held. An attempt costs what taking a free lock costs; in an explored schedule it would be
/// one step more.
#[inline]
fn wait_for<G>(attempt: impl FnOnce() -> Option<G>, wait: impl FnOnce() -> G) -> G {
    if EXPLORED {
        return wait();
    }
    attempt().unwrap_or_else(|| LOCK_WAITS.lock.timed(wait))
}

/// Takes a lock of [NW1] outside of [`no_wait`].
#[inline]
fn take_waiting<G>(attempt: impl FnOnce() -> Option<G>, wait: impl FnOnce() -> G) -> G {
    debug_assert!(!patience::tries(), "[NW1]");
    if patience::is_bound() {
        if let Some(guard) = attempt() {
            return guard;
        }
        announce_wait();
        return LOCK_WAITS.lock.timed(wait);
    }
    wait_for(attempt, wait)
}

/// A lock that may be held for long ([NW1]).
#[derive(Debug, Default)]
pub(crate) struct LongMutex<T>(Mutex<T>);

impl<T> LongMutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// # Errors
    /// `WouldWait`.
    #[inline]
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, T>> {
        take(|| self.0.try_lock(), || self.0.lock())
    }

    pub(crate) fn lock_waiting(&self) -> MutexGuard<'_, T> {
        take_waiting(|| self.0.try_lock(), || self.0.lock())
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock()
    }
}

/// A lock with shared holders that may be held for long ([NW1]).
#[derive(Debug, Default)]
pub(crate) struct LongRwLock<T>(RwLock<T>);

impl<T> LongRwLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(RwLock::new(value))
    }

    /// # Errors
    /// `WouldWait`.
    #[inline]
    pub(crate) fn read(&self) -> Result<RwLockReadGuard<'_, T>> {
        take(|| self.0.try_read(), || self.0.read())
    }

    /// # Errors
    /// `WouldWait`.
    #[inline]
    pub(crate) fn write(&self) -> Result<RwLockWriteGuard<'_, T>> {
        take(|| self.0.try_write(), || self.0.write())
    }

    pub(crate) fn read_waiting(&self) -> RwLockReadGuard<'_, T> {
        take_waiting(|| self.0.try_read(), || self.0.read())
    }

    pub(crate) fn write_waiting(&self) -> RwLockWriteGuard<'_, T> {
        take_waiting(|| self.0.try_write(), || self.0.write())
    }

    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.0.try_read()
    }

    pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.0.try_write()
    }
}
