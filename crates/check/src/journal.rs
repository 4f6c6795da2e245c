//! The journal: which records are valid, and the lines after they are replayed ([CK1]).

use std::collections::BTreeMap;

use tandemfs_device::{DeviceError, Structure};
use tandemfs_format::geometry::SEGMENT_TABLE_LINES;
use tandemfs_format::journal::{JournalRecord, RecordHeader, TX_LINES_MAX, decode, record_bytes};
use tandemfs_format::superblock::Tail;
use tandemfs_format::{LINE_BYTES, Line, LineAddress};
use zerocopy::FromBytes;

use crate::finding::Finding;
use crate::image::Image;

/// Place of a valid record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordPlace {
    pub(crate) ring: u32,
    pub(crate) at: Tail,
    pub(crate) txid: u64,
}

/// The valid record at a place of a ring, if any. Loads the header line first, so that only the record's own bytes are read.
pub(crate) fn record_at(image: &Image<'_>, ring: u32, at: Tail) -> Result<Option<JournalRecord>, DeviceError> {
    let room = image.geometry.ring_bytes().saturating_sub(at.offset_bytes.into()) as usize;
    if room < LINE_BYTES {
        return Ok(None);
    }
    let start = image.geometry.ring(ring).nth(u64::from(at.offset_bytes) / LINE_BYTES as u64);
    let mut bytes = vec![0; LINE_BYTES];
    image.drive.load(Structure::Journal, start, &mut bytes)?;
    let count = RecordHeader::read_from_prefix(&bytes).map_or(0, |(header, _)| header.change_count.get() as usize);
    if count > TX_LINES_MAX || record_bytes(count) > room {
        return Ok(None);
    }
    bytes.resize(record_bytes(count), 0);
    image.drive.load(Structure::Journal, start, &mut bytes)?;
    Ok(decode(&bytes, image.pair, ring, at.wrap, image.superblock.generation))
}

/// Visits the valid records of a ring from its tail on.
pub(crate) fn scan_ring(image: &Image<'_>, ring: u32, visit: &mut dyn FnMut(Tail, &JournalRecord)) -> Result<(), DeviceError> {
    let ring_bytes = image.geometry.ring_bytes();
    let mut at = image.superblock.tails.get(ring as usize).copied().unwrap_or_default();
    let mut last_txid = 0;
    loop {
        let mut found = record_at(image, ring, at)?;
        if found.is_none() && at.offset_bytes > 0 {
            at = Tail { offset_bytes: 0, wrap: at.wrap.wrapping_add(1) };
            found = record_at(image, ring, at)?;
        }
        // Txids must rise, which ends the scan of a ring full of valid records at its start.
        let Some(record) = found.filter(|record| record.txid > last_txid) else { return Ok(()) };
        last_txid = record.txid;
        visit(at, &record);
        let end = u64::from(at.offset_bytes) + record.bytes as u64;
        at = if end == ring_bytes {
            Tail { offset_bytes: 0, wrap: at.wrap.wrapping_add(1) }
        } else {
            Tail { offset_bytes: end as u32, wrap: at.wrap }
        };
    }
}

/// The records above the watermark, in the order of replay.
pub(crate) fn pending(image: &Image<'_>) -> Result<Vec<RecordPlace>, DeviceError> {
    let mut places = Vec::new();
    for ring in 0..image.geometry.ring_count() {
        scan_ring(image, ring, &mut |at, record| {
            if record.txid > image.superblock.watermark {
                places.push(RecordPlace { ring, at, txid: record.txid });
            }
        })?;
    }
    places.sort_by_key(|place| place.txid);
    Ok(places)
}

/// The lines after replay. Errors in records go to `found`; then nothing is replayed, because a mount would refuse.
pub(crate) fn replay(image: &Image<'_>, places: &[RecordPlace], found: &mut Vec<Finding>) -> Result<BTreeMap<u64, Line>, DeviceError> {
    let mut overlay = BTreeMap::new();
    let before = found.len();
    for pair in places.windows(2) {
        if let [first, second] = pair
            && first.txid == second.txid
        {
            found.push(Finding::RecordTwice { txid: first.txid });
        }
    }
    for place in places {
        let Some(record) = record_at(image, place.ring, place.at)? else { continue };
        for (line, bytes) in record.changes {
            if may_change(image, line) {
                overlay.insert(line.number(), bytes);
            } else {
                found.push(Finding::RecordOutOfPlace { ring: place.ring, txid: place.txid, line: line.number() });
            }
        }
    }
    if found.len() > before {
        overlay.clear();
    }
    Ok(overlay)
}

fn may_change(image: &Image<'_>, line: LineAddress) -> bool {
    let table = image.geometry.segment_line(0)..=image.geometry.segment_line(SEGMENT_TABLE_LINES - 1);
    table.contains(&line) || image.geometry.holds_lines(line, 1)
}
