//! Rebuilds what a repair cannot: superblocks whose copies are both damaged (`heads.rs`), lines with a single wrong bit (`correct.rs`), the
//! segment table (`evidence.rs`, `table.rs`), and inodes of which half is left (`hot_lines.rs`, `cold_lines.rs`). Only checksums decide; what they do not
//! prove is not rebuilt, and said.
//!
//! `restore` uses the same results in memory. `check --rescue` writes them: the copies of the superblock as any repair does ([RP1]), the
//! table by the journal ([RP4]), and goes on with an ordinary repair.

pub(crate) mod cold_lines;
mod correct;
mod evidence;
pub(crate) mod heads;
pub(crate) mod hot_lines;
mod lost_units;
mod table;

use std::collections::BTreeMap;

use tandemfs_device::Drive;
use tandemfs_format::inode::Inode;
use tandemfs_format::{EMPTY_LINE, InodeNumber, Line, LineAddress, PAGE_LINES};

use crate::checker::{Surveyed, damage_of};
use crate::error::CheckError;
use crate::finding::Finding;
use crate::generations::Generations;
use crate::image::Image;
use crate::inodes::Inodes;
use crate::journal;
use crate::lent;
use crate::segments::Segments;
use crate::superblock::{self, Reading};

use cold_lines::{Content, Surroundings};
pub(crate) use correct::lines as corrected_lines;
pub(crate) use lost_units::lost_units;
use table::is_suspect;
pub(crate) use table::{changes, is_of_table, missing_regions, rebuild};

/// Rounds of corrections in memory: each shows what the ones before hid, one level of the tree at a time.
const ROUNDS_MAX: usize = 16;

/// Opens an image to copy out of it, whatever its state: superblock and segment table are rebuilt in memory if they must be.
///
/// # Errors
/// No superblock, not even one that can be rebuilt, or halves of two pairs.
pub(crate) fn open<'d>(drive: &'d Drive, notes: &mut Vec<String>) -> Result<Image<'d>, CheckError> {
    drive.recover()?;
    let heads = superblock::read_as(drive, Reading::Restore)?;
    if heads.is_rebuilt {
        let by_checksum = || "both copies of the superblock are damaged; one was corrected by its checksum".to_owned();
        notes.push(heads.rebuilt_without.unwrap_or_else(by_checksum));
    }
    if heads.times_differ {
        notes.push("the two halves are from different times: what was written between them reads as damaged, or as its older state".into());
    }
    let mut image = Image::new(drive, heads.superblock);
    let mut found = Vec::new();
    if !image.superblock.clean {
        let replayed = journal::pending(&image, &mut found).and_then(|pending| journal::replay(&image, &pending, &mut found));
        match replayed {
            Ok(overlay) => image.overlay = overlay,
            Err(error) => notes.push(format!("the journal cannot be read, so older states of some files are restored: {error}")),
        }
        notes.extend(found.drain(..).map(|finding| format!("journal: {finding}")));
    }
    read_segments(&mut image, &mut found);
    let corrected = corrected_lines(&image, &Inodes::default(), found.iter());
    if !corrected.is_empty() {
        image.overlay.extend(corrected);
        found.clear();
        read_segments(&mut image, &mut found);
    }
    if is_suspect(&image, &found) {
        notes.extend(found.iter().map(|finding| format!("segment table: {finding}")));
        let rebuilt = rebuild(&mut image);
        notes.extend(rebuilt.sentences());
        let zeroed = rebuilt.zeroed.map_or(0, LineAddress::number);
        image.overlay.extend((zeroed..zeroed + if zeroed > 0 { PAGE_LINES } else { 0 }).map(|line| (line, EMPTY_LINE)));
        image.segments = Segments::of(rebuilt.segments.iter().copied());
    }
    found.clear();
    if let Err(error) = lent::adopt(&mut image, &mut found) {
        notes.push(format!("the table of lent room cannot be read, so the last appends of some files may be missing: {error}"));
    }
    notes.extend(found.iter().map(|finding| format!("lent room: {finding}")));
    mend_in_memory(&mut image, notes);
    Ok(image)
}

fn read_segments(image: &mut Image<'_>, found: &mut Vec<Finding>) {
    let segments = Segments::read(image, found);
    image.segments = segments;
}

/// Corrects lines and makes halves of inodes anew, as far as that shows more of the tree.
fn mend_in_memory(image: &mut Image<'_>, notes: &mut Vec<String>) {
    let mut corrected_count = 0;
    for _ in 0..ROUNDS_MAX {
        let found = damage_of(image);
        let mut lines = corrected_lines(image, &found.inodes, found.findings.iter());
        corrected_count += lines.len();
        if lines.is_empty() {
            for rebuilt in hot_lines(image, &found.inodes, found.findings.iter()) {
                lines.insert(rebuilt.address.number(), rebuilt.hot);
                notes.push(rebuilt.sentence);
            }
            lines.extend(cold_lines_in_memory(image, &found, notes));
        }
        if lines.is_empty() {
            break;
        }
        image.overlay.extend(lines);
    }
    if corrected_count > 0 {
        notes.push(format!("lines with a single wrong bit were corrected: {corrected_count}"));
    }
}

/// The lines of inodes that have lost their cold line. A directory without it is searched by its pages anyway.
fn cold_lines_in_memory(image: &Image<'_>, found: &Surveyed, notes: &mut Vec<String>) -> BTreeMap<u64, Line> {
    let maps_generation = image.superblock.generation;
    let around = Surroundings { inodes: &found.inodes, lines: &found.lines, sectors: &found.sectors, maps_generation };
    let mut lines = BTreeMap::new();
    for (number, half) in cold_lines::rebuild(image, &around, damaged_inodes(found.findings.iter())) {
        if half.content != Content::Pages {
            let place = |line| Inode::place(image.pair, InodeNumber::new(number), line);
            lines.insert(half.address.number(), half.inode.encode_hot(&place(half.address)));
            lines.insert(half.address.number() + 1, half.inode.encode_cold(&place(half.address.nth(1))));
            notes.push(half.sentence(number));
        }
    }
    lines
}

/// The inodes that do not verify.
pub(crate) fn damaged_inodes<'f>(findings: impl Iterator<Item = &'f Finding>) -> impl Iterator<Item = u64> {
    findings.filter_map(|finding| if let Finding::InodeDamaged { inode, .. } = finding { Some(*inode) } else { None })
}

/// The hot lines of inodes that have lost them and can get new ones.
pub(crate) fn hot_lines<'f>(image: &Image<'_>, inodes: &Inodes, findings: impl Iterator<Item = &'f Finding>) -> Vec<hot_lines::Rebuilt> {
    let generations = Generations::new(image.pair);
    damaged_inodes(findings).filter_map(|inode| hot_lines::rebuild(image, inodes, &generations, inode)).collect()
}
