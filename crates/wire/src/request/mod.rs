//! Requests of the kernel, parsed once and borrowed from their buffer.
//!
//! [RQ1] Any bytes give a request or an error. All parsed data lies within the message.
//! [RQ2] A message may be longer than its request needs: a newer kernel may append fields.

mod cursor;
mod extensions;
mod operation;
mod parse;

use std::mem::size_of;

use zerocopy::FromBytes;

use crate::abi::{self, InHeader, opcode};
use cursor::{Cursor, Malformed};
pub use extensions::{Extensions, Groups, SecurityContext};
pub use operation::{CopyFileRange, FileLock, Forgets, Init, Ioctl, Mappings, Operation, SetAttributes, Write};
pub use parse::Dialect;

/// A request and its caller.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Request<'a> {
    /// Number of the request, the same in [`crate::Handler::interrupted`].
    pub unique: u64,
    /// The node that the request is about.
    pub node: u64,
    /// User id of the header: that of the calling process, 0 for requests of the kernel itself. With `ALLOW_IDMAP` the owner of a new inode,
    /// mapped for the mount, or [`abi::INVALID_UIDGID`]; see [`Request::caller`] and [`Request::new_owner`].
    pub uid: u32,
    /// Group id of the header, as `uid`.
    pub gid: u32,
    /// `ALLOW_IDMAP`: `uid` and `gid` are not the caller's.
    pub ids_are_mapped: bool,
    /// Its thread id; 0 if the thread is in another PID namespace, or for requests of the kernel itself.
    pub pid: u32,
    /// The operation.
    pub operation: Operation<'a>,
    /// Extensions of requests that create an inode.
    pub extensions: Extensions<'a>,
}

/// Why bytes are not a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The message has no complete header, or its length differs from the header's.
    #[error("a message of {got} bytes whose header says {said}")]
    Length {
        /// Bytes received.
        got: usize,
        /// Length in the header; 0 without a header.
        said: usize,
    },
    /// The operation is known, but its parts do not match the length.
    #[error("request {unique} (operation {opcode}) is malformed")]
    Malformed {
        /// Number of the request.
        unique: u64,
        /// Number of the operation.
        opcode: u32,
    },
    /// The operation is unknown.
    #[error("request {unique} is of an operation {opcode} that is not known")]
    Unknown {
        /// Number of the request.
        unique: u64,
        /// Number of the operation.
        opcode: u32,
    },
}

/// A message before its operation is parsed, with what is needed to refuse it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message<'a> {
    pub(crate) header: InHeader,
    body: Cursor<'a>,
}

impl<'a> Message<'a> {
    /// A message in one piece.
    pub(crate) fn from_bytes(bytes: &'a [u8]) -> Result<Self, RequestError> {
        let length = |said| RequestError::Length { got: bytes.len(), said };
        let (header, body) = InHeader::read_from_prefix(bytes).map_err(|_| length(0))?;
        if header.len as usize != bytes.len() {
            return Err(length(header.len as usize));
        }
        Ok(Self { header, body: Cursor::new(body, &[]) })
    }

    /// A message of io_uring, whose fixed part and rest are separate. The caller has checked their lengths against the header.
    pub(crate) fn from_parts(header: InHeader, fixed: &'a [u8], rest: &'a [u8]) -> Self {
        Self { header, body: Cursor::new(fixed, rest) }
    }

    /// Whether the kernel waits for a reply.
    pub(crate) fn wants_reply(&self) -> bool {
        !matches!(self.header.opcode, opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT | opcode::NOTIFY_REPLY)
    }

    pub(crate) fn request(self, dialect: Dialect) -> Result<Request<'a>, RequestError> {
        let InHeader { opcode, unique, nodeid: node, uid, gid, pid, total_extlen, .. } = self.header;
        let malformed = |_: Malformed| RequestError::Malformed { unique, opcode };
        let mut body = self.body;
        let extensions = match usize::from(total_extlen) {
            0 => Extensions::default(),
            units => body.take_end(units * 8).and_then(Extensions::parse).map_err(malformed)?,
        };
        let operation = parse::parse(opcode, &mut body, dialect).map_err(malformed)?;
        let operation = operation.ok_or(RequestError::Unknown { unique, opcode })?;
        Ok(Request { unique, node, uid, gid, ids_are_mapped: dialect.allow_idmap, pid, operation, extensions })
    }
}

impl<'a> Request<'a> {
    /// Parses a message as `/dev/fuse` gives it: one request in one piece. The bytes need not be valid.
    pub fn parse(bytes: &'a [u8], dialect: Dialect) -> Result<Self, RequestError> {
        Message::from_bytes(bytes)?.request(dialect)
    }

    /// Parses a message as io_uring gives it: header, fixed part and rest are separate.
    pub fn parse_parts(header: &'a [u8], fixed: &'a [u8], rest: &'a [u8], dialect: Dialect) -> Result<Self, RequestError> {
        let got = size_of::<InHeader>() + fixed.len() + rest.len();
        let (header, _) = InHeader::read_from_prefix(header).map_err(|_| RequestError::Length { got: header.len(), said: 0 })?;
        if header.len as usize != got {
            return Err(RequestError::Length { got, said: header.len as usize });
        }
        Message::from_parts(header, fixed, rest).request(dialect)
    }

    /// User and group id of the calling process. `None` with `ALLOW_IDMAP`: the kernel then sends no ids, or those of a new inode. The latter
    /// are not the caller's on an id-mapped mount, where any user may be mapped to user 0.
    pub fn caller(&self) -> Option<(u32, u32)> {
        (!self.ids_are_mapped).then_some((self.uid, self.gid))
    }

    /// User and group of an inode that this request creates. `None` if it creates none, or if the caller has no id in the file system: a
    /// whiteout may be asked for by a caller that the mount maps to nobody.
    pub fn new_owner(&self) -> Option<(u32, u32)> {
        let is_valid = self.uid != abi::INVALID_UIDGID && self.gid != abi::INVALID_UIDGID;
        (is_valid && self.operation.creates()).then_some((self.uid, self.gid))
    }

    /// Whether the kernel has resent this request ([`crate::Notifier::resend`]).
    pub fn is_resent(&self) -> bool {
        self.unique & abi::UNIQUE_RESEND != 0
    }
}
