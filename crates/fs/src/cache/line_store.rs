//! Metadata lines as other modules read them: from their host copies, verified for their owner.

use std::sync::Arc;

use tandemfs_device::{BlockRequest, DeviceError, Drive, Fenced, Replaced, Structure};
use tandemfs_format::geometry::Geometry;
use tandemfs_format::hole_lines::HoleLines;
use tandemfs_format::{Corrupt, EMPTY_LINE, InodeNumber, LINE_BYTES, Line, LineAddress, PAGE_BYTES, PAGE_LINES, PairSeed, Place, Sector};

use super::{Page, PageCache};
use crate::error::{Error, Result};
use crate::error_counts::ErrorCounts;
use crate::health::Health;
use crate::mutant::{Mutant, on};
use crate::statistics::Live;
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};
use crate::updates::Updates;

/// The drive, the seed for verifying its lines, and their host copies.
pub(crate) struct LineStore {
    pub(crate) drive: Drive,
    pub(crate) pair: PairSeed,
    /// It grows in use (`growing.rs`).
    pub(crate) geometry: Replaced<Geometry>,
    pub(crate) health: Health,
    pub(crate) pages: PageCache,
    pub(crate) live: Live,
    pub(crate) errors: ErrorCounts,
    /// How bytes reach the media.
    pub(crate) updates: Updates,
    /// How mapping lines without records are stored.
    pub(crate) holes: HoleLines,
    /// Whether files may lie in the memory zone: the superblock says so, durably ([HM1] of `data/home.rs`).
    pub(crate) memory_homes: AtomicBool,
}

/// The owner of lines that are read or changed; included in each line's checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) inode: InodeNumber,
    pub(crate) generation: u32,
}

impl Owner {
    /// The tag by which a host copy records the owner that a line was verified for; never 0.
    pub(crate) fn tag(self) -> u32 {
        let mixed = (self.inode.get() ^ u64::from(self.generation).rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as u32 | 1
    }
}

/// The error for metadata of `owner` whose address field `field` is invalid.
pub(crate) fn damaged(owner: Owner, address: LineAddress, field: &'static str) -> Error {
    Error::Damaged { inode: owner.inode, source: Corrupt::Field { address, field, found: address.number() } }
}

impl LineStore {
    /// Whether files may lie in the memory zone.
    pub(crate) fn has_memory_homes(&self) -> bool {
        self.memory_homes.load(Relaxed)
    }

    /// Notes that files may lie in the memory zone from now on.
    pub(crate) fn note_memory_homes(&self) {
        self.memory_homes.store(true, Relaxed);
    }

    pub(crate) fn place(&self, owner: Owner, address: LineAddress) -> Place {
        Place { pair: self.pair, address, inode: owner.inode, generation: owner.generation }
    }

    /// The host copy of the page that holds a line ([CA1]).
    pub(crate) fn page(&self, structure: Structure, address: LineAddress) -> Result<Arc<Page>> {
        self.pages.page(&self.drive, &self.live.work, structure, address)
    }

    /// The same of a page that cannot be read whole: lines that cannot be read verify for nobody ([RE5] of `recovery.rs`).
    pub(crate) fn page_of_readable_lines(&self, structure: Structure, address: LineAddress) -> Result<Arc<Page>> {
        self.pages.page_of_readable_lines(&self.drive, &self.live.work, structure, address)
    }

    /// A line from its host copy, not verified.
    pub(crate) fn raw_line(&self, structure: Structure, address: LineAddress) -> Result<Line> {
        Ok(self.page(structure, address)?.line(address))
    }

    /// Passes consecutive lines of `owner` to `each`, verified, from their host copies. A page that holds several lines is looked up once.
    pub(crate) fn lines(
        &self,
        owner: Owner,
        structure: Structure,
        first: LineAddress,
        count: u64,
        mut each: impl FnMut(LineAddress, &Line) -> Result<()>,
    ) -> Result<()> {
        self.pieces(structure, first, count, |page, first, count| {
            page.lines(first, count, owner.tag(), |address, line| self.verify(owner, address, line), &mut each)
        })
    }

    /// Like `lines`, for lines without their own checksum.
    pub(crate) fn raw_lines(
        &self,
        structure: Structure,
        first: LineAddress,
        count: u64,
        mut each: impl FnMut(LineAddress, &Line) -> Result<()>,
    ) -> Result<()> {
        self.pieces(structure, first, count, |page, first, count| page.lines(first, count, 0, |_, _| Ok(()), &mut each))
    }

    /// Splits a run of lines at page boundaries.
    fn pieces(
        &self,
        structure: Structure,
        mut first: LineAddress,
        mut count: u64,
        mut each: impl FnMut(&Page, LineAddress, usize) -> Result<()>,
    ) -> Result<()> {
        while count > 0 {
            let here = count.min(PAGE_LINES - first.index_in_page() as u64);
            each(&*self.page(structure, first)?, first, here as usize)?;
            first = first.nth(here);
            count -= here;
        }
        Ok(())
    }

    /// A line that belongs to `owner`, verified.
    pub(crate) fn line(&self, owner: Owner, structure: Structure, address: LineAddress) -> Result<Line> {
        self.check_address(owner, address)?;
        let mut found = EMPTY_LINE;
        self.lines(owner, structure, address, 1, |_, line| {
            found = *line;
            Ok(())
        })?;
        Ok(found)
    }

    /// A line of a mapping page of `owner`, verified. Unlike other lines it may be empty only if lines of holes are ([CA9]).
    pub(crate) fn mapping_line(&self, owner: Owner, address: LineAddress) -> Result<Line> {
        let line = self.line(owner, Structure::Mapping, address)?;
        if line == EMPTY_LINE {
            let verified = self.holes.verify(&line, &self.place(owner, address));
            verified.map_err(|source| Error::Damaged { inode: owner.inode, source })?;
        }
        Ok(line)
    }

    fn verify(&self, owner: Owner, address: LineAddress, line: &Line) -> Result<()> {
        self.place(owner, address).verify(line).map_err(|source| Error::Damaged { inode: owner.inode, source })
    }

    /// Zeroes whole pages before they are linked ([`zero_pages`]). A failed FLUSH stops the file system (RULES R15): more may be lost.
    pub(crate) fn zero_fresh_pages(&self, structure: Structure, first: LineAddress, lines: u64) -> Result<Fenced> {
        self.fresh(zero_pages(&self.drive, structure, first, lines))
    }

    /// Writes a whole page before it is linked, like `zero_fresh_pages`.
    pub(crate) fn write_fresh_page(&self, structure: Structure, page: LineAddress, bytes: &[u8; PAGE_BYTES]) -> Result<Fenced> {
        self.fresh(write_page(&self.drive, structure, page, bytes))
    }

    fn fresh(&self, written: std::result::Result<Fenced, DeviceError>) -> Result<Fenced> {
        written.map_err(|error| match error {
            DeviceError::Block { operation: "flush", .. } => self.health.stop("flushing the drive", &error),
            other => other.into(),
        })
    }

    /// Refuses a pointer to outside the zone before it is followed.
    pub(crate) fn check_address(&self, owner: Owner, address: LineAddress) -> Result<()> {
        if self.geometry.holds_lines(address, 1) {
            return Ok(());
        }
        Err(damaged(owner, address, "address"))
    }
}

/// Loads consecutive metadata lines, bypassing the host copies: whole pages by blocks if the windows overlap ([CA6] of `cache/`).
pub(crate) fn load_bulk(drive: &Drive, structure: Structure, first: LineAddress, into: &mut [u8]) -> std::result::Result<(), DeviceError> {
    let before_page = (PAGE_LINES - first.index_in_page() as u64) % PAGE_LINES;
    let (head, rest) = into.split_at_mut(into.len().min(before_page as usize * LINE_BYTES));
    let (pages, tail) = rest.split_at_mut(rest.len() / PAGE_BYTES * PAGE_BYTES);
    if !drive.description().overlapping || pages.is_empty() {
        return drive.load(structure, first, into);
    }
    let first_page = first.nth(before_page);
    if !head.is_empty() {
        drive.load(structure, first, head)?;
    }
    drive.load_pages(structure, first_page, pages)?;
    if !tail.is_empty() {
        drive.load(structure, first_page.nth((pages.len() / LINE_BYTES) as u64), tail)?;
    }
    Ok(())
}

/// Zeroes whole unused pages ([CA7] of `cache/`). Durable when it returns.
pub(crate) fn zero_pages(drive: &Drive, structure: Structure, first: LineAddress, lines: u64) -> std::result::Result<Fenced, DeviceError> {
    match unflushed(drive, first) {
        Some(sector) => write_unflushed(drive, structure, sector, &vec![0; lines as usize * LINE_BYTES]),
        None => drive.zero_pages(structure, first, lines / PAGE_LINES),
    }
}

/// Writes a whole unused page ([CA7] of `cache/`). Durable when it returns.
fn write_page(
    drive: &Drive,
    structure: Structure,
    page: LineAddress,
    bytes: &[u8; PAGE_BYTES],
) -> std::result::Result<Fenced, DeviceError> {
    match unflushed(drive, page) {
        Some(sector) => write_unflushed(drive, structure, sector, bytes),
        None => drive.write_pages(structure, page, bytes),
    }
}

/// Where a page is written without a flush: only by a deliberate bug.
fn unflushed(drive: &Drive, page: LineAddress) -> Option<Sector> {
    drive.description().sector_of_page(page).filter(|_| on(Mutant::FreshPageNotFlushed))
}

fn write_unflushed(drive: &Drive, structure: Structure, sector: Sector, bytes: &[u8]) -> std::result::Result<Fenced, DeviceError> {
    drop(drive.transfer(structure, &mut [BlockRequest::Write { sector, buffer: bytes.into() }], &mut || {})?);
    Ok(Fenced::nothing_stored())
}
