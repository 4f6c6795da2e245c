//! Check, repair and dump of TandemFS from the bytes alone.
//!
//! [`check`] verifies every rule of `docs/FORMAT.md`: superblocks, segments, journal, inodes, mappings, names, saved maps and, unless told
//! otherwise, every byte of file data. It writes nothing unless asked to repair. A repair guesses nothing: what does not verify is given
//! up and listed.
//!
//! [CK1] Check verifies what the next mount would see. On an image that was not unmounted cleanly it replays the journal, line by line,
//!       into an overlay in host memory and never to the device; likewise the sizes that programs reached in lent room (`lent.rs`).
//! [CK2] No byte of the medium is trusted. Every pointer is compared with the segment table before it is followed, and every line and
//!       sector is claimed once, so every walk ends. Nothing recurses. No allocation uses a number that was not compared with the device's
//!       size.
//! [CK3] What damage hides is unknown: link counts, space and maps are judged only if everything that they depend on was read.
//! [CK4] Repairs go through the journal, so that a cut anywhere leaves the image before or after each repair, never between.
//! [CK5] A line that cannot be read costs what is in it: where a page fails, its lines are read singly. What can be read when a repair comes to
//!       it is not given up for having failed before.
//!
//! *Architecture invariant:* this crate runs no code of the engine. It shares only `format` and `device` with it, so that a bug of the
//! engine cannot hide.

#![forbid(unsafe_code)]

mod attributes;
mod blocks;
mod checker;
mod claims;
mod contested;
mod copy_in_memory;
mod data;
mod dump;
mod error;
mod finding;
mod generations;
mod image;
mod inodes;
mod journal;
mod lent;
mod mapping;
mod maps;
mod mend;
#[cfg(not(feature = "mutants"))]
mod mutant;
#[cfg(feature = "mutants")]
pub mod mutant;
mod namespace;
mod paths;
mod proved;
mod repair;
mod report;
mod rescue;
mod restore;
mod runs;
mod segments;
mod superblock;
mod tree;
mod undo;
mod usage;

pub use checker::{CheckOptions, Progress, Stage, check};
pub use dump::Dump;
pub use error::CheckError;
pub use finding::{Damage, Finding, Severity, Target};
pub use report::{Counts, Located, LostRange, Placed, Report};
pub use restore::{DamagedRange, Missing, Refused, RestoreError, RestoreOptions, RestoreReport, restore};
pub use undo::{Undone, undo};
pub use usage::Usage;
