//! Locks of the whole crate come from here, so that a schedule-exploring runtime can take their place in tests.

pub use parking_lot::{Condvar, Mutex, RwLock, RwLockWriteGuard};
