//! Operations of a thread that serves many callers from one loop ([KV7] of `lib.rs`).

use std::cell::RefCell;

use tandemfs_fs::may_wait;

use crate::Result;
use crate::caches::Change;
use crate::mutant::{Mutant, on};

/// Most bytes that are read or written: a few microseconds of copying.
pub const QUICK_BYTES: u64 = 16 << 10;
/// Largest file whose space is freed: its blocks and logs are visited one by one.
pub const QUICK_FILE_BYTES: u64 = 1 << 20;
/// Most components of paths that a call walks.
pub const QUICK_STEPS: u32 = 32;
/// Most entries of a directory that a call lists.
pub const QUICK_ENTRIES: u32 = 64;

thread_local! {
    static OWED: RefCell<Vec<Box<dyn Change>>> = const { RefCell::new(Vec::new()) };
}

/// Changes that ended inside of [`no_wait`], but for what must be waited for. Dropping them waits. Until then the operation must not be
/// answered, nor begun anew where it was refused.
#[must_use = "dropping it waits"]
#[derive(Default)]
pub struct Owed(Vec<Box<dyn Change>>);

impl Owed {
    /// Whether there is nothing to wait for.
    pub fn is_nothing(&self) -> bool {
        self.0.is_empty()
    }
}

/// Runs an operation on this thread without waiting, and without what takes long by itself. What it leaves to a thread that may wait is
/// returned beside its result; scopes do not nest.
///
/// # Errors
/// `WouldWait` of the file system if it has to be run as a whole by somebody who may wait; then nothing has changed. Else as `operation`.
pub fn no_wait<T>(operation: impl FnOnce() -> Result<T>) -> (Result<T>, Owed) {
    let result = tandemfs_fs::no_wait(operation);
    (result, Owed(OWED.take()))
}

/// Leaves the end of a change to whoever called [`no_wait`].
pub(crate) fn owe(change: Box<dyn Change>) {
    OWED.with_borrow_mut(|owed| owed.push(change));
}

/// Refuses what takes longer than its bound.
pub(crate) fn bounded(amount: u64, most: u64) -> tandemfs_fs::Result<()> {
    if amount <= most || on(Mutant::LongInside) { Ok(()) } else { may_wait() }
}
