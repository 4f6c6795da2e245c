//! Threads that are about to free space ([NS3] of `shortage.rs`).

use std::time::{Duration, Instant};

use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::sync::{Condvar, Mutex};

/// Counts these threads.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    now: Mutex<usize>,
    /// How many have ended in all; changed under the lock.
    pub(crate) ended: AtomicU64,
    condition: Condvar,
}

/// One leaving thread, until it is dropped.
#[derive(Debug)]
pub(crate) struct LeavingGuard<'l>(&'l Leaving);

impl Leaving {
    /// The caller is about to free space.
    pub(crate) fn enter(&self) -> LeavingGuard<'_> {
        *self.now.lock() += 1;
        LeavingGuard(self)
    }

    pub(crate) fn is_any(&self) -> bool {
        *self.now.lock() > 0
    }

    /// Waits until one of the leaving threads has ended. False if there is none, or if none has ended in time.
    pub(crate) fn wait(&self, at_most: Duration) -> bool {
        let end = Instant::now() + at_most;
        let mut now = self.now.lock();
        let before = self.ended.load(Relaxed);
        while *now > 0 && self.ended.load(Relaxed) == before {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.condition.wait_for(&mut now, left);
        }
        self.ended.load(Relaxed) != before
    }
}

impl Drop for LeavingGuard<'_> {
    fn drop(&mut self) {
        let mut now = self.0.now.lock();
        *now -= 1;
        self.0.ended.fetch_add(1, Relaxed);
        drop(now);
        self.0.condition.notify_all();
    }
}
