//! `parking_lot`'s locks, which workers of virtual time wait for ([VW2]) and threads as ever.
//!
//! [VW2]: super::workers

use std::time::Duration;

use parking_lot::lock_api;

use super::workers;

fn address<T>(of: &T) -> usize {
    std::ptr::from_ref(of).addr()
}

/// A mutex below [`Mutex`].
pub struct RawMutex(parking_lot::RawMutex);

// SAFETY: exclusion is that of the lock inside, which `lock` returns with and `unlock` releases.
unsafe impl lock_api::RawMutex for RawMutex {
    const INIT: Self = Self(parking_lot::RawMutex::INIT);
    type GuardMarker = <parking_lot::RawMutex as lock_api::RawMutex>::GuardMarker;

    #[inline]
    fn lock(&self) {
        while !self.0.try_lock() {
            if !workers::wait(address(self)) {
                return self.0.lock();
            }
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.0.try_lock()
    }

    #[inline]
    unsafe fn unlock(&self) {
        // SAFETY: as the caller says.
        unsafe { self.0.unlock() };
        workers::wake(address(self), usize::MAX);
    }
}

/// A lock of readers and writers below [`RwLock`]. A reader waits behind a writer that waits.
pub struct RawRwLock(parking_lot::RawRwLock);

// SAFETY: as above.
unsafe impl lock_api::RawRwLock for RawRwLock {
    const INIT: Self = Self(parking_lot::RawRwLock::INIT);
    type GuardMarker = <parking_lot::RawRwLock as lock_api::RawRwLock>::GuardMarker;

    #[inline]
    fn lock_shared(&self) {
        while workers::is_awaited(address(self)) || !self.0.try_lock_shared() {
            if !workers::wait(address(self)) {
                return self.0.lock_shared();
            }
        }
    }

    #[inline]
    fn try_lock_shared(&self) -> bool {
        self.0.try_lock_shared()
    }

    #[inline]
    unsafe fn unlock_shared(&self) {
        // SAFETY: as the caller says.
        unsafe { self.0.unlock_shared() };
        workers::wake(address(self), usize::MAX);
    }

    #[inline]
    fn lock_exclusive(&self) {
        while !self.0.try_lock_exclusive() {
            if !workers::wait(address(self)) {
                return self.0.lock_exclusive();
            }
        }
    }

    #[inline]
    fn try_lock_exclusive(&self) -> bool {
        self.0.try_lock_exclusive()
    }

    #[inline]
    unsafe fn unlock_exclusive(&self) {
        // SAFETY: as the caller says.
        unsafe { self.0.unlock_exclusive() };
        workers::wake(address(self), usize::MAX);
    }
}

/// As `parking_lot::Mutex`.
pub type Mutex<T> = lock_api::Mutex<RawMutex, T>;
/// As `parking_lot::MutexGuard`.
pub type MutexGuard<'l, T> = lock_api::MutexGuard<'l, RawMutex, T>;
/// As `parking_lot::RwLock`.
pub type RwLock<T> = lock_api::RwLock<RawRwLock, T>;
/// As `parking_lot::RwLockReadGuard`.
pub type RwLockReadGuard<'l, T> = lock_api::RwLockReadGuard<'l, RawRwLock, T>;
/// As `parking_lot::RwLockWriteGuard`.
pub type RwLockWriteGuard<'l, T> = lock_api::RwLockWriteGuard<'l, RawRwLock, T>;

/// A condition variable with the interface of `parking_lot`'s, whose own takes none but its own guards.
#[derive(Debug, Default)]
pub struct Condvar {
    /// Held from before the guard's lock is released until the wait begins, so no notification is missed.
    waiting: parking_lot::Mutex<()>,
    notified: parking_lot::Condvar,
}

impl Condvar {
    /// Waits for a notification and releases the lock while waiting.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        self.wait_until(guard, None);
    }

    /// The same for at most this long; a worker of virtual time waits without limit ([VW3]).
    ///
    /// [VW3]: super::workers
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, most: Duration) {
        self.wait_until(guard, Some(most));
    }

    fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, most: Option<Duration>) {
        if workers::wait_unlocked(address(self), |wait| MutexGuard::unlocked(guard, wait)) {
            return;
        }
        let mut waiting = self.waiting.lock();
        MutexGuard::unlocked(guard, || {
            match most {
                Some(most) => drop(self.notified.wait_for(&mut waiting, most)),
                None => self.notified.wait(&mut waiting),
            }
            drop(waiting);
        });
    }

    /// Wakes one.
    pub fn notify_one(&self) {
        if !workers::wake(address(self), 1) {
            let _waits_by_now = self.waiting.lock();
            self.notified.notify_one();
        }
    }

    /// Wakes all.
    pub fn notify_all(&self) {
        workers::wake(address(self), usize::MAX);
        let _all_wait_by_now = self.waiting.lock();
        self.notified.notify_all();
    }
}
