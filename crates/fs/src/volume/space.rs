//! Taking and freeing space beyond an allocator alone: lines of a region may need a transaction that raises its mark, or a checkpoint for
//! freed lines. And space that a transaction frees, holds back or leaves.

use std::ops::RangeInclusive;

use tandemfs_device::{Fenced, Flushed, Structure};
use tandemfs_format::hole_lines::HoleLines;
use tandemfs_format::inode::INODE_LINES;
use tandemfs_format::mapping::{PAGE_RECORDS, Record, RecordBytes};
use tandemfs_format::segment::Region;
use tandemfs_format::{DataAddress, InodeNumber, LineAddress, PAGE_LINES, Sector};

use super::{Owner, Tx, Volume};
use crate::alloc::departure::Pace;
use crate::alloc::regions::structure_of;
use crate::alloc::rise::{Rise, Step};
use crate::alloc::{Need, freed_by_nobody};
use crate::cache::{LineStore, damaged};
use crate::error::{Error, Result};
use crate::inject::{Take, fails};
use crate::journal::{Host, Journal};
use crate::mutant::{Mutant, on};
use crate::quarantine;
use crate::quota::Quota;
use crate::space::{self, Kinds, Space, Zone};
use crate::wait::may_wait;

/// Checkpoints that one operation forces for space: other threads may take what a checkpoint releases, and free more meanwhile.
const CHECKPOINTS_MAX: u32 = 4;

impl Volume {
    /// Takes `lines` lines (a power of two up to 64) from a region, aligned to their number.
    pub(crate) fn take_lines(&self, region: Region, lines: u64, need: Need) -> Result<LineAddress> {
        let full = Error::NoSpace { zone: "memory" };
        if fails(Take::Lines) {
            return Err(full);
        }
        let mut forced = 0;
        let mut unreadable = 0;
        loop {
            match self.memory.step(&self.health, || self.journal.watermark(), region, lines, need)? {
                // Lines of an unreadable page are useless: a change of one needs the others.
                Step::Taken(address) if lines < PAGE_LINES => match self.page(structure_of(region), address).map(drop) {
                    Err(Error::Device(_)) if unreadable < quarantine::PIECES_MAX => {
                        unreadable += 1;
                        self.quarantine(Space::Region { region, address, lines });
                    }
                    Ok(()) => return Ok(address),
                    Err(error) => return Err(self.return_lines(region, address, lines, error)),
                },
                Step::Taken(address) => return Ok(address),
                Step::Rise(rise) => {
                    may_wait()?;
                    self.raise_mark(rise)?;
                }
                Step::Short { waits: true } if forced < CHECKPOINTS_MAX => {
                    self.checkpoint()?; // R6: shortage forces a checkpoint
                    forced += 1;
                }
                Step::Short { .. } if need == Need::Move => return Err(full),
                Step::Short { .. } => {
                    may_wait()?;
                    let is_given =
                        self.memory.spare_pages.give_back(&self.memory, usize::MAX) > 0 || self.give_back_units(Pace::Short)? > 0;
                    if !is_given && !self.release_quarantine() {
                        return Err(full);
                    }
                }
            }
        }
    }

    /// Takes a zeroed 4 KiB page of a region, with an empty host copy. It is fenced before anything links it (RULES R6).
    pub(crate) fn take_page(&self, region: Region, structure: Structure, need: Need) -> Result<LineAddress> {
        self.may_write_pages()?;
        let page = self.take_lines(region, PAGE_LINES, need)?;
        self.fenced_page(region, page, self.zero_fresh_pages(structure, page, PAGE_LINES))?;
        match self.pages.insert_zeroed(&self.live.work, structure, page) {
            Ok(_) => Ok(page),
            Err(error) => Err(self.return_lines(region, page, PAGE_LINES, error)),
        }
    }

    /// Takes a page for a mapping of `owner`, without records ([CA9] of `cache/`). It is fenced before anything links it.
    pub(crate) fn take_mapping_page(&self, owner: Owner, need: Need) -> Result<LineAddress> {
        if self.holes == HoleLines::Empty || on(Mutant::FreshPageUnsealed) {
            return self.take_page(Region::Mappings, Structure::Mapping, need);
        }
        self.take_page_of(owner, &[Record::HOLE.encode(); PAGE_RECORDS as usize], need)
    }

    /// Takes a page for a mapping of `owner`, with these records. It is fenced before anything links it.
    pub(crate) fn take_page_of(&self, owner: Owner, records: &[RecordBytes], need: Need) -> Result<LineAddress> {
        self.may_write_pages()?;
        let page = self.take_lines(Region::Mappings, PAGE_LINES, need)?;
        let bytes = self.holes.page(records, &self.place(owner, page));
        self.fenced_page(Region::Mappings, page, self.write_fresh_page(Structure::Mapping, page, &bytes))?;
        match self.pages.insert_fresh(&self.live.work, Structure::Mapping, page, &bytes) {
            Ok(_) => Ok(page),
            Err(error) => Err(self.return_lines(Region::Mappings, page, PAGE_LINES, error)),
        }
    }

    /// Where the windows overlap, fresh pages are written by block requests.
    fn may_write_pages(&self) -> Result<()> {
        if self.drive.description().overlapping { may_wait() } else { Ok(()) }
    }

    /// Frees lines that were just taken and cannot be used; returns the error.
    #[cold]
    fn return_lines(&self, region: Region, address: LineAddress, lines: u64, error: Error) -> Error {
        self.give_back(Space::Region { region, address, lines });
        error
    }

    /// Holds a fresh page back that could not be written.
    fn fenced_page(&self, region: Region, page: LineAddress, written: Result<Fenced>) -> Result<()> {
        written.map(drop::<Fenced>).inspect_err(|_| self.quarantine(Space::Region { region, address: page, lines: PAGE_LINES }))
    }

    /// Takes sectors or pages in a row for an extent of a file.
    pub(crate) fn take_data(&self, zone: Zone, count: u64, need: Need) -> Result<DataAddress> {
        match zone {
            Zone::Block => self.sectors.take(count, need).map(DataAddress::Sector),
            Zone::Memory => self.memory.take_extent(count, need).map(DataAddress::Page),
        }
    }

    /// Takes data in a row for several blocks at once. Who gets none takes it a block at a time, so that is no refusal of growth.
    /// Less than a unit comes from an aligned extent only if `may_break`.
    /// Returns how many were taken.
    pub(crate) fn take_row(&self, zone: Zone, counts: RangeInclusive<u64>, may_break: bool) -> Option<(DataAddress, u64)> {
        match zone {
            Zone::Block => self.sectors.take_row(counts, may_break).map(|(sector, count)| (DataAddress::Sector(sector), count)),
            Zone::Memory => self.memory.take_row_of_pages(counts, may_break).map(|(page, count)| (DataAddress::Page(page), count)),
        }
    }

    /// Pages of a large extent, where there is that class ([LX1] of `alloc/large_units.rs`).
    pub(crate) fn large_extent_pages(&self) -> Option<u64> {
        self.memory.large_extent_pages()
    }

    /// Takes a large extent of the memory zone.
    pub(crate) fn take_large_extent(&self) -> Option<DataAddress> {
        self.memory.take_large_extent().map(DataAddress::Page)
    }

    /// Takes these sectors or pages, if they are free and in holes.
    pub(crate) fn take_row_at(&self, at: DataAddress, count: u64) -> bool {
        match at {
            DataAddress::Sector(sector) => self.sectors.take_row_at(sector, count),
            DataAddress::Page(address) => self.memory.take_row_at(address, count),
        }
    }

    /// Takes data from the first of two zones that has it. The error is the first one's.
    pub(crate) fn take_data_in(&self, (zone, other): (Zone, Option<Zone>), count: u64, need: impl Fn(Zone) -> Need) -> Result<DataAddress> {
        match (self.take_data(zone, count, need(zone)), other) {
            (Err(full @ Error::NoSpace { .. }), Some(other)) => self.take_data(other, count, need(other)).map_err(|_| full),
            (taken, _) => taken,
        }
    }

    /// Takes a free inode number; returns its address too.
    pub(crate) fn take_inode(&self) -> Result<(InodeNumber, LineAddress)> {
        let address = self.take_lines(Region::Inodes, INODE_LINES, Need::Growth)?;
        Ok((self.memory.inode_number(address), address))
    }

    /// Zeroes the next lines of a segment, then commits its higher mark ([ME2] of `alloc/memory.rs`). `rise` keeps the region locked, and
    /// takes everything back on failure.
    fn raise_mark(&self, rise: Rise<'_>) -> Result<()> {
        if rise.wants_write_back {
            self.journal.ask(|requests| requests.write_back = true); // [ME3] there: the next unit must be there before it is needed
        }
        let (first, lines) = rise.fresh_lines();
        let zeroed = self.zero_fresh_pages(structure_of(rise.region), first, lines)?;
        self.pages.forget(first, lines); // [GU3] of `alloc/departure.rs`
        let mut tx = Tx::new(self);
        let line = self.geometry.segment_line(rise.index);
        tx.put(Structure::AllocationMap, line, rise.risen().encode(self.pair, line))?;
        match tx.commit(zeroed, Flushed::nothing_written()) {
            Ok(_) => rise.done(),
            Err(error @ Error::Stopped { .. }) => {
                rise.stay_taken();
                return Err(error);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Frees space that nobody can reach.
    pub(crate) fn give_back(&self, space: Space) {
        if self.held_back.keeps(space) {
            return; // [HB2]
        }
        let freed = match space {
            Space::Region { region, address, lines } => self.memory.free_now(region, address, lines),
            Space::Slot { address, lines } => self.memory.free_slot(address, lines),
            Space::Pages { address, count } => {
                let free = self.lent_pages.hold_back(address, count); // [SL5] of `data/lent_stores.rs`
                free.into_iter().all(|(address, count)| self.memory.free_extent(address, count))
            }
            Space::Sectors { sector, count } => {
                self.memory.spare_pages.forget(&self.memory, sector, count);
                let free = self.leases.hold_back(sector, count); // [LY4] of `lease.rs`
                free.into_iter().all(|(sector, count)| self.sectors.free(sector, count))
            }
        };
        if !freed {
            freed_by_nobody(&self.health, space);
        }
    }

    /// Refuses to move an object of a region from lines that nobody took for one: an address of a forged image ([CZ4] of `compaction/`).
    pub(crate) fn check_object(&self, owner: Owner, region: Region, address: LineAddress, lines: u64) -> Result<()> {
        if self.memory.has_object(region, address, lines) { Ok(()) } else { Err(damaged(owner, address, "address")) }
    }

    /// Frees everything that waited for the watermark and that it has passed.
    pub(crate) fn release_pending(&self) {
        self.memory.release_all_pending(&self.health, || self.journal.watermark());
    }

    /// Frees sectors that were held back for leases which have been returned ([LY4] of `lease.rs`), and pages that nobody can store to any more
    /// ([SL5] of `data/lent_stores.rs`). False if there were none.
    pub(crate) fn release_returned(&self) -> bool {
        let (runs, pages) = (self.leases.take_returned(), self.lent_pages.take_returned());
        let any = !runs.is_empty() || !pages.is_empty();
        for (address, count) in pages {
            self.give_back(Space::Pages { address, count });
        }
        for (sector, count) in runs {
            self.give_back(space::sectors(sector, count));
        }
        any
    }

    /// Marks everything of these kinds as taken that is not taken yet ([HB1] of `held_back.rs`), after the maps are loaded.
    pub(crate) fn hold_unproved(&self, kinds: Kinds) {
        let mut lines = 0;
        for region in Region::ALL.into_iter().filter(|region| *region != Region::Inodes) {
            if kinds.has(Kinds::of_region(region)) {
                lines += self.memory.hold_region(region);
            }
        }
        if kinds.has(Kinds::SLOTS) {
            lines += self.memory.hold_data_area();
        }
        let sectors = if kinds.has(Kinds::SECTORS) { self.sectors.hold_all() } else { 0 };
        self.held_back.hold(kinds, lines, sectors);
    }

    /// Holds space back ([QU1] of `quarantine.rs`).
    pub(crate) fn quarantine(&self, space: Space) {
        if let Space::Slot { address, .. } = space {
            self.memory.avoid_page_of_slot(address); // a device fails whole pages, and the next slot would be in the same one
        }
        if let Some(oldest) = self.quarantine.hold(space) {
            self.give_back(oldest);
        }
    }

    /// Frees everything that is held back ([QU2] of `quarantine.rs`). False if there was nothing.
    pub(crate) fn release_quarantine(&self) -> bool {
        let pieces = self.quarantine.take_all();
        let any = !pieces.is_empty();
        for space in pieces {
            self.give_back(space);
        }
        any
    }
}

impl Host for Volume {
    fn line_store(&self) -> &LineStore {
        &self.line_store
    }

    fn journal(&self) -> &Journal {
        &self.journal
    }

    fn quota(&self) -> &Quota {
        &self.quota
    }

    fn free(&self, space: Space) {
        self.give_back(space);
    }

    fn free_lines_after(&self, region: Region, address: LineAddress, lines: u64, txid: u64) {
        if !self.held_back.keeps(space::region(region, address, lines)) {
            self.memory.free_after(region, address, lines, txid); // else [HB2]
        }
    }

    fn hold_back(&self, space: Space) {
        self.quarantine(space);
    }

    fn forget_copies(&self, sector: Sector) {
        self.memory.spare_pages.forget(&self.memory, sector, 1);
    }
}
