//! Attributes and statistics in replies, as plain types, and their conversion to the kernel's structures.

use std::time::Duration;

use crate::abi;
use crate::time::{Time, validity};

/// Shift of the file type bits in a mode.
const KIND_SHIFT: u32 = 12;
/// The masks of `statx` without the birth time (`STATX_BASIC_STATS`), and of the birth time (`STATX_BTIME`).
const STATX_BASIC: u32 = 0x7ff;
const STATX_BIRTH: u32 = 0x800;

/// Attributes of a file, for GETATTR, STATX and entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes {
    /// Inode number for `stat`.
    pub ino: u64,
    /// Length in bytes.
    pub size: u64,
    /// Space in units of 512 bytes.
    pub blocks: u64,
    /// Time of the last read.
    pub atime: Time,
    /// Time of the last change of the data.
    pub mtime: Time,
    /// Time of the last change.
    pub ctime: Time,
    /// Birth time, for STATX.
    pub birth: Option<Time>,
    /// File type and permissions (`S_IF…`).
    pub mode: u32,
    /// Link count.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file, in the kernel's 32-bit encoding.
    pub rdev: u32,
    /// Preferred size of requests (`st_blksize`).
    pub block_bytes: u32,
    /// `FUSE_ATTR_…`: 1 = root of a submount, 2 = DAX.
    pub flags: u32,
}

/// A directory entry that was looked up or created, with its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Entry {
    /// The node; the kernel counts one more lookup of it. 0 = the name does not exist.
    pub node: u64,
    /// Distinguishes nodes that reuse the same number.
    pub generation: u64,
    /// How long the kernel may cache the name.
    pub entry_valid: Duration,
    /// How long the kernel may cache the attributes.
    pub attributes_valid: Duration,
    /// Attributes of the node.
    pub attributes: Attributes,
}

/// An open file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Opened {
    /// Returned with each request on the open file.
    pub handle: u64,
    /// Its flags.
    pub flags: OpenFlags,
}

/// Flags of an open file (`FOPEN_…`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenFlags(pub u32);

impl OpenFlags {
    /// Bypass the page cache.
    pub const DIRECT_IO: Self = Self(1);
    /// Keep the cached pages of the file.
    pub const KEEP_CACHE: Self = Self(1 << 1);
    /// Seeking is not supported.
    pub const NONSEEKABLE: Self = Self(1 << 2);
    /// The kernel may cache directory entries.
    pub const CACHE_DIR: Self = Self(1 << 3);
    /// A stream without a file position.
    pub const STREAM: Self = Self(1 << 4);
    /// No writeback on close.
    pub const NOFLUSH: Self = Self(1 << 5);
    /// Concurrent direct writes to one file.
    pub const PARALLEL_DIRECT_WRITES: Self = Self(1 << 6);
}

impl std::ops::BitOr for OpenFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Space and inode counts of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statfs {
    /// Size in `fragment_bytes`.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks for ordinary users.
    pub blocks_available: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Preferred size of requests.
    pub block_bytes: u32,
    /// Unit of the sizes.
    pub fragment_bytes: u32,
    /// Longest name.
    pub name_bytes_max: u32,
}

/// The file type in a mode, as directory entries carry it (`DT_…`).
pub const fn kind_of(mode: u32) -> u32 {
    mode >> KIND_SHIFT & 0xf
}

impl Attributes {
    pub(crate) fn to_kernel(self) -> abi::Attr {
        abi::Attr {
            ino: self.ino,
            size: self.size,
            blocks: self.blocks,
            atime: self.atime.kernel_seconds(),
            mtime: self.mtime.kernel_seconds(),
            ctime: self.ctime.kernel_seconds(),
            atimensec: self.atime.nanoseconds,
            mtimensec: self.mtime.nanoseconds,
            ctimensec: self.ctime.nanoseconds,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            blksize: self.block_bytes,
            flags: self.flags,
        }
    }

    pub(crate) fn attr_out(self, valid: Duration) -> abi::AttrOut {
        let (attr_valid, attr_valid_nsec) = validity(valid);
        abi::AttrOut { attr_valid, attr_valid_nsec, dummy: 0, attr: self.to_kernel() }
    }

    pub(crate) fn statx_out(self, valid: Duration) -> abi::StatxOut {
        let time = |time: Time| abi::SxTime { tv_sec: time.seconds, tv_nsec: time.nanoseconds, reserved: 0 };
        let (attr_valid, attr_valid_nsec) = validity(valid);
        let stat = abi::Statx {
            mask: STATX_BASIC | self.birth.map_or(0, |_| STATX_BIRTH),
            blksize: self.block_bytes,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            mode: self.mode as u16,
            ino: self.ino,
            size: self.size,
            blocks: self.blocks,
            atime: time(self.atime),
            btime: time(self.birth.unwrap_or_default()),
            ctime: time(self.ctime),
            mtime: time(self.mtime),
            rdev_major: self.rdev >> 8 & 0xfff,
            rdev_minor: self.rdev & 0xff | self.rdev >> 12 & 0xfff00,
            ..abi::Statx::default()
        };
        abi::StatxOut { attr_valid, attr_valid_nsec, flags: 0, spare: [0; 2], stat }
    }
}

impl Entry {
    /// A negative entry, and how long the kernel may cache it.
    pub fn absent(valid: Duration) -> Self {
        Self { entry_valid: valid, ..Self::default() }
    }

    pub(crate) fn to_kernel(self) -> abi::EntryOut {
        let (entry_valid, entry_valid_nsec) = validity(self.entry_valid);
        let (attr_valid, attr_valid_nsec) = validity(self.attributes_valid);
        abi::EntryOut {
            nodeid: self.node,
            generation: self.generation,
            entry_valid,
            attr_valid,
            entry_valid_nsec,
            attr_valid_nsec,
            attr: self.attributes.to_kernel(),
        }
    }
}

impl Opened {
    pub(crate) fn to_kernel(self) -> abi::OpenOut {
        abi::OpenOut { fh: self.handle, open_flags: self.flags.0, backing_id: 0 }
    }
}

impl Statfs {
    pub(crate) fn to_kernel(self) -> abi::Kstatfs {
        abi::Kstatfs {
            blocks: self.blocks,
            bfree: self.blocks_free,
            bavail: self.blocks_available,
            files: self.files,
            ffree: self.files_free,
            bsize: self.block_bytes,
            namelen: self.name_bytes_max,
            frsize: self.fragment_bytes,
            ..abi::Kstatfs::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_number_is_the_same_in_both_replies() {
        let (major, minor) = (259_u32, 0x1_2345_u32);
        let rdev = minor & 0xff | major << 8 | (minor & !0xff) << 12;
        let stat = Attributes { rdev, ..Attributes::default() }.statx_out(Duration::ZERO).stat;
        assert_eq!((stat.rdev_major, stat.rdev_minor), (major, minor));
    }

    #[test]
    fn a_birth_is_told_where_it_is_known() {
        let mask = |birth| Attributes { birth, ..Attributes::default() }.statx_out(Duration::ZERO).stat.mask;
        assert_eq!((mask(None), mask(Some(Time::default()))), (0x7ff, 0xfff));
    }
}
