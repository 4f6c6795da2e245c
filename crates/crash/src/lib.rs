//! Test support: devices in memory that record and fail, a reference model, and the exploration of crash states. Not part of the product.

#![forbid(unsafe_code)]

mod awake;
mod compare;
mod cpu;
mod explore;
mod fault;
mod harness;
mod linearize;
mod lying;
mod memory_device;
mod model;
mod mount_cuts;
mod moves;
mod operation;
mod pausing;
mod random;
mod scenes;
mod sequences;
mod soundness;
mod states;
mod storing;
mod stuck;
mod tagged_lines;
mod tree;

pub use awake::{Awake, comes_within, heard_within};
pub use compare::{Compared, compare_with_model};
pub use cpu::stay_on_one_cpu;
pub use explore::{ALPHABET, Effort, Explorer, PREPARATION, Tried};
pub use fault::{Access, FaultDevice, Place};
pub use harness::{Harness, Setting, mount, mount_device};
pub use linearize::{Answer, Bound, Call, History, Step};
pub use lying::{Lie, LyingDevice, Told};
pub use memory_device::{DISCARDED, Event, MemoryDevice, Recorded};
pub use model::{Model, Refusal};
pub use mount_cuts::cut_everywhere;
pub use moves::MOVES_AT_ONCE;
pub use operation::{LONG, Mix, Operation, SLOTS};
pub use pausing::PausingDevice;
pub use random::{Random, chosen, fill, rounds_or, seed_or};
pub use scenes::{Scene, settings};
pub use sequences::{explore_sequences, of_homes, pairs, pairs_of, singles, triples};
pub use soundness::{Fresh, check_device, compare_space, fill_with_blocks, works};
pub use states::{CrashState, Cut, Tracker, each_state};
pub use storing::{Storing, Window};
pub use stuck::StuckDevice;
pub use tree::{Attributes, Entry, Kind, Tree, attributes, content};
