//! Operations by system calls on a mount.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    Access, AtFlags, FallocateFlags, FileType, Gid, Mode, OFlags, RawDir, RenameFlags, SeekFrom, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use crate::operation::{NOW, OMIT, Operation, SLOTS};
use crate::user::User;
use crate::{Answer, bytes, entry};

type Result = std::result::Result<Answer, Errno>;

/// A mount and the files that are open on it.
pub struct OnMount {
    path: PathBuf,
    pub root: OwnedFd,
    open: [Option<OwnedFd>; SLOTS],
}

fn time(seconds: i64) -> Timespec {
    match seconds {
        NOW => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        OMIT => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        seconds => Timespec { tv_sec: seconds, tv_nsec: 7 },
    }
}

fn at_flags(follows: bool) -> AtFlags {
    if follows { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW }
}

impl OnMount {
    pub fn new(path: &Path) -> Self {
        let root = rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).expect("a directory");
        Self { path: path.into(), root, open: Default::default() }
    }

    pub fn close_all(&mut self) {
        self.open = Default::default();
    }

    /// Does an operation as a user. The umask is the process's: one operation at a time runs, and the daemon is another process.
    pub fn does(&mut self, user: User, umask: u16, operation: &Operation) -> Result {
        let before = rustix::process::umask(Mode::from_raw_mode(umask.into()));
        let result = user.does(|| self.call(operation));
        rustix::process::umask(before);
        result
    }

    fn file(&self, slot: usize) -> std::result::Result<&OwnedFd, Errno> {
        self.open[slot].as_ref().ok_or(Errno::BADF)
    }

    fn put(&mut self, slot: usize, file: OwnedFd) -> Result {
        let attributes = rustix::fs::fstat(&file)?;
        self.open[slot] = Some(file);
        Ok(entry(attributes.st_mode, attributes.st_size as u64))
    }

    fn call(&mut self, operation: &Operation) -> Result {
        let root = self.root.as_fd();
        match operation {
            Operation::Open { slot, path, flags, mode } => {
                let flags = OFlags::from_bits_retain(flags.cast_unsigned());
                let file = rustix::fs::openat(root, path, flags, Mode::from_raw_mode(*mode & 0o7777))?;
                self.put(*slot, file)
            }
            Operation::OpenIn { slot, directory, path, flags, mode } => {
                let flags = OFlags::from_bits_retain(flags.cast_unsigned());
                let file = rustix::fs::openat(self.file(*directory)?, path, flags, Mode::from_raw_mode(*mode & 0o7777))?;
                self.put(*slot, file)
            }
            Operation::Close { slot } => {
                self.open[*slot] = None;
                Ok(Answer::new())
            }
            Operation::MakeDirectory { path, mode } => done(rustix::fs::mkdirat(root, path, Mode::from_raw_mode(*mode))),
            Operation::MakeNode { path, mode, rdev } => {
                let kind = FileType::from_raw_mode(*mode);
                // The binding has no kind for "none", which is a regular file.
                let kind = if mode & 0o170_000 == 0 { FileType::RegularFile } else { kind };
                done(rustix::fs::mknodat(root, path, kind, Mode::from_raw_mode(mode & 0o7777), (*rdev).into()))
            }
            Operation::MakeLink { target, path } => done(rustix::fs::symlinkat(target, root, path)),
            Operation::Link { from, to, follows } => {
                let flags = if *follows { AtFlags::SYMLINK_FOLLOW } else { AtFlags::empty() };
                done(rustix::fs::linkat(root, from, root, to, flags))
            }
            Operation::LinkOpen { slot, path } => done(rustix::fs::linkat(self.file(*slot)?, "", root, path, AtFlags::EMPTY_PATH)),
            Operation::Unlink { path } => done(rustix::fs::unlinkat(root, path, AtFlags::empty())),
            Operation::RemoveDirectory { path } => done(rustix::fs::unlinkat(root, path, AtFlags::REMOVEDIR)),
            Operation::Rename { from, to, flags } => {
                done(rustix::fs::renameat_with(root, from, root, to, RenameFlags::from_bits_retain(*flags)))
            }
            Operation::Stat { path, follows } => {
                let attributes = rustix::fs::statat(root, path, at_flags(*follows))?;
                Ok(entry(attributes.st_mode, attributes.st_size as u64))
            }
            Operation::Access { path, mode, effective } => {
                let flags = if *effective { AtFlags::EACCESS } else { AtFlags::empty() };
                // One bit by one: the type of all of them is that of rustix's backend.
                let rights = [(4, Access::READ_OK), (2, Access::WRITE_OK), (1, Access::EXEC_OK)];
                let asked = rights.into_iter().filter(|(bit, _)| mode & bit != 0).map(|(_, right)| right).collect();
                done(rustix::fs::accessat(root, path, asked, flags))
            }
            Operation::ReadLink { path } => {
                Ok(String::from_utf8_lossy(rustix::fs::readlinkat(root, path, Vec::new())?.to_bytes()).into_owned())
            }
            Operation::ChangeMode { path, mode } => done(rustix::fs::chmodat(root, path, Mode::from_raw_mode(*mode), AtFlags::empty())),
            Operation::ChangeOwner { path, uid, gid, follows } => {
                done(rustix::fs::chownat(root, path, uid.map(Uid::from_raw), gid.map(Gid::from_raw), at_flags(*follows)))
            }
            Operation::SetTimes { path, atime, mtime, follows } => {
                let times = Timestamps { last_access: time(*atime), last_modification: time(*mtime) };
                done(rustix::fs::utimensat(root, path, &times, at_flags(*follows)))
            }
            Operation::Truncate { path, length } => truncate(&self.path.join(path), *length),
            Operation::SetAttribute { .. }
            | Operation::GetAttribute { .. }
            | Operation::RemoveAttribute { .. }
            | Operation::ListAttributes { .. } => self.attribute(operation),
            _ => self.by_descriptor(operation),
        }
    }

    fn by_descriptor(&self, operation: &Operation) -> Result {
        match operation {
            Operation::Read { slot, length } => {
                let mut buffer = vec![0; *length];
                let count = rustix::io::read(self.file(*slot)?, &mut buffer)?;
                Ok(format!("{:?}", &buffer[..count]))
            }
            Operation::ReadAt { slot, offset, length } => {
                let mut buffer = vec![0; *length];
                let count = rustix::io::pread(self.file(*slot)?, &mut buffer, *offset)?;
                Ok(format!("{:?}", &buffer[..count]))
            }
            Operation::Write { slot, length } => count(rustix::io::write(self.file(*slot)?, &bytes(*length))),
            Operation::WriteAt { slot, offset, length } => count(rustix::io::pwrite(self.file(*slot)?, &bytes(*length), *offset)),
            Operation::Seek { slot, offset, whence } => {
                let to = match *whence {
                    libc::SEEK_SET => SeekFrom::Start(offset.unsigned_abs()),
                    libc::SEEK_CUR => SeekFrom::Current(*offset),
                    _ => SeekFrom::End(*offset),
                };
                count(rustix::fs::seek(self.file(*slot)?, to).map(|offset| offset as usize))
            }
            Operation::List { slot } => {
                rustix::fs::seek(self.file(*slot)?, SeekFrom::Start(0))?;
                let mut buffer = [MaybeUninit::uninit(); 4096];
                let mut list = RawDir::new(self.file(*slot)?, &mut buffer);
                let mut names = Vec::new();
                while let Some(found) = list.next() {
                    names.push(String::from_utf8_lossy(found?.file_name().to_bytes()).into_owned());
                }
                names.sort();
                Ok(names.join(" "))
            }
            Operation::TruncateOpen { slot, length } => done(rustix::fs::ftruncate(self.file(*slot)?, *length)),
            Operation::Allocate { slot, flags, offset, length } => {
                done(rustix::fs::fallocate(self.file(*slot)?, FallocateFlags::from_bits_retain(*flags), *offset, *length))
            }
            Operation::Copy { from: (from, from_offset), to: (to, to_offset), length } => {
                let (mut from_offset, mut to_offset) = (*from_offset, *to_offset);
                let (from, to) = (self.file(*from)?, self.file(*to)?);
                count(rustix::fs::copy_file_range(from, Some(&mut from_offset), to, Some(&mut to_offset), *length))
            }
            Operation::ChangeModeOpen { slot, mode } => done(rustix::fs::fchmod(self.file(*slot)?, Mode::from_raw_mode(*mode))),
            Operation::ChangeOwnerOpen { slot, uid, gid } => {
                done(rustix::fs::fchown(self.file(*slot)?, uid.map(Uid::from_raw), gid.map(Gid::from_raw)))
            }
            other => unreachable!("{other:?}"),
        }
    }

    fn attribute(&self, operation: &Operation) -> Result {
        let mut value = vec![0; 65_536];
        match operation {
            Operation::SetAttribute { path, name, value, flags, follows } => {
                let (path, flags) = (self.path.join(path), XattrFlags::from_bits_retain(flags.cast_unsigned()));
                done(if *follows {
                    rustix::fs::setxattr(path, *name, value, flags)
                } else {
                    rustix::fs::lsetxattr(path, *name, value, flags)
                })
            }
            Operation::GetAttribute { path, name, follows } => {
                let path = self.path.join(path);
                let length = if *follows {
                    rustix::fs::getxattr(path, *name, &mut value[..])
                } else {
                    rustix::fs::lgetxattr(path, *name, &mut value[..])
                }?;
                Ok(format!("{:?}", &value[..length]))
            }
            Operation::RemoveAttribute { path, name, follows } => {
                let path = self.path.join(path);
                done(if *follows { rustix::fs::removexattr(path, *name) } else { rustix::fs::lremovexattr(path, *name) })
            }
            Operation::ListAttributes { path, follows } => {
                let path = self.path.join(path);
                let length =
                    if *follows { rustix::fs::listxattr(path, &mut value[..]) } else { rustix::fs::llistxattr(path, &mut value[..]) }?;
                Ok(crate::sorted_names(&value[..length]))
            }
            other => unreachable!("{other:?}"),
        }
    }
}

/// truncate(2), which the bindings have for descriptors only.
fn truncate(path: &Path, length: u64) -> Result {
    let path = nix_path(path);
    match path.and_then(|path| tandemfs_posix::truncate_path(&path, length as i64)) {
        Ok(()) => Ok(Answer::new()),
        Err(error) => Err(Errno::from_io_error(&error).expect("a system call")),
    }
}

fn nix_path(path: &Path) -> std::io::Result<std::ffi::CString> {
    use std::os::unix::ffi::OsStrExt;
    Ok(std::ffi::CString::new(path.as_os_str().as_bytes())?)
}

fn done(result: rustix::io::Result<()>) -> Result {
    result.map(|()| Answer::new())
}

fn count(result: rustix::io::Result<usize>) -> Result {
    result.map(|count| count.to_string())
}
