//! What a program and the daemon say to each other by shared memory: the operations as requests of the ring, their answers, and the greeting on
//! the socket. The ring carries numbers; this crate says what they mean.
//!
//! * [`Operation`]: a request, typed. [`Operation::decode`] works on the private copy that the ring has made, never on shared memory.
//! * [`Outcome`]: an answer, typed.
//! * [`Hello`] and [`Reception`]: the first message each way. Everything else goes by the ring.
//! * [`Listing`] and [`EntryWriter`]: entries of a directory in a data area. [`Ahead`] and [`AheadWriter`]: attributes of several. [`Space`]: what statfs(2) shows. [`LentRange`]: where bytes
//!   of a file can be loaded, or stored under a [`StoreLease`]. [`LentTail`]: where bytes can be appended under one. [`StoreMessage`]: what comes with a description of the memory zone for stores.
//! * [`socket`]: where the socket of a mount is.
//!
//! [MSG1] Decoding is total: any request gives an operation or [`Malformed`], without a loop or an allocation that depends on its contents.
//! [MSG2] Credentials are in no message. Of its process a client says only the umask, which it could change by itself as well.
//! [MSG3] A text (path, name of an attribute, target of a link) is in the slot if it fits, else in the data area. The daemon copies a text
//!       once and looks at the copy alone. Longer ones than [`TEXT_BYTES_MAX`] are malformed: no path is longer.
//! [MSG4] A length that the daemon returns is compared with the buffer before it is used ([`Outcome::bytes`], [`Listing`]): a client does not
//!       depend on the daemon's honesty for its own memory either.
//! [MSG5] An answer is an errno of Linux, what the operation returns, or [`Crossed`]: then nothing has changed and the client makes the whole
//!       call through the mount.
//!
//! One version number holds for the messages, the greeting and the ring's layout: [`VERSION`]. The first twelve bytes of both greetings (magic
//! and version), and where the sentence of a refusal is, never change, so that releases that differ can say so.
//!
//! *Architecture invariant:* no socket, no thread, no system call; nothing of how an operation is done.

#![forbid(unsafe_code)]

mod ahead;
mod answer;
mod decode;
mod encode;
mod greeting;
mod lent;
mod listing;
mod number;
mod operation;
pub mod socket;
mod space;
mod store_lease;
mod store_message;
mod tail;
mod text;

pub use ahead::{Ahead, AheadWriter, Foretold};
pub use answer::{Crossed, Outcome, Why};
pub use greeting::{GREETING_BYTES, Hello, HelloError, Reception, Refusal, StorePlace, Welcome, ZonePlace};
pub use lent::{LENT_RANGE_BYTES, LENT_RANGES_MAX, LENT_WINDOW_BYTES, LentRange, MAPPED_RANGES_MAX};
pub use listing::{EntryWriter, FirstListed, LISTED_BYTES_MAX, Listed, Listing};
pub use number::Number;
pub use operation::{Handle, Offset, Operation, Place, Subject, TimeToSet, Unless, Whence};
pub use space::{SPACE_BYTES, Space};
pub use store_lease::StoreLease;
pub use store_message::{STORE_MESSAGE_BYTES, StoreMessage};
pub use tail::{LENT_TAIL_BYTES, LentTail, TAIL_LENGTH_BITS};
pub use text::{TEXT_BYTES_MAX, Text};

/// The version of the messages, together with the ring's layout.
pub const VERSION: u32 = tandemfs_ring::VERSION << 16 | 8;
/// Most bytes that one request reads or writes; a client splits more.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 20;
/// Most bytes of a read that a client keeps.
pub const KEPT_READ_BYTES_MAX: u32 = 4096;

/// A request or an answer that no program of this version sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// An operation that this version does not have. It is answered with ENOSYS.
    #[error("no operation has the number {0}")]
    Operation(u16),
    /// A field that does not fit.
    #[error("{0}")]
    Field(&'static str),
}
