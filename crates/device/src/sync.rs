//! Locks, condition variables and atomics that order threads, for this crate and the file system above it. With the feature `schedules`
//! they come from a runtime that chooses the next thread at every lock and every atomic, so that tests can explore schedules and repeat one
//! by its seed. No program enables the feature; without it this module re-exports the plain types.
//!
//! With the feature `workers` (`tandemfs-bench` alone) the plain types also suspend workers of virtual time ([`workers`]).
//!
//! Statistics counters stay plain atomics: a scheduling point at each of them would only make schedules longer.

#[cfg(not(feature = "schedules"))]
pub use self::plain::*;

#[cfg(feature = "schedules")]
pub use self::explored::*;

#[cfg(feature = "workers")]
pub mod workers;

#[cfg(all(feature = "workers", not(feature = "schedules")))]
mod modelled;

pub mod patience;

/// An access advanced the calling thread's virtual clock: a worker whose clock is not the earliest any more is suspended here. The caller
/// holds no lock but those of this module.
#[inline]
pub fn advanced(now_ns: u64) {
    #[cfg(feature = "workers")]
    workers::advanced(now_ns);
    #[cfg(not(feature = "workers"))]
    let _ = now_ns;
}

#[cfg(not(feature = "schedules"))]
mod plain {
    #[cfg(feature = "workers")]
    pub use super::modelled::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
    #[cfg(not(feature = "workers"))]
    pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
    pub(super) use std::thread_local;

    /// Atomics that order threads.
    pub mod atomic {
        pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
    }

    /// The CPU that runs this thread.
    pub fn current_cpu() -> usize {
        #[cfg(feature = "workers")]
        if let Some(cpu) = super::workers::modelled_cpu() {
            return cpu;
        }
        rustix::thread::sched_getcpu()
    }

    /// How many threads can run at once.
    pub fn parallelism() -> usize {
        #[cfg(feature = "workers")]
        if let Some(cpus) = super::workers::modelled_cpus() {
            return cpus;
        }
        std::thread::available_parallelism().map_or(1, usize::from)
    }

    /// How many threads a scan of the medium may start.
    pub fn scan_threads() -> usize {
        #[cfg(feature = "workers")]
        if super::workers::modelled_cpus().is_some() {
            return 1; // threads would run in an order of their own
        }
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
    pub(super) use shuttle::thread_local;
    pub use shuttle_parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

    /// Atomics that order threads.
    pub mod atomic {
        pub use shuttle::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
    }

    /// One of two CPUs, chosen by the schedule, as threads migrate.
    pub fn current_cpu() -> usize {
        shuttle::rand::thread_rng().next_u64() as usize % 2
    }

    /// Two pools, whatever the machine has.
    pub fn parallelism() -> usize {
        2
    }

    /// One: the runtime would not schedule other threads.
    pub fn scan_threads() -> usize {
        1
    }

    /// A condition variable with the interface of `parking_lot`'s. Threads wake in the order in which they began to wait.
    #[derive(Debug, Default)]
    pub struct Condvar {
        waiting: std::sync::Mutex<VecDeque<Arc<BatchSemaphore>>>,
    }

    impl Condvar {
        fn waiting(&self) -> std::sync::MutexGuard<'_, VecDeque<Arc<BatchSemaphore>>> {
            self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
        }

        /// Waits for a notification and releases the lock while waiting.
        pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let woken = Arc::new(BatchSemaphore::new(0, Fairness::StrictlyFair));
            self.waiting().push_back(woken.clone());
            MutexGuard::unlocked(guard, || {
                let _never_closed = woken.acquire_blocking(1);
            });
        }

        /// As [`Condvar::wait`]: explored schedules have no timeouts.
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
