//! The deliberate bugs of the data paths that are more than a condition, one function each. Where its bug is not selected, and always without
//! the feature `mutants`, each does what its name says and nothing else. See [`crate::mutant`].

use std::ops::Range;

use tandemfs_device::{DeviceError, Flushed, Structure, Written};
use tandemfs_format::mapping::LogEntry;
use tandemfs_format::{Line, Sector};

use crate::error::Result;
use crate::index::block::{Base, NewSectors};
use crate::mutant::{Mutant, on};
use crate::space;
use crate::volume::{Tx, Volume};

/// Length of the piece of a write at `at` that becomes one transaction. The bug: each block is one.
pub(super) fn piece(at: u64, length: usize, volume: &Volume) -> usize {
    let block_bytes = u64::from(volume.geometry.block_bytes());
    if on(Mutant::SubWritesApart) { length.min((block_bytes - at % block_bytes) as usize) } else { length }
}

/// How much longer the file becomes than the piece makes it, which is nothing. The bug: as long as what comes later will.
pub(super) fn size_ahead(later: &[u8]) -> u64 {
    if on(Mutant::SizeBeforePieces) { later.len() as u64 } else { 0 }
}

/// The checksum that a log's entry records of its first `bytes`. The bug: it is computed from what the device has of them.
pub(super) fn recorded_checksum(volume: &Volume, log: &LogEntry, bytes: u32) -> Result<u32> {
    if !on(Mutant::ChecksumFromReadBack) {
        return Ok(log.crc);
    }
    let mut read_back = vec![0; bytes as usize];
    volume.drive.load(Structure::DataLog, log.address, &mut read_back)?;
    Ok(volume.pair.data(&read_back))
}

/// Before sectors are taken for a block: nothing. The bug: those that it has are free.
pub(super) fn free_before_commit(volume: &Volume, base: &Base) {
    if let Some(old) = base.run().filter(|_| on(Mutant::DataFreedBeforeCommit)) {
        let _the_bug = volume.sectors.free(old.sector, old.count.into());
    }
}

/// FLUSHes blocks. The bug: it does not.
pub(super) fn flush_blocks(volume: &Volume, written: Written) -> std::result::Result<Flushed, DeviceError> {
    if on(Mutant::BlocksNotFlushed) { Ok(Flushed::nothing_written()) } else { volume.drive.flush_blocks(written) }
}

/// Puts a line of a sector into a transaction. The bug: it is stored now.
pub(super) fn put_data(tx: &mut Tx<'_>, sector: Sector, line: u32, image: &Line) -> Result<()> {
    let drive = &tx.volume().drive;
    match drive.description().line_of_sector(sector) {
        Some(start) if on(Mutant::InPlaceBeforeCommit) => drop(drive.persist(Structure::Data, start.nth(line.into()), image)?),
        _ => tx.put_data(sector, line, *image),
    }
    Ok(())
}

/// The blocks that a collapse frees: those that it takes out. The bug: none.
pub(super) fn collapsed(blocks: Range<u64>) -> Range<u64> {
    if on(Mutant::CollapsedBlocksKept) { blocks.start..blocks.start } else { blocks }
}

/// Where a hole is copied to: its place in the target. The bug: a block behind it.
pub(super) fn place_of_hole(target: u64, volume: &Volume) -> u64 {
    if on(Mutant::CopiedHoleMisplaced) { target + u64::from(volume.geometry.block_bytes()) } else { target }
}

/// A block could not be written back: it keeps its sectors. The bug: they are free.
pub(super) fn keep_sectors(volume: &Volume, base: &Base) {
    if let Some(run) = base.run().filter(|_| on(Mutant::BatchFailedBlockFreed)) {
        volume.give_back(space::sectors(run.sector, run.count.into()));
    }
}

/// Blocks that were written together have their own checksums. The bug: those of the first.
pub(super) fn own_checksums(blocks: &mut [NewSectors]) {
    let Some((first, others)) = blocks.split_first_mut().filter(|_| on(Mutant::BatchChecksumsKept)) else { return };
    for other in others.iter_mut().filter(|other| other.checksums.len() == first.checksums.len()) {
        other.checksums.clone_from(&first.checksums);
    }
}
