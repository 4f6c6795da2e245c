//! Destinations of replies.
//!
//! [SK1] `fill` and directories write directly where the kernel reads: over io_uring into the entry's payload, over the device into a
//!       buffer of the serving thread, with room for the header in front, so that one write sends both.
//! [SK2] A reply by a serving thread takes no lock, changes no reference count and allocates nothing once its buffers have grown.
//! [SK3] No reply is longer than agreed ([`crate::Agreed`]); a longer one becomes `EIO`.

use std::io::IoSlice;
use std::mem::size_of;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use zerocopy::IntoBytes;

use crate::abi::OutHeader;
use crate::device::Channel;
use crate::errno::Errno;
use crate::mailbox::{Answer, Mailbox};

const HEADER_BYTES: usize = size_of::<OutHeader>();
/// Most pieces of a reply: a structure, and data.
pub(crate) const PARTS_MAX: usize = 2;

/// A thread's buffer for replies over the device: header and body.
#[derive(Debug, Default)]
pub(crate) struct Buffer(Vec<u8>);

impl Buffer {
    /// The body; it holds bytes of earlier replies.
    fn body(&mut self, size: usize) -> &mut [u8] {
        if self.0.len() < HEADER_BYTES + size {
            self.0.resize(HEADER_BYTES + size, 0);
        }
        self.0.get_mut(HEADER_BYTES..HEADER_BYTES + size).unwrap_or_default()
    }

    fn message(&mut self, unique: u64, filled: usize) -> &[u8] {
        let header = header(unique, 0, filled);
        self.body(filled); // nothing may have been written yet
        if let Some(start) = self.0.get_mut(..HEADER_BYTES) {
            start.copy_from_slice(header.as_bytes());
        }
        self.0.get(..HEADER_BYTES + filled).unwrap_or_default()
    }
}

fn header(unique: u64, error: i32, body: usize) -> OutHeader {
    OutHeader { len: (HEADER_BYTES + body) as u32, error, unique }
}

/// The number of parked requests of an io_uring queue; each occupies an entry.
#[derive(Debug)]
pub(crate) struct Parked {
    now: AtomicUsize,
    max: usize,
}

impl Parked {
    /// `try_park` may park at most three quarters of the entries, so that some remain for other requests.
    pub(crate) fn of_entries(entries: usize) -> Self {
        Self { now: AtomicUsize::new(0), max: entries - entries.div_ceil(4) }
    }

    /// Counts a parked request if enough entries remain; returns whether it did.
    fn try_add(&self) -> bool {
        self.now.fetch_update(Relaxed, Relaxed, |now| (now < self.max).then_some(now + 1)).is_ok()
    }

    fn add(&self) {
        self.now.fetch_add(1, Relaxed);
    }

    /// A parked request was answered.
    pub(crate) fn remove(&self) {
        self.now.fetch_sub(1, Relaxed);
    }
}

/// The state of the request in an io_uring entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Waiting,
    /// The reply is in the payload, or staged if the request still occupies the payload. The error is 0 or negative.
    Answered {
        error: i32,
        bytes: usize,
    },
    Parked,
}

/// The reply destination of a request in an io_uring entry, for its own thread.
#[derive(Debug)]
pub(crate) struct Slot<'a> {
    /// `None` while the request occupies it.
    pub(crate) payload: Option<&'a mut [u8]>,
    pub(crate) staged: &'a mut Vec<u8>,
    pub(crate) outcome: &'a mut Outcome,
    pub(crate) mailbox: &'a Arc<Mailbox>,
    pub(crate) parked: &'a Parked,
    pub(crate) entry: usize,
}

#[derive(Debug)]
pub(crate) enum Sink<'a> {
    Device {
        channel: &'a Arc<Channel>,
        buffer: &'a mut Buffer,
    },
    Ring(Slot<'a>),
    /// For a reply that an io_uring thread has parked.
    Mailbox {
        mailbox: Arc<Mailbox>,
        entry: usize,
        body: Vec<u8>,
    },
    /// The kernel wants no reply, or the connection is gone.
    Nobody {
        body: Vec<u8>,
    },
}

/// The destination that a parked reply keeps. It does not keep the connection open.
#[derive(Debug, Clone)]
pub(crate) enum Held {
    Device(Weak<Channel>),
    Ring { mailbox: Weak<Mailbox>, entry: usize },
    Nobody,
}

impl Sink<'_> {
    /// Sends a reply in pieces.
    pub(crate) fn send(&mut self, unique: u64, error: i32, parts: &[&[u8]]) {
        let bytes = parts.iter().map(|part| part.len()).sum();
        match self {
            Self::Device { channel, .. } => {
                let header = header(unique, error, bytes);
                let mut message = [IoSlice::new(header.as_bytes()); PARTS_MAX + 1];
                for (place, part) in message.iter_mut().skip(1).zip(parts) {
                    *place = IoSlice::new(part);
                }
                channel.send(message.get(..=parts.len()).unwrap_or_default());
            }
            Self::Ring(slot) => {
                let mut room = slot.room(bytes);
                for part in parts {
                    let (place, left) = std::mem::take(&mut room).split_at_mut(part.len());
                    place.copy_from_slice(part);
                    room = left;
                }
                *slot.outcome = Outcome::Answered { error, bytes };
            }
            Self::Mailbox { mailbox, entry, .. } => mailbox.post(Answer { entry: *entry, error, body: parts.concat() }),
            Self::Nobody { .. } => {}
        }
    }

    /// Room for a reply of up to `size` bytes ([SK1]). Its initial content is undefined.
    pub(crate) fn body(&mut self, size: usize) -> &mut [u8] {
        match self {
            Self::Device { buffer, .. } => buffer.body(size),
            Self::Ring(slot) => slot.room(size),
            Self::Mailbox { body, .. } | Self::Nobody { body } => {
                body.resize(size, 0);
                body
            }
        }
    }

    /// Sends the first `filled` bytes of the room.
    pub(crate) fn send_body(&mut self, unique: u64, filled: usize) {
        match self {
            Self::Device { channel, buffer } => channel.send(&[IoSlice::new(buffer.message(unique, filled))]),
            Self::Ring(slot) => *slot.outcome = Outcome::Answered { error: 0, bytes: filled },
            Self::Mailbox { mailbox, entry, body } => {
                body.truncate(filled);
                mailbox.post(Answer { entry: *entry, error: 0, body: std::mem::take(body) });
            }
            Self::Nobody { .. } => {}
        }
    }

    /// Parks the reply.
    pub(crate) fn park(&mut self) -> Held {
        if let Self::Ring(slot) = self {
            slot.parked.add();
        }
        self.hold()
    }

    /// Parks the reply unless too few entries of the queue would remain.
    pub(crate) fn try_park(&mut self) -> Option<Held> {
        let has_room = match self {
            Self::Ring(slot) => slot.parked.try_add(),
            _ => true,
        };
        has_room.then(|| self.hold())
    }

    fn hold(&mut self) -> Held {
        match self {
            Self::Device { channel, .. } => Held::Device(Arc::downgrade(channel)),
            Self::Ring(slot) => {
                *slot.outcome = Outcome::Parked;
                Held::Ring { mailbox: Arc::downgrade(slot.mailbox), entry: slot.entry }
            }
            Self::Mailbox { mailbox, entry, .. } => Held::Ring { mailbox: Arc::downgrade(mailbox), entry: *entry },
            Self::Nobody { .. } => Held::Nobody,
        }
    }
}

impl Slot<'_> {
    fn room(&mut self, size: usize) -> &mut [u8] {
        match &mut self.payload {
            Some(payload) => payload.get_mut(..size).unwrap_or_default(),
            None => {
                if self.staged.len() < size {
                    self.staged.resize(size, 0);
                }
                self.staged.get_mut(..size).unwrap_or_default()
            }
        }
    }
}

impl Held {
    /// Gives the parked reply a sink again. If the connection is gone, the reply is discarded.
    pub(crate) fn with<R>(self, work: impl FnOnce(Sink<'_>) -> R) -> R {
        match self {
            Self::Device(channel) => match channel.upgrade() {
                Some(channel) => work(Sink::Device { channel: &channel, buffer: &mut Buffer::default() }),
                None => work(Sink::Nobody { body: Vec::new() }),
            },
            Self::Ring { mailbox, entry } => match mailbox.upgrade() {
                Some(mailbox) => work(Sink::Mailbox { mailbox, entry, body: Vec::new() }),
                None => work(Sink::Nobody { body: Vec::new() }),
            },
            Self::Nobody => work(Sink::Nobody { body: Vec::new() }),
        }
    }
}

/// The answer of a reply that was dropped.
pub(crate) const UNANSWERED: Errno = Errno::EIO;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_entries_of_a_queue_are_never_parked_by_who_can_do_without() {
        let kept = [1, 2, 3, 4, 5, 8, 16].map(|entries| entries - Parked::of_entries(entries).max);
        assert_eq!(kept, [1, 1, 1, 1, 2, 2, 4]);
        let parked = Parked::of_entries(2);
        let mailbox = Arc::new(Mailbox::new().expect("a mailbox"));
        let try_park = || {
            let (mut staged, mut outcome) = (Vec::new(), Outcome::Waiting);
            let slot = Slot { payload: None, staged: &mut staged, outcome: &mut outcome, mailbox: &mailbox, parked: &parked, entry: 0 };
            let held = Sink::Ring(slot).try_park();
            (held.is_some(), outcome)
        };
        assert_eq!((try_park(), try_park()), ((true, Outcome::Parked), (false, Outcome::Waiting)));
        parked.remove();
        assert_eq!(try_park(), (true, Outcome::Parked));
    }
}
