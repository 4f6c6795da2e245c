//! The radix tree of block records: 192 records a page, rooted in the inode.
//!
//! [X1] A new page is zeroed and fenced before it is linked (RULES R6); its lines and the pointer to it are in one transaction.
//! [X2] All lines of a tree belong to the lock of its inode (RULES R5).
//! [X3] Cutting a file frees whole pages by clearing the pointer to them: one line for 192 records, so any truncation is one bounded
//!      transaction (RULES R11).

use tandemfs_device::Structure;
use tandemfs_format::mapping::{HEIGHT_MAX, LINE_RECORDS, PAGE_RECORDS, Record, RecordBytes, line_records, with_record};
use tandemfs_format::segment::Region;
use tandemfs_format::{Corrupt, LineAddress, PAGE_LINES};

use crate::alloc::Need;
use crate::journal::{Tx, tx_space as space};
use crate::volume::{Owner, Volume};
use crate::{Error, Result};

/// Blocks that a tree of this height covers; height 0 is the record in the inode.
fn capacity(height: u32) -> u64 {
    PAGE_RECORDS.checked_pow(height).unwrap_or(u64::MAX)
}

fn height_of(root: &Record) -> u32 {
    match root {
        Record::Pointer { height, .. } => *height,
        _ => 0,
    }
}

/// Where a record of a page stands: its line and its position in the line.
fn position(page: LineAddress, index: u64) -> (LineAddress, usize) {
    (page.nth(index / LINE_RECORDS as u64), (index % LINE_RECORDS as u64) as usize)
}

/// A place inside the inode that errors of the root record name.
const IN_INODE: LineAddress = LineAddress::new(0);

fn damaged(owner: Owner, source: Corrupt) -> Error {
    Error::Damaged { inode: owner.inode, source }
}

fn decode(owner: Owner, bytes: &RecordBytes, line: LineAddress) -> Result<Record> {
    bytes.decode(line).map_err(|source| damaged(owner, source))
}

/// The pointer in a page of height `height`, which must lead one level down.
fn child(owner: Owner, record: Record, line: LineAddress, height: u32) -> Result<Option<LineAddress>> {
    match record {
        Record::Pointer { page, height: below } if below + 1 == height => Ok(Some(page)),
        Record::Block { extent: None, leaf: None } => Ok(None),
        _ => Err(damaged(owner, Corrupt::Field { address: line, field: "state", found: 0 })),
    }
}

/// The record of a block.
pub(crate) fn lookup(volume: &Volume, owner: Owner, root: RecordBytes, block: u64) -> Result<Record> {
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
        let bytes = line_records(&volume.line(owner, Structure::Mapping, line)?)[index];
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

/// Sets the record of a block in a transaction; grows the tree as needed. `root` is the inode's; the caller writes the inode.
/// Returns the pages added.
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
            put(tx, volume, owner, page, 0, top)?;
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
                put(tx, volume, owner, page, rest / below, Record::Pointer { page: next, height: height - 1 })?;
                next
            }
        };
        page = next;
        rest %= below;
        height -= 1;
    }
    put(tx, volume, owner, page, rest, record)?;
    Ok(added)
}

fn new_page(tx: &mut Tx<'_>, volume: &Volume, need: Need) -> Result<LineAddress> {
    let page = volume.memory.take_page(volume, Region::Mappings, Structure::Mapping, need)?; // [X1]
    tx.took(space::region(Region::Mappings, page, PAGE_LINES));
    Ok(page)
}

fn put(tx: &mut Tx<'_>, volume: &Volume, owner: Owner, page: LineAddress, index: u64, record: Record) -> Result<()> {
    let (line, index) = position(page, index);
    let old = tx.line(owner, Structure::Mapping, line)?;
    let new = with_record(&old, index, record.encode(), &volume.place(owner, line));
    if new != old { tx.put(Structure::Mapping, line, new) } else { Ok(()) }
}

/// What a walk finds.
pub(crate) enum Found {
    /// A page of the tree.
    Page(LineAddress),
    /// A block that is no hole.
    Block(u64, Record),
}

/// Visits every page and every record from block `from` on, in order. Pages are visited before what they hold.
pub(crate) fn walk(volume: &Volume, owner: Owner, root: RecordBytes, from: u64, visit: &mut dyn FnMut(Found) -> Result<()>) -> Result<()> {
    let record = decode(owner, &root, IN_INODE)?;
    match record {
        Record::Pointer { page, height } => walk_page(volume, owner, page, height, 0, from, visit),
        Record::HOLE => Ok(()),
        record if from == 0 => visit(Found::Block(0, record)),
        _ => Ok(()),
    }
}

/// Recursion is bounded by the height, which [`child`] and the record's own check hold below [`HEIGHT_MAX`].
fn walk_page(
    volume: &Volume,
    owner: Owner,
    page: LineAddress,
    height: u32,
    base: u64,
    from: u64,
    visit: &mut dyn FnMut(Found) -> Result<()>,
) -> Result<()> {
    visit(Found::Page(page))?;
    let below = capacity(height - 1);
    for line_index in 0..PAGE_LINES {
        let first = base.saturating_add((line_index * LINE_RECORDS as u64).saturating_mul(below));
        if first.saturating_add(below.saturating_mul(LINE_RECORDS as u64)) <= from {
            continue;
        }
        let line = page.nth(line_index);
        let bytes = volume.line(owner, Structure::Mapping, line)?;
        if bytes == tandemfs_format::EMPTY_LINE {
            continue;
        }
        for (index, record) in (0..).zip(line_records(&bytes)) {
            let record = decode(owner, &record, line)?;
            let block = first.saturating_add(below.saturating_mul(index));
            if record == Record::HOLE || block.saturating_add(below) <= from {
                continue;
            }
            match (height, child_or_block(owner, record, line, height)?) {
                (1, None) => visit(Found::Block(block, record))?,
                (_, Some(next)) => walk_page(volume, owner, next, height - 1, block, from, visit)?,
                _ => unreachable!("a record of a higher page leads down"),
            }
        }
    }
    Ok(())
}

fn child_or_block(owner: Owner, record: Record, line: LineAddress, height: u32) -> Result<Option<LineAddress>> {
    match (height, record) {
        (1, Record::Pointer { .. }) => Err(damaged(owner, Corrupt::Field { address: line, field: "state", found: 6 })),
        (1, _) => Ok(None),
        _ => child(owner, record, line, height),
    }
}

/// Clears every record from block `from` on, and frees the pages that hold nothing before it. What the records name is the caller's to
/// free ([X3]). Returns the pages freed.
pub(crate) fn cut(tx: &mut Tx<'_>, volume: &Volume, owner: Owner, root: &mut RecordBytes, from: u64) -> Result<u64> {
    match decode(owner, root, IN_INODE)? {
        Record::Pointer { page, height } => {
            let (empty, freed) = cut_page(tx, volume, owner, page, height, 0, from)?;
            if empty {
                *root = Record::HOLE.encode();
            }
            Ok(freed)
        }
        _ => {
            if from == 0 {
                *root = Record::HOLE.encode();
            }
            Ok(0)
        }
    }
}

/// Cuts one page; true where it held only what was cut, and is freed.
fn cut_page(tx: &mut Tx<'_>, volume: &Volume, owner: Owner, page: LineAddress, height: u32, base: u64, from: u64) -> Result<(bool, u64)> {
    let below = capacity(height - 1);
    let whole = base >= from;
    let mut freed = 0;
    for index in 0..PAGE_RECORDS {
        let start = base.saturating_add(index.saturating_mul(below));
        if start.saturating_add(below) <= from {
            continue;
        }
        let (line, at) = position(page, index);
        let record = decode(owner, &line_records(&tx.line(owner, Structure::Mapping, line)?)[at], line)?;
        if record == Record::HOLE {
            continue;
        }
        let mut clear = true;
        if let Some(next) = child_or_block(owner, record, line, height)? {
            let (empty, pages) = cut_page(tx, volume, owner, next, height - 1, start, from)?;
            freed += pages;
            clear = empty;
        }
        if clear && !whole {
            put(tx, volume, owner, page, index, Record::HOLE)?;
        }
    }
    if whole {
        tx.free(space::region(Region::Mappings, page, PAGE_LINES));
        freed += 1;
    }
    Ok((whole, freed))
}
