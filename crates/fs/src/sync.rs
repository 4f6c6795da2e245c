//! Locks and the atomics that synchronize threads come from here, so that tests can replace them by a runtime that explores schedules.

/// Whether schedules are explored. Limits are then small, so that few steps reach what otherwise takes thousands.
pub(crate) const EXPLORED: bool = cfg!(feature = "schedules");

pub(crate) use tandemfs_device::sync::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic, current_cpu, parallelism, patience, scan_threads,
};
