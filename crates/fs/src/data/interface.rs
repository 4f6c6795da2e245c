//! Which of its two interfaces a drive is asked for file data by (ByteFS Table 3, §4.4–§4.6). Metadata's choice is `Drive::load_pages`'.
//!
//! | what | read | written |
//! |---|---|---|
//! | sectors | by blocks [IF1] | by blocks, redirected; few lines of them in place by bytes (`in_place.rs`) |
//! | data logs | by bytes up to 512 B, by blocks above [IF2] | by bytes |
//! | old bytes of lines that are written in place | by bytes [IF3] | |
//!
//! [IF1] A checksum covers a sector, so fewer of its bytes could not be verified: what is returned to a caller is read whole, by blocks. What
//!       was read is kept on the host's side alone (the kernel's page cache, `clean_pages.rs`): the drive's memory is left to its write log
//!       (§4.4, coordinated caching).
//! [IF2] A load waits for each line (4.8 us by PCIe, Table 1), a block read once. §4.6 sets the border for direct I/O at 512 B. Only where the
//!       two windows overlap is there a choice.
//! [IF3] What is in place already is renewed by linearity, from the touched lines alone (RULES R18).
//!
//! Coherence of the two windows is kept here: a log is read by blocks only after its stores were fenced, since who reads holds the range lock
//! and the log's record was committed after the fence (RULES R8). The drive merges what its write log has into a block read (device [FW1]), of
//! other slots in the same page too; those bytes are not looked at.

use tandemfs_device::Structure;
use tandemfs_format::{LINE_BYTES, LineAddress, PAGE_BYTES};

use super::policy::{Interface, reads_logs_by};
use crate::error::Result;
use crate::volume::Volume;

/// Reads bytes of the data area, from the start of a slot on, by the interface that the policy chooses ([IF2]).
pub(crate) fn load_slots(volume: &Volume, address: LineAddress, into: &mut [u8]) -> Result<()> {
    if reads_logs_by(into.len(), volume.drive.description().overlapping) == Interface::Bytes {
        return Ok(volume.drive.load(Structure::DataLog, address, into)?);
    }
    let skip = address.index_in_page() * LINE_BYTES;
    if skip == 0 && into.len().is_multiple_of(PAGE_BYTES) {
        return Ok(volume.drive.load_pages(Structure::DataLog, address, into)?);
    }
    let mut pages = vec![0; (skip + into.len()).next_multiple_of(PAGE_BYTES)];
    volume.drive.load_pages(Structure::DataLog, address.page(), &mut pages)?;
    into.copy_from_slice(&pages[skip..skip + into.len()]);
    Ok(())
}
