//! Shared memory between a program (the *client*) and the daemon: its layout, its protocols, and both sides of them. A request and its
//! answer cross no kernel while both sides look; who sleeps is woken by a futex.
//!
//! * [`Arena`]: the daemon makes the memory of one client, seals it, and validates what the client writes there.
//! * [`Client`]: a program maps it, allocates data areas, submits requests and waits for answers.
//! * [`VersionWords`]: words by which all clients see that what they know has changed; [`Versions`] is what a client sees of them.
//! * [`LeaseWords`]: words by which threads of a trusted program say that they store to lent memory, and the daemon that they may not any more;
//!   [`Leases`] is what the program has of them.
//! * [`Poller`]: one thread of the daemon looks at all clients, or sleeps in one io_uring until one of them rings.
//!
//! *Architecture invariant:* the ring does not know what an operation, a node, a handle or an error means.

mod arena;
mod client;
mod control;
#[cfg(not(feature = "schedules"))]
mod events;
#[cfg(feature = "schedules")]
mod explored;
mod idle;
mod layout;
mod leases;
mod memory;
mod message;
pub mod mutant;
mod placement;
mod poller;
mod space;
mod standing;
mod sync;
#[cfg_attr(feature = "schedules", allow(dead_code, reason = "explored schedules have waits of their own"))]
mod sys;
mod versions;

pub use arena::{Arena, DROPPED, Data, Descriptors, Lie, Ticket};
pub use client::{Buffer, Client, Ended, Pending, Slot};
pub use control::Control;
#[cfg(feature = "schedules")]
pub use explored::{begin, finish};
pub use idle::{IDLE_PLACES, idle_places};
pub use layout::{
    ARGUMENTS, DATA_BYTES_MAX, Doorbell, NAME_BYTES_MAX, NAMES_BYTES, PAGE_BYTES, Range, SEEN_MAX, SLOTS_MAX, Sizes, VERSION, VERSION_WORDS,
};
pub use leases::{Inside, LEASE_WORDS, LeaseToken, LeaseWord, LeaseWords, Leases};
pub use message::{ATTRIBUTE_WORDS, Answer, Attributes, NameTooLong, Names, Request, Time};
pub use poller::{ClientId, End, Handler, Lifeline, Poller};
pub use standing::Standing;
pub use sys::{groups_of, process_of, refuse_descriptors};
pub use versions::{Seen, VersionWords, Versions};

/// Why shared memory cannot be made or mapped.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The kernel refused something.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// No arena has these sizes.
    #[error("an arena has 1 to 64 slots and whole pages of data below 4 GiB, not {slots} slots and {data_bytes} bytes")]
    Sizes {
        /// Slots asked for.
        slots: u32,
        /// Bytes asked for.
        data_bytes: u64,
    },
    /// The other side speaks another version.
    #[error("the daemon speaks version {found} of the ring, this program version {expected}; install the same release for both")]
    Version {
        /// The daemon's.
        found: u32,
        /// This program's.
        expected: u32,
    },
    /// A file is no arena, or its size could change.
    #[error("the daemon sent no arena: {0}")]
    NoArena(&'static str),
}

impl From<rustix::io::Errno> for RingError {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Io(error.into())
    }
}

/// What the daemon tells a client in its word file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Attention {
    /// Ring the doorbell after a request.
    Asleep = 0,
    /// A request is seen; sleep until the answer.
    Awake = 1,
    /// A request is seen at once; look for the answer for a while.
    Polling = 2,
    /// Nobody will answer.
    Ended = 3,
}

impl Attention {
    #[inline]
    pub(crate) fn of_word(word: u32) -> Self {
        match word {
            0 => Self::Asleep,
            1 => Self::Awake,
            2 => Self::Polling,
            _ => Self::Ended,
        }
    }
}
