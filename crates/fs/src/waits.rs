//! How long threads waited for locks that others held. A lock knows no file system, so this is of all file systems of a process; a daemon has
//! one. Who finds a lock free pays nothing for it.

use tandemfs_device::Latencies;

/// The waits of this process.
pub(crate) static LOCK_WAITS: LockWaits = LockWaits { lock: Latencies::new(), range_lock: Latencies::new() };

/// Waits by kind of lock.
#[derive(Debug)]
pub(crate) struct LockWaits {
    /// Locks that may be held for long ([NW1] of `wait.rs`).
    pub(crate) lock: Latencies,
    /// Ranges of blocks of a file (`inodes/range_lock.rs`).
    pub(crate) range_lock: Latencies,
}
