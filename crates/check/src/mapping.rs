//! Checks the mapping of each inode: every page, extent, log, leaf and vector must be in an allowed place and used once.

use tandemfs_device::Structure;
use tandemfs_format::inode::Inode;
use tandemfs_format::mapping::{BlockChecksum, Extent, LeafPointer, LogEntry, Record, VECTOR_LINE_SECTORS, line_entries, vector_checksum};
use tandemfs_format::segment::Region;
use tandemfs_format::superblock::{ChecksumKind, incompat};
use tandemfs_format::{LineAddress, PAGE_BYTES, PAGE_LINES, PairSeed, SECTOR_BYTES};

use crate::checker::{Checker, Stage};
use crate::data::{Job, Source};
use crate::finding::{Damage, Finding, Target};
use crate::inodes::sweep;
use crate::namespace::OpenDirectory;
use crate::tree::{Step, Walk};

/// The checksum of a sector of zeros.
fn zero_sector(pair: PairSeed) -> u32 {
    pair.data(&[0; SECTOR_BYTES])
}

/// A block under inspection.
struct BlockOf {
    inode: u64,
    generation: u32,
    block: u64,
    /// Its first byte in the file.
    start: u64,
    /// Bytes of it before the end of the file.
    inside: u64,
}

impl Checker<'_> {
    /// Walks the mappings of all inodes, and the entries of directories with them.
    pub(crate) fn check_mappings(&mut self) {
        let image = self.image;
        sweep(image, &mut |done, total, found| match found {
            None => self.progress(Stage::Mappings, done, total),
            Some(found) => {
                let Ok(inode) = found.decoded else { return };
                let attributes_512 = self.check_attributes(found.number, &inode);
                let mapping_512 = if inode.has_mapping() { self.check_mapping(found.number, &inode) } else { Some(0) };
                if let (Some(mapping), Some(attributes)) = (mapping_512, attributes_512)
                    && mapping + attributes != inode.space_512
                {
                    let expected = mapping + attributes;
                    self.find(Finding::SpaceWrong { inode: found.number, found: inode.space_512, expected });
                }
            }
        });
        self.verify_data();
    }

    /// Checks the mapping of an inode. Returns the space that it uses, in 512 B; `None` if damage hides part of it.
    fn check_mapping(&mut self, number: u64, inode: &Inode) -> Option<u64> {
        let image = self.image;
        let mut walk = Walk::new(number, inode);
        let mut directory = inode.is_directory().then(|| OpenDirectory::new(number, inode));
        let mut whole = true;
        let mut space = 0;
        while let Some(step) = walk.next(image) {
            match step {
                Step::Damaged { line, damage } => {
                    self.find(Finding::MappingDamaged { inode: number, line: line.number(), damage });
                    whole = false;
                }
                Step::Misfit { block, line } => {
                    self.find(Finding::RecordKind { inode: number, block, line: line.number() });
                    whole = false;
                }
                Step::Pointer { block, page, height } => {
                    if !self.claim(number, block, Target::MappingPage, page, PAGE_LINES) {
                        whole = false;
                    } else if walk.enter(image, page, height, block).is_err() {
                        self.find(Finding::MappingDamaged { inode: number, line: page.number(), damage: Damage::Unreadable });
                        whole = false;
                    }
                }
                Step::Block { block, line, record } => match (&mut directory, record) {
                    (Some(directory), Record::Memory(page)) => {
                        if self.claim(number, block, Target::DentryPage, page, PAGE_LINES) {
                            space += PAGE_BYTES as u64 / 512;
                            whole &= self.check_directory_page(directory, block, page);
                        } else {
                            whole = false;
                        }
                    }
                    (None, Record::Block { extent, leaf }) => {
                        let (good, sectors) = self.check_block(number, inode, block, extent, leaf);
                        whole &= good;
                        space += sectors;
                    }
                    (None, Record::SingleLog(log)) => {
                        let at = self.block_of(number, inode, block);
                        if at.inside == 0 {
                            self.find(Finding::BlockPastEnd { inode: number, block });
                        }
                        whole &= self.check_logs(&at, &[log]);
                        space += self.image.superblock.log_counting().block_space_512(0, [&log]);
                    }
                    _ => {
                        self.find(Finding::RecordKind { inode: number, block, line: line.number() });
                        whole = false;
                    }
                },
            }
        }
        if let Some(directory) = directory {
            whole &= self.close_directory(directory, inode);
            self.names_whole &= whole;
        }
        self.tree_whole &= whole;
        whole.then_some(space)
    }

    fn block_of(&mut self, inode: u64, of: &Inode, block: u64) -> BlockOf {
        let block_bytes = u64::from(self.image.geometry.block_bytes());
        let start = block.saturating_mul(block_bytes);
        let inside = of.size.saturating_sub(start).min(block_bytes);
        self.counts.blocks += 1;
        BlockOf { inode, generation: of.generation, block, start, inside }
    }

    /// Checks one block. Returns whether all of it could be read, and its space in 512 B.
    fn check_block(&mut self, inode: u64, of: &Inode, block: u64, extent: Option<Extent>, leaf: Option<LeafPointer>) -> (bool, u64) {
        let at = self.block_of(inode, of, block);
        // Allocated space may be behind the end of the file; data may not.
        if at.inside == 0 && !(leaf.is_none() && extent.is_some_and(|extent| extent.unwritten)) {
            self.find(Finding::BlockPastEnd { inode, block });
        }
        let (mut whole, mut logs) = (true, Vec::new());
        if let Some(extent) = extent {
            whole &= self.check_extent(&at, extent);
        }
        if let Some(leaf) = leaf {
            let (read, found) = self.read_leaf(&at, leaf);
            whole &= read & self.check_logs(&at, &found);
            logs = found;
        }
        let sectors = extent.map_or(0, |extent| extent.count);
        (whole, self.image.superblock.log_counting().block_space_512(sectors, &logs))
    }

    fn check_extent(&mut self, at: &BlockOf, extent: Extent) -> bool {
        let (geometry, pair) = (self.image.geometry, self.image.pair);
        let (inode, block, count) = (at.inode, at.block, extent.count);
        let sector = extent.sector.number();
        self.counts.sectors += u64::from(count);
        if !geometry.holds_sectors(extent.sector, count.into()) {
            self.find(Finding::ExtentOutside { inode, block, sector, count });
            return false;
        }
        let mut whole = true;
        if u64::from(count) > geometry.block_sectors_each() {
            self.find(Finding::ExtentTooLong { inode, block, count, most: geometry.block_sectors_each() });
        }
        if !self.sectors.claim(sector, count.into()) {
            self.find(Finding::SectorsShared { inode, block, sector });
            whole = false;
        }
        if !self.may_be(extent) {
            self.find(Finding::ChecksumKindWrong { inode, block });
        }
        let checksums = match extent.checksum {
            BlockChecksum::None => Vec::new(),
            BlockChecksum::Inline(checksum) => vec![checksum],
            BlockChecksum::Vector(vector) => {
                let lines = geometry.vector_lines();
                if !self.claim(inode, block, Target::Vector, vector, lines.next_power_of_two()) {
                    return false;
                }
                let Some(checksums) = self.read_vector(at, vector, u64::from(count).min(lines * VECTOR_LINE_SECTORS)) else { return false };
                checksums
            }
        };
        if extent.unwritten {
            return whole;
        }
        // Written sectors entirely behind the end were allocated space: they must be zeros, so that a growing file reads zeros.
        let most = at.inside.div_ceil(SECTOR_BYTES as u64);
        if at.inside > 0
            && checksums.len() as u64 > most
            && !checksums.iter().skip(most as usize).all(|checksum| *checksum == zero_sector(pair))
        {
            self.find(Finding::ExtentTooLong { inode, block, count, most });
        }
        if !checksums.is_empty() {
            self.queue_data(Job { inode, offset: at.start, source: Source::Sectors { first: extent.sector, checksums } });
        }
        whole
    }

    fn may_be(&self, extent: Extent) -> bool {
        let superblock = &self.image.superblock;
        match (superblock.checksum_kind, extent.checksum) {
            // Every extent that needs a checksum vector has one, and no other.
            (kind, checksum) if extent.unwritten => {
                matches!(checksum, BlockChecksum::Vector(_)) == (kind == ChecksumKind::Crc32c && extent.count > 1)
            }
            (ChecksumKind::Crc32c, BlockChecksum::None) => superblock.incompat & incompat::UNCHECKED_DATA != 0,
            (ChecksumKind::None, checksum) => checksum == BlockChecksum::None,
            _ => true,
        }
    }

    fn read_vector(&mut self, at: &BlockOf, vector: LineAddress, count: u64) -> Option<Vec<u32>> {
        let mut checksums = Vec::new();
        for line in 0..count.div_ceil(VECTOR_LINE_SECTORS) {
            let address = vector.nth(line);
            let Ok(bytes) = self.image.line(Structure::Mapping, address) else {
                self.find(Finding::MappingDamaged { inode: at.inode, line: address.number(), damage: Damage::Unreadable });
                return None;
            };
            let here = VECTOR_LINE_SECTORS.min(count - line * VECTOR_LINE_SECTORS);
            checksums.extend((0..here).map(|sector| vector_checksum(&bytes, sector)));
        }
        Some(checksums)
    }

    fn read_leaf(&mut self, at: &BlockOf, leaf: LeafPointer) -> (bool, Vec<LogEntry>) {
        let image = self.image;
        let mut logs = Vec::new();
        if !self.claim(at.inode, at.block, Target::Leaf, leaf.address, leaf.lines()) {
            return (false, logs);
        }
        let mut whole = true;
        for line in 0..leaf.lines() {
            let address = leaf.address.nth(line);
            let entries = match image.line(Structure::Mapping, address) {
                Ok(bytes) => match image.place(at.inode, at.generation, address).verify(&bytes) {
                    Ok(()) => line_entries(&bytes, address).map_err(Damage::from),
                    Err(corrupt) => Err(corrupt.into()),
                },
                Err(_) => Err(Damage::Unreadable),
            };
            match entries {
                Ok(entries) => logs.extend(entries.into_iter().flatten()),
                Err(damage) => {
                    self.find(Finding::MappingDamaged { inode: at.inode, line: address.number(), damage });
                    whole = false;
                }
            }
        }
        (whole, logs)
    }

    /// Checks the logs of a block. Returns whether all could be claimed.
    fn check_logs(&mut self, at: &BlockOf, logs: &[LogEntry]) -> bool {
        let (inode, block) = (at.inode, at.block);
        let mut whole = true;
        let mut sorted: Vec<&LogEntry> = logs.iter().collect();
        sorted.sort_by_key(|log| log.offset);
        let mut end = 0;
        for log in sorted {
            let (offset, length) = (log.offset, log.length);
            self.counts.logs += 1;
            self.counts.log_bytes += u64::from(length);
            self.counts.log_slot_bytes += log.class.bytes() as u64;
            if log.end() > self.image.geometry.block_bytes() {
                self.find(Finding::LogOutsideBlock { inode, block, offset, length });
            } else if at.inside > 0 && u64::from(log.end()) > at.inside {
                self.find(Finding::LogPastEnd { inode, block, offset, length });
            }
            if offset < end {
                self.find(Finding::LogsOverlap { inode, block, offset });
            }
            end = end.max(log.end());
            if self.claim(inode, block, Target::Slot, log.address, log.class.lines()) {
                if self.image.superblock.checksum_kind == ChecksumKind::Crc32c {
                    let source = Source::Log { address: log.address, length, checksum: log.crc };
                    self.queue_data(Job { inode, offset: at.start.saturating_add(offset.into()), source });
                }
            } else {
                whole = false;
            }
        }
        whole
    }

    /// Claims lines for a structure. False if it cannot be there, or if another structure uses them.
    fn claim(&mut self, inode: u64, block: u64, target: Target, address: LineAddress, lines: u64) -> bool {
        let image = self.image;
        let line = address.number();
        let region = match target {
            Target::MappingPage => Some(Region::Mappings),
            Target::DentryPage => Some(Region::Dentries),
            Target::Leaf | Target::Vector => Some(Region::Leaves),
            Target::Slot => None,
        };
        let may_be = match region {
            Some(region) => image.segments.holds(region, address, lines),
            None => image.geometry.holds_lines(address, lines) && image.segments.of_unit(address.unit()).is_none(),
        };
        if !may_be || !line.is_multiple_of(lines.next_power_of_two()) {
            self.find(Finding::PointerMisplaced { inode, block, target, line });
            return false;
        }
        if !self.lines.claim(line, lines) {
            self.find(Finding::LinesShared { inode, block, target, line });
            return false;
        }
        true
    }
}
