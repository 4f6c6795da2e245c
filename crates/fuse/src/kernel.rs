//! Notifications to the kernel. Failures are only logged: an inode that the kernel has forgotten has nothing to drop, and after the end of
//! the mount there is no receiver.

use std::io;
use std::ops::Range;
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tandemfs_format::InodeNumber;
use tandemfs_fs::FileSystem;
use tandemfs_wire::{Contents, Notifier, NotifyError, Zeros};

use crate::at_once::AtOnce;
use crate::overtaken::{BEFORE_WAITS_MAX, Overtaken, ReadAgain};

/// How often pages are dropped that are read meanwhile ([OT1] of `overtaken.rs`).
const DROPS_MAX: u32 = 4;

/// The kernel has copied a page that it has read within this time.
const COPIES_WITHIN: Duration = Duration::from_millis(10);

/// The kernel, once the session has begun.
#[derive(Clone)]
pub(crate) struct Kernel {
    fs: Arc<FileSystem>,
    notifier: OnceLock<Notifier>,
    /// Pages that are dropped while WRITEs are under way.
    pub(crate) overtaken: Arc<Overtaken>,
    pub(crate) dropping: Arc<AtOnce>,
}

impl Kernel {
    pub(crate) fn new(fs: &Arc<FileSystem>) -> io::Result<Self> {
        Ok(Self { fs: Arc::clone(fs), notifier: OnceLock::new(), overtaken: Arc::default(), dropping: Arc::new(AtOnce::start()?) })
    }

    pub(crate) fn connect(&self, notifier: Notifier) {
        let _ = self.notifier.set(notifier);
    }

    /// Whether the mount still stands.
    pub(crate) fn is_connected(&self) -> bool {
        self.notifier.get().is_some_and(Notifier::is_connected)
    }

    /// Writes back and drops the pages of a range; drops the attributes as well. This waits for requests of those pages, so only a thread
    /// that serves none may call it ([LT1] of `later.rs`).
    pub(crate) fn drop_pages(&self, file: InodeNumber, bytes: Range<u64>) {
        if bytes.is_empty() {
            return;
        }
        let contents = Contents::Range { offset: bytes.start, length: bytes.end - bytes.start };
        for _ in 0..DROPS_MAX {
            let begun = self.overtaken.drop_begins(file, &|file| self.fs.is_held(file)); // [OT1]
            if !self.tell("drop pages", |kernel| kernel.invalidate_inode(file.get(), contents)) {
                return self.overtaken.drop_fails(file);
            }
            if !self.overtaken.drop_ends(file, &bytes, begun) {
                return;
            }
        }
    }

    /// Drops pages that may have older bytes than a WRITE which is not answered yet ([OT3]), and waits for that as long as it may ([OT4]).
    pub(crate) fn drop_read_again(&self, file: InodeNumber, again: &ReadAgain) {
        let (kernel, parts) = (self.clone(), again.parts().to_vec());
        let is_run = self.dropping.run(move || parts.into_iter().for_each(|part| kernel.drop_pages(file, part)));
        if is_run && !again.wait_until_dropped() {
            tracing::debug!(inode = file.get(), "a page is locked for its WRITE, or the kernel is slow to drop it");
        }
    }

    /// Drops pages of which none is said to be locked for a WRITE that waits for this. One that is locked all the same is dropped behind it: this waits
    /// [`BEFORE_WAITS_MAX`] at most.
    pub(crate) fn drop_unlocked_pages(&self, file: InodeNumber, bytes: Range<u64>) {
        let (kernel, (dropped, is_dropped)) = (self.clone(), channel());
        let is_run = self.dropping.run(move || {
            kernel.drop_pages(file, bytes);
            let _left = dropped.send(());
        });
        if is_run && is_dropped.recv_timeout(BEFORE_WAITS_MAX).is_err() {
            tracing::debug!(inode = file.get(), "pages of a write that went elsewhere are dropped behind it");
        }
    }

    /// Zeroes bytes of a page, if it is cached. It is for requests during which the kernel sends no WRITE of the file. A thread that waits for such a WRITE may
    /// hold the page locked. So this waits [`BEFORE_WAITS_MAX`] at most, and then the bytes stay ([OT7]).
    pub(crate) fn put_zeros(&self, file: InodeNumber, parts: Vec<Range<u64>>) {
        let zeros = match Zeros::new() {
            Ok(zeros) => Arc::new(zeros),
            Err(error) => return tracing::warn!("bytes behind the end of a file may appear in it: {error}"),
        };
        let (kernel, (put, is_put), page) = (self.clone(), channel(), Arc::clone(&zeros));
        let store = move || {
            for part in parts {
                let bytes = (part.end - part.start) as usize;
                kernel.tell("put zeros", |kernel| kernel.store_zeros(file.get(), part.start, bytes, &page));
            }
            let _left = put.send(());
        };
        if !self.dropping.run(store) || is_put.recv_timeout(BEFORE_WAITS_MAX).is_ok() {
            return;
        }
        tracing::debug!(inode = file.get(), "a page is locked for a WRITE that waits; bytes behind the end of its file are not zeroed");
        if let Err(error) = zeros.take_back() {
            tracing::warn!("zeros for the end of a file may come late: {error}");
        }
        let _done = is_put.recv_timeout(COPIES_WITHIN); // The kernel may be copying what it has read.
    }

    /// Tells the kernel that a file has at least so many bytes. Waits like `drop_pages`.
    pub(crate) fn raise_size(&self, file: InodeNumber, size: u64) {
        self.tell("tell a size", |kernel| kernel.raise_size(file.get(), size));
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
        self.notifier.get().is_none_or(|kernel| kernel.invalidate_inode(file.get(), Contents::None) != Err(NotifyError::NotFound))
    }

    /// Whether the kernel was told, or has no need to know.
    fn tell(&self, what: &'static str, tell: impl FnOnce(&Notifier) -> Result<(), NotifyError>) -> bool {
        match self.notifier.get().map(tell) {
            None | Some(Ok(()) | Err(NotifyError::NotFound)) => true,
            Some(Err(error)) => {
                tracing::debug!(what, %error, "the kernel was not told");
                false
            }
        }
    }
}
