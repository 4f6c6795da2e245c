//! What the tests of mounts share.

pub mod memory;
pub mod server;
