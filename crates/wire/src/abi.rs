//! The structures and numbers of `linux/fuse.h`, protocol 7.31 to 7.45, under the kernel's names.
//!
//! * AB1: The size of each structure and the offset of each field are checked at compile time; zerocopy refuses unnamed padding.
//! * AB2: Integers are in the machine's byte order, as in the kernel.
//! * AB3: Additions to structures after version 7.31 are documented where they are used (`negotiation.rs`, [`crate::InitFlags`]).
//!
//! File systems do not need this module: [`crate::Operation`] and [`crate::Reply`] use plain types. It is public for programs that act as
//! the kernel, as tests do.
#![allow(missing_docs)] // The names are documented in linux/fuse.h.

use std::mem::{offset_of, size_of};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major version of the protocol.
pub const MAJOR: u32 = 7;
/// The newest minor version that this crate speaks.
pub const MINOR: u32 = 45;
/// The oldest minor version that this crate speaks (Linux 5.2).
pub const MINOR_MIN: u32 = 31;
/// Number of the root.
pub const ROOT_ID: u64 = 1;
/// The smallest buffer that the kernel accepts for a request.
pub const MIN_READ_BUFFER: usize = 8192;
/// In [`InHeader::unique`]: the request is resent after [`notify_code::RESEND`].
pub const UNIQUE_RESEND: u64 = 1 << 63;
/// In [`InHeader::uid`] and `gid`: no id mapping (`ALLOW_IDMAP`).
pub const INVALID_UIDGID: u32 = u32::MAX;
/// First type of [`ExtHeader`] that is not a count of security contexts.
pub const EXT_GROUPS: u32 = 32;
/// Largest count of security contexts.
pub const MAX_NR_SECCTX: u32 = 31;
/// `FUSE_DEV_IOC_CLONE`: magic and number.
pub const DEV_IOC_CLONE: (u8, u8) = (229, 0);
/// Most vectors of an ioctl that is retried.
pub const IOCTL_MAX_IOV: usize = 256;

macro_rules! structures {
    ($($(#[$about:meta])* $name:ident $size:literal { $($field:ident: $type:ty = $offset:literal),* $(,)? })*) => {$(
        $(#[$about])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        pub struct $name { $(pub $field: $type),* }

        const _: () = {
            assert!(size_of::<$name>() == $size); // [AB1]
            $(assert!(offset_of!($name, $field) == $offset);)*
        };
    )*};
}

structures! {
    InHeader 40 {
        len: u32 = 0, opcode: u32 = 4, unique: u64 = 8, nodeid: u64 = 16, uid: u32 = 24, gid: u32 = 28, pid: u32 = 32,
        total_extlen: u16 = 36, padding: u16 = 38,
    }
    OutHeader 16 { len: u32 = 0, error: i32 = 4, unique: u64 = 8 }

    Attr 88 {
        ino: u64 = 0, size: u64 = 8, blocks: u64 = 16, atime: u64 = 24, mtime: u64 = 32, ctime: u64 = 40, atimensec: u32 = 48,
        mtimensec: u32 = 52, ctimensec: u32 = 56, mode: u32 = 60, nlink: u32 = 64, uid: u32 = 68, gid: u32 = 72, rdev: u32 = 76,
        blksize: u32 = 80, flags: u32 = 84,
    }
    EntryOut 128 {
        nodeid: u64 = 0, generation: u64 = 8, entry_valid: u64 = 16, attr_valid: u64 = 24, entry_valid_nsec: u32 = 32,
        attr_valid_nsec: u32 = 36, attr: Attr = 40,
    }
    AttrOut 104 { attr_valid: u64 = 0, attr_valid_nsec: u32 = 8, dummy: u32 = 12, attr: Attr = 16 }
    SxTime 16 { tv_sec: i64 = 0, tv_nsec: u32 = 8, reserved: i32 = 12 }
    Statx 256 {
        mask: u32 = 0, blksize: u32 = 4, attributes: u64 = 8, nlink: u32 = 16, uid: u32 = 20, gid: u32 = 24, mode: u16 = 28,
        spare0: u16 = 30, ino: u64 = 32, size: u64 = 40, blocks: u64 = 48, attributes_mask: u64 = 56, atime: SxTime = 64,
        btime: SxTime = 80, ctime: SxTime = 96, mtime: SxTime = 112, rdev_major: u32 = 128, rdev_minor: u32 = 132, dev_major: u32 = 136,
        dev_minor: u32 = 140, spare2: [u64; 14] = 144,
    }
    StatxIn 24 { getattr_flags: u32 = 0, reserved: u32 = 4, fh: u64 = 8, sx_flags: u32 = 16, sx_mask: u32 = 20 }
    StatxOut 288 { attr_valid: u64 = 0, attr_valid_nsec: u32 = 8, flags: u32 = 12, spare: [u64; 2] = 16, stat: Statx = 32 }
    Kstatfs 80 {
        blocks: u64 = 0, bfree: u64 = 8, bavail: u64 = 16, files: u64 = 24, ffree: u64 = 32, bsize: u32 = 40, namelen: u32 = 44,
        frsize: u32 = 48, padding: u32 = 52, spare: [u32; 6] = 56,
    }
    FileLock 24 { start: u64 = 0, end: u64 = 8, kind: u32 = 16, pid: u32 = 20 }

    ForgetIn 8 { nlookup: u64 = 0 }
    ForgetOne 16 { nodeid: u64 = 0, nlookup: u64 = 8 }
    BatchForgetIn 8 { count: u32 = 0, dummy: u32 = 4 }
    GetattrIn 16 { getattr_flags: u32 = 0, dummy: u32 = 4, fh: u64 = 8 }
    SetattrIn 88 {
        valid: u32 = 0, padding: u32 = 4, fh: u64 = 8, size: u64 = 16, lock_owner: u64 = 24, atime: u64 = 32, mtime: u64 = 40,
        ctime: u64 = 48, atimensec: u32 = 56, mtimensec: u32 = 60, ctimensec: u32 = 64, mode: u32 = 68, unused4: u32 = 72, uid: u32 = 76,
        gid: u32 = 80, unused5: u32 = 84,
    }
    MknodIn 16 { mode: u32 = 0, rdev: u32 = 4, umask: u32 = 8, padding: u32 = 12 }
    MkdirIn 8 { mode: u32 = 0, umask: u32 = 4 }
    RenameIn 8 { newdir: u64 = 0 }
    Rename2In 16 { newdir: u64 = 0, flags: u32 = 8, padding: u32 = 12 }
    LinkIn 8 { oldnodeid: u64 = 0 }
    OpenIn 8 { flags: u32 = 0, open_flags: u32 = 4 }
    CreateIn 16 { flags: u32 = 0, mode: u32 = 4, umask: u32 = 8, open_flags: u32 = 12 }
    OpenOut 16 { fh: u64 = 0, open_flags: u32 = 8, backing_id: i32 = 12 }
    ReleaseIn 24 { fh: u64 = 0, flags: u32 = 8, release_flags: u32 = 12, lock_owner: u64 = 16 }
    FlushIn 24 { fh: u64 = 0, unused: u32 = 8, padding: u32 = 12, lock_owner: u64 = 16 }
    /// Also used by READDIR and READDIRPLUS.
    ReadIn 40 {
        fh: u64 = 0, offset: u64 = 8, size: u32 = 16, read_flags: u32 = 20, lock_owner: u64 = 24, flags: u32 = 32, padding: u32 = 36,
    }
    WriteIn 40 {
        fh: u64 = 0, offset: u64 = 8, size: u32 = 16, write_flags: u32 = 20, lock_owner: u64 = 24, flags: u32 = 32, padding: u32 = 36,
    }
    WriteOut 8 { size: u32 = 0, padding: u32 = 4 }
    FsyncIn 16 { fh: u64 = 0, fsync_flags: u32 = 8, padding: u32 = 12 }
    /// Without `SETXATTR_EXT`.
    SetxattrCompatIn 8 { size: u32 = 0, flags: u32 = 4 }
    SetxattrIn 16 { size: u32 = 0, flags: u32 = 4, setxattr_flags: u32 = 8, padding: u32 = 12 }
    GetxattrIn 8 { size: u32 = 0, padding: u32 = 4 }
    GetxattrOut 8 { size: u32 = 0, padding: u32 = 4 }
    LkIn 48 { fh: u64 = 0, owner: u64 = 8, lk: FileLock = 16, lk_flags: u32 = 40, padding: u32 = 44 }
    LkOut 24 { lk: FileLock = 0 }
    AccessIn 8 { mask: u32 = 0, padding: u32 = 4 }
    /// Without `INIT_EXT`.
    InitCompatIn 16 { major: u32 = 0, minor: u32 = 4, max_readahead: u32 = 8, flags: u32 = 12 }
    InitIn 64 { major: u32 = 0, minor: u32 = 4, max_readahead: u32 = 8, flags: u32 = 12, flags2: u32 = 16, unused: [u32; 11] = 20 }
    InitOut 64 {
        major: u32 = 0, minor: u32 = 4, max_readahead: u32 = 8, flags: u32 = 12, max_background: u16 = 16, congestion_threshold: u16 = 18,
        max_write: u32 = 20, time_gran: u32 = 24, max_pages: u16 = 28, map_alignment: u16 = 30, flags2: u32 = 32,
        max_stack_depth: u32 = 36, request_timeout: u16 = 40, unused: [u16; 11] = 42,
    }
    InterruptIn 8 { unique: u64 = 0 }
    BmapIn 16 { block: u64 = 0, blocksize: u32 = 8, padding: u32 = 12 }
    BmapOut 8 { block: u64 = 0 }
    IoctlIn 32 { fh: u64 = 0, flags: u32 = 8, cmd: u32 = 12, arg: u64 = 16, in_size: u32 = 24, out_size: u32 = 28 }
    IoctlIovec 16 { base: u64 = 0, len: u64 = 8 }
    IoctlOut 16 { result: i32 = 0, flags: u32 = 4, in_iovs: u32 = 8, out_iovs: u32 = 12 }
    PollIn 24 { fh: u64 = 0, kh: u64 = 8, flags: u32 = 16, events: u32 = 20 }
    PollOut 8 { revents: u32 = 0, padding: u32 = 4 }
    FallocateIn 32 { fh: u64 = 0, offset: u64 = 8, length: u64 = 16, mode: u32 = 24, padding: u32 = 28 }
    LseekIn 24 { fh: u64 = 0, offset: u64 = 8, whence: u32 = 16, padding: u32 = 20 }
    LseekOut 8 { offset: u64 = 0 }
    CopyFileRangeIn 56 {
        fh_in: u64 = 0, off_in: u64 = 8, nodeid_out: u64 = 16, fh_out: u64 = 24, off_out: u64 = 32, len: u64 = 40, flags: u64 = 48,
    }
    CopyFileRangeOut 8 { bytes_copied: u64 = 0 }
    SetupmappingIn 40 { fh: u64 = 0, foffset: u64 = 8, len: u64 = 16, flags: u64 = 24, moffset: u64 = 32 }
    RemovemappingIn 4 { count: u32 = 0 }
    RemovemappingOne 16 { moffset: u64 = 0, len: u64 = 8 }
    SyncfsIn 8 { padding: u64 = 0 }

    /// A directory entry; the name follows, padded to 8 bytes.
    Dirent 24 { ino: u64 = 0, off: u64 = 8, namelen: u32 = 16, kind: u32 = 20 }
    Direntplus 152 { entry_out: EntryOut = 0, dirent: Dirent = 128 }

    Secctx 8 { size: u32 = 0, padding: u32 = 4 }
    /// The header of each extension: `kind` up to [`MAX_NR_SECCTX`] is a count of security contexts.
    ExtHeader 8 { size: u32 = 0, kind: u32 = 4 }

    NotifyPollWakeupOut 8 { kh: u64 = 0 }
    NotifyInvalInodeOut 24 { ino: u64 = 0, off: i64 = 8, len: i64 = 16 }
    NotifyInvalEntryOut 16 { parent: u64 = 0, namelen: u32 = 8, flags: u32 = 12 }
    NotifyDeleteOut 24 { parent: u64 = 0, child: u64 = 8, namelen: u32 = 16, padding: u32 = 20 }
    NotifyStoreOut 24 { nodeid: u64 = 0, offset: u64 = 8, size: u32 = 16, padding: u32 = 20 }
    NotifyRetrieveOut 32 { notify_unique: u64 = 0, nodeid: u64 = 8, offset: u64 = 16, size: u32 = 24, padding: u32 = 28 }
    NotifyRetrieveIn 40 { dummy1: u64 = 0, offset: u64 = 8, size: u32 = 16, dummy2: u32 = 20, dummy3: u64 = 24, dummy4: u64 = 32 }
    NotifyPruneOut 16 { count: u32 = 0, padding: u32 = 4, spare: u64 = 8 }

    UringEntInOut 32 { flags: u64 = 0, commit_id: u64 = 8, payload_sz: u32 = 16, padding: u32 = 20, reserved: u64 = 24 }
    UringCmdReq 24 { flags: u64 = 0, commit_id: u64 = 8, qid: u16 = 16, padding: [u8; 6] = 18 }
}

/// Headers of an io_uring entry: `in_out` holds an [`InHeader`] or [`OutHeader`], `op_in` the fixed part of a request.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct UringReqHeader {
    pub in_out: [u8; 128],
    pub op_in: [u8; 128],
    pub ring_ent_in_out: UringEntInOut,
}

const _: () = {
    assert!(size_of::<UringReqHeader>() == 288);
    assert!(offset_of!(UringReqHeader, ring_ent_in_out) == 256);
};

macro_rules! numbers {
    ($($(#[$about:meta])* $module:ident: $type:ty { $($name:ident = $value:expr),* $(,)? })*) => {$(
        $(#[$about])*
        pub mod $module {
            $(pub const $name: $type = $value;)*
        }
    )*};
}

numbers! {
    /// `enum fuse_opcode`
    opcode: u32 {
        LOOKUP = 1, FORGET = 2, GETATTR = 3, SETATTR = 4, READLINK = 5, SYMLINK = 6, MKNOD = 8, MKDIR = 9, UNLINK = 10, RMDIR = 11,
        RENAME = 12, LINK = 13, OPEN = 14, READ = 15, WRITE = 16, STATFS = 17, RELEASE = 18, FSYNC = 20, SETXATTR = 21, GETXATTR = 22,
        LISTXATTR = 23, REMOVEXATTR = 24, FLUSH = 25, INIT = 26, OPENDIR = 27, READDIR = 28, RELEASEDIR = 29, FSYNCDIR = 30, GETLK = 31,
        SETLK = 32, SETLKW = 33, ACCESS = 34, CREATE = 35, INTERRUPT = 36, BMAP = 37, DESTROY = 38, IOCTL = 39, POLL = 40,
        NOTIFY_REPLY = 41, BATCH_FORGET = 42, FALLOCATE = 43, READDIRPLUS = 44, RENAME2 = 45, LSEEK = 46, COPY_FILE_RANGE = 47,
        SETUPMAPPING = 48, REMOVEMAPPING = 49, SYNCFS = 50, TMPFILE = 51, STATX = 52, COPY_FILE_RANGE_64 = 53,
    }
    /// `enum fuse_notify_code`
    notify_code: i32 {
        POLL = 1, INVAL_INODE = 2, INVAL_ENTRY = 3, STORE = 4, RETRIEVE = 5, DELETE = 6, RESEND = 7, INC_EPOCH = 8, PRUNE = 9,
    }
    /// `fuse_setattr_in.valid`
    fattr: u32 {
        MODE = 1, UID = 1 << 1, GID = 1 << 2, SIZE = 1 << 3, ATIME = 1 << 4, MTIME = 1 << 5, FH = 1 << 6, ATIME_NOW = 1 << 7,
        MTIME_NOW = 1 << 8, LOCKOWNER = 1 << 9, CTIME = 1 << 10, KILL_SUIDGID = 1 << 11,
    }
    /// Flags of individual requests, by the field that carries them.
    request_flags: u32 {
        GETATTR_FH = 1, OPEN_KILL_SUIDGID = 1, READ_LOCKOWNER = 1 << 1, WRITE_CACHE = 1, WRITE_LOCKOWNER = 1 << 1,
        WRITE_KILL_SUIDGID = 1 << 2, RELEASE_FLUSH = 1, RELEASE_FLOCK_UNLOCK = 1 << 1, FSYNC_FDATASYNC = 1, LK_FLOCK = 1,
        SETXATTR_ACL_KILL_SGID = 1, POLL_SCHEDULE_NOTIFY = 1, IOCTL_COMPAT = 1, IOCTL_UNRESTRICTED = 1 << 1, IOCTL_RETRY = 1 << 2,
        IOCTL_32BIT = 1 << 3, IOCTL_DIR = 1 << 4, IOCTL_COMPAT_X32 = 1 << 5,
    }
    /// `notify_inval_entry` flags
    inval_entry: u32 { EXPIRE_ONLY = 1 }
    /// `enum fuse_uring_cmd`
    uring_cmd: u32 { REGISTER = 1, COMMIT_AND_FETCH = 2 }
}
