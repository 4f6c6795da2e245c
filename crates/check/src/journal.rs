//! The journal: which records are valid, and the lines after they are replayed ([CK1]).
//!
//! [CJ1] A ring goes on at its front only with a record that would not have fitted before the ring's end, as for a mount ([RL4] of
//!       `replay.rs` in `fs`). Otherwise a damaged record is there, whatever is left of it.
//! [CJ2] The same if something is left of a record where the ring seems to end: a valid one behind it, or its header.

use std::collections::BTreeMap;

use tandemfs_device::{DeviceError, Structure};
use tandemfs_format::geometry::SEGMENT_TABLE_LINES;
use tandemfs_format::journal::{JournalRecord, RECORD_MAGIC, RecordHeader, TX_LINES_MAX, decode, record_bytes};
use tandemfs_format::superblock::Tail;
use tandemfs_format::{LINE_BYTES, Line, LineAddress};
use zerocopy::FromBytes;

use crate::finding::Finding;
use crate::image::Image;
use crate::mutant::{Mutant, on};

/// Bytes of a ring that a search loads at a time.
const SCAN_BYTES: usize = 1 << 20;

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

/// Visits the valid records of a ring from its tail on. Returns where it ended.
pub(crate) fn scan_ring(image: &Image<'_>, ring: u32, visit: &mut dyn FnMut(Tail, &JournalRecord)) -> Result<Tail, DeviceError> {
    let tail = image.superblock.tails.get(ring as usize).copied().unwrap_or_default();
    scan_from(image, ring, tail, 0, visit)
}

/// Visits the valid records from a place on whose txids are above `last_txid`.
fn scan_from(
    image: &Image<'_>,
    ring: u32,
    mut at: Tail,
    mut last_txid: u64,
    visit: &mut dyn FnMut(Tail, &JournalRecord),
) -> Result<Tail, DeviceError> {
    let ring_bytes = image.geometry.ring_bytes();
    loop {
        let end = at;
        let mut found = record_at(image, ring, at)?;
        if found.is_none() && at.offset_bytes > 0 {
            at = Tail { offset_bytes: 0, wrap: at.wrap.wrapping_add(1) };
            let left = ring_bytes.saturating_sub(end.offset_bytes.into());
            let did_not_fit = |record: &JournalRecord| record.bytes as u64 > left || on(Mutant::FrontFollowsDamage); // [CJ1]
            found = record_at(image, ring, at)?.filter(did_not_fit);
        }
        // Txids must rise, which ends the scan of a ring full of valid records at its start.
        let Some(record) = found.filter(|record| record.txid > last_txid) else { return Ok(end) };
        if at != end && was_skipped(image, ring, end, last_txid, record.txid)? {
            return Ok(end);
        }
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

/// Whether the ring goes on at its front only because the record at `end` is damaged: there is a valid record behind it, or its header with a
/// txid between its neighbours' ([CJ2]). (A header that an earlier mount left there has an older txid.)
fn was_skipped(image: &Image<'_>, ring: u32, end: Tail, last_txid: u64, next_txid: u64) -> Result<bool, DeviceError> {
    if on(Mutant::RingEndsAtDamage) {
        return Ok(false);
    }
    let above = last_txid.max(image.superblock.watermark);
    let start = u64::from(end.offset_bytes);
    let here = candidates(image, ring, start..start + LINE_BYTES as u64, end.wrap)?;
    if here.iter().any(|(_, txid)| (above + 1..next_txid).contains(txid)) {
        return Ok(true);
    }
    for (at, _) in candidates(image, ring, start + LINE_BYTES as u64..image.geometry.ring_bytes(), end.wrap)? {
        if record_at(image, ring, at)?.is_some_and(|record| record.txid > above) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The first valid record of a ring that lies somewhere behind the place where the scan ended, with a txid above `above`. There is one only
/// if the record at that place was damaged: a record is begun when the one before it is persistent, and checksums contain wrap count and
/// generation, so older records do not verify.
fn record_behind(image: &Image<'_>, ring: u32, end: Tail, above: u64) -> Result<Option<Tail>, DeviceError> {
    let (ring_bytes, start) = (image.geometry.ring_bytes(), u64::from(end.offset_bytes));
    let behind = candidates(image, ring, start + LINE_BYTES as u64..ring_bytes, end.wrap)?;
    let wrapped = candidates(image, ring, 0..start, end.wrap.wrapping_add(1))?;
    for (at, _) in behind.into_iter().chain(wrapped) {
        if record_at(image, ring, at)?.is_some_and(|record| record.txid > above) {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// Places in a part of a ring where a line looks like the header of a record with this wrap count, with the txids there.
fn candidates(image: &Image<'_>, ring: u32, range: std::ops::Range<u64>, wrap: u32) -> Result<Vec<(Tail, u64)>, DeviceError> {
    let mut found = Vec::new();
    for first in range.clone().step_by(SCAN_BYTES) {
        let mut bytes = vec![0; (range.end - first).min(SCAN_BYTES as u64) as usize];
        let address = image.geometry.ring(ring).nth(first / LINE_BYTES as u64);
        image.drive.load(Structure::Journal, address, &mut bytes)?;
        for (offset, line) in (first..).step_by(LINE_BYTES).zip(bytes.chunks_exact(LINE_BYTES)) {
            let Ok((header, _)) = RecordHeader::read_from_prefix(line) else { continue };
            if header.magic.get() == RECORD_MAGIC && header.wrap.get() == wrap {
                found.push((Tail { offset_bytes: offset as u32, wrap }, header.txid.get()));
            }
        }
    }
    Ok(found)
}

/// The records above the watermark, in the order of replay. Records behind damaged ones count too; the damage goes to `found`.
pub(crate) fn pending(image: &Image<'_>, found: &mut Vec<Finding>) -> Result<Vec<RecordPlace>, DeviceError> {
    let mut places = Vec::new();
    let watermark = image.superblock.watermark;
    for ring in 0..image.geometry.ring_count() {
        let mut last_txid = 0;
        let mut visit = |at, record: &JournalRecord| {
            last_txid = last_txid.max(record.txid);
            if record.txid > watermark {
                places.push(RecordPlace { ring, at, txid: record.txid });
            }
        };
        let mut end = scan_ring(image, ring, &mut visit)?;
        while !image.superblock.clean && !on(Mutant::RingEndsAtDamage) {
            // Also one with a txid below the last: in a ring that the engine wrote txids rise, in a forged one a mount may refuse it.
            let Some(next) = record_behind(image, ring, end, watermark)? else { break };
            let txid = record_at(image, ring, next)?.map_or(0, |record| record.txid);
            found.push(Finding::RecordDamaged { ring, offset: end.offset_bytes, next: txid });
            let mut visit = |at, record: &JournalRecord| {
                last_txid = last_txid.max(record.txid);
                places.push(RecordPlace { ring, at, txid: record.txid });
            };
            end = scan_from(image, ring, next, txid.saturating_sub(1), &mut visit)?;
        }
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
