//! Operations of the direct door for a trace.

use std::borrow::Cow;
use std::time::Instant;

use tandemfs_format::InodeNumber;
use tandemfs_protocol::{Handle, Operation, Outcome, Place, Subject, Text, TimeToSet, Whence};
use tandemfs_ring::Ticket;
use tandemfs_trace::record::set;
use tandemfs_trace::{Door, Operation as Kind, Record, Recorder};

use crate::clients::Client;

/// An operation that is being served, for the trace that there is.
pub(crate) struct Traced<'r, 'a> {
    recorder: &'r Recorder,
    started: Instant,
    record: Record<'a>,
}

impl<'r, 'a> Traced<'r, 'a> {
    /// Notes what is asked for, if there is a trace that wants it.
    #[inline]
    pub(crate) fn begin(recorder: &'r Recorder, client: &Client, operation: &Operation<'a>, ticket: &Ticket) -> Option<Self> {
        let started = recorder.start()?;
        let record = Asked { client, ticket }.record(operation)?;
        Some(Self { recorder, started, record })
    }

    /// Records what has come of it. What the client then does by the mount is recorded there.
    pub(crate) fn end(mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Done(answer) => {
                self.record.value = match answer.attributes {
                    Some(attributes) => attributes.node,
                    None => answer.value,
                };
                if self.record.operation == Kind::Write {
                    self.record.offset = answer.further.wrapping_sub(answer.value); // with O_APPEND the client did not know it
                }
            }
            Outcome::Errno(errno) => self.record.errno = errno.cast_unsigned(),
            Outcome::Crossed(_) => return,
        }
        self.recorder.record(self.started, self.record);
    }
}

/// Who asks, and its memory.
struct Asked<'c> {
    client: &'c Client,
    ticket: &'c Ticket,
}

impl Asked<'_> {
    fn record<'a>(&self, operation: &Operation<'a>) -> Option<Record<'a>> {
        let mut record = match *operation {
            Operation::Open { at, path, flags, mode, umask, .. } => {
                let kind = if flags & libc::O_TMPFILE == libc::O_TMPFILE {
                    Kind::Tmpfile
                } else if flags & libc::O_CREAT != 0 {
                    Kind::Create
                } else {
                    Kind::Open
                };
                Record { flags: flags.cast_unsigned(), mode: mode & !u32::from(umask), ..self.named(kind, at, path)? }
            }
            Operation::Close { handle } => self.of_open(Kind::Release, handle)?,
            Operation::Read { handle, offset, into, .. } => {
                Record { offset: offset.cast_unsigned(), length: into.length.into(), ..self.of_open(Kind::Read, handle)? }
            }
            Operation::Write { handle, offset, from, flags, .. } => Record {
                offset: offset.cast_unsigned(),
                length: from.length.into(),
                flags: flags.cast_unsigned(),
                ..self.of_open(Kind::Write, handle)?
            },
            Operation::Unlink { at, path } => self.named(Kind::Unlink, at, path)?,
            Operation::RemoveDirectory { at, path } => self.named(Kind::Rmdir, at, path)?,
            Operation::MakeDirectory { at, path, mode, umask } => {
                Record { mode: mode & !u32::from(umask), ..self.named(Kind::Mkdir, at, path)? }
            }
            Operation::MakeNode { at, path, mode, umask, .. } => {
                Record { mode: mode & !u32::from(umask), ..self.named(Kind::Mknod, at, path)? }
            }
            Operation::MakeLink { at, path, target } => Record { other_name: self.text(target)?, ..self.named(Kind::Symlink, at, path)? },
            Operation::Link { from, to, .. } => {
                Record { other: self.start(from.0)?, other_name: self.text(from.1)?, ..self.named(Kind::Link, to.0, to.1)? }
            }
            Operation::ReadLink { at, path, .. } => self.named(Kind::Readlink, at, path)?,
            Operation::Rename { from, to, flags } => {
                Record { other: self.start(to.0)?, other_name: self.text(to.1)?, flags, ..self.named(Kind::Rename, from.0, from.1)? }
            }
            Operation::ReadDirectory { handle, cookie, into } => {
                Record { offset: cookie, length: into.length.into(), ..self.of_open(Kind::Readdir, handle)? }
            }
            Operation::Allocate { handle, flags, offset, length } => Record {
                offset: offset.cast_unsigned(),
                length: length.cast_unsigned(),
                mode: flags,
                ..self.of_open(Kind::Fallocate, handle)?
            },
            Operation::Sync { handle, data_only } => Record { flags: data_only.into(), ..self.of_open(Kind::Fsync, handle)? },
            Operation::CopyRange { from, to, length, .. } => Record {
                offset: from.1.cast_unsigned(),
                other: self.inode(to.0)?,
                other_offset: to.1.cast_unsigned(),
                length,
                ..self.of_open(Kind::CopyRange, from.0)?
            },
            Operation::Seek { handle, offset, whence } => {
                let whence = if whence == Whence::Data { libc::SEEK_DATA } else { libc::SEEK_HOLE };
                Record { offset: offset.cast_unsigned(), flags: whence.cast_unsigned(), ..self.of_open(Kind::Lseek, handle)? }
            }
            Operation::FileSystemSpace { .. } => Record::new(Kind::Statfs, Door::Direct, InodeNumber::ROOT.get()),
            Operation::SyncFileSystem => Record::new(Kind::Syncfs, Door::Direct, InodeNumber::ROOT.get()),
            other => self.of_subject(&other)?,
        };
        (record.thread, record.user) = (self.client.peer.pid.cast_unsigned(), self.client.identity.users[1]);
        Some(record)
    }

    fn of_subject<'a>(&self, operation: &Operation<'a>) -> Option<Record<'a>> {
        let bit = |time: TimeToSet, bit| if time == TimeToSet::Omit { 0 } else { bit };
        Some(match *operation {
            Operation::Stat { subject } | Operation::StatAhead { subject, .. } => {
                let found = self.subject(Kind::Getattr, subject)?;
                let operation = if found.name.is_empty() { Kind::Getattr } else { Kind::Lookup };
                Record { operation, ..found }
            }
            Operation::Access { subject, mode, .. } => Record { mode, ..self.subject(Kind::Access, subject)? },
            Operation::Truncate { subject, length } => {
                Record { set: set::SIZE, length: length.cast_unsigned(), ..self.subject(Kind::Setattr, subject)? }
            }
            Operation::ChangeMode { subject, mode } => Record { set: set::MODE, mode, ..self.subject(Kind::Setattr, subject)? },
            Operation::ChangeOwner { subject, user, group } => Record {
                set: if user.is_some() { set::USER } else { 0 } | if group.is_some() { set::GROUP } else { 0 },
                other: u64::from(user.unwrap_or_default()) | u64::from(group.unwrap_or_default()) << 32,
                ..self.subject(Kind::Setattr, subject)?
            },
            Operation::SetTimes { subject, accessed, modified } => {
                Record { set: bit(accessed, set::ACCESSED) | bit(modified, set::MODIFIED), ..self.subject(Kind::Setattr, subject)? }
            }
            // The path below `inode` is the first name, so the attribute's is the second.
            Operation::GetAttribute { subject, name, into } => {
                Record { other_name: name.into(), length: into.length.into(), ..self.subject(Kind::Getxattr, subject)? }
            }
            Operation::SetAttribute { subject, name, value, flags } => Record {
                other_name: name.into(),
                length: value.length.into(),
                flags: flags.cast_unsigned(),
                ..self.subject(Kind::Setxattr, subject)?
            },
            Operation::RemoveAttribute { subject, name } => Record { other_name: name.into(), ..self.subject(Kind::Removexattr, subject)? },
            Operation::ListAttributes { subject, into } => Record { length: into.length.into(), ..self.subject(Kind::Listxattr, subject)? },
            _ => return None,
        })
    }

    fn inode(&self, handle: Handle) -> Option<u64> {
        self.client.handles.get(handle).ok().map(|file| file.inode().get())
    }

    fn start(&self, at: Place) -> Option<u64> {
        match at {
            Place::Root => Some(InodeNumber::ROOT.get()),
            Place::Open(handle) => self.inode(handle),
        }
    }

    fn of_open<'a>(&self, kind: Kind, handle: Handle) -> Option<Record<'a>> {
        self.inode(handle).map(|inode| Record::new(kind, Door::Direct, inode))
    }

    fn named<'a>(&self, kind: Kind, at: Place, path: Text<'a>) -> Option<Record<'a>> {
        Some(Record { name: self.text(path)?, ..Record::new(kind, Door::Direct, self.start(at)?) })
    }

    fn subject<'a>(&self, kind: Kind, subject: Subject<'a>) -> Option<Record<'a>> {
        match subject {
            Subject::Open(handle) => self.of_open(kind, handle),
            Subject::Path { at, path, .. } => self.named(kind, at, path),
        }
    }

    /// A text of the client. It may be another one when the operation reads it: a client that changes it meanwhile has a trace to match.
    fn text<'a>(&self, text: Text<'a>) -> Option<Cow<'a, [u8]>> {
        match text {
            Text::Here(bytes) => Some(Cow::Borrowed(bytes)),
            Text::There(range) => {
                let mut bytes = vec![0; range.length as usize];
                self.ticket.data(range)?.read(0, &mut bytes);
                Some(Cow::Owned(bytes))
            }
        }
    }
}
