//! Online scrub: reads and verifies every line of metadata, every data log and every sector, from the device and not from caches.
//!
//! [SC1] A scrub is a position that moves forward, a bounded piece per step. The caller decides on progress, pace and end. Findings stay in
//!       the scrub. It writes nothing, and a finding stops neither the scrub nor the file system.
//! [SC2] A line of metadata is verified on the device unless the host copy is newer. If there is a clean host copy, both must be equal;
//!       this also shows lost writes. The line is read under the lock of its page's host copy, so nobody writes it home meanwhile. Pointers
//!       are taken from the host copy if there is one, so damage on the device hides nothing behind it.
//! [SC3] Lines of an inode are read under its lock, shared (RULES R5): their owner cannot change meanwhile. Data is read under a shared
//!       lock of its range alone (RULES R9), and looked up again under that lock.
//! [SC4] What appears behind the position is not read: it was written during the scrub. The journal and the saved maps are not scrubbed: a
//!       later recovery or unmount verifies or writes them.
//! [SC5] A position inside an inode carries its generation, which each step compares under the inode's lock. If the number belongs to
//!       another inode by then, that inode is new as in [SC4], and its root may not name blocks at all.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;

use hashbrown::{HashMap, HashSet};
use tandemfs_device::{BlockRequest, DeviceError, Structure};
use tandemfs_format::attributes::{AttributeValue, Namespace, StreamShape, addresses_of, decode_set, extend_stream};
use tandemfs_format::dentry::decode_slot;
use tandemfs_format::geometry::{SEGMENT_TABLE_LINES, SUPERBLOCK_OFFSETS};
use tandemfs_format::hole_lines::holds_only_holes;
use tandemfs_format::identity::BlockHalf;
use tandemfs_format::inode::{Inode, file_type};
use tandemfs_format::mapping::{LogEntry, Record, line_records};
use tandemfs_format::run::Run;
use tandemfs_format::segment::Segment;
use tandemfs_format::superblock::Superblock;
use tandemfs_format::{Corrupt, DataAddress, InodeNumber, LINE_BYTES, Line, LineAddress, PAGE_LINES, SECTOR_BYTES, Sector};
use zerocopy::IntoBytes;

use crate::cache::LineStore;
use crate::error::Error;
use crate::file_system::FileSystem;
use crate::index::block::{Base, Block};
use crate::index::runs;
use crate::index::tree;
use crate::inodes::State;
use crate::inodes::attribute_set::AttributeSet;
use crate::journal::Journal;
use crate::mutant::{Mutant, on};
use crate::volume::{Owner, Volume};

/// Inodes that one step looks at.
const STEP_INODES: u64 = 128;
/// Pages of a mapping or of a directory that one step looks at; more than a tree is high.
const STEP_PAGES: usize = 16;
/// Data or attribute values that one step reads, in bytes; at least one block.
const STEP_BYTES: u64 = 1 << 20;
/// Findings that are kept; further ones are only counted.
const FINDINGS_MAX: usize = 1000;

/// What reading lines from the device takes: the lines, and the journal, which knows when they change ([SC2]).
#[derive(Clone, Copy)]
struct Medium<'v> {
    store: &'v LineStore,
    journal: &'v Journal,
}

impl<'v> Medium<'v> {
    fn of(volume: &'v Volume) -> Self {
        Self { store: &volume.line_store, journal: &volume.journal }
    }
}

impl Deref for Medium<'_> {
    type Target = LineStore;

    fn deref(&self) -> &LineStore {
        self.store
    }
}

/// What a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScrubbedKind {
    /// Sectors of a file.
    Sectors,
    /// Pages of the memory zone with data of a file.
    Pages,
    /// A data log of a file.
    Log,
    /// A line of metadata.
    Line,
    /// Data of a file that a repair gave up.
    Lost,
    /// A copy of the superblock, or the sector that identifies the block half.
    Superblock,
}

impl ScrubbedKind {
    /// The name in `scrub --json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sectors => "sectors",
            Self::Pages => "pages",
            Self::Log => "log",
            Self::Line => "line",
            Self::Lost => "lost",
            Self::Superblock => "superblock",
        }
    }
}

/// Damage that a scrub found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScrubFinding {
    /// What is damaged.
    pub kind: ScrubbedKind,
    /// The inode that it belongs to; none for structures of the whole file system.
    pub inode: Option<InodeNumber>,
    /// Offset in the file in bytes, for file data.
    pub file_offset: Option<u64>,
    /// Offset on the device in bytes: in the block zone for sectors, else in the memory zone. For lost data the place of its record, or 0.
    pub device_offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// What is wrong.
    pub cause: String,
}

impl fmt::Display for ScrubFinding {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(inode) = self.inode {
            write!(to, "inode {inode}: ")?;
        }
        match self.file_offset {
            Some(offset) => write!(to, "{} B of data at byte {offset}", self.length)?,
            None => write!(to, "{} B of metadata", self.length)?,
        }
        if self.kind == ScrubbedKind::Lost {
            return write!(to, ": {}", self.cause);
        }
        let zone = if self.kind == ScrubbedKind::Sectors { "block" } else { "memory" };
        write!(to, " (byte {} of the {zone} zone): {}", self.device_offset, self.cause)
    }
}

/// What a scrub has read so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScrubCounts {
    /// Inodes in use.
    pub inodes: u64,
    /// Lines of metadata that were verified.
    pub lines: u64,
    /// Lines whose host copy is newer: the next checkpoint writes them.
    pub lines_not_home: u64,
    /// Data logs.
    pub logs: u64,
    /// Sectors of data.
    pub sectors: u64,
    /// Pages among them that are open, so have no checksums ([OG2] of `data/open_pages.rs`). Those that are not mapped are closed then.
    pub open_pages: u64,
    /// Bytes read from the device.
    pub bytes: u64,
}

/// A scrub in progress ([SC1]).
#[derive(Debug)]
pub struct Scrub {
    stage: Stage,
    counts: ScrubCounts,
    total_bytes: u64,
    findings: Vec<ScrubFinding>,
    findings_left_out: u64,
    /// Lines that were reported already: upper pages of a tree are read again for each part of it.
    known: HashSet<LineAddress>,
    buffer: Vec<u8>,
}

#[derive(Debug)]
enum Stage {
    Fixed,
    Inode(u64),
    /// Separate attribute values of an inode, after a name.
    Values(Owner, Option<(Namespace, Vec<u8>)>),
    /// The mapping of a file or directory, from a block on.
    Tree(Owner, u64),
    /// Blocks that were found in the mapping, and the block at which the walk goes on.
    Blocks(Owner, VecDeque<u64>, Option<u64>),
    Done,
}

impl Scrub {
    /// What was read so far.
    pub fn counts(&self) -> ScrubCounts {
        self.counts
    }

    /// About how many bytes the scrub will read: the space in use when it began.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Findings so far, in the order of discovery.
    pub fn findings(&self) -> &[ScrubFinding] {
        &self.findings
    }

    /// Number of findings that were not kept.
    pub fn findings_left_out(&self) -> u64 {
        self.findings_left_out
    }

    fn find(&mut self, finding: ScrubFinding) {
        tracing::error!(
            inode = finding.inode.map(InodeNumber::get),
            file_offset = finding.file_offset,
            device_offset = finding.device_offset,
            length = finding.length,
            "scrub: {finding}"
        );
        if self.findings.len() < FINDINGS_MAX { self.findings.push(finding) } else { self.findings_left_out += 1 }
    }

    fn find_line(&mut self, inode: Option<InodeNumber>, address: LineAddress, cause: impl fmt::Display) {
        if self.known.len() < FINDINGS_MAX && !self.known.insert(address) {
            return;
        }
        self.find(ScrubFinding {
            kind: ScrubbedKind::Line,
            inode,
            file_offset: None,
            device_offset: address.offset_bytes(),
            length: LINE_BYTES as u64,
            cause: cause.to_string(),
        });
    }

    /// Reports a part of a file that a repair gave up, if it is not behind the file's end. Parts that follow each other are one finding.
    fn find_lost(&mut self, inode: InodeNumber, record: LineAddress, file_offset: u64, length: u64) {
        let follows = |last: &&mut ScrubFinding| {
            (last.kind, last.inode, last.file_offset.map(|start| start + last.length))
                == (ScrubbedKind::Lost, Some(inode), Some(file_offset))
        };
        if let Some(last) = self.findings.last_mut().filter(follows) {
            last.length += length;
        } else if length > 0 {
            let (kind, cause) = (ScrubbedKind::Lost, "lost since a repair".into());
            let device_offset = record.offset_bytes();
            self.find(ScrubFinding { kind, inode: Some(inode), file_offset: Some(file_offset), device_offset, length, cause });
        }
    }

    /// Reports an error that the engine met. A line is reported once.
    fn find_error(&mut self, inode: InodeNumber, error: &Error) {
        match error {
            Error::Damaged {
                source: source @ (Corrupt::Checksum { address, .. } | Corrupt::Field { address, .. } | Corrupt::Unreadable { address }),
                ..
            } => self.find_line(Some(inode), *address, source),
            Error::Device(DeviceError::Poisoned { offset, .. }) => {
                self.find_line(Some(inode), LineAddress::new(offset / LINE_BYTES as u64), error);
            }
            Error::Stale(_) => {}
            other => self.find_line(Some(inode), LineAddress::new(0), other),
        }
    }

    /// Consecutive lines of one page, as the file system sees them; `None` for a line without a valid version ([SC2]).
    fn lines(
        &mut self,
        medium: Medium<'_>,
        inode: Option<InodeNumber>,
        structure: Structure,
        first: LineAddress,
        count: u64,
        verify: &dyn Fn(LineAddress, &Line) -> Result<(), Corrupt>,
    ) -> Vec<Option<Line>> {
        let mut lines = Vec::with_capacity(count as usize);
        // A drive with transactions returns lines before they are committed, and before the host copy has them.
        let nobody_commits = medium.journal.hold_drive_commits();
        let home = medium.pages.home(&medium.drive, structure, first, count);
        drop(nobody_commits);
        let home = match home {
            Ok(home) => home,
            Err(error) if count == 1 => {
                self.find_line(inode, first, error);
                return vec![medium.pages.cached_line(first)];
            }
            // Line by line, to find the failing one.
            Err(_) => return (0..count).flat_map(|line| self.lines(medium, inode, structure, first.nth(line), 1, verify)).collect(),
        };
        for (index, line) in home.device.as_chunks::<LINE_BYTES>().0.iter().enumerate() {
            let address = first.nth(index as u64);
            let host = home.host.as_ref().map(|host| host.as_chunks::<LINE_BYTES>().0[index]);
            if home.newer >> index & 1 == 1 {
                self.counts.lines_not_home += 1;
                lines.push(host);
                continue;
            }
            self.counts.lines += 1;
            self.counts.bytes += LINE_BYTES as u64;
            let line = if on(Mutant::ScrubFromCache) { &host.unwrap_or(*line) } else { line };
            let verified = verify(address, line);
            let valid = verified.is_ok();
            match (verified, host) {
                (Err(corrupt), _) => self.find_line(inode, address, corrupt),
                (Ok(()), Some(host)) if host != *line => {
                    self.find_line(inode, address, format!("line {address} is not what was written to it"));
                }
                _ => {}
            }
            lines.push(host.or(valid.then_some(*line)));
        }
        lines
    }

    // ---- stages ---------------------------------------------------------------------------------------------------------------------

    /// Superblocks, identity, segment table.
    fn fixed(&mut self, medium: Medium<'_>) {
        let found = |offset, length, cause| ScrubFinding {
            kind: ScrubbedKind::Superblock,
            inode: None,
            file_offset: None,
            device_offset: offset,
            length,
            cause,
        };
        for offset in SUPERBLOCK_OFFSETS {
            let mut copy = vec![0; 1024];
            let address = LineAddress::new(offset / LINE_BYTES as u64);
            let (loaded, written) = medium.journal.while_unwritten(|written| {
                let loaded = medium.drive.load(Structure::Superblock, address, &mut copy);
                (loaded, written.encode())
            });
            self.counts.bytes += copy.len() as u64;
            let cause = match loaded {
                Err(error) => Some(error.to_string()),
                Ok(()) => match Superblock::decode(&copy) {
                    Err(error) => Some(error.to_string()),
                    // A mount that writes has written both copies; of another one a crash may have left an older one.
                    Ok(_) if copy != written.as_bytes() && !medium.health.is_read_only() && !on(Mutant::LostWritesUnnoticed) => {
                        Some("an older version: the drive has lost a write".to_owned())
                    }
                    Ok(_) => None,
                },
            };
            if let Some(cause) = cause {
                self.find(found(offset, copy.len() as u64, cause));
            }
        }
        if medium.geometry.has_block_zone()
            && let Err(cause) = self.identity(medium)
        {
            self.find(found(0, SECTOR_BYTES as u64, cause));
        }
        let units = medium.geometry.memory_units();
        let verify = |address, line: &Line| Segment::decode(line, medium.pair, address, units).map(drop);
        for first in (0..SEGMENT_TABLE_LINES).step_by(PAGE_LINES as usize) {
            self.lines(medium, None, Structure::AllocationMap, medium.geometry.segment_line(first), PAGE_LINES, &verify);
        }
    }

    /// Reads the identity. The error is what is wrong with it.
    fn identity(&mut self, medium: Medium<'_>) -> std::result::Result<(), String> {
        let mut sector = vec![0; SECTOR_BYTES];
        let mut requests = [BlockRequest::Read { sector: Sector::new(0), buffer: (&mut sector).into() }];
        self.counts.bytes += SECTOR_BYTES as u64;
        medium.drive.transfer(Structure::Superblock, &mut requests, &mut || {}).map(drop).map_err(|error| error.to_string())?;
        match medium.journal.superblock().block_half(&sector) {
            BlockHalf::Partner { .. } => Ok(()),
            _ => Err("the first sector of the block zone does not name the pair and its stamp".into()),
        }
    }

    /// Scrubs inodes one after the other, until one has more to read or the step has read enough. Returns the next stage.
    fn inodes(&mut self, fs: &FileSystem, first: u64, limit: u64) -> Stage {
        let end = limit.min(first + STEP_INODES);
        let enough = self.counts.bytes + STEP_BYTES;
        for number in first..end {
            if let Some(more) = self.inode(fs, InodeNumber::new(number)) {
                return more;
            }
            if self.counts.bytes > enough && number + 1 < limit {
                return Stage::Inode(number + 1);
            }
        }
        if end < limit { Stage::Inode(end) } else { Stage::Done }
    }

    /// Scrubs the two lines of an inode and its set of attributes. Returns the stage for the rest of the inode.
    fn inode(&mut self, fs: &FileSystem, number: InodeNumber) -> Option<Stage> {
        let volume = &fs.volume;
        let address = volume.memory.inode_address(number)?;
        let verify = |address, line: &Line| Inode::place(volume.pair, number, address).verify(line);
        let look = |scrub: &mut Self| scrub.lines(Medium::of(volume), Some(number), Structure::Inode, address, 2, &verify);
        match fs.inodes.get(volume, number) {
            Ok(file) => {
                let state = file.state.read_waiting();
                if state.removed {
                    return None;
                }
                look(self);
                self.counts.inodes += 1;
                match (self.attributes(Medium::of(volume), &state, number), state.inode.has_mapping()) {
                    (true, _) => Some(Stage::Values(state.owner(number), None)),
                    (false, true) => Some(Stage::Tree(state.owner(number), 0)),
                    (false, false) => None,
                }
            }
            // A free slot has valid lines as well, as long as its unit is one of inodes ([GU4] of `alloc/departure.rs`). A thread that takes
            // it now may change one line after the other.
            Err(error) => {
                let is_there = volume.memory.while_inode_at(number, address, || look(self)).is_some();
                if is_there && !matches!(error, Error::Stale(_)) {
                    self.find_error(number, &error);
                }
                None
            }
        }
    }

    /// Scrubs the lines of an inode's attribute set and decodes the set. True if it has separate values.
    fn attributes(&mut self, medium: Medium<'_>, state: &State, number: InodeNumber) -> bool {
        let (owner, pointer) = (state.owner(number), state.inode.attributes);
        if pointer.is_none() {
            return false;
        }
        let verified = match pointer.first_piece() {
            None => Err(Corrupt::Field { address: pointer.address, field: "attributes_class", found: pointer.class.into() }),
            Some(piece) => match self.stream(medium, owner, pointer.address, piece) {
                None => return false,
                Some(stream) => decode_set(medium.pair, pointer, &stream),
            },
        };
        match verified {
            Ok(set) => set.iter().any(|attribute| matches!(attribute.value, AttributeValue::Apart { .. })),
            Err(source) => {
                self.find_line(Some(number), pointer.address, source);
                false
            }
        }
    }

    /// Scrubs separate values after a name, as many as a step reads: one inode may have seven thousand of 64 KiB. Returns the name of the
    /// last one; none if no more follow. The set may have changed since the last step, so it is looked up again.
    fn values(&mut self, fs: &FileSystem, owner: Owner, after: Option<&(Namespace, Vec<u8>)>) -> Option<(Namespace, Vec<u8>)> {
        let (volume, number) = (&fs.volume, owner.inode);
        let file = fs.inodes.get(volume, number).ok()?;
        let state = file.state.read_waiting();
        if !state.is_life_of(owner) {
            return None; // [SC5]
        }
        let values = match AttributeSet::apart(volume, owner, &state) {
            Ok(values) => values,
            Err(error) => {
                self.find_error(number, &error);
                return None;
            }
        };
        let enough = self.counts.bytes + STEP_BYTES;
        for value in values.into_iter().filter(|value| after.is_none_or(|after| value.name > *after)) {
            let shape = StreamShape::of(value.length as usize);
            let stream = self.stream(Medium::of(volume), owner, value.address, (shape.lines, shape.pages > 0));
            let found = stream.map(|stream| stream.get(..value.length as usize).map(|bytes| volume.pair.data(bytes)));
            if found.is_some_and(|found| found != Some(value.crc)) {
                self.find_line(Some(number), value.address, "checksum mismatch of an extended attribute");
            }
            if self.counts.bytes >= enough {
                return Some(value.name);
            }
        }
        None
    }

    /// The bytes of a stream; `None` if one of its lines is damaged.
    fn stream(&mut self, medium: Medium<'_>, owner: Owner, first: LineAddress, (lines, names_pages): (u64, bool)) -> Option<Vec<u8>> {
        let verify = |address, line: &Line| medium.place(owner, address).verify(line);
        let mut bytes = Vec::new();
        let mut pieces = vec![(first, lines, names_pages)];
        while let Some((first, lines, names_pages)) = pieces.pop() {
            if !medium.geometry.holds_lines(first, lines) {
                self.find_line(Some(owner.inode), first, "a pointer leads out of the memory zone");
                return None;
            }
            let found = self.lines(medium, Some(owner.inode), Structure::Mapping, first, lines, &verify);
            let found: Option<Vec<Line>> = found.into_iter().collect();
            for line in found? {
                match names_pages {
                    true => pieces.extend(addresses_of(&line).map(|page| (page.page(), PAGE_LINES, false))),
                    false => extend_stream(&mut bytes, &line),
                }
            }
            if names_pages {
                pieces.reverse();
            }
        }
        Some(bytes)
    }

    /// Scrubs a part of a mapping. Returns the blocks that it names, and the block at which the walk goes on.
    fn tree(&mut self, fs: &FileSystem, owner: Owner, from: u64) -> Option<(VecDeque<u64>, Option<u64>)> {
        let number = owner.inode;
        let file = fs.inodes.get(&fs.volume, number).ok()?;
        let state = file.state.read_waiting();
        if !state.is_life_of(owner) || !state.inode.has_mapping() {
            return None; // [SC5]
        }
        let extent = (state.inode.size, fs.volume.geometry.block_bytes().into());
        let mut walk = Walk { owner, from, pages: STEP_PAGES, blocks: VecDeque::new(), extent };
        let record = match state.root().decode(LineAddress::new(0)) {
            Ok(record) => record,
            Err(source) => {
                self.find_error(number, &Error::Damaged { inode: number, source });
                return None;
            }
        };
        let next = match record {
            Record::HOLE => None,
            Record::Pointer { page, height } => self.page(Medium::of(&fs.volume), &mut walk, page, height, 0),
            Record::Lost { height: height @ 1.., .. } => {
                walk.lost(self, LineAddress::new(0), 0, tree::capacity(height));
                None
            }
            _ => {
                walk.blocks.push_back(0);
                None
            }
        };
        Some((walk.blocks, next))
    }

    /// Scrubs a page of a mapping and the pages below. Returns the block to go on from if the step has read enough.
    fn page(&mut self, medium: Medium<'_>, walk: &mut Walk, page: LineAddress, height: u32, base: u64) -> Option<u64> {
        if walk.pages == 0 {
            return Some(base.max(walk.from));
        }
        walk.pages -= 1;
        let owner = walk.owner;
        if !medium.geometry.holds_lines(page, PAGE_LINES) {
            self.find_line(Some(owner.inode), page, "a pointer leads out of the memory zone");
            return None;
        }
        let below = tree::capacity(height - 1);
        let verify = |address, line: &Line| medium.holes.verify(line, &medium.place(owner, address));
        let lines = self.lines(medium, Some(owner.inode), Structure::Mapping, page, PAGE_LINES, &verify);
        let mut start = base;
        for (index, line) in lines.into_iter().enumerate() {
            let address = page.nth(index as u64);
            for record in line.filter(|line| !holds_only_holes(line)).iter().flat_map(line_records) {
                let (block, end) = (start, start.saturating_add(below));
                start = end;
                let record = record.decode(address);
                if let (1, Ok(Record::Run(run))) = (height, &record) {
                    self.run(medium, walk, (page, block - base), block, run);
                    continue;
                }
                if end <= walk.from {
                    continue;
                }
                match record {
                    Ok(Record::HOLE) => {}
                    Ok(Record::Pointer { page, height: lower }) if lower + 1 == height => {
                        if let Some(next) = self.page(medium, walk, page, lower, block) {
                            return Some(next);
                        }
                    }
                    Ok(Record::Lost { height: lower @ 1.., .. }) if lower + 1 == height => walk.lost(self, address, block, below),
                    Ok(Record::Pointer { .. }) => self.find_line(Some(owner.inode), address, "a pointer leads to a wrong level"),
                    Ok(_) if height > 1 => self.find_line(Some(owner.inode), address, "a block where a pointer is due"),
                    Ok(_) => walk.blocks.push_back(block),
                    Err(source) => self.find_line(Some(owner.inode), address, source),
                }
            }
            start = base.saturating_add(below.saturating_mul((index as u64 + 1) * tandemfs_format::mapping::LINE_RECORDS as u64));
        }
        None
    }

    /// Notes the blocks of a run, and scrubs the checksum lines that belong to it itself ([BR3] of `index/runs.rs`).
    fn run(&mut self, medium: Medium<'_>, walk: &mut Walk, (page, index): (LineAddress, u64), block: u64, run: &Run) {
        let shape = match runs::verified(medium.store, walk.owner, run, page, index) {
            Ok(shape) => shape,
            Err(error) => return self.find_error(walk.owner.inode, &error),
        };
        for line in runs::own_lines(run, shape, 0..run.blocks.into()) {
            self.lines(medium, Some(walk.owner.inode), Structure::Mapping, line, 1, &|_, _: &Line| Ok(()));
        }
        walk.blocks.extend(block.max(walk.from)..block + u64::from(run.blocks));
    }

    /// Scrubs some of the blocks that were found. False if the inode is gone.
    fn blocks(&mut self, fs: &FileSystem, owner: Owner, blocks: &mut VecDeque<u64>) -> bool {
        let (volume, number) = (&fs.volume, owner.inode);
        let Ok(file) = fs.inodes.get(volume, number) else { return false };
        {
            let state = file.state.read_waiting();
            if !state.is_life_of(owner) || !state.inode.has_mapping() {
                return false; // [SC5]
            }
            if state.inode.is_directory() {
                for block in blocks.drain(..blocks.len().min(STEP_PAGES)) {
                    self.directory_page(Medium::of(volume), &state, number, block);
                }
                return true;
            }
        }
        let Some(first) = blocks.front().copied() else { return true };
        let each = u64::from(volume.geometry.block_bytes());
        let last = first + (STEP_BYTES / each).max(1) - 1;
        let Ok(_range) = file.ranges.shared(first, last) else {
            while blocks.pop_front_if(|block| *block <= last).is_some() {} // [SL4] of `data/lent_stores.rs`: it can be stored to
            return true;
        }; // [SC3]
        let mut data = Vec::new();
        {
            let state = file.state.read_waiting();
            if !state.is_life_of(owner) {
                return false; // [SC5]
            }
            let size = state.inode.size;
            while let Some(block) = blocks.pop_front_if(|block| *block <= last) {
                match Block::lookup(volume, owner, state.root(), block) {
                    Ok(found) => {
                        if found.base.is_open() {
                            self.counts.open_pages += u64::from(found.base.sectors());
                            fs.unchecked.lock().add(number);
                        }
                        self.lines_of_block(Medium::of(volume), owner, &found);
                        self.lost_bytes(number, &found, block * each, size);
                        match Data::of(volume, owner, found, block * each) {
                            Ok(found) => data.push(found),
                            Err(error) => self.find_error(number, &error),
                        }
                    }
                    Err(error) => self.find_error(number, &error),
                }
            }
        }
        self.data(volume, volume.checksums, number, &data);
        true
    }

    fn directory_page(&mut self, medium: Medium<'_>, state: &State, number: InodeNumber, block: u64) {
        let owner = state.owner(number);
        match tree::lookup(medium.store, owner, state.root(), block) {
            Ok(Record::Memory(page)) if medium.geometry.holds_lines(page, PAGE_LINES) => {
                let verify = |address, line: &Line| decode_slot(line, &medium.place(owner, address)).map(drop);
                self.lines(medium, Some(number), Structure::Dentry, page, PAGE_LINES, &verify);
            }
            Ok(Record::HOLE) => {}
            Ok(_) => self.find_line(Some(number), LineAddress::new(0), "a page of a directory is none"),
            Err(error) => self.find_error(number, &error),
        }
    }

    /// Reports what is lost of a block at `start`, between its logs.
    fn lost_bytes(&mut self, number: InodeNumber, block: &Block, start: u64, size: u64) {
        let end = size.saturating_sub(start).min(block.base.data_bytes().into()) as u32;
        let mut at = 0;
        while let Some(first) = block.first_lost(at..end, |_| None) {
            at = block.logs().map(|log| log.offset).filter(|offset| *offset > first).min().unwrap_or(end).min(end);
            self.find_lost(number, LineAddress::new(0), start + u64::from(first), u64::from(at - first));
        }
    }

    /// Scrubs the leaf and the checksum vector of a block. A vector's lines have no checksum of their own: the sectors verify them.
    fn lines_of_block(&mut self, medium: Medium<'_>, owner: Owner, block: &Block) {
        let verify = |address, line: &Line| medium.place(owner, address).verify(line);
        let any = |_, _: &Line| Ok(());
        let leaf = block.leaf_lines().map(|lines| (lines, true));
        let vector = block.vector_lines().map(|lines| (lines, false));
        for ((first, count), sealed) in leaf.into_iter().chain(vector) {
            let mut line = 0;
            while line < count {
                // Neither crosses a page: both are aligned to their length, which is at most a page.
                let here = count.min(PAGE_LINES - first.nth(line).index_in_page() as u64).min(count - line);
                let verify: &dyn Fn(LineAddress, &Line) -> Result<(), Corrupt> = if sealed { &verify } else { &any };
                self.lines(medium, Some(owner.inode), Structure::Mapping, first.nth(line), here, verify);
                line += here;
            }
        }
    }

    /// Scrubs logs and sectors, with only their range locked.
    fn data(&mut self, store: &LineStore, checksums: bool, inode: InodeNumber, data: &[Data]) {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(data.iter().map(|data| data.sectors.map_or(0, |(_, count)| count as usize * SECTOR_BYTES)).sum(), 0);
        let mut rest = &mut buffer[..];
        let mut requests = Vec::new();
        let mut loaded = true;
        for (at, count) in data.iter().filter_map(|data| data.sectors) {
            let (buffer, further) = std::mem::take(&mut rest).split_at_mut(count as usize * SECTOR_BYTES);
            match at {
                DataAddress::Sector(sector) => requests.push(BlockRequest::Read { sector, buffer: buffer.into() }),
                DataAddress::Page(page) => loaded &= store.drive.load(Structure::Data, page, buffer).is_ok(),
            }
            rest = further;
        }
        let read = (requests.is_empty() || store.drive.transfer(Structure::Data, &mut requests, &mut || {}).map(drop).is_ok()) && loaded;
        drop(requests);
        let mut at = 0;
        for data in data {
            for log in &data.logs {
                self.log(store, checksums, inode, data.start, log);
            }
            let Some((first, count)) = data.sectors else { continue };
            self.counts.bytes += u64::from(count) * SECTOR_BYTES as u64;
            let mut bad: Option<ScrubFinding> = None;
            for index in 0..u64::from(count) {
                let sector = &mut buffer[at..at + SECTOR_BYTES];
                at += SECTOR_BYTES;
                self.counts.sectors += 1;
                let cause = if read {
                    None
                } else {
                    // One of the requests failed: sector by sector, to find which.
                    let again = match first.nth(index) {
                        DataAddress::Sector(at) => {
                            let mut request = [BlockRequest::Read { sector: at, buffer: (&mut *sector).into() }];
                            store.drive.transfer(Structure::Data, &mut request, &mut || {}).map(drop)
                        }
                        DataAddress::Page(page) => store.drive.load(Structure::Data, page, sector),
                    };
                    again.err().map(|error| error.to_string())
                };
                if data.overlaid {
                    lay_over(store, &data.logs, index, sector);
                }
                let fits = data.checksums.get(index as usize).is_none_or(|expected| store.pair.data(sector) == *expected);
                let cause = cause.or((!fits && !on(Mutant::ScrubPassesOver)).then(|| "checksum mismatch".into()));
                let offset = data.start + index * SECTOR_BYTES as u64;
                match (cause, &mut bad) {
                    (Some(cause), Some(bad)) if bad.cause == cause && bad.file_offset.is_some_and(|start| start + bad.length == offset) => {
                        bad.length += SECTOR_BYTES as u64;
                    }
                    (Some(cause), bad) => {
                        let found = ScrubFinding {
                            kind: if first.page().is_some() { ScrubbedKind::Pages } else { ScrubbedKind::Sectors },
                            inode: Some(inode),
                            file_offset: Some(offset),
                            device_offset: offset_in_zone(first.nth(index)),
                            length: SECTOR_BYTES as u64,
                            cause,
                        };
                        bad.replace(found).into_iter().for_each(|before| self.find(before));
                    }
                    (None, _) => {}
                }
            }
            bad.into_iter().for_each(|last| self.find(last));
        }
        self.buffer = buffer;
    }

    fn log(&mut self, store: &LineStore, checksums: bool, inode: InodeNumber, start: u64, log: &LogEntry) {
        let mut bytes = vec![0; log.length as usize];
        self.counts.logs += 1;
        self.counts.bytes += bytes.len() as u64;
        let cause = match store.drive.load(Structure::DataLog, log.address, &mut bytes) {
            Err(error) => error.to_string(),
            Ok(()) if checksums && store.pair.data(&bytes) != log.crc => "checksum mismatch".into(),
            Ok(()) => return,
        };
        self.find(ScrubFinding {
            kind: ScrubbedKind::Log,
            inode: Some(inode),
            file_offset: Some(start + u64::from(log.offset)),
            device_offset: log.address.offset_bytes(),
            length: log.length.into(),
            cause,
        });
    }
}

/// Lays logs over a page of their block. One that cannot be loaded is a finding of its own, and the page does not fit then.
fn lay_over(store: &LineStore, logs: &[LogEntry], index: u64, page: &mut [u8]) {
    let start = index as usize * SECTOR_BYTES;
    for log in logs {
        let (from, to) = ((log.offset as usize).max(start), (log.end() as usize).min(start + SECTOR_BYTES));
        let mut bytes = vec![0; log.length as usize];
        if from < to && store.drive.load(Structure::DataLog, log.address, &mut bytes).is_ok() {
            let skip = log.offset as usize;
            page[from - start..to - start].copy_from_slice(&bytes[from - skip..to - skip]);
        }
    }
}

/// Distance from the start of its zone, in bytes.
fn offset_in_zone(at: DataAddress) -> u64 {
    match at {
        DataAddress::Sector(sector) => sector.offset_bytes(),
        DataAddress::Page(page) => page.offset_bytes(),
    }
}

/// A walk through a part of a tree.
struct Walk {
    owner: Owner,
    from: u64,
    /// Pages that the walk may still read.
    pages: usize,
    blocks: VecDeque<u64>,
    /// Size of the file, and of a block, in bytes.
    extent: (u64, u64),
}

impl Walk {
    /// Reports a lost subtree, unless an earlier step did.
    fn lost(&self, scrub: &mut Scrub, record: LineAddress, first: u64, blocks: u64) {
        let (size, block_bytes) = self.extent;
        let start = first.saturating_mul(block_bytes);
        if first >= self.from {
            let end = first.saturating_add(blocks).saturating_mul(block_bytes).min(size);
            scrub.find_lost(self.owner.inode, record, start, end.saturating_sub(start));
        }
    }
}

/// Data of a block that has to be read.
struct Data {
    /// Offset of the block in the file, in bytes.
    start: u64,
    sectors: Option<(DataAddress, u32)>,
    checksums: Vec<u32>,
    /// They are of the pages with the logs over them.
    overlaid: bool,
    logs: Vec<LogEntry>,
}

impl Data {
    fn of(store: &LineStore, owner: Owner, block: Block, start: u64) -> crate::error::Result<Self> {
        let sectors = match block.base {
            Base::Hole | Base::Lost(_) | Base::Unwritten(_) => None,
            Base::Written(run) => Some((run.at, run.count)),
        };
        let mut checksums = Vec::new();
        if let Some((_, count)) = sectors {
            block.sector_checksums(store, owner, 0, count.into(), |_, crc| {
                checksums.push(crc);
                Ok(())
            })?;
        }
        Ok(Self { start, sectors, checksums, overlaid: block.base.is_overlaid(), logs: block.logs().copied().collect() })
    }
}

impl FileSystem {
    /// Starts a scrub of everything.
    pub fn scrub(&self) -> Scrub {
        let space = self.space();
        let inodes = space.inodes_used * 2 * LINE_BYTES as u64;
        let used = inodes + space.memory.data_log_bytes + space.memory.extent_bytes + space.block.total_bytes - space.block.free_bytes;
        Scrub {
            stage: Stage::Fixed,
            counts: ScrubCounts::default(),
            total_bytes: used,
            findings: Vec::new(),
            findings_left_out: 0,
            known: HashSet::new(),
            buffer: Vec::new(),
        }
    }

    /// Notes the result of a scrub that ended, for [`FileSystem::error_counters`]: at once on the device, unless nothing may be written.
    pub fn note_scrub(&self, scrub: &Scrub) {
        let findings = scrub.findings.len() as u64 + scrub.findings_left_out;
        self.volume.errors.scrubbed(findings, scrub.counts.bytes);
        if self.volume.health.check_writable().is_ok() {
            self.volume.journal.write_error_counters(&self.volume.line_store);
        }
    }

    /// Scrubs the next piece. False if nothing is left.
    pub fn scrub_step(&self, scrub: &mut Scrub) -> bool {
        let limit = self.volume.memory.inode_limit();
        scrub.stage = match std::mem::replace(&mut scrub.stage, Stage::Done) {
            Stage::Fixed => {
                scrub.fixed(Medium::of(&self.volume));
                Stage::Inode(InodeNumber::ROOT.get())
            }
            Stage::Inode(first) => scrub.inodes(self, first, limit),
            Stage::Values(owner, after) => match scrub.values(self, owner, after.as_ref()) {
                Some(last) => Stage::Values(owner, Some(last)),
                None => Stage::Tree(owner, 0),
            },
            Stage::Tree(owner, from) => match scrub.tree(self, owner, from) {
                Some((blocks, next)) => Stage::Blocks(owner, blocks, next),
                None => Stage::Inode(owner.inode.get() + 1),
            },
            Stage::Blocks(owner, mut blocks, next) => {
                if !scrub.blocks(self, owner, &mut blocks) {
                    Stage::Inode(owner.inode.get() + 1)
                } else {
                    match (blocks.is_empty(), next) {
                        (false, next) => Stage::Blocks(owner, blocks, next),
                        (true, Some(next)) => Stage::Tree(owner, next),
                        (true, None) => Stage::Inode(owner.inode.get() + 1),
                    }
                }
            }
            Stage::Done => Stage::Done,
        };
        !matches!(scrub.stage, Stage::Done)
    }

    /// A path from the root for each of these inodes that has one. Walks the tree until none is missing.
    pub fn paths_of(&self, numbers: &[InodeNumber]) -> HashMap<u64, Vec<u8>> {
        let mut missing: HashSet<u64> = numbers.iter().map(|number| number.get()).collect();
        let mut found = HashMap::new();
        let mut waiting = VecDeque::from([(InodeNumber::ROOT, Vec::new())]);
        if missing.remove(&InodeNumber::ROOT.get()) {
            found.insert(InodeNumber::ROOT.get(), b"/".to_vec());
        }
        while let Some((directory, path)) = waiting.pop_front().filter(|_| !missing.is_empty()) {
            // The scrub has reported what cannot be read.
            let _damaged = self.read_directory(directory, 2, &mut |entry| {
                let path = || [&path[..], b"/", entry.name].concat();
                if missing.remove(&entry.inode.get()) {
                    found.insert(entry.inode.get(), path());
                }
                if u16::from(entry.file_type) << 12 == file_type::DIRECTORY {
                    waiting.push_back((entry.inode, path()));
                }
                !missing.is_empty()
            });
        }
        found
    }
}
