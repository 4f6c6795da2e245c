//! Inodes of which only the hot line is left: it has type, permissions, size, times and the generation that seals the inode's lines.
//!
//! [CL1] Owner and attributes are lost: the inode becomes root's, and loses the set-user-id and set-group-id bits. The parent is the directory
//!       with its name. A directory's pages verify for its number and generation, so its mapping is made anew. Links and devices are
//!       nothing without what was in the lost line: they go.
//! [CL2] A page is taken for the root of a file's mapping only if every line of its tree verifies for the inode, all data match their
//!       checksums, none of it is in use by others, and it takes exactly the space that the hot line counts.
//! [CL3] Pages that the file gave back may verify as well. So the root must be in use as the maps of the last unmount say ([OM1] of `maps.rs`);
//!       or, where none are left, the file takes more than one block, so that its root is a page, and all trees that [CL2] leaves have the
//!       same content.
//! [CL4] Otherwise the content is lost, and recorded as lost: the name stays, and reading fails.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use tandemfs_device::Structure;
use tandemfs_format::attributes::AttributePointer;
use tandemfs_format::inode::{Inode, InodeColdLine, file_type};
use tandemfs_format::mapping::{HEIGHT_MAX, PAGE_RECORDS, Record, line_records};
use tandemfs_format::segment::Region;
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_format::{EMPTY_LINE, InodeNumber, LineAddress, PAGE_LINES, UNIT_LINES};
use zerocopy::FromZeros;

use crate::checker::{Taken, verify_alone};
use crate::claims::Claims;
use crate::image::{Image, line_of};
use crate::inodes::Inodes;
use crate::maps::is_page_in_use;
use crate::mend::Owner;
use crate::mutant::{Mutant, on};
use crate::tree::{Step, Walk};

/// Inodes whose pages one search looks for. The content of more is lost.
const OWNERS_MAX: usize = 256;
const SET_IDS: u16 = 0o6000;

/// What is known of the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// All of it: the root in the inode is right.
    Whole,
    /// The pages of a directory are to be searched.
    Pages,
    /// Nothing.
    Lost,
}

/// An inode whose cold line is made anew.
#[derive(Debug, Clone)]
pub(crate) struct Half {
    pub(crate) address: LineAddress,
    pub(crate) inode: Inode,
    pub(crate) content: Content,
    /// Lines and sectors of the content that was found. Nobody claims them until the inode is made anew.
    pub(crate) lines: Claims,
    pub(crate) sectors: Claims,
}

impl Half {
    /// What was rebuilt, for people.
    pub(crate) fn sentence(&self, number: u64) -> String {
        let content = match self.content {
            Content::Lost => "its content is lost",
            Content::Pages => "its names are there as far as their pages are found",
            Content::Whole => "its content is there",
        };
        format!("inode {number}: its second line was made anew; {content}; it is root's now, and its extended attributes are lost")
    }
}

/// What else is in use, and the generation of maps that are right if they are there.
pub(crate) struct Surroundings<'s> {
    pub(crate) inodes: &'s Inodes,
    pub(crate) lines: &'s Claims,
    pub(crate) sectors: &'s Claims,
    pub(crate) maps_generation: u64,
}

/// All inodes among `numbers` that can get a new cold line.
pub(crate) fn rebuild(image: &Image<'_>, around: &Surroundings<'_>, numbers: impl Iterator<Item = u64>) -> BTreeMap<u64, Half> {
    let mut halves: BTreeMap<u64, Half> = numbers.filter_map(|number| Some((number, half(image, around.inodes, number)?))).collect();
    let is_searched = |half: &Half| half.inode.file_type() == file_type::REGULAR && half.inode.size > 0;
    let owners: Vec<Owner> = halves
        .iter()
        .filter(|(_, half)| is_searched(half))
        .map(|(number, half)| Owner { inode: *number, generation: half.inode.generation })
        .take(OWNERS_MAX)
        .collect();
    let pages = pages_of(image, around.lines, &owners);
    for (number, half) in &mut halves {
        if is_searched(half) {
            let owner = Owner { inode: *number, generation: half.inode.generation };
            let root = pages.get(&owner).and_then(|pages| root_of(image, around, owner, &half.inode, pages));
            half.content = if root.is_some() { Content::Whole } else { Content::Lost };
            let record = match root {
                Some((record, taken)) => {
                    (half.lines, half.sectors) = (taken.lines, taken.sectors);
                    record
                }
                None => lost_root(image, half.inode.size),
            };
            half.inode.root = record.encode().to_bytes();
        }
    }
    halves.retain(|_, half| half.content != Content::Lost || image.superblock.has_lost_records());
    halves
}

/// The record that stands for all of a file.
fn lost_root(image: &Image<'_>, size: u64) -> Record {
    let blocks = size.div_ceil(image.geometry.block_bytes().into());
    let height = (0..=HEIGHT_MAX).find(|height| PAGE_RECORDS.saturating_pow(*height) >= blocks).unwrap_or(HEIGHT_MAX);
    Record::Lost { height, leaf: None }
}

/// What the hot line alone says; `None` if it does not verify, if the cold line does, or if nothing can be made of it.
fn half(image: &Image<'_>, inodes: &Inodes, number: u64) -> Option<Half> {
    let address = image.segments.inode_address(number)?;
    let place = Inode::place(image.pair, InodeNumber::new(number), address.nth(1));
    let hot = image.line(Structure::Inode, address).ok()?;
    let is_whole = image.line(Structure::Inode, address.nth(1)).is_ok_and(|cold| cold != EMPTY_LINE && place.verify(&cold).is_ok());
    if is_whole || hot == EMPTY_LINE {
        return None;
    }
    let mut bytes = EMPTY_LINE;
    bytes.copy_from_slice(zerocopy::IntoBytes::as_bytes(&InodeColdLine::new_zeroed()));
    let mut inode = Inode::decode(image.pair, InodeNumber::new(number), address, &hot, &place.seal(bytes)).ok()??;
    let content = match inode.file_type() {
        _ if inode.nlink == 0 => return None, // nobody misses it
        file_type::DIRECTORY => Content::Pages,
        file_type::REGULAR | file_type::FIFO | file_type::SOCKET => Content::Whole,
        _ => return None, // [CL1]
    };
    inode.mode &= !SET_IDS;
    inode.birth = inode.mtime.min(inode.ctime);
    inode.parent = InodeNumber::new(inodes.get(number)?.named_in);
    inode.attributes = AttributePointer::NONE;
    Some(Half { address, inode, content, lines: Claims::default(), sectors: Claims::default() })
}

/// Pages of mappings that nobody claims and that verify for one of the owners.
fn pages_of(image: &Image<'_>, claimed: &Claims, owners: &[Owner]) -> BTreeMap<Owner, Vec<LineAddress>> {
    let mut found: BTreeMap<Owner, Vec<LineAddress>> = BTreeMap::new();
    if owners.is_empty() {
        return found;
    }
    for (_, segment) in image.segments.all().filter(|(_, segment)| segment.region == Region::Mappings) {
        let start = segment.start_unit * UNIT_LINES;
        let pages = (start..start + segment.high_water_lines / PAGE_LINES * PAGE_LINES).step_by(PAGE_LINES as usize);
        for first in pages.filter(|first| claimed.is_free(*first, PAGE_LINES)) {
            let Ok(page) = image.page(Structure::Mapping, LineAddress::new(first)) else { continue };
            let used = (0..PAGE_LINES).map(|index| (index, line_of(page.as_slice(), index as usize))).find(|(_, line)| *line != EMPTY_LINE);
            let Some((index, line)) = used else { continue };
            let address = LineAddress::new(first + index);
            let fits = |owner: &&Owner| image.place(owner.inode, owner.generation, address).verify(&line).is_ok();
            if let Some(owner) = owners.iter().find(fits) {
                found.entry(*owner).or_default().push(LineAddress::new(first));
            }
        }
    }
    found
}

/// The pointer to the page that is proved to be the root, and what is below it ([CL2], [CL3]).
fn root_of(image: &Image<'_>, around: &Surroundings<'_>, owner: Owner, inode: &Inode, pages: &[LineAddress]) -> Option<(Record, Taken)> {
    let block_512 = u64::from(image.geometry.block_bytes()) / 512;
    let mut found: Option<(Record, Taken, u64)> = None;
    for page in pages {
        let may_be = match is_page_in_use(image, around.maps_generation, *page) {
            Some(is_in_use) => is_in_use,
            None => inode.space_512 > block_512 && image.superblock.checksum_kind != ChecksumKind::None,
        };
        if !(may_be || on(Mutant::StaleTreesTaken)) {
            continue;
        }
        let Some(height) = height_of(image, owner, *page) else { continue };
        let record = Record::Pointer { page: *page, height };
        let candidate = Inode { root: record.encode().to_bytes(), ..inode.clone() };
        let counts_right = |taken: &Taken| taken.space_512 == inode.space_512 || on(Mutant::StaleTreesTaken);
        let taken = verify_alone(image, (around.lines, around.sectors), owner.inode, &candidate).filter(counts_right);
        let Some(taken) = taken else { continue };
        let content = hash_of(image, owner.inode, &candidate);
        match found {
            Some((.., other)) if other != content => return None,
            _ => found = Some((record, taken, content)),
        }
    }
    found.map(|(record, taken, _)| (record, taken))
}

/// The height of a page all of whose lines verify.
fn height_of(image: &Image<'_>, owner: Owner, page: LineAddress) -> Option<u32> {
    let bytes = image.page(Structure::Mapping, page).ok()?;
    let mut height = None;
    for index in 0..PAGE_LINES {
        let (address, line) = (page.nth(index), line_of(bytes.as_slice(), index as usize));
        image.superblock.hole_lines().verify(&line, &image.place(owner.inode, owner.generation, address)).ok()?;
        for record in line_records(&line) {
            let above = match record.decode(address).ok()? {
                Record::Pointer { height, .. } | Record::Lost { height, .. } => Some(height + 1),
                Record::HOLE => None,
                _ => Some(1),
            };
            height = height.or(above);
        }
    }
    height.filter(|height| (1..=HEIGHT_MAX).contains(height))
}

/// A hash of which block is where.
fn hash_of(image: &Image<'_>, number: u64, inode: &Inode) -> u64 {
    let mut hasher = DefaultHasher::new();
    let mut walk = Walk::new(number, inode);
    while let Some(step) = walk.next(image) {
        match step {
            // The tree was verified, so every page can be read.
            Step::Pointer { span, page, height, .. } => drop(walk.enter(image, page, height, span.first)),
            Step::Block { block, record, .. } => (block, record.encode().to_bytes()).hash(&mut hasher),
            Step::Lost { span, .. } => (span.first, span.count).hash(&mut hasher),
            _ => {}
        }
    }
    hasher.finish()
}
