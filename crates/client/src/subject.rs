//! What can be asked of a file by its path and by its open file alike.

use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;
use tandemfs_protocol::{Number, Operation, Place, Subject, TimeToSet};
use tandemfs_ring::{Answer, Attributes};

use crate::Result;
use crate::ahead::Spoken;
use crate::area::Piece;
use crate::connection::{Call, Connection};
use crate::known::{Question, Told};
use crate::mutant::{self, Mutant};

/// What access(2) may ask for.
const ACCESS_BITS: u32 = 7;

/// Room for answers ahead: 32 of names of usual length.
const AHEAD_BYTES: u32 = 8 << 10;
/// Room for attributes at the first try; most values are short.
const ATTRIBUTE_ROOM: usize = 1024;
/// Most times that an attribute is asked for again because it has grown meanwhile.
const TRIES_MAX: usize = 16;

/// The file of a call: a path with flags of the system calls ([`Tree::target`](crate::Tree::target)), or an open file.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) name: Name<'a>,
}

/// Answers that are asked for with another one.
struct Ahead {
    directory: Spoken,
    /// Length of the path before the name.
    before: usize,
    cookie: u64,
    into: Piece,
}

#[derive(Clone, Copy)]
pub(crate) enum Name<'a> {
    Path { at: Place, path: &'a [u8], flags: i32 },
    Open(tandemfs_protocol::Handle),
}

impl<'a> Target<'a> {
    fn begin(self) -> Result<(Call<'a>, Subject<'a>)> {
        let mut call = self.connection.begin()?;
        let subject = match self.name {
            Name::Open(handle) => Subject::Open(handle),
            Name::Path { at, path, flags } => Subject::Path { at, path: call.text(path)?, flags },
        };
        Ok((call, subject))
    }

    fn done(self, operation: impl FnOnce(Subject<'a>) -> Operation<'a>) -> Result<()> {
        let (mut call, subject) = self.begin()?;
        call.send(&operation(subject)).map(drop)
    }

    /// Its attributes.
    ///
    /// # Errors
    /// As fstatat(2).
    pub fn attributes(self) -> Result<Attributes> {
        let question = Question::attributes(self.name);
        match self.connection.told(question.as_ref()) {
            Some(Told::Attributes(attributes)) => return Ok(attributes),
            Some(Told::Errno(errno)) => return Err(errno.into()),
            _ => {}
        }
        let (mut call, subject) = self.begin()?;
        let ahead = question.as_ref().and_then(|question| self.ahead(&mut call, question));
        let operation = match &ahead {
            Some(ahead) => Operation::StatAhead { subject, cookie: ahead.cookie, into: ahead.into.range },
            None => Operation::Stat { subject },
        };
        let (answer, seen) = call.send_and_see(&operation);
        if let (Some(ahead), Ok(answer)) = (&ahead, &answer) {
            self.keep_ahead(&mut call, ahead, answer)?;
        }
        let attributes = answer.and_then(|answer| answer.attributes.ok_or(Errno::PROTO.into()));
        if let Some(question) = &question {
            self.connection.known.keep_attributes(question, &attributes, seen);
        }
        attributes
    }

    /// Whether answers about other names are to come with that to a question (`ahead.rs`), and where.
    fn ahead(self, call: &mut Call<'_>, question: &Question<'_>) -> Option<Ahead> {
        if !self.connection.serves(Number::StatAhead) || !self.connection.known.is_wanted() {
            return None;
        }
        let (directory, before) = question.directory()?;
        let cookie = self.connection.known.following.wanted(directory)?;
        let into = call.room_at_once(AHEAD_BYTES)?;
        Some(Ahead { directory, before, cookie, into })
    }

    fn keep_ahead(self, call: &mut Call<'_>, ahead: &Ahead, answer: &Answer) -> Result<()> {
        let Name::Path { at, path, flags } = self.name else { return Ok(()) };
        let (bytes, mut spelled, mut count) = (call.returned(answer, ahead.into)?, path[..ahead.before].to_vec(), 0);
        let known = &self.connection.known;
        for foretold in tandemfs_protocol::Ahead::new(&bytes) {
            let foretold = foretold?;
            spelled.truncate(ahead.before);
            spelled.extend_from_slice(foretold.name);
            let flags = if mutant::on(Mutant::AheadFlagsLost) { flags ^ AtFlags::SYMLINK_NOFOLLOW.bits().cast_signed() } else { flags };
            if let Some(question) = Question::attributes(Name::Path { at, path: &spelled, flags }) {
                known.keep_ahead(&question, foretold.attributes, foretold.seen); // [AHC1]
            }
            count += 1;
        }
        known.following.came(ahead.directory, count, answer.further);
        Ok(())
    }

    /// Whether the process may do what the three bits of `mode` say, by its real ids or with `effective` by those of its accesses.
    ///
    /// # Errors
    /// As faccessat2(2).
    pub fn access(self, mode: u32, effective: bool) -> Result<()> {
        if mode & !ACCESS_BITS != 0 {
            return Err(Errno::INVAL.into());
        }
        let question = Question::access(self.name, mode, effective);
        match self.connection.told(question.as_ref()) {
            Some(Told::Allowed) => return Ok(()),
            Some(Told::Errno(errno)) => return Err(errno.into()),
            _ => {}
        }
        let (mut call, subject) = self.begin()?;
        let (answer, seen) = call.send_and_see(&Operation::Access { subject, mode, effective });
        match (&question, &answer) {
            (Some(question), Ok(_)) => self.connection.known.keep(question, Told::Allowed, seen),
            (Some(question), Err(error)) => self.connection.known.keep_error(question, error, seen),
            (None, _) => {}
        }
        answer.map(drop)
    }

    /// Sets the length.
    ///
    /// # Errors
    /// As truncate(2).
    pub fn set_length(self, length: u64) -> Result<()> {
        let length = length.try_into().map_err(|_| Errno::FBIG)?;
        self.done(|subject| Operation::Truncate { subject, length })
    }

    /// Sets permissions.
    ///
    /// # Errors
    /// As fchmodat2(2).
    pub fn set_mode(self, mode: u32) -> Result<()> {
        self.done(|subject| Operation::ChangeMode { subject, mode })
    }

    /// Sets the owner; `None` leaves an id as it is.
    ///
    /// # Errors
    /// As fchownat(2).
    pub fn set_owner(self, user: Option<u32>, group: Option<u32>) -> Result<()> {
        self.done(|subject| Operation::ChangeOwner { subject, user, group })
    }

    /// Sets times.
    ///
    /// # Errors
    /// As utimensat(2).
    pub fn set_times(self, accessed: TimeToSet, modified: TimeToSet) -> Result<()> {
        self.done(|subject| Operation::SetTimes { subject, accessed, modified })
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// As removexattr(2).
    pub fn remove_extended_attribute(self, name: &'a [u8]) -> Result<()> {
        self.done(|subject| Operation::RemoveAttribute { subject, name })
    }

    /// Sets an extended attribute, with the flags of the call.
    ///
    /// # Errors
    /// As setxattr(2).
    pub fn set_extended_attribute(self, name: &[u8], value: &[u8], flags: i32) -> Result<()> {
        let (mut call, subject) = self.begin()?;
        let piece = call.room(value.len())?;
        call.put(piece, value);
        call.send(&Operation::SetAttribute { subject, name, value: piece.range, flags }).map(drop)
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// As getxattr(2).
    pub fn extended_attribute(self, name: &[u8]) -> Result<Vec<u8>> {
        if self.surely_lacks(name) {
            return Err(Errno::NODATA.into());
        }
        self.of_any_length(|subject, into| Operation::GetAttribute { subject, name, into })
    }

    /// Whether attributes that are known say that there is no such extended attribute ([KN6] of `known.rs`).
    fn surely_lacks(self, name: &[u8]) -> bool {
        const REGARDLESS_OF_RIGHTS: [&[u8]; 2] = [b"system.posix_acl_", b"security."];
        if !REGARDLESS_OF_RIGHTS.iter().any(|prefix| name.starts_with(prefix)) {
            return false;
        }
        let told = |name| match self.connection.told(Question::attributes(name).as_ref()) {
            Some(Told::Attributes(found)) => Some(found),
            _ => None,
        };
        let own = told(self.name).or_else(|| match self.name {
            Name::Path { at, path, flags } => told(Name::Path { at, path, flags: flags | AtFlags::SYMLINK_NOFOLLOW.bits().cast_signed() }),
            Name::Open(_) => None,
        });
        own.is_some_and(|found| {
            let kind = FileType::from_raw_mode(found.mode);
            let is_plain = kind == FileType::RegularFile || kind == FileType::Directory;
            is_plain && (found.flags & Attributes::NOTHING_EXTENDED != 0 || mutant::on(Mutant::ExtendedNotSought))
        })
    }

    /// Names of extended attributes, each followed by NUL.
    ///
    /// # Errors
    /// As listxattr(2).
    pub fn extended_attributes(self) -> Result<Vec<u8>> {
        self.of_any_length(|subject, into| Operation::ListAttributes { subject, into })
    }

    /// Asks with a short buffer, and with one of the length that the daemon says if that was too short.
    fn of_any_length<'o>(self, operation: impl Fn(Subject<'o>, tandemfs_ring::Range) -> Operation<'o>) -> Result<Vec<u8>>
    where
        'a: 'o,
    {
        let mut room = ATTRIBUTE_ROOM;
        for _ in 0..TRIES_MAX {
            let (mut call, subject) = self.begin()?;
            let piece = call.room(room)?;
            match call.send(&operation(subject, piece.range)) {
                Ok(answer) if room > 0 => return call.returned(&answer, piece),
                // Asked for the length alone.
                Ok(answer) => match usize::try_from(answer.value) {
                    Ok(0) => return Ok(Vec::new()),
                    Ok(length) if length <= self.connection.transfer_bytes as usize => room = length,
                    _ => return Err(Errno::PROTO.into()),
                },
                Err(error) if error.errno() == Some(Errno::RANGE) && room > 0 => room = 0,
                Err(error) => return Err(error),
            }
        }
        Err(Errno::RANGE.into())
    }
}
