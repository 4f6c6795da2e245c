//! What a request asks for. Names are bytes without NUL, never empty; the kernel checks that those of entries are no longer than it agreed
//! to and hold no `/`.

use std::mem::size_of;

use zerocopy::FromBytes;

use crate::abi;
use crate::time::{SetTime, Time};

/// One request. Every operation is about `Request::node`, which is the directory where a name is given.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)] // Of fields: their names say it, and the variant what is special.
pub enum Operation<'a> {
    /// Finds a name. Node 0 in the entry of the reply says that there is none, and for how long.
    Lookup { name: &'a [u8] },
    /// So many look-ups of the node are forgotten. No reply.
    Forget { count: u64 },
    /// The same for many nodes. No reply.
    BatchForget(Forgets<'a>),
    /// Attributes.
    Getattr { handle: Option<u64> },
    /// Attributes with the time of birth: those of `mask` (`STATX_…`).
    Statx { handle: Option<u64>, flags: u32, mask: u32 },
    /// Changes attributes.
    Setattr(SetAttributes),
    /// The target of a symbolic link.
    Readlink,
    /// Makes a symbolic link.
    Symlink { name: &'a [u8], target: &'a [u8] },
    /// Makes a file of any kind but a directory.
    Mknod { name: &'a [u8], mode: u32, umask: u32, rdev: u32 },
    /// Makes a directory.
    Mkdir { name: &'a [u8], mode: u32, umask: u32 },
    /// Removes the name of something that is no directory.
    Unlink { name: &'a [u8] },
    /// Removes a directory.
    Rmdir { name: &'a [u8] },
    /// Renames; `flags` are `RENAME_…`, 0 for the older request.
    Rename { name: &'a [u8], new_parent: u64, new_name: &'a [u8], flags: u32 },
    /// Gives `target` another name.
    Link { target: u64, name: &'a [u8] },
    /// Opens a file (`O_…`).
    Open { flags: u32, kill_suidgid: bool },
    /// Reads; `flags` are those of the open file.
    Read { handle: u64, offset: u64, size: u32, flags: u32, lock_owner: Option<u64> },
    /// Writes.
    Write(Write<'a>),
    /// Space and numbers of the file system.
    Statfs,
    /// The last user of an open file has closed it.
    Release { handle: u64, flags: u32, flush: bool, flock_unlock: bool, lock_owner: u64 },
    /// Makes a file durable; `data_only` as fdatasync.
    Fsync { handle: u64, data_only: bool },
    /// Sets an extended attribute (`XATTR_…`).
    Setxattr { name: &'a [u8], value: &'a [u8], flags: u32, acl_kill_sgid: bool },
    /// An extended attribute; with size 0 its length.
    Getxattr { name: &'a [u8], size: u32 },
    /// Names of extended attributes, each with a NUL; with size 0 their length.
    Listxattr { size: u32 },
    /// Removes an extended attribute.
    Removexattr { name: &'a [u8] },
    /// A descriptor of an open file is closed.
    Flush { handle: u64, lock_owner: u64 },
    /// Opens a directory.
    Opendir { flags: u32 },
    /// Entries of a directory from `offset` on: 0, or what an entry said.
    Readdir { handle: u64, offset: u64, size: u32, flags: u32 },
    /// The same with attributes; each entry of the reply is a look-up.
    Readdirplus { handle: u64, offset: u64, size: u32, flags: u32 },
    /// A directory is closed.
    Releasedir { handle: u64, flags: u32 },
    /// Makes a directory durable.
    Fsyncdir { handle: u64, data_only: bool },
    /// Which lock is in the way of this one.
    Getlk { handle: u64, owner: u64, lock: FileLock, flock: bool },
    /// Takes or gives back a lock; `wait` = until it is free.
    Setlk { handle: u64, owner: u64, lock: FileLock, flock: bool, wait: bool },
    /// Whether the caller may (`R_OK`, …).
    Access { mask: u32 },
    /// Makes a file and opens it.
    Create { name: &'a [u8], mode: u32, umask: u32, flags: u32, kill_suidgid: bool },
    /// Makes a file without a name and opens it.
    Tmpfile { mode: u32, umask: u32, flags: u32, kill_suidgid: bool },
    /// The caller of another request got a signal. Sessions give it to [`crate::Handler::interrupted`].
    Interrupt { unique: u64 },
    /// The block of the device below that holds a block of the file.
    Bmap { block: u64, block_bytes: u32 },
    /// The mount is gone. Sessions answer it themselves.
    Destroy,
    /// A command of its own.
    Ioctl(Ioctl<'a>),
    /// Whether a file is ready; with `notify` the kernel wants to be told by [`crate::Notifier::poll_wakeup`] of `kernel_handle`.
    Poll { handle: u64, kernel_handle: u64, events: u32, notify: bool },
    /// What [`crate::Notifier::retrieve`] asked for. Sessions give it to whoever waits. No reply.
    NotifyReply { offset: u64, data: &'a [u8] },
    /// Reserves or frees space (`FALLOC_FL_…`).
    Fallocate { handle: u64, offset: u64, length: u64, mode: u32 },
    /// Data or a hole from `offset` on (`SEEK_…`).
    Lseek { handle: u64, offset: u64, whence: u32 },
    /// Copies between files. The reply is [`crate::Reply::copied`], for both requests that the kernel has for it.
    CopyFileRange(CopyFileRange),
    /// Maps a part of a file into the window of a virtual machine.
    Setupmapping { handle: u64, file_offset: u64, length: u64, flags: u64, window_offset: u64 },
    /// Removes such mappings.
    Removemapping(Mappings<'a>),
    /// Makes the file system durable.
    Syncfs,
    /// The first request. Sessions answer it themselves.
    Init(Init),
}

/// Changes of attributes; `None` = as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttributes {
    /// Permissions, with the bits of the type.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes.
    pub size: Option<u64>,
    /// Time of the last read.
    pub atime: Option<SetTime>,
    /// Time of the last change of the data.
    pub mtime: Option<SetTime>,
    /// Time of the last change, sent with the write-back cache.
    pub ctime: Option<Time>,
    /// The open file by which it is changed (ftruncate).
    pub handle: Option<u64>,
    /// Who would own a lock on it.
    pub lock_owner: Option<u64>,
    /// Set-id bits are to go (`HANDLE_KILLPRIV_V2`).
    pub kill_suidgid: bool,
}

/// Data for a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write<'a> {
    /// The open file; a guess where `from_cache`.
    pub handle: u64,
    /// Place in the file.
    pub offset: u64,
    /// What is written.
    pub data: &'a [u8],
    /// Flags of the open file.
    pub flags: u32,
    /// From the kernel's cache, later than the caller's write.
    pub from_cache: bool,
    /// Set-id bits are to go (`HANDLE_KILLPRIV_V2`).
    pub kill_suidgid: bool,
    /// Who would own a lock on it.
    pub lock_owner: Option<u64>,
}

/// A range that is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileLock {
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: u32,
    /// The process that has it.
    pub pid: u32,
}

/// A copy from `Request::node` to another file, within the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyFileRange {
    /// The open file to copy from.
    pub handle: u64,
    /// Place in it.
    pub offset: u64,
    /// The file to copy to.
    pub target: u64,
    /// How it is open.
    pub target_handle: u64,
    /// Place in it.
    pub target_offset: u64,
    /// Bytes.
    pub length: u64,
    /// None exist yet.
    pub flags: u64,
}

/// A command for a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ioctl<'a> {
    /// The open file.
    pub handle: u64,
    /// `FUSE_IOCTL_…` ([`crate::abi::request_flags`]).
    pub flags: u32,
    /// Which one.
    pub command: u32,
    /// Its argument: a value, or an address in the caller's memory.
    pub argument: u64,
    /// What the caller's memory holds there.
    pub data: &'a [u8],
    /// Room for the reply's data.
    pub size_out: u32,
}

/// What the kernel offers at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Init {
    /// Major version of its protocol.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
    /// Most bytes that it reads ahead.
    pub max_readahead: u32,
    /// Both words of flags.
    pub flags: crate::InitFlags,
}

/// Nodes and how many look-ups of each are forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forgets<'a>(pub(super) &'a [u8]);

impl<'a> Forgets<'a> {
    /// Pairs of a node and a count.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + use<'a> {
        let all = self.0.chunks_exact(size_of::<abi::ForgetOne>());
        all.filter_map(|one| abi::ForgetOne::read_from_bytes(one).ok()).map(|one| (one.nodeid, one.nlookup))
    }
}

/// Places in the window of a virtual machine.
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
    /// Whether it is about a file that is open already, so that who may use it was decided then; or the kernel asks of its own accord.
    pub fn is_by_open_file(&self) -> bool {
        matches!(
            self,
            Self::Read { .. }
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
