//! Replay: every record above the watermark, of all rings, in txid order (RULES R1, R3).
//!
//! [RL1] All rings are read and validated before anything is applied; a ring ends at its first invalid record.
//! [RL2] Lines use the same `apply` as live commits, and then go home by the same code as a checkpoint.
//! [RL3] Replayed lines are home and fenced before the new generation is durable; that is the commit point. A recovery interrupted before
//!       it is repeated with the same result: whole line images in the same order.

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

/// The records of one ring from its tail on ([RL1]).
pub(crate) fn ring_records(ring_bytes: &[u8], pair: PairSeed, ring: u32, tail: Tail, generation: u64) -> Vec<JournalRecord> {
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
                decode(ring_bytes, pair, ring, front.wrap, generation).map(|record| (record, front))
            }
            None => None,
        };
        let Some((record, start)) = found.filter(|(record, _)| record.txid > previous_txid) else { return records };
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

/// All records above the watermark, in txid order.
pub(crate) fn read_records(drive: &tandemfs_device::Drive, geometry: &Geometry, superblock: &Superblock) -> Result<Vec<JournalRecord>> {
    let pair = PairSeed::new(superblock.pair);
    let mut records = Vec::new();
    let mut bytes = vec![0; used_ring_bytes(geometry) as usize];
    for ring in 0..geometry.ring_count() {
        for (offset, piece) in (0..).step_by(1 << 20).zip(bytes.chunks_mut(1 << 20)) {
            load_bulk(drive, Structure::Journal, geometry.ring(ring).nth(offset / LINE_BYTES as u64), piece)?;
        }
        let tail = superblock.tails.get(ring as usize).copied().unwrap_or_default();
        records.extend(ring_records(&bytes, pair, ring, tail, superblock.generation));
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
                let page = line_store.page(Structure::Mapping, *address)?;
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
        let txids = |ring: &[u8]| ring_records(ring, pair, 1, tail, 7).iter().map(|record| record.txid).collect::<Vec<u64>>();
        assert_eq!(txids(&ring), [10, 12, 13]);
        ring[size as usize + 40] ^= 1;
        assert_eq!(txids(&ring), [10, 12], "a torn record is the end");
        assert!(ring_records(&ring, pair, 1, tail, 8).is_empty(), "records of another mount prove nothing");
        assert_eq!(journal::RECORD_BYTES_MAX % 64, 0);
    }
}
