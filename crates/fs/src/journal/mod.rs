//! The journal: makes transactions durable, and writes their lines home.
//!
//! [`Tx`] collects new images of lines; [`Tx::commit`] appends one record to a free ring, persists it once, and changes the host copies.
//! [`checkpoint`] writes host copies home in the background and moves the single watermark (RULES R1). Replay after a crash reads the
//! records back and uses the same `apply` ([`replay`]).
//!
//! If the drive has transactions, they replace all that ([`firmware_commit`]): the rings stay empty, and records that an earlier mount left
//! in them are replayed as usual. The mount chooses the engine; users of [`Tx`] do not see the choice.
//!
//! Lock order: inodes → `gate` (shared) → a ring. A checkpoint takes `checkpoint` → `gate` (exclusive, briefly) → rings one by one →
//! `superblock`. A thread that holds a ring never waits for a checkpoint.

pub(crate) mod checkpoint;
mod firmware_commit;
pub(crate) mod replay;
mod ring;
mod ring_commit;
mod tx;

use std::sync::Arc;

use tandemfs_device::{Apart, Drive};
use tandemfs_format::segment::Region;
use tandemfs_format::superblock::{Superblock, Tail};
use tandemfs_format::{LineAddress, Sector};

pub(crate) use tx::Tx;

use crate::cache::LineStore;
use crate::error::Result;
use crate::quota::Quota;
use crate::space::Space;
use crate::sync::atomic::{AtomicBool, AtomicU64};
use crate::sync::{Condvar, Mutex, RwLockWriteGuard};
use crate::wait::{LongMutex, LongRwLock};
use firmware_commit::FirmwareEngine;
use ring::{Ring, used_ring_bytes};

/// The environment of a transaction: its lines, its journal, and the space accounting, which the journal does not know.
pub(crate) trait Host {
    fn line_store(&self) -> &LineStore;

    fn journal(&self) -> &Journal;

    fn quota(&self) -> &Quota;

    /// Frees space that is unreachable.
    fn free(&self, space: Space);

    /// Frees lines of metadata after the watermark has passed `txid` (RULES R6).
    fn free_lines_after(&self, region: Region, address: LineAddress, lines: u64, txid: u64);

    /// Quarantines space that the device failed: it has no owner and is not reused at once.
    fn hold_back(&self, space: Space);

    /// A sector has changed in place: drops its copies.
    fn forget_copies(&self, sector: Sector);
}

pub(crate) struct Journal {
    /// Each apart from the others ([APT1] of the device's `apart.rs`), as are the next words, which every commit changes.
    rings: Vec<Apart<LongMutex<Ring>>>,
    /// The last txid assigned. Increased only under a ring's lock (RULES R2).
    last_txid: Apart<AtomicU64>,
    /// The durable watermark C.
    watermark: AtomicU64,
    /// Held shared from before a txid is assigned until its lines are in the host copies; exclusively to find a txid below which all are.
    gate: Apart<LongRwLock<()>>,
    /// Mount generation; seeds the records' checksums.
    generation: AtomicU64,
    /// Serialises checkpoints.
    checkpoint: LongMutex<()>,
    /// The superblock as on the device.
    superblock: Mutex<Superblock>,
    /// Wakes the background thread.
    pub(crate) notifier: Arc<Notifier>,
    /// The commit engine if the drive's transactions are used; otherwise `None`, and the rings are used.
    firmware: Option<FirmwareEngine>,
    /// Whether a checkpoint was asked for since the last one.
    asked: AtomicBool,
}

/// Wakes the background thread. While it waits, the thread holds this and not the file system.
#[derive(Debug, Default)]
pub(crate) struct Notifier {
    pub(crate) requests: Mutex<Requests>,
    pub(crate) condition: Condvar,
    /// Whether the thread runs.
    pub(crate) is_listening: AtomicBool,
}

/// What the background thread is asked to do.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Requests {
    pub(crate) checkpoint: bool,
    pub(crate) write_back: bool,
    pub(crate) stop: bool,
}

impl Journal {
    /// A journal with empty rings, as after recovery. `on_drive`: the drive's transactions are used.
    pub(crate) fn new(superblock: Superblock, on_drive: bool) -> Self {
        let geometry = superblock.geometry;
        Self {
            rings: (0..geometry.ring_count())
                .map(|index| Apart::new(LongMutex::new(Ring::new(index, used_ring_bytes(&geometry), Tail::default()))))
                .collect(),
            last_txid: Apart::new(AtomicU64::new(superblock.watermark)),
            watermark: AtomicU64::new(superblock.watermark),
            gate: Apart::default(),
            generation: AtomicU64::new(superblock.generation),
            checkpoint: LongMutex::new(()),
            firmware: on_drive.then(|| FirmwareEngine::new(superblock.watermark)),
            superblock: Mutex::new(superblock),
            notifier: Arc::default(),
            asked: AtomicBool::new(false),
        }
    }

    pub(crate) fn superblock(&self) -> Superblock {
        self.superblock.lock().clone()
    }

    /// Calls `look` with what was written last of the superblock, while no thread writes it.
    pub(crate) fn while_unwritten<T>(&self, look: impl FnOnce(&Superblock) -> T) -> T {
        look(&self.superblock.lock())
    }

    /// Whether the drive's transactions are used.
    pub(crate) fn is_on_drive(&self) -> bool {
        self.firmware.is_some()
    }

    /// Whether lines of file data may be stored in place, in the transaction that updates their checksum ([`Tx::put_data`]).
    pub(crate) fn stores_in_place(&self, drive: &Drive) -> bool {
        self.firmware.is_some() && drive.description().overlapping
    }

    /// Blocks commits on the drive while held: all lines stored there are committed, and in the host copies.
    pub(crate) fn hold_drive_commits(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        self.firmware.as_ref().map(|_| self.gate.write_waiting())
    }

    /// Blocks all commits while held, and what was committed is in the host copies ([QT3] of `quota/`).
    ///
    /// # Errors
    /// `WouldWait`.
    pub(crate) fn hold_commits(&self) -> Result<RwLockWriteGuard<'_, ()>> {
        self.gate.write()
    }

    /// Asks the background thread, if there is one.
    pub(crate) fn ask(&self, ask: impl FnOnce(&mut Requests)) {
        use crate::sync::atomic::Ordering::Relaxed;
        if self.notifier.is_listening.load(Relaxed) {
            ask(&mut self.notifier.requests.lock());
            self.notifier.condition.notify_one();
        }
    }
}
