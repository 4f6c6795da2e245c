//! The time at which blocks were last used, for the write-back policies that go by age.
//!
//! [HE1] A table of a fixed size, indexed by a hash of inode and block: nothing on the device, nothing for each block. Blocks that share an
//!       entry share the latest of their times: a block may look younger than it is, never older.
//! [HE2] Time is the number of transactions since the mount; blocks not used since then are the oldest, and so are blocks not used since the policy
//!       was changed: what the table knows then is of another policy. After 2^32 transactions the count
//!       starts again, and a block unused for that long looks younger than it is. That costs order, never data.
//! [HE3] The table is made for the first policy that needs it, and stays, as large as the memory option was then. Without one a use costs a branch;
//!       with one, a load and a store.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use tandemfs_format::InodeNumber;

use crate::journal::Journal;
use crate::types::WriteBackPolicy;

/// The table takes one in this many bytes of the host memory for metadata.
const MEMORY_SHARE: u64 = 64;
/// Smallest and largest table, in entries.
const ENTRIES: std::ops::RangeInclusive<u64> = 1 << 10..=1 << 22;

pub(crate) struct Heat {
    /// The last txid at the mount.
    mounted_at: u64,
    ticks: OnceLock<Box<[AtomicU32]>>,
}

impl Heat {
    pub(crate) fn new(policy: WriteBackPolicy, memory_bytes: u64, mounted_at: u64) -> Self {
        let heat = Self { mounted_at, ticks: OnceLock::new() };
        heat.begin(policy, memory_bytes);
        heat
    }

    /// Before a policy holds: every block counts as the oldest ([HE2]).
    pub(crate) fn begin(&self, policy: WriteBackPolicy, memory_bytes: u64) {
        if policy == WriteBackPolicy::MostSpace {
            return; // [HE3]
        }
        let ticks = self.ticks.get_or_init(|| {
            let fits = memory_bytes / MEMORY_SHARE / size_of::<AtomicU32>() as u64;
            let entries = fits.next_power_of_two().clamp(*ENTRIES.start(), *ENTRIES.end());
            (0..entries).map(|_| AtomicU32::new(0)).collect()
        });
        ticks.iter().for_each(|tick| tick.store(0, Relaxed));
    }

    /// Notes a write of a block; `first_log` if it had no logs before and has some now.
    pub(crate) fn written(&self, policy: WriteBackPolicy, journal: &Journal, inode: InodeNumber, block: u64, first_log: bool) {
        if policy == WriteBackPolicy::Coldest || policy == WriteBackPolicy::Oldest && first_log {
            self.note(journal, inode, block);
        }
    }

    /// Notes a read of a block.
    pub(crate) fn read(&self, policy: WriteBackPolicy, journal: &Journal, inode: InodeNumber, block: u64) {
        if policy == WriteBackPolicy::Coldest {
            self.note(journal, inode, block);
        }
    }

    fn note(&self, journal: &Journal, inode: InodeNumber, block: u64) {
        if let Some(entry) = self.entry(inode, block) {
            entry.store(self.now(journal), Relaxed);
        }
    }

    /// How long ago a block was used, in transactions; 0 if the policy ignores ages.
    pub(crate) fn age(&self, policy: WriteBackPolicy, journal: &Journal, inode: InodeNumber, block: u64) -> u32 {
        match (policy, self.entry(inode, block)) {
            (WriteBackPolicy::MostSpace, _) | (_, None) => 0,
            (WriteBackPolicy::Oldest | WriteBackPolicy::Coldest, Some(entry)) => {
                self.now(journal).wrapping_sub(entry.load(Relaxed)) // [HE2]
            }
        }
    }

    /// Never 0 before the count starts again: 0 means *before the mount*.
    fn now(&self, journal: &Journal) -> u32 {
        (journal.last_txid() - self.mounted_at + 1) as u32
    }

    fn entry(&self, inode: InodeNumber, block: u64) -> Option<&AtomicU32> {
        let ticks = self.ticks.get()?;
        let mixed = (inode.get().rotate_left(40) ^ block).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Some(&ticks[(mixed >> 32) as usize & (ticks.len() - 1)])
    }
}
