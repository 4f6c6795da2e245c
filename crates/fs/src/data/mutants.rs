//! The deliberate bugs (mutants) of the data paths that need more than a condition, one function each. If its bug is not selected, and
//! always without the feature `mutants`, a function does only what its name says. See [`crate::mutant`].

use std::borrow::Cow;
use std::ops::Range;

use tandemfs_device::{DeviceError, Flushed, Source, Structure, Written};
use tandemfs_format::mapping::LogEntry;
use tandemfs_format::{DataAddress, Line, Sector};

use super::log_plan::Part;
use super::target::Store;
use crate::error::Result;
use crate::index::block::{Base, NewExtent};
use crate::mutant::{Mutant, on};
use crate::space;
use crate::volume::{Tx, Volume};

/// Length of the piece of a write at `at` that becomes one transaction. The bug: one transaction per block.
pub(super) fn piece(at: u64, length: usize, volume: &Volume) -> usize {
    let block_bytes = u64::from(volume.geometry.block_bytes());
    if on(Mutant::SubWritesApart) { length.min((block_bytes - at % block_bytes) as usize) } else { length }
}

/// Bytes added to the new file size beyond this piece: none. The bug: adds the length of the later pieces.
pub(super) fn size_ahead(later: usize) -> u64 {
    if on(Mutant::SizeBeforePieces) { later as u64 } else { 0 }
}

/// The checksum that a log's entry records for its first `bytes`. The bug: it is computed from the bytes read back from the device.
pub(super) fn recorded_checksum(volume: &Volume, log: &LogEntry, bytes: u32) -> Result<u32> {
    if !on(Mutant::ChecksumFromReadBack) {
        return Ok(log.crc);
    }
    let mut read_back = vec![0; bytes as usize];
    volume.drive.load(Structure::DataLog, log.address, &mut read_back)?;
    Ok(volume.pair.data(&read_back))
}

/// The bytes of a log that are stored: those of its checksum. The bug: what the caller's memory has by now.
pub(super) fn bytes_to_store<'s>(store: &'s Store<'_>, parts: &[Part<'_>]) -> Cow<'s, [u8]> {
    let bytes = store.bytes.get();
    let start = store.entry.offset + store.skip;
    let holds = |part: &&Part<'_>| part.offset <= start && start + bytes.len() as u32 <= part.end() && part.data.private().is_none();
    match parts.iter().find(holds).filter(|_| on(Mutant::SharedLogReadAgain)) {
        Some(part) => {
            let from = (start - part.offset) as usize;
            Cow::Owned(part.data.slice(from..from + bytes.len()).to_vec())
        }
        None => Cow::Borrowed(bytes),
    }
}

/// The bytes of a write of which pages are kept: none of shared memory, but what was copied of it. The bug: what it has by now.
pub(super) fn bytes_to_keep<'b>(given: Source<'b>, data: Source<'b>) -> Option<Cow<'b, [u8]>> {
    match (given, data) {
        (Source::Shared(_), _) if on(Mutant::SharedPagesKept) => Some(Cow::Owned(given.to_vec())),
        (_, Source::Private(bytes)) => Some(Cow::Borrowed(bytes)),
        (_, Source::Shared(_)) => None,
    }
}

/// Called before sectors are allocated for a block; does nothing. The bugs: frees the block's old sectors; discards them.
pub(super) fn free_before_commit(volume: &Volume, base: &Base) {
    let Some(old) = base.run() else { return };
    if on(Mutant::DataFreedBeforeCommit) {
        let _the_bug = match old.at {
            DataAddress::Sector(sector) => volume.sectors.free(sector, old.count.into()),
            DataAddress::Page(page) => volume.memory.free_extent(page, old.count.into()),
        };
    }
    if let Some(sector) = old.at.sector().filter(|_| on(Mutant::DiscardedBeforeCommit)) {
        let _the_bug = volume.drive.discard(sector, old.count.into());
    }
}

/// FLUSHes blocks. The bug: no FLUSH.
pub(super) fn flush_blocks(volume: &Volume, written: Written) -> std::result::Result<Flushed, DeviceError> {
    if on(Mutant::BlocksNotFlushed) { Ok(Flushed::nothing_written()) } else { volume.drive.flush_blocks(written) }
}

/// Puts a line of a sector into a transaction. The bug: stores the line at once.
pub(super) fn put_data(tx: &mut Tx<'_>, sector: Sector, line: u32, image: &Line) -> Result<()> {
    let drive = &tx.volume().drive;
    match drive.description().line_of_sector(sector) {
        Some(start) if on(Mutant::InPlaceBeforeCommit) => drop(drive.persist(Structure::Data, start.nth(line.into()), image)?),
        _ => tx.put_data(sector, line, *image),
    }
    Ok(())
}

/// The blocks that a collapse frees: those it removes. The bug: none.
pub(super) fn collapsed(blocks: Range<u64>) -> Range<u64> {
    if on(Mutant::CollapsedBlocksKept) { blocks.start..blocks.start } else { blocks }
}

/// The target offset of a copied hole. The bug: one block too far.
pub(super) fn place_of_hole(target: u64, volume: &Volume) -> u64 {
    if on(Mutant::CopiedHoleMisplaced) { target + u64::from(volume.geometry.block_bytes()) } else { target }
}

/// For a block that could not be written back: it keeps its sectors. The bug: frees them.
pub(super) fn keep_sectors(volume: &Volume, base: &Base) {
    if let Some(run) = base.run().filter(|_| on(Mutant::BatchFailedBlockFreed)) {
        volume.give_back(space::data(run.at, run.count.into()));
    }
}

/// Blocks written in one batch have their own checksums. The bug: all get the checksums of the first.
pub(super) fn own_checksums(blocks: &mut [NewExtent]) {
    let Some((first, others)) = blocks.split_first_mut().filter(|_| on(Mutant::BatchChecksumsKept)) else { return };
    for other in others.iter_mut().filter(|other| other.checksums.len() == first.checksums.len()) {
        other.checksums.clone_from(&first.checksums);
    }
}
