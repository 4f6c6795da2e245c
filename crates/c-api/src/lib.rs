//! The C interface of `crates/client`: `libtandemfs.so`, whose header is `include/tandemfs.h`. Each function converts what C says, makes one call
//! of the client library and converts what that says. What the calls do is documented there, and what C programs have to know in the header,
//! which `tests/header.rs` generates from these sources.
//!
//! [CAP1] A null pointer that is no answer is refused with EFAULT before anything else happens. What a pointer that is not null points to is the
//!       caller's promise, as with every C library; each function's comment says what it is.
//! [CAP2] No panic leaves: it is ENOTRECOVERABLE (`guard.rs`).
//! [CAP3] The shared memory is not inherited by forked children, so handles of the parent touch nothing there: every call with one is ENOTCONN, also
//!       that which frees it (`held.rs`). A child may connect anew.
//! [CAP4] A call that fails returns a negative errno, and there is no other way in which it says so: `errno` is not set. What only the
//!       kernel can do is EREMOTE, which no call of a file system returns (`failure.rs`).
//! [CAP5] What a call returns through pointers is stored only if it has succeeded; a sentence only if it has failed.
//! [CAP6] Text is never longer than the room that was given for it, and sentences and names end with NUL.
//!
//! *Architecture invariant:* no behaviour of its own; nothing of the protocol, the device or the file system.

// The header says what pointers have to be, in the comment of each function.
#![allow(clippy::missing_safety_doc)]

mod directories;
mod failure;
mod files;
mod guard;
mod held;
mod mappings;
mod memory;
mod mount;
mod mutant;
mod names;
mod types;

pub use directories::*;
pub use files::*;
pub use held::{DirectoryHandle, FileHandle, MappingHandle, MountHandle};
pub use mappings::*;
pub use mount::*;
pub use names::*;
pub use types::*;
