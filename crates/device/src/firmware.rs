//! Commands of a drive with firmware: tagged stores and their commit (ByteFS §4.3), and what the drive counts of itself.
//!
//! [FW1] Where the windows overlap ([`DeviceDescription::overlapping`]), both paths reach the same bytes. A block read merges every line
//!       that the write log has, *committed or not*; a block write invalidates every line that it has of the page, *whoever's* they are
//!       (RULES R16). The drive does not order one path against the other: who stored must have fenced before it reads or writes the same
//!       bytes by blocks.
//! [FW2] A tagged store is visible at once and survives a power failure only once its transaction is committed: all of it, or nothing.
//! [FW3] There is no abort. What was not committed is discarded by [`Firmware::recover`] alone.
//! [FW4] A transaction's number is used again only after [`Firmware::clean`], since the log may still hold lines of its last use (RULES
//!       R17).

use std::num::NonZeroU32;
use std::time::Duration;

use tandemfs_format::{LINE_BYTES, LineAddress, PAGE_LINES, SECTOR_BYTES, Sector};

use crate::{DeviceDescription, DeviceError};

/// Number of a transaction of the drive: 4 B, given by the host (ByteFS §4.3). 0 stands for stores without one.
pub type TxId = NonZeroU32;

/// What a recovery of the drive found.
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
    /// [`DeviceError::Firmware`] where the number is of a committed transaction ([FW4]), or the drive is read-only: worn out, or full.
    fn store_tagged(&self, transaction: TxId, offset: u64, from: &[u8]) -> Result<(), DeviceError>;

    /// COMMIT: when it returns, all lines of the transaction survive a power failure. What was stored must have been fenced before.
    ///
    /// # Errors
    /// [`DeviceError::Firmware`] for a transaction that stored nothing, or was committed already.
    fn commit(&self, transaction: TxId) -> Result<(), DeviceError>;

    /// RECOVER: discards what was not committed and writes the rest to the flash in the order of the commits; the log is empty then
    /// (ByteFS §4.7). A drive that is open for reading only hides what was not committed.
    fn recover(&self) -> Result<DriveRecovery, DeviceError>;

    /// Writes everything that is committed to the flash, now. No transaction may be open.
    fn clean(&self) -> Result<(), DeviceError>;
}

/// Commands of a drive whose cache of flash pages the host manages. Pages are counted from the start of the byte window.
pub trait CacheCommands: Send + Sync {
    /// Brings a page of 4 KiB into the cache, where loads and stores meet it without the flash. One that is there stays.
    ///
    /// # Errors
    /// [`DeviceError::Firmware`] where the cache is full.
    fn move_in(&self, page: u64) -> Result<(), DeviceError>;

    /// Takes a page out of the cache; what was stored to it goes to the flash. One that is not there is no error.
    fn move_out(&self, page: u64) -> Result<(), DeviceError>;
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

            /// The values in that order, as they were stored; those that are missing are 0.
            pub fn from_values(values: impl IntoIterator<Item = u64>) -> Self {
                let mut values = values.into_iter();
                Self { $($field: values.next().unwrap_or(0)),* }
            }

            /// Both counts together.
            pub fn plus(&self, other: &Self) -> Self {
                Self { $($field: self.$field.wrapping_add(other.$field)),* }
            }

            /// What was counted since an earlier moment.
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($field: self.$field.saturating_sub(earlier.$field)),* }
            }
        }
    )* };
}

drive_statistics! {
    /// What the firmware did since the drive was opened.
    FirmwareCounts {
        /// Lines of tagged stores.
        tagged_stores,
        /// COMMIT commands.
        commits,
        /// Times that the write log was cleaned.
        log_cleanings,
        /// Lines appended to the write log, tagged or not.
        log_appends,
        /// Lines in the log that block writes made invalid.
        log_invalidations,
        /// Loads and block reads that found lines in the log.
        log_hits,
        /// Loads that the drive's page cache answered (drives with one).
        cache_hits,
        /// Loads and stores that had to bring a page into it.
        cache_misses,
        /// Pages that left it.
        cache_evictions,
    }
    /// What the flash did since the drive was opened.
    FlashCounts {
        /// Pages read.
        pages_read,
        /// Pages programmed, those of garbage collection included.
        pages_programmed,
        /// Blocks erased.
        blocks_erased,
        /// Pages that garbage collection and wear levelling moved.
        pages_moved,
        /// Pages that the host or the cleaning of the log wrote: what write amplification is measured against.
        pages_written,
        /// Blocks taken out of use.
        blocks_retired,
    }
}

/// What a drive counts of itself.
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
        self.memory_bytes + if self.overlapping { self.block_bytes } else { 0 }
    }

    /// Bytes that the block path reaches.
    pub fn block_window_bytes(&self) -> u64 {
        self.block_bytes + if self.overlapping { self.memory_bytes } else { 0 }
    }
}
