//! Start, size and alignment of the fixed parts of the memory zone. No other code computes their addresses.
//!
//! ```text
//! 0       superblock A          128 KiB  segment table
//! 64 KiB  superblock B          512 KiB  journal rings, then map pieces, up to a multiple of 2 MiB
//! after that: 2 MiB units, given to regions (segments) or to the data area
//! ```
//!
//! [GE1] A zone that grew may need more map pieces than fit behind the rings, while the units behind them are in use. Then all pieces are
//!       in a run of whole units that the superblock names, and the units behind the rings are ordinary units.

use crate::size::size;
use crate::{DataAddress, LINE_BYTES, LineAddress, PAGE_LINES, SECTOR_BYTES, Sector, UNIT_BYTES, UNIT_LINES};

/// Offsets of the two superblocks from the start of the memory zone, in bytes.
pub const SUPERBLOCK_OFFSETS: [u64; 2] = [0, 64 << 10];
/// Offset of the segment table, in bytes.
pub const SEGMENT_TABLE_OFFSET: u64 = 128 << 10;
/// Lines of the segment table, one a segment.
pub const SEGMENT_TABLE_LINES: u64 = (384 << 10) / LINE_BYTES as u64;
/// Offset of the first journal ring, in bytes.
pub const RINGS_OFFSET: u64 = SEGMENT_TABLE_OFFSET + SEGMENT_TABLE_LINES * LINE_BYTES as u64;
/// Most journal rings that a superblock has room for.
pub const RING_COUNT_MAX: u32 = 64;
/// Smallest journal ring, in bytes; two of the largest records fit (see [`crate::journal`]).
pub const RING_BYTES_MIN: u64 = 256 << 10;
/// Smallest memory zone that holds a file system, in bytes: the fixed parts, a unit for each of four regions, and data.
pub const MEMORY_BYTES_MIN: u64 = 8 * UNIT_BYTES;
/// Smallest block zone, in bytes.
pub const BLOCK_BYTES_MIN: u64 = 4 << 20;
/// Smallest and largest data block, in bytes.
pub const BLOCK_SIZE_RANGE: [u32; 2] = [4 << 10, 1 << 20];
/// Sectors of the block zone that one map piece covers.
pub const PIECE_SECTORS: u64 = UNIT_LINES;
/// Lines of a map piece: its header and 4 KiB of bits.
pub const PIECE_LINES: u64 = 1 + (UNIT_LINES / 8) / LINE_BYTES as u64;

/// Why no file system can have these sizes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// The memory zone is too small.
    #[error("a memory zone of {} is too small; a file system needs at least {}", size(.found), size(MEMORY_BYTES_MIN))]
    MemoryTooSmall {
        /// Its size in bytes.
        found: u64,
    },
    /// The block zone is too small.
    #[error("a block zone of {} is too small; a file system needs at least {}", size(.found), size(BLOCK_BYTES_MIN))]
    BlocksTooSmall {
        /// Its size in bytes.
        found: u64,
    },
    /// A zone is larger than its address type can address.
    #[error("a {zone} zone of {} is too large; at most {} can be addressed", size(.found), size(.limit))]
    TooLarge {
        /// "memory" or "block".
        zone: &'static str,
        /// Its size in bytes.
        found: u64,
        /// The largest size in bytes.
        limit: u64,
    },
    /// The block size is not a power of two between 4 KiB and 1 MiB.
    #[error("a block size of {} is not a power of two from 4 KiB to 1 MiB", size(u64::from(*.found)))]
    BlockSize {
        /// The size in bytes.
        found: u32,
    },
    /// The rings do not fit what the format allows.
    #[error("{count} journal rings of {} are outside the format's limits", size(.bytes))]
    Rings {
        /// Their number.
        count: u32,
        /// The size of each in bytes.
        bytes: u64,
    },
    /// The fixed parts leave no room for regions and data.
    #[error(
        "journal, tables and maps need {} of the memory zone, which has {}; make the memory zone larger or the block zone smaller",
        size(fixed.saturating_mul(UNIT_BYTES)),
        size(total.saturating_mul(UNIT_BYTES))
    )]
    NoRoom {
        /// Units of the fixed parts.
        fixed: u64,
        /// Units in all.
        total: u64,
    },
    /// The map pieces are not where they could be.
    #[error("the map pieces of {units} units at unit {unit} do not lie between the fixed parts and the end of the memory zone")]
    MapPlace {
        /// First unit.
        unit: u64,
        /// Units.
        units: u64,
    },
    /// The metadata of a full block zone would not fit the memory zone.
    #[error(
        "metadata of a full block zone may take {} MiB, over 60 % of the memory zone of {}; use larger blocks or --checksum=none",
        .needed >> 20,
        size(.memory)
    )]
    MetadataTooLarge {
        /// Worst case in bytes.
        needed: u64,
        /// The memory zone in bytes.
        memory: u64,
    },
}

/// The places of the fixed parts, derived from the sizes in the superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    memory_bytes: u64,
    block_sectors: u64,
    block_bytes: u32,
    ring_count: u32,
    ring_bytes: u64,
    map_unit: u64,
}

impl Geometry {
    /// Checks the sizes against the format's limits. Sizes are rounded down to whole units and sectors. The map pieces follow the rings.
    pub fn new(
        memory_bytes: u64,
        block_bytes_total: u64,
        block_bytes: u32,
        ring_count: u32,
        ring_bytes: u64,
    ) -> Result<Self, GeometryError> {
        Self::with_map_at(0, memory_bytes, block_bytes_total, block_bytes, ring_count, ring_bytes)
    }

    /// The same with the map pieces in whole units from `map_unit` on ([GE1]); 0 where they follow the rings.
    pub fn with_map_at(
        map_unit: u64,
        memory_bytes: u64,
        block_bytes_total: u64,
        block_bytes: u32,
        ring_count: u32,
        ring_bytes: u64,
    ) -> Result<Self, GeometryError> {
        let memory_bytes = memory_bytes / UNIT_BYTES * UNIT_BYTES;
        let block_sectors = block_bytes_total / SECTOR_BYTES as u64;
        if memory_bytes < MEMORY_BYTES_MIN {
            return Err(GeometryError::MemoryTooSmall { found: memory_bytes });
        }
        // All files can lie in the memory zone, so the other one may be missing as a whole.
        if block_bytes_total > 0 && block_bytes_total < BLOCK_BYTES_MIN {
            return Err(GeometryError::BlocksTooSmall { found: block_bytes_total });
        }
        let address_count = 1_u64 << 40;
        if memory_bytes / LINE_BYTES as u64 > address_count {
            return Err(GeometryError::TooLarge { zone: "memory", found: memory_bytes, limit: address_count * LINE_BYTES as u64 });
        }
        if block_sectors > address_count {
            return Err(GeometryError::TooLarge { zone: "block", found: block_bytes_total, limit: address_count * SECTOR_BYTES as u64 });
        }
        if !block_bytes.is_power_of_two() || block_bytes < BLOCK_SIZE_RANGE[0] || block_bytes > BLOCK_SIZE_RANGE[1] {
            return Err(GeometryError::BlockSize { found: block_bytes });
        }
        if ring_count == 0
            || ring_count > RING_COUNT_MAX
            || !(RING_BYTES_MIN..=1 << 30).contains(&ring_bytes)
            || !ring_bytes.is_multiple_of(4096)
        {
            return Err(GeometryError::Rings { count: ring_count, bytes: ring_bytes });
        }
        let geometry = Self { memory_bytes, block_sectors, block_bytes, ring_count, ring_bytes, map_unit };
        let (map, total) = (geometry.map_units(), geometry.memory_units());
        let fixed = geometry.fixed_units() + (map.end - map.start);
        if fixed + 6 > total {
            return Err(GeometryError::NoRoom { fixed, total });
        }
        if map_unit > 0 && (map.start < geometry.fixed_units() || map.end > total) {
            return Err(GeometryError::MapPlace { unit: map.start, units: map.end - map.start });
        }
        Ok(geometry)
    }

    /// Ring count and size that fit a memory zone: 1/32 of it, between 1 MiB and 64 MiB.
    pub fn default_rings(memory_bytes: u64) -> (u32, u64) {
        let count = if memory_bytes < 128 << 20 { 4 } else { 16 };
        let bytes = (memory_bytes / 32 / u64::from(count)).clamp(RING_BYTES_MIN, 4 << 20);
        (count, bytes / 4096 * 4096)
    }

    /// The largest number of bytes that mapping, leaves and checksums of a full block zone take in the memory zone: a record of a third
    /// of a line for each block, its share of the upper pages, and its checksum lines.
    pub fn metadata_bytes_worst(&self, checksums: bool) -> u64 {
        let blocks = self.block_sectors * SECTOR_BYTES as u64 / u64::from(self.block_bytes);
        let record_bytes_x3 = LINE_BYTES as u64;
        let vector_bytes = if checksums && self.block_sectors_each() > 1 { self.vector_lines() * LINE_BYTES as u64 } else { 0 };
        blocks * record_bytes_x3 / 3 * 193 / 192 + blocks * vector_bytes
    }

    /// Size of the memory zone, a multiple of 2 MiB.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Units of 2 MiB in the memory zone.
    pub fn memory_units(&self) -> u64 {
        self.memory_bytes / UNIT_BYTES
    }

    /// Whether there is a block zone; without it all files lie in the memory zone (feature *memory home*).
    pub fn has_block_zone(&self) -> bool {
        self.block_sectors > 0
    }

    /// Sectors of the block zone, the identity's included.
    pub fn block_sectors(&self) -> u64 {
        self.block_sectors
    }

    /// Size of a data block, in bytes.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Sectors of a data block.
    pub fn block_sectors_each(&self) -> u64 {
        u64::from(self.block_bytes) / SECTOR_BYTES as u64
    }

    /// Lines of a block's checksum vector (4 B a sector).
    pub fn vector_lines(&self) -> u64 {
        self.block_sectors_each().div_ceil(16)
    }

    /// Number of journal rings.
    pub fn ring_count(&self) -> u32 {
        self.ring_count
    }

    /// Size of each journal ring, in bytes.
    pub fn ring_bytes(&self) -> u64 {
        self.ring_bytes
    }

    /// The first line of a ring.
    pub fn ring(&self, ring: u32) -> LineAddress {
        assert!(ring < self.ring_count, "ring {ring} of {}", self.ring_count);
        LineAddress::new((RINGS_OFFSET + u64::from(ring) * self.ring_bytes) / LINE_BYTES as u64)
    }

    /// A line of the segment table.
    pub fn segment_line(&self, index: u64) -> LineAddress {
        assert!(index < SEGMENT_TABLE_LINES, "segment {index} of {SEGMENT_TABLE_LINES}");
        LineAddress::new(SEGMENT_TABLE_OFFSET / LINE_BYTES as u64 + index)
    }

    /// Map pieces: one for each unit of the memory zone, then one for each [`PIECE_SECTORS`] of the block zone.
    pub fn piece_count(&self) -> u64 {
        self.memory_units() + self.block_sectors.div_ceil(PIECE_SECTORS)
    }

    /// The header line of a map piece; its 4 KiB of bits follow.
    pub fn piece(&self, index: u64) -> LineAddress {
        assert!(index < self.piece_count(), "map piece {index} of {}", self.piece_count());
        let pieces_offset = if self.map_unit > 0 { self.map_unit * UNIT_BYTES } else { self.rings_end() };
        LineAddress::new(pieces_offset / LINE_BYTES as u64 + index * PIECE_LINES)
    }

    fn rings_end(&self) -> u64 {
        RINGS_OFFSET + u64::from(self.ring_count) * self.ring_bytes
    }

    fn pieces_bytes(&self) -> u64 {
        self.piece_count() * PIECE_LINES * LINE_BYTES as u64
    }

    /// Units at the start of the memory zone that the fixed parts take.
    pub fn fixed_units(&self) -> u64 {
        let pieces_bytes = if self.map_unit > 0 { 0 } else { self.pieces_bytes() };
        (self.rings_end() + pieces_bytes).div_ceil(UNIT_BYTES)
    }

    /// The first unit of the map pieces; 0 where they follow the rings.
    pub fn map_unit(&self) -> u64 {
        self.map_unit
    }

    /// The units of the map pieces where they do not follow the rings ([GE1]); else none.
    pub fn map_units(&self) -> core::ops::Range<u64> {
        if self.map_unit == 0 {
            return 0..0;
        }
        self.map_unit..self.map_unit.saturating_add(self.map_unit_count())
    }

    /// Whole units that the map pieces of these sizes fill, wherever they lie.
    pub fn map_unit_count(&self) -> u64 {
        self.pieces_bytes().div_ceil(UNIT_BYTES)
    }

    /// Whether a unit belongs to the fixed parts, or to map pieces elsewhere.
    pub fn is_fixed(&self, unit: u64) -> bool {
        unit < self.fixed_units() || self.map_units().contains(&unit)
    }

    /// The first line of a unit.
    pub fn unit(&self, unit: u64) -> LineAddress {
        assert!(unit < self.memory_units(), "unit {unit} of {}", self.memory_units());
        LineAddress::new(unit * UNIT_LINES)
    }

    /// Whether `count` lines from `address` lie in the memory zone after the fixed parts, and beside the map pieces.
    pub fn holds_lines(&self, address: LineAddress, count: u64) -> bool {
        address.unit() >= self.fixed_units()
            && address.number().checked_add(count).is_some_and(|end| {
                end <= self.memory_bytes / LINE_BYTES as u64
                    && (self.map_unit == 0 || {
                        let map = self.map_units();
                        end <= map.start * UNIT_LINES || address.number() >= map.end * UNIT_LINES
                    })
            })
    }

    /// Whether these sectors exist, or whether these pages exist and lie in one unit: an extent of a file.
    pub fn holds_data(&self, at: DataAddress, count: u64) -> bool {
        match at {
            DataAddress::Sector(sector) => self.holds_sectors(sector, count),
            DataAddress::Page(page) => {
                let lines = count.saturating_mul(PAGE_LINES);
                (page.number() % UNIT_LINES).saturating_add(lines) <= UNIT_LINES && self.holds_lines(page, lines)
            }
        }
    }

    /// Whether `count` sectors from `sector` lie in the block zone after the identity.
    pub fn holds_sectors(&self, sector: Sector, count: u64) -> bool {
        sector.number() > 0 && sector.number().checked_add(count).is_some_and(|end| end <= self.block_sectors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Geometry {
        Geometry::new(16 << 20, 16 << 20, 64 << 10, 4, RING_BYTES_MIN).expect("fits")
    }

    #[test]
    fn fixed_parts_follow_each_other() {
        let geometry = small();
        assert_eq!(geometry.ring(0).offset_bytes(), 512 << 10);
        assert_eq!(geometry.piece(0).offset_bytes(), (512 << 10) + 4 * RING_BYTES_MIN);
        assert_eq!(geometry.fixed_units(), 1);
        assert_eq!(geometry.piece_count(), 9);
    }

    #[test]
    fn sizes_that_hold_no_file_system_are_refused() {
        assert!(matches!(Geometry::new(1 << 20, 16 << 20, 65536, 4, RING_BYTES_MIN), Err(GeometryError::MemoryTooSmall { .. })));
        assert!(matches!(Geometry::new(16 << 20, 1 << 20, 65536, 4, RING_BYTES_MIN), Err(GeometryError::BlocksTooSmall { .. })));
        assert!(matches!(Geometry::new(16 << 20, 16 << 20, 3000, 4, RING_BYTES_MIN), Err(GeometryError::BlockSize { .. })));
        assert!(matches!(Geometry::new(16 << 20, 16 << 20, 65536, 0, RING_BYTES_MIN), Err(GeometryError::Rings { .. })));
        assert!(matches!(Geometry::new(16 << 20, 16 << 20, 65536, 4, 4 << 20), Err(GeometryError::NoRoom { .. })));
        assert!(matches!(Geometry::new(16 << 20, 1 << 55, 65536, 4, RING_BYTES_MIN), Err(GeometryError::TooLarge { .. })));
    }

    #[test]
    fn map_pieces_may_lie_in_units_of_their_own() {
        let at = |unit| Geometry::with_map_at(unit, 64 << 20, 128 << 30, 64 << 10, 4, RING_BYTES_MIN);
        let behind_the_rings = at(0).expect("fits");
        assert_eq!((behind_the_rings.fixed_units(), behind_the_rings.map_units()), (3, 0..0));
        let geometry = at(20).expect("fits");
        assert_eq!((geometry.fixed_units(), geometry.map_units()), (1, 20..23));
        assert_eq!(geometry.piece(0), geometry.unit(20));
        let last = geometry.piece(geometry.piece_count() - 1);
        assert!(last.number() + PIECE_LINES <= 23 * UNIT_LINES);
        for (unit, fixed) in [(0, true), (1, false), (19, false), (20, true), (22, true), (23, false)] {
            assert_eq!(geometry.is_fixed(unit), fixed, "{unit}");
            assert_eq!(geometry.holds_lines(geometry.unit(unit), 1), !fixed, "{unit}");
        }
        assert!(geometry.holds_lines(LineAddress::new(20 * UNIT_LINES - 1), 1));
        assert!(!geometry.holds_lines(LineAddress::new(20 * UNIT_LINES - 1), 2));
        for (page, count, holds) in [(0, 512, true), (1, 512, false), (511, 1, true), (511, 2, false), (0, u64::MAX, false)] {
            let at = DataAddress::Page(geometry.unit(18).nth(page * PAGE_LINES));
            assert_eq!(geometry.holds_data(at, count), holds, "an extent of {count} pages from page {page} of a unit");
        }
        for unit in [30, 32, u64::MAX] {
            assert!(matches!(at(unit), Err(GeometryError::MapPlace { .. } | GeometryError::NoRoom { .. })), "{unit}");
        }
    }

    #[test]
    fn worst_case_of_the_layout_paper_example() {
        // docs/FORMAT.md: 64 KiB blocks cost 21 + 64 B each, 0.13 %.
        let geometry = Geometry::new(10 << 30, 3_840_000_000_000, 64 << 10, 16, 4 << 20).expect("fits");
        let share = geometry.metadata_bytes_worst(true) as f64 / 3_840_000_000_000.0;
        assert!((0.0012..0.0014).contains(&share), "{share}");
    }
}
