//! Requests as bytes: the kernel's body layout of each opcode, filled from the input, then truncated, extended or left without NULs.

use crate::Input;

/// Opcodes that are used here or in the answers.
pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const IOCTL: u32 = 39;
    pub(crate) const NOTIFY_REPLY: u32 = 41;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const TMPFILE: u32 = 51;
    pub(crate) const STATX: u32 = 52;
    pub(crate) const COPY_FILE_RANGE_64: u32 = 53;
}

use opcode::*;

pub(crate) const HEADER_BYTES: usize = 40;

/// A field of a body.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Field {
    /// Four arbitrary bytes.
    Word,
    /// Eight arbitrary bytes.
    Long,
    /// A node number.
    Node,
    /// An offset in a file, mostly small.
    Offset,
    /// A size, mostly small.
    Size,
    /// Flag bits; the low ones are defined.
    Flags,
    /// The fields that SETATTR sets.
    Valid,
}

/// The data after the fields.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Tail {
    Nothing,
    Names(usize),
    Data,
    NameAndData,
    AttributeName,
    Forgets,
}

/// Opcode, fields, tail.
pub(crate) type Shape = (u32, &'static [Field], Tail);

use Field::*;

/// All opcodes that Linux sends, and some unknown ones.
pub(crate) const SHAPES: &[Shape] = &[
    (LOOKUP, &[], Tail::Names(1)),
    (FORGET, &[Long], Tail::Nothing),
    (GETATTR, &[Flags, Word, Long], Tail::Nothing),
    (SETATTR, &[Valid, Word, Long, Offset, Long, Long, Long, Long, Word, Word, Word, Flags, Word, Word, Word, Word], Tail::Nothing),
    (READLINK, &[], Tail::Nothing),
    (SYMLINK, &[], Tail::Names(2)),
    (MKNOD, &[Flags, Word, Flags, Word], Tail::Names(1)),
    (MKDIR, &[Flags, Flags], Tail::Names(1)),
    (10, &[], Tail::Names(1)),
    (11, &[], Tail::Names(1)),
    (12, &[Node], Tail::Names(2)),
    (LINK, &[Node], Tail::Names(1)),
    (OPEN, &[Flags, Flags], Tail::Nothing),
    (READ, &[Long, Offset, Size, Flags, Long, Flags, Word], Tail::Nothing),
    (WRITE, &[Long, Offset, Size, Flags, Long, Flags, Word], Tail::Data),
    (STATFS, &[], Tail::Nothing),
    (18, &[Long, Flags, Flags, Long], Tail::Nothing),
    (20, &[Long, Flags, Word], Tail::Nothing),
    (SETXATTR, &[Size, Flags, Flags, Word], Tail::NameAndData),
    (GETXATTR, &[Size, Word], Tail::AttributeName),
    (LISTXATTR, &[Size, Word], Tail::Nothing),
    (24, &[], Tail::AttributeName),
    (25, &[Long, Word, Word, Long], Tail::Nothing),
    (INIT, &[Word, Word, Word, Word, Word, Long, Long, Long, Long, Long], Tail::Nothing),
    (OPENDIR, &[Flags, Flags], Tail::Nothing),
    (READDIR, &[Long, Offset, Size, Flags, Long, Flags, Word], Tail::Nothing),
    (29, &[Long, Flags, Flags, Long], Tail::Nothing),
    (30, &[Long, Flags, Word], Tail::Nothing),
    (31, &[Long, Long, Long, Long, Word, Word, Flags, Word], Tail::Nothing),
    (32, &[Long, Long, Long, Long, Word, Word, Flags, Word], Tail::Nothing),
    (33, &[Long, Long, Long, Long, Word, Word, Flags, Word], Tail::Nothing),
    (34, &[Flags, Word], Tail::Nothing),
    (CREATE, &[Flags, Flags, Flags, Flags], Tail::Names(1)),
    (INTERRUPT, &[Long], Tail::Nothing),
    (37, &[Long, Word, Word], Tail::Nothing),
    (IOCTL, &[Long, Flags, Word, Long, Size, Size], Tail::Data),
    (40, &[Long, Long, Flags, Flags], Tail::Nothing),
    (NOTIFY_REPLY, &[Long, Long, Size, Word, Long, Long], Tail::Data),
    (BATCH_FORGET, &[], Tail::Forgets),
    (43, &[Long, Offset, Offset, Flags, Word], Tail::Nothing),
    (READDIRPLUS, &[Long, Offset, Size, Flags, Long, Flags, Word], Tail::Nothing),
    (45, &[Node, Flags, Word], Tail::Names(2)),
    (46, &[Long, Offset, Flags, Word], Tail::Nothing),
    (COPY_FILE_RANGE, &[Long, Offset, Node, Long, Offset, Long, Long], Tail::Nothing),
    (48, &[Long, Offset, Size, Flags], Tail::Nothing),
    (49, &[Long], Tail::Nothing),
    (50, &[Node], Tail::Names(1)),
    (TMPFILE, &[Flags, Flags, Flags, Flags], Tail::Names(1)),
    (STATX, &[Flags, Word, Long, Word, Word], Tail::Nothing),
    (COPY_FILE_RANGE_64, &[Long, Offset, Node, Long, Offset, Long, Long], Tail::Nothing),
    (4096, &[Word, Word, Word, Flags], Tail::Nothing),
    (7, &[], Tail::Data),
    (0, &[], Tail::Nothing),
    (u32::MAX, &[Long], Tail::Data),
    (1_048_576, &[Long], Tail::Nothing),
];

/// A request before it is sent.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) opcode: u32,
    pub(crate) node: u64,
    pub(crate) user: u32,
    /// The length in the header, relative to the true length.
    pub(crate) claimed: i64,
    pub(crate) body: Vec<u8>,
}

fn node(input: &mut Input<'_>) -> u64 {
    match input.below(6) {
        0 | 1 => 1,
        2..=4 => 1 + input.below(64) as u64,
        _ => input.border(8),
    }
}

fn name(input: &mut Input<'_>) -> Vec<u8> {
    const NAMES: [&[u8]; 16] =
        [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"d/a", b".", b"..", b"", b"new", b"other", b"third", b"null", b"late"];
    match input.below(8) {
        0 => vec![b'n'; *input.pick(&[47, 48, 255, 256, 4095, 4096])],
        1 => {
            let length = input.below(12);
            input.take(length).to_vec()
        }
        _ => input.pick(&NAMES).to_vec(),
    }
}

/// Names of extended attributes, mostly in a known namespace.
fn attribute_name(input: &mut Input<'_>) -> Vec<u8> {
    const NAMES: [&[u8]; 10] = [
        b"user.a",
        b"user.b",
        b"trusted.c",
        b"security.capability",
        b"system.posix_acl_access",
        b"system.posix_acl_default",
        b"user.",
        b"system.other",
        b"security.",
        b"trusted.d",
    ];
    match input.below(8) {
        0 => name(input),
        1 => [&b"user."[..], &vec![b'n'; *input.pick(&[1, 249, 250, 251, 4000])]].concat(),
        _ => input.pick(&NAMES).to_vec(),
    }
}

/// Attribute values: access control lists, valid or not, and bytes of any length.
fn attribute_value(input: &mut Input<'_>, body: &mut Vec<u8>) {
    if input.one_in(3) {
        let length = *input.pick(&[0, 1, 60, 300, 1024, 1025, 4000, 65_536, 65_537]);
        return body.extend(std::iter::repeat_n(input.byte(), length));
    }
    body.extend([input.pick(&[2, 2, 2, 2, 1]), &0, &0, &0].map(|byte: &u8| *byte));
    for tag in [1_u16, 2, 4, 8, 16, 32] {
        // Each part of a list is mostly present, mostly once, and mostly in its place.
        for _ in 0..*input.pick(&[1, 1, 1, 1, 0, 2]) {
            let tag = if input.one_in(16) { input.border(2) as u16 } else { tag };
            let permissions = if input.one_in(16) { input.border(2) as u16 } else { u16::from(input.byte() % 8) };
            let id = if input.one_in(4) { u32::MAX } else { input.byte().into() };
            body.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
            body.extend(id.to_le_bytes());
        }
    }
    if input.one_in(8) {
        body.truncate(body.len().saturating_sub(1 + input.below(7)));
    }
}

fn field(field: Field, input: &mut Input<'_>, body: &mut Vec<u8>) {
    match field {
        Word => body.extend((input.border(4) as u32).to_le_bytes()),
        Long => body.extend(input.border(8).to_le_bytes()),
        Node => body.extend(node(input).to_le_bytes()),
        Offset => {
            let offset = if input.one_in(4) { input.border(8) } else { input.number(2) * *input.pick(&[1, 1, 64, 4096]) };
            body.extend(offset.to_le_bytes());
        }
        Size => {
            let size = if input.one_in(4) { input.border(4) } else { input.number(2) };
            body.extend((size as u32).to_le_bytes());
        }
        Flags => {
            let flags = if input.one_in(3) { input.border(4) } else { [0, 1, 2, 4, 0o100_644, 0o40_755, 0o1001, 0o2002][input.below(8)] };
            body.extend((flags as u32).to_le_bytes());
        }
        Valid => {
            let valid = if input.one_in(4) { input.border(4) } else { 1 << input.below(18) | 1 << input.below(18) };
            body.extend((valid as u32).to_le_bytes());
        }
    }
}

fn tail(tail: Tail, input: &mut Input<'_>, body: &mut Vec<u8>) {
    let terminate = |body: &mut Vec<u8>, input: &mut Input<'_>| {
        if !input.one_in(16) {
            body.push(0);
        }
    };
    match tail {
        Tail::Nothing => {}
        Tail::Names(count) => {
            for _ in 0..count {
                body.extend(name(input));
                terminate(body, input);
            }
        }
        Tail::Data => {
            let length = *input.pick(&[0, 1, 10, 64, 100, 4095, 4096, 4097, 8192, 65_536, 100_000]);
            let byte = input.byte();
            body.extend((0..length).map(|at: u32| byte.wrapping_add(at as u8)));
        }
        Tail::NameAndData => {
            body.extend(attribute_name(input));
            terminate(body, input);
            attribute_value(input, body);
        }
        Tail::AttributeName => {
            body.extend(attribute_name(input));
            terminate(body, input);
        }
        Tail::Forgets => {
            let count = input.below(9);
            let claimed = if input.one_in(4) { input.border(4) as u32 } else { count as u32 };
            body.extend(claimed.to_le_bytes());
            body.extend([0; 4]);
            for _ in 0..count {
                body.extend(node(input).to_le_bytes());
                body.extend(input.border(8).to_le_bytes());
            }
        }
    }
}

impl Request {
    /// An ordinary request.
    pub(crate) fn new(opcode: u32, node: u64, body: Vec<u8>) -> Self {
        Self { opcode, node, user: 0, claimed: 0, body }
    }

    /// Draws a request from the input.
    pub(crate) fn draw(input: &mut Input<'_>) -> Self {
        let damage = input.byte();
        let (opcode, fields, tail_shape) = *input.pick(SHAPES);
        let mut request = Self::new(opcode, node(input), Vec::new());
        for shape in fields {
            field(*shape, input, &mut request.body);
        }
        tail(tail_shape, input, &mut request.body);
        match damage {
            200..210 => request.body.truncate(input.below(request.body.len() + 1)),
            210..215 => request.body.extend(input.take(20)),
            215..220 => request.claimed = -(input.below(request.body.len() + 1) as i64),
            220 => request.claimed = 1 + input.border(4) as i64,
            221..224 => request.user = input.border(4) as u32,
            _ => {}
        }
        request
    }

    /// Whether the length in the header is correct.
    pub(crate) fn is_as_long_as_it_says(&self) -> bool {
        self.claimed == 0
    }

    /// Whether an answer is expected. INTERRUPT gets one: the mount answers that it does not support interrupts.
    pub(crate) fn wants_answer(&self) -> bool {
        match self.opcode {
            FORGET | BATCH_FORGET | NOTIFY_REPLY => false,
            INTERRUPT => self.body.len() >= 8,
            _ => true,
        }
    }

    pub(crate) fn word(&self, at: usize) -> u32 {
        let bytes = self.body.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_le_bytes)
    }

    /// The encoded message.
    pub(crate) fn encode(&self, unique: u64) -> Vec<u8> {
        let length = (HEADER_BYTES as i64 + self.body.len() as i64 + self.claimed).clamp(0, u32::MAX.into()) as u32;
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.body.len());
        bytes.extend(length.to_le_bytes());
        bytes.extend(self.opcode.to_le_bytes());
        bytes.extend(unique.to_le_bytes());
        bytes.extend(self.node.to_le_bytes());
        bytes.extend(self.user.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(&self.body);
        bytes
    }
}
