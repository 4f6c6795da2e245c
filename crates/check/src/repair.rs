//! Repairs that need no guess, in an order in which an interruption never makes the image worse ([CK4]):
//!
//! [RP1] A superblock copy is rewritten only from the valid newer one, before anything else changes either.
//! [RP2] The clean flag is cleared next, so that the next mount recovers and rebuilds the maps.
//! [RP3] The journal is replayed home as a mount would do it: lines, fence, superblock with the next generation and watermark.
//! [RP4] Every further change is a journal record: persisted, written home, passed by the watermark, one after the other. Changes that
//!       belong together (the slots of one name, all of an inode) are in one record.

use std::collections::{BTreeMap, BTreeSet};

use tandemfs_device::{BlockRequest, Drive, Lines, Structure};
use tandemfs_format::dentry::{DentryHeadLine, PAGE_SLOTS, Slot};
use tandemfs_format::inode::{Inode, InodeColdLine, InodeHotLine, LINK_MAX};
use tandemfs_format::integer::{U40, U48};
use tandemfs_format::journal::{TX_LINES_MAX, encode};
use tandemfs_format::superblock::{BlockIdentity, Superblock, Tail};
use tandemfs_format::{EMPTY_LINE, InodeNumber, LINE_BYTES, Line, LineAddress, SECTOR_BYTES, Sector};
use zerocopy::{FromBytes, IntoBytes};

use crate::checker::{Inspection, Progress, Stage};
use crate::error::CheckError;
use crate::finding::Finding;
use crate::image::Image;
use crate::inodes;
use crate::mutant::{Mutant, on};
use crate::namespace::DentryPage;
use crate::superblock::copy_address;
use crate::tree;

/// Most rounds of repairing and checking again.
pub(crate) const ROUNDS_MAX: u32 = 8;

/// Lines that change together.
type Group = BTreeMap<u64, Line>;

/// Repairs the findings of an inspection. Returns false if nothing could be repaired.
pub(crate) fn apply(inspection: &Inspection<'_>, progress: &mut dyn FnMut(Progress)) -> Result<bool, CheckError> {
    let image = &inspection.image;
    let mut mended = false;
    if inspection.located.is_empty() {
        return Ok(false); // a copy of the superblock that is only behind is the next mount's to write
    }
    for copy in &inspection.stale_copies {
        drop(image.drive.persist(Structure::Superblock, copy_address(*copy), &inspection.superblock_bytes)?); // [RP1]
        mended = true;
    }
    if inspection.block_half_proved && inspection.findings().any(|finding| *finding == Finding::IdentityDamaged {}) {
        write_identity(image.drive, &image.superblock)?;
        mended = true;
    }
    // The tree is not completely known, so something that seems missing may only be hidden by damage.
    let table_or_journal = |finding: &Finding| {
        matches!(
            finding,
            Finding::RecordOutOfPlace { .. }
                | Finding::RecordTwice { .. }
                | Finding::SegmentDamaged { .. }
                | Finding::SegmentsOverlap { .. }
                | Finding::SegmentInFixedPart { .. }
                | Finding::SegmentGap { .. }
        )
    };
    if inspection.findings().any(table_or_journal) {
        return Ok(mended);
    }
    let groups = disjoint(inspection.findings().filter_map(|finding| group_of(image, finding)));
    let drops_maps = |finding: &Finding| {
        matches!(
            finding,
            Finding::RecordAfterCleanUnmount { .. }
                | Finding::OrphanLeft { .. }
                | Finding::MapDamaged { .. }
                | Finding::MapKind { .. }
                | Finding::MapWrong { .. }
        )
    };
    if groups.is_empty() && !inspection.findings().any(drops_maps) {
        return Ok(mended);
    }
    let mut writer = Writer { drive: image.drive, superblock: image.superblock.clone() };
    if writer.superblock.clean {
        writer.superblock.clean = on(Mutant::RepairKeepsClean);
        writer.write_superblock()?; // [RP2]
        if !inspection.pending.is_empty() {
            return Ok(true); // what the records say counts from now on: look again before anything is changed
        }
    }
    if !groups.is_empty() {
        writer.recover(inspection)?; // [RP3]
        let total = groups.len() as u64;
        for (done, changes) in (0..).zip(records(groups)) {
            progress(Progress { stage: Stage::Repair, done: total.min(done), total });
            writer.commit(image, &changes)?; // [RP4]
        }
        progress(Progress { stage: Stage::Repair, done: total, total });
    }
    Ok(true)
}

fn write_identity(drive: &Drive, superblock: &Superblock) -> Result<(), CheckError> {
    let mut sector = vec![0; SECTOR_BYTES];
    let identity = BlockIdentity::of(superblock);
    sector.splice(..size_of::<BlockIdentity>(), identity.as_bytes().iter().copied());
    let mut requests = [BlockRequest::Write { sector: Sector::new(0), buffer: &sector }];
    let written = drive.transfer(Structure::Superblock, &mut requests, &mut || {})?;
    drop(drive.flush_blocks(written)?);
    Ok(())
}

/// Writes to the device, with the superblock as it stands there.
struct Writer<'d> {
    drive: &'d Drive,
    superblock: Superblock,
}

impl Writer<'_> {
    fn write_superblock(&mut self) -> Result<(), CheckError> {
        self.superblock.sequence += 1;
        let bytes = self.superblock.encode();
        for copy in 0..2 {
            drop(self.drive.persist(Structure::Superblock, copy_address(copy), bytes.as_bytes())?);
        }
        Ok(())
    }

    fn write_home<'l>(&self, lines: impl Iterator<Item = (&'l u64, &'l Line)>) -> Result<(), CheckError> {
        let mut in_flight = Lines::none();
        for (line, bytes) in lines {
            let stored = self.drive.store(Structure::Mapping, LineAddress::new(*line), bytes)?;
            in_flight = in_flight.and(self.drive.flush_lines(stored));
        }
        drop(self.drive.fence(in_flight));
        Ok(())
    }

    /// Replays the journal home. The next generation is the commit point: until it is durable, a later recovery repeats the replay.
    fn recover(&mut self, inspection: &Inspection<'_>) -> Result<(), CheckError> {
        if !on(Mutant::RepairDropsJournal) {
            self.write_home(inspection.image.overlay.iter())?;
        }
        let last = inspection.pending.last().map_or(0, |place| place.txid);
        self.superblock.watermark = self.superblock.watermark.max(last);
        self.superblock.generation += 1;
        self.superblock.tails.fill(Tail::default());
        self.write_superblock()
    }

    /// One transaction: a record at the start of the first ring, then home, then the watermark passes it.
    fn commit(&mut self, image: &Image<'_>, changes: &Group) -> Result<(), CheckError> {
        let txid = self.superblock.watermark + 1;
        let wrap = self.superblock.tails.first().copied().unwrap_or_default().wrap;
        let seed = image.pair.journal(0, wrap, self.superblock.generation);
        let addresses: Vec<LineAddress> = changes.keys().map(|line| LineAddress::new(*line)).collect();
        let images: Vec<Line> = changes.values().copied().collect();
        let mut record = Vec::new();
        encode(&mut record, seed, wrap, txid, &addresses, &images);
        if on(Mutant::RepairHomeFirst) {
            self.write_home(changes.iter())?;
        }
        drop(self.drive.persist(Structure::Journal, image.geometry.ring(0), &record)?);
        self.write_home(changes.iter())?;
        self.superblock.watermark = txid;
        if let Some(tail) = self.superblock.tails.first_mut() {
            *tail = Tail { offset_bytes: 0, wrap: wrap.wrapping_add(1) };
        }
        self.write_superblock()
    }
}

/// If two repairs change one line, the second waits for the next round, which sees the result of the first.
fn disjoint(groups: impl Iterator<Item = Group>) -> Vec<Group> {
    let mut taken = BTreeSet::new();
    let mut kept = Vec::new();
    for group in groups {
        if !group.is_empty() && group.keys().all(|line| !taken.contains(line)) {
            taken.extend(group.keys().copied());
            kept.push(group);
        }
    }
    kept
}

/// Packs groups into records, none of them split.
fn records(groups: Vec<Group>) -> Vec<Group> {
    let mut records: Vec<Group> = Vec::new();
    for group in groups {
        match records.last_mut() {
            Some(record) if record.len() + group.len() <= TX_LINES_MAX => record.extend(group),
            _ => records.push(group),
        }
    }
    records
}

/// The lines that repair a finding; `None` if it cannot be repaired.
fn group_of(image: &Image<'_>, finding: &Finding) -> Option<Group> {
    match *finding {
        Finding::LinkCount { inode, expected, .. } => {
            let (_, old) = inodes::read(image, inode)?;
            (expected <= LINK_MAX || old.is_directory()).then(|| change_hot(image, inode, |hot| hot.nlink = expected.into()))?
        }
        Finding::SpaceWrong { inode, expected, .. } => change_hot(image, inode, |hot| hot.space_512 = expected.into()),
        Finding::ParentWrong { inode, expected, .. } => change_cold(image, inode, |cold| cold.parent = U48::new(expected & U48::MAX)),
        // The remains of a damaged set are unusable, so it is removed. The inode's space count is then wrong and repaired in a later round.
        Finding::AttributesDamaged { inode, .. } | Finding::AttributesMisplaced { inode, .. } | Finding::AttributesShared { inode, .. } => {
            change_cold(image, inode, |cold| (cold.attributes, cold.attributes_class) = (U40::default(), 0))
        }
        Finding::EntryType { directory, slot, expected, .. } => change_head(image, directory, slot, |head, _| head.file_type = expected),
        Finding::EntryHash { directory, slot } => change_head(image, directory, slot, |head, hash| head.hash = hash.into()),
        Finding::EntryDangling { directory, slot, .. } | Finding::EntryPartStray { directory, slot } => clear_entry(image, directory, slot),
        Finding::EntryDamaged { directory, slot, .. } => clear_damaged(image, directory, slot),
        _ => None,
    }
}

fn change_hot(image: &Image<'_>, number: u64, change: impl FnOnce(&mut InodeHotLine)) -> Option<Group> {
    let (address, _) = inodes::read(image, number)?;
    let mut hot = InodeHotLine::read_from_bytes(&image.line(Structure::Inode, address).ok()?).ok()?;
    change(&mut hot);
    Some(inode_line(image, number, address, hot.as_bytes()))
}

fn change_cold(image: &Image<'_>, number: u64, change: impl FnOnce(&mut InodeColdLine)) -> Option<Group> {
    let (address, _) = inodes::read(image, number)?;
    let address = address.nth(1);
    let mut cold = InodeColdLine::read_from_bytes(&image.line(Structure::Inode, address).ok()?).ok()?;
    change(&mut cold);
    Some(inode_line(image, number, address, cold.as_bytes()))
}

fn inode_line(image: &Image<'_>, number: u64, address: LineAddress, bytes: &[u8]) -> Group {
    let line = line_from(bytes);
    Group::from([(address.number(), Inode::place(image.pair, InodeNumber::new(number), address).seal(line))])
}

fn change_head(image: &Image<'_>, directory: u64, slot: u64, change: impl FnOnce(&mut DentryHeadLine, u32)) -> Option<Group> {
    let (page, address) = entry_page(image, directory, slot)?;
    let line = (slot % PAGE_SLOTS) as usize;
    let entry = page.entry(line).ok()??;
    let mut head = DentryHeadLine::read_from_bytes(&page.line(line)).ok()?;
    change(&mut head, image.pair.name_hash(&entry.name));
    Some(Group::from([(address.nth(line as u64).number(), page.place(line).seal(line_from(head.as_bytes())))]))
}

fn clear_entry(image: &Image<'_>, directory: u64, slot: u64) -> Option<Group> {
    let (page, address) = entry_page(image, directory, slot)?;
    let line = (slot % PAGE_SLOTS) as usize;
    Some((line..line + page.extent(line)).map(|line| (address.nth(line as u64).number(), EMPTY_LINE)).collect())
}

/// A damaged name is removed only if its page proves that the rest of the directory is valid: if the directory's inode were wrong,
/// all of its names would look damaged.
fn clear_damaged(image: &Image<'_>, directory: u64, slot: u64) -> Option<Group> {
    let (page, _) = entry_page(image, directory, slot)?;
    let proved = (0..PAGE_SLOTS as usize).any(|line| matches!(page.slot(line), Ok(Slot::Head { .. } | Slot::Continuation)));
    if proved { clear_entry(image, directory, slot) } else { None }
}

fn entry_page<'i>(image: &'i Image<'i>, directory: u64, slot: u64) -> Option<(DentryPage<'i>, LineAddress)> {
    let (_, inode) = inodes::read(image, directory)?;
    let address = tree::directory_page(image, directory, &inode, slot / PAGE_SLOTS)?;
    Some((DentryPage::load(image, directory, inode.generation, address)?, address))
}

fn line_from(bytes: &[u8]) -> Line {
    let mut line = EMPTY_LINE;
    for (to, from) in line.iter_mut().zip(bytes.iter().take(LINE_BYTES)) {
        *to = *from;
    }
    line
}
