//! Replay: every record above the watermark, of all rings, in txid order (RULES R1, R3).
//!
//! [RL1] All rings are read and validated before anything is applied; a ring ends at its first invalid record.
//! [RL2] Lines use the same `apply` as live commits, and then go home by the same code as a checkpoint.
//! [RL3] Replayed lines are home and fenced before the new generation is durable; that is the commit point. A recovery interrupted before
//!       it is repeated with the same result: whole line images in the same order.
//! [RL4] The end of a ring is torn only if nothing follows it. A record is stored after its predecessor in the ring is persistent ([J2]), a
//!       wrap count names one pass over the ring, and a generation one mount. So a crash leaves no valid record of the same wrap count
//!       behind an invalid one, nor one of the next wrap count anywhere. If there is one, the record before it is damaged: transactions
//!       that were acknowledged would be lost, and a mount that writes is refused. Records of earlier passes have smaller wrap counts.
//!       A pass follows another only where its first record did not fit before the ring's end: if it would have fit, a damaged one is there.

use tandemfs_device::Structure;
use tandemfs_format::geometry::Geometry;
use tandemfs_format::journal::{JournalRecord, decode};
use tandemfs_format::superblock::{Superblock, Tail};
use tandemfs_format::{LINE_BYTES, PairSeed};

use super::Journal;
use super::ring::used_ring_bytes;
use crate::cache::{LineStore, load_bulk};
use crate::error::{Error, Result};
use crate::mutant::{self, Mutant, on};

/// The records of one ring, and where it ends.
#[derive(Debug, Default)]
pub(crate) struct RingRecords {
    records: Vec<JournalRecord>,
    /// The last txid of a valid record behind the end ([RL4]).
    behind_damage: Option<u64>,
}

/// The last txid of a record that was stored after the one at `end`, which does not prove itself ([RL4]).
fn record_behind(ring_bytes: &[u8], pair: PairSeed, ring: u32, end: Tail, generation: u64) -> Option<u64> {
    let next_wrap = end.wrap.wrapping_add(1);
    let places = (0..ring_bytes.len()).step_by(LINE_BYTES);
    let behind = places.filter_map(|offset| {
        let wrap = if offset > end.offset_bytes as usize { end.wrap } else { next_wrap };
        let found = decode(&ring_bytes[offset..], pair, ring, wrap, generation)?;
        (!found.changes.is_empty()).then_some(found.txid)
    });
    behind.max()
}

/// The records of one ring from its tail on ([RL1]), and what is behind them ([RL4]).
pub(crate) fn ring_records(ring_bytes: &[u8], pair: PairSeed, ring: u32, tail: Tail, generation: u64) -> RingRecords {
    let (records, end) = proved_records(ring_bytes, pair, ring, tail, generation);
    let behind_damage = if on(Mutant::DamagedRecordEndsRing) { None } else { record_behind(ring_bytes, pair, ring, end, generation) };
    RingRecords { records, behind_damage }
}

/// The records of one ring up to the first place where none proves itself, and that place.
fn proved_records(ring_bytes: &[u8], pair: PairSeed, ring: u32, tail: Tail, generation: u64) -> (Vec<JournalRecord>, Tail) {
    let mut records = Vec::new();
    let mut at = tail;
    let mut previous_txid = 0;
    loop {
        let mut here = decode(&ring_bytes[at.offset_bytes as usize..], pair, ring, at.wrap, generation);
        if on(Mutant::RecordChecksumIgnored) {
            here = mutant::decode_unproved(&ring_bytes[at.offset_bytes as usize..], at.wrap);
        }
        let found = match here {
            Some(record) => Some((record, at)),
            // A record that did not fit before the end is at the front.
            None if at.offset_bytes > 0 => {
                let front = Tail { offset_bytes: 0, wrap: at.wrap.wrapping_add(1) };
                let left = ring_bytes.len() - at.offset_bytes as usize;
                let did_not_fit = |record: &JournalRecord| record.bytes > left || on(Mutant::DamagedRecordEndsRing); // [RL4]
                decode(ring_bytes, pair, ring, front.wrap, generation).filter(did_not_fit).map(|record| (record, front))
            }
            None => None,
        };
        let Some((record, start)) = found.filter(|(record, _)| record.txid > previous_txid) else { return (records, at) };
        previous_txid = record.txid;
        let end = start.offset_bytes as usize + record.bytes;
        at = if end == ring_bytes.len() {
            Tail { offset_bytes: 0, wrap: start.wrap.wrapping_add(1) }
        } else {
            Tail { offset_bytes: end as u32, wrap: start.wrap }
        };
        records.push(record);
    }
}

/// All records above the watermark, in txid order. Refuses a damaged ring, unless the mount is read-only ([RL4]): then records of the ring
/// up to the damage count.
pub(crate) fn read_records(
    drive: &tandemfs_device::Drive,
    geometry: &Geometry,
    superblock: &Superblock,
    read_only: bool,
) -> Result<Vec<JournalRecord>> {
    let pair = PairSeed::new(superblock.pair);
    let mut records = Vec::new();
    let mut bytes = vec![0; used_ring_bytes(geometry) as usize];
    for ring in 0..geometry.ring_count() {
        for (offset, piece) in (0..).step_by(1 << 20).zip(bytes.chunks_mut(1 << 20)) {
            load_bulk(drive, Structure::Journal, geometry.ring(ring).nth(offset / LINE_BYTES as u64), piece)?;
        }
        let tail = superblock.tails.get(ring as usize).copied().unwrap_or_default();
        let found = ring_records(&bytes, pair, ring, tail, superblock.generation);
        // Up to the watermark every line is home, so nothing is lost there.
        if let Some(txid) = found.behind_damage.filter(|txid| *txid > superblock.watermark) {
            let device = &drive.description().name;
            let last = found.records.last().map_or(superblock.watermark, |record| record.txid);
            let what = format!(
                "{device}: a record of journal ring {ring} behind transaction {last} is damaged, and transaction {txid} after it was \
                 acknowledged; run tandemfs check --repair, or mount read-only for the state before the damage"
            );
            if !read_only {
                return Err(Error::JournalDamaged { what });
            }
            tracing::error!("{what}");
        }
        records.extend(found.records);
    }
    records.retain(|record| record.txid > superblock.watermark);
    if !on(Mutant::ReplayInRingOrder) {
        records.sort_by_key(|record| record.txid);
    }
    Ok(records)
}

impl Journal {
    /// Applies records to the host copies, and writes them home unless the mount is read-only ([RL2]). Returns the last txid.
    pub(crate) fn replay(&self, line_store: &LineStore, records: &[JournalRecord]) -> Result<u64> {
        let mut last = self.watermark();
        for record in records {
            for (address, image) in &record.changes {
                let in_table = line_store.geometry.segment_line(0) <= *address
                    && *address <= line_store.geometry.segment_line(tandemfs_format::geometry::SEGMENT_TABLE_LINES - 1);
                if !in_table && !line_store.geometry.holds_lines(*address, 1) {
                    let cause = format!("record {} of the journal names line {address}, which is outside the zone", record.txid);
                    return Err(Error::Stopped { first_cause: cause });
                }
                let page = match line_store.page(Structure::Mapping, *address) {
                    Err(Error::Device(error)) if line_store.health.is_read_only() && !on(Mutant::UnreadableRefusesReaders) => {
                        tracing::warn!(%error, line = address.number(), "what a line held that cannot be read is not there");
                        line_store.page_of_readable_lines(Structure::Mapping, *address)?
                    }
                    other => other?,
                };
                line_store.pages.apply(&page, *address, image);
            }
            last = record.txid;
            if line_store.pages.is_full_of_dirty() && !line_store.health.is_read_only() {
                drop(self.write_home(line_store, &line_store.pages.take_dirty())?);
            }
        }
        Ok(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandemfs_format::journal::{encode, record_bytes};
    use tandemfs_format::{LineAddress, journal};

    fn write(ring: &mut [u8], pair: PairSeed, at: Tail, txid: u64, changes: usize) {
        let mut buffer = Vec::new();
        let addresses: Vec<LineAddress> = (0..changes as u64).map(LineAddress::new).collect();
        encode(&mut buffer, pair.journal(1, at.wrap, 7), at.wrap, txid, &addresses, &vec![[3; 64]; changes]);
        ring[at.offset_bytes as usize..at.offset_bytes as usize + buffer.len()].copy_from_slice(&buffer);
    }

    #[test]
    fn a_ring_is_read_from_its_tail_around_its_end() {
        let pair = PairSeed::new(uuid::Uuid::from_u128(1));
        let mut ring = vec![0xee; 2048];
        let size = record_bytes(4) as u32; // 320
        let tail = Tail { offset_bytes: 2048 - size - 64, wrap: 3 };
        write(&mut ring, pair, tail, 10, 4);
        write(&mut ring, pair, Tail { offset_bytes: 0, wrap: 4 }, 12, 4); // 64 B before the end were too few
        write(&mut ring, pair, Tail { offset_bytes: size, wrap: 4 }, 13, 1);
        let read = |ring: &[u8], generation| {
            let found = ring_records(ring, pair, 1, tail, generation);
            (found.records.iter().map(|record| record.txid).collect::<Vec<u64>>(), found.behind_damage)
        };
        assert_eq!(read(&ring, 7), (vec![10, 12, 13], None));
        ring[size as usize + 40] ^= 1;
        assert_eq!(read(&ring, 7), (vec![10, 12], None), "a torn record is the end");
        assert_eq!(read(&ring, 8), (vec![], None), "records of another mount prove nothing");
        assert_eq!(journal::RECORD_BYTES_MAX % 64, 0);
    }

    /// Whatever record of a pass is damaged, the ones behind it show it; records of the pass before show nothing ([RL4]).
    #[test]
    fn a_damaged_record_in_the_middle_is_told_from_a_torn_end() {
        let pair = PairSeed::new(uuid::Uuid::from_u128(1));
        let size = record_bytes(4) as u32; // 320
        let place = |index: u32, wrap| Tail { offset_bytes: index * size, wrap };
        let mut ring = vec![0xee; 2048];
        (0..6).for_each(|index| write(&mut ring, pair, place(index, 1), 10 + u64::from(index), 4));
        (0..4).for_each(|index| write(&mut ring, pair, place(index, 2), 20 + u64::from(index), 4));
        let read = |ring: &[u8], tail| {
            let found = ring_records(ring, pair, 1, tail, 7);
            (found.records.iter().map(|record| record.txid).collect::<Vec<u64>>(), found.behind_damage)
        };
        assert_eq!(read(&ring, place(0, 2)), (vec![20, 21, 22, 23], None), "the rest is of the pass before");
        for (damaged, expected) in [(0, (vec![], Some(23))), (2, (vec![20, 21], Some(23))), (3, (vec![20, 21, 22], None))] {
            let mut ring = ring.clone();
            ring[(damaged * size) as usize + 100] ^= 4;
            assert_eq!(read(&ring, place(0, 2)), expected, "record {damaged}");
        }
        // From a tail in the pass before, over the ring's end.
        assert_eq!(read(&ring, place(4, 1)), (vec![14, 15, 20, 21, 22, 23], None));
        ring[5 * size as usize + 7] ^= 4;
        assert_eq!(read(&ring, place(4, 1)), (vec![14], Some(23)), "the next pass follows a damaged record");
    }
}
