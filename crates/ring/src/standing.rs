//! Whether a client may say again what it was told, without asking: the words, the daemon's attention, whether the daemon lives ([VER5], [VER7]
//! and [VER8] of `versions.rs`). It outlives the client's connection, so whoever compares at its end meets memory.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;

use crate::Attention;
use crate::layout::{header, words};
use crate::memory::{Memory, ReadOnly};
use crate::sync;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::versions::{Seen, Versions};

/// For so many milliseconds a client that answers by itself does not ask whether the daemon lives ([VER7] of `versions.rs`).
pub(crate) const ALIVE_FOR: u64 = 10;

/// What a client compares before it answers by itself. Nobody waits here, and nothing is left half done by who leaves at any moment.
#[derive(Debug)]
pub struct Standing {
    memory: Memory,
    words: ReadOnly,
    /// The socket's number, of which nobody here is the owner: once the connection has ended another descriptor may have it, of which it is
    /// asked whether its other end has hung up, and nothing else.
    lifeline: Option<RawFd>,
    versions: OnceLock<Versions>,
    /// When the daemon was seen alive by a client that answers by itself, in milliseconds.
    seen_alive: AtomicU64,
}

impl Standing {
    pub(crate) fn new(memory: Memory, words: ReadOnly, lifeline: Option<&OwnedFd>) -> Self {
        let lifeline = lifeline.map(AsRawFd::as_raw_fd);
        Self { memory, words, lifeline, versions: OnceLock::new(), seen_alive: AtomicU64::new(0) }
    }

    pub(crate) fn set_versions(&self, versions: Versions) {
        let _only_the_first = self.versions.set(versions);
    }

    /// Whether what an answer said is so now, and may be said without asking.
    #[inline]
    pub fn is_still_so(&self, seen: &Seen) -> bool {
        self.versions.get().is_some_and(|versions| self.may_answer_itself() && versions.agree(seen))
    }

    /// [CPU1] of `placement.rs`
    #[inline]
    pub(crate) fn daemons_cpu(&self) -> u32 {
        self.words.load(words::CPU)
    }

    pub(crate) fn attention(&self) -> Attention {
        Attention::of_word(self.words.load(words::ATTENTION))
    }

    pub(crate) fn is_alive(&self) -> bool {
        let Some(lifeline) = self.lifeline else { return true };
        // SAFETY: it is looked at by poll(2) alone, for which any number will do.
        let lifeline = unsafe { BorrowedFd::borrow_raw(lifeline) };
        let mut descriptors = [PollFd::new(&lifeline, PollFlags::RDHUP)];
        !matches!(poll(&mut descriptors, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..))
    }

    /// Whether the daemon is there, and looks after this client, so that it may do without asking what it was allowed to.
    #[inline]
    pub(crate) fn may_answer_itself(&self) -> bool {
        if self.attention() == Attention::Ended {
            return false;
        }
        let now = sync::milliseconds();
        if now.wrapping_sub(self.seen_alive.load(Relaxed)) >= ALIVE_FOR {
            if !self.is_alive() {
                return false;
            }
            self.seen_alive.store(now, Relaxed);
        }
        let look = self.words.load(words::LOOK);
        if self.memory.load(header::ANSWERED) != look {
            self.memory.store(header::ANSWERED, look);
        }
        true
    }
}
