//! Pages of the data area that nobody needs, lent to copies of sectors. What is copied, and why, is `data/promote.rs`'s affair.
//!
//! [LP1] A lent page is free space: no metadata names it, rebuilt maps do not know it, and it goes back before write-back begins, before a
//!       data log finds no slot, and before a region finds no unit.
//! [LP2] A page whose copy is being stored or loaded is pinned. It is not taken back; where its sector goes meanwhile, the last one to
//!       unpin frees it. So nobody else is given bytes that a reader may still take (RULES R7).
//! [LP3] An unmount takes all pages back before it saves the maps, and lends none after that.
//!
//! Lock order: this table, then a pool of the allocator.

use smallvec::SmallVec;
use tandemfs_format::{LineAddress, Sector};

use super::memory::MemoryAllocator;
use crate::mutant::{Mutant, on};
use crate::near::NearMap;
use crate::sync::atomic::{AtomicU64, Ordering::SeqCst};
use crate::sync::{Condvar, Mutex};

/// More of the data area than write-back wants free must be free for a loan, in percent ([LP1]).
const MARGIN_PERCENT: u64 = 5;
/// Pages taken back at a step when room gets short.
const STEP_PAGES: usize = 16;
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

/// The lent pages of a mount.
pub(crate) struct LentPages {
    write_back_percent: u64,
    copies_max: usize,
    table: Mutex<Table>,
    unpinned: Condvar,
    /// Copies, for who only asks whether there are any.
    count: AtomicU64,
}

impl LentPages {
    /// None lent. The index of copies takes a share of `memory_bytes`; no page is lent while little more than `write_back_percent` is free.
    pub(crate) fn new(memory_bytes: u64, write_back_percent: u8) -> Self {
        Self {
            write_back_percent: write_back_percent.into(),
            copies_max: (memory_bytes / MEMORY_SHARE / COPY_BYTES) as usize,
            table: Mutex::default(),
            unpinned: Condvar::default(),
            count: AtomicU64::new(0),
        }
    }

    /// Copies there are.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(SeqCst)
    }

    /// Free share of the data area below which no page is lent, and pages go back ([LP1]).
    fn floor_percent(&self) -> u64 {
        self.write_back_percent + MARGIN_PERCENT
    }

    /// Pins the copies of sectors that follow each other, if all of them are there ([LP2]).
    pub(crate) fn pin(&self, sector: Sector, count: usize) -> Option<SmallVec<[(u32, LineAddress); 8]>> {
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

    pub(crate) fn unpin(&self, memory: &MemoryAllocator, index: u32, good: bool) {
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
    pub(crate) fn begin(&self, memory: &MemoryAllocator, sector: u64) -> Option<(u32, LineAddress)> {
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
        let address = table.copies[index as usize].address;
        if !memory.free_spare_page(address) {
            // Only metadata that names a page which nobody gave it can have freed one. Such an image gets no copies any more.
            tracing::error!(%address, "a lent page was freed by somebody else: metadata contradicts the allocation maps");
            table.closed = true;
        }
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

    /// Drops the copies of sectors that are freed or filled anew.
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

    /// After a data log took room: copies go before write-back begins ([LP1]).
    pub(crate) fn make_room(&self, memory: &MemoryAllocator) {
        if self.count() == 0 {
            return;
        }
        let free = memory.free_data_percent();
        if free < self.write_back_percent {
            self.give_back(memory, usize::MAX);
        } else if free < self.floor_percent() {
            self.give_back(memory, STEP_PAGES);
        }
    }

    /// Drops all copies; none is made any more ([LP3]).
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
