//! Requests of the kernel, parsed once and borrowed from the buffer that they came in.
//!
//! [RQ1] Any bytes give a request or an error. Whatever is parsed lies within the message.
//! [RQ2] A message may be longer than its request needs: a newer kernel may say more than is known here.

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

/// Who asks for what.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Request<'a> {
    /// Number of the request, the same in [`crate::Handler::interrupted`].
    pub unique: u64,
    /// The node that it is about.
    pub node: u64,
    /// Owner of the calling process; 0 where the kernel asks of its own accord.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its thread; 0 where it is not in this namespace of processes, or where the kernel asks of its own accord.
    pub pid: u32,
    /// What is asked for.
    pub operation: Operation<'a>,
    /// What came with a request that makes an inode.
    pub extensions: Extensions<'a>,
}

/// Why bytes are no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// There is not even a header, or its length is not that of the message.
    #[error("a message of {got} bytes whose header says {said}")]
    Length {
        /// Bytes that came.
        got: usize,
        /// Bytes that the header says; 0 without a header.
        said: usize,
    },
    /// The request is known, and its parts do not fit its length.
    #[error("request {unique} (operation {opcode}) is malformed")]
    Malformed {
        /// The request.
        unique: u64,
        /// Number of the operation.
        opcode: u32,
    },
    /// No such operation is known.
    #[error("request {unique} is of an operation {opcode} that is not known")]
    Unknown {
        /// The request.
        unique: u64,
        /// Number of the operation.
        opcode: u32,
    },
}

/// A message before its operation is read: what is needed to refuse it.
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

    /// A message of io_uring; its fixed part and the rest lie apart. The caller has held their lengths against the header.
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
        Ok(Request { unique, node, uid, gid, pid, operation, extensions })
    }
}

impl<'a> Request<'a> {
    /// Parses a message as `/dev/fuse` gives it: one request in one piece. Any bytes may come.
    pub fn parse(bytes: &'a [u8], dialect: Dialect) -> Result<Self, RequestError> {
        Message::from_bytes(bytes)?.request(dialect)
    }

    /// Parses a message as io_uring gives it: header, fixed part and the rest apart.
    pub fn parse_parts(header: &'a [u8], fixed: &'a [u8], rest: &'a [u8], dialect: Dialect) -> Result<Self, RequestError> {
        let got = size_of::<InHeader>() + fixed.len() + rest.len();
        let (header, _) = InHeader::read_from_prefix(header).map_err(|_| RequestError::Length { got: header.len(), said: 0 })?;
        if header.len as usize != got {
            return Err(RequestError::Length { got, said: header.len as usize });
        }
        Message::from_parts(header, fixed, rest).request(dialect)
    }

    /// Whether the kernel sends it a second time ([`crate::Notifier::resend`]).
    pub fn is_resent(&self) -> bool {
        self.unique & abi::UNIQUE_RESEND != 0
    }
}
