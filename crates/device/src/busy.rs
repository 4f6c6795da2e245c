//! How long opening a device waits while it is in use.
//!
//! Who has closed a device can still seem to have it for a moment. A program that another of its threads starts has copies of all
//! descriptors, and so the lock, from the fork until it is executed. And the kernel can release the block half of a killed daemon after the
//! daemon was reaped (it ends a dead process's io_uring asynchronously). What follows at once must not fail because of that.

use std::time::{Duration, Instant};

use crate::DeviceError;

/// How long opening waits.
const BUSY_MAX: Duration = Duration::from_millis(500);

/// Opens something, again and again while it is in use, for half a second at most.
///
/// # Errors
/// Those of `open`; [`DeviceError::Busy`] if it is in use for that long.
pub fn open_patiently<T>(mut open: impl FnMut() -> Result<T, DeviceError>) -> Result<T, DeviceError> {
    let start = Instant::now();
    loop {
        match open() {
            Err(DeviceError::Busy { .. }) if start.elapsed() < BUSY_MAX => std::thread::sleep(Duration::from_millis(5)),
            opened => return opened,
        }
    }
}
