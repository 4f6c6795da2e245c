//! Flags and project of a file by ioctl(2), as chattr(1), lsattr(1) and xfs_io(8) ask for them (`FS_IOC_GETFLAGS`, `FS_IOC_SETFLAGS`,
//! `FS_IOC_FSGETXATTR`, `FS_IOC_FSSETXATTR`): the one flag that there is says that a directory passes its project on.
//!
//! The kernel lets only owners set them, and lets nobody change projects from another user namespace than its first one.

use tandemfs_format::InodeNumber;
use tandemfs_fs::Result;
use tandemfs_wire::{Errno, Ioctl, Reply, Request};

use crate::attributes::inode;
use crate::caller::Caller;
use crate::door::Door;

const GET_FLAGS: u32 = command(READ, 8, b'f', 1);
const SET_FLAGS: u32 = command(WRITE, 8, b'f', 2);
const GET_XATTR: u32 = command(READ, FSXATTR_BYTES as u32, b'X', 31);
const SET_XATTR: u32 = command(WRITE, FSXATTR_BYTES as u32, b'X', 32);

/// `FS_PROJINHERIT_FL`, as chattr(1) shows it.
const FLAG_INHERITS: u32 = 0x2000_0000;
/// `FS_XFLAG_PROJINHERIT`
const XFLAG_INHERITS: u32 = 0x200;
/// `FS_XFLAG_HASATTR`, which says something and cannot be set.
const XFLAG_HAS_ATTRIBUTES: u32 = 0x8000_0000;
/// Of `struct fsxattr`: flags, a size hint of extents, their number, the project, another hint, 8 bytes that are reserved.
const FSXATTR_BYTES: usize = 28;

const WRITE: u32 = 1;
const READ: u32 = 2;

/// As `_IOR` and `_IOW` make them.
const fn command(direction: u32, bytes: u32, kind: u8, number: u32) -> u32 {
    direction << 30 | bytes << 16 | (kind as u32) << 8 | number
}

/// What is set of an inode.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    /// As it is if there is none.
    project: Option<u32>,
    inherits: bool,
}

fn word(data: &[u8], at: usize) -> Option<u32> {
    data.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

fn fsxattr(project: u32, inherits: bool) -> [u8; FSXATTR_BYTES] {
    let mut bytes = [0; FSXATTR_BYTES];
    bytes[..4].copy_from_slice(&(if inherits { XFLAG_INHERITS } else { 0 }).to_ne_bytes());
    bytes[12..16].copy_from_slice(&project.to_ne_bytes());
    bytes
}

/// What a command sets; `EOPNOTSUPP` for flags and hints that nothing would keep.
fn wanted(command: u32, data: &[u8]) -> std::result::Result<Wanted, Errno> {
    let flags = word(data, 0).ok_or(Errno::EINVAL)?;
    match command {
        SET_FLAGS if flags & !FLAG_INHERITS == 0 => Ok(Wanted { project: None, inherits: flags != 0 }),
        SET_XATTR if flags & !(XFLAG_INHERITS | XFLAG_HAS_ATTRIBUTES) == 0 => {
            let [extent_size, project, copy_size] = [4, 12, 16].map(|at| word(data, at));
            match (extent_size, project, copy_size) {
                (Some(0), Some(project), Some(0)) => Ok(Wanted { project: Some(project), inherits: flags & XFLAG_INHERITS != 0 }),
                (Some(_), Some(_), Some(_)) => Err(Errno::EOPNOTSUPP),
                _ => Err(Errno::EINVAL),
            }
        }
        _ => Err(Errno::EOPNOTSUPP),
    }
}

impl Door {
    pub(crate) fn ioctl(&self, request: &Request<'_>, given: &Ioctl<'_>, reply: Reply<'_>) {
        let number = inode(request.node);
        let answer = match given.command {
            GET_FLAGS => self.fs.project(number).map(|(_, inherits)| (if inherits { FLAG_INHERITS } else { 0 }).to_ne_bytes().to_vec()),
            GET_XATTR => self.fs.project(number).map(|(project, inherits)| fsxattr(project, inherits).to_vec()),
            SET_FLAGS | SET_XATTR => match wanted(given.command, given.data) {
                Err(errno) => return reply.error(errno),
                Ok(wanted) if !self.may_set(request, &wanted) => return reply.error(Errno::EOPNOTSUPP),
                Ok(wanted) => self.set_flags(number, &wanted).map(|()| Vec::new()),
            },
            _ => return reply.error(Errno::ENOTTY),
        };
        match answer {
            Ok(bytes) => reply.ioctl(0, &bytes),
            Err(error) => reply.error(self.failed("ioctl", request.node, &error)),
        }
    }

    /// Who is not limited, root above all, gives the file system the feature *quota*: programs of before cannot mount it any more.
    fn may_set(&self, request: &Request<'_>, wanted: &Wanted) -> bool {
        let sets_nothing = wanted.project.unwrap_or(0) == 0 && !wanted.inherits;
        sets_nothing || self.fs.has_quota() || Caller::of(request).may_use_reserve()
    }

    fn set_flags(&self, number: InodeNumber, wanted: &Wanted) -> Result<()> {
        let found = self.fs.project(number)?;
        let wanted = (wanted.project.unwrap_or(found.0), wanted.inherits);
        if wanted == found { Ok(()) } else { self.fs.set_project_of_inode(number, wanted.0, wanted.1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_kernels_numbers() {
        assert_eq!([GET_FLAGS, SET_FLAGS, GET_XATTR, SET_XATTR], [0x8008_6601, 0x4008_6602, 0x801c_581f, 0x401c_5820]);
    }

    #[test]
    fn what_nothing_would_keep_is_refused() {
        let with = |at: usize, value: u32| {
            let mut bytes = fsxattr(42, true);
            bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
            wanted(SET_XATTR, &bytes)
        };
        assert_eq!(wanted(SET_XATTR, &fsxattr(42, true)), Ok(Wanted { project: Some(42), inherits: true }));
        assert_eq!(with(0, XFLAG_HAS_ATTRIBUTES), Ok(Wanted { project: Some(42), inherits: false }));
        assert_eq!([with(0, 8), with(4, 4096), with(16, 1)], [const { Err(Errno::EOPNOTSUPP) }; 3], "immutable, extent hints");
        assert_eq!(wanted(SET_XATTR, &fsxattr(42, true)[..20]), Ok(Wanted { project: Some(42), inherits: true }));
        assert_eq!(wanted(SET_XATTR, &fsxattr(42, true)[..19]), Err(Errno::EINVAL));
        assert_eq!(wanted(SET_FLAGS, &FLAG_INHERITS.to_ne_bytes()), Ok(Wanted { project: None, inherits: true }));
        assert_eq!((wanted(SET_FLAGS, &16_u32.to_ne_bytes()), wanted(SET_FLAGS, b"")), (Err(Errno::EOPNOTSUPP), Err(Errno::EINVAL)));
    }
}
