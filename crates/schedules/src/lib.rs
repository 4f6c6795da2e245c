//! Test support: several threads on one file system, under schedules that a seed determines, with cuts at any point. Not part of the
//! product.
//!
//! Here the engine uses the locks and atomics of `shuttle` (`tandemfs_device::sync`): one thread runs at a time, and at each lock, each
//! atomic and each step on the device the [`scheduler`] chooses the next thread. Deadlocks are detected. Memory orders weaker than
//! sequential consistency are not explored.

#![forbid(unsafe_code)]
#![cfg(feature = "explore")]

mod explore;
mod scene;
mod scheduler;

pub use explore::{Explored, explore, rounds_or};
pub use scene::{Effort, Scene, Workload};
