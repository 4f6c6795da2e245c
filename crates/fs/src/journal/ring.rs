//! One journal ring: consecutive records; a record that does not fit before the end goes to the front, with the next wrap count.
//!
//! [J1] A record is persisted once; its CRC covers header and payload, so a torn record reads as the end of the ring (RULES R3).
//! [J2] The ring's lock is held from the reservation until the record is persistent, and the txid is assigned under it (RULES R2).
//! [J3] The tail passes only records at or below the watermark shared by all rings, and only after that watermark is durable (RULES R1).

use std::collections::VecDeque;

use tandemfs_format::geometry::Geometry;
use tandemfs_format::journal::{RECORD_BYTES_MAX, record_bytes};
use tandemfs_format::superblock::Tail;

use crate::sync::EXPLORED;

/// Bytes used of a ring: all, or (when schedules are explored) space for two of the largest records.
pub(crate) fn used_ring_bytes(geometry: &Geometry) -> u64 {
    const FEW: u64 = (2 * RECORD_BYTES_MAX as u64).next_multiple_of(4096);
    if EXPLORED { FEW.min(geometry.ring_bytes()) } else { geometry.ring_bytes() }
}

/// A record that may still be needed for replay.
struct LiveRecord {
    txid: u64,
    start: Tail,
    /// Bytes that become free once the record is home: its own, and those skipped before it.
    bytes: u64,
}

pub(crate) struct Ring {
    pub(crate) index: u32,
    head: Tail,
    used_bytes: u64,
    size_bytes: u64,
    live: VecDeque<LiveRecord>,
    /// The record under construction; reused to avoid allocations.
    pub(crate) buffer: Vec<u8>,
}

/// A reserved place for a record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reservation {
    pub(crate) start: Tail,
    bytes: u64,
    used_bytes: u64,
}

impl Ring {
    pub(crate) fn new(index: u32, size_bytes: u64, head: Tail) -> Self {
        Self { index, head, used_bytes: 0, size_bytes, live: VecDeque::new(), buffer: Vec::new() }
    }

    /// The place for a record of `changes` lines; `None` if the ring is too full.
    pub(crate) fn reserve(&self, changes: usize) -> Option<Reservation> {
        let bytes = record_bytes(changes) as u64;
        let left = self.size_bytes - u64::from(self.head.offset_bytes);
        let (start, skipped) =
            if bytes <= left { (self.head, 0) } else { (Tail { offset_bytes: 0, wrap: self.head.wrap.wrapping_add(1) }, left) };
        (self.used_bytes + skipped + bytes <= self.size_bytes).then_some(Reservation { start, bytes, used_bytes: skipped + bytes })
    }

    /// The record is persistent: moves the head past it.
    pub(crate) fn advance(&mut self, reservation: Reservation, txid: u64) {
        self.live.push_back(LiveRecord { txid, start: reservation.start, bytes: reservation.used_bytes });
        self.used_bytes += reservation.used_bytes;
        let end = u64::from(reservation.start.offset_bytes) + reservation.bytes;
        self.head = if end == self.size_bytes {
            Tail { offset_bytes: 0, wrap: reservation.start.wrap.wrapping_add(1) }
        } else {
            Tail { offset_bytes: end as u32, wrap: reservation.start.wrap }
        };
        self.assert_state();
    }

    /// The start of the oldest record above `watermark`, or the head.
    pub(crate) fn tail(&self, watermark: u64) -> Tail {
        self.live.iter().find(|record| record.txid > watermark).map_or(self.head, |record| record.start)
    }

    /// Frees the records at or below a durable watermark ([J3]).
    pub(crate) fn release(&mut self, watermark: u64) {
        while let Some(record) = self.live.front() {
            if record.txid > watermark {
                break;
            }
            self.used_bytes -= record.bytes;
            self.live.pop_front();
        }
        self.assert_state();
    }

    /// Whether so much is used that a background checkpoint should start.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        self.used_bytes > self.size_bytes / 2
    }

    fn assert_state(&self) {
        debug_assert_eq!(self.used_bytes, self.live.iter().map(|record| record.bytes).sum::<u64>());
        debug_assert!(self.live.iter().zip(self.live.iter().skip(1)).all(|(a, b)| a.txid < b.txid), "txids rise within a ring");
        assert!(self.used_bytes <= self.size_bytes && u64::from(self.head.offset_bytes) < self.size_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_wrap_and_are_released_in_order() {
        let mut ring = Ring::new(0, 1024, Tail::default());
        let mut txid = 0;
        for _ in 0..100 {
            while let Some(reservation) = ring.reserve(4) {
                txid += 1;
                ring.advance(reservation, txid);
            }
            assert!(ring.wants_checkpoint());
            assert_eq!(ring.tail(txid), ring.head);
            ring.release(txid - 1);
            assert_ne!(ring.tail(txid - 1), ring.head);
        }
        assert!(ring.head.wrap > 50);
    }

    #[test]
    fn a_record_never_runs_over_the_end() {
        let mut ring = Ring::new(0, 1024, Tail { offset_bytes: 896, wrap: 3 });
        let reservation = ring.reserve(4).expect("an empty ring has room");
        assert_eq!(reservation.start, Tail { offset_bytes: 0, wrap: 4 });
        ring.advance(reservation, 1);
        assert_eq!(ring.used_bytes, 128 + 320);
    }
}
