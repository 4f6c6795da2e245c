//! A transaction: a bounded list of new line images, what it took and what it gives back.
//!
//! [T1] Bounded: at most `TX_LINES_MAX` lines, held against the ring at compile time in `format` (RULES R11).
//! [T2] Committed by move: record persistent first, host copies after (RULES R4), freed data space after that (R7), freed metadata space
//!      only when the watermark has passed (R6).
//! [T3] Dropped without commit: everything that it took goes back, nothing else happened. Where the device failed it, what it took is
//!      suspect and goes into quarantine first.
//! [T4] Data that the record points to is durable before the record: `commit` asks for the proofs (RULES R8).

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;
use tandemfs_device::{Fenced, Flushed, Structure};
use tandemfs_format::journal::{TX_LINES_MAX, encode};
use tandemfs_format::segment::Region;
use tandemfs_format::{LINE_BYTES, Line, LineAddress, Sector};

use super::Wake;
use crate::cache::Page;
use crate::mutant::{Mutant, on};
use crate::statistics::count;
use crate::sync::atomic::Ordering::{Relaxed, SeqCst};
use crate::sync::{EXPLORED, current_cpu};
use crate::volume::{Owner, Volume};
use crate::{Error, Result};

/// Space of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    /// Lines of a region: metadata.
    Region { region: Region, address: LineAddress, lines: u64 },
    /// Lines of the data area: a data-log slot.
    Slot { address: LineAddress, lines: u64 },
    /// Sectors of the block zone.
    Sectors { sector: Sector, count: u64 },
}

impl fmt::Display for Space {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Region { region, address, lines } => write!(formatter, "{lines} lines from {address}, region {}", region.number()),
            Self::Slot { address, lines } => write!(formatter, "a slot of {lines} lines at {address}"),
            Self::Sectors { sector, count } => write!(formatter, "{count} sectors from {sector}"),
        }
    }
}

pub(crate) struct Tx<'v> {
    volume: &'v Volume,
    addresses: SmallVec<[LineAddress; 8]>,
    images: SmallVec<[Line; 8]>,
    pages: SmallVec<[Arc<Page>; 8]>,
    taken: SmallVec<[Space; 8]>,
    freed: SmallVec<[Space; 8]>,
    /// The device failed an access of what was taken.
    suspect: bool,
}

impl<'v> Tx<'v> {
    pub(crate) fn new(volume: &'v Volume) -> Self {
        Self {
            volume,
            addresses: SmallVec::new(),
            images: SmallVec::new(),
            pages: SmallVec::new(),
            taken: SmallVec::new(),
            freed: SmallVec::new(),
            suspect: false,
        }
    }

    pub(crate) fn volume(&self) -> &'v Volume {
        self.volume
    }

    /// The line as this transaction leaves it, verified for its owner.
    pub(crate) fn line(&self, owner: Owner, structure: Structure, address: LineAddress) -> Result<Line> {
        match self.position(address) {
            Some(position) => Ok(self.images[position]),
            None => self.volume.line(owner, structure, address),
        }
    }

    /// The line as this transaction leaves it, not verified.
    pub(crate) fn raw_line(&self, structure: Structure, address: LineAddress) -> Result<Line> {
        match self.position(address) {
            Some(position) => Ok(self.images[position]),
            None => self.volume.raw_line(structure, address),
        }
    }

    /// A new image of a line. The caller holds the lock that owns it (RULES R5).
    pub(crate) fn put(&mut self, structure: Structure, address: LineAddress, image: Line) -> Result<()> {
        if let Some(position) = self.position(address) {
            self.images[position] = image;
            return Ok(());
        }
        assert!(self.addresses.len() < TX_LINES_MAX, "a transaction of more than {TX_LINES_MAX} lines (R11)");
        let page = self.volume.pages.page(&self.volume.drive, &self.volume.live.work, structure, address);
        let page = self.suspect_if_failed(page)?;
        self.addresses.push(address);
        self.images.push(image);
        self.pages.push(page);
        Ok(())
    }

    fn position(&self, address: LineAddress) -> Option<usize> {
        self.addresses.iter().rposition(|other| *other == address)
    }

    /// Remembers that the device failed an access for which this transaction took space ([T3]).
    pub(crate) fn suspect_if_failed<T>(&mut self, result: Result<T>) -> Result<T> {
        self.suspect |= matches!(result, Err(Error::Device(_)));
        result
    }

    /// The device failed something for which this transaction, among others, took space ([T3]).
    pub(crate) fn suspect(&mut self) {
        self.suspect = true;
    }

    /// The transaction took this space: it goes back if the transaction is dropped.
    pub(crate) fn took(&mut self, space: Space) {
        self.taken.push(space);
    }

    /// The transaction frees this space when it is committed.
    pub(crate) fn free(&mut self, space: Space) {
        // What the transaction itself took and gives back again was never anyone's.
        if let Some(position) = self.taken.iter().position(|taken| *taken == space) {
            self.taken.swap_remove(position);
            self.volume.give_back(space);
        } else {
            self.freed.push(space);
        }
    }

    /// Makes the transaction durable. `_stored` and `_written` prove that the data it points to is ([T4]).
    pub(crate) fn commit(mut self, _stored: Fenced, _written: Flushed) -> Result<u64> {
        let volume = self.volume;
        let journal = &volume.journal;
        let mut wants_checkpoint = false;
        let txid = loop {
            let gate = journal.gate.read();
            volume.health.check_writable()?; // under the gate: nothing is committed after an unmount closed it
            // Any free ring (RULES R2): start at this CPU's, try them all, then wait for the first.
            let ring_count = if EXPLORED { 2 } else { journal.rings.len() };
            let preferred = current_cpu() % ring_count;
            let early_txid = on(Mutant::TxidBeforeRing).then(|| journal.last_txid.fetch_add(1, SeqCst) + 1);
            let rings = journal.rings[..ring_count].iter().cycle().skip(preferred).take(ring_count);
            let mut ring = rings.clone().find_map(|ring| ring.try_lock()).unwrap_or_else(|| journal.rings[preferred].lock());
            let Some(reservation) = ring.reserve(self.addresses.len()) else {
                drop(ring);
                drop(gate);
                volume.checkpoint()?;
                continue;
            };
            let txid = early_txid.unwrap_or_else(|| journal.last_txid.fetch_add(1, SeqCst) + 1);
            let generation = journal.superblock_generation();
            let mut buffer = std::mem::take(&mut ring.buffer);
            let seed = volume.pair.journal(ring.index, reservation.start.wrap, generation);
            encode(&mut buffer, seed, reservation.start.wrap, txid, &self.addresses, &self.images);
            let address = volume.geometry.ring(ring.index).nth(u64::from(reservation.start.offset_bytes) / LINE_BYTES as u64);
            for (address, image) in self.addresses.iter().zip(&self.images).filter(|_| on(Mutant::HomeBeforeRecord)) {
                drop(volume.drive.persist(Structure::Inode, *address, image)?);
            }
            let released_early = on(Mutant::RingReleasedEarly);
            if released_early {
                let index = ring.index as usize;
                ring.advance(reservation, txid);
                drop(ring);
                drop(volume.drive.persist(Structure::Journal, address, &buffer)?);
                ring = journal.rings[index].lock();
            }
            let persisted = if released_early {
                Ok(Fenced::nothing_stored())
            } else if on(Mutant::RecordNotFlushed) {
                volume.drive.store(Structure::Journal, address, &buffer).map(|_| Fenced::nothing_stored())
            } else {
                volume.drive.persist(Structure::Journal, address, &buffer) // [J1]
            };
            ring.buffer = buffer;
            match persisted {
                Ok(proof) => drop::<Fenced>(proof),
                // R15: the record may or may not be there, so nothing may follow it.
                Err(error) => return Err(volume.health.stop("writing the journal", &error)),
            }
            if !released_early {
                ring.advance(reservation, txid);
            }
            wants_checkpoint |= ring.wants_checkpoint();
            drop(ring);
            for ((page, address), image) in self.pages.iter().zip(&self.addresses).zip(&self.images) {
                volume.pages.apply(page, *address, image); // R4
            }
            break txid;
        };
        count(&volume.live.work.transactions);
        self.taken.clear();
        for space in self.freed.drain(..) {
            match space {
                Space::Region { .. } if on(Mutant::FreedMetadataAtOnce) => volume.give_back(space),
                Space::Region { region, address, lines } => volume.memory.free_after(region, address, lines, txid), // R6
                other => volume.give_back(other),                                                                   // R7
            }
        }
        if wants_checkpoint && !journal.asked.swap(true, Relaxed) {
            journal.ask(|wake: &mut Wake| wake.checkpoint = true);
        }
        Ok(txid)
    }
}

impl Drop for Tx<'_> {
    fn drop(&mut self) {
        for space in self.taken.drain(..) {
            // [T3]
            if self.suspect { self.volume.quarantine(space) } else { self.volume.give_back(space) }
        }
    }
}

impl Volume {
    /// Returns space that nobody can reach.
    pub(crate) fn give_back(&self, space: Space) {
        let freed = match space {
            Space::Region { region, address, lines } => self.memory.free_now(region, address, lines),
            Space::Slot { address, lines } => self.memory.free_slot(address, lines),
            Space::Sectors { sector, count } => {
                self.memory.lent.forget(&self.memory, sector, count);
                self.sectors.free(sector, count)
            }
        };
        if !freed {
            self.freed_by_nobody(space);
        }
    }

    /// Space was freed that nobody had: maps and metadata contradict each other, so nothing may be given out any more.
    pub(crate) fn freed_by_nobody(&self, space: Space) {
        let _stopped =
            self.health.stop_because(format!("metadata contradicts the allocation maps: space was freed that nobody had ({space})"));
    }
}

impl From<tandemfs_format::Corrupt> for Error {
    fn from(source: tandemfs_format::Corrupt) -> Self {
        Self::Damaged { inode: tandemfs_format::InodeNumber::new(0), source }
    }
}
