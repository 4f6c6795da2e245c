//! Parses the bytes of a request into its [`Operation`].

use std::mem::size_of;

use super::cursor::{Cursor, Malformed};
use super::operation::{CopyFileRange, FileLock, Forgets, Init, Ioctl, Mappings, Operation, SetAttributes, Write};
use crate::abi::{self, opcode, request_flags as flag};
use crate::time::{SetTime, Time};

/// Negotiated settings that change the layout of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dialect {
    /// `SETXATTR_EXT`: SETXATTR has a field of extra flags.
    pub setxattr_ext: bool,
    /// `ALLOW_IDMAP`: the header has the owner of a new inode, not the ids of the caller.
    pub allow_idmap: bool,
}
/// Parses the bytes after the header; `None` = unknown operation.
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
        opcode::SETATTR => Operation::Setattr(SetAttributes::from_kernel(&cursor.structure()?)?),
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

/// Requests about names and inodes.
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
            // The kernel's placeholder name of the nameless file.
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
            let acl_kill_sgid = dialect.setxattr_ext.then_some(given.setxattr_flags & flag::SETXATTR_ACL_KILL_SGID != 0);
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

/// Requests that few file systems support.
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
    fn from_kernel(given: &abi::SetattrIn) -> Result<Self, Malformed> {
        use abi::fattr;
        let has = |flag| given.valid & flag != 0;
        let at = |seconds, nanoseconds| Time::from_kernel(seconds, nanoseconds).ok_or(Malformed);
        let time = |flag, now, seconds, nanoseconds| match (has(flag), has(now)) {
            (_, true) => Ok(Some(SetTime::Now)),
            (true, false) => at(seconds, nanoseconds).map(|time| Some(SetTime::At(time))),
            (false, false) => Ok(None),
        };
        Ok(Self {
            mode: flagged(given.valid, fattr::MODE, given.mode),
            uid: flagged(given.valid, fattr::UID, given.uid),
            gid: flagged(given.valid, fattr::GID, given.gid),
            size: flagged(given.valid, fattr::SIZE, given.size),
            atime: time(fattr::ATIME, fattr::ATIME_NOW, given.atime, given.atimensec)?,
            mtime: time(fattr::MTIME, fattr::MTIME_NOW, given.mtime, given.mtimensec)?,
            ctime: has(fattr::CTIME).then(|| at(given.ctime, given.ctimensec)).transpose()?,
            handle: flagged(given.valid, fattr::FH, given.fh),
            lock_owner: flagged(given.valid, fattr::LOCKOWNER, given.lock_owner),
            kill_suidgid: has(fattr::KILL_SUIDGID),
        })
    }
}
