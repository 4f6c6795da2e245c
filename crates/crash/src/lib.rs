//! Test support: devices in memory that record and fail, a reference model, and the exploration of crash states. Nothing of it is in the
//! product.

#![forbid(unsafe_code)]

mod explore;
mod fault;
mod harness;
mod linearize;
mod memory_device;
mod model;
mod operation;
mod pausing;
mod random;
mod states;
mod tree;

pub use explore::{ALPHABET, Effort, Explorer, PREPARATION, Tried, check_device};
pub use fault::{Access, FaultDevice};
pub use harness::{Harness, Setting, mount, mount_device};
pub use linearize::{Answer, Bound, Call, History, Step};
pub use memory_device::{DISCARDED, Event, MemoryDevice, Recorded};
pub use model::{Model, Refusal};
pub use operation::{LONG, Mix, Operation, SLOTS};
pub use pausing::PausingDevice;
pub use random::{Random, fill, seed_or};
pub use states::{CrashState, Cut, Tracker, each_state};
pub use tree::{Entry, Kind, Tree, content};
