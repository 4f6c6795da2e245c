//! Sectors of the block zone: aligned extents of 2 MiB, and holes, in pools (`aligned_space.rs`; WineFS §3.4). Whole blocks are aligned runs.
//! The last block of a file takes only the sectors that it needs, from blocks that are partly used.
//!
//! [SE1] The transient room (RULES R14) is kept as whole blocks that growth never gets: a count of free sectors would not help an overwrite
//!       that needs a contiguous block. Space freed by an overwrite refills the room.
//! [SE2] The end of a file that finds no other place takes a block of the room; the rest of that block stays unused. The file end moves
//!       out again at once, into the hole that its old sectors left (`write_path`), so that the room does not fragment.
//! [SE3] Sectors that are about to be discarded are taken, so nobody else gets them. They count as free for `statfs` alone.
//! [SE4] Pools are whole groups of 32,768 sectors, which maps are saved by. Sectors are taken in the order of [AP1] of `aligned_pools.rs`.
//!
//! Lock order: the room, then a pool.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};
use std::sync::atomic::{AtomicU64 as Size, AtomicUsize}; // sizes order no threads

use hashbrown::HashMap;
use tandemfs_format::geometry::{Geometry, PIECE_SECTORS};
use tandemfs_format::journal::TX_DATA_MAX;
use tandemfs_format::{SECTOR_BYTES, Sector, UNIT_BYTES};

use super::Need;
use super::aligned_pools::AlignedPools;
use super::aligned_space::AlignedSpace;
use super::freed_sectors::FreedSectors;
use super::scattered::Scattered;
use super::unit_pages::{UNIT_PAGES, UNIT_WORDS, UnitPages};
use crate::error::{Error, Result};
use crate::inject::{Take, fails};
use crate::mutant::{Mutant, on};
use crate::space::Run;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering::SeqCst};
use crate::types::ZoneSpace;

/// Blocks of the transient room (RULES R14): this many writers and write-backs can redirect a block each on a full device.
const TRANSIENT_BLOCKS: u64 = 8;
/// Number of maximum-size writes that the transient room serves at once.
const TRANSIENT_WRITES: u64 = 4;
/// Units of a group.
pub(super) const GROUP_UNITS: usize = (PIECE_SECTORS / UNIT_PAGES) as usize;

pub(crate) struct SectorAllocator {
    pub(super) pools: AlignedPools,
    group_count: AtomicUsize,
    pub(super) free: AtomicU64,
    total: Size,
    pub(super) block_sectors: u64,
    transient: u64,
    /// Whole blocks of the transient room ([SE1]); they count as free, also in saved maps.
    room: Mutex<Room>,
    freed: FreedSectors,
    /// Sectors that are being discarded ([SE3]).
    discarding: AtomicU64,
    pub(super) scattered: Scattered,
    /// Sectors from here on are to be left for good, and how many of them somebody has ([DZ2] of `shrinking.rs`).
    pub(super) doomed_from: Size,
    pub(super) doomed_left: Size,
}

#[derive(Debug, Default)]
struct Room {
    /// First sectors of unused whole blocks.
    blocks: BTreeSet<u64>,
    /// Partly used blocks: first sector, and number of used sectors from there on.
    partly_used: HashMap<u64, u64>,
}

impl SectorAllocator {
    /// Everything is free except the identity's sector. Without a block zone there is one group, of which nothing is free.
    pub(crate) fn new(geometry: &Geometry, pools: usize) -> Self {
        let total = geometry.block_sectors();
        let group_count = total.div_ceil(PIECE_SECTORS).max(1) as usize;
        let block_sectors = geometry.block_sectors_each();
        let pools = AlignedPools::new(group_count * GROUP_UNITS, pools, GROUP_UNITS, block_sectors as u32);
        let taken = |start: u64, end: u64| pools.each_part(start, end - start, |space, at, here| _ = space.set(at, here));
        taken(total, group_count as u64 * PIECE_SECTORS);
        taken(0, total.min(1));
        let largest_write = TX_DATA_MAX / (block_sectors * SECTOR_BYTES as u64);
        let room = (total / 8 / block_sectors).clamp(1, TRANSIENT_BLOCKS.max(TRANSIENT_WRITES * largest_write)) * block_sectors;
        let transient = if total > 0 { room } else { 0 };
        Self {
            pools,
            group_count: AtomicUsize::new(group_count),
            free: AtomicU64::new(total.saturating_sub(1)),
            total: Size::new(total),
            block_sectors,
            transient,
            room: Mutex::default(),
            freed: FreedSectors::new(group_count),
            discarding: AtomicU64::new(0),
            scattered: Scattered::default(),
            doomed_from: Size::new(u64::MAX),
            doomed_left: Size::new(0),
        }
    }

    /// Sectors of the zone.
    pub(super) fn total(&self) -> u64 {
        self.total.load(SeqCst)
    }

    // ---- growing -------------------------------------------------------------------------------------------------------------------

    /// Prepares the maps for a zone of these sizes; what is new is taken ([ON4] of `growing.rs`).
    pub(crate) fn prepare_growth(&self, geometry: &Geometry) {
        let groups = geometry.block_sectors().div_ceil(PIECE_SECTORS).max(1) as usize;
        self.freed.grow(groups);
        self.pools.grow(groups * GROUP_UNITS);
        self.group_count.fetch_max(groups, SeqCst);
    }

    /// The sectors behind the old end are free from now on; a group at a time, so that nobody waits long for a pool.
    pub(crate) fn grow(&self, geometry: &Geometry) {
        let (mut at, end) = (self.total(), geometry.block_sectors());
        self.total.store(end.max(at), SeqCst);
        while at < end {
            let next = ((at / PIECE_SECTORS + 1) * PIECE_SECTORS).min(end);
            self.each_part(Sector::new(at), next - at, AlignedSpace::clear);
            at = next;
        }
    }

    // ---- pools ---------------------------------------------------------------------------------------------------------------------

    /// The pool of a group, and the group's first sector there.
    pub(super) fn place_of(&self, group: usize) -> (usize, u64) {
        let start = group as u64 * PIECE_SECTORS;
        let pool = self.pools.pool_of(start);
        (pool, start - self.pools.start_of(pool))
    }

    /// Uses a pool. What it has free then is counted.
    fn with<T>(&self, pool: usize, work: impl FnOnce(&mut AlignedSpace) -> T) -> T {
        self.pools.with(pool, |space| self.counted(space, work))
    }

    /// Uses the parts of a run of sectors in the same way.
    pub(super) fn each_part(&self, sector: Sector, count: u64, mut work: impl FnMut(&mut AlignedSpace, u64, u64)) {
        self.pools.each_part(sector.number(), count, |space, start, here| self.counted(space, |space| work(space, start, here)));
    }

    fn counted<T>(&self, space: &mut AlignedSpace, work: impl FnOnce(&mut AlignedSpace) -> T) -> T {
        let before = space.free();
        let done = work(space);
        let after = space.free();
        if after > before {
            self.free.fetch_add(after - before, SeqCst);
        } else if after < before {
            self.free.fetch_sub(before - after, SeqCst);
        }
        done
    }

    /// Finds sectors in a row, at most a unit. `may_break`: from an aligned extent too; a whole unit always is one.
    fn find(&self, count: u64, may_break: bool) -> Option<Sector> {
        self.find_row(count..=count, may_break).map(|(sector, _)| sector)
    }

    /// The same for at least the first number of sectors. Also returns how many there are.
    fn find_row(&self, counts: RangeInclusive<u64>, may_break: bool) -> Option<(Sector, u64)> {
        let (least, count) = (*counts.start(), *counts.end());
        let taken = Cell::new(count);
        let from_hole = |pool| {
            let (start, count) = self.with(pool, |space| space.take_hole_of(least as u32, count as u32))?;
            taken.set(count.into());
            Some(start)
        };
        let from_unit = |pool| self.with(pool, |space| space.break_unit(count as u32));
        let may_break = may_break || count == UNIT_PAGES;
        let find = || self.pools.find(least, from_hole, may_break.then_some(from_unit));
        let may_show = may_break && count < UNIT_PAGES && !on(Mutant::HiddenForGood);
        let found = find().or_else(|| if may_show && self.show_scattered() { find() } else { None })?; // [SX3] of `scattered.rs`
        Some((Sector::new(found), taken.get()))
    }

    /// The same for the end of a file, which takes any sectors in a row when nothing else is left.
    fn find_for_end(&self, count: u64) -> Option<Sector> {
        self.find(count, true).or_else(|| {
            // Doomed sectors count as taken, so it finds none of them.
            let anywhere = |pool| {
                let found = self.with(pool, |space| space.take_anywhere(count));
                found.map(|at| Sector::new(self.pools.start_of(pool) + at))
            };
            (0..self.pools.count()).find_map(anywhere)
        })
    }

    // ---- maps ----------------------------------------------------------------------------------------------------------------------

    /// A group's map as saved for a zone of `total` sectors, which is at least the current size: sectors beyond the old end are free, those
    /// beyond the new end taken.
    pub(crate) fn group_of(&self, group: u64, total: u64) -> Vec<u8> {
        let within = |sectors: u64| sectors.saturating_sub(group * PIECE_SECTORS).min(PIECE_SECTORS);
        let old = ((group as usize) < self.groups()).then(|| self.saved(group as usize));
        let unused = if old.is_some() { within(self.total())..within(total) } else { 0..0 };
        let mut bytes = old.unwrap_or_else(|| vec![0; PIECE_SECTORS as usize / 8]);
        let mut set = |sectors: Range<u64>, taken: bool| {
            for sector in sectors {
                let (byte, bit) = ((sector / 8) as usize, 1 << (sector % 8));
                bytes[byte] = if taken { bytes[byte] | bit } else { bytes[byte] & !bit };
            }
        };
        set(unused, false);
        set(within(total)..PIECE_SECTORS, true);
        bytes
    }

    fn saved(&self, group: usize) -> Vec<u8> {
        let words = |space: &mut AlignedSpace| self.units_of(group).flat_map(|unit| *space.unit(unit)).collect::<Vec<u64>>();
        self.pools.with(self.place_of(group).0, words).into_iter().flat_map(u64::to_le_bytes).collect()
    }

    /// The units of a group in its pool.
    fn units_of(&self, group: usize) -> Range<usize> {
        let first = (self.place_of(group).1 / UNIT_PAGES) as usize;
        first..first + GROUP_UNITS
    }

    /// Loads a saved group.
    pub(crate) fn load_group(&self, group: usize, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(std::array::from_fn(|byte| word[byte])));
        self.with(self.place_of(group).0, |space| {
            for unit in self.units_of(group) {
                let mut pages: UnitPages = [u64::MAX; UNIT_WORDS];
                pages.iter_mut().zip(&mut words).for_each(|(page, word)| *page = word);
                space.load(unit, pages);
            }
        });
    }

    /// Marks sectors that recovery found in use. False if any were already taken.
    pub(crate) fn mark(&self, sector: Sector, count: u64) -> bool {
        let mut were_free = true;
        self.each_part(sector, count, |space, start, here| were_free &= space.set(start, here));
        were_free
    }

    /// Takes all free sectors ([HO1] of `hold.rs`). Returns their number. The transient room must not be filled yet.
    pub(super) fn take_all(&self) -> u64 {
        let held = self.free.load(SeqCst);
        (0..self.pools.count()).for_each(|pool| self.with(pool, AlignedSpace::take_all));
        held - self.free.load(SeqCst)
    }

    // ---- taking --------------------------------------------------------------------------------------------------------------------

    /// Takes `count` contiguous sectors (at most a block).
    pub(crate) fn take(&self, count: u64, need: Need) -> Result<Sector> {
        let full = Error::NoSpace { zone: "block" };
        let need = if on(Mutant::TransientRoomGiven) { Need::Transient } else { need };
        if fails(Take::Sectors) || (need == Need::Growth && self.free.load(SeqCst) < count + self.transient) {
            return Err(full);
        }
        let found = match need {
            Need::Move => self.find(count, self.is_shrinking()), // [SX3] of `scattered.rs`, [DZ3] of `shrinking.rs`
            _ if count < self.block_sectors => self.find_for_end(count),
            _ => self.find(count, true),
        };
        match need {
            Need::Growth | Need::Move => found.ok_or(full),
            Need::Transient => found.or_else(|| self.take_from_room(count)).ok_or(full),
        }
    }

    /// Takes so many sectors in a row (blocks, at most a unit) for growth: at least the first number, and more of the same hole. A unit is an
    /// aligned extent; less comes from holes, or if `may_break` from an aligned extent.
    pub(crate) fn take_row(&self, counts: RangeInclusive<u64>, may_break: bool) -> Option<(Sector, u64)> {
        if fails(Take::Sectors) || self.free.load(SeqCst) < counts.end() + self.transient || *counts.end() > UNIT_PAGES {
            return None;
        }
        self.find_row(counts, may_break)
    }

    /// Takes these sectors for growth, if they are free and in holes of one unit.
    pub(crate) fn take_row_at(&self, sector: Sector, count: u64) -> bool {
        let end = sector.number() + count;
        if fails(Take::Sectors) || self.free.load(SeqCst) < count + self.transient || end > self.total() {
            return false;
        }
        let mut is_taken = false;
        self.each_part(sector, count, |space, start, here| is_taken = here == count && space.take_hole_at(start, count));
        is_taken
    }

    /// Takes sectors for a block that leaves the transient room: may use all sectors outside the room, even those that growth must leave.
    pub(crate) fn take_outside_room(&self, count: u64) -> Option<Sector> {
        if fails(Take::Sectors) { None } else { self.find_for_end(count) }
    }

    /// Whether these sectors are in a block of the room ([SE2]).
    pub(crate) fn is_in_room(&self, sector: Sector) -> bool {
        self.room.lock().partly_used.contains_key(&self.block_start(sector))
    }

    fn block_start(&self, sector: Sector) -> u64 {
        sector.number() / self.block_sectors * self.block_sectors
    }

    /// Fills the transient room from free blocks ([SE1]), after the maps are loaded.
    pub(crate) fn fill_room(&self) {
        (0..self.pools.count()).for_each(|pool| _ = self.with(pool, AlignedSpace::whole)); // finds out what is free where
        let mut room = self.room.lock();
        while (room.blocks.len() as u64) * self.block_sectors < self.transient {
            let Some(sector) = self.find(self.block_sectors, true) else { break };
            self.free.fetch_add(self.block_sectors, SeqCst);
            room.blocks.insert(sector.number());
        }
    }

    /// Returns the room's blocks to the maps, before they are saved.
    pub(crate) fn empty_room(&self) {
        let room = std::mem::take(&mut *self.room.lock());
        let unused = room.blocks.into_iter().map(|block| (block, 0)).chain(room.partly_used);
        for (block, used) in unused {
            let count = self.block_sectors - used;
            self.each_part(Sector::new(block + used), count, AlignedSpace::clear);
            self.free.fetch_sub(count, SeqCst);
        }
    }

    fn take_from_room(&self, count: u64) -> Option<Sector> {
        let mut room = self.room.lock();
        let block = room.blocks.pop_last()?;
        if count < self.block_sectors {
            room.partly_used.insert(block, count); // [SE2]
        }
        self.free.fetch_sub(count, SeqCst);
        Some(Sector::new(block))
    }

    /// Returns sectors of a used block to the room; true if the block had them, false also if they are of unused ones, which only a wrong
    /// pointer names. `None` if they are in no block of the room.
    fn return_to_room(&self, sector: Sector, count: u64) -> Option<bool> {
        let mut room = self.room.lock();
        let block = self.block_start(sector);
        if room.blocks.range(block..sector.number() + count).next().is_some() {
            return Some(false);
        }
        let used = room.partly_used.get_mut(&block)?;
        let Some(left) = used.checked_sub(count) else { return Some(false) };
        *used = left;
        if *used == 0 {
            room.partly_used.remove(&block);
            room.blocks.insert(block);
        }
        self.free.fetch_add(count, SeqCst);
        Some(true)
    }

    /// Adds a block that became completely free to the room, if the room is short.
    fn refill_room(&self, sector: Sector) {
        let mut room = self.room.lock();
        if (room.blocks.len() + room.partly_used.len()) as u64 * self.block_sectors >= self.transient {
            return;
        }
        let (start, count) = (self.block_start(sector), self.block_sectors);
        if start + count > self.total() {
            return;
        }
        self.pools.each_part(start, count, |space, at, _| {
            if space.is_free(at, count) {
                space.set(at, count);
                room.blocks.insert(start);
            }
        });
    }

    /// Frees sectors. False, with no change, if they were not taken (`memory.rs` [ME4]).
    #[must_use]
    pub(crate) fn free(&self, sector: Sector, count: u64) -> bool {
        if let Some(returned) = self.return_to_room(sector, count) {
            return returned;
        }
        let mut taken = true;
        self.each_part(sector, count, |space, start, here| taken &= space.is_taken(start, here));
        let doomed = if taken { self.doomed_of(sector.number(), count) } else { 0 };
        if doomed > 0 {
            self.doomed_left.fetch_sub(doomed, SeqCst); // [DZ2] of `shrinking.rs`
        }
        if taken && doomed < count {
            self.each_part(sector, count - doomed, AlignedSpace::clear);
            self.freed.note(sector, count - doomed);
            self.refill_room(sector);
        }
        taken
    }

    // ---- discarding ([SE3]) --------------------------------------------------------------------------------------------------------

    /// Number of groups of sectors.
    pub(crate) fn groups(&self) -> usize {
        self.group_count.load(SeqCst)
    }

    /// Takes sectors of a group that were freed during this mount and are free, until `most` are taken or at most 63 more. [`SectorAllocator::discarded`]
    /// gives them back.
    pub(crate) fn take_freed(&self, group: usize, most: u64) -> Vec<Run> {
        let mut notes = self.freed.group(group).lock();
        let Some(words) = notes.as_mut() else { return Vec::new() };
        let mut runs = Runs::default();
        let mut is_all = true;
        let (pool, first) = self.place_of(group);
        self.pools.with(pool, |space| {
            for (word, noted) in words.iter_mut().enumerate().filter(|(_, noted)| **noted != 0) {
                if runs.total >= most {
                    is_all = false;
                    break;
                }
                let mut free = if on(Mutant::DiscardedWhileTaken) { *noted } else { *noted & !space.word(first / 64 + word as u64) };
                *noted = 0;
                while free != 0 {
                    let start = free.trailing_zeros();
                    let count = (free >> start).trailing_ones();
                    free &= !((u64::MAX >> (64 - count)) << start);
                    let at = word as u64 * 64 + u64::from(start);
                    space.set(first + at, count.into());
                    runs.add(group, at, count.into());
                }
            }
        });
        if is_all {
            *notes = None;
        }
        self.being_discarded(runs)
    }

    /// Takes free runs of at least `least` sectors from a group, from sector `from` of the group on, until `most` sectors are taken. Also
    /// returns where to go on; `None` at the end of the group. A run that `most` cuts is taken in parts.
    pub(crate) fn take_free(&self, group: usize, from: u64, least: u64, most: u64) -> (Vec<Run>, Option<u64>) {
        let mut runs = Runs::default();
        let (pool, first) = self.place_of(group);
        let next = self.pools.with(pool, |space| {
            let mut at = from;
            while let Some((start, count)) = space.next_free_run(first + at).map(|(start, count)| (start - first, count)) {
                if start >= PIECE_SECTORS {
                    break;
                }
                let count = count.min(PIECE_SECTORS - start);
                at = start + count;
                let is_rest = from > 0 && start == from;
                if count < least && !is_rest {
                    continue;
                }
                let here = count.min(most - runs.total);
                space.set(first + start, here);
                runs.add(group, start, here);
                if runs.total == most {
                    return Some(start + here);
                }
            }
            None
        });
        (self.being_discarded(runs), next)
    }

    fn being_discarded(&self, runs: Runs) -> Vec<Run> {
        self.free.fetch_sub(runs.total, SeqCst);
        self.discarding.fetch_add(runs.total, SeqCst);
        runs.list
    }

    /// Gives back sectors that were taken to be discarded.
    pub(crate) fn discarded(&self, (sector, count): Run) {
        self.each_part(sector, count, AlignedSpace::clear);
        self.discarding.fetch_sub(count, SeqCst);
        self.refill_room(sector);
    }

    /// The same, if they were not discarded: they are noted again.
    pub(crate) fn not_discarded(&self, run: Run) {
        self.discarded(run);
        self.freed.note(run.0, run.1);
    }

    /// Number of whole blocks that growth can still take, one after the other.
    pub(crate) fn whole_blocks(&self) -> u64 {
        let each = self.block_sectors;
        let runs: u64 = (0..self.pools.count()).map(|pool| self.pools.with(pool, |space| space.free_blocks())).sum();
        runs.min(self.free.load(SeqCst).saturating_sub(self.transient) / each)
    }

    /// Free bytes in pieces of the size of a unit (2 MiB) at multiples of it.
    pub(crate) fn aligned_free_bytes(&self) -> u64 {
        (0..self.pools.count()).map(|pool| self.pools.with(pool, AlignedSpace::whole)).sum::<u64>() * UNIT_BYTES
    }

    pub(crate) fn space(&self) -> ZoneSpace {
        let free = self.free.load(SeqCst) + self.discarding.load(SeqCst);
        ZoneSpace {
            promoted_bytes: 0,
            total_bytes: self.total().saturating_sub(1) * SECTOR_BYTES as u64,
            free_bytes: free * SECTOR_BYTES as u64,
            available_bytes: free.saturating_sub(self.transient) * SECTOR_BYTES as u64,
            data_log_bytes: 0,
            extent_bytes: 0,
        }
    }
}

/// Runs that are taken one after the other; neighbours are joined.
#[derive(Default)]
struct Runs {
    list: Vec<Run>,
    total: u64,
}

impl Runs {
    /// Adds sectors by their place in a group.
    fn add(&mut self, group: usize, at: u64, count: u64) {
        let first = group as u64 * PIECE_SECTORS + at;
        match self.list.last_mut().filter(|(sector, count)| sector.number() + *count == first) {
            Some((_, joined)) => *joined += count,
            None => self.list.push((Sector::new(first), count)),
        }
        self.total += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_sectors_are_discarded_once_and_only_while_they_are_free() {
        let allocator = allocator(300 << 20, 64 << 10);
        allocator.fill_room(); // otherwise the first blocks that are freed go there
        let before = allocator.space();
        let taken: Vec<Sector> = (0..100).map(|_| allocator.take(16, Need::Growth).expect("room")).collect();
        assert!(taken.windows(2).all(|pair| pair[0].number() + 16 == pair[1].number()), "neighbours");
        for sector in &taken {
            assert!(allocator.free(*sector, 16));
        }
        allocator.sectors_taken_at(taken[10], 16);
        let group = (taken[0].number() / PIECE_SECTORS) as usize;
        let (first, second) = (allocator.take_freed(group, 320), allocator.take_freed(group, u64::MAX));
        let count = |runs: &[Run]| runs.iter().map(|(_, count)| count).sum::<u64>();
        assert!((320..384).contains(&count(&first)), "a word more at most: {first:?}");
        let each =
            |runs: &[Run]| -> Vec<u64> { runs.iter().flat_map(|(sector, count)| (sector.number()..).take(*count as usize)).collect() };
        let (start, again) = (taken[0].number(), taken[10].number());
        let expected: Vec<u64> = (start..start + 1600).filter(|sector| !(again..again + 16).contains(sector)).collect();
        assert_eq!([each(&first), each(&second)].concat(), expected, "each once, but what was taken again");
        assert_eq!(allocator.take_freed(group, u64::MAX), []);
        assert_eq!(allocator.space().free_bytes, before.free_bytes - (64 << 10), "they count as free");
        assert_eq!(allocator.free.load(SeqCst) * 4096, before.free_bytes - (100 << 16), "and nobody gets them");
        first.iter().for_each(|run| allocator.discarded(*run));
        second.iter().for_each(|run| allocator.not_discarded(*run));
        let noted = allocator.take_freed(group, u64::MAX);
        assert_eq!(each(&noted), each(&second));
        noted.iter().for_each(|run| allocator.discarded(*run));
        assert!(allocator.free(taken[10], 16));
        assert_eq!(allocator.space(), before);
        assert_eq!(allocator.take_freed(group, u64::MAX), [(taken[10], 16)]);
    }

    #[test]
    fn a_trim_finds_every_free_run_that_is_long_enough() {
        let allocator = allocator(300 << 20, 64 << 10);
        let group = 1;
        let first = group as u64 * PIECE_SECTORS;
        for (at, count) in [(100, 1), (108, 2), (126, 500)] {
            allocator.sectors_taken_at(Sector::new(first + at), count);
        }
        let free = allocator.space();
        let mut found = Vec::new();
        let mut from = Some(0);
        while let Some(at) = from {
            let (runs, next) = allocator.take_free(group, at, 16, 10_000);
            assert!(runs.iter().map(|(_, count)| count).sum::<u64>() <= 10_000);
            found.extend(runs);
            from = next;
        }
        let lengths: Vec<(u64, u64)> = found.iter().map(|(sector, count)| (sector.number() - first, *count)).collect();
        assert_eq!(lengths[..3], [(0, 100), (110, 16), (626, 9884)], "7 sectors are too few");
        assert_eq!(lengths.iter().map(|(_, count)| count).sum::<u64>(), PIECE_SECTORS - 503 - 7);
        for run in found {
            allocator.discarded(run);
        }
        assert_eq!(allocator.space(), free);
    }

    impl SectorAllocator {
        fn sectors_taken_at(&self, sector: Sector, count: u64) {
            assert!(self.mark(sector, count), "were free");
        }
    }

    fn allocator(bytes: u64, block: u32) -> SectorAllocator {
        SectorAllocator::new(&Geometry::new(16 << 20, bytes, block, 4, 256 << 10).expect("fits"), 2)
    }

    #[test]
    fn blocks_are_aligned_and_growth_leaves_the_transient_room() {
        for block in [4 << 10, 64 << 10, 1 << 20] {
            let allocator = allocator(64 << 20, block);
            let each = u64::from(block) / 4096;
            let mut taken = Vec::new();
            while let Ok(sector) = allocator.take(each, Need::Growth) {
                assert_eq!(sector.number() % each, 0);
                taken.push(sector);
            }
            assert!(allocator.take(each, Need::Transient).is_ok(), "block of {block}");
            taken.sort();
            assert!(taken.windows(2).all(|pair| pair[0].number() + each <= pair[1].number()), "no sector twice");
        }
    }

    #[test]
    fn all_that_is_taken_comes_back() {
        let allocator = allocator(300 << 20, 64 << 10);
        let before = allocator.space();
        let taken: Vec<(Sector, u64)> =
            (0..3000).map_while(|i| allocator.take(i % 16 + 1, Need::Growth).ok().map(|sector| (sector, i % 16 + 1))).collect();
        assert_eq!(taken.len(), 3000);
        for (sector, count) in taken {
            assert!(allocator.free(sector, count));
        }
        assert_eq!(allocator.space(), before);
    }

    #[test]
    fn a_taken_sector_ends_one_aligned_piece() {
        let allocator = allocator(300 << 20, 64 << 10);
        allocator.fill_room();
        let before = allocator.aligned_free_bytes();
        // The identity of the device and the transient room are in some pieces.
        assert!(before > 280 << 20 && before <= 300 << 20, "{before}");
        let taken: Vec<Sector> = (0..512).filter_map(|_| allocator.take(16, Need::Growth).ok()).collect();
        let less = before - allocator.aligned_free_bytes();
        assert!((32 << 20..=40 << 20).contains(&less), "512 blocks of 64 KiB: {less}");
        taken.iter().for_each(|sector| assert!(allocator.free(*sector, 16)));
        assert_eq!(allocator.aligned_free_bytes(), before);
    }

    /// A damaged pointer to sectors of the room freed them, and the unmount, which freed them again, panicked.
    #[test]
    fn regression_a_wrong_pointer_frees_nothing_of_the_room() {
        let allocator = allocator(64 << 20, 64 << 10);
        allocator.fill_room();
        let before = allocator.space();
        let block = *allocator.room.lock().blocks.first().expect("a room");
        for (sector, count) in [(block, 16), (block + 3, 5), (block - 2, 4)] {
            assert!(!allocator.free(Sector::new(sector), count), "{count} from {sector}");
        }
        assert_eq!(allocator.space(), before);
        allocator.empty_room();
    }

    #[test]
    fn tails_share_words_and_leave_aligned_room() {
        let allocator = allocator(64 << 20, 64 << 10);
        for _ in 0..64 {
            allocator.take(3, Need::Growth).expect("room");
        }
        let blocks = std::iter::from_fn(|| allocator.take(16, Need::Growth).ok()).count();
        let room = allocator.transient / 16;
        assert!(blocks as u64 > 1024 - room - 20, "{blocks} of 1024 blocks left beside 192 sectors of tails");
    }
}
