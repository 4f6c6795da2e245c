//! Sectors of the block zone, in groups of 32,768 (128 MiB). Whole blocks are aligned runs. The last block of a file takes only the sectors
//! that it needs, from partly used words, so that aligned space survives ageing (WineFS §3.4).
//!
//! [SE1] The transient room (RULES R14) is kept as whole blocks that growth never gets: a count of free sectors would not help an overwrite
//!       that needs a contiguous block. Space freed by an overwrite refills the room.
//! [SE2] The end of a file that finds no other place takes a block of the room; the rest of that block stays unused. The file end moves
//!       out again at once, into the hole that its old sectors left (`write_path`), so that the room does not fragment.
//! [SE3] Sectors that are about to be discarded are taken, so nobody else gets them. They count as free for `statfs` alone.

use std::collections::BTreeSet;

use hashbrown::HashMap;
use tandemfs_format::geometry::{Geometry, PIECE_SECTORS};
use tandemfs_format::journal::TX_DATA_MAX;
use tandemfs_format::{SECTOR_BYTES, Sector, UNIT_BYTES};

use super::Need;
use super::bits::{Bits, WORDS};
use super::freed_sectors::FreedSectors;
use crate::error::{Error, Result};
use crate::inject::{Take, fails};
use crate::mutant::{Mutant, on};
use crate::space::Run;
use crate::sync::atomic::{AtomicU64, Ordering::SeqCst};
use crate::sync::{Mutex, current_cpu};
use crate::types::ZoneSpace;

/// Blocks of the transient room (RULES R14): this many writers and write-backs can redirect a block each on a full device.
const TRANSIENT_BLOCKS: u64 = 8;
/// Number of maximum-size writes that the transient room serves at once.
const TRANSIENT_WRITES: u64 = 4;
/// Words that a tail allocation searches before it opens a new one.
const TAIL_WORDS: usize = 64;

/// Where the next allocation of a pool starts its search.
#[derive(Debug, Clone, Copy)]
struct Cursor {
    group: usize,
    word: usize,
}

struct Pool {
    blocks: Cursor,
    tails: Cursor,
}

pub(crate) struct SectorAllocator {
    pub(super) groups: Vec<Mutex<Bits>>,
    pools: Vec<Mutex<Pool>>,
    pub(super) free: AtomicU64,
    total: u64,
    block_sectors: u64,
    transient: u64,
    /// Whole blocks of the transient room ([SE1]); they count as free, also in saved maps.
    room: Mutex<Room>,
    freed: FreedSectors,
    /// Sectors that are being discarded ([SE3]).
    discarding: AtomicU64,
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
        let groups: Vec<Mutex<Bits>> = (0..group_count).map(|_| Mutex::new(Bits::new())).collect();
        let beyond = group_count as u64 * PIECE_SECTORS - total;
        if let Some(last) = groups.last().filter(|_| beyond > 0) {
            last.lock().set(PIECE_SECTORS - beyond, beyond);
        }
        groups[0].lock().set(0, 1);
        let pools = (0..pools)
            .map(|pool| {
                let start = Cursor { group: pool * group_count / pools, word: if group_count < pools { pool * WORDS / pools } else { 0 } };
                Mutex::new(Pool { blocks: start, tails: start })
            })
            .collect();
        let block_sectors = geometry.block_sectors_each();
        let largest_write = TX_DATA_MAX / (block_sectors * SECTOR_BYTES as u64);
        let room = (total / 8 / block_sectors).clamp(1, TRANSIENT_BLOCKS.max(TRANSIENT_WRITES * largest_write)) * block_sectors;
        let transient = if total > 0 { room } else { 0 };
        Self {
            groups,
            pools,
            free: AtomicU64::new(total.saturating_sub(1)),
            total,
            block_sectors,
            transient,
            room: Mutex::default(),
            freed: FreedSectors::new(group_count),
            discarding: AtomicU64::new(0),
        }
    }

    /// A group's map as saved for a zone of `total` sectors, which is at least the current size: sectors beyond the old end are free, those
    /// beyond the new end taken.
    pub(crate) fn group_of(&self, group: u64, total: u64) -> Vec<u8> {
        let within = |sectors: u64| sectors.saturating_sub(group * PIECE_SECTORS).min(PIECE_SECTORS);
        let old = self.groups.get(group as usize).map(|bits| bits.lock().to_bytes());
        let unused = if old.is_some() { within(self.total)..within(total) } else { 0..0 };
        let mut bytes = old.unwrap_or_else(|| vec![0; PIECE_SECTORS as usize / 8]);
        let mut set = |sectors: std::ops::Range<u64>, taken: bool| {
            for sector in sectors {
                let (byte, bit) = ((sector / 8) as usize, 1 << (sector % 8));
                bytes[byte] = if taken { bytes[byte] | bit } else { bytes[byte] & !bit };
            }
        };
        set(unused, false);
        set(within(total)..PIECE_SECTORS, true);
        bytes
    }

    /// Loads a saved group.
    pub(crate) fn load_group(&self, group: usize, bytes: &[u8]) {
        let mut bits = self.groups[group].lock();
        let before = u64::from(bits.free());
        *bits = Bits::from_bytes(bytes);
        self.free.fetch_add(u64::from(bits.free()), SeqCst);
        self.free.fetch_sub(before, SeqCst);
    }

    /// Marks sectors that recovery found in use. False if any were already taken.
    pub(crate) fn mark(&self, sector: Sector, count: u64) -> bool {
        let mut were_free = true;
        self.each_group(sector, count, |bits, start, here| were_free &= bits.set(start, here));
        were_free
    }

    /// Takes `count` contiguous sectors (at most a block).
    pub(crate) fn take(&self, count: u64, need: Need) -> Result<Sector> {
        let full = Error::NoSpace { zone: "block" };
        let need = if on(Mutant::TransientRoomGiven) { Need::Transient } else { need };
        if fails(Take::Sectors) || (need == Need::Growth && self.free.load(SeqCst) < count + self.transient) {
            return Err(full);
        }
        let mut pool = self.pools[current_cpu() % self.pools.len()].lock();
        let whole = count == self.block_sectors;
        let found = if whole { self.find_block(&mut pool.blocks, count) } else { self.find_tail(&mut pool.tails, count) };
        drop(pool);
        match need {
            Need::Growth | Need::Move => found.ok_or(full),
            Need::Transient => found.or_else(|| self.take_from_room(count)).ok_or(full),
        }
    }

    /// Takes sectors for a block that leaves the transient room: may use all sectors outside the room, even those that growth must leave.
    pub(crate) fn take_outside_room(&self, count: u64) -> Option<Sector> {
        if fails(Take::Sectors) {
            return None;
        }
        let mut pool = self.pools[current_cpu() % self.pools.len()].lock();
        self.find_tail(&mut pool.tails, count)
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
        let mut room = self.room.lock();
        let mut cursor = Cursor { group: self.groups.len() - 1, word: 0 };
        while (room.blocks.len() as u64) * self.block_sectors < self.transient {
            let Some(sector) = self.find_block(&mut cursor, self.block_sectors) else { break };
            self.free.fetch_add(self.block_sectors, SeqCst);
            room.blocks.insert(sector.number());
        }
    }

    /// Returns the room's blocks to the maps, before they are saved.
    pub(crate) fn empty_room(&self) {
        let room = std::mem::take(&mut *self.room.lock());
        let unused = room.blocks.into_iter().map(|block| (block, 0)).chain(room.partly_used);
        for (block, used) in unused {
            self.groups[(block / PIECE_SECTORS) as usize].lock().clear(block % PIECE_SECTORS + used, self.block_sectors - used);
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
        let start = self.block_start(sector);
        let mut bits = self.groups[(start / PIECE_SECTORS) as usize].lock();
        if start + self.block_sectors <= self.total && bits.is_free(start % PIECE_SECTORS, self.block_sectors) {
            bits.set(start % PIECE_SECTORS, self.block_sectors);
            room.blocks.insert(start);
        }
    }

    fn find_block(&self, cursor: &mut Cursor, count: u64) -> Option<Sector> {
        self.find(cursor, count, true)
    }

    fn find_tail(&self, cursor: &mut Cursor, count: u64) -> Option<Sector> {
        if count < 64 {
            let mut bits = self.groups[cursor.group].lock();
            let to = (cursor.word + TAIL_WORDS).min(WORDS);
            for word in cursor.word..to {
                let value = bits.word(word);
                if value != 0
                    && value != u64::MAX
                    && let Some(found) = bits.take_in_word(word, count as u32, false)
                {
                    cursor.word = word;
                    self.free.fetch_sub(count, SeqCst);
                    return Some(Sector::new(cursor.group as u64 * PIECE_SECTORS + found.index()));
                }
            }
        }
        self.find(cursor, count, false)
    }

    /// Next-fit over all groups, from the cursor around and back to it.
    fn find(&self, cursor: &mut Cursor, count: u64, aligned: bool) -> Option<Sector> {
        for step in 0..=self.groups.len() {
            let group = (cursor.group + step) % self.groups.len();
            let (from, to) = match step {
                0 => (cursor.word, WORDS),
                last if last == self.groups.len() => (0, WORDS.min(cursor.word + 4)),
                _ => (0, WORDS),
            };
            let mut bits = self.groups[group].lock();
            if let Some(found) = bits.take(from, to, count as u32, aligned) {
                *cursor = Cursor { group, word: found.word };
                self.free.fetch_sub(count, SeqCst);
                return Some(Sector::new(group as u64 * PIECE_SECTORS + found.index()));
            }
        }
        None
    }

    /// Frees sectors. False, with no change, if they were not taken (`memory.rs` [ME4]).
    #[must_use]
    pub(crate) fn free(&self, sector: Sector, count: u64) -> bool {
        if let Some(returned) = self.return_to_room(sector, count) {
            return returned;
        }
        let mut taken = true;
        self.each_group(sector, count, |bits, start, here| taken &= bits.is_taken(start, here));
        if taken {
            self.each_group(sector, count, Bits::clear);
            self.freed.note(sector, count);
            self.refill_room(sector);
        }
        taken
    }

    // ---- discarding ([SE3]) --------------------------------------------------------------------------------------------------------

    /// Number of groups of sectors.
    pub(crate) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Takes sectors of a group that were freed during this mount and are free, until `most` are taken or at most 63 more. [`SectorAllocator::discarded`]
    /// gives them back.
    pub(crate) fn take_freed(&self, group: usize, most: u64) -> Vec<Run> {
        let mut notes = self.freed.group(group).lock();
        let Some(words) = notes.as_mut() else { return Vec::new() };
        let mut runs = Runs::default();
        let mut is_all = true;
        let mut bits = self.groups[group].lock();
        for (word, noted) in words.iter_mut().enumerate().filter(|(_, noted)| **noted != 0) {
            if runs.total >= most {
                is_all = false;
                break;
            }
            let mut free = if on(Mutant::DiscardedWhileTaken) { *noted } else { *noted & !bits.word(word) };
            *noted = 0;
            while free != 0 {
                let start = free.trailing_zeros();
                let count = (free >> start).trailing_ones();
                free &= !((u64::MAX >> (64 - count)) << start);
                let at = word as u64 * 64 + u64::from(start);
                bits.set(at, count.into());
                runs.add(group, at, count.into());
            }
        }
        if is_all {
            *notes = None;
        }
        self.being_discarded(runs)
    }

    /// Takes free runs of at least `least` sectors from a group, from sector `from` of the group on, until `most` sectors are taken. Also
    /// returns where to go on; `None` at the end of the group. A run that `most` cuts is taken in parts.
    pub(crate) fn take_free(&self, group: usize, from: u64, least: u64, most: u64) -> (Vec<Run>, Option<u64>) {
        let mut runs = Runs::default();
        let mut bits = self.groups[group].lock();
        let mut at = from;
        while let Some((start, count)) = bits.next_free_run(at) {
            at = start + count;
            let is_rest = from > 0 && start == from;
            if count < least && !is_rest {
                continue;
            }
            let here = count.min(most - runs.total);
            bits.set(start, here);
            runs.add(group, start, here);
            if runs.total == most {
                return (self.being_discarded(runs), Some(start + here));
            }
        }
        (self.being_discarded(runs), None)
    }

    fn being_discarded(&self, runs: Runs) -> Vec<Run> {
        self.free.fetch_sub(runs.total, SeqCst);
        self.discarding.fetch_add(runs.total, SeqCst);
        runs.list
    }

    /// Gives back sectors that were taken to be discarded.
    pub(crate) fn discarded(&self, (sector, count): Run) {
        self.each_group(sector, count, Bits::clear);
        self.discarding.fetch_sub(count, SeqCst);
        self.refill_room(sector);
    }

    /// The same, if they were not discarded: they are noted again.
    pub(crate) fn not_discarded(&self, run: Run) {
        self.discarded(run);
        self.freed.note(run.0, run.1);
    }

    fn each_group(&self, sector: Sector, count: u64, mut change: impl FnMut(&mut Bits, u64, u64)) {
        let mut at = sector.number();
        let end = at + count;
        while at < end {
            let start = at % PIECE_SECTORS;
            let here = (PIECE_SECTORS - start).min(end - at);
            let mut bits = self.groups[(at / PIECE_SECTORS) as usize].lock();
            let before = u64::from(bits.free());
            change(&mut bits, start, here);
            let after = u64::from(bits.free());
            if after >= before {
                self.free.fetch_add(after - before, SeqCst);
            } else {
                self.free.fetch_sub(before - after, SeqCst);
            }
            at += here;
        }
    }

    /// Number of whole blocks that growth can still take, one after the other.
    pub(crate) fn whole_blocks(&self) -> u64 {
        let each = self.block_sectors;
        let in_group = |bits: &Mutex<Bits>| {
            let bits = bits.lock();
            if u64::from(bits.free()) == PIECE_SECTORS { PIECE_SECTORS / each } else { bits.count_runs(WORDS, each as u32) }
        };
        let runs: u64 = self.groups.iter().map(in_group).sum();
        runs.min(self.free.load(SeqCst).saturating_sub(self.transient) / each)
    }

    /// Free bytes in pieces of the size of a unit (2 MiB) at multiples of it.
    pub(crate) fn aligned_free_bytes(&self) -> u64 {
        let each = UNIT_BYTES / SECTOR_BYTES as u64;
        let in_group = |group: &Mutex<Bits>| {
            let bits = group.lock();
            (0..PIECE_SECTORS / each).filter(|piece| bits.is_free(piece * each, each)).count() as u64
        };
        self.groups.iter().map(in_group).sum::<u64>() * UNIT_BYTES
    }

    pub(crate) fn space(&self) -> ZoneSpace {
        let free = self.free.load(SeqCst) + self.discarding.load(SeqCst);
        ZoneSpace {
            promoted_bytes: 0,
            total_bytes: self.total.saturating_sub(1) * SECTOR_BYTES as u64,
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
