//! Why a call or a connection failed.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;
use tandemfs_protocol::{Crossed, HelloError, Malformed, VERSION};
use tandemfs_ring::{Ended, RingError};

/// Why a call was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// As a system call on the mount, or as the page of this crate says.
    #[error(transparent)]
    Errno(#[from] Errno),
    /// The kernel has to do the call, by the path of the mount. Nothing has changed.
    #[error("only the kernel can do this call, by the path of the mount: {:?}", .0.why)]
    Crossed(Crossed),
}

/// Result of a call.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The errno; none if the kernel has to do the call.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Errno(number) => Some(*number),
            Self::Crossed(_) => None,
        }
    }
}

impl From<Ended> for Error {
    fn from(_: Ended) -> Self {
        Self::Errno(Errno::NOTCONN)
    }
}

impl From<Malformed> for Error {
    fn from(_: Malformed) -> Self {
        Self::Errno(Errno::PROTO)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Errno(number) => number.into(),
            Error::Crossed(_) => Self::new(io::ErrorKind::Unsupported, error),
        }
    }
}

/// Why there is no connection. The mount itself can still be used.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No TandemFS is mounted there.
    #[error("{}: no TandemFS is mounted there", .0.display())]
    NotMounted(PathBuf),
    /// A directory inside a mount.
    #[error("{}: not the root of a mount", .0.display())]
    NotRoot(PathBuf),
    /// This way to the mount has rules that the direct door does not know.
    #[error("{}: {what}; use the mount", directory.display())]
    NotEntered {
        /// The directory that was given.
        directory: PathBuf,
        /// Which rules.
        what: &'static str,
    },
    /// There is no daemon that listens.
    #[error("{}: the mount has no direct door (it needs -o direct)", .0.display())]
    NoDoor(PathBuf),
    /// Somebody else listens in the daemon's place.
    #[error("the direct door is served by user {found}, the mount by user {expected}")]
    Foreign {
        /// Who listens.
        found: u32,
        /// Who mounted it.
        expected: u32,
    },
    /// The daemon refuses this client.
    #[error("{sentence}")]
    Refused {
        /// The errno of the refusal.
        errno: i32,
        /// Its sentence.
        sentence: String,
    },
    /// Another release.
    #[error(
        "the daemon of this mount speaks version {}.{} of the direct door, this program version {}.{}; install the same release for both",
        found >> 16, found & 0xffff, VERSION >> 16, VERSION & 0xffff
    )]
    Version {
        /// The daemon's.
        found: u32,
    },
    /// The greeting is none.
    #[error("the daemon of this mount does not speak the protocol of the direct door: {0}")]
    Protocol(&'static str),
    /// No greeting came.
    #[error("the daemon of this mount does not answer")]
    Silent,
    /// The shared memory cannot be used.
    #[error(transparent)]
    Memory(#[from] RingError),
    /// The kernel refused something.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Errno> for ConnectError {
    fn from(error: Errno) -> Self {
        match error {
            Errno::AGAIN => Self::Silent, // a timeout of the socket
            other => Self::Io(other.into()),
        }
    }
}

impl From<HelloError> for ConnectError {
    fn from(error: HelloError) -> Self {
        match error {
            HelloError::Version { found } => Self::Version { found },
            HelloError::Unknown => Self::Protocol("an unknown greeting"),
        }
    }
}
