//! File data: which path each byte takes, and why. [`write_path`] and [`read_path`] read top to bottom.

mod allocate;
pub(crate) mod clean_pages;
mod commit;
pub(crate) mod compose;
mod copy;
mod heat;
mod in_place;
pub(crate) mod interface;
pub(crate) mod log_plan;
mod modified;
mod mutants;
mod plan;
mod policy;
pub(crate) mod promote;
pub(crate) mod range_lock;
pub(crate) mod read_ahead;
mod read_path;
mod rewrite;
mod seek;
mod shift;
mod target;
pub(crate) mod threshold;
mod transfer;
mod truncate;
mod view;
pub(crate) mod write_back;
mod write_path;

pub(crate) use commit::{SET_GROUP_ID, kill_set_id};
pub(crate) use truncate::free_blocks;
pub(crate) use view::FileView;
