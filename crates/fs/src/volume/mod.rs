//! What the modules above share: lines through their host copies, the journal, and the allocators of both zones. They meet here: the
//! journal knows no allocator, and the allocators open no transaction.

mod discard;
mod space;
mod units;

use std::ops::Deref;
use std::sync::Arc;

use tandemfs_device::{InFlight, Lines, Structure};
use tandemfs_format::LineAddress;
use tandemfs_format::inode::Timestamp;
use tandemfs_format::space::LogCounting;

use crate::alloc::maps::Maps;
use crate::alloc::memory::MemoryAllocator;
use crate::alloc::sectors::SectorAllocator;
use crate::cache::LineStore;
use crate::error::Result;
use crate::held_back::HeldBack;
use crate::journal::{self, Journal};
use crate::lease::Leases;
use crate::lent_pages::LentPages;
use crate::quarantine::Quarantine;
use crate::quota::Quota;
use crate::types::Update;
use crate::versions::Published;

pub(crate) use crate::cache::Owner;
pub(crate) use discard::Discards;

/// Metadata reads need only its [`LineStore`], to which it dereferences.
pub(crate) struct Volume {
    pub(crate) line_store: LineStore,
    /// Whether file data carries checksums.
    pub(crate) checksums: bool,
    pub(crate) log_counting: LogCounting,
    pub(crate) journal: Journal,
    pub(crate) memory: MemoryAllocator,
    pub(crate) sectors: SectorAllocator,
    pub(crate) quarantine: Quarantine,
    pub(crate) lent_pages: LentPages,
    pub(crate) leases: Arc<Leases>,
    pub(crate) held_back: HeldBack,
    pub(crate) quota: Quota,
    pub(crate) discards: Discards,
    /// For those who keep answers.
    pub(crate) versions: Arc<Published>,
}

/// A transaction of a volume.
pub(crate) type Tx<'v> = journal::Tx<'v, Volume>;

impl Deref for Volume {
    type Target = LineStore;

    fn deref(&self) -> &LineStore {
        &self.line_store
    }
}

impl Volume {
    /// Checksum of file data; 0 if the file system has none.
    pub(crate) fn data_checksum(&self, bytes: &[u8]) -> u32 {
        if self.checksums { self.pair.data(bytes) } else { 0 }
    }

    /// Stores bytes of files and starts to flush them, as far as that is needed or chosen (`updates/`).
    pub(crate) fn store_data(
        &self,
        update: Update,
        structure: Structure,
        (address, skip): (LineAddress, u64),
        bytes: &[u8],
    ) -> Result<Lines<InFlight>> {
        let lines = self.updates.store((&self.drive, &self.live.work), update, structure, (address, skip), bytes)?;
        self.memory.numa.stored(address, bytes.len() as u64);
        Ok(lines)
    }

    /// The allocators' maps as they are saved and loaded.
    pub(crate) fn maps(&self) -> Maps<'_> {
        Maps { line_store: &self.line_store, memory: &self.memory, sectors: &self.sectors }
    }

    /// Writes all dirty lines home and moves the watermark.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        self.journal.checkpoint(&self.line_store)
    }

    /// As `checkpoint`; nothing changes any more when it begins.
    pub(crate) fn last_checkpoint(&self) -> Result<()> {
        self.journal.last_checkpoint(&self.line_store)
    }

    /// Whether lines of file data may be stored in place, with the transaction that updates their checksum ([`Tx::put_data`]).
    pub(crate) fn stores_in_place(&self) -> bool {
        self.journal.stores_in_place(&self.drive)
    }
}

/// The time of an operation, with the resolution of the kernel's own file times.
pub(crate) fn now() -> Timestamp {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    Timestamp { seconds: time.tv_sec, nanoseconds: time.tv_nsec as u32 }
}
