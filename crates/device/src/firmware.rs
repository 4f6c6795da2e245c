//! Commands of a drive with firmware: tagged stores and their commit (ByteFS §4.3), and the drive's own counters.
//!
//! [FW1] Where the windows overlap ([`DeviceDescription::overlapping`]), both paths reach the same bytes. A block read merges every line of
//!       the write log, *committed or not*. A block write invalidates every logged line of the page, *of all transactions* (RULES R16). The
//!       drive does not order the two paths: a caller must fence its stores before it reads or writes the same bytes by blocks.
//! [FW2] A tagged store is visible at once. It survives a power failure only after its transaction is committed: a transaction survives
//!       completely or not at all.
//! [FW3] There is no abort. Only [`Firmware::recover`] discards uncommitted stores.
//! [FW4] A transaction number is reused only after [`Firmware::clean`], since the log may still contain lines of its last use (RULES R17).

use std::num::NonZeroU32;
use std::time::Duration;

use tandemfs_format::{LINE_BYTES, LineAddress, PAGE_LINES, SECTOR_BYTES, Sector};

use crate::{DeviceDescription, DeviceError};

/// Number of a drive transaction: 4 B, chosen by the host (ByteFS §4.3). 0 means a store without a transaction.
pub type TxId = NonZeroU32;

/// Result of a recovery of the drive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DriveRecovery {
    /// Lines of committed transactions and untagged lines that were in the write log, and are kept.
    pub lines_kept: u64,
    /// Lines of transactions that were never committed.
    pub lines_discarded: u64,
    /// Transactions that the TxLog named.
    pub transactions: u64,
    /// Time it took.
    pub duration: Duration,
}

/// Commands of a drive with firmware.
pub trait Firmware: Send + Sync {
    /// Stores whole lines as part of a transaction ([FW2]). `offset` is in the byte window, a multiple of 64 B.
    ///
    /// # Errors
    /// [`DeviceError::Firmware`] if the number belongs to a committed transaction ([FW4]), or if the drive is read-only: worn out or full.
    fn store_tagged(&self, transaction: TxId, offset: u64, from: &[u8]) -> Result<(), DeviceError>;

    /// COMMIT: when it returns, all lines of the transaction survive a power failure. The stores must have been fenced before.
    ///
    /// # Errors
    /// [`DeviceError::Firmware`] for a transaction that stored nothing, or was committed already.
    fn commit(&self, transaction: TxId) -> Result<(), DeviceError>;

    /// RECOVER: discards uncommitted lines and writes the others to the flash in commit order; afterwards the log is empty
    /// (ByteFS §4.7). A drive opened read-only hides uncommitted lines instead.
    fn recover(&self) -> Result<DriveRecovery, DeviceError>;

    /// CLEAN: writes all committed lines to the flash now. No transaction may be open.
    fn clean(&self) -> Result<(), DeviceError>;
}

macro_rules! drive_statistics {
    ($($(#[$meta:meta])* $group:ident { $($(#[$field_meta:meta])* $field:ident),* $(,)? })*) => { $(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct $group { $($(#[$field_meta])* pub $field: u64),* }

        impl $group {
            /// Names and values, in the order of `stats --json`.
            pub fn entries(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field)),*]
            }

            /// Restores stored values, in that order; missing values are 0.
            pub fn from_values(values: impl IntoIterator<Item = u64>) -> Self {
                let mut values = values.into_iter();
                Self { $($field: values.next().unwrap_or(0)),* }
            }

            /// Both counts together.
            pub fn plus(&self, other: &Self) -> Self {
                Self { $($field: self.$field.wrapping_add(other.$field)),* }
            }

            /// The difference to earlier counters.
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($field: self.$field.saturating_sub(earlier.$field)),* }
            }
        }
    )* };
}

drive_statistics! {
    /// Counters of the firmware since the drive was opened.
    FirmwareCounts {
        /// Lines of tagged stores.
        tagged_stores,
        /// COMMIT commands.
        commits,
        /// Cleanings of the write log.
        log_cleanings,
        /// Lines appended to the write log, tagged or not.
        log_appends,
        /// Logged lines that block writes invalidated.
        log_invalidations,
        /// Loads and block reads that found lines in the log.
        log_hits,
        /// Loads that the drive's page cache answered (drives with one).
        cache_hits,
        /// Loads and stores that missed the page cache.
        cache_misses,
        /// Pages evicted from the page cache.
        cache_evictions,
        /// Pages that MOVE commands of the host brought to its cache (drives with one).
        pages_moved_to_cache,
        /// Pages that MOVE commands wrote from there to the flash.
        pages_moved_to_flash,
    }
    /// Counters of the flash since the drive was opened.
    FlashCounts {
        /// Pages read.
        pages_read,
        /// Pages programmed, those of garbage collection included.
        pages_programmed,
        /// Blocks erased.
        blocks_erased,
        /// Pages that garbage collection and wear levelling moved.
        pages_moved,
        /// Pages written by the host or by cleaning the log: the denominator of write amplification.
        pages_written,
        /// Blocks taken out of use.
        blocks_retired,
    }
}

/// How worn a drive's flash is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FlashWear {
    /// Mean erasures of the blocks in use.
    pub erasures_mean: f64,
    /// Erasures of the block that was erased most.
    pub erasures_max: u32,
    /// Erasures after which a block is taken out of use.
    pub endurance_erasures: u32,
    /// Blocks, bad ones included.
    pub blocks: u32,
    /// Blocks taken out of use since the drive was made.
    pub bad_blocks_grown: u32,
}

/// Counters that a drive keeps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DriveCounts {
    /// Write log, transactions, page cache.
    pub firmware: FirmwareCounts,
    /// Flash.
    pub flash: FlashCounts,
}

impl DeviceDescription {
    /// The sector by which the block path reaches a page of the memory zone, where the windows overlap: those after the block zone.
    pub fn sector_of_page(&self, page: LineAddress) -> Option<Sector> {
        debug_assert_eq!(page.index_in_page(), 0, "the start of a page");
        self.overlapping.then(|| Sector::new(self.block_bytes / SECTOR_BYTES as u64 + page.number() / PAGE_LINES))
    }

    /// The line at which the byte path reaches a sector of the block zone, where the windows overlap: those after the memory zone.
    pub fn line_of_sector(&self, sector: Sector) -> Option<LineAddress> {
        self.overlapping.then(|| LineAddress::new(self.memory_bytes / LINE_BYTES as u64 + sector.number() * PAGE_LINES))
    }

    /// Bytes that the byte path reaches.
    pub fn byte_window_bytes(&self) -> u64 {
        self.memory_bytes + if self.overlapping { self.block_bytes } else { self.cache_bytes }
    }

    /// Bytes that the block path reaches.
    pub fn block_window_bytes(&self) -> u64 {
        self.block_bytes + if self.overlapping { self.memory_bytes } else { 0 }
    }
}
