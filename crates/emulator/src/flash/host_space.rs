//! Space on the host's disk for the cells of an image. An image is sparse, so a block of flash has none until it is asked for.
//!
//! [HF1] A block is opened only after the host has given space for all of it, and keeps that space when it is erased. So no program fails
//!       because the host's disk is full. (One may in a copy of an image that was made sparse anew: its erased blocks count as having space.)
//! [HF2] The blocks with space hold every logical page that has a place, pages of the byte window that have none yet (up to
//!       [`AHEAD_PAGES`]), and what collection needs. A write that gives a page behind that window its first place is refused, before it
//!       changes anything, if the host has no space for that. So on a full disk stores are taken and cleaned, and what exists can be
//!       rewritten, moved and discarded.
//! [HF3] While the host has space, blocks get it before those that have it run short, on the whole drive or in one of its units: collection
//!       begins when the whole drive is used up, and writes go to all dies, as without an image. On a full disk it works with the blocks that
//!       have space.

use tandemfs_device::DeviceError;

use super::pool::RESERVE_BLOCKS;
use super::translation::Flash;
use crate::medium::{Medium, PhysicalPage};
use crate::mutant::{Mutant, on};

/// Pages of the byte window without a place for which space is kept: 256 MiB.
const AHEAD_PAGES: u64 = 1 << 16;

/// How many logical pages have a place, and when the host was full.
#[derive(Debug, Default)]
pub(super) struct Placed {
    /// Pages of the byte window.
    pub(super) in_window: u64,
    /// Pages behind it.
    pub(super) behind: u64,
    /// Pages that had been written when the host refused space, plus those of a block: it is not asked before only to avoid collection.
    ask_again_at: u64,
}

impl Placed {
    /// A page has its first place (`is_placed`), or has lost it.
    pub(super) fn count(&mut self, is_in_window: bool, is_placed: bool) {
        let count = if is_in_window { &mut self.in_window } else { &mut self.behind };
        *count = if is_placed { *count + 1 } else { count.saturating_sub(1) };
    }
}

impl<M: Medium> Flash<M> {
    pub(super) fn is_in_window(&self, logical: u64) -> bool {
        logical < self.options.window_pages
    }

    /// Gets the space that the drive needs as it is ([HF2]).
    ///
    /// # Errors
    /// Those of the medium, which name a full disk.
    pub(super) fn reserve_needed(&mut self) -> Result<(), DeviceError> {
        self.reserve(self.needed_blocks(0))
    }

    /// Makes sure that a page without a place may get one ([HF2]).
    ///
    /// # Errors
    /// Those of the medium. Pages of the byte window are never refused here.
    pub(super) fn admit(&mut self, logical: u64) -> Result<(), DeviceError> {
        if self.is_in_window(logical) {
            let needed = self.needed_blocks(1);
            if self.pool.blocks_with_space() < needed && self.counts.pages_written >= self.placed.ask_again_at {
                self.note_refusal(|flash| flash.reserve(needed));
            }
            return Ok(());
        }
        if on(Mutant::HostSpaceIgnored) { Ok(()) } else { self.reserve(self.needed_blocks(1)) }
    }

    /// Gets space for more blocks while the host has it, before collection begins for lack of free ones ([HF3]).
    pub(super) fn reserve_ahead(&mut self) {
        let is_short = self.pool.free_count() <= self.pool.background_mark() || self.pool.next_of_unit_without_free().is_some();
        if !is_short || self.counts.pages_written < self.placed.ask_again_at {
            return;
        }
        self.note_refusal(|flash| {
            while flash.pool.free_count() <= flash.pool.background_mark() && flash.reserve_one()? {}
            while let Some(block) = flash.pool.next_of_unit_without_free() {
                flash.reserve_this(block)?;
            }
            Ok(())
        });
    }

    fn note_refusal(&mut self, work: impl FnOnce(&mut Self) -> Result<(), DeviceError>) {
        if work(self).is_err() {
            self.placed.ask_again_at = self.counts.pages_written + u64::from(self.geometry.pages_per_block);
        }
    }

    /// Blocks with space that the drive needs when so many more pages behind the window have a place.
    fn needed_blocks(&self, more: u64) -> u64 {
        let ahead = self.options.window_pages.saturating_sub(self.placed.in_window).min(AHEAD_PAGES);
        let pages = self.placed.in_window + self.placed.behind + ahead + more;
        pages.div_ceil(u64::from(self.geometry.pages_per_block)) + self.pool.open_blocks_max() + u64::from(RESERVE_BLOCKS) + 1
    }

    fn reserve(&mut self, blocks: u64) -> Result<(), DeviceError> {
        while self.pool.blocks_with_space() < blocks && self.reserve_one()? {}
        Ok(())
    }

    /// Gets space for one block. False if all have it.
    fn reserve_one(&mut self) -> Result<bool, DeviceError> {
        let Some(block) = self.pool.next_without_space() else { return Ok(false) };
        self.reserve_this(block)?;
        Ok(true)
    }

    fn reserve_this(&mut self, block: u32) -> Result<(), DeviceError> {
        self.reserve_block(block)?;
        self.pool.give_space(block);
        Ok(())
    }

    pub(super) fn reserve_block(&self, block: u32) -> Result<(), DeviceError> {
        let pages_per_block = u64::from(self.geometry.pages_per_block);
        self.medium.reserve(PhysicalPage(u64::from(block) * pages_per_block), pages_per_block)
    }
}
