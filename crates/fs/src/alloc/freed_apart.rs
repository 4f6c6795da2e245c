//! Lines of a region that were freed while its lock was held elsewhere: whoever holds it next frees them ([NW5] of `wait.rs`).

use tandemfs_format::LineAddress;

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// The transaction that freed lines, or 0 if nobody could have seen them; their first, and how many.
type Freed = (u64, LineAddress, u64);

#[derive(Debug, Default)]
pub(super) struct FreedApart {
    count: AtomicUsize,
    list: Mutex<Vec<Freed>>,
}

impl FreedApart {
    pub(super) fn push(&self, freed: Freed) {
        let mut list = self.list.lock();
        list.push(freed);
        self.count.store(list.len(), SeqCst);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count.load(SeqCst) == 0
    }

    pub(super) fn take_all(&self) -> Vec<Freed> {
        if self.is_empty() {
            return Vec::new(); // nearly always
        }
        let mut list = self.list.lock();
        self.count.store(0, SeqCst);
        std::mem::take(&mut list)
    }
}
