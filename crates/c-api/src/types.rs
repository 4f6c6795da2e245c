//! Structures and numbers of the header.

use std::ffi::c_char;

/// The interface of this header: `major << 16 | minor`. A library with the same major and a minor that is not smaller has all that is here.
pub const TANDEMFS_VERSION: u32 = 1;

/// Of `tandemfs_options`: load bytes of files from the drive's memory, where the mount lends it (`-o direct=GROUP`). It installs a handler
/// for SIGBUS, which passes on what is not its own. `tandemfs_abilities` says whether it is so.
pub const TANDEMFS_LOADS: u32 = 1;
/// Of `tandemfs_options`: store to the drive's memory under leases what is overwritten or appended to again and again, where the mount lends it for that (`-o
/// direct_stores=GROUP`). A stray store of this process to that memory can destroy the file system.
pub const TANDEMFS_STORES: u32 = 2;
/// Of `tandemfs_options`: map files (`tandemfs_map`), where the mount lends its memory.
pub const TANDEMFS_MAPS: u32 = 4;
/// Of `tandemfs_options`: hand calls back with `EREMOTE` on files and directories that somebody watches by inotify or fanotify, which see
/// calls by the mount alone.
pub const TANDEMFS_LEAVES_WATCHED: u32 = 8;
/// Of `tandemfs_options`: ask the daemon each time, and keep no answers.
pub const TANDEMFS_KEEPS_NOTHING: u32 = 16;
/// Of `tandemfs_options`: `umask` holds, and not the mask of the process.
pub const TANDEMFS_UMASK: u32 = 32;
/// Of `tandemfs_abilities` alone: files can be mapped for stores, too.
pub const TANDEMFS_MAPS_FOR_STORES: u32 = 64;
/// Of `tandemfs_abilities` alone: there is `tandemfs_descriptor`.
pub const TANDEMFS_DESCRIPTORS: u32 = 128;

/// Of `tandemfs_map`: for stores, too.
pub const TANDEMFS_MAP_WRITABLE: u32 = 1;

/// Room for a name of a directory, with the NUL at its end.
pub const TANDEMFS_NAME_BYTES: usize = 256;

/// What a connection asks for. Set `size` to the size of this structure, and all that you do not want to choose to 0.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Options {
    /// `sizeof(struct tandemfs_options)`.
    pub size: usize,
    /// `TANDEMFS_LOADS` and others, or 0.
    pub flags: u32,
    /// Threads that may have a request in flight at once, 1 to 64; further ones wait for each other. The daemon may give fewer. 0 for 32.
    pub slots: u32,
    /// Bytes of shared memory for data, in whole pages. The daemon may give less. 0 for 8 MiB.
    pub data_bytes: u64,
    /// Milliseconds that a call waits for shared memory that other calls have, before it fails with `ENOMEM`. 0 for 1000.
    pub memory_wait_ms: u32,
    /// With `TANDEMFS_UMASK`: permissions that new files do not get.
    pub umask: u32,
}

/// A time since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Time {
    /// Seconds.
    pub seconds: i64,
    /// And nanoseconds, below one second.
    pub nanoseconds: u32,
}

/// What stat(2) says of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Attributes {
    /// The number of the inode.
    pub inode: u64,
    /// Length in bytes.
    pub size_bytes: u64,
    /// Space in units of 512 B.
    pub space_512: u64,
    /// The device of a special file.
    pub device: u64,
    /// Type and permissions: `S_ISDIR` and its like take it.
    pub mode: u32,
    /// Names.
    pub links: u32,
    /// Owner.
    pub user: u32,
    /// Group.
    pub group: u32,
    /// The best size of a transfer.
    pub block_bytes: u32,
    /// When it was read last, as the mount keeps that.
    pub accessed: Time,
    /// When its bytes were changed last.
    pub modified: Time,
    /// When it was changed last.
    pub changed: Time,
    /// When it was made.
    pub created: Time,
}

/// What statvfs(3) says of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Space {
    /// Bytes of a unit.
    pub unit_bytes: u64,
    /// Units in all.
    pub units: u64,
    /// Free units.
    pub free: u64,
    /// Units that are free for users.
    pub available: u64,
    /// Inodes in all.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_bytes_max: u64,
}

/// An entry of a directory.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Entry {
    /// Its inode.
    pub inode: u64,
    /// Where a listing goes on behind it, for `tandemfs_seekdir`.
    pub cookie: u64,
    /// The type of the file: `DT_DIR` and its like.
    pub kind: u8,
    /// Its name.
    pub name: [c_char; TANDEMFS_NAME_BYTES],
}

impl From<tandemfs_client::Time> for Time {
    fn from(time: tandemfs_client::Time) -> Self {
        Self { seconds: time.seconds, nanoseconds: time.nanoseconds }
    }
}

impl From<tandemfs_client::Attributes> for Attributes {
    fn from(found: tandemfs_client::Attributes) -> Self {
        Self {
            inode: found.node,
            size_bytes: found.size_bytes,
            space_512: found.space_512,
            device: found.device_number,
            mode: found.mode,
            links: found.links,
            user: found.user,
            group: found.group,
            block_bytes: found.block_bytes,
            accessed: found.accessed.into(),
            modified: found.modified.into(),
            changed: found.changed.into(),
            created: found.created.into(),
        }
    }
}

impl From<tandemfs_client::Space> for Space {
    fn from(found: tandemfs_client::Space) -> Self {
        let tandemfs_client::Space { unit_bytes, units, free, available, files, files_free, name_bytes_max } = found;
        Self { unit_bytes, units, free, available, files, files_free, name_bytes_max }
    }
}
