//! Blocks taken out of a file, or holes put into it, so that what lies behind moves: `Collapse` and `Insert` of [`AllocateMode`].
//!
//! As Linux defines them (`fallocate(2)`): offset and length are multiples of the block; a collapse ends before the end of the file, an insert
//! starts before it; room that is kept behind the end moves as well.
//!
//! [SF1] Either is one transaction, however large the file: wholly there after a crash, or not at all. No byte of data moves; the records
//!       of the blocks do, in a mapping that is built beside the old one ([SH1] of `index/shifted.rs`).
//! [SF2] The whole file is locked: there is no block of which a reader or writer could know the old place meanwhile (RULES R5, R7). The
//!       inode's lock is held as well, while lines of the memory zone are stored: no I/O by blocks is waited for (RULES R9).
//! [SF3] What a kernel has of the file by offset is wrong after it, so pages that are kept for comparison are forgotten before.
//! [SF4] Room for the new pages of the mapping is needed for an instant, also by a collapse; data logs give theirs where nothing else is free.
//!       `NoSpace` changes nothing.
//! [SF5] Distances are whole blocks, so what is known of the last sector (`TAIL_STALE`, RULES R13) stays true.

use tandemfs_device::Flushed;
use tandemfs_format::inode::FILE_BYTES_MAX;

use super::allocate::changed;
use super::mutants;
use super::truncate::free_blocks;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::shifted::{Shift, shifted};
use crate::inodes::Handle;
use crate::mutant::{Mutant, on};
use crate::types::AllocateMode;
use crate::volume::Tx;

/// Which way the bytes behind the range go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// To the front, over the range.
    Collapse,
    /// To the back, so that the range is a hole.
    Insert,
}

impl FileSystem {
    /// Moves what lies behind a range, or from its start on. The caller has checked that the range ends inside the largest file.
    pub(super) fn shift(&self, handle: &Handle, offset: u64, length: u64, direction: Direction) -> Result<()> {
        let volume = &self.volume;
        let block_bytes = u64::from(volume.geometry.block_bytes());
        if !offset.is_multiple_of(block_bytes) || !length.is_multiple_of(block_bytes) {
            return Err(Error::InvalidArgument("only whole blocks are taken out of a file or put into it"));
        }
        let _range = handle.ranges.exclusive(0, u64::MAX); // [SF2]
        let size = self.view(handle)?.size;
        let (at, blocks, blocks_max) = (offset / block_bytes, length / block_bytes, FILE_BYTES_MAX.div_ceil(block_bytes));
        let (shift, new_size) = match direction {
            Direction::Collapse if offset + length >= size => {
                return Err(Error::InvalidArgument("what is taken out of a file ends before its end"));
            }
            Direction::Collapse => (Shift { at, gone: blocks, added: 0, blocks_max }, size - length),
            Direction::Insert if length > FILE_BYTES_MAX - size => return Err(Error::FileTooLarge),
            Direction::Insert if offset >= size => return Err(Error::InvalidArgument("holes are put before the end of a file")),
            Direction::Insert => (Shift { at, gone: 0, added: blocks, blocks_max }, size + length),
        };
        handle.clean.forget(offset, u64::MAX); // [SF3]
        if direction == Direction::Collapse && on(Mutant::CollapseInTwoTransactions) {
            self.zero_whole_blocks(handle, offset, offset + length)?;
        }
        let _leaving = (direction == Direction::Collapse).then(|| self.leaving.enter());
        let mut tx = Tx::new(volume);
        let mut state = handle.state.write();
        if state.removed {
            return Err(Error::Stale(handle.number));
        }
        let mut new = state.inode.clone();
        let (owner, old_root) = (state.owner(handle.number), state.root());
        let freed_512 = free_blocks(&mut tx, self, owner, old_root, mutants::collapsed(at..at + shift.gone))?;
        let (root, stored) = shifted(&mut tx, owner, old_root, &shift)?;
        new.root = root.to_bytes();
        new.size = new_size;
        new.sectors = new.sectors.saturating_sub(freed_512);
        changed(&mut new);
        handle.commit(tx, &mut state, new, stored, Flushed::nothing_written())?;
        Ok(())
    }
}

impl Direction {
    /// The direction of a mode that moves bytes.
    pub(super) fn of(mode: AllocateMode) -> Option<Self> {
        match mode {
            AllocateMode::Collapse => Some(Self::Collapse),
            AllocateMode::Insert => Some(Self::Insert),
            _ => None,
        }
    }
}
