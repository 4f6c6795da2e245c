//! What shows which region a unit belongs to, where the segment table does not say it.
//!
//! [EV1] Inodes: the checksum of an inode's line covers its number, so a line that verifies gives the number ([GN1] of `generations.rs`),
//!       and the number gives the unit's position in the region. Two lines that give the same position prove it.
//! [EV2] Other regions: a pointer in a line that verifies, to a line that verifies for the same owner. A page of empty lines, or a checksum
//!       vector that nothing confirms, proves nothing; such pointers count only where nothing contradicts them.
//! [EV3] Logs: a slot whose bytes match the checksum beside the pointer shows a unit of the data area.

use std::collections::BTreeMap;

use tandemfs_device::Structure;
use tandemfs_format::inode::Inode;
use tandemfs_format::mapping::{BlockChecksum, Extent, LogEntry, Record, line_entries, vector_checksum};
use tandemfs_format::segment::Region;
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_format::{EMPTY_LINE, LINE_BYTES, LineAddress, PAGE_LINES, SECTOR_BYTES, UNIT_LINES};

use crate::attributes;
use crate::generations::Numbers;
use crate::image::{Image, line_of};
use crate::inodes::sweep;
use crate::mend::Owner;
use crate::mutant::{Mutant, on};
use crate::runs::FoundRun;
use crate::tree::{Step, Walk};

/// Lines that a search loads at a time.
const PIECE_LINES: u64 = 4096;

/// What pointers say about a unit that the table does not name.
#[derive(Debug, Default, Clone)]
pub(super) struct Evidence {
    /// Pointers to lines that verify, for each region.
    pub(super) proofs: [u64; Region::ALL.len()],
    /// Pointers to lines that prove nothing.
    pub(super) hints: [u64; Region::ALL.len()],
    /// Lines up to the end of the last that is named.
    pub(super) lines: u64,
    /// Logs that match their checksums.
    pub(super) logs: u64,
}

impl Evidence {
    /// The region that most of it speaks for; `None` for the data area.
    pub(super) fn region(&self) -> Option<Region> {
        let most = |votes: &[u64; Region::ALL.len()]| {
            Region::ALL.into_iter().zip(votes).filter(|(_, count)| **count > 0).max_by_key(|(_, count)| **count).map(|(region, _)| region)
        };
        let proved = self.proofs.iter().max().copied().unwrap_or(0);
        match self.logs {
            0 => most(&self.proofs).or_else(|| most(&self.hints)),
            logs if proved > logs => most(&self.proofs),
            _ => None,
        }
    }

    /// Whether a line that verifies speaks for the region.
    pub(super) fn is_proved(&self) -> bool {
        self.proofs.iter().any(|count| *count > 0)
    }

    /// Whether it speaks for more than one use.
    pub(super) fn is_contradictory(&self) -> bool {
        self.proofs.iter().filter(|count| **count > 0).count() + usize::from(self.logs > 0) > 1
    }
}

/// A unit of inodes: its position in the region, in units, and its lines up to the last inode in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InodeUnit {
    pub(super) position: u64,
    pub(super) lines: u64,
    /// Lines that prove it.
    pub(super) proofs: u64,
}

/// The position of a unit of inodes; `None` if it is none ([EV1]).
pub(super) fn inodes_of(image: &Image<'_>, numbers: &Numbers, unit: u64) -> Option<InodeUnit> {
    let mut votes: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut piece = vec![0; PIECE_LINES as usize * LINE_BYTES];
    for at in (0..UNIT_LINES).step_by(PIECE_LINES as usize) {
        let first = LineAddress::new(unit * UNIT_LINES + at);
        if image.load(Structure::Inode, first, &mut piece).is_err() {
            load_pages(image, first, &mut piece);
        }
        for index in 0..PIECE_LINES {
            let line = line_of(&piece, index as usize);
            if line == EMPTY_LINE {
                continue;
            }
            let offset = at + index;
            for number in numbers.of(first.nth(index), &line, image.geometry.memory_units()) {
                if number > 0 && number * 2 % UNIT_LINES == offset / 2 * 2 {
                    let vote = votes.entry(number * 2 / UNIT_LINES).or_default();
                    *vote = (vote.0 + 1, (offset + 1).next_multiple_of(2));
                }
            }
        }
    }
    let (position, (proofs, lines)) = votes.into_iter().max_by_key(|(_, (proofs, _))| *proofs)?;
    (proofs >= if on(Mutant::OneLineProves) { 1 } else { 2 }).then_some(InodeUnit { position, lines, proofs })
}

/// Loads what can be loaded, page by page; the rest counts as empty.
fn load_pages(image: &Image<'_>, first: LineAddress, piece: &mut [u8]) {
    for (page, bytes) in (0..).step_by(PAGE_LINES as usize).zip(piece.chunks_mut(PAGE_LINES as usize * LINE_BYTES)) {
        if image.load(Structure::Inode, first.nth(page), bytes).is_err() {
            bytes.fill(0);
        }
    }
}

/// Follows every pointer of every inode that verifies, and notes where those lead that the table does not cover. The image's segments are
/// open ([`crate::segments::Segments::open`]).
pub(super) fn collect(image: &Image<'_>) -> BTreeMap<u64, Evidence> {
    let mut survey = Survey { image, found: BTreeMap::new() };
    sweep(image, &mut |_, _, found| {
        if let Some(found) = found
            && let Ok(inode) = &found.decoded
        {
            survey.inode(Owner { inode: found.number, generation: inode.generation }, inode);
        }
    });
    survey.found
}

struct Survey<'s> {
    image: &'s Image<'s>,
    found: BTreeMap<u64, Evidence>,
}

impl Survey<'_> {
    fn is_open(&self, address: LineAddress) -> bool {
        self.image.segments.of_unit(address.unit()).is_none()
    }

    fn note(&mut self, region: Region, address: LineAddress, lines: u64, is_proof: bool) {
        let crosses = (address.number() + lines - 1) / UNIT_LINES != address.unit();
        if !self.is_open(address) || crosses {
            return;
        }
        let evidence = self.found.entry(address.unit()).or_default();
        evidence.lines = evidence.lines.max(address.number() % UNIT_LINES + lines);
        let votes = if is_proof { &mut evidence.proofs } else { &mut evidence.hints };
        if let Some(count) = Region::ALL.iter().position(|other| *other == region).and_then(|index| votes.get_mut(index)) {
            *count += 1;
        }
    }

    fn inode(&mut self, owner: Owner, inode: &Inode) {
        if !inode.attributes.is_none() {
            self.attributes(owner, inode);
        }
        if !inode.has_mapping() {
            return;
        }
        let image = self.image;
        let mut walk = Walk::new(owner.inode, inode);
        let mut left = image.geometry.memory_units() * UNIT_LINES / PAGE_LINES;
        while let Some(step) = walk.next(image) {
            match step {
                Step::Pointer { span, page, height, .. }
                    if left > 0
                        && image.segments.holds(Region::Mappings, page, PAGE_LINES)
                        && self.lines(owner, Region::Mappings, page, PAGE_LINES) =>
                {
                    left -= 1;
                    // A page that cannot be read names nothing.
                    let _ = walk.enter(image, page, height, span.first);
                }
                Step::Run(found) if found.is_possible => self.run(&found),
                Step::Block { record, .. } => self.record(owner, record),
                _ => {}
            }
        }
    }

    /// Notes lines that carry checksums. Returns whether they may be the owner's.
    fn lines(&mut self, owner: Owner, region: Region, first: LineAddress, count: u64) -> bool {
        let image = self.image;
        if !self.is_open(first) {
            return true;
        }
        let mut bytes = vec![0; count as usize * LINE_BYTES];
        if !image.geometry.holds_lines(first, count) || image.load(Structure::Mapping, first, &mut bytes).is_err() {
            return false;
        }
        let (mut used, mut verified) = (0, 0);
        for index in 0..count {
            let line = line_of(&bytes, index as usize);
            if line != EMPTY_LINE {
                used += 1;
                verified += u64::from(image.place(owner.inode, owner.generation, first.nth(index)).verify(&line).is_ok());
            }
        }
        if verified > 0 || used == 0 {
            self.note(region, first, count, verified > 0);
        }
        verified > 0 || used == 0
    }

    fn record(&mut self, owner: Owner, record: Record) {
        match record {
            Record::Memory(page) => {
                self.lines(owner, Region::Dentries, page, PAGE_LINES);
            }
            Record::SingleLog(log) => self.log(&log),
            Record::Block { extent, leaf } => {
                if let Some(leaf) = leaf
                    && self.image.segments.holds(Region::Leaves, leaf.address, leaf.lines())
                    && self.lines(owner, Region::Leaves, leaf.address, leaf.lines())
                {
                    for index in 0..leaf.lines() {
                        let address = leaf.address.nth(index);
                        let Ok(line) = self.image.line(Structure::Mapping, address) else { continue };
                        if self.image.place(owner.inode, owner.generation, address).verify(&line).is_ok() {
                            let entries = line_entries(&line, address).unwrap_or_default();
                            entries.iter().flatten().for_each(|log| self.log(log));
                        }
                    }
                }
                if let Some(extent) = extent {
                    self.vector(extent);
                }
            }
            _ => {}
        }
    }

    fn log(&mut self, log: &LogEntry) {
        let image = self.image;
        if !self.is_open(log.address) || !image.geometry.holds_lines(log.address, log.class.lines()) {
            return;
        }
        let mut bytes = vec![0; log.length as usize];
        let verifies = image.superblock.checksum_kind == ChecksumKind::Crc32c
            && image.load_part(Structure::DataLog, log.address, &mut bytes).is_ok()
            && image.pair.data(&bytes) == log.crc;
        if verifies {
            self.found.entry(log.address.unit()).or_default().logs += 1;
        }
    }

    /// A vector is proved by the data: the first sector that it belongs to is read, until the unit is proved.
    fn vector(&mut self, extent: Extent) {
        let BlockChecksum::Vector(vector) = extent.checksum else { return };
        let lines = self.image.geometry.vector_lines();
        if !self.is_open(vector) || !self.image.geometry.holds_lines(vector, lines) {
            return;
        }
        let is_proved = self
            .found
            .get(&vector.unit())
            .is_some_and(|evidence| evidence.region() == Some(Region::Leaves) && evidence.proofs.iter().sum::<u64>() > 1);
        let is_proof = is_proved || !extent.unwritten && self.vector_fits(vector, extent);
        self.note(Region::Leaves, vector, lines.next_power_of_two(), is_proof);
    }

    /// The lines of a run itself: each is proved by the first page that it belongs to.
    fn run(&mut self, found: &FoundRun) {
        for (line, block) in found.own_lines().zip((0..).step_by(found.shape.group_blocks as usize)) {
            let Record::Block { extent: Some(extent), .. } = found.record(block) else { continue };
            if self.is_open(line) && self.image.geometry.holds_lines(line, 1) {
                let is_proof = self.vector_fits(line, extent);
                self.note(Region::Leaves, line, 1, is_proof);
            }
        }
    }

    fn vector_fits(&self, vector: LineAddress, extent: Extent) -> bool {
        let image = self.image;
        let mut sector = vec![0; SECTOR_BYTES];
        image.geometry.holds_data(extent.at, 1)
            && image.data(extent.at, &mut sector).is_ok()
            && image.line(Structure::Mapping, vector).is_ok_and(|line| vector_checksum(&line, 0) == image.pair.data(&sector))
    }

    /// The lines of attributes verify before they are noted.
    fn attributes(&mut self, owner: Owner, inode: &Inode) {
        let image = self.image;
        let mut claimed = Vec::new();
        let mut claim = |first, count, _| {
            claimed.push((first, count));
            true
        };
        let Ok(set) = attributes::set(image, owner, inode.attributes, &mut claim) else { return };
        for attribute in &set {
            let mut own = Vec::new();
            let mut claim = |first, count, _| {
                own.push((first, count));
                true
            };
            if attributes::value(image, owner, &attribute.value, &mut claim).is_ok() {
                claimed.append(&mut own);
            }
        }
        for (first, count) in claimed {
            self.note(Region::Attributes, LineAddress::new(first), count, true);
        }
    }
}
