//! What one round changes: records of lines that change together, and what is written aside before them. Later changes of a plan see the
//! earlier ones.

use std::collections::{BTreeMap, BTreeSet};

use tandemfs_device::Structure;
use tandemfs_format::inode::{Inode, InodeColdLine, InodeHotLine, file_type};
use tandemfs_format::mapping::{Record, RecordBytes, line_records, with_record};
use tandemfs_format::{DataAddress, EMPTY_LINE, InodeNumber, LINE_BYTES, Line, LineAddress, PAGE_LINES, Sector};
use zerocopy::{FromBytes, IntoBytes};

use crate::checker::Inspection;
use crate::finding::Finding;
use crate::image::Image;
use crate::mend::{Lost, Owner};
use crate::mutant::{Mutant, on};
use crate::namespace::DentryPage;
use crate::runs::{FoundRun, position};
use crate::tree::Site;

use super::free::Free;

/// Lines that change together.
pub(crate) type Group = BTreeMap<u64, Line>;

/// Sectors or pages that are copied before any record is written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SectorCopy {
    pub(crate) from: DataAddress,
    pub(crate) to: Sector,
    pub(crate) count: u64,
}

/// The changes of one round.
pub(crate) struct Plan<'i> {
    pub(crate) inspection: &'i Inspection<'i>,
    pub(crate) image: &'i Image<'i>,
    pub(crate) free: Free<'i>,
    /// In the order in which they become durable.
    pub(crate) groups: Vec<Group>,
    /// Lines that nobody uses yet ([RP6]).
    pub(crate) aside: BTreeMap<u64, Line>,
    pub(crate) copies: Vec<SectorCopy>,
    /// Runs of sectors or pages that become zeros.
    pub(crate) zeros: Vec<(DataAddress, u64)>,
    pub(crate) lost: Vec<Lost>,
    /// Inodes that get a name.
    pub(crate) placed: Vec<u64>,
    /// What was made anew, for people.
    pub(crate) sentences: Vec<String>,
    /// The generation of maps that are right, if they are there ([OM1] of `maps.rs`).
    pub(crate) maps_generation: u64,
    /// This round, or one before it, found that names are lost ([HV2] of `halves.rs`).
    pub(crate) names_are_lost: bool,
    /// All lines that change, with their new bytes.
    view: BTreeMap<u64, Line>,
    freed: BTreeSet<u64>,
}

impl<'i> Plan<'i> {
    pub(crate) fn new(inspection: &'i Inspection<'i>) -> Self {
        Self {
            inspection,
            image: &inspection.image,
            free: Free::new(inspection),
            groups: Vec::new(),
            aside: BTreeMap::new(),
            copies: Vec::new(),
            zeros: Vec::new(),
            lost: Vec::new(),
            placed: Vec::new(),
            sentences: Vec::new(),
            maps_generation: inspection.image.superblock.generation,
            names_are_lost: false,
            view: BTreeMap::new(),
            freed: BTreeSet::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Whether the sectors are those of the pair ([ZE1]).
    pub(crate) fn may_write_sectors(&self) -> bool {
        !self.inspection.findings().any(|finding| *finding == Finding::IdentityDamaged {}) || on(Mutant::ForeignSectorsZeroed)
    }

    /// Adds lines that change together.
    pub(crate) fn add(&mut self, group: Group) {
        if group.is_empty() {
            return;
        }
        self.view.extend(&group);
        self.groups.push(group);
    }

    /// Adds lines of new structures, which a later record links.
    pub(crate) fn put_aside(&mut self, first: LineAddress, lines: impl IntoIterator<Item = Line>) {
        for (line, bytes) in (first.number()..).zip(lines) {
            self.aside.insert(line, bytes);
            self.view.insert(line, bytes);
        }
    }

    /// A line as the plan leaves it; `None` if it cannot be read.
    pub(crate) fn line(&self, structure: Structure, address: LineAddress) -> Option<Line> {
        match self.view.get(&address.number()) {
            Some(line) => Some(*line),
            None => self.image.line(structure, address).ok(),
        }
    }

    /// A page of directory entries as the plan leaves it.
    pub(crate) fn dentry_page(&self, owner: Owner, address: LineAddress) -> Option<DentryPage<'i>> {
        let mut read = self.image.page_by_lines(Structure::Dentry, address).ok()?;
        for (line, image) in self.view.range(address.number()..address.number() + PAGE_LINES) {
            let index = (line - address.number()) as usize;
            read.unreadable &= !(1 << index);
            if let Some(target) = read.bytes.get_mut(index * LINE_BYTES..(index + 1) * LINE_BYTES) {
                target.copy_from_slice(image);
            }
        }
        Some(DentryPage::of(self.image, owner.inode, owner.generation, address, read))
    }

    /// An inode as the plan leaves it, if it verifies.
    pub(crate) fn inode(&self, number: u64) -> Option<(LineAddress, Inode)> {
        let address = self.image.segments.inode_address(number)?;
        let hot = self.line(Structure::Inode, address)?;
        let cold = self.line(Structure::Inode, address.nth(1))?;
        let inode = Inode::decode(self.image.pair, InodeNumber::new(number), address, &hot, &cold).ok()??;
        Some((address, inode))
    }

    pub(crate) fn hot_line(&self, number: u64, change: impl FnOnce(&mut InodeHotLine)) -> Option<Group> {
        let (address, _) = self.inode(number)?;
        let mut hot = InodeHotLine::read_from_bytes(&self.line(Structure::Inode, address)?).ok()?;
        change(&mut hot);
        Some(self.inode_line(number, address, hot.as_bytes()))
    }

    pub(crate) fn cold_line(&self, number: u64, change: impl FnOnce(&mut InodeColdLine)) -> Option<Group> {
        let (address, _) = self.inode(number)?;
        let address = address.nth(1);
        let mut cold = InodeColdLine::read_from_bytes(&self.line(Structure::Inode, address)?).ok()?;
        change(&mut cold);
        Some(self.inode_line(number, address, cold.as_bytes()))
    }

    fn inode_line(&self, number: u64, address: LineAddress, bytes: &[u8]) -> Group {
        let place = Inode::place(self.image.pair, InodeNumber::new(number), address);
        Group::from([(address.number(), place.seal(line_from(bytes)))])
    }

    /// Changes a hot line.
    pub(crate) fn change_hot(&mut self, number: u64, change: impl FnOnce(&mut InodeHotLine)) {
        if let Some(group) = self.hot_line(number, change) {
            self.add(group);
        }
    }

    /// Changes a cold line.
    pub(crate) fn change_cold(&mut self, number: u64, change: impl FnOnce(&mut InodeColdLine)) {
        if let Some(group) = self.cold_line(number, change) {
            self.add(group);
        }
    }

    /// The line with a record replaced.
    pub(crate) fn with_record(&self, owner: Owner, site: Site, record: RecordBytes) -> Option<Group> {
        match site {
            Site::Inode => self.cold_line(owner.inode, |cold| cold.root = record.to_bytes()),
            Site::Line { line, index } => {
                let old = self.line(Structure::Mapping, line)?;
                let place = self.image.place(owner.inode, owner.generation, line);
                Some(Group::from([(line.number(), with_record(&old, index, record, &place, self.image.superblock.hole_lines()))]))
            }
            Site::InRun { page, head, block } => {
                let mut group = self.dissolved(owner, page, head)?;
                self.put_record(&mut group, owner, page, (head + block, record))?;
                Some(group)
            }
        }
    }

    /// The lines of a page in which a run became records of its blocks; none if its record is no longer a run ([FR2] of `runs.rs`).
    pub(crate) fn dissolved(&self, owner: Owner, page: LineAddress, head: u64) -> Option<Group> {
        let mut group = Group::new();
        let (line, index) = position(page, head);
        let records = line_records(&self.line(Structure::Mapping, line)?);
        if let Some(Ok(Record::Run(run))) = records.get(index).map(|record| record.decode(line)) {
            let found = FoundRun::of(self.image, (page, head, 0), run, |line| self.line(Structure::Mapping, page.nth(line)));
            for record in found.dissolved() {
                self.put_record(&mut group, owner, page, record)?;
            }
        }
        Some(group)
    }

    /// Replaces a record of a page in a group.
    fn put_record(&self, group: &mut Group, owner: Owner, page: LineAddress, (index, record): (u64, RecordBytes)) -> Option<()> {
        let (line, index) = position(page, index);
        let old = group.get(&line.number()).copied().or_else(|| self.line(Structure::Mapping, line))?;
        let place = self.image.place(owner.inode, owner.generation, line);
        group.insert(line.number(), with_record(&old, index, record, &place, self.image.superblock.hole_lines()));
        Some(())
    }

    /// Frees the slot of an inode.
    pub(crate) fn free_inode(&mut self, number: u64, address: LineAddress) {
        if self.freed.insert(number) {
            self.add(Group::from([(address.number(), EMPTY_LINE), (address.number() + 1, EMPTY_LINE)]));
        }
    }

    pub(crate) fn is_freed(&self, number: u64) -> bool {
        self.freed.contains(&number)
    }

    /// A symbolic link that lost part of its target leads nowhere, or elsewhere: it goes. Returns whether this is one.
    pub(crate) fn frees_link(&mut self, lost: Option<Lost>) -> bool {
        let Some(lost) = lost else { return false };
        if self.is_freed(lost.inode) {
            return true;
        }
        let Some((address, inode)) = self.inode(lost.inode) else { return false };
        if inode.file_type() != file_type::SYMLINK {
            return false;
        }
        self.lost.push(lost);
        self.free_inode(lost.inode, address);
        true
    }
}

/// A line of these bytes.
pub(crate) fn line_from(bytes: &[u8]) -> Line {
    let mut line = EMPTY_LINE;
    for (to, from) in line.iter_mut().zip(bytes.iter().take(LINE_BYTES)) {
        *to = *from;
    }
    line
}
