//! Finds the lines of an inode in an image, by the format alone.

use tandemfs_crash::Recorded;
use tandemfs_format::attributes::{AttributeValue, StreamShape, addresses_of, decode_set, extend_stream};
use tandemfs_format::geometry::Geometry;
use tandemfs_format::inode::Inode;
use tandemfs_format::mapping::{BlockChecksum, Record, RecordBytes, line_records, vector_lines};
use tandemfs_format::segment::{Region, Segment};
use tandemfs_format::superblock::Superblock;
use tandemfs_format::{EMPTY_LINE, InodeNumber, LINE_BYTES, Line, LineAddress, PAGE_LINES, PairSeed};

/// What a line is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    Hot,
    Cold,
    /// A line of a mapping page of this height.
    Mapping(u32),
    Leaf,
    /// Checksums of sectors: the line has none of its own.
    Vector,
    /// The start of a name.
    Head,
    /// A further slot of a name.
    Continuation,
    /// Bytes of a set of attributes.
    Set,
    /// Addresses of pages of a value.
    Addresses,
    /// Bytes of a value that is stored apart.
    Value,
}

pub struct Image<'z> {
    zones: &'z Recorded,
    pub geometry: Geometry,
    pub pair: PairSeed,
    segments: Vec<Segment>,
}

impl<'z> Image<'z> {
    pub fn new(zones: &'z Recorded) -> Self {
        let superblock = superblock(zones);
        let (geometry, pair) = (superblock.geometry, PairSeed::new(superblock.pair));
        let mut image = Self { zones, geometry, pair, segments: Vec::new() };
        for index in 0..64 {
            let address = geometry.segment_line(index);
            image.segments.extend(Segment::decode(&image.line(address), pair, address, geometry.memory_units()).expect("valid"));
        }
        image
    }

    pub fn line(&self, address: LineAddress) -> Line {
        self.zones.memory[address.offset_bytes() as usize..][..LINE_BYTES].try_into().expect("a line")
    }

    fn inode_address(&self, number: InodeNumber) -> LineAddress {
        let line = number.get() * 2;
        let unit = line / tandemfs_format::UNIT_LINES;
        let holds = |segment: &&Segment| {
            segment.region == Region::Inodes && (segment.region_unit..segment.region_unit + segment.unit_count).contains(&unit)
        };
        let segment = self.segments.iter().find(holds).expect("the inode region has it");
        let unit = segment.start_unit + unit - segment.region_unit;
        LineAddress::new(unit * tandemfs_format::UNIT_LINES + line % tandemfs_format::UNIT_LINES)
    }

    /// All lines of an inode that are not empty.
    pub fn lines_of(&self, number: InodeNumber) -> Vec<(What, LineAddress)> {
        let address = self.inode_address(number);
        let inode = Inode::decode(self.pair, number, address, &self.line(address), &self.line(address.nth(1))).expect("valid");
        let inode = inode.expect("in use");
        let mut lines = vec![(What::Hot, address), (What::Cold, address.nth(1))];
        if inode.has_mapping() {
            self.record(RecordBytes::from_bytes(inode.root), &mut lines);
        }
        if !inode.attributes.is_none() {
            let (count, holds_addresses) = inode.attributes.first_piece().expect("valid");
            assert!(!holds_addresses, "the set of this test is one piece");
            let mut stream = Vec::new();
            for index in 0..count {
                let address = inode.attributes.address.nth(index);
                lines.push((What::Set, address));
                extend_stream(&mut stream, &self.line(address));
            }
            for attribute in decode_set(self.pair, inode.attributes, &stream).expect("valid") {
                let AttributeValue::Apart { address, length, .. } = attribute.value else { continue };
                let shape = StreamShape::of(length as usize);
                for index in 0..shape.lines {
                    let address = address.nth(index);
                    lines.push((if shape.pages > 0 { What::Addresses } else { What::Value }, address));
                    if shape.pages > 0 {
                        for page in addresses_of(&self.line(address)) {
                            lines.extend((0..PAGE_LINES).map(|index| (What::Value, page.nth(index))));
                        }
                    }
                }
            }
        }
        lines.retain(|(_, address)| self.line(*address) != EMPTY_LINE);
        lines
    }

    fn record(&self, bytes: RecordBytes, lines: &mut Vec<(What, LineAddress)>) {
        match bytes.decode(LineAddress::new(0)).expect("valid") {
            Record::Pointer { page, height } => {
                for address in (0..PAGE_LINES).map(|index| page.nth(index)) {
                    lines.push((What::Mapping(height), address));
                    line_records(&self.line(address)).into_iter().for_each(|record| self.record(record, lines));
                }
            }
            Record::Memory(page) => {
                for address in (0..PAGE_LINES).map(|index| page.nth(index)) {
                    lines.push((if self.line(address)[4] == 2 { What::Continuation } else { What::Head }, address));
                }
            }
            Record::Block { extent, leaf } => {
                if let Some(leaf) = leaf {
                    lines.extend((0..leaf.lines()).map(|index| (What::Leaf, leaf.address.nth(index))));
                }
                if let Some(BlockChecksum::Vector(vector)) = extent.map(|extent| extent.checksum) {
                    let count = vector_lines(&vec![0; extent.map_or(0, |extent| extent.count as usize)], 1).len() as u64;
                    lines.extend((0..count).map(|index| (What::Vector, vector.nth(index))));
                }
            }
            Record::Lost { leaf, .. } => {
                lines.extend(leaf.into_iter().flat_map(|leaf| (0..leaf.lines()).map(move |index| (What::Leaf, leaf.address.nth(index)))));
            }
            Record::SingleLog(_) | Record::Run(_) => {}
        }
    }
}

pub fn superblock(zones: &Recorded) -> Superblock {
    Superblock::choose([&zones.memory[..1024], &zones.memory[65_536..66_560]]).expect("a superblock")
}
