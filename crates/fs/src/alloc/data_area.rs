//! The data area: slots for data logs, spare pages for copies, and counts of free space.

use std::ops::Range;

use tandemfs_format::mapping::SlotClass;
use tandemfs_format::{LINE_BYTES, LineAddress, PAGE_LINES, UNIT_BYTES, UNIT_LINES};

use super::Need;
use super::bits::{Bits, WORDS};
use super::memory::MemoryAllocator;
use super::pools::Pool;
use super::spare_pages::PageSource;
use super::unit_pages::UNIT_PAGES;
use super::units::{DataPage, UnitOwner};
use crate::error::{Error, Result};
use crate::inject::{Take, fails};
use crate::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};
use crate::sync::current_cpu;
use crate::types::ZoneSpace;

/// Lines of the data area that growth leaves free: 32 logs of 4 KiB.
pub(super) const TRANSIENT_DATA_LINES: u64 = 2048;

impl MemoryAllocator {
    /// Takes a data-log slot.
    pub(crate) fn take_slot(&self, class: SlotClass, need: Need) -> Result<LineAddress> {
        let full = Error::NoSpace { zone: "memory" };
        let is_full = || self.is_emptied.load(Relaxed) || self.free_for_data() < class.lines() + TRANSIENT_DATA_LINES;
        if fails(Take::Slot) || need == Need::Growth && is_full() {
            return Err(full);
        }
        let moves = need == Need::Move && !self.is_shrinking();
        let mut found = self.find_slot(class, !moves);
        while found.is_none() && !moves && (self.spare_pages.give_back(self, 1) > 0 || self.end_gathering()) {
            found = self.find_slot(class, true);
        }
        let found = found.ok_or(full)?;
        self.spare_pages.make_room(self);
        Ok(found)
    }

    /// The pools of slots on a node.
    fn slot_pools(&self, node: usize) -> Range<usize> {
        let each = self.pools.len() / self.numa.count();
        node * each..(node + 1) * each
    }

    /// The pool that a unit with slots is given to when maps are loaded.
    pub(super) fn slot_pool(&self, unit: u64) -> u32 {
        let pools = self.slot_pools(self.numa.of_unit(unit));
        (pools.start as u64 + unit % pools.len() as u64) as u32
    }

    /// Finds a slot in the units of the data area, or else in a free unit that becomes one: on the node that comes first, then on others.
    fn find_slot(&self, class: SlotClass, may_add: bool) -> Option<LineAddress> {
        let all = 0..self.pools.len();
        let Some(first) = self.numa.first(false, Vec::new) else { return self.find_slot_in(all, class, may_add) };
        let on_first = self.find_slot_in(self.slot_pools(first), class, may_add);
        on_first.or_else(|| {
            let free = self.free_on_nodes();
            if free[first] < UNIT_PAGES {
                self.numa.is_full(first, free); // [NH3] of `numa.rs`
                let other = self.numa.first(false, Vec::new).filter(|other| *other != first);
                if let Some(found) = other.and_then(|other| self.find_slot_in(self.slot_pools(other), class, may_add)) {
                    return Some(found);
                }
            }
            let found = self.find_slot_in(all, class, false);
            let mut nodes = (0..self.numa.count()).filter(|node| *node != first);
            found.or_else(|| nodes.find_map(|node| self.find_slot_in(self.slot_pools(node), class, may_add)))
        })
    }

    /// Finds a slot in units of these pools, or in a free unit that one of them gets.
    fn find_slot_in(&self, pools: Range<usize>, class: SlotClass, may_add: bool) -> Option<LineAddress> {
        let own = pools.start + current_cpu() % pools.len();
        let take = |index: usize| self.pools[index].lock().take(&self.map, index as u32, class);
        let others = || pools.clone().filter(|index| *index != own).find_map(take);
        // Much free room in other pools serves before a unit is broken ([AP1] of `aligned_pools.rs`).
        let is_much = || self.free_data_lines.load(SeqCst) > self.pools.len() as u64 * UNIT_LINES;
        let found = take(own).or_else(|| if is_much() { others() } else { None }).or_else(|| {
            // Locked from the search to the new unit: otherwise several threads each add a unit, and an unused unit is never returned.
            let mut pool = self.pools[own].lock();
            let found = pool.take(&self.map, own as u32, class);
            found.or_else(|| {
                pool.add_unit(if may_add { self.take_data_unit(own) } else { None }?);
                pool.take(&self.map, own as u32, class)
            })
        });
        let found = found.or_else(others);
        let (unit, line) = found?;
        self.free_data_lines.fetch_sub(class.lines(), SeqCst);
        self.data_log_lines.fetch_add(class.lines(), SeqCst);
        Some(LineAddress::new(u64::from(unit) * UNIT_LINES + line))
    }

    /// Takes a unit for a pool. The caller has locked the pool.
    fn take_data_unit(&self, pool: usize) -> Option<u32> {
        let unit = {
            let _serial = self.units.lock();
            let kept = self.metadata_reserve_units().max(self.short_regions(None)) + self.extents.kept_units(); // [FX3]
            if fails(Take::Unit) || self.free_units.load(SeqCst) <= kept {
                return None;
            }
            let is_free = |unit: &u64| self.map.owner(*unit) == UnitOwner::Free && self.may_have(pool, *unit);
            let unit = self.map.next_free(|| (0..self.total_units()).rev().find(is_free))?;
            self.map.set_owner(unit, UnitOwner::Pool(pool as u32));
            self.free_units.fetch_sub(1, SeqCst);
            unit
        };
        self.free_data_lines.fetch_add(UNIT_LINES, SeqCst);
        Some(unit as u32)
    }

    /// Whether a unit lies on the node of a pool, where each node has its own.
    fn may_have(&self, pool: usize, unit: u64) -> bool {
        !self.numa.is_on() || self.slot_pools(self.numa.of_unit(unit)).contains(&pool)
    }

    /// Avoids the page of a slot that the device failed, until one of its slots is freed.
    pub(crate) fn avoid_page_of_slot(&self, address: LineAddress) {
        if let UnitOwner::Pool(index) = self.map.owner(address.unit()) {
            let word = (address.number() % UNIT_LINES / PAGE_LINES) as u16;
            self.pools[index as usize].lock().avoid(DataPage { unit: address.unit() as u32, word });
        }
    }

    /// Frees a data-log slot. False, with no change, if it was not taken or is not in the data area ([ME4]).
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

    /// Lists the free slots of a unit in its pool.
    pub(super) fn list_slots(&self, lists: &mut Pool, unit: u64) {
        let bits = self.map.bits[unit as usize].lock();
        lists.add_unit(unit as u32);
        for word in 0..WORDS {
            let value = bits.word(word);
            if value == 0 || value == u64::MAX {
                continue;
            }
            let page = DataPage { unit: unit as u32, word: word as u16 };
            let class = [SlotClass::Kilobyte, SlotClass::Quarter, SlotClass::Line];
            if let Some(class) = class.into_iter().find(|class| Bits::fit(value, class.lines() as u32, true).is_some()) {
                lists.add_partial(class, page);
            }
        }
    }

    pub(super) fn free_for_data(&self) -> u64 {
        let units = self.free_units.load(SeqCst).saturating_sub(self.metadata_reserve_units() + self.extents.kept_units());
        self.free_data_lines.load(SeqCst) + units * UNIT_LINES + self.spare_pages.count() * PAGE_LINES
    }

    /// Whether less than one unit is free for data.
    pub(crate) fn is_without_data_units(&self) -> bool {
        !self.units_are_held.load(Relaxed) && self.free_for_data() < UNIT_LINES
    }

    /// Whether metadata has taken half of its reserved units while data logs hold others ([ME3]).
    pub(crate) fn is_metadata_short(&self) -> bool {
        let is_short = || self.free_units.load(SeqCst) < self.metadata_reserve_units().div_ceil(2) && self.data_log_lines.load(SeqCst) > 0;
        !self.units_are_held.load(Relaxed) && is_short()
    }

    /// Whether at least this percentage of the data area is free.
    pub(crate) fn is_data_free(&self, percent: u64) -> bool {
        let free = self.free_for_data();
        free * 100 >= (free + self.data_log_lines.load(SeqCst)) * percent
    }

    /// Share of the data area that is free, in percent.
    pub(crate) fn free_data_percent(&self) -> u64 {
        let free = self.free_for_data();
        free * 100 / (free + self.data_log_lines.load(SeqCst)).max(1)
    }

    /// Bytes of the units that nothing is in, without those that are reserved for metadata.
    pub(crate) fn free_unit_bytes(&self) -> u64 {
        self.free_units.load(SeqCst).saturating_sub(self.metadata_reserve_units()) * UNIT_BYTES
    }

    pub(crate) fn space(&self) -> ZoneSpace {
        let line = LINE_BYTES as u64;
        let data_logs = self.data_log_lines.load(SeqCst);
        let units = self.free_units.load(SeqCst).saturating_sub(self.metadata_reserve_units());
        let of_slots = self.free_data_lines.load(SeqCst) + self.spare_pages.count() * PAGE_LINES;
        let free = of_slots + self.extents.free_lines() + units * UNIT_LINES;
        ZoneSpace {
            total_bytes: self.total_units() * UNIT_LINES * line,
            free_bytes: free * line,
            available_bytes: free.saturating_sub(TRANSIENT_DATA_LINES) * line,
            data_log_bytes: data_logs * line,
            extent_bytes: self.extents.lines() * line,
            promoted_bytes: self.spare_pages.count() * PAGE_LINES * line,
        }
    }
}

/// For the copies in spare pages.
impl PageSource for MemoryAllocator {
    fn take_spare_page(&self) -> Option<LineAddress> {
        let address = self.find_slot(SlotClass::Page, true)?;
        self.data_log_lines.fetch_sub(PAGE_LINES, SeqCst);
        Some(address)
    }

    fn free_spare_page(&self, address: LineAddress) -> bool {
        self.data_log_lines.fetch_add(PAGE_LINES, SeqCst);
        let freed = self.free_slot(address, PAGE_LINES);
        if !freed {
            self.data_log_lines.fetch_sub(PAGE_LINES, SeqCst);
        }
        freed
    }

    fn spare_percent(&self) -> u64 {
        let total = self.free_for_data() + self.data_log_lines.load(SeqCst);
        (self.free_for_data().saturating_sub(self.spare_pages.count() * PAGE_LINES)) * 100 / total.max(1)
    }

    fn free_percent(&self) -> u64 {
        self.free_data_percent()
    }
}
