//! Shared memory of a call: what it sends and where its answer goes.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::sync::atomic::{AtomicUsize, Ordering};
use tandemfs_ring::{Buffer, Client, Range};

use crate::{Error, Result};

/// The least that a read is content with while memory is scarce.
const SCARCE_BYTES: u32 = 4096;

/// Waits for memory that other calls give back ([CN2] of `lib.rs`).
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// Held from a look for memory to the sleep, so that no wake is lost in between.
    looking: Mutex<()>,
    returned: Condvar,
    waiting: AtomicUsize,
}

impl Waiting {
    /// A buffer of so many bytes, or, if a transfer may be split, of at least a page. There is no wait for more than there ever is.
    pub(crate) fn take(&self, ring: &Client, bytes: u32, may_split: bool, wait: Duration) -> Result<Buffer> {
        let look = || {
            let mut bytes = bytes;
            loop {
                match ring.buffer(bytes) {
                    None if may_split && bytes > SCARCE_BYTES => bytes = (bytes / 2).max(SCARCE_BYTES),
                    other => return other,
                }
            }
        };
        if let Some(buffer) = look() {
            return Ok(buffer);
        }
        if !may_split && u64::from(bytes) > ring.data_bytes() {
            return Err(Errno::NOMEM.into());
        }
        let until = Instant::now() + wait;
        let mut looking = self.looking.lock();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let found = loop {
            match look() {
                Some(buffer) => break Ok(buffer),
                None if self.returned.wait_until(&mut looking, until).timed_out() => {
                    break look().ok_or(Error::Errno(Errno::NOMEM));
                }
                None => {}
            }
        };
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        found
    }

    /// Memory was given back.
    pub(crate) fn wake(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            let _looking = self.looking.lock();
            self.returned.notify_all();
        }
    }
}

/// A part of a call's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    /// Which buffer of the call; none for the one that its slot keeps.
    pub(crate) buffer: Option<usize>,
    /// Where in the buffer.
    pub(crate) from: u32,
    /// Where in the data area, as the daemon is told.
    pub(crate) range: Range,
}

impl Piece {
    /// A part of a buffer. `from` and `length` are within it.
    pub(crate) fn of(buffer: &Buffer, index: Option<usize>, from: u32, length: u32) -> Self {
        Self { buffer: index, from, range: Range { start: buffer.range().start + from, length } }
    }

    pub(crate) fn none() -> Self {
        Self { buffer: None, from: 0, range: Range::default() }
    }
}
