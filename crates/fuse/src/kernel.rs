//! Notifications to the kernel. Failures are only logged: an inode that the kernel has forgotten has nothing to drop, and after the end of
//! the mount there is no receiver.

use std::ops::Range;
use std::sync::OnceLock;

use tandemfs_format::InodeNumber;
use tandemfs_wire::{Contents, Notifier, NotifyError};

/// The notifier, once the session has begun.
#[derive(Debug, Default, Clone)]
pub(crate) struct Kernel(OnceLock<Notifier>);

impl Kernel {
    pub(crate) fn connect(&self, notifier: Notifier) {
        let _ = self.0.set(notifier);
    }

    /// Whether the mount still stands.
    pub(crate) fn is_connected(&self) -> bool {
        self.0.get().is_some_and(Notifier::is_connected)
    }

    /// Writes back and drops the pages of a range; drops the attributes as well. This waits for requests of those pages, so only a thread
    /// that serves none may call it ([LT1] of `later.rs`).
    pub(crate) fn drop_pages(&self, file: InodeNumber, bytes: Range<u64>) {
        if bytes.is_empty() {
            return;
        }
        let contents = Contents::Range { offset: bytes.start, length: bytes.end - bytes.start };
        self.tell("drop pages", |kernel| kernel.invalidate_inode(file.get(), contents));
    }

    /// Zeroes bytes of a cached page, if it is cached. Waits like `drop_pages`.
    pub(crate) fn put_zeros(&self, file: InodeNumber, bytes: Range<u64>) {
        let zeros = vec![0; (bytes.end - bytes.start) as usize];
        self.tell("put zeros", |kernel| kernel.store(file.get(), bytes.start, &zeros));
    }

    /// Tells the kernel that a file has at least these bytes, by putting the last one into its page cache. Waits like `drop_pages`.
    pub(crate) fn put_last_byte(&self, file: InodeNumber, offset: u64, byte: u8) {
        self.tell("tell a size", |kernel| kernel.store(file.get(), offset, &[byte]));
    }

    /// Drops a name, and with it what it is known to stand for. Waits for requests of the directory, so only a thread that serves none may call it.
    pub(crate) fn drop_name(&self, directory: InodeNumber, name: &[u8]) {
        self.tell("drop a name", |kernel| kernel.invalidate_entry(directory.get(), name));
    }

    /// Drops attributes, so that the kernel asks for them again. Does not wait for requests.
    pub(crate) fn drop_attributes(&self, file: InodeNumber) {
        self.tell("drop attributes", |kernel| kernel.invalidate_inode(file.get(), Contents::None));
    }

    /// Whether the kernel has an inode in memory; drops its attributes if so. A nameless inode that the kernel does not have was closed,
    /// and its FORGET is under way.
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
