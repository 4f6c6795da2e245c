//! Checks the content of blocks: extents with their checksums, leaves, data logs.
//!
//! [LB1] If a log of a block is lost, the written sectors below go with it: they hold older bytes, which nobody may take for the file's.
//! [LB2] A log across the end of its file ends there after a repair, if its bytes match its checksum, and gets the checksum of those that stay. A log
//!       behind the end has no bytes of the file, so without it none is lost. What is below both behind the end may be anything: the inode
//!       says so. (A link with another length leads elsewhere, and pages below overlaid logs have checksums of both: there the log is lost.)

use tandemfs_device::Structure;
use tandemfs_format::inode::file_type;
use tandemfs_format::mapping::{
    BlockChecksum, Extent, LINE_ENTRIES, LeafPointer, LogEntry, Record, VECTOR_LINE_SECTORS, leaf_line, line_entries, vector_checksum,
};
use tandemfs_format::superblock::{ChecksumKind, incompat};
use tandemfs_format::{DataAddress, Line, LineAddress, PairSeed, SECTOR_BYTES};

use crate::checker::Checker;
use crate::contested::Wanted;
use crate::data::{Job, Source};
use crate::finding::{Damage, Finding, Target};
use crate::mend::{Lost, Mend, Origin, Owner};
use crate::mutant::{Mutant, on};
use crate::proved::Named;
use crate::tree::Site;

/// The checksum of a sector of zeros.
fn zero_sector(pair: PairSeed) -> u32 {
    pair.data(&[0; SECTOR_BYTES])
}

/// A block under inspection.
pub(crate) struct BlockOf {
    pub(crate) owner: Owner,
    pub(crate) inode: u64,
    pub(crate) site: Site,
    pub(crate) block: u64,
    /// Its first byte in the file.
    pub(crate) start: u64,
    /// Bytes of it before the end of the file.
    pub(crate) inside: u64,
    /// What is behind the end of the file may be anything.
    pub(crate) end_is_stale: bool,
}

impl BlockOf {
    /// All of its bytes before the end of the file.
    fn all(&self) -> Option<Lost> {
        (self.inside > 0).then_some(Lost { inode: self.inode, offset: self.start, bytes: self.inside })
    }

    fn becomes(&self, record: Record, lost: Option<Lost>) -> Mend {
        Mend::Record { owner: self.owner, site: self.site, record: record.encode(), leaf: Vec::new(), lost }
    }
}

/// What is to become of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Keep,
    /// Keeps all bytes of the file.
    Change(Extent),
    /// Its sectors are also another block's.
    Clone,
    /// So are the lines of its checksums.
    CloneChecksums,
    Drop,
}

/// Whether an extent's space is its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claimed {
    Own,
    /// Something else uses some of it.
    Shared,
    /// It cannot be there.
    Outside,
}

/// What becomes of who claims lines that others may claim too ([PO3], [PO4] of `contested.rs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Own,
    /// Gets other lines with the same bytes.
    Copied,
    Lost,
}

/// A log that cannot stay as it is.
#[derive(Debug, Clone, Copy)]
struct BadLog {
    log: LogEntry,
    /// What stays of it.
    left: Option<LogEntry>,
    /// Bytes of the file are lost with it.
    loses: bool,
}

/// The logs of a block that cannot stay as they are.
#[derive(Default)]
struct Unfit {
    bad: Vec<BadLog>,
    /// Those whose slots are also others'.
    shared: Vec<LogEntry>,
}

/// What is to become of a log.
fn fate_of(bad: &[BadLog], log: &LogEntry) -> Option<LogEntry> {
    bad.iter().find(|bad| bad.log == *log).map_or(Some(*log), |bad| bad.left)
}

/// A leaf as it was read: its lines, `None` for one that does not verify.
#[derive(Default)]
struct ReadLeaf {
    usable: bool,
    lines: Vec<(LineAddress, Option<[Option<LogEntry>; LINE_ENTRIES]>)>,
}

impl ReadLeaf {
    fn is_whole(&self) -> bool {
        self.usable && self.lines.iter().all(|(_, entries)| entries.is_some())
    }

    fn logs(&self) -> Vec<LogEntry> {
        self.lines.iter().filter_map(|(_, entries)| entries.as_ref()).flatten().flatten().copied().collect()
    }

    fn line_of(&self, log: &LogEntry) -> Option<LineAddress> {
        self.lines.iter().find(|(_, entries)| entries.as_ref().is_some_and(|entries| entries.contains(&Some(*log)))).map(|(line, _)| *line)
    }
}

impl Checker<'_> {
    /// Checks a block that is one log. Returns whether all of it could be read.
    pub(crate) fn check_single(&mut self, at: &BlockOf, log: LogEntry) -> bool {
        if at.inside == 0 {
            self.find(Finding::BlockPastEnd { inode: at.inode, block: at.block });
        }
        let origin = |log| Some(Origin::Single { site: at.site, log });
        let (whole, Unfit { bad, shared }) = self.check_logs(at, &[log], false, &origin);
        if at.inside == 0 || !bad.is_empty() {
            let lost = at.all().filter(|_| bad.iter().any(|bad| bad.loses));
            let record = match fate_of(&bad, &log).filter(|_| at.inside > 0) {
                Some(left) => Record::SingleLog(left),
                None if lost.is_some() && self.image.superblock.has_lost_records() => Record::LOST,
                None => Record::HOLE,
            };
            self.mend(at.becomes(record, lost));
        } else if !shared.is_empty() {
            let origin = Origin::Single { site: at.site, log };
            self.mend(Mend::CloneLog { owner: at.owner, site: at.site, origin, leaf: None, lost: at.all() });
        }
        whole
    }

    /// Checks one block, with an extent or lost, and with a leaf. Returns whether all of it could be read, and its space in 512 B.
    pub(crate) fn check_block(&mut self, at: &BlockOf, record: Record) -> (bool, u64) {
        let (extent, leaf, was_lost) = match record {
            Record::Block { extent, leaf } => (extent, leaf, false),
            Record::Lost { leaf, .. } => (None, leaf, true),
            Record::SingleLog(_) | Record::Run(_) | Record::Memory(_) | Record::Pointer { .. } => (None, None, false),
        };
        // Allocated space may be behind the end of the file; data may not.
        let is_past_end = at.inside == 0 && !(leaf.is_none() && extent.is_some_and(|extent| extent.unwritten));
        if is_past_end {
            self.find(Finding::BlockPastEnd { inode: at.inode, block: at.block });
        }
        let (mut whole, mut verdict) = (true, Verdict::Keep);
        let mut read = ReadLeaf { usable: true, lines: Vec::new() };
        let is_overlaid = extent.is_some_and(|extent| extent.overlaid);
        if let Some(leaf) = leaf.filter(|_| is_overlaid) {
            read = self.read_leaf(at, leaf); // its pages are verified with the logs
        }
        if let Some(extent) = extent {
            (whole, verdict) = self.check_extent(at, extent, leaf, &read.logs());
        }
        let (mut bad, mut shared) = (Vec::new(), Vec::new());
        if let Some(leaf) = leaf {
            if !is_overlaid {
                read = self.read_leaf(at, leaf);
            }
            let origin = |log: LogEntry| read.line_of(&log).map(|line| Origin::Entry { line, log });
            let (logs_whole, unfit) = self.check_logs(at, &read.logs(), is_overlaid, &origin);
            (bad, shared) = (unfit.bad, unfit.shared);
            whole &= read.is_whole() && logs_whole;
        }
        if is_past_end {
            self.mend(at.becomes(Record::HOLE, None));
        } else if verdict != Verdict::Keep || !bad.is_empty() || !read.is_whole() {
            self.mend_block(at, (extent, verdict, was_lost), (leaf, &read, &bad));
        }
        for log in shared.into_iter().filter(|_| !is_past_end) {
            if let Some(line) = read.line_of(&log) {
                let origin = Origin::Entry { line, log };
                self.mend(Mend::CloneLog { owner: at.owner, site: at.site, origin, leaf, lost: at.all() });
            }
        }
        if was_lost {
            self.list_lost(at, &read.logs());
        }
        let sectors = extent.map_or(0, |extent| extent.count);
        (whole, self.image.superblock.log_counting().block_space_512(sectors, &read.logs()))
    }

    fn mend_block(
        &mut self,
        at: &BlockOf,
        (extent, verdict, was_lost): (Option<Extent>, Verdict, bool),
        (leaf, read, bad): (Option<LeafPointer>, &ReadLeaf, &[BadLog]),
    ) {
        let log_is_lost = !read.is_whole() || bad.iter().any(|bad| bad.loses);
        let extent_left = match (extent, verdict) {
            (Some(extent), Verdict::Keep | Verdict::Clone | Verdict::CloneChecksums) => Some(extent),
            (Some(_), Verdict::Change(changed)) => Some(changed),
            (_, Verdict::Drop) | (None, _) => None,
        };
        let is_written = |extent: &Extent| !extent.unwritten;
        // [LB1]
        let extent_left = extent_left.filter(|extent| !log_is_lost || extent.unwritten || on(Mutant::OldBytesKept));
        let is_lost = log_is_lost || (verdict == Verdict::Drop && extent.as_ref().is_some_and(is_written));
        let lost = if is_lost { at.all() } else { None };
        let keeps_logs = read.usable && read.logs().iter().any(|log| fate_of(bad, log).is_some());
        let leaf_left = leaf.filter(|_| keeps_logs);
        let (owner, site) = (at.owner, at.site);
        let base_is_lost = was_lost || is_lost && self.image.superblock.has_lost_records();
        let extent_left = extent_left.filter(|_| !base_is_lost);
        if let (Verdict::Clone, Some(extent)) = (verdict, extent_left) {
            self.mend(Mend::Clone { owner, site, extent, leaf: leaf_left, lost: at.all() });
            return;
        }
        if let (Verdict::CloneChecksums, Some(extent)) = (verdict, extent_left) {
            self.mend(Mend::CloneChecksums { owner, site, extent, leaf: leaf_left, lost: at.all().filter(|_| !extent.unwritten) });
            return;
        }
        if !bad.is_empty() && !log_is_lost && extent_left.is_some_and(|extent| !extent.unwritten) && !at.end_is_stale {
            self.mend(Mend::Field { inode: at.inode, field: "state" }); // [LB2]
        }
        let leaf_lines = if keeps_logs { self.changed_leaf(at, read, bad) } else { Vec::new() };
        let record = match base_is_lost {
            true => Record::Lost { height: 0, leaf: leaf_left }.encode(),
            false => Record::Block { extent: extent_left, leaf: leaf_left }.encode(),
        };
        self.mend(Mend::Record { owner, site, record, leaf: leaf_lines, lost });
    }

    /// Lists the bytes of a lost block that no log has and that are before the end of the file.
    fn list_lost(&mut self, at: &BlockOf, logs: &[LogEntry]) {
        let mut of_logs: Vec<(u64, u64)> = logs.iter().map(|log| (log.offset.into(), log.end().into())).collect();
        of_logs.sort_unstable();
        of_logs.push((at.inside, at.inside));
        let mut from = 0;
        for (start, end) in of_logs {
            let to = start.min(at.inside);
            if from < to {
                self.note_lost(Lost { inode: at.inode, offset: at.start.saturating_add(from), bytes: to - from });
            }
            from = from.max(end);
        }
    }

    /// The lines of a leaf that change when damaged lines and bad entries go.
    fn changed_leaf(&self, at: &BlockOf, read: &ReadLeaf, bad: &[BadLog]) -> Vec<(LineAddress, Line)> {
        let mut changed = Vec::new();
        for (address, entries) in &read.lines {
            let mut left = entries.unwrap_or_default();
            for entry in &mut left {
                *entry = entry.and_then(|log| fate_of(bad, &log));
            }
            if *entries != Some(left) {
                let place = self.image.place(at.inode, at.owner.generation, *address);
                changed.push((*address, leaf_line(&left, &place)));
            }
        }
        changed
    }

    /// Returns whether all of the extent could be read, and what is to become of it.
    fn check_extent(&mut self, at: &BlockOf, extent: Extent, leaf: Option<LeafPointer>, logs: &[LogEntry]) -> (bool, Verdict) {
        let geometry = self.image.geometry;
        let (inode, block, count) = (at.inode, at.block, extent.count);
        match extent.at {
            DataAddress::Sector(_) => self.counts.sectors += u64::from(count),
            DataAddress::Page(_) => self.counts.pages += u64::from(count),
        }
        let (mut whole, mut verdict) = (true, Verdict::Keep);
        let claimed = self.claim_extent(at, extent);
        if claimed == Claimed::Outside {
            return (false, Verdict::Drop);
        }
        if u64::from(count) > geometry.block_sectors_each() {
            self.find(Finding::ExtentTooLong { inode, block, count, most: geometry.block_sectors_each() });
            verdict = Verdict::Drop;
        }
        if claimed == Claimed::Shared {
            // A copy goes to sectors, which are never open nor overlaid, and nothing says what its checksums would be.
            let has_no_copy = extent.unwritten || extent.overlaid || matches!(extent.checksum, BlockChecksum::Open(_));
            (whole, verdict) = (false, if has_no_copy || verdict == Verdict::Drop { Verdict::Drop } else { Verdict::Clone });
        }
        if !self.may_be(extent) {
            self.find(Finding::ChecksumKindWrong { inode, block });
            let is_unchecked = self.image.superblock.checksum_kind == ChecksumKind::None;
            let changed = Extent { checksum: BlockChecksum::None, overlaid: false, ..extent };
            verdict = if is_unchecked && verdict == Verdict::Keep { Verdict::Change(changed) } else { Verdict::Drop };
        }
        let checksums = match extent.checksum {
            BlockChecksum::None => Vec::new(),
            // What its checksums will need is its own; nothing is verified meanwhile.
            BlockChecksum::Open(vector) => {
                self.counts.open_pages += u64::from(count);
                if vector.is_some()
                    && let Some(verdict) = self.claim_checksums(at, extent, verdict)
                {
                    return (false, verdict);
                }
                Vec::new()
            }
            BlockChecksum::Inline(checksum) => vec![checksum],
            BlockChecksum::Vector(vector) => {
                let lines = geometry.vector_lines();
                if let Some(verdict) = self.claim_checksums(at, extent, verdict) {
                    return (false, verdict);
                }
                let found = self.read_vector(at, vector, u64::from(count).min(lines * VECTOR_LINE_SECTORS));
                let Some(checksums) = found else { return (false, Verdict::Drop) };
                checksums
            }
        };
        if extent.unwritten {
            return (whole, verdict);
        }
        if verdict == Verdict::Keep && matches!(extent.checksum, BlockChecksum::Open(_)) {
            self.check_open_end(at, extent);
        }
        if let Some(shorter) = self.check_end(at, extent, &checksums)
            && verdict == Verdict::Keep
        {
            verdict = Verdict::Change(shorter);
        }
        if !checksums.is_empty() {
            // What becomes zeros below logs fits no checksum of both: a mount copies the logs first.
            let is_mended = verdict == Verdict::Keep && !extent.overlaid;
            let origin = is_mended.then_some(Origin::Extent { site: at.site, extent, leaf });
            let over = if extent.overlaid && !on(Mutant::OverlaidCheckedBare) { logs.to_vec() } else { Vec::new() };
            let source = Source::Extent { first: extent.at, checksums, over };
            self.queue_data(Job { owner: at.owner, origin, offset: at.start, source });
        }
        (whole, verdict)
    }

    /// Claims the checksum lines of an extent. Returns what is to become of the extent if it cannot have them.
    fn claim_checksums(&mut self, at: &BlockOf, extent: Extent, verdict: Verdict) -> Option<Verdict> {
        let wanted = Wanted::checksums(self.image, extent)?;
        match self.claim_wanted(at.inode, at.block, Target::Vector, &wanted) {
            Fate::Own => None,
            Fate::Copied if verdict == Verdict::Keep => Some(Verdict::CloneChecksums),
            Fate::Copied => Some(verdict), // first what is wrong beside that
            Fate::Lost => Some(Verdict::Drop),
        }
    }

    /// Claims the sectors or pages of an extent.
    fn claim_extent(&mut self, at: &BlockOf, extent: Extent) -> Claimed {
        let (inode, block, count) = (at.inode, at.block, extent.count);
        match extent.at {
            DataAddress::Sector(first) if !self.image.geometry.holds_sectors(first, count.into()) => {
                self.find(Finding::ExtentOutside { inode, block, sector: first.number(), count });
                Claimed::Outside
            }
            DataAddress::Sector(first) if !self.sectors.claim(first.number(), count.into()) => {
                self.find(Finding::SectorsShared { inode, block, sector: first.number() });
                Claimed::Shared
            }
            DataAddress::Sector(_) => Claimed::Own,
            DataAddress::Page(first) => self.claim_pages(inode, block, first, extent),
        }
    }

    /// Written sectors entirely behind the end were allocated space: they must be zeros, so that a growing file reads zeros. Returns the
    /// extent without them if they are not.
    fn check_end(&mut self, at: &BlockOf, extent: Extent, checksums: &[u32]) -> Option<Extent> {
        let most = at.inside.div_ceil(SECTOR_BYTES as u64);
        let zero = zero_sector(self.image.pair);
        let first = checksums.first().copied()?;
        if at.inside == 0 || checksums.len() as u64 <= most || checksums.iter().skip(most as usize).all(|checksum| *checksum == zero) {
            return None;
        }
        self.find(Finding::ExtentTooLong { inode: at.inode, block: at.block, count: extent.count, most });
        let checksum = if most == 1 { BlockChecksum::Inline(first) } else { extent.checksum };
        Some(Extent { count: most as u32, checksum, ..extent })
    }

    /// Open pages have no checksums that could say what is behind the end, so their bytes are read. A repair lets the inode say that they may be
    /// anything, and whoever closes the pages or grows the file zeroes them.
    fn check_open_end(&mut self, at: &BlockOf, extent: Extent) {
        let bytes = u64::from(extent.count) * SECTOR_BYTES as u64;
        if !self.options.data || on(Mutant::OpenEndUnread) || at.end_is_stale || at.inside == 0 || at.inside >= bytes {
            return;
        }
        let skipped = at.inside / SECTOR_BYTES as u64;
        let mut behind = vec![0; (bytes - skipped * SECTOR_BYTES as u64) as usize];
        let (inode, offset) = (at.inode, at.start + at.inside);
        if self.image.data(extent.at.nth(skipped), &mut behind).is_err() {
            self.find(Finding::DataUnreadable { inode, offset, bytes: bytes - at.inside });
        } else if behind.iter().skip((at.inside % SECTOR_BYTES as u64) as usize).any(|byte| *byte != 0) {
            self.find(Finding::OpenEndNotZero { inode, block: at.block, offset });
            self.mend(Mend::Field { inode, field: "state" });
        }
    }

    fn may_be(&self, extent: Extent) -> bool {
        let superblock = &self.image.superblock;
        match (superblock.checksum_kind, extent.checksum) {
            // Every extent that needs a checksum vector has one, and no other.
            (kind, checksum) if extent.unwritten => {
                matches!(checksum, BlockChecksum::Vector(_)) == (kind == ChecksumKind::Crc32c && extent.count > 1)
            }
            (ChecksumKind::Crc32c, BlockChecksum::Open(_)) => superblock.has_memory_homes(),
            (ChecksumKind::Crc32c, _) if extent.overlaid => superblock.has_memory_homes(),
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

    fn read_leaf(&mut self, at: &BlockOf, leaf: LeafPointer) -> ReadLeaf {
        let image = self.image;
        let mut read = ReadLeaf::default();
        if !self.claim_proved(Named::leaf(at.owner, leaf), at.block, Target::Leaf) {
            return read;
        }
        read.usable = true;
        for line in 0..leaf.lines() {
            let address = leaf.address.nth(line);
            let entries = match image.line(Structure::Mapping, address) {
                Ok(bytes) => match image.place(at.inode, at.owner.generation, address).verify(&bytes) {
                    Ok(()) => line_entries(&bytes, address).map_err(Damage::from),
                    Err(corrupt) => Err(corrupt.into()),
                },
                Err(_) => {
                    read.usable = false; // a line that cannot be read cannot be relied on to take others
                    Err(Damage::Unreadable)
                }
            };
            if let Err(damage) = entries {
                self.find(Finding::MappingDamaged { inode: at.inode, line: address.number(), damage });
            }
            read.lines.push((address, entries.ok()));
        }
        if read.is_whole() && read.logs().is_empty() {
            // A block without logs has no leaf, so its lines were zeroed.
            let damage = Damage::Field { field: "entries", found: 0 };
            self.find(Finding::MappingDamaged { inode: at.inode, line: leaf.address.number(), damage });
            read.lines.iter_mut().for_each(|(_, entries)| *entries = None);
        }
        read
    }

    /// Checks the logs of a block. Returns whether all could be claimed, and the ones that cannot stay.
    fn check_logs(
        &mut self,
        at: &BlockOf,
        logs: &[LogEntry],
        is_overlaid: bool,
        origin: &dyn Fn(LogEntry) -> Option<Origin>,
    ) -> (bool, Unfit) {
        let (inode, block) = (at.inode, at.block);
        let (mut whole, mut unfit) = (true, Unfit::default());
        let mut sorted: Vec<&LogEntry> = logs.iter().collect();
        sorted.sort_by_key(|log| log.offset);
        let mut end = 0;
        for log in sorted {
            let (offset, length) = (log.offset, log.length);
            self.counts.logs += 1;
            self.counts.log_bytes += u64::from(length);
            self.counts.log_slot_bytes += log.class.bytes() as u64;
            let (mut stays, mut is_past_end) = (true, false);
            if log.end() > self.image.geometry.block_bytes() {
                self.find(Finding::LogOutsideBlock { inode, block, offset, length });
                stays = false;
            } else if at.inside > 0 && u64::from(log.end()) > at.inside {
                self.find(Finding::LogPastEnd { inode, block, offset, length });
                is_past_end = true;
            }
            if offset < end {
                self.find(Finding::LogsOverlap { inode, block, offset });
                stays = false;
            }
            end = end.max(log.end());
            let fate = self.claim_wanted(inode, block, Target::Slot, &Wanted::Slot(*log));
            if fate == Fate::Own && self.image.superblock.checksum_kind == ChecksumKind::Crc32c {
                let source = Source::Log { address: log.address, length, checksum: log.crc };
                let origin = origin(*log).filter(|_| stays && !is_past_end);
                self.queue_data(Job { owner: at.owner, origin, offset: at.start.saturating_add(offset.into()), source });
            }
            (whole, stays) = (whole && fate == Fate::Own, stays && fate != Fate::Lost);
            if stays && is_past_end && !is_overlaid && !on(Mutant::LogsAcrossEndDropped) {
                unfit.bad.push(self.cut_at_end(at, *log));
            } else if !stays || is_past_end {
                unfit.bad.push(BadLog { log: *log, left: None, loses: true });
            } else if fate == Fate::Copied {
                unfit.shared.push(*log);
            }
        }
        (whole, unfit)
    }

    /// What is to become of a log that ends behind the end of its file ([LB2]).
    fn cut_at_end(&self, at: &BlockOf, log: LogEntry) -> BadLog {
        let lost = BadLog { log, left: None, loses: true };
        let is_link = self.inodes.get(at.inode).is_some_and(|facts| u16::from(facts.kind) << 12 == file_type::SYMLINK);
        let length = at.inside.saturating_sub(log.offset.into()) as u32;
        let mut bytes = vec![0; log.length as usize];
        if length == 0 {
            return BadLog { loses: false, ..lost };
        }
        if is_link || self.image.load_part(Structure::DataLog, log.address, &mut bytes).is_err() {
            return lost;
        }
        let Some(inside) = bytes.get(..length as usize) else { return lost };
        let crc = match self.image.superblock.checksum_kind {
            ChecksumKind::Crc32c if self.image.pair.data(&bytes) != log.crc => return lost,
            ChecksumKind::Crc32c => self.image.pair.data(inside),
            ChecksumKind::None => 0,
        };
        BadLog { log, left: Some(LogEntry { length, crc, ..log }), loses: false }
    }
}
