//! Lines that two claims name: slots of logs, checksum lines, leaves, pages of blocks. Slots, pages and checksum lines do not say whose they
//! are; whether they fit what the pointer says of them does.
//!
//! [PO3] A claim is *proved* where a part of it fits: the bytes of a log its checksum, a sector of an extent the checksum that its line has for
//!       it (one of zeros fits many), a line of a leaf its owner. Of claims of the same lines the proved ones come before the others,
//!       whatever their order. Where nothing fits the pointer goes, as in [PO1]. Where nothing can be said (open and unwritten pages, what
//!       cannot be read), the block gets checksum lines of its own.
//! [PO4] Where that does not decide, since several are proved or none, the first has the lines, and each other one gets a copy of them:
//!       a slot, checksum lines, sectors for pages; a run becomes records of its blocks. A leaf is not copied: its block is lost.
//! [PO5] What is contested is searched only when a claim has failed, since that takes a walk over all mappings and reads of data; then the
//!       tree is walked again from its start. The search enters pages as [PO2] does.

use tandemfs_device::Structure;
use tandemfs_format::inode::Inode;
use tandemfs_format::mapping::{BlockChecksum, Extent, LogEntry, Record, VECTOR_LINE_SECTORS, vector_checksum};
use tandemfs_format::segment::Region;
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_format::{DataAddress, LineAddress, PAGE_LINES, SECTOR_BYTES};

use crate::claims::Claims;
use crate::image::Image;
use crate::inodes::sweep;
use crate::mend::Owner;
use crate::proved::Named;
use crate::runs::FoundRun;
use crate::tree::{Step, Walk};

/// What a claim wants lines for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wanted {
    /// The slot of a log.
    Slot(LogEntry),
    /// Checksum lines of an extent, so many from the first.
    Checksums { first: LineAddress, count: u64, extent: Extent },
    /// The pages of an extent in the memory zone.
    Pages { first: LineAddress, extent: Extent },
    /// A leaf.
    Leaf(Named),
}

/// What the bytes say about a claim ([PO3]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Proved,
    Unknown,
    NothingFits,
}

impl Wanted {
    /// The checksum lines of an extent, if it has some.
    pub(crate) fn checksums(image: &Image<'_>, extent: Extent) -> Option<Self> {
        let (BlockChecksum::Vector(first) | BlockChecksum::Open(Some(first))) = extent.checksum else { return None };
        Some(Self::Checksums { first, count: image.geometry.vector_lines().next_power_of_two(), extent })
    }

    /// The line with the checksums of a group of a run ([`FoundRun::own_lines`]), by its index.
    pub(crate) fn group(found: &FoundRun, index: u64, line: LineAddress) -> Self {
        let block = index * found.shape.group_blocks;
        let checksum = if found.run.open { BlockChecksum::Open(Some(line)) } else { BlockChecksum::Vector(line) };
        let at = DataAddress::Page(found.run.first).nth(block * found.shape.block_pages);
        let count = (found.shape.group_blocks * found.shape.block_pages) as u32;
        Self::Checksums { first: line, count: 1, extent: Extent { at, count, checksum, unwritten: false, overlaid: false } }
    }

    /// The pages of an extent, if it has some.
    fn pages(extent: Extent) -> Option<Self> {
        match extent.at {
            DataAddress::Page(first) => Some(Self::Pages { first, extent }),
            DataAddress::Sector(_) => None,
        }
    }

    /// First line, and how many.
    pub(crate) fn lines(&self) -> (LineAddress, u64) {
        match *self {
            Self::Slot(log) => (log.address, log.class.lines()),
            Self::Checksums { first, count, .. } => (first, count),
            Self::Pages { first, extent } => (first, u64::from(extent.count) * PAGE_LINES),
            Self::Leaf(named) => (named.first, named.count),
        }
    }

    /// Whether the lines can be there.
    pub(crate) fn may_be(&self, image: &Image<'_>) -> bool {
        let (first, count) = self.lines();
        let granule = if matches!(self, Self::Pages { .. }) { PAGE_LINES } else { count };
        match self {
            _ if !first.number().is_multiple_of(granule) => false,
            Self::Slot(_) | Self::Pages { .. } => {
                image.geometry.holds_lines(first, count) && image.segments.of_unit(first.unit()).is_none()
            }
            Self::Checksums { .. } | Self::Leaf(_) => image.segments.holds(Region::Leaves, first, count),
        }
    }

    /// What the bytes there say ([PO3]).
    pub(crate) fn standing(&self, image: &Image<'_>) -> Standing {
        match *self {
            Self::Slot(log) => {
                let mut bytes = vec![0; log.length as usize];
                let is_read = image.load_part(Structure::DataLog, log.address, &mut bytes).is_ok();
                match image.superblock.checksum_kind {
                    ChecksumKind::Crc32c if is_read && image.pair.data(&bytes) == log.crc => Standing::Proved,
                    ChecksumKind::Crc32c if is_read => Standing::NothingFits,
                    _ => Standing::Unknown,
                }
            }
            Self::Checksums { extent, .. } | Self::Pages { extent, .. } => standing_of(image, extent),
            Self::Leaf(named) if named.is_proved(image) => Standing::Proved,
            Self::Leaf(named) if named.is_foreign(image) => Standing::NothingFits,
            Self::Leaf(_) => Standing::Unknown,
        }
    }
}

/// Whether sectors or pages fit their checksums.
fn standing_of(image: &Image<'_>, extent: Extent) -> Standing {
    if extent.unwritten || !image.geometry.holds_data(extent.at, extent.count.into()) {
        return Standing::Unknown;
    }
    let checksum = |index: u64| match extent.checksum {
        BlockChecksum::Inline(checksum) => Some(checksum),
        BlockChecksum::Vector(vector) => {
            let line = image.line(Structure::Mapping, vector.nth(index / VECTOR_LINE_SECTORS)).ok()?;
            Some(vector_checksum(&line, index % VECTOR_LINE_SECTORS))
        }
        BlockChecksum::None | BlockChecksum::Open(_) => None,
    };
    let zeros = [0; SECTOR_BYTES];
    let mut sector = [0; SECTOR_BYTES];
    let mut standing = Standing::NothingFits;
    for index in 0..u64::from(extent.count) {
        let Some(checksum) = checksum(index).filter(|_| image.data(extent.at.nth(index), &mut sector).is_ok()) else {
            standing = Standing::Unknown;
            continue;
        };
        match image.pair.data(&sector) == checksum {
            true if sector != zeros => return Standing::Proved,
            true => standing = Standing::Unknown,
            false => {}
        }
    }
    // The checksums of overlaid pages are of what they hold with the logs over it.
    if extent.overlaid { Standing::Unknown } else { standing }
}

/// The lines of claims that others name too.
#[derive(Default)]
pub(crate) struct Contested {
    lines: Claims,
    /// Those of proved claims.
    proved: Claims,
}

impl Contested {
    /// Searches the mappings of all inodes ([PO5]).
    pub(crate) fn search(image: &Image<'_>) -> Self {
        let mut once = Claims::default();
        let mut contested = Self::default();
        visit_all(image, &mut |wanted| {
            let (first, count) = wanted.lines();
            if !once.claim(first.number(), count) {
                contested.lines.claim(first.number(), count);
            }
        });
        visit_all(image, &mut |wanted| {
            let (first, count) = wanted.lines();
            if !contested.lines.is_free(first.number(), count) && wanted.standing(image) == Standing::Proved {
                contested.proved.claim(first.number(), count);
            }
        });
        contested
    }

    /// Whether a claim of one of these lines is proved.
    pub(crate) fn has_proved(&self, first: LineAddress, count: u64) -> bool {
        !self.proved.is_free(first.number(), count)
    }
}

/// Visits everything that mappings claim and that can be there.
fn visit_all(image: &Image<'_>, visit: &mut dyn FnMut(Wanted)) {
    let mut pages = Claims::default();
    sweep(image, &mut |_, _, found| {
        if let Some(found) = found
            && let Ok(inode) = found.decoded
            && inode.has_mapping()
        {
            visit_inode(image, found.number, &inode, &mut pages, &mut |wanted| {
                if wanted.may_be(image) {
                    visit(wanted);
                }
            });
        }
    });
}

fn visit_inode(image: &Image<'_>, number: u64, inode: &Inode, pages: &mut Claims, visit: &mut dyn FnMut(Wanted)) {
    let owner = Owner { inode: number, generation: inode.generation };
    let mut walk = Walk::new(number, inode);
    while let Some(step) = walk.next(image) {
        match step {
            Step::Pointer { span, page, height, .. } => {
                let is_new = Named::page(owner, Region::Mappings, page).is_proved(image) && pages.claim(page.number(), PAGE_LINES);
                if is_new {
                    let _ = walk.enter(image, page, height, span.first); // one that cannot be read now leads to nothing
                }
            }
            Step::Run(found) if found.is_possible && !inode.is_directory() => {
                (0..).zip(found.own_lines()).for_each(|(index, line)| visit(Wanted::group(&found, index, line)));
            }
            Step::Block { record, .. } if !inode.is_directory() => visit_record(image, owner, record, visit),
            _ => {}
        }
    }
}

fn visit_record(image: &Image<'_>, owner: Owner, record: Record, visit: &mut dyn FnMut(Wanted)) {
    let (extent, leaf) = match record {
        Record::Block { extent, leaf } => (extent, leaf),
        Record::Lost { leaf, .. } => (None, leaf),
        Record::SingleLog(log) => return visit(Wanted::Slot(log)),
        Record::Run(_) | Record::Memory(_) | Record::Pointer { .. } => return,
    };
    if let Some(extent) = extent {
        Wanted::pages(extent).into_iter().chain(Wanted::checksums(image, extent)).for_each(&mut *visit);
    }
    if let Some(leaf) = leaf {
        let named = Named::leaf(owner, leaf);
        visit(Wanted::Leaf(named));
        named.logs(image).into_iter().for_each(|log| visit(Wanted::Slot(log)));
    }
}
