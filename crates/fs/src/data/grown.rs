//! Files that grow past 2 MiB in small pieces, and aligned extents that long overwrites take apart: their bytes come into aligned extents
//! afterwards.
//!
//! [AS1] What a file gets before it is known to be large comes from holes ([AR1] of `rows.rs`), so a small file takes no aligned extent. When
//!       a write at the end of a file, which did not begin there, completes 2 MiB at a multiple of 2 MiB of the file, the mover rewrites that piece once into an aligned
//!       extent (`align.rs`); data logs in it are written back by that. Only pieces without holes are moved.
//! [AS2] It is tried once: without a free aligned extent, while a lease is on it, or after the next mount, a piece stays where it is. In the
//!       block zone, which nobody maps, a piece in at most [`ROWS_LEFT`] rows stays unless its file has the hint *aligned*: a second copy would
//!       gain nothing.
//! [AS3] Blocks that leave their place in an aligned extent of the memory zone, since a write of 64 KiB or more gave them fresh pages ([KP1] of
//!       `kept_place.rs`), have their piece rewritten by [AS1] if the file has the hint. Without the hint nobody asked for huge pages,
//!       and 2 MiB would be copied for 64 KiB. Overwrites of the piece before its turn are one rewriting.

use std::ops::Range;

use smallvec::SmallVec;
use tandemfs_format::UNIT_BYTES;

use super::FileView;
use super::align::{NotAligned, Why};
use super::kept_place::kept_place;
use super::move_pieces::piece_blocks;
use super::target::{Action, Target};
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

    /// Which pieces a write takes apart ([AS3]).
    pub(super) fn taken_apart(&self, view: &FileView, targets: &[Target<'_>]) -> SmallVec<[u64; 2]> {
        let mut pieces = SmallVec::new();
        if !view.is_aligned || on(Mutant::TakenApartForgotten) {
            return pieces;
        }
        let blocks = piece_blocks(&self.volume);
        for target in targets {
            let piece = target.block / blocks * blocks;
            let leaves = matches!(target.action, Action::Extent { fill: false, .. });
            if leaves && pieces.last() != Some(&piece) && kept_place(&self.volume, &target.old.base, target.block).is_some() {
                pieces.push(piece);
            }
        }
        pieces
    }

    /// Has pieces rewritten that a write has taken apart.
    pub(super) fn align_again(&self, file: &InCoreInode, pieces: &[u64]) {
        if !pieces.is_empty() {
            let mut moves = self.moves.lock();
            pieces.iter().for_each(|piece| moves.add_piece(file.number, *piece));
        }
    }

    /// Whether a piece that was completed is worth being moved ([AS1], [AS2]).
    pub(super) fn is_grown_piece(&self, file: &InCoreInode, first: u64) -> Result<bool> {
        let (view, blocks) = (self.view(file)?, piece_blocks(&self.volume));
        let found: Option<NotAligned> = self.first_not_aligned(file, &view, first..first + blocks, Why::Complete)?;
        Ok(found.is_some_and(|piece| piece.blocks == blocks && (view.zone == Zone::Memory || view.is_aligned || piece.rows > ROWS_LEFT)))
    }
}
