//! Counters of a drive's whole life, in one page of its DRAM: one word each, in the order of their names. They are stored from time to time
//! and when the drive is closed, so a power failure loses the last few accesses.

use std::sync::Arc;

use tandemfs_device::{DeviceError, DriveCounts, FirmwareCounts, FlashCounts};

use crate::medium::Medium;

/// Accesses after which the counters are stored.
const ACCESSES_BETWEEN: u64 = 64;
/// Words kept for the first group, so that it can get further counters.
const FIRMWARE_WORDS: usize = 64;

/// Counters of a drive's whole life.
#[derive(Debug)]
pub(crate) struct Lifetime<M: Medium> {
    medium: Arc<M>,
    dram_offset: u64,
    /// Counters from before the drive was opened.
    before: DriveCounts,
    accesses: u64,
}

impl<M: Medium> Lifetime<M> {
    pub(crate) fn open(medium: Arc<M>, dram_offset: u64) -> Result<Self, DeviceError> {
        let mut page = [0; 2 * FIRMWARE_WORDS * 8];
        medium.load(dram_offset, &mut page)?;
        let words = |bytes: &[u8]| bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes)).collect::<Vec<_>>();
        let (firmware, flash) = page.split_at(FIRMWARE_WORDS * 8);
        let before = DriveCounts { firmware: FirmwareCounts::from_values(words(firmware)), flash: FlashCounts::from_values(words(flash)) };
        Ok(Self { medium, dram_offset, before, accesses: 0 })
    }

    /// Everything since the drive was made, given what was counted since it was opened.
    pub(crate) fn total(&self, opened: &DriveCounts) -> DriveCounts {
        DriveCounts { firmware: self.before.firmware.plus(&opened.firmware), flash: self.before.flash.plus(&opened.flash) }
    }

    /// Counts an access; whether it is time to store.
    #[inline]
    pub(crate) fn is_due(&mut self) -> bool {
        self.accesses += 1;
        self.accesses.is_multiple_of(ACCESSES_BETWEEN)
    }

    pub(crate) fn store(&self, opened: &DriveCounts) -> Result<(), DeviceError> {
        let total = self.total(opened);
        let bytes = |entries: Vec<(&str, u64)>| entries.into_iter().flat_map(|(_, value)| value.to_le_bytes()).collect::<Vec<_>>();
        self.medium.store(self.dram_offset, &bytes(total.firmware.entries()))?;
        self.medium.store(self.dram_offset + (FIRMWARE_WORDS * 8) as u64, &bytes(total.flash.entries()))
    }
}
