//! Locks, condition variables and the atomics that threads agree by, for this crate and the file system above it. With the feature
//! `schedules` they are those of a runtime that decides which thread runs next at every lock and every atomic, so that a test explores
//! schedules and repeats one by its seed. No program enables it; without it everything here is the plain thing itself.
//!
//! Counters that are only shown stay plain atomics: a scheduling point at each would only make schedules longer.

#[cfg(not(feature = "schedules"))]
pub use self::plain::*;

#[cfg(feature = "schedules")]
pub use self::explored::*;

#[cfg(not(feature = "schedules"))]
mod plain {
    pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockWriteGuard};

    /// Atomics by which threads agree.
    pub mod atomic {
        pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
    }

    /// The CPU that runs this thread.
    pub fn current_cpu() -> usize {
        rustix::thread::sched_getcpu()
    }

    /// How many threads can run at once.
    pub fn parallelism() -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }

    /// How many threads a scan of the medium may start.
    pub fn scan_threads() -> usize {
        parallelism()
    }
}

#[cfg(feature = "schedules")]
mod explored {
    use std::collections::VecDeque;
    use std::sync::{Arc, PoisonError};
    use std::time::Duration;

    use shuttle::future::batch_semaphore::{BatchSemaphore, Fairness};
    use shuttle::rand::RngCore;
    pub use shuttle_parking_lot::{Mutex, MutexGuard, RwLock, RwLockWriteGuard};

    /// Atomics by which threads agree.
    pub mod atomic {
        pub use shuttle::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
    }

    /// One of two CPUs, which the schedule draws: threads move.
    pub fn current_cpu() -> usize {
        shuttle::rand::thread_rng().next_u64() as usize % 2
    }

    /// Two pools, whatever the machine has.
    pub fn parallelism() -> usize {
        2
    }

    /// Threads that the runtime does not know would not be scheduled.
    pub fn scan_threads() -> usize {
        1
    }

    /// A condition variable with the interface of `parking_lot`'s. Who waits is woken in the order in which they came.
    #[derive(Debug, Default)]
    pub struct Condvar {
        waiting: std::sync::Mutex<VecDeque<Arc<BatchSemaphore>>>,
    }

    impl Condvar {
        fn waiting(&self) -> std::sync::MutexGuard<'_, VecDeque<Arc<BatchSemaphore>>> {
            self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
        }

        /// Waits for a notification; the lock is released meanwhile.
        pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let woken = Arc::new(BatchSemaphore::new(0, Fairness::StrictlyFair));
            self.waiting().push_back(woken.clone());
            MutexGuard::unlocked(guard, || {
                let _never_closed = woken.acquire_blocking(1);
            });
        }

        /// As [`Condvar::wait`]: time does not pass in an explored schedule.
        pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) {
            self.wait(guard);
        }

        /// Wakes one.
        pub fn notify_one(&self) {
            let first = self.waiting().pop_front();
            if let Some(first) = first {
                first.release(1);
            }
        }

        /// Wakes all.
        pub fn notify_all(&self) {
            let all = std::mem::take(&mut *self.waiting());
            for each in all {
                each.release(1);
            }
        }
    }
}
