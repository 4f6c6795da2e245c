//! After a failed flush or metadata write the file system stops writing and keeps the first cause (RULES R15): a retried flush that
//! succeeds may have lost the data of the first one.

use std::sync::OnceLock;

use tandemfs_device::DeviceError;

use crate::error::{Error, Result};
use crate::sync::atomic::{AtomicBool, Ordering::SeqCst};

#[derive(Debug, Default)]
pub(crate) struct Health {
    read_only: bool,
    first_cause: OnceLock<String>,
    closed: AtomicBool,
}

impl Health {
    pub(crate) fn new(read_only: bool) -> Self {
        Self { read_only, ..Self::default() }
    }

    /// Forbids further changes, after an unmount.
    pub(crate) fn close(&self) {
        self.closed.store(true, SeqCst);
    }

    /// Whether changes are allowed.
    pub(crate) fn check_writable(&self) -> Result<()> {
        match self.first_cause.get() {
            Some(cause) => Err(Error::Stopped { first_cause: cause.clone() }),
            None if self.read_only || self.closed.load(SeqCst) => Err(Error::ReadOnly),
            None => Ok(()),
        }
    }

    /// Stops all further changes. Returns the error for the caller.
    pub(crate) fn stop(&self, what: &str, error: &DeviceError) -> Error {
        self.stop_because(format!("{what} failed: {error}"))
    }

    pub(crate) fn stop_because(&self, cause: String) -> Error {
        if self.first_cause.set(cause).is_ok() {
            tracing::error!(cause = %self.first_cause.get().map_or("", String::as_str), "the file system stops writing");
        }
        Error::Stopped { first_cause: self.first_cause().unwrap_or_default() }
    }

    pub(crate) fn first_cause(&self) -> Option<String> {
        self.first_cause.get().cloned()
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }
}
