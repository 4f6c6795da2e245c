//! Makes the mapping of a directory anew from its pages, aside and linked by one record ([RP6]), so that any damage of the old one, holes
//! and missing pages are repaired alike.
//!
//! [DM1] A page that nobody claims belongs to a directory if a line of it fits the directory's number and generation: a line's checksum
//!       covers both. Lines that are removed are emptied, and so are pages that move ([CZ9] of `compaction` in `fs`), so what still fits was
//!       not removed. Older engines left pages that moved as they were: a page that the maps of the last unmount call free is none.

use std::collections::BTreeMap;

use tandemfs_device::Structure;
use tandemfs_format::integer::U64;
use tandemfs_format::mapping::{LINE_RECORDS, PAGE_RECORDS, Record, RecordBytes};
use tandemfs_format::segment::Region;
use tandemfs_format::{EMPTY_LINE, Line, LineAddress, PAGE_BYTES, PAGE_LINES, UNIT_LINES};

use crate::checker::Inspection;
use crate::image::line_of;
use crate::maps::is_page_in_use;
use crate::mend::{Mend, Owner};
use crate::mutant::{Mutant, on};

use super::free::Raise;
use super::plan::{Group, Plan};
use super::root;

/// Pages of directories that their mappings no longer name.
#[derive(Default)]
pub(crate) struct Salvage(BTreeMap<Owner, Vec<LineAddress>>);

impl Salvage {
    /// Searches the pages that nobody claims for lines of the directories that lost some, and of others ([DM1]).
    pub(crate) fn search(inspection: &Inspection<'_>, maps_generation: u64, others: Vec<Owner>) -> Self {
        let mut owners = others;
        for mend in &inspection.mends {
            match mend {
                Mend::Directory { owner, salvage: true, .. } => owners.push(*owner),
                Mend::Root => owners.push(root::owner(inspection)),
                _ => {}
            }
        }
        let mut found = Self::default();
        if owners.is_empty() || on(Mutant::PagesNotSalvaged) {
            return found;
        }
        let image = &inspection.image;
        for (_, segment) in image.segments.all().filter(|(_, segment)| segment.region == Region::Dentries) {
            let start = segment.start_unit * UNIT_LINES;
            let pages = (start..start + segment.high_water_lines / PAGE_LINES * PAGE_LINES).step_by(PAGE_LINES as usize);
            for first in pages.filter(|first| inspection.lines.is_free(*first, PAGE_LINES)) {
                let address = LineAddress::new(first);
                let Ok(page) = image.page_by_lines(Structure::Dentry, address) else { continue };
                let fits = |owner: &&Owner| {
                    (0..PAGE_LINES).any(|index| {
                        let line = line_of(page.bytes.as_slice(), index as usize);
                        line != EMPTY_LINE && image.place(owner.inode, owner.generation, address.nth(index)).verify(&line).is_ok()
                    })
                };
                let was_left = || is_page_in_use(image, maps_generation, address) == Some(false);
                if let Some(owner) = owners.iter().find(fits).filter(|_| !was_left()) {
                    found.0.entry(*owner).or_default().push(address);
                }
            }
        }
        found
    }

    /// All pages that were found.
    pub(crate) fn pages(&self) -> impl Iterator<Item = LineAddress> {
        self.0.values().flatten().copied()
    }

    pub(crate) fn pages_of(&self, owner: Owner) -> impl Iterator<Item = LineAddress> {
        self.0.get(&owner).into_iter().flatten().copied()
    }
}

/// Gives a directory a mapping of exactly these pages. `with` changes in the same record. Returns false if the zone has no space.
pub(crate) fn rebuild(plan: &mut Plan<'_>, owner: Owner, pages: &[LineAddress], with: Group) -> bool {
    let Some(root) = build_tree(plan, owner, pages) else { return false };
    let size = U64::new((pages.len() * PAGE_BYTES) as u64);
    let Some(mut group) = plan.cold_line(owner.inode, |cold| cold.root = root.to_bytes()) else { return false };
    let Some(hot) = plan.hot_line(owner.inode, |hot| hot.size = size) else { return false };
    group.extend(hot);
    group.extend(with);
    plan.add(group);
    true
}

/// Writes the pages of a tree aside; returns its root. `None` if the zone has no space.
pub(crate) fn build_tree(plan: &mut Plan<'_>, owner: Owner, pages: &[LineAddress]) -> Option<RecordBytes> {
    let mut records: Vec<RecordBytes> = pages.iter().map(|page| Record::Memory(*page).encode()).collect();
    let holes = plan.image.superblock.hole_lines();
    let mut height = 0;
    while records.len() > 1 {
        height += 1;
        let mut above = Vec::new();
        for chunk in records.chunks(PAGE_RECORDS as usize) {
            let page = take_page(plan, Region::Mappings)?;
            let lines: Vec<Line> = (0..PAGE_LINES)
                .map(|index| {
                    let mut of_line = [Record::HOLE.encode(); LINE_RECORDS];
                    for (to, from) in of_line.iter_mut().zip(chunk.iter().skip(index as usize * LINE_RECORDS)) {
                        *to = *from;
                    }
                    holes.line(&of_line, &plan.image.place(owner.inode, owner.generation, page.nth(index)))
                })
                .collect();
            plan.put_aside(page, lines);
            above.push(Record::Pointer { page, height }.encode());
        }
        records = above;
    }
    Some(records.first().copied().unwrap_or(Record::HOLE.encode()))
}

/// A free page of a region.
pub(crate) fn take_page(plan: &mut Plan<'_>, region: Region) -> Option<LineAddress> {
    let (page, raise) = plan.free.page(region)?;
    apply_raise(plan, raise);
    Some(page)
}

/// Free checksum lines.
pub(crate) fn take_checksum_lines(plan: &mut Plan<'_>, count: u64) -> Option<LineAddress> {
    let (first, raise) = plan.free.checksum_lines(count)?;
    apply_raise(plan, raise);
    Some(first)
}

/// A free slot for an inode.
pub(crate) fn take_inode(plan: &mut Plan<'_>) -> Option<(u64, LineAddress)> {
    let (number, address, raise) = plan.free.inode()?;
    apply_raise(plan, raise);
    Some((number, address))
}

/// The new lines are zeroed before the mark that covers them is durable.
fn apply_raise(plan: &mut Plan<'_>, raise: Option<Raise>) {
    let Some(raise) = raise else { return };
    plan.put_aside(raise.first, raise.zeros);
    let address = plan.image.geometry.segment_line(raise.segment);
    plan.add(Group::from([(address.number(), raise.to.encode(plan.image.pair, address))]));
}
