//! Lines of the memory zone: units of 2 MiB given to regions (metadata) or to the data area (data-log slots).
//!
//! [ME1] Space of a region that a transaction freed is given out again only when the watermark has passed that transaction (RULES R6);
//!       shortage forces a checkpoint. Slots of the data area need not wait: no record targets them (RULES R7).
//! [ME2] A region grows by raising a segment's high-water mark: the new lines are zeroed and fenced first, then the mark is committed. The
//!       allocator only says which mark ([`Rise`]); whoever asked for lines does the rest, while the region stays locked.
//! [ME3] The data area leaves the regions a reserve of units, and every kind leaves its transient room to what gives back (RULES R14).
//!       When the regions have taken half of the reserve, all data logs are written back ([WB6] of `data/write_back.rs`): emptied units fill it.
//! [ME4] What is freed is named by pointers of the medium, and a clean mount has not looked at them: space that is freed although nobody has
//!       it is a reason to stop, never a panic.
//!
//! Order of locks: a region or a pool, then `units`, then the bits of a unit.

use std::collections::VecDeque;

use tandemfs_device::Structure;
use tandemfs_format::geometry::Geometry;
use tandemfs_format::mapping::SlotClass;
use tandemfs_format::segment::{Region, Segment};
use tandemfs_format::{InodeNumber, LINE_BYTES, LineAddress, PAGE_LINES, UNIT_LINES};

use super::bits::{Bits, WORDS};
use super::lent::LentPages;
use super::pools::{DataPage, Pool};
pub(crate) use super::rise::{Rise, Step};
use super::{Need, freed_by_nobody};
use crate::error::{Error, Result};
use crate::health::Health;
use crate::inject::{Take, fails};
use crate::space::Space;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use crate::sync::{Mutex, RwLock, current_cpu};
use crate::types::ZoneSpace;

/// Lines that growth leaves in the regions of mappings and leaves.
pub(crate) const TRANSIENT_REGION_LINES: u64 = 1024;
/// Lines that growth leaves in the data area: 32 logs of 4 KiB.
const TRANSIENT_DATA_LINES: u64 = 2048;
/// Lines of an inode.
pub(crate) const INODE_LINES: u64 = 2;

const OWNER_FREE: u32 = 0;
const OWNER_FIXED: u32 = 1;
const OWNER_REGION: u32 = 2;
const OWNER_POOL: u32 = 16;

/// Who has a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnitOwner {
    Free,
    Fixed,
    Region(Region),
    Pool(u32),
}

/// Owners and bits of all units.
pub(crate) struct UnitMap {
    owners: Vec<AtomicU32>,
    /// Of a region's unit, the lines below the high-water mark when the segment table was read: nothing beyond can have been taken then.
    lines_at_mount: Vec<AtomicU32>,
    bits: Vec<Mutex<Bits>>,
}

impl UnitMap {
    fn new(geometry: &Geometry) -> Self {
        let units = geometry.memory_units() as usize;
        let owner = |unit| if geometry.is_fixed(unit) { OWNER_FIXED } else { OWNER_FREE };
        Self {
            owners: (0..geometry.memory_units()).map(|unit| AtomicU32::new(owner(unit))).collect(),
            lines_at_mount: (0..units).map(|_| AtomicU32::new(UNIT_LINES as u32)).collect(),
            bits: (0..units).map(|_| Mutex::new(Bits::new())).collect(),
        }
    }

    /// Whether saved bits of a region's unit take nothing beyond the high-water mark.
    pub(crate) fn is_below_mark(&self, unit: u64, bytes: &[u8]) -> bool {
        let below = self.lines_at_mount[unit as usize].load(Relaxed) as usize;
        let (whole, rest) = (below / 8, below % 8);
        bytes[whole..].iter().enumerate().all(|(at, byte)| if at == 0 { byte >> rest == 0 } else { *byte == 0 })
    }

    pub(crate) fn owner(&self, unit: u64) -> UnitOwner {
        match self.owners[unit as usize].load(SeqCst) {
            OWNER_FREE => UnitOwner::Free,
            OWNER_FIXED => UnitOwner::Fixed,
            pool if pool >= OWNER_POOL => UnitOwner::Pool(pool - OWNER_POOL),
            region => UnitOwner::Region(Region::ALL[(region - OWNER_REGION) as usize]),
        }
    }

    fn set_owner(&self, unit: u64, owner: UnitOwner) {
        let word = match owner {
            UnitOwner::Free => OWNER_FREE,
            UnitOwner::Fixed => OWNER_FIXED,
            UnitOwner::Region(region) => OWNER_REGION + u32::from(region.number()) - 1,
            UnitOwner::Pool(pool) => OWNER_POOL + pool,
        };
        self.owners[unit as usize].store(word, SeqCst);
    }

    pub(crate) fn unit_bytes(&self, unit: u64) -> Vec<u8> {
        self.bits[unit as usize].lock().to_bytes()
    }

    /// Takes a slot in a page, if the unit is still the pool's and the page has room.
    pub(crate) fn take_in_page(&self, pool: u32, page: DataPage, lines: u32) -> Option<u64> {
        if self.owner(page.unit.into()) != UnitOwner::Pool(pool) {
            return None;
        }
        let found = self.bits[page.unit as usize].lock().take_in_word(page.word.into(), lines, true)?;
        Some(found.index())
    }

    /// Whether the page is the pool's and has no slot.
    pub(crate) fn is_free_page(&self, pool: u32, page: DataPage) -> bool {
        self.owner(page.unit.into()) == UnitOwner::Pool(pool) && self.bits[page.unit as usize].lock().word(page.word.into()) == 0
    }

    /// A page of the unit without any slot.
    pub(crate) fn free_word(&self, pool: u32, unit: u32) -> Option<usize> {
        if self.owner(unit.into()) != UnitOwner::Pool(pool) {
            return None;
        }
        let bits = self.bits[unit as usize].lock();
        if bits.free() < PAGE_LINES as u32 {
            return None;
        }
        (0..WORDS).find(|word| bits.word(*word) == 0)
    }
}

/// What a region has for growth without another unit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RegionRoom {
    /// Aligned runs of the length that was asked for, below the high-water marks and above them.
    pub(crate) runs: u64,
    /// Lines of both.
    pub(crate) lines: u64,
    /// Lines that are free below the marks.
    pub(crate) below_mark: u64,
}

#[derive(Default)]
pub(super) struct RegionState {
    /// Segments with their index in the table, in the order of their place in the region.
    pub(super) segments: Vec<(u64, Segment)>,
    /// Units in the order of the region, with the lines of each that lie below the high-water mark.
    pub(super) units: Vec<(u64, u64)>,
    /// Where to look first.
    pub(super) hint: usize,
    /// Freed by a transaction that the watermark has not passed ([ME1]).
    pending: VecDeque<(u64, LineAddress, u64)>,
}

impl RegionState {
    pub(super) fn rebuild_units(&mut self) {
        self.units.clear();
        for (_, segment) in &self.segments {
            for unit in 0..segment.unit_count {
                let below = segment.high_water_lines.saturating_sub(unit * UNIT_LINES).min(UNIT_LINES);
                self.units.push((segment.start_unit + unit, below));
            }
        }
    }
}

pub(crate) struct MemoryAllocator {
    map: UnitMap,
    pub(super) units: Mutex<u64>, // the next free line of the segment table; also serialises changes of owners
    regions: [Mutex<RegionState>; 5],
    /// Free lines below the high-water marks, for each region.
    pub(super) region_free: [AtomicU64; 5],
    /// Units of the inode region in order, and lines below the mark, for inode addresses without a lock of the region.
    pub(super) inode_units: RwLock<Vec<(u64, u64)>>,
    pools: Vec<Mutex<Pool>>,
    free_units: AtomicU64,
    free_data_lines: AtomicU64,
    data_log_lines: AtomicU64,
    inodes_used: AtomicU64,
    /// Units of the data area are being emptied: growth gets no slots, and goes by blocks for so long ([ME3]).
    pub(crate) is_emptied: AtomicBool,
    metadata_reserve_units: u64,
    total_units: u64,
    /// Pages that are spare and hold copies.
    pub(crate) lent: LentPages,
}

pub(super) fn slot(region: Region) -> usize {
    usize::from(region.number()) - 1
}

impl MemoryAllocator {
    /// All units free but the fixed parts.
    pub(crate) fn new(geometry: &Geometry, pools: usize, lent: LentPages) -> Self {
        let free = (0..geometry.memory_units()).filter(|unit| !geometry.is_fixed(*unit)).count() as u64;
        Self {
            map: UnitMap::new(geometry),
            units: Mutex::new(0),
            regions: Default::default(),
            region_free: Default::default(),
            inode_units: RwLock::default(),
            pools: (0..pools).map(|_| Mutex::default()).collect(),
            free_units: AtomicU64::new(free),
            free_data_lines: AtomicU64::new(0),
            data_log_lines: AtomicU64::new(0),
            inodes_used: AtomicU64::new(0),
            is_emptied: AtomicBool::new(false),
            metadata_reserve_units: (geometry.memory_units() / 16).max(1),
            total_units: geometry.memory_units(),
            lent,
        }
    }

    pub(crate) fn map(&self) -> &UnitMap {
        &self.map
    }

    // ---- set-up: the segment table, then marks or saved maps -----------------------------------------------------------------------

    /// Takes the segments of the table. A segment that overlaps another or leaves a gap in its region is refused.
    pub(crate) fn load_segments(&self, segments: Vec<(u64, Segment)>) -> std::result::Result<(), String> {
        let mut next = self.units.lock();
        for (index, segment) in segments {
            *next = (*next).max(index + 1);
            for unit in segment.start_unit..segment.start_unit + segment.unit_count {
                if self.map.owner(unit) != UnitOwner::Free {
                    return Err(format!("segment {index} names unit {unit}, which is not free"));
                }
                self.map.set_owner(unit, UnitOwner::Region(segment.region));
                self.free_units.fetch_sub(1, SeqCst);
            }
            self.regions[slot(segment.region)].lock().segments.push((index, segment));
        }
        for region in Region::ALL {
            let mut state = self.regions[slot(region)].lock();
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

    /// Takes lines that recovery found in use. False where they were taken already, belong to something else, or lie beyond the mark.
    pub(crate) fn mark(&self, region: Option<Region>, address: LineAddress, lines: u64) -> bool {
        let unit = address.unit();
        let expected = match (self.map.owner(unit), region) {
            (UnitOwner::Region(owner), Some(region)) => owner == region,
            (UnitOwner::Pool(_), None) => true,
            (UnitOwner::Free, None) => {
                let _serial = self.units.lock();
                if self.map.owner(unit) == UnitOwner::Free {
                    self.map.set_owner(unit, UnitOwner::Pool((unit % self.pools.len() as u64) as u32));
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

    /// Takes a unit as it was saved.
    pub(crate) fn load_unit(&self, unit: u64, data: bool, bytes: &[u8]) {
        if data {
            let _serial = self.units.lock();
            self.map.set_owner(unit, UnitOwner::Pool((unit % self.pools.len() as u64) as u32));
            self.free_units.fetch_sub(1, SeqCst);
        }
        *self.map.bits[unit as usize].lock() = Bits::from_bytes(bytes);
    }

    /// Derives counters and lists after marks or saved maps are in.
    pub(crate) fn finish_loading(&self) {
        for unit in 0..self.total_units {
            let UnitOwner::Pool(pool) = self.map.owner(unit) else { continue };
            let bits = self.map.bits[unit as usize].lock();
            self.free_data_lines.fetch_add(bits.free().into(), SeqCst);
            self.data_log_lines.fetch_add(UNIT_LINES - u64::from(bits.free()), SeqCst);
            let mut lists = self.pools[pool as usize].lock();
            lists.add_unit(unit as u32);
            for word in 0..WORDS {
                let value = bits.word(word);
                if value == 0 || value == u64::MAX {
                    continue;
                }
                let page = DataPage { unit: unit as u32, word: word as u16 };
                for class in [SlotClass::Kilobyte, SlotClass::Quarter, SlotClass::Line] {
                    if Bits::fit(value, class.lines() as u32, true).is_some() {
                        lists.add_partial(class, page);
                        break;
                    }
                }
            }
        }
        for region in Region::ALL {
            let state = self.regions[slot(region)].lock();
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
        // Slot 0 of the inode region is taken and no inode.
        let _ = self.inodes_used.fetch_update(Relaxed, Relaxed, |used| used.checked_sub(1));
    }

    // ---- inodes --------------------------------------------------------------------------------------------------------------------

    /// The first line of an inode; `None` beyond the region's high-water mark.
    pub(crate) fn inode_address(&self, number: InodeNumber) -> Option<LineAddress> {
        let line = number.get().checked_mul(INODE_LINES)?;
        let units = self.inode_units.read();
        let (unit, below) = *units.get(usize::try_from(line / UNIT_LINES).ok()?)?;
        (number.get() > 0 && line % UNIT_LINES < below).then(|| LineAddress::new(unit * UNIT_LINES + line % UNIT_LINES))
    }

    /// Numbers below this may be in use.
    pub(crate) fn inode_limit(&self) -> u64 {
        self.inode_units.read().iter().map(|(_, below)| below).sum::<u64>() / INODE_LINES
    }

    /// The number of an inode by its address, which a region of inodes gave out.
    pub(crate) fn inode_number(&self, address: LineAddress) -> InodeNumber {
        let units = self.inode_units.read();
        let Some(position) = units.iter().position(|(unit, _)| *unit == address.unit()) else {
            unreachable!("the region knows the units that it gives lines from")
        };
        InodeNumber::new((position as u64 * UNIT_LINES + address.number() % UNIT_LINES) / INODE_LINES)
    }

    // ---- regions -------------------------------------------------------------------------------------------------------------------

    /// Tries to take `lines` (a power of two up to 64), aligned to their number, from a region. `watermark` is asked under the region's lock.
    pub(crate) fn step(&self, health: &Health, watermark: impl Fn() -> u64, region: Region, lines: u64, need: Need) -> Step<'_> {
        let mut state = self.regions[slot(region)].lock();
        self.release_pending(health, watermark(), region, &mut state);
        let waits = !state.pending.is_empty();
        if self.may_take(region, &state, lines, need) {
            if let Some(address) = self.find(region, &mut state, lines) {
                self.region_free[slot(region)].fetch_sub(lines, SeqCst);
                if region == Region::Inodes {
                    self.inodes_used.fetch_add(1, Relaxed);
                }
                return Step::Taken(address);
            }
            if let Some(rise) = self.plan_rise(region, state, need) {
                return Step::Rise(rise);
            }
        }
        Step::Short { waits }
    }

    /// Growth leaves the transient room of mappings and leaves ([ME3]).
    fn may_take(&self, region: Region, state: &RegionState, lines: u64, need: Need) -> bool {
        let floor = match (need, region) {
            (Need::Growth, Region::Mappings | Region::Leaves) => TRANSIENT_REGION_LINES,
            _ => 0,
        };
        let above_mark: u64 = state.segments.iter().map(|(_, segment)| segment.unit_count * UNIT_LINES - segment.high_water_lines).sum();
        let own = self.region_free[slot(region)].load(SeqCst) + above_mark;
        own + self.free_units.load(SeqCst) * UNIT_LINES >= lines + floor
    }

    fn find(&self, region: Region, state: &mut RegionState, lines: u64) -> Option<LineAddress> {
        if self.region_free[slot(region)].load(SeqCst) < lines {
            return None;
        }
        for step in 0..state.units.len() {
            let position = (state.hint + step) % state.units.len();
            let (unit, below) = state.units[position];
            let mut bits = self.map.bits[unit as usize].lock();
            if u64::from(bits.free()) < UNIT_LINES - below + lines {
                continue;
            }
            if let Some(found) = bits.take(0, (below / 64) as usize, lines as u32, true) {
                state.hint = position;
                return Some(LineAddress::new(unit * UNIT_LINES + found.index()));
            }
        }
        None
    }

    /// A free unit for a region. Growth leaves one for each other region that is short of transient room ([ME3]).
    pub(super) fn take_unit(&self, region: Region, need: Need) -> Option<u64> {
        let _serial = self.units.lock();
        let kept = if need == Need::Growth { self.short_regions(Some(region)) } else { 0 };
        if fails(Take::Unit) || self.free_units.load(SeqCst) <= kept {
            return None;
        }
        let unit = (0..self.total_units).find(|unit| self.map.owner(*unit) == UnitOwner::Free)?;
        self.map.set_owner(unit, UnitOwner::Region(region));
        self.free_units.fetch_sub(1, SeqCst);
        Some(unit)
    }

    pub(super) fn return_unit(&self, unit: u64) {
        let _serial = self.units.lock();
        self.map.set_owner(unit, UnitOwner::Free);
        self.free_units.fetch_add(1, SeqCst);
    }

    /// What a region has for runs of `lines` (a power of two up to 64).
    pub(crate) fn region_room(&self, region: Region, lines: u64) -> RegionRoom {
        let state = self.regions[slot(region)].lock();
        let above_mark: u64 = state.segments.iter().map(|(_, segment)| segment.unit_count * UNIT_LINES - segment.high_water_lines).sum();
        let runs_of = |(unit, below): &(u64, u64)| self.map.bits[*unit as usize].lock().count_runs((below / 64) as usize, lines as u32);
        let below_mark = self.region_free[slot(region)].load(SeqCst);
        RegionRoom { runs: state.units.iter().map(runs_of).sum::<u64>() + above_mark / lines, lines: below_mark + above_mark, below_mark }
    }

    /// Units that nobody has when a file has been made: it may take one for its inode and one for its name.
    pub(crate) fn free_units_after_a_creation(&self) -> u64 {
        let needed = [(Region::Inodes, INODE_LINES), (Region::Dentries, PAGE_LINES)];
        let taken = needed.into_iter().filter(|(region, lines)| self.region_room(*region, *lines).runs == 0).count() as u64;
        self.free_units.load(SeqCst).saturating_sub(taken)
    }

    /// The last run of so many units that nobody has.
    pub(crate) fn free_run(&self, units: u64) -> Option<u64> {
        let _serial = self.units.lock();
        let mut length = 0;
        (0..self.total_units).rev().find(|unit| {
            length = if self.map.owner(*unit) == UnitOwner::Free { length + 1 } else { 0 };
            length == units
        })
    }

    fn short_regions(&self, except: Option<Region>) -> u64 {
        [Region::Mappings, Region::Leaves]
            .into_iter()
            .filter(|region| Some(*region) != except && self.region_free[slot(*region)].load(SeqCst) < TRANSIENT_REGION_LINES)
            .count() as u64
    }

    /// Lines that nobody could have seen: free at once. False where they were not taken.
    #[must_use]
    pub(crate) fn free_now(&self, region: Region, address: LineAddress, lines: u64) -> bool {
        let mut state = self.regions[slot(region)].lock();
        let freed = self.clear(region, &mut state, address, lines);
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

    /// Lines freed by transaction `txid`: free once the watermark has passed it ([ME1]).
    pub(crate) fn free_after(&self, region: Region, address: LineAddress, lines: u64, txid: u64) {
        self.regions[slot(region)].lock().pending.push_back((txid, address, lines));
        self.count_inode_freed(region);
    }

    fn release_pending(&self, health: &Health, watermark: u64, region: Region, state: &mut RegionState) {
        while let Some((_, address, lines)) = state.pending.pop_front_if(|(txid, ..)| *txid <= watermark) {
            if !self.clear(region, state, address, lines) {
                freed_by_nobody(health, Space::Region { region, address, lines });
            }
        }
    }

    /// Whether freed lines wait for the watermark.
    pub(crate) fn is_any_pending(&self) -> bool {
        self.regions.iter().any(|region| !region.lock().pending.is_empty())
    }

    /// Lines of a region that wait for the watermark, and lines that are free in it.
    #[cfg(test)]
    pub(crate) fn waiting_and_free(&self, region: Region) -> (u64, u64) {
        let waiting = self.regions[slot(region)].lock().pending.iter().map(|(.., lines)| lines).sum();
        (waiting, self.region_free[slot(region)].load(SeqCst))
    }

    /// Frees everything that waits and that the watermark has passed. It is asked under each region's lock.
    pub(crate) fn release_all_pending(&self, health: &Health, watermark: impl Fn() -> u64) {
        for region in Region::ALL {
            let mut state = self.regions[slot(region)].lock();
            self.release_pending(health, watermark(), region, &mut state);
        }
    }

    /// False, and nothing changed, where the lines were not taken or are another region's ([ME4]).
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

    // ---- the data area -------------------------------------------------------------------------------------------------------------

    /// Takes a data-log slot.
    pub(crate) fn take_slot(&self, class: SlotClass, need: Need) -> Result<LineAddress> {
        let full = Error::NoSpace { zone: "memory" };
        let is_full = || self.is_emptied.load(Relaxed) || self.free_for_data() < class.lines() + TRANSIENT_DATA_LINES;
        if fails(Take::Slot) || need == Need::Growth && is_full() {
            return Err(full);
        }
        let mut found = self.find_slot(class);
        while found.is_none() && self.lent.give_back(self, 1) > 0 {
            found = self.find_slot(class);
        }
        let found = found.ok_or(full)?;
        self.lent.make_room(self);
        Ok(found)
    }

    fn find_slot(&self, class: SlotClass) -> Option<LineAddress> {
        let own = current_cpu() % self.pools.len();
        let take = |index: usize| self.pools[index].lock().take(&self.map, index as u32, class);
        let found = {
            // Locked from the search to the new unit: else each of several threads brings one, and a unit that stays unused never goes back.
            let mut pool = self.pools[own].lock();
            let mut found = pool.take(&self.map, own as u32, class);
            if found.is_none()
                && let Some(unit) = self.take_data_unit(own)
            {
                pool.add_unit(unit);
                found = pool.take(&self.map, own as u32, class);
            }
            found
        };
        let found = found.or_else(|| (0..self.pools.len()).filter(|index| *index != own).find_map(take));
        let (unit, line) = found?;
        self.free_data_lines.fetch_sub(class.lines(), SeqCst);
        self.data_log_lines.fetch_add(class.lines(), SeqCst);
        Some(LineAddress::new(u64::from(unit) * UNIT_LINES + line))
    }

    /// A page for a copy. No data log: it counts as free.
    pub(crate) fn take_spare_page(&self) -> Option<LineAddress> {
        let address = self.find_slot(SlotClass::Page)?;
        self.data_log_lines.fetch_sub(PAGE_LINES, SeqCst);
        Some(address)
    }

    /// The copy in a page is forgotten. False, and nothing changed, where somebody freed the page under it ([ME4]).
    #[must_use]
    pub(crate) fn free_spare_page(&self, address: LineAddress) -> bool {
        self.data_log_lines.fetch_add(PAGE_LINES, SeqCst);
        let freed = self.free_slot(address, PAGE_LINES);
        if !freed {
            self.data_log_lines.fetch_sub(PAGE_LINES, SeqCst);
        }
        freed
    }

    /// Share of the data area that is free and holds no copies, in percent.
    pub(crate) fn spare_percent(&self) -> u64 {
        let total = self.free_for_data() + self.data_log_lines.load(SeqCst);
        (self.free_for_data().saturating_sub(self.lent.count() * PAGE_LINES)) * 100 / total.max(1)
    }

    /// A unit for a pool that the caller has locked.
    fn take_data_unit(&self, pool: usize) -> Option<u32> {
        let unit = {
            let _serial = self.units.lock();
            if fails(Take::Unit) || self.free_units.load(SeqCst) <= self.metadata_reserve_units.max(self.short_regions(None)) {
                return None;
            }
            let unit = (0..self.total_units).rev().find(|unit| self.map.owner(*unit) == UnitOwner::Free)?;
            self.map.set_owner(unit, UnitOwner::Pool(pool as u32));
            self.free_units.fetch_sub(1, SeqCst);
            unit
        };
        self.free_data_lines.fetch_add(UNIT_LINES, SeqCst);
        Some(unit as u32)
    }

    /// Leaves the page of a slot that the device failed alone, until one of its slots is freed.
    pub(crate) fn avoid_page_of_slot(&self, address: LineAddress) {
        if let UnitOwner::Pool(index) = self.map.owner(address.unit()) {
            let word = (address.number() % UNIT_LINES / PAGE_LINES) as u16;
            self.pools[index as usize].lock().avoid(DataPage { unit: address.unit() as u32, word });
        }
    }

    /// Frees a data-log slot. False, and nothing changed, where it was not taken or lies elsewhere ([ME4]).
    #[must_use]
    pub(crate) fn free_slot(&self, address: LineAddress, lines: u64) -> bool {
        let (unit, start) = (address.unit(), address.number() % UNIT_LINES);
        let UnitOwner::Pool(index) = self.map.owner(unit) else { return false };
        let mut pool = self.pools[index as usize].lock();
        let word = (address.number() % UNIT_LINES / PAGE_LINES) as usize;
        let (before, after, free) = {
            let mut bits = self.map.bits[unit as usize].lock();
            if start + lines > UNIT_LINES || !bits.is_taken(start, lines) {
                return false;
            }
            let before = bits.word(word);
            bits.clear(start, lines);
            (before, bits.word(word), bits.free())
        };
        self.data_log_lines.fetch_sub(lines, SeqCst);
        if u64::from(free) == UNIT_LINES {
            pool.remove_unit(unit as u32);
            let _serial = self.units.lock();
            self.map.set_owner(unit, UnitOwner::Free);
            self.free_units.fetch_add(1, SeqCst);
            self.free_data_lines.fetch_sub(UNIT_LINES - lines, SeqCst);
            return true;
        }
        self.free_data_lines.fetch_add(lines, SeqCst);
        if after == 0 {
            pool.add_free_page(DataPage { unit: unit as u32, word: word as u16 });
        } else if let Some(class) = [SlotClass::Line, SlotClass::Quarter, SlotClass::Kilobyte].into_iter().find(|c| c.lines() == lines)
            && Bits::fit(before, lines as u32, true).is_none()
        {
            pool.add_partial(class, DataPage { unit: unit as u32, word: word as u16 });
        }
        true
    }

    fn free_for_data(&self) -> u64 {
        let units = self.free_units.load(SeqCst).saturating_sub(self.metadata_reserve_units);
        self.free_data_lines.load(SeqCst) + units * UNIT_LINES + self.lent.count() * PAGE_LINES
    }

    /// Whether metadata has taken half of the units that are left to it while data logs hold others ([ME3]).
    pub(crate) fn is_metadata_short(&self) -> bool {
        self.free_units.load(SeqCst) < self.metadata_reserve_units.div_ceil(2) && self.data_log_lines.load(SeqCst) > 0
    }

    /// Whether so many percent of the data area are free.
    pub(crate) fn is_data_free(&self, percent: u64) -> bool {
        let free = self.free_for_data();
        free * 100 >= (free + self.data_log_lines.load(SeqCst)) * percent
    }

    /// Share of the data area that is free, in percent.
    pub(crate) fn free_data_percent(&self) -> u64 {
        let free = self.free_for_data();
        free * 100 / (free + self.data_log_lines.load(SeqCst)).max(1)
    }

    pub(crate) fn space(&self) -> ZoneSpace {
        let line = LINE_BYTES as u64;
        let data_logs = self.data_log_lines.load(SeqCst);
        let free = self.free_for_data();
        ZoneSpace {
            total_bytes: self.total_units * UNIT_LINES * line,
            free_bytes: free * line,
            available_bytes: free.saturating_sub(TRANSIENT_DATA_LINES) * line,
            data_log_bytes: data_logs * line,
            promoted_bytes: self.lent.count() * PAGE_LINES * line,
        }
    }

    /// Inodes in use, and inodes that could still be made.
    pub(crate) fn inodes(&self) -> (u64, u64) {
        let free = self.region_free[slot(Region::Inodes)].load(SeqCst) + self.free_units.load(SeqCst) * UNIT_LINES;
        (self.inodes_used.load(Relaxed), free / INODE_LINES)
    }
}

/// What bytes of a region are counted as.
pub(crate) fn structure_of(region: Region) -> Structure {
    match region {
        Region::Inodes => Structure::Inode,
        Region::Dentries => Structure::Dentry,
        Region::Mappings | Region::Leaves | Region::Attributes => Structure::Mapping,
    }
}
