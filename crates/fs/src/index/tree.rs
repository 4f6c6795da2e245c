//! The radix tree of block records: 192 records a page, rooted in the inode.
//!
//! [X1] A new page is zeroed and fenced before it is linked (RULES R6); its lines and the pointer to it are in one transaction.
//! [X2] The lock of the inode protects all lines of its tree (RULES R5).
//! [X3] Clearing a range frees whole pages by clearing the pointer to them: one line for 192 records, so any truncation is one bounded
//!      transaction (RULES R11). A page that becomes empty is freed too.

use std::ops::{ControlFlow, Range};

use smallvec::SmallVec;
use tandemfs_device::Structure;
use tandemfs_format::mapping::{HEIGHT_MAX, LINE_RECORDS, PAGE_RECORDS, Record, RecordBytes, line_records, with_record};
use tandemfs_format::segment::Region;
use tandemfs_format::{Corrupt, LineAddress, PAGE_LINES};

use crate::alloc::Need;
use crate::cache::{LineStore, Owner};
use crate::error::{Error, Result};
use crate::space;
use crate::volume::{Tx, Volume};

/// Blocks that a tree of this height covers. Height 0 is the record in the inode.
pub(crate) fn capacity(height: u32) -> u64 {
    PAGE_RECORDS.checked_pow(height).unwrap_or(u64::MAX)
}

fn height_of(root: &Record) -> u32 {
    match root {
        Record::Pointer { height, .. } => *height,
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
    bytes.decode(line).map_err(|source| damaged(owner, source))
}

/// The pointer in a page of height `height`, which must point one level down.
fn child(owner: Owner, record: Record, line: LineAddress, height: u32) -> Result<Option<LineAddress>> {
    match record {
        Record::Pointer { page, height: below } if below + 1 == height => Ok(Some(page)),
        Record::Block { extent: None, leaf: None } => Ok(None),
        _ => Err(damaged(owner, Corrupt::Field { address: line, field: "state", found: 0 })),
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
        let Record::Pointer { page, .. } = record else { return Ok(Record::HOLE) };
        let below = capacity(height - 1);
        let (line, index) = position(page, rest / below);
        let bytes = line_records(&store.line(owner, Structure::Mapping, line)?)[index];
        record = decode(owner, &bytes, line)?;
        if height > 1 {
            child(owner, record, line, height)?;
        }
        rest %= below;
        height -= 1;
    }
    match record {
        Record::Pointer { .. } => Err(damaged(owner, Corrupt::Field { address: IN_INODE, field: "state", found: 6 })),
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
        if let Found::Block(block, record) = found {
            records[(block - blocks.start) as usize] = record;
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
    let mut added = 0;
    let mut top = decode(owner, root, IN_INODE)?;
    while block >= capacity(height_of(&top)) {
        if record == Record::HOLE {
            return Ok(added);
        }
        let height = height_of(&top) + 1;
        if height > HEIGHT_MAX {
            return Err(Error::FileTooLarge);
        }
        let page = new_page(tx, volume, need)?;
        added += 1;
        if top != Record::HOLE {
            put(tx, owner, page, 0, top)?;
        }
        top = Record::Pointer { page, height };
        *root = top.encode();
    }
    let Record::Pointer { mut page, mut height } = top else {
        *root = record.encode();
        return Ok(added);
    };
    let mut rest = block;
    while height > 1 {
        let below = capacity(height - 1);
        let (line, index) = position(page, rest / below);
        let bytes = line_records(&tx.line(owner, Structure::Mapping, line)?)[index];
        let next = match child(owner, decode(owner, &bytes, line)?, line, height)? {
            Some(next) => next,
            None if record == Record::HOLE => return Ok(added),
            None => {
                let next = new_page(tx, volume, need)?;
                added += 1;
                put(tx, owner, page, rest / below, Record::Pointer { page: next, height: height - 1 })?;
                next
            }
        };
        page = next;
        rest %= below;
        height -= 1;
    }
    put(tx, owner, page, rest, record)?;
    Ok(added)
}

fn new_page(tx: &mut Tx<'_>, volume: &Volume, need: Need) -> Result<LineAddress> {
    let page = volume.take_page(Region::Mappings, Structure::Mapping, need)?; // [X1]
    tx.took(space::region(Region::Mappings, page, PAGE_LINES));
    Ok(page)
}

pub(super) fn put(tx: &mut Tx<'_>, owner: Owner, page: LineAddress, index: u64, record: Record) -> Result<()> {
    let (line, index) = position(page, index);
    let old = tx.line(owner, Structure::Mapping, line)?;
    let new = with_record(&old, index, record.encode(), &tx.volume().place(owner, line));
    if new != old { tx.put(Structure::Mapping, line, new) } else { Ok(()) }
}

/// Items found by a walk.
pub(crate) enum Found {
    /// A page of the tree.
    Page,
    /// A block that is not a hole.
    Block(u64, Record),
}

/// Visits every page that may hold a block of a range and every record in it, in order, until `visit` breaks.
pub(crate) fn walk_range(
    store: &LineStore,
    owner: Owner,
    root: RecordBytes,
    blocks: Range<u64>,
    visit: &mut dyn FnMut(Found) -> Result<ControlFlow<()>>,
) -> Result<ControlFlow<()>> {
    let record = decode(owner, &root, IN_INODE)?;
    match record {
        Record::Pointer { page, height } => walk_page(store, owner, page, height, 0, &blocks, visit),
        Record::HOLE => Ok(ControlFlow::Continue(())),
        record if blocks.contains(&0) => visit(Found::Block(0, record)),
        _ => Ok(ControlFlow::Continue(())),
    }
}

/// The first block of a range that is not a hole.
pub(crate) fn first_block(store: &LineStore, owner: Owner, root: RecordBytes, blocks: Range<u64>) -> Result<Option<u64>> {
    let mut first = None;
    let _ended = walk_range(store, owner, root, blocks, &mut |found| {
        Ok(match found {
            Found::Page => ControlFlow::Continue(()),
            Found::Block(block, _) => {
                first = Some(block);
                ControlFlow::Break(())
            }
        })
    })?;
    Ok(first)
}

/// The height bounds the recursion; [`child`] and the record's own check keep it at most [`HEIGHT_MAX`].
fn walk_page(
    store: &LineStore,
    owner: Owner,
    page: LineAddress,
    height: u32,
    base: u64,
    blocks: &Range<u64>,
    visit: &mut dyn FnMut(Found) -> Result<ControlFlow<()>>,
) -> Result<ControlFlow<()>> {
    if visit(Found::Page)?.is_break() {
        return Ok(ControlFlow::Break(()));
    }
    let below = capacity(height - 1);
    for line_index in 0..PAGE_LINES {
        let first = base.saturating_add((line_index * LINE_RECORDS as u64).saturating_mul(below));
        if first.saturating_add(below.saturating_mul(LINE_RECORDS as u64)) <= blocks.start {
            continue;
        }
        if first >= blocks.end {
            break;
        }
        let line = page.nth(line_index);
        let bytes = store.line(owner, Structure::Mapping, line)?;
        if bytes == tandemfs_format::EMPTY_LINE {
            continue;
        }
        for (index, record) in (0..).zip(line_records(&bytes)) {
            let record = decode(owner, &record, line)?;
            let block = first.saturating_add(below.saturating_mul(index));
            if record == Record::HOLE || block.saturating_add(below) <= blocks.start || block >= blocks.end {
                continue;
            }
            let flow = match (height, child_or_block(owner, record, line, height)?) {
                (1, None) => visit(Found::Block(block, record))?,
                (_, Some(next)) => walk_page(store, owner, next, height - 1, block, blocks, visit)?,
                _ => unreachable!("a record of a higher page leads down"),
            };
            if flow.is_break() {
                return Ok(flow);
            }
        }
    }
    Ok(ControlFlow::Continue(()))
}

pub(super) fn child_or_block(owner: Owner, record: Record, line: LineAddress, height: u32) -> Result<Option<LineAddress>> {
    match (height, record) {
        (1, Record::Pointer { .. }) => Err(damaged(owner, Corrupt::Field { address: line, field: "state", found: 6 })),
        (1, _) => Ok(None),
        _ => child(owner, record, line, height),
    }
}

/// Clears every record of a range of blocks, and frees pages that become empty. The caller frees the space that the records name ([X3]).
pub(crate) fn clear(tx: &mut Tx<'_>, owner: Owner, root: &mut RecordBytes, blocks: &Range<u64>) -> Result<()> {
    let empty = match decode(owner, root, IN_INODE)? {
        Record::Pointer { page, height } => clear_page(tx, owner, page, height, 0, blocks)?,
        _ => blocks.contains(&0),
    };
    if empty {
        *root = Record::HOLE.encode();
    }
    Ok(())
}

/// Clears a range in one page. If the page becomes empty, frees it and returns true.
fn clear_page(tx: &mut Tx<'_>, owner: Owner, page: LineAddress, height: u32, base: u64, blocks: &Range<u64>) -> Result<bool> {
    let below = capacity(height - 1);
    let mut cleared: SmallVec<[u64; 16]> = SmallVec::new();
    let mut keeps = false;
    for line_index in 0..PAGE_LINES {
        let line = page.nth(line_index);
        let first = base.saturating_add((line_index * LINE_RECORDS as u64).saturating_mul(below));
        if first >= blocks.end || first.saturating_add(below.saturating_mul(LINE_RECORDS as u64)) <= blocks.start {
            // This line has nothing to clear and is not decoded, so damage outside the range does not block the operation.
            keeps |= tx.raw_line(Structure::Mapping, line)? != tandemfs_format::EMPTY_LINE;
            continue;
        }
        let bytes = tx.line(owner, Structure::Mapping, line)?;
        if bytes == tandemfs_format::EMPTY_LINE {
            continue;
        }
        for (at, record) in (0..).zip(line_records(&bytes)) {
            let record = decode(owner, &record, line)?;
            let index = line_index * LINE_RECORDS as u64 + at;
            let start = base.saturating_add(index.saturating_mul(below));
            if record == Record::HOLE {
                continue;
            }
            let inside = start < blocks.end && blocks.start < start.saturating_add(below);
            let clear = inside
                && match child_or_block(owner, record, line, height)? {
                    Some(next) => clear_page(tx, owner, next, height - 1, start, blocks)?,
                    None => true,
                };
            if clear { cleared.push(index) } else { keeps = true }
        }
    }
    if !keeps {
        tx.free(space::region(Region::Mappings, page, PAGE_LINES));
        return Ok(true);
    }
    for index in cleared {
        put(tx, owner, page, index, Record::HOLE)?;
    }
    Ok(false)
}
