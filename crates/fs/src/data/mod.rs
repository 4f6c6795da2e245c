//! File data: which path each byte takes, and why. [`write_path`] and [`read_path`] read top to bottom.

mod align;
mod allocate;
mod commit;
pub(crate) mod compose;
mod copy;
mod extent_io;
mod gather;
mod grown;
mod hint;
mod home;
mod in_place;
pub(crate) mod interface;
mod kept_place;
mod layout;
mod lent;
mod link_target;
pub(crate) mod log_plan;
mod mapped;
mod mapped_change;
mod mapped_write;
mod modified;
mod move_pieces;
mod moves;
mod mutants;
mod open_pages;
mod plan;
mod policy;
mod promote;
mod read_path;
mod rewrite;
mod rows;
mod seek;
mod shift;
mod target;
mod transfer;
mod truncate;
mod view;
mod write_back;
mod write_path;

pub use layout::{LAYOUT_EXTENTS_MAX, Layout};
pub use lent::{LENT_BYTES, LentExtent};
pub use mapped::{FileMapping, MappedExtent};

pub(crate) use commit::{SET_GROUP_ID, kill_set_id};
pub(crate) use link_target::store_link_target;
pub(crate) use view::FileView;
