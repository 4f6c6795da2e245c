//! Chooses the drive interface (byte or block) for file data (ByteFS Table 3, §4.4–§4.6). For metadata, `Drive::load_pages` chooses.
//!
//! | what | read | written |
//! |---|---|---|
//! | sectors | by blocks [IF1] | by blocks, redirected; few lines of them in place by bytes (`in_place.rs`) |
//! | data logs, pages of the memory zone | by bytes up to 512 B, by blocks above [IF2] | by bytes |
//! | old bytes of lines that are written in place | by bytes [IF3] | |
//!
//! [IF1] A checksum covers a whole sector, so part of a sector cannot be verified. Sectors for a caller are read whole, by blocks, also up
//!       to 512 B, where §4.6 reads by bytes: over PCIe a load of more than one line takes as long as the block read anyway. Read
//!       data is cached on the host only (the kernel's page cache, `cache/file_pages.rs`); the drive's memory is left to its write log (§4.4,
//!       coordinated caching).
//! [IF2] A load waits for each line (4.8 us over PCIe, Table 1), a block read waits once. §4.6 sets the limit for direct I/O at 512 B.
//!       There is a choice only where the two windows overlap.
//! [IF3] The checksum of data written in place is updated by linearity, from the touched lines alone (RULES R18).
//!
//! This file keeps the two windows coherent: a log is read by blocks only after its stores were fenced, because the reader holds the range
//! lock and the log's record was committed after the fence (RULES R8). The drive merges its write log into a block read (device [FW1]),
//! including other slots of the same page; the reader ignores those bytes.

use tandemfs_device::Structure;
use tandemfs_format::{LINE_BYTES, LineAddress, PAGE_BYTES};

use super::policy::{Interface, reads_logs_by};
use crate::error::Result;
use crate::volume::Volume;

/// Reads bytes of the data area, starting at the start of a slot or page, through the interface that the policy chooses ([IF2]).
pub(crate) fn load_slots(volume: &Volume, structure: Structure, address: LineAddress, into: &mut [u8]) -> Result<()> {
    if reads_logs_by(into.len(), volume.drive.description().overlapping) == Interface::Bytes {
        return Ok(volume.drive.load(structure, address, into)?);
    }
    let skip = address.index_in_page() * LINE_BYTES;
    if skip == 0 && into.len().is_multiple_of(PAGE_BYTES) {
        return Ok(volume.drive.load_pages(structure, address, into)?);
    }
    let mut pages = vec![0; (skip + into.len()).next_multiple_of(PAGE_BYTES)];
    volume.drive.load_pages(structure, address.page(), &mut pages)?;
    into.copy_from_slice(&pages[skip..skip + into.len()]);
    Ok(())
}
