//! How many bytes one new large file can still get.
//!
//! The number of free sectors is not the answer. The transient room is free, but never given to growth (RULES R14). Whole blocks need
//! aligned runs. The memory zone has to hold the mapping and the checksum vectors.
//!
//! [LF1] The answer is never too large: `allocate` of that many bytes for a new file succeeds if nobody else takes space meanwhile. So
//!       units of the memory zone that two floors of the allocator count are counted once, and space that is free only after a checkpoint
//!       or after write-back of data logs is left out.
//! [LF2] If the block zone is the limit, the answer is exact: one block more is refused. If the memory zone is, it may be a unit short.
//! [LF3] Nothing is cached for it: each call counts the maps, in one or two microseconds per fragmented 128 MiB.

use tandemfs_format::mapping::PAGE_RECORDS;
use tandemfs_format::segment::Region;
use tandemfs_format::{PAGE_LINES, SECTOR_BYTES, UNIT_BYTES, UNIT_LINES};

use crate::alloc::regions::{RegionRoom, TRANSIENT_REGION_LINES};
use crate::file_system::FileSystem;

/// What the memory zone has for the metadata of a file.
#[derive(Debug, Clone, Copy)]
struct MetadataRoom {
    /// Pages.
    mappings: RegionRoom,
    /// Checksum vectors. `vector_lines` is the length of each; `None` where blocks have no vectors.
    leaves: RegionRoom,
    vector_lines: Option<u64>,
    /// Units that no region owns.
    free_units: u64,
}

impl MetadataRoom {
    /// Whether this room holds the metadata of a file of that many blocks ([LF1]).
    fn holds(&self, blocks: u64) -> bool {
        let pages = mapping_pages(blocks);
        let vectors = if self.vector_lines.is_some() { blocks } else { 0 };
        let vector_lines = self.vector_lines.unwrap_or(1);
        let page_units = pages.saturating_sub(self.mappings.runs).div_ceil(UNIT_LINES / PAGE_LINES);
        let vector_units = vectors.saturating_sub(self.leaves.runs).div_ceil(UNIT_LINES / vector_lines);
        let Some(left) = self.free_units.checked_sub(page_units + vector_units) else { return false };
        // A region takes a unit only if one is left for the other region while the other is short of its transient room.
        let is_short = |room: &RegionRoom, is_used: bool| is_used || room.below_mark < TRANSIENT_REGION_LINES;
        let keeps_one = page_units > 0 && is_short(&self.leaves, vectors > 0) || vector_units > 0 && is_short(&self.mappings, pages > 0);
        let has_floor = |room: &RegionRoom, units: u64, taken: u64| {
            taken == 0 || room.lines + (units + left) * UNIT_LINES >= taken + TRANSIENT_REGION_LINES
        };
        left >= u64::from(keeps_one)
            && has_floor(&self.mappings, page_units, pages * PAGE_LINES)
            && has_floor(&self.leaves, vector_units, vectors * vector_lines)
    }
}

/// Pages of all levels of the mapping of a file of that many blocks.
fn mapping_pages(blocks: u64) -> u64 {
    let (mut pages, mut level) = (0, blocks);
    while level > 1 {
        level = level.div_ceil(PAGE_RECORDS);
        pages += level;
    }
    pages
}

impl FileSystem {
    /// How many bytes [`FileSystem::allocate`] can give one new file, in whole blocks.
    pub fn large_file_bytes(&self) -> u64 {
        let volume = &self.volume;
        let (geometry, memory) = (&volume.geometry, &volume.memory);
        let has_vectors = volume.checksums && geometry.block_sectors_each() > 1;
        let vector_lines = has_vectors.then(|| geometry.vector_lines().next_power_of_two());
        let room = MetadataRoom {
            mappings: memory.region_room(Region::Mappings, PAGE_LINES),
            leaves: memory.region_room(Region::Leaves, vector_lines.unwrap_or(1)),
            vector_lines,
            free_units: memory.free_units_after_a_creation(),
        };
        let in_memory = !geometry.has_block_zone(); // there data and its metadata share units
        let pages = memory.available_for_extents() / SECTOR_BYTES as u64;
        let most = if in_memory { pages / geometry.block_sectors_each() } else { volume.sectors.whole_blocks() };
        let units = |blocks: u64| if in_memory { (blocks * u64::from(geometry.block_bytes())).div_ceil(UNIT_BYTES) } else { 0 };
        let holds = |blocks| MetadataRoom { free_units: room.free_units.saturating_sub(units(blocks)), ..room }.holds(blocks);
        let (mut fits, mut beyond) = (0, most + 1);
        while fits + 1 < beyond {
            let middle = fits + (beyond - fits) / 2;
            if holds(middle) { fits = middle } else { beyond = middle }
        }
        fits * u64::from(geometry.block_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_of_a_mapping_is_counted() {
        assert_eq!([0, 1, 2, 192, 193, 192 * 192, 192 * 192 + 1].map(mapping_pages), [0, 0, 1, 1, 3, 193, 196]);
    }

    #[test]
    fn units_are_shared_by_pages_and_vectors() {
        let none = RegionRoom { runs: 0, lines: 0, below_mark: 0 };
        let room = |free_units| MetadataRoom { mappings: none, leaves: none, vector_lines: Some(1), free_units };
        assert!(!room(2).holds(1000), "one unit each, and one that stays");
        assert!(room(3).holds(1000));
        assert!(!room(3).holds(UNIT_LINES + 1), "vectors of two units");
        assert!(MetadataRoom { vector_lines: None, ..room(2) }.holds(1000));
    }
}
