//! Steps 3 to 5 of a write ([`super::write_path`]): slots for its logs, logs and blocks on their way to the device at once, and the proofs that
//! both are durable.

use smallvec::SmallVec;
use tandemfs_device::{BlockRequest, Fenced, Flushed, InFlight, Lines, Structure};
use tandemfs_format::mapping::{LogEntry, SlotClass};
use tandemfs_format::{InodeNumber, LineAddress, SECTOR_BYTES};

use super::FileView;
use super::compose::load_log;
use super::log_plan::{LogPlan, Part, Step};
use super::write_path::{Action, Target};
use crate::Result;
use crate::alloc::Need;
use crate::index::block::{LogSlots, NewSectors};
use crate::journal::{Tx, tx_space as space};
use crate::mutant::{Mutant, on};
use crate::statistics::{add, count};
use crate::volume::Volume;

/// A log on its way: which entry of the leaf it becomes.
pub(super) struct Store<'d> {
    pub(super) slot: usize,
    pub(super) entry: LogEntry,
    /// Bytes of the entry that are on the device already: an append in place leaves them alone.
    pub(super) skip: u32,
    pub(super) bytes: Bytes<'d>,
}

pub(super) enum Bytes<'d> {
    Borrowed(&'d [u8]),
    Owned(Vec<u8>),
    /// New bytes over those of logs of this file, which are loaded while blocks are in flight.
    Merged(InodeNumber, Vec<LogEntry>),
}

impl Store<'_> {
    /// Whether the next log holds the bytes of the same part that come next, and its slot is the next on the device.
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

impl Bytes<'_> {
    pub(super) fn get(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Owned(bytes) => bytes,
            Self::Merged(..) => unreachable!("logs are merged before their bytes are asked for"),
        }
    }
}

/// 3. Takes slots for a plan and says where the bytes of each log come from.
pub(super) fn take_logs<'d>(
    tx: &mut Tx<'_>,
    volume: &Volume,
    view: &FileView,
    target: &Target<'d>,
    plan: LogPlan,
    need: Need,
) -> Result<Action<'d>> {
    let mut stores = SmallVec::new();
    let mut taken: SmallVec<[_; 4]> = SmallVec::new();
    for (slot, step) in &plan.steps {
        match step {
            Step::Append { log, part } => {
                let data = target.parts[*part].data;
                let entry = LogEntry { length: log.length + data.len() as u32, ..*log };
                stores.push(Store { slot: *slot, entry, skip: log.length, bytes: Bytes::Borrowed(data) });
            }
            Step::Write { offset, length, merged } => {
                let end = offset + length;
                let bytes = match target.parts.iter().find(|part| part.offset <= *offset && end <= part.end()) {
                    Some(part) if merged.is_empty() => {
                        Bytes::Borrowed(&part.data[(offset - part.offset) as usize..(end - part.offset) as usize])
                    }
                    _ => Bytes::Merged(view.owner.inode, merged.to_vec()),
                };
                let class = SlotClass::for_bytes(*length as usize);
                let address = match volume.memory.take_slot(class, need) {
                    Ok(address) => address,
                    Err(error) => {
                        for space in taken {
                            tx.free(space);
                        }
                        return Err(error);
                    }
                };
                tx.took(space::slot(address, class.lines()));
                taken.push(space::slot(address, class.lines()));
                stores.push(Store {
                    slot: *slot,
                    entry: LogEntry { address, crc: 0, offset: *offset, length: *length, class },
                    skip: 0,
                    bytes,
                });
            }
        }
    }
    if stores.len() > 1 {
        in_order(&mut stores);
    }
    Ok(Action::Logs { merges: plan.merges, slots: plan.kept, stores, base: target.old.base })
}

/// New pages in the order of the file: pools hand out first what came back last, so they often come as a run backwards.
#[inline(never)]
fn in_order(stores: &mut [Store<'_>]) {
    let is_new_page = |store: &&mut Store<'_>| store.skip == 0 && store.entry.class == SlotClass::Page;
    let mut addresses: SmallVec<[LineAddress; 16]> = stores.iter_mut().filter(is_new_page).map(|store| store.entry.address).collect();
    addresses.sort_unstable();
    stores.iter_mut().filter(is_new_page).zip(addresses).for_each(|(store, address)| store.entry.address = address);
}

/// The bytes of a log from old logs of the file and new parts.
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
    let mut copy = |start: u32, data: &[u8]| {
        let (from, to) = (start.max(offset), (start + data.len() as u32).min(end));
        if from < to {
            bytes[(from - offset) as usize..(to - offset) as usize].copy_from_slice(&data[(from - start) as usize..(to - start) as usize]);
        }
    };
    for log in merged.iter().filter(|_| !on(Mutant::MergedBytesForgotten)) {
        let old = &mut buffer[..log.length as usize];
        load_log(volume, inode, block_start, log, old)?;
        copy(log.offset, old);
    }
    for part in parts {
        copy(part.offset, part.data);
    }
    Ok(bytes)
}

/// 4 and 5. Block writes in flight; meanwhile logs are stored and checksums computed; then both are durable.
pub(super) fn transfer(volume: &Volume, targets: &mut [Target<'_>]) -> Result<(Fenced, Flushed)> {
    let block_bytes = u64::from(volume.geometry.block_bytes());
    let mut logs: SmallVec<[Logs<'_, '_>; 2]> = SmallVec::new();
    let mut blocks: SmallVec<[(&mut NewSectors, &[u8]); 2]> = SmallVec::new();
    for target in targets {
        match &mut target.action {
            Action::Logs { slots, stores, merges, .. } => {
                add(&volume.live.work.merges, *merges);
                logs.push(Logs { slots, stores, parts: &target.parts, block_start: target.block * block_bytes });
            }
            Action::Sectors { new, bytes, .. } => blocks.push((new, bytes.get())),
            Action::Undecided => unreachable!("every block was decided on"),
        }
    }
    let mut stored = None;
    let mut store_logs = || -> Result<Lines<InFlight>> {
        let mut in_flight = Lines::none();
        for Logs { slots, stores, parts, block_start } in &mut logs {
            for run in stores.chunk_by_mut(|one, next| one.goes_on_in(next, parts)) {
                if run.len() > 1 {
                    let lines = store_run(volume, run, slots, parts)?;
                    in_flight = std::mem::replace(&mut in_flight, Lines::none()).and(lines);
                    continue;
                }
                let [store] = run else { unreachable!("no run is empty") };
                if let Bytes::Merged(inode, merged) = &store.bytes {
                    store.bytes = Bytes::Owned(merge(volume, *inode, merged, parts, *block_start, &store.entry)?);
                }
                in_flight = std::mem::replace(&mut in_flight, Lines::none()).and(store_log(volume, store)?);
                slots[store.slot] = Some(store.entry);
            }
        }
        Ok(in_flight)
    };
    let flushed = if blocks.is_empty() {
        stored = Some(store_logs());
        Flushed::nothing_written()
    } else {
        let mut requests = write_requests(&blocks);
        let written = volume.drive.transfer(Structure::Data, &mut requests, &mut || {
            stored = Some(store_logs());
            if volume.checksums {
                for (new, bytes) in &mut blocks {
                    new.checksums = bytes.chunks_exact(SECTOR_BYTES).map(|sector| volume.pair.data(sector)).collect();
                }
            }
        })?;
        // R15: a FLUSH that fails says nothing about what is durable.
        match if on(Mutant::BlocksNotFlushed) { Ok(Flushed::nothing_written()) } else { volume.drive.flush_blocks(written) } {
            Err(_) if on(Mutant::FailedFlushIgnored) => Flushed::nothing_written(),
            other => other.map_err(|error| volume.health.stop("flushing the drive", &error))?,
        }
    };
    let in_flight = stored.unwrap_or_else(|| Ok(Lines::none()))?;
    let any_log = logs.iter().any(|logs| !logs.stores.is_empty()) && !on(Mutant::LogsNotFenced);
    let fenced = if any_log { volume.drive.fence(in_flight) } else { Fenced::nothing_stored() };
    Ok((fenced, flushed))
}

/// Stores logs of one part whose slots follow each other: the byte path moves 64 KiB in half the time of sixteen pages.
#[inline(never)] // few writes come here
fn store_run(volume: &Volume, run: &mut [Store<'_>], slots: &mut LogSlots, parts: &[Part<'_>]) -> Result<Lines<InFlight>> {
    let (start, end, address) = (run[0].entry.offset, run[run.len() - 1].entry.end(), run[0].entry.address);
    let holds = |part: &&Part<'_>| part.offset <= start && end <= part.end();
    let Some(part) = parts.iter().find(holds) else { unreachable!("logs that go on in each other are of one part") };
    let bytes = &part.data[(start - part.offset) as usize..(end - part.offset) as usize];
    let lines = volume.drive.store(Structure::DataLog, address, bytes)?;
    for store in run {
        store.entry.crc = volume.data_checksum(store.bytes.get());
        slots[store.slot] = Some(store.entry);
    }
    Ok(volume.drive.flush_lines(lines))
}

/// What is stored of one block.
struct Logs<'t, 'd> {
    slots: &'t mut LogSlots,
    stores: &'t mut [Store<'d>],
    parts: &'t [Part<'d>],
    block_start: u64,
}

/// One request for each run of blocks that lie side by side both in memory and on the device.
fn write_requests<'b>(blocks: &SmallVec<[(&mut NewSectors, &'b [u8]); 2]>) -> SmallVec<[BlockRequest<'b>; 2]> {
    blocks.iter().map(|(new, bytes)| BlockRequest::Write { sector: new.sector, buffer: bytes }).collect()
}

/// Stores one log and starts its way out of the caches. Its checksum is computed from the caller's bytes, or extended (RULES R10).
fn store_log(volume: &Volume, store: &mut Store<'_>) -> Result<Lines<InFlight>> {
    let bytes = store.bytes.get();
    if store.skip > 0 {
        count(&volume.live.work.appends_in_place);
        if volume.checksums {
            if on(Mutant::ChecksumFromReadBack) {
                let mut read_back = vec![0; store.skip as usize];
                volume.drive.load(Structure::DataLog, store.entry.address, &mut read_back)?;
                store.entry.crc = volume.pair.data(&read_back);
            }
            store.entry.crc = volume.pair.data_extend(store.entry.crc, bytes);
        }
    } else {
        store.entry.crc = volume.data_checksum(bytes);
    }
    let lines = volume.drive.store_within(Structure::DataLog, store.entry.address, store.skip.into(), bytes)?;
    Ok(volume.drive.flush_lines(lines))
}
