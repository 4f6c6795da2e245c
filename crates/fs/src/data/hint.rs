//! The hint *aligned* of a file: each 2 MiB of it is to lie in one aligned extent, so that one huge page can map it (WineFS §3.6).
//!
//! [AH1] The hint is a flag of the inode, of the feature *memory home* ([HM1] of `home.rs`): durable in the superblock before the first
//!       inode has it. What is made in a directory has the directory's hint from its first transaction on.
//! [AH2] A write to a file with the hint, into an aligned 2 MiB where the file has nothing, first gives all of that 2 MiB one aligned extent,
//!       as unwritten space; so small pieces, also those that come as data logs and are written back later, fill it in place, in any
//!       order. A write of all of it takes its aligned extent itself ([AR1] of `rows.rs`). Where no aligned extent is free the write goes where
//!       it can: the hint never makes a write fail. What is written again before the 2 MiB are complete may go elsewhere, as all
//!       overwrites do; such a piece is rewritten when it is complete ([AS1] of `grown.rs`).
//! [AH3] Setting the hint changes no data: a file that has some goes on the list of the mover, which rewrites it (`align.rs`).

use std::ops::Range;

use tandemfs_device::{Fenced, Flushed};
use tandemfs_format::inode::{FILE_BYTES_MAX, file_type, flags};
use tandemfs_format::{InodeNumber, UNIT_BYTES};

use super::FileView;
use super::move_pieces::piece_blocks;
use super::rows::Rows;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::tree;
use crate::inodes::InCoreInode;
use crate::mutant::{Mutant, on};
use crate::types::SetAttributeMode;
use crate::volume::{Tx, now};
use crate::wait::may_wait;

impl FileSystem {
    /// Whether a file or directory has the hint *aligned*.
    ///
    /// # Errors
    /// `Stale`; damage of the inode.
    pub fn is_aligned(&self, number: InodeNumber) -> Result<bool> {
        let file = self.inodes.get(&self.volume, number)?;
        let state = file.state.read()?;
        if state.removed { Err(Error::Stale(number)) } else { Ok(state.inode.flags & flags::ALIGNED != 0) }
    }

    /// Gives a file or directory the hint *aligned*, or takes it away. Existing data is rewritten in the background ([AH3]).
    ///
    /// # Errors
    /// `InvalidArgument` for what is neither a regular file nor a directory; `ReadOnly`, `Stopped`, `Stale`.
    pub fn set_aligned(&self, number: InodeNumber, is_aligned: bool) -> Result<()> {
        may_wait()?;
        self.volume.health.check_writable()?;
        if is_aligned {
            self.enable_homes()?;
        }
        self.put_aligned(number, is_aligned, SetAttributeMode::Any)
    }

    /// For whoever maps a file of the memory zone: gives it the hint, so that copies of it have it too, and has what is not aligned rewritten.
    /// Nothing happens to a file that has the hint and is aligned, nor where nothing may be written.
    ///
    /// # Errors
    /// `Stale`, `Stopped`, damage of the inode.
    pub fn note_mapped(&self, number: InodeNumber) -> Result<()> {
        if self.is_read_only() || !self.has_homes() {
            return Ok(());
        }
        if self.is_aligned(number)? {
            self.moves.lock().add(number);
            return Ok(());
        }
        self.put_aligned(number, true, SetAttributeMode::Any)
    }

    /// Sets the hint on a file system that has the feature, or takes it away on any. `mode` takes a file without it for one without the
    /// attribute.
    pub(crate) fn put_aligned(&self, number: InodeNumber, is_aligned: bool, mode: SetAttributeMode) -> Result<()> {
        let file = self.inodes.get(&self.volume, number)?;
        let mut state = file.state.write()?;
        if state.removed {
            return Err(Error::Stale(number));
        }
        if !matches!(state.inode.file_type(), file_type::REGULAR | file_type::DIRECTORY) {
            return Err(Error::InvalidArgument("only regular files and directories are aligned"));
        }
        match (mode, state.inode.flags & flags::ALIGNED != 0) {
            (SetAttributeMode::Create, true) => return Err(Error::Exists),
            (SetAttributeMode::Replace, false) => return Err(Error::NoData),
            _ => {}
        }
        let mut new = state.inode.clone();
        new.flags = new.flags & !flags::ALIGNED | if is_aligned { flags::ALIGNED } else { 0 };
        if new.flags != state.inode.flags {
            new.ctime = now();
            file.commit(Tx::new(&self.volume), &mut state, new, Fenced::nothing_stored(), Flushed::nothing_written())?;
        }
        let is_file = !state.inode.is_directory();
        drop(state);
        if is_aligned && is_file && !on(Mutant::HintQueuesNothing) {
            self.moves.lock().add(number);
        }
        Ok(())
    }

    /// Gives aligned extents to what a write needs of them ([AH2]). The caller holds no range.
    pub(super) fn take_aligned(&self, file: &InCoreInode, view: &FileView, bytes: &Range<u64>) -> Result<()> {
        for unit in bytes.start / UNIT_BYTES..bytes.end.div_ceil(UNIT_BYTES) {
            let (start, end) = (unit * UNIT_BYTES, (unit + 1).saturating_mul(UNIT_BYTES));
            let is_whole = bytes.start <= start && end <= bytes.end;
            if is_whole || end > FILE_BYTES_MAX || !self.has_nothing_in(file, view, &self.blocks_of_unit(unit))? {
                continue;
            }
            may_wait()?; // several transactions ([NW4] of `wait.rs`)
            match self.take_aligned_unit(file, unit) {
                Ok(()) => {}
                Err(error @ (Error::Stale(_) | Error::Stopped { .. } | Error::ReadOnly)) => return Err(error),
                Err(error) => tracing::debug!(%error, inode = file.number.get(), "a piece of a file gets no aligned extent"),
            }
        }
        Ok(())
    }

    fn blocks_of_unit(&self, unit: u64) -> Range<u64> {
        let blocks = piece_blocks(&self.volume);
        unit * blocks..(unit + 1) * blocks
    }

    pub(super) fn has_nothing_in(&self, file: &InCoreInode, view: &FileView, blocks: &Range<u64>) -> Result<bool> {
        self.mapped(file, view, |root| tree::first_found(&self.volume, view.owner, root, blocks.clone())).map(|found| found.is_none())
    }

    /// Gives one aligned extent to a piece of a file that has nothing there, if there is one.
    fn take_aligned_unit(&self, file: &InCoreInode, unit: u64) -> Result<()> {
        let blocks = self.blocks_of_unit(unit);
        let _range = file.ranges.exclusive(blocks.start, blocks.end - 1)?;
        let view = self.view(file)?;
        if !self.has_nothing_in(file, &view, &blocks)? {
            return Ok(());
        }
        let count = (blocks.end - blocks.start) * self.volume.geometry.block_sectors_each();
        let Some((at, _)) = self.volume.take_row(view.zone, count..=count, false) else { return Ok(()) };
        let rows = Rows::of(&self.volume, at, blocks.clone());
        self.reserve_row(file, blocks, (unit + 1) * UNIT_BYTES, rows)
    }
}
