//! Extents of files in the memory zone: pages in a row, in units of the data area that hold nothing else.
//!
//! [FX1] A unit of the data area holds slots of data logs or extents of files, never both. What is freed is free only after its transaction,
//!       so this is true at each instant of a crash too, and the rebuild learns from what names a unit's lines whose it is.
//! [FX2] An extent lies in one unit. Units belong to pools, one a CPU. A pool serves from its *holes* first (units with free pages, lowest
//!       address first, first fit), then breaks a whole free unit, then asks the other pools' holes. Freed pages return to the pool that
//!       they came from; a unit without extents is whole again, and free for every use.
//! [FX3] Growth leaves units to metadata as data logs do ([ME3] of `memory.rs`), and leaves the transient room of extents, which data logs
//!       respect too: rewriting a block in the memory zone succeeds on a full device (RULES R14).
//! [FX4] Growth stays below the limit of the mount (option `home_limit`). What takes transient room gives back as much, so it may pass the
//!       limit for that time. Threads that take extents at once may pass it by an extent each.
//!
//! Lock order: a pool, then `units` of the allocator, then the bits of a unit.

use std::collections::BTreeMap;

use tandemfs_format::geometry::Geometry;
use tandemfs_format::{LineAddress, PAGE_BYTES, PAGE_LINES, UNIT_BYTES, UNIT_LINES};

use super::Need;
use super::memory::MemoryAllocator;
use super::units::UnitOwner;
use crate::error::{Error, Result};
use crate::inject::{Take, fails};
use crate::mutant::{Mutant, on};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use crate::sync::current_cpu;

/// Pages of a unit.
const UNIT_PAGES: u64 = UNIT_BYTES / PAGE_BYTES as u64;
/// Blocks that the transient room holds at least, and its pages (4 MiB), as in the block zone.
const ROOM_BLOCKS: u64 = 8;
const ROOM_PAGES: u64 = 1024;

/// Units with extents and free pages, each with the most pages in a row that it may have.
type Holes = BTreeMap<u32, u64>;

/// What the allocator knows about extents.
pub(super) struct Extents {
    pools: Vec<Mutex<Holes>>,
    /// Free pages in units with extents.
    free_pages: AtomicU64,
    /// Pages of extents.
    used_pages: AtomicU64,
    /// Pages that growth leaves free ([FX3]).
    room_pages: u64,
    /// Most pages of extents that growth takes ([FX4]).
    limit_pages: u64,
    /// Growth found no room since somebody asked.
    is_refused: AtomicBool,
}

impl Extents {
    pub(super) fn new(geometry: &Geometry, pools: usize) -> Self {
        let wanted = (ROOM_BLOCKS * geometry.block_sectors_each()).max(ROOM_PAGES);
        Self {
            pools: (0..pools).map(|_| Mutex::default()).collect(),
            free_pages: AtomicU64::new(0),
            used_pages: AtomicU64::new(0),
            room_pages: wanted.min(geometry.memory_units() * UNIT_PAGES / 16),
            limit_pages: u64::MAX,
            is_refused: AtomicBool::new(false),
        }
    }

    pub(super) fn free_lines(&self) -> u64 {
        self.free_pages.load(SeqCst) * PAGE_LINES
    }

    /// Lines of extents.
    pub(super) fn lines(&self) -> u64 {
        self.used_pages.load(SeqCst) * PAGE_LINES
    }

    /// Lines that growth leaves free.
    pub(super) fn room_lines(&self) -> u64 {
        self.room_pages * PAGE_LINES
    }

    /// Units that data logs leave free, so that the transient room can be had: none while no file lies in the memory zone.
    pub(super) fn kept_units(&self) -> u64 {
        match self.used_pages.load(SeqCst) {
            0 => 0,
            _ => self.room_pages.saturating_sub(self.free_pages.load(SeqCst)).div_ceil(UNIT_PAGES),
        }
    }
}

impl MemoryAllocator {
    /// Limits the extents of files to so many bytes ([FX4]).
    pub(crate) fn limit_extents(&mut self, bytes: u64) {
        self.extents.limit_pages = bytes / PAGE_BYTES as u64;
    }

    /// Whether growth found no room since the last call.
    pub(crate) fn take_refusal_of_extents(&self) -> bool {
        self.extents.is_refused.swap(false, SeqCst)
    }

    /// Pages that growth can have below the limit.
    fn pages_below_limit(&self) -> u64 {
        if on(Mutant::HomeLimitIgnored) {
            return u64::MAX;
        }
        self.extents.limit_pages.saturating_sub(self.extents.used_pages.load(SeqCst))
    }

    /// Takes `count` pages in a row (at most a unit) for an extent of a file.
    pub(crate) fn take_extent(&self, count: u64, need: Need) -> Result<LineAddress> {
        let taken = self.try_extent(count, need);
        if taken.is_err() && need == Need::Growth {
            self.extents.is_refused.store(true, SeqCst);
        }
        taken
    }

    /// Takes pages in a row for several extents; nobody is refused what it needs if there are none.
    pub(crate) fn take_row_of_pages(&self, count: u64) -> Option<LineAddress> {
        self.try_extent(count, Need::Growth).ok()
    }

    fn try_extent(&self, count: u64, need: Need) -> Result<LineAddress> {
        let full = Error::NoSpace { zone: "memory" };
        let lines = count * PAGE_LINES;
        if fails(Take::Pages) {
            return Err(full);
        }
        if need == Need::Growth && (self.free_for_extents() < lines + self.extents.room_lines() || self.pages_below_limit() < count) {
            return Err(full);
        }
        let own = current_cpu() % self.extents.pools.len();
        let others = (0..self.extents.pools.len()).filter(|pool| *pool != own);
        let moves = need == Need::Move;
        let mut found = self.take_of_pool(own, count, !moves);
        if found.is_none() {
            found = others.into_iter().find_map(|pool| self.take_of_pool(pool, count, false));
        }
        while found.is_none() && !moves && (self.spare_pages.give_back(self, UNIT_PAGES as usize) > 0 || self.end_gathering()) {
            found = (0..self.extents.pools.len()).find_map(|pool| self.take_of_pool(pool, count, pool == own)); // [GA1] of `gathering.rs`
        }
        let found = found.ok_or(full)?;
        self.extents.used_pages.fetch_add(count, SeqCst);
        Ok(found)
    }

    /// Takes pages from the holes of a pool, or from a whole unit that it may break ([FX2]).
    fn take_of_pool(&self, pool: usize, count: u64, may_break: bool) -> Option<LineAddress> {
        let mut holes = self.extents.pools[pool].lock();
        let mut found = None;
        for (unit, longest) in holes.iter_mut().filter(|(unit, longest)| **longest >= count && !self.map.is_emptied(u64::from(**unit))) {
            let mut bits = self.map.bits[*unit as usize].lock();
            match bits.take_words(count as usize) {
                Ok(word) => {
                    found = Some((*unit, word, bits.free() == 0));
                    break;
                }
                Err(most) => *longest = most as u64,
            }
        }
        if found.is_none() && may_break {
            let unit = self.take_whole_unit(pool)?;
            self.extents.free_pages.fetch_add(UNIT_PAGES, SeqCst);
            holes.insert(unit, UNIT_PAGES);
            let word = self.map.bits[unit as usize].lock().take_words(count as usize).ok()?;
            found = Some((unit, word, count == UNIT_PAGES));
        }
        let (unit, word, is_full) = found?;
        if is_full {
            holes.remove(&unit);
        }
        self.extents.free_pages.fetch_sub(count, SeqCst);
        Some(LineAddress::new(u64::from(unit) * UNIT_LINES + word as u64 * PAGE_LINES))
    }

    /// Takes a whole unit for a pool, whose lock the caller holds.
    fn take_whole_unit(&self, pool: usize) -> Option<u32> {
        let _serial = self.units.lock();
        if fails(Take::Unit) || self.free_units.load(SeqCst) <= self.metadata_reserve_units.max(self.short_regions(None)) {
            return None;
        }
        let unit = (0..self.total_units).rev().find(|unit| self.map.owner(*unit) == UnitOwner::Free)?;
        self.map.set_owner(unit, UnitOwner::Extents(pool as u32));
        self.free_units.fetch_sub(1, SeqCst);
        Some(unit as u32)
    }

    /// Frees pages of an extent. False, with no change, if they were not taken or hold no extent ([ME4] of `memory.rs`).
    #[must_use]
    pub(crate) fn free_extent(&self, address: LineAddress, count: u64) -> bool {
        let (unit, start, lines) = (address.unit(), address.number() % UNIT_LINES, count * PAGE_LINES);
        if unit >= self.total_units || start + lines > UNIT_LINES {
            return false;
        }
        let UnitOwner::Extents(pool) = self.map.owner(unit) else { return false };
        let mut holes = self.extents.pools[pool as usize].lock();
        let is_whole = {
            let mut bits = self.map.bits[unit as usize].lock();
            if !bits.is_taken(start, lines) {
                return false;
            }
            bits.clear(start, lines);
            u64::from(bits.free()) == UNIT_LINES
        };
        self.extents.used_pages.fetch_sub(count, SeqCst);
        if is_whole {
            holes.remove(&(unit as u32));
            self.extents.free_pages.fetch_sub(UNIT_PAGES - count, SeqCst);
            let _serial = self.units.lock();
            self.map.set_owner(unit, UnitOwner::Free);
            self.free_units.fetch_add(1, SeqCst);
        } else {
            self.extents.free_pages.fetch_add(count, SeqCst);
            holes.insert(unit as u32, UNIT_PAGES); // how many in a row is found out by the next search
        }
        true
    }

    /// Marks an extent that the rebuild found. False if its pages were already taken, or its unit has another use ([FX1]).
    pub(crate) fn mark_extent(&self, address: LineAddress, count: u64) -> bool {
        let unit = address.unit();
        {
            let _serial = self.units.lock();
            match self.map.owner(unit) {
                UnitOwner::Extents(_) => {}
                UnitOwner::Free => {
                    self.map.set_owner(unit, UnitOwner::Extents((unit % self.extents.pools.len() as u64) as u32));
                    self.free_units.fetch_sub(1, SeqCst);
                }
                UnitOwner::Fixed | UnitOwner::Region(_) | UnitOwner::Pool(_) => return false,
            }
        }
        self.map.bits[unit as usize].lock().set(address.number() % UNIT_LINES, count * PAGE_LINES)
    }

    /// Computes the counters and lists of a unit with extents after marks or saved maps are loaded.
    pub(super) fn finish_extents(&self, unit: u64, pool: u32) {
        let free = u64::from(self.map.bits[unit as usize].lock().free()) / PAGE_LINES;
        self.extents.free_pages.fetch_add(free, SeqCst);
        self.extents.used_pages.fetch_add(UNIT_PAGES - free, SeqCst);
        if free > 0 {
            self.extents.pools[pool as usize].lock().insert(unit as u32, UNIT_PAGES);
        }
    }

    /// Takes all free pages of a unit with extents ([HO1] of `hold.rs`). Returns the number of lines.
    pub(super) fn hold_extents(&self, unit: u64, pool: u32) -> u64 {
        let mut bits = self.map.bits[unit as usize].lock();
        let free = u64::from(bits.free());
        bits.set(0, UNIT_LINES);
        drop(bits);
        self.extents.pools[pool as usize].lock().remove(&(unit as u32));
        self.extents.free_pages.fetch_sub(free / PAGE_LINES, SeqCst);
        free
    }

    /// Lines that extents can have, the transient room included.
    pub(super) fn free_for_extents(&self) -> u64 {
        let units = self.free_units.load(SeqCst).saturating_sub(self.metadata_reserve_units);
        self.extents.free_lines() + units * UNIT_LINES
    }

    /// Bytes that growth can have for extents.
    pub(crate) fn available_for_extents(&self) -> u64 {
        let pages = self.free_for_extents().saturating_sub(self.extents.room_lines()) / PAGE_LINES;
        pages.min(self.pages_below_limit()) * PAGE_BYTES as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::spare_pages::SparePages;
    use tandemfs_format::mapping::SlotClass;

    fn allocator(memory_bytes: u64) -> MemoryAllocator {
        let geometry = Geometry::new(memory_bytes, 64 << 20, 64 << 10, 4, 256 << 10).expect("fits");
        let memory = MemoryAllocator::new(&geometry, 1, SparePages::new(0, 10));
        memory.finish_loading();
        for region in [1, 3] {
            memory.region_free[region].store(1 << 20, SeqCst); // regions that are not short of room
        }
        memory
    }

    #[test]
    fn holes_serve_before_a_unit_is_broken_and_empty_units_are_whole_again() {
        let memory = allocator(64 << 20);
        let units = memory.free_units.load(SeqCst);
        let taken: Vec<_> = (0..33).map(|_| memory.take_extent(16, Need::Growth).expect("room")).collect();
        assert_eq!(memory.free_units.load(SeqCst), units - 2, "32 extents of 64 KiB fill a unit");
        assert!(taken.windows(2).take(31).all(|pair| pair[0].nth(16 * PAGE_LINES) == pair[1]), "in the order of addresses");
        assert!(memory.free_extent(taken[3], 16) && memory.free_extent(taken[5], 16) && memory.free_extent(taken[4], 16));
        assert!(!memory.free_extent(taken[4], 16), "freed once");
        assert!(memory.free_extent(taken[32], 16));
        assert_eq!(memory.free_units.load(SeqCst), units - 1);
        assert_eq!(memory.take_extent(48, Need::Growth).expect("three holes in a row"), taken[3]);
        assert!(memory.free_extent(taken[3], 48));
        let again = memory.take_extent(49, Need::Growth).expect("a fresh unit");
        assert_ne!(again.unit(), taken[3].unit());
        for (index, address) in taken.into_iter().enumerate().filter(|(index, _)| ![3, 4, 5, 32].contains(index)) {
            assert!(memory.free_extent(address, 16), "{index}");
        }
        assert!(memory.free_extent(again, 49));
        assert_eq!((memory.free_units.load(SeqCst), memory.extents.free_lines(), memory.extents.lines()), (units, 0, 0));
    }

    #[test]
    fn slots_and_extents_have_units_of_their_own() {
        let memory = allocator(64 << 20);
        let extent = memory.take_extent(1, Need::Growth).expect("room");
        let slot = memory.take_slot(SlotClass::Line, Need::Growth).expect("room");
        assert_ne!(extent.unit(), slot.unit());
        assert!(!memory.free_slot(extent, PAGE_LINES) && !memory.free_extent(slot.page(), 1));
        assert!(!memory.mark_extent(slot.page(), 1) && !memory.mark(None, extent, 1));
        assert!(memory.free_extent(extent, 1) && memory.free_slot(slot, 1));
    }

    #[test]
    fn growth_leaves_the_transient_room_and_the_units_of_metadata() {
        let memory = allocator(64 << 20);
        let mut taken = Vec::new();
        while let Ok(address) = memory.take_extent(256, Need::Growth) {
            taken.push(address);
        }
        assert!(taken.len() > 10 && memory.available_for_extents() < 1 << 20);
        let mut room = 0;
        while let Ok(address) = memory.take_extent(1, Need::Transient) {
            taken.push(address);
            room += 1;
        }
        assert!(room >= memory.extents.room_pages, "{room} pages of room");
        assert_eq!(memory.free_units.load(SeqCst), memory.metadata_reserve_units);
    }

    #[test]
    fn growth_stays_below_the_limit_and_a_rewrite_may_pass_it() {
        let mut memory = allocator(64 << 20);
        memory.limit_extents(40 * PAGE_BYTES as u64);
        let taken = [16, 16].map(|count| memory.take_extent(count, Need::Growth).expect("below the limit"));
        assert_eq!(memory.available_for_extents(), 8 * PAGE_BYTES as u64);
        assert!(memory.take_extent(9, Need::Growth).is_err());
        let other = memory.take_extent(16, Need::Transient).expect("in exchange for another one");
        assert_eq!(memory.available_for_extents(), 0);
        assert!(memory.free_extent(taken[0], 16) && memory.take_extent(8, Need::Growth).is_ok());
        assert!(memory.take_extent(1, Need::Growth).is_err() && memory.free_extent(other, 16));
    }

    #[test]
    fn data_logs_leave_the_room_of_extents() {
        let memory = allocator(64 << 20);
        let extent = memory.take_extent(16, Need::Growth).expect("room");
        while memory.take_slot(SlotClass::Page, Need::Transient).is_ok() {}
        for _ in 0..memory.extents.room_pages {
            let _taken = memory.take_extent(1, Need::Transient).expect("room");
        }
        assert!(memory.free_extent(extent, 16));
    }

    #[test]
    fn what_was_saved_or_marked_is_loaded() {
        let before = allocator(64 << 20);
        let extents = [16, 1, 300].map(|count| (before.take_extent(count, Need::Growth).expect("room"), count));
        assert!(before.free_extent(extents[1].0, 1));
        let after = allocator(64 << 20);
        for (address, count) in [extents[0], extents[2]] {
            assert!(after.mark_extent(address, count));
            assert!(!after.mark_extent(address, count), "named twice");
        }
        after.finish_loading();
        assert_eq!(after.extents.lines(), before.extents.lines());
        assert_eq!(after.extents.free_lines(), before.extents.free_lines());
        assert_eq!(after.free_units.load(SeqCst), before.free_units.load(SeqCst));
        for (address, count) in [extents[0], extents[2]] {
            assert!(after.free_extent(address, count));
        }
    }
}
