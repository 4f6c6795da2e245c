//! Pages of files that somebody else keeps ([KV6] of `lib.rs`).

use std::ops::Range;

use tandemfs_format::InodeNumber;

use crate::Vfs;

/// A change in progress; dropping it ends it.
pub trait Change {}

/// Keeps pages of files, which may have been changed there: the kernel behind a mount of the same file system. It asks for names and
/// attributes each time, so only data is told.
///
/// Calls may wait for requests of the mount, so they come from threads that serve none, and without locks of the file system.
pub trait Caches: Send + Sync {
    /// Has changed pages of a file written to the file system. What was stored there before the call can be read afterwards.
    fn settle(&self, file: InodeNumber);

    /// Begins a change of bytes by somebody else, which ends when the value is dropped. From then on nobody sees older bytes, and older bytes
    /// never reach the file system.
    fn change(&self, file: InodeNumber, bytes: Range<u64>) -> Box<dyn Change + '_>;
}

impl Vfs {
    pub(crate) fn settle(&self, file: InodeNumber) {
        if let Some(caches) = &self.caches {
            caches.settle(file);
        }
    }

    pub(crate) fn changing(&self, file: InodeNumber, bytes: Range<u64>) -> Option<Box<dyn Change + '_>> {
        self.caches.as_ref().map(|caches| caches.change(file, bytes))
    }
}
