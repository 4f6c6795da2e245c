//! How worn the flash is.

use tandemfs_device::FlashWear;

use super::layout::BlockState;
use super::pool::{Block, Usage};

/// Parts of the histogram.
pub(crate) const WEAR_PARTS: usize = 16;

/// Wear of the blocks that are in use, and how many are not.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Wear {
    pub(crate) erasures_min: u32,
    pub(crate) erasures_max: u32,
    pub(crate) erasures_mean: f64,
    /// Erasures after which a block is taken out of use.
    pub(crate) endurance_erasures: u32,
    pub(crate) blocks: u32,
    pub(crate) free_blocks: u32,
    pub(crate) bad_blocks_from_factory: u32,
    /// Blocks taken out of use since; those that still have valid pages to be moved are among them.
    pub(crate) bad_blocks_grown: u32,
    /// Erasures that one part of the histogram spans.
    pub(crate) histogram_step_erasures: u32,
    /// Blocks in use by erasures: part `i` from `i * step` on.
    pub(crate) histogram: [u32; WEAR_PARTS],
}

impl Wear {
    /// What a drive says of it.
    pub(crate) fn shown(&self) -> FlashWear {
        FlashWear {
            erasures_mean: self.erasures_mean,
            erasures_max: self.erasures_max,
            endurance_erasures: self.endurance_erasures,
            blocks: self.blocks,
            bad_blocks_grown: self.bad_blocks_grown,
        }
    }

    pub(super) fn of(blocks: &[Block], endurance_erasures: u32) -> Self {
        let mut wear = Self { erasures_min: u32::MAX, endurance_erasures, blocks: blocks.len() as u32, ..Self::default() };
        let mut sum = 0;
        let mut in_use = 0u32;
        for block in blocks {
            match block.record.state {
                BlockState::BadFromFactory => wear.bad_blocks_from_factory += 1,
                BlockState::BadGrown | BlockState::Retiring => wear.bad_blocks_grown += 1,
                BlockState::Good | BlockState::Erasing => {
                    wear.erasures_min = wear.erasures_min.min(block.record.erasures);
                    wear.erasures_max = wear.erasures_max.max(block.record.erasures);
                    wear.free_blocks += u32::from(block.usage == Usage::Free);
                    sum += u64::from(block.record.erasures);
                    in_use += 1;
                }
            }
        }
        wear.erasures_min = wear.erasures_min.min(wear.erasures_max);
        wear.erasures_mean = sum as f64 / f64::from(in_use.max(1));
        wear.histogram_step_erasures = wear.erasures_max / WEAR_PARTS as u32 + 1;
        for block in blocks.iter().filter(|block| matches!(block.record.state, BlockState::Good | BlockState::Erasing)) {
            wear.histogram[(block.record.erasures / wear.histogram_step_erasures) as usize] += 1;
        }
        wear
    }
}
