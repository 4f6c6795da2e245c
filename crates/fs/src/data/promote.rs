//! Promotion: copies of sectors that are read often, in 4 KiB slots of the memory zone that nothing else needs.
//!
//! [PR1] A promoted sector is a copy and nothing more. No metadata names its slot: it needs no transaction, no flush and no fence, a crash
//!       forgets it (rebuilt maps do not know the slot), and evicting it is forgetting it.
//! [PR2] Copies are known by the *sector*, not by file and offset. A sector that a record names as written never changes until it is freed
//!       or, unwritten in between, filled in place (RULES R16's *never in place*). So there are two places where copies are dropped:
//!       `Volume::give_back`, through which every freed sector goes, and `Block::replace`, through which every filled one goes. Both run
//!       under the exclusive lock of the block's range, copies are made and read under the shared one: none can come back in between.
//! [PR3] A slot whose copy is being stored or loaded is pinned. It is not evicted; where its sector goes meanwhile, the last one to unpin
//!       frees it. So nobody else is given bytes that a reader may still take (RULES R7).
//! [PR4] Only spare space: a slot is taken while more of the data area is free than write-back wants, and a margin. Copies count as free
//!       space; they go before write-back begins, before a data log finds no slot, and before a region finds no unit.
//! [PR5] An unmount drops all copies before it saves the maps, and none is made after that.
//! [PR6] A copy is verified by the sector's own checksum at each read. One that does not fit, or cannot be loaded, is forgotten and the
//!       sector is read.
//!
//! Lock order: this table, then a pool of the allocator.

use smallvec::SmallVec;
use tandemfs_device::Structure;
use tandemfs_format::{LineAddress, SECTOR_BYTES, Sector};

use super::compose::verify_sectors;
use crate::alloc::memory::MemoryAllocator;
use crate::index::block::Block;
use crate::mutant::{Mutant, on};
use crate::near::NearMap;
use crate::statistics::count as tally;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use crate::sync::{Condvar, EXPLORED, Mutex};
use crate::types::Promote;
use crate::volume::{Owner, Volume};

/// Sectors of one block in a read that still counts as small; larger ones gain nothing by the byte path.
const SMALL_SECTORS_MAX: usize = 8;
/// More of the data area than write-back wants free must be free for a copy, in percent ([PR4]).
const MARGIN_PERCENT: u64 = 5;
/// Slots given back at a step when room gets short.
const STEP_SLOTS: usize = 16;
/// Places of the table of sectors that were read lately.
const SEEN_PLACES: usize = if EXPLORED { 64 } else { 1 << 15 };
/// Share of the memory option that the index of copies may take: one in so many.
const MEMORY_SHARE: u64 = 64;
/// Host memory of a copy: its entry, and its place in the map at the worst fill.
const COPY_BYTES: u64 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Empty,
    /// The reader that makes it stores it.
    Filling,
    Ready,
    /// Its sector is gone; it is freed by the last to unpin it.
    Dead,
}

#[derive(Debug, Clone, Copy)]
struct Copy {
    sector: u64,
    address: LineAddress,
    pins: u32,
    state: State,
    referenced: bool,
}

#[derive(Default)]
struct Table {
    by_sector: NearMap<u32>,
    copies: Vec<Copy>,
    empty: Vec<u32>,
    hand: usize,
    closed: bool,
}

/// The copies of a mount.
pub(crate) struct Promoted {
    mode: Promote,
    write_back_percent: u64,
    copies_max: usize,
    table: Mutex<Table>,
    unpinned: Condvar,
    /// Copies, for who only asks whether there are any.
    count: AtomicU64,
    /// Tags of sectors that were read lately, by hash: a second read that finds its tag is of a hot sector.
    seen: Vec<AtomicU64>,
    reads: AtomicU64,
}

impl Promoted {
    pub(crate) fn new(mode: Promote, memory_bytes: u64, write_back_percent: u8) -> Self {
        let places = if mode == Promote::Hot { SEEN_PLACES } else { 0 };
        Self {
            mode,
            write_back_percent: write_back_percent.into(),
            copies_max: (memory_bytes / MEMORY_SHARE / COPY_BYTES) as usize,
            table: Mutex::default(),
            unpinned: Condvar::default(),
            count: AtomicU64::new(0),
            seen: (0..places).map(|_| AtomicU64::new(0)).collect(),
            reads: AtomicU64::new(0),
        }
    }

    /// Copies there are.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(SeqCst)
    }

    /// Free share of the data area below which copies are not made, and go ([PR4]).
    fn floor_percent(&self) -> u64 {
        self.write_back_percent + MARGIN_PERCENT
    }

    /// Whether a sector that was read is worth a copy.
    fn admits(&self, sector: u64, sectors: usize) -> bool {
        match self.mode {
            Promote::Off => false,
            Promote::EveryRead => true,
            Promote::Hot if sectors > SMALL_SECTORS_MAX => false,
            Promote::Hot => {
                // Tags grow old: those of an earlier era of so many reads are no tags of this one.
                let era = self.reads.fetch_add(1, Relaxed) / (4 * self.seen.len() as u64);
                let tag = (sector + 1) << 16 | (era & 0xffff);
                let place = (sector.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % self.seen.len();
                self.seen[place].swap(tag, Relaxed) == tag
            }
        }
    }

    /// Pins the copies of sectors that follow each other, if all of them are there ([PR3]).
    fn pin(&self, sector: Sector, count: usize) -> Option<SmallVec<[(u32, LineAddress); 8]>> {
        if self.count() == 0 {
            return None;
        }
        let mut table = self.table.lock();
        let mut found = SmallVec::new();
        for number in (sector.number()..).take(count) {
            let index = *table.by_sector.get(&number)?;
            let copy = table.copies[index as usize];
            if copy.state != State::Ready {
                return None;
            }
            found.push((index, copy.address));
        }
        for (index, _) in &found {
            let copy = &mut table.copies[*index as usize];
            copy.pins += 1;
            copy.referenced = true;
        }
        Some(found)
    }

    fn unpin(&self, memory: &MemoryAllocator, index: u32, good: bool) {
        let mut table = self.table.lock();
        let copy = &mut table.copies[index as usize];
        copy.pins -= 1;
        match copy.state {
            _ if !good => self.drop_copy(memory, &mut table, index),
            State::Filling => copy.state = State::Ready,
            State::Dead if copy.pins == 0 => self.free(memory, &mut table, index),
            _ => {}
        }
        if table.closed {
            self.unpinned.notify_all();
        }
    }

    /// A slot for a copy, pinned: spare room, or that of a copy that was not read since the hand passed it last.
    fn begin(&self, memory: &MemoryAllocator, sector: u64) -> Option<(u32, LineAddress)> {
        let mut table = self.table.lock();
        if table.closed || table.by_sector.contains_key(&sector) {
            return None;
        }
        let spare = memory.spare_percent() >= self.floor_percent() && table.by_sector.len() < self.copies_max;
        let address = match spare.then(|| memory.take_spare_page()).flatten() {
            Some(address) => address,
            None => {
                if memory.free_data_percent() < self.floor_percent() {
                    return None;
                }
                let index = self.victim(&mut table)?;
                let address = table.copies[index as usize].address;
                self.forget_copy(&mut table, index);
                address
            }
        };
        let copy = Copy { sector, address, pins: 1, state: State::Filling, referenced: false };
        let index = match table.empty.pop() {
            Some(index) => {
                table.copies[index as usize] = copy;
                index
            }
            None => {
                table.copies.push(copy);
                (table.copies.len() - 1) as u32
            }
        };
        table.by_sector.insert(sector, index);
        self.count.fetch_add(1, SeqCst);
        Some((index, address))
    }

    /// The copy that goes next: CLOCK.
    fn victim(&self, table: &mut Table) -> Option<u32> {
        for _ in 0..2 * table.copies.len() {
            table.hand = (table.hand + 1) % table.copies.len();
            let copy = &mut table.copies[table.hand];
            if copy.state != State::Ready || copy.pins > 0 {
                continue;
            }
            if !std::mem::take(&mut copy.referenced) {
                return Some(table.hand as u32);
            }
        }
        None
    }

    /// The entry is empty; its slot is the caller's.
    fn forget_copy(&self, table: &mut Table, index: u32) {
        let copy = &mut table.copies[index as usize];
        let dead = copy.state == State::Dead;
        copy.state = State::Empty;
        let sector = copy.sector;
        if !dead {
            table.by_sector.remove(&sector);
        }
        table.empty.push(index);
        self.count.fetch_sub(1, SeqCst);
    }

    fn free(&self, memory: &MemoryAllocator, table: &mut Table, index: u32) {
        memory.free_spare_page(table.copies[index as usize].address);
        if !on(Mutant::PromotedSlotTwice) {
            self.forget_copy(table, index);
        }
    }

    /// Nobody finds the copy any more; its slot is free now or when it is unpinned.
    fn drop_copy(&self, memory: &MemoryAllocator, table: &mut Table, index: u32) {
        let Copy { sector, pins, state, .. } = table.copies[index as usize];
        if pins == 0 {
            return self.free(memory, table, index);
        }
        if state != State::Dead {
            table.by_sector.remove(&sector);
            table.copies[index as usize].state = State::Dead;
        }
    }

    /// Drops the copies of sectors that are freed or filled anew ([PR2]).
    pub(crate) fn forget(&self, memory: &MemoryAllocator, sector: Sector, count: u64) {
        if self.count() == 0 || on(Mutant::PromotedKept) {
            return;
        }
        let mut table = self.table.lock();
        for number in (sector.number()..).take(count as usize) {
            if let Some(index) = table.by_sector.get(&number).copied() {
                self.drop_copy(memory, &mut table, index);
            }
        }
    }

    /// Gives up to `slots` slots back to the data area; returns how many.
    pub(crate) fn give_back(&self, memory: &MemoryAllocator, slots: usize) -> usize {
        if self.count() == 0 {
            return 0;
        }
        let mut table = self.table.lock();
        let mut freed = 0;
        while freed < slots
            && let Some(index) = self.victim(&mut table)
        {
            self.free(memory, &mut table, index);
            freed += 1;
        }
        freed
    }

    /// After a data log took room: copies go before write-back begins ([PR4]).
    pub(crate) fn make_room(&self, memory: &MemoryAllocator) {
        if self.count() == 0 {
            return;
        }
        let free = memory.free_data_percent();
        if free < self.write_back_percent {
            self.give_back(memory, usize::MAX);
        } else if free < self.floor_percent() {
            self.give_back(memory, STEP_SLOTS);
        }
    }

    /// Drops all copies; none is made any more ([PR5]).
    pub(crate) fn close(&self, memory: &MemoryAllocator) {
        let mut table = self.table.lock();
        table.closed = true;
        if on(Mutant::PromotedSlotsSaved) {
            return;
        }
        loop {
            let left: Vec<u32> = table.by_sector.values().copied().collect();
            left.into_iter().for_each(|index| self.drop_copy(memory, &mut table, index));
            if self.count() == 0 {
                return;
            }
            self.unpinned.wait(&mut table);
        }
    }
}

impl Volume {
    /// The bytes of sectors of a block, `first` and further in it, where all of them are promoted and small enough; verified ([PR6]).
    pub(crate) fn load_promoted(&self, owner: Owner, at: u64, block: &Block, sector: Sector, first: u64, count: usize) -> Option<Vec<u8>> {
        let promoted = &self.memory.promoted;
        let pins = promoted.pin(sector, count)?;
        let mut bytes = vec![0; count * SECTOR_BYTES];
        let mut all = true;
        for (((index, address), into), number) in pins.into_iter().zip(bytes.chunks_exact_mut(SECTOR_BYTES)).zip(first..) {
            let good =
                self.drive.load(Structure::Data, address, into).is_ok() && verify_sectors(self, owner, at, block, number, into).is_ok();
            promoted.unpin(&self.memory, index, good);
            all &= good;
        }
        if all {
            tally(&self.live.work.promoted_reads);
        }
        all.then_some(bytes)
    }

    /// Copies sectors that were read and verified, and are worth it. The caller has their block's range locked ([PR2]).
    pub(crate) fn promote(&self, sector: Sector, bytes: &[u8]) {
        let promoted = &self.memory.promoted;
        if promoted.mode == Promote::Off || self.health.check_writable().is_err() {
            return;
        }
        let sectors = bytes.len() / SECTOR_BYTES;
        for (number, bytes) in (sector.number()..).zip(bytes.chunks_exact(SECTOR_BYTES)) {
            if !promoted.admits(number, sectors) {
                continue;
            }
            let Some((index, address)) = promoted.begin(&self.memory, number) else { continue };
            // Not flushed: nothing depends on it ([PR1]).
            let stored = self.drive.store(Structure::Data, address, bytes).map(drop);
            promoted.unpin(&self.memory, index, stored.is_ok());
            if stored.is_ok() {
                tally(&self.live.work.promotions);
            }
        }
    }
}
