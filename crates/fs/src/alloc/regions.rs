//! Regions: allocates metadata lines, and frees them, at once or after the watermark has passed ([ME1] of `memory.rs`).

use tandemfs_device::Structure;
use tandemfs_format::inode::INODE_LINES;
use tandemfs_format::segment::Region;
use tandemfs_format::{LineAddress, PAGE_LINES, UNIT_LINES};

use super::memory::MemoryAllocator;
use super::region_state::{RegionState, slot};
use super::rise::Step;
use super::units::UnitOwner;
use super::{Need, freed_by_nobody};
use crate::error::Result;
use crate::health::Health;
use crate::inject::{Take, fails};
use crate::space::Space;
use crate::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};

/// Lines that growth leaves free in the regions of mappings and leaves.
pub(crate) const TRANSIENT_REGION_LINES: u64 = 1024;

/// Space that a region has for growth without another unit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RegionRoom {
    /// Aligned runs of the requested length, below and above the high-water marks.
    pub(crate) runs: u64,
    /// Free lines below and above the marks.
    pub(crate) lines: u64,
    /// Free lines below the marks.
    pub(crate) below_mark: u64,
}

impl MemoryAllocator {
    /// Tries to take `lines` (a power of two up to 64) from a region, aligned to that number. Calls `watermark` under the region's lock.
    pub(crate) fn step(&self, health: &Health, watermark: impl Fn() -> u64, region: Region, lines: u64, need: Need) -> Result<Step<'_>> {
        let mut state = self.regions[slot(region)].lock()?;
        self.release_pending(health, watermark(), region, &mut state);
        let waits = !state.pending.is_empty();
        if self.may_take(region, &state, lines, need) {
            if let Some(address) = self.find_for(region, &mut state, lines, need) {
                self.region_free[slot(region)].fetch_sub(lines, SeqCst);
                if region == Region::Inodes {
                    self.inodes_used.fetch_add(1, Relaxed);
                }
                return Ok(Step::Taken(address));
            }
            if need == Need::Move && !self.is_shrinking() {
                return Ok(Step::Short { waits: false }); // [EU2] of `emptying.rs`
            }
            if let Some(rise) = self.plan_rise(region, state, need) {
                return Ok(Step::Rise(rise));
            }
        }
        Ok(Step::Short { waits })
    }

    /// Growth leaves the transient room in the regions of mappings and leaves ([ME3]).
    fn may_take(&self, region: Region, state: &RegionState, lines: u64, need: Need) -> bool {
        let floor = match (need, region) {
            (Need::Growth, Region::Mappings | Region::Leaves) => TRANSIENT_REGION_LINES,
            _ => 0,
        };
        let own = self.region_free[slot(region)].load(SeqCst) + state.lines_above_mark();
        own + self.free_units.load(SeqCst) * UNIT_LINES >= lines + floor
    }

    /// Finds lines, those of units that are being emptied last ([EU1] of `emptying.rs`).
    fn find_for(&self, region: Region, state: &mut RegionState, lines: u64, need: Need) -> Option<LineAddress> {
        let found = self.find(region, state, lines, need);
        if found.is_some() || need == Need::Move || state.emptying.units.is_empty() || self.is_shrinking() {
            return found;
        }
        self.give_up_emptying(region, state);
        self.find(region, state, lines, need)
    }

    fn find(&self, region: Region, state: &mut RegionState, lines: u64, need: Need) -> Option<LineAddress> {
        if self.region_free[slot(region)].load(SeqCst) < lines {
            return None;
        }
        for step in 0..state.units.len() {
            let position = (state.hint + step) % state.units.len();
            let (unit, below) = state.units[position];
            let mut bits = self.map.bits[unit as usize].lock();
            if u64::from(bits.free()) < UNIT_LINES - below + lines || state.emptying.keeps(unit, need) {
                continue;
            }
            if let Some(found) = bits.take(0, (below / 64) as usize, lines as u32, true) {
                state.hint = position;
                return Some(LineAddress::new(unit * UNIT_LINES + found.index()));
            }
        }
        None
    }

    /// Takes a free unit for a region. Growth leaves one unit for each other region that is short of transient room ([ME3]).
    pub(super) fn take_unit(&self, region: Region, need: Need) -> Option<u64> {
        let _serial = self.units.lock();
        let kept = if need == Need::Growth { self.short_regions(Some(region)) } else { 0 };
        if fails(Take::Unit) || self.free_units.load(SeqCst) <= kept {
            return None;
        }
        let unit = self.map.next_free(|| (0..self.total_units()).find(|unit| self.map.owner(*unit) == UnitOwner::Free))?;
        self.map.set_owner(unit, UnitOwner::Region(region));
        self.free_units.fetch_sub(1, SeqCst);
        Some(unit)
    }

    pub(super) fn return_unit(&self, unit: u64) {
        let _serial = self.units.lock();
        self.map.set_owner(unit, UnitOwner::Free);
        self.free_units.fetch_add(1, SeqCst);
    }

    /// Space that a region has for runs of `lines` (a power of two up to 64).
    pub(crate) fn region_room(&self, region: Region, lines: u64) -> RegionRoom {
        let state = self.regions[slot(region)].lock_waiting();
        let above_mark = state.lines_above_mark();
        let runs_of = |(unit, below): &(u64, u64)| self.map.bits[*unit as usize].lock().count_runs((below / 64) as usize, lines as u32);
        let below_mark = self.region_free[slot(region)].load(SeqCst);
        RegionRoom { runs: state.units.iter().map(runs_of).sum::<u64>() + above_mark / lines, lines: below_mark + above_mark, below_mark }
    }

    /// Units that stay free after one more file creation, which may take one for its inode and one for its name.
    pub(crate) fn free_units_after_a_creation(&self) -> u64 {
        let needed = [(Region::Inodes, INODE_LINES), (Region::Dentries, PAGE_LINES)];
        let taken = needed.into_iter().filter(|(region, lines)| self.region_room(*region, *lines).runs == 0).count() as u64;
        self.free_units.load(SeqCst).saturating_sub(taken)
    }

    /// The last run of this many free units.
    pub(crate) fn free_run(&self, units: u64) -> Option<u64> {
        let _serial = self.units.lock();
        self.free_run_locked(units)
    }

    /// The same for a caller that holds the lock of `units`.
    pub(super) fn free_run_locked(&self, units: u64) -> Option<u64> {
        let mut length = 0;
        (0..self.total_units()).rev().find(|unit| {
            length = if self.map.owner(*unit) == UnitOwner::Free { length + 1 } else { 0 };
            length == units
        })
    }

    pub(super) fn short_regions(&self, except: Option<Region>) -> u64 {
        [Region::Mappings, Region::Leaves]
            .into_iter()
            .filter(|region| Some(*region) != except && self.region_free[slot(*region)].load(SeqCst) < TRANSIENT_REGION_LINES)
            .count() as u64
    }

    /// Frees lines at once that no record or reader could have seen. False if they were not taken.
    #[must_use]
    pub(crate) fn free_now(&self, region: Region, address: LineAddress, lines: u64) -> bool {
        let freed = match self.regions[slot(region)].try_lock() {
            Some(mut state) => self.clear(region, &mut state, address, lines),
            None => {
                let is_taken = self.has_object(region, address, lines);
                if is_taken {
                    self.freed_apart[slot(region)].push((0, address, lines));
                }
                is_taken
            }
        };
        if freed {
            self.count_inode_freed(region);
        }
        freed
    }

    fn count_inode_freed(&self, region: Region) {
        if region == Region::Inodes {
            self.inodes_used.fetch_sub(1, Relaxed);
        }
    }

    /// Frees lines after the watermark has passed transaction `txid` ([ME1]).
    pub(crate) fn free_after(&self, region: Region, address: LineAddress, lines: u64, txid: u64) {
        match self.regions[slot(region)].try_lock() {
            Some(mut state) => state.pending.push_back((txid, address, lines)),
            None => self.freed_apart[slot(region)].push((txid, address, lines)),
        }
        self.count_inode_freed(region);
    }

    pub(super) fn release_pending(&self, health: &Health, watermark: u64, region: Region, state: &mut RegionState) {
        for freed in self.freed_apart[slot(region)].take_all() {
            if freed.0 == 0 { state.pending.push_front(freed) } else { state.pending.push_back(freed) }
        }
        while let Some((_, address, lines)) = state.pending.pop_front_if(|(txid, ..)| *txid <= watermark) {
            if !self.clear(region, state, address, lines) {
                freed_by_nobody(health, Space::Region { region, address, lines });
            }
        }
    }

    /// Whether any freed lines wait for the watermark.
    pub(crate) fn is_any_pending(&self) -> bool {
        self.freed_apart.iter().any(|apart| !apart.is_empty())
            || self.regions.iter().any(|region| !region.lock_waiting().pending.is_empty())
    }

    /// Lines of a region that wait for the watermark, and its free lines.
    #[cfg(test)]
    pub(crate) fn waiting_and_free(&self, region: Region) -> (u64, u64) {
        let waiting = self.regions[slot(region)].lock_waiting().pending.iter().map(|(.., lines)| lines).sum();
        (waiting, self.region_free[slot(region)].load(SeqCst))
    }

    /// Frees all waiting lines that the watermark has passed. Calls `watermark` under each region's lock.
    pub(crate) fn release_all_pending(&self, health: &Health, watermark: impl Fn() -> u64) {
        for region in Region::ALL {
            let mut state = self.regions[slot(region)].lock_waiting();
            self.release_pending(health, watermark(), region, &mut state);
        }
    }

    /// False, with no change, if the lines were not taken or belong to another region ([ME4]).
    fn clear(&self, region: Region, state: &mut RegionState, address: LineAddress, lines: u64) -> bool {
        {
            let mut bits = self.map.bits[address.unit() as usize].lock();
            let start = address.number() % UNIT_LINES;
            if self.map.owner(address.unit()) != UnitOwner::Region(region) || start + lines > UNIT_LINES || !bits.is_taken(start, lines) {
                return false;
            }
            bits.clear(start, lines);
        }
        self.region_free[slot(region)].fetch_add(lines, SeqCst);
        if let Some(position) = state.units.iter().position(|(unit, _)| *unit == address.unit()) {
            state.hint = state.hint.min(position);
        }
        true
    }
}

/// The structure under which bytes of a region are counted.
pub(crate) fn structure_of(region: Region) -> Structure {
    match region {
        Region::Inodes => Structure::Inode,
        Region::Dentries => Structure::Dentry,
        Region::Mappings | Region::Leaves | Region::Attributes => Structure::Mapping,
    }
}
