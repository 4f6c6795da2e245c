//! Why an operation was not done.

use std::fmt;

use rustix::io::Errno;
use tandemfs_format::InodeNumber;
use tandemfs_fs::Error;

use crate::errno::errno;

/// The kernel has to do the rest; nothing has changed ([KV4] of `lib.rs`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crossed {
    /// What was met.
    pub why: Why,
    /// The directory in which `remaining` begins. Not held: it may be gone by the time that somebody looks.
    pub directory: InodeNumber,
    /// The path that remains. It begins with a slash behind an absolute link.
    pub remaining: Vec<u8>,
    /// Which path of the call it is: 0, or 1 for the second path of `rename` and `link`.
    pub argument: usize,
}

/// What was met: by the path walk, or in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// A path, or the target of a link, that begins with a slash.
    Absolute,
    /// `..` in the root.
    AboveRoot,
    /// A directory or file on which the caller has mounted something.
    MountPoint,
    /// `..` in a directory that was removed.
    RemovedDirectory,
    /// A device, pipe or socket that is opened.
    SpecialFile,
    /// Somebody else keeps pages of the file, and the caller wants them left ([`crate::Vfs::leaves_pages`]).
    Cached,
    /// The file would grow, and the caller wants that left to the kernel ([`crate::Vfs::leaves_growth`]).
    Grows,
    /// Somebody is told by the kernel of what happens to the file or its directory, and the caller wants that left to the kernel
    /// ([`crate::Process::leaves_watched`]).
    Watched,
}

/// Why an operation was not done.
#[derive(Debug)]
pub enum Refused {
    /// A rule of this crate.
    Errno(Errno),
    /// The file system. Some of these are worth a line in the log: [`crate::is_failure`].
    FileSystem(Error),
    /// The kernel has to do it.
    Crossed(Box<Crossed>),
}

/// Result of an operation.
pub type Result<T> = std::result::Result<T, Refused>;

impl Refused {
    /// What a program gets; `None` if the kernel has to do the operation.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Errno(number) => Some(*number),
            Self::FileSystem(error) => Some(errno(error)),
            Self::Crossed(_) => None,
        }
    }

    /// Says that the path is the second one of its call.
    pub(crate) fn of_second_path(self) -> Self {
        match self {
            Self::Crossed(crossed) => Self::Crossed(Box::new(Crossed { argument: 1, ..*crossed })),
            other => other,
        }
    }
}

impl From<Errno> for Refused {
    fn from(number: Errno) -> Self {
        Self::Errno(number)
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::FileSystem(error)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errno(number) => number.fmt(formatter),
            Self::FileSystem(error) => error.fmt(formatter),
            Self::Crossed(_) => formatter.write_str("the kernel has to do it"),
        }
    }
}

impl std::error::Error for Refused {}
