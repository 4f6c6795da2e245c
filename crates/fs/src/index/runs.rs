//! Runs of blocks in pages of the tree (`format/src/run.rs`): their blocks are found, and they are split.
//!
//! [BR1] A run is a shorter way to write records. What is above the tree sees, for each of its blocks, the record that the block would have
//!       alone: its own pages, its own lines of checksums. So a split changes nothing for who holds the range of another block of the run.
//! [BR2] A split changes lines of one mapping page and takes no space: it cannot fail for lack of it (RULES R14).
//! [BR3] Where a block is one page, the checksum lines belong to the run, a line for each group of sixteen blocks. The transaction that
//!       takes a group apart puts its checksums into records and frees the line. A record read before has its checksum with it.
//! [BR4] Within a run no other record stands. Who sets or clears records splits the runs across the ends of that range first.
//! [BR5] What belongs to a hole may be found only before it: the record before it in its page says whether it is in a run. A damaged line
//!       between them hides that, and is an error.

use std::ops::Range;

use smallvec::SmallVec;
use tandemfs_device::Structure;
use tandemfs_format::hole_lines::holds_only_holes;
use tandemfs_format::mapping::{LINE_RECORDS, PAGE_RECORDS, Record, RecordBytes, line_records, vector_checksum};
use tandemfs_format::run::{Run, RunShape};
use tandemfs_format::segment::Region;
use tandemfs_format::{Line, LineAddress};

use super::tree::{self, decode, put};
use crate::alloc::Need;
use crate::cache::{LineStore, Owner, damaged};
use crate::error::Result;
use crate::mutant::{Mutant, on};
use crate::space;
use crate::volume::Tx;

/// Lines of a mapping: as they are, or as a transaction changes them.
pub(super) trait MappingLines {
    fn store(&self) -> &LineStore;
    fn line(&self, owner: Owner, address: LineAddress) -> Result<Line>;
    fn raw(&self, address: LineAddress) -> Result<Line>;
}

impl MappingLines for LineStore {
    fn store(&self) -> &LineStore {
        self
    }

    fn line(&self, owner: Owner, address: LineAddress) -> Result<Line> {
        self.mapping_line(owner, address)
    }

    fn raw(&self, address: LineAddress) -> Result<Line> {
        self.raw_line(Structure::Mapping, address)
    }
}

impl MappingLines for Tx<'_> {
    fn store(&self) -> &LineStore {
        self.volume()
    }

    fn line(&self, owner: Owner, address: LineAddress) -> Result<Line> {
        self.mapping_line(owner, address)
    }

    fn raw(&self, address: LineAddress) -> Result<Line> {
        self.raw_line(Structure::Mapping, address)
    }
}

/// A page of height 1, and the first block that it covers.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockPage {
    pub(super) page: LineAddress,
    pub(super) base: u64,
}

fn record_at(lines: &impl MappingLines, owner: Owner, page: LineAddress, index: u64) -> Result<Record> {
    let address = page.nth(index / LINE_RECORDS as u64);
    decode(owner, &line_records(&lines.line(owner, address)?)[(index % LINE_RECORDS as u64) as usize], address)
}

/// The shape of a run with this record; refuses one that cannot be.
pub(crate) fn verified(store: &LineStore, owner: Owner, run: &Run, page: LineAddress, index: u64) -> Result<RunShape> {
    match store.has_memory_homes() && run.fits(&store.geometry, index) {
        true => Ok(run.shape(&store.geometry)),
        false => Err(damaged(owner, page.nth(index / LINE_RECORDS as u64), "run")),
    }
}

/// The run that covers a record of a page: its index, and the run.
pub(super) fn covering(lines: &impl MappingLines, owner: Owner, at: BlockPage, index: u64) -> Result<Option<(u64, Run)>> {
    let store = lines.store();
    if !store.has_memory_homes() || index >= PAGE_RECORDS {
        return Ok(None);
    }
    let found = |head: u64, run: Run| {
        let _shape = verified(store, owner, &run, at.page, head)?;
        Ok((index < head + u64::from(run.blocks)).then_some((head, run)))
    };
    match record_at(lines, owner, at.page, index)? {
        Record::Run(run) => return found(index, run),
        Record::HOLE => {}
        _ => return Ok(None),
    }
    // Most runs start at a multiple of their greatest length, or with their page.
    let most = RunShape::new(&store.geometry, true).blocks_max().next_power_of_two();
    let likely = ((at.base + index) / most * most).max(at.base) - at.base;
    if let Ok(Record::Run(run)) = record_at(lines, owner, at.page, likely)
        && let Ok(Some(found)) = found(likely, run)
    {
        return Ok(Some(found));
    }
    match record_before(lines, owner, at.page, index)? {
        Some((head, Record::Run(run))) => found(head, run),
        _ => Ok(None),
    }
}

/// The last record before an index of a page that is not a hole, with its index, as far as a run can reach ([BR5]).
fn record_before(lines: &impl MappingLines, owner: Owner, page: LineAddress, index: u64) -> Result<Option<(u64, Record)>> {
    let reach = RunShape::new(&lines.store().geometry, false).blocks_max();
    let records = LINE_RECORDS as u64;
    for line in (index.saturating_sub(reach) / records..index.div_ceil(records)).rev() {
        let (address, first) = (page.nth(line), line * records);
        let bytes = lines.line(owner, address)?;
        if holds_only_holes(&bytes) {
            continue;
        }
        let mut last = None;
        for (at, record) in (first..index).zip(line_records(&bytes)) {
            let record = decode(owner, &record, address)?;
            last = if record == Record::HOLE { last } else { Some((at, record)) };
        }
        if last.is_some() {
            return Ok(last);
        }
    }
    Ok(None)
}

/// The record that a block of a run would have alone ([BR1]).
pub(super) fn block_of(lines: &impl MappingLines, owner: Owner, run: &Run, shape: RunShape, index: u64) -> Result<Record> {
    let inline = match run.inline_line(shape, index).filter(|_| !run.open) {
        None => 0,
        Some(line) => {
            lines.store().check_address(owner, line)?;
            vector_checksum(&lines.raw(line)?, index)
        }
    };
    Ok(run.block(shape, index, inline))
}

/// The record of a block, by the page that covers it.
pub(super) fn lookup(store: &LineStore, owner: Owner, at: BlockPage, index: u64) -> Result<Record> {
    match covering(store, owner, at, index)? {
        Some((head, run)) => block_of(store, owner, &run, run.shape(&store.geometry), index - head),
        None => Ok(Record::HOLE),
    }
}

/// Visits the lines that belong to a run itself ([BR3]), for a part of it in whole groups.
pub(crate) fn own_lines(run: &Run, shape: RunShape, blocks: Range<u64>) -> impl Iterator<Item = LineAddress> {
    blocks.step_by(shape.group_blocks as usize).filter_map(move |block| run.inline_line(shape, block))
}

/// Frees the lines that belong to a run itself, for a part of it in whole groups.
pub(super) fn free_own_lines(tx: &mut Tx<'_>, run: &Run, shape: RunShape, blocks: Range<u64>) {
    for line in own_lines(run, shape, blocks).filter(|_| !on(Mutant::RunLinesKept)) {
        tx.free(space::region(Region::Leaves, line, 1));
    }
}

/// Makes the record at an index the first of what it belongs to: splits a run across it ([BR2]).
pub(super) fn split_at(tx: &mut Tx<'_>, owner: Owner, at: BlockPage, index: u64) -> Result<()> {
    if index == 0 || index >= PAGE_RECORDS || on(Mutant::RunNotSplit) {
        return Ok(());
    }
    let Some((head, run)) = covering(tx, owner, at, index)? else { return Ok(()) };
    if head == index {
        return Ok(());
    }
    let shape = run.shape(&tx.volume().geometry);
    let left = (index - head) / shape.group_blocks * shape.group_blocks;
    let right = (index - head).next_multiple_of(shape.group_blocks);
    let mut records: SmallVec<[(u64, Record); 16]> = SmallVec::new();
    put_part(tx, owner, &run, shape, 0..left, &mut records)?;
    for block in left..right {
        records.push((block, block_of(tx, owner, &run, shape, block)?));
    }
    put_part(tx, owner, &run, shape, right..run.blocks.into(), &mut records)?;
    for (block, record) in records {
        put(tx, owner, at.page, head + block, record)?;
    }
    free_own_lines(tx, &run, shape, left..right);
    Ok(())
}

/// Adds what a part of a run in whole groups becomes: nothing, the record of one block, or a run.
fn put_part(
    tx: &Tx<'_>,
    owner: Owner,
    run: &Run,
    shape: RunShape,
    blocks: Range<u64>,
    records: &mut SmallVec<[(u64, Record); 16]>,
) -> Result<()> {
    match blocks.end - blocks.start {
        0 => {}
        1 => records.push((blocks.start, block_of(tx, owner, run, shape, blocks.start)?)),
        count => records.push((blocks.start, Record::Run(run.part(shape, blocks.start, count)))),
    }
    Ok(())
}

/// Makes a record of a page one of its own: neither does a run cover it, nor is it a run.
pub(super) fn isolate(tx: &mut Tx<'_>, owner: Owner, at: BlockPage, index: u64) -> Result<()> {
    split_at(tx, owner, at, index)?;
    split_at(tx, owner, at, index + 1)
}

/// Puts a run in place of the records of its blocks. The caller frees what they name.
pub(super) fn put_run(tx: &mut Tx<'_>, owner: Owner, at: BlockPage, index: u64, run: Run) -> Result<()> {
    let end = index + u64::from(run.blocks);
    split_at(tx, owner, at, index)?;
    split_at(tx, owner, at, end)?; // [BR4]
    for inner in index..end {
        let old = record_at(tx, owner, at.page, inner)?;
        if let Record::Run(old) = old {
            let shape = verified(tx.volume(), owner, &old, at.page, inner)?;
            free_own_lines(tx, &old, shape, 0..old.blocks.into());
        }
        let new = if inner == index { Record::Run(run) } else { Record::HOLE };
        if old != new {
            put(tx, owner, at.page, inner, new)?;
        }
    }
    Ok(())
}

/// Takes the checksum lines of a run. An allocation is a power of two; what is left of it goes back at once.
pub(crate) fn take_lines(tx: &mut Tx<'_>, shape: RunShape, blocks: u64, need: Need) -> Result<LineAddress> {
    let (volume, lines) = (tx.volume(), shape.lines(blocks));
    let first = volume.take_lines(Region::Leaves, lines.next_power_of_two(), need)?;
    for line in (0..lines).step_by(shape.group_lines as usize) {
        tx.took(space::region(Region::Leaves, first.nth(line), shape.group_lines));
    }
    for line in lines..lines.next_power_of_two() {
        volume.give_back(space::region(Region::Leaves, first.nth(line), 1));
    }
    Ok(first)
}

/// Moves the checksum lines of a run, if `wants` says so of their address. Returns their number. The caller holds the range of all its
/// blocks, and the inode's lock; it writes the inode.
pub(crate) fn relocate(
    tx: &mut Tx<'_>,
    owner: Owner,
    root: &mut RecordBytes,
    (block, run): (u64, Run),
    wants: &dyn Fn(LineAddress) -> bool,
) -> Result<u64> {
    let volume = tx.volume();
    let (shape, blocks) = (run.shape(&volume.geometry), u64::from(run.blocks));
    let Some(old) = run.vector.filter(|vector| wants(*vector)) else { return Ok(0) };
    let groups = (0..shape.lines(blocks)).step_by(shape.group_lines as usize);
    for line in groups.clone() {
        volume.check_object(owner, Region::Leaves, old.nth(line), shape.group_lines)?;
    }
    let new = take_lines(tx, shape, blocks, Need::Move)?;
    for line in 0..shape.lines(blocks) {
        let image = volume.raw_line(Structure::Mapping, old.nth(line))?;
        tx.put(Structure::Mapping, new.nth(line), image)?;
    }
    if shape.group_blocks == 1 {
        groups.for_each(|line| tx.free(space::region(Region::Leaves, old.nth(line), shape.group_lines)));
    } // else the run's own lines are freed with the record that is replaced
    tree::set(tx, volume, owner, root, block, Record::Run(Run { vector: Some(new), ..run }), Need::Move)?;
    Ok(shape.lines(blocks))
}
