//! Read-ahead for sequential readers: bytes behind a request are read with the same batch of block requests.
//!
//! The engine has no threads that could read ahead by themselves, and a batch costs the drive's latency once, whatever its length. So a
//! reader that goes through a file in small steps waits for the drive once a window, not once a step.
//!
//! [RA1] A buffer is tagged with the inode's change count, read before the blocks were looked up, while its whole range was locked
//!       (shared). Every change of data or mapping commits through `InCoreInode::commit`, which raises the count under the inode's lock before
//!       the writer is answered. So an equal count means that no byte of the file has changed since.
//! [RA2] A reader compares the count while it holds the range lock of its request: the bytes from the buffer and the bytes that it reads
//!       besides are of one instant.
//! [RA3] Nobody waits for bytes that were not requested: if a writer holds blocks of the window, or one of them is damaged, only the
//!       request is read. An error belongs to the read that requests those bytes.
//! [RA4] Buffers hold verified bytes only and are bounded in all; the least recently used one is dropped first.

use std::sync::{Arc, Weak};

use tandemfs_device::Sink;

use super::InCoreInode;
use crate::mutant::{Mutant, on};
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::sync::{Mutex, patience};

/// Buffers may take one in this many bytes of the memory option.
const MEMORY_SHARE: u64 = 16;
/// Smallest window, in bytes.
const WINDOW_BYTES_MIN: u64 = 64 << 10;

/// Bytes that were read ahead.
struct Ahead {
    start: u64,
    bytes: Vec<u8>,
    /// The inode's change count ([RA1]).
    version: u64,
    used_at: AtomicU64,
}

/// State of a file's reader.
#[derive(Default)]
pub(crate) struct Stream {
    /// Offset of its next read if it is sequential; 0 before the first read, so a reader from the start counts at its second read.
    next: u64,
    window_bytes: u64,
    buffer: Weak<Ahead>,
}

/// All buffers of a mount.
pub(crate) struct ReadAhead {
    buffers: Mutex<Vec<Arc<Ahead>>>,
    window_bytes_max: u64,
    bytes_max: u64,
    time: AtomicU64,
}

impl ReadAhead {
    pub(crate) fn new(memory_bytes: u64, window_bytes_max: u32) -> Self {
        let bytes_max = if window_bytes_max == 0 { 0 } else { memory_bytes / MEMORY_SHARE };
        Self {
            buffers: Mutex::default(),
            window_bytes_max: u64::from(window_bytes_max).min(bytes_max / 2),
            bytes_max,
            time: AtomicU64::new(0),
        }
    }

    /// Limit of the buffers' memory, in bytes.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Memory of the buffers, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.buffers.lock().iter().map(|ahead| ahead.bytes.capacity() as u64).sum()
    }

    /// How many bytes to read ahead behind a request of `length` bytes at `offset`. Notes the end of the request as the reader's position.
    pub(crate) fn step(&self, file: &InCoreInode, offset: u64, length: u64) -> u64 {
        if self.window_bytes_max == 0 || patience::tries() {
            return 0; // such a read may be repeated, so it is noted when it is done
        }
        let mut stream = file.stream.lock();
        let sequential = stream.next == offset && offset > 0;
        stream.next = offset + length;
        if !sequential {
            stream.window_bytes = 0;
            return 0;
        }
        if stream.buffer.upgrade().is_some_and(|ahead| ahead.start <= offset && offset + length <= ahead.start + ahead.bytes.len() as u64) {
            return 0;
        }
        // Requests over half the window share the latency among enough bytes already.
        if length * 2 > self.window_bytes_max {
            return 0;
        }
        stream.window_bytes = (stream.window_bytes * 2).max(length * 2).max(WINDOW_BYTES_MIN).min(self.window_bytes_max);
        stream.window_bytes
    }

    /// Notes the position of a reader who does not wait, after its read.
    pub(crate) fn note_tried(&self, file: &InCoreInode, offset: u64, length: u64) {
        let mut stream = file.stream.lock();
        if stream.next != offset {
            stream.window_bytes = 0;
        }
        stream.next = offset + length;
    }

    /// Copies the start of `into` from a buffer; returns how many bytes. The caller holds the range ([RA2]) and has read `version` after it
    /// took the range.
    pub(crate) fn copy(&self, file: &InCoreInode, version: u64, offset: u64, into: &mut Sink<'_>) -> usize {
        if self.window_bytes_max == 0 {
            return 0;
        }
        let Some(ahead) = file.stream.lock().buffer.upgrade() else { return 0 };
        if (ahead.version != version && !on(Mutant::ReadAheadKept)) || offset < ahead.start {
            return 0;
        }
        let Some(bytes) = ahead.bytes.get((offset - ahead.start) as usize..) else { return 0 };
        let length = bytes.len().min(into.len());
        into.copy_from(0, &bytes[..length]);
        ahead.used_at.store(self.time.fetch_add(1, Relaxed), Relaxed);
        length
    }

    /// A vector for a new buffer of a file: that of its old buffer, if nobody copies from it.
    pub(crate) fn room(&self, file: &InCoreInode) -> Vec<u8> {
        let old = std::mem::take(&mut file.stream.lock().buffer);
        let mut buffers = self.buffers.lock();
        let Some(position) = buffers.iter().position(|ahead| std::ptr::eq(old.as_ptr(), Arc::as_ptr(ahead))) else { return Vec::new() };
        Arc::into_inner(buffers.swap_remove(position)).map(|ahead| ahead.bytes).unwrap_or_default()
    }

    /// Keeps bytes of a file that were read at `version` ([RA1]).
    pub(crate) fn keep(&self, file: &InCoreInode, version: u64, start: u64, bytes: Vec<u8>) {
        let used_at = AtomicU64::new(self.time.fetch_add(1, Relaxed));
        let ahead = Arc::new(Ahead { start, bytes, version, used_at });
        let mut buffers = self.buffers.lock();
        let mut sum: u64 = buffers.iter().map(|other| other.bytes.capacity() as u64).sum::<u64>() + ahead.bytes.capacity() as u64;
        while sum > self.bytes_max {
            // [RA4]
            let Some((oldest, _)) = buffers.iter().enumerate().min_by_key(|(_, other)| other.used_at.load(Relaxed)) else { return };
            sum -= buffers.swap_remove(oldest).bytes.capacity() as u64;
        }
        let weak = Arc::downgrade(&ahead);
        buffers.push(ahead);
        drop(buffers);
        file.stream.lock().buffer = weak;
    }
}
