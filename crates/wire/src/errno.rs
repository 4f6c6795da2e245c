//! The errno values of replies.

use std::fmt;
use std::io;

/// An errno that the kernel accepts in a reply: 1 to 511.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i32);

/// Larger numbers are internal to the kernel, which refuses them in replies.
const ERRNO_MAX: i32 = 511;

macro_rules! names {
    ($($name:ident),*) => {
        impl Errno {
            $(#[doc = concat!("`", stringify!($name), "`")] pub const $name: Self = Self(libc::$name);)*
        }
        const NAMES: &[(i32, &str)] = &[$((libc::$name, stringify!($name))),*];
    };
}

names!(
    EPERM,
    ENOENT,
    EINTR,
    EIO,
    ENXIO,
    E2BIG,
    EBADF,
    EAGAIN,
    ENOMEM,
    EACCES,
    EBUSY,
    EEXIST,
    EXDEV,
    ENODEV,
    ENOTDIR,
    EISDIR,
    EINVAL,
    ENOTTY,
    EFBIG,
    ENOSPC,
    EROFS,
    EMLINK,
    EPIPE,
    ERANGE,
    EDEADLK,
    ENAMETOOLONG,
    ENOSYS,
    ENOTEMPTY,
    ELOOP,
    ENODATA,
    EPROTO,
    EOVERFLOW,
    EOPNOTSUPP,
    ENOTCONN,
    ECONNABORTED,
    ETIMEDOUT,
    ESTALE,
    EDQUOT,
    ECANCELED
);

impl Errno {
    /// The error with this number; `EIO` for a number that the kernel would refuse.
    pub const fn new(code: i32) -> Self {
        if code > 0 && code <= ERRNO_MAX { Self(code) } else { Self::EIO }
    }

    /// Its number.
    pub const fn code(self) -> i32 {
        self.0
    }
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        error.raw_os_error().map_or(Self::EIO, Self::new)
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Self::new(error.raw_os_error())
    }
}

impl From<Errno> for io::Error {
    fn from(error: Errno) -> Self {
        Self::from_raw_os_error(error.0)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(code, _)| *code == self.0) {
            Some((_, name)) => formatter.write_str(name),
            None => write!(formatter, "errno {}", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_that_the_kernel_takes_leave() {
        assert_eq!(Errno::new(libc::ENOSPC), Errno::ENOSPC);
        for wrong in [0, -5, 512, i32::MIN, i32::MAX] {
            assert_eq!(Errno::new(wrong), Errno::EIO);
        }
        assert_eq!(Errno::from(io::Error::other("no number")), Errno::EIO);
        assert_eq!(format!("{:?} {:?}", Errno::EDQUOT, Errno::new(500)), "EDQUOT errno 500");
    }
}
