//! A drive whose memory belongs to the host (Habicht et al., §3.1): flash behind the block path, and beside it memory of the host's address
//! space, the memory zone and behind it a cache, between which and the flash MOVE commands copy pages (`tandemfs_device::CacheMoves`).
//!
//! [HMC1] Memory zone and cache are one range of the battery-backed DRAM. Loads and stores go there without a look-up, a lock or a miss, and
//!       the range can be mapped. Nothing of it is in the flash unless a MOVE or a block write brought it there: the drive keeps no mapping
//!       and never looks at the cache by itself.
//! [HMC2] The flash has the block zone alone, with the translation layer of the other drives. So a page of it is switched as a whole, by a
//!       block write or a MOVE, and is durable then: there is no volatile write cache.
//! [HMC3] A MOVE is done on the host when it is submitted, page by page, and its completion is there when the drive would have been done (as a
//!       batch of block requests, `batch.rs`). A power failure amid it leaves the pages before moved, the one under way torn if it is in the
//!       cache, the others as they were: part of what the rules of MOVE allow ([CMV5]). What fails is told by the completion.
//! [HMC4] Times: loads and stores by the curves of the profile; block commands as of the other drives. A MOVE takes a command, then to the
//!       cache a flash read each page, from all dies at once, and the drive's inner bandwidth; to the flash that bandwidth and a place in
//!       the write buffer for each page. It crosses no link to the host.
//! [HMC5] There is one lock for the flash and one for the queue of MOVEs, taken in this order; nobody waits while holding one.
//!
//! [CMV5]: tandemfs_device::CacheMoves

mod flash_side;
mod queue;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tandemfs_device::{
    BlockPath, BlockRequest, BytePath, CacheMove, CacheMoves, Device, DeviceDescription, DeviceError, DriveCounts, FlashWear, LentZone,
    MappedMemory, MemoryRange, MoveState, MoveTicket, StoreZone, VirtualTime, ZoneHold, is_zone_held,
};
use tandemfs_format::{PAGE_BYTES, SECTOR_BYTES, Sector};

use crate::batch;
use crate::controller::Condition;
use crate::grow::refuse_firmware;
use crate::layout::DramLayout;
use crate::medium::Medium;
use crate::model::{FirmwareModel, Staging};
use crate::timing::{Clock, Time, Timeline};
use flash_side::FlashSide;
use queue::MoveQueue;

pub(crate) use flash_side::format;

/// What a look at the queue for a completion takes in virtual time, in nanoseconds: a load from host memory. So a loop of looks ends.
const POLL_NS: u64 = 100;

/// Times of such a drive: of loads and stores, and of flash and MOVEs.
pub(crate) type Times = (Clock, Timeline);

/// An open drive whose memory belongs to the host.
#[derive(Debug)]
pub(crate) struct HostCacheDrive<M: Medium> {
    description: DeviceDescription,
    read_only: bool,
    medium: Arc<M>,
    /// Where memory zone and cache start in the DRAM, in bytes.
    memory_at: u64,
    /// `None` if timing is off.
    clock: Option<Clock>,
    flash: Mutex<FlashSide<M>>,
    queue: Mutex<MoveQueue>,
}

impl<M: Medium> HostCacheDrive<M> {
    /// Opens a drive: rebuilds volatile state and completes operations of the flash that a power failure interrupted.
    pub(crate) fn open(
        medium: &Arc<M>,
        model: &FirmwareModel,
        description: DeviceDescription,
        times: Option<Times>,
        read_only: bool,
    ) -> Result<Self, DeviceError> {
        let (clock, timeline) = times.unzip();
        let logical_pages = model.logical_pages(description.memory_bytes, description.block_bytes);
        let layout = DramLayout::new(model, description.memory_bytes, logical_pages);
        let queue_depth = match model.staging {
            Staging::HostCache { queue_depth, .. } => queue_depth,
            Staging::WriteLog { .. } | Staging::Cache { .. } => 0,
        };
        let flash = FlashSide::open(medium, &layout, model, logical_pages, timeline, read_only)?;
        Ok(Self {
            description,
            read_only,
            medium: Arc::clone(medium),
            memory_at: layout.staging,
            clock,
            flash: Mutex::new(flash),
            queue: Mutex::new(MoveQueue::new(queue_depth)),
        })
    }

    /// State of the drive besides its counters.
    pub(crate) fn condition(&self) -> Condition {
        self.flash.lock().condition()
    }

    fn time(&self) -> Option<&Time> {
        self.clock.as_ref().map(|clock| &clock.time)
    }

    fn now_ns(&self) -> u64 {
        self.time().map_or(0, Time::now_ns)
    }

    /// Adds the drive's name to errors of the flash, which does not know it.
    fn named(&self, error: DeviceError) -> DeviceError {
        let device = self.description.name.clone();
        match error {
            DeviceError::Firmware { device: flash, command, reason } if flash == "flash" => {
                DeviceError::Firmware { device, command, reason }
            }
            DeviceError::Poisoned { offset, .. } => DeviceError::Poisoned { device, offset: offset.saturating_sub(self.memory_at) },
            other => other,
        }
    }

    /// Where an access to memory zone or cache is in the DRAM.
    fn memory(&self, offset: u64, length: u64) -> Result<u64, DeviceError> {
        let size = self.description.byte_window_bytes();
        match offset.checked_add(length) {
            Some(end) if end <= size => Ok(self.memory_at + offset),
            _ => Err(DeviceError::OutOfRange { device: self.description.name.clone(), offset, length, size }),
        }
    }

    /// The first page of an access to sectors.
    fn page_of(&self, operation: &'static str, sector: Sector, length: u64) -> Result<u64, DeviceError> {
        let (offset, size) = (sector.number().saturating_mul(SECTOR_BYTES as u64), self.description.block_bytes);
        if offset.checked_add(length).is_none_or(|end| end > size) {
            return Err(DeviceError::OutOfRange { device: self.description.name.clone(), offset, length, size });
        }
        if !length.is_multiple_of(SECTOR_BYTES as u64) {
            return Err(self.failed(operation, offset, length, io::ErrorKind::InvalidInput.into()));
        }
        if self.read_only && operation != "read" {
            return Err(self.failed(operation, offset, length, rustix::io::Errno::ROFS.into()));
        }
        Ok(sector.number())
    }

    fn failed(&self, operation: &'static str, offset: u64, length: u64, source: io::Error) -> DeviceError {
        DeviceError::Block { device: self.description.name.clone(), operation, offset, length, source }
    }

    fn transfer_one(&self, at: u64, request: &mut BlockRequest<'_>) -> Result<u64, DeviceError> {
        let done = match request {
            BlockRequest::Read { sector, buffer } => {
                let page = self.page_of("read", *sector, buffer.len() as u64)?;
                buffer.with_private(|bytes| self.flash.lock().read_pages(at, page, bytes))
            }
            BlockRequest::Write { sector, buffer } => {
                let page = self.page_of("write", *sector, buffer.len() as u64)?;
                let mut copy = Vec::new();
                let bytes = buffer.stable(&mut copy);
                self.flash.lock().write_pages(at, page, bytes)
            }
        };
        done.map_err(|error| self.named(error))
    }
}

impl<M: Medium> Device for HostCacheDrive<M> {
    fn byte_path(&self) -> &dyn BytePath {
        self
    }

    fn block_path(&self) -> &dyn BlockPath {
        self
    }

    fn description(&self) -> &DeviceDescription {
        &self.description
    }

    fn cache_moves(&self) -> Option<&dyn CacheMoves> {
        Some(self)
    }

    fn grow(&self, memory_bytes: Option<u64>, block_bytes: Option<u64>) -> Result<(), DeviceError> {
        refuse_firmware(&self.description, memory_bytes, block_bytes)
    }

    fn counts(&self) -> Option<DriveCounts> {
        Some(self.flash.lock().counts())
    }

    fn wear(&self) -> Option<FlashWear> {
        Some(self.flash.lock().wear().shown())
    }

    fn mapping_unit(&self) -> Option<u64> {
        self.medium.mapped().map(|_| PAGE_BYTES as u64)
    }

    fn map(&self, ranges: &[MemoryRange], writable: bool) -> Result<Box<dyn MappedMemory>, DeviceError> {
        let Some((dram, file)) = self.medium.mapped() else {
            let reason = "it is in host memory of its own".to_owned();
            return Err(DeviceError::Map { device: self.description.name.clone(), reason });
        };
        let shifted = |range: &MemoryRange| {
            let offset = self.memory(range.offset, range.length)?;
            Ok(MemoryRange { offset, length: range.length })
        };
        let ranges: Vec<MemoryRange> = ranges.iter().map(shifted).collect::<Result<_, DeviceError>>()?;
        dram.map_ranges(file, PAGE_BYTES as u64, &ranges, writable)
    }

    /// The memory zone alone: the cache behind it is not the file system's.
    fn lent_zone(&self) -> Option<io::Result<LentZone>> {
        let (dram, file) = self.medium.mapped().filter(|_| self.clock.is_none())?; // loads of others would not be timed
        Some(LentZone::of(file, dram.file_offset() + self.memory_at, self.description.memory_bytes))
    }

    fn store_zone(&self, program: u32) -> Option<io::Result<(StoreZone, ZoneHold)>> {
        let (dram, file) = self.medium.mapped().filter(|_| self.clock.is_none())?;
        Some(StoreZone::of(file, dram.file_offset() + self.memory_at, self.description.memory_bytes, program))
    }

    fn is_zone_held(&self) -> bool {
        self.medium.mapped().is_some_and(|(_, file)| is_zone_held(file))
    }

    fn virtual_time(&self) -> Option<&dyn VirtualTime> {
        self.time()?.as_virtual().map(|clocks| clocks as &dyn VirtualTime)
    }
}

impl<M: Medium> BytePath for HostCacheDrive<M> {
    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        let arrival = self.now_ns();
        self.medium.load(self.memory(offset, into.len() as u64)?, into).map_err(|error| self.named(error))?;
        if let Some(clock) = &self.clock {
            clock.finish_load(arrival, into.len());
        }
        Ok(())
    }

    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        let (arrival, length) = (self.now_ns(), from.len() as u64);
        let at = self.memory(offset, length)?;
        if self.read_only {
            return Err(self.failed("store", offset, length, rustix::io::Errno::ROFS.into()));
        }
        self.medium.store(at, from).map_err(|error| self.named(error))?;
        if let Some(clock) = &self.clock {
            clock.finish_store(arrival, from.len());
        }
        Ok(())
    }

    /// Nothing to do: the DRAM is battery-backed, and the CPU's caches are coherent with its emulation.
    fn flush(&self, _offset: u64, _length: u64) {}

    fn fence(&self) {
        if let Some((dram, _)) = self.medium.mapped() {
            dram.fence();
        }
    }
}

impl<M: Medium> BlockPath for HostCacheDrive<M> {
    fn transfer_each(
        &self,
        requests: &mut [BlockRequest<'_>],
        meanwhile: &mut dyn FnMut(),
        completed: &mut dyn FnMut(usize, &BlockRequest<'_>),
    ) -> Result<(), DeviceError> {
        let arrival = self.now_ns();
        batch::transfer(requests, self.time(), meanwhile, completed, &mut |request| self.transfer_one(arrival, request))
    }

    /// Nothing to do ([HMC2]).
    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, sector: Sector, count: u64) -> Result<(), DeviceError> {
        let first = self.page_of("discard", sector, count.saturating_mul(SECTOR_BYTES as u64))?;
        let done = self.flash.lock().discard(self.now_ns(), first, count).map_err(|error| self.named(error))?;
        if let Some(time) = self.time() {
            time.wait_until(done);
        }
        Ok(())
    }
}

impl<M: Medium> CacheMoves for HostCacheDrive<M> {
    fn queue_depth(&self) -> u32 {
        self.queue.lock().depth()
    }

    fn submit(&self, command: &CacheMove) -> Result<Option<MoveTicket>, DeviceError> {
        let memory = command.check(&self.description)?;
        if self.read_only {
            return Err(command.failed(&self.description.name, rustix::io::Errno::ROFS.into()));
        }
        let arrival = self.now_ns();
        let mut flash = self.flash.lock();
        if self.queue.lock().is_full() {
            return Ok(None);
        }
        let (done_at, result) = flash.carry_out(arrival, command, self.memory_at + memory.offset);
        let result = result.map_err(|error| self.named(error));
        Ok(Some(self.queue.lock().enter(done_at, result))) // still under the flash's lock, so the place is there
    }

    fn poll(&self, ticket: MoveTicket) -> MoveState {
        let Some(done_at) = self.queue.lock().done_at(&ticket) else { return MoveState::unknown(&self.description.name) };
        if let Some(time) = self.time().filter(|time| time.as_virtual().is_some() && time.now_ns() < done_at) {
            time.wait_until(done_at.min(time.now_ns() + POLL_NS));
        }
        if self.now_ns() < done_at && self.clock.is_some() {
            return MoveState::Pending(ticket);
        }
        self.taken(ticket)
    }

    fn wait(&self, ticket: MoveTicket, timeout: Duration) -> MoveState {
        let Some(done_at) = self.queue.lock().done_at(&ticket) else { return MoveState::unknown(&self.description.name) };
        if let Some(time) = self.time() {
            let longest = time.now_ns().saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
            time.wait_until(done_at.min(longest));
            if longest < done_at {
                return MoveState::Pending(ticket);
            }
        }
        self.taken(ticket)
    }
}

impl<M: Medium> HostCacheDrive<M> {
    fn taken(&self, ticket: MoveTicket) -> MoveState {
        match self.queue.lock().take(ticket) {
            Some(result) => MoveState::Done(result),
            None => MoveState::unknown(&self.description.name),
        }
    }
}
