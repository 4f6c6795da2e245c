//! What the data paths know of a file, and how they look its blocks up.

use tandemfs_format::inode::state;
use tandemfs_format::mapping::RecordBytes;

use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::block::Block;
use crate::inodes::Handle;
use crate::mutant::{Mutant, on};
use crate::volume::Owner;

/// What the data paths know of the file they work on, read under the inode's lock. The root of its mapping is not part of it: who has a range
/// locked is told of no change to other ranges, and a page whose last block goes is freed with all holes in it, also those of the range.
/// `FileSystem::mapped` looks up under the inode's lock. For the same reason no mapping page is kept from the look-up to the commit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileView {
    pub(crate) owner: Owner,
    pub(crate) size: u64,
    pub(crate) tail_stale: bool,
}

impl FileSystem {
    /// What the data paths need of the inode.
    pub(crate) fn view(&self, handle: &Handle) -> Result<FileView> {
        let state = handle.state.read();
        if state.removed {
            return Err(Error::Stale(handle.number));
        }
        Ok(FileView { owner: state.owner(handle.number), size: state.inode.size, tail_stale: state.inode.state & state::TAIL_STALE != 0 })
    }

    /// Calls `look` with the root of a file's mapping. The inode is locked meanwhile: pages on the way down are the file's, whatever other
    /// ranges of it become. What `look` finds of the range that the caller has locked stays true after it.
    pub(crate) fn mapped<T>(&self, handle: &Handle, view: &FileView, look: impl FnOnce(RecordBytes) -> Result<T>) -> Result<T> {
        let state = handle.state.read();
        if !state.is_life_of(view.owner) || !(state.has_blocks() || on(Mutant::CandidateOfAnotherInode)) {
            return Err(Error::Stale(handle.number));
        }
        look(state.root())
    }

    /// A block of a file ([`FileSystem::mapped`]).
    pub(super) fn block_of(&self, handle: &Handle, view: &FileView, block: u64) -> Result<Block> {
        self.mapped(handle, view, |root| Block::lookup(&self.volume, view.owner, root, block))
    }
}
