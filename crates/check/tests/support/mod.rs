//! A small image built from the format crate alone, functions that damage it, and a device in memory that can refuse and fail.
#![allow(dead_code, reason = "each test binary uses its part")]

pub mod restored;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use tandemfs_check::{CheckOptions, Finding, Report, check};
use tandemfs_device::{BlockPath, BlockRequest, BytePath, Device, DeviceDescription, DeviceError, Drive, PersistenceDomain, REQUEST_BYTES};
use tandemfs_format::allocation_map::{PIECE_BYTES, PieceKind, encode as encode_piece};
use tandemfs_format::attributes::{
    Attribute, AttributePointer, AttributeValue, Namespace, STREAM_PAGE_BYTES, StreamShape, address_lines, encode_set, stream_lines,
};
use tandemfs_format::dentry::{Dentry, DentryHeadLine, type_of_mode};
use tandemfs_format::geometry::{Geometry, PIECE_SECTORS, RING_BYTES_MIN, SUPERBLOCK_OFFSETS};
use tandemfs_format::hole_lines::HoleLines;
use tandemfs_format::identity::{BlockIdentity, Stamps};
use tandemfs_format::inode::{Inode, InodeColdLine, InodeHotLine, Timestamp, file_type, state};
use tandemfs_format::journal::encode as encode_record;
use tandemfs_format::mapping::{
    BlockChecksum, Extent, LeafPointer, LogEntry, Record, RecordBytes, SlotClass, leaf_line, line_entries, line_records, vector_lines,
    with_record,
};
use tandemfs_format::segment::{Region, Segment};
use tandemfs_format::superblock::{ChecksumKind, Superblock, Tail, ro_compat};
use tandemfs_format::{
    DataAddress, EMPTY_LINE, InodeNumber, LINE_BYTES, Line, LineAddress, PairSeed, Place, SECTOR_BYTES, Sector, UNIT_LINES,
};
use zerocopy::{FromBytes, IntoBytes};

pub const ZONE_BYTES: usize = 16 << 20;

pub const ROOT: u64 = 1;
/// Two names; an extent of three sectors with a vector, two logs in a leaf.
pub const FILE: u64 = 2;
/// A directory in the root.
pub const DIRECTORY: u64 = 3;
/// A symbolic link inside its inode, with a name of two slots.
pub const LINK: u64 = 4;
/// A file with a page of records: a whole block, a hole, one sector, one log.
pub const TREE: u64 = 5;
/// A file that is one log, in [`DIRECTORY`].
pub const SMALL: u64 = 6;
/// A symbolic link in a log, in [`DIRECTORY`].
pub const LONG_LINK: u64 = 7;
/// A device file.
pub const NULL: u64 = 8;
/// No inode.
pub const NOBODY: u64 = 20;

pub const INODES: u64 = UNIT_LINES;
pub const DENTRIES: u64 = 2 * UNIT_LINES;
pub const MAPPINGS: u64 = 3 * UNIT_LINES;
pub const LEAVES: u64 = 4 * UNIT_LINES;
pub const DATA: u64 = 5 * UNIT_LINES;
pub const ATTRIBUTES: u64 = 6 * UNIT_LINES;
/// Lines below the mark of each segment.
pub const MARK: u64 = 4096;

pub const ROOT_PAGE: u64 = DENTRIES;
pub const DIRECTORY_PAGE: u64 = DENTRIES + 64;
pub const TREE_PAGE: u64 = MAPPINGS;
pub const FILE_VECTOR: u64 = LEAVES;
pub const FILE_LEAF: u64 = LEAVES + 1;
pub const TREE_VECTOR: u64 = LEAVES + 2;

pub const BLOCK: u64 = 64 << 10;

#[derive(Clone)]
pub struct Image {
    pub memory: Vec<u8>,
    pub blocks: Vec<u8>,
    pub superblock: Superblock,
    lines_used: BTreeSet<u64>,
    sectors_used: BTreeSet<u64>,
}

pub fn new_inode(mode: u16, nlink: u32, size: u64, space_512: u64, root: [u8; 20]) -> Inode {
    let time = Timestamp { seconds: 1_800_000_000, nanoseconds: 5 };
    Inode {
        mode,
        state: state::IN_USE,
        nlink,
        generation: 0,
        size,
        space_512,
        atime: time,
        mtime: time,
        ctime: time,
        change_count: 1,
        uid: 1000,
        gid: 100,
        project: 0,
        flags: 0,
        birth: time,
        parent: InodeNumber::ROOT,
        attributes: AttributePointer::NONE,
        root,
    }
}

pub fn near(namespace: Namespace, name: &[u8], value: &[u8]) -> Attribute {
    Attribute { namespace, name: name.to_vec(), value: AttributeValue::Near(value.to_vec()) }
}

/// An access control list: tags, permissions, ids.
pub fn access_list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut list = vec![2, 0, 0, 0];
    for (tag, permissions, id) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(permissions.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

pub fn data_of(seed: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at.wrapping_mul(31) ^ seed.wrapping_mul(77) ^ (at >> 8)) as u8).collect()
}

impl Image {
    /// An image that was unmounted cleanly.
    pub fn small() -> Self {
        let geometry = Geometry::new(ZONE_BYTES as u64, ZONE_BYTES as u64, BLOCK as u32, 4, RING_BYTES_MIN).expect("fits");
        let superblock = Superblock {
            pair: uuid::Uuid::from_u128(0xfeed),
            label: "small".into(),
            geometry,
            checksum_kind: ChecksumKind::Crc32c,
            incompat: 0,
            ro_compat: 0,
            compat: 0,
            clean: true,
            created_seconds: 1,
            sequence: 10,
            watermark: 100,
            generation: 3,
            tails: vec![Tail { offset_bytes: 128, wrap: 2 }; 4],
            stamps: Stamps::default(),
            volume_uuid: uuid::Uuid::nil(),
            error_counters: Default::default(),
        };
        let mut image = Self {
            memory: vec![0; ZONE_BYTES],
            blocks: vec![0; ZONE_BYTES],
            superblock,
            lines_used: BTreeSet::new(),
            sectors_used: BTreeSet::new(),
        };
        // Beyond the marks, in the data area and in free sectors nothing means anything: a used device, not a zeroed one.
        let fixed = 512 << 10;
        image.memory[fixed..].fill(0xa7);
        image.blocks.fill(0x5c);
        for start in [INODES, DENTRIES, MAPPINGS, LEAVES] {
            image.memory[start as usize * LINE_BYTES..(start + MARK) as usize * LINE_BYTES].fill(0);
        }
        for (index, region) in [Region::Inodes, Region::Dentries, Region::Mappings, Region::Leaves].into_iter().enumerate() {
            let segment = Segment { region, start_unit: index as u64 + 1, unit_count: 1, region_unit: 0, high_water_lines: MARK };
            image.put_segment(index as u64, &segment);
        }
        image.build_tree();
        image.write_heads();
        image.write_maps();
        image
    }

    /// The same image as a crash leaves it: not clean, nothing to replay.
    pub fn crashed() -> Self {
        let mut image = Self::small();
        image.edit_superblock(|superblock| superblock.clean = false);
        image
    }

    /// The same where [`FILE`] has attributes, one of them in two pages of its own.
    pub fn attributed() -> Self {
        let mut image = Self::crashed();
        image.add_attributes_region();
        let value = data_of(9, 5000);
        image.put_stream(FILE, ATTRIBUTES + 64, &value);
        let apart = AttributeValue::Apart { address: LineAddress::new(ATTRIBUTES + 64), length: 5000, crc: image.pair().data(&value) };
        let large = Attribute { namespace: Namespace::User, name: b"large".to_vec(), value: apart };
        image.put_attributes(FILE, ATTRIBUTES, &[near(Namespace::Security, b"label", b"a label"), large]);
        image.edit_inode(FILE, |inode| inode.space_512 += 16);
        image
    }

    fn build_tree(&mut self) {
        let directory = file_type::DIRECTORY | 0o755;
        let regular = file_type::REGULAR | 0o644;
        let symlink = file_type::SYMLINK | 0o777;
        let page_of = |page: u64| Record::Memory(LineAddress::new(page)).encode().to_bytes();
        self.use_lines(ROOT_PAGE, 64);
        self.use_lines(DIRECTORY_PAGE, 64);
        self.set_inode(ROOT, &new_inode(directory, 3, 4096, 8, page_of(ROOT_PAGE)));
        self.set_inode(DIRECTORY, &new_inode(directory, 2, 4096, 8, page_of(DIRECTORY_PAGE)));

        let extent = self.extent(1, 3, Some(FILE_VECTOR));
        let logs = [Some(self.log(DATA, 100, 64, SlotClass::Line)), None, Some(self.log(DATA + 4, 5000, 200, SlotClass::Quarter)), None];
        let leaf = Some(LeafPointer { address: LineAddress::new(FILE_LEAF), class: 0 });
        self.use_lines(FILE_LEAF, 1);
        self.set_inode(FILE, &new_inode(regular, 2, 12_188, 26, Record::Block { extent: Some(extent), leaf }.encode().to_bytes()));
        let place = self.place(FILE, FILE_LEAF);
        self.put(FILE_LEAF, leaf_line(&logs, &place));

        let mut target = [0; 20];
        target[..4].copy_from_slice(b"file");
        self.set_inode(LINK, &new_inode(symlink, 1, 4, 0, target));

        self.use_lines(TREE_PAGE, 64);
        let root = Record::Pointer { page: LineAddress::new(TREE_PAGE), height: 1 }.encode().to_bytes();
        self.set_inode(TREE, &new_inode(regular, 1, 3 * BLOCK + 50, 137, root));
        let whole = self.extent(16, 16, Some(TREE_VECTOR));
        let one = self.extent(5, 1, None);
        let log = self.log(DATA + 2, 0, 50, SlotClass::Line);
        self.put_record(TREE, TREE_PAGE, 0, Record::Block { extent: Some(whole), leaf: None });
        self.put_record(TREE, TREE_PAGE, 2, Record::Block { extent: Some(one), leaf: None });
        self.put_record(TREE, TREE_PAGE, 3, Record::SingleLog(log));

        let log = self.log(DATA + 8, 0, 100, SlotClass::Quarter);
        self.set_inode(SMALL, &new_inode(regular, 1, 100, 1, Record::SingleLog(log).encode().to_bytes()));
        let log = self.log(DATA + 1, 0, 30, SlotClass::Line);
        self.set_inode(LONG_LINK, &new_inode(symlink, 1, 30, 1, Record::SingleLog(log).encode().to_bytes()));
        let mut number = [0; 20];
        number[0] = 3;
        self.set_inode(NULL, &new_inode(file_type::CHARACTER | 0o666, 1, 0, 0, number));
        for child in [SMALL, LONG_LINK] {
            self.edit_inode(child, |inode| inode.parent = InodeNumber::new(DIRECTORY));
        }

        self.put_name(ROOT, ROOT_PAGE, 0, b"file", FILE);
        self.put_name(ROOT, ROOT_PAGE, 1, b"directory", DIRECTORY);
        self.put_name(ROOT, ROOT_PAGE, 2, &[b'l'; 60], LINK); // slots 2 and 3
        self.put_name(ROOT, ROOT_PAGE, 4, b"tree", TREE);
        self.put_name(ROOT, ROOT_PAGE, 5, b"hard link", FILE);
        self.put_name(ROOT, ROOT_PAGE, 9, b"null", NULL);
        self.put_name(DIRECTORY, DIRECTORY_PAGE, 0, b"small", SMALL);
        self.put_name(DIRECTORY, DIRECTORY_PAGE, 1, b"link", LONG_LINK);
    }

    // ---- lines ------------------------------------------------------------------------------------------------------------------

    pub fn pair(&self) -> PairSeed {
        PairSeed::new(self.superblock.pair)
    }

    pub fn line(&self, line: u64) -> Line {
        self.memory[line as usize * LINE_BYTES..][..LINE_BYTES].try_into().expect("a line")
    }

    pub fn put(&mut self, line: u64, bytes: Line) {
        self.memory[line as usize * LINE_BYTES..][..LINE_BYTES].copy_from_slice(&bytes);
    }

    /// Flips a bit of a line, which a repair corrects where the line has a checksum.
    pub fn flip(&mut self, line: u64) {
        self.memory[line as usize * LINE_BYTES + 40] ^= 1;
    }

    /// Damages a line beyond correction.
    pub fn damage(&mut self, line: u64) {
        self.memory[line as usize * LINE_BYTES + 40] ^= 3;
    }

    fn use_lines(&mut self, first: u64, count: u64) {
        self.lines_used.extend(first..first + count);
    }

    pub fn place(&self, inode: u64, line: u64) -> Place {
        let generation = self.inode(inode).generation;
        Place { pair: self.pair(), address: LineAddress::new(line), inode: InodeNumber::new(inode), generation }
    }

    // ---- inodes -----------------------------------------------------------------------------------------------------------------

    pub fn inode_line(number: u64) -> u64 {
        INODES + number * 2
    }

    pub fn inode(&self, number: u64) -> Inode {
        let line = Self::inode_line(number);
        Inode::decode(self.pair(), InodeNumber::new(number), LineAddress::new(line), &self.line(line), &self.line(line + 1))
            .expect("verifies")
            .expect("in use")
    }

    pub fn set_inode(&mut self, number: u64, inode: &Inode) {
        let mut inode = inode.clone();
        inode.generation = 1000 + number as u32;
        let line = Self::inode_line(number);
        let place = |line| Inode::place(self.pair(), InodeNumber::new(number), LineAddress::new(line));
        let (hot, cold) = (inode.encode_hot(&place(line)), inode.encode_cold(&place(line + 1)));
        self.put(line, hot);
        self.put(line + 1, cold);
        self.use_lines(line, 2);
    }

    pub fn edit_inode(&mut self, number: u64, change: impl FnOnce(&mut Inode)) {
        let mut inode = self.inode(number);
        change(&mut inode);
        self.set_inode(number, &inode);
    }

    pub fn edit_hot(&mut self, number: u64, change: impl FnOnce(&mut InodeHotLine)) {
        let line = Self::inode_line(number);
        let mut hot = InodeHotLine::read_from_bytes(&self.line(line)).expect("a line");
        change(&mut hot);
        let place = Inode::place(self.pair(), InodeNumber::new(number), LineAddress::new(line));
        self.put(line, place.seal(hot.as_bytes().try_into().expect("a line")));
    }

    pub fn edit_cold(&mut self, number: u64, change: impl FnOnce(&mut InodeColdLine)) {
        let line = Self::inode_line(number) + 1;
        let mut cold = InodeColdLine::read_from_bytes(&self.line(line)).expect("a line");
        change(&mut cold);
        let place = Inode::place(self.pair(), InodeNumber::new(number), LineAddress::new(line));
        self.put(line, place.seal(cold.as_bytes().try_into().expect("a line")));
    }

    pub fn remove_inode(&mut self, number: u64) {
        for line in [0, 1] {
            self.put(Self::inode_line(number) + line, EMPTY_LINE);
        }
    }

    /// An inode without content.
    pub fn add_empty(&mut self, number: u64, mode: u16, nlink: u32) {
        self.set_inode(number, &new_inode(mode, nlink, 0, 0, [0; 20]));
    }

    // ---- mapping ----------------------------------------------------------------------------------------------------------------

    fn extent(&mut self, sector: u64, count: u64, vector: Option<u64>) -> Extent {
        let mut checksums = Vec::new();
        for index in sector..sector + count {
            let data = data_of(index, SECTOR_BYTES);
            self.blocks[index as usize * SECTOR_BYTES..][..SECTOR_BYTES].copy_from_slice(&data);
            checksums.push(self.pair().data(&data));
            self.sectors_used.insert(index);
        }
        let checksum = match vector {
            None => BlockChecksum::Inline(checksums[0]),
            Some(vector) => {
                for (line, bytes) in (vector..).zip(vector_lines(&checksums, 1)) {
                    self.put(line, bytes);
                    self.use_lines(line, 1);
                }
                BlockChecksum::Vector(LineAddress::new(vector))
            }
        };
        Extent { at: DataAddress::Sector(Sector::new(sector)), count: count as u32, checksum, unwritten: false, overlaid: false }
    }

    /// Gives a block unwritten sectors.
    pub fn reserve(&mut self, page: u64, index: u64, sector: u64, count: u32, vector: Option<u64>) {
        let checksum = vector.map_or(BlockChecksum::None, |line| BlockChecksum::Vector(LineAddress::new(line)));
        let extent = Extent { at: DataAddress::Sector(Sector::new(sector)), count, checksum, unwritten: true, overlaid: false };
        self.put_record(TREE, page, index, Record::Block { extent: Some(extent), leaf: None });
    }

    /// Gives the block in an inode written sectors with these bytes in each, and their checksums in the vector that it has.
    pub fn fill_room(&mut self, inode: u64, sector: u64, bytes: &[u8]) {
        let mut checksums = Vec::new();
        for (index, byte) in (sector as usize..).zip(bytes) {
            let data = [*byte; SECTOR_BYTES];
            self.blocks[index * SECTOR_BYTES..][..SECTOR_BYTES].copy_from_slice(&data);
            checksums.push(self.pair().data(&data));
        }
        self.put(FILE_VECTOR, vector_lines(&checksums, 1)[0]);
        self.edit_extent(inode, |extent| (extent.at, extent.count) = (DataAddress::Sector(Sector::new(sector)), bytes.len() as u32));
    }

    pub fn log(&mut self, line: u64, offset: u32, length: u32, class: SlotClass) -> LogEntry {
        let data = data_of(line, length as usize);
        self.memory[line as usize * LINE_BYTES..][..data.len()].copy_from_slice(&data);
        self.use_lines(line, class.lines());
        LogEntry { address: LineAddress::new(line), crc: self.pair().data(&data), offset, length, class }
    }

    pub fn put_record(&mut self, inode: u64, page: u64, index: u64, record: Record) {
        self.put_record_bytes(inode, page, index, record.encode());
    }

    pub fn put_record_bytes(&mut self, inode: u64, page: u64, index: u64, record: RecordBytes) {
        let line = page + index / 3;
        let bytes = with_record(&self.line(line), (index % 3) as usize, record, &self.place(inode, line), self.superblock.hole_lines());
        self.put(line, bytes);
    }

    /// Seals the lines of the only mapping page that have no record.
    pub fn seal_holes(&mut self) {
        self.edit_superblock(|superblock| superblock.ro_compat |= ro_compat::SEALED_HOLES);
        for line in (TREE_PAGE..TREE_PAGE + 64).filter(|line| self.line(*line) == EMPTY_LINE).collect::<Vec<_>>() {
            self.put(line, HoleLines::Sealed.line_of_holes(&self.place(TREE, line)));
        }
    }

    pub fn record(&self, page: u64, index: u64) -> Record {
        line_records(&self.line(page + index / 3))[(index % 3) as usize].decode(LineAddress::new(page)).expect("has a meaning")
    }

    /// Changes the record of an inode's root.
    pub fn edit_root(&mut self, inode: u64, change: impl FnOnce(Record) -> Record) {
        self.edit_inode(inode, |inode| {
            let record = inode.root_record().decode(LineAddress::new(0)).expect("has a meaning");
            inode.root = change(record).encode().to_bytes();
        });
    }

    pub fn edit_extent(&mut self, inode: u64, change: impl FnOnce(&mut Extent)) {
        self.edit_root(inode, |record| match record {
            Record::Block { extent: Some(mut extent), leaf } => {
                change(&mut extent);
                Record::Block { extent: Some(extent), leaf }
            }
            other => panic!("inode {inode} has {other:?}"),
        });
    }

    pub fn edit_single_log(&mut self, inode: u64, change: impl FnOnce(&mut LogEntry)) {
        self.edit_root(inode, |record| match record {
            Record::SingleLog(mut log) => {
                change(&mut log);
                Record::SingleLog(log)
            }
            other => panic!("inode {inode} has {other:?}"),
        });
    }

    /// Changes entry 2 of the leaf of [`FILE`]: the log of 200 B at 5000.
    pub fn edit_leaf(&mut self, change: impl FnOnce(&mut LogEntry)) {
        let mut entries = line_entries(&self.line(FILE_LEAF), LineAddress::new(FILE_LEAF)).expect("has a meaning");
        change(entries[2].as_mut().expect("in use"));
        let bytes = leaf_line(&entries, &self.place(FILE, FILE_LEAF));
        self.put(FILE_LEAF, bytes);
    }

    // ---- names ------------------------------------------------------------------------------------------------------------------

    pub fn put_name(&mut self, directory: u64, page: u64, slot: u64, name: &[u8], inode: u64) {
        let mode = self.inode(inode).mode;
        self.put_dentry(directory, page, slot, name, inode, type_of_mode(mode));
    }

    pub fn put_dentry(&mut self, directory: u64, page: u64, slot: u64, name: &[u8], inode: u64, file_type: u8) {
        let dentry = Dentry { inode: InodeNumber::new(inode), file_type, hash: self.pair().name_hash(name), name: name.to_vec() };
        let lines = dentry.encode(|index| self.place(directory, page + slot + index as u64));
        for (line, bytes) in (page + slot..).zip(lines) {
            self.put(line, bytes);
        }
    }

    pub fn edit_head(&mut self, directory: u64, line: u64, change: impl FnOnce(&mut DentryHeadLine)) {
        let mut head = DentryHeadLine::read_from_bytes(&self.line(line)).expect("a line");
        change(&mut head);
        let bytes = self.place(directory, line).seal(head.as_bytes().try_into().expect("a line"));
        self.put(line, bytes);
    }

    // ---- fixed parts ------------------------------------------------------------------------------------------------------------

    pub fn put_segment(&mut self, index: u64, segment: &Segment) {
        let address = self.superblock.geometry.segment_line(index);
        self.put(address.number(), segment.encode(self.pair(), address));
    }

    pub fn edit_superblock(&mut self, change: impl FnOnce(&mut Superblock)) {
        change(&mut self.superblock);
        self.write_heads();
    }

    pub fn write_superblock_copy(&mut self, copy: usize, superblock: &Superblock) {
        let at = SUPERBLOCK_OFFSETS[copy] as usize;
        let bytes = superblock.encode();
        self.memory[at..at + bytes.as_bytes().len()].copy_from_slice(bytes.as_bytes());
    }

    pub fn write_heads(&mut self) {
        let superblock = self.superblock.clone();
        for copy in 0..2 {
            self.write_superblock_copy(copy, &superblock);
        }
        let identity = BlockIdentity::of(&superblock);
        self.blocks[..64].copy_from_slice(identity.as_bytes());
    }

    pub fn piece_bits(&self, index: u64) -> (PieceKind, Vec<u8>) {
        let mut bits = vec![0; PIECE_BYTES];
        let mut set = |bit: u64| bits[bit as usize / 8] |= 1 << (bit % 8);
        let kind = match index {
            0 => PieceKind::Fixed,
            1..=5 => {
                self.lines_used.iter().filter(|line| **line / UNIT_LINES == index).for_each(|line| set(line % UNIT_LINES));
                if index == 1 {
                    (0..2).for_each(&mut set);
                }
                if index == 5 { PieceKind::Data } else { PieceKind::Region }
            }
            6..=7 => PieceKind::Free,
            _ => {
                self.sectors_used.iter().copied().chain([0]).for_each(&mut set);
                (self.superblock.geometry.block_sectors()..PIECE_SECTORS).for_each(set);
                PieceKind::Sectors
            }
        };
        (kind, bits)
    }

    pub fn write_piece(&mut self, index: u64, kind: PieceKind, bits: &[u8]) {
        let header = encode_piece(self.pair(), kind, index, self.superblock.generation, bits);
        let at = self.superblock.geometry.piece(index).offset_bytes() as usize;
        self.memory[at..at + LINE_BYTES].copy_from_slice(&header);
        self.memory[at + LINE_BYTES..at + LINE_BYTES + PIECE_BYTES].copy_from_slice(bits);
    }

    fn write_maps(&mut self) {
        for index in 0..self.superblock.geometry.piece_count() {
            let (kind, bits) = self.piece_bits(index);
            self.write_piece(index, kind, &bits);
        }
    }

    /// Appends a record to a ring whose tail is where small() left it, `skip_bytes` further on.
    pub fn put_journal(&mut self, ring: u32, skip_bytes: u32, txid: u64, changes: &[(u64, Line)]) -> u32 {
        let tail = self.superblock.tails[ring as usize];
        let seed = self.pair().journal(ring, tail.wrap, self.superblock.generation);
        let addresses: Vec<LineAddress> = changes.iter().map(|(line, _)| LineAddress::new(*line)).collect();
        let images: Vec<Line> = changes.iter().map(|(_, bytes)| *bytes).collect();
        let mut record = Vec::new();
        encode_record(&mut record, seed, tail.wrap, txid, &addresses, &images);
        let at = self.superblock.geometry.ring(ring).offset_bytes() as usize + (tail.offset_bytes + skip_bytes) as usize;
        self.memory[at..at + record.len()].copy_from_slice(&record);
        record.len() as u32
    }

    // ---- checking ---------------------------------------------------------------------------------------------------------------

    // ---- attributes -------------------------------------------------------------------------------------------------------------

    /// Gives attributes their region.
    pub fn add_attributes_region(&mut self) {
        self.memory[ATTRIBUTES as usize * LINE_BYTES..(ATTRIBUTES + MARK) as usize * LINE_BYTES].fill(0);
        let segment = Segment { region: Region::Attributes, start_unit: 6, unit_count: 1, region_unit: 0, high_water_lines: MARK };
        self.put_segment(4, &segment);
    }

    /// Gives an inode a set of attributes at a line.
    pub fn put_attributes(&mut self, number: u64, line: u64, set: &[Attribute]) {
        let stream = encode_set(self.pair(), set);
        self.put_stream(number, line, &stream);
        let pointer = AttributePointer::new(LineAddress::new(line), stream.len());
        self.edit_inode(number, |inode| inode.attributes = pointer);
    }

    /// Puts a stream at a line; its pages follow its addresses at the next multiple of 64.
    pub fn put_stream(&mut self, number: u64, line: u64, stream: &[u8]) {
        let generation = self.inode(number).generation;
        let pair = self.pair();
        let place = move |address| Place { pair, address, inode: InodeNumber::new(number), generation };
        let shape = StreamShape::of(stream.len());
        let mut pieces = Vec::new();
        if shape.pages == 0 {
            pieces.push((line, stream_lines(place, LineAddress::new(line), shape.lines, stream)));
        } else {
            let first = (line + 1).next_multiple_of(64);
            let pages: Vec<LineAddress> = (0..shape.pages).map(|page| LineAddress::new(first + page * 64)).collect();
            pieces.push((line, address_lines(place, LineAddress::new(line), shape.lines, &pages)));
            for (page, bytes) in pages.iter().zip(stream.chunks(STREAM_PAGE_BYTES)) {
                pieces.push((page.number(), stream_lines(place, *page, 64, bytes)));
            }
        }
        for (first, bytes) in pieces {
            self.memory[first as usize * LINE_BYTES..][..bytes.len()].copy_from_slice(&bytes);
            self.use_lines(first, (bytes.len() / LINE_BYTES) as u64);
        }
    }

    pub fn device(&self) -> Arc<MemoryDevice> {
        MemoryDevice::new(self.memory.clone(), self.blocks.clone())
    }

    pub fn findings(&self) -> Vec<Finding> {
        findings(&report(&self.device(), false))
    }
}

pub fn options(repair: bool) -> CheckOptions {
    CheckOptions { repair, zero_data: repair, threads: 2, ..CheckOptions::default() }
}

pub fn report(device: &Arc<MemoryDevice>, repair: bool) -> Report {
    check(&Drive::new(device.clone()), &options(repair), &mut |_| {}).expect("can be checked")
}

/// Checks or repairs with other options.
pub fn report_with(device: &Arc<MemoryDevice>, options: &CheckOptions) -> Report {
    check(&Drive::new(device.clone()), options, &mut |_| {}).expect("can be checked")
}

pub fn findings(report: &Report) -> Vec<Finding> {
    report.findings.iter().map(|located| located.finding.clone()).collect()
}

// ---- the device -----------------------------------------------------------------------------------------------------------------

#[derive(Default)]
pub struct Faults {
    /// Bytes of memory that cannot be loaded.
    pub bad_memory: Option<std::ops::Range<u64>>,
    /// So many loads of them fail; `None`: all.
    pub bad_loads: Option<u64>,
    /// A sector that cannot be read.
    pub bad_sector: Option<u64>,
    /// A write to what cannot be read makes it good.
    pub heals: bool,
    /// Stores and block writes that still succeed; the next is torn in its middle, then all fail, as if the power were gone.
    pub writes_left: Option<u64>,
    pub writes: u64,
    dead: bool,
}

pub struct MemoryDevice {
    memory: Mutex<Vec<u8>>,
    blocks: Mutex<Vec<u8>>,
    pub faults: Mutex<Faults>,
    description: DeviceDescription,
}

impl MemoryDevice {
    pub fn new(memory: Vec<u8>, blocks: Vec<u8>) -> Arc<Self> {
        let description = DeviceDescription {
            name: "test".into(),
            memory_bytes: memory.len() as u64,
            cache_bytes: 0,
            block_bytes: blocks.len() as u64,
            domain: PersistenceDomain::Adr,
            volatile_write_cache: true,
            overlapping: false,
            discard: false,
            discard_zeroes: false,
            request_bytes: REQUEST_BYTES,
            nodes: tandemfs_device::MemoryNodes::default(),
        };
        Arc::new(Self { memory: Mutex::new(memory), blocks: Mutex::new(blocks), faults: Mutex::default(), description })
    }

    /// Stores and block writes so far.
    pub fn writes(&self) -> u64 {
        self.faults.lock().expect("lock").writes
    }

    /// The bytes of both zones now.
    pub fn bytes(&self) -> (Vec<u8>, Vec<u8>) {
        (self.memory.lock().expect("lock").clone(), self.blocks.lock().expect("lock").clone())
    }

    /// Bytes of a write that still come through.
    fn write(&self, bytes: usize) -> usize {
        let mut faults = self.faults.lock().expect("lock");
        faults.writes += 1;
        if faults.dead {
            return 0;
        }
        match &mut faults.writes_left {
            Some(0) => {
                faults.dead = true;
                bytes / 16 * 8
            }
            Some(left) => {
                *left -= 1;
                bytes
            }
            None => bytes,
        }
    }

    fn poisoned(&self, offset: u64) -> DeviceError {
        DeviceError::Poisoned { device: "test".into(), offset }
    }

    fn range(&self, zone: &[u8], offset: u64, length: usize) -> Result<std::ops::Range<usize>, DeviceError> {
        let end = offset.checked_add(length as u64).filter(|end| *end <= zone.len() as u64);
        let error = DeviceError::OutOfRange { device: "test".into(), offset, length: length as u64, size: zone.len() as u64 };
        end.map(|end| offset as usize..end as usize).ok_or(error)
    }
}

impl BytePath for MemoryDevice {
    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        let memory = self.memory.lock().expect("lock");
        let range = self.range(&memory, offset, into.len())?;
        let mut faults = self.faults.lock().expect("lock");
        let is_bad = faults.bad_memory.as_ref().is_some_and(|bad| bad.start < range.end as u64 && (range.start as u64) < bad.end);
        if is_bad && faults.bad_loads != Some(0) {
            faults.bad_loads = faults.bad_loads.map(|left| left - 1);
            return Err(self.poisoned(offset));
        }
        into.copy_from_slice(&memory[range]);
        Ok(())
    }

    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        let mut memory = self.memory.lock().expect("lock");
        let range = self.range(&memory, offset, from.len())?;
        let written = self.write(from.len());
        let mut faults = self.faults.lock().expect("lock");
        if faults.heals && faults.bad_memory.as_ref().is_some_and(|bad| range.contains(&(bad.start as usize))) {
            faults.bad_memory = None;
        }
        memory[range][..written].copy_from_slice(&from[..written]);
        if written < from.len() { Err(self.poisoned(offset)) } else { Ok(()) }
    }

    fn flush(&self, _offset: u64, _length: u64) {}

    fn fence(&self) {}
}

impl BlockPath for MemoryDevice {
    fn transfer_each(
        &self,
        requests: &mut [BlockRequest<'_>],
        meanwhile: &mut dyn FnMut(),
        completed: &mut dyn FnMut(usize, &BlockRequest<'_>),
    ) -> Result<(), DeviceError> {
        meanwhile();
        let mut blocks = self.blocks.lock().expect("lock");
        for (index, request) in requests.iter_mut().enumerate() {
            match request {
                BlockRequest::Read { sector, buffer } => {
                    let range = self.range(&blocks, sector.offset_bytes(), buffer.len())?;
                    let bad = self.faults.lock().expect("lock").bad_sector.map(|bad| bad as usize * SECTOR_BYTES);
                    if bad.is_some_and(|bad| range.contains(&bad)) {
                        return Err(self.poisoned(sector.offset_bytes()));
                    }
                    buffer.copy_from(0, &blocks[range]);
                }
                BlockRequest::Write { sector, buffer } => {
                    let range = self.range(&blocks, sector.offset_bytes(), buffer.len())?;
                    let written = self.write(buffer.len());
                    let mut faults = self.faults.lock().expect("lock");
                    if faults.heals && faults.bad_sector.is_some_and(|bad| range.contains(&(bad as usize * SECTOR_BYTES))) {
                        faults.bad_sector = None;
                    }
                    buffer.slice(0..written).copy_to(&mut blocks[range][..written]);
                    if written < buffer.len() {
                        return Err(self.poisoned(sector.offset_bytes()));
                    }
                }
            }
            completed(index, request);
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, _sector: Sector, _count: u64) -> Result<(), DeviceError> {
        Ok(())
    }
}

impl Device for MemoryDevice {
    fn byte_path(&self) -> &dyn BytePath {
        self
    }

    fn block_path(&self) -> &dyn BlockPath {
        self
    }

    fn description(&self) -> &DeviceDescription {
        &self.description
    }
}

/// A generator of numbers that the same seed repeats.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % limit
    }
}

/// Asserts that each scene passes, and fails with its deliberate bug.
pub fn assert_caught(scenes: &[(fn(), tandemfs_check::mutant::Mutant)]) {
    use std::panic::catch_unwind;
    use tandemfs_check::mutant::{Mutant, select};
    for (scene, bug) in scenes {
        assert!(catch_unwind(scene).is_ok(), "fails without {bug:?}");
        let result = catch_unwind(|| {
            select(*bug);
            scene();
        });
        select(Mutant::None);
        assert!(result.is_err(), "{bug:?} escaped");
    }
}
