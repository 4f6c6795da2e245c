//! Operations as requests of the ring. Which field has what:
//!
//! | field | meaning |
//! |---|---|
//! | flags | flags of the call |
//! | handle | the open file, or where the (first) path begins, 0 for the root |
//! | node | where the second path begins, or the second open file |
//! | offset, length | as in the call; cookie of a listing |
//! | first name, first range | the first path; without a path the first range is the buffer |
//! | second name, second range | second path, target, name of an attribute; buffer or value beside a path |
//! | arguments | 0 subject is an open file (1), 1 mode or user, 2 umask or group, 3 which of user and group (bits), device; times; of a transfer 1 when it is left to the mount (bits: cached, grows) |

use tandemfs_ring::{NameTooLong, Range, Request};

use crate::operation::{Handle, Operation, Place, Subject, TimeToSet, Unless, Whence};
use crate::text::Text;

/// Arguments by their index.
pub(crate) mod argument {
    pub(crate) const IS_OPEN: usize = 0;
    pub(crate) const MODE: usize = 1;
    pub(crate) const UMASK: usize = 2;
    pub(crate) const DEVICE: usize = 3;
    pub(crate) const USER: usize = 1;
    pub(crate) const GROUP: usize = 2;
    pub(crate) const WHICH: usize = 3;
    pub(crate) const SECOND_OFFSET: usize = 1;
    pub(crate) const SECONDS: [usize; 2] = [1, 3];
    pub(crate) const NANOSECONDS: [usize; 2] = [2, 4];
    pub(crate) const CHOICE: usize = 1;
    pub(crate) const UNLESS: usize = 1;
}

/// In the place of nanoseconds.
pub(crate) const TIME_NOW: u64 = 1 << 32;
pub(crate) const TIME_OMIT: u64 = 1 << 33;

pub(crate) fn place(at: Place) -> u64 {
    match at {
        Place::Root => 0,
        Place::Open(handle) => handle.get(),
    }
}

struct Encoder<'r, 'a> {
    request: &'r mut Request,
    names: [&'a [u8]; 2],
}

impl<'a> Encoder<'_, 'a> {
    fn path(&mut self, index: usize, at: Place, path: Text<'a>) {
        match index {
            0 => self.request.handle = place(at),
            _ => self.request.node = place(at),
        }
        self.text(index, path);
    }

    fn text(&mut self, index: usize, text: Text<'a>) {
        self.names[index] = text.here();
        self.request.ranges[index] = text.range();
    }

    fn subject(&mut self, subject: Subject<'a>) {
        match subject {
            Subject::Path { at, path, flags } => {
                self.path(0, at, path);
                self.request.flags = flags.cast_unsigned();
            }
            Subject::Open(handle) => {
                self.request.handle = handle.get();
                self.request.arguments[argument::IS_OPEN] = 1;
            }
        }
    }

    fn file(&mut self, handle: Handle) {
        self.request.handle = handle.get();
    }

    fn argument(&mut self, index: usize, value: u64) {
        self.request.arguments[index] = value;
    }

    fn unless(&mut self, unless: Unless) {
        self.argument(argument::UNLESS, u64::from(unless.cached) | u64::from(unless.grows) << 1);
    }

    fn time(&mut self, index: usize, time: TimeToSet) {
        let (seconds, nanoseconds) = match time {
            TimeToSet::Omit => (0, TIME_OMIT),
            TimeToSet::Now => (0, TIME_NOW),
            TimeToSet::At { seconds, nanoseconds } => (seconds.cast_unsigned(), nanoseconds.into()),
        };
        self.argument(argument::SECONDS[index], seconds);
        self.argument(argument::NANOSECONDS[index], nanoseconds);
    }

    fn buffer(&mut self, index: usize, range: Range) {
        self.request.ranges[index] = range;
    }
}

impl Operation<'_> {
    /// As a request of the ring.
    ///
    /// # Errors
    /// [`NameTooLong`] for a text of more than 255 bytes that is not in the data area.
    pub fn encode(&self) -> Result<Request, NameTooLong> {
        let mut request = Request::default();
        self.encode_to(&mut request)?;
        Ok(request)
    }

    /// As [`Operation::encode`], in place of an earlier request.
    ///
    /// # Errors
    /// As there.
    pub fn encode_to(&self, request: &mut Request) -> Result<(), NameTooLong> {
        request.reset(self.number() as u16);
        let mut to = Encoder { request, names: [&[]; 2] };
        self.put(&mut to);
        let Encoder { request, names: [first, second] } = to;
        request.names.set(first, second)
    }

    fn put<'a>(&'a self, to: &mut Encoder<'_, 'a>) {
        match *self {
            Self::Nothing | Self::SyncFileSystem => {}
            Self::Open { at, path, flags, mode, umask, into } => {
                to.path(0, at, path);
                to.buffer(1, into);
                to.request.flags = flags.cast_unsigned();
                to.argument(argument::MODE, mode.into());
                to.argument(argument::UMASK, umask.into());
            }
            Self::MakeDirectory { at, path, mode, umask } => {
                to.path(0, at, path);
                to.argument(argument::MODE, mode.into());
                to.argument(argument::UMASK, umask.into());
            }
            Self::MakeNode { at, path, mode, umask, device } => {
                to.path(0, at, path);
                to.argument(argument::MODE, mode.into());
                to.argument(argument::UMASK, umask.into());
                to.argument(argument::DEVICE, device.into());
            }
            Self::Unlink { at, path } | Self::RemoveDirectory { at, path } => to.path(0, at, path),
            Self::MakeLink { at, path, target } => {
                to.path(0, at, path);
                to.text(1, target);
            }
            Self::Link { from, to: second, flags } => {
                to.path(0, from.0, from.1);
                to.path(1, second.0, second.1);
                to.request.flags = flags.cast_unsigned();
            }
            Self::Rename { from, to: second, flags } => {
                to.path(0, from.0, from.1);
                to.path(1, second.0, second.1);
                to.request.flags = flags;
            }
            Self::ReadLink { at, path, into } => {
                to.path(0, at, path);
                to.buffer(1, into);
            }
            Self::FileSystemSpace { into } => to.buffer(0, into),
            _ if self.encode_of_file(to) => {}
            _ => self.encode_of_subject(to),
        }
    }

    /// Operations on an open file; false for others.
    fn encode_of_file(&self, to: &mut Encoder<'_, '_>) -> bool {
        match *self {
            Self::Close { handle } | Self::Descriptor { handle } => to.file(handle),
            Self::Read { handle, offset, into, unless } => {
                to.file(handle);
                to.unless(unless);
                to.request.offset = offset.cast_unsigned();
                to.buffer(0, into);
            }
            Self::Write { handle, offset, from, flags, unless } => {
                to.file(handle);
                to.unless(unless);
                to.request.offset = offset.cast_unsigned();
                to.request.flags = flags.cast_unsigned();
                to.buffer(0, from);
            }
            Self::Lend { handle, offset, into } | Self::LendStores { handle, offset, into } => {
                to.file(handle);
                to.request.offset = offset.cast_unsigned();
                to.buffer(0, into);
            }
            Self::Map { handle, offset, length, into } | Self::MapForStores { handle, offset, length, into } => {
                to.file(handle);
                to.request.offset = offset.cast_unsigned();
                to.request.length = length;
                to.buffer(0, into);
            }
            Self::LendTail { handle, into } => {
                to.file(handle);
                to.buffer(0, into);
            }
            Self::Unmap { mapping: number } | Self::ReturnStores { lease: number } | Self::Appended { lease: number } => {
                to.request.handle = number.get()
            }
            Self::ReadDirectory { handle, cookie, into } => {
                to.file(handle);
                to.request.offset = cookie;
                to.buffer(0, into);
            }
            Self::Allocate { handle, flags, offset, length } => {
                to.file(handle);
                to.request.flags = flags;
                to.request.offset = offset.cast_unsigned();
                to.request.length = length.cast_unsigned();
            }
            Self::Sync { handle, data_only } => {
                to.file(handle);
                to.request.flags = data_only.into();
            }
            Self::CopyRange { from, to: second, length, flags } => {
                to.file(from.0);
                to.request.node = second.0.get();
                to.request.offset = from.1.cast_unsigned();
                to.argument(argument::SECOND_OFFSET, second.1.cast_unsigned());
                to.request.length = length;
                to.request.flags = flags;
            }
            Self::Seek { handle, offset, whence } => {
                to.file(handle);
                to.request.offset = offset.cast_unsigned();
                to.request.flags = u32::from(whence == Whence::Hole);
            }
            Self::SetFlags { handle, flags } => {
                to.file(handle);
                to.request.flags = flags.cast_unsigned();
            }
            _ => return false,
        }
        true
    }

    fn encode_of_subject<'a>(&'a self, to: &mut Encoder<'_, 'a>) {
        match *self {
            Self::Stat { subject } => to.subject(subject),
            Self::StatAhead { subject, cookie, into } => {
                to.subject(subject);
                to.request.offset = cookie;
                to.buffer(1, into);
            }
            Self::Access { subject, mode, effective } => {
                to.subject(subject);
                to.request.length = effective.into();
                to.argument(argument::MODE, mode.into());
            }
            Self::Truncate { subject, length } => {
                to.subject(subject);
                to.request.length = length.cast_unsigned();
            }
            Self::ChangeMode { subject, mode } => {
                to.subject(subject);
                to.argument(argument::MODE, mode.into());
            }
            Self::ChangeOwner { subject, user, group } => {
                to.subject(subject);
                to.argument(argument::USER, user.unwrap_or_default().into());
                to.argument(argument::GROUP, group.unwrap_or_default().into());
                to.argument(argument::WHICH, u64::from(user.is_some()) | u64::from(group.is_some()) << 1);
            }
            Self::SetTimes { subject, accessed, modified } => {
                to.subject(subject);
                to.time(0, accessed);
                to.time(1, modified);
            }
            Self::GetAttribute { subject, name, into } => {
                to.subject(subject);
                to.names[1] = name;
                to.buffer(1, into);
            }
            Self::SetAttribute { subject, name, value, flags } => {
                to.subject(subject);
                to.names[1] = name;
                to.buffer(1, value);
                to.argument(argument::CHOICE, flags.cast_unsigned().into());
            }
            Self::ListAttributes { subject, into } => {
                to.subject(subject);
                to.buffer(1, into);
            }
            Self::RemoveAttribute { subject, name } => {
                to.subject(subject);
                to.names[1] = name;
            }
            _ => unreachable!("{:?} is no operation on a subject", self.number()),
        }
    }
}
