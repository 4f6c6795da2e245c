//! Checks the mapping of each inode: every page, extent, log, leaf and vector must be in an allowed place and used once.

use tandemfs_format::inode::{Inode, state};
use tandemfs_format::mapping::{Extent, Record};
use tandemfs_format::segment::Region;
use tandemfs_format::{DataAddress, LineAddress, PAGE_BYTES, PAGE_LINES};

use crate::blocks::{BlockOf, Claimed, Fate};
use crate::checker::{Checker, Stage};
use crate::contested::{Standing, Wanted};
use crate::finding::{Damage, Finding, Target};
use crate::inodes::sweep;
use crate::mend::{Lost, Mend, Owner};
use crate::mutant::{Mutant, on};
use crate::namespace::OpenDirectory;
use crate::proved::{Named, Proved};
use crate::runs::{FoundRun, position};
use crate::tree::{Site, Span, Step, Walk};

/// The mapping of an inode under inspection.
struct Mapping<'m> {
    owner: Owner,
    inode: &'m Inode,
    /// Its pages, if it is a directory.
    directory: Option<OpenDirectory>,
    /// Everything was read.
    whole: bool,
    /// Space in units of 512 B.
    space: u64,
}

impl Checker<'_> {
    /// Walks the mappings of all inodes, and the entries of directories with them.
    pub(crate) fn check_mappings(&mut self) {
        let image = self.image;
        sweep(image, &mut |done, total, found| match found {
            None => self.progress(Stage::Mappings, done, total),
            Some(found) => {
                let Ok(inode) = found.decoded else { return };
                if self.begins_again() {
                    return;
                }
                let before = (self.lines.total(), self.sectors.total());
                let attributes_512 = self.check_attributes(found.number, &inode);
                let mapping_512 = if inode.has_mapping() { self.check_mapping(found.number, &inode) } else { Some(0) };
                if let (Some(mapping), Some(attributes)) = (mapping_512, attributes_512)
                    && mapping + attributes != inode.space_512
                {
                    let expected = mapping + attributes;
                    self.find(Finding::SpaceWrong { inode: found.number, found: inode.space_512, expected });
                }
                let (lines, sectors) = (self.lines.total() - before.0, self.sectors.total() - before.1);
                self.usage.add(&inode, lines, sectors);
            }
        });
        if !self.begins_again() {
            self.verify_data();
        }
    }

    /// Checks the mapping of an inode. Returns the space that it uses, in 512 B; `None` if damage hides part of it.
    pub(crate) fn check_mapping(&mut self, number: u64, inode: &Inode) -> Option<u64> {
        let owner = Owner { inode: number, generation: inode.generation };
        let directory = inode.is_directory().then(|| OpenDirectory::new(number, inode));
        let mut mapping = Mapping { owner, inode, directory, whole: true, space: 0 };
        let mut walk = Walk::new(number, inode);
        while let Some(step) = walk.next(self.image) {
            self.check_step(&mut mapping, &mut walk, step);
        }
        let Mapping { directory, mut whole, space, .. } = mapping;
        if let Some(directory) = directory {
            whole &= self.close_directory(directory, inode);
            self.names_whole &= whole;
        }
        self.tree_whole &= whole;
        whole.then_some(space)
    }

    fn check_step(&mut self, mapping: &mut Mapping<'_>, walk: &mut Walk, step: Step) {
        let (inode, image) = (mapping.owner.inode, self.image);
        match step {
            Step::DamagedLine { line, height, span, hidden, damage } => {
                self.find(Finding::MappingDamaged { inode, line: line.number(), damage });
                let lost = lost_of(self.image.geometry.block_bytes(), inode, mapping.inode.size, span);
                self.cut(mapping, Mend::Line { owner: mapping.owner, line, height, span, lost });
                for behind in 0..hidden {
                    let (line, index) = position(line.nth(1), behind);
                    self.cut_record(mapping, Site::Line { line, index }, Span { first: span.first + span.count + behind, count: 1 });
                }
            }
            Step::DamagedRecord { site, span, damage } => {
                self.find(Finding::MappingDamaged { inode, line: site.line().number(), damage });
                self.cut_record(mapping, site, span);
            }
            Step::Misfit { site, span } => {
                self.find(Finding::RecordKind { inode, block: span.first, line: site.line().number() });
                self.cut_record(mapping, site, span);
            }
            Step::Pointer { site, span, page, height } => {
                let named = Named::page(mapping.owner, Region::Mappings, page);
                if !self.claim_proved(named, span.first, Target::MappingPage) {
                    self.cut_record(mapping, site, span);
                } else if walk.enter(image, page, height, span.first).is_err() {
                    self.find(Finding::MappingDamaged { inode, line: page.number(), damage: Damage::Unreadable });
                    self.cut_record(mapping, site, span);
                }
            }
            Step::Run(run) => self.check_run(mapping, walk, &run),
            Step::Block { block, site, record } => self.check_record(mapping, block, site, record),
            Step::Lost { site, span } => self.check_lost(mapping, site, span),
        }
    }

    /// A run as a whole; its blocks follow. What is wrong with it costs the blocks that only it names.
    fn check_run(&mut self, mapping: &mut Mapping<'_>, walk: &mut Walk, found: &FoundRun) {
        let (inode, block, count) = (mapping.owner.inode, found.first, found.run.blocks);
        let line = found.site(0).line().number();
        self.counts.runs += 1;
        let (mut stays, mut is_shared) = (true, false);
        if mapping.directory.is_some() || !self.image.superblock.has_memory_homes() {
            self.find(Finding::RecordKind { inode, block, line });
            stays = false;
        } else if !found.is_possible {
            self.find(Finding::RunMisplaced { inode, block, count });
            stays = false;
        } else if found.inline.is_none() {
            self.find(Finding::MappingDamaged {
                inode,
                line: found.own_lines().next().map_or(0, LineAddress::number),
                damage: Damage::Unreadable,
            });
            stays = false;
        } else {
            for (index, line) in (0..).zip(found.own_lines()) {
                match self.claim_wanted(inode, block, Target::Vector, &Wanted::group(found, index, line)) {
                    Fate::Own => {}
                    Fate::Copied => is_shared = true,
                    Fate::Lost => stays = false,
                }
            }
        }
        mapping.whole &= !is_shared;
        if let Some(overlapped) = found.overlapped {
            self.find(Finding::RunOverlapped { inode, block, overlapped });
            mapping.whole = false;
        }
        if !stays {
            walk.leave_run();
            for block in &found.blocks {
                self.cut_record(mapping, found.site(*block), Span { first: found.first + block, count: 1 });
            }
        } else if found.overlapped.is_some() || is_shared {
            self.cut(mapping, Mend::Dissolve { owner: mapping.owner, site: found.site(0) });
        }
    }

    /// A subtree that an earlier repair gave up: listed, and kept.
    fn check_lost(&mut self, mapping: &mut Mapping<'_>, site: Site, span: Span) {
        let inode = mapping.owner.inode;
        let lost = lost_of(self.image.geometry.block_bytes(), inode, mapping.inode.size, span);
        match lost {
            Some(lost) if mapping.directory.is_none() && self.image.superblock.has_lost_records() => self.note_lost(lost),
            Some(_) => {
                self.find(Finding::RecordKind { inode, block: span.first, line: site.line().number() });
                self.cut_record(mapping, site, span);
            }
            None => {
                self.find(Finding::BlockPastEnd { inode, block: span.first });
                self.cut_record(mapping, site, span);
            }
        }
    }

    fn check_record(&mut self, mapping: &mut Mapping<'_>, block: u64, site: Site, record: Record) {
        let number = mapping.owner.inode;
        match (&mut mapping.directory, record) {
            (Some(directory), Record::Memory(page)) => {
                let named = Named::page(mapping.owner, Region::Dentries, page);
                if self.claim_proved(named, block, Target::DentryPage) {
                    mapping.space += PAGE_BYTES as u64 / 512;
                    mapping.whole &= self.check_directory_page(directory, block, page);
                } else {
                    directory.is_faulty = true;
                    mapping.whole = false;
                }
            }
            (None, Record::Block { .. }) | (None, Record::Lost { height: 0, .. }) if self.is_known(record) => {
                let at = self.block_of(mapping.owner, mapping.inode, block, site);
                let (whole, space) = self.check_block(&at, record);
                mapping.whole &= whole;
                mapping.space += space;
            }
            (None, Record::SingleLog(log)) => {
                let at = self.block_of(mapping.owner, mapping.inode, block, site);
                mapping.whole &= self.check_single(&at, log);
                mapping.space += self.image.superblock.log_counting().block_space_512(0, [&log]);
            }
            _ => {
                self.find(Finding::RecordKind { inode: number, block, line: site.line().number() });
                self.cut_record(mapping, site, Span { first: block, count: 1 });
            }
        }
    }

    /// Part of a mapping has to go. A directory's is made anew from the pages that are left.
    fn cut(&mut self, mapping: &mut Mapping<'_>, mend: Mend) {
        mapping.whole = false;
        match &mut mapping.directory {
            Some(directory) => directory.is_faulty = true,
            None => self.mend(mend),
        }
    }

    fn cut_record(&mut self, mapping: &mut Mapping<'_>, site: Site, span: Span) {
        let lost = lost_of(self.image.geometry.block_bytes(), mapping.owner.inode, mapping.inode.size, span);
        self.cut(mapping, Mend::Subtree { owner: mapping.owner, site, span, lost });
    }

    fn is_known(&self, record: Record) -> bool {
        let superblock = &self.image.superblock;
        match record {
            Record::Lost { .. } => superblock.has_lost_records(),
            Record::Block { extent: Some(extent), .. } => extent.at.sector().is_some() || superblock.has_memory_homes(),
            _ => true,
        }
    }

    fn block_of(&mut self, owner: Owner, of: &Inode, block: u64, site: Site) -> BlockOf {
        let block_bytes = u64::from(self.image.geometry.block_bytes());
        let start = block.saturating_mul(block_bytes);
        let inside = of.size.saturating_sub(start).min(block_bytes);
        self.counts.blocks += 1;
        let end_is_stale = of.state & state::TAIL_STALE != 0;
        BlockOf { owner, inode: owner.inode, site, block, start, inside, end_is_stale }
    }

    /// Claims the lines of a page or leaf, unless they are another inode's by their checksums ([PO1] of `proved.rs`), or another block's.
    pub(crate) fn claim_proved(&mut self, named: Named, block: u64, target: Target) -> bool {
        let image = self.image;
        let (inode, line) = (named.owner.inode, named.first);
        let is_of_block = || self.contested.as_ref().is_some_and(|contested| contested.has_proved(line, named.count));
        if named.is_foreign(image)
            && !on(Mutant::FirstClaimWins)
            && (is_of_block() || self.proved.get_or_insert_with(|| Proved::search(image)).has(&named))
        {
            self.find(Finding::LinesShared { inode, block, target, line: line.number() });
            return false;
        }
        self.claim(inode, block, target, line, named.count)
    }

    /// Claims lines that nothing in them gives to somebody ([PO3] of `contested.rs`).
    pub(crate) fn claim_wanted(&mut self, inode: u64, block: u64, target: Target, wanted: &Wanted) -> Fate {
        let image = self.image;
        let (first, count) = wanted.lines();
        let has_proved = self.contested.as_ref().is_some_and(|contested| contested.has_proved(first, count));
        let may_give_way = has_proved && wanted.may_be(image);
        let standing = if may_give_way && !on(Mutant::FirstClaimWins) { wanted.standing(image) } else { Standing::Proved };
        if standing != Standing::Proved {
            self.find(Finding::LinesShared { inode, block, target, line: first.number() });
        }
        match standing {
            Standing::NothingFits => Fate::Lost,
            Standing::Unknown => Fate::Copied,
            Standing::Proved => match self.claim_lines(inode, block, target, first, count) {
                Claimed::Own => Fate::Own,
                Claimed::Shared if !on(Mutant::SecondClaimLost) => Fate::Copied,
                Claimed::Shared | Claimed::Outside => Fate::Lost,
            },
        }
    }

    /// Claims lines for a structure. False if it cannot be there, or if another structure uses them.
    pub(crate) fn claim(&mut self, inode: u64, block: u64, target: Target, address: LineAddress, lines: u64) -> bool {
        self.claim_lines(inode, block, target, address, lines) == Claimed::Own
    }

    fn claim_lines(&mut self, inode: u64, block: u64, target: Target, address: LineAddress, lines: u64) -> Claimed {
        let image = self.image;
        let line = address.number();
        let region = match target {
            Target::MappingPage => Some(Region::Mappings),
            Target::DentryPage => Some(Region::Dentries),
            Target::Leaf | Target::Vector => Some(Region::Leaves),
            Target::Slot | Target::Pages => None,
        };
        let may_be = match region {
            Some(region) => image.segments.holds(region, address, lines),
            None => image.geometry.holds_lines(address, lines) && image.segments.of_unit(address.unit()).is_none(),
        };
        let granule = if target == Target::Pages { PAGE_LINES } else { lines.next_power_of_two() };
        if !may_be || !line.is_multiple_of(granule) {
            self.find(Finding::PointerMisplaced { inode, block, target, line });
            return Claimed::Outside;
        }
        if !self.lines.claim(line, lines) {
            self.is_contested |= !matches!(target, Target::MappingPage | Target::DentryPage);
            self.find(Finding::LinesShared { inode, block, target, line });
            return Claimed::Shared;
        }
        if region.is_none() && *self.data_units.entry(address.unit()).or_insert(target) != target {
            self.find(Finding::UnitMixed { inode, block, target, unit: address.unit() });
            return Claimed::Shared;
        }
        Claimed::Own
    }

    /// Claims the pages of an extent.
    pub(crate) fn claim_pages(&mut self, inode: u64, block: u64, first: LineAddress, extent: Extent) -> Claimed {
        let count = extent.count.into();
        let is_there = self.image.geometry.holds_data(DataAddress::Page(first), count);
        if !is_there {
            self.find(Finding::PointerMisplaced { inode, block, target: Target::Pages, line: first.number() });
        }
        let wanted = Wanted::Pages { first, extent };
        let is_proved = self.contested.as_ref().is_some_and(|contested| contested.has_proved(first, count * PAGE_LINES));
        if is_there
            && is_proved
            && wanted.may_be(self.image)
            && !on(Mutant::FirstClaimWins)
            && wanted.standing(self.image) == Standing::NothingFits
        {
            self.find(Finding::LinesShared { inode, block, target: Target::Pages, line: first.number() });
            return Claimed::Shared;
        }
        match is_there {
            true => self.claim_lines(inode, block, Target::Pages, first, count * PAGE_LINES),
            false => Claimed::Outside,
        }
    }
}

/// The bytes of a file that some of its blocks hold; `None` if they are all behind its end.
fn lost_of(block_bytes: u32, inode: u64, size: u64, span: Span) -> Option<Lost> {
    let offset = span.first.saturating_mul(block_bytes.into());
    let end = span.first.saturating_add(span.count).saturating_mul(block_bytes.into()).min(size);
    (offset < end).then(|| Lost { inode, offset, bytes: end - offset })
}
