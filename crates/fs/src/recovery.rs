//! Allocation maps at a mount: loaded as a clean unmount saved them, or rebuilt in parallel from inodes and mappings after a crash.
//!
//! [RE1] Saved maps are used only if the superblock has the clean flag and their generation (RULES R25).
//! [RE2] The rebuild marks all space that in-use inodes refer to; an in-use inode with `nlink` 0 is an orphan (RULES R12).
//! [RE3] Damaged metadata does not stop a mount: the inode that has it is counted, logged and fails by itself, and everything else works. But
//!       what only a damaged line names is not found, and giving it out would overwrite data:
//! [RE4] so space that a corrected line names is marked after all that is proved, and where a line is lost, everything of the kinds that it
//!       may name is held back (`survey.rs`, `held_back.rs`). If two inodes refer to the same space, the second one found is shut off, and
//!       all kinds are held back.
//! [RE5] Damage of the segment table, and metadata that the device cannot read, do stop a mount that writes: without them nothing is known.
//!       A mount that only reads goes on: of a page that records of the journal change, it takes the lines that can be read.

use std::time::Duration;

use tandemfs_device::{DriveRecovery, Structure};
use tandemfs_format::geometry::SEGMENT_TABLE_LINES;
use tandemfs_format::inode::{INODE_LINES, Inode};
use tandemfs_format::segment::{Region, Segment};
use tandemfs_format::superblock::Superblock;
use tandemfs_format::{Corrupt, DataAddress, EMPTY_LINE, InodeNumber, LINE_BYTES, Line, LineAddress, PAGE_BYTES, PAGE_LINES};

use crate::cache::load_bulk;
use crate::error::{Error, Result};
use crate::index::salvage::Trust;
use crate::inode_scan::{Run, each_run};
use crate::mutant::{Mutant, on};
use crate::space::{Kinds, Space};
use crate::survey::survey;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};
use crate::volume::Volume;

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

const INODE_BYTES: usize = INODE_LINES as usize * LINE_BYTES;
/// What to do about a damaged segment table.
const RESCUE: &str = "tandemfs restore copies the files out, tandemfs check --rescue rebuilds the table";

/// What filling the allocators found.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    /// Saved maps were used.
    pub(crate) clean: bool,
    pub(crate) orphans: Vec<InodeNumber>,
    /// Inodes with damaged metadata, and the first damage of each ([RE3]).
    pub(crate) damaged: Vec<(InodeNumber, Corrupt)>,
    /// Files with open pages, if all mappings were walked ([OG2] of `data/open_pages.rs`).
    pub(crate) open: Vec<InodeNumber>,
    /// Files with blocks whose logs were being copied home ([KP5] of `data/kept_place.rs`), likewise.
    pub(crate) copies: Vec<InodeNumber>,
}

/// Fills the allocators.
pub(crate) fn load_space(volume: &Volume, superblock: &Superblock) -> Result<Loaded> {
    let segments = read_segments(volume)?;
    let has = |region: Region| segments.iter().any(|(_, segment)| segment.region == region);
    // Every region but that of attributes has a unit from the start: without it the table lost a line that was zeroed ([RE5]).
    if let Some(region) = Region::ALL.into_iter().find(|region| *region != Region::Attributes && !has(*region)) {
        return Err(damaged(volume, format!("the segment table has no segment of the region {}; {RESCUE}", region.number())));
    }
    volume.memory.load_segments(segments).map_err(|what| damaged(volume, format!("the segment table: {what}; {RESCUE}")))?;
    let clean = superblock.clean && volume.maps().load(superblock.generation); // [RE1]
    let found = match clean {
        true => Findings::default(),
        false => match rebuild(volume) {
            // [RE5]: a read-only mount gives out no space, so it may go on. The free space that it shows is then only what was found.
            Err(error) if volume.health.is_read_only() => {
                tracing::warn!(%error, "unreadable metadata on a read-only mount");
                Findings::default()
            }
            other => other?,
        },
    };
    volume.memory.finish_loading();
    if found.lost != Kinds::NONE && !volume.health.is_read_only() && !on(Mutant::HiddenSpaceGiven) {
        volume.hold_unproved(found.lost); // [RE4]
    }
    volume.sectors.fill_room();
    for (number, _) in &found.damaged {
        if volume.held_back.note(*number) {
            volume.errors.metadata_damaged();
        }
    }
    Ok(Loaded { clean, orphans: found.orphans, damaged: found.damaged, open: found.open, copies: found.copies })
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
                Err(error) => return Err(damaged(volume, format!("the segment table: {error}; {RESCUE}"))),
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

/// What the scan of all inodes found.
#[derive(Debug, Default)]
struct Findings {
    orphans: Vec<InodeNumber>,
    damaged: Vec<(InodeNumber, Corrupt)>,
    /// Files with open pages.
    open: Vec<InodeNumber>,
    /// Files with blocks whose logs were being copied home.
    copies: Vec<InodeNumber>,
    /// Space that corrected lines name.
    supposed: Vec<Space>,
    /// Kinds of space that lost lines may name.
    lost: Kinds,
}

fn rebuild(volume: &Volume) -> Result<Findings> {
    let findings = Mutex::new(Findings::default());
    each_run(volume, |run| scan_inodes(volume, run, &findings))?;
    let mut findings = findings.into_inner();
    findings.damaged.sort_by_key(|(number, _)| *number);
    for space in std::mem::take(&mut findings.supposed) {
        if !on(Mutant::HiddenSpaceGiven) {
            suppose(volume, space); // [RE4]
        }
    }
    Ok(findings)
}

/// Marks space that a corrected line names. What a verified line names as well stays that one's, until it is freed ([HB2] there).
fn suppose(volume: &Volume, space: Space) {
    volume.held_back.begin();
    if !mark(volume, space) {
        volume.held_back.share(space);
    }
}

/// Reads inodes in bulk, bypassing the host copies (a rebuild must not fill them), and marks the space that each one takes.
fn scan_inodes(volume: &Volume, Run { first, address, count }: Run, findings: &Mutex<Findings>) -> Result<()> {
    let mut bytes = vec![0; count as usize * INODE_BYTES];
    read_bulk(volume, address, &mut bytes)?;
    for (index, pair) in (0..).zip(bytes.chunks_exact(INODE_BYTES)) {
        let (number, address) = (InodeNumber::new(first + index), address.nth(index * INODE_LINES));
        let mut lines = (line_of(&pair[..LINE_BYTES]), line_of(&pair[LINE_BYTES..]));
        if Inode::decode(volume.pair, number, address, &lines.0, &lines.1).is_err() {
            // Perhaps the transfer was wrong, not the line: a second one decides.
            let mut again = [0; INODE_BYTES];
            read_bulk(volume, address, &mut again)?;
            lines = (line_of(&again[..LINE_BYTES]), line_of(&again[LINE_BYTES..]));
        }
        scan_inode(volume, number, address, &lines, findings)?;
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

fn scan_inode(volume: &Volume, number: InodeNumber, at: LineAddress, lines: &(Line, Line), findings: &Mutex<Findings>) -> Result<()> {
    let is_shared = AtomicBool::new(false);
    let mut supposed = Vec::new();
    let mut take = |trust, space| {
        if trust == Trust::Supposed {
            supposed.push(space);
            return true;
        }
        let is_own = mark(volume, space);
        if !is_own {
            volume.held_back.share(space);
            is_shared.store(true, Relaxed);
        }
        is_own
    };
    let Some(mut found) = survey(volume, number, at, (&lines.0, &lines.1), &mut take)? else { return Ok(()) };
    if number.get() == 0 {
        // Its slot is always taken and never used: no inode lost anything here.
        found.lost = Kinds::NONE;
        found.damage.get_or_insert(Corrupt::Field { address: at, field: "state", found: 1 });
    } else {
        volume.memory.mark(Some(Region::Inodes), at, 2);
    }
    if is_shared.load(Relaxed) {
        volume.held_back.shut_off(number);
        found.lost = Kinds::OF_INODE;
        found.damage.get_or_insert(Corrupt::Field { address: at, field: "space, which another inode has too,", found: 0 });
    } else if found.inode.is_some_and(|inode| inode.nlink == 0) && number.get() > 0 {
        findings.lock().orphans.push(number); // [RE2]
    }
    if found.has_open_pages && !on(Mutant::UncheckedForgotten) {
        findings.lock().open.push(number);
    }
    if found.has_copies && !on(Mutant::InterruptedCopyLeft) {
        findings.lock().copies.push(number);
    }
    let Some(damage) = found.damage else { return Ok(()) };
    let mut findings = findings.lock();
    findings.lost = findings.lost.and(found.lost);
    findings.supposed.extend(supposed);
    findings.damaged.push((number, damage));
    Ok(())
}

/// Marks space as taken. False if it already was, or cannot be what it is said to be.
fn mark(volume: &Volume, space: Space) -> bool {
    let (region, address, lines) = match space {
        Space::Sectors { sector, count } => return volume.sectors.mark(sector, count),
        Space::Region { region: Region::Attributes, .. } if on(Mutant::AttributesNotMarked) => return true,
        Space::Region { region, address, lines } => (Some(region), address, lines),
        Space::Slot { address, lines } => (None, address, lines),
        Space::Pages { address, count } => {
            return volume.geometry.holds_data(DataAddress::Page(address), count) && volume.memory.mark_extent(address, count);
        }
    };
    volume.geometry.holds_lines(address, lines) && volume.memory.mark(region, address, lines)
}
