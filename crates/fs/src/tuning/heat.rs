//! The time at which blocks were last used, for the write-back policies that go by age.
//!
//! [HE1] A table of a fixed size, indexed by a hash of inode and block: nothing on the device, nothing for each block. Blocks that share an
//!       entry share the latest of their times: a block may look younger than it is, never older.
//! [HE2] Time is the number of transactions since the mount; blocks not used since then are the oldest. After 2^32 transactions the count
//!       starts again, and a block unused for that long looks younger than it is. That costs order, never data.
//! [HE3] The table exists only for a policy that needs it. Without one a use costs a branch; with one, a load and a store.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use tandemfs_format::InodeNumber;

use crate::journal::Journal;
use crate::types::WriteBackPolicy;

/// The table takes one in this many bytes of the host memory for metadata.
const MEMORY_SHARE: u64 = 64;
/// Smallest and largest table, in entries.
const ENTRIES: std::ops::RangeInclusive<u64> = 1 << 10..=1 << 22;

pub(crate) struct Heat {
    policy: WriteBackPolicy,
    /// The last txid at the mount.
    mounted_at: u64,
    ticks: Box<[AtomicU32]>,
}

impl Heat {
    pub(crate) fn new(policy: WriteBackPolicy, memory_bytes: u64, mounted_at: u64) -> Self {
        let entries = match policy {
            WriteBackPolicy::MostSpace => 0, // [HE3]
            WriteBackPolicy::Oldest | WriteBackPolicy::Coldest => {
                let fits = memory_bytes / MEMORY_SHARE / size_of::<AtomicU32>() as u64;
                fits.next_power_of_two().clamp(*ENTRIES.start(), *ENTRIES.end())
            }
        };
        Self { policy, mounted_at, ticks: (0..entries).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Notes a write of a block; `first_log` if it had no logs before and has some now.
    pub(crate) fn written(&self, journal: &Journal, inode: InodeNumber, block: u64, first_log: bool) {
        if self.policy == WriteBackPolicy::Coldest || self.policy == WriteBackPolicy::Oldest && first_log {
            self.entry(inode, block).store(self.now(journal), Relaxed);
        }
    }

    /// Notes a read of a block.
    pub(crate) fn read(&self, journal: &Journal, inode: InodeNumber, block: u64) {
        if self.policy == WriteBackPolicy::Coldest {
            self.entry(inode, block).store(self.now(journal), Relaxed);
        }
    }

    /// How long ago a block was used, in transactions; 0 if the policy ignores ages.
    pub(crate) fn age(&self, journal: &Journal, inode: InodeNumber, block: u64) -> u32 {
        match self.policy {
            WriteBackPolicy::MostSpace => 0,
            WriteBackPolicy::Oldest | WriteBackPolicy::Coldest => {
                self.now(journal).wrapping_sub(self.entry(inode, block).load(Relaxed)) // [HE2]
            }
        }
    }

    /// Never 0 before the count starts again: 0 means *before the mount*.
    fn now(&self, journal: &Journal) -> u32 {
        (journal.last_txid() - self.mounted_at + 1) as u32
    }

    fn entry(&self, inode: InodeNumber, block: u64) -> &AtomicU32 {
        let mixed = (inode.get().rotate_left(40) ^ block).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.ticks[(mixed >> 32) as usize & (self.ticks.len() - 1)]
    }
}
