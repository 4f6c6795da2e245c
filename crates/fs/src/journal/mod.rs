//! The journal: how a transaction becomes durable, and how its lines get home.
//!
//! [`Tx`] collects new images of lines; [`Tx::commit`] appends one record to a free ring, persists it once, and changes the host copies.
//! [`checkpoint`] writes host copies home behind the foreground and moves the one watermark (RULES R1). Replay after a crash reads the
//! records back and goes through the same `apply` ([`replay`]).
//!
//! Where the drive has transactions, they take the place of all that ([`firmware_commit`]): the rings stay empty, and what an earlier mount
//! left in them is replayed as ever. Which of the two engines runs is decided at the mount; nobody outside this room knows.
//!
//! Order of locks: inodes → `gate` (shared) → a ring. A checkpoint takes `checkpoint` → `gate` (exclusive, for an instant) → rings one by
//! one → `superblock`. Nobody who holds a ring waits for a checkpoint.

pub(crate) mod checkpoint;
mod firmware_commit;
pub(crate) mod replay;
mod ring;
mod ring_commit;
mod tx;

use std::sync::Arc;

use tandemfs_device::Drive;
use tandemfs_format::segment::Region;
use tandemfs_format::superblock::{Superblock, Tail};
use tandemfs_format::{LineAddress, Sector};

pub(crate) use tx::Tx;

use crate::cache::LineStore;
use crate::space::Space;
use crate::sync::atomic::{AtomicBool, AtomicU64};
use crate::sync::{Condvar, Mutex, RwLock, RwLockWriteGuard};
use firmware_commit::FirmwareEngine;
use ring::{Ring, used_ring_bytes};

/// What a transaction belongs to: its lines, its journal, and whoever keeps account of space, which is not known here.
pub(crate) trait Host {
    fn line_store(&self) -> &LineStore;

    fn journal(&self) -> &Journal;

    /// Space that nobody can reach is free.
    fn free(&self, space: Space);

    /// Lines of metadata are free once the watermark has passed `txid` (RULES R6).
    fn free_lines_after(&self, region: Region, address: LineAddress, lines: u64, txid: u64);

    /// Space that the device failed is nobody's, and is not given out again at once.
    fn hold_back(&self, space: Space);

    /// A sector has changed where it lies: copies of it are no copies any more.
    fn forget_copies(&self, sector: Sector);
}

pub(crate) struct Journal {
    rings: Vec<Mutex<Ring>>,
    /// The last txid taken. Raised under a ring's lock only (RULES R2).
    last_txid: AtomicU64,
    /// The durable watermark C.
    watermark: AtomicU64,
    /// Held shared from before a txid is taken until its lines are in the host copies; exclusive to find a txid below which all are.
    gate: RwLock<()>,
    /// Mount generation: seeds the records.
    generation: AtomicU64,
    /// One checkpoint at a time.
    checkpoint: Mutex<()>,
    /// The superblock as it stands on the device.
    superblock: Mutex<Superblock>,
    /// Wakes the background thread.
    pub(crate) bell: Arc<Bell>,
    /// The engine, where the drive's transactions serve; else the rings do.
    firmware: Option<FirmwareEngine>,
    /// Whether a checkpoint was asked for since the last one.
    asked: AtomicBool,
}

/// How the background thread is woken; the thread holds this and not the file system while it waits.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    pub(crate) wake: Mutex<Wake>,
    pub(crate) rung: Condvar,
    /// Whether anybody listens.
    pub(crate) heard: AtomicBool,
}

/// What the background thread is asked for.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wake {
    pub(crate) checkpoint: bool,
    pub(crate) write_back: bool,
    pub(crate) stop: bool,
}

impl Journal {
    /// A journal with empty rings, as it is after recovery. `on_drive`: transactions are the drive's.
    pub(crate) fn new(superblock: Superblock, on_drive: bool) -> Self {
        let geometry = superblock.geometry;
        Self {
            rings: (0..geometry.ring_count())
                .map(|index| Mutex::new(Ring::new(index, used_ring_bytes(&geometry), Tail::default())))
                .collect(),
            last_txid: AtomicU64::new(superblock.watermark),
            watermark: AtomicU64::new(superblock.watermark),
            gate: RwLock::new(()),
            generation: AtomicU64::new(superblock.generation),
            checkpoint: Mutex::new(()),
            firmware: on_drive.then(|| FirmwareEngine::new(superblock.watermark)),
            superblock: Mutex::new(superblock),
            bell: Arc::default(),
            asked: AtomicBool::new(false),
        }
    }

    pub(crate) fn superblock(&self) -> Superblock {
        self.superblock.lock().clone()
    }

    /// Calls `look` while nobody writes the superblock.
    pub(crate) fn while_unwritten<T>(&self, look: impl FnOnce() -> T) -> T {
        let _superblock = self.superblock.lock();
        look()
    }

    /// Whether transactions are the drive's.
    pub(crate) fn is_on_drive(&self) -> bool {
        self.firmware.is_some()
    }

    /// Whether lines of file data may be stored in place, with the transaction that renews their checksum ([`Tx::put_data`]).
    pub(crate) fn stores_in_place(&self, drive: &Drive) -> bool {
        self.firmware.is_some() && drive.description().overlapping
    }

    /// Lets nobody commit on the drive, for as long as it is held: what is stored there is committed, and in the host copies.
    pub(crate) fn hold_drive_commits(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        self.firmware.as_ref().map(|_| self.gate.write())
    }

    /// Asks the background thread; does nothing where there is none.
    pub(crate) fn ask(&self, ask: impl FnOnce(&mut Wake)) {
        use crate::sync::atomic::Ordering::Relaxed;
        if self.bell.heard.load(Relaxed) {
            ask(&mut self.bell.wake.lock());
            self.bell.rung.notify_one();
        }
    }
}
