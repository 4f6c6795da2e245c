//! The FUSE kernel protocol of Linux: everything that a user-space file system needs for a mount, and no file system logic.
//!
//! A [`Session`] reads the kernel's requests over `/dev/fuse`, or over io_uring if the kernel offers it, and passes each to a [`Handler`]
//! with a [`Reply`]. A request is parsed once and borrows from its buffer ([`Operation`]); a reply is written directly where the kernel
//! reads it. A handler answers at once, or parks the reply for another thread to finish ([`Reply::park`]), so a waiting request needs no
//! thread; or it says that it will wait ([`will_wait`]), and another thread serves in its place. A [`Notifier`] invalidates what the kernel caches; [`mount()`] mounts, as root or by fusermount3.
//!
//! Protocol versions 7.31 (Linux 5.2) to 7.45 (Linux 6.18) are supported. Names are bytes, times are [`Time`], errors are [`Errno`].
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use tandemfs_wire::{
//!     Attributes, Entry, Errno, Handler, MountOptions, Operation, Options, Reply, Request, Session, Wanted, mount,
//! };
//!
//! /// One file, `/hello`, that can be read.
//! struct Hello;
//!
//! const TEXT: &[u8] = b"Hello, kernel!\n";
//! const VALID: Duration = Duration::from_secs(1);
//!
//! fn attributes(node: u64) -> Attributes {
//!     match node {
//!         1 => Attributes { ino: 1, mode: 0o040_755, nlink: 2, ..Attributes::default() },
//!         _ => Attributes { ino: node, mode: 0o100_444, nlink: 1, size: TEXT.len() as u64, ..Attributes::default() },
//!     }
//! }
//!
//! impl Handler for Hello {
//!     fn handle(&self, request: &Request<'_>, reply: Reply<'_>) {
//!         match request.operation {
//!             Operation::Lookup { name: b"hello" } => {
//!                 let attributes = attributes(2);
//!                 reply.entry(&Entry { node: 2, generation: 0, entry_valid: VALID, attributes_valid: VALID, attributes });
//!             }
//!             Operation::Lookup { .. } => reply.error(Errno::ENOENT),
//!             Operation::Getattr { .. } => reply.attributes(&attributes(request.node), VALID),
//!             Operation::Read { offset, size, .. } => reply.fill(size as usize, |buffer| {
//!                 let rest = TEXT.get(offset as usize..).unwrap_or_default();
//!                 let bytes = rest.len().min(buffer.len());
//!                 buffer[..bytes].copy_from_slice(&rest[..bytes]);
//!                 Ok(bytes)
//!             }),
//!             Operation::Forget { .. } | Operation::BatchForget(_) => reply.none(),
//!             _ => reply.error(Errno::ENOSYS),
//!         }
//!     }
//! }
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let (device, mounted) = mount("/mnt/hello", &MountOptions { source: "hello".into(), ..MountOptions::default() })?;
//!     let session = Session::start(device, Hello, &Wanted::default(), Options::default())?;
//!     println!("{} answers: {:?}", mounted.path().display(), session.agreed().flags);
//!     session.run()?; // until it is unmounted
//!     Ok(())
//! }
//! ```

// Source files: `abi.rs` defines the kernel's structures, `request/` parses ([RQ1], [RQ2]), `negotiation.rs` negotiates INIT ([NE1]–[NE4]),
// `reply/` answers ([RY1], [RY2]; `sink.rs` [SK1]–[SK3] writes the bytes), `serving.rs` processes requests in every thread ([SG1]–[SG3]),
// `device.rs` (`crew.rs` [CRW1]–[CRW5]) and `ring.rs` ([UR1]–[UR7]; `interrupts.rs` [IT1], [IT2]) receive requests over the device and io_uring,
// `scheduling.rs` ([KC1]–[KC4]) keeps their callers on their CPUs, `notify.rs` ([NO1]) notifies the kernel, `mount/` mounts.
//
// *Architecture invariants:* this crate knows no file system, and all answers come from the handler, except those of the session's own
// requests. `unsafe` is in `sys.rs` alone ([U1]–[U3]).

#![deny(unsafe_code)]

pub mod abi;
mod cpus;
mod crew;
mod device;
mod errno;
mod interrupts;
mod mailbox;
mod mount;
mod negotiation;
mod node;
mod notify;
mod reply;
mod request;
mod ring;
mod scheduling;
mod serving;
mod session;
mod sys;
mod time;

pub use crew::will_wait;
pub use errno::Errno;
pub use mount::{MountError, MountGuard, MountOptions, MountPlace, Unmount, mount, unmount};
pub use negotiation::{Agreed, InitFlags, Wanted};
pub use node::open_node;
pub use notify::{Contents, Notifier, NotifyError, Retrieval, Retrieved};
pub use reply::{Attributes, Directory, Entry, OpenFlags, Opened, ParkedReply, Reply, Said, Statfs, Watch, kind_of};
pub use request::{
    CopyFileRange, Dialect, Extensions, FileLock, Forgets, Groups, Init, Ioctl, Mappings, Operation, Request, RequestError,
    SecurityContext, SetAttributes, Write,
};
pub use session::{Handler, Interruption, Options, RingOptions, Session, Threads};
pub use sys::Zeros;
pub use time::{SetTime, Time};
