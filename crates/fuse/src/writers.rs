//! Which files are open for writing behind the kernel's write-back cache, and what their writers have still to be told.
//!
//! [WR1] The space that such a file takes changes whenever the kernel writes back, and the kernel does not ask again by itself while it keeps
//!       the attributes. They hold for a short time only, and `fsync` drops them where the space has changed since they were told: of one file
//!       only so often in a second, so that a log that is synchronised after each record does not pay one more request for each.
//! [WR2] When bytes that came back from the cache were lost, the next `write` is told: the kernel asks for attributes before a cached
//!       `write`, with the handle of a writer, as soon as it has none that hold. The error is given once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tandemfs_format::InodeNumber;
use tandemfs_wire::Errno;

/// How often in a second `fsync` drops the attributes of a file.
const DROPS_PER_SECOND_MAX: u32 = 100;

/// Files open for writing.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    open: Mutex<HashMap<u64, File>>,
    /// Files that are open: nearly always few or none, and then nobody needs the lock.
    files: AtomicUsize,
}

#[derive(Debug, Default)]
struct File {
    openers: u32,
    /// The space that the kernel was told last, in 512 B.
    told_512: Option<u64>,
    /// When the second began in which drops are counted, and how many there were.
    drops: Option<(Instant, u32)>,
    lost: Option<Errno>,
}

impl Writers {
    /// One more opener.
    pub(crate) fn add(&self, inode: InodeNumber) {
        let mut open = self.lock();
        open.entry(inode.get()).or_default().openers += 1;
        self.files.store(open.len(), Ordering::Release);
    }

    /// One less.
    pub(crate) fn remove(&self, inode: InodeNumber) {
        let mut open = self.lock();
        if let Some(file) = open.get_mut(&inode.get()) {
            file.openers -= 1;
            if file.openers == 0 {
                open.remove(&inode.get());
            }
        }
        self.files.store(open.len(), Ordering::Release);
    }

    /// Whether a file is open for writing.
    pub(crate) fn contains(&self, inode: InodeNumber) -> bool {
        self.with(inode, |_| ()).is_some()
    }

    /// The kernel is told attributes; whether the file is open for writing.
    pub(crate) fn told(&self, inode: InodeNumber, space_512: u64) -> bool {
        self.with(inode, |file| file.told_512 = Some(space_512)).is_some()
    }

    /// Whether attributes are to be dropped, where a file takes so much space now ([WR1]).
    pub(crate) fn must_drop_attributes(&self, inode: InodeNumber, space_512: u64) -> bool {
        self.with(inode, |file| {
            let drops = file.told_512 != Some(space_512) && file.may_drop();
            if drops {
                file.told_512 = Some(space_512);
            }
            drops
        })
        .unwrap_or(false)
    }

    /// Bytes that came back from the cache were lost ([WR2]).
    pub(crate) fn lost(&self, inode: InodeNumber, error: Errno) {
        self.with(inode, |file| file.lost = Some(error));
    }

    /// What a writer is to be told, once.
    pub(crate) fn take_lost(&self, inode: InodeNumber) -> Option<Errno> {
        self.with(inode, |file| file.lost.take()).flatten()
    }

    fn with<T>(&self, inode: InodeNumber, act: impl FnOnce(&mut File) -> T) -> Option<T> {
        if self.files.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.lock().get_mut(&inode.get()).map(act)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, File>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl File {
    fn may_drop(&mut self) -> bool {
        let (_, count) = match &mut self.drops {
            Some(second) if second.0.elapsed() < Duration::from_secs(1) => second,
            second => second.insert((Instant::now(), 0)),
        };
        *count += 1;
        *count <= DROPS_PER_SECOND_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: InodeNumber = InodeNumber::new(5);
    const OTHER: InodeNumber = InodeNumber::new(6);

    #[test]
    fn a_file_is_written_until_its_last_writer_closes() {
        let writers = Writers::default();
        assert!(!writers.contains(ONE));
        writers.add(ONE);
        writers.add(ONE);
        writers.remove(ONE);
        assert!(writers.contains(ONE) && !writers.contains(OTHER));
        writers.remove(ONE);
        writers.remove(ONE);
        assert!(!writers.contains(ONE));
    }

    #[test]
    fn attributes_are_dropped_when_the_space_has_changed_and_not_too_often() {
        let writers = Writers::default();
        assert!(!writers.must_drop_attributes(ONE, 8));
        writers.add(ONE);
        assert!(writers.told(ONE, 8) && !writers.told(OTHER, 8));
        assert!(!writers.must_drop_attributes(ONE, 8));
        assert!(writers.must_drop_attributes(ONE, 16) && !writers.must_drop_attributes(ONE, 16));
        let began = Instant::now();
        let drops = (0..10_000).filter(|space| writers.must_drop_attributes(ONE, 100 + space)).count() as u32;
        let seconds = began.elapsed().as_secs() as u32 + 2;
        assert!((DROPS_PER_SECOND_MAX - 1..=DROPS_PER_SECOND_MAX * seconds).contains(&drops), "{drops}");
    }

    #[test]
    fn a_loss_is_told_once() {
        let writers = Writers::default();
        writers.lost(ONE, Errno::ENOSPC); // everybody has closed it
        writers.add(ONE);
        assert!(writers.take_lost(ONE).is_none());
        writers.lost(ONE, Errno::ENOSPC);
        assert!(writers.take_lost(OTHER).is_none());
        assert_eq!(writers.take_lost(ONE).map(|error| error.code()), Some(libc::ENOSPC));
        assert!(writers.take_lost(ONE).is_none());
    }
}
