//! The segment table: which 2 MiB units of the memory zone belong to which region. One line for each segment.

use zerocopy::{FromBytes, IntoBytes};

use crate::checksum::Place;
use crate::integer::U32;
use crate::{Corrupt, EMPTY_LINE, InodeNumber, Line, LineAddress, PairSeed, UNIT_LINES};

/// What a segment holds. Units that no segment names are free or belong to the data area.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Region {
    /// Inodes, two lines each; the number of an inode is its slot.
    Inodes,
    /// Pages of directory entries.
    Dentries,
    /// Pages of mapping records.
    Mappings,
    /// Leaves of data logs and checksum vectors.
    Leaves,
    /// Extended attributes.
    Attributes,
}

impl Region {
    /// All regions, in the order of their numbers on the medium.
    pub const ALL: [Self; 5] = [Self::Inodes, Self::Dentries, Self::Mappings, Self::Leaves, Self::Attributes];

    /// The number on the medium, from 1.
    pub fn number(self) -> u8 {
        match self {
            Self::Inodes => 1,
            Self::Dentries => 2,
            Self::Mappings => 3,
            Self::Leaves => 4,
            Self::Attributes => 5,
        }
    }

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|region| region.number() == number)
    }
}

persistent! {
    /// One segment.
    pub struct SegmentLine [64] {
        /// CRC-32C, see *Checksums*.
        crc: U32 = 0,
        /// The region's number; 0 in an unused line.
        region: u8 = 4,
        /// Zero.
        zero: [u8; 3] = 5,
        /// First unit of 2 MiB.
        start_unit: U32 = 8,
        /// Units.
        unit_count: U32 = 12,
        /// Position of the segment in its region, in units (inode numbers follow it).
        region_unit: U32 = 16,
        /// Lines in use from the start of the segment (high-water mark); later lines were never zeroed.
        high_water_lines: U32 = 20,
        /// Zero.
        reserved: [u8; 40] = 24,
    }
}

/// A segment in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The region.
    pub region: Region,
    /// First unit.
    pub start_unit: u64,
    /// Units.
    pub unit_count: u64,
    /// Position in its region, in units.
    pub region_unit: u64,
    /// Lines that have a meaning.
    pub high_water_lines: u64,
}

impl Segment {
    fn place(pair: PairSeed, address: LineAddress) -> Place {
        Place { pair, address, inode: InodeNumber::new(0), generation: 0 }
    }

    /// The sealed line for the table.
    pub fn encode(&self, pair: PairSeed, address: LineAddress) -> Line {
        let line = SegmentLine {
            crc: 0.into(),
            region: self.region.number(),
            zero: [0; 3],
            start_unit: (self.start_unit as u32).into(),
            unit_count: (self.unit_count as u32).into(),
            region_unit: (self.region_unit as u32).into(),
            high_water_lines: (self.high_water_lines as u32).into(),
            reserved: [0; 40],
        };
        let mut bytes = EMPTY_LINE;
        bytes.copy_from_slice(line.as_bytes());
        Self::place(pair, address).seal(bytes)
    }

    /// Verifies a line of the table; `None` where it is unused.
    pub fn decode(line: &Line, pair: PairSeed, address: LineAddress, memory_units: u64) -> Result<Option<Self>, Corrupt> {
        if *line == EMPTY_LINE {
            return Ok(None);
        }
        Self::place(pair, address).verify(line)?;
        let Ok(bytes) = SegmentLine::read_from_bytes(line) else { unreachable!("a line has the size of a line") };
        let field = |field, found| Corrupt::Field { address, field, found };
        let region = Region::from_number(bytes.region).ok_or_else(|| field("region", bytes.region.into()))?;
        let segment = Self {
            region,
            start_unit: bytes.start_unit.get().into(),
            unit_count: bytes.unit_count.get().into(),
            region_unit: bytes.region_unit.get().into(),
            high_water_lines: bytes.high_water_lines.get().into(),
        };
        if segment.unit_count == 0 || segment.start_unit + segment.unit_count > memory_units {
            return Err(field("unit_count", segment.unit_count));
        }
        if segment.high_water_lines > segment.unit_count * UNIT_LINES {
            return Err(field("high_water_lines", segment.high_water_lines));
        }
        Ok(Some(segment))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_round_trips_and_refuses_nonsense() {
        let pair = PairSeed::new(uuid::Uuid::from_u128(1));
        let address = LineAddress::new(2050);
        let segment = Segment { region: Region::Leaves, start_unit: 3, unit_count: 2, region_unit: 1, high_water_lines: 4096 };
        assert_eq!(Segment::decode(&segment.encode(pair, address), pair, address, 8), Ok(Some(segment)));
        assert_eq!(Segment::decode(&EMPTY_LINE, pair, address, 8), Ok(None));
        assert!(matches!(
            Segment::decode(&segment.encode(pair, address), pair, address, 4),
            Err(Corrupt::Field { field: "unit_count", .. })
        ));
    }
}
