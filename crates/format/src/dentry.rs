//! Directory entries: slots of one line each. An entry never moves while it lives, so its cookie (slot number + 3) stays valid.
//!
//! A name of up to 47 B uses one slot. A longer name continues in the following slots of the same page: 255 B use five. A directory's pages
//! are the blocks of its mapping (records of state *memory*); slot number = page x 64 + line.

use zerocopy::{FromBytes, IntoBytes};

use crate::checksum::Place;
use crate::integer::{U32, U48};
use crate::{Corrupt, EMPTY_LINE, InodeNumber, Line, PAGE_LINES, inode::file_type};

/// Longest name, in bytes.
pub const NAME_MAX: usize = 255;
/// Bytes of a name in its head slot.
pub const HEAD_NAME_BYTES: usize = 47;
/// Bytes of a name in a continuation slot.
pub const CONTINUATION_NAME_BYTES: usize = 59;
/// Most slots of one entry.
pub const ENTRY_SLOTS_MAX: usize = 5;
/// Slots in a page.
pub const PAGE_SLOTS: u64 = PAGE_LINES;

const KIND_HEAD: u8 = 1;
const KIND_CONTINUATION: u8 = 2;

persistent! {
    /// First slot of a directory entry.
    pub struct DentryHeadLine [64] {
        /// CRC-32C, see *Checksums*.
        crc: U32 = 0,
        /// 1.
        kind: u8 = 4,
        /// Type of the inode: bits 12–15 of its mode.
        file_type: u8 = 5,
        /// Length of the name, 1–255.
        name_length: u8 = 6,
        /// Hash of the name (CRC-32C seeded with the pair).
        hash: U32 = 7,
        /// Inode that the name stands for.
        inode: U48 = 11,
        /// First bytes of the name, padded with zeros.
        name: [u8; 47] = 17,
    }
}

persistent! {
    /// Further slot of a directory entry.
    pub struct DentryContinuationLine [64] {
        /// CRC-32C, see *Checksums*.
        crc: U32 = 0,
        /// 2.
        kind: u8 = 4,
        /// Further bytes of the name, padded with zeros.
        name: [u8; 59] = 5,
    }
}

/// Slots that a name of this length takes.
pub fn slots(name_length: usize) -> usize {
    1 + name_length.saturating_sub(HEAD_NAME_BYTES).div_ceil(CONTINUATION_NAME_BYTES)
}

/// The type of a mode, as it stands in an entry.
pub fn type_of_mode(mode: u16) -> u8 {
    (mode >> 12) as u8
}

/// A directory entry in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dentry {
    /// Inode.
    pub inode: InodeNumber,
    /// Bits 12–15 of the mode.
    pub file_type: u8,
    /// Hash of the name.
    pub hash: u32,
    /// The name.
    pub name: Vec<u8>,
}

/// What one slot holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Slot {
    /// Nothing.
    Empty,
    /// The start of an entry.
    Head {
        /// Inode.
        inode: InodeNumber,
        /// Bits 12–15 of the mode.
        file_type: u8,
        /// Hash of the name.
        hash: u32,
        /// Length of the name in bytes.
        name_length: usize,
    },
    /// A further part of the entry that starts before it.
    Continuation,
}

/// Verifies one slot.
pub fn decode_slot(line: &Line, place: &Place) -> Result<Slot, Corrupt> {
    if *line == EMPTY_LINE {
        return Ok(Slot::Empty);
    }
    place.verify(line)?;
    let field = |field, found: u64| Corrupt::Field { address: place.address, field, found };
    let Ok(head) = DentryHeadLine::read_from_bytes(line) else { unreachable!("a line has the size of a line") };
    match head.kind {
        KIND_CONTINUATION => return Ok(Slot::Continuation),
        KIND_HEAD if head.name_length > 0 => {}
        KIND_HEAD => return Err(field("name_length", 0)),
        other => return Err(field("kind", other.into())),
    }
    if !file_type::ALL.contains(&(u16::from(head.file_type) << 12)) {
        return Err(field("file_type", head.file_type.into()));
    }
    Ok(Slot::Head {
        inode: InodeNumber::new(head.inode.get()),
        file_type: head.file_type,
        hash: head.hash.get(),
        name_length: head.name_length.into(),
    })
}

impl Dentry {
    /// The sealed slots of the entry, one line each; `place_of(i)` is the place of its i-th slot.
    pub fn encode(&self, place_of: impl Fn(usize) -> Place) -> Vec<Line> {
        let (head_name, rest) = self.name.split_at(self.name.len().min(HEAD_NAME_BYTES));
        let mut head = DentryHeadLine {
            crc: 0.into(),
            kind: KIND_HEAD,
            file_type: self.file_type,
            name_length: self.name.len() as u8,
            hash: self.hash.into(),
            inode: U48::new(self.inode.get()),
            name: [0; HEAD_NAME_BYTES],
        };
        head.name[..head_name.len()].copy_from_slice(head_name);
        let mut lines = vec![seal(&place_of(0), head.as_bytes())];
        for (index, part) in rest.chunks(CONTINUATION_NAME_BYTES).enumerate() {
            let mut slot = DentryContinuationLine { crc: 0.into(), kind: KIND_CONTINUATION, name: [0; CONTINUATION_NAME_BYTES] };
            slot.name[..part.len()].copy_from_slice(part);
            lines.push(seal(&place_of(index + 1), slot.as_bytes()));
        }
        lines
    }

    /// Reads the entry that starts in slot `first` of a directory's page, verifying each of its slots. `None` where no entry starts.
    /// `place_of(i)` is the place of the page's i-th line, `line_of(i)` that line.
    pub fn decode(first: usize, line_of: impl Fn(usize) -> Line, place_of: impl Fn(usize) -> Place) -> Result<Option<Self>, Corrupt> {
        let line = line_of(first);
        let Slot::Head { inode, file_type, hash, name_length } = decode_slot(&line, &place_of(first))? else { return Ok(None) };
        let mut name = line[17..17 + name_length.min(HEAD_NAME_BYTES)].to_vec();
        for index in 1..slots(name_length) {
            let place = place_of(first);
            if first + index >= PAGE_SLOTS as usize {
                return Err(Corrupt::Field { address: place.address, field: "name_length", found: name_length as u64 });
            }
            let line = line_of(first + index);
            if decode_slot(&line, &place_of(first + index))? != Slot::Continuation {
                return Err(Corrupt::Field { address: place.address, field: "name_length", found: name_length as u64 });
            }
            let part = (name_length - name.len()).min(CONTINUATION_NAME_BYTES);
            name.extend_from_slice(&line[5..5 + part]);
        }
        Ok(Some(Self { inode, file_type, hash, name }))
    }
}

fn seal(place: &Place, bytes: &[u8]) -> Line {
    let mut line = EMPTY_LINE;
    line.copy_from_slice(bytes);
    place.seal(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LineAddress, PairSeed};

    fn place(line: usize) -> Place {
        Place {
            pair: PairSeed::new(uuid::Uuid::from_u128(1)),
            address: LineAddress::new(640 + line as u64),
            inode: InodeNumber::new(8),
            generation: 2,
        }
    }

    #[test]
    fn names_of_every_length_round_trip() {
        for length in 1..=NAME_MAX {
            let entry = Dentry { inode: InodeNumber::new(77), file_type: 8, hash: 5, name: (0..length).map(|i| i as u8 | 1).collect() };
            let lines = entry.encode(|index| place(3 + index));
            assert_eq!(lines.len(), slots(length));
            let mut page = vec![EMPTY_LINE; 64];
            page[3..3 + lines.len()].copy_from_slice(&lines);
            assert_eq!(Dentry::decode(3, |line| page[line], place), Ok(Some(entry)));
            assert_eq!(Dentry::decode(2, |line| page[line], place), Ok(None));
            if lines.len() > 1 {
                assert_eq!(decode_slot(&page[4], &place(4)), Ok(Slot::Continuation));
                page[4] = EMPTY_LINE;
                assert!(Dentry::decode(3, |line| page[line], place).is_err(), "a lost continuation is found");
            }
        }
        assert_eq!(slots(NAME_MAX), ENTRY_SLOTS_MAX);
    }

    #[test]
    fn an_entry_never_runs_over_its_page() {
        let entry = Dentry { inode: InodeNumber::new(77), file_type: 8, hash: 5, name: vec![b'x'; 60] };
        let lines = entry.encode(|index| place(63 + index));
        let page_line = |line: usize| if line == 63 { lines[0] } else { EMPTY_LINE };
        assert!(matches!(Dentry::decode(63, page_line, place), Err(Corrupt::Field { field: "name_length", .. })));
    }
}
