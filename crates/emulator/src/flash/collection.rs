//! Emptying blocks. Garbage collection, static wear levelling and retirement all do this, for different reasons; one block at a time, in
//! bounded steps.

use tandemfs_device::DeviceError;

use super::layout::{BlockRecord, BlockState, Place};
use super::pool::{RESERVE_BLOCKS, Stream};
use super::translation::Flash;
use crate::medium::{FlashWorkKind, Medium, PhysicalPage, Spare};
use crate::mutant::{self, Mutant};

/// Minimum number of blocks collected for dead pages per block collected for wear levelling, which must not slow the drive down.
const COLLECTED_A_LEVELLING: u32 = 4;

/// A block that is being emptied.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job {
    block: u32,
    /// Pages below this are dead or moved.
    next: u32,
}

impl<M: Medium> Flash<M> {
    /// Moves at most so many pages, and erases the block if it is empty then. In the foreground it works only to get free blocks, in the
    /// background to get a few more. Returns false if there was nothing to do or nothing possible.
    pub(super) fn collect(&mut self, moves: u32, is_waited_for: bool) -> Result<bool, DeviceError> {
        if self.read_only.is_some() {
            return Ok(false);
        }
        let job = match self.job {
            Some(job) => job,
            None => {
                self.reserve_ahead();
                match self.choose(is_waited_for) {
                    Some(block) => {
                        self.pool.start_emptying(block);
                        *self.job.insert(Job { block, next: 0 })
                    }
                    None => return Ok(false),
                }
            }
        };
        let begun = u32::from(self.pool.block(job.block).record.begun);
        let mut moves_left = moves;
        let mut next = job.next;
        while next < begun && self.pool.block(job.block).valid > 0 {
            if moves_left == 0 {
                return Ok(true);
            }
            let page = PhysicalPage(self.pool.first_page(job.block).0 + u64::from(next));
            if self.move_page(page, is_waited_for)? {
                moves_left -= 1;
            }
            next += 1;
            self.job = Some(Job { next, ..job });
        }
        self.finish(job.block, is_waited_for)?;
        Ok(true)
    }

    /// The block to be emptied next. A block with failed programs comes first if a whole block's worth of pages is left besides; then, with
    /// free blocks to spare, the least worn one; then what gives free blocks.
    fn choose(&mut self, is_waited_for: bool) -> Option<u32> {
        if let Some(&block) = self.pool.retiring.front()
            && u64::from(self.pool.block(block).valid + self.geometry.pages_per_block) <= self.pool.pages_for_moves()
        {
            return Some(block);
        }
        if self.collected_since_levelling >= COLLECTED_A_LEVELLING
            && self.options.levelling_threshold_erasures > 0
            && self.pool.free_count() > RESERVE_BLOCKS
            && !mutant::on(Mutant::ColdDataStays)
            && let Some(block) = self.pool.coldest(self.options.levelling_threshold_erasures)
        {
            self.collected_since_levelling = 0;
            return Some(block);
        }
        let mark = if is_waited_for { RESERVE_BLOCKS } else { self.pool.background_mark() };
        if self.pool.free_count() <= mark {
            let victim = self.pool.victim(self.options.victim, self.pool.pages_for_moves())?;
            self.collected_since_levelling += 1;
            return Some(victim);
        }
        None
    }

    /// Moves a page if an entry names it, with its stamp ([FL3]).
    fn move_page(&mut self, page: PhysicalPage, is_waited_for: bool) -> Result<bool, DeviceError> {
        let spare = self.medium.spare(page)?;
        let Some(logical) = spare.logical_plus_one.checked_sub(1) else { return Ok(false) };
        if logical >= self.geometry.logical_pages {
            return Ok(false);
        }
        let old = self.tables.place(logical)?;
        if old != Place::Cells(page) && !mutant::on(Mutant::DeadPageRevived) {
            return Ok(false);
        }
        self.medium.read_page(page, &mut self.transfer)?;
        let block = self.pool.block_of(page);
        self.counts.pages_read += 1;
        self.note(block, FlashWorkKind::Read, is_waited_for);
        let stamp = if mutant::on(Mutant::MovedPageLosesStamp) { 0 } else { spare.stamp };
        self.put(Stream::Moved, logical, Spare { stamp, ..spare }, is_waited_for)?;
        self.release(old);
        self.counts.pages_moved += 1;
        Ok(true)
    }

    /// Erases a block that no entry names ([FL2], [FL4]), or retires it.
    fn finish(&mut self, block: u32, is_waited_for: bool) -> Result<(), DeviceError> {
        let record = self.pool.block(block).record;
        if self.pool.block(block).valid > 0 {
            let reason = format!("flash block {block} lacks pages that the translation table says it has");
            self.read_only = Some(reason.clone());
            return Err(DeviceError::Firmware { device: "flash".into(), command: "collect", reason });
        }
        if record.state == BlockState::Retiring {
            self.pool.set_emptied(&self.tables, block, BlockRecord { state: BlockState::BadGrown, ..record })?;
            self.counts.blocks_retired += 1;
        } else {
            self.pool.set_emptied(&self.tables, block, BlockRecord { state: BlockState::Erasing, ..record })?;
            self.medium.erase(self.pool.first_page(block), u64::from(self.geometry.pages_per_block))?;
            self.counts.blocks_erased += 1;
            self.note(block, FlashWorkKind::Erase, is_waited_for);
            let erasures = record.erasures.saturating_add(1);
            let state = if self.is_retired_at(erasures) { BlockState::BadGrown } else { BlockState::Good };
            self.pool.set_emptied(&self.tables, block, BlockRecord { erasures, begun: 0, state })?;
            self.counts.blocks_retired += u64::from(state == BlockState::BadGrown);
        }
        self.job = None;
        self.check_spare();
        Ok(())
    }

    /// Whether an erased block is worn out and dispensable. Levelled blocks wear out together: if each were retired at once, collection
    /// would run out of pages to move to, although there are spare blocks. Such a block stays in use until its next erasure.
    fn is_retired_at(&self, erasures: u32) -> bool {
        let reserve_pages = u64::from(RESERVE_BLOCKS) * u64::from(self.geometry.pages_per_block);
        erasures >= self.options.endurance_erasures && self.pool.pages_for_moves() >= reserve_pages && !mutant::on(Mutant::WornBlockKept)
    }
}
