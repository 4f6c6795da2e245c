//! The flash blocks: which are free or open for writing, their valid pages and their wear. All of it is derived from the tables when the
//! drive is opened. The record of a block is stored before the step that it describes.
//!
//! States of a block: `Free -(take)-> Open -(full)-> Closed -(job)-> Emptied -(erased)-> Free`, or `Bad` if it is worn out. A failed
//! program leads from `Open` to `Retiring`, and from there through `Emptied` to `Bad`.

use std::collections::{BTreeSet, VecDeque};

use tandemfs_device::DeviceError;

use super::geometry::{FlashGeometry, SPARE_BLOCKS_MIN, VictimPolicy};
use super::layout::{BlockRecord, BlockState, Tables};
use crate::lists::Lists;
use crate::medium::{Medium, PhysicalPage};
use crate::mutant::{self, Mutant};

/// Free blocks that only garbage collection may open: what it needs to empty any one block.
pub(super) const RESERVE_BLOCKS: u32 = 2;

/// The stream that writes to an open block. Moved pages are colder than pages that the host just wrote, so they use other blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Host,
    Moved,
}

/// Free blocks that a stream must leave to the other stream.
fn reserve_for(stream: Stream) -> u32 {
    match stream {
        Stream::Host => RESERVE_BLOCKS,
        Stream::Moved => 0,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Usage {
    Free,
    Open,
    Closed,
    Emptied,
    Retiring,
    Bad,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) record: BlockRecord,
    pub(super) valid: u32,
    pub(super) usage: Usage,
    /// Time of the last invalidation of a page in it, or of its closing, counted in placed pages.
    modified: u64,
}

#[derive(Debug)]
struct OpenBlocks {
    slots: Vec<Option<u32>>,
    next: usize,
}

#[derive(Debug)]
pub(super) struct Pool {
    geometry: FlashGeometry,
    blocks: Vec<Block>,
    /// Free blocks of each unit by wear.
    free: Vec<BTreeSet<(u32, u32)>>,
    free_count: u32,
    /// Blocks of each unit that were never written and have no space on the host's disk ([HF1] of `host_space.rs`); they are not free yet.
    without_space: Vec<BTreeSet<u32>>,
    without_space_count: u32,
    host: OpenBlocks,
    moved: OpenBlocks,
    /// Closed blocks by number of valid pages; each list starts with the least recently modified one.
    closed: Lists,
    /// No list below this has a block.
    fewest_valid: u32,
    closed_by_wear: BTreeSet<(u32, u32)>,
    pub(super) retiring: VecDeque<u32>,
    /// Blocks that are neither bad nor retiring, and the sum of their erasures.
    usable: u32,
    usable_erasures: u64,
    now: u64,
}

impl Pool {
    /// The pool of blocks with these records and so many valid pages. Blocks that were being written are written on.
    pub(super) fn new(geometry: FlashGeometry, found: Vec<(BlockRecord, u32)>) -> Self {
        let block_count = found.len() as u32;
        let units = geometry.units() as usize;
        let mut pool = Self {
            geometry,
            blocks: Vec::with_capacity(found.len()),
            free: vec![BTreeSet::new(); units],
            free_count: 0,
            without_space: vec![BTreeSet::new(); units],
            without_space_count: 0,
            host: OpenBlocks { slots: vec![], next: 0 },
            moved: OpenBlocks { slots: vec![], next: 0 },
            closed: Lists::new(geometry.pages_per_block + 1, block_count),
            fewest_valid: 0,
            closed_by_wear: BTreeSet::new(),
            retiring: VecDeque::new(),
            usable: 0,
            usable_erasures: 0,
            now: 0,
        };
        for (record, valid) in found {
            pool.blocks.push(Block { record, valid, usage: Usage::Bad, modified: 0 });
        }
        let mut partial = vec![];
        for block in 0..block_count {
            let record = pool.blocks[block as usize].record;
            if record.state == BlockState::Retiring {
                pool.blocks[block as usize].usage = Usage::Retiring;
                pool.retiring.push_back(block);
            }
            if record.state != BlockState::Good {
                continue;
            }
            pool.usable += 1;
            pool.usable_erasures += u64::from(record.erasures);
            match u32::from(record.begun) {
                0 if record.erasures == 0 => {
                    pool.blocks[block as usize].usage = Usage::Free;
                    pool.without_space[geometry.unit_of(block) as usize].insert(block);
                    pool.without_space_count += 1;
                }
                0 => pool.free_block(block),
                begun if begun < geometry.pages_per_block => partial.push(block),
                _ => pool.close(block),
            }
        }
        let (host_width, moved_width) = pool.widths();
        let mut has_host = vec![false; units];
        for block in partial {
            let unit = geometry.unit_of(block) as usize;
            let open = if pool.host.slots.len() < host_width && !has_host[unit] {
                has_host[unit] = true;
                &mut pool.host
            } else if pool.moved.slots.len() < moved_width {
                &mut pool.moved
            } else {
                pool.close(block);
                continue;
            };
            open.slots.push(Some(block));
            pool.blocks[block as usize].usage = Usage::Open;
        }
        pool.host.slots.resize(host_width, None);
        pool.moved.slots.resize(moved_width, None);
        pool
    }

    /// Blocks beyond those that the logical pages fill.
    pub(super) fn spare_blocks(&self) -> u64 {
        u64::from(self.usable).saturating_sub(self.geometry.logical_blocks())
    }

    /// How many blocks each stream writes side by side. With the reserve they leave a block of dead pages to be gained ([`SPARE_BLOCKS_MIN`]).
    fn widths(&self) -> (usize, usize) {
        let spare = self.spare_blocks().max(SPARE_BLOCKS_MIN);
        let width = |share: u64| (spare / share).clamp(1, self.geometry.units()) as usize;
        (width(4), width(8))
    }

    /// Free blocks at and below which garbage collection works in the background.
    pub(super) fn background_mark(&self) -> u32 {
        RESERVE_BLOCKS + self.host.slots.len() as u32
    }

    pub(super) fn block(&self, block: u32) -> &Block {
        &self.blocks[block as usize]
    }

    pub(super) fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    pub(super) fn free_count(&self) -> u32 {
        self.free_count
    }

    /// Usable blocks that have space on the host's disk.
    pub(super) fn blocks_with_space(&self) -> u64 {
        u64::from(self.usable.saturating_sub(self.without_space_count))
    }

    /// A block that has none yet, of the unit with the fewest free blocks.
    pub(super) fn next_without_space(&self) -> Option<u32> {
        let units = (0..self.free.len()).filter(|&unit| !self.without_space[unit].is_empty());
        let unit = units.min_by_key(|&unit| (self.free[unit].len(), std::cmp::Reverse(self.without_space[unit].len())))?;
        self.without_space[unit].first().copied()
    }

    /// A block that has none yet, of a unit without free blocks.
    pub(super) fn next_of_unit_without_free(&self) -> Option<u32> {
        let first = |unit: usize| if self.free[unit].is_empty() { self.without_space[unit].first().copied() } else { None };
        if self.without_space_count > 0 { (0..self.free.len()).find_map(first) } else { None }
    }

    /// A block got its space: it is free now.
    pub(super) fn give_space(&mut self, block: u32) {
        if self.without_space[self.geometry.unit_of(block) as usize].remove(&block) {
            self.without_space_count -= 1;
            self.free_block(block);
        }
    }

    /// Blocks that are being written at most.
    pub(super) fn open_blocks_max(&self) -> u64 {
        (self.host.slots.len() + self.moved.slots.len()) as u64
    }

    /// Blocks that are being written.
    pub(super) fn open_now(&self) -> Vec<u32> {
        self.host.slots.iter().chain(&self.moved.slots).flatten().copied().collect()
    }

    pub(super) fn usable(&self) -> u32 {
        self.usable
    }

    pub(super) fn block_of(&self, page: PhysicalPage) -> u32 {
        (page.0 / u64::from(self.geometry.pages_per_block)) as u32
    }

    pub(super) fn first_page(&self, block: u32) -> PhysicalPage {
        PhysicalPage(u64::from(block) * u64::from(self.geometry.pages_per_block))
    }

    fn pages_left(&self, block: u32) -> u32 {
        self.geometry.pages_per_block - u32::from(self.blocks[block as usize].record.begun)
    }

    fn pages_left_in(&self, open: &OpenBlocks) -> u64 {
        open.slots.iter().flatten().map(|&block| u64::from(self.pages_left(block))).sum()
    }

    /// Whether the host's stream may take a page.
    pub(super) fn has_page_for_host(&self) -> bool {
        self.host.slots.iter().any(Option::is_some) || self.free_count > reserve_for(Stream::Host)
    }

    /// Pages that moved pages may take.
    pub(super) fn pages_for_moves(&self) -> u64 {
        u64::from(self.free_count) * u64::from(self.geometry.pages_per_block)
            + self.pages_left_in(&self.moved)
            + self.pages_left_in(&self.host)
    }

    /// Takes the next page of a stream, one block after the other; opens blocks where the stream may. None where there is no page.
    pub(super) fn take<M: Medium>(&mut self, tables: &Tables<M>, stream: Stream) -> Result<Option<PhysicalPage>, DeviceError> {
        if let Some(page) = self.take_of(tables, stream, reserve_for(stream))? {
            return Ok(Some(page));
        }
        // Mixing a moved page with host pages is better than stopping the drive.
        if stream == Stream::Moved { self.take_of(tables, Stream::Host, u32::MAX) } else { Ok(None) }
    }

    fn take_of<M: Medium>(&mut self, tables: &Tables<M>, stream: Stream, reserve: u32) -> Result<Option<PhysicalPage>, DeviceError> {
        let may_open = self.free_count > reserve;
        let width = self.open_blocks(stream).slots.len();
        for _ in 0..width {
            let open = self.open_blocks(stream);
            let slot = open.next % width;
            open.next = (slot + 1) % width;
            let block = match open.slots[slot] {
                Some(block) => block,
                None if may_open => {
                    let Some(block) = self.open_block(stream) else { continue };
                    self.open_blocks(stream).slots[slot] = Some(block);
                    block
                }
                None => continue,
            };
            return self.take_in(tables, stream, slot, block).map(Some);
        }
        Ok(None)
    }

    fn take_in<M: Medium>(&mut self, tables: &Tables<M>, stream: Stream, slot: usize, block: u32) -> Result<PhysicalPage, DeviceError> {
        let record = self.blocks[block as usize].record;
        let begun = BlockRecord { begun: record.begun + 1, ..record };
        if !mutant::on(Mutant::BegunNotNoted) {
            tables.set_block(block, begun)?;
        }
        self.blocks[block as usize].record = begun;
        if self.pages_left(block) == 0 {
            self.open_blocks(stream).slots[slot] = None;
            self.close(block);
        }
        Ok(PhysicalPage(self.first_page(block).0 + u64::from(record.begun)))
    }

    /// Returns a page that was taken but not programmed, because the image's host file failed. (The last page of a block stays taken.)
    pub(super) fn give_back<M: Medium>(&mut self, tables: &Tables<M>, page: PhysicalPage) -> Result<(), DeviceError> {
        let block = self.block_of(page);
        let record = self.blocks[block as usize].record;
        if self.blocks[block as usize].usage == Usage::Open && self.first_page(block).0 + u64::from(record.begun) == page.0 + 1 {
            let record = BlockRecord { begun: record.begun - 1, ..record };
            tables.set_block(block, record)?;
            self.blocks[block as usize].record = record;
        }
        Ok(())
    }

    fn open_blocks(&mut self, stream: Stream) -> &mut OpenBlocks {
        match stream {
            Stream::Host => &mut self.host,
            Stream::Moved => &mut self.moved,
        }
    }

    /// Opens a free block in the unit where the stream writes least, of those where most are free or were never written. The host gets the
    /// least worn block (dynamic levelling); moved pages are colder and go to the most worn one.
    fn open_block(&mut self, stream: Stream) -> Option<u32> {
        let mut open_here = vec![0u32; self.free.len()];
        let open = if stream == Stream::Host { &self.host } else { &self.moved };
        for &block in open.slots.iter().flatten() {
            open_here[self.geometry.unit_of(block) as usize] += 1;
        }
        let unit = (0..self.free.len())
            .filter(|&unit| !self.free[unit].is_empty())
            .min_by_key(|&unit| (open_here[unit], std::cmp::Reverse(self.free[unit].len() + self.without_space[unit].len())))?;
        let free = &mut self.free[unit];
        let (_, block) = if stream == Stream::Host { free.pop_first() } else { free.pop_last() }?;
        self.free_count -= 1;
        self.blocks[block as usize].usage = Usage::Open;
        Some(block)
    }

    fn free_block(&mut self, block: u32) {
        let entry = &mut self.blocks[block as usize];
        entry.usage = Usage::Free;
        self.free[self.geometry.unit_of(block) as usize].insert((entry.record.erasures, block));
        self.free_count += 1;
    }

    fn close(&mut self, block: u32) {
        let entry = &mut self.blocks[block as usize];
        entry.usage = Usage::Closed;
        self.closed_by_wear.insert((entry.record.erasures, block));
        self.file(block);
    }

    /// Files a closed block under its valid pages, as modified now.
    fn file(&mut self, block: u32) {
        let entry = &mut self.blocks[block as usize];
        entry.modified = self.now;
        self.closed.push(entry.valid, block);
        self.fewest_valid = self.fewest_valid.min(entry.valid);
    }

    fn take_out(&mut self, block: u32) {
        self.closed.remove(block);
        self.closed_by_wear.remove(&(self.blocks[block as usize].record.erasures, block));
    }

    /// A page of the block became the place of a logical page.
    pub(super) fn add_valid(&mut self, block: u32) {
        self.now += 1;
        self.blocks[block as usize].valid += 1;
        if self.blocks[block as usize].usage == Usage::Closed {
            self.file(block);
        }
    }

    /// A page of the block is no longer the place of a logical page.
    pub(super) fn drop_valid(&mut self, block: u32) {
        debug_assert!(self.blocks[block as usize].valid > 0, "block {block} has a valid page to lose");
        self.blocks[block as usize].valid -= 1;
        if self.blocks[block as usize].usage == Usage::Closed {
            self.file(block);
        }
    }

    /// The closed block to be emptied next, of those whose valid pages fit into so many pages and that have something to gain.
    pub(super) fn victim(&mut self, policy: VictimPolicy, pages_for_moves: u64) -> Option<u32> {
        let pages_per_block = self.geometry.pages_per_block;
        while self.fewest_valid < pages_per_block && self.closed.first(self.fewest_valid).is_none() {
            self.fewest_valid += 1;
        }
        let lists = self.fewest_valid..pages_per_block;
        let mut fitting = lists.take_while(|&valid| u64::from(valid) <= pages_for_moves).filter_map(|valid| self.closed.first(valid));
        match policy {
            VictimPolicy::Greedy => fitting.next(),
            VictimPolicy::CostBenefit => {
                let score = |block: u32| {
                    let Block { valid, modified, .. } = self.blocks[block as usize];
                    let share = f64::from(valid) / f64::from(pages_per_block);
                    (1.0 - share) * (self.now - modified + 1) as f64 / (2.0 * share)
                };
                fitting.map(|block| (score(block), block)).max_by(|left, right| left.0.total_cmp(&right.0)).map(|(_, block)| block)
            }
        }
    }

    /// The least worn of the closed blocks, where it is so much less worn than the mean.
    pub(super) fn coldest(&self, threshold_erasures: u32) -> Option<u32> {
        let &(erasures, block) = self.closed_by_wear.first()?;
        let mean = self.usable_erasures / u64::from(self.usable.max(1));
        (mean > u64::from(erasures) + u64::from(threshold_erasures)).then_some(block)
    }

    /// A closed or retiring block is being emptied.
    pub(super) fn start_emptying(&mut self, block: u32) {
        match self.blocks[block as usize].usage {
            Usage::Closed => self.take_out(block),
            Usage::Retiring => self.retiring.retain(|&other| other != block),
            usage => debug_assert!(false, "block {block} is {usage:?}, not closed"),
        }
        self.blocks[block as usize].usage = Usage::Emptied;
    }

    /// Stores a new record of a block that is being emptied.
    pub(super) fn set_emptied<M: Medium>(&mut self, tables: &Tables<M>, block: u32, record: BlockRecord) -> Result<(), DeviceError> {
        tables.set_block(block, record)?;
        let entry = &mut self.blocks[block as usize];
        let old = std::mem::replace(&mut entry.record, record);
        match record.state {
            BlockState::Good => {
                self.usable_erasures += u64::from(record.erasures - old.erasures);
                self.free_block(block);
            }
            BlockState::BadGrown => {
                entry.usage = Usage::Bad;
                if old.state != BlockState::Retiring {
                    self.give_up(old);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A program in the block failed: it is not written again.
    pub(super) fn retire<M: Medium>(&mut self, tables: &Tables<M>, block: u32) -> Result<(), DeviceError> {
        let record = self.blocks[block as usize].record;
        if !mutant::on(Mutant::FailedBlockForgotten) {
            tables.set_block(block, BlockRecord { state: BlockState::Retiring, ..record })?;
        }
        if self.blocks[block as usize].usage == Usage::Closed {
            self.take_out(block);
        }
        for slot in self.host.slots.iter_mut().chain(&mut self.moved.slots) {
            if *slot == Some(block) {
                *slot = None;
            }
        }
        let entry = &mut self.blocks[block as usize];
        entry.record.state = BlockState::Retiring;
        entry.usage = Usage::Retiring;
        self.retiring.push_back(block);
        self.give_up(record);
        Ok(())
    }

    fn give_up(&mut self, record: BlockRecord) {
        self.usable -= 1;
        self.usable_erasures -= u64::from(record.erasures);
        let (host_width, moved_width) = self.widths();
        for (stream, width) in [(Stream::Host, host_width), (Stream::Moved, moved_width)] {
            while self.open_blocks(stream).slots.len() > width {
                if let Some(Some(block)) = self.open_blocks(stream).slots.pop() {
                    self.close(block);
                }
            }
        }
    }
}
