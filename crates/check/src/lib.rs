//! Check, repair and dump of TandemFS from the bytes alone.
//!
//! [`check`] verifies every rule of `docs/FORMAT.md`: superblocks, segments, journal, inodes, mappings, names, saved maps and, unless told
//! otherwise, every byte of file data. It writes nothing unless asked to repair, and then only what needs no guess.
//!
//! [CK1] What is verified is what the next mount would see: on an image that was not unmounted cleanly the journal is replayed into an
//!       overlay in memory, line by line, and never to the device.
//! [CK2] No byte of the medium is trusted: every pointer is held against the segment table before it is followed, every line and sector is
//!       claimed once, so every walk ends; nothing recurses; nothing is allocated by a number that was not held against the device's size.
//! [CK3] What lies behind damage is unknown: link counts, space and maps are judged only where all they depend on was read.
//! [CK4] Repairs go through the journal, so that a cut anywhere leaves the image before or after each of them, never between.
//!
//! *Architecture invariant:* this crate runs no line of the engine; it shares only `format` and `device` with it, so that a bug of the
//! engine cannot hide.

#![forbid(unsafe_code)]

mod attributes;
mod checker;
mod claims;
mod data;
mod dump;
mod error;
mod finding;
mod image;
mod inodes;
mod journal;
mod mapping;
mod maps;
#[cfg(not(feature = "mutants"))]
mod mutant;
#[cfg(feature = "mutants")]
pub mod mutant;
mod namespace;
mod paths;
mod repair;
mod report;
mod segments;
mod superblock;
mod tree;

pub use checker::{CheckOptions, Progress, Stage, check};
pub use dump::Dump;
pub use error::CheckError;
pub use finding::{Damage, Finding, Severity, Target};
pub use report::{Counts, Located, Report};
