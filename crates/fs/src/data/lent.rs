//! Lent memory: bytes of a file that programs load from the memory zone themselves. What is lent is where a window of the file has its bytes,
//! and the versions of that; a program loads the bytes, and asks before and after whether the versions are still the same.
//!
//! A window goes *not lent -(look-up)-> lent -(version raised)-> not lent*. A raise is one addition. It waits for nobody and asks nobody, so a
//! program that is stopped, forked, killed or does not answer delays no change and costs no space: what it loads afterwards may be any bytes,
//! which its second look throws away. So no page is kept back for who only loads, and there is no quarantine to bound.
//!
//! Programs of other processes get the memory zone by the direct door (`crates/direct`, [LND1]), with a description of their own that cannot
//! be stored to, and not on a drive whose loads are timed, since theirs would not be. Lending for *stores*, for which the second look comes too
//! late, is `lent_stores.rs`.
//!
//! [LM1] The versions are noted with the range of the window held, before its records are looked at. So what is lent has the bytes of the file
//!       at the moment when the versions are compared, if they are as they were noted.
//! [LM2] All changes of a file's blocks, of their bytes and of the space that they name hold their range exclusively (RULES R7, R9), and the
//!       range lock raises the version of the windows when it gives such a range out: truncation, punching, writes, data logs, write-back,
//!       moves to another home, defragmentation, mapping. So the raise comes before the first byte of the change, and before its space is given
//!       to others. No operation can forget it.
//! [LM3] Lent are whole blocks in the memory zone without data logs, up to the end of the file, whose bytes were verified here with the range
//!       held. Loads do not verify them again: what the medium loses afterwards is found by the scrub, or by the next look-up. Blocks that are
//!       mapped are not lent, as they change without a range.
//! [LM4] An inode that leaves memory takes the mark that something was lent with it, so it revokes everything before. An inode that ends does
//!       too ([VS1] of `versions.rs`); while a program has the file open it does not end (RULES R21).
//! [LM5] Whoever gets pages of a file that calls do not see (the kernel behind a mount) revokes everything first (`revoke_bytes`), and who lends
//!       looks for such pages after the look-up.
//!
//! A raise is a locked instruction, so stores that follow it, past the CPU's caches too, are seen after it; and who loads takes his second look
//! behind a fence. Bounds: nothing is kept for what is lent but one mark for each inode in memory.

use tandemfs_device::Sink;
use tandemfs_format::{DataAddress, InodeNumber, PAGE_BYTES};

use super::FileView;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::block::{Base, DataRun};
use crate::inodes::InCoreInode;
use crate::inodes::range_lock::Lending;
use crate::mutant::{Mutant, on};
use crate::types::LentExtent;
use crate::wait::may_wait;

/// A window, in bytes: what is looked up at once. Windows begin at its multiples.
pub const LENT_BYTES: u64 = 1 << 20;
/// Bytes that are verified at a time.
pub(super) const VERIFIED_BYTES: usize = 64 << 10;

impl FileSystem {
    /// Where the window of a file that has this offset has its bytes in the memory zone, in order; what is left out lies elsewhere, or is
    /// damaged. That holds as long as the versions do which [`noting`](Self::noting) returns with it.
    ///
    /// # Errors
    /// `InvalidArgument` for what is no regular file. `NotSupported` on a drive whose loads mean more than those of memory. `WouldWait`; damage
    /// of the mapping; errors of the device.
    pub fn lend(&self, number: InodeNumber, offset: u64) -> Result<Vec<LentExtent>> {
        may_wait()?;
        if self.volume.drive.mapping_unit().is_none() {
            return Err(Error::NotSupported("this drive lends none of its memory"));
        }
        let file = self.inodes.get(&self.volume, number)?;
        file.must_be_regular("only regular files are lent")?;
        let window = offset / LENT_BYTES;
        let window_blocks = (LENT_BYTES / u64::from(self.volume.geometry.block_bytes())).max(1);
        let blocks = window * window_blocks..(window + 1) * window_blocks;
        let range = file.ranges.shared(blocks.start, blocks.end - 1)?;
        file.ranges.lends(|| Lending { versions: self.volume.versions.clone(), file: number, window_blocks });
        if !on(Mutant::PlacesNotedLate) {
            self.volume.versions.note_places(number, window); // [LM1]
        }
        if !file.ranges.pins(blocks.start, blocks.end - 1).is_empty() {
            return Ok(Vec::new()); // [LM3]
        }
        let view = self.view(&file)?;
        let mut extents = self.lendable(&file, &view, &blocks)?;
        let range = range.unless(Mutant::PlacesNotedLate);
        let mut result = Ok(());
        extents.retain(|extent| match self.verify_lent(&file, &view, extent) {
            Ok(()) => true,
            Err(Error::DamagedData { .. } | Error::LostData { .. }) => false,
            Err(error) => {
                result = Err(error);
                false
            }
        });
        if on(Mutant::PlacesNotedLate) {
            self.volume.versions.note_places(number, window);
        }
        drop(range);
        result.map(|()| extents)
    }

    /// What can be lent of some blocks; the caller has their range.
    pub(super) fn lendable(&self, file: &InCoreInode, view: &FileView, blocks: &std::ops::Range<u64>) -> Result<Vec<LentExtent>> {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        let mut extents: Vec<LentExtent> = Vec::new();
        self.each_block(file, view, blocks, &mut |number, block| {
            let Base::Written(DataRun { at: DataAddress::Page(page), count, .. }) = block.base else { return Ok(()) };
            let file_offset = number * block_bytes;
            let bytes = (u64::from(count) * PAGE_BYTES as u64).min(view.size.saturating_sub(file_offset));
            if bytes == 0 || block.has_logs() && !on(Mutant::LentBelowLogs) {
                return Ok(());
            }
            let device_offset = page.offset_bytes();
            let goes_on =
                |last: &LentExtent| (last.file_offset + last.bytes, last.device_offset + last.bytes) == (file_offset, device_offset);
            match extents.last_mut().filter(|last| goes_on(last)) {
                Some(last) => last.bytes += bytes,
                None => extents.push(LentExtent { file_offset, device_offset, bytes }),
            }
            Ok(())
        })?;
        Ok(extents)
    }

    /// Reads what is to be lent, with its checksums.
    pub(super) fn verify_lent(&self, file: &InCoreInode, view: &FileView, extent: &LentExtent) -> Result<()> {
        if on(Mutant::LentUnverified) {
            return Ok(());
        }
        let mut bytes = vec![0; VERIFIED_BYTES.min(extent.bytes as usize)];
        let mut done = 0;
        while done < extent.bytes {
            let part = bytes.len().min((extent.bytes - done) as usize);
            self.fetch(file, view, extent.file_offset + done, Sink::Private(&mut bytes[..part]), false)?;
            done += part as u64;
        }
        Ok(())
    }
}
