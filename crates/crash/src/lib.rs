//! Test support: devices in memory that record and fail, a reference model, and the exploration of crash states. Nothing of it is in the
//! product.

#![forbid(unsafe_code)]

mod memory_device;

pub use memory_device::{Event, MemoryDevice, Recorded};
