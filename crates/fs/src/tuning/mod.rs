//! Parameters of the data paths, measured, remembered or chosen at the mount: where writes are split, how old blocks are, which sectors get
//! a copy, where write-back goes on. Nothing here moves file data.

pub(crate) mod admission;
pub(crate) mod compaction;
pub(crate) mod heat;
pub(crate) mod mappings;
pub(crate) mod moves;
pub(crate) mod threshold;
pub(crate) mod unchecked;
pub(crate) mod updates;
pub(crate) mod write_back;
