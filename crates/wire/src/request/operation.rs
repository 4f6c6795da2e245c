//! The operations of requests. Names are non-empty bytes without NUL; the kernel ensures that entry names are within the agreed length and
//! contain no `/`.

use std::mem::size_of;

use zerocopy::FromBytes;

use crate::abi;
use crate::time::{SetTime, Time};

/// `RENAME_WHITEOUT`: a rename leaves a character device 0:0.
const RENAME_WHITEOUT: u32 = 4;

/// One operation. It is about `Request::node`; where there is a name, that node is the directory.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)] // Field names are self-explanatory; the variants document exceptions.
pub enum Operation<'a> {
    /// Looks up a name. Node 0 in the reply's entry means that the name does not exist; the entry tells how long the kernel may cache that.
    Lookup { name: &'a [u8] },
    /// Subtracts `count` lookups of the node. No reply.
    Forget { count: u64 },
    /// The same for many nodes. No reply.
    BatchForget(Forgets<'a>),
    /// Reads attributes.
    Getattr { handle: Option<u64> },
    /// Reads attributes with the birth time: those of `mask` (`STATX_…`).
    Statx { handle: Option<u64>, flags: u32, mask: u32 },
    /// Changes attributes.
    Setattr(SetAttributes),
    /// Reads the target of a symbolic link.
    Readlink,
    /// Creates a symbolic link.
    Symlink { name: &'a [u8], target: &'a [u8] },
    /// Creates a file of any type except a directory.
    Mknod { name: &'a [u8], mode: u32, umask: u32, rdev: u32 },
    /// Creates a directory.
    Mkdir { name: &'a [u8], mode: u32, umask: u32 },
    /// Removes a name of a non-directory.
    Unlink { name: &'a [u8] },
    /// Removes a directory.
    Rmdir { name: &'a [u8] },
    /// Renames; `flags` are `RENAME_…`, 0 for the older request.
    Rename { name: &'a [u8], new_parent: u64, new_name: &'a [u8], flags: u32 },
    /// Gives `target` another name.
    Link { target: u64, name: &'a [u8] },
    /// Opens a file (`O_…`).
    Open { flags: u32, kill_suidgid: bool },
    /// Reads; `flags` are the open file's.
    Read { handle: u64, offset: u64, size: u32, flags: u32, lock_owner: Option<u64> },
    /// Writes.
    Write(Write<'a>),
    /// Space and inode counts of the file system.
    Statfs,
    /// The last reference to an open file is gone.
    Release { handle: u64, flags: u32, flush: bool, flock_unlock: bool, lock_owner: u64 },
    /// Makes a file durable; `data_only` for fdatasync.
    Fsync { handle: u64, data_only: bool },
    /// Sets an extended attribute (`XATTR_…`). `acl_kill_sgid`: with an access control list, clear the set-group-id bit; `None` without
    /// `SETXATTR_EXT`, as the kernel does not say.
    Setxattr { name: &'a [u8], value: &'a [u8], flags: u32, acl_kill_sgid: Option<bool> },
    /// Reads an extended attribute; with size 0 its length.
    Getxattr { name: &'a [u8], size: u32 },
    /// Lists names of extended attributes, each followed by NUL; with size 0 their length.
    Listxattr { size: u32 },
    /// Removes an extended attribute.
    Removexattr { name: &'a [u8] },
    /// A file descriptor of an open file was closed.
    Flush { handle: u64, lock_owner: u64 },
    /// Opens a directory.
    Opendir { flags: u32 },
    /// Lists a directory from `offset` on: 0, or the offset of an entry.
    Readdir { handle: u64, offset: u64, size: u32, flags: u32 },
    /// The same with attributes; each entry of the reply counts as a lookup.
    Readdirplus { handle: u64, offset: u64, size: u32, flags: u32 },
    /// An open directory was closed.
    Releasedir { handle: u64, flags: u32 },
    /// Makes a directory durable.
    Fsyncdir { handle: u64, data_only: bool },
    /// Finds a lock that conflicts with this one.
    Getlk { handle: u64, owner: u64, lock: FileLock, flock: bool },
    /// Takes or releases a lock; `wait` = until it is free.
    Setlk { handle: u64, owner: u64, lock: FileLock, flock: bool, wait: bool },
    /// Checks access of the caller (`R_OK`, …).
    Access { mask: u32 },
    /// Creates a file and opens it.
    Create { name: &'a [u8], mode: u32, umask: u32, flags: u32, kill_suidgid: bool },
    /// Creates a file without a name and opens it.
    Tmpfile { mode: u32, umask: u32, flags: u32, kill_suidgid: bool },
    /// The caller of another request got a signal. Sessions pass it to [`crate::Handler::interrupted`].
    Interrupt { unique: u64 },
    /// Maps a block of the file to a block of the underlying device.
    Bmap { block: u64, block_bytes: u32 },
    /// The mount has ended. Sessions answer it themselves.
    Destroy,
    /// A file-system-specific command.
    Ioctl(Ioctl<'a>),
    /// Polls a file; with `notify` the kernel expects [`crate::Notifier::poll_wakeup`] of `kernel_handle`.
    Poll { handle: u64, kernel_handle: u64, events: u32, notify: bool },
    /// Data for [`crate::Notifier::retrieve`]. Sessions pass it to the waiter. No reply.
    NotifyReply { offset: u64, data: &'a [u8] },
    /// Reserves or frees space (`FALLOC_FL_…`).
    Fallocate { handle: u64, offset: u64, length: u64, mode: u32 },
    /// Finds data or a hole from `offset` on (`SEEK_…`).
    Lseek { handle: u64, offset: u64, whence: u32 },
    /// Copies between files. The reply is [`crate::Reply::copied`], for both forms of the request.
    CopyFileRange(CopyFileRange),
    /// Maps a part of a file into the DAX window of a virtual machine.
    Setupmapping { handle: u64, file_offset: u64, length: u64, flags: u64, window_offset: u64 },
    /// Removes such mappings.
    Removemapping(Mappings<'a>),
    /// Makes the file system durable.
    Syncfs,
    /// The first request. Sessions answer it themselves.
    Init(Init),
}

/// Attribute changes; `None` = unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttributes {
    /// Permissions, with the file type bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Change time, sent with the write-back cache.
    pub ctime: Option<Time>,
    /// The open file of ftruncate.
    pub handle: Option<u64>,
    /// Lock owner.
    pub lock_owner: Option<u64>,
    /// Clear set-id bits (`HANDLE_KILLPRIV_V2`).
    pub kill_suidgid: bool,
}

/// A WRITE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write<'a> {
    /// The open file; with `from_cache` the kernel's guess.
    pub handle: u64,
    /// Offset in the file.
    pub offset: u64,
    /// The data.
    pub data: &'a [u8],
    /// Flags of the open file.
    pub flags: u32,
    /// Writeback from the kernel's cache, later than the caller's write.
    pub from_cache: bool,
    /// Clear set-id bits (`HANDLE_KILLPRIV_V2`).
    pub kill_suidgid: bool,
    /// Lock owner.
    pub lock_owner: Option<u64>,
}

/// A lock on a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileLock {
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: u32,
    /// The process that holds the lock.
    pub pid: u32,
}

/// A copy from `Request::node` to another file of the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyFileRange {
    /// The open source file.
    pub handle: u64,
    /// Offset in the source.
    pub offset: u64,
    /// The target file.
    pub target: u64,
    /// The open target file.
    pub target_handle: u64,
    /// Offset in the target.
    pub target_offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// No flags are defined yet.
    pub flags: u64,
}

/// A command (ioctl).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ioctl<'a> {
    /// The open file.
    pub handle: u64,
    /// `FUSE_IOCTL_…` ([`crate::abi::request_flags`]).
    pub flags: u32,
    /// The command number.
    pub command: u32,
    /// Its argument: a value, or an address in the caller's memory.
    pub argument: u64,
    /// The data at that address in the caller's memory.
    pub data: &'a [u8],
    /// Room for the reply's data.
    pub size_out: u32,
}

/// The kernel's offer in INIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Init {
    /// Major version of the kernel's protocol.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
    /// Most bytes of read-ahead.
    pub max_readahead: u32,
    /// Both words of flags.
    pub flags: crate::InitFlags,
}

/// Nodes, and the number of lookups to subtract from each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forgets<'a>(pub(super) &'a [u8]);

impl<'a> Forgets<'a> {
    /// Pairs of a node and a count.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + use<'a> {
        let all = self.0.chunks_exact(size_of::<abi::ForgetOne>());
        all.filter_map(|one| abi::ForgetOne::read_from_bytes(one).ok()).map(|one| (one.nodeid, one.nlookup))
    }
}

/// Ranges of the DAX window of a virtual machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mappings<'a>(pub(super) &'a [u8]);

impl<'a> Mappings<'a> {
    /// Pairs of an offset and a length.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + use<'a> {
        let all = self.0.chunks_exact(size_of::<abi::RemovemappingOne>());
        all.filter_map(|one| abi::RemovemappingOne::read_from_bytes(one).ok()).map(|one| (one.moffset, one.len))
    }
}

impl Operation<'_> {
    /// Whether the request creates an inode: it has the ids of the new owner also with `ALLOW_IDMAP`.
    pub fn creates(&self) -> bool {
        match self {
            Self::Rename { flags, .. } => flags & RENAME_WHITEOUT != 0,
            Self::Mknod { .. } | Self::Mkdir { .. } | Self::Symlink { .. } | Self::Create { .. } | Self::Tmpfile { .. } => true,
            _ => false,
        }
    }

    /// Whether the request concerns an open file, so that access was checked at open, or comes from the kernel itself.
    pub fn is_by_open_file(&self) -> bool {
        matches!(
            self,
            // With a handle before a `write` and a `read` at the end, which look at the size first.
            Self::Getattr { handle: Some(_) }
                | Self::Read { .. }
                | Self::Write(_)
                | Self::Readdir { .. }
                | Self::Readdirplus { .. }
                | Self::Release { .. }
                | Self::Releasedir { .. }
                | Self::Fsync { .. }
                | Self::Fsyncdir { .. }
                | Self::Flush { .. }
                | Self::Lseek { .. }
                | Self::Fallocate { .. }
                | Self::CopyFileRange(_)
                | Self::Ioctl(_)
                | Self::Poll { .. }
                | Self::Getlk { .. }
                | Self::Setlk { .. }
                | Self::Forget { .. }
                | Self::BatchForget(_)
                | Self::Interrupt { .. }
                | Self::NotifyReply { .. }
                | Self::Destroy
                | Self::Init(_)
        )
    }
}
