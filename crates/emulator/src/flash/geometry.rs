//! Geometry of a drive's flash, and parameters of its translation layer.

use super::layout::Layout;

/// Minimum number of blocks beyond those that the logical pages fill: two free ones for garbage collection, one open for each of the two
/// streams of pages, and one of dead pages to collect.
pub(crate) const SPARE_BLOCKS_MIN: u64 = 5;
const PAGES_PER_BLOCK_MAX: u32 = 8192;
const PARALLEL_UNITS_MAX: u64 = 4096;
const BLOCKS_MAX: u64 = 1 << 28;
const LOGICAL_PAGES_MAX: u64 = 1 << 40;
const WRITE_BUFFER_PAGES_MAX: u32 = 1 << 22;

/// Numbers of parts. A plane is a *unit*: units are numbered so that neighbours are on different channels, then dies, then planes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlashGeometry {
    pub(crate) channel_count: u32,
    pub(crate) dies_per_channel: u32,
    pub(crate) planes_per_die: u32,
    pub(crate) blocks_per_plane: u32,
    pub(crate) pages_per_block: u32,
    /// Pages that the drive offers.
    pub(crate) logical_pages: u64,
}

/// Which block garbage collection empties.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum VictimPolicy {
    /// The one with the fewest valid pages.
    #[default]
    Greedy,
    /// The one with the greatest (1 - u) * age / 2u, u being the share of valid pages (Rosenblum and Ousterhout, 1992).
    CostBenefit,
}

/// Behaviour of the translation layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlashOptions {
    pub(crate) victim: VictimPolicy,
    /// Erasures after which a block is retired, once it is dispensable.
    pub(crate) endurance_erasures: u32,
    /// Pages of battery-backed DRAM that wait to be programmed.
    pub(crate) write_buffer_pages: u32,
    /// Blocks that are bad when the drive is made, of a million.
    pub(crate) factory_bad_blocks_ppm: u32,
    /// Programs that fail, of a million. Each costs its block.
    pub(crate) program_failures_ppm: u32,
    /// Erasures below the mean at which a block with cold data is emptied, so that it wears like the others; 0 turns that off.
    pub(crate) levelling_threshold_erasures: u32,
    /// Seed of factory-bad blocks and failing programs.
    pub(crate) seed: u64,
    /// Logical pages of the byte window, which are the first ones ([HF2] of `host_space.rs`).
    pub(crate) window_pages: u64,
}

impl Default for FlashOptions {
    fn default() -> Self {
        Self {
            victim: VictimPolicy::Greedy,
            endurance_erasures: 3000,
            write_buffer_pages: 1024,
            factory_bad_blocks_ppm: 0,
            program_failures_ppm: 0,
            levelling_threshold_erasures: 32,
            seed: 0,
            window_pages: 0,
        }
    }
}

impl FlashGeometry {
    /// The geometry that offers so many logical pages and has that much more flash, in percent of them (rounded up to whole blocks in each
    /// plane).
    pub(crate) fn for_capacity(
        logical_pages: u64,
        channel_count: u32,
        dies_per_channel: u32,
        planes_per_die: u32,
        pages_per_block: u32,
        over_provisioning_percent: u32,
    ) -> Self {
        let mut geometry = Self { channel_count, dies_per_channel, planes_per_die, blocks_per_plane: 0, pages_per_block, logical_pages };
        let units = geometry.units().max(1);
        let pages_per_block = u64::from(pages_per_block.max(1));
        let over = u128::from(logical_pages) * u128::from(100 + u64::from(over_provisioning_percent));
        let wanted = u64::try_from(over.div_ceil(100)).unwrap_or(u64::MAX).div_ceil(pages_per_block);
        let needed = logical_pages.div_ceil(pages_per_block).saturating_add(SPARE_BLOCKS_MIN);
        geometry.blocks_per_plane = u32::try_from(wanted.max(needed).div_ceil(units)).unwrap_or(u32::MAX);
        geometry
    }

    /// Planes, over all dies and channels.
    pub(crate) fn units(&self) -> u64 {
        u64::from(self.channel_count).saturating_mul(u64::from(self.dies_per_channel)).saturating_mul(u64::from(self.planes_per_die))
    }

    /// Dies, over all channels. Die `d` is on channel `d % channel_count`.
    pub(crate) fn dies(&self) -> u32 {
        self.channel_count * self.dies_per_channel
    }

    /// Blocks, bad ones included.
    pub(crate) fn blocks(&self) -> u64 {
        self.units().saturating_mul(u64::from(self.blocks_per_plane))
    }

    /// Pages of flash, those of bad blocks included.
    pub(crate) fn physical_pages(&self) -> u64 {
        self.blocks().saturating_mul(u64::from(self.pages_per_block))
    }

    /// Blocks that the logical pages fill.
    pub(crate) fn logical_blocks(&self) -> u64 {
        self.logical_pages.div_ceil(u64::from(self.pages_per_block))
    }

    /// Bytes of persistent DRAM that the translation layer needs, a multiple of 4 KiB.
    pub(crate) fn dram_bytes(&self, options: &FlashOptions) -> u64 {
        Layout::new(self, options.write_buffer_pages, 0).end
    }

    /// The unit that a block is in.
    pub(crate) fn unit_of(&self, block: u32) -> u32 {
        block / self.blocks_per_plane
    }

    /// The die that a block is on.
    pub(crate) fn die_of(&self, block: u32) -> u32 {
        self.unit_of(block) % self.dies()
    }

    /// Checks that a drive can have this geometry.
    ///
    /// # Errors
    /// One sentence that names the contradiction.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (name, value) in [
            ("channels", self.channel_count),
            ("dies a channel", self.dies_per_channel),
            ("planes a die", self.planes_per_die),
            ("blocks a plane", self.blocks_per_plane),
            ("pages a block", self.pages_per_block),
        ] {
            if value == 0 {
                return Err(format!("flash with zero {name} holds nothing"));
            }
        }
        if self.logical_pages == 0 || self.logical_pages > LOGICAL_PAGES_MAX {
            return Err(format!("{} logical pages: there must be 1 to {LOGICAL_PAGES_MAX}", self.logical_pages));
        }
        if self.pages_per_block > PAGES_PER_BLOCK_MAX {
            return Err(format!("{} pages a block are more than {PAGES_PER_BLOCK_MAX}", self.pages_per_block));
        }
        if self.units() > PARALLEL_UNITS_MAX || self.blocks() > BLOCKS_MAX {
            return Err(format!(
                "{} planes with {} blocks are more than {PARALLEL_UNITS_MAX} planes or {BLOCKS_MAX} blocks",
                self.units(),
                self.blocks()
            ));
        }
        let needed = self.logical_blocks() + SPARE_BLOCKS_MIN;
        if self.blocks() < needed {
            return Err(format!(
                "{} blocks of flash are too few for {} logical pages: {needed} are needed, {SPARE_BLOCKS_MIN} of them spare",
                self.blocks(),
                self.logical_pages
            ));
        }
        Ok(())
    }
}

impl FlashOptions {
    /// Checks that a drive can work with these parameters.
    ///
    /// # Errors
    /// One sentence that names the contradiction.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.write_buffer_pages < 2 || self.write_buffer_pages > WRITE_BUFFER_PAGES_MAX {
            return Err(format!("a write buffer of {} pages: there must be 2 to {WRITE_BUFFER_PAGES_MAX}", self.write_buffer_pages));
        }
        if self.endurance_erasures == 0 {
            return Err("flash that endures no erasure can be written once only; give at least 1".into());
        }
        for (name, ppm) in [("factory-bad blocks", self.factory_bad_blocks_ppm), ("failing programs", self.program_failures_ppm)] {
            if ppm > 500_000 {
                return Err(format!("{ppm} {name} of a million are more than half"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capacity_gets_its_share_of_spare_flash() {
        let geometry = FlashGeometry::for_capacity(8 << 20, 8, 4, 2, 256, 7);
        geometry.check().unwrap();
        let share = geometry.physical_pages() as f64 / geometry.logical_pages as f64;
        assert!((1.07..1.075).contains(&share), "{share}");
        // The smallest drives still have what garbage collection needs.
        let tiny = FlashGeometry::for_capacity(64, 1, 1, 1, 16, 0);
        tiny.check().unwrap();
        assert_eq!(tiny.blocks(), 4 + SPARE_BLOCKS_MIN);
    }

    #[test]
    fn neighbouring_units_are_on_different_channels() {
        let geometry = FlashGeometry::for_capacity(1 << 16, 4, 2, 2, 64, 7);
        let first_blocks: Vec<u32> = (0..geometry.units() as u32).map(|unit| unit * geometry.blocks_per_plane).collect();
        let dies: Vec<u32> = first_blocks.iter().map(|&block| geometry.die_of(block)).collect();
        assert_eq!(dies, [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn senseless_flash_is_refused_in_a_sentence() {
        let good = FlashGeometry::for_capacity(1 << 16, 4, 2, 2, 64, 7);
        for bad in [
            FlashGeometry { channel_count: 0, ..good },
            FlashGeometry { pages_per_block: 0, ..good },
            FlashGeometry { pages_per_block: 1 << 20, ..good },
            FlashGeometry { channel_count: u32::MAX, ..good },
            FlashGeometry { blocks_per_plane: 2, ..good },
            FlashGeometry { logical_pages: 0, ..good },
            FlashGeometry { logical_pages: u64::MAX, ..good },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
        let good = FlashOptions::default();
        good.check().unwrap();
        for bad in [
            FlashOptions { write_buffer_pages: 1, ..good },
            FlashOptions { endurance_erasures: 0, ..good },
            FlashOptions { factory_bad_blocks_ppm: 1_000_000, ..good },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
