//! Files of a mounted TandemFS by shared memory. A call crosses no kernel while the daemon of the mount looks for requests; otherwise the
//! daemon is woken. What a call says, and what is durable when it returns, is what the mount would say.
//!
//! * [`Mount::connect`] enters the direct door of a mount (`tandemfs mount -o direct`).
//! * [`Tree`]: calls by path, relative to the root of the mount, or to an open directory.
//! * [`File`]: an open file, [`Directory`]: a listing.
//! * [`Buffer`]: memory for data that the daemon reaches by itself, for large transfers without a copy.
//!
//! Attributes and access of paths, and that there is nothing, are said again without asking the daemon, as long as its version words say that
//! nothing of it has changed ([`Options::keeps_answers`]). So are bytes that are read again and again, in reads of up to 4 KiB.
//!
//! A process that the mount trusts (`-o direct=GROUP`) and that asks for it ([`Options::loads`]) maps the memory zone of the drive for reading, and
//! [`File::read_at`] then loads bytes there, which are neither copied by the daemon nor asked for.
//!
//! One that is trusted with the whole drive (`-o direct_stores=GROUP`, [`Options::stores`]) stores what it overwrites again and again to the file's own
//! pages, under leases that end as soon as somebody else wants the bytes. A file that it appends to again and again, in small pieces, it appends to in room
//! that is lent behind the end.
//!
//! With [`Options::maps`] it maps ranges of files that lie there ([`File::map`]): loads of the file's own pages, by huge pages where they lie in a row.
//!
//! Several threads may use a [`Mount`] and its files at once; each thread gets a slot of its own while there are enough.
//!
//! # Example
//!
//! This is `examples/notes.rs`. As a test of this page it runs on the mount that `TANDEMFS_DIRECT_MOUNT` names, if it names one.
//!
//! ```
#![doc = include_str!("../examples/notes.rs")]
//! ```
//!
//! # Errors
//!
//! [`Error::Errno`] has what a system call on the mount would return, and besides
//!
//! | errno | meaning |
//! |---|---|
//! | `ENOTCONN` | the daemon has ended, or it has closed this connection, as it does when the credentials of the process change: connect anew |
//! | `ENOMEM` | the shared memory of this connection is in use by other calls, and stayed so for [`Options::memory_wait`] |
//! | `EPROTO` | the daemon returned what no daemon returns |
//!
//! [`Error::Crossed`] says that only the kernel can do a call: an absolute link, `..` above the root, something mounted inside, a device or a
//! pipe. Nothing has changed; make the call by the path of the mount.
//!
//! # Limits
//!
//! * A read or write of more than 1 MiB ([`Mount::transfer_bytes_max`]) is several requests, one after the other, and so is a write of more than half of the
//!   connection's memory. Each is atomic as
//!   `docs/SEMANTICS.md` says of a write by the library; an append of more than that may have bytes of others between its pieces.
//! * The shared memory is not inherited by a forked child: a child must not use the connection of its parent. It may connect anew.
//! * Not for signal handlers.
//!
//! [CN1] The client does not trust the daemon with its own memory either: each length that an answer has is held against what the call
//!       provided before a byte is copied, and entries of a listing are taken out of a private copy. A reply that does not fit is `EPROTO`.
//! [CN2] Nothing waits without an end while the daemon is alive and answers: shared memory is waited for at most [`Options::memory_wait`].
//!       A daemon that ends wakes every call (`ENOTCONN`).
//! [CN3] A write of up to [`Mount::transfer_bytes_max`] bytes, or half of the connection's memory if that is less, is one request however little memory is free:
//!       it waits for it ([CN2]). At most half of the memory is the slots', from the start and at its end, so that there is room for it when nobody else has any. Reads are
//!       content with what there is, and nothing waits for memory of an answer that is only of use.
//! [CN4] Who waits for memory is served in order: later calls wait behind, also where there is enough for them, so that short ones do not keep a long one from it
//!       for ever. A call that has some already, and who asks for a [`Buffer`], wait for nobody before them, who may be waiting for what they have.
//!
//! *Architecture invariant:* no descriptor but those of the connection; nothing of the file system but the protocol, nothing of the device but maps for
//! loads and for stores.

#![forbid(unsafe_code)]

mod ahead;
mod answers;
mod area;
mod buffer;
mod bytes;
mod connect;
mod connection;
mod directory;
mod error;
mod file;
mod idle;
mod known;
mod lent;
mod lent_stores;
mod mapping;
mod mount;
mod mountinfo;
#[cfg(not(feature = "mutants"))]
mod mutant;
#[cfg(feature = "mutants")]
pub mod mutant;
mod open_options;
mod shared;
mod store_access;
mod subject;
mod tail;
mod tree;
mod whole;

pub use buffer::Buffer;
pub use directory::{Directory, Entry};
pub use error::{ConnectError, Error, Result};
pub use file::File;
pub use known::{KnownAnswers, KnownStart};
pub use mapping::Mapping;
pub use mount::{Door, Mount, Options};
pub use open_options::OpenOptions;
pub use rustix::fs::AtFlags;
pub use rustix::io::Errno;
pub use subject::Target;
pub use tandemfs_protocol::{Crossed, Listed, Space, TimeToSet, Unless, VERSION, Why};
pub use tandemfs_ring::{Attributes, Time};
pub use tree::{Start, Tree};
