//! Inodes: a scan of their region, checks of each inode's fields, and facts kept about inodes in use.

use std::collections::BTreeMap;

use tandemfs_device::Structure;
use tandemfs_format::inode::{Inode, file_type, flags};
use tandemfs_format::{EMPTY_LINE, InodeNumber, LINE_BYTES, LineAddress, PAGE_BYTES, PAGE_LINES, UNIT_LINES};

use crate::checker::{Checker, Stage};
use crate::finding::{Damage, Finding};
use crate::image::{Image, line_of};
use crate::mend::Mend;
use crate::mutant::{Mutant, on};

/// Lines that the scan loads at a time: 1 MiB.
const SWEEP_LINES: u64 = 16 << 10;
/// Inodes of one chunk of facts.
const CHUNK: usize = 512;
/// Longest target of a symbolic link, in bytes.
const TARGET_MAX: u64 = 4095;

/// Facts about an inode.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Facts {
    /// Type bits 12–15 of the mode; 0 where the slot is free.
    pub(crate) kind: u8,
    /// It is in use, and its lines do not verify.
    pub(crate) damaged: bool,
    /// A directory with at least one entry.
    pub(crate) has_entries: bool,
    /// State of the search for cycles: 0 not visited, 1 on the current path, 2 done.
    pub(crate) mark: u8,
    pub(crate) generation: u32,
    pub(crate) nlink: u32,
    /// Names found.
    pub(crate) links: u32,
    /// Directories named by this directory.
    pub(crate) subdirectories: u32,
    /// The parent stored in the inode.
    pub(crate) parent: u64,
    /// The directory with the first name found; 0 none.
    pub(crate) named_in: u64,
    /// The line where that name starts.
    pub(crate) name_line: u64,
}

impl Facts {
    /// In use, damaged or not.
    pub(crate) fn in_use(&self) -> bool {
        self.kind != 0 || self.damaged
    }

    pub(crate) fn is_directory(&self) -> bool {
        u16::from(self.kind) << 12 == file_type::DIRECTORY
    }
}

/// Facts of all inodes in use, in chunks that are allocated when one of their inodes is in use.
#[derive(Debug, Default)]
pub(crate) struct Inodes {
    chunks: BTreeMap<u64, Box<[Facts; CHUNK]>>,
}

impl Inodes {
    /// Facts about an inode; `None` if it is not in use.
    pub(crate) fn get(&self, number: u64) -> Option<&Facts> {
        let facts = self.chunks.get(&(number / CHUNK as u64))?.get((number % CHUNK as u64) as usize)?;
        facts.in_use().then_some(facts)
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut Facts> {
        let facts = self.chunks.get_mut(&(number / CHUNK as u64))?.get_mut((number % CHUNK as u64) as usize)?;
        facts.in_use().then_some(facts)
    }

    fn set(&mut self, number: u64, facts: Facts) {
        let chunk = self.chunks.entry(number / CHUNK as u64).or_insert_with(|| Box::new([Facts::default(); CHUNK]));
        if let Some(slot) = chunk.get_mut((number % CHUNK as u64) as usize) {
            *slot = facts;
        }
    }

    /// Numbers and facts of all inodes in use, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Facts)> {
        self.chunks.iter().flat_map(|(chunk, slots)| {
            let first = chunk * CHUNK as u64;
            (first..).zip(slots.iter()).filter(|(_, facts)| facts.in_use())
        })
    }
}

/// An inode slot in use: its bytes and the decoded inode.
pub(crate) struct FoundInode {
    pub(crate) number: u64,
    pub(crate) address: LineAddress,
    pub(crate) decoded: Result<Inode, Damage>,
}

/// Visits every inode slot in use, in the order of numbers. `visit` also gets the progress in lines.
pub(crate) fn sweep(image: &Image<'_>, visit: &mut dyn FnMut(u64, u64, Option<FoundInode>)) {
    let total: u64 = image.segments.inodes().iter().map(|segment| segment.high_water_lines).sum();
    let mut done = 0;
    let mut buffer = vec![0; SWEEP_LINES as usize * LINE_BYTES];
    for segment in image.segments.inodes() {
        let mut at = 0;
        while at < segment.high_water_lines {
            let lines = SWEEP_LINES.min(segment.high_water_lines - at);
            let first = LineAddress::new(segment.start_unit * UNIT_LINES + at);
            let number = (segment.region_unit * UNIT_LINES + at) / 2;
            let Some(piece) = buffer.get_mut(..lines as usize * LINE_BYTES) else { break };
            if image.load(Structure::Inode, first, piece).is_ok() {
                sweep_piece(image, number, first, piece, &mut |found| visit(done, total, Some(found)));
            } else {
                sweep_pages(image, number, first, lines, &mut |found| visit(done, total, Some(found)));
            }
            at += lines;
            done += lines;
            visit(done, total, None);
        }
    }
}

/// A piece that cannot be read as a whole: page by page, and such a page slot by slot ([CK5]). Every unreadable slot counts as damaged.
fn sweep_pages(image: &Image<'_>, number: u64, first: LineAddress, lines: u64, visit: &mut dyn FnMut(FoundInode)) {
    let mut buffer = vec![0; PAGE_BYTES];
    for skip in (0..lines).step_by(PAGE_LINES as usize) {
        let (address, count) = (first.nth(skip), PAGE_LINES.min(lines - skip));
        let Some(page) = buffer.get_mut(..count as usize * LINE_BYTES) else { return };
        if image.load(Structure::Inode, address, page).is_ok() {
            sweep_piece(image, number + skip / 2, address, page, visit);
            continue;
        }
        for slot in (0..count).step_by(2) {
            let (number, address) = (number + (skip + slot) / 2, address.nth(slot));
            let lines = [0, 1].map(|line| image.line(Structure::Inode, address.nth(line)));
            match lines {
                [Ok(hot), Ok(cold)] if !on(Mutant::PagesReadWhole) => sweep_piece(image, number, address, &[hot, cold].concat(), visit),
                _ if number > 0 => visit(FoundInode { number, address, decoded: Err(Damage::Unreadable) }),
                _ => {}
            }
        }
    }
}

fn sweep_piece(image: &Image<'_>, number: u64, first: LineAddress, piece: &[u8], visit: &mut dyn FnMut(FoundInode)) {
    for slot in 0..piece.len() / LINE_BYTES / 2 {
        let (hot, cold) = (line_of(piece, slot * 2), line_of(piece, slot * 2 + 1));
        if hot == EMPTY_LINE && cold == EMPTY_LINE {
            continue;
        }
        let (number, address) = (number + slot as u64, first.nth(slot as u64 * 2));
        let decoded = match Inode::decode(image.pair, InodeNumber::new(number), address, &hot, &cold) {
            Ok(Some(_)) if number == 0 => Err(Damage::Field { field: "number", found: 0 }),
            // An empty line verifies anywhere, so an inode with one empty line is damaged.
            Ok(Some(_)) if cold == EMPTY_LINE => Err(Damage::Field { field: "cold line", found: 0 }),
            Ok(Some(inode)) => Ok(inode),
            Ok(None) => continue,
            Err(corrupt) => Err(corrupt.into()),
        };
        visit(FoundInode { number, address, decoded });
    }
}

/// The inode with this number, if it is in use and verifies.
pub(crate) fn read(image: &Image<'_>, number: u64) -> Option<(LineAddress, Inode)> {
    let address = image.segments.inode_address(number)?;
    let hot = image.line(Structure::Inode, address).ok()?;
    let cold = image.line(Structure::Inode, address.nth(1)).ok()?;
    let inode = Inode::decode(image.pair, InodeNumber::new(number), address, &hot, &cold).ok()??;
    Some((address, inode))
}

impl Checker<'_> {
    /// Reads all inodes, checks their fields and remembers their facts.
    pub(crate) fn check_inodes(&mut self) {
        let image = self.image;
        sweep(image, &mut |done, total, found| match found {
            None => self.progress(Stage::Inodes, done, total),
            Some(found) => self.check_inode(&found),
        });
        if self.inodes.get(1).is_none_or(|root| !root.damaged && !root.is_directory()) {
            self.find(Finding::RootMissing {});
            self.mend(Mend::Root);
            self.names_whole = false;
        }
    }

    fn check_inode(&mut self, found: &FoundInode) {
        self.lines.claim(found.address.number(), 2);
        let inode = match &found.decoded {
            Ok(inode) => inode,
            Err(damage) => {
                self.find(Finding::InodeDamaged { inode: found.number, damage: *damage });
                self.inodes.set(found.number, Facts { damaged: true, ..Facts::default() });
                self.mend(if found.number == 1 { Mend::Root } else { Mend::FreeInode { inode: found.number, address: found.address } });
                self.names_whole = false;
                self.tree_whole = false;
                return;
            }
        };
        self.inodes.set(
            found.number,
            Facts {
                kind: (inode.mode >> 12) as u8,
                generation: inode.generation,
                nlink: inode.nlink,
                parent: inode.parent.get(),
                ..Facts::default()
            },
        );
        self.counts.inodes += 1;
        match inode.file_type() {
            file_type::DIRECTORY => self.counts.directories += 1,
            file_type::REGULAR => self.counts.files += 1,
            file_type::SYMLINK => self.counts.links += 1,
            _ => self.counts.special += 1,
        }
        for (field, value) in odd_fields(inode, self.image.superblock.has_memory_homes(), self.image.superblock.has_quota()) {
            self.find(Finding::InodeField { inode: found.number, field, found: value });
            self.mend(Mend::Field { inode: found.number, field });
        }
    }
}

/// Findings for fields with values that FORMAT.md does not allow.
fn odd_fields(inode: &Inode, has_homes: bool, has_quota: bool) -> Vec<(&'static str, u64)> {
    let mut odd = Vec::new();
    for (field, time) in [("atime", inode.atime), ("mtime", inode.mtime), ("ctime", inode.ctime), ("birth", inode.birth)] {
        if time.nanoseconds > 999_999_999 {
            odd.push((field, time.nanoseconds.into()));
        }
    }
    let size_is_odd = match inode.file_type() {
        file_type::REGULAR => false,
        file_type::DIRECTORY => !inode.size.is_multiple_of(PAGE_BYTES as u64),
        file_type::SYMLINK => inode.size == 0 || inode.size > TARGET_MAX,
        _ => inode.size != 0,
    };
    let home = flags::HOME_MEMORY | flags::HOME_BLOCK;
    let known = if has_homes { flags::OF_HOMES } else { 0 } | if has_quota { flags::OF_QUOTA } else { 0 };
    if inode.flags & !known != 0 || inode.flags & home == home {
        odd.push(("flags", inode.flags.into()));
    }
    if size_is_odd {
        odd.push(("size", inode.size));
    }
    odd
}
