//! The first step: everything that does not verify, or claims what is not its own, goes. What verifies beside it stays.
//!
//! [CU1] An inode of which neither line is left, or only a second line that nothing can be made of, loses both lines. Its names then lead
//!       nowhere, its directories have no name and its space is free: the later steps find all of that. (`halves.rs` has the others.)
//! [CU2] What was lost of a file becomes lost records (without that feature a hole), and is listed. A symbolic link that lost part of its
//!       target goes.
//! [CU3] Lost records end with the block that holds the end of the file, so that what grows behind it is no part of them. That takes pages;
//!       without space for them the record covers more.

use tandemfs_device::Structure;
use tandemfs_format::dentry::PAGE_SLOTS;
use tandemfs_format::inode::{Inode, Timestamp, file_type, state};
use tandemfs_format::integer::U40;
use tandemfs_format::mapping::{
    BlockChecksum, Extent, HEIGHT_MAX, LINE_RECORDS, LeafPointer, LogEntry, PAGE_RECORDS, Record, line_entries,
};
use tandemfs_format::segment::Region;
use tandemfs_format::{DataAddress, EMPTY_LINE, InodeNumber, Line, LineAddress};

use crate::finding::Finding;
use crate::mend::{Lost, Mend, Origin, Owner};
use crate::mutant::{Mutant, on};
use crate::tree::{Site, Span};

use super::directories::{self, Salvage, take_checksum_lines, take_page};
use super::halves::{self, Judge, Verdict};
use super::names::EntryPages;
use super::plan::{Group, Plan, SectorCopy};
use super::root;
use super::zero;

pub(crate) fn plan(plan: &mut Plan<'_>) {
    let inspection = plan.inspection;
    let mut halves = halves::search(plan);
    let judge = Judge::new(plan, &halves);
    plan.names_are_lost = judge.names_are_lost();
    let salvage = Salvage::search(inspection, plan.maps_generation, halves::directories(&halves));
    halves::spare(plan, &halves, &judge, &salvage);
    for mend in inspection.mends.iter().filter(|mend| !mend.is_of_data()) {
        match mend {
            Mend::Root if readable(plan, 1).is_some_and(|root| root.is_directory()) => {}
            Mend::Root => root::rebuild(plan, &salvage),
            Mend::FreeInode { inode, .. } if readable(plan, *inode).is_some() => {}
            Mend::FreeInode { inode, address } => {
                let is_kept = halves.remove(inode).is_some_and(|half| match judge.judge(plan, *inode) {
                    Verdict::Save => halves::save(plan, *inode, half, &salvage),
                    verdict => verdict == Verdict::Wait,
                });
                if !is_kept {
                    plan.lost.push(Lost { inode: *inode, offset: 0, bytes: 0 });
                    plan.free_inode(*inode, *address); // [CU1]
                }
            }
            Mend::Line { owner, line, height, span, lost } => cut_line(plan, (*owner, *line), (*height, *span), *lost),
            Mend::Subtree { owner, site, span, lost } => cut_subtree(plan, (*owner, *site), *span, *lost),
            Mend::Record { owner, site, record, leaf, lost } => {
                if plan.frees_link(*lost) || plan.is_freed(owner.inode) {
                    continue;
                }
                let Some(mut group) = plan.with_record(*owner, *site, *record) else { continue };
                group.extend(leaf.iter().map(|(address, line)| (address.number(), *line)));
                plan.lost.extend(lost);
                plan.add(group);
            }
            Mend::Clone { owner, site, extent, leaf, lost } => clone(plan, (*owner, *site), *extent, *leaf, *lost),
            Mend::CloneChecksums { owner, site, extent, leaf, lost } => clone_checksums(plan, (*owner, *site), *extent, *leaf, *lost),
            Mend::CloneLog { owner, site, origin, leaf, lost } => clone_log(plan, (*owner, *site), *origin, *leaf, *lost),
            Mend::Directory { owner, pages, .. } => {
                let mut pages = pages.clone();
                pages.extend(salvage.pages_of(*owner));
                directories::rebuild(plan, *owner, &pages, Group::new());
            }
            Mend::Field { inode, field } => mend_field(plan, *inode, field),
            Mend::Dissolve { owner, site: Site::InRun { page, head, .. } } => {
                let group = plan.dissolved(*owner, *page, *head).unwrap_or_default();
                plan.add(group);
            }
            Mend::Dissolve { .. } | Mend::ZeroSectors { .. } | Mend::ZeroLog { .. } => {}
        }
    }
    cut_findings(plan);
}

/// An inode that can be read now, whatever the check found ([CK5]).
fn readable(plan: &Plan<'_>, number: u64) -> Option<Inode> {
    let (address, inode) = plan.inode(number)?;
    let cold = plan.line(Structure::Inode, address.nth(1))?;
    (number > 0 && cold != EMPTY_LINE).then_some(inode)
}

/// [CU2]
fn cut_line(plan: &mut Plan<'_>, (owner, line): (Owner, LineAddress), (height, span): (u32, Span), lost: Option<Lost>) {
    let place = plan.image.place(owner.inode, owner.generation, line);
    let holes = plan.image.superblock.hole_lines();
    if plan.line(Structure::Mapping, line).is_some_and(|line| holes.verify(&line, &place).is_ok()) {
        return; // it can be read now ([CK5])
    }
    if plan.frees_link(lost) || plan.is_freed(owner.inode) {
        return;
    }
    if !on(Mutant::LossUnlisted) {
        plan.lost.extend(lost);
    }
    let each = PAGE_RECORDS.saturating_pow(height - 1);
    let mut records = [Record::HOLE.encode(); LINE_RECORDS];
    for (record, index) in records.iter_mut().zip(0..) {
        let first = span.first.saturating_add(each.saturating_mul(index));
        *record = lost_record(plan, owner, (height - 1, first), lost).encode();
    }
    plan.add(Group::from([(line.number(), holes.line(&records, &place))]));
}

/// [CU2]
fn cut_subtree(plan: &mut Plan<'_>, (owner, site): (Owner, Site), span: Span, lost: Option<Lost>) {
    if plan.frees_link(lost) || plan.is_freed(owner.inode) {
        return;
    }
    plan.lost.extend(lost);
    let record = match site {
        Site::Inode => lost_root(plan, owner, lost),
        Site::Line { .. } | Site::InRun { .. } => lost_record(plan, owner, (height_for(span.count), span.first), lost),
    }
    .encode();
    if let Some(group) = plan.with_record(owner, site, record) {
        plan.add(group);
    }
}

/// The record in an inode of which everything is lost: it covers what the file needs.
pub(crate) fn lost_root(plan: &mut Plan<'_>, owner: Owner, lost: Option<Lost>) -> Record {
    let height = height_for(end_of(plan, lost).max(1));
    lost_record(plan, owner, (height, 0), lost)
}

/// The height of a record that covers so many blocks.
fn height_for(blocks: u64) -> u32 {
    (0..=HEIGHT_MAX).find(|height| PAGE_RECORDS.saturating_pow(*height) >= blocks).unwrap_or(HEIGHT_MAX)
}

/// The block behind the last one of which bytes are lost.
fn end_of(plan: &Plan<'_>, lost: Option<Lost>) -> u64 {
    lost.map_or(0, |lost| lost.offset.saturating_add(lost.bytes).div_ceil(plan.image.geometry.block_bytes().into()))
}

/// The record of a height in place of everything from a block on that it covered ([CU3]).
fn lost_record(plan: &mut Plan<'_>, owner: Owner, (height, first): (u32, u64), lost: Option<Lost>) -> Record {
    let end = end_of(plan, lost);
    if first >= end || !plan.image.superblock.has_lost_records() {
        return Record::HOLE;
    }
    let whole = Record::Lost { height, leaf: None };
    if height == 0 || first.saturating_add(PAGE_RECORDS.saturating_pow(height)) <= end {
        return whole;
    }
    let each = PAGE_RECORDS.saturating_pow(height - 1);
    let part = |index: u64| lost_record(plan, owner, (height - 1, first.saturating_add(each.saturating_mul(index))), lost).encode();
    let records: Vec<_> = (0..PAGE_RECORDS).map(part).collect();
    let Some(page) = take_page(plan, Region::Mappings) else { return whole };
    let bytes = plan.image.superblock.hole_lines().page(&records, &plan.image.place(owner.inode, owner.generation, page));
    plan.put_aside(page, bytes.as_chunks().0.iter().copied());
    Record::Pointer { page, height }
}

/// Sectors of its own for a block whose sectors or pages are another's too: both keep what is there, and the checksums tell whose it was.
fn clone(plan: &mut Plan<'_>, (owner, site): (Owner, Site), extent: Extent, leaf: Option<LeafPointer>, lost: Option<Lost>) {
    let count = u64::from(extent.count);
    let found = if plan.may_write_sectors() { plan.free.sectors(count) } else { None };
    if found.is_none() && plan.frees_link(lost) {
        return;
    }
    let extent_left = found.map(|sector| Extent { at: DataAddress::Sector(sector), ..extent });
    let record = match extent_left {
        None if lost.is_some() && plan.image.superblock.has_lost_records() => Record::Lost { height: 0, leaf }.encode(),
        extent => Record::Block { extent, leaf }.encode(),
    };
    let Some(group) = plan.with_record(owner, site, record) else { return };
    match found {
        Some(to) => plan.copies.push(SectorCopy { from: extent.at, to, count }),
        None => plan.lost.extend(lost),
    }
    plan.add(group);
}

/// Checksum lines of its own for a block whose lines are another's too ([PO4]). What nothing can be said of needs only the space.
fn clone_checksums(plan: &mut Plan<'_>, (owner, site): (Owner, Site), extent: Extent, leaf: Option<LeafPointer>, lost: Option<Lost>) {
    let count = plan.image.geometry.vector_lines().next_power_of_two();
    let (old, needs_bytes) = match extent.checksum {
        BlockChecksum::Vector(old) => (old, !extent.unwritten),
        BlockChecksum::Open(Some(old)) => (old, false),
        _ => return,
    };
    let line = |index| plan.line(Structure::Mapping, old.nth(index)).or_else(|| (!needs_bytes).then_some(EMPTY_LINE));
    let lines: Option<Vec<Line>> = (0..count).map(line).collect();
    let found = lines.and_then(|lines| Some((take_checksum_lines(plan, count)?, lines)));
    if found.is_none() && plan.frees_link(lost) {
        return;
    }
    let extent_left = found.map(|(new, lines)| {
        plan.put_aside(new, lines);
        let checksum =
            if matches!(extent.checksum, BlockChecksum::Open(_)) { BlockChecksum::Open(Some(new)) } else { BlockChecksum::Vector(new) };
        Extent { checksum, ..extent }
    });
    let record = match extent_left {
        None if lost.is_some() && plan.image.superblock.has_lost_records() => Record::Lost { height: 0, leaf },
        extent => Record::Block { extent, leaf },
    };
    let Some(group) = plan.with_record(owner, site, record.encode()) else { return };
    if extent_left.is_none() {
        plan.lost.extend(lost);
    }
    plan.add(group);
}

/// A slot of its own for a log whose slot is another's too ([PO4]). Where there is none the log is lost, and what is below it ([LB1]).
fn clone_log(plan: &mut Plan<'_>, (owner, site): (Owner, Site), origin: Origin, leaf: Option<LeafPointer>, lost: Option<Lost>) {
    let (Origin::Single { log, .. } | Origin::Entry { log, .. }) = origin else { return };
    if plan.is_freed(owner.inode) {
        return;
    }
    let lines: Option<Vec<Line>> = (0..log.class.lines()).map(|index| plan.line(Structure::DataLog, log.address.nth(index))).collect();
    let found = lines.and_then(|lines| Some((plan.free.slot(log.class)?, lines)));
    if found.is_none() && plan.frees_link(lost) {
        return;
    }
    let moved = found.map(|(address, lines)| {
        plan.put_aside(address, lines);
        LogEntry { address, ..log }
    });
    let group = match (origin, moved) {
        (Origin::Entry { line, .. }, Some(_)) => zero::leaf_with(plan, owner, line, log, moved),
        (_, Some(log)) => plan.with_record(owner, site, Record::SingleLog(log).encode()),
        (_, None) => {
            plan.lost.extend(lost);
            without_log(plan, (owner, site), origin, leaf)
        }
    };
    plan.add(group.unwrap_or_default());
}

/// The lines of a block that lost a log and what is below it, and keeps the others.
fn without_log(plan: &Plan<'_>, (owner, site): (Owner, Site), origin: Origin, leaf: Option<LeafPointer>) -> Option<Group> {
    let mut group = match origin {
        Origin::Entry { line, log } => zero::leaf_with(plan, owner, line, log, None)?,
        _ => Group::new(),
    };
    let keeps_logs = |leaf: &LeafPointer| {
        (0..leaf.lines()).any(|index| {
            let address = leaf.address.nth(index);
            let line = group.get(&address.number()).copied().or_else(|| plan.line(Structure::Mapping, address));
            line.and_then(|line| line_entries(&line, address).ok()).is_some_and(|entries| entries.iter().flatten().next().is_some())
        })
    };
    let leaf = leaf.filter(keeps_logs);
    let record = match plan.image.superblock.has_lost_records() {
        true => Record::Lost { height: 0, leaf },
        false => Record::Block { extent: None, leaf },
    };
    group.extend(plan.with_record(owner, site, record.encode())?);
    Some(group)
}

/// Changes that a finding alone describes.
fn cut_findings(plan: &mut Plan<'_>) {
    let inspection = plan.inspection;
    let mut pages = EntryPages::default();
    for finding in inspection.findings() {
        match *finding {
            // The remains of a damaged set are unusable, so it is removed. The inode's space count is then wrong and repaired later.
            Finding::AttributesDamaged { inode, .. }
            | Finding::AttributesMisplaced { inode, .. }
            | Finding::AttributesShared { inode, .. }
            | Finding::AttributeInvalid { inode, .. }
                if !plan.is_freed(inode) =>
            {
                plan.change_cold(inode, |cold| (cold.attributes, cold.attributes_class) = (U40::default(), 0));
            }
            Finding::EntryDamaged { directory, slot, .. } => {
                if on(Mutant::NeighboursCut) {
                    let first = slot / PAGE_SLOTS * PAGE_SLOTS;
                    (first..first + PAGE_SLOTS).for_each(|slot| pages.clear(plan, directory, slot));
                }
                pages.clear(plan, directory, slot);
            }
            Finding::EntryPartStray { directory, slot } => pages.clear(plan, directory, slot),
            _ => {}
        }
    }
}

/// The nearest value that a field can have.
fn mend_field(plan: &mut Plan<'_>, number: u64, field: &str) {
    let Some((address, mut inode)) = plan.inode(number) else { return };
    let clamp = |time: &mut Timestamp| time.nanoseconds = time.nanoseconds.min(999_999_999);
    match field {
        "size" if inode.file_type() == file_type::SYMLINK => {
            plan.lost.push(Lost { inode: number, offset: 0, bytes: 0 });
            return plan.free_inode(number, address);
        }
        "size" if inode.is_directory() => return, // its mapping is made anew
        "size" => inode.size = 0,
        "flags" => inode.flags = 0,
        "state" => inode.state |= state::TAIL_STALE,
        _ => [&mut inode.atime, &mut inode.mtime, &mut inode.ctime, &mut inode.birth].into_iter().for_each(clamp),
    }
    let place = |line| Inode::place(plan.image.pair, InodeNumber::new(number), line);
    let (hot, cold) = (inode.encode_hot(&place(address)), inode.encode_cold(&place(address.nth(1))));
    plan.add(Group::from([(address.number(), hot), (address.number() + 1, cold)]));
}
