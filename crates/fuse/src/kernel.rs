//! What the kernel is told without having asked. Failures are not passed on: a kernel that has forgotten an inode has nothing to drop, and
//! after the end of the mount nobody is left to be told.

use std::ops::Range;
use std::sync::OnceLock;

use fuser::{INodeNo, Notifier};
use tandemfs_format::InodeNumber;

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
        let length = i64::try_from(bytes.end - bytes.start).unwrap_or(i64::MAX);
        self.tell("drop pages", |kernel| kernel.inval_inode(INodeNo(file.get()), bytes.start as i64, length));
    }

    /// Puts zeros into a cached page, where there is one. Waits as `drop_pages` does.
    pub(crate) fn put_zeros(&self, file: InodeNumber, bytes: Range<u64>) {
        let zeros = vec![0; (bytes.end - bytes.start) as usize];
        self.tell("put zeros", |kernel| kernel.store(INodeNo(file.get()), bytes.start, &zeros));
    }

    /// Drops attributes, so that the kernel asks for them again. Waits for no request.
    pub(crate) fn drop_attributes(&self, file: InodeNumber) {
        self.tell("drop attributes", |kernel| kernel.inval_inode(INodeNo(file.get()), -1, 0));
    }

    /// Whether the kernel has an inode in memory. One without names that it has not was closed; FORGET is on its way.
    pub(crate) fn knows(&self, file: InodeNumber) -> bool {
        self.0.get().is_none_or(|kernel| kernel.knows(INodeNo(file.get())).unwrap_or(true))
    }

    fn tell(&self, what: &'static str, tell: impl FnOnce(&Notifier) -> std::io::Result<()>) {
        if let Some(kernel) = self.0.get()
            && let Err(error) = tell(kernel)
        {
            tracing::debug!(what, %error, "the kernel was not told");
        }
    }
}
