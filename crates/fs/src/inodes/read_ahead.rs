//! Read-ahead for sequential readers: bytes behind a request are read with the same batch of block requests, and kept as file pages.
//!
//! The engine has no threads that could read ahead by themselves, and a batch costs the drive's latency once, whatever its length. So a
//! reader that goes through a file in small steps waits for the drive once a window, not once a step.
//!
//! [RA1] What was read ahead becomes file pages with the whole window's range held, shared ([FP1] of `cache/file_pages.rs`): they are found, dropped
//!       and evicted as all others.
//! [RA2] A reader who goes on where the last read of the drive ended, that of others included, is sequential. Reads that pages answer are not noted.
//! [RA3] Nobody waits for bytes that were not requested: if a writer holds blocks of the window, or one of them is damaged, only the
//!       request is read. An error belongs to the read that requests those bytes.
//! [RA4] Memory to read into is kept for later reads: at most [`ROOMS_MAX`] buffers, and none that takes more than its part of the memory option.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::InCoreInode;
use crate::sync::{Mutex, patience};

/// Buffers may take one in this many bytes of the memory option.
const MEMORY_SHARE: u64 = 64;
/// Windows may be as long as one in this many bytes of it, so that file pages have room for two even if metadata leaves them the least.
const WINDOW_SHARE: u64 = 32;
/// Smallest window, in bytes.
const WINDOW_BYTES_MIN: u64 = 64 << 10;
/// Most buffers that are kept.
const ROOMS_MAX: usize = 2;

/// State of a file's reader.
#[derive(Default)]
pub(crate) struct Stream {
    /// Where the last read of the drive ended; 0 before the first one, so a reader from the start counts at its second read.
    next: u64,
    window_bytes: u64,
}

impl Stream {
    /// Whether a request of these bytes goes on there ([RA2]).
    fn goes_on(&self, offset: u64, end: u64) -> bool {
        self.next > 0 && (offset..end).contains(&self.next)
    }
}

/// What is read ahead on a mount.
pub(crate) struct ReadAhead {
    rooms: Mutex<Vec<Vec<u8>>>,
    room_bytes_max: AtomicUsize,
    window_bytes_max: AtomicU64,
}

impl ReadAhead {
    pub(crate) fn new(memory_bytes: u64, window_bytes_max: u32) -> Self {
        Self {
            rooms: Mutex::default(),
            room_bytes_max: AtomicUsize::new(Self::room_bytes_max(memory_bytes)),
            window_bytes_max: AtomicU64::new(Self::window_bytes_max(memory_bytes, window_bytes_max)),
        }
    }

    /// Another memory option, or another limit of what is read ahead. Drops kept memory that is more than its part now.
    pub(crate) fn resize(&self, memory_bytes: u64, window_bytes_max: u32) {
        let room_bytes_max = Self::room_bytes_max(memory_bytes);
        self.room_bytes_max.store(room_bytes_max, Relaxed);
        self.window_bytes_max.store(Self::window_bytes_max(memory_bytes, window_bytes_max), Relaxed);
        self.rooms.lock().retain(|room| room.capacity() <= room_bytes_max);
    }

    fn room_bytes_max(memory_bytes: u64) -> usize {
        Self::bytes_max(memory_bytes) as usize / ROOMS_MAX
    }

    /// Most bytes that are read ahead where the options ask for so many.
    pub(crate) fn window_bytes_max(memory_bytes: u64, window_bytes_max: u32) -> u64 {
        u64::from(window_bytes_max).min(memory_bytes / WINDOW_SHARE)
    }

    /// Limit of the buffers that are kept, in bytes.
    pub(crate) fn bytes_max(memory_bytes: u64) -> u64 {
        memory_bytes / MEMORY_SHARE
    }

    /// Memory of the buffers, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.rooms.lock().iter().map(|room| room.capacity() as u64).sum()
    }

    /// How many bytes to read ahead behind a request of `length` bytes at `offset` that pages do not answer. Notes its end as the reader's
    /// position.
    pub(crate) fn step(&self, file: &InCoreInode, offset: u64, length: u64) -> u64 {
        let window_bytes_max = self.window_bytes_max.load(Relaxed);
        if window_bytes_max == 0 || patience::tries() {
            return 0; // such a read may be repeated, so it is noted when it is done
        }
        let mut stream = file.stream.lock();
        let is_sequential = stream.goes_on(offset, offset.saturating_add(length));
        stream.next = offset.saturating_add(length);
        // Requests over half the window share the latency among enough bytes already.
        if !is_sequential || length > window_bytes_max / 2 {
            stream.window_bytes = 0;
            return 0;
        }
        stream.window_bytes = (stream.window_bytes * 2).max(length * 2).max(WINDOW_BYTES_MIN).min(window_bytes_max);
        stream.window_bytes
    }

    /// Notes that the drive was read up to `end` for a request of this offset.
    pub(crate) fn reached(&self, file: &InCoreInode, offset: u64, end: u64) {
        if self.window_bytes_max.load(Relaxed) == 0 {
            return;
        }
        let mut stream = file.stream.lock();
        if patience::tries() && !stream.goes_on(offset, end) {
            stream.window_bytes = 0;
        }
        stream.next = end;
    }

    /// Runs something with memory of this length, whatever is in it.
    pub(crate) fn with_room<T>(&self, bytes: usize, run: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut room = self.rooms.lock().pop().unwrap_or_default();
        if room.len() < bytes {
            room.resize(bytes, 0);
        }
        let result = run(&mut room[..bytes]);
        if room.capacity() <= self.room_bytes_max.load(Relaxed) {
            let mut rooms = self.rooms.lock();
            if rooms.len() < ROOMS_MAX {
                rooms.push(room);
            }
        }
        result
    }
}
