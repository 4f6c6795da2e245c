//! A hybrid SSD in host memory that records every access in order.
//!
//! It is a copy-on-write image: changed pages lie over a base that many devices share. So a crash state costs only the pages in which it
//! differs, and [`MemoryDevice::fork`] is cheap.
//!
//! It may have a cache that the host manages behind the memory zone ([`MemoryDevice::with_cache`], `moves.rs`).
//!
//! It may have firmware ([`MemoryDevice::with_firmware`]): then each path reaches both zones, one behind the other as
//! `DeviceDescription::overlapping` says, and stores may belong to transactions (`tagged_lines.rs`).

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tandemfs_device::{
    BlockPath, BlockRequest, BytePath, CacheMove, CacheMoves, Device, DeviceDescription, DeviceError, DriveCounts, DriveRecovery, Firmware,
    MappedMemory, MemoryNodes, MemoryRange, MoveDirection, MoveState, MoveTicket, PersistenceDomain, REQUEST_BYTES, Replaced, TxId,
};
use tandemfs_format::{LINE_BYTES, Line, PAGE_LINES, SECTOR_BYTES, Sector};

use crate::moves::{MOVES_AT_ONCE, Moves};
use crate::tagged_lines::{TaggedLines, line_of};

/// Pattern of discarded sectors, so that no code relies on zeros.
pub const DISCARDED: u8 = 0xdb;

const PAGE: usize = 4096;

/// One step that reached the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Bytes were stored to memory. They may be lost until flushed and fenced, by domain.
    Store {
        /// Offset in the memory zone in bytes.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Whole lines were stored as part of a transaction of the drive.
    StoreTagged {
        /// The transaction.
        transaction: TxId,
        /// Offset in the byte window in bytes.
        offset: u64,
        /// Whole lines.
        bytes: Vec<u8>,
    },
    /// A transaction of the drive was committed.
    Commit(TxId),
    /// The drive discarded what was not committed.
    Recover,
    /// The drive emptied its write log.
    Clean,
    /// Lines of a range were flushed.
    FlushLines {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
    /// All lines flushed before are in the persistence domain.
    Fence,
    /// Sectors were written and the write completed.
    Write {
        /// First sector.
        sector: Sector,
        /// Whole sectors.
        bytes: Vec<u8>,
    },
    /// Writes that completed before are durable.
    FlushBlocks,
    /// Sectors' contents are no longer needed.
    Discard {
        /// First sector.
        sector: Sector,
        /// Sectors.
        count: u64,
    },
    /// A MOVE was submitted: from here to its end its target is at risk.
    MoveBegun {
        /// The number of its ticket.
        number: u64,
        /// The command.
        command: CacheMove,
        /// What its source has.
        bytes: Vec<u8>,
    },
    /// The completion of a MOVE was taken.
    MoveDone {
        /// The number of its ticket.
        number: u64,
    },
    /// A mark of the test: the system call that follows.
    Call(usize),
    /// A mark of the test: the system call has returned. Workloads of one thread do without it.
    Return(usize),
}

/// Both zones as they stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// The memory zone, and behind it the cache that the host manages.
    pub memory: Vec<u8>,
    /// The block zone.
    pub blocks: Vec<u8>,
}

/// One of the two zones. If the paths overlap, its window: it begins with its own zone and continues with the other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Zone {
    /// Reached by loads and stores.
    Memory,
    /// Reached by block commands.
    Blocks,
}

impl Zone {
    fn other(self) -> Self {
        match self {
            Self::Memory => Self::Blocks,
            Self::Blocks => Self::Memory,
        }
    }
}

/// Hashes pages of zones. Every access asks for one; the standard library's hash, which stands chosen keys, takes most of its time.
#[derive(Debug, Clone, Copy, Default)]
struct PageHasher(u64);

impl Hasher for PageHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number.cast_unsigned() as u64);
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn finish(&self) -> u64 {
        self.0.rotate_left(26)
    }
}

type Pages = HashMap<(Zone, u64), Arc<[u8; PAGE]>, BuildHasherDefault<PageHasher>>;

/// Two zones: pages over a shared base.
#[derive(Debug, Clone)]
struct Image {
    base: Arc<Recorded>,
    pages: Pages,
}

impl Image {
    /// Sizes of both zones.
    fn bytes(&self) -> (u64, u64) {
        (self.base.memory.len() as u64, self.base.blocks.len() as u64)
    }

    fn base(&self, zone: Zone) -> &[u8] {
        match zone {
            Zone::Memory => &self.base.memory,
            Zone::Blocks => &self.base.blocks,
        }
    }

    fn base_page(&self, zone: Zone, page: u64) -> [u8; PAGE] {
        let base = self.base(zone);
        let start = page as usize * PAGE;
        let end = (start + PAGE).min(base.len());
        let mut bytes = [0; PAGE];
        bytes[..end - start].copy_from_slice(&base[start..end]);
        bytes
    }

    /// Loads through a window: what is behind its own zone is of the other one.
    fn load(&self, window: Zone, offset: u64, into: &mut [u8]) {
        let (own, rest) = into.split_at_mut(self.own_bytes(window, offset, into.len()));
        self.load_zone(window, offset, own);
        if !rest.is_empty() {
            let behind = offset + own.len() as u64 - self.base(window).len() as u64;
            self.load_zone(window.other(), behind, rest);
        }
    }

    /// The same for stores.
    fn store(&mut self, window: Zone, offset: u64, from: &[u8]) {
        let (own, rest) = from.split_at(self.own_bytes(window, offset, from.len()));
        self.store_zone(window, offset, own);
        if !rest.is_empty() {
            let behind = offset + own.len() as u64 - self.base(window).len() as u64;
            self.store_zone(window.other(), behind, rest);
        }
    }

    /// How much of an access is in the window's own zone.
    fn own_bytes(&self, window: Zone, offset: u64, length: usize) -> usize {
        (self.base(window).len() as u64).saturating_sub(offset).min(length as u64) as usize
    }

    /// The number in the byte window of the line at an offset of a window.
    fn line_number(&self, window: Zone, offset: u64) -> u64 {
        let (memory, blocks) = (self.base.memory.len() as u64, self.base.blocks.len() as u64);
        let offset = match window {
            Zone::Memory => offset,
            Zone::Blocks if offset < blocks => memory + offset,
            Zone::Blocks => offset - blocks,
        };
        offset / LINE_BYTES as u64
    }

    fn load_zone(&self, zone: Zone, offset: u64, into: &mut [u8]) {
        if into.is_empty() {
            return;
        }
        let start = offset as usize;
        into.copy_from_slice(&self.base(zone)[start..start + into.len()]);
        if self.pages.is_empty() || into.is_empty() {
            return;
        }
        let end = start + into.len();
        for page in start / PAGE..=(end - 1) / PAGE {
            if let Some(bytes) = self.pages.get(&(zone, page as u64)) {
                let (from, to) = (start.max(page * PAGE), end.min((page + 1) * PAGE));
                into[from - start..to - start].copy_from_slice(&bytes[from - page * PAGE..to - page * PAGE]);
            }
        }
    }

    fn store_zone(&mut self, zone: Zone, offset: u64, mut from: &[u8]) {
        let mut at = offset as usize;
        while !from.is_empty() {
            let (page, within) = ((at / PAGE) as u64, at % PAGE);
            let here = (PAGE - within).min(from.len());
            if !self.pages.contains_key(&(zone, page)) {
                let bytes = self.base_page(zone, page);
                self.pages.insert((zone, page), Arc::new(bytes));
            }
            if let Some(bytes) = self.pages.get_mut(&(zone, page)) {
                Arc::make_mut(bytes)[within..within + here].copy_from_slice(&from[..here]);
            }
            at += here;
            from = &from[here..];
        }
    }

    fn zones(&self) -> Recorded {
        let mut zones = (*self.base).clone();
        for ((zone, page), bytes) in &self.pages {
            let target = match zone {
                Zone::Memory => &mut zones.memory,
                Zone::Blocks => &mut zones.blocks,
            };
            let start = *page as usize * PAGE;
            let end = (start + PAGE).min(target.len());
            target[start..end].copy_from_slice(&bytes[..end - start]);
        }
        zones
    }
}

#[derive(Debug)]
struct State {
    image: Image,
    tagged: TaggedLines,
    moves: Moves,
    events: Option<Vec<Event>>,
}

impl State {
    fn over(image: Image) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self { image, tagged: TaggedLines::default(), moves: Moves::default(), events: None }))
    }

    fn line(&self, line: u64) -> Line {
        let mut bytes = [0; LINE_BYTES];
        self.image.load(Zone::Memory, line * LINE_BYTES as u64, &mut bytes);
        bytes
    }

    /// An untagged store, or a block write, with what it does to lines of open transactions.
    fn store(&mut self, window: Zone, offset: u64, from: &[u8]) {
        self.image.store(window, offset, from);
        match window {
            Zone::Memory => {
                let (mut at, mut rest) = (offset, from);
                while !rest.is_empty() {
                    let within = (at % LINE_BYTES as u64) as usize;
                    let here = (LINE_BYTES - within).min(rest.len());
                    self.tagged.store_untagged(at / LINE_BYTES as u64, within, &rest[..here]);
                    (at, rest) = (at + here as u64, &rest[here..]);
                }
            }
            Zone::Blocks => {
                for sector in (offset..offset + from.len() as u64).step_by(SECTOR_BYTES) {
                    self.tagged.forget(self.image.line_number(Zone::Blocks, sector), PAGE_LINES);
                }
            }
        }
    }

    fn store_tagged(&mut self, transaction: TxId, offset: u64, from: &[u8]) -> Result<(), String> {
        self.tagged.check_open(transaction)?;
        for (line, bytes) in (offset / LINE_BYTES as u64..).zip(from.chunks(LINE_BYTES)) {
            self.tagged.store(transaction, line, self.line(line), line_of(bytes))?;
        }
        self.image.store(Zone::Memory, offset, from);
        Ok(())
    }

    fn recover(&mut self) -> DriveRecovery {
        let (lines, transactions) = self.tagged.recover();
        let lines_discarded = lines.len() as u64;
        for (line, bytes) in lines {
            self.image.store(Zone::Memory, line * LINE_BYTES as u64, &bytes);
        }
        DriveRecovery { lines_discarded, transactions, ..DriveRecovery::default() }
    }
}

fn described(description: DeviceDescription) -> Arc<Replaced<DeviceDescription>> {
    Arc::new(Replaced::new(description))
}

/// The device. Clones share it.
#[derive(Debug, Clone)]
pub struct MemoryDevice {
    description: Arc<Replaced<DeviceDescription>>,
    mapping_unit: u64,
    state: Arc<Mutex<State>>,
}

impl MemoryDevice {
    /// A device of zeros.
    pub fn new(memory_bytes: u64, block_bytes: u64, domain: PersistenceDomain) -> Self {
        Self::from_zones(Recorded { memory: vec![0; memory_bytes as usize], blocks: vec![0; block_bytes as usize] }, domain)
    }

    /// A device with these contents.
    pub fn from_zones(zones: Recorded, domain: PersistenceDomain) -> Self {
        Self::over(Arc::new(zones), domain)
    }

    /// A device over a base that others may share. The base never changes.
    pub fn over(base: Arc<Recorded>, domain: PersistenceDomain) -> Self {
        let description = DeviceDescription {
            name: "memory device".into(),
            memory_bytes: base.memory.len() as u64,
            block_bytes: base.blocks.len() as u64,
            cache_bytes: 0,
            domain,
            volatile_write_cache: true,
            overlapping: false,
            discard: true,
            discard_zeroes: false,
            request_bytes: REQUEST_BYTES,
            nodes: MemoryNodes::default(),
        };
        let image = Image { base, pages: Pages::default() };
        Self { description: described(description), mapping_unit: PAGE as u64, state: State::over(image) }
    }

    /// A drive of zeros with firmware: overlapping windows, tagged stores, COMMIT and RECOVER.
    pub fn with_firmware(memory_bytes: u64, block_bytes: u64, domain: PersistenceDomain) -> Self {
        Self::new(memory_bytes, block_bytes, domain).given_firmware(true)
    }

    /// A drive of zeros with a cache that the host manages.
    pub fn with_cache(memory_bytes: u64, block_bytes: u64, cache_bytes: u64, domain: PersistenceDomain) -> Self {
        Self::new(memory_bytes + cache_bytes, block_bytes, domain).given_cache(cache_bytes)
    }

    /// The same device whose last so many bytes of memory are a cache that the host manages.
    pub fn given_cache(mut self, cache_bytes: u64) -> Self {
        let memory_bytes = self.description.memory_bytes + self.description.cache_bytes - cache_bytes;
        self.description = described(DeviceDescription { memory_bytes, cache_bytes, ..DeviceDescription::clone(&self.description) });
        self
    }

    /// The same device that shows only so many bytes of its zones, until somebody asks it to grow: then it has become larger meanwhile.
    pub fn showing(mut self, memory_bytes: u64, block_bytes: u64) -> Self {
        self.description = described(DeviceDescription { memory_bytes, block_bytes, ..DeviceDescription::clone(&self.description) });
        self
    }

    /// The same device with firmware, or without. No transaction may be open.
    pub fn given_firmware(mut self, has_firmware: bool) -> Self {
        self.description = described(DeviceDescription { overlapping: has_firmware, ..DeviceDescription::clone(&self.description) });
        self
    }

    /// The same device, whose memory is mapped in steps of so many bytes alone, as that of a devdax.
    pub fn mapped_in_steps_of(mut self, bytes: u64) -> Self {
        self.mapping_unit = bytes;
        self
    }

    /// An independent device with the current contents. It records nothing.
    pub fn fork(&self) -> Self {
        let (image, tagged) = {
            let state = self.state();
            (state.image.clone(), state.tagged.clone())
        };
        let state = Arc::new(Mutex::new(State { image, tagged, moves: Moves::default(), events: None }));
        Self { description: described(DeviceDescription::clone(&self.description)), mapping_unit: self.mapping_unit, state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records from now on.
    pub fn start_recording(&self) {
        self.state().events = Some(Vec::new());
    }

    /// What was recorded.
    pub fn stop_recording(&self) -> Vec<Event> {
        self.state().events.take().unwrap_or_default()
    }

    /// What was recorded since the last call; recording goes on.
    pub fn take_events(&self) -> Vec<Event> {
        self.state().events.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Puts a mark into the record.
    pub fn mark(&self, call: usize) {
        self.record(Event::Call(call));
    }

    /// Puts a mark into the record: the call has returned.
    pub fn mark_return(&self, call: usize) {
        self.record(Event::Return(call));
    }

    fn record(&self, event: Event) {
        if let Some(events) = &mut self.state().events {
            events.push(event);
        }
    }

    /// A copy of both zones.
    pub fn zones(&self) -> Recorded {
        self.state().image.zones()
    }

    /// Changes the zones without the file system's knowledge.
    pub fn damage(&self, change: impl FnOnce(&mut Recorded)) {
        let mut state = self.state();
        let mut zones = state.image.zones();
        change(&mut zones);
        state.image = Image { base: Arc::new(zones), pages: Pages::default() };
    }

    /// Its persistence domain.
    pub fn domain(&self) -> PersistenceDomain {
        self.description.domain
    }

    /// Whether it is a drive with firmware.
    pub fn has_firmware(&self) -> bool {
        self.description.overlapping
    }

    /// Bytes of a zone, past the record.
    pub(crate) fn peek(&self, zone: Zone, offset: u64, into: &mut [u8]) {
        self.state().image.load(zone, offset, into);
    }

    /// Changes bytes of a zone, past the record.
    pub(crate) fn poke(&self, zone: Zone, offset: u64, from: &[u8]) {
        self.state().store(zone, offset, from);
    }

    /// Stores lines as part of a transaction, past the record.
    pub(crate) fn poke_tagged(&self, transaction: TxId, offset: u64, from: &[u8]) -> Result<(), String> {
        self.state().store_tagged(transaction, offset, from)
    }

    /// Commits a transaction, past the record.
    pub(crate) fn commit_unrecorded(&self, transaction: TxId) -> Result<(), String> {
        self.state().tagged.commit(transaction)
    }

    /// Discards what is not committed, past the record.
    pub(crate) fn recover_unrecorded(&self) -> DriveRecovery {
        self.state().recover()
    }

    /// Empties the write log, past the record.
    pub(crate) fn clean_unrecorded(&self) -> Result<(), String> {
        self.state().tagged.clean()
    }

    /// Lines of open transactions: their numbers in the byte window, and what is committed under them.
    pub(crate) fn uncommitted(&self) -> Vec<(u64, Line)> {
        self.state().tagged.uncommitted().map(|(line, bytes)| (line, *bytes)).collect()
    }

    /// The number in the byte window of the line at an offset of a window.
    pub(crate) fn line_number(&self, window: Zone, offset: u64) -> u64 {
        self.state().image.line_number(window, offset)
    }

    fn refused(&self, command: &'static str) -> impl FnOnce(String) -> DeviceError {
        let device = self.description.name.clone();
        move |reason| DeviceError::Firmware { device, command, reason }
    }

    fn check(&self, offset: u64, length: usize, size: u64) -> Result<(), DeviceError> {
        match offset.checked_add(length as u64) {
            Some(end) if end <= size => Ok(()),
            _ => Err(DeviceError::OutOfRange { device: self.description.name.clone(), offset, length: length as u64, size }),
        }
    }
}

impl Device for MemoryDevice {
    fn byte_path(&self) -> &dyn BytePath {
        self
    }

    fn block_path(&self) -> &dyn BlockPath {
        self
    }

    fn description(&self) -> &DeviceDescription {
        &self.description
    }

    fn firmware(&self) -> Option<&dyn Firmware> {
        self.description.overlapping.then_some(self)
    }

    fn cache_moves(&self) -> Option<&dyn CacheMoves> {
        (self.description.cache_bytes > 0).then_some(self)
    }

    fn mapping_unit(&self) -> Option<u64> {
        (!self.description.overlapping).then_some(self.mapping_unit)
    }

    /// The accesses go by calls, so they are recorded like those of the file system.
    fn map(&self, ranges: &[MemoryRange], writable: bool) -> Result<Box<dyn MappedMemory>, DeviceError> {
        let is_whole =
            |range: &MemoryRange| range.offset.is_multiple_of(self.mapping_unit) && range.length.is_multiple_of(self.mapping_unit);
        if !ranges.iter().all(is_whole) {
            let reason = format!("{ranges:?} are not whole units of {} B", self.mapping_unit);
            return Err(DeviceError::Map { device: self.description.name.clone(), reason });
        }
        Ok(Box::new(RecordedMap { device: self.clone(), ranges: ranges.to_vec(), writable }))
    }

    fn grow(&self, _memory_bytes: Option<u64>, _block_bytes: Option<u64>) -> Result<(), DeviceError> {
        if self.description.overlapping || self.description.cache_bytes > 0 {
            return Ok(());
        }
        let (memory_bytes, block_bytes) = self.state().image.bytes();
        self.description.replace(DeviceDescription { memory_bytes, block_bytes, ..DeviceDescription::clone(&self.description) });
        Ok(())
    }

    fn counts(&self) -> Option<DriveCounts> {
        self.description.overlapping.then(|| DriveCounts { firmware: self.state().tagged.counts, ..DriveCounts::default() })
    }
}

/// Mapped ranges, whose accesses are those of the device.
#[derive(Clone)]
struct RecordedMap {
    device: MemoryDevice,
    ranges: Vec<MemoryRange>,
    writable: bool,
}

impl fmt::Debug for RecordedMap {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RecordedMap").field("ranges", &self.ranges).finish_non_exhaustive()
    }
}

impl RecordedMap {
    /// Cuts an access into those of the ranges: offset in the zone, and which bytes of the access.
    fn pieces(&self, offset: u64, length: usize) -> Result<Vec<(u64, std::ops::Range<usize>)>, DeviceError> {
        let end = offset.checked_add(length as u64).filter(|end| *end <= MappedMemory::length(self));
        let device = self.device.description.name.clone();
        let Some(end) = end else {
            return Err(DeviceError::OutOfRange { device, offset, length: length as u64, size: MappedMemory::length(self) });
        };
        let (mut pieces, mut at) = (Vec::new(), 0);
        for range in &self.ranges {
            let (from, to) = (offset.max(at), end.min(at + range.length));
            if from < to {
                pieces.push((range.offset + (from - at), (from - offset) as usize..(to - offset) as usize));
            }
            at += range.length;
        }
        Ok(pieces)
    }
}

impl MappedMemory for RecordedMap {
    fn length(&self) -> u64 {
        self.ranges.iter().map(|range| range.length).sum()
    }

    fn copy_out(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.pieces(offset, into.len())?.into_iter().try_for_each(|(at, bytes)| BytePath::load(&self.device, at, &mut into[bytes]))
    }

    fn copy_in(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        assert!(self.writable, "a store to a map for loads");
        self.pieces(offset, from.len())?.into_iter().try_for_each(|(at, bytes)| BytePath::store(&self.device, at, &from[bytes]))
    }

    fn store_word(&self, offset: u64, word: u64) -> Result<(), DeviceError> {
        assert!(offset.is_multiple_of(8), "a word at byte {offset}");
        self.copy_in(offset, &word.to_le_bytes())
    }

    fn flush(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        let length = length.min(MappedMemory::length(self).saturating_sub(offset));
        self.pieces(offset, length as usize)?.into_iter().for_each(|(at, bytes)| BytePath::flush(&self.device, at, bytes.len() as u64));
        Ok(())
    }

    fn fence(&self) {
        BytePath::fence(&self.device);
    }

    fn address(&self) -> Option<NonNull<u8>> {
        None
    }
}

impl Firmware for MemoryDevice {
    fn store_tagged(&self, transaction: TxId, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.check(offset, from.len(), self.description.byte_window_bytes())?;
        if !(offset.is_multiple_of(LINE_BYTES as u64) && from.len().is_multiple_of(LINE_BYTES)) {
            return Err(self.refused("tagged store")(format!("{} B at byte {offset} are not whole lines", from.len())));
        }
        self.poke_tagged(transaction, offset, from).map_err(self.refused("tagged store"))?;
        self.record(Event::StoreTagged { transaction, offset, bytes: from.to_vec() });
        Ok(())
    }

    fn commit(&self, transaction: TxId) -> Result<(), DeviceError> {
        self.commit_unrecorded(transaction).map_err(self.refused("COMMIT"))?;
        self.record(Event::Commit(transaction));
        Ok(())
    }

    fn recover(&self) -> Result<DriveRecovery, DeviceError> {
        self.record(Event::Recover);
        Ok(self.recover_unrecorded())
    }

    fn clean(&self) -> Result<(), DeviceError> {
        self.clean_unrecorded().map_err(self.refused("CLEAN"))?;
        self.record(Event::Clean);
        Ok(())
    }
}

/// A MOVE takes what its source has at its submission, and its target shows it from the completion on: the latest that a drive may be.
impl CacheMoves for MemoryDevice {
    fn queue_depth(&self) -> u32 {
        MOVES_AT_ONCE
    }

    fn submit(&self, command: &CacheMove) -> Result<Option<MoveTicket>, DeviceError> {
        let memory = command.check(&self.description)?;
        let mut bytes = vec![0; memory.length as usize];
        match command.direction {
            MoveDirection::ToCache => self.peek(Zone::Blocks, command.sector.offset_bytes(), &mut bytes),
            MoveDirection::ToFlash => self.peek(Zone::Memory, memory.offset, &mut bytes),
        }
        let Some(ticket) = self.state().moves.enter(*command, bytes.clone()) else { return Ok(None) };
        self.record(Event::MoveBegun { number: ticket.number(), command: *command, bytes });
        Ok(Some(ticket))
    }

    /// Nobody may rely on the first look.
    fn poll(&self, ticket: MoveTicket) -> MoveState {
        if self.state().moves.is_first_look(&ticket) { MoveState::Pending(ticket) } else { self.complete(ticket) }
    }

    fn wait(&self, ticket: MoveTicket, _timeout: Duration) -> MoveState {
        self.complete(ticket)
    }
}

impl MemoryDevice {
    fn complete(&self, ticket: MoveTicket) -> MoveState {
        let number = ticket.number();
        let Some((command, bytes)) = self.state().moves.take(ticket) else {
            return MoveState::Done(Err(self.refused("MOVE")(format!("no MOVE under way has the ticket {number}"))));
        };
        let (zone, offset) = self.target(&command);
        self.poke(zone, offset, &bytes);
        self.record(Event::MoveDone { number });
        MoveState::Done(Ok(()))
    }

    /// Where the pages of a MOVE are in the range of loads and stores.
    pub(crate) fn cache_offset(&self, command: &CacheMove) -> u64 {
        self.description.memory_bytes + command.cache_page * PAGE as u64
    }

    /// Where a MOVE brings its pages.
    pub(crate) fn target(&self, command: &CacheMove) -> (Zone, u64) {
        match command.direction {
            MoveDirection::ToCache => (Zone::Memory, self.cache_offset(command)),
            MoveDirection::ToFlash => (Zone::Blocks, command.sector.offset_bytes()),
        }
    }
}

impl BytePath for MemoryDevice {
    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.check(offset, into.len(), self.description.byte_window_bytes())?;
        self.peek(Zone::Memory, offset, into);
        Ok(())
    }

    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.check(offset, from.len(), self.description.byte_window_bytes())?;
        self.record(Event::Store { offset, bytes: from.to_vec() });
        self.poke(Zone::Memory, offset, from);
        Ok(())
    }

    fn flush(&self, offset: u64, length: u64) {
        self.record(Event::FlushLines { offset, length });
    }

    fn fence(&self) {
        self.record(Event::Fence);
    }
}

impl BlockPath for MemoryDevice {
    fn transfer_each(
        &self,
        requests: &mut [BlockRequest<'_>],
        meanwhile: &mut dyn FnMut(),
        completed: &mut dyn FnMut(usize, &BlockRequest<'_>),
    ) -> Result<(), DeviceError> {
        for request in requests.iter_mut() {
            match request {
                BlockRequest::Read { sector, buffer } => {
                    self.check(sector.offset_bytes(), buffer.len(), self.description.block_window_bytes())?;
                    buffer.with_private(|bytes| self.peek(Zone::Blocks, sector.offset_bytes(), bytes));
                }
                BlockRequest::Write { sector, buffer } => {
                    self.check(sector.offset_bytes(), buffer.len(), self.description.block_window_bytes())?;
                    assert_eq!(buffer.len() % SECTOR_BYTES, 0, "whole sectors");
                    let mut copy = Vec::new();
                    let bytes = buffer.stable(&mut copy);
                    self.record(Event::Write { sector: *sector, bytes: bytes.to_vec() });
                    self.poke(Zone::Blocks, sector.offset_bytes(), bytes);
                }
            }
        }
        meanwhile();
        // Drives complete requests in any order: here the last one first.
        requests.iter().enumerate().rev().for_each(|(index, request)| completed(index, request));
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.record(Event::FlushBlocks);
        Ok(())
    }

    fn discard(&self, sector: Sector, count: u64) -> Result<(), DeviceError> {
        self.check(sector.offset_bytes(), count as usize * SECTOR_BYTES, self.description.block_window_bytes())?;
        self.record(Event::Discard { sector, count });
        self.poke(Zone::Blocks, sector.offset_bytes(), &vec![DISCARDED; count as usize * SECTOR_BYTES]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transaction(number: u32) -> TxId {
        TxId::new(number).expect("not 0")
    }

    fn first_bytes(device: &MemoryDevice, offset: u64) -> [u8; 2] {
        let mut bytes = [0; 65];
        device.load(offset, &mut bytes).expect("inside");
        [bytes[0], bytes[64]]
    }

    #[test]
    fn both_paths_reach_both_zones() {
        let device = MemoryDevice::with_firmware(8192, 8192, PersistenceDomain::Gpf);
        device.store(8192 + 4096, &[5; 64]).expect("the second sector, by bytes");
        let mut sector = [0; 4096];
        device.transfer(&mut [BlockRequest::Read { sector: Sector::new(1), buffer: (&mut sector).into() }], &mut || {}).expect("read");
        assert_eq!([sector[0], sector[63], sector[64]], [5, 5, 0]);
        device.transfer(&mut [BlockRequest::Write { sector: Sector::new(3), buffer: (&[6; 4096]).into() }], &mut || {}).expect("written");
        assert_eq!(first_bytes(&device, 4096), [6, 6], "the second page of the memory zone");
        let mut across = [0; 128];
        device.load(8192 - 64, &mut across).expect("both zones at once");
        assert_eq!([across[0], across[64]], [6, 0]);
        assert!(device.store(16384, &[1]).is_err(), "behind both");
        assert!(MemoryDevice::new(8192, 8192, PersistenceDomain::Gpf).store(8192, &[1]).is_err(), "without firmware the windows end");
    }

    #[test]
    fn recovery_leaves_what_was_committed() {
        let device = MemoryDevice::with_firmware(8192, 8192, PersistenceDomain::Gpf);
        device.store(0, &[1; 128]).expect("inside");
        device.store_tagged(transaction(1), 0, &[2; 64]).expect("open");
        device.store_tagged(transaction(2), 64, &[3; 64]).expect("open");
        assert_eq!(first_bytes(&device, 0), [2, 3], "visible at once");
        device.commit(transaction(2)).expect("it stored something");
        assert_eq!(device.recover().expect("always").lines_discarded, 1);
        assert_eq!(first_bytes(&device, 0), [1, 3]);
    }

    #[test]
    fn wrong_numbers_are_refused() {
        let device = MemoryDevice::with_firmware(8192, 8192, PersistenceDomain::Gpf);
        assert!(device.commit(transaction(9)).is_err(), "it stored nothing");
        device.store_tagged(transaction(1), 0, &[2; 64]).expect("open");
        assert!(device.clean().is_err(), "a transaction is open");
        device.commit(transaction(1)).expect("it stored something");
        assert!(device.commit(transaction(1)).is_err(), "twice");
        assert!(device.store_tagged(transaction(1), 0, &[2; 64]).is_err(), "not used again before the log is empty");
        device.clean().expect("nothing is open");
        device.store_tagged(transaction(1), 0, &[2; 64]).expect("free again");
        assert!(device.store_tagged(transaction(1), 7, &[2; 64]).is_err(), "no whole lines");
    }

    #[test]
    fn a_block_write_forgets_open_lines_of_its_page() {
        let device = MemoryDevice::with_firmware(8192, 8192, PersistenceDomain::Gpf);
        device.store_tagged(transaction(1), 0, &[2; 64]).expect("open");
        device.store_tagged(transaction(1), 4096, &[2; 64]).expect("open");
        device.transfer(&mut [BlockRequest::Write { sector: Sector::new(2), buffer: (&[7; 4096]).into() }], &mut || {}).expect("written");
        device.recover().expect("always");
        assert_eq!([first_bytes(&device, 0), first_bytes(&device, 4096)], [[7, 7], [0, 0]]);
    }
}
