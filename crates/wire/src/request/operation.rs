//! What a request asks for. Names are bytes without NUL, never empty; the kernel checks that those of entries are no longer than it agreed
//! to and hold no `/`.

use std::mem::size_of;

use zerocopy::FromBytes;

use super::cursor::{Cursor, Malformed};
use crate::abi::{self, opcode, request_flags as flag};
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
pub struct Forgets<'a>(&'a [u8]);

impl<'a> Forgets<'a> {
    /// Pairs of a node and a count.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + use<'a> {
        let all = self.0.chunks_exact(size_of::<abi::ForgetOne>());
        all.filter_map(|one| abi::ForgetOne::read_from_bytes(one).ok()).map(|one| (one.nodeid, one.nlookup))
    }
}

/// Places in the window of a virtual machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mappings<'a>(&'a [u8]);

impl<'a> Mappings<'a> {
    /// Pairs of an offset and a length.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + use<'a> {
        let all = self.0.chunks_exact(size_of::<abi::RemovemappingOne>());
        all.filter_map(|one| abi::RemovemappingOne::read_from_bytes(one).ok()).map(|one| (one.moffset, one.len))
    }
}

/// What was agreed on and changes how requests are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dialect {
    /// `SETXATTR_EXT`: SETXATTR carries flags of its own.
    pub setxattr_ext: bool,
}

/// Parses what follows the header; `None` = no such request is known.
pub(crate) fn parse<'a>(code: u32, cursor: &mut Cursor<'a>, dialect: Dialect) -> Result<Option<Operation<'a>>, Malformed> {
    let operation = match code {
        opcode::LOOKUP => Operation::Lookup { name: cursor.name()? },
        opcode::FORGET => Operation::Forget { count: cursor.structure::<abi::ForgetIn>()?.nlookup },
        opcode::BATCH_FORGET => {
            let count = cursor.structure::<abi::BatchForgetIn>()?.count as usize;
            Operation::BatchForget(Forgets(array::<abi::ForgetOne>(cursor, count)?))
        }
        opcode::GETATTR => {
            let given: abi::GetattrIn = cursor.structure()?;
            Operation::Getattr { handle: flagged(given.getattr_flags, flag::GETATTR_FH, given.fh) }
        }
        opcode::STATX => {
            let given: abi::StatxIn = cursor.structure()?;
            let handle = flagged(given.getattr_flags, flag::GETATTR_FH, given.fh);
            Operation::Statx { handle, flags: given.sx_flags, mask: given.sx_mask }
        }
        opcode::SETATTR => Operation::Setattr(SetAttributes::from_kernel(&cursor.structure()?)),
        opcode::ACCESS => Operation::Access { mask: cursor.structure::<abi::AccessIn>()?.mask },
        opcode::STATFS => Operation::Statfs,
        opcode::INTERRUPT => Operation::Interrupt { unique: cursor.structure::<abi::InterruptIn>()?.unique },
        opcode::DESTROY => Operation::Destroy,
        opcode::INIT => Operation::Init(init(cursor)?),
        opcode::SYNCFS => Operation::Syncfs,
        opcode::SETXATTR | opcode::GETXATTR | opcode::LISTXATTR | opcode::REMOVEXATTR => attribute(code, cursor, dialect)?,
        _ => match naming(code, cursor)? {
            Some(operation) => operation,
            None => return file(code, cursor),
        },
    };
    Ok(Some(operation))
}

/// Requests about names and what they name.
fn naming<'a>(code: u32, cursor: &mut Cursor<'a>) -> Result<Option<Operation<'a>>, Malformed> {
    let operation = match code {
        opcode::READLINK => Operation::Readlink,
        opcode::SYMLINK => Operation::Symlink { name: cursor.name()?, target: cursor.name()? },
        opcode::MKNOD => {
            let given: abi::MknodIn = cursor.structure()?;
            Operation::Mknod { name: cursor.name()?, mode: given.mode, umask: given.umask, rdev: given.rdev }
        }
        opcode::MKDIR => {
            let given: abi::MkdirIn = cursor.structure()?;
            Operation::Mkdir { name: cursor.name()?, mode: given.mode, umask: given.umask }
        }
        opcode::UNLINK => Operation::Unlink { name: cursor.name()? },
        opcode::RMDIR => Operation::Rmdir { name: cursor.name()? },
        opcode::RENAME => {
            let new_parent = cursor.structure::<abi::RenameIn>()?.newdir;
            Operation::Rename { name: cursor.name()?, new_parent, new_name: cursor.name()?, flags: 0 }
        }
        opcode::RENAME2 => {
            let given: abi::Rename2In = cursor.structure()?;
            Operation::Rename { name: cursor.name()?, new_parent: given.newdir, new_name: cursor.name()?, flags: given.flags }
        }
        opcode::LINK => {
            let target = cursor.structure::<abi::LinkIn>()?.oldnodeid;
            Operation::Link { target, name: cursor.name()? }
        }
        opcode::CREATE => {
            let given: abi::CreateIn = cursor.structure()?;
            let kill_suidgid = given.open_flags & flag::OPEN_KILL_SUIDGID != 0;
            Operation::Create { name: cursor.name()?, mode: given.mode, umask: given.umask, flags: given.flags, kill_suidgid }
        }
        opcode::TMPFILE => {
            let given: abi::CreateIn = cursor.structure()?;
            let kill_suidgid = given.open_flags & flag::OPEN_KILL_SUIDGID != 0;
            // The name that the kernel has for it while it has none.
            cursor.string()?;
            Operation::Tmpfile { mode: given.mode, umask: given.umask, flags: given.flags, kill_suidgid }
        }
        _ => return Ok(None),
    };
    Ok(Some(operation))
}

fn attribute<'a>(code: u32, cursor: &mut Cursor<'a>, dialect: Dialect) -> Result<Operation<'a>, Malformed> {
    Ok(match code {
        opcode::SETXATTR => {
            let given = if dialect.setxattr_ext {
                cursor.structure()?
            } else {
                let short: abi::SetxattrCompatIn = cursor.structure()?;
                abi::SetxattrIn { size: short.size, flags: short.flags, ..Default::default() }
            };
            let name = cursor.name()?;
            let value = cursor.take(given.size as usize)?;
            let acl_kill_sgid = given.setxattr_flags & flag::SETXATTR_ACL_KILL_SGID != 0;
            Operation::Setxattr { name, value, flags: given.flags, acl_kill_sgid }
        }
        opcode::GETXATTR => {
            let size = cursor.structure::<abi::GetxattrIn>()?.size;
            Operation::Getxattr { name: cursor.name()?, size }
        }
        opcode::LISTXATTR => Operation::Listxattr { size: cursor.structure::<abi::GetxattrIn>()?.size },
        opcode::REMOVEXATTR => Operation::Removexattr { name: cursor.name()? },
        _ => return Err(Malformed),
    })
}

/// Requests about open files and directories.
fn file<'a>(code: u32, cursor: &mut Cursor<'a>) -> Result<Option<Operation<'a>>, Malformed> {
    let operation = match code {
        opcode::OPEN => {
            let given: abi::OpenIn = cursor.structure()?;
            Operation::Open { flags: given.flags, kill_suidgid: given.open_flags & flag::OPEN_KILL_SUIDGID != 0 }
        }
        opcode::OPENDIR => Operation::Opendir { flags: cursor.structure::<abi::OpenIn>()?.flags },
        opcode::READ => {
            let abi::ReadIn { fh: handle, offset, size, flags, read_flags, lock_owner, .. } = cursor.structure()?;
            Operation::Read { handle, offset, size, flags, lock_owner: flagged(read_flags, flag::READ_LOCKOWNER, lock_owner) }
        }
        opcode::READDIR => {
            let abi::ReadIn { fh: handle, offset, size, flags, .. } = cursor.structure()?;
            Operation::Readdir { handle, offset, size, flags }
        }
        opcode::READDIRPLUS => {
            let abi::ReadIn { fh: handle, offset, size, flags, .. } = cursor.structure()?;
            Operation::Readdirplus { handle, offset, size, flags }
        }
        opcode::WRITE => Operation::Write(write(cursor)?),
        opcode::RELEASE => {
            let abi::ReleaseIn { fh: handle, flags, release_flags, lock_owner } = cursor.structure()?;
            let (flush, flock_unlock) = (release_flags & flag::RELEASE_FLUSH != 0, release_flags & flag::RELEASE_FLOCK_UNLOCK != 0);
            Operation::Release { handle, flags, flush, flock_unlock, lock_owner }
        }
        opcode::RELEASEDIR => {
            let given: abi::ReleaseIn = cursor.structure()?;
            Operation::Releasedir { handle: given.fh, flags: given.flags }
        }
        opcode::FLUSH => {
            let given: abi::FlushIn = cursor.structure()?;
            Operation::Flush { handle: given.fh, lock_owner: given.lock_owner }
        }
        opcode::FSYNC | opcode::FSYNCDIR => {
            let given: abi::FsyncIn = cursor.structure()?;
            let (handle, data_only) = (given.fh, given.fsync_flags & flag::FSYNC_FDATASYNC != 0);
            if code == opcode::FSYNC { Operation::Fsync { handle, data_only } } else { Operation::Fsyncdir { handle, data_only } }
        }
        opcode::FALLOCATE => {
            let abi::FallocateIn { fh: handle, offset, length, mode, .. } = cursor.structure()?;
            Operation::Fallocate { handle, offset, length, mode }
        }
        opcode::LSEEK => {
            let abi::LseekIn { fh: handle, offset, whence, .. } = cursor.structure()?;
            Operation::Lseek { handle, offset, whence }
        }
        opcode::GETLK | opcode::SETLK | opcode::SETLKW => lock(code, &cursor.structure()?),
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => Operation::CopyFileRange(copy(&cursor.structure()?)),
        _ => return special(code, cursor),
    };
    Ok(Some(operation))
}

/// Requests that few file systems serve.
fn special<'a>(code: u32, cursor: &mut Cursor<'a>) -> Result<Option<Operation<'a>>, Malformed> {
    let operation = match code {
        opcode::IOCTL => {
            let given: abi::IoctlIn = cursor.structure()?;
            let data = cursor.take(given.in_size as usize)?;
            let abi::IoctlIn { fh: handle, flags, cmd: command, arg: argument, out_size: size_out, .. } = given;
            Operation::Ioctl(Ioctl { handle, flags, command, argument, data, size_out })
        }
        opcode::POLL => {
            let abi::PollIn { fh: handle, kh: kernel_handle, flags, events } = cursor.structure()?;
            Operation::Poll { handle, kernel_handle, events, notify: flags & flag::POLL_SCHEDULE_NOTIFY != 0 }
        }
        opcode::BMAP => {
            let given: abi::BmapIn = cursor.structure()?;
            Operation::Bmap { block: given.block, block_bytes: given.blocksize }
        }
        opcode::NOTIFY_REPLY => {
            let given: abi::NotifyRetrieveIn = cursor.structure()?;
            Operation::NotifyReply { offset: given.offset, data: cursor.take(given.size as usize)? }
        }
        opcode::SETUPMAPPING => {
            let abi::SetupmappingIn { fh: handle, foffset, len, flags, moffset } = cursor.structure()?;
            Operation::Setupmapping { handle, file_offset: foffset, length: len, flags, window_offset: moffset }
        }
        opcode::REMOVEMAPPING => {
            let count = cursor.structure::<abi::RemovemappingIn>()?.count as usize;
            Operation::Removemapping(Mappings(array::<abi::RemovemappingOne>(cursor, count)?))
        }
        _ => return Ok(None),
    };
    Ok(Some(operation))
}

fn flagged<T>(flags: u32, flag: u32, value: T) -> Option<T> {
    (flags & flag != 0).then_some(value)
}

fn array<'a, T>(cursor: &mut Cursor<'a>, count: usize) -> Result<&'a [u8], Malformed> {
    cursor.take(count.checked_mul(size_of::<T>()).ok_or(Malformed)?)
}

fn write<'a>(cursor: &mut Cursor<'a>) -> Result<Write<'a>, Malformed> {
    let given: abi::WriteIn = cursor.structure()?;
    Ok(Write {
        handle: given.fh,
        offset: given.offset,
        data: cursor.take(given.size as usize)?,
        flags: given.flags,
        from_cache: given.write_flags & flag::WRITE_CACHE != 0,
        kill_suidgid: given.write_flags & flag::WRITE_KILL_SUIDGID != 0,
        lock_owner: flagged(given.write_flags, flag::WRITE_LOCKOWNER, given.lock_owner),
    })
}

fn lock<'a>(code: u32, given: &abi::LkIn) -> Operation<'a> {
    let abi::LkIn { fh: handle, owner, lk: abi::FileLock { start, end, kind, pid }, lk_flags, .. } = *given;
    let (lock, flock) = (FileLock { start, end, kind, pid }, lk_flags & flag::LK_FLOCK != 0);
    match code {
        opcode::GETLK => Operation::Getlk { handle, owner, lock, flock },
        _ => Operation::Setlk { handle, owner, lock, flock, wait: code == opcode::SETLKW },
    }
}

fn copy(given: &abi::CopyFileRangeIn) -> CopyFileRange {
    CopyFileRange {
        handle: given.fh_in,
        offset: given.off_in,
        target: given.nodeid_out,
        target_handle: given.fh_out,
        target_offset: given.off_out,
        length: given.len,
        flags: given.flags,
    }
}

/// Kernels before 7.36 send no second word of flags.
fn init(cursor: &mut Cursor<'_>) -> Result<Init, Malformed> {
    let mut long = *cursor;
    let given = match long.structure::<abi::InitIn>() {
        Ok(given) => given,
        Err(Malformed) => {
            let abi::InitCompatIn { major, minor, max_readahead, flags } = cursor.structure()?;
            abi::InitIn { major, minor, max_readahead, flags, ..Default::default() }
        }
    };
    let flags = crate::InitFlags::from_words(given.flags, given.flags2);
    Ok(Init { major: given.major, minor: given.minor, max_readahead: given.max_readahead, flags })
}

impl SetAttributes {
    fn from_kernel(given: &abi::SetattrIn) -> Self {
        use abi::fattr;
        let has = |flag| given.valid & flag != 0;
        let time = |flag, now, seconds: u64, nanoseconds| match (has(flag), has(now)) {
            (_, true) => Some(SetTime::Now),
            (true, false) => Some(SetTime::At(Time::from_kernel(seconds, nanoseconds))),
            (false, false) => None,
        };
        Self {
            mode: flagged(given.valid, fattr::MODE, given.mode),
            uid: flagged(given.valid, fattr::UID, given.uid),
            gid: flagged(given.valid, fattr::GID, given.gid),
            size: flagged(given.valid, fattr::SIZE, given.size),
            atime: time(fattr::ATIME, fattr::ATIME_NOW, given.atime, given.atimensec),
            mtime: time(fattr::MTIME, fattr::MTIME_NOW, given.mtime, given.mtimensec),
            ctime: flagged(given.valid, fattr::CTIME, Time::from_kernel(given.ctime, given.ctimensec)),
            handle: flagged(given.valid, fattr::FH, given.fh),
            lock_owner: flagged(given.valid, fattr::LOCKOWNER, given.lock_owner),
            kill_suidgid: has(fattr::KILL_SUIDGID),
        }
    }
}
