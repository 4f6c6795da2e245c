//! Files that grow past 2 MiB in small pieces: their bytes come into aligned extents afterwards.
//!
//! [AS1] What a file gets before it is known to be large comes from holes ([AR1] of `rows.rs`), so a small file takes no aligned extent. When
//!       a write at the end of a file, which did not begin there, completes 2 MiB at a multiple of 2 MiB of the file, the mover rewrites that piece once into an aligned
//!       extent (`align.rs`); data logs in it are written back by that. Only pieces without holes are moved.
//! [AS2] It is tried once: without a free aligned extent, while a lease is on it, or after the next mount, a piece stays where it is. In the
//!       block zone, which nobody maps, a piece in at most [`ROWS_LEFT`] rows stays unless its file has the hint *aligned*: a second copy would
//!       gain nothing.

use std::ops::Range;

use tandemfs_format::UNIT_BYTES;

use super::align::{NotAligned, Why};
use super::move_pieces::piece_blocks;
use crate::error::Result;
use crate::file_system::FileSystem;
use crate::inodes::InCoreInode;
use crate::mutant::{Mutant, on};
use crate::space::Zone;

/// Rows of sectors that 2 MiB of the block zone may lie in.
const ROWS_LEFT: u64 = 2;

impl FileSystem {
    /// Notes that a call has written these bytes of a file. Which 2 MiB it completed, other than whole ones of its own, may move.
    pub(super) fn note_growth(&self, file: &InCoreInode, bytes: Range<u64>) {
        let unit = bytes.start / UNIT_BYTES;
        if bytes.end / UNIT_BYTES == unit || bytes.start.is_multiple_of(UNIT_BYTES) || on(Mutant::GrowthForgotten) {
            return; // nearly always
        }
        let is_end = file.state.read().is_ok_and(|state| state.inode.size.saturating_sub(bytes.end) < UNIT_BYTES);
        if is_end {
            self.moves.lock().add_piece(file.number, unit * piece_blocks(&self.volume));
        }
    }

    /// Whether a piece that was completed is worth being moved ([AS1], [AS2]).
    pub(super) fn is_grown_piece(&self, file: &InCoreInode, first: u64) -> Result<bool> {
        let (view, blocks) = (self.view(file)?, piece_blocks(&self.volume));
        let found: Option<NotAligned> = self.first_not_aligned(file, &view, first..first + blocks, Why::Complete)?;
        Ok(found.is_some_and(|piece| piece.blocks == blocks && (view.zone == Zone::Memory || view.is_aligned || piece.rows > ROWS_LEFT)))
    }
}
