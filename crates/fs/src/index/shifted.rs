//! Builds the shifted radix tree of a file after a collapse or an insert moved its blocks.
//!
//! [SH1] The new tree is built beside the old one, in fresh unlinked pages. They are fenced before the single transaction that puts the new
//!       root into the inode and frees the old pages, so any shift is complete or not done (RULES R11). A crash before that leaves unlinked
//!       pages, which the rebuild of the maps finds free.
//! [SH2] A page whose blocks all keep their place, or all move to a place that a page may have, is linked into the new tree unchanged: a
//!       shift costs only the pages after its place, 4 KiB for 192 blocks, and no data.
//! [SH3] A fresh page is stored whole and its host copy is updated too ([ST3] of `stream.rs`); journal records name it only after the link.
//!       Old pages are reused after the watermark has passed the transaction (RULES R6).
//! [SH5] A lost subtree stays one record where its page could stay. Else it becomes records of smaller parts, of single blocks in the end;
//!       one that would become more than 192 pages of them is refused.
//! [SH4] All frees come before the first allocation, because for each free a transaction searches the list of its allocations.

use tandemfs_device::{Fenced, InFlight, Lines, Structure};
use tandemfs_format::hole_lines::holds_only_holes;
use tandemfs_format::mapping::{HEIGHT_MAX, LINE_RECORDS, PAGE_RECORDS, Record, RecordBytes, line_records};
use tandemfs_format::segment::Region;
use tandemfs_format::{LineAddress, PAGE_LINES};

use super::runs;
use super::tree::{Below, IN_INODE, below, capacity, decode};
use crate::alloc::Need;
use crate::cache::{LineStore, Owner};
use crate::error::{Error, Result};
use crate::mutant::{Mutant, on};
use crate::space;
use crate::volume::Tx;

/// Greatest height of a lost subtree that is taken apart ([SH5]).
const LOST_HEIGHT_MAX: u32 = 2;

/// Which blocks are removed, and how far the blocks after them move.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shift {
    /// The first block that is removed or moves.
    pub(crate) at: u64,
    /// Number of blocks removed from there on.
    pub(crate) gone: u64,
    /// Number of hole blocks inserted there.
    pub(crate) added: u64,
    /// Maximum number of blocks of a file.
    pub(crate) blocks_max: u64,
}

impl Shift {
    /// The new place of a block; `None` if it is removed.
    fn target(&self, block: u64) -> Result<Option<u64>> {
        if block < self.at {
            return Ok(Some(block));
        }
        match block.checked_sub(self.at + self.gone).map(|behind| self.at + self.added + behind) {
            Some(target) if target >= self.blocks_max => Err(Error::FileTooLarge),
            target => Ok(target),
        }
    }

    /// The new place of a page that covers `covered` blocks from `base` on, if the page can stay unchanged ([SH2]).
    fn target_of_page(&self, base: u64, covered: u64) -> Option<u64> {
        if base.saturating_add(covered) <= self.at {
            return Some(base);
        }
        let target = self.at + self.added + base.checked_sub(self.at + self.gone)?;
        (target.is_multiple_of(covered) && target.saturating_add(covered) <= self.blocks_max).then_some(target)
    }
}

/// Items found by a walk over the old tree.
enum Part {
    /// A page to free.
    Page(LineAddress),
    /// A run that becomes records of its blocks: a checksum line of its own to free ([BR3] of `runs.rs`).
    RunLine(LineAddress),
    /// A record of the new tree at a height (0: a block), and its index among the records of that height.
    Record(u32, u64, Record),
}

/// Builds the shifted tree in a transaction that has no allocations yet; returns its root, to be committed with the proof. The caller frees
/// the removed blocks, and holds the lock of the whole file and the inode's lock.
///
/// # Errors
/// `NoSpace` if there is no space for the pages, `FileTooLarge` if a block would move beyond the largest file.
pub(crate) fn shifted(tx: &mut Tx<'_>, owner: Owner, root: RecordBytes, shift: &Shift) -> Result<(RecordBytes, Fenced)> {
    let volume = tx.volume();
    walk(volume, owner, root, shift, &mut |part| {
        match part {
            Part::Page(page) => tx.free(space::region(Region::Mappings, page, PAGE_LINES)), // [SH4]
            Part::RunLine(line) => tx.free(space::region(Region::Leaves, line, 1)),
            Part::Record(..) => {}
        }
        Ok(())
    })?;
    let mut builder = Builder { tx, owner, open: [const { None }; LEVELS], in_flight: Lines::none() };
    walk(volume, owner, root, shift, &mut |part| match part {
        Part::Page(_) | Part::RunLine(_) => Ok(()),
        Part::Record(height, index, record) => builder.put(height as usize, index, record),
    })?;
    let root = builder.finish()?;
    Ok((root, volume.drive.fence(builder.in_flight)))
}

fn walk(store: &LineStore, owner: Owner, root: RecordBytes, shift: &Shift, visit: &mut dyn FnMut(Part) -> Result<()>) -> Result<()> {
    match decode(owner, &root, IN_INODE)? {
        Record::HOLE => Ok(()),
        Record::Pointer { page, height } => walk_page(store, owner, (page, height), 0, shift, visit),
        Record::Lost { height: height @ 1.., .. } => lost(shift, height, 0, visit),
        block => shift.target(0)?.map_or(Ok(()), |target| visit(Part::Record(0, target, block))),
    }
}

/// The height bounds the recursion, as in `tree.rs`.
fn walk_page(
    store: &LineStore,
    owner: Owner,
    (page, height): (LineAddress, u32),
    base: u64,
    shift: &Shift,
    visit: &mut dyn FnMut(Part) -> Result<()>,
) -> Result<()> {
    let covered = capacity(height);
    if let Some(target) = shift.target_of_page(base, covered) {
        return visit(Part::Record(height, target / covered, Record::Pointer { page, height }));
    }
    visit(Part::Page(page))?;
    let each = capacity(height - 1);
    for line_index in 0..PAGE_LINES {
        let line = page.nth(line_index);
        let bytes = store.mapping_line(owner, line)?;
        if holds_only_holes(&bytes) {
            continue;
        }
        for (index, record) in (line_index * LINE_RECORDS as u64..).zip(line_records(&bytes)) {
            let record = decode(owner, &record, line)?;
            if record == Record::HOLE {
                continue;
            }
            let first = base.saturating_add(each.saturating_mul(index));
            match below(owner, record, line, height)? {
                Below::Hole => {}
                Below::Page(next) => walk_page(store, owner, (next, height - 1), first, shift, visit)?,
                Below::Block => shift.target(first)?.map_or(Ok(()), |target| visit(Part::Record(0, target, record)))?,
                Below::Run(run) => {
                    let shape = runs::verified(store, owner, &run, page, index)?;
                    runs::own_lines(&run, shape, 0..run.blocks.into()).try_for_each(|line| visit(Part::RunLine(line)))?;
                    for inner in 0..u64::from(run.blocks) {
                        if let Some(target) = shift.target(first + inner)? {
                            visit(Part::Record(0, target, runs::block_of(store, owner, &run, shape, inner)?))?;
                        }
                    }
                }
                Below::Lost => lost(shift, height - 1, first, visit)?,
            }
        }
    }
    Ok(())
}

/// A lost subtree from `first` on. Parts of it that move to another place in their page become records of their own ([SH5]).
fn lost(shift: &Shift, height: u32, first: u64, visit: &mut dyn FnMut(Part) -> Result<()>) -> Result<()> {
    let covered = capacity(height);
    if shift.at <= first && first.saturating_add(covered) <= shift.at + shift.gone {
        return Ok(());
    }
    if let Some(target) = shift.target_of_page(first, covered) {
        return visit(Part::Record(height, target / covered, Record::Lost { height, leaf: None }));
    }
    if height == 0 {
        return shift.target(first)?.map_or(Ok(()), |target| visit(Part::Record(0, target, Record::LOST)));
    }
    if height > LOST_HEIGHT_MAX {
        return Err(Error::InvalidArgument("so large a lost range cannot be moved; punch it first"));
    }
    let each = capacity(height - 1);
    (0..PAGE_RECORDS).try_for_each(|index| lost(shift, height - 1, first.saturating_add(each.saturating_mul(index)), visit))
}

/// Levels of records: block records, and pointers to pages of each height.
const LEVELS: usize = HEIGHT_MAX as usize + 1;

/// A page being filled: its index among the pages of its height, and its records.
struct Open {
    number: u64,
    records: Box<[RecordBytes]>,
}

/// Takes records in file order. One page of each height is open at a time.
struct Builder<'b, 'v> {
    tx: &'b mut Tx<'v>,
    owner: Owner,
    open: [Option<Open>; LEVELS],
    in_flight: Lines<InFlight>,
}

impl Builder<'_, '_> {
    fn put(&mut self, level: usize, index: u64, record: Record) -> Result<()> {
        // Pages open at lower levels come first in file order.
        for lower in 0..level {
            self.close(lower)?;
        }
        let number = index / PAGE_RECORDS;
        if self.open[level].as_ref().is_some_and(|open| open.number != number) {
            self.close(level)?;
        }
        let open = self.open[level]
            .get_or_insert_with(|| Open { number, records: vec![Record::HOLE.encode(); PAGE_RECORDS as usize].into_boxed_slice() });
        open.records[(index % PAGE_RECORDS) as usize] = record.encode();
        Ok(())
    }

    /// Stores the open page of a level and adds its pointer one level up.
    fn close(&mut self, level: usize) -> Result<()> {
        let Some(open) = self.open[level].take() else { return Ok(()) };
        if level + 1 == LEVELS {
            return Err(Error::FileTooLarge);
        }
        let page = self.store(&open.records)?;
        self.put(level + 1, open.number, Record::Pointer { page, height: level as u32 + 1 })
    }

    /// Returns the root of the tree.
    fn finish(&mut self) -> Result<RecordBytes> {
        let hole = Record::HOLE.encode();
        for level in 0..LEVELS {
            let is_top = self.open[level + 1..].iter().all(Option::is_none);
            match &self.open[level] {
                // A page that holds only its first record is not needed.
                Some(open) if is_top && open.number == 0 && open.records[1..].iter().all(|record| *record == hole) => {
                    return Ok(open.records[0]);
                }
                _ => self.close(level)?,
            }
        }
        Ok(hole)
    }

    /// Stores a fresh page with these records ([SH3]).
    fn store(&mut self, records: &[RecordBytes]) -> Result<LineAddress> {
        let volume = self.tx.volume();
        let page = volume.take_lines(Region::Mappings, PAGE_LINES, Need::Growth)?;
        self.tx.took(space::region(Region::Mappings, page, PAGE_LINES));
        let mut bytes = Vec::with_capacity(tandemfs_format::PAGE_BYTES);
        for (index, records) in (0..).zip(records.as_chunks::<LINE_RECORDS>().0) {
            bytes.extend(volume.holes.line(records, &volume.place(self.owner, page.nth(index))));
        }
        let host = volume.pages.insert_zeroed(&volume.live.work, Structure::Mapping, page)?;
        let stored = self.tx.suspect_if_failed(volume.drive.store(Structure::Mapping, page, &bytes).map_err(Error::from))?;
        if !on(Mutant::ShiftedPagesNotFenced) {
            let before = std::mem::replace(&mut self.in_flight, Lines::none());
            self.in_flight = before.and(volume.drive.flush_lines(stored));
        }
        host.follow(page, &bytes);
        Ok(page)
    }
}
