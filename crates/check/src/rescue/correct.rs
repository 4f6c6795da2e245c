//! Lines with a single wrong bit.
//!
//! [OB1] A line that does not verify, and verifies with one bit changed, is corrected: CRC-32C detects five wrong bits of so short a message,
//!       so no other line is that near to it. Of lines of noise one in eight million would be corrected to a line that never was.
//!       An inode in use has more than one bit in each of its lines, so a slot with a single bit in both, to which no name leads, was free.
//! [OB2] This comes before everything that a repair gives up, and again after each round, since a corrected line shows others.

use std::collections::BTreeMap;

use tandemfs_device::Structure;
use tandemfs_format::dentry::{ENTRY_SLOTS_MAX, PAGE_SLOTS};
use tandemfs_format::inode::Inode;
use tandemfs_format::{EMPTY_LINE, InodeNumber, Line, LineAddress, Place};

use crate::finding::Finding;
use crate::image::Image;
use crate::inodes::{self, Inodes};
use crate::tree::directory_pages;

/// The corrected lines of everything that findings name, by address.
pub(crate) fn lines<'f>(image: &Image<'_>, inodes: &Inodes, findings: impl Iterator<Item = &'f Finding>) -> BTreeMap<u64, Line> {
    let mut corrected = BTreeMap::new();
    let mut free = Vec::new();
    let mut try_line = |place: Place| {
        let Ok(line) = image.line(Structure::Mapping, place.address) else { return };
        if place.verify(&line).is_err()
            && let Some(right) = place.corrected(&line)
        {
            corrected.insert(place.address.number(), right);
        }
    };
    let owned = |inode: u64, line: u64| {
        let generation = inodes.get(inode)?.generation;
        Some(image.place(inode, generation, LineAddress::new(line)))
    };
    for finding in findings {
        match *finding {
            Finding::InodeDamaged { inode, .. } => {
                if let Some(address) = slot_of(image, inode) {
                    if was_free(image, inodes, inode, address) {
                        free.extend([address, address.nth(1)]);
                    }
                    for line in [address, address.nth(1)] {
                        try_line(Inode::place(image.pair, InodeNumber::new(inode), line));
                    }
                }
            }
            Finding::MappingDamaged { inode, line, .. } | Finding::AttributesDamaged { inode, line, .. } if line > 0 => {
                owned(inode, line).into_iter().for_each(&mut try_line);
            }
            Finding::EntryDamaged { directory, slot, .. } => {
                let Some(page) = page_of(image, directory, slot / PAGE_SLOTS) else { continue };
                let first = slot % PAGE_SLOTS;
                for line in first..PAGE_SLOTS.min(first + ENTRY_SLOTS_MAX as u64) {
                    owned(directory, page.number() + line).into_iter().for_each(&mut try_line);
                }
            }
            Finding::SegmentDamaged { segment, .. } => {
                let address = image.geometry.segment_line(segment);
                try_line(Place { pair: image.pair, address, inode: InodeNumber::new(0), generation: 0 });
            }
            _ => {}
        }
    }
    corrected.extend(free.into_iter().map(|line| (line.number(), EMPTY_LINE)));
    corrected
}

/// The first line of an inode's slot, that of the number 0 too, which no inode has.
fn slot_of(image: &Image<'_>, inode: u64) -> Option<LineAddress> {
    match inode {
        0 => {
            let first = image.segments.inodes().first().filter(|segment| segment.region_unit == 0)?;
            Some(image.geometry.unit(first.start_unit))
        }
        _ => image.segments.inode_address(inode),
    }
}

/// Whether a damaged slot is a free one with a wrong bit ([OB1]).
fn was_free(image: &Image<'_>, inodes: &Inodes, inode: u64, address: LineAddress) -> bool {
    let is_named = inodes.get(inode).is_some_and(|facts| facts.links > 0);
    let [Ok(hot), Ok(cold)] = [0, 1].map(|line| image.line(Structure::Inode, address.nth(line))) else { return false };
    !is_named && Inode::was_free(&hot, &cold)
}

fn page_of(image: &Image<'_>, directory: u64, block: u64) -> Option<LineAddress> {
    let (_, inode) = inodes::read(image, directory)?;
    let mut found = None;
    directory_pages(image, directory, &inode, &mut |at, page| {
        if at == block {
            found = Some(page);
        }
        at < block
    });
    found
}
