//! The rows of the speed table.

pub mod fuse;
pub mod many_files;
pub mod mount_time;
pub mod namespace;
pub mod overwrite;
pub mod sequential;
