//! The third step: every inode without a name gets one, `#` and its number, in the directory that the inode names as its parent, else in
//! `/lost+found`.
//!
//! [LN1] Directories first: what is below them is then reachable, so files without a name find their parents in the next round.
//! [LN2] A parent is used only if it is reachable from the root, so nothing is put below itself.
//! [LN3] A new name is one line of a page in use, or lies in a new page that is linked with its directory's new mapping. Link counts and
//!       parents follow in later rounds, so a cut between leaves only what the next repair does anyway.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use tandemfs_format::dentry::{Dentry, PAGE_SLOTS, Slot, type_of_mode};
use tandemfs_format::inode::file_type;
use tandemfs_format::segment::Region;
use tandemfs_format::{EMPTY_LINE, InodeNumber, Line, LineAddress};

use crate::checker::Inspection;
use crate::finding::Finding;
use crate::mend::Owner;
use crate::mutant::{Mutant, on};
use crate::tree::directory_pages;

use super::directories::{rebuild, take_inode, take_page};
use super::plan::{Group, Plan};
use super::root::{lines_of, new_directory};

const ROOT: u64 = 1;
/// Directories of the kind `lost+found`, `lost+found.1` that are tried if a file has the name.
const NAMES_TRIED: u32 = 16;
/// Name of the directory in a full one that takes the next subdirectories.
const MORE: &[u8] = b"more";
const DIRECTORY_KIND: u8 = (file_type::DIRECTORY >> 12) as u8;

/// A directory that gets names.
struct Target {
    owner: Owner,
    pages: Vec<LineAddress>,
    names: HashMap<Vec<u8>, (u64, u8)>,
}

impl Target {
    fn read(inspection: &Inspection<'_>, number: u64) -> Option<Self> {
        let image = &inspection.image;
        let (_, inode) = crate::inodes::read(image, number)?;
        if !inode.is_directory() {
            return None;
        }
        let owner = Owner { inode: number, generation: inode.generation };
        let mut target = Self { owner, pages: Vec::new(), names: HashMap::new() };
        directory_pages(image, number, &inode, &mut |_, page| {
            target.pages.push(page);
            true
        });
        for address in &target.pages {
            let page = crate::namespace::DentryPage::load(image, number, inode.generation, *address)?;
            for line in 0..PAGE_SLOTS as usize {
                if let Ok(Some(entry)) = page.entry(line) {
                    target.names.insert(entry.name, (entry.inode.get(), entry.file_type));
                }
            }
        }
        Some(target)
    }
}

/// A name to add.
struct NewName {
    name: Vec<u8>,
    inode: u64,
    kind: u8,
}

pub(crate) fn plan(plan: &mut Plan<'_>, subdirectories_max: u32) {
    let inspection = plan.inspection;
    let nameless: Vec<u64> = inspection
        .findings()
        .filter_map(|finding| if let Finding::Unreachable { inode } = finding { Some(*inode) } else { None })
        .collect();
    let is_directory = |inode: &u64| inspection.inodes.get(*inode).is_some_and(|facts| facts.is_directory());
    let (directories, files): (Vec<u64>, Vec<u64>) = nameless.iter().partition(|inode| is_directory(inode));
    let now = if directories.is_empty() || on(Mutant::FilesFirst) { files } else { directories }; // [LN1]
    if now.is_empty() {
        return;
    }
    let mut places = Places { targets: BTreeMap::new(), new: BTreeMap::new(), subdirectories_max };
    let mut homeless = Vec::new();
    for inode in now {
        if !places.put_in_parent(inspection, inode) {
            homeless.push(inode);
        }
    }
    if !homeless.is_empty() && !places.put_in_lost_found(plan, &homeless) {
        return; // a directory has to be made first: its round is this one
    }
    for (number, names) in std::mem::take(&mut places.new) {
        if let Some(target) = places.targets.remove(&number) {
            add_names(plan, target, names, Group::new());
        }
    }
}

struct Places {
    targets: BTreeMap<u64, Target>,
    new: BTreeMap<u64, Vec<NewName>>,
    subdirectories_max: u32,
}

impl Places {
    fn target(&mut self, inspection: &Inspection<'_>, number: u64) -> Option<&mut Target> {
        match self.targets.entry(number) {
            Entry::Occupied(target) => Some(target.into_mut()),
            Entry::Vacant(place) => Some(place.insert(Target::read(inspection, number)?)),
        }
    }

    /// Subdirectories that a directory can still get, the names of this plan included.
    fn room(&self, inspection: &Inspection<'_>, number: u64) -> u32 {
        let has = inspection.inodes.get(number).map_or(0, |facts| facts.subdirectories);
        let gets = self.new.get(&number).map_or(0, |names| names.iter().filter(|name| name.kind == DIRECTORY_KIND).count());
        self.subdirectories_max.saturating_sub(has).saturating_sub(gets as u32)
    }

    fn put(&mut self, inspection: &Inspection<'_>, number: u64, inode: u64) -> bool {
        let Some(kind) = inspection.inodes.get(inode).map(|facts| facts.kind) else { return false };
        let Some(target) = self.target(inspection, number) else { return false };
        let name = format!("#{inode}").into_bytes();
        if target.names.contains_key(&name) {
            return false;
        }
        target.names.insert(name.clone(), (inode, kind));
        self.new.entry(number).or_default().push(NewName { name, inode, kind });
        true
    }

    /// Puts an inode into the directory that it names, if that is possible ([LN2]).
    fn put_in_parent(&mut self, inspection: &Inspection<'_>, inode: u64) -> bool {
        let Some(facts) = inspection.inodes.get(inode) else { return false };
        let parent = facts.parent;
        let may_take = !facts.is_directory() || self.room(inspection, parent) > 0;
        may_take && reaches_root(inspection, parent) && self.put(inspection, parent, inode)
    }

    /// Puts inodes into `/lost+found`, or plans to make a directory that is missing there and returns false.
    fn put_in_lost_found(&mut self, plan: &mut Plan<'_>, inodes: &[u64]) -> bool {
        let inspection = plan.inspection;
        let Some(found) = self.lost_found(plan) else { return false };
        let mut at = found;
        for inode in inodes {
            let is_directory = inspection.inodes.get(*inode).is_some_and(|facts| facts.is_directory());
            // One place is kept for the directory that takes the rest.
            while is_directory && self.room(inspection, at) <= 1 {
                let more = self.target(inspection, at).and_then(|target| target.names.get(MORE).copied());
                match more {
                    Some((next, DIRECTORY_KIND)) if next != at => at = next,
                    Some(_) => return !self.new.is_empty(), // a file is in the way: what fits is placed, the others are left
                    None if self.new.is_empty() => {
                        make_directory(plan, at, MORE);
                        return false;
                    }
                    None => return true, // the rest follows in the next round
                }
            }
            self.put(inspection, at, *inode);
        }
        true
    }

    /// The directory `/lost+found`; plans to make it and returns `None` if it does not exist.
    fn lost_found(&mut self, plan: &mut Plan<'_>) -> Option<u64> {
        let names = &self.target(plan.inspection, ROOT)?.names;
        for attempt in 0..NAMES_TRIED {
            let name = if attempt == 0 { "lost+found".to_owned() } else { format!("lost+found.{attempt}") };
            match names.get(name.as_bytes()) {
                Some((inode, DIRECTORY_KIND)) => return Some(*inode),
                Some(_) => {}
                None => {
                    make_directory(plan, ROOT, name.as_bytes());
                    return None;
                }
            }
        }
        None
    }
}

/// Whether a directory is in use and below the root.
fn reaches_root(inspection: &Inspection<'_>, number: u64) -> bool {
    let mut seen = HashSet::new();
    let mut at = number;
    while seen.insert(at) {
        let Some(facts) = inspection.inodes.get(at) else { return on(Mutant::PlacedBelowItself) };
        if facts.damaged || !facts.is_directory() {
            return false;
        }
        if at == ROOT {
            return true;
        }
        at = facts.named_in;
    }
    false
}

/// Makes an empty directory with a name; both or nothing.
fn make_directory(plan: &mut Plan<'_>, parent: u64, name: &[u8]) {
    let Some(target) = Target::read(plan.inspection, parent) else { return };
    let Some((number, address)) = take_inode(plan) else { return };
    // Generations follow the transactions, so that none comes twice for a number.
    let generation = (plan.image.superblock.watermark + 1) as u32;
    let inode = new_directory(Owner { inode: number, generation }, parent);
    let lines = lines_of(plan.image, number, address, &inode);
    let new = NewName { name: name.to_vec(), inode: number, kind: type_of_mode(inode.mode) };
    add_names(plan, target, vec![new], lines);
}

/// Adds names to a directory: in empty slots, then in new pages. `with` changes in the record of the first.
fn add_names(plan: &mut Plan<'_>, target: Target, names: Vec<NewName>, mut with: Group) {
    let owner = target.owner;
    let mut names = names.into_iter().peekable();
    for address in &target.pages {
        let Some(page) = plan.dentry_page(owner, *address) else { continue };
        for line in (0..PAGE_SLOTS as usize).filter(|line| matches!(page.slot(*line), Ok(Slot::Empty))) {
            let Some(new) = names.next() else { return };
            let mut group = std::mem::take(&mut with);
            group.insert(address.number() + line as u64, entry_line(plan, owner, address.nth(line as u64), &new));
            plan.placed.push(new.inode);
            plan.add(group); // [LN3]
        }
    }
    if names.peek().is_none() {
        return;
    }
    let (mut pages, mut placed) = (target.pages.clone(), Vec::new());
    while names.peek().is_some() {
        let Some(address) = take_page(plan, Region::Dentries) else { break };
        let mut lines = vec![EMPTY_LINE; PAGE_SLOTS as usize];
        for (line, slot) in (0..).zip(lines.iter_mut()) {
            let Some(new) = names.next() else { break };
            *slot = entry_line(plan, owner, address.nth(line), &new);
            placed.push(new.inode);
        }
        plan.put_aside(address, lines);
        pages.push(address);
    }
    if !placed.is_empty() && rebuild(plan, owner, &pages, with) {
        plan.placed.extend(placed);
    }
}

fn entry_line(plan: &Plan<'_>, owner: Owner, address: LineAddress, new: &NewName) -> Line {
    let hash = plan.image.pair.name_hash(&new.name);
    let entry = Dentry { inode: InodeNumber::new(new.inode), file_type: new.kind, hash, name: new.name.clone() };
    let place = plan.image.place(owner.inode, owner.generation, address);
    entry.encode(|_| place).first().copied().unwrap_or(EMPTY_LINE)
}
