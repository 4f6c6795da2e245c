//! The mapping of a file: a radix tree of block records, 192 in a page of 64 lines; leaves of data logs; checksum vectors.
//!
//! The root of the tree is in the inode: either the record of block 0 itself, or a pointer to a page with a height of at least 1. A page of
//! height 1 holds records of blocks, a higher one pointers to pages. A record of zeros is a hole.

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::checksum::Place;
use crate::hole_lines::HoleLines;
use crate::inode::FILE_BYTES_MAX;
use crate::integer::{U16, U32, U40};
use crate::run::Run;
use crate::{Corrupt, DataAddress, EMPTY_LINE, Line, LineAddress, PAGE_LINES, SECTOR_BYTES, Sector};

/// Records in a line.
pub const LINE_RECORDS: usize = 3;
/// Records in a page.
pub const PAGE_RECORDS: u64 = PAGE_LINES * LINE_RECORDS as u64;
/// Entries in a line of a leaf.
pub const LINE_ENTRIES: usize = 4;
/// Most data logs of one block (RomeFS §3.4: 16 entries a leaf).
pub const LEAF_ENTRIES_MAX: usize = 16;
/// Longest data log, in bytes.
pub const LOG_BYTES_MAX: usize = 4096;
/// Greatest height of a tree: 192^7 blocks of 4 KiB are more than the largest file. It bounds the lines that one cut changes (RULES R11).
pub const HEIGHT_MAX: u32 = 7;
const _: () = assert!(PAGE_RECORDS.pow(HEIGHT_MAX) > FILE_BYTES_MAX / SECTOR_BYTES as u64);
const _: () = assert!(PAGE_RECORDS.pow(HEIGHT_MAX - 1) <= FILE_BYTES_MAX / SECTOR_BYTES as u64);
/// Checksums in a line of a vector.
pub const VECTOR_LINE_SECTORS: u64 = 16;

persistent! {
    /// A record: what one block of a file is, or a pointer to a page.
    pub struct RecordBytes [20] {
        /// Bits 0–8 count (of a run: its blocks less one), 9–11 state, 12–13 leaf class, 14 unchecked, 15 shared.
        tag: U16 = 0,
        /// By state: `BlockBody`, `SingleLogBody` or `PointerBody`.
        body: [u8; 18] = 2,
    }
}

persistent! {
    /// Body of a record of state *hole*, *unwritten*, *block*, *run* or *lost*.
    pub struct BlockBody [18] {
        /// First sector, or first line of the first page; 0 in a hole and where it is lost.
        sector: U40 = 0,
        /// Line of the leaf with the block's data logs; 0 none.
        leaf: U40 = 5,
        /// Line of the checksum vector; with a count of 1, the checksum itself in the first four bytes. Of a run: its first checksum line.
        checksum: [u8; 5] = 10,
        /// Zone of the extent: 0 block zone, 1 memory zone.
        zone: u8 = 15,
        /// Bit 0: the extent is open, its checksums mean nothing. Bit 1: its checksums are of its pages with the block's data logs over them. Others zero.
        flags: u8 = 16,
        /// Zero.
        zero: u8 = 17,
    }
}

persistent! {
    /// Body of a record of state *single log*: a block that is one data log and nothing else.
    pub struct SingleLogBody [18] {
        /// The log.
        entry: LogEntryBytes = 0,
        /// Zero.
        zero: [u8; 3] = 15,
    }
}

persistent! {
    /// Body of a record of state *memory* (a directory's page) or *pointer* (a page of the tree; its height is the count).
    pub struct PointerBody [18] {
        /// First line.
        address: U40 = 0,
        /// Zero.
        zero: [u8; 13] = 5,
    }
}

persistent! {
    /// A line of a mapping page.
    pub struct MappingLine [64] {
        /// CRC-32C, see *Checksums*.
        crc: U32 = 0,
        /// Three records.
        records: [RecordBytes; 3] = 4,
    }
}

persistent! {
    /// A data log of a block.
    pub struct LogEntryBytes [15] {
        /// First line of the slot.
        address: U40 = 0,
        /// CRC-32C of the log, seeded with the pair.
        crc: U32 = 5,
        /// Bits 0–19 offset in the block, 20–32 length, 33–35 slot class, 36–47 zero.
        packed: [u8; 6] = 9,
    }
}

persistent! {
    /// A line of a leaf. A leaf has 1, 2 or 4 lines (leaf class 0, 1, 2).
    pub struct LeafLine [64] {
        /// CRC-32C, see *Checksums*.
        crc: U32 = 0,
        /// Four entries; one with length 0 is free.
        entries: [LogEntryBytes; 4] = 4,
    }
}

persistent! {
    /// A line of a checksum vector: sixteen checksums of sectors. It has none of its own; damage to it shows as damage of the data.
    pub struct ChecksumLine [64] {
        /// One CRC-32C a sector, in the order of the block's sectors.
        sectors: [U32; 16] = 0,
    }
}

const STATE_HOLE: u16 = 0;
const STATE_UNWRITTEN: u16 = 1;
const STATE_BLOCK: u16 = 2;
const STATE_MEMORY: u16 = 3;
const STATE_SINGLE_LOG: u16 = 4;
const STATE_RUN: u16 = 5;
const STATE_POINTER: u16 = 6;
const STATE_LOST: u16 = 7;
const ZONE_BLOCK: u8 = 0;
const ZONE_MEMORY: u8 = 1;
const FLAG_OPEN: u8 = 1 << 0;
const FLAG_OVERLAID: u8 = 1 << 1;
const TAG_UNCHECKED: u16 = 1 << 14;
const TAG_SHARED: u16 = 1 << 15;

/// Size classes of data-log slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SlotClass {
    /// 64 B.
    Line,
    /// 256 B.
    Quarter,
    /// 1 KiB.
    Kilobyte,
    /// 4 KiB.
    Page,
}

impl SlotClass {
    /// All classes, smallest first.
    pub const ALL: [Self; 4] = [Self::Line, Self::Quarter, Self::Kilobyte, Self::Page];

    /// The smallest class that holds `bytes` (at most 4 KiB).
    pub fn for_bytes(bytes: usize) -> Self {
        assert!(bytes <= LOG_BYTES_MAX, "a data log of {bytes} B");
        match bytes {
            0..=64 => Self::Line,
            65..=256 => Self::Quarter,
            257..=1024 => Self::Kilobyte,
            _ => Self::Page,
        }
    }

    /// Size in bytes.
    pub fn bytes(self) -> usize {
        64 << (2 * self.number())
    }

    /// Size in lines.
    pub fn lines(self) -> u64 {
        1 << (2 * self.number())
    }

    fn number(self) -> u64 {
        match self {
            Self::Line => 0,
            Self::Quarter => 1,
            Self::Kilobyte => 2,
            Self::Page => 3,
        }
    }

    fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.number() == number)
    }
}

/// A data log in memory: `length` bytes of the block from `offset`, in a slot of the memory zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogEntry {
    /// First line of the slot.
    pub address: LineAddress,
    /// Checksum of the log.
    pub crc: u32,
    /// Offset in the block, in bytes.
    pub offset: u32,
    /// Length in bytes, 1–4096.
    pub length: u32,
    /// Class of the slot.
    pub class: SlotClass,
}

impl LogEntry {
    /// Offset of the byte after the log, in the block.
    pub fn end(&self) -> u32 {
        self.offset + self.length
    }

    /// Whether it directly follows another log on the device, which fills its slot.
    pub fn follows(&self, other: &Self) -> bool {
        other.length as usize == LOG_BYTES_MAX && self.address == other.address.nth(PAGE_LINES)
    }

    /// The bytes of the entry.
    pub fn encode(&self) -> LogEntryBytes {
        let packed = u64::from(self.offset) | u64::from(self.length) << 20 | self.class.number() << 33;
        let mut bytes = LogEntryBytes { address: U40::new(self.address.number()), crc: self.crc.into(), packed: [0; 6] };
        bytes.packed.copy_from_slice(&packed.to_le_bytes()[..6]);
        bytes
    }

    /// The entry in these bytes; `None` if it is free. `line` names the place in errors.
    pub fn decode(bytes: &LogEntryBytes, line: LineAddress) -> Result<Option<Self>, Corrupt> {
        let mut word = [0; 8];
        word[..6].copy_from_slice(&bytes.packed);
        let packed = u64::from_le_bytes(word);
        let field = |field, found| Corrupt::Field { address: line, field, found };
        let (offset, length) = ((packed & 0xf_ffff) as u32, (packed >> 20 & 0x1fff) as u32);
        if length == 0 {
            return if packed == 0 && bytes.address.get() == 0 { Ok(None) } else { Err(field("length", 0)) };
        }
        let class = SlotClass::from_number(packed >> 33 & 7).ok_or_else(|| field("slot class", packed >> 33 & 7))?;
        if length as usize > class.bytes() || packed >> 36 != 0 {
            return Err(field("length", length.into()));
        }
        Ok(Some(Self { address: LineAddress::new(bytes.address.get()), crc: bytes.crc.get(), offset, length, class }))
    }
}

/// How the sectors or pages of a block are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockChecksum {
    /// Not at all.
    None,
    /// One sector or page: its checksum.
    Inline(u32),
    /// The lines of a vector.
    Vector(LineAddress),
    /// Not now: its pages may be changed through a mapping, or were when a crash came. With the vector that it will need again, whose
    /// contents have no meaning; one page needs none.
    Open(Option<LineAddress>),
}

impl BlockChecksum {
    /// The lines of the vector that belong to it, whether they have a meaning or not.
    pub fn vector(&self) -> Option<LineAddress> {
        match *self {
            Self::Vector(vector) => Some(vector),
            Self::Open(vector) => vector,
            Self::None | Self::Inline(_) => None,
        }
    }
}

/// Sectors of the block zone, or pages of the memory zone, that hold a block from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The first of them.
    pub at: DataAddress,
    /// Sectors or pages, 1 to those of a block.
    pub count: u32,
    /// Their checksums; for unwritten ones the vector reserved for them, whose contents have no meaning.
    pub checksum: BlockChecksum,
    /// Allocated but not yet written: reads as zeros.
    pub unwritten: bool,
    /// Its checksums are of its pages with the block's data logs over them: the logs are being copied into the pages, or were when a crash
    /// came. Only in the memory zone, with checksums and a leaf.
    pub overlaid: bool,
}

/// Where a leaf is: its first line and its class (1, 2 or 4 lines).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafPointer {
    /// First line.
    pub address: LineAddress,
    /// 0, 1 or 2.
    pub class: u32,
}

impl LeafPointer {
    /// The smallest class whose leaf holds `entries`.
    pub fn class_for(entries: usize) -> u32 {
        assert!(entries <= LEAF_ENTRIES_MAX, "{entries} logs of one block");
        entries.div_ceil(LINE_ENTRIES).next_power_of_two().ilog2()
    }

    /// Lines of the leaf.
    pub fn lines(self) -> u64 {
        1 << self.class
    }
}

/// A record in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// A block: sectors, data logs over them, both, or neither (a hole).
    Block {
        /// Its sectors.
        extent: Option<Extent>,
        /// Its data logs.
        leaf: Option<LeafPointer>,
    },
    /// A block that is one data log.
    SingleLog(LogEntry),
    /// Several blocks in pages of the memory zone.
    Run(Run),
    /// A page of a directory.
    Memory(LineAddress),
    /// A page of the tree.
    Pointer {
        /// First line of the page.
        page: LineAddress,
        /// Its height, from 1.
        height: u32,
    },
    /// What was here is lost: a repair gave it up.
    Lost {
        /// 0: a block. Else everything that a pointer of this height could lead to.
        height: u32,
        /// Data logs of the block, which are not lost; only with height 0.
        leaf: Option<LeafPointer>,
    },
}

impl Record {
    /// A hole.
    pub const HOLE: Self = Self::Block { extent: None, leaf: None };
    /// A lost block without data logs.
    pub const LOST: Self = Self::Lost { height: 0, leaf: None };

    /// The bytes of the record.
    pub fn encode(&self) -> RecordBytes {
        match self {
            Self::Block { extent, leaf } => {
                let mut body = BlockBody::new_zeroed();
                let mut tag = 0;
                if let Some(extent) = extent {
                    let state = if extent.unwritten { STATE_UNWRITTEN } else { STATE_BLOCK };
                    tag |= extent.count as u16 | state << 9;
                    (body.sector, body.zone) = match extent.at {
                        DataAddress::Sector(sector) => (U40::new(sector.number()), ZONE_BLOCK),
                        DataAddress::Page(page) => (U40::new(page.number()), ZONE_MEMORY),
                    };
                    match extent.checksum {
                        BlockChecksum::None => tag |= TAG_UNCHECKED,
                        BlockChecksum::Inline(crc) => body.checksum[..4].copy_from_slice(&crc.to_le_bytes()),
                        BlockChecksum::Vector(line) => body.checksum.copy_from_slice(U40::new(line.number()).as_bytes()),
                        BlockChecksum::Open(vector) => {
                            body.checksum.copy_from_slice(U40::new(vector.map_or(0, LineAddress::number)).as_bytes());
                            body.flags = FLAG_OPEN;
                        }
                    }
                    if extent.overlaid {
                        body.flags |= FLAG_OVERLAID;
                    }
                }
                if let Some(leaf) = leaf {
                    tag |= (leaf.class as u16) << 12;
                    body.leaf = U40::new(leaf.address.number());
                }
                RecordBytes::of(tag, body.as_bytes())
            }
            Self::Lost { height, leaf } => {
                let mut body = BlockBody::new_zeroed();
                body.leaf = U40::new(leaf.map_or(0, |leaf| leaf.address.number()));
                RecordBytes::of(*height as u16 | STATE_LOST << 9 | leaf.map_or(0, |leaf| (leaf.class as u16) << 12), body.as_bytes())
            }
            Self::SingleLog(entry) => {
                RecordBytes::of(STATE_SINGLE_LOG << 9, SingleLogBody { entry: entry.encode(), zero: [0; 3] }.as_bytes())
            }
            Self::Run(run) => {
                let mut body = BlockBody::new_zeroed();
                (body.sector, body.zone) = (U40::new(run.first.number()), ZONE_MEMORY);
                body.checksum.copy_from_slice(U40::new(run.vector.map_or(0, LineAddress::number)).as_bytes());
                body.flags = if run.open { FLAG_OPEN } else { 0 };
                let unchecked = if run.vector.is_none() { TAG_UNCHECKED } else { 0 };
                RecordBytes::of((run.blocks - 1) as u16 | STATE_RUN << 9 | unchecked, body.as_bytes())
            }
            Self::Memory(address) => {
                RecordBytes::of(STATE_MEMORY << 9, PointerBody { address: U40::new(address.number()), zero: [0; 13] }.as_bytes())
            }
            Self::Pointer { page, height } => RecordBytes::of(
                STATE_POINTER << 9 | *height as u16,
                PointerBody { address: U40::new(page.number()), zero: [0; 13] }.as_bytes(),
            ),
        }
    }
}

impl RecordBytes {
    fn of(tag: u16, body: &[u8]) -> Self {
        let mut record = Self { tag: tag.into(), body: [0; 18] };
        record.body.copy_from_slice(body);
        record
    }

    /// The record in these bytes.
    pub fn from_bytes(bytes: [u8; 20]) -> Self {
        zerocopy::transmute!(bytes)
    }

    /// The bytes of the record.
    pub fn to_bytes(self) -> [u8; 20] {
        zerocopy::transmute!(self)
    }

    /// Decodes the bytes; `line` names the place in errors.
    pub fn decode(&self, line: LineAddress) -> Result<Record, Corrupt> {
        let tag = self.tag.get();
        let (count, state, leaf_class) = (u32::from(tag & 0x1ff), tag >> 9 & 7, u32::from(tag >> 12 & 3));
        let field = |field, found: u64| Corrupt::Field { address: line, field, found };
        if tag & TAG_SHARED != 0 {
            return Err(field("tag", tag.into()));
        }
        match state {
            STATE_HOLE | STATE_UNWRITTEN | STATE_BLOCK | STATE_LOST => {
                let Ok(body) = BlockBody::read_from_bytes(&self.body) else { unreachable!("the body has its size") };
                let leaf = match body.leaf.get() {
                    0 if leaf_class == 0 => None,
                    0 => return Err(field("leaf class", leaf_class.into())),
                    _ if leaf_class > 2 => return Err(field("leaf class", leaf_class.into())),
                    address => Some(LeafPointer { address: LineAddress::new(address), class: leaf_class }),
                };
                let (is_open, overlaid) = (body.flags == FLAG_OPEN, body.flags == FLAG_OVERLAID);
                let has_flag = is_open || overlaid && leaf.is_some();
                if body.flags != 0 && !(has_flag && state == STATE_BLOCK && body.zone == ZONE_MEMORY && tag & TAG_UNCHECKED == 0) {
                    return Err(field("flags", body.flags.into()));
                }
                if state == STATE_LOST {
                    let is_whole = body.sector.get() == 0 && body.checksum == [0; 5] && body.zone == 0 && tag & TAG_UNCHECKED == 0;
                    let has_height = count == 0 || count <= HEIGHT_MAX && leaf.is_none();
                    return if is_whole && has_height {
                        Ok(Record::Lost { height: count, leaf })
                    } else {
                        Err(field("count", count.into()))
                    };
                }
                if state == STATE_HOLE {
                    if count != 0 || body.sector.get() != 0 || body.zone != 0 || tag & TAG_UNCHECKED != 0 {
                        return Err(field("count", count.into()));
                    }
                    return Ok(Record::Block { extent: None, leaf });
                }
                if count == 0 || count > 256 || body.sector.get() == 0 {
                    return Err(field("count", count.into()));
                }
                let checksum = if tag & TAG_UNCHECKED != 0 || state == STATE_UNWRITTEN && count == 1 {
                    BlockChecksum::None
                } else if count == 1 && is_open {
                    BlockChecksum::Open(None)
                } else if count == 1 {
                    BlockChecksum::Inline(u32::from_le_bytes([body.checksum[0], body.checksum[1], body.checksum[2], body.checksum[3]]))
                } else {
                    let Ok(vector) = U40::read_from_bytes(&body.checksum) else { unreachable!("five bytes are five bytes") };
                    if vector.get() == 0 {
                        return Err(field("checksum", 0));
                    }
                    let vector = LineAddress::new(vector.get());
                    if is_open { BlockChecksum::Open(Some(vector)) } else { BlockChecksum::Vector(vector) }
                };
                let at = match body.zone {
                    ZONE_BLOCK => DataAddress::Sector(Sector::new(body.sector.get())),
                    ZONE_MEMORY if body.sector.get() % PAGE_LINES == 0 => DataAddress::Page(LineAddress::new(body.sector.get())),
                    ZONE_MEMORY => return Err(field("sector", body.sector.get())),
                    other => return Err(field("zone", other.into())),
                };
                let extent = Extent { at, count, checksum, unwritten: state == STATE_UNWRITTEN, overlaid };
                Ok(Record::Block { extent: Some(extent), leaf })
            }
            STATE_RUN => {
                let Ok(body) = BlockBody::read_from_bytes(&self.body) else { unreachable!("the body has its size") };
                let Ok(vector) = U40::read_from_bytes(&body.checksum) else { unreachable!("five bytes are five bytes") };
                let (first, has_vector) = (body.sector.get(), vector.get() != 0);
                if first == 0 || first % PAGE_LINES != 0 {
                    return Err(field("sector", first));
                }
                if count == 0 || leaf_class != 0 || body.leaf.get() != 0 {
                    return Err(field("count", count.into()));
                }
                if body.zone != ZONE_MEMORY {
                    return Err(field("zone", body.zone.into()));
                }
                if has_vector != (tag & TAG_UNCHECKED == 0) {
                    return Err(field("checksum", vector.get()));
                }
                if body.flags != 0 && !(body.flags == FLAG_OPEN && has_vector) {
                    return Err(field("flags", body.flags.into()));
                }
                let vector = has_vector.then(|| LineAddress::new(vector.get()));
                Ok(Record::Run(Run { first: LineAddress::new(first), blocks: count + 1, vector, open: body.flags == FLAG_OPEN }))
            }
            STATE_SINGLE_LOG => {
                let Ok(body) = SingleLogBody::read_from_bytes(&self.body) else { unreachable!("the body has its size") };
                LogEntry::decode(&body.entry, line)?.map(Record::SingleLog).ok_or_else(|| field("length", 0))
            }
            STATE_MEMORY | STATE_POINTER => {
                let Ok(body) = PointerBody::read_from_bytes(&self.body) else { unreachable!("the body has its size") };
                let page = LineAddress::new(body.address.get());
                if page.number() == 0 || page.index_in_page() != 0 {
                    return Err(field("address", page.number()));
                }
                match (state, count) {
                    (STATE_MEMORY, 0) => Ok(Record::Memory(page)),
                    (STATE_POINTER, 1..=HEIGHT_MAX) => Ok(Record::Pointer { page, height: count }),
                    _ => Err(field("count", count.into())),
                }
            }
            other => unreachable!("three bits are below {other}"),
        }
    }
}

/// The three records of a mapping line (verified by the caller).
pub fn line_records(line: &Line) -> [RecordBytes; LINE_RECORDS] {
    let Ok(line) = MappingLine::read_from_bytes(line) else { unreachable!("a line has the size of a line") };
    line.records
}

/// The mapping line with one record replaced, sealed ([`HoleLines`] says how a line of holes is stored).
pub fn with_record(line: &Line, index: usize, record: RecordBytes, place: &Place, holes: HoleLines) -> Line {
    let mut records = line_records(line);
    records[index] = record;
    holes.line(&records, place)
}

/// A sealed mapping line with these records.
pub(crate) fn mapping_line(records: &[RecordBytes; LINE_RECORDS], place: &Place) -> Line {
    let mut image = EMPTY_LINE;
    image.copy_from_slice(MappingLine { crc: 0.into(), records: *records }.as_bytes());
    place.seal(image)
}

/// The logs of a leaf line (verified by the caller), free entries as `None`.
pub fn line_entries(line: &Line, address: LineAddress) -> Result<[Option<LogEntry>; LINE_ENTRIES], Corrupt> {
    let Ok(line) = LeafLine::read_from_bytes(line) else { unreachable!("a line has the size of a line") };
    let mut entries = [None; LINE_ENTRIES];
    for (entry, bytes) in entries.iter_mut().zip(&line.entries) {
        *entry = LogEntry::decode(bytes, address)?;
    }
    Ok(entries)
}

/// A sealed leaf line with these entries; empty where there is none.
pub fn leaf_line(entries: &[Option<LogEntry>; LINE_ENTRIES], place: &Place) -> Line {
    if entries.iter().all(Option::is_none) {
        return EMPTY_LINE;
    }
    let mut line = LeafLine::new_zeroed();
    for (bytes, entry) in line.entries.iter_mut().zip(entries) {
        if let Some(entry) = entry {
            *bytes = entry.encode();
        }
    }
    let mut image = EMPTY_LINE;
    image.copy_from_slice(line.as_bytes());
    place.seal(image)
}

/// The lines of a checksum vector with these checksums, `lines` of them.
pub fn vector_lines(checksums: &[u32], lines: u64) -> Vec<Line> {
    (0..lines as usize)
        .map(|index| {
            let mut image = EMPTY_LINE;
            for (bytes, checksum) in image.chunks_exact_mut(4).zip(checksums.iter().skip(index * VECTOR_LINE_SECTORS as usize)) {
                bytes.copy_from_slice(&checksum.to_le_bytes());
            }
            image
        })
        .collect()
}

/// The checksum of a sector in its line of the vector.
pub fn vector_checksum(line: &Line, sector: u64) -> u32 {
    let at = (sector % VECTOR_LINE_SECTORS) as usize * 4;
    u32::from_le_bytes([line[at], line[at + 1], line[at + 2], line[at + 3]])
}

/// Sets the checksum of a sector in its line of the vector.
pub fn set_vector_checksum(line: &mut Line, sector: u64, checksum: u32) {
    let at = (sector % VECTOR_LINE_SECTORS) as usize * 4;
    line[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{InodeNumber, PairSeed};

    fn entry(offset: u32, length: u32, class: SlotClass) -> LogEntry {
        LogEntry { address: LineAddress::new(70_000), crc: 0xdead_beef, offset, length, class }
    }

    #[test]
    fn records_round_trip() {
        let line = LineAddress::new(1);
        let leaf = Some(LeafPointer { address: LineAddress::new(99), class: 2 });
        let extent = |count, checksum| {
            Some(Extent { at: DataAddress::Sector(Sector::new(U40::MAX)), count, checksum, unwritten: false, overlaid: false })
        };
        let checksum = BlockChecksum::Vector(LineAddress::new(77));
        let pages = Extent { at: DataAddress::Page(LineAddress::new(64)), count: 256, checksum, unwritten: false, overlaid: false };
        let records = [
            Record::HOLE,
            Record::Block { extent: None, leaf },
            Record::Block { extent: extent(1, BlockChecksum::Inline(0x8000_0001)), leaf: None },
            Record::Block { extent: extent(256, BlockChecksum::Vector(LineAddress::new(U40::MAX))), leaf },
            Record::Block { extent: extent(16, BlockChecksum::None), leaf: None },
            Record::Block {
                extent: Some(Extent {
                    at: DataAddress::Sector(Sector::new(3)),
                    count: 4,
                    checksum: BlockChecksum::None,
                    unwritten: true,
                    overlaid: false,
                }),
                leaf,
            },
            Record::Block {
                extent: Some(Extent {
                    at: DataAddress::Sector(Sector::new(3)),
                    count: 2,
                    checksum: BlockChecksum::Vector(LineAddress::new(77)),
                    unwritten: true,
                    overlaid: false,
                }),
                leaf: None,
            },
            Record::Block {
                extent: Some(Extent {
                    at: DataAddress::Sector(Sector::new(3)),
                    count: 1,
                    checksum: BlockChecksum::None,
                    unwritten: true,
                    overlaid: false,
                }),
                leaf: None,
            },
            Record::Block { extent: Some(Extent { at: DataAddress::Page(LineAddress::new(128)), ..pages }), leaf: None },
            Record::Block {
                extent: Some(Extent { at: DataAddress::Page(LineAddress::new(U40::MAX & !63)), unwritten: true, ..pages }),
                leaf,
            },
            Record::SingleLog(entry((1 << 20) - 4096, 4096, SlotClass::Page)),
            Record::Run(Run {
                first: LineAddress::new(U40::MAX & !63),
                blocks: 512,
                vector: Some(LineAddress::new(U40::MAX)),
                open: false,
            }),
            Record::Run(Run { first: LineAddress::new(64), blocks: 2, vector: None, open: false }),
            Record::Run(Run { first: LineAddress::new(64), blocks: 2, vector: Some(LineAddress::new(128)), open: true }),
            Record::Block { extent: Some(Extent { checksum: BlockChecksum::Open(Some(LineAddress::new(77))), ..pages }), leaf },
            Record::Block { extent: Some(Extent { count: 1, checksum: BlockChecksum::Open(None), ..pages }), leaf: None },
            Record::Block { extent: Some(Extent { overlaid: true, ..pages }), leaf },
            Record::Block { extent: Some(Extent { overlaid: true, count: 1, checksum: BlockChecksum::Inline(9), ..pages }), leaf },
            Record::Memory(LineAddress::new(640)),
            Record::Pointer { page: LineAddress::new(640), height: HEIGHT_MAX },
            Record::LOST,
            Record::Lost { height: 0, leaf },
            Record::Lost { height: HEIGHT_MAX, leaf: None },
        ];
        for record in records {
            assert_eq!(record.encode().decode(line), Ok(record));
        }
        assert_eq!(Record::HOLE.encode().to_bytes(), [0; 20]);
    }

    #[test]
    fn records_without_meaning_are_refused() {
        let line = LineAddress::new(1);
        let with_tag = |tag: u16| RecordBytes { tag: tag.into(), body: [0; 18] };
        for tag in [
            STATE_RUN << 9,
            STATE_RUN << 9 | 1,
            STATE_LOST << 9 | 9,
            STATE_LOST << 9 | 1 << 12,
            STATE_BLOCK << 9,
            STATE_MEMORY << 9,
            STATE_POINTER << 9 | 1,
            STATE_LOST << 9 | (HEIGHT_MAX as u16 + 1),
            STATE_SINGLE_LOG << 9,
            TAG_SHARED,
            3 << 12,
            1,
        ] {
            assert!(matches!(with_tag(tag).decode(line), Err(Corrupt::Field { .. })), "tag {tag:#x}");
        }
    }

    /// A cut of a tree of height 8 whose lines are damaged asked for more lines than a transaction has.
    #[test]
    fn regression_a_tree_higher_than_any_file_needs_is_refused() {
        let line = LineAddress::new(1);
        for record in
            [Record::Pointer { page: LineAddress::new(640), height: HEIGHT_MAX + 1 }, Record::Lost { height: HEIGHT_MAX + 1, leaf: None }]
        {
            assert!(matches!(record.encode().decode(line), Err(Corrupt::Field { field: "count", found: 8, .. })), "{record:?}");
        }
    }

    #[test]
    fn an_extent_lies_in_one_of_the_zones() {
        let line = LineAddress::new(1);
        let decode = |state: u16, sector: u64, zone: u8| {
            let body = BlockBody { sector: U40::new(sector), leaf: U40::new(0), checksum: [0; 5], zone, flags: 0, zero: 0 };
            let count = if state == STATE_BLOCK { 1 } else { 0 };
            RecordBytes::of(count | state << 9, body.as_bytes()).decode(line)
        };
        let at = |record| match record {
            Ok(Record::Block { extent: Some(extent), .. }) => Ok(extent.at),
            Ok(other) => panic!("{other:?}"),
            Err(Corrupt::Field { field, found, .. }) => Err((field, found)),
            Err(other) => panic!("{other}"),
        };
        assert_eq!(at(decode(STATE_BLOCK, 65, ZONE_BLOCK)), Ok(DataAddress::Sector(Sector::new(65))));
        assert_eq!(at(decode(STATE_BLOCK, 128, ZONE_MEMORY)), Ok(DataAddress::Page(LineAddress::new(128))));
        assert_eq!(at(decode(STATE_BLOCK, 65, ZONE_MEMORY)), Err(("sector", 65)), "a page starts at a multiple of 64 lines");
        assert_eq!(at(decode(STATE_BLOCK, 128, 2)), Err(("zone", 2)));
        for state in [STATE_HOLE, STATE_LOST] {
            assert!(decode(state, 0, ZONE_BLOCK).is_ok() && decode(state, 0, ZONE_MEMORY).is_err(), "what has no extent has no zone");
        }
    }

    #[test]
    fn a_run_lies_in_the_memory_zone_and_has_no_leaf() {
        let line = LineAddress::new(1);
        let good = BlockBody { sector: U40::new(128), leaf: U40::new(0), checksum: [7, 0, 0, 0, 0], zone: ZONE_MEMORY, flags: 0, zero: 0 };
        let decode = |tag: u16, body: BlockBody| RecordBytes::of(STATE_RUN << 9 | tag, body.as_bytes()).decode(line).is_ok();
        assert!(decode(1, good) && decode(1 | TAG_UNCHECKED, BlockBody { checksum: [0; 5], ..good }));
        assert!(!decode(0, good), "one block");
        assert!(!decode(1 | 1 << 12, good) && !decode(1, BlockBody { leaf: U40::new(9), ..good }));
        assert!(!decode(1, BlockBody { zone: ZONE_BLOCK, ..good }) && !decode(1, BlockBody { zone: 2, ..good }));
        assert!(!decode(1, BlockBody { sector: U40::new(129), ..good }) && !decode(1, BlockBody { sector: U40::new(0), ..good }));
        assert!(!decode(1, BlockBody { checksum: [0; 5], ..good }) && !decode(1 | TAG_UNCHECKED, good));
    }

    #[test]
    fn only_checked_extents_of_the_memory_zone_can_be_open() {
        let line = LineAddress::new(1);
        let good = BlockBody { sector: U40::new(128), leaf: U40::new(0), checksum: [7, 0, 0, 0, 0], zone: ZONE_MEMORY, flags: 1, zero: 0 };
        let of_block = BlockBody { zone: ZONE_BLOCK, ..good };
        let decode = |tag: u16, body: BlockBody| RecordBytes::of(tag, body.as_bytes()).decode(line);
        let is_refused = |tag, body| matches!(decode(tag, body), Err(Corrupt::Field { field: "flags", .. }));
        assert!(
            decode(STATE_BLOCK << 9 | 2, good).is_ok()
                && decode(STATE_BLOCK << 9 | 1, good).is_ok()
                && decode(STATE_RUN << 9 | 1, good).is_ok()
        );
        assert!(is_refused(STATE_BLOCK << 9 | 2, of_block) && is_refused(STATE_UNWRITTEN << 9 | 2, good));
        assert!(is_refused(STATE_BLOCK << 9 | 2 | TAG_UNCHECKED, good) && is_refused(STATE_RUN << 9 | 1, BlockBody { flags: 3, ..good }));
        assert!(is_refused(STATE_RUN << 9 | 1 | TAG_UNCHECKED, BlockBody { checksum: [0; 5], ..good }));
        let nothing = BlockBody { sector: U40::new(0), checksum: [0; 5], zone: 0, ..good };
        assert!(is_refused(STATE_HOLE << 9, nothing) && is_refused(STATE_LOST << 9, nothing));
    }

    #[test]
    fn log_entries_know_their_limits() {
        let line = LineAddress::new(1);
        for class in SlotClass::ALL {
            let full = entry(5, class.bytes() as u32, class);
            assert_eq!(LogEntry::decode(&full.encode(), line), Ok(Some(full)));
            assert_eq!(SlotClass::for_bytes(class.bytes()), class);
            let over = LogEntry { length: full.length + 1, ..full };
            assert!(LogEntry::decode(&over.encode(), line).is_err(), "longer than its slot");
        }
        assert_eq!(LogEntry::decode(&LogEntryBytes::new_zeroed(), line), Ok(None));
    }

    #[test]
    fn lines_of_records_leaves_and_checksums() {
        let place = Place {
            pair: PairSeed::new(uuid::Uuid::from_u128(1)),
            address: LineAddress::new(9),
            inode: InodeNumber::new(2),
            generation: 1,
        };
        let record = Record::Memory(LineAddress::new(640)).encode();
        let line = with_record(&EMPTY_LINE, 2, record, &place, HoleLines::Empty);
        assert_eq!(place.verify(&line), Ok(()));
        assert_eq!(line_records(&line)[2], record);
        assert_eq!(with_record(&line, 2, Record::HOLE.encode(), &place, HoleLines::Empty), EMPTY_LINE);
        let sealed = with_record(&line, 2, Record::HOLE.encode(), &place, HoleLines::Sealed);
        assert_eq!(sealed, HoleLines::Sealed.line_of_holes(&place));

        let entries = [None, Some(entry(0, 64, SlotClass::Line)), None, None];
        let leaf = leaf_line(&entries, &place);
        assert_eq!(line_entries(&leaf, place.address), Ok(entries));
        assert_eq!(leaf_line(&[None; 4], &place), EMPTY_LINE);

        let vector = vector_lines(&(100..117).collect::<Vec<u32>>(), 2);
        assert_eq!((vector_checksum(&vector[0], 15), vector_checksum(&vector[1], 16)), (115, 116));
        assert_eq!([1, 4, 5, 8, 9, 16].map(LeafPointer::class_for), [0, 0, 1, 1, 2, 2]);
    }
}
