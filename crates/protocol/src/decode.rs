//! Requests of the ring as operations ([MSG1]). Fields that an operation does not have are not looked at.

use tandemfs_ring::Request;

use crate::encode::{TIME_NOW, TIME_OMIT, argument};
use crate::operation::{Handle, Operation, Place, Subject, TimeToSet, Unless, Whence};
use crate::text::Text;
use crate::{Malformed, Number};

type Result<T> = std::result::Result<T, Malformed>;

struct Decoder<'a>(&'a Request);

impl<'a> Decoder<'a> {
    fn place(value: u64) -> Place {
        Handle::of(value).map_or(Place::Root, Place::Open)
    }

    fn at(&self) -> Place {
        Self::place(self.0.handle)
    }

    fn path(&self, index: usize) -> Result<Text<'a>> {
        Text::of(self.0.names.get(index), self.0.ranges[index])
    }

    fn first(&self) -> Result<(Place, Text<'a>)> {
        Ok((self.at(), self.path(0)?))
    }

    fn second(&self) -> Result<(Place, Text<'a>)> {
        Ok((Self::place(self.0.node), self.path(1)?))
    }

    fn handle(&self) -> Result<Handle> {
        Handle::of(self.0.handle).ok_or(Malformed::Field("no open file is named"))
    }

    fn flags(&self) -> i32 {
        self.0.flags.cast_signed()
    }

    fn offset(&self) -> i64 {
        self.0.offset.cast_signed()
    }

    fn length(&self) -> i64 {
        self.0.length.cast_signed()
    }

    fn is_set(value: u64) -> Result<bool> {
        match value {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed::Field("neither yes nor no")),
        }
    }

    fn argument(&self, index: usize) -> Result<u32> {
        self.0.arguments[index].try_into().map_err(|_| Malformed::Field("an argument of more than 32 bits"))
    }

    fn mode(&self) -> Result<u32> {
        self.argument(argument::MODE)
    }

    fn umask(&self) -> Result<u16> {
        match self.argument(argument::UMASK)? {
            umask @ 0..=0o777 => Ok(umask as u16),
            _ => Err(Malformed::Field("a umask with more than permissions")),
        }
    }

    fn subject(&self) -> Result<Subject<'a>> {
        if Self::is_set(self.0.arguments[argument::IS_OPEN])? {
            return Ok(Subject::Open(self.handle()?));
        }
        let (at, path) = self.first()?;
        Ok(Subject::Path { at, path, flags: self.flags() })
    }

    fn time(&self, index: usize) -> Result<TimeToSet> {
        let seconds = self.0.arguments[argument::SECONDS[index]].cast_signed();
        match self.0.arguments[argument::NANOSECONDS[index]] {
            TIME_OMIT => Ok(TimeToSet::Omit),
            TIME_NOW => Ok(TimeToSet::Now),
            nanoseconds => match nanoseconds.try_into() {
                Ok(nanoseconds) => Ok(TimeToSet::At { seconds, nanoseconds }),
                Err(_) => Err(Malformed::Field("a time that is none")),
            },
        }
    }

    fn unless(&self) -> Result<Unless> {
        match self.0.arguments[argument::UNLESS] {
            bits @ 0..=3 => Ok(Unless { cached: bits & 1 != 0, grows: bits & 2 != 0 }),
            _ => Err(Malformed::Field("a reason to leave a transfer to the mount that is none")),
        }
    }

    fn name(&self) -> &'a [u8] {
        self.0.names.get(1)
    }
}

impl<'a> Operation<'a> {
    /// The operation of a request that the ring has copied and checked.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(request: &'a Request) -> Result<Self> {
        let number = Number::of(request.operation).ok_or(Malformed::Operation(request.operation))?;
        let from = Decoder(request);
        let at = from.at();
        Ok(match number {
            Number::Nothing => Self::Nothing,
            Number::SyncFileSystem => Self::SyncFileSystem,
            Number::FileSystemSpace => Self::FileSystemSpace { into: request.ranges[0] },
            Number::Open => {
                let (mode, umask) = (from.mode()?, from.umask()?);
                Self::Open { at, path: from.path(0)?, flags: from.flags(), mode, umask, into: request.ranges[1] }
            }
            Number::Unlink => Self::Unlink { at, path: from.path(0)? },
            Number::RemoveDirectory => Self::RemoveDirectory { at, path: from.path(0)? },
            Number::MakeDirectory => Self::MakeDirectory { at, path: from.path(0)?, mode: from.mode()?, umask: from.umask()? },
            Number::MakeNode => {
                let device = from.argument(argument::DEVICE)?;
                Self::MakeNode { at, path: from.path(0)?, mode: from.mode()?, umask: from.umask()?, device }
            }
            Number::MakeLink => Self::MakeLink { at, path: from.path(0)?, target: from.path(1)? },
            Number::Link => Self::Link { from: from.first()?, to: from.second()?, flags: from.flags() },
            Number::Rename => Self::Rename { from: from.first()?, to: from.second()?, flags: request.flags },
            Number::ReadLink => Self::ReadLink { at, path: from.path(0)?, into: request.ranges[1] },
            Number::Stat
            | Number::StatAhead
            | Number::Access
            | Number::Truncate
            | Number::ChangeMode
            | Number::ChangeOwner
            | Number::SetTimes
            | Number::GetAttribute
            | Number::SetAttribute
            | Number::ListAttributes
            | Number::RemoveAttribute => Self::of_subject(number, &from)?,
            _ => Self::of_file(number, &from)?,
        })
    }

    fn of_file(number: Number, from: &Decoder<'a>) -> Result<Self> {
        let (handle, offset, buffer) = (from.handle()?, from.offset(), from.0.ranges[0]);
        Ok(match number {
            Number::Close => Self::Close { handle },
            Number::Read => Self::Read { handle, offset, into: buffer, unless: from.unless()? },
            Number::Write => Self::Write { handle, offset, from: buffer, flags: from.flags(), unless: from.unless()? },
            Number::ReadDirectory => Self::ReadDirectory { handle, cookie: from.0.offset, into: buffer },
            Number::Allocate => Self::Allocate { handle, flags: from.0.flags, offset, length: from.length() },
            Number::Sync => Self::Sync { handle, data_only: Decoder::is_set(from.0.flags.into())? },
            Number::CopyRange => {
                let target = Handle::of(from.0.node).ok_or(Malformed::Field("no second open file is named"))?;
                let second = from.0.arguments[argument::SECOND_OFFSET].cast_signed();
                Self::CopyRange { from: (handle, offset), to: (target, second), length: from.0.length, flags: from.0.flags }
            }
            Number::Seek => {
                let whence = if Decoder::is_set(from.0.flags.into())? { Whence::Hole } else { Whence::Data };
                Self::Seek { handle, offset, whence }
            }
            Number::SetFlags => Self::SetFlags { handle, flags: from.flags() },
            Number::Descriptor => Self::Descriptor { handle },
            Number::Lend => Self::Lend { handle, offset, into: buffer },
            Number::Map => Self::Map { handle, offset, length: from.0.length, into: buffer },
            Number::Unmap => Self::Unmap { mapping: handle.0 },
            Number::LendStores => Self::LendStores { handle, offset, into: buffer },
            Number::ReturnStores => Self::ReturnStores { lease: handle.0 },
            Number::LendTail => Self::LendTail { handle, into: buffer },
            Number::Appended => Self::Appended { lease: handle.0 },
            Number::MapForStores => Self::MapForStores { handle, offset, length: from.0.length, into: buffer },
            other => unreachable!("{other:?} is no operation on an open file"),
        })
    }

    fn of_subject(number: Number, from: &Decoder<'a>) -> Result<Self> {
        let (subject, name, buffer) = (from.subject()?, from.name(), from.0.ranges[1]);
        Ok(match number {
            Number::Stat => Self::Stat { subject },
            Number::StatAhead => Self::StatAhead { subject, cookie: from.0.offset, into: buffer },
            Number::Access => Self::Access { subject, mode: from.mode()?, effective: Decoder::is_set(from.0.length)? },
            Number::Truncate => Self::Truncate { subject, length: from.length() },
            Number::ChangeMode => Self::ChangeMode { subject, mode: from.mode()? },
            Number::ChangeOwner => {
                let (user, group) = (from.argument(argument::USER)?, from.argument(argument::GROUP)?);
                let which = from.0.arguments[argument::WHICH];
                if which > 3 {
                    return Err(Malformed::Field("an owner that is neither user nor group"));
                }
                Self::ChangeOwner { subject, user: (which & 1 != 0).then_some(user), group: (which & 2 != 0).then_some(group) }
            }
            Number::SetTimes => Self::SetTimes { subject, accessed: from.time(0)?, modified: from.time(1)? },
            Number::GetAttribute => Self::GetAttribute { subject, name, into: buffer },
            Number::SetAttribute => {
                let flags = from.argument(argument::CHOICE)?.cast_signed();
                Self::SetAttribute { subject, name, value: buffer, flags }
            }
            Number::ListAttributes => Self::ListAttributes { subject, into: buffer },
            Number::RemoveAttribute => Self::RemoveAttribute { subject, name },
            other => unreachable!("{other:?} has no subject"),
        })
    }
}
