//! One operation of a trace as system calls.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, SeekFrom, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, XattrFlags,
};
use rustix::io::Errno;
use tandemfs_trace::record::set;
use tandemfs_trace::{Door, Operation, Record};

use super::places::Places;

/// Longest transfer at once; the trace has none that is longer.
const BYTES_MAX: u64 = 64 << 20;

/// What has come of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Success, with what is compared of it.
    Done(u64),
    /// This error.
    Failed(i32),
    /// It cannot be done here, and why.
    Skipped(&'static str),
}

/// Whether the outcome is what the trace has.
pub fn is_same(record: &Record<'_>, outcome: Outcome) -> bool {
    match outcome {
        Outcome::Failed(errno) => record.errno == errno.cast_unsigned(),
        Outcome::Done(value) => record.errno == 0 && (!has_value(record.operation) || record.value == value),
        Outcome::Skipped(_) => true,
    }
}

/// Whether the value is the same on every file system.
fn has_value(operation: Operation) -> bool {
    matches!(operation, Operation::Read | Operation::Write | Operation::Readlink)
}

/// Repeats operations in a directory.
pub struct Actor<'p> {
    places: &'p Places,
    buffer: Vec<u8>,
    is_root: bool,
}

impl<'p> Actor<'p> {
    pub fn new(places: &'p Places) -> Self {
        Self { places, buffer: Vec::new(), is_root: rustix::process::geteuid().is_root() }
    }

    /// Repeats an operation; `is_needed_later`: something later is about a file that it may take the name of.
    pub fn act(&mut self, record: &Record<'_>, is_needed_later: bool) -> Outcome {
        match self.run(record, is_needed_later) {
            Ok(outcome) => outcome,
            Err(error) => Outcome::Failed(error.raw_os_error().unwrap_or(Errno::IO.raw_os_error())),
        }
    }

    fn run(&mut self, record: &Record<'_>, is_needed_later: bool) -> io::Result<Outcome> {
        let places = self.places;
        let done = Ok(Outcome::Done(0));
        match record.operation {
            Operation::Lookup | Operation::Getattr | Operation::Access => {
                match record.name.is_empty() {
                    // One that has no name any more is looked at by its open file.
                    true => {
                        drop(places.path(record.inode).and_then(fs::symlink_metadata).or_else(|_| places.file(record.inode)?.metadata())?)
                    }
                    false => drop(fs::symlink_metadata(places.named(record.inode, &record.name)?)?),
                }
                self.learn(record);
                done
            }
            Operation::Setattr => self.set_attributes(record),
            Operation::Readlink => {
                let target = fs::read_link(places.named(record.inode, &record.name)?)?;
                Ok(Outcome::Done(target.as_os_str().len() as u64))
            }
            Operation::Symlink | Operation::Mknod | Operation::Mkdir => self.make(record),
            Operation::Create | Operation::Tmpfile => self.create(record),
            Operation::Open => {
                if !record.name.is_empty() {
                    let file = OpenOptions::new()
                        .read(true)
                        .custom_flags(OFlags::NONBLOCK.bits() as i32)
                        .open(places.named(record.inode, &record.name)?)?;
                    if record.flags & OFlags::TRUNC.bits() != 0 && file.metadata()?.is_file() {
                        OpenOptions::new().write(true).truncate(true).open(places.named(record.inode, &record.name)?)?;
                    }
                    self.learn(record);
                } else if !places.path(record.inode).is_ok_and(|path| path.is_dir()) {
                    places.file(record.inode)?;
                }
                done
            }
            Operation::Release => done,
            Operation::Unlink | Operation::Rmdir => {
                let path = places.named(record.inode, &record.name)?;
                if is_needed_later {
                    places.before_loss(record.inode, &record.name);
                }
                if record.operation == Operation::Rmdir {
                    fs::remove_dir(path)?
                } else {
                    fs::remove_file(path)?
                }
                places.lost(record.inode, &record.name);
                done
            }
            Operation::Rename => {
                let (from, to) = (places.named(record.inode, &record.name)?, places.named(record.other, &record.other_name)?);
                if is_needed_later {
                    places.before_loss(record.other, &record.other_name);
                }
                let flags = RenameFlags::from_bits_retain(record.flags);
                rustix::fs::renameat_with(CWD, from, CWD, to, flags)?;
                let swapped = flags.contains(RenameFlags::EXCHANGE);
                places.moved((record.inode, &record.name), (record.other, &record.other_name), swapped);
                done
            }
            Operation::Link => {
                fs::hard_link(places.named(record.other, &record.other_name)?, places.named(record.inode, &record.name)?)?;
                if record.other_name.is_empty() {
                    places.learn(record.other, record.inode, &record.name);
                }
                done
            }
            Operation::Read | Operation::Write => self.transfer(record),
            Operation::Fsync => {
                let path = places.path(record.inode);
                let file =
                    if path.as_ref().is_ok_and(|path| path.is_dir()) { File::open(path?)?.into() } else { places.file(record.inode)? };
                if record.flags == 1 {
                    file.sync_data()?
                } else {
                    file.sync_all()?
                }
                done
            }
            Operation::Readdir => {
                if record.offset == 0 {
                    fs::read_dir(places.path(record.inode)?)?.try_for_each(|entry| entry.map(drop))?;
                }
                done
            }
            Operation::Fallocate => {
                let flags = FallocateFlags::from_bits_retain(record.mode);
                rustix::fs::fallocate(places.file(record.inode)?, flags, record.offset, record.length)?;
                done
            }
            Operation::Lseek => {
                let from = if record.flags == 3 { SeekFrom::Data(record.offset) } else { SeekFrom::Hole(record.offset) };
                // Where holes are is up to each file system, and so is whether there is any data.
                let _where = rustix::fs::seek(places.file(record.inode)?, from);
                Ok(if record.errno == 0 { Outcome::Done(0) } else { Outcome::Skipped("where holes are is up to each file system") })
            }
            Operation::CopyRange => {
                let (from, to) = (places.file(record.inode)?, places.file(record.other)?);
                let (mut offset, mut other_offset) = (record.offset, record.other_offset);
                // A piece may be shorter elsewhere.
                while offset < record.offset + record.value {
                    let left = (record.offset + record.value - offset) as usize;
                    if rustix::fs::copy_file_range(&from, Some(&mut offset), &to, Some(&mut other_offset), left)? == 0 {
                        break;
                    }
                }
                done
            }
            Operation::Statfs => rustix::fs::statvfs(places.named(record.inode, b"")?).map(|_| Outcome::Done(0)).map_err(Into::into),
            Operation::Syncfs => {
                rustix::fs::syncfs(File::open(places.named(record.inode, b"")?)?).map(|()| Outcome::Done(0)).map_err(Into::into)
            }
            Operation::Setxattr | Operation::Getxattr | Operation::Listxattr | Operation::Removexattr => self.extended_attribute(record),
        }
    }

    /// What a look-up has found has this name.
    fn learn(&self, record: &Record<'_>) {
        if let Some(inode) = super::order::found(record) {
            self.places.learn(inode, record.inode, &record.name);
        }
    }

    fn make(&self, record: &Record<'_>) -> io::Result<Outcome> {
        let path = self.places.named(record.inode, &record.name)?;
        let mode = Mode::from_raw_mode(record.mode & 0o7777);
        match record.operation {
            Operation::Symlink => rustix::fs::symlinkat(&*record.other_name, CWD, &path)?,
            Operation::Mkdir => rustix::fs::mkdirat(CWD, &path, mode)?,
            _ => match FileType::from_raw_mode(record.mode) {
                // Devices need rights, and are nothing to work on.
                FileType::Unknown | FileType::CharacterDevice | FileType::BlockDevice => drop(File::create_new(&path)?),
                kind => rustix::fs::mknodat(CWD, &path, kind, mode, 0)?,
            },
        }
        self.made(record, None);
        Ok(Outcome::Done(0))
    }

    fn create(&self, record: &Record<'_>) -> io::Result<Outcome> {
        let path = self.places.named(record.inode, &record.name)?;
        let flags = OFlags::from_bits_retain(record.flags);
        if record.operation == Operation::Tmpfile {
            let file = OpenOptions::new().read(true).write(true).custom_flags(OFlags::TMPFILE.bits() as i32).mode(0o600).open(path)?;
            self.made(&Record { name: b"".as_slice().into(), ..record.clone() }, Some(file));
            return Ok(Outcome::Done(0));
        }
        let is_new = flags.contains(OFlags::EXCL) || !path.exists();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(flags.contains(OFlags::TRUNC)).mode(record.mode & 0o777 | 0o600);
        let file = options.create_new(flags.contains(OFlags::EXCL)).open(path)?;
        if is_new {
            self.made(record, Some(file))
        } else {
            self.learn(record)
        }
        Ok(Outcome::Done(0))
    }

    fn made(&self, record: &Record<'_>, file: Option<File>) {
        if let Some(inode) = super::order::found(record) {
            self.places.made(inode, record.inode, &record.name, file);
        }
    }

    fn transfer(&mut self, record: &Record<'_>) -> io::Result<Outcome> {
        let file = self.places.file(record.inode)?;
        let length = record.length.min(BYTES_MAX) as usize;
        if record.operation == Operation::Read {
            self.buffer.resize(length, 0);
            let mut done = 0;
            while done < length {
                match file.read_at(&mut self.buffer[done..], record.offset + done as u64)? {
                    0 => break,
                    count => done += count,
                }
            }
            return Ok(Outcome::Done(done as u64));
        }
        // Other bytes at each place, so that no file system finds them to be the same.
        self.buffer.clear();
        let seed = record.inode.wrapping_mul(31).wrapping_add(record.offset) as u8;
        self.buffer.extend((0..length).map(|at| (at as u8).wrapping_mul(7).wrapping_add(seed)));
        file.write_all_at(&self.buffer, record.offset)?;
        Ok(Outcome::Done(length as u64))
    }

    fn set_attributes(&self, record: &Record<'_>) -> io::Result<Outcome> {
        let is_set = |bit: u32| record.set & bit != 0;
        if is_set(set::SIZE) {
            match record.name.is_empty() {
                true => self.places.file(record.inode)?.set_len(record.length)?,
                false => OpenOptions::new().write(true).open(self.places.named(record.inode, &record.name)?)?.set_len(record.length)?,
            }
        }
        // Of a file without a name only the length matters to what comes later.
        let Ok(path) = self.places.named(record.inode, &record.name) else { return Ok(Outcome::Done(0)) };
        if is_set(set::MODE) && !path.is_symlink() {
            // Who runs it again goes on using the file.
            let kept = if path.is_dir() { 0o700 } else { 0o600 };
            fs::set_permissions(&path, fs::Permissions::from_mode(record.mode & 0o777 | kept))?;
        }
        if is_set(set::USER | set::GROUP) && self.is_root {
            let half = |is_set: bool, half: u64| is_set.then_some(half as u32);
            std::os::unix::fs::lchown(&path, half(is_set(set::USER), record.other), half(is_set(set::GROUP), record.other >> 32))?;
        }
        if is_set(set::ACCESSED | set::MODIFIED) {
            touch(&path, is_set(set::ACCESSED), is_set(set::MODIFIED))?;
        }
        Ok(Outcome::Done(0))
    }

    fn extended_attribute(&mut self, record: &Record<'_>) -> io::Result<Outcome> {
        let Ok(path) = self.places.named(record.inode, &record.name) else { return Ok(Outcome::Skipped("the file has no name any more")) };
        let name = &*record.other_name;
        if record.operation == Operation::Listxattr {
            rustix::fs::llistxattr_query(&path)?;
            return Ok(Outcome::Done(0));
        }
        if !name.starts_with(b"user.") || name.starts_with(b"user.tandemfs.") {
            return Ok(Outcome::Skipped("this attribute means something"));
        }
        match record.operation {
            Operation::Setxattr => {
                self.buffer.clear();
                self.buffer.resize(record.length as usize, b'x');
                rustix::fs::lsetxattr(&path, name, &self.buffer, XattrFlags::from_bits_retain(record.flags))?;
            }
            Operation::Removexattr => rustix::fs::lremovexattr(&path, name)?,
            _ => {
                self.buffer.resize(record.length as usize, 0);
                rustix::fs::lgetxattr(&path, name, &mut *self.buffer)?;
            }
        }
        Ok(Outcome::Done(0))
    }
}

/// To now: the trace does not have the times.
fn touch(path: &Path, accessed: bool, modified: bool) -> io::Result<()> {
    let time = |is_set: bool| Timespec { tv_sec: 0, tv_nsec: if is_set { UTIME_NOW } else { UTIME_OMIT } };
    let times = Timestamps { last_access: time(accessed), last_modification: time(modified) };
    Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Whether the operation came by the direct door, for the table.
pub fn way(record: &Record<'_>) -> &'static str {
    match record.door {
        Door::Mount => "mount",
        Door::Direct => "direct",
    }
}
