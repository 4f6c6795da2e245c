//! Extents of files in the memory zone: pages in a row, in units of the data area that hold nothing else.
//!
//! [FX1] A unit of the data area holds slots of data logs or extents of files, never both. What is freed is free only after its transaction,
//!       so this is true at each instant of a crash too, and the rebuild learns from what names a unit's lines whose it is.
//! [FX2] An extent lies in one unit. Requests of 2 MiB get a free unit, an *aligned extent*; what is smaller comes from holes, and breaks a
//!       free unit only when no hole serves: the order is that of [AP1] of `aligned_pools.rs`. A unit without extents is whole again, and
//!       free for every use. Who takes free units otherwise (regions, data logs) does not say so here: a pool finds out when it takes one,
//!       and looks for units that became free elsewhere when it knows of none.
//! [FX3] Growth leaves units to metadata as data logs do ([ME3] of `memory.rs`), and leaves the transient room of extents, which data logs
//!       respect too: rewriting a block in the memory zone succeeds on a full device (RULES R14).
//! [FX4] Growth stays below the limit of the mount (option `home_limit`). What takes transient room gives back as much, so it may pass the
//!       limit for that time. Threads that take extents at once may pass it by an extent each.
//!
//! Lock order: a pool, then `units` of the allocator, then the bits of a unit.

use std::cell::Cell;
use std::ops::{Range, RangeInclusive};
use std::sync::atomic::AtomicU64 as Size; // sizes order no threads

use tandemfs_device::{Apart, MemoryNodes};
use tandemfs_format::geometry::Geometry;
use tandemfs_format::{LineAddress, PAGE_BYTES, PAGE_LINES, UNIT_BYTES, UNIT_LINES};

use super::Need;
use super::aligned_pools::AlignedPools;
use super::aligned_space::AlignedSpace;
use super::large_units::LargeUnits;
use super::memory::MemoryAllocator;
use super::scattered::Sparse;
use super::unit_pages::{UNIT_PAGES, UNIT_WORDS, UnitPages};
use super::units::UnitOwner;
use crate::error::{Error, Result};
use crate::inject::{Take, fails};
use crate::mutant::{Mutant, on};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use crate::sync::current_cpu;

/// Blocks that the transient room holds at least, and its pages (4 MiB), as in the block zone.
const ROOM_BLOCKS: u64 = 8;
const ROOM_PAGES: u64 = 1024;

/// What the allocator knows about extents.
pub(super) struct Extents {
    /// Free pages of units with extents, and free units as far as the pools know; all other pages count as taken.
    pools: AlignedPools,
    /// Free pages in units with extents.
    free_pages: Apart<AtomicU64>,
    /// Pages of extents.
    used_pages: Apart<AtomicU64>,
    /// Pages that growth leaves free ([FX3]).
    room_pages: Size,
    /// Most pages of extents that growth takes ([FX4]).
    limit_pages: Size,
    /// Growth found no room since somebody asked.
    is_refused: AtomicBool,
}

impl Extents {
    pub(super) fn new(geometry: &Geometry, pools: usize, nodes: &MemoryNodes) -> Self {
        let (units, each) = (geometry.memory_units(), geometry.block_sectors_each() as u32);
        Self::of_pools(
            geometry,
            match nodes.count() {
                1 => AlignedPools::new(units as usize, pools, 1, each),
                count => AlignedPools::on_nodes(&unit_ranges(nodes, units), count, pools, each),
            },
        )
    }

    fn of_pools(geometry: &Geometry, pools: AlignedPools) -> Self {
        Self {
            pools,
            free_pages: Apart::default(),
            used_pages: Apart::default(),
            room_pages: Size::new(room_pages(geometry)),
            limit_pages: Size::new(u64::MAX),
            is_refused: AtomicBool::new(false),
        }
    }

    /// Prepares the maps for a zone of these sizes; what is new is taken.
    pub(super) fn prepare_growth(&self, geometry: &Geometry) {
        self.pools.grow(geometry.memory_units() as usize);
    }

    /// Goes by the limits of a zone of these sizes from now on.
    pub(super) fn grow(&self, geometry: &Geometry, limit_bytes: u64) {
        self.limit_pages.store(limit_bytes / PAGE_BYTES as u64, SeqCst);
        self.room_pages.fetch_max(room_pages(geometry), SeqCst);
    }

    /// Number of pools.
    pub(super) fn pool_count(&self) -> u64 {
        self.pools.count() as u64
    }

    pub(super) fn free_lines(&self) -> u64 {
        self.free_pages.load(SeqCst) * PAGE_LINES
    }

    /// What a unit has, if it has extents and holes.
    pub(super) fn sparse(&self, unit: u64) -> Option<Sparse> {
        let pool = self.pools.pool_of(unit * UNIT_PAGES);
        let index = (unit - self.pools.start_of(pool) / UNIT_PAGES) as usize;
        self.pools.with(pool, |space| {
            let (free, in_blocks) = (space.free_of(index), space.free_in_blocks(index));
            let sparse = || Sparse { taken: UNIT_PAGES - free, unit, in_blocks, ends: space.in_ends(index), in_rests: free - in_blocks };
            (free > 0 && free < UNIT_PAGES).then(sparse)
        })
    }

    /// Lines of extents.
    pub(super) fn lines(&self) -> u64 {
        self.used_pages.load(SeqCst) * PAGE_LINES
    }

    /// Lines that growth leaves free.
    pub(super) fn room_lines(&self) -> u64 {
        self.room_pages.load(SeqCst) * PAGE_LINES
    }

    /// Units that data logs leave free, so that the transient room can be had: none while no file lies in the memory zone.
    pub(super) fn kept_units(&self) -> u64 {
        match self.used_pages.load(SeqCst) {
            0 => 0,
            _ => self.room_pages.load(SeqCst).saturating_sub(self.free_pages.load(SeqCst)).div_ceil(UNIT_PAGES),
        }
    }
}

/// Pages that growth leaves free ([FX3]).
fn room_pages(geometry: &Geometry) -> u64 {
    let wanted = (ROOM_BLOCKS * geometry.block_sectors_each()).max(ROOM_PAGES);
    wanted.min(geometry.memory_units() * UNIT_PAGES / 16)
}

/// The units of each range of nodes of memory, and the index of its node.
fn unit_ranges(nodes: &MemoryNodes, units: u64) -> Vec<(Range<usize>, usize)> {
    let in_units = |(range, node): (Range<u64>, usize)| ((range.start / UNIT_BYTES) as usize..(range.end / UNIT_BYTES) as usize, node);
    nodes.ranges(units * UNIT_BYTES).into_iter().map(in_units).collect()
}

impl MemoryAllocator {
    /// Makes a class of large extents of so many bytes, a power of two of units ([LX1] of `large_units.rs`). Nothing is loaded yet.
    pub(crate) fn keep_large_extents(&mut self, geometry: &Geometry, pools: usize, bytes: u64) {
        let units = bytes / UNIT_BYTES;
        let each = geometry.block_sectors_each() as u32;
        let pools = AlignedPools::new(geometry.memory_units() as usize, pools, units as usize, each);
        self.extents = Extents::of_pools(geometry, pools);
        let large = LargeUnits::new(self.total_units(), self.extents.pools.pool_units() as u64, units);
        (0..self.total_units()).filter(|unit| geometry.is_fixed(*unit)).for_each(|unit| large.note(unit, false));
        self.map.large = Some(large);
    }

    /// Pages of a large extent. `None` without that class.
    pub(crate) fn large_extent_pages(&self) -> Option<u64> {
        self.map.large.as_ref().map(|large| large.group_units() * UNIT_PAGES)
    }

    /// Free bytes in whole ranges of so many bytes (a multiple of a unit) at multiples of them.
    pub(crate) fn free_bytes_in_ranges_of(&self, bytes: u64) -> u64 {
        let units = bytes / UNIT_BYTES;
        let is_free = |range: &u64| (range * units..(range + 1) * units).all(|unit| self.map.owner(unit) == UnitOwner::Free);
        (0..self.total_units() / units).filter(is_free).count() as u64 * bytes
    }

    /// Takes a large extent for growth: its first page ([LX3] of `large_units.rs`).
    pub(crate) fn take_large_extent(&self) -> Option<LineAddress> {
        let large = self.map.large.as_ref()?;
        let (units, pages) = (large.group_units(), large.group_units() * UNIT_PAGES);
        if fails(Take::Unit) || self.check_growth(pages).is_err() {
            return None;
        }
        let pools = &self.extents.pools;
        let own = current_cpu() % pools.count();
        (own..pools.count()).chain(0..own).find_map(|pool| {
            pools.with(pool, |space| {
                let _serial = self.units.lock();
                if self.free_units.load(SeqCst) < units + self.metadata_reserve_units().max(self.short_regions(None)) {
                    return None;
                }
                let first = large.take_group(pool)?;
                for unit in first..first + units {
                    self.map.set_owner(unit, UnitOwner::Extents(pool as u32));
                    self.map.bits[unit as usize].lock().set(0, UNIT_LINES);
                }
                space.set(first * UNIT_PAGES - pools.start_of(pool), pages);
                self.free_units.fetch_sub(units, SeqCst);
                self.extents.used_pages.fetch_add(pages, SeqCst);
                Some(LineAddress::new(first * UNIT_LINES))
            })
        })
    }

    /// Limits the extents of files to so many bytes ([FX4]).
    pub(crate) fn limit_extents(&mut self, bytes: u64) {
        self.extents.limit_pages = Size::new(bytes / PAGE_BYTES as u64);
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
        self.extents.limit_pages.load(SeqCst).saturating_sub(self.extents.used_pages.load(SeqCst))
    }

    /// Takes `count` pages in a row (at most a unit) for an extent of a file.
    pub(crate) fn take_extent(&self, count: u64, need: Need) -> Result<LineAddress> {
        let taken = self.try_extent(count..=count, need, true).map(|(address, _)| address);
        if taken.is_err() && need == Need::Growth {
            self.extents.is_refused.store(true, SeqCst);
        }
        taken
    }

    /// Takes pages in a row for several extents; nobody is refused what it needs if there are none.
    /// Less than a unit comes from a free unit only if `may_break`.
    /// At least the first number of pages is taken, and more of the same hole. Returns how many.
    pub(crate) fn take_row_of_pages(&self, counts: RangeInclusive<u64>, may_break: bool) -> Option<(LineAddress, u64)> {
        self.try_extent(counts, Need::Growth, may_break).ok()
    }

    /// Takes these pages for growth, if they are free, in holes, and of one unit.
    pub(crate) fn take_row_at(&self, address: LineAddress, count: u64) -> bool {
        let ends_inside = address.number() + count * PAGE_LINES <= self.total_units() * UNIT_LINES;
        if fails(Take::Pages) || !ends_inside || self.check_growth(count).is_err() {
            return false;
        }
        let first = self.numa.first(true, || self.free_on_nodes());
        if first.is_some_and(|node| self.numa.of_unit(address.unit()) != node) {
            return false; // [AP2]
        }
        let mut is_taken = false;
        self.extents.pools.each_part(address.number() / PAGE_LINES, count, |space, page, here| {
            is_taken = here == count && space.take_hole_at(page, count);
            if is_taken {
                self.took_pages(address, count);
            }
        });
        is_taken
    }

    /// Refuses growth by so many pages.
    fn check_growth(&self, count: u64) -> Result<()> {
        let is_full = self.free_for_extents() < count * PAGE_LINES + self.extents.room_lines() || self.pages_below_limit() < count;
        if is_full { Err(Error::NoSpace { zone: "memory" }) } else { Ok(()) }
    }

    fn try_extent(&self, counts: RangeInclusive<u64>, need: Need, may_break: bool) -> Result<(LineAddress, u64)> {
        let full = Error::NoSpace { zone: "memory" };
        if fails(Take::Pages) {
            return Err(full);
        }
        if need == Need::Growth {
            self.check_growth(*counts.end())?;
        }
        let moves = need == Need::Move && !self.is_shrinking();
        if moves && *counts.end() == UNIT_PAGES {
            return Err(full); // [GA2] of `gathering.rs`
        }
        let may_break = may_break && !moves;
        let mut found = self.find_extent(counts.clone(), may_break, moves);
        // [GA1] of `gathering.rs`
        while found.is_none() && may_break && (self.spare_pages.give_back(self, UNIT_PAGES as usize) > 0 || self.end_gathering()) {
            found = self.find_extent(counts.clone(), may_break, moves);
        }
        found.ok_or(full)
    }

    /// Takes pages in a row ([FX2]).
    fn find_extent(&self, counts: RangeInclusive<u64>, may_break: bool, moves: bool) -> Option<(LineAddress, u64)> {
        let (least, count) = (*counts.start(), *counts.end());
        let taken = Cell::new(count);
        let pools = &self.extents.pools;
        let address = |pool, page| LineAddress::new((pools.start_of(pool) + page) * PAGE_LINES);
        let from_hole = |pool| {
            pools.with(pool, |space| {
                let (page, count) = space.take_hole_of(least as u32, count as u32)?;
                taken.set(count.into());
                self.took_pages(address(pool, page), count.into());
                Some(page)
            })
        };
        let breaks_groups = Cell::new(true);
        let from_unit = |pool| {
            pools.with(pool, |space| {
                let page = self.take_free_unit(pool, space, breaks_groups.get())?;
                space.clear(page + count, UNIT_PAGES - count);
                self.extents.free_pages.fetch_add(UNIT_PAGES, SeqCst);
                self.took_pages(address(pool, page), count);
                Some(page)
            })
        };
        let may_break = may_break || count == UNIT_PAGES;
        let found = |page: u64| (LineAddress::new(page * PAGE_LINES), taken.get());
        // [LX1] of `large_units.rs`: no pool breaks a whole group while another one has a unit of a broken one.
        let anywhere = || {
            breaks_groups.set(self.map.large.is_none());
            let without = pools.find(least, from_hole, may_break.then_some(from_unit));
            if without.is_some() || breaks_groups.replace(true) {
                return without.map(found);
            }
            pools.find(least, from_hole, may_break.then_some(from_unit)).map(found)
        };
        let Some(node) = self.numa.first(true, || self.free_on_nodes()) else { return anywhere() };
        if let Some(page) = pools.find_on(node, least, from_hole, may_break.then_some(from_unit)) {
            return Some(found(page));
        }
        // [AP2]: what may break an aligned extent asks next.
        let free = self.free_on_nodes();
        if !may_break && !moves && self.map.free_units_on(node) > 0 {
            return None;
        }
        if free[node] < UNIT_PAGES || may_break && count < UNIT_PAGES {
            self.numa.is_full(node, free); // [NH3] of `numa.rs`
            let other = self.numa.first(false, Vec::new).filter(|other| *other != node);
            if let Some(page) = other.and_then(|other| pools.find_on(other, least, from_hole, may_break.then_some(from_unit))) {
                return Some(found(page));
            }
        }
        anywhere()
    }

    /// Free pages that extents could have on each node, as far as they are in units that nobody has, or that extents have.
    pub(crate) fn free_on_nodes(&self) -> Vec<u64> {
        let free = |node| self.map.free_units_on(node) * UNIT_PAGES + self.extents.pools.in_holes_of(node);
        if self.numa.is_on() { (0..self.numa.count()).map(free).collect() } else { vec![self.free_for_extents() / PAGE_LINES] }
    }

    /// Pages of a hole have become an extent. The caller has locked their pool.
    fn took_pages(&self, address: LineAddress, count: u64) {
        self.map.bits[address.unit() as usize].lock().set(address.number() % UNIT_LINES, count * PAGE_LINES);
        self.extents.free_pages.fetch_sub(count, SeqCst);
        self.extents.used_pages.fetch_add(count, SeqCst);
    }

    /// Takes a free unit for a pool, whose lock the caller holds: of its space, all pages are taken then. A whole group of units is broken only
    /// if `breaks_groups`. Returns the first page.
    fn take_free_unit(&self, pool: usize, space: &mut AlignedSpace, breaks_groups: bool) -> Option<u64> {
        let _serial = self.units.lock();
        if fails(Take::Unit) || self.free_units.load(SeqCst) <= self.metadata_reserve_units().max(self.short_regions(None)) {
            return None;
        }
        let first = self.extents.pools.start_of(pool) / UNIT_PAGES;
        let is_free = |unit: &u64| self.map.owner(first + unit) == UnitOwner::Free;
        let unit = match &self.map.large {
            Some(large) => {
                let broken = large.take_unit_of_broken(pool);
                let unit = broken.or_else(|| if breaks_groups { large.break_group(pool) } else { None })? - first;
                space.set(unit * UNIT_PAGES, UNIT_PAGES);
                unit
            }
            None => {
                let known = std::iter::from_fn(|| space.take_unit()).map(|page| page / UNIT_PAGES).find(is_free);
                // Of the known ones none is left: one that others gave back.
                known.or_else(|| (0..space.units()).rev().find(is_free))?
            }
        };
        self.map.set_owner(first + unit, UnitOwner::Extents(pool as u32));
        self.free_units.fetch_sub(1, SeqCst);
        Some(unit * UNIT_PAGES)
    }

    /// Frees pages of an extent. False, with no change, if they were not taken or hold no extent ([ME4] of `memory.rs`).
    #[must_use]
    pub(crate) fn free_extent(&self, address: LineAddress, count: u64) -> bool {
        let (unit, start, lines) = (address.unit(), address.number() % UNIT_LINES, count * PAGE_LINES);
        if unit >= self.total_units() || start + lines > UNIT_LINES {
            return false;
        }
        let UnitOwner::Extents(pool) = self.map.owner(unit) else { return false };
        let page = address.number() / PAGE_LINES - self.extents.pools.start_of(pool as usize);
        self.extents.pools.with(pool as usize, |space| {
            let is_whole = {
                let mut bits = self.map.bits[unit as usize].lock();
                if !bits.is_taken(start, lines) || !space.is_taken(page, count) {
                    return false;
                }
                bits.clear(start, lines);
                u64::from(bits.free()) == UNIT_LINES
            };
            space.clear(page, count);
            self.extents.used_pages.fetch_sub(count, SeqCst);
            self.extents.free_pages.fetch_add(count, SeqCst);
            if is_whole {
                self.extents.free_pages.fetch_sub(UNIT_PAGES, SeqCst);
                let _serial = self.units.lock();
                self.map.set_owner(unit, UnitOwner::Free);
                self.free_units.fetch_add(1, SeqCst);
            }
            true
        })
    }

    /// Whether pages of a unit are to be emptied from now on: nobody finds its holes. False if it is free, or has another use.
    pub(super) fn hide_extents(&self, unit: u64) -> bool {
        let UnitOwner::Extents(pool) = self.map.owner(unit) else { return false };
        self.extents.pools.with(pool as usize, |space| {
            let hides = self.map.owner(unit) == UnitOwner::Extents(pool) && space.hide(self.in_pool(unit));
            if hides {
                self.map.set_emptied(unit);
            }
            hides
        })
    }

    /// The holes of a unit that was to be emptied can be found again.
    pub(super) fn show_extents(&self, unit: u64) {
        let pool = self.extent_pool(unit) as usize;
        self.extents.pools.with(pool, |space| space.show(self.in_pool(unit)));
    }

    /// The number of a unit in its pool.
    fn in_pool(&self, unit: u64) -> usize {
        (unit - self.extents.pools.start_of(self.extent_pool(unit) as usize) / UNIT_PAGES) as usize
    }

    /// The pool of a unit.
    pub(super) fn extent_pool(&self, unit: u64) -> u32 {
        self.extents.pools.pool_of(unit * UNIT_PAGES) as u32
    }

    /// Marks an extent that the rebuild found. False if its pages were already taken, or its unit has another use ([FX1]).
    pub(crate) fn mark_extent(&self, address: LineAddress, count: u64) -> bool {
        let unit = address.unit();
        {
            let _serial = self.units.lock();
            match self.map.owner(unit) {
                UnitOwner::Extents(_) => {}
                UnitOwner::Free => {
                    self.map.set_owner(unit, UnitOwner::Extents(self.extent_pool(unit)));
                    self.free_units.fetch_sub(1, SeqCst);
                }
                UnitOwner::Fixed | UnitOwner::Region(_) | UnitOwner::Pool(_) => return false,
            }
        }
        self.map.bits[unit as usize].lock().set(address.number() % UNIT_LINES, count * PAGE_LINES)
    }

    /// Says what is free after marks or saved maps are loaded.
    pub(super) fn finish_extents(&self) {
        for unit in 0..self.total_units() {
            let pages = match self.map.owner(unit) {
                UnitOwner::Free => [0; UNIT_WORDS],
                UnitOwner::Extents(_) => {
                    let bits = self.map.bits[unit as usize].lock();
                    let is_used = |page: usize| u64::from(bits.word(page) != 0);
                    let pages: UnitPages =
                        std::array::from_fn(|word| (0..64).fold(0, |pages, page| pages | is_used(word * 64 + page) << page));
                    let used: u64 = pages.iter().map(|word| u64::from(word.count_ones())).sum();
                    self.extents.free_pages.fetch_add(UNIT_PAGES - used, SeqCst);
                    self.extents.used_pages.fetch_add(used, SeqCst);
                    pages
                }
                UnitOwner::Fixed | UnitOwner::Region(_) | UnitOwner::Pool(_) => [u64::MAX; UNIT_WORDS],
            };
            self.extents.pools.each_part(unit * UNIT_PAGES, UNIT_PAGES, |space, page, _| space.load((page / UNIT_PAGES) as usize, pages));
        }
    }

    /// The pool of a unit learns that it is about to become free ([FX2]).
    pub(super) fn show_to_extents(&self, unit: u64) {
        self.extents.pools.each_part(unit * UNIT_PAGES, UNIT_PAGES, AlignedSpace::clear);
    }

    /// Takes all free pages of a unit with extents ([HO1] of `hold.rs`). Returns the number of lines.
    pub(super) fn hold_extents(&self, unit: u64) -> u64 {
        let mut bits = self.map.bits[unit as usize].lock();
        let free = u64::from(bits.free());
        bits.set(0, UNIT_LINES);
        drop(bits);
        self.extents.pools.each_part(unit * UNIT_PAGES, UNIT_PAGES, |space, page, count| _ = space.set(page, count));
        self.extents.free_pages.fetch_sub(free / PAGE_LINES, SeqCst);
        free
    }

    /// Lines that extents can have, the transient room included.
    pub(super) fn free_for_extents(&self) -> u64 {
        let units = self.free_units.load(SeqCst).saturating_sub(self.metadata_reserve_units());
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
    use crate::numa::Numa;
    use tandemfs_format::mapping::SlotClass;

    fn allocator(memory_bytes: u64) -> MemoryAllocator {
        let geometry = Geometry::new(memory_bytes, 64 << 20, 64 << 10, 4, 256 << 10).expect("fits");
        let memory = MemoryAllocator::new(&geometry, 1, Numa::new(MemoryNodes::default(), true), SparePages::new(0, 10));
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

    /// A file that went on in the last unit of the zone asked for pages behind its end, which was a panic.
    #[test]
    fn regression_a_row_at_the_end_of_the_zone_is_refused() {
        let memory = allocator(64 << 20);
        let page = |number: u64| LineAddress::new((memory.total_units() * UNIT_PAGES - number) * PAGE_LINES);
        assert!(!memory.take_row_at(page(2), 3) && !memory.take_row_at(page(0), 1) && !memory.take_row_at(page(1), 5 * UNIT_PAGES));
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
        assert!(room >= memory.extents.room_pages.load(SeqCst), "{room} pages of room");
        assert_eq!(memory.free_units.load(SeqCst), memory.metadata_reserve_units());
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
        for _ in 0..memory.extents.room_pages.load(SeqCst) {
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
