//! Reads the content of a file block by block, and says of each byte whether it is the file's.
//!
//! [KB1] A byte counts as good only if the pointers to it verify and its sector or log matches its checksum (or has none by the format).
//! [KB2] Under a log that cannot be found or does not match, the sectors hold older bytes: they do not count as good either.
//! [KB3] Blocks are read in batches, with many requests in flight; neighbours on the device are one request. A batch is all that is in
//!       memory, whatever the size of the file.

use std::ops::Range;

use tandemfs_device::{BlockRequest, Structure};
use tandemfs_format::inode::Inode;
use tandemfs_format::mapping::{BlockChecksum, Extent, LeafPointer, LogEntry, Record, VECTOR_LINE_SECTORS, line_entries, vector_checksum};
use tandemfs_format::segment::Region;
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_format::{DataAddress, LineAddress, PAGE_LINES, SECTOR_BYTES, Sector, UNIT_LINES};

use crate::image::Image;
use crate::mutant::{Mutant, on};
use crate::tree::{Span, Step, Walk};

/// Bytes of the file after which a batch is read: enough to keep a drive busy, and few enough for the caches of a CPU.
const BATCH_BYTES: u64 = 512 << 10;

/// What is known about some bytes of a file that its mapping or its checksums contradict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Quality {
    /// They are the file's.
    Good,
    /// They were read, and do not verify.
    Unverified,
    /// They cannot be found or read.
    Lost,
}

/// Bytes of a file, in order.
pub(crate) struct Piece<'b> {
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) quality: Quality,
    /// Empty where they are lost.
    pub(crate) bytes: &'b [u8],
}

/// A block as far as it was read.
struct Block {
    start: u64,
    bytes: Vec<u8>,
    /// In order, without overlap; between them the block is a hole.
    parts: Vec<(Range<usize>, Quality)>,
}

impl Block {
    fn paint(&mut self, range: Range<usize>, quality: Quality) {
        let range = range.start..range.end.min(self.bytes.len());
        if range.is_empty() {
            return;
        }
        let mut parts = Vec::new();
        for (part, own) in self.parts.drain(..) {
            for left in [part.start..part.end.min(range.start), part.start.max(range.end)..part.end] {
                if !left.is_empty() {
                    parts.push((left, own));
                }
            }
        }
        parts.push((range, quality));
        parts.sort_by_key(|(part, _)| part.start);
        for (part, quality) in parts {
            match self.parts.last_mut() {
                Some((last, own)) if last.end == part.start && *own == quality => last.end = part.end,
                _ => self.parts.push((part, quality)),
            }
        }
    }

    fn put(&mut self, offset: usize, from: &[u8]) {
        for (to, from) in self.bytes.iter_mut().skip(offset).zip(from) {
            *to = *from;
        }
    }
}

/// Reads a mapping. `visit` gets every piece that is not a hole, in the order of offsets, and ends the walk with an error.
pub(crate) fn read<E>(image: &Image<'_>, number: u64, inode: &Inode, visit: &mut dyn FnMut(Piece<'_>) -> Result<(), E>) -> Result<(), E> {
    let block_bytes = u64::from(image.geometry.block_bytes());
    let mut walk = Walk::new(number, inode);
    let mut pages_left = image.geometry.memory_units() * UNIT_LINES / PAGE_LINES;
    let lost = |span: Span, visit: &mut dyn FnMut(Piece<'_>) -> Result<(), E>| {
        let offset = span.first.saturating_mul(block_bytes);
        let end = span.first.saturating_add(span.count).saturating_mul(block_bytes).min(inode.size);
        if offset < end { visit(Piece { offset, length: end - offset, quality: Quality::Lost, bytes: &[] }) } else { Ok(()) }
    };
    let owner = (number, inode.generation);
    let mut batch = Batch::default();
    while let Some(step) = walk.next(image) {
        let missing = match step {
            Step::Pointer { span, page, height, .. } => {
                let is_inside = pages_left > 0 && image.segments.holds(Region::Mappings, page, PAGE_LINES);
                pages_left = pages_left.saturating_sub(1);
                let is_entered = is_inside && walk.enter(image, page, height, span.first).is_ok();
                (!is_entered).then_some(span)
            }
            Step::Block { block, record, .. } => {
                let start = block.saturating_mul(block_bytes);
                let inside = inode.size.saturating_sub(start).min(block_bytes);
                if inside > 0 {
                    batch.add(start, inside as usize, record);
                }
                None
            }
            Step::Run(found) => found.lost_span(),
            Step::DamagedLine { span, hidden, .. } => Some(Span { count: span.count.saturating_add(hidden), ..span }),
            Step::Lost { span, .. } | Step::Misfit { span, .. } | Step::DamagedRecord { span, .. } => Some(span),
        };
        if missing.is_some() || batch.bytes >= BATCH_BYTES {
            batch.give(image, owner, visit)?;
        }
        if let Some(span) = missing {
            lost(span, visit)?;
        }
    }
    batch.give(image, owner, visit)
}

/// Blocks that are read together, in their order.
#[derive(Default)]
struct Batch {
    blocks: Vec<(Block, Record)>,
    bytes: u64,
}

impl Batch {
    fn add(&mut self, start: u64, inside: usize, record: Record) {
        self.bytes += inside as u64;
        self.blocks.push((Block { start, bytes: vec![0; inside], parts: Vec::new() }, record));
    }

    /// Reads the blocks and hands them on.
    fn give<E>(&mut self, image: &Image<'_>, owner: (u64, u32), visit: &mut dyn FnMut(Piece<'_>) -> Result<(), E>) -> Result<(), E> {
        self.bytes = 0;
        let blocks = std::mem::take(&mut self.blocks);
        let wanted: Vec<(DataAddress, u64)> = blocks.iter().map(|(block, record)| sectors_of(image, block, record)).collect();
        let mut sectors = vec![0; wanted.iter().map(|(_, count)| *count as usize).sum::<usize>() * SECTOR_BYTES];
        let is_readable = load(image, &wanted, &mut sectors);
        let mut rest = sectors.as_mut_slice();
        for ((mut block, record), (_, count)) in blocks.into_iter().zip(&wanted) {
            let (own, behind) = rest.split_at_mut(*count as usize * SECTOR_BYTES);
            rest = behind;
            read_block(image, &mut block, owner, record, (own, is_readable));
            give(&block, visit)?;
        }
        Ok(())
    }
}

/// The sectors or pages of a block that are in its file and in their zone; none without a written extent.
fn sectors_of(image: &Image<'_>, block: &Block, record: &Record) -> (DataAddress, u64) {
    let Record::Block { extent: Some(extent), .. } = record else { return (DataAddress::Sector(Sector::new(0)), 0) };
    let count = u64::from(extent.count).min(block.bytes.len().div_ceil(SECTOR_BYTES) as u64);
    let is_read = !extent.unwritten && image.geometry.holds_data(extent.at, count);
    (extent.at, if is_read { count } else { 0 })
}

/// Reads runs of sectors and pages one after the other into a buffer, neighbours by one request. Returns false if not all of it could be read.
fn load(image: &Image<'_>, wanted: &[(DataAddress, u64)], into: &mut [u8]) -> bool {
    let mut runs: Vec<(DataAddress, u64)> = Vec::new();
    for (first, count) in wanted.iter().filter(|(_, count)| *count > 0) {
        match runs.last_mut() {
            Some((start, length)) if start.nth(*length) == *first => *length += count,
            _ => runs.push((*first, *count)),
        }
    }
    let mut rest = into;
    let mut requests = Vec::with_capacity(runs.len());
    let mut are_pages_read = true;
    for (at, count) in runs {
        let (buffer, behind) = rest.split_at_mut(count as usize * SECTOR_BYTES);
        rest = behind;
        match at {
            DataAddress::Sector(sector) => requests.push(BlockRequest::Read { sector, buffer: buffer.into() }),
            page @ DataAddress::Page(_) => are_pages_read &= image.data(page, buffer).is_ok(),
        }
    }
    are_pages_read && (requests.is_empty() || image.drive.transfer(Structure::Data, &mut requests, &mut || {}).is_ok())
}

fn give<E>(block: &Block, visit: &mut dyn FnMut(Piece<'_>) -> Result<(), E>) -> Result<(), E> {
    for (part, quality) in &block.parts {
        let bytes = if *quality == Quality::Lost { &[] } else { block.bytes.get(part.clone()).unwrap_or_default() };
        visit(Piece { offset: block.start + part.start as u64, length: part.len() as u64, quality: *quality, bytes })?;
    }
    Ok(())
}

/// Verifies a block with its sectors as far as they were read.
fn read_block(image: &Image<'_>, block: &mut Block, owner: (u64, u32), record: Record, sectors: (&mut [u8], bool)) {
    match record {
        Record::Block { extent, leaf } => {
            if let Some(extent) = extent.filter(|extent| !extent.unwritten) {
                let logs = leaf.filter(|_| extent.overlaid).map(|leaf| entries_of(image, owner, leaf));
                read_extent(image, block, (extent, &logs.unwrap_or_default()), sectors);
            }
            if let Some(leaf) = leaf {
                read_leaf(image, block, owner, leaf);
            }
        }
        Record::SingleLog(log) => read_log(image, block, &log),
        // Records of directories and of the tree, and states that say that the content is lost.
        _ => block.paint(0..block.bytes.len(), Quality::Lost),
    }
}

/// `over`: the logs that lie over the pages of which it has the checksums.
fn read_extent(image: &Image<'_>, block: &mut Block, (extent, over): (Extent, &[LogEntry]), (bytes, is_readable): (&mut [u8], bool)) {
    let sectors = u64::from(extent.count).min(block.bytes.len().div_ceil(SECTOR_BYTES) as u64);
    if bytes.is_empty() {
        return block.paint(0..sectors as usize * SECTOR_BYTES, Quality::Lost); // outside the zone
    }
    let checksums = checksums_of(image, extent, sectors);
    for (index, sector) in bytes.chunks_exact_mut(SECTOR_BYTES).enumerate() {
        let range = index * SECTOR_BYTES..(index + 1) * SECTOR_BYTES;
        if !is_readable && image.data(extent.at.nth(index as u64), sector).is_err() {
            block.paint(range, Quality::Lost);
            continue;
        }
        over.iter().for_each(|log| image.lay_log(log, range.start, sector));
        block.put(range.start, sector);
        let is_good = match &checksums {
            Checksums::None => true,
            Checksums::Missing => false,
            Checksums::Of(checksums) => checksums.get(index) == Some(&image.pair.data(sector)),
        };
        let is_good = is_good || on(Mutant::RestoresUnverified);
        block.paint(range, if is_good { Quality::Good } else { Quality::Unverified });
    }
}

enum Checksums {
    /// The data have none.
    None,
    /// They cannot be read.
    Missing,
    Of(Vec<u32>),
}

fn checksums_of(image: &Image<'_>, extent: Extent, sectors: u64) -> Checksums {
    match extent.checksum {
        BlockChecksum::None | BlockChecksum::Open(_) => Checksums::None,
        BlockChecksum::Inline(checksum) => Checksums::Of(vec![checksum]),
        BlockChecksum::Vector(vector) => {
            let lines = sectors.div_ceil(VECTOR_LINE_SECTORS);
            if !image.segments.holds(Region::Leaves, vector, lines) {
                return Checksums::Missing;
            }
            let mut found = Vec::new();
            for line in 0..lines {
                // A line that cannot be read makes the checksums of its sectors unknown, and these few are not worth another case.
                let Ok(bytes) = image.line(Structure::Mapping, vector.nth(line)) else { return Checksums::Missing };
                found.extend((0..VECTOR_LINE_SECTORS).map(|sector| vector_checksum(&bytes, sector)));
            }
            Checksums::Of(found)
        }
    }
}

fn read_leaf(image: &Image<'_>, block: &mut Block, (number, generation): (u64, u32), leaf: LeafPointer) {
    let mut logs = Vec::new();
    let mut is_whole = image.segments.holds(Region::Leaves, leaf.address, leaf.lines());
    if is_whole {
        for line in 0..leaf.lines() {
            match leaf_entries(image, number, generation, leaf.address.nth(line)) {
                Some(entries) => logs.extend(entries),
                None => is_whole = false,
            }
        }
    }
    if !is_whole || logs.is_empty() {
        block.paint(0..block.bytes.len(), Quality::Unverified); // [KB2]
    }
    for log in logs {
        read_log(image, block, &log);
    }
}

/// The entries of a leaf that can be read.
fn entries_of(image: &Image<'_>, (number, generation): (u64, u32), leaf: LeafPointer) -> Vec<LogEntry> {
    let is_there = image.segments.holds(Region::Leaves, leaf.address, leaf.lines());
    let lines = (0..leaf.lines()).filter(|_| is_there);
    lines.filter_map(|line| leaf_entries(image, number, generation, leaf.address.nth(line))).flatten().collect()
}

fn leaf_entries(image: &Image<'_>, number: u64, generation: u32, address: LineAddress) -> Option<Vec<LogEntry>> {
    let bytes = image.line(Structure::Mapping, address).ok()?;
    image.place(number, generation, address).verify(&bytes).ok()?;
    Some(line_entries(&bytes, address).ok()?.into_iter().flatten().collect())
}

fn read_log(image: &Image<'_>, block: &mut Block, log: &LogEntry) {
    let range = log.offset as usize..log.end() as usize;
    let is_inside = image.geometry.holds_lines(log.address, log.class.lines()) && image.segments.of_unit(log.address.unit()).is_none();
    let mut bytes = vec![0; log.length as usize];
    if !is_inside || image.load_part(Structure::DataLog, log.address, &mut bytes).is_err() {
        return block.paint(range, Quality::Lost);
    }
    let is_good = image.superblock.checksum_kind == ChecksumKind::None || image.pair.data(&bytes) == log.crc;
    block.put(range.start, &bytes);
    block.paint(range, if is_good || on(Mutant::RestoresUnverified) { Quality::Good } else { Quality::Unverified });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_paint_counts() {
        let mut block = Block { start: 0, bytes: vec![0; 100], parts: Vec::new() };
        block.paint(0..50, Quality::Good);
        block.paint(10..20, Quality::Lost);
        block.paint(20..30, Quality::Lost);
        block.paint(90..200, Quality::Good);
        block.paint(100..120, Quality::Good);
        let parts = [(0..10, Quality::Good), (10..30, Quality::Lost), (30..50, Quality::Good), (90..100, Quality::Good)];
        assert_eq!(block.parts, parts);
        block.paint(0..100, Quality::Unverified);
        assert_eq!(block.parts, [(0..100, Quality::Unverified)]);
    }
}
