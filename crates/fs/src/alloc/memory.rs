//! Lines of the memory zone: units of 2 MiB given to regions (metadata) or to the data area (data-log slots).
//!
//! [ME1] Region space freed by a transaction is reused only after the watermark has passed that transaction (RULES R6); shortage forces a
//!       checkpoint. Slots of the data area need not wait: no record targets them (RULES R7).
//! [ME2] A region grows by raising a segment's high-water mark: the new lines are zeroed and fenced, then the mark is committed. The
//!       allocator only chooses the mark ([`Rise`](super::rise::Rise)); the caller that needs lines does the rest, while the region stays
//!       locked.
//! [ME3] The data area leaves the regions a reserve of units, and every kind leaves its transient room to operations that give space back
//!       (RULES R14). When the regions have taken half of the reserve, all data logs are written back ([WB6] of `data/write_back.rs`):
//!       emptied units refill it.
//! [ME4] Freed addresses come from on-device pointers, which a clean mount has not verified. Freeing space that is not taken stops the file
//!       system, without a panic.
//!
//! Lock order: a region or a pool, then `units`, then the bits of a unit.

use std::sync::atomic::AtomicU64 as Size; // sizes order no threads

use tandemfs_device::Apart;
use tandemfs_format::allocation_map::PieceKind;
use tandemfs_format::geometry::Geometry;
use tandemfs_format::inode::INODE_LINES;
use tandemfs_format::segment::{Region, Segment};
use tandemfs_format::{InodeNumber, LineAddress, UNIT_LINES};

use super::bits::Bits;
use super::extents::Extents;
use super::freed_apart::FreedApart;
use super::gathering::Gathering;
use super::pools::Pool;
use super::region_state::{RegionState, slot};
use super::spare_pages::SparePages;
use super::table_lines::TableLines;
use super::units::{UnitMap, UnitOwner};
use crate::mutant::{Mutant, on};
use crate::numa::Numa;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use crate::sync::{Mutex, RwLock};
use crate::wait::LongMutex;

pub(crate) struct MemoryAllocator {
    pub(super) map: UnitMap,
    pub(super) units: Mutex<TableLines>, // also serialises changes of owners
    /// Locked while a mark rises or a unit leaves, commits included.
    pub(super) regions: [LongMutex<RegionState>; 5],
    pub(super) freed_apart: [FreedApart; 5],
    /// Free lines below the high-water marks, per region.
    pub(super) region_free: [AtomicU64; 5],
    /// Units of the inode region in order, with their lines below the mark: gives inode addresses without the region's lock.
    pub(super) inode_units: RwLock<Vec<(u64, u64)>>,
    /// With several nodes, as many for each one, one behind the other.
    pub(super) pools: Vec<Apart<Mutex<Pool>>>,
    /// Which node serves whom first.
    pub(crate) numa: Numa,
    pub(super) extents: Extents,
    pub(super) gathering: Gathering,
    pub(super) free_units: AtomicU64,
    pub(super) free_data_lines: AtomicU64,
    pub(super) data_log_lines: AtomicU64,
    pub(super) inodes_used: AtomicU64,
    /// Units of the data area are being emptied: meanwhile growth gets no slots and takes the block path ([ME3]).
    pub(crate) is_emptied: AtomicBool,
    /// Free units are held back ([HO1] of `hold.rs`): emptying units would not make one free.
    pub(super) units_are_held: AtomicBool,
    pub(super) metadata_reserve_units: Size,
    total_units: Size,
    /// Spare pages that hold copies.
    pub(crate) spare_pages: SparePages,
}

impl MemoryAllocator {
    /// All units are free except the fixed parts.
    pub(crate) fn new(geometry: &Geometry, pools: usize, numa: Numa, spare_pages: SparePages) -> Self {
        let slot_pools = pools.next_multiple_of(numa.count());
        let free = (0..geometry.memory_units()).filter(|unit| !geometry.is_fixed(*unit)).count() as u64;
        Self {
            map: UnitMap::new(geometry, &numa),
            units: Mutex::default(),
            regions: Default::default(),
            freed_apart: Default::default(),
            region_free: Default::default(),
            inode_units: RwLock::default(),
            pools: (0..slot_pools).map(|_| Apart::default()).collect(),
            extents: Extents::new(geometry, pools, numa.nodes()),
            numa,
            gathering: Gathering::default(),
            free_units: AtomicU64::new(free),
            free_data_lines: AtomicU64::new(0),
            data_log_lines: AtomicU64::new(0),
            inodes_used: AtomicU64::new(0),
            is_emptied: AtomicBool::new(false),
            units_are_held: AtomicBool::new(false),
            metadata_reserve_units: Size::new(metadata_reserve_units(geometry)),
            total_units: Size::new(geometry.memory_units()),
            spare_pages,
        }
    }

    /// Units that the data area leaves to regions ([ME3]).
    pub(super) fn metadata_reserve_units(&self) -> u64 {
        self.metadata_reserve_units.load(Relaxed)
    }

    /// Units of the zone.
    pub(crate) fn total_units(&self) -> u64 {
        self.total_units.load(SeqCst)
    }

    // ---- growing -------------------------------------------------------------------------------------------------------------------

    /// Whether units can be added in use: nodes of memory, and the class of large extents, count the units that were there at the mount.
    pub(crate) fn can_grow(&self) -> bool {
        !self.numa.is_on() && self.map.large.is_none()
    }

    /// Prepares the maps for a zone of these sizes; units that are new are nobody's ([ON4] of `growing.rs`).
    pub(crate) fn prepare_growth(&self, geometry: &Geometry) {
        self.map.grow(geometry.memory_units() as usize);
        self.extents.prepare_growth(geometry);
    }

    /// Takes so many units in a row for map pieces, the last ones that are free. [`MemoryAllocator::return_map_units`] gives them back.
    pub(crate) fn take_map_units(&self, units: u64) -> Option<u64> {
        let _serial = self.units.lock();
        let first = self.free_run_locked(units)?;
        if !on(Mutant::MapUnitsNotTaken) {
            (first..first + units).for_each(|unit| self.map.set_owner(unit, UnitOwner::Fixed));
            self.free_units.fetch_sub(units, SeqCst);
        }
        Some(first)
    }

    /// Gives units back that were taken for map pieces.
    pub(crate) fn return_map_units(&self, first: u64, units: u64) {
        (first..first + units).filter(|unit| self.map.owner(*unit) == UnitOwner::Fixed).for_each(|unit| self.return_unit(unit));
    }

    /// The units behind the old end are free from now on, but for those of map pieces.
    pub(crate) fn grow(&self, geometry: &Geometry, limit_bytes: u64) {
        let (old, new) = (self.total_units(), geometry.memory_units());
        self.total_units.fetch_max(new, SeqCst);
        for unit in (old..new).filter(|unit| !geometry.is_fixed(*unit)) {
            self.show_to_extents(unit);
            self.return_unit(unit);
        }
        self.metadata_reserve_units.fetch_max(metadata_reserve_units(geometry), Relaxed);
        self.extents.grow(geometry, limit_bytes);
    }

    pub(crate) fn map(&self) -> &UnitMap {
        &self.map
    }

    // ---- set-up: the segment table, then marks or saved maps -----------------------------------------------------------------------

    /// Loads the segments of the table. Refuses a segment that overlaps another or leaves a gap in its region.
    pub(crate) fn load_segments(&self, segments: Vec<(u64, Segment)>) -> std::result::Result<(), String> {
        let mut lines = self.units.lock();
        for (index, segment) in segments {
            lines.set_used(index);
            for unit in segment.start_unit..segment.start_unit + segment.unit_count {
                if self.map.owner(unit) != UnitOwner::Free {
                    return Err(format!("segment {index} names unit {unit}, which is not free"));
                }
                self.map.set_owner(unit, UnitOwner::Region(segment.region));
                self.free_units.fetch_sub(1, SeqCst);
            }
            self.regions[slot(segment.region)].lock_waiting().segments.push((index, segment));
        }
        for region in Region::ALL {
            let mut state = self.regions[slot(region)].lock_waiting();
            state.segments.sort_by_key(|(_, segment)| segment.region_unit);
            let mut expected = 0;
            for (index, segment) in &state.segments {
                if segment.region_unit != expected {
                    return Err(format!("segment {index} starts at unit {} of its region instead of {expected}", segment.region_unit));
                }
                expected += segment.unit_count;
            }
            state.rebuild_units();
            for (unit, below) in &state.units {
                self.map.lines_at_mount[*unit as usize].store(*below as u32, Relaxed);
            }
            if region == Region::Inodes {
                *self.inode_units.write() = state.units.clone();
                if let Some((unit, _)) = state.units.first().filter(|(_, below)| *below >= INODE_LINES) {
                    // Slot zero is never used.
                    self.map.bits[*unit as usize].lock().set(0, INODE_LINES);
                }
            }
        }
        Ok(())
    }

    /// Marks lines that recovery found in use. False if they were already taken, have another owner, or lie beyond the mark.
    pub(crate) fn mark(&self, region: Option<Region>, address: LineAddress, lines: u64) -> bool {
        let unit = address.unit();
        let expected = match (self.map.owner(unit), region) {
            (UnitOwner::Region(owner), Some(region)) => owner == region,
            (UnitOwner::Pool(_), None) => true,
            (UnitOwner::Free, None) => {
                let _serial = self.units.lock();
                if self.map.owner(unit) == UnitOwner::Free {
                    self.map.set_owner(unit, UnitOwner::Pool(self.slot_pool(unit)));
                    self.free_units.fetch_sub(1, SeqCst);
                }
                true
            }
            _ => false,
        };
        let end = address.number() % UNIT_LINES + lines;
        expected && end <= self.map.lines_at_mount[unit as usize].load(Relaxed).into() && {
            self.map.bits[unit as usize].lock().set(address.number() % UNIT_LINES, lines)
        }
    }

    /// Loads a saved unit.
    pub(crate) fn load_unit(&self, unit: u64, kind: PieceKind, bytes: &[u8]) {
        let pool = self.slot_pool(unit);
        let owner = match kind {
            PieceKind::Data => Some(UnitOwner::Pool(pool)),
            PieceKind::Extents => Some(UnitOwner::Extents(self.extent_pool(unit))),
            PieceKind::Region | PieceKind::Fixed | PieceKind::Free | PieceKind::Sectors => None,
        };
        if let Some(owner) = owner {
            let _serial = self.units.lock();
            self.map.set_owner(unit, owner);
            self.free_units.fetch_sub(1, SeqCst);
        }
        *self.map.bits[unit as usize].lock() = Bits::from_bytes(bytes);
    }

    /// Computes counters and lists after marks or saved maps are loaded.
    pub(crate) fn finish_loading(&self) {
        self.finish_extents();
        for unit in 0..self.total_units() {
            let pool = match self.map.owner(unit) {
                UnitOwner::Pool(pool) => pool,
                UnitOwner::Extents(_) | UnitOwner::Free | UnitOwner::Fixed | UnitOwner::Region(_) => continue,
            };
            let free = u64::from(self.map.bits[unit as usize].lock().free());
            self.free_data_lines.fetch_add(free, SeqCst);
            self.data_log_lines.fetch_add(UNIT_LINES - free, SeqCst);
            self.list_slots(&mut self.pools[pool as usize].lock(), unit);
        }
        for region in Region::ALL {
            let state = self.regions[slot(region)].lock_waiting();
            let mut free = 0;
            for (unit, below) in &state.units {
                free += u64::from(self.map.bits[*unit as usize].lock().free()) - (UNIT_LINES - below);
                if region == Region::Inodes {
                    let taken = UNIT_LINES - u64::from(self.map.bits[*unit as usize].lock().free());
                    self.inodes_used.fetch_add(taken / INODE_LINES, Relaxed);
                }
            }
            self.region_free[slot(region)].store(free, SeqCst);
        }
        // Slot 0 of the inode region is taken but is not an inode.
        let _ = self.inodes_used.fetch_update(Relaxed, Relaxed, |used| used.checked_sub(1));
    }

    // ---- inodes --------------------------------------------------------------------------------------------------------------------

    /// The first line of an inode; `None` if it is beyond the region's high-water mark.
    pub(crate) fn inode_address(&self, number: InodeNumber) -> Option<LineAddress> {
        inode_address_in(&self.inode_units.read(), number)
    }

    /// Numbers below this may be in use; numbers above the mark of a unit that is not the last one are not (a rescue leaves such marks).
    pub(crate) fn inode_limit(&self) -> u64 {
        let units = self.inode_units.read();
        let end = |(position, (_, below)): (u64, &(u64, u64))| if *below > 0 { position * UNIT_LINES + below } else { 0 };
        (0..).zip(units.iter()).map(end).max().unwrap_or_default() / INODE_LINES
    }

    /// The first line of the slot with this number, which may be 0, and the number of slots from there to the mark of its unit; `None` above
    /// that mark.
    pub(crate) fn inode_slots_from(&self, number: u64) -> Option<(LineAddress, u64)> {
        slots_from(&self.inode_units.read(), number)
    }

    /// The inode number of an address that the inode region allocated.
    pub(crate) fn inode_number(&self, address: LineAddress) -> InodeNumber {
        let units = self.inode_units.read();
        let Some(position) = units.iter().position(|(unit, _)| *unit == address.unit()) else {
            unreachable!("the region knows the units that it gives lines from")
        };
        InodeNumber::new((position as u64 * UNIT_LINES + address.number() % UNIT_LINES) / INODE_LINES)
    }

    /// Inodes in use, and files that can still be made.
    pub(crate) fn inodes(&self) -> (u64, u64) {
        (self.inodes_used.load(Relaxed), self.creatable_files())
    }
}

pub(super) fn metadata_reserve_units(geometry: &Geometry) -> u64 {
    (geometry.memory_units() / 16).max(1)
}

/// The first line of an inode in these units; `None` if it is beyond the region's high-water mark.
pub(super) fn inode_address_in(units: &[(u64, u64)], number: InodeNumber) -> Option<LineAddress> {
    slots_from(units, number.get()).filter(|_| number.get() > 0).map(|(address, _)| address)
}

fn slots_from(units: &[(u64, u64)], number: u64) -> Option<(LineAddress, u64)> {
    let line = number.checked_mul(INODE_LINES)?;
    let (unit, below) = *units.get(usize::try_from(line / UNIT_LINES).ok()?)?;
    // The mark of a forged image may be odd: half an inode is no slot.
    let left = below.checked_sub(line % UNIT_LINES).filter(|left| *left >= INODE_LINES)?;
    Some((LineAddress::new(unit * UNIT_LINES + line % UNIT_LINES), left / INODE_LINES))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A search for inodes would otherwise get no slots from a unit of a forged image, and stay there for ever.
    #[test]
    fn regression_half_an_inode_below_a_mark_is_no_slot() {
        let units = [(7, 5), (9, 4)];
        let at = |line| LineAddress::new(7 * UNIT_LINES + line);
        assert_eq!(slots_from(&units, 0), Some((at(0), 2)));
        assert_eq!(slots_from(&units, 1), Some((at(2), 1)));
        assert_eq!(slots_from(&units, 2), None);
        let second = UNIT_LINES / INODE_LINES;
        assert_eq!(slots_from(&units, second + 1), Some((LineAddress::new(9 * UNIT_LINES + 2), 1)));
        assert_eq!(slots_from(&units, second + 2), None);
    }
}
