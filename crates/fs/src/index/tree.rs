//! The radix tree of block records: 192 records a page, rooted in the inode.
//!
//! [X1] A new page is zeroed, or its lines are sealed (RULES R27), and fenced before it is linked (R6); its lines and the pointer to it are
//!      in one transaction.
//! [X2] The lock of the inode protects all lines of its tree (RULES R5).
//! [X3] Clearing a range frees whole pages by clearing the pointer to them: one line for 192 records, so any truncation is one bounded
//!      transaction (RULES R11). A page that becomes empty is freed too.
//! [X4] A lost subtree ([`Record::Lost`]) is one record until a part of it is overwritten or cleared: then fresh pages map the parts that are
//!      left, written whole and fenced before they are linked ([X1]). So no part of it turns into a hole (RULES R28).

use std::ops::{ControlFlow, Range};

use smallvec::SmallVec;
use tandemfs_device::Structure;
use tandemfs_format::hole_lines::holds_only_holes;
use tandemfs_format::mapping::{HEIGHT_MAX, LINE_RECORDS, PAGE_RECORDS, Record, RecordBytes, line_records, with_record};
use tandemfs_format::run::Run;
use tandemfs_format::segment::Region;
use tandemfs_format::{Corrupt, LineAddress, PAGE_LINES, UNIT_LINES};

use super::runs::{self, BlockPage};
use crate::alloc::Need;
use crate::cache::{LineStore, Owner};
use crate::error::{Error, Result};
use crate::mutant::{Mutant, on};
use crate::space;
use crate::volume::{Tx, Volume};

/// Blocks that a tree of this height covers. Height 0 is the record in the inode.
pub(crate) fn capacity(height: u32) -> u64 {
    PAGE_RECORDS.checked_pow(height).unwrap_or(u64::MAX)
}

fn height_of(root: &Record) -> u32 {
    match root {
        Record::Pointer { height, .. } | Record::Lost { height, .. } => *height,
        _ => 0,
    }
}

/// The line of a record in a page, and its position in that line.
fn position(page: LineAddress, index: u64) -> (LineAddress, usize) {
    (page.nth(index / LINE_RECORDS as u64), (index % LINE_RECORDS as u64) as usize)
}

/// The place in the inode that errors of the root record report.
pub(super) const IN_INODE: LineAddress = LineAddress::new(0);

fn damaged(owner: Owner, source: Corrupt) -> Error {
    Error::Damaged { inode: owner.inode, source }
}

pub(super) fn decode(owner: Owner, bytes: &RecordBytes, line: LineAddress) -> Result<Record> {
    match bytes.decode(line) {
        Ok(Record::Lost { .. }) if on(Mutant::LostReadsAsHole) => Ok(Record::HOLE),
        other => other.map_err(|source| damaged(owner, source)),
    }
}

/// What a record of a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Below {
    /// A hole.
    Hole,
    /// A block.
    Block,
    /// Blocks in a row.
    Run(Run),
    /// A pointer to a page one level down.
    Page(LineAddress),
    /// A lost subtree.
    Lost,
}

/// What a record in a page of height `height` is. A pointer, and a lost subtree, must be one level lower.
pub(super) fn below(owner: Owner, record: Record, line: LineAddress, height: u32) -> Result<Below> {
    let wrong = |found| Err(damaged(owner, Corrupt::Field { address: line, field: "state", found }));
    match (height, record) {
        (_, Record::HOLE) => Ok(Below::Hole),
        (1, Record::Pointer { .. }) => wrong(6),
        (1, Record::Lost { height: 1.., .. }) => wrong(7),
        (1, Record::Run(run)) => Ok(Below::Run(run)),
        (1, _) => Ok(Below::Block),
        (_, Record::Pointer { page, height: lower }) if lower + 1 == height => Ok(Below::Page(page)),
        (_, Record::Lost { height: lower, .. }) if lower + 1 == height => Ok(Below::Lost),
        _ => wrong(0),
    }
}

/// Looks up the record of a block.
pub(crate) fn lookup(store: &LineStore, owner: Owner, root: RecordBytes, block: u64) -> Result<Record> {
    let mut record = decode(owner, &root, IN_INODE)?;
    let mut height = height_of(&record);
    if block >= capacity(height) {
        return Ok(Record::HOLE);
    }
    let mut rest = block;
    while height > 0 {
        let page = match record {
            Record::Pointer { page, .. } => page,
            Record::Lost { .. } => return Ok(Record::LOST),
            _ => return Ok(Record::HOLE),
        };
        let each = capacity(height - 1);
        let (line, index) = position(page, rest / each);
        let bytes = line_records(&store.mapping_line(owner, line)?)[index];
        record = decode(owner, &bytes, line)?;
        match below(owner, record, line, height)? {
            Below::Hole | Below::Run(_) if height == 1 => return runs::lookup(store, owner, BlockPage { page, base: block - rest }, rest),
            _ => {}
        }
        rest %= each;
        height -= 1;
    }
    match record {
        Record::Pointer { .. } => Err(damaged(owner, Corrupt::Field { address: IN_INODE, field: "state", found: 6 })),
        Record::Run(_) => Err(damaged(owner, Corrupt::Field { address: IN_INODE, field: "state", found: 5 })),
        record => Ok(record),
    }
}

/// Looks up the records of a range of blocks in one descent.
pub(crate) fn lookup_range(store: &LineStore, owner: Owner, root: RecordBytes, blocks: Range<u64>) -> Result<SmallVec<[Record; 2]>> {
    if blocks.end - blocks.start == 1 {
        return lookup(store, owner, root, blocks.start).map(|record| SmallVec::from_iter([record]));
    }
    let mut records = SmallVec::from_elem(Record::HOLE, (blocks.end - blocks.start) as usize);
    let _whole = walk_range(store, owner, root, blocks.clone(), &mut |found| {
        match found {
            Found::Page { .. } | Found::Run(..) => {}
            Found::Block(block, record) => records[(block - blocks.start) as usize] = record,
            Found::Lost(lost) => records[(lost.start - blocks.start) as usize..(lost.end - blocks.start) as usize].fill(Record::LOST),
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(records)
}

/// Sets the record of a block in a transaction; grows the tree as needed. `root` belongs to the inode; the caller writes the inode. Returns
/// the number of pages added.
pub(crate) fn set(
    tx: &mut Tx<'_>,
    volume: &Volume,
    owner: Owner,
    root: &mut RecordBytes,
    block: u64,
    record: Record,
    need: Need,
) -> Result<u64> {
    let is_run = matches!(record, Record::Run(_));
    let mut added = 0;
    let mut top = decode(owner, root, IN_INODE)?;
    while block >= capacity(height_of(&top)) || is_run && height_of(&top) == 0 {
        if record == Record::HOLE {
            return Ok(added);
        }
        let height = height_of(&top) + 1;
        if height > HEIGHT_MAX {
            return Err(Error::FileTooLarge);
        }
        let page = new_page(tx, volume, owner, need)?;
        added += 1;
        if top != Record::HOLE {
            put(tx, owner, page, 0, top)?;
        }
        top = Record::Pointer { page, height };
        *root = top.encode();
    }
    if let Record::Lost { height: 1.., .. } = top {
        top = split_lost(tx, owner, (height_of(&top), 0), &(block..block + 1), need)?; // [X4]
        *root = top.encode();
    }
    let Record::Pointer { mut page, mut height } = top else {
        *root = record.encode();
        return Ok(added);
    };
    let mut rest = block;
    while height > 1 {
        let each = capacity(height - 1);
        let (line, index) = position(page, rest / each);
        let bytes = line_records(&tx.mapping_line(owner, line)?)[index];
        let next = match below(owner, decode(owner, &bytes, line)?, line, height)? {
            Below::Page(next) => next,
            Below::Hole if record == Record::HOLE => return Ok(added),
            Below::Hole | Below::Block | Below::Run(_) => {
                let next = new_page(tx, volume, owner, need)?;
                added += 1;
                put(tx, owner, page, rest / each, Record::Pointer { page: next, height: height - 1 })?;
                next
            }
            Below::Lost => {
                let part = split_lost(tx, owner, (height - 1, block - rest % each), &(block..block + 1), need)?; // [X4]
                put(tx, owner, page, rest / each, part)?;
                let Record::Pointer { page: next, .. } = part else { unreachable!("one block is a part of a subtree") };
                next
            }
        };
        page = next;
        rest %= each;
        height -= 1;
    }
    let at = BlockPage { page, base: block - rest };
    match record {
        Record::Run(run) => runs::put_run(tx, owner, at, rest, run)?,
        record => {
            runs::isolate(tx, owner, at, rest)?; // [BR4] of `runs.rs`
            put(tx, owner, page, rest, record)?;
        }
    }
    Ok(added)
}

/// The run that a block belongs to: its first block, and the run.
pub(crate) fn run_of(store: &LineStore, owner: Owner, root: RecordBytes, block: u64) -> Result<Option<(u64, Run)>> {
    let mut record = decode(owner, &root, IN_INODE)?;
    let mut rest = block;
    if block >= capacity(height_of(&record)) {
        return Ok(None);
    }
    while let Record::Pointer { page, height } = record {
        if height == 1 {
            let base = block - rest;
            return Ok(runs::covering(store, owner, BlockPage { page, base }, rest)?.map(|(head, run)| (base + head, run)));
        }
        let each = capacity(height - 1);
        let (line, index) = position(page, rest / each);
        record = decode(owner, &line_records(&store.mapping_line(owner, line)?)[index], line)?;
        let _fits = below(owner, record, line, height)?;
        rest %= each;
    }
    Ok(None)
}

/// The page of records that covers a block.
fn page_of(store: &LineStore, owner: Owner, root: RecordBytes, block: u64) -> Result<Option<BlockPage>> {
    let mut record = decode(owner, &root, IN_INODE)?;
    let mut rest = block;
    if block >= capacity(height_of(&record)) {
        return Ok(None);
    }
    while let Record::Pointer { page, height } = record {
        if height == 1 {
            return Ok(Some(BlockPage { page, base: block - rest }));
        }
        let each = capacity(height - 1);
        let (line, index) = position(page, rest / each);
        record = decode(owner, &line_records(&store.mapping_line(owner, line)?)[index], line)?;
        let _fits = below(owner, record, line, height)?;
        rest %= each;
    }
    Ok(None)
}

/// Splits a run across a block, so that the block is the first of what it belongs to. Neither pages nor the root change.
pub(crate) fn split_run(tx: &mut Tx<'_>, owner: Owner, root: RecordBytes, block: u64) -> Result<()> {
    let Some(at) = page_of(tx.volume(), owner, root, block)? else { return Ok(()) };
    runs::split_at(tx, owner, at, block - at.base)
}

/// Replaces the record of a run that begins with a block by that of the same run in another state.
pub(crate) fn mark_run(tx: &mut Tx<'_>, owner: Owner, root: RecordBytes, block: u64, run: Run) -> Result<()> {
    match page_of(tx.volume(), owner, root, block)? {
        Some(at) => put(tx, owner, at.page, block - at.base, Record::Run(run)),
        None => Err(damaged(owner, Corrupt::Field { address: IN_INODE, field: "run", found: block })),
    }
}

fn new_page(tx: &mut Tx<'_>, volume: &Volume, owner: Owner, need: Need) -> Result<LineAddress> {
    let page = volume.take_mapping_page(owner, need)?; // [X1]
    tx.took(space::region(Region::Mappings, page, PAGE_LINES));
    Ok(page)
}

/// What is left of a lost subtree without a range of blocks ([X4]): its height, and the first block that it covers, are given.
pub(super) fn split_lost(tx: &mut Tx<'_>, owner: Owner, (height, base): (u32, u64), blocks: &Range<u64>, need: Need) -> Result<Record> {
    let end = base.saturating_add(capacity(height));
    if blocks.start <= base && end <= blocks.end {
        return Ok(Record::HOLE);
    }
    if end <= blocks.start || blocks.end <= base {
        return Ok(Record::Lost { height, leaf: None });
    }
    let each = capacity(height - 1); // a block is never covered in part
    let mut records = [Record::HOLE.encode(); PAGE_RECORDS as usize];
    for (record, index) in records.iter_mut().zip(0..) {
        *record = split_lost(tx, owner, (height - 1, base.saturating_add(each.saturating_mul(index))), blocks, need)?.encode();
    }
    let page = tx.volume().take_page_of(owner, &records, need)?;
    tx.took(space::region(Region::Mappings, page, PAGE_LINES));
    Ok(Record::Pointer { page, height })
}

pub(super) fn put(tx: &mut Tx<'_>, owner: Owner, page: LineAddress, index: u64, record: Record) -> Result<()> {
    let (line, index) = position(page, index);
    let old = tx.mapping_line(owner, line)?;
    let volume = tx.volume();
    let new = with_record(&old, index, record.encode(), &volume.place(owner, line), volume.holes);
    if new != old { tx.put(Structure::Mapping, line, new) } else { Ok(()) }
}

/// Items found by a walk.
pub(crate) enum Found {
    /// A page of the tree, its height and the first block that it covers.
    Page { page: LineAddress, height: u32, first: u64 },
    /// A run, before its blocks, from its first block that is in the range.
    Run(u64, Run),
    /// A block that is not a hole.
    Block(u64, Record),
    /// Blocks that are lost with the page that mapped them, as far as they are in the range.
    Lost(Range<u64>),
}

/// Visits every page that may hold a block of a range and every record in it, in order, until `visit` breaks. A walk that meets more pages
/// than the zone has meets some of them again and again: that is `Damaged`.
pub(crate) fn walk_range(
    store: &LineStore,
    owner: Owner,
    root: RecordBytes,
    blocks: Range<u64>,
    visit: &mut dyn FnMut(Found) -> Result<ControlFlow<()>>,
) -> Result<ControlFlow<()>> {
    let record = decode(owner, &root, IN_INODE)?;
    match record {
        Record::Pointer { page, height } => {
            let mut left = store.geometry.memory_units() * UNIT_LINES / PAGE_LINES;
            walk_page(store, owner, (page, height, 0), &blocks, &mut left, visit)
        }
        Record::HOLE => Ok(ControlFlow::Continue(())),
        Record::Lost { height: height @ 1.., .. } => visit_lost(0..capacity(height), &blocks, visit),
        Record::Run(_) => Err(damaged(owner, Corrupt::Field { address: IN_INODE, field: "state", found: 5 })),
        record if blocks.contains(&0) => visit(Found::Block(0, record)),
        _ => Ok(ControlFlow::Continue(())),
    }
}

/// The first block of a range that is not a hole, or the blocks that are lost there with one subtree.
pub(crate) fn first_found(store: &LineStore, owner: Owner, root: RecordBytes, blocks: Range<u64>) -> Result<Option<Range<u64>>> {
    let mut first = None;
    let _ended = walk_range(store, owner, root, blocks, &mut |found| {
        Ok(match found {
            Found::Page { .. } | Found::Run(..) => ControlFlow::Continue(()),
            Found::Block(block, _) => {
                first = Some(block..block + 1);
                ControlFlow::Break(())
            }
            Found::Lost(lost) => {
                first = Some(lost);
                ControlFlow::Break(())
            }
        })
    })?;
    Ok(first)
}

/// Visits the part of a lost subtree that is in a range.
fn visit_lost(lost: Range<u64>, blocks: &Range<u64>, visit: &mut dyn FnMut(Found) -> Result<ControlFlow<()>>) -> Result<ControlFlow<()>> {
    let lost = lost.start.max(blocks.start)..lost.end.min(blocks.end);
    if lost.is_empty() { Ok(ControlFlow::Continue(())) } else { visit(Found::Lost(lost)) }
}

/// Visits the blocks of a run that are in a range.
fn visit_run(
    store: &LineStore,
    owner: Owner,
    (first, run): (u64, Run),
    blocks: &Range<u64>,
    visit: &mut dyn FnMut(Found) -> Result<ControlFlow<()>>,
) -> Result<ControlFlow<()>> {
    let inside = first.max(blocks.start)..(first + u64::from(run.blocks)).min(blocks.end);
    if inside.is_empty() || visit(Found::Run(inside.start, run))?.is_break() {
        return Ok(if inside.is_empty() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) });
    }
    let shape = run.shape(&store.geometry);
    for block in inside {
        if visit(Found::Block(block, runs::block_of(store, owner, &run, shape, block - first)?))?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// `left` is how many pages the walk may still enter. The height bounds the recursion: it is at most [`HEIGHT_MAX`], by [`below`] and by the check of
/// the record itself.
fn walk_page(
    store: &LineStore,
    owner: Owner,
    (page, height, base): (LineAddress, u32, u64),
    blocks: &Range<u64>,
    left: &mut u64,
    visit: &mut dyn FnMut(Found) -> Result<ControlFlow<()>>,
) -> Result<ControlFlow<()>> {
    if *left == 0 {
        return Err(damaged(owner, Corrupt::Field { address: page, field: "page", found: page.number() }));
    }
    *left -= 1;
    if visit(Found::Page { page, height, first: base })?.is_break() {
        return Ok(ControlFlow::Break(()));
    }
    let each = capacity(height - 1);
    let mut of_run = 0; // blocks before this one are in runs already seen
    if height == 1
        && blocks.start > base
        && let Some((head, run)) = runs::covering(store, owner, BlockPage { page, base }, blocks.start - base)?
        && base + head < blocks.start
    {
        of_run = base + head + u64::from(run.blocks);
        if visit_run(store, owner, (base + head, run), blocks, visit)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    for line_index in 0..PAGE_LINES {
        let first = base.saturating_add((line_index * LINE_RECORDS as u64).saturating_mul(each));
        if first.saturating_add(each.saturating_mul(LINE_RECORDS as u64)) <= blocks.start {
            continue;
        }
        if first >= blocks.end {
            break;
        }
        let line = page.nth(line_index);
        let bytes = store.mapping_line(owner, line)?;
        if holds_only_holes(&bytes) {
            continue;
        }
        for (index, record) in (0..).zip(line_records(&bytes)) {
            let record = decode(owner, &record, line)?;
            let block = first.saturating_add(each.saturating_mul(index));
            if record == Record::HOLE || block.saturating_add(each) <= blocks.start || block >= blocks.end {
                continue;
            }
            if block < of_run {
                return Err(damaged(owner, Corrupt::Field { address: line, field: "run", found: block })); // [BR4] of `runs.rs`
            }
            let flow = match below(owner, record, line, height)? {
                Below::Hole => continue,
                Below::Block => visit(Found::Block(block, record))?,
                Below::Run(run) => {
                    let _shape = runs::verified(store, owner, &run, page, block - base)?;
                    of_run = block + u64::from(run.blocks);
                    visit_run(store, owner, (block, run), blocks, visit)?
                }
                Below::Page(next) => walk_page(store, owner, (next, height - 1, block), blocks, left, visit)?,
                Below::Lost => visit_lost(block..block.saturating_add(each), blocks, visit)?,
            };
            if flow.is_break() {
                return Ok(flow);
            }
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Clears every record of a range of blocks, and frees pages that become empty. The caller frees the space that the records name ([X3]).
pub(crate) fn clear(tx: &mut Tx<'_>, owner: Owner, root: &mut RecordBytes, blocks: &Range<u64>) -> Result<()> {
    let empty = match decode(owner, root, IN_INODE)? {
        Record::Pointer { page, height } => clear_page(tx, owner, page, height, 0, blocks)?,
        Record::Lost { height: height @ 1.., .. } => {
            *root = split_lost(tx, owner, (height, 0), blocks, Need::Transient)?.encode(); // [X4]
            false
        }
        _ => blocks.contains(&0),
    };
    if empty {
        *root = Record::HOLE.encode();
    }
    Ok(())
}

/// Clears a range in one page. If the page becomes empty, frees it and returns true.
fn clear_page(tx: &mut Tx<'_>, owner: Owner, page: LineAddress, height: u32, base: u64, blocks: &Range<u64>) -> Result<bool> {
    let each = capacity(height - 1);
    if height == 1 {
        for end in [blocks.start, blocks.end] {
            runs::split_at(tx, owner, BlockPage { page, base }, end.saturating_sub(base))?; // [BR4] of `runs.rs`
        }
    }
    let mut changed: SmallVec<[(u64, Record); 16]> = SmallVec::new();
    let mut keeps = false;
    for line_index in 0..PAGE_LINES {
        let line = page.nth(line_index);
        let first = base.saturating_add((line_index * LINE_RECORDS as u64).saturating_mul(each));
        if first >= blocks.end || first.saturating_add(each.saturating_mul(LINE_RECORDS as u64)) <= blocks.start {
            // This line has nothing to clear and is not decoded, so damage outside the range does not block the operation. Nor does it go.
            keeps = keeps || !tx.volume().holes.are_all(&tx.raw_line(Structure::Mapping, line)?, &tx.volume().place(owner, line));
            continue;
        }
        let bytes = tx.mapping_line(owner, line)?;
        if holds_only_holes(&bytes) {
            continue;
        }
        for (at, record) in (0..).zip(line_records(&bytes)) {
            let record = decode(owner, &record, line)?;
            let index = line_index * LINE_RECORDS as u64 + at;
            let start = base.saturating_add(index.saturating_mul(each));
            if record == Record::HOLE {
                continue;
            }
            let inside = start < blocks.end && blocks.start < start.saturating_add(each);
            if !inside {
                keeps = true;
                continue;
            }
            let left = match below(owner, record, line, height)? {
                Below::Page(next) if clear_page(tx, owner, next, height - 1, start, blocks)? => Record::HOLE,
                Below::Page(_) => record,
                Below::Lost => split_lost(tx, owner, (height - 1, start), blocks, Need::Transient)?, // [X4]
                Below::Run(run) => {
                    let shape = runs::verified(tx.volume(), owner, &run, page, index)?;
                    runs::free_own_lines(tx, &run, shape, 0..run.blocks.into());
                    Record::HOLE
                }
                Below::Block | Below::Hole => Record::HOLE,
            };
            keeps |= left != Record::HOLE;
            if left != record {
                changed.push((index, left));
            }
        }
    }
    if !keeps {
        tx.free(space::region(Region::Mappings, page, PAGE_LINES));
        return Ok(true);
    }
    for (index, left) in changed {
        put(tx, owner, page, index, left)?;
    }
    Ok(false)
}

/// Moves the page of a height that covers a block, if `wants` says so of its address: to a fresh page with the same records ([X1]). Returns
/// whether it did. `root` belongs to the inode; the caller writes the inode.
pub(crate) fn relocate(
    tx: &mut Tx<'_>,
    owner: Owner,
    root: &mut RecordBytes,
    (block, height): (u64, u32),
    wants: &dyn Fn(LineAddress) -> bool,
) -> Result<bool> {
    let top = decode(owner, root, IN_INODE)?;
    let (Record::Pointer { mut page, height: mut at }, true) = (top, height > 0 && block < capacity(height_of(&top))) else {
        return Ok(false);
    };
    let (mut parent, mut rest) = (None, block);
    while at > height {
        let each = capacity(at - 1);
        let (line, index) = position(page, rest / each);
        let bytes = line_records(&tx.mapping_line(owner, line)?)[index];
        let Below::Page(next) = below(owner, decode(owner, &bytes, line)?, line, at)? else { return Ok(false) };
        parent = Some((page, rest / each));
        (page, rest, at) = (next, rest % each, at - 1);
    }
    if at != height || !wants(page) {
        return Ok(false);
    }
    tx.volume().check_object(owner, Region::Mappings, page, PAGE_LINES)?;
    let mut records = Vec::with_capacity(PAGE_RECORDS as usize);
    for line in (0..PAGE_LINES).map(|index| page.nth(index)) {
        records.extend(line_records(&tx.mapping_line(owner, line)?));
    }
    let fresh = tx.volume().take_page_of(owner, &records, Need::Move)?;
    tx.took(space::region(Region::Mappings, fresh, PAGE_LINES));
    let pointer = Record::Pointer { page: fresh, height };
    match parent {
        Some((parent, index)) => put(tx, owner, parent, index, pointer)?,
        None => *root = pointer.encode(),
    }
    tx.free(space::region(Region::Mappings, page, PAGE_LINES));
    Ok(true)
}
