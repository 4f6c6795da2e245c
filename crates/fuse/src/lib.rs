//! The FUSE daemon of TandemFS: a thin translation of the kernel's FUSE requests into calls of the file system.
//!
//! `tandemfs-wire` implements the protocol. `door.rs` states the rules of the translation ([DO1]–[DO5]). `operations.rs` dispatches each
//! request to `names.rs`, `listing.rs`, `files.rs` or `extended_attributes.rs`, or to `data_requests.rs` and `range_requests.rs` where the
//! kernel's page cache and the file system must agree (`page_cache.rs`, `notes.rs`, `overtaken.rs`, `later.rs`, `at_once.rs`, `returning_space.rs`).
//! `tandemfs-vfs` has what every way to the file system needs: the errno of each error, flags, the reserve.
//! `session.rs` runs a mount, `signals.rs` ends it on a signal, `private.rs` says what keeps others out of one with `allow_root`, `mounting.rs` mounts,
//! `mounts.rs` reads the kernel's mount list, `holders.rs` finds users of a mount.
//! `control.rs`, `report.rs`, `scrubbing.rs` and `trimming.rs` answer `tandemfs stats`, `info`, `scrub` and `trim`.
//!
//! *Architecture invariant:* requests do not leave this crate, and this crate does not know how the file system stores
//! data.

#![forbid(unsafe_code)]

mod at_once;
mod attributes;
mod beside;
mod caller;
mod compacting;
pub mod control;
mod data_requests;
mod door;
mod extended_attributes;
mod file_flags;
mod files;
pub mod holders;
mod kernel;
mod later;
mod listing;
mod mounting;
pub mod mounts;
mod mutant;
mod names;
mod negotiation;
mod noted;
mod notes;
mod opens;
mod operations;
mod overtaken;
mod page_cache;
mod placeholders;
mod private;
mod quota;
mod range_requests;
mod report;
mod reserve;
mod returning_space;
mod scrubbing;
mod session;
mod settings;
mod signals;
mod taken_names;
mod traced;
mod trimming;
mod watches;
mod writers;

pub use mounting::{MountError, Unmount, remount, unmount};
pub use negotiation::{request_bytes_max, wanted};
pub use report::{latencies, stats};
pub use session::{Answering, Beside, BesideReport, check_mountpoint, serve, serve_beside};
pub use settings::{Mode, MountSettings, SettingsInUse};
