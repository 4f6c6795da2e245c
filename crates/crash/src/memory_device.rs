//! A hybrid SSD in host memory that records what happens to it, in order.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tandemfs_device::{BlockPath, BlockRequest, BytePath, Device, DeviceDescription, DeviceError, PersistenceDomain};
use tandemfs_format::{SECTOR_BYTES, Sector};

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
}

/// Both zones as they stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// The memory zone.
    pub memory: Vec<u8>,
    /// The block zone.
    pub blocks: Vec<u8>,
}

#[derive(Debug)]
struct State {
    zones: Recorded,
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
        let description = DeviceDescription {
            name: "memory device".into(),
            memory_bytes: zones.memory.len() as u64,
            block_bytes: zones.blocks.len() as u64,
            domain,
            volatile_write_cache: true,
            discard: true,
        };
        Self { description, state: Arc::new(Mutex::new(State { zones, events: None })) }
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

    /// Puts a mark into the record.
    pub fn mark(&self, call: usize) {
        self.record(Event::Call(call));
    }

    fn record(&self, event: Event) {
        if let Some(events) = &mut self.state().events {
            events.push(event);
        }
    }

    /// A copy of both zones.
    pub fn zones(&self) -> Recorded {
        self.state().zones.clone()
    }

    /// Changes the zones behind the file system's back.
    pub fn damage(&self, change: impl FnOnce(&mut Recorded)) {
        change(&mut self.state().zones);
    }

    fn range(&self, offset: u64, length: usize, size: u64) -> Result<std::ops::Range<usize>, DeviceError> {
        let error = || DeviceError::OutOfRange { device: self.description.name.clone(), offset, length: length as u64, size };
        let end = offset.checked_add(length as u64).filter(|end| *end <= size).ok_or_else(error)?;
        Ok(offset as usize..end as usize)
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
        let range = self.range(offset, into.len(), self.description.memory_bytes)?;
        into.copy_from_slice(&self.state().zones.memory[range]);
        Ok(())
    }

    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        let range = self.range(offset, from.len(), self.description.memory_bytes)?;
        self.record(Event::Store { offset, bytes: from.to_vec() });
        self.state().zones.memory[range].copy_from_slice(from);
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
    fn transfer(&self, requests: &mut [BlockRequest<'_>], meanwhile: &mut dyn FnMut()) -> Result<(), DeviceError> {
        for request in requests.iter_mut() {
            match request {
                BlockRequest::Read { sector, buffer } => {
                    let range = self.range(sector.offset_bytes(), buffer.len(), self.description.block_bytes)?;
                    buffer.copy_from_slice(&self.state().zones.blocks[range]);
                }
                BlockRequest::Write { sector, buffer } => {
                    let range = self.range(sector.offset_bytes(), buffer.len(), self.description.block_bytes)?;
                    assert_eq!(buffer.len() % SECTOR_BYTES, 0, "whole sectors");
                    self.record(Event::Write { sector: *sector, bytes: buffer.to_vec() });
                    self.state().zones.blocks[range].copy_from_slice(buffer);
                }
            }
        }
        meanwhile();
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.record(Event::FlushBlocks);
        Ok(())
    }

    fn discard(&self, sector: Sector, count: u64) -> Result<(), DeviceError> {
        self.record(Event::Discard { sector, count });
        Ok(())
    }
}
