//! Runs: one record for blocks in a row whose pages are in a row too.
//!
//! A run says by arithmetic what records of its blocks would say: block *i* has the pages from `first` + *i* x pages of a block, and its part
//! of the checksum lines. So a run is split into records of blocks, or into shorter runs, by changes of mapping lines alone.
//!
//! The checksum lines of a run are those of its *groups*, in their order. A group is one block with the lines of its vector; where a block is
//! one page, and a record of its own has the checksum inline, a group is sixteen blocks, whose checksums fill a line. Without checksums a
//! group is one block and has no lines.

use crate::geometry::Geometry;
use crate::mapping::{BlockChecksum, Extent, PAGE_RECORDS, Record, VECTOR_LINE_SECTORS};
use crate::{DataAddress, LineAddress, PAGE_LINES, UNIT_LINES};

/// Most checksum lines of a run: what an allocation from a region can have in a row.
pub const RUN_LINES_MAX: u64 = 64;

/// A run. Its record stands where that of its first block would; where those of the others would, there are holes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// First line of the first page.
    pub first: LineAddress,
    /// Blocks, at least 2. All of them have all pages of a block.
    pub blocks: u32,
    /// The first checksum line; `None` if the data have no checksums.
    pub vector: Option<LineAddress>,
    /// Its blocks are open ([`BlockChecksum::Open`]); only with checksum lines.
    pub open: bool,
}

/// What a run looks like in one file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunShape {
    /// Pages of a block.
    pub block_pages: u64,
    /// Blocks of a group.
    pub group_blocks: u64,
    /// Checksum lines of a group.
    pub group_lines: u64,
}

impl RunShape {
    /// The shape of runs with or without checksums.
    pub fn new(geometry: &Geometry, has_checksums: bool) -> Self {
        let block_pages = geometry.block_sectors_each();
        let (group_blocks, group_lines) = match (has_checksums, block_pages) {
            (false, _) => (1, 0),
            (true, 1) => (VECTOR_LINE_SECTORS, 1),
            (true, _) => (1, geometry.vector_lines().next_power_of_two()),
        };
        Self { block_pages, group_blocks, group_lines }
    }

    /// Checksum lines of so many blocks, whole groups.
    pub fn lines(&self, blocks: u64) -> u64 {
        blocks / self.group_blocks * self.group_lines
    }

    /// Most blocks of a run: a page of records, a unit of pages, and [`RUN_LINES_MAX`] limit it.
    pub fn blocks_max(&self) -> u64 {
        let of_unit = UNIT_LINES / PAGE_LINES / self.block_pages;
        let of_lines = RUN_LINES_MAX.checked_div(self.group_lines).map_or(u64::MAX, |groups| groups * self.group_blocks);
        PAGE_RECORDS.min(of_unit).min(of_lines)
    }
}

impl Run {
    /// Its shape.
    pub fn shape(&self, geometry: &Geometry) -> RunShape {
        RunShape::new(geometry, self.vector.is_some())
    }

    /// Whether it may be: its record has this index in its page of the mapping. Which region its lines are in is not looked at.
    pub fn fits(&self, geometry: &Geometry, index: u64) -> bool {
        let (shape, blocks) = (self.shape(geometry), u64::from(self.blocks));
        let has_lines = |vector: LineAddress| {
            let lines = shape.lines(blocks);
            vector.number().is_multiple_of(shape.group_lines) && geometry.holds_lines(vector, lines)
        };
        (2..=shape.blocks_max()).contains(&blocks)
            && index.saturating_add(blocks) <= PAGE_RECORDS
            && (index % shape.group_blocks, blocks % shape.group_blocks) == (0, 0)
            && geometry.holds_data(DataAddress::Page(self.first), blocks * shape.block_pages)
            && self.vector.is_none_or(has_lines)
    }

    /// The record that one of its blocks would have. `inline` is its checksum, for a group of several blocks.
    pub fn block(&self, shape: RunShape, index: u64, inline: u32) -> Record {
        let at = DataAddress::Page(self.first).nth(index * shape.block_pages);
        let checksum = match self.vector {
            None => BlockChecksum::None,
            Some(_) if shape.group_blocks > 1 && self.open => BlockChecksum::Open(None),
            Some(vector) if self.open => BlockChecksum::Open(Some(vector.nth(shape.lines(index)))),
            Some(_) if shape.group_blocks > 1 => BlockChecksum::Inline(inline),
            Some(vector) => BlockChecksum::Vector(vector.nth(shape.lines(index))),
        };
        Record::Block {
            extent: Some(Extent { at, count: shape.block_pages as u32, checksum, unwritten: false, overlaid: false }),
            leaf: None,
        }
    }

    /// The line with the inline checksum of one of its blocks; `None` if it has none.
    pub fn inline_line(&self, shape: RunShape, index: u64) -> Option<LineAddress> {
        self.vector.filter(|_| shape.group_blocks > 1).map(|vector| vector.nth(index / shape.group_blocks))
    }

    /// The run of `blocks` of its blocks from `from` on; both are whole groups.
    pub fn part(&self, shape: RunShape, from: u64, blocks: u64) -> Self {
        Self {
            first: self.first.nth(from * shape.block_pages * PAGE_LINES),
            blocks: blocks as u32,
            vector: self.vector.map(|vector| vector.nth(shape.lines(from))),
            open: self.open,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::BLOCK_SIZE_RANGE;

    fn geometry(block_bytes: u32) -> Geometry {
        Geometry::new(64 << 20, 64 << 20, block_bytes, 4, 256 << 10).expect("fits")
    }

    fn sizes() -> impl Iterator<Item = u32> {
        (BLOCK_SIZE_RANGE[0].ilog2()..=BLOCK_SIZE_RANGE[1].ilog2()).map(|shift| 1 << shift)
    }

    /// A transaction writes 1 MiB, so an aligned extent of 2 MiB comes in two pieces. What it costs in lines of mapping: at most two from
    /// blocks of 16 KiB on, four below, wherever it lies in the file.
    #[test]
    fn an_aligned_extent_costs_few_lines_in_every_block_size() {
        for block_bytes in sizes() {
            let shape = RunShape::new(&geometry(block_bytes), true);
            let (extent, piece) = (u64::from((2 << 20) / block_bytes), u64::from((1 << 20) / block_bytes));
            let most = if block_bytes < 16 << 10 { 4 } else { 2 };
            for start in (0..PAGE_RECORDS * extent).step_by(extent as usize) {
                let mut lines = std::collections::BTreeSet::new();
                let mut block = start;
                while block < start + extent {
                    lines.insert((block / PAGE_RECORDS, block % PAGE_RECORDS / 3));
                    let to_piece = piece - block % piece;
                    block += shape.blocks_max().min(to_piece).min(PAGE_RECORDS - block % PAGE_RECORDS);
                }
                assert!(lines.len() <= most, "blocks of {block_bytes}, from block {start}: {lines:?}");
            }
        }
    }

    #[test]
    fn a_run_knows_its_limits() {
        for block_bytes in sizes() {
            let geometry = geometry(block_bytes);
            let shape = RunShape::new(&geometry, true);
            let first = LineAddress::new(8 * UNIT_LINES);
            let blocks = (2 * shape.group_blocks).min(shape.blocks_max()) as u32;
            let run = Run { first, blocks, vector: Some(LineAddress::new(3 * UNIT_LINES)), open: false };
            assert!(run.fits(&geometry, 0) && run.fits(&geometry, PAGE_RECORDS - u64::from(blocks)), "{block_bytes}");
            for wrong in [
                Run { blocks: 1, ..run },
                Run { blocks: blocks + 1, ..run }.clipped(shape),
                Run { blocks: shape.blocks_max() as u32 + 1, ..run },
                Run { first: first.nth(UNIT_LINES - PAGE_LINES), ..run },
                Run { vector: Some(LineAddress::new(u64::MAX >> 24)), ..run },
            ] {
                assert!(!wrong.fits(&geometry, 0), "{block_bytes}: {wrong:?}");
            }
            assert!(!run.fits(&geometry, PAGE_RECORDS - u64::from(blocks) + 1), "across the end of its page");
            assert!(shape.group_blocks == 1 || !run.fits(&geometry, 1), "in the middle of a group");
        }
    }

    impl Run {
        /// A run that is wrong by one block: where a group is one block, one that is too long.
        fn clipped(self, shape: RunShape) -> Self {
            if shape.group_blocks > 1 { self } else { Self { blocks: shape.blocks_max() as u32 + 1, ..self } }
        }
    }

    #[test]
    fn parts_of_a_run_have_the_blocks_of_the_run() {
        for block_bytes in sizes() {
            let shape = RunShape::new(&geometry(block_bytes), true);
            let run = Run { first: LineAddress::new(8 * UNIT_LINES), blocks: 32, vector: Some(LineAddress::new(640)), open: false };
            let part = run.part(shape, 16, 16);
            assert_eq!((part.block(shape, 3, 7), part.inline_line(shape, 3)), (run.block(shape, 19, 7), run.inline_line(shape, 19)));
        }
    }
}
