//! Space that nobody proved free is marked as taken when damaged metadata may name it ([HB1] of `held_back.rs`).
//!
//! [HO1] It counts as taken everywhere, but not as data logs. In the data area free units become units of a pool with no free line, so that
//!       no region gets them either. Lines beyond a region's high-water mark stay free: nothing was ever stored there.

use tandemfs_format::UNIT_LINES;
use tandemfs_format::segment::Region;

use super::memory::MemoryAllocator;
use super::region_state::slot;
use super::sectors::SectorAllocator;
use super::units::UnitOwner;
use crate::sync::atomic::Ordering::{Relaxed, SeqCst};

impl MemoryAllocator {
    /// Takes all free lines of a region below its high-water marks ([HO1]). Returns their number. Counters must be loaded.
    pub(crate) fn hold_region(&self, region: Region) -> u64 {
        let state = self.regions[slot(region)].lock_waiting();
        let mut held = 0;
        for (unit, below) in &state.units {
            let mut bits = self.map.bits[*unit as usize].lock();
            let before = u64::from(bits.free());
            bits.set(0, *below);
            held += before - u64::from(bits.free());
        }
        self.region_free[slot(region)].fetch_sub(held, SeqCst);
        held
    }

    /// Takes all free lines of the data area and all free units ([HO1]). Returns the number of lines. Counters must be loaded.
    pub(crate) fn hold_data_area(&self) -> u64 {
        let mut held = 0;
        let _serial = self.units.lock();
        for unit in 0..self.total_units() {
            match self.map.owner(unit) {
                UnitOwner::Free => {
                    self.map.set_owner(unit, UnitOwner::Pool(self.slot_pool(unit)));
                    self.free_units.fetch_sub(1, SeqCst);
                    self.map.bits[unit as usize].lock().set(0, UNIT_LINES);
                    held += UNIT_LINES;
                }
                UnitOwner::Pool(_) => {
                    let mut bits = self.map.bits[unit as usize].lock();
                    let free = u64::from(bits.free());
                    bits.set(0, UNIT_LINES);
                    self.free_data_lines.fetch_sub(free, SeqCst);
                    held += free;
                }
                UnitOwner::Extents(_) => held += self.hold_extents(unit),
                UnitOwner::Fixed | UnitOwner::Region(_) => {}
            }
        }
        self.units_are_held.store(true, Relaxed);
        held
    }
}

impl SectorAllocator {
    /// Takes all free sectors. Returns their number. The transient room must not be filled yet.
    pub(crate) fn hold_all(&self) -> u64 {
        self.take_all()
    }
}
