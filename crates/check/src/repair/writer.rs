//! Writes to the device, in the order of [RP1] to [RP8]. Nothing else of this crate writes.

use std::time::{SystemTime, UNIX_EPOCH};

use tandemfs_device::{BlockRequest, Drive, Lines, Structure};
use tandemfs_format::identity::BlockIdentity;
use tandemfs_format::journal::{TX_LINES_MAX, encode};
use tandemfs_format::superblock::{Superblock, SuperblockBytes, Tail};
use tandemfs_format::{DataAddress, LINE_BYTES, Line, LineAddress, SECTOR_BYTES, Sector};
use zerocopy::IntoBytes;

use crate::checker::Inspection;
use crate::error::CheckError;
use crate::finding::Finding;
use crate::image::Image;
use crate::journal::RecordPlace;
use crate::maps;
use crate::mutant::{Mutant, on};
use crate::superblock::copy_address;
use crate::undo::Undo;

use super::plan::{Group, Plan, SectorCopy};

/// Sectors that one copy moves at a time: 1 MiB.
const COPY_SECTORS: u64 = 256;

/// Writes to the device, with the superblock as it stands there.
pub(crate) struct Writer<'w> {
    drive: &'w Drive,
    image: &'w Image<'w>,
    superblock: Superblock,
    undo: Option<&'w mut Undo>,
    findings: u64,
}

impl<'w> Writer<'w> {
    pub(crate) fn new(drive: &'w Drive, inspection: &'w Inspection<'w>, undo: Option<&'w mut Undo>) -> Self {
        let (image, findings) = (&inspection.image, inspection.located.len() as u64);
        Self { drive, image, superblock: image.superblock.clone(), undo, findings }
    }

    /// Whether the identity is damaged and the block half is proved to belong to the pair.
    pub(crate) fn wants_identity(inspection: &Inspection<'_>) -> bool {
        inspection.block_half_proved && inspection.findings().any(|finding| *finding == Finding::IdentityDamaged {})
    }

    /// Rewrites superblock copies and the identity ([RP1]).
    pub(crate) fn write_heads(&mut self, inspection: &Inspection<'_>) -> Result<(), CheckError> {
        for copy in &inspection.stale_copies {
            self.keep_lines(copy_address(*copy), inspection.superblock_bytes.len() / LINE_BYTES)?;
            drop(self.drive.persist(Structure::Superblock, copy_address(*copy), &inspection.superblock_bytes)?);
        }
        if Self::wants_identity(inspection) {
            let mut sector = vec![0; SECTOR_BYTES];
            let identity = BlockIdentity::of(&self.superblock);
            sector.splice(..size_of::<BlockIdentity>(), identity.as_bytes().iter().copied());
            self.write_sectors(Structure::Superblock, Sector::new(0), &sector)?;
        }
        Ok(())
    }

    /// Clears the clean flag if it is set ([RP2]); returns whether it was.
    pub(crate) fn clear_clean(&mut self) -> Result<bool, CheckError> {
        let was_clean = self.superblock.clean;
        if was_clean {
            self.superblock.clean = on(Mutant::RepairKeepsClean);
            self.write_superblock()?;
        }
        Ok(was_clean)
    }

    fn write_superblock(&mut self) -> Result<(), CheckError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        (self.superblock.error_counters.check_seconds, self.superblock.error_counters.check_findings) = (now, self.findings);
        self.superblock.sequence += 1;
        let bytes = self.superblock.encode();
        for copy in 0..2 {
            self.keep_lines(copy_address(copy), size_of::<SuperblockBytes>() / LINE_BYTES)?;
            drop(self.drive.persist(Structure::Superblock, copy_address(copy), bytes.as_bytes())?);
        }
        Ok(())
    }

    fn write_home<'l>(&mut self, lines: impl Iterator<Item = (&'l u64, &'l Line)> + Clone) -> Result<(), CheckError> {
        if let Some(undo) = self.undo.as_deref_mut() {
            undo.keep_lines(self.drive, &mut lines.clone().map(|(line, _)| *line))?; // [RP7]
        }
        let mut in_flight = Lines::none();
        for (line, bytes) in lines {
            let stored = self.drive.store(Structure::Mapping, LineAddress::new(*line), bytes)?;
            in_flight = in_flight.and(self.drive.flush_lines(stored));
        }
        drop(self.drive.fence(in_flight));
        Ok(())
    }

    /// Replays the journal home ([RP3]). The superblock with the watermark is the commit point: until it is durable, a later recovery repeats
    /// the replay. Returns whether the generation is still to be raised.
    pub(crate) fn recover(&mut self, inspection: &Inspection<'_>) -> Result<bool, CheckError> {
        if !on(Mutant::RepairDropsJournal) {
            self.write_home(inspection.image.overlay.iter())?;
        }
        let last = inspection.pending.last().map_or(0, |place| place.txid);
        self.superblock.watermark = self.superblock.watermark.max(last);
        let keeps_generation = may_keep_generation(inspection) && !on(Mutant::MapsEndFirst);
        match self.superblock.tails.first_mut() {
            Some(tail) if keeps_generation => *tail = Tail { offset_bytes: 0, wrap: tail.wrap.wrapping_add(1) },
            _ => self.next_generation(),
        }
        self.write_superblock()?;
        Ok(keeps_generation)
    }

    fn next_generation(&mut self) {
        self.superblock.generation += 1;
        self.superblock.tails.fill(Tail::default());
    }

    /// Raises the generation of an image whose journal is empty ([RP8]).
    pub(crate) fn raise_generation(&mut self) -> Result<(), CheckError> {
        self.next_generation();
        self.findings = self.superblock.error_counters.check_findings; // those of the check that repaired
        self.write_superblock()
    }

    /// Everything aside first, then the records one after the other ([RP4], [RP6]).
    pub(crate) fn apply(&mut self, plan: Plan<'_>, progress: &mut dyn FnMut(u64, u64)) -> Result<(), CheckError> {
        let records = records(plan.groups);
        let total = records.len() as u64;
        if !on(Mutant::LinkedBeforeWritten) {
            self.write_home(plan.aside.iter())?;
        }
        for copy in &plan.copies {
            self.copy_sectors(*copy)?;
        }
        for (first, count) in &plan.zeros {
            let zeros = vec![0; *count as usize * SECTOR_BYTES];
            match first {
                DataAddress::Sector(sector) => self.write_sectors(Structure::Data, *sector, &zeros)?,
                DataAddress::Page(page) => {
                    self.keep_lines(*page, zeros.len() / LINE_BYTES)?;
                    drop(self.drive.persist(Structure::Data, *page, &zeros)?);
                }
            }
        }
        for (done, changes) in (0..).zip(&records) {
            progress(done, total);
            self.commit(changes)?;
        }
        if on(Mutant::LinkedBeforeWritten) {
            self.write_home(plan.aside.iter())?;
        }
        progress(total, total);
        Ok(())
    }

    /// One transaction: a record at the start of the first ring, then home, then the watermark passes it.
    fn commit(&mut self, changes: &Group) -> Result<(), CheckError> {
        let txid = self.superblock.watermark + 1;
        let wrap = self.superblock.tails.first().copied().unwrap_or_default().wrap;
        let seed = self.image.pair.journal(0, wrap, self.superblock.generation);
        let addresses: Vec<LineAddress> = changes.keys().map(|line| LineAddress::new(*line)).collect();
        let images: Vec<Line> = changes.values().copied().collect();
        let mut record = Vec::new();
        encode(&mut record, seed, wrap, txid, &addresses, &images);
        if on(Mutant::RepairHomeFirst) {
            self.write_home(changes.iter())?;
        }
        let ring = self.image.geometry.ring(0);
        self.keep_lines(ring, record.len() / LINE_BYTES)?;
        drop(self.drive.persist(Structure::Journal, ring, &record)?);
        self.write_home(changes.iter())?;
        self.superblock.watermark = txid;
        self.superblock.error_counters.repairs += 1;
        if let Some(tail) = self.superblock.tails.first_mut() {
            *tail = Tail { offset_bytes: 0, wrap: wrap.wrapping_add(1) };
        }
        self.write_superblock()
    }

    fn keep_lines(&mut self, first: LineAddress, count: usize) -> Result<(), CheckError> {
        match self.undo.as_deref_mut() {
            Some(undo) if !on(Mutant::UndoForgets) => undo.keep_lines(self.drive, &mut (first.number()..first.number() + count as u64)),
            _ => Ok(()),
        }
    }

    fn write_sectors(&mut self, structure: Structure, first: Sector, bytes: &[u8]) -> Result<(), CheckError> {
        if let Some(undo) = self.undo.as_deref_mut() {
            undo.keep_sectors(self.drive, first, (bytes.len() / SECTOR_BYTES) as u64)?;
        }
        let mut requests = [BlockRequest::Write { sector: first, buffer: bytes.into() }];
        let written = self.drive.transfer(structure, &mut requests, &mut || {})?;
        drop(self.drive.flush_blocks(written)?);
        Ok(())
    }

    fn copy_sectors(&mut self, copy: SectorCopy) -> Result<(), CheckError> {
        for done in (0..copy.count).step_by(COPY_SECTORS as usize) {
            let mut bytes = vec![0; COPY_SECTORS.min(copy.count - done) as usize * SECTOR_BYTES];
            self.image.data(copy.from.nth(done), &mut bytes)?;
            self.write_sectors(Structure::Data, copy.to.nth(done), &bytes)?;
        }
        Ok(())
    }
}

/// Whether maps of the generation are there, and nothing to replay but a record of an earlier repair ([RP8]).
fn may_keep_generation(inspection: &Inspection<'_>) -> bool {
    let tail = inspection.image.superblock.tails.first();
    let is_of_repair = |place: &RecordPlace| place.ring == 0 && tail == Some(&place.at) && place.at.offset_bytes == 0;
    inspection.pending.iter().all(is_of_repair) && maps::are_there(&inspection.image)
}

/// Packs groups into records, none of them split. A later group may change a line again, with the earlier change in it.
fn records(groups: Vec<Group>) -> Vec<Group> {
    let mut records: Vec<Group> = Vec::new();
    for group in groups {
        let fits = |record: &Group| record.len() + group.len() <= TX_LINES_MAX;
        match records.last_mut() {
            Some(record) if fits(record) => record.extend(group),
            _ => records.push(group),
        }
    }
    records
}
