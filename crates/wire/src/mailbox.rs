//! Messages to a thread that waits in io_uring: replies that other threads finished, and the order to end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

/// The finished reply to a parked request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) entry: usize,
    /// 0 or a negative errno.
    pub(crate) error: i32,
    pub(crate) body: Vec<u8>,
}

/// The thread's ring polls the descriptor, so a message wakes the thread like a request does.
#[derive(Debug)]
pub(crate) struct Mailbox {
    answers: Mutex<Vec<Answer>>,
    end: AtomicBool,
    wake: OwnedFd,
}

impl Mailbox {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        Ok(Self {
            answers: Mutex::default(),
            end: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    pub(crate) fn post(&self, answer: Answer) {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).push(answer);
        self.ring();
    }

    /// Asks the thread to end.
    pub(crate) fn end(&self) {
        self.end.store(true, Ordering::Release);
        self.ring();
    }

    pub(crate) fn is_to_end(&self) -> bool {
        self.end.load(Ordering::Acquire)
    }

    /// Takes the messages out. Later messages wake the thread again.
    pub(crate) fn take(&self) -> Vec<Answer> {
        if let Err(error) = rustix::io::read(&self.wake, &mut [0; 8])
            && error != rustix::io::Errno::AGAIN
        {
            tracing::error!(%error, "a mailbox cannot be read");
        }
        std::mem::take(&mut self.answers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn ring(&self) {
        // The counter overflows only after 2^64 unread messages.
        if let Err(error) = rustix::io::write(&self.wake, &1_u64.to_ne_bytes()) {
            tracing::error!(%error, "a thread that serves requests cannot be woken");
        }
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
