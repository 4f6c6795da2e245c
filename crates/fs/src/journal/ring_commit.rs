//! The commit engine for a drive without transactions: one record in one ring, persisted once; the lines go home later (RULES R1-R4).

use tandemfs_device::{Fenced, Structure};
use tandemfs_format::LINE_BYTES;
use tandemfs_format::journal::encode;

use super::{Host, Requests, Tx};
use crate::error::Result;
use crate::mutant::{Mutant, on};
use crate::sync::atomic::Ordering::{Relaxed, SeqCst};
use crate::sync::{EXPLORED, current_cpu};

impl<V: Host> Tx<'_, V> {
    /// Appends the record to a free ring, persists it, and changes the host copies. Returns the txid.
    pub(super) fn commit_to_ring(&mut self) -> Result<u64> {
        let (line_store, journal) = (self.host.line_store(), self.host.journal());
        debug_assert!(self.data.is_empty(), "file data is stored in place by the drive's transactions alone");
        journal.bound_dirty_pages(line_store)?; // [CH6]
        loop {
            let gate = journal.gate.read()?;
            line_store.health.check_writable()?; // under the gate: no commit after an unmount closed it
            let charged = self.host.quota().charge(&self.charges)?; // [QT2] of `quota/`
            // Any free ring (RULES R2): starts at this CPU's ring, tries all, then waits for the preferred one.
            let ring_count = if EXPLORED { 2 } else { journal.rings.len() };
            let preferred = current_cpu() % ring_count;
            let early_txid = on(Mutant::TxidBeforeRing).then(|| journal.last_txid.fetch_add(1, SeqCst) + 1);
            let rings = journal.rings[..ring_count].iter().cycle().skip(preferred).take(ring_count);
            let mut ring = match rings.clone().find_map(|ring| ring.try_lock()) {
                Some(ring) => ring,
                None => journal.rings[preferred].lock()?,
            };
            let Some(reservation) = ring.reserve(self.addresses.len()) else {
                drop(ring);
                drop(charged); // under the gate: counting may end and begin without it
                drop(gate);
                journal.checkpoint(line_store)?;
                continue;
            };
            let txid = early_txid.unwrap_or_else(|| journal.last_txid.fetch_add(1, SeqCst) + 1);
            let generation = journal.superblock_generation();
            let mut buffer = std::mem::take(&mut ring.buffer);
            let seed = line_store.pair.journal(ring.index, reservation.start.wrap, generation);
            encode(&mut buffer, seed, reservation.start.wrap, txid, &self.addresses, &self.images);
            let address = line_store.geometry.ring(ring.index).nth(u64::from(reservation.start.offset_bytes) / LINE_BYTES as u64);
            for (address, image) in self.addresses.iter().zip(&self.images).filter(|_| on(Mutant::HomeBeforeRecord)) {
                drop(line_store.drive.persist(Structure::Inode, *address, image)?);
            }
            let released_early = on(Mutant::RingReleasedEarly);
            if released_early {
                let index = ring.index as usize;
                ring.advance(reservation, txid);
                drop(ring);
                drop(line_store.drive.persist(Structure::Journal, address, &buffer)?);
                ring = journal.rings[index].lock()?;
            }
            let persisted = if released_early {
                Ok(Fenced::nothing_stored())
            } else if on(Mutant::RecordNotFlushed) {
                line_store.drive.store(Structure::Journal, address, &buffer).map(|_| Fenced::nothing_stored())
            } else {
                line_store.drive.persist(Structure::Journal, address, &buffer) // [J1]
            };
            ring.buffer = buffer;
            match persisted {
                Ok(proof) => drop::<Fenced>(proof),
                // R15: it is unknown whether the record is persistent, so no record may follow it.
                Err(error) => return Err(line_store.health.stop("writing the journal", &error)),
            }
            if !released_early {
                ring.advance(reservation, txid);
            }
            let wants_checkpoint = ring.wants_checkpoint() || line_store.pages.wants_checkpoint();
            drop(ring);
            for ((page, address), image) in self.pages.iter().zip(&self.addresses).zip(&self.images) {
                line_store.pages.apply(page, *address, image); // R4
            }
            if let Some(charged) = charged {
                charged.settle();
            }
            drop(gate);
            if wants_checkpoint && !journal.asked.swap(true, Relaxed) {
                journal.ask(|requests: &mut Requests| requests.checkpoint = true);
            }
            return Ok(txid);
        }
    }
}
