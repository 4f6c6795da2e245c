//! Checks names: every entry must name an inode in use and match it, and every inode in use must be reachable from the root.

use std::hash::{DefaultHasher, Hash, Hasher};

use tandemfs_device::Structure;
use tandemfs_format::dentry::{Dentry, PAGE_SLOTS, Slot, decode_slot, slots};
use tandemfs_format::inode::Inode;
use tandemfs_format::{LineAddress, PAGE_BYTES, Place};

use crate::checker::{Checker, Stage};
use crate::finding::{Damage, Finding};
use crate::image::{Image, ReadPage, line_of};
use crate::mend::{Mend, Owner};
use crate::mutant::{Mutant, on};

/// State of a directory while its pages are checked.
pub(crate) struct OpenDirectory {
    number: u64,
    generation: u32,
    pages_expected: u64,
    next_page: u64,
    page_missing: bool,
    /// Its mapping has to be made anew.
    pub(crate) is_faulty: bool,
    pages: Vec<(u64, LineAddress)>,
    /// A strong hash of each name, and its slot: equal neighbours after sorting are compared.
    names: Vec<(u64, u64)>,
}

impl OpenDirectory {
    pub(crate) fn new(number: u64, inode: &Inode) -> Self {
        Self {
            number,
            generation: inode.generation,
            pages_expected: inode.size / PAGE_BYTES as u64,
            next_page: 0,
            page_missing: false,
            is_faulty: false,
            pages: Vec::new(),
            names: Vec::new(),
        }
    }
}

/// A page of directory entries with the places of its lines.
pub(crate) struct DentryPage<'i> {
    image: &'i Image<'i>,
    directory: u64,
    generation: u32,
    address: LineAddress,
    bytes: ReadPage,
}

impl<'i> DentryPage<'i> {
    pub(crate) fn load(image: &'i Image<'i>, directory: u64, generation: u32, address: LineAddress) -> Option<Self> {
        let bytes = image.page_by_lines(Structure::Dentry, address).ok()?;
        Some(Self::of(image, directory, generation, address, bytes))
    }

    /// A page with these bytes.
    pub(crate) fn of(image: &'i Image<'i>, directory: u64, generation: u32, address: LineAddress, bytes: ReadPage) -> Self {
        Self { image, directory, generation, address, bytes }
    }

    pub(crate) fn place(&self, line: usize) -> Place {
        self.image.place(self.directory, self.generation, self.address.nth(line as u64))
    }

    pub(crate) fn line(&self, line: usize) -> tandemfs_format::Line {
        line_of(self.bytes.bytes.as_slice(), line)
    }

    /// Fails if one of these lines cannot be read.
    fn check_readable(&self, mut lines: std::ops::Range<usize>) -> Result<(), Damage> {
        match lines.any(|line| self.bytes.unreadable >> line & 1 == 1) {
            true => Err(Damage::Unreadable),
            false => Ok(()),
        }
    }

    pub(crate) fn slot(&self, line: usize) -> Result<Slot, Damage> {
        self.check_readable(line..line + 1)?;
        decode_slot(&self.line(line), &self.place(line)).map_err(Damage::from)
    }

    pub(crate) fn entry(&self, line: usize) -> Result<Option<Dentry>, Damage> {
        self.check_readable(line..line + self.extent(line))?;
        Dentry::decode(line, |line| self.line(line), |line| self.place(line)).map_err(Damage::from)
    }

    /// Slots that belong to the entry that starts at `line`, as far as known: up to its length, the page's end, or
    /// a slot that is empty or starts another entry.
    pub(crate) fn extent(&self, line: usize) -> usize {
        let Ok(Slot::Head { name_length, .. }) = self.slot(line) else { return 1 };
        let wanted = slots(name_length).min(PAGE_SLOTS as usize - line);
        (1..wanted).find(|index| matches!(self.slot(line + index), Ok(Slot::Empty | Slot::Head { .. }))).unwrap_or(wanted)
    }
}

impl Checker<'_> {
    /// Checks the entries of one page. Returns false if some of them could not be read.
    pub(crate) fn check_directory_page(&mut self, directory: &mut OpenDirectory, block: u64, address: LineAddress) -> bool {
        let number = directory.number;
        if block >= directory.pages_expected {
            self.find(Finding::BlockPastEnd { inode: number, block });
            directory.is_faulty = true;
        } else if block != directory.next_page && !directory.page_missing {
            self.find(Finding::DirectoryPageMissing { inode: number, page: directory.next_page });
            directory.page_missing = true;
        }
        directory.next_page = block.saturating_add(1);
        let image = self.image;
        let Some(page) = DentryPage::load(image, number, directory.generation, address) else {
            self.find(Finding::MappingDamaged { inode: number, line: address.number(), damage: Damage::Unreadable });
            directory.is_faulty = true;
            return false;
        };
        directory.pages.push((block, address));
        let mut whole = true;
        let mut line = 0;
        while line < PAGE_SLOTS as usize {
            let slot = block.saturating_mul(PAGE_SLOTS).saturating_add(line as u64);
            let mut taken = 1;
            match page.slot(line) {
                Ok(Slot::Empty) => {}
                Ok(Slot::Continuation) => self.find(Finding::EntryPartStray { directory: number, slot }),
                Ok(Slot::Head { .. }) => {
                    taken = page.extent(line);
                    match page.entry(line) {
                        Ok(Some(entry)) => self.check_entry(directory, slot, address.nth(line as u64), &entry),
                        Ok(None) => {}
                        Err(damage) => {
                            self.find(Finding::EntryDamaged { directory: number, slot, damage });
                            whole = false;
                        }
                    }
                }
                Err(damage) => {
                    self.find(Finding::EntryDamaged { directory: number, slot, damage });
                    whole = false;
                }
            }
            line += taken;
        }
        whole
    }

    fn check_entry(&mut self, directory: &mut OpenDirectory, slot: u64, line: LineAddress, entry: &Dentry) {
        let (number, inode) = (directory.number, entry.inode.get());
        self.counts.names += 1;
        let mut hasher = DefaultHasher::new();
        entry.name.hash(&mut hasher);
        directory.names.push((hasher.finish(), slot));
        if !is_name(&entry.name) {
            self.find(Finding::NameInvalid { directory: number, slot });
        }
        if entry.hash != self.image.pair.name_hash(&entry.name) {
            self.find(Finding::EntryHash { directory: number, slot });
        }
        if let Some(own) = self.inodes.get_mut(number) {
            own.has_entries = true;
        }
        let Some(target) = self.inodes.get_mut(inode) else {
            self.find(Finding::EntryDangling { directory: number, slot, inode });
            return;
        };
        target.links = target.links.saturating_add(1);
        let first = target.named_in == 0;
        if first {
            (target.named_in, target.name_line) = (number, line.number());
        }
        let target = *target;
        if target.damaged {
            return;
        }
        if target.kind != entry.file_type {
            let (found, expected) = (entry.file_type, target.kind);
            self.find(Finding::EntryType { directory: number, slot, inode, found, expected });
        }
        if target.is_directory() {
            if !first || inode == 1 {
                self.find(Finding::DirectoryTwice { directory: number, slot, inode });
            } else if let Some(own) = self.inodes.get_mut(number) {
                own.subdirectories = own.subdirectories.saturating_add(1);
            }
        }
    }

    /// Checks that need all pages of a directory. Returns false if a page is missing.
    pub(crate) fn close_directory(&mut self, mut directory: OpenDirectory, inode: &Inode) -> bool {
        let number = directory.number;
        if directory.next_page < directory.pages_expected && !directory.page_missing {
            self.find(Finding::DirectoryPageMissing { inode: number, page: directory.next_page });
            directory.page_missing = true;
        }
        directory.names.sort_unstable();
        let names = std::mem::take(&mut directory.names);
        for pair in names.windows(2) {
            let &[(first_hash, first), (second_hash, second)] = pair else { continue };
            if first_hash == second_hash && self.name_in(&directory, inode, first) == self.name_in(&directory, inode, second) {
                self.find(Finding::NameTwice { directory: number, slot: first, other: second });
            }
        }
        let size_is_odd = !inode.size.is_multiple_of(PAGE_BYTES as u64);
        if directory.is_faulty || directory.page_missing || size_is_odd {
            let pages = directory.pages.iter().map(|(_, address)| *address).collect();
            let owner = Owner { inode: number, generation: inode.generation };
            self.mend(Mend::Directory { owner, pages, salvage: true });
        }
        !directory.page_missing
    }

    fn name_in(&self, directory: &OpenDirectory, inode: &Inode, slot: u64) -> Option<Vec<u8>> {
        let (block, line) = (slot / PAGE_SLOTS, (slot % PAGE_SLOTS) as usize);
        let position = directory.pages.binary_search_by_key(&block, |(block, _)| *block).ok()?;
        let (_, address) = directory.pages.get(position)?;
        let page = DentryPage::load(self.image, directory.number, inode.generation, *address)?;
        page.entry(line).ok()?.map(|entry| entry.name)
    }

    /// Checks link counts, parents and reachability from the root. Only if every name could be read ([CK3]).
    pub(crate) fn check_names(&mut self) {
        let total = self.counts.inodes;
        self.progress(Stage::Names, 0, total);
        self.find_circles();
        let mut findings = Vec::new();
        for (number, facts) in self.inodes.iter() {
            if facts.damaged {
                continue;
            }
            if facts.is_directory() {
                let expected = if number == 1 { 1 } else { facts.named_in };
                if expected != 0 && facts.parent != expected {
                    findings.push(Finding::ParentWrong { inode: number, found: facts.parent, expected });
                }
                if facts.nlink == 0 && facts.has_entries {
                    findings.push(Finding::OrphanWithEntries { inode: number });
                }
            }
            if !self.names_whole {
                continue;
            }
            let named = facts.links > 0 || number == 1;
            let expected = if facts.is_directory() { facts.subdirectories.saturating_add(2) } else { facts.links };
            if !named && facts.nlink > 0 {
                findings.push(Finding::Unreachable { inode: number });
            } else if named && facts.nlink != expected && !on(Mutant::LinkCountsIgnored) {
                findings.push(Finding::LinkCount { inode: number, found: facts.nlink, expected });
            } else if !named && self.image.superblock.clean {
                findings.push(Finding::OrphanLeft { inode: number });
            }
        }
        for finding in findings {
            self.find(finding);
        }
        self.progress(Stage::Names, total, total);
    }

    /// Finds cycles of directories.
    fn find_circles(&mut self) {
        let directories: Vec<u64> = self.inodes.iter().filter(|(_, facts)| facts.is_directory()).map(|(number, _)| number).collect();
        let mut path = Vec::new();
        for start in directories {
            let mut at = start;
            path.clear();
            while let Some(facts) = self.inodes.get_mut(at) {
                if facts.mark == 1 {
                    let circle = path.iter().rev().take_while(|inode| **inode != at).copied().chain([at]);
                    if let Some(inode) = circle.min() {
                        self.find(Finding::DirectoryCircle { inode });
                    }
                    break;
                }
                if facts.mark == 2 || at == 1 {
                    break;
                }
                facts.mark = 1;
                path.push(at);
                at = facts.named_in;
            }
            for inode in &path {
                if let Some(facts) = self.inodes.get_mut(*inode) {
                    facts.mark = 2;
                }
            }
        }
    }
}

/// Whether a file can have this name.
pub(crate) fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.contains(&0) && !name.contains(&b'/')
}
