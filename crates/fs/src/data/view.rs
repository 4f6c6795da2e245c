//! The state of a file that the data paths use, and their block lookup.

use tandemfs_format::inode::{flags, state};
use tandemfs_format::mapping::RecordBytes;

use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::block::Block;
use crate::inodes::InCoreInode;
use crate::mutant::{Mutant, on};
use crate::quota::Ids;
use crate::space::Zone;
use crate::volume::Owner;

/// The state of a file that the data paths use, read under the inode's lock. The root of its mapping is not included: the holder of a range
/// lock does not see changes to other ranges, and a mapping page whose last block is freed is freed too, even if the locked range has holes
/// in it. `FileSystem::mapped` looks up under the inode's lock. For the same reason no mapping page is kept from the lookup to the commit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileView {
    pub(crate) owner: Owner,
    pub(crate) size: u64,
    pub(crate) tail_stale: bool,
    /// Where its new extents go, while there is room.
    pub(crate) zone: Zone,
    /// It has the hint *aligned* (`hint.rs`).
    pub(crate) is_aligned: bool,
    /// Whose it is.
    pub(crate) ids: Ids,
}

impl FileSystem {
    /// Reads the inode state that the data paths need.
    pub(crate) fn view(&self, file: &InCoreInode) -> Result<FileView> {
        let state = file.state.read()?;
        if state.removed {
            return Err(Error::Stale(file.number));
        }
        let tail_stale = state.inode.state & state::TAIL_STALE != 0;
        let (zone, is_aligned) = (self.zone_of(&state.inode), state.inode.flags & flags::ALIGNED != 0);
        Ok(FileView { owner: state.owner(file.number), size: state.inode.size, tail_stale, zone, is_aligned, ids: Ids::of(&state.inode) })
    }

    /// Calls `look` with the root of a file's mapping, under the inode's lock: mapping pages on the way down cannot be freed by changes to
    /// other ranges. The result of `look` stays valid for the range that the caller has locked.
    pub(crate) fn mapped<T>(&self, file: &InCoreInode, view: &FileView, look: impl FnOnce(RecordBytes) -> Result<T>) -> Result<T> {
        let state = file.state.read()?;
        if !state.is_life_of(view.owner) || !(state.has_blocks() || on(Mutant::CandidateOfAnotherInode)) {
            return Err(Error::Stale(file.number));
        }
        look(state.root())
    }

    /// Looks up a block of a file ([`FileSystem::mapped`]).
    pub(super) fn block_of(&self, file: &InCoreInode, view: &FileView, block: u64) -> Result<Block> {
        self.mapped(file, view, |root| Block::lookup(&self.volume, view.owner, root, block))
    }
}
