//! The first step: everything that does not verify, or claims what is not its own, goes. What verifies beside it stays.
//!
//! [CU1] A damaged inode loses both lines, so its names lead nowhere, its directories have no name and its space is free: the later steps
//!       find all of that.
//! [CU2] What was lost of a file becomes a hole, and is listed. A symbolic link that lost part of its target goes.

use tandemfs_format::dentry::PAGE_SLOTS;
use tandemfs_format::inode::{Inode, Timestamp, file_type};
use tandemfs_format::integer::U40;
use tandemfs_format::mapping::{Extent, LeafPointer, Record};
use tandemfs_format::{EMPTY_LINE, InodeNumber, LineAddress};

use crate::finding::Finding;
use crate::mend::{Lost, Mend, Owner};
use crate::mutant::{Mutant, on};
use crate::tree::Site;

use super::directories::{self, Salvage};
use super::names::EntryPages;
use super::plan::{Group, Plan, SectorCopy};
use super::root;

pub(crate) fn plan(plan: &mut Plan<'_>) {
    let inspection = plan.inspection;
    let salvage = Salvage::search(inspection);
    for mend in inspection.mends.iter().filter(|mend| !mend.is_of_data()) {
        match mend {
            Mend::Root => root::rebuild(plan, &salvage),
            Mend::FreeInode { inode, address } => {
                plan.lost.push(Lost { inode: *inode, offset: 0, bytes: 0 });
                plan.free_inode(*inode, *address); // [CU1]
            }
            Mend::Line { line, lost } => cut_line(plan, *line, *lost),
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
            Mend::Directory { owner, pages, .. } => {
                let mut pages = pages.clone();
                pages.extend(salvage.pages_of(*owner));
                directories::rebuild(plan, *owner, &pages, Group::new());
            }
            Mend::Field { inode, field } => mend_field(plan, *inode, field),
            Mend::ZeroSectors { .. } | Mend::ZeroLog { .. } => {}
        }
    }
    cut_findings(plan);
}

/// [CU2]
fn cut_line(plan: &mut Plan<'_>, line: LineAddress, lost: Option<Lost>) {
    if !plan.frees_link(lost) {
        if !on(Mutant::LossUnlisted) {
            plan.lost.extend(lost);
        }
        plan.add(Group::from([(line.number(), EMPTY_LINE)]));
    }
}

/// Sectors of its own for a block whose sectors are another's too: both keep what is there, and the checksums tell whose it was.
fn clone(plan: &mut Plan<'_>, (owner, site): (Owner, Site), extent: Extent, leaf: Option<LeafPointer>, lost: Option<Lost>) {
    let count = u64::from(extent.count);
    let found = if plan.may_write_sectors() { plan.free.sectors(count) } else { None };
    if found.is_none() && plan.frees_link(lost) {
        return;
    }
    let extent_left = found.map(|sector| Extent { sector, ..extent });
    let record = Record::Block { extent: extent_left, leaf }.encode();
    let Some(group) = plan.with_record(owner, site, record) else { return };
    match found {
        Some(to) => plan.copies.push(SectorCopy { from: extent.sector, to, count }),
        None => plan.lost.extend(lost),
    }
    plan.add(group);
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
        _ => [&mut inode.atime, &mut inode.mtime, &mut inode.ctime, &mut inode.birth].into_iter().for_each(clamp),
    }
    let place = |line| Inode::place(plan.image.pair, InodeNumber::new(number), line);
    let (hot, cold) = (inode.encode_hot(&place(address)), inode.encode_cold(&place(address.nth(1))));
    plan.add(Group::from([(address.number(), hot), (address.number() + 1, cold)]));
}
