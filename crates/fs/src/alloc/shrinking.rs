//! Space that a zone is to lose: it is emptied, and given to nobody any more. `compaction/` moves what is in it, `shrinking.rs` of the file system
//! decides and ends it. The mount ends with it: nothing here goes back.
//!
//! [DZ1] Of the memory zone whole units are *doomed*: those behind the new end, and those in which the map pieces shall lie. A free one is nobody's from
//!       then on, and so is one that becomes free. The others are emptied by the ways that there are (`emptying.rs`, `gathering.rs`).
//! [DZ2] Of the block zone sectors are doomed, from the unit on in which the new end is. A free one counts as taken from then on, and one that
//!       is freed stays so: no block and no transient room gets it, however it is looked for.
//! [DZ3] Moves may do what moves of a compaction may not ([EU2], [GA2], [SX3]): break aligned extents, raise marks, add units. Nobody else needs these
//!       meanwhile. Emptying does not end for want of room: what finds none is refused.
//! [DZ4] An empty unit that cannot leave its region, and one of inodes with what is in it, is replaced by a free unit at the same position: one
//!       transaction changes the segment table, which splits the segment.

use std::ops::Range;

use tandemfs_format::geometry::Geometry;
use tandemfs_format::segment::{Region, Segment};
use tandemfs_format::{LineAddress, UNIT_LINES};

use super::aligned_space::AlignedSpace;
use super::departure::TableChange;
use super::memory::{MemoryAllocator, metadata_reserve_units};
use super::region_state::slot;
use super::rise::HIGH_WATER_STEP;
use super::sectors::SectorAllocator;
use super::unit_pages::UNIT_PAGES;
use super::units::UnitOwner;
use crate::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Doomed units ([DZ1]).
#[derive(Debug)]
pub(super) struct Doomed {
    end: u64,
    map: Range<u64>,
}

impl Doomed {
    pub(super) fn has(&self, unit: u64) -> bool {
        unit >= self.end || self.map.contains(&unit)
    }
}

/// A doomed unit of a region and the one that takes its position ([DZ4]).
#[derive(Debug)]
pub(crate) struct Replacement {
    pub(crate) region: Region,
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// Its position in the region.
    pub(crate) position: u64,
    /// Lines of the old one below the mark, and of the new one.
    pub(crate) below: u64,
    pub(crate) below_then: u64,
    pub(crate) changes: Vec<TableChange>,
    segments: Vec<(u64, Segment)>,
}

impl MemoryAllocator {
    /// Whether units are doomed.
    pub(super) fn is_shrinking(&self) -> bool {
        self.map.doomed.get().is_some()
    }

    /// Units that are to be left for these sizes and are not free ([DZ1]).
    pub(crate) fn units_behind(&self, after: &Geometry) -> Vec<u64> {
        let doomed = Doomed { end: after.memory_units(), map: after.map_units() };
        let is_left = |unit: &u64| doomed.has(*unit) && !matches!(self.map.owner(*unit), UnitOwner::Free | UnitOwner::Fixed);
        (0..self.total_units()).filter(is_left).collect()
    }

    /// Units that everything in the zone needs, however well it is packed.
    pub(crate) fn units_needed(&self) -> u64 {
        let of_regions = Region::ALL.into_iter().map(|region| {
            let state = self.regions[slot(region)].lock_waiting();
            let below: u64 = state.units.iter().map(|(_, below)| below).sum();
            match region {
                Region::Inodes => state.units.len() as u64, // [DZ4]
                _ => below.saturating_sub(self.region_free[slot(region)].load(SeqCst)).div_ceil(UNIT_LINES),
            }
        });
        let of_data = [self.data_log_lines.load(SeqCst), self.extents.lines()].map(|lines| lines.div_ceil(UNIT_LINES));
        of_regions.sum::<u64>() + of_data.iter().sum::<u64>()
    }

    /// Dooms the units that a zone of these sizes does not have, and those of its map pieces.
    pub(crate) fn doom(&self, after: &Geometry) {
        self.spare_pages.give_back(self, usize::MAX); // copies are in slots, and no record names them
        let is_first = self.map.doomed.set(Doomed { end: after.memory_units(), map: after.map_units() }).is_ok();
        assert!(is_first, "a mount shrinks once");
        self.metadata_reserve_units.store(metadata_reserve_units(after), Relaxed);
        let doomed: Vec<u64> = (0..self.total_units()).filter(|unit| self.map.is_doomed(*unit)).collect();
        for unit in &doomed {
            let owner = {
                let _serial = self.units.lock();
                let owner = self.map.owner(*unit);
                if owner == UnitOwner::Free {
                    self.map.set_owner(*unit, UnitOwner::Fixed);
                    self.free_units.fetch_sub(1, SeqCst);
                }
                owner
            };
            match owner {
                UnitOwner::Pool(_) => self.map.set_emptied(*unit),
                UnitOwner::Extents(_) => _ = self.hide_extents(*unit),
                UnitOwner::Free | UnitOwner::Fixed | UnitOwner::Region(_) => {}
            }
        }
        for region in Region::ALL.into_iter().filter(|region| *region != Region::Inodes) {
            let mut state = self.regions[slot(region)].lock_waiting();
            state.emptying.units = doomed.iter().copied().filter(|unit| self.map.owner(*unit) == UnitOwner::Region(region)).collect();
        }
    }

    /// Doomed units that a region still has.
    pub(crate) fn doomed_units_of(&self, region: Region) -> Vec<u64> {
        self.units_of_region(region).into_iter().filter(|unit| self.map.is_doomed(*unit)).collect()
    }

    fn units_of_region(&self, region: Region) -> Vec<u64> {
        self.regions[slot(region)].lock_waiting().units.iter().map(|(unit, _)| *unit).collect()
    }

    /// Chooses the unit that takes the position of a doomed one ([DZ4]). `None` if there is no free unit, or no line of the segment table.
    pub(crate) fn plan_replacement(&self, region: Region, unit: u64) -> Option<Replacement> {
        let state = self.regions[slot(region)].lock_waiting();
        let at = state.segments.iter().position(|(_, old)| (old.start_unit..old.start_unit + old.unit_count).contains(&unit))?;
        let (line, old) = state.segments[at];
        let within = unit - old.start_unit;
        let mark = |first: u64, units: u64| old.high_water_lines.saturating_sub(first * UNIT_LINES).min(units * UNIT_LINES);
        let below = mark(within, 1);
        let below_then = if region == Region::Inodes { below } else { below.min(HIGH_WATER_STEP) };
        let behind = old.unit_count - within - 1;
        let to = self.take_unit_for_position()?;
        let parts = [
            Segment { unit_count: within, high_water_lines: mark(0, within), ..old },
            Segment { start_unit: to, unit_count: 1, region_unit: old.region_unit + within, high_water_lines: below_then, ..old },
            Segment {
                start_unit: unit + 1,
                unit_count: behind,
                region_unit: old.region_unit + within + 1,
                high_water_lines: mark(within + 1, behind),
                ..old
            },
        ];
        let mut lines = self.units.lock();
        let mut own = Some(line);
        let mut changes = Vec::new();
        for part in parts.into_iter().filter(|part| part.unit_count > 0) {
            changes.push((own.take().or_else(|| lines.take())?, Some(part)));
        }
        let mut segments = state.segments.clone();
        segments.splice(at..=at, changes.iter().filter_map(|(line, part)| part.map(|part| (*line, part))));
        let position = old.region_unit + within;
        Some(Replacement { region, from: unit, to, position, below, below_then, changes, segments })
    }

    /// The lowest free unit; nobody's from then on.
    fn take_unit_for_position(&self) -> Option<u64> {
        let _serial = self.units.lock();
        let unit = (0..self.total_units()).find(|unit| self.map.owner(*unit) == UnitOwner::Free)?;
        self.map.set_owner(unit, UnitOwner::Fixed);
        self.free_units.fetch_sub(1, SeqCst);
        Some(unit)
    }

    /// After the commit of a replacement.
    pub(crate) fn replaced(&self, replacement: Replacement) {
        let mut state = self.regions[slot(replacement.region)].lock_waiting();
        state.segments = replacement.segments;
        state.rebuild_units();
        state.emptying.has_left(replacement.from);
    }

    /// The first line of a unit.
    pub(crate) fn line_of_unit(unit: u64) -> LineAddress {
        LineAddress::new(unit * UNIT_LINES)
    }
}

impl SectorAllocator {
    /// Whether all sectors from this one on are free, those of the transient room counted as such.
    pub(crate) fn is_free_from(&self, end: u64) -> bool {
        self.empty_room();
        let mut is_free = true;
        let total = self.total();
        if end < total {
            self.pools.each_part(end, total - end, |space, at, here| is_free &= space.is_free(at, here));
        }
        self.fill_room();
        is_free
    }

    /// Dooms all sectors of units from the one on in which the new end is ([DZ2]).
    pub(crate) fn doom(&self, end: u64) {
        let (start, total) = (end / UNIT_PAGES * UNIT_PAGES, self.total());
        if end >= total {
            return;
        }
        self.empty_room();
        self.doomed_from.store(start, SeqCst);
        let mut left = 0;
        self.each_part(tandemfs_format::Sector::new(start), total - start, |space, at, here| left += take_free(space, at, here));
        self.doomed_left.store(left, SeqCst);
        self.fill_room();
    }

    /// Whether sectors are doomed.
    pub(super) fn is_shrinking(&self) -> bool {
        self.doomed_from.load(SeqCst) != u64::MAX
    }

    /// Of these sectors, how many are doomed.
    pub(super) fn doomed_of(&self, start: u64, count: u64) -> u64 {
        (start + count).saturating_sub(self.doomed_from.load(SeqCst)).min(count)
    }
}

/// Takes what is free of these pages. Returns how many were not.
fn take_free(space: &mut AlignedSpace, start: u64, count: u64) -> u64 {
    let (mut at, end, mut free) = (start, start + count, 0);
    while let Some((first, run)) = space.next_free_run(at).filter(|(first, _)| *first < end) {
        let here = run.min(end - first);
        space.set(first, here);
        free += here;
        at = first + here;
    }
    count - free
}
