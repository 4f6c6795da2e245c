//! One operation of a trace as system calls.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};

use rustix::fs::{
    AtFlags, Dir, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, SeekFrom, Stat, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT,
    Uid, XattrFlags,
};
use rustix::io::Errno;
use tandemfs_trace::record::set;
use tandemfs_trace::{Door, Operation, Record};

use super::order;
use super::places::{Places, Spot, of_open};

/// Longest transfer at once; the trace has none that is longer.
const BYTES_MAX: u64 = 64 << 20;
/// One byte more than an extended attribute may have.
const ATTRIBUTE_BYTES_MAX: u64 = (64 << 10) + 1;

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

/// An error that tells the kernel to do it by itself; who asked the kernel does not see it.
fn is_left_to_kernel(record: &Record<'_>) -> bool {
    let is = |error: Errno| record.errno == error.raw_os_error().cast_unsigned();
    is(Errno::NOSYS) || record.operation == Operation::CopyRange && (is(Errno::XDEV) || is(Errno::OPNOTSUPP))
}

/// Whether the outcome is what the trace has.
pub fn is_same(record: &Record<'_>, outcome: Outcome) -> bool {
    match outcome {
        Outcome::Done(_) if is_left_to_kernel(record) => true,
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
                // The kernel finds a file by its number so, whatever it is.
                let is_itself = record.door == Door::Mount && *record.name == *b".";
                match places.object(record.inode, if is_itself { b"" } else { &record.name }, false) {
                    Ok(object) => rustix::fs::fstat(object)?,
                    // One that has no name any more is looked at by its open file.
                    Err(_) if record.name.is_empty() => rustix::fs::fstat(places.file(record.inode)?)?,
                    Err(error) => return Err(error),
                };
                self.learn(record);
                done
            }
            Operation::Setattr => self.set_attributes(record),
            Operation::Readlink => {
                let target = rustix::fs::readlinkat(places.object(record.inode, &record.name, false)?, "", Vec::new())?;
                Ok(Outcome::Done(target.as_bytes().len() as u64))
            }
            Operation::Symlink | Operation::Mknod | Operation::Mkdir => self.make(record),
            Operation::Create | Operation::Tmpfile => self.create(record, is_needed_later),
            Operation::Open => {
                if record.name.is_empty() {
                    places.file(record.inode)?;
                    return done;
                }
                let asked = OFlags::from_bits_retain(record.flags);
                let kept = (asked & (OFlags::NOFOLLOW | OFlags::DIRECTORY)) | OFlags::NONBLOCK | OFlags::NOCTTY;
                let file = places.open(record.inode, &record.name, kept, Mode::empty())?;
                if asked.contains(OFlags::TRUNC) && file.metadata()?.is_file() {
                    places.open(record.inode, &record.name, kept | OFlags::WRONLY | OFlags::TRUNC, Mode::empty())?;
                }
                self.learn(record);
                done
            }
            Operation::Release => done,
            Operation::Unlink | Operation::Rmdir => {
                let Spot { directory, name } = places.spot(record.inode, &record.name)?;
                if is_needed_later {
                    places.before_loss(record.inode, &record.name);
                }
                let flags = if record.operation == Operation::Rmdir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                rustix::fs::unlinkat(&directory, name, flags)?;
                places.lost(record.inode, &record.name);
                done
            }
            Operation::Rename => {
                let (from, to) = (places.spot(record.inode, &record.name)?, places.spot(record.other, &record.other_name)?);
                if is_needed_later {
                    places.before_loss(record.other, &record.other_name);
                }
                let flags = RenameFlags::from_bits_retain(record.flags);
                rustix::fs::renameat_with(&from.directory, from.name, &to.directory, to.name, flags)?;
                places.moved((record.inode, &record.name), (record.other, &record.other_name), order::swaps(record));
                done
            }
            Operation::Link => self.link(record),
            Operation::Read | Operation::Write => self.transfer(record),
            Operation::Fsync => {
                let file = places.file(record.inode)?;
                if record.flags == 1 {
                    file.sync_data()?
                } else {
                    file.sync_all()?
                }
                done
            }
            Operation::Readdir => {
                if record.offset == 0 {
                    let directory = places.open(record.inode, b"", OFlags::DIRECTORY, Mode::empty())?;
                    Dir::new(directory)?.try_for_each(|entry| entry.map(drop))?;
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
            Operation::CopyRange if is_left_to_kernel(record) => Ok(Outcome::Skipped("the trace has it as reads and writes")),
            Operation::CopyRange => {
                let (from, to) = (places.file(record.inode)?, places.file(record.other)?);
                let (mut offset, mut other_offset) = (record.offset, record.other_offset);
                // What failed, or found nothing, is tried once; of what was copied a piece may be shorter elsewhere.
                let mut left = if record.errno == 0 && record.value > 0 { record.value } else { record.length };
                while left > 0 {
                    let piece = usize::try_from(left).unwrap_or(usize::MAX);
                    match rustix::fs::copy_file_range(&from, Some(&mut offset), &to, Some(&mut other_offset), piece)? as u64 {
                        0 => break,
                        _ if record.errno != 0 || record.value == 0 => break,
                        copied => left = left.saturating_sub(copied),
                    }
                }
                done
            }
            Operation::Statfs => {
                rustix::fs::fstatvfs(places.object(record.inode, b"", false)?)?;
                done
            }
            Operation::Syncfs => {
                rustix::fs::syncfs(places.open(record.inode, b"", OFlags::DIRECTORY, Mode::empty())?)?;
                done
            }
            Operation::Setxattr | Operation::Getxattr | Operation::Listxattr | Operation::Removexattr => self.extended_attribute(record),
        }
    }

    /// What a look-up has found has this name.
    fn learn(&self, record: &Record<'_>) {
        if let Some(inode) = order::found(record) {
            self.places.names(|names| order::learn(names, record, inode, names.last(record.inode, &record.name)));
        }
    }

    fn make(&self, record: &Record<'_>) -> io::Result<Outcome> {
        let Spot { directory, name } = self.places.spot(record.inode, &record.name)?;
        // Who runs it again goes on using what is made.
        let mode = |kept: u32| Mode::from_raw_mode(record.mode & 0o777 | kept);
        match record.operation {
            Operation::Symlink => rustix::fs::symlinkat(&*record.other_name, &directory, name)?,
            Operation::Mkdir => rustix::fs::mkdirat(&directory, name, mode(0o700))?,
            _ => match FileType::from_raw_mode(record.mode) {
                // Devices need rights, and are nothing to work on.
                FileType::Unknown | FileType::CharacterDevice | FileType::BlockDevice => {
                    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    drop(rustix::fs::openat(&directory, name, flags, mode(0o600))?)
                }
                kind => rustix::fs::mknodat(&directory, name, kind, mode(0o600), 0)?,
            },
        }
        self.made(record, None);
        Ok(Outcome::Done(0))
    }

    fn create(&self, record: &Record<'_>, is_needed_later: bool) -> io::Result<Outcome> {
        let places = self.places;
        let asked = OFlags::from_bits_retain(record.flags);
        let (access, mode) = (OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::from_raw_mode(record.mode & 0o777 | 0o600));
        if record.operation == Operation::Tmpfile {
            let file = places.open(record.inode, &record.name, OFlags::RDWR | OFlags::TMPFILE, mode)?;
            if let Some(inode) = order::found(record).filter(|_| is_needed_later) {
                places.made_nameless(inode, file);
            }
            return Ok(Outcome::Done(0));
        }
        let is_new = asked.contains(OFlags::EXCL) || places.object(record.inode, &record.name, true).is_err();
        let kept = asked & (OFlags::EXCL | OFlags::TRUNC | OFlags::NOFOLLOW);
        let file = places.open(record.inode, &record.name, access | OFlags::CREATE | kept, mode)?;
        if is_new {
            self.made(record, Some(file))
        } else {
            self.learn(record)
        }
        Ok(Outcome::Done(0))
    }

    fn made(&self, record: &Record<'_>, file: Option<File>) {
        if let Some(inode) = order::found(record) {
            self.places.made(inode, record.inode, &record.name, file);
        }
    }

    fn link(&self, record: &Record<'_>) -> io::Result<Outcome> {
        let places = self.places;
        let to = places.spot(record.inode, &record.name)?;
        match places.spot(record.other, &record.other_name) {
            Ok(from) => rustix::fs::linkat(&from.directory, from.name, &to.directory, to.name, AtFlags::empty())?,
            // A file that was made without a name gets its first one.
            Err(_) if record.other_name.is_empty() => {
                let file = places.file(record.other)?;
                rustix::fs::linkat(rustix::fs::CWD, of_open(&file), &to.directory, to.name, AtFlags::SYMLINK_FOLLOW)?;
            }
            Err(error) => return Err(error),
        }
        places.names(|names| {
            let from = names.last(record.other, &record.other_name);
            let inode = if record.other_name.is_empty() { Some(record.other) } else { names.file(&from) };
            if let Some(inode) = inode {
                names.add(inode, names.last(record.inode, &record.name));
            }
        });
        Ok(Outcome::Done(0))
    }

    fn transfer(&mut self, record: &Record<'_>) -> io::Result<Outcome> {
        let file = self.places.file(record.inode)?;
        let length = record.length.min(BYTES_MAX) as usize;
        if record.operation == Operation::Read {
            self.buffer.resize(length, 0);
            let mut done = 0;
            while done < length {
                match file.read_at(&mut self.buffer[done..], record.offset.saturating_add(done as u64))? {
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
        let places = self.places;
        let is_set = |bit: u32| record.set & bit != 0;
        if is_set(set::SIZE) {
            match record.name.is_empty() {
                true => places.file(record.inode)?.set_len(record.length)?,
                false => places
                    .open(record.inode, &record.name, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty())?
                    .set_len(record.length)?,
            }
        }
        // Of a file without a name only the length matters to what comes later.
        let object = match places.object(record.inode, &record.name, is_set(set::MODE)) {
            Ok(object) => object,
            Err(_) if record.name.is_empty() => return Ok(Outcome::Done(0)),
            Err(error) => return Err(error),
        };
        if is_set(set::MODE) {
            let kind = |found: &Stat| FileType::from_raw_mode(found.st_mode);
            let found = rustix::fs::fstat(&object)?;
            if kind(&found) != FileType::Symlink {
                // Who runs it again goes on using the file.
                let kept = if kind(&found) == FileType::Directory { 0o700 } else { 0o600 };
                fs::set_permissions(of_open(&object), fs::Permissions::from_mode(record.mode & 0o777 | kept))?;
            }
        }
        if is_set(set::USER | set::GROUP) && self.is_root {
            let half = |is_set: bool, half: u64| is_set.then_some(half as u32).filter(|id| *id != u32::MAX);
            let user = half(is_set(set::USER), record.other).map(Uid::from_raw);
            let group = half(is_set(set::GROUP), record.other >> 32).map(Gid::from_raw);
            rustix::fs::chownat(&object, "", user, group, AtFlags::EMPTY_PATH)?;
        }
        if is_set(set::ACCESSED | set::MODIFIED) {
            // To now: the trace does not have the times.
            let time = |is_set: bool| Timespec { tv_sec: 0, tv_nsec: if is_set { UTIME_NOW } else { UTIME_OMIT } };
            let times = Timestamps { last_access: time(is_set(set::ACCESSED)), last_modification: time(is_set(set::MODIFIED)) };
            rustix::fs::utimensat(&object, "", &times, AtFlags::EMPTY_PATH)?;
        }
        Ok(Outcome::Done(0))
    }

    fn extended_attribute(&mut self, record: &Record<'_>) -> io::Result<Outcome> {
        let object = match self.places.object(record.inode, &record.name, false) {
            Ok(object) => object,
            Err(_) if record.name.is_empty() => return Ok(Outcome::Skipped("the file has no name any more")),
            Err(error) => return Err(error),
        };
        let (path, name) = (of_open(&object), &*record.other_name);
        if record.operation == Operation::Listxattr {
            rustix::fs::listxattr_query(path)?;
            return Ok(Outcome::Done(0));
        }
        if !name.starts_with(b"user.") || name.starts_with(b"user.tandemfs.") {
            return Ok(Outcome::Skipped("this attribute means something"));
        }
        let length = record.length.min(ATTRIBUTE_BYTES_MAX) as usize;
        match record.operation {
            Operation::Setxattr => {
                self.buffer.clear();
                self.buffer.resize(length, b'x');
                rustix::fs::setxattr(path, name, &self.buffer, XattrFlags::from_bits_retain(record.flags))?;
            }
            Operation::Removexattr => rustix::fs::removexattr(path, name)?,
            _ => {
                self.buffer.resize(length, 0);
                rustix::fs::getxattr(path, name, &mut *self.buffer)?;
            }
        }
        Ok(Outcome::Done(0))
    }
}

/// Whether the operation came by the direct door, for the table.
pub fn way(record: &Record<'_>) -> &'static str {
    match record.door {
        Door::Mount => "mount",
        Door::Direct => "direct",
    }
}
