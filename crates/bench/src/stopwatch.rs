//! A device wrapper that times accesses: by purpose, and separately for the foreground thread and for background threads.
//!
//! The purpose of an access follows from its address: rings are the journal, segments of the segment table are metadata, the rest of the
//! memory zone is data logs. The table is read at the end, so the file system is not asked.

use std::cell::Cell;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tandemfs_device::{BlockRequest, BytePath, Device, DeviceError, Layer};
use tandemfs_format::geometry::Geometry;
use tandemfs_format::{PairSeed, UNIT_BYTES};

use crate::failure::Result;
use crate::segments::segments;

/// Time and bytes of some accesses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    /// Time.
    pub ns: u64,
    /// Bytes written to the device; for block reads, bytes read.
    pub bytes: u64,
}

impl Spent {
    fn add(&mut self, ns: u64, bytes: u64) {
        self.ns += ns;
        self.bytes += bytes;
    }
}

/// Purposes of accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Stores to data logs, and loads of logs that are merged.
    Log,
    /// Block writes: time without the work done meanwhile. The time of transfers that also read is in `BlockRead`.
    BlockWrite,
    /// Block reads, to compose blocks.
    BlockRead,
    /// Journal records.
    Journal,
    /// Everything else in the memory zone: metadata at checkpoints, zeroed and loaded pages.
    Index,
}

/// Time and bytes of one side (foreground or background), by [`Purpose`].
pub type Purposes = [Spent; 5];

/// Accesses of one side until the stop. Those to the memory zone beside the rings are by unit, and not by purpose yet.
#[derive(Debug, Clone, Default)]
pub struct Side {
    units: Vec<Spent>,
    others: Purposes,
}

/// The device wrapper.
pub struct Stopwatch {
    inner: Arc<dyn Device>,
    foreground: ThreadId,
    rings: Mutex<Option<(u64, u64)>>,
    sides: [Mutex<Side>; 2],
}

impl Stopwatch {
    /// Wraps a device; the calling thread is the foreground. Timing has not started yet.
    pub fn new(inner: Arc<dyn Device>) -> Self {
        let foreground = thread::current().id();
        Self { inner, foreground, rings: Mutex::default(), sides: Default::default() }
    }

    /// Resets all times and starts timing.
    pub fn start(&self, geometry: &Geometry) {
        let first = geometry.ring(0).offset_bytes();
        let units = vec![Spent::default(); geometry.memory_units() as usize];
        for side in &self.sides {
            *side.lock() = Side { units: units.clone(), ..Side::default() };
        }
        *self.rings.lock() = Some((first, first + u64::from(geometry.ring_count()) * geometry.ring_bytes()));
    }

    /// Sums the times from [`Self::stop`] by purpose. The segment table must be up to date on the device: run a checkpoint first.
    pub fn purposes(&self, sides: [Side; 2], geometry: &Geometry, pair: PairSeed) -> Result<[Purposes; 2]> {
        let mut metadata: Vec<bool> = (0..geometry.memory_units()).map(|unit| geometry.is_fixed(unit)).collect();
        for segment in segments(&*self.inner, geometry, pair)? {
            metadata[segment.start_unit as usize..(segment.start_unit + segment.unit_count) as usize].fill(true);
        }
        Ok(sides.map(|Side { units, others: mut purposes }| {
            for (spent, is_metadata) in units.iter().zip(&metadata) {
                let purpose = if *is_metadata { Purpose::Index } else { Purpose::Log };
                purposes[purpose as usize].add(spent.ns, spent.bytes);
            }
            purposes
        }))
    }

    /// Stops timing. Returns the accesses of the foreground and of the background.
    pub fn stop(&self) -> [Side; 2] {
        *self.rings.lock() = None;
        [0, 1].map(|side| std::mem::take(&mut *self.sides[side].lock()))
    }

    fn side(&self) -> &Mutex<Side> {
        &self.sides[usize::from(thread::current().id() != self.foreground)]
    }

    /// Makes an access to the memory zone that stores so many bytes.
    fn timed<T>(&self, offset: u64, bytes: u64, access: impl FnOnce(&dyn BytePath) -> T) -> T {
        let start = Instant::now();
        let result = access(self.inner.byte_path());
        let ns = start.elapsed().as_nanos() as u64;
        let Some((first, end)) = *self.rings.lock() else { return result };
        let mut side = self.side().lock();
        if (first..end).contains(&offset) {
            side.others[Purpose::Journal as usize].add(ns, bytes);
        } else if let Some(unit) = side.units.get_mut((offset / UNIT_BYTES) as usize) {
            unit.add(ns, bytes);
        }
        result
    }
}

impl Layer for Stopwatch {
    fn below(&self) -> &dyn Device {
        &*self.inner
    }

    fn load(&self, offset: u64, into: &mut [u8]) -> std::result::Result<(), DeviceError> {
        self.timed(offset, 0, |bytes| bytes.load(offset, into))
    }

    fn store(&self, offset: u64, from: &[u8]) -> std::result::Result<(), DeviceError> {
        self.timed(offset, from.len() as u64, |bytes| bytes.store(offset, from))
    }

    fn flush_lines(&self, offset: u64, length: u64) {
        self.timed(offset, 0, |bytes| bytes.flush(offset, length));
    }

    /// Timed without `meanwhile` and `completed`. Fences are not timed: on the domains of emulated drives they do not wait.
    fn transfer_each(
        &self,
        requests: &mut [BlockRequest<'_>],
        meanwhile: &mut dyn FnMut(),
        completed: &mut dyn FnMut(usize, &BlockRequest<'_>),
    ) -> std::result::Result<(), DeviceError> {
        let (mut read, mut written) = (0, 0);
        for request in requests.iter() {
            match request {
                BlockRequest::Read { buffer, .. } => read += buffer.len() as u64,
                BlockRequest::Write { buffer, .. } => written += buffer.len() as u64,
            }
        }
        let (start, aside) = (Instant::now(), Cell::new(Duration::ZERO));
        let result = self.inner.block_path().transfer_each(
            requests,
            &mut || {
                let start = Instant::now();
                meanwhile();
                aside.set(aside.get() + start.elapsed());
            },
            &mut |index, request| {
                let start = Instant::now();
                completed(index, request);
                aside.set(aside.get() + start.elapsed());
            },
        );
        let ns = start.elapsed().saturating_sub(aside.get()).as_nanos() as u64;
        if self.rings.lock().is_some() {
            let others = &mut self.side().lock().others;
            let (read_ns, written_ns) = if read > 0 { (ns, 0) } else { (0, ns) };
            others[Purpose::BlockRead as usize].add(read_ns, read);
            others[Purpose::BlockWrite as usize].add(written_ns, written);
        }
        result
    }
}
