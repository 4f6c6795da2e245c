//! How many files can still be made, for `df -i`.
//!
//! [CF1] A file takes two lines of the region of inodes, and a line in a page of names: the answer is for names of up to 47 B in one
//!       directory. The pages take room of the mappings, and all three share the free units. So the answer is not too large if nobody else
//!       takes space meanwhile. What only write-back or a checkpoint would free does not count, nor does room in pages of names that exist.

use tandemfs_format::inode::INODE_LINES;
use tandemfs_format::mapping::PAGE_RECORDS;
use tandemfs_format::segment::Region;
use tandemfs_format::{PAGE_LINES, UNIT_LINES};

use super::memory::MemoryAllocator;
use super::region_state::slot;
use super::regions::TRANSIENT_REGION_LINES;
use crate::sync::atomic::Ordering::SeqCst;

/// Lines that regions have without another unit, and units that they can take.
#[derive(Debug, Clone, Copy)]
struct Room {
    inodes: u64,
    dentries: u64,
    /// Without the transient room.
    mappings: u64,
    units: u64,
}

impl Room {
    /// Whether that many files can be made ([CF1]).
    fn holds(&self, files: u64) -> bool {
        let pages = files.div_ceil(PAGE_LINES);
        let mapping_pages = if pages > 1 { pages.div_ceil(PAGE_RECORDS) } else { 0 };
        let units = |lines: u64, has: u64| lines.saturating_sub(has).div_ceil(UNIT_LINES);
        let needed = units(files * INODE_LINES, self.inodes)
            + units(pages * PAGE_LINES, self.dentries / PAGE_LINES * PAGE_LINES)
            + units(mapping_pages * PAGE_LINES, self.mappings / PAGE_LINES * PAGE_LINES);
        needed <= self.units
    }

    fn files(&self) -> u64 {
        let (mut fits, mut beyond) = (0, (self.inodes + self.units * UNIT_LINES) / INODE_LINES + 1);
        while fits + 1 < beyond {
            let middle = fits + (beyond - fits) / 2;
            if self.holds(middle) { fits = middle } else { beyond = middle }
        }
        fits
    }
}

impl MemoryAllocator {
    /// Files that can still be made ([CF1]).
    pub(super) fn creatable_files(&self) -> u64 {
        let lines = |region| {
            let state = self.regions[slot(region)].lock_waiting();
            self.region_free[slot(region)].load(SeqCst) + state.lines_above_mark()
        };
        Room {
            inodes: lines(Region::Inodes),
            dentries: lines(Region::Dentries),
            mappings: lines(Region::Mappings).saturating_sub(TRANSIENT_REGION_LINES),
            units: self.free_units.load(SeqCst).saturating_sub(self.short_regions(None)),
        }
        .files()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shared_is_counted_once() {
        let none = Room { inodes: 0, dentries: 0, mappings: UNIT_LINES, units: 0 };
        assert_eq!(none.files(), 0);
        assert_eq!(Room { units: 1, ..none }.files(), 0, "one for inodes, none for names");
        assert_eq!(Room { units: 2, ..none }.files(), UNIT_LINES / 2);
        assert_eq!(Room { units: 3, ..none }.files(), UNIT_LINES, "two units of inodes, one of names");
        assert_eq!(Room { inodes: 200, dentries: 127, ..none }.files(), 64, "whole pages of names");
        assert_eq!(Room { inodes: 1 << 30, dentries: 1 << 30, mappings: 0, units: 0 }.files(), 64, "one page needs no mapping");
    }
}
