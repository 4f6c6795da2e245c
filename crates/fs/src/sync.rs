//! Locks and the atomics by which threads agree come from here, so that a runtime that explores schedules can take their place in tests.

/// Whether schedules are explored. Limits are small then, so that few steps reach what else takes thousands.
pub(crate) const EXPLORED: bool = cfg!(feature = "schedules");

pub(crate) use tandemfs_device::sync::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockWriteGuard, atomic, current_cpu, parallelism, scan_threads,
};
