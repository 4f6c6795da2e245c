//! Which files are open for writing behind the kernel's write-back cache. The space that such a file takes changes whenever the kernel
//! writes back, and the kernel does not ask again by itself while it is open; on close it does.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tandemfs_format::InodeNumber;

/// Files open for writing, with the number of openers.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    open: Mutex<HashMap<u64, u32>>,
    /// Entries of `open`: nearly always few or none, and then nobody needs the lock.
    files: AtomicUsize,
}

impl Writers {
    /// One more opener.
    pub(crate) fn add(&self, inode: InodeNumber) {
        let mut open = self.lock();
        *open.entry(inode.get()).or_insert(0) += 1;
        self.files.store(open.len(), Ordering::Release);
    }

    /// One less.
    pub(crate) fn remove(&self, inode: InodeNumber) {
        let mut open = self.lock();
        if let Some(openers) = open.get_mut(&inode.get()) {
            *openers -= 1;
            if *openers == 0 {
                open.remove(&inode.get());
            }
        }
        self.files.store(open.len(), Ordering::Release);
    }

    /// Whether a file is open for writing.
    pub(crate) fn contains(&self, inode: InodeNumber) -> bool {
        self.files.load(Ordering::Acquire) > 0 && self.lock().contains_key(&inode.get())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, u32>> {
        self.open.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_until_its_last_writer_closes() {
        let writers = Writers::default();
        let (one, other) = (InodeNumber::new(5), InodeNumber::new(6));
        assert!(!writers.contains(one));
        writers.add(one);
        writers.add(one);
        writers.remove(one);
        assert!(writers.contains(one) && !writers.contains(other));
        writers.remove(one);
        writers.remove(one);
        assert!(!writers.contains(one));
    }
}
