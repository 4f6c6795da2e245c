//! The engine of a drive with transactions (ByteFS §4.6): every line goes straight home by tagged stores, one COMMIT makes them durable
//! together, and there is no journal and no checkpoint.
//!
//! [FC1] Tagged stores are issued only when the data is durable and nothing but the drive can fail any more; then flush, fence, COMMIT
//!       (RULES R16). The proofs of [T4] are in `commit`'s hands by then, and every page was loaded by `Tx::put`.
//! [FC2] An error between the first tagged store and the end of COMMIT stops the file system: there is no abort, and nobody knows whether the
//!       transaction is committed (R15, R16). The drive goes on showing what was stored, so the pages stay pinned until the mount ends: reads
//!       find the host copies as they were. File data that was stored in place has no host copy; it reads as damaged until the drive recovers.
//! [FC3] Host copies change after COMMIT and are clean at once (RULES R4): home is where the line already is.
//! [FC4] A line's lock is held until COMMIT returned: `commit` returns after it. So no line has two open versions, and the order of commits is
//!       the order of versions, by which the drive recovers.
//! [FC5] A number is never 0 and is used once between two cleanings of the drive's log (R17): they rise, and when they end, nobody commits
//!       (the gate), the drive cleans, and they begin again. A recovery empties the log as well, so a mount begins at 1.
//! [FC6] What a transaction frees is free after its COMMIT, metadata too: nothing is replayed over it (R6).
//! [FC7] Txids go on rising, for generations of inodes come from them; no record keeps them, so the superblock's watermark is a bound below
//!       which all that were given out lie, raised before it is reached. A mount after a crash begins there.
//!
//! Lines of a page that follow each other go as one store.

use std::sync::Arc;

use smallvec::SmallVec;
use tandemfs_device::{Committed, DeviceError, Drive, Fenced, InFlight, Lines, Structure, TxId};
use tandemfs_format::{LINE_BYTES, Line, LineAddress, PAGE_BYTES};

use super::{Journal, Tx};
use crate::Result;
use crate::cache::Page;
use crate::inject::last_transaction_number;
use crate::mutant::{Mutant, on};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering::SeqCst};
use crate::volume::Volume;

/// Txids by which the durable bound is raised ([FC7]).
const TXIDS_RESERVED: u64 = 1 << 16;

/// What this engine keeps between transactions.
pub(crate) struct FirmwareEngine {
    /// The next number of a transaction of the drive ([FC5]).
    next: AtomicU64,
    /// The largest txid that may be given out ([FC7]).
    txid_bound: AtomicU64,
    /// Pages of transactions that failed ([FC2]).
    pinned: Mutex<Vec<Arc<Page>>>,
}

/// A line and where it goes.
type Change<'t> = (LineAddress, Structure, &'t Line);

impl FirmwareEngine {
    /// After the drive's recovery, which emptied its log.
    pub(super) fn new(watermark: u64) -> Self {
        Self { next: AtomicU64::new(1), txid_bound: AtomicU64::new(watermark), pinned: Mutex::default() }
    }

    /// A number that no transaction has had since the last cleaning; `None` when they are used up.
    fn take_number(&self) -> Option<TxId> {
        let last = u64::from(last_transaction_number());
        let number = self.next.fetch_update(SeqCst, SeqCst, |next| (next <= last).then_some(next + 1)).ok()?;
        TxId::new(number as u32)
    }
}

impl Journal {
    /// The watermark that the superblock is to carry after txids up to `last` were given out ([FC7]).
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

impl Tx<'_> {
    /// Stores every line home and commits them, then changes the host copies. Returns the txid.
    pub(super) fn commit_on_drive(&mut self, engine: &FirmwareEngine) -> Result<u64> {
        let volume = self.volume;
        let journal = &volume.journal;
        loop {
            let gate = journal.gate.read();
            volume.health.check_writable()?; // under the gate: nothing is committed after an unmount closed it
            let bound = engine.txid_bound.load(SeqCst);
            let taken = journal.last_txid.fetch_update(SeqCst, SeqCst, |last| (last < bound).then_some(last + 1));
            let Ok(last) = taken else {
                drop(gate);
                volume.raise_txid_bound(engine)?;
                continue;
            };
            if self.addresses.is_empty() && self.data.is_empty() {
                return Ok(last + 1); // the drive refuses to commit nothing
            }
            let Some(number) = engine.take_number() else {
                drop(gate);
                volume.begin_numbers_again(engine)?;
                continue;
            };
            if on(Mutant::HostCopyBeforeCommit) {
                self.change_host_copies();
            }
            if let Err(error) = self.store_and_commit(number) {
                if !on(Mutant::FailedPagesUnpinned) {
                    engine.pinned.lock().extend(self.pages.drain(..)); // [FC2]
                }
                return Err(volume.health.stop("a transaction of the drive", &error));
            }
            self.change_host_copies(); // [FC3]
            return Ok(last + 1);
        }
    }

    fn change_host_copies(&self) {
        for ((page, address), image) in self.pages.iter().zip(&self.addresses).zip(&self.images) {
            self.volume.pages.apply_clean(page, *address, image);
        }
    }

    fn store_and_commit(&self, number: TxId) -> std::result::Result<(), DeviceError> {
        let drive = &self.volume.drive;
        let metadata = self.addresses.iter().zip(&self.structures).zip(&self.images).map(|((address, structure), image)| {
            (*address, *structure, image) // all of one page are of one structure
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

/// Stores lines that follow each other in one page.
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

impl Volume {
    /// Raises the bound of txids, durably ([FC7]).
    fn raise_txid_bound(&self, engine: &FirmwareEngine) -> Result<()> {
        let _one = self.journal.checkpoint.lock();
        if self.journal.last_txid() < engine.txid_bound.load(SeqCst) {
            return Ok(()); // somebody else did
        }
        let bound = self.journal.last_txid() + TXIDS_RESERVED;
        self.update_superblock(Fenced::nothing_stored(), |superblock| superblock.watermark = bound)?;
        engine.txid_bound.store(bound, SeqCst);
        Ok(())
    }

    /// Empties the drive's log while nobody commits, so that numbers begin again at 1 ([FC5]).
    fn begin_numbers_again(&self, engine: &FirmwareEngine) -> Result<()> {
        let _nobody_commits = self.journal.gate.write();
        if engine.next.load(SeqCst) <= u64::from(last_transaction_number()) {
            return Ok(()); // somebody else did
        }
        if !on(Mutant::NumbersReused) {
            self.drive.clean().map_err(|error| self.health.stop("cleaning the drive's log", &error))?;
        }
        engine.next.store(1, SeqCst);
        Ok(())
    }

    /// Whether lines of file data may be stored in place, with the transaction that renews their checksum ([`Tx::put_data`]).
    pub(crate) fn stores_in_place(&self) -> bool {
        self.journal.firmware.is_some() && self.drive.description().overlapping
    }
}
