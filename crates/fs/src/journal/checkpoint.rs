//! Checkpoint: writes host copies home, then moves the watermark, then the rings' tails (RULES R1).
//!
//! [CH1] The target is a txid such that every record at or below it is persistent and applied to the host copies (the gate is held
//!       exclusively).
//! [CH2] Every line that is dirty at that instant is home and fenced before the watermark moves to the target. A line may be written with a
//!       newer committed image; its record is above the watermark and will be replayed over it.
//! [CH3] Both superblocks carry the watermark durably before a ring reuses a byte ([J3]).
//! [CH4] A failure stops the file system (RULES R15).
//! [CH5] An engine without records has nothing to checkpoint ([FC3], [FC7] of `firmware_commit.rs`).
//! [CH6] A thread that commits while too many pages are dirty ([CA3] of `cache/`) first waits for the running checkpoint, and runs its own
//!       if that was not enough. It may hold locks of inodes and of a region, but neither gate nor ring. A checkpoint takes only gate,
//!       rings and superblock, so it never waits for a thread that waits for it. The thread does this once, not until enough pages are
//!       clean: concurrent commits cannot block it forever, and exceed the bound by at most one transaction each.

use std::sync::Arc;
use std::time::Instant;

use tandemfs_device::{Drive, Fenced, InFlight, Lines, Structure};
use tandemfs_format::geometry::SUPERBLOCK_OFFSETS;
use tandemfs_format::superblock::Superblock;
use tandemfs_format::{LINE_BYTES, LineAddress};
use zerocopy::IntoBytes;

use super::Journal;
use crate::cache::{LineStore, Page};
use crate::error::Result;
use crate::mutant::{Mutant, on};
use crate::statistics::count;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::wait::may_wait;

impl Journal {
    /// The durable watermark.
    pub(crate) fn watermark(&self) -> u64 {
        self.watermark.load(Acquire)
    }

    /// The last txid assigned.
    pub(crate) fn last_txid(&self) -> u64 {
        self.last_txid.load(SeqCst)
    }

    pub(crate) fn superblock_generation(&self) -> u64 {
        self.generation.load(Relaxed)
    }

    pub(crate) fn set_watermark(&self, txid: u64) {
        self.watermark.store(txid, Release);
    }

    pub(crate) fn set_last_txid(&self, txid: u64) {
        self.last_txid.store(txid, SeqCst);
    }

    /// Before a commit: one thread runs a checkpoint if too many pages are dirty ([CH6]). The caller holds neither gate nor ring.
    pub(super) fn bound_dirty_pages(&self, line_store: &LineStore) -> Result<()> {
        if !line_store.pages.is_full_of_dirty() {
            return Ok(());
        }
        may_wait()?;
        let _one = self.checkpoint.lock()?;
        // Another thread may have done a checkpoint meanwhile.
        if line_store.pages.is_full_of_dirty() { self.checkpoint_alone(line_store) } else { Ok(()) }
    }

    /// Writes all dirty lines home and moves the watermark.
    pub(crate) fn checkpoint(&self, line_store: &LineStore) -> Result<()> {
        may_wait()?;
        let _one = self.checkpoint.lock()?;
        self.checkpoint_alone(line_store)
    }

    /// The last one, of an unmount: nothing commits any more when it begins.
    pub(crate) fn last_checkpoint(&self, line_store: &LineStore) -> Result<()> {
        may_wait()?;
        let _one = self.checkpoint.lock()?;
        line_store.health.check_writable()?;
        if !on(Mutant::UnmountClosesLate) {
            let _nobody_commits = self.gate.write_waiting(); // who commits asks under the gate
            line_store.health.close();
        }
        self.write_all_home(line_store)
    }

    /// The caller holds the lock that serialises checkpoints.
    fn checkpoint_alone(&self, line_store: &LineStore) -> Result<()> {
        line_store.health.check_writable()?;
        self.write_all_home(line_store)
    }

    fn write_all_home(&self, line_store: &LineStore) -> Result<()> {
        self.asked.store(false, Relaxed);
        let (target, dirty) = {
            let _nobody_commits = (!on(Mutant::CheckpointPassesCommits)).then(|| self.gate.write_waiting()); // [CH1]
            (self.last_txid(), line_store.pages.take_dirty())
        };
        // On a drive with transactions every commit writes its lines home; only a replay leaves dirty lines.
        if dirty.is_empty() && (self.is_on_drive() || target == self.watermark()) {
            return Ok(());
        }
        let since = Instant::now();
        if on(Mutant::WatermarkBeforeHome) {
            self.update_superblock(line_store, Fenced::nothing_stored(), |superblock| superblock.watermark = target)?;
        }
        let home = self.write_home(line_store, &dirty)?; // [CH2]
        let tails = self.rings.iter().map(|ring| ring.lock_waiting().tail(target)).collect();
        if !on(Mutant::TailReleasedEarly) {
            self.update_superblock(line_store, home, |superblock| {
                superblock.watermark = self.durable_watermark(target);
                superblock.tails = tails;
            })?; // [CH3]
        }
        self.watermark.store(target, Release);
        for ring in &self.rings {
            ring.lock_waiting().release(target);
        }
        count(&line_store.live.work.checkpoints);
        line_store.live.waits.checkpoint.record(since.elapsed());
        Ok(())
    }

    /// Writes the dirty lines of pages home and fences them.
    pub(crate) fn write_home(&self, line_store: &LineStore, pages: &[Arc<Page>]) -> Result<Fenced> {
        let mut in_flight = Lines::<InFlight>::none();
        for (index, page) in pages.iter().enumerate() {
            let written = page.write_dirty(|address, bytes| {
                let lines = line_store.drive.flush_lines(line_store.drive.store(page.structure(), address, bytes)?);
                in_flight = std::mem::replace(&mut in_flight, Lines::none()).and(lines);
                Ok(())
            });
            if let Err(error) = written {
                line_store.pages.keep_dirty(&pages[index..]); // reads continue, and must find committed lines
                line_store.pages.are_home(index);
                return Err(line_store.health.stop("writing metadata home", &error)); // [CH4]
            }
        }
        line_store.pages.are_home(pages.len());
        Ok(line_store.drive.fence(in_flight))
    }

    /// Updates both superblock copies on the device, after what `_before` proves (RULES R1, R25).
    pub(crate) fn update_superblock(&self, line_store: &LineStore, _before: Fenced, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        let mut superblock = self.superblock.lock();
        change(&mut superblock);
        self.generation.store(superblock.generation, Relaxed);
        write_counted(line_store, &mut superblock).map_err(|error| line_store.health.stop("writing the superblock", &error))
    }

    /// Writes the counters of errors at once ([KE1] of `error_counts.rs`).
    pub(crate) fn write_error_counters(&self, line_store: &LineStore) {
        if let Err(error) = write_counted(line_store, &mut self.superblock.lock()) {
            tracing::warn!(%error, "the counters of errors could not be written");
        }
    }
}

/// Writes the superblock as its next version, with the counters of errors ([KE1]).
fn write_counted(line_store: &LineStore, superblock: &mut Superblock) -> std::result::Result<(), tandemfs_device::DeviceError> {
    superblock.error_counters = line_store.errors.total(&line_store.drive);
    superblock.sequence += 1;
    write_superblock(&line_store.drive, superblock)
}

/// Writes both copies, one after the other with a fence between, so that one of them is always valid. The damaged or older copy is written
/// first: a crash may have torn one copy, and then only the other is valid.
pub(crate) fn write_superblock(drive: &Drive, superblock: &Superblock) -> std::result::Result<(), tandemfs_device::DeviceError> {
    let places = SUPERBLOCK_OFFSETS.map(|offset| LineAddress::new(offset / LINE_BYTES as u64));
    let mut sequences = [None; 2];
    for (sequence, address) in sequences.iter_mut().zip(places) {
        let mut found = [0; 1024];
        // An unreadable copy counts as damaged: it is written first, and the other copy remains if that fails.
        let loaded = drive.load(Structure::Superblock, address, &mut found);
        *sequence = loaded.ok().and_then(|()| Superblock::decode(&found).ok()).map(|found| found.sequence);
    }
    let bytes = superblock.encode();
    let first = usize::from(sequences[1] < sequences[0]);
    for address in [places[first], places[1 - first]].into_iter().take(if on(Mutant::SecondSuperblockSkipped) { 1 } else { 2 }) {
        drop(drive.persist(Structure::Superblock, address, bytes.as_bytes())?);
    }
    Ok(())
}
