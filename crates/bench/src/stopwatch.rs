//! A device wrapper that times accesses: by purpose, and separately for the foreground thread and for background threads.
//!
//! The purpose of an access follows from its address: rings are the journal, segments of the segment table are metadata, the rest of the
//! memory zone is data logs. The table is read at the end, so the file system is not asked.

use std::cell::Cell;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tandemfs_device::{BlockRequest, Device, DeviceError, Layer};
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

/// Time and bytes of one side (foreground or background), by purpose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Purposes {
    /// Stores to data logs, and loads of logs that are merged.
    pub logs: Spent,
    /// Block writes: time without the work done meanwhile. The time of transfers that also read is in `block_reads`.
    pub block_writes: Spent,
    /// Block reads, to compose blocks.
    pub block_reads: Spent,
    /// Journal records.
    pub journal: Spent,
    /// Everything else in the memory zone: metadata at checkpoints, zeroed and loaded pages.
    pub index: Spent,
}

/// Time and bytes of one side, by place.
#[derive(Debug, Clone, Default)]
struct Side {
    units: Vec<Spent>,
    journal: Spent,
    block_writes: Spent,
    block_reads: Spent,
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
    pub fn purposes(&self, sides: &[Kept; 2], geometry: &Geometry, pair: PairSeed) -> Result<[Purposes; 2]> {
        let mut metadata: Vec<bool> = (0..geometry.memory_units()).map(|unit| geometry.is_fixed(unit)).collect();
        for segment in segments(&*self.inner, geometry, pair)? {
            metadata[segment.start_unit as usize..(segment.start_unit + segment.unit_count) as usize].fill(true);
        }
        Ok([0, 1].map(|side| {
            let Side { units, journal, block_writes, block_reads } = &sides[side].0;
            let sum = |wanted: bool| {
                let mut sum = Spent::default();
                units.iter().zip(&metadata).filter(|(_, is)| **is == wanted).for_each(|(spent, _)| sum.add(spent.ns, spent.bytes));
                sum
            };
            Purposes { logs: sum(false), index: sum(true), journal: *journal, block_writes: *block_writes, block_reads: *block_reads }
        }))
    }

    /// Stops timing. Returns the times of the foreground and of the background.
    pub fn stop(&self) -> [Kept; 2] {
        *self.rings.lock() = None;
        [0, 1].map(|side| Kept(std::mem::take(&mut *self.sides[side].lock())))
    }

    fn side(&self) -> &Mutex<Side> {
        &self.sides[usize::from(thread::current().id() != self.foreground)]
    }

    fn took(&self, start: Instant, offset: u64, bytes: u64) {
        let ns = start.elapsed().as_nanos() as u64;
        let Some((first, end)) = *self.rings.lock() else { return };
        let mut side = self.side().lock();
        if (first..end).contains(&offset) {
            side.journal.add(ns, bytes);
        } else if let Some(unit) = side.units.get_mut((offset / UNIT_BYTES) as usize) {
            unit.add(ns, bytes);
        }
    }
}

/// Times of one side until the stop.
pub struct Kept(Side);

impl Layer for Stopwatch {
    fn below(&self) -> &dyn Device {
        &*self.inner
    }

    fn load(&self, offset: u64, into: &mut [u8]) -> std::result::Result<(), DeviceError> {
        let start = Instant::now();
        let result = self.inner.byte_path().load(offset, into);
        self.took(start, offset, 0);
        result
    }

    fn store(&self, offset: u64, from: &[u8]) -> std::result::Result<(), DeviceError> {
        let start = Instant::now();
        let result = self.inner.byte_path().store(offset, from);
        self.took(start, offset, from.len() as u64);
        result
    }

    fn flush_lines(&self, offset: u64, length: u64) {
        let start = Instant::now();
        self.inner.byte_path().flush(offset, length);
        self.took(start, offset, 0);
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
            let mut side = self.side().lock();
            if read > 0 {
                side.block_reads.add(ns, read);
                side.block_writes.add(0, written);
            } else {
                side.block_writes.add(ns, written);
            }
        }
        result
    }
}
