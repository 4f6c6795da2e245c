//! Spare pages: unused pages of the data area that hold promoted copies of sectors. `data/promote.rs` decides what is copied, and why.
//!
//! [SP1] A spare page is free space: no metadata names it, and rebuilt maps do not contain it. It is returned before write-back begins,
//!       before a data log finds no slot, and before a region finds no unit.
//! [SP2] A page whose copy is being stored or loaded is pinned and not taken back. If its sector is freed meanwhile, the last unpin frees
//!       the page. So no page is reused while a reader may still read it (RULES R7).
//! [SP3] An unmount gives all spare pages back before it saves the maps, and takes none after that.
//!
//! Lock order: this table, then a pool of the allocator.

use std::sync::atomic::{AtomicU64 as Limit64, AtomicUsize as Limit, Ordering::Relaxed}; // limits change seldom, and order nothing

use smallvec::SmallVec;
use tandemfs_format::{LineAddress, Sector};

use crate::mutant::{Mutant, on};
use crate::near::NearMap;
use crate::sync::atomic::{AtomicU64, Ordering::SeqCst};
use crate::sync::{Condvar, Mutex};

/// A page is taken only if this much more of the data area is free than write-back wants, in percent ([SP1]).
const MARGIN_PERCENT: u64 = 5;
/// Pages taken back per step when space gets short.
const STEP_PAGES: usize = 16;
/// The index of copies may take this fraction (1/N) of the memory option.
const MEMORY_SHARE: u64 = 64;
/// Host memory of a copy: its entry, and its place in the map at the lowest load factor.
const COPY_BYTES: u64 = 64;

/// Where the pages come from: the data area.
pub(crate) trait PageSource {
    /// Share of the data area that is free and not used for copies, in percent.
    fn spare_percent(&self) -> u64;

    /// Share of the data area that is free, in percent.
    fn free_percent(&self) -> u64;

    /// Takes a page for a copy. It is not a data log: it counts as free.
    fn take_spare_page(&self) -> Option<LineAddress>;

    /// Frees the page of a dropped copy. False, with no change, if another user freed the page meanwhile ([ME4] of `memory.rs`).
    #[must_use]
    fn free_spare_page(&self, address: LineAddress) -> bool;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Empty,
    /// The reader that makes the copy is storing it.
    Filling,
    Ready,
    /// Its sector is freed; the last unpin frees the copy.
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

/// The spare pages of a mount that hold copies.
pub(crate) struct SparePages {
    write_back_percent: Limit64,
    copies_max: Limit,
    table: Mutex<Table>,
    unpinned: Condvar,
    /// Number of copies, readable without the lock.
    count: AtomicU64,
}

impl SparePages {
    /// Starts empty. The index of copies takes a share of `memory_bytes`; no page is taken if hardly more than `write_back_percent` is free.
    pub(crate) fn new(memory_bytes: u64, write_back_percent: u8) -> Self {
        Self {
            write_back_percent: Limit64::new(write_back_percent.into()),
            copies_max: Limit::new(Self::copies_of(memory_bytes)),
            table: Mutex::default(),
            unpinned: Condvar::default(),
            count: AtomicU64::new(0),
        }
    }

    fn copies_of(memory_bytes: u64) -> usize {
        (memory_bytes / MEMORY_SHARE / COPY_BYTES) as usize
    }

    /// Another memory option, or another limit of write-back. Gives back the pages of copies that are too many now.
    pub(crate) fn resize(&self, memory: &impl PageSource, memory_bytes: u64, write_back_percent: u8) {
        let copies_max = Self::copies_of(memory_bytes);
        self.copies_max.store(copies_max, Relaxed);
        self.write_back_percent.store(write_back_percent.into(), Relaxed);
        let more = self.count().saturating_sub(copies_max as u64);
        if more > 0 {
            self.give_back(memory, more as usize);
        }
        self.make_room(memory);
    }

    /// Most copies that the index has room for.
    pub(crate) fn copies_max(&self) -> usize {
        self.copies_max.load(Relaxed)
    }

    /// Number of copies.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(SeqCst)
    }

    /// Free share of the data area below which no page is taken and pages are given back ([SP1]).
    fn floor_percent(&self) -> u64 {
        self.write_back_percent.load(Relaxed) + MARGIN_PERCENT
    }

    /// Pins the copies of consecutive sectors, if all exist ([SP2]).
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

    pub(crate) fn unpin(&self, memory: &impl PageSource, index: u32, good: bool) {
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

    /// Returns a pinned slot for a copy: from spare space, or the slot of a copy not read since the clock hand last passed it.
    pub(crate) fn begin(&self, memory: &impl PageSource, sector: u64) -> Option<(u32, LineAddress)> {
        let mut table = self.table.lock();
        if table.closed || table.by_sector.contains_key(&sector) {
            return None;
        }
        let spare = memory.spare_percent() >= self.floor_percent() && table.by_sector.len() < self.copies_max();
        let address = match spare.then(|| memory.take_spare_page()).flatten() {
            Some(address) => address,
            None => {
                if memory.free_percent() < self.floor_percent() {
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

    /// The next copy to evict: CLOCK.
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

    /// Empties the entry; the caller gets its slot.
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

    fn free(&self, memory: &impl PageSource, table: &mut Table, index: u32) {
        let address = table.copies[index as usize].address;
        if !memory.free_spare_page(address) {
            // This happens only if metadata names a page that was never allocated to it. Such an image gets no more copies.
            tracing::error!(%address, "a spare page was freed by somebody else: metadata contradicts the allocation maps");
            table.closed = true;
        }
        if !on(Mutant::PromotedSlotTwice) {
            self.forget_copy(table, index);
        }
    }

    /// Removes the copy from the index; its slot is freed now, or at the last unpin.
    fn drop_copy(&self, memory: &impl PageSource, table: &mut Table, index: u32) {
        let Copy { sector, pins, state, .. } = table.copies[index as usize];
        if pins == 0 {
            return self.free(memory, table, index);
        }
        if state != State::Dead {
            table.by_sector.remove(&sector);
            table.copies[index as usize].state = State::Dead;
        }
    }

    /// Drops the copies of sectors that are freed or rewritten.
    pub(crate) fn forget(&self, memory: &impl PageSource, sector: Sector, count: u64) {
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

    /// Returns up to `slots` slots to the data area; returns how many.
    pub(crate) fn give_back(&self, memory: &impl PageSource, slots: usize) -> usize {
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

    /// After a data log took space: drops copies before write-back begins ([SP1]).
    pub(crate) fn make_room(&self, memory: &impl PageSource) {
        if self.count() == 0 {
            return;
        }
        let free = memory.free_percent();
        if free < self.write_back_percent.load(Relaxed) {
            self.give_back(memory, usize::MAX);
        } else if free < self.floor_percent() {
            self.give_back(memory, STEP_PAGES);
        }
    }

    /// Drops all copies and makes no more ([SP3]).
    pub(crate) fn close(&self, memory: &impl PageSource) {
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
