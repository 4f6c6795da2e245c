//! Reads directories, and searches the pages of names that damaged ones lost.
//!
//! [ND1] A page that no directory named belongs to a damaged one if its lines verify for the directory's number and generation. If the
//!       generation is lost with the inode, a line gives it ([GN1] of `generations.rs`), and a second line or the hash of a name in the
//!       line has to confirm it ([GN2]). A page that the maps of the last unmount call free is none: engines before [CZ9] of `compaction` in
//!       `fs` left pages that moved as they were.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use tandemfs_format::dentry::{Dentry, PAGE_SLOTS, Slot};
use tandemfs_format::inode::file_type;
use tandemfs_format::mapping::Record;
use tandemfs_format::segment::Region;
use tandemfs_format::{EMPTY_LINE, LineAddress, PAGE_BYTES, PAGE_LINES, UNIT_LINES};

use crate::claims::Claims;
use crate::inodes;
use crate::maps::is_page_in_use;
use crate::mend::Owner;
use crate::mutant::{Mutant, on};
use crate::namespace::{DentryPage, is_name};
use crate::tree::{Step, Walk, directory_pages};

use super::target::NodeNumber;
use super::{Restorer, Stop};

/// A directory to read, and the one that gets its names.
pub(super) struct OpenDirectory {
    pub(super) number: u64,
    pub(super) node: NodeNumber,
}

/// A directory that lost pages of names.
pub(super) struct Wounded {
    number: u64,
    /// `None` if it is lost with the inode.
    generation: Option<u32>,
    /// `None` if the directory has no name; it gets one when a page of it is found.
    node: Option<NodeNumber>,
    /// Hashes of the names that it has already.
    names: HashSet<u64>,
}

impl Wounded {
    pub(super) fn without_inode(number: u64, node: Option<NodeNumber>) -> Self {
        Self { number, generation: None, node, names: HashSet::new() }
    }
}

fn hash_of(name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

/// The entries of a page, and the number of its lines that cannot be read.
fn entries_of(page: &DentryPage<'_>) -> (Vec<Dentry>, u64) {
    let (mut entries, mut lost, mut line) = (Vec::new(), 0, 0);
    while line < PAGE_SLOTS as usize {
        let mut taken = 1;
        match page.slot(line) {
            Ok(Slot::Empty) => {}
            Ok(Slot::Head { .. }) => {
                taken = page.extent(line);
                match page.entry(line) {
                    Ok(entry) => entries.extend(entry),
                    Err(_) => lost += 1,
                }
            }
            Ok(_) | Err(_) => lost += 1,
        }
        line += taken;
    }
    (entries, lost)
}

impl Restorer<'_> {
    /// Reads a directory whose inode verifies.
    pub(super) fn read_directory(&mut self, OpenDirectory { number, node }: OpenDirectory) -> Result<(), Stop> {
        let image = self.image;
        let Some((_, inode)) = inodes::read(image, number) else { return Ok(()) };
        self.report.directories += 1;
        self.count();
        self.made.push((number, node));
        let (pages, is_whole) = self.pages_of(number, &inode);
        let owner = Owner { inode: number, generation: inode.generation };
        let mut names = HashSet::new();
        let mut lost = 0;
        for page in &pages {
            lost += self.read_page(owner, node, *page, &mut names)?;
        }
        if lost > 0 {
            let path = self.target.path_of(node, b"");
            self.missing(number, path, format!("{lost} of its names are damaged; what has no other name is in lost+found"));
        }
        if !is_whole || (pages.len() as u64) < inode.size / PAGE_BYTES as u64 {
            self.wounded.push(Wounded { number, generation: Some(inode.generation), node: Some(node), names });
        }
        Ok(())
    }

    /// The pages of a directory, and whether its whole mapping could be read.
    fn pages_of(&mut self, number: u64, inode: &tandemfs_format::inode::Inode) -> (Vec<LineAddress>, bool) {
        let image = self.image;
        let mut walk = Walk::new(number, inode);
        let (mut pages, mut is_whole) = (Vec::new(), true);
        let mut left = image.geometry.memory_units() * UNIT_LINES / PAGE_LINES;
        while let Some(step) = walk.next(image) {
            match step {
                Step::Pointer { span, page, height, .. } if left > 0 && image.segments.holds(Region::Mappings, page, PAGE_LINES) => {
                    left -= 1;
                    is_whole &= walk.enter(image, page, height, span.first).is_ok();
                }
                Step::Block { record: Record::Memory(page), .. }
                    if image.segments.holds(Region::Dentries, page, PAGE_LINES) && self.pages.claim(page.number(), PAGE_LINES) =>
                {
                    pages.push(page);
                }
                _ => is_whole = false,
            }
        }
        (pages, is_whole)
    }

    /// Restores what a page names. Returns the number of its lines that are lost.
    fn read_page(&mut self, owner: Owner, node: NodeNumber, page: LineAddress, names: &mut HashSet<u64>) -> Result<u64, Stop> {
        let Some(page) = DentryPage::load(self.image, owner.inode, owner.generation, page) else { return Ok(PAGE_SLOTS) };
        let (entries, mut lost) = entries_of(&page);
        for entry in entries {
            // A name that is none, or that is there twice, leaves its inode to lost+found.
            let is_usable = is_name(&entry.name) || on(Mutant::NamesTrusted);
            if !is_usable || !names.insert(hash_of(&entry.name)) {
                lost += 1;
                continue;
            }
            self.place_entry(node, &entry.name, entry.inode.get(), u16::from(entry.file_type) << 12)?;
        }
        Ok(lost)
    }

    /// Marks what a directory names.
    pub(super) fn claim_children(&self, number: u64, children: &mut Claims) {
        let image = self.image;
        let Some((_, inode)) = inodes::read(image, number) else { return };
        directory_pages(image, number, &inode, &mut |_, page| {
            if let Some(page) = DentryPage::load(image, number, inode.generation, page) {
                entries_of(&page).0.iter().for_each(|entry| {
                    children.claim(entry.inode.get(), 1);
                });
            }
            true
        });
    }

    /// A name whose inode cannot be read. What the name says of its type decides what can be done.
    pub(super) fn place_damaged(&mut self, node: NodeNumber, name: &[u8], number: u64, kind: u16) -> Result<(), Stop> {
        let path = self.target.path_of(node, name);
        if kind != file_type::DIRECTORY {
            self.missing(number, path, "its inode is damaged".into());
            return Ok(());
        }
        self.missing(
            number,
            path,
            "its inode is damaged: owner, mode and times are lost, its names are searched by their checksums".into(),
        );
        let made = self.tried(node, name, "directory", |target| target.make_directory(node, name))?;
        if let Some(made) = made {
            self.report.directories += 1;
            self.wounded.push(Wounded::without_inode(number, Some(made)));
        }
        Ok(())
    }

    /// Damaged inodes that nothing names may be directories too: their pages show it.
    pub(super) fn search_lost_directories(&mut self) -> Result<(), Stop> {
        let unseen: Vec<u64> = self.damaged.iter().copied().filter(|number| self.seen.is_free(*number, 1)).collect();
        self.wounded.extend(unseen.into_iter().map(|number| Wounded::without_inode(number, None)));
        Ok(())
    }

    /// Searches the pages that no directory named for those of damaged directories ([ND1]). Returns whether it found one.
    pub(super) fn heal(&mut self) -> Result<bool, Stop> {
        let mut wounded = std::mem::take(&mut self.wounded);
        if wounded.is_empty() {
            return Ok(false);
        }
        let segments: Vec<_> = self.image.segments.all().map(|(_, segment)| *segment).collect();
        let mut found = Vec::new();
        let superblock = &self.image.superblock;
        let maps_generation = superblock.generation;
        for segment in segments.iter().filter(|segment| segment.region == Region::Dentries) {
            let start = segment.start_unit * UNIT_LINES;
            for first in (start..start + segment.high_water_lines / PAGE_LINES * PAGE_LINES).step_by(PAGE_LINES as usize) {
                if !self.pages.is_free(first, PAGE_LINES) {
                    continue;
                }
                let page = LineAddress::new(first);
                let owner = wounded.iter().enumerate().find_map(|(index, directory)| {
                    let generation = self.generation_of(directory, page)?;
                    Some((index, Owner { inode: directory.number, generation }))
                });
                let image = self.image;
                let was_left = || is_page_in_use(image, maps_generation, page) == Some(false);
                if let Some(owner) = owner.filter(|_| !was_left()) {
                    if let Some(directory) = wounded.get_mut(owner.0) {
                        directory.generation = Some(owner.1.generation);
                    }
                    self.pages.claim(first, PAGE_LINES);
                    found.push((owner, page));
                }
            }
        }
        for ((index, owner), page) in &found {
            let Some(directory) = wounded.get_mut(*index) else { continue };
            if directory.node.is_none() {
                directory.node = self.place_lost_directory(directory.number)?;
            }
            let Some(node) = directory.node else { continue };
            self.read_page(*owner, node, *page, &mut directory.names)?;
        }
        Ok(!found.is_empty())
    }

    fn place_lost_directory(&mut self, number: u64) -> Result<Option<NodeNumber>, Stop> {
        self.seen.claim(number, 1);
        let name = format!("#{number}").into_bytes();
        let Some(parent) = self.lost_found()? else { return Ok(None) };
        let reason = "its inode is damaged: name, owner, mode and times are lost, its names were found by their checksums";
        self.missing(number, self.target.path_of(parent, &name), reason.into());
        self.report.nameless += 1;
        self.tried(parent, &name, "directory", |target| target.make_directory(parent, &name))
    }

    /// The generation with which a page is this directory's; `None` if it is not.
    fn generation_of(&self, directory: &Wounded, address: LineAddress) -> Option<u32> {
        let image = self.image;
        let page = DentryPage::load(image, directory.number, directory.generation.unwrap_or(0), address)?;
        let used: Vec<usize> = (0..PAGE_SLOTS as usize).filter(|line| page.line(*line) != EMPTY_LINE).collect();
        if let Some(generation) = directory.generation {
            return used.iter().any(|line| page.slot(*line).is_ok()).then_some(generation);
        }
        used.iter().find_map(|first| {
            let line = page.line(*first);
            let generation = self.generations.place(directory.number, address.nth(*first as u64), &line).generation;
            let candidate = DentryPage::load(image, directory.number, generation, address)?;
            let verified = used.iter().filter(|line| candidate.slot(**line).is_ok()).count();
            let is_confirmed = on(Mutant::OneLineProves)
                || verified >= 2
                || candidate.entry(*first).ok().flatten().is_some_and(|entry| entry.hash == image.pair.name_hash(&entry.name));
            is_confirmed.then_some(generation)
        })
    }
}
