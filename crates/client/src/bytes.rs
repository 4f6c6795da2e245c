//! Bytes of files that the client knows: small reads, by the rules of `known.rs`.
//!
//! [KBY1] A read of up to 4 KiB is kept when it is asked for the second time, so that bytes which are read once push nothing out.
//! [KBY2] A kept read answers every read of the same open file inside of it. One that came to the end of the file answers reads up to there.
//! [KBY3] Bounded: 64 sets of four reads, made when they are needed, 1.1 MB when all are. Nobody waits, as [KN4] says.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use parking_lot::RwLock;
use tandemfs_protocol::{Handle, KEPT_READ_BYTES_MAX};
use tandemfs_ring::{Client, Seen};

use crate::mutant::{self, Mutant};

const SETS: usize = 64;
const WAYS: usize = 4;
const BYTES_MAX: usize = KEPT_READ_BYTES_MAX as usize;
/// Reads are found by the block that they begin in.
const BLOCK_BYTES: u64 = BYTES_MAX as u64;
/// Reads that were asked for once and are remembered.
const ASKED: usize = 1024;

#[derive(Debug)]
struct Kept {
    handle: Handle,
    offset: u64,
    /// Bytes that there are.
    length: usize,
    /// The file ends behind them.
    is_end: bool,
    seen: Seen,
    bytes: [u8; BYTES_MAX],
}

impl Kept {
    /// Where in it a read begins, and how much of it there is; none if it is not whole here.
    fn part(&self, handle: Handle, offset: u64, length: usize) -> Option<(usize, usize)> {
        let from = usize::try_from(offset.checked_sub(self.offset)?).ok().filter(|from| *from < self.length)?;
        let there = length.min(self.length - from);
        (self.handle == handle && (there == length || self.is_end || mutant::on(Mutant::EndNotKnown))).then_some((from, there))
    }
}

#[derive(Debug, Default)]
struct Set {
    kept: [Option<Box<Kept>>; WAYS],
    next: usize,
}

/// The reads that a connection knows.
#[derive(Debug)]
pub(crate) struct KnownBytes {
    sets: Box<[OnceLock<Box<RwLock<Set>>>]>,
    asked: Box<[AtomicU32]>,
}

fn mixed(handle: Handle, number: u64) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = (handle.get().wrapping_mul(FACTOR) ^ number).wrapping_mul(FACTOR);
    mixed ^ mixed >> 32
}

impl KnownBytes {
    /// None are known yet; none ever if they are not `wanted`.
    pub(crate) fn new(wanted: bool) -> Self {
        let count = |count| if wanted { count } else { 0 };
        Self { sets: (0..count(SETS)).map(|_| OnceLock::new()).collect(), asked: (0..count(ASKED)).map(|_| AtomicU32::new(0)).collect() }
    }

    fn set(&self, handle: Handle, offset: u64) -> Option<&OnceLock<Box<RwLock<Set>>>> {
        self.sets.get(mixed(handle, offset / BLOCK_BYTES) as usize % SETS)
    }

    /// Copies a read out, if it is known and right now; returns how many bytes.
    #[inline]
    pub(crate) fn read(&self, ring: &Client, handle: Handle, offset: u64, into: &mut [u8]) -> Option<usize> {
        if into.is_empty() || into.len() > BYTES_MAX {
            return None;
        }
        let set = self.set(handle, offset)?.get()?.try_read()?;
        let mut parts = set.kept.iter().flatten().filter_map(|kept| Some((kept, kept.part(handle, offset, into.len())?)));
        let (kept, (from, length)) = parts.find(|(kept, _)| ring.is_still_so(&kept.seen) || mutant::on(Mutant::BytesNotCompared))?;
        into[..length].copy_from_slice(&kept.bytes[from..from + length]);
        Some(length)
    }

    /// Keeps what was read, of `asked` bytes, if it may be kept.
    pub(crate) fn keep(&self, handle: Handle, offset: u64, bytes: &[u8], asked: usize, seen: Seen) {
        if seen.is_none() || bytes.is_empty() || bytes.len() > BYTES_MAX || !self.is_asked_again(handle, offset, asked) {
            return;
        }
        let Some(mut set) = self.set(handle, offset).and_then(|set| set.get_or_init(Box::default).try_write()) else { return };
        let Set { kept, next } = &mut *set;
        let is_in_the_way = |kept: &Kept| kept.handle == handle && kept.offset == offset;
        let place = kept.iter().position(|kept| kept.as_ref().is_none_or(|kept| is_in_the_way(kept)));
        let place = place.unwrap_or_else(|| {
            *next = (*next + 1) % WAYS;
            *next
        });
        let (length, is_end) = (bytes.len(), bytes.len() < asked);
        let fresh = || Box::new(Kept { handle, offset, length, is_end, seen, bytes: [0; BYTES_MAX] });
        let kept = kept[place].get_or_insert_with(fresh);
        (kept.handle, kept.offset, kept.length, kept.is_end, kept.seen) = (handle, offset, length, is_end, seen);
        kept.bytes[..length].copy_from_slice(bytes);
    }

    /// [KBY1]
    fn is_asked_again(&self, handle: Handle, offset: u64, length: usize) -> bool {
        let mixed = mixed(handle, offset.rotate_left(13) ^ length as u64);
        let Some(place) = self.asked.get(mixed as usize % ASKED) else { return false };
        let mark = (mixed >> 32) as u32 | 1;
        let is_again = place.load(Relaxed) == mark;
        place.store(mark, Relaxed);
        is_again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_inside_of_what_is_kept_are_answered() {
        let handle = |number| Handle::of(number).expect("a number");
        let of = |length, is_end| Kept { handle: handle(7), offset: 100, length, is_end, seen: Seen::default(), bytes: [0; BYTES_MAX] };
        let whole = of(50, false);
        assert_eq!(whole.part(handle(7), 100, 50), Some((0, 50)));
        assert_eq!(whole.part(handle(7), 120, 30), Some((20, 30)));
        assert_eq!(whole.part(handle(7), 120, 31), None, "a byte more");
        assert_eq!((whole.part(handle(7), 99, 10), whole.part(handle(7), 150, 1), whole.part(handle(8), 100, 1)), (None, None, None));
        let end = of(50, true);
        assert_eq!((end.part(handle(7), 120, 4000), end.part(handle(7), 150, 1)), (Some((20, 30)), None));
    }

    #[test]
    fn what_is_read_once_is_not_kept() {
        let (known, handle, seen) = (KnownBytes::new(true), Handle::of(7).expect("a number"), Seen::of([(1, 1)]));
        let count = || known.sets.iter().flat_map(|set| set.get()).map(|set| set.read().kept.iter().flatten().count()).sum::<usize>();
        for block in 0..5000 {
            known.keep(handle, block * 4096, &[1; 4096], 4096, seen);
        }
        let once = count();
        assert!(once <= 5, "{once}");
        for block in (0..5000).flat_map(|block| [block, block]) {
            known.keep(handle, block * 4096, &[1; 4096], 4096, seen);
        }
        assert!((SETS * WAYS * 9 / 10..=SETS * WAYS).contains(&count()), "{}", count());
    }
}
