//! The second step: names that lead nowhere go; fields of names and parents follow the inodes.
//!
//! [NA1] A name is removed with all of its slots in one record. An inode that loses its last name so gets another in the next step.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use tandemfs_format::dentry::{DentryHeadLine, PAGE_SLOTS};
use tandemfs_format::integer::U48;
use tandemfs_format::{EMPTY_LINE, LineAddress};
use zerocopy::{FromBytes, IntoBytes};

use crate::finding::Finding;
use crate::mend::Owner;
use crate::tree;

use super::plan::{Group, Plan, line_from};

/// The pages of directories, by directory and index, read once.
#[derive(Default)]
pub(crate) struct EntryPages {
    directories: HashMap<u64, (Owner, HashMap<u64, LineAddress>)>,
}

impl EntryPages {
    /// The page of a slot, with its directory.
    fn page(&mut self, plan: &Plan<'_>, directory: u64, slot: u64) -> Option<(Owner, LineAddress)> {
        let (owner, pages) = match self.directories.entry(directory) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let (_, inode) = crate::inodes::read(plan.image, directory)?;
                let mut pages = HashMap::new();
                tree::directory_pages(plan.image, directory, &inode, &mut |index, page| {
                    pages.entry(index).or_insert(page);
                    true
                });
                place.insert((Owner { inode: directory, generation: inode.generation }, pages))
            }
        };
        Some((*owner, *pages.get(&(slot / PAGE_SLOTS))?))
    }

    /// Removes the name that starts in a slot ([NA1]).
    pub(crate) fn clear(&mut self, plan: &mut Plan<'_>, directory: u64, slot: u64) {
        if let Some((owner, page)) = self.page(plan, directory, slot) {
            clear_at(plan, owner, page, (slot % PAGE_SLOTS) as usize);
        }
    }

    fn change_head(&mut self, plan: &mut Plan<'_>, directory: u64, slot: u64, change: impl FnOnce(&mut DentryHeadLine, u32)) {
        let Some((owner, address)) = self.page(plan, directory, slot) else { return };
        let Some(page) = plan.dentry_page(owner, address) else { return };
        let line = (slot % PAGE_SLOTS) as usize;
        let Ok(Some(entry)) = page.entry(line) else { return };
        let Ok(mut head) = DentryHeadLine::read_from_bytes(&page.line(line)) else { return };
        change(&mut head, plan.image.pair.name_hash(&entry.name));
        plan.add(Group::from([(address.nth(line as u64).number(), page.place(line).seal(line_from(head.as_bytes())))]));
    }
}

fn clear_at(plan: &mut Plan<'_>, owner: Owner, address: LineAddress, line: usize) {
    let Some(page) = plan.dentry_page(owner, address) else { return };
    let lines = line..line + page.extent(line);
    let group: Group =
        lines.filter(|line| page.line(*line) != EMPTY_LINE).map(|line| (address.number() + line as u64, EMPTY_LINE)).collect();
    plan.add(group);
}

pub(crate) fn plan(plan: &mut Plan<'_>, loses_nothing: bool) {
    let inspection = plan.inspection;
    let mut pages = EntryPages::default();
    for finding in inspection.findings() {
        match *finding {
            Finding::EntryType { directory, slot, expected, .. } => {
                pages.change_head(plan, directory, slot, |head, _| head.file_type = expected);
            }
            Finding::EntryHash { directory, slot } => pages.change_head(plan, directory, slot, |head, hash| head.hash = hash.into()),
            Finding::ParentWrong { inode, expected, .. } => {
                plan.change_cold(inode, |cold| cold.parent = U48::new(expected & U48::MAX));
            }
            _ if loses_nothing => {}
            Finding::EntryDangling { directory, slot, .. }
            | Finding::NameInvalid { directory, slot }
            | Finding::DirectoryTwice { directory, slot, .. }
            | Finding::NameTwice { directory, other: slot, .. } => pages.clear(plan, directory, slot),
            Finding::OrphanWithEntries { inode } => plan.change_hot(inode, |hot| hot.nlink = 2.into()),
            Finding::DirectoryCircle { inode } => cut_circle(plan, inode),
            _ => {}
        }
    }
}

/// Removes the name of a directory that is below itself.
fn cut_circle(plan: &mut Plan<'_>, inode: u64) {
    let inodes = &plan.inspection.inodes;
    let Some(facts) = inodes.get(inode).copied() else { return };
    let Some(above) = inodes.get(facts.named_in) else { return };
    let owner = Owner { inode: facts.named_in, generation: above.generation };
    let line = LineAddress::new(facts.name_line);
    clear_at(plan, owner, line.page(), line.index_in_page());
}
