//! The parser alone ([FZW1]).
//!
//! [FZW1]: super

use std::ops::Range;

use tandemfs_wire::abi::{InHeader, opcode::INIT};
use tandemfs_wire::{Dialect, Operation, Request, RequestError, SetTime, Time};
use zerocopy::{FromBytes, IntoBytes};

use super::messages::{KNOWN, Message, fixed_bytes};

const HEADER_BYTES: usize = size_of::<InHeader>();

/// Parses bytes as they are, and behind a header with the correct length.
pub(super) fn any_bytes(bytes: &[u8]) {
    whole(bytes);
    if let Ok((mut header, body)) = InHeader::read_from_prefix(bytes) {
        header.len = bytes.len() as u32;
        header.opcode %= 64;
        header.total_extlen %= 8;
        whole(&[header.as_bytes(), body].concat());
    }
}

/// Parses a message that is about to be sent.
pub(super) fn message(message: &Message) {
    whole(&message.encode(0x1234));
}

fn whole(bytes: &[u8]) {
    for setxattr_ext in [false, true] {
        let dialect = Dialect { setxattr_ext, allow_idmap: setxattr_ext };
        let parsed = Request::parse(bytes, dialect);
        judge(bytes, &parsed);
        let Some((header, body)) = bytes.split_at_checked(HEADER_BYTES) else { continue };
        let Ok((InHeader { opcode, .. }, _)) = InHeader::read_from_prefix(bytes) else { continue };
        let (fixed, rest) = body.split_at(fixed_bytes(opcode, setxattr_ext).min(body.len()));
        let in_parts = Request::parse_parts(header, fixed, rest, dialect);
        judge(bytes, &in_parts);
        if opcode != INIT {
            // INIT never comes in parts, and a short INIT is one of an older kernel.
            assert_eq!(in_parts, parsed, "in parts it is another request");
        }
        for at in [1, 8, 16, 24, 40] {
            let (fixed, rest) = body.split_at(at.min(body.len()));
            judge(bytes, &Request::parse_parts(header, fixed, rest, dialect));
        }
    }
}

/// Compares the parsed request with the message.
pub(super) fn judge(bytes: &[u8], parsed: &Result<Request<'_>, RequestError>) {
    let header = InHeader::read_from_prefix(bytes).map(|(header, _)| header).unwrap_or_default();
    match parsed {
        Err(RequestError::Length { got, .. }) => {
            assert!(*got == bytes.len() && (header.len as usize != bytes.len() || bytes.len() < HEADER_BYTES), "its length is right");
        }
        Err(RequestError::Malformed { unique, opcode }) => assert_eq!((*unique, *opcode), (header.unique, header.opcode)),
        Err(RequestError::Unknown { unique, opcode }) => {
            assert_eq!((*unique, *opcode), (header.unique, header.opcode));
            assert!(!KNOWN.contains(opcode), "operation {opcode} is not known");
        }
        Ok(request) => {
            assert_eq!((request.unique, request.node, request.gid), (header.unique, header.nodeid, header.gid));
            whole_request(bytes, request);
        }
    }
}

fn whole_request(bytes: &[u8], request: &Request<'_>) {
    let message = bytes.as_ptr_range();
    let within = |part: &[u8]| {
        let Range { start, end } = part.as_ptr_range();
        assert!(part.is_empty() || message.start <= start && end <= message.end, "{request:?} reaches beyond its message");
    };
    let named = |name: &[u8]| {
        within(name);
        assert!(!name.is_empty() && !name.contains(&0), "{request:?} has no name");
    };
    match request.operation {
        Operation::Lookup { name }
        | Operation::Mknod { name, .. }
        | Operation::Mkdir { name, .. }
        | Operation::Unlink { name }
        | Operation::Rmdir { name }
        | Operation::Link { name, .. }
        | Operation::Create { name, .. }
        | Operation::Getxattr { name, .. }
        | Operation::Removexattr { name } => named(name),
        Operation::Symlink { name, target: other } | Operation::Rename { name, new_name: other, .. } => {
            named(name);
            named(other);
        }
        Operation::Setxattr { name, value, .. } => {
            named(name);
            within(value);
        }
        Operation::Setattr(set) => {
            let whole = |time: Time| assert!(time.nanoseconds < 1_000_000_000, "{request:?} sets a time that is none");
            set.ctime.into_iter().for_each(whole);
            [set.atime, set.mtime].into_iter().flatten().for_each(|time| {
                if let SetTime::At(time) = time {
                    whole(time)
                }
            });
        }
        Operation::Write(write) => within(write.data),
        Operation::Ioctl(ioctl) => within(ioctl.data),
        Operation::NotifyReply { data, .. } => within(data),
        Operation::BatchForget(forgets) => assert!(forgets.iter().count() <= bytes.len() / 16),
        Operation::Removemapping(mappings) => assert!(mappings.iter().count() <= bytes.len() / 16),
        _ => {}
    }
    if let Some(context) = request.extensions.security_context {
        named(context.name);
        within(context.value);
    }
    assert!(request.extensions.groups.iter().count() <= bytes.len() / 4);
}
