//! What the file system holds of a device: both paths with counters, the enforced domain, and the order of stores in types ([D1]–[D4]).

use std::marker::PhantomData;
use std::sync::Arc;

use tandemfs_format::{LINE_BYTES, LineAddress, Sector};

use crate::flush_group::FlushGroup;
use crate::{BlockRequest, Counters, Device, DeviceDescription, DeviceError, PersistenceDomain, Structure};

/// State of stored lines that no flush has reached.
#[derive(Debug)]
pub enum Dirty {}
/// State of lines on their way out of the CPU's caches.
#[derive(Debug)]
pub enum InFlight {}

/// Lines that were stored and are not yet safe ([D1]).
#[must_use = "lines that are not flushed and fenced are lost with the power"]
#[derive(Debug)]
pub struct Lines<State> {
    offset: u64,
    length: u64,
    state: PhantomData<State>,
}

/// Proof that stores are in the persistence domain ([D1]).
#[must_use = "a proof of durability belongs to the transaction that needed it"]
#[derive(Debug)]
pub struct Fenced(());

/// Block writes that completed; a volatile cache may still lose them ([D2]).
#[must_use = "written blocks are lost with the power until they are flushed"]
#[derive(Debug)]
pub struct Written(());

/// Proof that block writes are durable ([D2]).
#[must_use = "a proof of durability belongs to the transaction that needed it"]
#[derive(Debug)]
pub struct Flushed(());

impl Lines<InFlight> {
    /// No lines at all.
    pub fn none() -> Self {
        Self { offset: 0, length: 0, state: PhantomData }
    }

    /// Both: one fence serves them together.
    pub fn and(self, _other: Self) -> Self {
        self
    }
}

impl Fenced {
    /// For a transaction that stored nothing beside its record.
    pub fn nothing_stored() -> Self {
        Self(())
    }
}

impl Flushed {
    /// For a transaction that wrote no blocks.
    pub fn nothing_written() -> Self {
        Self(())
    }

    /// The same proof for another transaction whose blocks the FLUSH covered: what it began after.
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
}

impl Drive {
    /// Takes a device into use with its own domain.
    pub fn new(device: Arc<dyn Device>) -> Self {
        let domain = device.description().domain;
        Self { device, domain, counters: Arc::default(), flushes: Arc::default() }
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

    /// What the device can do.
    pub fn description(&self) -> &DeviceDescription {
        self.device.description()
    }

    /// The domain in force.
    pub fn domain(&self) -> PersistenceDomain {
        self.domain
    }

    /// What crossed to the device.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Copies bytes from the memory zone, from the start of a line.
    pub fn load(&self, structure: Structure, address: LineAddress, into: &mut [u8]) -> Result<(), DeviceError> {
        self.counters.loaded(structure, into.len() as u64);
        self.device.byte_path().load(address.offset_bytes(), into)
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
        self.counters.stored(structure, from.len() as u64);
        let offset = address.offset_bytes() + skip_bytes;
        self.device.byte_path().store(offset, from)?;
        Ok(Lines { offset, length: from.len() as u64, state: PhantomData })
    }

    /// Starts writing stored lines back to the persistence domain ([D3]).
    pub fn flush_lines(&self, lines: Lines<Dirty>) -> Lines<InFlight> {
        if self.domain.needs_flush() && lines.length > 0 {
            let line = LINE_BYTES as u64;
            self.counters.flushed((lines.offset + lines.length).div_ceil(line) - lines.offset / line);
            self.device.byte_path().flush(lines.offset, lines.length);
        }
        Lines { offset: lines.offset, length: lines.length, state: PhantomData }
    }

    /// Waits until flushed lines are in the persistence domain.
    pub fn fence(&self, _lines: Lines<InFlight>) -> Fenced {
        self.counters.fenced();
        self.device.byte_path().fence();
        Fenced(())
    }

    /// Stores, flushes and fences.
    pub fn persist(&self, structure: Structure, address: LineAddress, from: &[u8]) -> Result<Fenced, DeviceError> {
        let lines = self.store(structure, address, from)?;
        Ok(self.fence(self.flush_lines(lines)))
    }

    /// Reads and writes by blocks; `meanwhile` runs while they are in flight. See [`crate::BlockPath::transfer`].
    pub fn transfer(
        &self,
        structure: Structure,
        requests: &mut [BlockRequest<'_>],
        meanwhile: &mut dyn FnMut(),
    ) -> Result<Written, DeviceError> {
        for request in requests.iter() {
            match request {
                BlockRequest::Read { buffer, .. } => self.counters.block_read(structure, buffer.len() as u64),
                BlockRequest::Write { buffer, .. } => self.counters.block_written(structure, buffer.len() as u64),
            }
        }
        self.device.block_path().transfer(requests, meanwhile)?;
        Ok(Written(()))
    }

    /// Makes completed block writes durable ([D2]).
    pub fn flush_blocks(&self, _written: Written) -> Result<Flushed, DeviceError> {
        if self.device.description().volatile_write_cache {
            self.flushes.flush(|| {
                self.counters.block_flushed();
                self.device.block_path().flush()
            })?;
        }
        Ok(Flushed(()))
    }

    /// Tells the drive that sectors are free, where it can be told.
    pub fn discard(&self, sector: Sector, count: u64) -> Result<(), DeviceError> {
        if self.device.description().discard { self.device.block_path().discard(sector, count) } else { Ok(()) }
    }
}
