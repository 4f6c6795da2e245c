//! Files that are open for writing with the kernel's write-back cache, and errors that their writers have yet to receive.
//!
//! [WR1] Writeback changes the space of such a file, but the kernel does not ask for attributes again while its copy is valid. So they are
//!       valid for a short time only, and `fsync` drops them if the space has changed since the last reply. The number of drops per file
//!       and second is limited, so that a log that is synchronised after each record does not cost one more request per record.
//! [WR2] When writeback has lost bytes, the next `write` gets the error. Before a cached `write` the kernel asks for attributes, with a
//!       writer's handle, if it has no valid ones; the reply is the error. The error is given once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tandemfs_format::InodeNumber;
use tandemfs_wire::Errno;

/// How often per second `fsync` drops the attributes of a file.
const DROPS_PER_SECOND_MAX: u32 = 100;

/// Files open for writing.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    open: Mutex<HashMap<u64, File>>,
    /// The number of open files. It is nearly always 0 or small; if 0, no lock is taken.
    files: AtomicUsize,
}

#[derive(Debug, Default)]
struct File {
    openers: u32,
    /// The thread that opened it last, as the kernel calls it here: who the kernel writes pages back for.
    thread: u32,
    /// The space in the last reply to the kernel, in 512 B.
    told_512: Option<u64>,
    /// The start of the second in which drops are counted, and their number.
    drops: Option<(Instant, u32)>,
    lost: Option<Errno>,
}

impl Writers {
    /// Counts an opener.
    pub(crate) fn add(&self, inode: InodeNumber, thread: u32) {
        let mut open = self.lock();
        let file = open.entry(inode.get()).or_default();
        file.openers += 1;
        file.thread = thread;
        self.files.store(open.len(), Ordering::Release);
    }

    /// Removes an opener.
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

    /// The thread that opened a file for writing last; 0 if nobody has it open.
    pub(crate) fn thread_of(&self, inode: InodeNumber) -> u32 {
        self.with(inode, |file| file.thread).unwrap_or(0)
    }

    /// Whether a file is open for writing.
    pub(crate) fn contains(&self, inode: InodeNumber) -> bool {
        self.with(inode, |_| ()).is_some()
    }

    /// Records the space in a reply; returns whether the file is open for writing.
    pub(crate) fn told(&self, inode: InodeNumber, space_512: u64) -> bool {
        self.with(inode, |file| file.told_512 = Some(space_512)).is_some()
    }

    /// Whether attributes are to be dropped, given the current space of a file ([WR1]).
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

    /// Records that writeback lost bytes ([WR2]).
    pub(crate) fn lost(&self, inode: InodeNumber, error: Errno) {
        self.with(inode, |file| file.lost = Some(error));
    }

    /// The error that a writer has yet to receive; given once.
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
        writers.add(ONE, 7);
        writers.add(ONE, 7);
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
        writers.add(ONE, 7);
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
        writers.lost(ONE, Errno::ENOSPC); // every writer has closed it
        writers.add(ONE, 7);
        assert!(writers.take_lost(ONE).is_none());
        writers.lost(ONE, Errno::ENOSPC);
        assert!(writers.take_lost(OTHER).is_none());
        assert_eq!(writers.take_lost(ONE).map(|error| error.code()), Some(libc::ENOSPC));
        assert!(writers.take_lost(ONE).is_none());
    }
}
