//! [`Drive`]: the file system's handle of a device. It counts accesses on both paths, enforces the persistence domain and expresses the
//! order of stores in types ([DV1]–[DV4]).

use std::marker::PhantomData;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use tandemfs_format::{LINE_BYTES, LineAddress, PAGE_BYTES, PAGE_LINES, SECTOR_BYTES, Sector};

use crate::flush_group::FlushGroup;
use crate::{
    BlockRequest, Counters, Device, DeviceCache, DeviceDescription, DeviceError, DriveCounts, DriveRecovery, Firmware, FlashWear,
    Latencies, LentZone, MappedMemory, Media, MemoryNodes, MemoryRange, PersistenceDomain, Source, StoreWay, StoreZone, Structure, TxId,
    VirtualTime, ZoneHold,
};

/// Pages of zeros written by one request, if a discard does not leave zeros: 256 KiB.
const ZEROED_PAGES: u64 = 64;

/// State of stored lines that no flush has reached.
#[derive(Debug)]
pub enum Dirty {}
/// State of flushed lines before a fence.
#[derive(Debug)]
pub enum InFlight {}

/// Stored lines that are not yet durable ([DV1]).
#[must_use = "lines that are not flushed and fenced are lost with the power"]
#[derive(Debug)]
pub struct Lines<State> {
    offset: u64,
    length: u64,
    state: PhantomData<State>,
}

/// Proof that stores are in the persistence domain ([DV1]).
#[must_use = "a proof of durability belongs to the transaction that needed it"]
#[derive(Debug)]
pub struct Fenced(());

/// Block writes that completed; a volatile cache may still lose them ([DV2]).
#[must_use = "written blocks are lost with the power until they are flushed"]
#[derive(Debug)]
pub struct Written(());

/// Proof that block writes are durable ([DV2]).
#[must_use = "a proof of durability belongs to the transaction that needed it"]
#[derive(Debug)]
pub struct Flushed(());

/// Proof that a transaction of the drive is committed ([DV5]).
#[must_use = "what is not committed is gone after a power failure"]
#[derive(Debug)]
pub struct Committed(());

impl crate::device_cache::sealed::Made for Fenced {
    fn made() -> Self {
        Self(())
    }
}

impl crate::device_cache::sealed::Made for Written {
    fn made() -> Self {
        Self(())
    }
}

impl Lines<InFlight> {
    /// No lines at all.
    pub fn none() -> Self {
        Self { offset: 0, length: 0, state: PhantomData }
    }

    /// Joins two sets of lines, so that one fence serves both.
    pub fn and(self, _other: Self) -> Self {
        self
    }
}

impl Fenced {
    /// The proof for a transaction that stored nothing except its record.
    pub fn nothing_stored() -> Self {
        Self(())
    }
}

impl Fenced {
    /// The same proof for another transaction whose stores were flushed before the fence.
    pub fn for_another(&self) -> Self {
        Self(())
    }
}

impl Flushed {
    /// The proof for a transaction that wrote no blocks.
    pub fn nothing_written() -> Self {
        Self(())
    }

    /// The same proof for another transaction whose block writes completed before the FLUSH began.
    pub fn for_another(&self) -> Self {
        Self(())
    }
}

/// A device in use.
#[derive(Clone)]
pub struct Drive {
    device: Arc<dyn Device>,
    domain: PersistenceDomain,
    counters: Arc<Counters>,
    flushes: Arc<FlushGroup>,
    /// Instead of those of the description.
    nodes: Option<Arc<MemoryNodes>>,
}

impl Drive {
    /// Wraps a device and uses its own persistence domain.
    pub fn new(device: Arc<dyn Device>) -> Self {
        let domain = device.description().domain;
        Self { device, domain, counters: Arc::default(), flushes: Arc::default(), nodes: None }
    }

    /// The same device with a lower domain. Raising it is refused with the device's own domain.
    pub fn with_domain(mut self, domain: PersistenceDomain) -> Result<Self, PersistenceDomain> {
        let own = self.device.description().domain;
        if domain > own {
            return Err(own);
        }
        self.domain = domain;
        Ok(self)
    }

    /// The same device with these nodes of memory, whatever it says itself.
    pub fn with_nodes(mut self, nodes: MemoryNodes) -> Self {
        self.nodes = Some(Arc::new(nodes));
        self
    }

    /// The nodes that the memory zone lies on.
    pub fn nodes(&self) -> &MemoryNodes {
        self.nodes.as_deref().unwrap_or(&self.device.description().nodes)
    }

    /// What the device can do.
    pub fn description(&self) -> &DeviceDescription {
        self.device.description()
    }

    /// The domain in force.
    pub fn domain(&self) -> PersistenceDomain {
        self.domain
    }

    /// Nanoseconds on a clock that never goes back: the drive's where its time is virtual, else the host's.
    pub fn now_ns(&self) -> u64 {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        let host = || START.elapsed().as_nanos() as u64;
        self.device.virtual_time().map_or_else(host, VirtualTime::now_ns)
    }

    /// Counters of the traffic to the device.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Copies bytes from the memory zone, from the start of a line.
    pub fn load(&self, structure: Structure, address: LineAddress, into: &mut [u8]) -> Result<(), DeviceError> {
        let since = self.counters.loaded(structure, into.len() as u64);
        let loaded = self.device.byte_path().load_of(structure, address.offset_bytes(), into);
        loaded.inspect_err(|error| self.counters.failed(true, error))?;
        self.counters.times.load.end(since);
        Ok(())
    }

    /// Copies bytes to the memory zone, from the start of a line.
    pub fn store(&self, structure: Structure, address: LineAddress, from: &[u8]) -> Result<Lines<Dirty>, DeviceError> {
        self.store_within(structure, address, 0, from)
    }

    /// Copies bytes to the memory zone, from `skip_bytes` after the start of a line (an append inside a log's slot).
    pub fn store_within(
        &self,
        structure: Structure,
        address: LineAddress,
        skip_bytes: u64,
        from: &[u8],
    ) -> Result<Lines<Dirty>, DeviceError> {
        self.store_by(structure, StoreWay::Cached, address, skip_bytes, from)
    }

    /// The same by another way to the media. What must be flushed and fenced does not depend on the way.
    pub fn store_by(
        &self,
        structure: Structure,
        way: StoreWay,
        address: LineAddress,
        skip_bytes: u64,
        from: &[u8],
    ) -> Result<Lines<Dirty>, DeviceError> {
        let since = self.counters.stored(structure, from.len() as u64);
        let offset = address.offset_bytes() + skip_bytes;
        self.device.byte_path().store_by(structure, way, offset, from).inspect_err(|error| self.counters.failed(false, error))?;
        self.counters.times.store.end(since);
        Ok(Lines { offset, length: from.len() as u64, state: PhantomData })
    }

    /// Copies whole lines to the byte window as part of a transaction of the drive. See [`Firmware::store_tagged`].
    pub fn store_tagged(
        &self,
        structure: Structure,
        transaction: TxId,
        address: LineAddress,
        from: &[u8],
    ) -> Result<Lines<Dirty>, DeviceError> {
        let since = self.counters.stored(structure, from.len() as u64);
        let offset = address.offset_bytes();
        let stored = self.firmware("tagged store")?.store_tagged(transaction, offset, from);
        stored.inspect_err(|error| self.counters.failed(false, error))?;
        self.counters.times.store.end(since);
        Ok(Lines { offset, length: from.len() as u64, state: PhantomData })
    }

    /// Commits a transaction of the drive whose stores were fenced ([DV5]). See [`Firmware::commit`].
    pub fn commit(&self, transaction: TxId, _stored: Fenced) -> Result<Committed, DeviceError> {
        self.firmware("COMMIT")?.commit(transaction).inspect_err(|error| self.counters.failed(false, error))?;
        Ok(Committed(()))
    }

    /// Makes the drive discard uncommitted stores; does nothing on a drive without transactions. See [`Firmware::recover`].
    pub fn recover(&self) -> Result<Option<DriveRecovery>, DeviceError> {
        self.device.firmware().map(Firmware::recover).transpose()
    }

    /// Makes the drive empty its write log. See [`Firmware::clean`].
    pub fn clean(&self) -> Result<(), DeviceError> {
        self.firmware("CLEAN")?.clean()
    }

    /// Whether the drive has transactions.
    pub fn has_transactions(&self) -> bool {
        self.device.firmware().is_some()
    }

    /// The drive's own counters.
    pub fn drive_counts(&self) -> Option<DriveCounts> {
        self.device.counts()
    }

    /// How worn its flash is, if it says so. See [`Device::wear`].
    pub fn wear(&self) -> Option<FlashWear> {
        self.device.wear()
    }

    /// The model of CPU caches and persistent memory, where the device has one.
    pub fn media(&self) -> Option<&dyn Media> {
        self.device.media()
    }

    /// The cache that the host manages, where the device has one.
    pub fn cache(&self) -> Option<DeviceCache<'_>> {
        self.device.cache_moves().map(|moves| DeviceCache::of(self, moves))
    }

    fn firmware(&self, command: &'static str) -> Result<&dyn Firmware, DeviceError> {
        let name = || self.description().name.clone();
        let reason = || "the drive has no transactions".to_owned();
        self.device.firmware().ok_or_else(|| DeviceError::Firmware { device: name(), command, reason: reason() })
    }

    /// Reads whole pages of the memory zone: by block reads if the windows overlap (ByteFS §4.5), else by loads. Stores to them must
    /// have been fenced.
    pub fn load_pages(&self, structure: Structure, first: LineAddress, into: &mut [u8]) -> Result<(), DeviceError> {
        match self.description().sector_of_page(first) {
            Some(sector) => self.transfer(structure, &mut [BlockRequest::Read { sector, buffer: into.into() }], &mut || {}).map(drop),
            None => self.load(structure, first, into),
        }
    }

    /// Zeroes unused whole pages of the memory zone: if the windows overlap by a discard that leaves zeros or by block writes,
    /// else by stores. Durable when it returns. Pages that hold metadata are never zeroed so (RULES R16).
    pub fn zero_pages(&self, structure: Structure, first: LineAddress, count: u64) -> Result<Fenced, DeviceError> {
        let description = self.description();
        let Some(sector) = description.sector_of_page(first) else { return self.store_zeros(structure, first, count) };
        self.forget_stores(first, count);
        if description.discard && description.discard_zeroes {
            self.discard(sector, count)?;
            drop::<Flushed>(self.flush_blocks(Written(()))?);
            return Ok(Fenced(()));
        }
        let step = count.min(ZEROED_PAGES);
        let zeros = vec![0; step as usize * PAGE_BYTES];
        for page in (0..count).step_by(step.max(1) as usize) {
            let buffer = &zeros[..(count - page).min(step) as usize * PAGE_BYTES];
            let written =
                self.transfer(structure, &mut [BlockRequest::Write { sector: sector.nth(page), buffer: buffer.into() }], &mut || {})?;
            drop::<Flushed>(self.flush_blocks(written)?);
        }
        Ok(Fenced(()))
    }

    /// Writes unused whole pages of the memory zone: if the windows overlap by a block write, else by stores. Durable when it returns.
    /// Pages that hold metadata are never written so (RULES R16).
    pub fn write_pages(&self, structure: Structure, first: LineAddress, bytes: &[u8]) -> Result<Fenced, DeviceError> {
        let Some(sector) = self.description().sector_of_page(first) else { return self.persist(structure, first, bytes) };
        self.forget_stores(first, (bytes.len() / PAGE_BYTES) as u64);
        let written = self.transfer(structure, &mut [BlockRequest::Write { sector, buffer: bytes.into() }], &mut || {})?;
        drop::<Flushed>(self.flush_blocks(written)?);
        Ok(Fenced(()))
    }

    /// [FW1] Earlier unflushed stores to these pages must not be written back from a CPU's cache after a block write.
    fn forget_stores(&self, first: LineAddress, pages: u64) {
        if self.domain.needs_flush() {
            let length = pages * PAGE_BYTES as u64;
            drop(self.fence(self.flush_lines(Lines { offset: first.offset_bytes(), length, state: PhantomData })));
        }
    }

    fn store_zeros(&self, structure: Structure, first: LineAddress, count: u64) -> Result<Fenced, DeviceError> {
        let mut in_flight = Lines::none();
        for page in 0..count {
            in_flight = in_flight.and(self.flush_lines(self.store(structure, first.nth(page * PAGE_LINES), &[0; PAGE_BYTES])?));
        }
        Ok(self.fence(in_flight))
    }

    /// The granule of mapped ranges of the memory zone; `None`: none can be mapped. See [`Device::mapping_unit`].
    pub fn mapping_unit(&self) -> Option<u64> {
        self.device.mapping_unit()
    }

    /// Maps ranges of the memory zone. See [`Device::map`].
    pub fn map(&self, ranges: &[MemoryRange], writable: bool) -> Result<Box<dyn MappedMemory>, DeviceError> {
        self.device.map(ranges, writable)
    }

    /// The memory zone for programs of other processes. See [`Device::lent_zone`].
    pub fn lent_zone(&self) -> Option<std::io::Result<LentZone>> {
        self.device.lent_zone()
    }

    /// The memory zone for a program of another process, for stores. See [`Device::store_zone`].
    pub fn store_zone(&self, program: u32) -> Option<std::io::Result<(StoreZone, ZoneHold)>> {
        self.device.store_zone(program)
    }

    /// Whether anybody has the memory zone for stores. See [`Device::is_zone_held`].
    pub fn is_zone_held(&self) -> bool {
        self.device.is_zone_held()
    }

    /// Takes into use what the device has become larger by. See [`Device::grow`].
    ///
    /// # Errors
    /// Those of [`Device::grow`].
    pub fn grow(&self, memory_bytes: Option<u64>, block_bytes: Option<u64>) -> Result<(), DeviceError> {
        self.device.grow(memory_bytes, block_bytes)
    }

    /// Lines that somebody may have stored through mapped ranges: they are to be flushed as if this drive had stored them.
    pub fn mapped_lines(&self, address: LineAddress, bytes: u64) -> Lines<Dirty> {
        Lines { offset: address.offset_bytes(), length: bytes, state: PhantomData }
    }

    /// Starts writing stored lines back to the persistence domain ([DV3]).
    pub fn flush_lines(&self, lines: Lines<Dirty>) -> Lines<InFlight> {
        match self.domain.needs_flush() {
            true => self.write_back_lines(lines),
            false => Lines { offset: lines.offset, length: lines.length, state: PhantomData },
        }
    }

    /// Starts writing stored lines back from the CPU's caches in every domain, also in those that need no flush. This chooses the order in
    /// which lines reach the media (FusionFS §2.1, *active-flush update*), where [`flush_lines`](Self::flush_lines) leaves it to evictions.
    pub fn write_back_lines(&self, lines: Lines<Dirty>) -> Lines<InFlight> {
        if lines.length > 0 {
            let line = LINE_BYTES as u64;
            self.counters.flushed((lines.offset + lines.length).div_ceil(line) - lines.offset / line);
            self.device.byte_path().flush(lines.offset, lines.length);
        }
        Lines { offset: lines.offset, length: lines.length, state: PhantomData }
    }

    /// Waits until flushed lines are in the persistence domain.
    pub fn fence(&self, _lines: Lines<InFlight>) -> Fenced {
        let since = self.counters.fenced();
        self.device.byte_path().fence();
        self.counters.times.fence.end(since);
        Fenced(())
    }

    /// Whether all lines could be written back, of those flushed so far.
    ///
    /// # Errors
    /// [`DeviceError::Poisoned`].
    pub fn flushed(&self) -> Result<(), DeviceError> {
        self.device.byte_path().flushed().inspect_err(|error| self.counters.failed(false, error))
    }

    /// Stores, flushes and fences.
    ///
    /// # Errors
    /// [`DeviceError::Poisoned`], also where lines flushed before were not written back: nothing may be acknowledged by what is stored now.
    pub fn persist(&self, structure: Structure, address: LineAddress, from: &[u8]) -> Result<Fenced, DeviceError> {
        let lines = self.store(structure, address, from)?;
        let fenced = self.fence(self.flush_lines(lines));
        self.flushed()?;
        Ok(fenced)
    }

    /// Reads and writes by blocks; `meanwhile` runs while they are in flight. See [`crate::BlockPath::transfer`].
    pub fn transfer(
        &self,
        structure: Structure,
        requests: &mut [BlockRequest<'_>],
        meanwhile: &mut dyn FnMut(),
    ) -> Result<Written, DeviceError> {
        self.transfer_each(structure, requests, meanwhile, &mut |_, _, _| {})
    }

    /// The same. `completed` is called for each part as it completes: index of its request, its offset in that request's buffer, its
    /// bytes. This is where large requests are split ([`DeviceDescription::request_bytes`]), the only place. See
    /// [`crate::BlockPath::transfer_each`].
    pub fn transfer_each(
        &self,
        structure: Structure,
        requests: &mut [BlockRequest<'_>],
        meanwhile: &mut dyn FnMut(),
        completed: &mut dyn FnMut(usize, usize, Source<'_>),
    ) -> Result<Written, DeviceError> {
        let mut before = None;
        for request in requests.iter() {
            let (times, count) = match request {
                BlockRequest::Read { buffer, .. } => (&self.counters.times.read, self.counters.block_read(structure, buffer.len() as u64)),
                BlockRequest::Write { buffer, .. } => {
                    (&self.counters.times.write, self.counters.block_written(structure, buffer.len() as u64))
                }
            };
            before.get_or_insert((times, count));
        }
        let timed = before.map(|(times, count)| (times, Latencies::start(count)));
        let is_read = matches!(requests.first(), Some(BlockRequest::Read { .. })); // requests of one call are of one kind
        let written = self.transfer_parts(requests, meanwhile, completed).inspect_err(|error| self.counters.failed(is_read, error))?;
        timed.into_iter().for_each(|(times, since)| times.end(since));
        Ok(written)
    }

    fn transfer_parts(
        &self,
        requests: &mut [BlockRequest<'_>],
        meanwhile: &mut dyn FnMut(),
        completed: &mut dyn FnMut(usize, usize, Source<'_>),
    ) -> Result<Written, DeviceError> {
        let blocks = self.device.block_path();
        let part_bytes = (self.device.description().request_bytes as usize / SECTOR_BYTES).max(1) * SECTOR_BYTES;
        if requests.iter().all(|request| request.bytes().len() <= part_bytes) {
            blocks.transfer_each(requests, meanwhile, &mut |index, request| completed(index, 0, request.bytes()))?;
            return Ok(Written(()));
        }
        let mut places = Vec::new();
        let mut parts = Vec::new();
        let part_sectors = (part_bytes / SECTOR_BYTES) as u64;
        for (index, request) in requests.iter_mut().enumerate() {
            match request {
                BlockRequest::Read { sector, buffer } => {
                    for (number, buffer) in (0..).zip(buffer.reborrow().chunks(part_bytes)) {
                        places.push((index, number as usize * part_bytes));
                        parts.push(BlockRequest::Read { sector: sector.nth(number * part_sectors), buffer });
                    }
                }
                BlockRequest::Write { sector, buffer } => {
                    for (number, buffer) in (0..).zip(buffer.chunks(part_bytes)) {
                        places.push((index, number as usize * part_bytes));
                        parts.push(BlockRequest::Write { sector: sector.nth(number * part_sectors), buffer });
                    }
                }
            }
        }
        blocks.transfer_each(&mut parts, meanwhile, &mut |part, request| {
            let (index, at) = places[part];
            completed(index, at, request.bytes());
        })?;
        Ok(Written(()))
    }

    /// Makes completed block writes durable ([DV2]).
    pub fn flush_blocks(&self, _written: Written) -> Result<Flushed, DeviceError> {
        if self.device.description().volatile_write_cache {
            self.flushes.flush(|| {
                let since = self.counters.block_flushed();
                self.device.block_path().flush().inspect_err(|error| self.counters.failed(false, error))?;
                self.counters.times.flush.end(since);
                Ok(())
            })?;
        }
        Ok(Flushed(()))
    }

    /// Discards free sectors if the drive supports it.
    pub fn discard(&self, sector: Sector, count: u64) -> Result<(), DeviceError> {
        if self.device.description().discard { self.device.block_path().discard(sector, count) } else { Ok(()) }
    }
}
