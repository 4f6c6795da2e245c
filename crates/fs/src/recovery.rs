//! Allocation maps at a mount: loaded as a clean unmount saved them, or rebuilt in parallel from inodes and mappings after a crash.
//!
//! [RE1] Saved maps are used only if the superblock has the clean flag and their generation (RULES R25).
//! [RE2] The rebuild marks all space that in-use inodes refer to; an in-use inode with `nlink` 0 is an orphan (RULES R12).
//! [RE3] If two inodes refer to the same space, or metadata does not verify, giving out space could overwrite data. Such a device mounts
//!       read-only at most, and `check` says what is wrong.

use std::time::Duration;

use tandemfs_device::{DriveRecovery, Structure};
use tandemfs_format::geometry::SEGMENT_TABLE_LINES;
use tandemfs_format::inode::Inode;
use tandemfs_format::mapping::Record;
use tandemfs_format::segment::{Region, Segment};
use tandemfs_format::superblock::Superblock;
use tandemfs_format::{EMPTY_LINE, InodeNumber, LINE_BYTES, Line, LineAddress, PAGE_BYTES, PAGE_LINES};

use crate::cache::load_bulk;
use crate::error::{Error, Result};
use crate::index::block::Block;
use crate::index::tree::{self, Found};
use crate::inodes::attribute_set::AttributeSet;
use crate::mutant::{Mutant, on};
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::sync::{Mutex, scan_threads};
use crate::volume::{Owner, Volume};

/// What a mount had to do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The last unmount was clean and its maps were used.
    pub clean: bool,
    /// What the drive itself recovered first, if it has transactions.
    pub drive: Option<DriveRecovery>,
    /// Journal records applied.
    pub records_replayed: u64,
    /// Orphans removed.
    pub orphans_removed: u64,
    /// Time of the mount.
    pub duration: Duration,
}

/// Inodes that one step of a scanning thread reads: 1 MiB of lines.
const STEP_INODES: u64 = 8192;
const INODE_BYTES: usize = 2 * LINE_BYTES;

/// Fills the allocators. Returns whether saved maps were used, and the orphans.
pub(crate) fn load_space(volume: &Volume, superblock: &Superblock) -> Result<(bool, Vec<InodeNumber>)> {
    let segments = read_segments(volume)?;
    volume.memory.load_segments(segments).map_err(|what| damaged(volume, what))?;
    let clean = superblock.clean && volume.maps().load(superblock.generation); // [RE1]
    let orphans = match clean {
        true => Vec::new(),
        false => match rebuild(volume) {
            // [RE3]: a read-only mount gives out no space, so it may go on. The free space that it shows is then only what was found.
            Err(error) if volume.health.is_read_only() => {
                tracing::warn!(%error, "damaged metadata on a read-only mount");
                Vec::new()
            }
            other => other?,
        },
    };
    volume.memory.finish_loading();
    volume.sectors.fill_room();
    Ok((clean, orphans))
}

fn read_segments(volume: &Volume) -> Result<Vec<(u64, Segment)>> {
    let mut segments = Vec::new();
    for page in (0..SEGMENT_TABLE_LINES).step_by(PAGE_LINES as usize) {
        let start = volume.geometry.segment_line(page);
        let bytes = volume.page(Structure::AllocationMap, start)?.bytes();
        if bytes == [0; PAGE_BYTES] {
            continue;
        }
        for (index, chunk) in (page..).zip(bytes.chunks_exact(LINE_BYTES)) {
            let line = line_of(chunk);
            let address = volume.geometry.segment_line(index);
            match Segment::decode(&line, volume.pair, address, volume.geometry.memory_units()) {
                Ok(Some(segment)) => segments.push((index, segment)),
                Ok(None) => {}
                Err(error) => return Err(damaged(volume, format!("the segment table: {error}"))),
            }
        }
    }
    Ok(segments)
}

fn line_of(bytes: &[u8]) -> Line {
    let mut line = EMPTY_LINE;
    line.copy_from_slice(bytes);
    line
}

fn damaged(volume: &Volume, what: String) -> Error {
    let device = &volume.drive.description().name;
    Error::Stopped { first_cause: format!("{device}: {what}") }
}

fn rebuild(volume: &Volume) -> Result<Vec<InodeNumber>> {
    let limit = volume.memory.inode_limit();
    let next = AtomicU64::new(0);
    let orphans = Mutex::new(Vec::new());
    let failure: Mutex<Option<Error>> = Mutex::new(None);
    let scan = || {
        loop {
            let first = next.fetch_add(STEP_INODES, Relaxed);
            if first >= limit || failure.lock().is_some() {
                return;
            }
            if let Err(error) = scan_inodes(volume, first, (first + STEP_INODES).min(limit), &orphans) {
                failure.lock().get_or_insert(error);
            }
        }
    };
    let threads = scan_threads().min(limit.div_ceil(STEP_INODES) as usize);
    if threads <= 1 {
        scan();
    } else {
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(scan);
            }
        });
    }
    match failure.into_inner() {
        Some(error) => Err(error),
        None => Ok(orphans.into_inner()),
    }
}

/// Reads inodes in bulk, bypassing the host copies (a rebuild must not fill them), and marks the space that each one takes.
fn scan_inodes(volume: &Volume, first: u64, end: u64, orphans: &Mutex<Vec<InodeNumber>>) -> Result<()> {
    let mut bytes = vec![0; STEP_INODES as usize * INODE_BYTES];
    let mut number = first;
    while number < end {
        let Some(address) = volume.memory.inode_address(InodeNumber::new(number.max(1))) else { return Ok(()) };
        let address = if number == 0 { LineAddress::new(address.number() - 2) } else { address };
        let in_unit = (tandemfs_format::UNIT_LINES - address.number() % tandemfs_format::UNIT_LINES) / 2;
        let count = in_unit.min(end - number);
        let bytes = &mut bytes[..count as usize * INODE_BYTES];
        read_bulk(volume, address, bytes)?;
        for (index, pair) in (0..).zip(bytes.chunks_exact(INODE_BYTES)) {
            let (hot, cold) = (line_of(&pair[..LINE_BYTES]), line_of(&pair[LINE_BYTES..]));
            let here = InodeNumber::new(number + index);
            let at = address.nth(index * 2);
            let decoded = Inode::decode(volume.pair, here, at, &hot, &cold);
            let Some(inode) = decoded.map_err(|source| damaged(volume, format!("inode {here}: {source}")))? else { continue };
            if here.get() == 0 {
                return Err(damaged(volume, "inode 0 is in use".into()));
            }
            mark_inode(volume, here, at, &inode)?;
            if inode.nlink == 0 {
                orphans.lock().push(here); // [RE2]
            }
        }
        number += count;
    }
    Ok(())
}

/// A read-only mount has replayed lines in its host copies only; a writing mount has all lines at home.
fn read_bulk(volume: &Volume, address: LineAddress, bytes: &mut [u8]) -> Result<()> {
    if volume.health.is_read_only() {
        for (page, chunk) in (0..).step_by(PAGE_LINES as usize).zip(bytes.chunks_mut(PAGE_BYTES)) {
            for (line, target) in (0..).zip(chunk.chunks_exact_mut(LINE_BYTES)) {
                target.copy_from_slice(&volume.raw_line(Structure::Inode, address.nth(page + line))?);
            }
        }
        return Ok(());
    }
    Ok(load_bulk(&volume.drive, Structure::Inode, address, bytes)?)
}

fn mark_inode(volume: &Volume, number: InodeNumber, address: LineAddress, inode: &Inode) -> Result<()> {
    let twice = |what: &str, address: LineAddress| damaged(volume, format!("inode {number}: {what} at line {address} is not its own"));
    if !volume.memory.mark(Some(Region::Inodes), address, 2) {
        return Err(twice("its slot", address));
    }
    let owner = Owner { inode: number, generation: inode.generation };
    let context = |error: Error| match error {
        Error::Damaged { source, .. } => damaged(volume, format!("inode {number}: {source}")),
        other => other,
    };
    if !on(Mutant::AttributesNotMarked) {
        let mut foreign = None;
        let mut mark = |first, lines| {
            if mark_lines(volume, Some(Region::Attributes), first, lines).is_none() {
                foreign.get_or_insert(first);
            }
        };
        AttributeSet::each_piece(volume, owner, inode, &mut mark).map_err(context)?;
        if let Some(first) = foreign {
            return Err(twice("a line of its extended attributes", first));
        }
    }
    if !inode.has_mapping() {
        return Ok(());
    }
    tree::walk(volume, owner, inode.root_record(), 0, &mut |found| match found {
        Found::Page(page) => mark_lines(volume, Some(Region::Mappings), page, PAGE_LINES).ok_or_else(|| twice("a mapping page", page)),
        Found::Block(_, Record::Memory(page)) => {
            mark_lines(volume, Some(Region::Dentries), page, PAGE_LINES).ok_or_else(|| twice("a directory page", page))
        }
        Found::Block(_, record) => {
            let block = Block::of_record(volume, owner, record)?;
            let (marked, extent) = block.each_space(volume, |region, address, lines| mark_lines(volume, region, address, lines).is_some());
            let sectors = extent.is_none_or(|extent| volume.sectors.mark(extent.sector, extent.count.into()));
            if marked && sectors { Ok(()) } else { Err(twice("space of a block", address)) }
        }
    })
    .map_err(context)
}

fn mark_lines(volume: &Volume, region: Option<Region>, address: LineAddress, lines: u64) -> Option<()> {
    (volume.geometry.holds_lines(address, lines) && volume.memory.mark(region, address, lines)).then_some(())
}
