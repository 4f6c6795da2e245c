//! The mount of TandemFS: a thin door from the kernel's FUSE requests to the file system.
//!
//! The protocol is `tandemfs-wire`'s. `door.rs` says what the door holds to ([DO1]–[DO5]), `operations.rs` which request is which operation:
//! those of `names.rs`, `listing.rs`, `files.rs` and `extended_attributes.rs`, and those of `data_requests.rs`, where the kernel's page cache
//! and the file system have to agree (`page_cache.rs`, `later.rs`, `returning_space.rs`). `errno.rs` translates errors. `session.rs` is the life
//! of a mount, `mounting.rs` how it is mounted, `mounts.rs` reads the kernel's list, `holders.rs` finds who uses a mount. `control.rs`,
//! `report.rs` and `scrubbing.rs` answer `tandemfs stats`, `info` and `scrub`.
//!
//! *Architecture invariant:* requests and errno do not leave this crate, and nothing here knows how the file system stores anything.

#![forbid(unsafe_code)]

mod attributes;
mod caller;
pub mod control;
mod data_requests;
mod door;
mod errno;
mod extended_attributes;
mod files;
pub mod holders;
mod kernel;
mod later;
mod listing;
mod mounting;
pub mod mounts;
mod names;
mod negotiation;
mod operations;
mod page_cache;
mod report;
mod reserve;
mod returning_space;
mod scrubbing;
mod session;
mod settings;
mod writers;

pub use mounting::{MountError, Unmount, remount, unmount};
pub use negotiation::wanted;
pub use report::stats;
pub use session::{Answering, check_mountpoint, serve};
pub use settings::{Mode, MountSettings};
