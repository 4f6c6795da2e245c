//! What the data paths go by, measured, remembered or chosen at the mount: where writes are split, how old blocks are, what is worth a copy,
//! where write-back goes on. Nothing here moves data of files.

pub(crate) mod admission;
pub(crate) mod heat;
pub(crate) mod threshold;
pub(crate) mod write_back;
