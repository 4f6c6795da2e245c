//! Steps 4 and 5 of a write ([`super::write_path`]): transfers logs and blocks in parallel, and returns the proofs that both are durable.

use std::ops::Range;

use smallvec::SmallVec;
use tandemfs_device::{BlockRequest, Fenced, Flushed, InFlight, Lines, Source, Structure, Written};
use tandemfs_format::mapping::LogEntry;
use tandemfs_format::{DataAddress, InodeNumber, LineAddress, Sector};

use super::compose::load_log;
use super::extent_io::{checksums_of, store_pages};
use super::log_plan::Part;
use super::mutants;
use super::target::{Action, Bytes, Store, Target};
use crate::error::Result;
use crate::index::block::{LogSlots, NewExtent};
use crate::mutant::{Mutant, on};
use crate::statistics::{add, count};
use crate::types::Update;
use crate::volume::Volume;
use crate::wait::may_wait;

impl Store<'_> {
    /// Whether the next log holds the next bytes of the same part, in the next slot on the device.
    fn goes_on_in(&self, next: &Self, parts: &[Part<'_>]) -> bool {
        let is_plain = |store: &Self| store.skip == 0 && matches!(store.bytes, Bytes::Borrowed(_));
        let (start, end) = (self.entry.offset, next.entry.end());
        is_plain(self)
            && is_plain(next)
            && self.entry.end() == next.entry.offset
            && next.entry.follows(&self.entry)
            && parts.iter().any(|part| part.offset <= start && end <= part.end())
    }
}

/// Composes the bytes of a log from old logs of the file and new parts.
fn merge(
    volume: &Volume,
    inode: InodeNumber,
    merged: &[LogEntry],
    parts: &[Part<'_>],
    block_start: u64,
    entry: &LogEntry,
) -> Result<Vec<u8>> {
    let (offset, end) = (entry.offset, entry.end());
    let mut bytes = vec![0; entry.length as usize];
    let mut buffer = [0; 4096];
    let mut copy = |start: u32, data: Source<'_>| {
        let (from, to) = (start.max(offset), (start + data.len() as u32).min(end));
        if from < to {
            let piece = data.slice((from - start) as usize..(to - start) as usize);
            piece.copy_to(&mut bytes[(from - offset) as usize..(to - offset) as usize]); // [SM3]
        }
    };
    for log in merged.iter().filter(|_| !on(Mutant::MergedBytesForgotten)) {
        let old = &mut buffer[..log.length as usize];
        load_log(volume, inode, block_start, log, old)?;
        copy(log.offset, Source::Private(old));
    }
    for part in parts {
        copy(part.offset, part.data);
    }
    Ok(bytes)
}

/// How the planned stores of a write go to the media. Only what goes to the memory zone, and is not refused for a wait, counts for its heat.
pub(super) fn update_of(volume: &Volume, file: InodeNumber, bytes: Range<u64>, targets: &[Target<'_>]) -> Result<Update> {
    let (mut stores, mut writes) = (false, false);
    for target in targets {
        match &target.action {
            Action::Logs { .. } => stores = true,
            Action::Extent { new, stores: logs, .. } => {
                let is_sector = new.at.sector().is_some();
                (stores, writes) = (stores || !is_sector || !logs.is_empty(), writes || is_sector);
            }
            Action::Undecided => {}
        }
    }
    if writes {
        may_wait()?;
    }
    let length = (bytes.end - bytes.start) as usize;
    Ok(if stores { volume.updates.of_write(file, bytes.start, length) } else { volume.updates.of_cold(length) })
}

/// 4 and 5. Submits block writes; meanwhile stores logs and pages, and computes checksums; then makes all durable.
pub(super) fn transfer(volume: &Volume, update: Update, targets: &mut [Target<'_>]) -> Result<(Fenced, Flushed)> {
    let block_bytes = u64::from(volume.geometry.block_bytes());
    let mut logs: SmallVec<[Logs<'_, '_>; 2]> = SmallVec::new();
    let mut blocks: SmallVec<[(&mut NewExtent, Sector, Source<'_>); 2]> = SmallVec::new();
    let mut pages: SmallVec<[(&mut NewExtent, LineAddress, &[u8]); 2]> = SmallVec::new();
    for target in targets {
        match &mut target.action {
            Action::Logs { slots, stores, merges, .. } => {
                add(&volume.live.work.merges, *merges);
                logs.push(Logs { slots, stores, parts: &target.parts, block_start: target.block * block_bytes });
            }
            Action::Extent { new, bytes, slots, stores, .. } => {
                match new.at {
                    DataAddress::Sector(sector) => blocks.push((new, sector, bytes.source())),
                    DataAddress::Page(page) => pages.push((new, page, bytes.get())),
                }
                if !stores.is_empty() {
                    logs.push(Logs { slots, stores, parts: &target.parts, block_start: target.block * block_bytes });
                }
            }
            Action::Undecided => unreachable!("every block was decided on"),
        }
    }
    if !blocks.is_empty() {
        may_wait()?;
    }
    let mut stored = None;
    let mut store_logs = || -> Result<_> {
        let in_flight = store_all(volume, update, &mut logs)?;
        pages
            .iter_mut()
            .try_fold(in_flight, |in_flight, (new, page, bytes)| Ok(in_flight.and(store_pages(volume, update, *page, new, bytes)?)))
    };
    let flushed = if blocks.is_empty() {
        stored = Some(store_logs());
        Flushed::nothing_written()
    } else {
        let mut requests = write_requests(&blocks);
        let written = volume.drive.transfer(Structure::Data, &mut requests, &mut || {
            stored = Some(store_logs());
            for (new, _, bytes) in &mut blocks {
                new.checksums = checksums_of(volume, *bytes);
            }
        })?;
        flush(volume, written)?
    };
    let in_flight = stored.unwrap_or_else(|| Ok(Lines::none()))?;
    let any_log = logs.iter().any(|logs| !logs.stores.is_empty()) && !on(Mutant::LogsNotFenced);
    let any_page = !pages.is_empty() && !on(Mutant::HomePagesNotFenced);
    let fenced = if any_log || any_page { volume.drive.fence(in_flight) } else { Fenced::nothing_stored() };
    Ok((fenced, flushed))
}

/// FLUSHes written blocks. After a failed FLUSH nothing is known about durability (RULES R15).
fn flush(volume: &Volume, written: Written) -> Result<Flushed> {
    match mutants::flush_blocks(volume, written) {
        Err(_) if on(Mutant::FailedFlushIgnored) => Ok(Flushed::nothing_written()),
        other => other.map_err(|error| volume.health.stop("flushing the drive", &error)),
    }
}

/// Stores the logs of all blocks and starts flushing their cache lines.
fn store_all(volume: &Volume, update: Update, logs: &mut [Logs<'_, '_>]) -> Result<Lines<InFlight>> {
    let mut in_flight = Lines::none();
    for Logs { slots, stores, parts, block_start } in logs {
        for run in stores.chunk_by_mut(|one, next| one.goes_on_in(next, parts)) {
            if run.len() > 1 {
                in_flight = in_flight.and(store_run(volume, update, run, slots, parts)?);
                continue;
            }
            let [store] = run else { unreachable!("no run is empty") };
            if let Bytes::Merged(inode, merged) = &store.bytes {
                store.bytes = Bytes::Owned(merge(volume, *inode, merged, parts, *block_start, &store.entry)?);
            }
            in_flight = in_flight.and(store_log(volume, update, store, parts)?);
            slots[store.slot] = Some(store.entry);
        }
    }
    Ok(in_flight)
}

/// Stores logs of one part with consecutive slots: the byte path moves 64 KiB in half the time of sixteen pages.
#[inline(never)] // rare
fn store_run(volume: &Volume, update: Update, run: &mut [Store<'_>], slots: &mut LogSlots, parts: &[Part<'_>]) -> Result<Lines<InFlight>> {
    let (start, end, address) = (run[0].entry.offset, run[run.len() - 1].entry.end(), run[0].entry.address);
    let holds = |part: &&Part<'_>| part.offset <= start && end <= part.end();
    let found = parts.iter().find(holds).and_then(|part| Some((part.offset, part.data.private()?)));
    let Some((offset, data)) = found else { unreachable!("logs that go on in each other are of one private part") };
    let bytes = &data[(start - offset) as usize..(end - offset) as usize];
    let in_flight = volume.store_data(update, Structure::DataLog, (address, 0), bytes)?;
    for store in run {
        store.entry.crc = volume.data_checksum(store.bytes.get());
        slots[store.slot] = Some(store.entry);
    }
    Ok(in_flight)
}

/// The logs to store for one block.
struct Logs<'t, 'd> {
    slots: &'t mut LogSlots,
    stores: &'t mut [Store<'d>],
    parts: &'t [Part<'d>],
    block_start: u64,
}

/// One request per block.
fn write_requests<'b>(blocks: &SmallVec<[(&mut NewExtent, Sector, Source<'b>); 2]>) -> SmallVec<[BlockRequest<'b>; 2]> {
    blocks.iter().map(|(_, sector, bytes)| BlockRequest::Write { sector: *sector, buffer: *bytes }).collect()
}

/// Stores one log and starts flushing its cache lines. Its checksum is computed from the caller's bytes, or extended (RULES R10).
fn store_log(volume: &Volume, update: Update, store: &mut Store<'_>, parts: &[Part<'_>]) -> Result<Lines<InFlight>> {
    let bytes = store.bytes.get();
    if store.skip > 0 {
        count(&volume.live.work.appends_in_place);
        if volume.checksums {
            store.entry.crc = volume.pair.data_extend(mutants::recorded_checksum(volume, &store.entry, store.skip)?, bytes);
        }
    } else {
        store.entry.crc = volume.data_checksum(bytes);
    }
    let bytes = mutants::bytes_to_store(store, parts);
    volume.store_data(update, Structure::DataLog, (store.entry.address, store.skip.into()), &bytes)
}
