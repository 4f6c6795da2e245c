//! Locks and the atomics by which threads agree come from here, so that a runtime that explores schedules can take their place in tests.

pub(crate) use tandemfs_device::sync::{Condvar, Mutex, RwLock, RwLockWriteGuard, atomic, current_cpu, parallelism, scan_threads};
