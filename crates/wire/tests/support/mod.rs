//! Shared by the tests of mounts.

pub mod memory;
pub mod server;
