//! Rebuilds what a repair cannot: superblocks whose copies are both damaged (`heads.rs`), and the segment table (`evidence.rs`,
//! `table.rs`). Only checksums decide; what they do not prove is not rebuilt, and said.
//!
//! `restore` uses the same results in memory. `check --rescue` writes them: the copies of the superblock as any repair does ([RP1]), the
//! table by the journal ([RP4]), and goes on with an ordinary repair.

mod evidence;
pub(crate) mod heads;
mod table;

use tandemfs_device::Drive;
use tandemfs_format::{EMPTY_LINE, LineAddress, PAGE_LINES};

use crate::error::CheckError;
use crate::image::Image;
use crate::journal;
use crate::segments::Segments;
use crate::superblock::{self, Reading};

pub(crate) use table::{changes, is_of_table, is_suspect, missing_regions, rebuild};

/// Opens an image to copy out of it, whatever its state: superblock and segment table are rebuilt in memory if they must be.
///
/// # Errors
/// No superblock, not even one that can be rebuilt, or halves of two pairs.
pub(crate) fn open<'d>(drive: &'d Drive, notes: &mut Vec<String>) -> Result<Image<'d>, CheckError> {
    drive.recover()?;
    let heads = superblock::read_as(drive, Reading::Restore)?;
    if heads.is_rebuilt {
        notes.push("both copies of the superblock are damaged; one was corrected by its checksum".into());
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
    let segments = Segments::read(&image, &mut found);
    image.segments = segments;
    if is_suspect(&image, &found) {
        notes.extend(found.iter().map(|finding| format!("segment table: {finding}")));
        let rebuilt = rebuild(&mut image);
        notes.extend(rebuilt.sentences());
        let zeroed = rebuilt.zeroed.map_or(0, LineAddress::number);
        image.overlay.extend((zeroed..zeroed + if zeroed > 0 { PAGE_LINES } else { 0 }).map(|line| (line, EMPTY_LINE)));
        image.segments = Segments::of(rebuilt.segments.iter().copied());
    }
    Ok(image)
}
