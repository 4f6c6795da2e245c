//! What a call that failed returns ([CAP4]).

use std::ffi::c_int;

use tandemfs_client::{ConnectError, Errno, Error};

use crate::mutant::{Mutant, on};

/// Largest errno of Linux.
const ERRNO_MAX: c_int = 4095;

/// Why a call failed: an errno, above 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failure(c_int);

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn of(errno: c_int) -> Self {
        match errno {
            1..=ERRNO_MAX => Self(errno),
            _ => Self(libc::EPROTO),
        }
    }

    /// As functions return it.
    pub(crate) fn returned(self) -> c_int {
        -self.0
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::of(errno.raw_os_error())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Errno(errno) => errno.into(),
            Error::Crossed(_) if on(Mutant::CrossedUnsaid) => Self(libc::EIO),
            Error::Crossed(_) => Self(libc::EREMOTE),
        }
    }
}

impl From<&ConnectError> for Failure {
    fn from(error: &ConnectError) -> Self {
        Self::of(match error {
            ConnectError::NotMounted(_) => libc::ENODEV,
            ConnectError::NotRoot(_) => libc::EINVAL,
            ConnectError::NotEntered { .. } => libc::EREMOTE,
            ConnectError::NoDoor(_) => libc::ECONNREFUSED,
            ConnectError::Foreign { .. } => libc::EPERM,
            ConnectError::Refused { errno, .. } => *errno,
            ConnectError::Version { .. } => libc::EPROTONOSUPPORT,
            ConnectError::Protocol(_) => libc::EPROTO,
            ConnectError::Silent => libc::ETIMEDOUT,
            ConnectError::Memory(_) => libc::ENOMEM,
            ConnectError::Io(error) => error.raw_os_error().unwrap_or(libc::EIO),
        })
    }
}
