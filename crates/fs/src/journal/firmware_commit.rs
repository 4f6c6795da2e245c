//! The commit engine for a drive with transactions (ByteFS §4.6): tagged stores write every line home, one COMMIT makes them durable
//! together; there is no journal and no checkpoint.
//!
//! [FC1] Tagged stores are issued only when the data is durable and only the drive can still fail; then flush, fence, COMMIT (RULES R16).
//!       By then `commit` holds the proofs of [TX4], and `Tx::put` has loaded every page.
//! [FC2] An error between the first tagged store and the end of COMMIT stops the file system: there is no abort, and the transaction may or
//!       may not be committed (R15, R16). The drive still shows the stored lines, so the pages stay pinned until the mount ends: reads find
//!       the old host copies. File data stored in place has no host copy; it reads as damaged until the drive recovers.
//! [FC3] Host copies change after COMMIT and are clean at once (RULES R4), because the lines are already home.
//! [FC4] A line's lock is held until `commit` returns, which is after COMMIT. So no line has two open versions, and the commit order is the
//!       version order, by which the drive recovers.
//! [FC5] A transaction number is never 0 and is used once between two cleanings of the drive's log (R17). Numbers increase; when they run
//!       out, commits are blocked (the gate), the drive cleans its log, and numbers restart at 1. A recovery empties the log too, so a
//!       mount starts at 1.
//! [FC6] Space freed by a transaction is free after its COMMIT, metadata too: no replay can overwrite it (R6).
//! [FC7] Txids keep increasing, because generations of inodes come from them. No record keeps them, so the superblock's watermark is an
//!       upper bound of all assigned txids, raised before it is reached. A mount after a crash starts there.
//!
//! Consecutive lines of a page are one store.

use std::sync::Arc;

use smallvec::SmallVec;
use tandemfs_device::{Committed, DeviceError, Drive, Fenced, InFlight, Lines, Structure, TxId};
use tandemfs_format::{LINE_BYTES, Line, LineAddress, PAGE_BYTES};

use super::{Host, Journal, Tx};
use crate::cache::{LineStore, Page};
use crate::error::Result;
use crate::inject::last_transaction_number;
use crate::mutant::{Mutant, on};
use crate::sync::atomic::{AtomicU64, Ordering::SeqCst};
use crate::sync::{EXPLORED, Mutex};
use crate::wait::may_wait;

/// Number of txids by which the durable bound is raised ([FC7]).
const TXIDS_RESERVED: u64 = if EXPLORED { 16 } else { 1 << 16 };

/// State of this engine between transactions.
pub(crate) struct FirmwareEngine {
    /// The next transaction number of the drive ([FC5]).
    next: AtomicU64,
    /// The largest txid that may be assigned ([FC7]).
    txid_bound: AtomicU64,
    /// Pages of failed transactions ([FC2]).
    pinned: Mutex<Vec<Arc<Page>>>,
}

/// A line's address, its structure and its image.
type Change<'t> = (LineAddress, Structure, &'t Line);

impl FirmwareEngine {
    /// For use after the drive's recovery, which emptied its log.
    pub(super) fn new(watermark: u64) -> Self {
        Self { next: AtomicU64::new(1), txid_bound: AtomicU64::new(watermark), pinned: Mutex::default() }
    }

    /// A number not used since the last cleaning; `None` if all are used.
    fn take_number(&self) -> Option<TxId> {
        let last = u64::from(last_transaction_number());
        let number = self.next.fetch_update(SeqCst, SeqCst, |next| (next <= last).then_some(next + 1)).ok()?;
        TxId::new(number as u32)
    }
}

impl Journal {
    /// The watermark for the superblock after txids up to `last` were assigned ([FC7]).
    pub(crate) fn durable_watermark(&self, last: u64) -> u64 {
        match &self.firmware {
            Some(engine) => {
                let bound = last + TXIDS_RESERVED;
                engine.txid_bound.store(bound, SeqCst);
                bound
            }
            None => last,
        }
    }
}

impl<V: Host> Tx<'_, V> {
    /// Stores every line home and commits them, then changes the host copies. Returns the txid.
    pub(super) fn commit_on_drive(&mut self, engine: &FirmwareEngine) -> Result<u64> {
        let (line_store, journal) = (self.host.line_store(), self.host.journal());
        loop {
            let gate = journal.gate.read()?;
            line_store.health.check_writable()?; // under the gate: no commit after an unmount closed it
            let charged = self.host.quota().charge(&self.charges)?; // [QT2] of `quota/`
            let bound = engine.txid_bound.load(SeqCst);
            let taken = journal.last_txid.fetch_update(SeqCst, SeqCst, |last| (last < bound).then_some(last + 1));
            let Ok(last) = taken else {
                drop(charged); // under the gate, as in `ring_commit.rs`
                drop(gate);
                journal.raise_txid_bound(line_store, engine)?;
                continue;
            };
            if self.addresses.is_empty() && self.data.is_empty() {
                return Ok(last + 1); // the drive refuses an empty commit
            }
            let Some(number) = engine.take_number() else {
                drop(charged);
                drop(gate);
                journal.begin_numbers_again(line_store, engine)?;
                continue;
            };
            if on(Mutant::HostCopyBeforeCommit) {
                self.change_host_copies();
            }
            if let Err(error) = self.store_and_commit(number) {
                if !on(Mutant::FailedPagesUnpinned) {
                    engine.pinned.lock().extend(self.pages.drain(..)); // [FC2]
                }
                return Err(line_store.health.stop("a transaction of the drive", &error));
            }
            self.change_host_copies(); // [FC3]
            if let Some(charged) = charged {
                charged.settle();
            }
            return Ok(last + 1);
        }
    }

    fn change_host_copies(&self) {
        for ((page, address), image) in self.pages.iter().zip(&self.addresses).zip(&self.images) {
            self.host.line_store().pages.apply_clean(page, *address, image);
        }
    }

    fn store_and_commit(&self, number: TxId) -> std::result::Result<(), DeviceError> {
        let drive = &self.host.line_store().drive;
        let metadata = self.addresses.iter().zip(&self.structures).zip(&self.images).map(|((address, structure), image)| {
            (*address, *structure, image) // all lines of a page have one structure
        });
        let data = self.data.iter().map(|(address, image)| (*address, Structure::Data, image));
        let mut changes: SmallVec<[Change<'_>; 16]> = metadata.chain(data).collect();
        changes.sort_unstable_by_key(|(address, ..)| *address);
        let mut in_flight = Lines::<InFlight>::none();
        for run in changes.chunk_by(|(one, of, _), (next, other, _)| one.nth(1) == *next && one.page() == next.page() && of == other) {
            in_flight = in_flight.and(store_run(drive, number, run)?);
        }
        let fenced = if on(Mutant::CommitWithoutFence) { Fenced::nothing_stored() } else { drive.fence(in_flight) };
        if on(Mutant::CommitForgotten) {
            return Ok(());
        }
        drop::<Committed>(drive.commit(number, fenced)?); // [FC1]
        Ok(())
    }
}

/// Stores consecutive lines of one page.
fn store_run(drive: &Drive, number: TxId, run: &[Change<'_>]) -> std::result::Result<Lines<InFlight>, DeviceError> {
    let (address, structure, first) = run[0];
    if on(Mutant::StoredUntagged) {
        for (address, structure, line) in &run[1..] {
            drop(drive.persist(*structure, *address, *line)?);
        }
        return Ok(drive.flush_lines(drive.store_tagged(structure, number, address, first)?));
    }
    if run.len() == 1 {
        return Ok(drive.flush_lines(drive.store_tagged(structure, number, address, first)?));
    }
    let mut bytes = [0; PAGE_BYTES];
    for (place, (.., line)) in bytes.chunks_exact_mut(LINE_BYTES).zip(run) {
        place.copy_from_slice(*line);
    }
    let stored = drive.store_tagged(structure, number, address, &bytes[..run.len() * LINE_BYTES])?;
    Ok(drive.flush_lines(stored))
}

impl Journal {
    /// Raises the bound of txids, durably ([FC7]).
    fn raise_txid_bound(&self, line_store: &LineStore, engine: &FirmwareEngine) -> Result<()> {
        may_wait()?;
        let _one = self.checkpoint.lock()?;
        if self.last_txid() < engine.txid_bound.load(SeqCst) {
            return Ok(()); // another thread did
        }
        let bound = self.last_txid() + TXIDS_RESERVED;
        self.update_superblock(line_store, Fenced::nothing_stored(), |superblock| superblock.watermark = bound)?;
        engine.txid_bound.store(bound, SeqCst);
        Ok(())
    }

    /// Empties the drive's log while commits are blocked, so that numbers restart at 1 ([FC5]).
    fn begin_numbers_again(&self, line_store: &LineStore, engine: &FirmwareEngine) -> Result<()> {
        may_wait()?;
        let _nobody_commits = self.gate.write()?;
        if engine.next.load(SeqCst) <= u64::from(last_transaction_number()) {
            return Ok(()); // another thread did
        }
        if !on(Mutant::NumbersReused) {
            line_store.drive.clean().map_err(|error| line_store.health.stop("cleaning the drive's log", &error))?;
        }
        engine.next.store(1, SeqCst);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tandemfs_crash::MemoryDevice;
    use tandemfs_device::{BlockPath, BlockRequest, Flushed, PersistenceDomain};
    use tandemfs_format::{SECTOR_BYTES, Sector};

    use super::*;
    use crate::alloc::Need;
    use crate::space::Space;
    use crate::volume::Tx;
    use crate::{Engine, Error, FileSystem, FormatOptions, MountOptions, make_file_system};

    fn drive(device: &MemoryDevice) -> Drive {
        Drive::new(Arc::new(device.clone()))
    }

    fn formatted() -> (MemoryDevice, FileSystem) {
        let device = MemoryDevice::with_firmware(16 << 20, 16 << 20, PersistenceDomain::Adr);
        make_file_system(&drive(&device), &FormatOptions::default()).expect("formats");
        let fs = FileSystem::mount(drive(&device), &MountOptions::default()).expect("mounts");
        (device, fs)
    }

    fn sector_bytes(device: &MemoryDevice, sector: Sector) -> Vec<u8> {
        let mut bytes = vec![0; SECTOR_BYTES];
        device.transfer(&mut [BlockRequest::Read { sector, buffer: (&mut bytes).into() }], &mut || {}).expect("reads");
        bytes
    }

    /// A written sector that belongs to no file.
    fn written_sector(fs: &FileSystem) -> Sector {
        let volume = &fs.volume;
        let extent = volume.sectors.take(1, Need::Growth).expect("room");
        let mut requests = [BlockRequest::Write { sector: extent, buffer: (&[7; SECTOR_BYTES]).into() }];
        let written = volume.drive.transfer(Structure::Data, &mut requests, &mut || {}).expect("writes");
        drop::<Flushed>(volume.drive.flush_blocks(written).expect("flushes"));
        extent
    }

    fn commit(tx: Tx<'_>) -> Result<u64> {
        tx.commit(Fenced::nothing_stored(), Flushed::nothing_written())
    }

    #[test]
    fn lines_of_data_go_to_their_sector_with_the_commit() {
        let (device, fs) = formatted();
        assert!(fs.volume.stores_in_place());
        let sector = written_sector(&fs);
        let mut tx = Tx::new(&fs.volume);
        tx.put_data(sector, 3, [1; LINE_BYTES]);
        drop(tx);
        assert_eq!(sector_bytes(&device, sector), [7; SECTOR_BYTES], "dropped without commit");

        let before = fs.volume.drive.counters().snapshot();
        let mut tx = Tx::new(&fs.volume);
        for (line, byte) in [(63, 1), (3, 2), (4, 3), (3, 4)] {
            tx.put_data(sector, line, [byte; LINE_BYTES]);
        }
        commit(tx).expect("committed");
        let after = fs.volume.drive.counters().snapshot();
        let data = |counters: &tandemfs_device::CountersSnapshot| counters.by_structure[Structure::Data as usize].byte_written_bytes;
        assert_eq!(data(&after) - data(&before), 3 * LINE_BYTES as u64, "of data, by bytes");
        let mut expected = [7; SECTOR_BYTES];
        for (line, byte) in [(3, 4), (4, 3), (63, 1)] {
            expected[line * LINE_BYTES..(line + 1) * LINE_BYTES].fill(byte);
        }
        assert_eq!(sector_bytes(&device, sector), expected);
        drop(fs);
        FileSystem::mount(drive(&device), &MountOptions::default()).expect("recovers");
        assert_eq!(sector_bytes(&device, sector), expected, "committed");
    }

    #[test]
    fn what_a_transaction_frees_is_free_at_once() {
        let (_device, fs) = formatted();
        let volume = &fs.volume;
        let page = volume.take_page(tandemfs_format::segment::Region::Mappings, Structure::Mapping, Need::Growth);
        let address = page.expect("room");
        let mut tx = Tx::new(volume);
        tx.put(Structure::Mapping, address, [0; LINE_BYTES]).expect("loads");
        tx.free(Space::Region { region: tandemfs_format::segment::Region::Mappings, address, lines: 64 });
        tx.charge_to(crate::quota::Ids { user: 0, group: 0, project: 0 });
        commit(tx).expect("committed");
        assert_eq!(volume.memory.waiting_and_free(tandemfs_format::segment::Region::Mappings).0, 0, "nothing waits for a watermark");
        assert_eq!(volume.pages.dirty_count(), 0, "and no page has to be kept");
        let checkpoints = fs.statistics().work.checkpoints;
        fs.checkpoint().expect("nothing to do");
        assert_eq!(fs.statistics().work.checkpoints, checkpoints);
    }

    #[test]
    fn txids_stay_below_the_bound_on_the_device_and_rise_over_crashes() {
        let (device, fs) = formatted();
        let volume = &fs.volume;
        let last = volume.journal.last_txid();
        volume.journal.set_last_txid(last + TXIDS_RESERVED - 2);
        let mut given = Vec::new();
        for byte in 0..5 {
            let mut tx = Tx::new(volume);
            // An unused line: the last of the segment table.
            tx.put(
                Structure::AllocationMap,
                volume.geometry.segment_line(tandemfs_format::geometry::SEGMENT_TABLE_LINES - 1),
                [0; LINE_BYTES],
            )
            .expect("loads");
            given.push(commit(tx).expect("committed"));
            assert!(given.last() <= Some(&crate::read_superblock(&volume.drive).expect("reads").watermark), "{byte}: {given:?}");
        }
        assert!(given.windows(2).all(|pair| pair[1] == pair[0] + 1));
        let highest = given[given.len() - 1];
        drop(fs);
        let fs = FileSystem::mount(drive(&device), &MountOptions::default()).expect("recovers");
        assert!(fs.volume.journal.last_txid() >= highest, "no generation is given out twice");
        fs.unmount().expect("unmounts");
        let clean = crate::read_superblock(&fs.volume.drive).expect("reads");
        assert!(clean.clean && clean.watermark == fs.volume.journal.last_txid());
    }

    #[test]
    fn a_drive_without_transactions_keeps_its_journal() {
        let device = MemoryDevice::new(16 << 20, 16 << 20, PersistenceDomain::Adr);
        make_file_system(&drive(&device), &FormatOptions::default()).expect("formats");
        let firmware = MountOptions { engine: Engine::Firmware, ..MountOptions::default() };
        match FileSystem::mount(drive(&device), &firmware).map(drop) {
            Err(Error::InvalidArgument(reason)) => assert!(reason.contains("engine=journal"), "{reason}"),
            other => panic!("{other:?}"),
        }
        let fs = FileSystem::mount(drive(&device), &MountOptions::default()).expect("mounts");
        assert!(!fs.commits_on_drive() && !fs.volume.stores_in_place());
        fs.unmount().expect("unmounts");

        let (device, fs) = formatted();
        assert!(fs.commits_on_drive() && fs.recovery().drive.is_some());
        fs.unmount().expect("unmounts");
        let journal = MountOptions { engine: Engine::Journal, ..MountOptions::default() };
        assert!(!FileSystem::mount(drive(&device), &journal).expect("mounts").volume.stores_in_place());
    }
}
