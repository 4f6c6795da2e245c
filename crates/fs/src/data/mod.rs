//! File data: which path each byte takes, and why. [`write_path`] and [`read_path`] read top to bottom.

mod allocate;
pub(crate) mod compose;
mod copy;
mod in_place;
pub(crate) mod interface;
mod link_target;
pub(crate) mod log_plan;
mod modified;
mod promote;
mod read_path;
mod rewrite;
mod seek;
mod shift;
mod store;
mod truncate;
mod write_back;
mod write_path;

pub(crate) use link_target::store_link_target;
pub(crate) use truncate::free_blocks;
pub(crate) use write_path::{SET_GROUP_ID, kill_set_id};

/// What the data paths know of the file they work on, read under the inode's lock. The root of its mapping is not part of it: who has a range
/// locked is told of no change to other ranges, and a page whose last block goes is freed with all holes in it, also those of the range.
/// `FileSystem::mapped` looks up under the inode's lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileView {
    pub(crate) owner: crate::volume::Owner,
    pub(crate) size: u64,
    pub(crate) tail_stale: bool,
}
