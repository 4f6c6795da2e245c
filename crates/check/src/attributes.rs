//! Checks extended attributes. Every line of a set, and of the values outside it, must be in the right region, verify, and have one user.
//! The set as a whole must verify, and an inode of its type must be allowed to have it.
//!
//! [PO6] Lines are claimed only if all of them verify for the inode: those that an older pointer names may be another's by now ([PO1] of
//!       `proved.rs`), and a repair removes the pointer anyway.

use tandemfs_device::Structure;
use tandemfs_format::attributes::{
    Attribute, AttributePointer, AttributeValue, Namespace, SET_BYTES_MAX, STREAM_PAGE_BYTES, StreamShape, addresses_of, decode_set,
    extend_stream,
};
use tandemfs_format::inode::{Inode, file_type};
use tandemfs_format::quota::{ChunkName, QuotaChunk};
use tandemfs_format::segment::Region;
use tandemfs_format::{InodeNumber, LINE_BYTES, Line, LineAddress, PAGE_LINES};

use crate::checker::Checker;
use crate::finding::{Damage, Finding};
use crate::image::{Image, line_of};
use crate::mend::Owner;
use crate::mutant::{Mutant, on};

/// Most pages that a stream has.
const PAGES_MAX: usize = SET_BYTES_MAX.div_ceil(STREAM_PAGE_BYTES);

/// Why a stream cannot be read.
pub(crate) enum Fault {
    /// A line.
    Damaged(LineAddress, Damage),
    /// A pointer to a place where no attributes can be.
    Misplaced(LineAddress),
    /// Lines that another structure uses.
    Shared(LineAddress),
}

impl Fault {
    fn finding(self, inode: u64) -> Finding {
        match self {
            Self::Damaged(line, damage) => Finding::AttributesDamaged { inode, line: line.number(), damage },
            Self::Misplaced(line) => Finding::AttributesMisplaced { inode, line: line.number() },
            Self::Shared(line) => Finding::AttributesShared { inode, line: line.number() },
        }
    }
}

/// A run of lines that was verified and claimed. `claim` gets the first, their number, and whether they verify ([PO6]); it says whether nothing
/// else has claimed them.
fn lines(
    image: &Image<'_>,
    owner: Owner,
    first: LineAddress,
    count: u64,
    claim: &mut dyn FnMut(u64, u64, bool) -> bool,
) -> Result<Vec<Line>, Fault> {
    if !first.number().is_multiple_of(count) || !image.segments.holds(Region::Attributes, first, count) {
        return Err(Fault::Misplaced(first));
    }
    let found = verified_lines(image, owner, first, count);
    if !claim(first.number(), count, found.is_ok() || on(Mutant::SetsClaimedUnread)) {
        return Err(Fault::Shared(first));
    }
    found
}

fn verified_lines(image: &Image<'_>, owner: Owner, first: LineAddress, count: u64) -> Result<Vec<Line>, Fault> {
    let mut bytes = vec![0; count as usize * LINE_BYTES];
    image.load(Structure::Mapping, first, &mut bytes).map_err(|_| Fault::Damaged(first, Damage::Unreadable))?;
    let mut found = Vec::new();
    for index in 0..count {
        let (address, line) = (first.nth(index), line_of(&bytes, index as usize));
        let verified = image.place(owner.inode, owner.generation, address).verify(&line);
        verified.map_err(|corrupt| Fault::Damaged(address, corrupt.into()))?;
        found.push(line);
    }
    Ok(found)
}

/// The bytes of a stream, with the padding behind its end.
fn stream(
    image: &Image<'_>,
    owner: Owner,
    first: LineAddress,
    (count, holds_addresses): (u64, bool),
    claim: &mut dyn FnMut(u64, u64, bool) -> bool,
) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    let piece = lines(image, owner, first, count, claim)?;
    if !holds_addresses {
        piece.iter().for_each(|line| extend_stream(&mut bytes, line));
        return Ok(bytes);
    }
    for page in piece.iter().flat_map(addresses_of).take(PAGES_MAX) {
        lines(image, owner, page, PAGE_LINES, claim)?.iter().for_each(|line| extend_stream(&mut bytes, line));
    }
    Ok(bytes)
}

/// The set that a pointer leads to.
pub(crate) fn set(
    image: &Image<'_>,
    owner: Owner,
    pointer: AttributePointer,
    claim: &mut dyn FnMut(u64, u64, bool) -> bool,
) -> Result<Vec<Attribute>, Fault> {
    let wrong_class = Damage::Field { field: "attributes_class", found: pointer.class.into() };
    let piece = pointer.first_piece().ok_or(Fault::Damaged(pointer.address, wrong_class))?;
    let stream = stream(image, owner, pointer.address, piece, claim)?;
    decode_set(image.pair, pointer, &stream).map_err(|corrupt| Fault::Damaged(pointer.address, corrupt.into()))
}

/// The bytes of a value.
pub(crate) fn value(
    image: &Image<'_>,
    owner: Owner,
    value: &AttributeValue,
    claim: &mut dyn FnMut(u64, u64, bool) -> bool,
) -> Result<Vec<u8>, Fault> {
    let (address, length, crc) = match value {
        AttributeValue::Near(bytes) => return Ok(bytes.clone()),
        AttributeValue::Apart { address, length, crc } => (*address, *length as usize, *crc),
    };
    let shape = StreamShape::of(length);
    let mut bytes = stream(image, owner, address, (shape.lines, shape.pages > 0), claim)?;
    bytes.truncate(length);
    let found = image.pair.data(&bytes);
    if bytes.len() != length || found != crc {
        return Err(Fault::Damaged(address, Damage::Checksum { found, expected: crc }));
    }
    Ok(bytes)
}

impl Checker<'_> {
    /// Checks the attributes of an inode. Returns their space in whole pages, in 512 B; `None` if damage hides part of it.
    pub(crate) fn check_attributes(&mut self, number: u64, inode: &Inode) -> Option<u64> {
        if inode.attributes.is_none() {
            return Some(0);
        }
        let (image, owner) = (self.image, Owner { inode: number, generation: inode.generation });
        let claims = &mut self.lines;
        let mut claim = |first, count, verifies| if verifies { claims.claim(first, count) } else { claims.is_free(first, count) };
        let mut odd = Vec::new();
        let checked = set(image, owner, inode.attributes, &mut claim).and_then(|set| {
            let mut space = StreamShape::of(tandemfs_format::attributes::set_bytes(&set)).space_512();
            for (index, attribute) in set.iter().enumerate() {
                let bytes = value(image, owner, &attribute.value, &mut claim)?;
                if let AttributeValue::Apart { length, .. } = attribute.value {
                    space += StreamShape::of(length as usize).space_512();
                }
                let (before, _) = set.split_at(index);
                let is_limited = number == InodeNumber::ROOT.get() && image.superblock.has_quota();
                odd.extend(oddity(inode, is_limited, before, attribute, &bytes).map(|field| (index as u64, field)));
            }
            Ok(space)
        });
        for (attribute, field) in odd {
            self.find(Finding::AttributeInvalid { inode: number, attribute, field });
        }
        match checked {
            Ok(space) => Some(space),
            Err(fault) => {
                self.find(fault.finding(number));
                self.tree_whole = false;
                None
            }
        }
    }
}

/// Violations of FORMAT.md by an attribute.
fn oddity(inode: &Inode, may_have_limits: bool, before: &[Attribute], attribute: &Attribute, value: &[u8]) -> Option<&'static str> {
    if before.iter().any(|other| (other.namespace, &other.name) == (attribute.namespace, &attribute.name)) {
        return Some("name");
    }
    let may_have = match (attribute.namespace, inode.file_type()) {
        (Namespace::User, file_type::REGULAR | file_type::DIRECTORY) => true,
        (Namespace::User, _) | (Namespace::AccessAcl, file_type::SYMLINK) => false,
        (Namespace::DefaultAcl, kind) => kind == file_type::DIRECTORY,
        (Namespace::Quota, _) => may_have_limits,
        _ => true,
    };
    if !may_have {
        return Some("namespace");
    }
    match attribute.namespace {
        Namespace::AccessAcl => match bits_of_list(value) {
            None => Some("access list"),
            Some((bits, minimal)) => (minimal || bits != inode.mode & 0o777).then_some("mode"),
        },
        Namespace::DefaultAcl => bits_of_list(value).is_none().then_some("access list"),
        Namespace::Quota => match ChunkName::parse(&attribute.name) {
            None => Some("name"),
            Some(name) => QuotaChunk::decode(name, value).is_err().then_some("limits"),
        },
        _ => None,
    }
}

/// The nine mode bits of an ACL, and whether the ACL is equivalent to them; `None` if it is malformed.
fn bits_of_list(value: &[u8]) -> Option<(u16, bool)> {
    let entries = value.strip_prefix(&[2, 0, 0, 0])?.as_chunks::<8>();
    let ([first, ..], []) = entries else { return None };
    let entries = entries.0;
    let tag = |entry: &[u8; 8]| u16::from_le_bytes([entry[0], entry[1]]);
    let permissions = |entry: &[u8; 8]| u16::from_le_bytes([entry[2], entry[3]]);
    let of = |wanted: u16| entries.iter().filter(move |entry| tag(entry) == wanted);
    let one = |wanted: u16| of(wanted).count() == 1;
    let named = of(2).chain(of(8));
    let in_order = entries.windows(2).all(|pair| matches!(pair, [one, next] if tag(one) <= tag(next)));
    let is_list = tag(first) == 1
        && in_order
        && entries.iter().all(|entry| matches!(tag(entry), 1 | 2 | 4 | 8 | 16 | 32) && permissions(entry) < 8)
        && one(1)
        && one(4)
        && one(32)
        && of(16).count() <= 1
        && (one(16) || named.clone().count() == 0)
        && named.clone().all(|entry| entry[4..] != [0xff; 4]);
    let group = if one(16) { 16 } else { 4 };
    let bits = |wanted: u16| of(wanted).next().map_or(0, permissions);
    is_list.then(|| (bits(1) << 6 | bits(group) << 3 | bits(32), entries.len() == 3))
}
