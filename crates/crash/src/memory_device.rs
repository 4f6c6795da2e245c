//! A hybrid SSD in host memory that records what happens to it, in order.
//!
//! It is a copy-on-write image: pages that changed lie over a base that many devices share. So a crash state costs the few pages in which
//! it differs, and [`MemoryDevice::fork`] costs nothing worth counting.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tandemfs_device::{BlockPath, BlockRequest, BytePath, Device, DeviceDescription, DeviceError, PersistenceDomain, REQUEST_BYTES};
use tandemfs_format::{SECTOR_BYTES, Sector};

/// What discarded sectors read as: nobody may rely on zeros.
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
    /// Lines of a range are on their way to the persistence domain.
    FlushLines {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
    /// What was flushed before is in the persistence domain.
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
    /// A mark of the test: the system call that follows.
    Call(usize),
    /// A mark of the test: the system call has returned. Workloads of one thread do without it.
    Return(usize),
}

/// Both zones as they stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// The memory zone.
    pub memory: Vec<u8>,
    /// The block zone.
    pub blocks: Vec<u8>,
}

/// Which of the two zones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Zone {
    /// Reached by loads and stores.
    Memory,
    /// Reached by block commands.
    Blocks,
}

/// Two zones: pages over a shared base.
#[derive(Debug, Clone)]
struct Image {
    base: Arc<Recorded>,
    pages: HashMap<(Zone, u64), Arc<[u8; PAGE]>>,
}

impl Image {
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

    fn load(&self, zone: Zone, offset: u64, into: &mut [u8]) {
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

    fn store(&mut self, zone: Zone, offset: u64, mut from: &[u8]) {
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
    events: Option<Vec<Event>>,
}

/// The device. Clones share it.
#[derive(Debug, Clone)]
pub struct MemoryDevice {
    description: DeviceDescription,
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
            domain,
            volatile_write_cache: true,
            overlapping: false,
            discard: true,
            request_bytes: REQUEST_BYTES,
        };
        let image = Image { base, pages: HashMap::new() };
        Self { description, state: Arc::new(Mutex::new(State { image, events: None })) }
    }

    /// A device of its own with the contents that this one has now. It records nothing.
    pub fn fork(&self) -> Self {
        let image = self.state().image.clone();
        Self { description: self.description.clone(), state: Arc::new(Mutex::new(State { image, events: None })) }
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

    /// Changes the zones behind the file system's back.
    pub fn damage(&self, change: impl FnOnce(&mut Recorded)) {
        let mut state = self.state();
        let mut zones = state.image.zones();
        change(&mut zones);
        state.image = Image { base: Arc::new(zones), pages: HashMap::new() };
    }

    pub(crate) fn domain(&self) -> PersistenceDomain {
        self.description.domain
    }

    /// Bytes of a zone, past the record.
    pub(crate) fn peek(&self, zone: Zone, offset: u64, into: &mut [u8]) {
        self.state().image.load(zone, offset, into);
    }

    /// Changes bytes of a zone, past the record.
    pub(crate) fn poke(&self, zone: Zone, offset: u64, from: &[u8]) {
        self.state().image.store(zone, offset, from);
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
}

impl BytePath for MemoryDevice {
    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.check(offset, into.len(), self.description.memory_bytes)?;
        self.peek(Zone::Memory, offset, into);
        Ok(())
    }

    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.check(offset, from.len(), self.description.memory_bytes)?;
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
                    self.check(sector.offset_bytes(), buffer.len(), self.description.block_bytes)?;
                    self.peek(Zone::Blocks, sector.offset_bytes(), buffer);
                }
                BlockRequest::Write { sector, buffer } => {
                    self.check(sector.offset_bytes(), buffer.len(), self.description.block_bytes)?;
                    assert_eq!(buffer.len() % SECTOR_BYTES, 0, "whole sectors");
                    self.record(Event::Write { sector: *sector, bytes: buffer.to_vec() });
                    self.poke(Zone::Blocks, sector.offset_bytes(), buffer);
                }
            }
        }
        meanwhile();
        // A drive completes in any order: the last one first.
        requests.iter().enumerate().rev().for_each(|(index, request)| completed(index, request));
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.record(Event::FlushBlocks);
        Ok(())
    }

    fn discard(&self, sector: Sector, count: u64) -> Result<(), DeviceError> {
        self.check(sector.offset_bytes(), count as usize * SECTOR_BYTES, self.description.block_bytes)?;
        self.record(Event::Discard { sector, count });
        self.poke(Zone::Blocks, sector.offset_bytes(), &vec![DISCARDED; count as usize * SECTOR_BYTES]);
        Ok(())
    }
}
