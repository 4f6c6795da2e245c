//! Moves blocks of a file to its home together (`home.rs` says what a home is).
//!
//! [MP1] A piece lies in one aligned range of 2 MiB of its file. Its whole blocks get space in a row, in the memory zone in one unit, so an
//!       aligned extent of the file becomes an aligned extent there. One fence, or one FLUSH, makes all of them durable, and then one
//!       transaction names them (RULES R8): a line for three records, and the checksum lines of at most 2 MiB, so it is bounded (R11).
//! [MP2] The range from its first to its last block is locked from the lookup to the commit. That is one range, so nothing of [RW4] changes.
//! [MP3] A piece is an attempt: where it fails, for want of space in a row, for a lease, for damage, its halves are tried, and at last
//!       each block alone. Its transaction has all the space that it took, so what is not used goes back.

use tandemfs_format::{DataAddress, UNIT_BYTES};

use super::home::is_elsewhere;
use super::rewrite::Rewrite;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::block::Base;
use crate::inodes::InCoreInode;
use crate::space;
use crate::statistics::add;
use crate::volume::{Tx, Volume};

/// Blocks of a piece: those of an aligned extent.
pub(super) fn piece_blocks(volume: &Volume) -> u64 {
    UNIT_BYTES / u64::from(volume.geometry.block_bytes())
}

/// Errors that concern some blocks of a file, not the move of the others.
pub(super) fn is_of_a_block(error: &Error) -> bool {
    matches!(error, Error::Damaged { .. } | Error::DamagedData { .. } | Error::LostData { .. } | Error::Device(_))
}

impl FileSystem {
    /// Moves blocks of a file to its home, as far as they are elsewhere, in as few pieces as it can. `alone` moves those that remain.
    pub(super) fn move_piece(&self, file: &InCoreInode, blocks: &[u64], alone: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        if let [block] = blocks {
            return alone(*block);
        }
        match self.try_piece(file, blocks) {
            Ok(Some(left)) => left.into_iter().try_for_each(alone),
            Err(error) if !is_of_a_block(&error) => Err(error),
            Ok(None) | Err(_) => {
                let (one, other) = blocks.split_at(blocks.len() / 2); // [MP3]
                self.move_piece(file, one, alone)?;
                self.move_piece(file, other, alone)
            }
        }
    }

    /// Moves what of these blocks can move together. Returns the others that are elsewhere; `None` if nothing moved, and fewer could.
    fn try_piece(&self, file: &InCoreInode, blocks: &[u64]) -> Result<Option<Vec<u64>>> {
        let (Some(first), Some(last)) = (blocks.first(), blocks.last()) else { return Ok(Some(Vec::new())) };
        let Some(_range) = file.ranges.exclusive_unless_leased(*first, *last) else { return Ok(None) };
        let view = self.view(file)?;
        let home = self.home(file.number)?;
        let each = self.volume.geometry.block_sectors_each();
        let (mut whole, mut left) = (Vec::with_capacity(blocks.len()), Vec::new());
        for block in blocks {
            let old = self.block_of(file, &view, *block)?;
            if !is_elsewhere(home, &old.base) {
                continue;
            }
            let is_whole = !matches!(old.base, Base::Unwritten(_)) && u64::from(self.whole_sectors(&view, &old, *block)) == each;
            if is_whole { &mut whole } else { &mut left }.push(*block);
        }
        if whole.len() < 2 {
            left.extend(whole);
            return Ok(Some(left));
        }
        let count = whole.len() as u64 * each;
        let Some((at, _)) = self.volume.take_row(view.zone, count..=count, true) else { return Ok(None) };
        self.rewrite_at(file, &whole, at, |at| Rewrite::Home(Some(at)))?;
        add(&self.volume.live.work.home_moved_bytes, whole.len() as u64 * u64::from(self.volume.geometry.block_bytes()));
        Ok(Some(left))
    }

    /// Rewrites whole blocks to space in a row that was taken for them. The caller holds their range.
    pub(super) fn rewrite_at(
        &self,
        file: &InCoreInode,
        blocks: &[u64],
        at: DataAddress,
        why: impl Fn(DataAddress) -> Rewrite,
    ) -> Result<()> {
        let volume = &self.volume;
        let each = volume.geometry.block_sectors_each();
        let place = |index: u64| at.nth(index * each);
        let mut tx = Tx::new(volume);
        (0..blocks.len() as u64).for_each(|index| tx.took(space::data(place(index), each)));
        let mut jobs = Vec::with_capacity(blocks.len());
        for (index, block) in (0..).zip(blocks) {
            match self.plan_rewrite(file, *block, why(place(index)), None, &mut false)? {
                Some(job) => jobs.push(job),
                None => tx.free(space::data(place(index), each)),
            }
        }
        self.rewrite_together(tx, file, jobs)
    }
}
