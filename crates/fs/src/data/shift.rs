//! Removes blocks from a file, or inserts holes, so that the data after them moves: `Collapse` and `Insert` of [`AllocateMode`].
//!
//! As in Linux (`fallocate(2)`): offset and length are multiples of the block; a collapse ends before the end of the file; an insert starts
//! before it; space kept beyond the end moves too.
//!
//! [SF1] Each is one transaction, however large the file: after a crash it is complete or not done. No data bytes move; only the blocks'
//!       records do, in a new mapping built beside the old one ([SH1] of `index/shifted.rs`).
//! [SF2] The whole file is locked, so no reader or writer can hold an old block position meanwhile (RULES R5, R7). The inode's lock is also
//!       held while lines of the memory zone are stored; no block I/O is waited for (RULES R9).
//! [SF3] Data that is cached by file offset becomes wrong, so its pages are dropped first ([FP2] of `cache/file_pages.rs`).
//! [SF4] Space for new mapping pages is needed briefly, even by a collapse; if nothing else is free, data logs are written back to free
//!       some. `NoSpace` changes nothing.
//! [SF5] Distances are whole blocks, so the state of the last sector (`TAIL_STALE`, RULES R13) stays valid.

use tandemfs_device::Flushed;
use tandemfs_format::inode::FILE_BYTES_MAX;

use super::commit::changed;
use super::mutants;
use super::truncate::free_blocks;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::shifted::{Shift, shifted};
use crate::inodes::InCoreInode;
use crate::mutant::{Mutant, on};
use crate::types::AllocateMode;
use crate::volume::Tx;

/// The direction in which the bytes after the range move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// To the front, over the range.
    Collapse,
    /// To the back, so that the range is a hole.
    Insert,
}

impl FileSystem {
    /// Moves the bytes after a range (collapse) or from its start on (insert). The caller has checked that its end is valid.
    pub(super) fn shift(&self, file: &InCoreInode, offset: u64, length: u64, direction: Direction) -> Result<()> {
        let volume = &self.volume;
        let block_bytes = u64::from(volume.geometry.block_bytes());
        if !offset.is_multiple_of(block_bytes) || !length.is_multiple_of(block_bytes) {
            return Err(Error::InvalidArgument("only whole blocks are taken out of a file or put into it"));
        }
        let _range = file.ranges.exclusive(0, u64::MAX)?; // [SF2]
        let size = self.view(file)?.size;
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
        file.pages.forget(offset, u64::MAX); // [SF3]
        if direction == Direction::Collapse && on(Mutant::CollapseInTwoTransactions) {
            self.zero_whole_blocks(file, offset, offset + length)?;
        }
        let _leaving = (direction == Direction::Collapse).then(|| self.leaving.enter());
        let mut tx = Tx::new(volume);
        let mut state = file.state.write()?;
        if state.removed {
            return Err(Error::Stale(file.number));
        }
        let mut new = state.inode.clone();
        let (owner, old_root) = (state.owner(file.number), state.root());
        let freed_512 = free_blocks(&mut tx, self, owner, old_root, mutants::collapsed(at..at + shift.gone))?;
        let (root, stored) = shifted(&mut tx, owner, old_root, &shift)?;
        new.root = root.to_bytes();
        new.size = new_size;
        new.space_512 = new.space_512.saturating_sub(freed_512);
        changed(&mut new);
        file.commit(tx, &mut state, new, stored, Flushed::nothing_written())?;
        self.unchecked.lock().moved(file.number);
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
