//! The same operations by `vfs`, on a file system of its own.

use rustix::io::Errno;
use tandemfs_fs::Error;
use tandemfs_vfs::{At, OpenFile, Process, Refused, Seek, SetTimes, Subject, TimeToSet, Vfs, no_wait};

use crate::operation::{NOW, OMIT, Operation, SLOTS};
use crate::user::User;
use crate::{Answer, bytes, entry};

/// `None` where the kernel would have to go on ([KV4]).
pub type Outcome = Option<Result<Answer, Errno>>;

/// A file system and the files that are open on it.
pub struct OnVfs {
    pub vfs: Vfs,
    open: [Option<OpenFile>; SLOTS],
}

type Called = Result<Answer, Refused>;

fn subject(path: &str, follows: bool) -> Subject<'_> {
    Subject::Path { at: At::Root, path: path.as_bytes(), follows, may_be_empty: false }
}

fn time(seconds: i64) -> TimeToSet {
    match seconds {
        NOW => TimeToSet::Now,
        OMIT => TimeToSet::Omit,
        seconds => TimeToSet::At(seconds, 7),
    }
}

impl OnVfs {
    pub fn new(vfs: Vfs) -> Self {
        Self { vfs, open: Default::default() }
    }

    pub fn close_all(&mut self) {
        self.open = Default::default();
    }

    /// Does an operation as a user, as the server of the direct door: without waiting first, and where that is refused once more.
    pub fn does(&mut self, user: User, umask: u16, operation: &Operation) -> Outcome {
        let process = user.process(umask);
        let (mut result, owed) = no_wait(|| self.call(&process, operation));
        assert!(owed.is_nothing(), "nobody keeps pages");
        if let Err(Refused::FileSystem(Error::WouldWait)) = result {
            result = self.call(&process, operation);
        }
        self.vfs.file_system().remove_left_behind();
        match result {
            Ok(answer) => Some(Ok(answer)),
            Err(refused) => refused.errno().map(Err),
        }
    }

    fn file(&self, slot: usize) -> Result<&OpenFile, Refused> {
        self.open[slot].as_ref().ok_or(Errno::BADF.into())
    }

    fn put(&mut self, slot: usize, file: OpenFile) -> Called {
        let attributes = file.attributes()?;
        self.open[slot] = Some(file);
        Ok(entry(attributes.mode.into(), attributes.size))
    }

    fn call(&mut self, process: &Process, operation: &Operation) -> Called {
        let (vfs, root) = (&self.vfs, At::Root);
        match operation {
            Operation::Open { slot, path, flags, mode } => {
                let file = vfs.open(process, root, path.as_bytes(), *flags, *mode)?;
                self.put(*slot, file)
            }
            Operation::OpenIn { slot, directory, path, flags, mode } => {
                let file = vfs.open(process, At::Open(self.file(*directory)?), path.as_bytes(), *flags, *mode)?;
                self.put(*slot, file)
            }
            Operation::Close { slot } => {
                self.open[*slot] = None;
                Ok(Answer::new())
            }
            Operation::MakeDirectory { path, mode } => done(vfs.make_directory(process, root, path.as_bytes(), *mode)),
            Operation::MakeNode { path, mode, rdev } => done(vfs.make_node(process, root, path.as_bytes(), *mode, *rdev)),
            Operation::MakeLink { target, path } => done(vfs.make_link(process, target.as_bytes(), root, path.as_bytes())),
            Operation::Link { from, to, follows } => {
                let flags = if *follows { libc::AT_SYMLINK_FOLLOW } else { 0 };
                done(vfs.link(process, (root, from.as_bytes()), (root, to.as_bytes()), flags))
            }
            Operation::LinkOpen { slot, path } => {
                done(vfs.link(process, (At::Open(self.file(*slot)?), b""), (root, path.as_bytes()), libc::AT_EMPTY_PATH))
            }
            Operation::Unlink { path } => done(vfs.unlink(process, root, path.as_bytes())),
            Operation::RemoveDirectory { path } => done(vfs.remove_directory(process, root, path.as_bytes())),
            Operation::Rename { from, to, flags } => done(vfs.rename(process, (root, from.as_bytes()), (root, to.as_bytes()), *flags)),
            Operation::Stat { path, follows } => {
                let attributes = vfs.stat(process, subject(path, *follows))?;
                Ok(entry(attributes.mode.into(), attributes.size))
            }
            Operation::Access { path, mode, effective } => done(vfs.access(process, subject(path, true), *mode, *effective)),
            Operation::ReadLink { path } => Ok(String::from_utf8_lossy(&vfs.read_link(process, root, path.as_bytes())?).into_owned()),
            Operation::ChangeMode { path, mode } => done(vfs.change_mode(process, subject(path, true), *mode)),
            Operation::ChangeOwner { path, uid, gid, follows } => done(vfs.change_owner(process, subject(path, *follows), *uid, *gid)),
            Operation::SetTimes { path, atime, mtime, follows } => {
                done(vfs.set_times(process, subject(path, *follows), SetTimes { atime: time(*atime), mtime: time(*mtime) }))
            }
            Operation::Truncate { path, length } => done(vfs.truncate(process, subject(path, true), *length as i64)),
            Operation::SetAttribute { .. }
            | Operation::GetAttribute { .. }
            | Operation::RemoveAttribute { .. }
            | Operation::ListAttributes { .. } => self.attribute(process, operation),
            _ => self.by_descriptor(process, operation),
        }
    }

    fn by_descriptor(&self, process: &Process, operation: &Operation) -> Called {
        let vfs = &self.vfs;
        match operation {
            Operation::Read { slot, length } => {
                let mut buffer = vec![0; *length];
                let count = vfs.read(self.file(*slot)?, &mut buffer)?;
                Ok(format!("{:?}", &buffer[..count]))
            }
            Operation::ReadAt { slot, offset, length } => {
                let mut buffer = vec![0; *length];
                let count = vfs.read_at(self.file(*slot)?, *offset as i64, &mut buffer)?;
                Ok(format!("{:?}", &buffer[..count]))
            }
            Operation::Write { slot, length } => Ok(vfs.write(process, self.file(*slot)?, &bytes(*length))?.to_string()),
            Operation::WriteAt { slot, offset, length } => {
                Ok(vfs.write_at(process, self.file(*slot)?, *offset as i64, &bytes(*length), 0)?.to_string())
            }
            Operation::Seek { slot, offset, whence } => {
                let (offset, from) = match *whence {
                    libc::SEEK_SET => (offset.unsigned_abs() as i64, Seek::Start),
                    libc::SEEK_CUR => (*offset, Seek::Current),
                    _ => (*offset, Seek::End),
                };
                Ok(vfs.seek(self.file(*slot)?, offset, from)?.to_string())
            }
            Operation::List { slot } => {
                vfs.seek(self.file(*slot)?, 0, Seek::Start)?;
                let mut names = Vec::new();
                vfs.read_directory(self.file(*slot)?, &mut |found| {
                    names.push(String::from_utf8_lossy(found.name).into_owned());
                    true
                })?;
                names.sort();
                Ok(names.join(" "))
            }
            Operation::TruncateOpen { slot, length } => done(vfs.truncate(process, Subject::Open(self.file(*slot)?), *length as i64)),
            Operation::Allocate { slot, flags, offset, length } => {
                done(vfs.allocate(process, self.file(*slot)?, *flags, *offset as i64, *length as i64))
            }
            Operation::Copy { from: (from, from_offset), to: (to, to_offset), length } => {
                let (from, to) = ((self.file(*from)?, *from_offset as i64), (self.file(*to)?, *to_offset as i64));
                Ok(vfs.copy_range(process, from, to, *length as u64, 0)?.to_string())
            }
            Operation::ChangeModeOpen { slot, mode } => done(vfs.change_mode(process, Subject::Open(self.file(*slot)?), *mode)),
            Operation::ChangeOwnerOpen { slot, uid, gid } => done(vfs.change_owner(process, Subject::Open(self.file(*slot)?), *uid, *gid)),
            other => unreachable!("{other:?}"),
        }
    }

    fn attribute(&self, process: &Process, operation: &Operation) -> Called {
        let vfs = &self.vfs;
        match operation {
            Operation::SetAttribute { path, name, value, flags, follows } => {
                done(vfs.set_extended_attribute(process, subject(path, *follows), name.as_bytes(), value, *flags))
            }
            Operation::GetAttribute { path, name, follows } => {
                Ok(format!("{:?}", vfs.extended_attribute(process, subject(path, *follows), name.as_bytes())?))
            }
            Operation::RemoveAttribute { path, name, follows } => {
                done(vfs.remove_extended_attribute(process, subject(path, *follows), name.as_bytes()))
            }
            Operation::ListAttributes { path, follows } => {
                Ok(crate::sorted_names(&vfs.list_extended_attributes(process, subject(path, *follows))?))
            }
            other => unreachable!("{other:?}"),
        }
    }
}

fn done<T>(result: Result<T, Refused>) -> Called {
    result.map(|_| Answer::new())
}
