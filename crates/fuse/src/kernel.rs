//! What the kernel is told without having asked. Failures are not passed on: a kernel that has forgotten an inode has nothing to drop, and
//! after the end of the mount nobody is left to be told.

use std::ops::Range;
use std::sync::OnceLock;

use tandemfs_format::InodeNumber;
use tandemfs_wire::{Contents, Notifier, NotifyError};

/// The way to the kernel, once the session has begun.
#[derive(Debug, Default)]
pub(crate) struct Kernel(OnceLock<Notifier>);

impl Kernel {
    pub(crate) fn connect(&self, notifier: Notifier) {
        let _ = self.0.set(notifier);
    }

    /// Drops the pages that hold a range, which writes changed ones back first; also the attributes. Waits for requests of those pages: only
    /// for a thread that serves none ([LT1] of `later.rs`).
    pub(crate) fn drop_pages(&self, file: InodeNumber, bytes: Range<u64>) {
        if bytes.is_empty() {
            return;
        }
        let contents = Contents::Range { offset: bytes.start, length: bytes.end - bytes.start };
        self.tell("drop pages", |kernel| kernel.invalidate_inode(file.get(), contents));
    }

    /// Puts zeros into a cached page, where there is one. Waits as `drop_pages` does.
    pub(crate) fn put_zeros(&self, file: InodeNumber, bytes: Range<u64>) {
        let zeros = vec![0; (bytes.end - bytes.start) as usize];
        self.tell("put zeros", |kernel| kernel.store(file.get(), bytes.start, &zeros));
    }

    /// Drops attributes, so that the kernel asks for them again. Waits for no request.
    pub(crate) fn drop_attributes(&self, file: InodeNumber) {
        self.tell("drop attributes", |kernel| kernel.invalidate_inode(file.get(), Contents::None));
    }

    /// Whether the kernel has an inode in memory, whose attributes are dropped by that. One without names that it has not was closed; FORGET is
    /// on its way.
    pub(crate) fn knows(&self, file: InodeNumber) -> bool {
        self.0.get().is_none_or(|kernel| kernel.invalidate_inode(file.get(), Contents::None) != Err(NotifyError::NotFound))
    }

    fn tell(&self, what: &'static str, tell: impl FnOnce(&Notifier) -> Result<(), NotifyError>) {
        match self.0.get().map(tell) {
            None | Some(Ok(()) | Err(NotifyError::NotFound)) => {}
            Some(Err(error)) => tracing::debug!(what, %error, "the kernel was not told"),
        }
    }
}
