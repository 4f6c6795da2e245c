//! Runs of blocks, as the walk finds them: what is wrong with one, and the record that each of its blocks would have alone.
//!
//! [FR1] Where a record stands within a run, the record counts: the run says nothing of that block.
//! [FR2] A change of one block of a run first writes records for all of its blocks, in the same group of lines.

use tandemfs_device::Structure;
use tandemfs_format::mapping::{LINE_RECORDS, PAGE_RECORDS, Record, RecordBytes, line_records, vector_checksum};
use tandemfs_format::run::{Run, RunShape};
use tandemfs_format::{Line, LineAddress};

use crate::image::Image;
use crate::tree::{Site, Span};

/// A run in its page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundRun {
    pub(crate) page: LineAddress,
    /// Index of its record.
    pub(crate) head: u64,
    /// Its first block in the file.
    pub(crate) first: u64,
    pub(crate) run: Run,
    pub(crate) shape: RunShape,
    /// Whether it can be at all.
    pub(crate) is_possible: bool,
    /// Its blocks that are in the page and have no record of their own ([FR1]), from its start.
    pub(crate) blocks: Vec<u64>,
    /// The first of its blocks that has a record of its own.
    pub(crate) overlapped: Option<u64>,
    /// Inline checksums of its blocks; empty if it has none, `None` if they cannot be read.
    pub(crate) inline: Option<Vec<u32>>,
}

/// The line of a record of a page, and its index there.
pub(crate) fn position(page: LineAddress, index: u64) -> (LineAddress, usize) {
    (page.nth(index / LINE_RECORDS as u64), (index % LINE_RECORDS as u64) as usize)
}

impl FoundRun {
    /// A run whose record has an index in a page; `line` reads lines of that page.
    pub(crate) fn of(
        image: &Image<'_>,
        (page, head, first): (LineAddress, u64, u64),
        run: Run,
        line: impl Fn(u64) -> Option<Line>,
    ) -> Self {
        let shape = run.shape(&image.geometry);
        let is_possible = image.superblock.has_memory_homes() && run.fits(&image.geometry, head);
        let is_hole = |block: &u64| {
            let index = head + block;
            let records = line(index / LINE_RECORDS as u64).map(|line| line_records(&line));
            records.is_none_or(|records| records.get((index % LINE_RECORDS as u64) as usize) == Some(&Record::HOLE.encode()))
        };
        let inside = 0..u64::from(run.blocks).min(PAGE_RECORDS - head);
        let (mut blocks, overlapping): (Vec<u64>, Vec<u64>) = inside.skip(1).partition(is_hole);
        blocks.insert(0, 0);
        let inline = if is_possible { inline_checksums(image, &run, shape) } else { Some(Vec::new()) };
        Self { page, head, first, run, shape, is_possible, blocks, overlapped: overlapping.first().map(|block| first + block), inline }
    }

    /// Where a block's own record would be.
    pub(crate) fn site(&self, block: u64) -> Site {
        Site::InRun { page: self.page, head: self.head, block }
    }

    /// The record that a block would have alone.
    pub(crate) fn record(&self, block: u64) -> Record {
        let inline = self.inline.as_ref().and_then(|inline| inline.get(block as usize)).copied().unwrap_or_default();
        self.run.block(self.shape, block, inline)
    }

    /// The checksum lines that belong to the run itself.
    pub(crate) fn own_lines(&self) -> impl Iterator<Item = LineAddress> {
        (0..u64::from(self.run.blocks))
            .step_by(self.shape.group_blocks as usize)
            .filter_map(|block| self.run.inline_line(self.shape, block))
    }

    /// The blocks that are lost because the run says nothing of them.
    pub(crate) fn lost_span(&self) -> Option<Span> {
        let is_known = self.is_possible && self.inline.is_some();
        (!is_known).then(|| Span { first: self.first, count: u64::from(self.run.blocks).min(PAGE_RECORDS - self.head) })
    }

    /// The records of all its blocks instead of its own, with their indexes in the page: holes if it cannot be ([FR2]).
    pub(crate) fn dissolved(&self) -> impl Iterator<Item = (u64, RecordBytes)> {
        let is_known = self.is_possible && self.inline.is_some();
        self.blocks.iter().map(move |block| {
            let record = if is_known { self.record(*block) } else { Record::HOLE };
            (self.head + block, record.encode())
        })
    }
}

fn inline_checksums(image: &Image<'_>, run: &Run, shape: RunShape) -> Option<Vec<u32>> {
    let mut checksums = Vec::new();
    for block in 0..u64::from(run.blocks) {
        let Some(address) = run.inline_line(shape, block).filter(|_| !run.open) else { break };
        checksums.push(vector_checksum(&image.line(Structure::Mapping, address).ok()?, block));
    }
    Some(checksums)
}
