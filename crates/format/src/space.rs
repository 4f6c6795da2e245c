//! The space of a block of a file, as the field `space_512` of its inode counts it.
//!
//! A data log over sectors of its block adds nothing, because the space of its bytes is already counted. So a write into allocated space
//! does not change `st_blocks`. The count depends only on a block's sectors and logs, so every change of a block computes the difference by
//! counting the block before and after.

use crate::SECTOR_BYTES;
use crate::mapping::{LogEntry, SlotClass};
use crate::superblock::ro_compat;

/// Which data logs count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogCounting {
    /// Every log counts with its slot (file systems without [`ro_compat::COVERED_LOGS_UNCOUNTED`]).
    All,
    /// Only the part of a log behind the sectors of its block counts.
    BehindSectors,
}

impl LogCounting {
    /// The counting rule of a file system with these features.
    pub fn of(ro_compat: u64) -> Self {
        if ro_compat & ro_compat::COVERED_LOGS_UNCOUNTED == 0 { Self::All } else { Self::BehindSectors }
    }

    /// Space of a block with so many sectors (0 for none) and these logs, in units of 512 B.
    pub fn block_space_512<'l>(self, sectors: u32, logs: impl IntoIterator<Item = &'l LogEntry>) -> u64 {
        u64::from(sectors) * (SECTOR_BYTES as u64 / 512) + logs.into_iter().map(|log| self.log_space_512(sectors, log)).sum::<u64>()
    }

    /// What one log adds to the space of a block with so many sectors, in units of 512 B.
    pub fn log_space_512(self, sectors: u32, log: &LogEntry) -> u64 {
        let (start, end) = (u64::from(log.offset), u64::from(log.offset) + u64::from(log.length));
        let of_sectors = u64::from(sectors) * SECTOR_BYTES as u64;
        match self {
            Self::BehindSectors if end <= of_sectors => 0,
            // Only the part behind the sectors: merging a write over them into the log does not change that part.
            Self::BehindSectors if start < of_sectors => slot_space_512(SlotClass::for_bytes((end - of_sectors) as usize)),
            Self::BehindSectors | Self::All => slot_space_512(log.class),
        }
    }
}

/// Space of a slot in units of 512 B: each slot is rounded up by itself.
pub fn slot_space_512(class: SlotClass) -> u64 {
    (class.bytes() as u64).div_ceil(512)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LineAddress;

    fn log(offset: u32, length: u32, class: SlotClass) -> LogEntry {
        LogEntry { address: LineAddress::new(0), crc: 0, offset, length, class }
    }

    #[test]
    fn logs_count_with_what_is_behind_the_sectors() {
        let counted = LogCounting::of(ro_compat::COVERED_LOGS_UNCOUNTED);
        for (sectors, log, space) in [
            (0, log(0, 100, SlotClass::Quarter), 1),
            (0, log(5000, 4096, SlotClass::Page), 8),
            (2, log(0, 100, SlotClass::Quarter), 16),
            (2, log(4096, 4096, SlotClass::Page), 16),
            // A slot that is larger than the log counts as a whole where no sector is below.
            (2, log(8192, 10, SlotClass::Page), 16 + 8),
            (2, log(8000, 200, SlotClass::Quarter), 16 + 1),
            (2, log(8000, 192 + 1024, SlotClass::Page), 16 + 2),
            (2, log(8000, 192 + 1025, SlotClass::Page), 16 + 8),
        ] {
            assert_eq!(counted.block_space_512(sectors, [&log]), space, "{sectors} sectors, {log:?}");
            let all = u64::from(sectors) * 8 + slot_space_512(log.class);
            assert_eq!(LogCounting::of(0).block_space_512(sectors, [&log]), all, "{sectors} sectors, {log:?}");
        }
    }

    #[test]
    fn a_log_across_the_end_counts_the_same_however_much_of_it_is_before() {
        for behind in [1, 64, 65, 256, 257, 1024, 1025, 4000] {
            let cut = log(8192, behind, SlotClass::for_bytes(behind as usize));
            let of = |log| LogCounting::BehindSectors.block_space_512(2, [&log]);
            for before in [0, 1, 60, 96] {
                let merged = log(8192 - before, behind + before, SlotClass::for_bytes((behind + before) as usize));
                assert_eq!(of(merged), of(cut), "{before} B before, {behind} B behind");
            }
        }
    }
}
