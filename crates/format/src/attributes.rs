//! Extended attributes: each inode has one *set*, in its own lines. Values longer than [`NEAR_VALUE_MAX`] are stored outside the set.
//!
//! A set, and a value outside it, is a *stream* of bytes, 60 B in each line. A stream of up to a page is one piece of 1 to 64 lines; a
//! longer one is in pages, whose addresses are in address lines. A stream never changes in place: a new set uses new lines, and one
//! transaction switches the inode's pointer to it.

use zerocopy::{FromBytes, IntoBytes};

use crate::checksum::Place;
use crate::integer::{U32, U40};
use crate::{Corrupt, EMPTY_LINE, LINE_BYTES, Line, LineAddress, PAGE_LINES, PairSeed};

/// Longest name of an attribute with its prefix, in bytes.
pub const ATTRIBUTE_NAME_MAX: usize = 255;
/// Longest value of an attribute, in bytes.
pub const ATTRIBUTE_VALUE_MAX: usize = 64 << 10;
/// Longest value inside the set, in bytes.
pub const NEAR_VALUE_MAX: usize = 1024;
/// Longest set, in bytes, without the values outside it.
pub const SET_BYTES_MAX: usize = 256 << 10;
/// Largest total of all names of a set with prefix and NUL, in bytes: the limit of one `listxattr`.
pub const LIST_BYTES_MAX: usize = 64 << 10;

/// Bytes of a stream in a line.
pub const STREAM_LINE_BYTES: usize = LINE_BYTES - 4;
/// Bytes of a stream in a page.
pub const STREAM_PAGE_BYTES: usize = STREAM_LINE_BYTES * PAGE_LINES as usize;
/// Addresses in a line of them.
pub const LINE_ADDRESSES: usize = 12;

/// Flag in the class: the first piece holds addresses of pages. The lower bits are the binary logarithm of its lines.
const CLASS_ADDRESSES: u8 = 8;

persistent! {
    /// A line of a stream.
    pub struct AttributeLine [64] {
        /// CRC-32C, see *Checksums*.
        crc: U32 = 0,
        /// The next bytes of the stream; zeros behind its end.
        bytes: [u8; 60] = 4,
    }
}

persistent! {
    /// A line of addresses of a stream's pages.
    pub struct AttributeAddressLine [64] {
        /// CRC-32C, see *Checksums*.
        crc: U32 = 0,
        /// First lines of the next pages; zeros behind the last.
        pages: [U40; 12] = 4,
    }
}

persistent! {
    /// Start of the stream of a set.
    pub struct AttributeSetHead [8] {
        /// CRC-32C of bytes 4..`length_bytes`, seeded with the pair.
        crc: U32 = 0,
        /// Length of the stream, this head included.
        length_bytes: U32 = 4,
    }
}

persistent! {
    /// Start of an attribute in a set; followed by its name, then its value or an [`AttributeValuePointer`].
    pub struct AttributeHead [6] {
        /// Number of the namespace.
        namespace: u8 = 0,
        /// Length of the name without its prefix.
        name_length: u8 = 1,
        /// Length of the value.
        value_length: U32 = 2,
    }
}

persistent! {
    /// Place of a value over 1024 B.
    pub struct AttributeValuePointer [9] {
        /// First line of the stream.
        address: U40 = 0,
        /// CRC-32C of the value, seeded with the pair.
        crc: U32 = 5,
    }
}

/// Namespace: the prefix of an attribute's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Namespace {
    /// `user.`
    User,
    /// `trusted.`
    Trusted,
    /// `security.`
    Security,
    /// `system.posix_acl_access`, the whole name.
    AccessAcl,
    /// `system.posix_acl_default`, the whole name.
    DefaultAcl,
    /// `system.tandemfs.quota.`: limits, of the root directory alone ([`crate::quota`]). Programs do not see it.
    Quota,
}

impl Namespace {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 6] = [Self::User, Self::Trusted, Self::Security, Self::AccessAcl, Self::DefaultAcl, Self::Quota];

    /// The number on the medium, from 1.
    pub fn number(self) -> u8 {
        match self {
            Self::User => 1,
            Self::Trusted => 2,
            Self::Security => 3,
            Self::AccessAcl => 4,
            Self::DefaultAcl => 5,
            Self::Quota => 6,
        }
    }

    /// The prefix, or the whole name if nothing follows it.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::User => "user.",
            Self::Trusted => "trusted.",
            Self::Security => "security.",
            Self::AccessAcl => "system.posix_acl_access",
            Self::DefaultAcl => "system.posix_acl_default",
            Self::Quota => "system.tandemfs.quota.",
        }
    }

    /// Whether a name follows the prefix.
    pub fn is_prefix(self) -> bool {
        matches!(self, Self::User | Self::Trusted | Self::Security | Self::Quota)
    }

    /// Splits a whole name; `None` for an unknown prefix.
    pub fn split(name: &[u8]) -> Option<(Self, &[u8])> {
        Self::ALL.into_iter().find_map(|namespace| {
            let rest = name.strip_prefix(namespace.prefix().as_bytes())?;
            (namespace.is_prefix() || rest.is_empty()).then_some((namespace, rest))
        })
    }

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|namespace| namespace.number() == number)
    }
}

/// Layout of a stream in lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamShape {
    /// Lines of the first piece: a power of two, and what it is aligned to.
    pub lines: u64,
    /// Pages that the first piece names; 0 where it holds the bytes.
    pub pages: u64,
}

impl StreamShape {
    /// The shape of a stream of this length.
    pub fn of(bytes: usize) -> Self {
        if bytes <= STREAM_PAGE_BYTES {
            return Self { lines: (bytes.div_ceil(STREAM_LINE_BYTES).max(1) as u64).next_power_of_two(), pages: 0 };
        }
        let pages = bytes.div_ceil(STREAM_PAGE_BYTES) as u64;
        Self { lines: pages.div_ceil(LINE_ADDRESSES as u64).next_power_of_two(), pages }
    }

    /// Space of whole pages, in units of 512 B, as `sectors` counts it.
    pub fn space_512(self) -> u64 {
        let whole = u64::from(self.pages == 0 && self.lines == PAGE_LINES);
        (self.pages + whole) * PAGE_LINES * LINE_BYTES as u64 / 512
    }

    /// The class that goes with a pointer to a set of this shape.
    fn class(self) -> u8 {
        self.lines.trailing_zeros() as u8 | if self.pages > 0 { CLASS_ADDRESSES } else { 0 }
    }
}

const _: () = assert!(SET_BYTES_MAX.div_ceil(STREAM_PAGE_BYTES).div_ceil(LINE_ADDRESSES) <= PAGE_LINES as usize);

/// An inode's pointer to its set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttributePointer {
    /// First line; 0 where there are no attributes.
    pub address: LineAddress,
    /// Class of the first piece.
    pub class: u8,
}

impl AttributePointer {
    /// No attributes.
    pub const NONE: Self = Self { address: LineAddress::new(0), class: 0 };

    /// A pointer to a set of this length.
    pub fn new(address: LineAddress, bytes: usize) -> Self {
        Self { address, class: StreamShape::of(bytes).class() }
    }

    /// Whether there are no attributes.
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// Lines of the first piece, and whether they are addresses; `None` for an invalid class, or an address that does not fit it.
    pub fn first_piece(self) -> Option<(u64, bool)> {
        let logarithm = self.class & (CLASS_ADDRESSES - 1);
        let lines = 1_u64 << logarithm;
        let fits = self.class < 2 * CLASS_ADDRESSES && lines <= PAGE_LINES && self.address.number().is_multiple_of(lines);
        (fits && self.address.number() > 0).then_some((lines, self.class & CLASS_ADDRESSES != 0))
    }
}

/// The sealed lines of a piece that starts at `first`: `bytes`, and empty lines up to `lines`.
pub fn stream_lines(place: impl Fn(LineAddress) -> Place, first: LineAddress, lines: u64, bytes: &[u8]) -> Vec<u8> {
    let mut piece = Vec::with_capacity(lines as usize * LINE_BYTES);
    for (index, chunk) in (0..).zip(bytes.chunks(STREAM_LINE_BYTES)) {
        let mut line = EMPTY_LINE;
        line[4..4 + chunk.len()].copy_from_slice(chunk);
        piece.extend_from_slice(&place(first.nth(index)).seal(line));
    }
    piece.resize(lines as usize * LINE_BYTES, 0);
    piece
}

/// The sealed lines of addresses of pages.
pub fn address_lines(place: impl Fn(LineAddress) -> Place, first: LineAddress, lines: u64, pages: &[LineAddress]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(pages.len() * 5);
    for page in pages {
        bytes.extend_from_slice(U40::new(page.number()).as_bytes());
    }
    stream_lines(place, first, lines, &bytes)
}

/// Adds the bytes of a verified line to a stream.
pub fn extend_stream(stream: &mut Vec<u8>, line: &Line) {
    stream.extend_from_slice(&line[4..]);
}

/// The addresses in a verified line, up to the first zero.
pub fn addresses_of(line: &Line) -> impl Iterator<Item = LineAddress> {
    let Ok(line) = AttributeAddressLine::read_from_bytes(line) else { unreachable!("a line has the size of a line") };
    line.pages.into_iter().map(|page| LineAddress::new(page.get())).take_while(|page| page.number() > 0)
}

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttributeValue {
    /// In the set.
    Near(Vec<u8>),
    /// In a stream of its own.
    Apart {
        /// First line.
        address: LineAddress,
        /// Length in bytes, over [`NEAR_VALUE_MAX`].
        length: u32,
        /// Data checksum.
        crc: u32,
    },
}

impl AttributeValue {
    /// Length in bytes.
    pub fn length(&self) -> usize {
        match self {
            Self::Near(bytes) => bytes.len(),
            Self::Apart { length, .. } => *length as usize,
        }
    }
}

/// An attribute in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribute {
    /// Namespace.
    pub namespace: Namespace,
    /// The name behind the prefix.
    pub name: Vec<u8>,
    /// The value.
    pub value: AttributeValue,
}

impl Attribute {
    /// Bytes that it takes in the set.
    fn encoded_bytes(&self) -> usize {
        let value = match &self.value {
            AttributeValue::Near(bytes) => bytes.len(),
            AttributeValue::Apart { .. } => size_of::<AttributeValuePointer>(),
        };
        size_of::<AttributeHead>() + self.name.len() + value
    }

    /// Length of the whole name.
    pub fn full_name_bytes(&self) -> usize {
        self.namespace.prefix().len() + self.name.len()
    }

    /// The whole name.
    pub fn full_name(&self) -> Vec<u8> {
        [self.namespace.prefix().as_bytes(), &self.name].concat()
    }
}

/// Length of the stream of a set.
pub fn set_bytes(set: &[Attribute]) -> usize {
    size_of::<AttributeSetHead>() + set.iter().map(Attribute::encoded_bytes).sum::<usize>()
}

/// The stream of a set.
pub fn encode_set(pair: PairSeed, set: &[Attribute]) -> Vec<u8> {
    let length = set_bytes(set);
    let mut stream = Vec::with_capacity(length);
    stream.extend_from_slice(AttributeSetHead { crc: 0.into(), length_bytes: (length as u32).into() }.as_bytes());
    for attribute in set {
        let head = AttributeHead {
            namespace: attribute.namespace.number(),
            name_length: attribute.name.len() as u8,
            value_length: (attribute.value.length() as u32).into(),
        };
        stream.extend_from_slice(head.as_bytes());
        stream.extend_from_slice(&attribute.name);
        match &attribute.value {
            AttributeValue::Near(bytes) => stream.extend_from_slice(bytes),
            AttributeValue::Apart { address, crc, .. } => {
                stream.extend_from_slice(AttributeValuePointer { address: U40::new(address.number()), crc: (*crc).into() }.as_bytes());
            }
        }
    }
    let crc = pair.data(&stream[4..]);
    stream[..4].copy_from_slice(&crc.to_le_bytes());
    stream
}

/// Parses the stream of a set. `stream` may have padding behind its end. `pointer` is the inode's pointer to it.
pub fn decode_set(pair: PairSeed, pointer: AttributePointer, stream: &[u8]) -> Result<Vec<Attribute>, Corrupt> {
    let address = pointer.address;
    let field = |field, found: usize| Corrupt::Field { address, field, found: found as u64 };
    let Ok((head, _)) = AttributeSetHead::read_from_prefix(stream) else { return Err(field("length_bytes", stream.len())) };
    let length = head.length_bytes.get() as usize;
    let fits = length > size_of::<AttributeSetHead>() && length <= SET_BYTES_MAX && AttributePointer::new(address, length) == pointer;
    let Some(stream) = stream.get(..length).filter(|_| fits) else { return Err(field("length_bytes", length)) };
    let (found, expected) = (head.crc.get(), pair.data(&stream[4..]));
    if found != expected {
        return Err(Corrupt::Checksum { address, found, expected });
    }
    let mut set = Vec::new();
    let mut rest = &stream[size_of::<AttributeSetHead>()..];
    while !rest.is_empty() {
        let Ok((head, behind)) = AttributeHead::read_from_prefix(rest) else { return Err(field("length_bytes", length)) };
        let namespace = Namespace::from_number(head.namespace).ok_or_else(|| field("namespace", head.namespace.into()))?;
        let name_length = usize::from(head.name_length);
        if (name_length > 0) != namespace.is_prefix() || namespace.prefix().len() + name_length > ATTRIBUTE_NAME_MAX {
            return Err(field("name_length", name_length));
        }
        let value_length = head.value_length.get() as usize;
        let is_near = value_length <= NEAR_VALUE_MAX;
        let value_bytes = if is_near { value_length } else { size_of::<AttributeValuePointer>() };
        if value_length > ATTRIBUTE_VALUE_MAX || behind.len() < name_length + value_bytes {
            return Err(field("value_length", value_length));
        }
        let (name, behind) = behind.split_at(name_length);
        let (value, behind) = behind.split_at(value_bytes);
        rest = behind;
        if name.contains(&0) {
            return Err(field("name", 0));
        }
        let value = match AttributeValuePointer::read_from_bytes(value) {
            Ok(pointer) if !is_near => {
                let (at, length) = (LineAddress::new(pointer.address.get()), value_length as u32);
                if at.number() == 0 || !at.number().is_multiple_of(StreamShape::of(value_length).lines) {
                    return Err(field("address", at.number() as usize));
                }
                AttributeValue::Apart { address: at, length, crc: pointer.crc.get() }
            }
            _ => AttributeValue::Near(value.to_vec()),
        };
        set.push(Attribute { namespace, name: name.to_vec(), value });
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::InodeNumber;

    fn pair() -> PairSeed {
        PairSeed::new(uuid::Uuid::from_u128(1))
    }

    fn near(name: &[u8], length: usize) -> Attribute {
        Attribute { namespace: Namespace::User, name: name.to_vec(), value: AttributeValue::Near(vec![7; length]) }
    }

    fn padded(stream: &[u8]) -> Vec<u8> {
        let shape = StreamShape::of(stream.len());
        let bytes = if shape.pages > 0 { shape.pages as usize * STREAM_PAGE_BYTES } else { shape.lines as usize * STREAM_LINE_BYTES };
        let mut stream = stream.to_vec();
        stream.resize(bytes, 0);
        stream
    }

    #[test]
    fn sets_round_trip_and_every_flipped_byte_is_found() {
        let apart = AttributeValue::Apart { address: LineAddress::new(128), length: 65_536, crc: 9 };
        let set = vec![
            near(b"a", 0),
            Attribute { namespace: Namespace::AccessAcl, name: Vec::new(), value: AttributeValue::Near(vec![1; 44]) },
            Attribute { namespace: Namespace::Trusted, name: vec![b'x'; 247], value: apart },
            near(b"b", NEAR_VALUE_MAX),
        ];
        let stream = encode_set(pair(), &set);
        let pointer = AttributePointer::new(LineAddress::new(64), stream.len());
        assert_eq!(decode_set(pair(), pointer, &padded(&stream)), Ok(set));
        for at in 0..stream.len() {
            let mut damaged = padded(&stream);
            damaged[at] ^= 0x20;
            assert!(decode_set(pair(), pointer, &damaged).is_err(), "byte {at}");
        }
        assert!(decode_set(pair(), AttributePointer { class: 1, ..pointer }, &padded(&stream)).is_err(), "another length");
    }

    #[test]
    fn an_access_list_of_four_and_file_capabilities_take_a_line_each() {
        let acl = Attribute { namespace: Namespace::AccessAcl, name: Vec::new(), value: AttributeValue::Near(vec![1; 44]) };
        let capability =
            Attribute { namespace: Namespace::Security, name: b"capability".to_vec(), value: AttributeValue::Near(vec![1; 20]) };
        for attribute in [acl, capability] {
            assert_eq!(StreamShape::of(set_bytes(&[attribute])).lines, 1);
        }
    }

    #[test]
    fn shapes_hold_what_they_are_for() {
        for (bytes, lines, pages, space) in
            [(1, 1, 0, 0), (60, 1, 0, 0), (61, 2, 0, 0), (3840, 64, 0, 8), (3841, 1, 2, 16), (65_536, 2, 18, 144), (46_081, 2, 13, 104)]
        {
            let shape = StreamShape::of(bytes);
            assert_eq!((shape.lines, shape.pages, shape.space_512()), (lines, pages, space), "{bytes}");
            let pointer = AttributePointer::new(LineAddress::new(64), bytes);
            assert_eq!(pointer.first_piece(), Some((lines, pages > 0)), "{bytes}");
        }
        for class in [7, 15, 16, 255] {
            assert_eq!(AttributePointer { address: LineAddress::new(64), class }.first_piece(), None, "{class}");
        }
        assert_eq!(AttributePointer { address: LineAddress::new(65), class: 1 }.first_piece(), None, "misaligned");
    }

    #[test]
    fn names_are_taken_apart_and_foreign_ones_refused() {
        assert_eq!(Namespace::split(b"user.a"), Some((Namespace::User, &b"a"[..])));
        assert_eq!(Namespace::split(b"security.capability"), Some((Namespace::Security, &b"capability"[..])));
        assert_eq!(Namespace::split(b"system.posix_acl_default"), Some((Namespace::DefaultAcl, &b""[..])));
        assert_eq!(Namespace::split(b"trusted."), Some((Namespace::Trusted, &b""[..])));
        for foreign in [&b"system.posix_acl_default2"[..], b"system.other", b"user", b"", b"User.a"] {
            assert_eq!(Namespace::split(foreign), None);
        }
    }

    #[test]
    fn lines_of_a_stream_are_sealed_for_their_place() {
        let place = |address| Place { pair: pair(), address, inode: InodeNumber::new(5), generation: 3 };
        let bytes: Vec<u8> = (0..150).collect();
        let piece = stream_lines(place, LineAddress::new(8), 4, &bytes);
        let mut stream = Vec::new();
        for (index, line) in (0..).zip(piece.as_chunks::<LINE_BYTES>().0) {
            place(LineAddress::new(8 + index)).verify(line).expect("sealed or empty");
            extend_stream(&mut stream, line);
        }
        assert_eq!(stream.len(), 240);
        assert_eq!(stream[..150], bytes);
        let pages: Vec<LineAddress> = (1..15).map(|page| LineAddress::new(page * 64)).collect();
        let piece = address_lines(place, LineAddress::new(2), 2, &pages);
        let found: Vec<LineAddress> = piece.as_chunks::<LINE_BYTES>().0.iter().flat_map(addresses_of).collect();
        assert_eq!(found, pages);
    }
}
