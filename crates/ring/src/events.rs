//! What the daemon's thread waits for, in one io_uring: doorbells, hang-ups, other threads of the daemon.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{ReadWriteFlags, preadv2};

use crate::memory::Memory;
use crate::sys::Waits;

/// Events of poll(2); x86-64 and aarch64 have the same.
const POLLIN: u32 = 0x1;
const POLLRDHUP: u32 = 0x2000;

/// The key of [`Waker::wake`].
pub(crate) const WOKEN: u64 = 0;
/// The key of what nobody wants to know.
const NOBODY: u64 = u64::MAX;

/// The io_uring of one thread.
#[derive(Debug)]
pub(crate) struct Events {
    waits: Waits,
    waker: Arc<OwnedFd>,
    /// Whether waits are to be handed to the kernel.
    has_new: bool,
}

/// Wakes the thread that waits.
#[derive(Debug, Clone)]
pub(crate) struct Waker(Arc<OwnedFd>);

impl Waker {
    pub(crate) fn wake(&self) {
        let _full_counter_wakes_too = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

/// Empties an eventfd. It never waits, whatever flags another process has set on the shared description.
pub(crate) fn drain(counter: BorrowedFd<'_>) {
    let mut bytes = [0; 8];
    let _empty = preadv2(counter, &mut [IoSliceMut::new(&mut bytes)], u64::MAX, ReadWriteFlags::NOWAIT);
}

impl Events {
    pub(crate) fn new() -> io::Result<Self> {
        let waker = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let mut events = Self { waits: Waits::new(256)?, waker, has_new: false };
        let waker = Arc::clone(&events.waker);
        events.readable(waker.as_fd(), WOKEN)?;
        Ok(events)
    }

    pub(crate) fn has_futexes(&self) -> bool {
        self.waits.has_futexes()
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.waker))
    }

    /// Waits, once, until a word is woken or has another value.
    pub(crate) fn word(&mut self, memory: &Memory, at: usize, value: u32, key: u64) -> io::Result<()> {
        self.has_new = true;
        self.waits.word(&memory.0, at, value, key)
    }

    /// Waits, once, until a descriptor can be read.
    pub(crate) fn readable(&mut self, descriptor: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        self.descriptor(descriptor, POLLIN, key)
    }

    /// Waits until the other side of a socket hangs up.
    pub(crate) fn hung_up(&mut self, socket: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        self.descriptor(socket, POLLRDHUP, key)
    }

    fn descriptor(&mut self, descriptor: BorrowedFd<'_>, events: u32, key: u64) -> io::Result<()> {
        self.has_new = true;
        self.waits.descriptor(descriptor, events, key)
    }

    /// Ends a wait, at once: what it names may be gone after this.
    pub(crate) fn cancel(&mut self, key: u64) -> io::Result<()> {
        self.waits.cancel(key, NOBODY)?;
        self.has_new = !self.waits.submit(false)?;
        Ok(())
    }

    /// Appends the keys of what has happened; with `wait` at least one, unless a signal came.
    #[inline]
    pub(crate) fn collect(&mut self, wait: bool, into: &mut Vec<u64>) -> io::Result<()> {
        if wait || self.has_new {
            self.has_new = !self.waits.submit(wait)?;
        }
        self.waits.completed(|key, _| {
            if key != NOBODY {
                into.push(key);
            }
        });
        if into.contains(&WOKEN) {
            drain(self.waker.as_fd());
            let waker = Arc::clone(&self.waker);
            self.readable(waker.as_fd(), WOKEN)?;
        }
        Ok(())
    }
}
