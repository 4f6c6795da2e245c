//! Small files come whole when they are opened, so that who opens, reads and closes one asks twice, not four times.
//!
//! [WHO1] A file of up to 16 KiB comes with its open if it may be read and the daemon has it at once ([AHD5] of `crates/direct`). Reads of it,
//!        also behind its end, are answered while nothing that they depend on has changed ([KN2] of `known.rs`); otherwise the daemon is asked.
//! [WHO2] It is asked for while programs read what came: after [`UNREAD`] opens in a row that brought nothing which was read, one open of [`RARELY`] asks.
//! [WHO3] Bounded: a connection keeps at most [`KEPT_BYTES`] of them, each as long as its file is open or idle (`idle.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use rustix::fs::OFlags;
use tandemfs_protocol::FirstListed;
use tandemfs_ring::{Answer, Client, Seen};

use crate::area::Piece;
use crate::connection::Call;
use crate::mutant::{self, Mutant};

/// Room for a file that comes with its open: 16 KiB, as much as the daemon reads without handing the request on, and a byte more, so that the end is known.
pub(crate) const WHOLE_BYTES: u32 = (16 << 10) + 1;
const KEPT_BYTES: u64 = 32 << 20;
const UNREAD: u32 = 8;
const RARELY: u32 = 32;

/// What a connection knows of the use of whole files.
#[derive(Debug, Default)]
pub(crate) struct WholeFiles {
    kept_bytes: AtomicU64,
    /// Opens since one that brought what was read.
    unread: AtomicU32,
}

impl WholeFiles {
    /// Whether who opens with these flags is to ask for the whole file ([WHO2]).
    pub(crate) fn are_wanted(&self, flags: i32) -> bool {
        let flags = OFlags::from_bits_retain(flags.cast_unsigned());
        let others = OFlags::PATH | OFlags::CREATE | OFlags::TRUNC | OFlags::DIRECT | OFlags::DIRECTORY;
        if flags & OFlags::ACCMODE == OFlags::WRONLY || flags.intersects(others) || self.kept_bytes.load(Relaxed) >= KEPT_BYTES {
            return false;
        }
        let unread = self.unread.fetch_add(1, Relaxed);
        unread < UNREAD || unread.is_multiple_of(RARELY)
    }
}

/// All bytes of an open file.
#[derive(Debug)]
pub(crate) struct WholeFile {
    bytes: Box<[u8]>,
    seen: Seen,
    was_read: AtomicBool,
    of: Arc<WholeFiles>,
}

impl WholeFile {
    /// That of an answer, if it has one that may be kept.
    pub(crate) fn taken(of: &Arc<WholeFiles>, call: &mut Call<'_>, into: Piece, answer: &Answer, seen: Seen) -> Option<Self> {
        let found = FirstListed::decode(answer.further).filter(|found| found.are_all && found.bytes < into.range.length)?;
        if seen.is_none() {
            return None;
        }
        let mut bytes = vec![0; found.bytes as usize].into_boxed_slice();
        call.get(into, &mut bytes);
        of.kept_bytes.fetch_add(bytes.len() as u64, Relaxed);
        Some(Self { bytes, seen, was_read: AtomicBool::new(false), of: Arc::clone(of) })
    }

    /// Copies a read out, if the file is as it was; returns how many bytes, 0 at the end.
    #[inline]
    pub(crate) fn read(&self, ring: &Client, offset: u64, into: &mut [u8]) -> Option<usize> {
        if !(ring.is_still_so(&self.seen) || mutant::on(Mutant::WholeNotCompared)) {
            return None;
        }
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(self.bytes.len());
        let length = into.len().min(self.bytes.len() - from);
        into[..length].copy_from_slice(&self.bytes[from..from + length]);
        if !self.was_read.swap(true, Relaxed) {
            self.of.unread.store(0, Relaxed);
        }
        Some(length)
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        self.of.kept_bytes.fetch_sub(self.bytes.len() as u64, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(flags: OFlags) -> i32 {
        flags.bits().cast_signed()
    }

    #[test]
    fn files_are_asked_for_while_they_are_read() {
        let of = Arc::new(WholeFiles::default());
        let asked = |opens: usize| (0..opens).filter(|_| of.are_wanted(flags(OFlags::RDONLY))).count();
        assert_eq!(asked(8), 8);
        assert_eq!(asked(320), 10, "one of 32 when nothing is read");
        of.unread.store(0, Relaxed);
        assert_eq!(asked(8), 8);
        for others in [OFlags::WRONLY, OFlags::CREATE, OFlags::TRUNC, OFlags::DIRECT, OFlags::DIRECTORY, OFlags::PATH] {
            of.unread.store(0, Relaxed);
            assert!(!of.are_wanted(flags(others)), "{others:?}");
        }
        assert!(of.are_wanted(flags(OFlags::RDWR | OFlags::APPEND)));
        of.unread.store(0, Relaxed);
        of.kept_bytes.store(KEPT_BYTES, Relaxed);
        assert!(!of.are_wanted(flags(OFlags::RDONLY)), "there is no room");
    }
}
