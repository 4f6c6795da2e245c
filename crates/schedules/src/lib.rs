//! Test support: several threads on one file system, under schedules that a seed decides, cut anywhere. Nothing of it is in the product.
//!
//! Locks and atomics of the engine are those of `shuttle` here (`tandemfs_device::sync`): one thread runs at a time, and at each lock, each
//! atomic and each step on the device the [`scheduler`] says who goes on. Deadlocks are seen as such. Memory orders weaker than
//! sequential consistency are not explored.

#![forbid(unsafe_code)]
#![cfg(feature = "explore")]

mod explore;
mod scene;
mod scheduler;

pub use explore::{Explored, explore, rounds_or};
pub use scene::{Effort, Scene, Workload};
