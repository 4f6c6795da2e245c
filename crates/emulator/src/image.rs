//! An emulated drive without firmware: a memory region and a block region in one file ([EM1]–[EM4]).
//!
//! [EM1]: crate
//! [EM4]: crate

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering::Release;

use tandemfs_device::{
    BlockPath, BlockRequest, BytePath, Device, DeviceDescription, DeviceError, LentZone, MappedMemory, Mapping, MemoryRange, Replaced,
    StoreZone, VirtualTime, ZoneHold, is_zone_held,
};
use tandemfs_format::{PAGE_BYTES, Sector};

use crate::batch;
use crate::block_region::BlockRegion;
use crate::grow;
use crate::image_file::{OpenImage, OpenOptions, refused};
use crate::timing::{Clock, Direction, Time};

/// An open emulated drive.
#[derive(Debug)]
pub struct ImageDevice {
    description: Replaced<DeviceDescription>,
    memory: Replaced<Mapping>,
    /// Keeps the file open and thereby locked ([EM3]).
    ///
    /// [EM3]: crate
    blocks: BlockRegion,
    clock: Option<Clock>,
    /// Whether the clock times loads and stores too. Where a model of persistent memory is above it, that does (`media/`).
    byte_path_is_timed: bool,
}

impl ImageDevice {
    /// Opens an image and locks it.
    ///
    /// Errors: [`DeviceError::Busy`] where another process has it, [`DeviceError::Open`] where the file is no whole image of this version.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Self, DeviceError> {
        let image = OpenImage::open(path, options)?;
        if image.info.firmware.is_some() {
            return Err(refused(path, "is a drive with firmware; open it by its name (open_device)"));
        }
        Self::of(image, options)
    }

    /// The drive of an image that was opened.
    pub(crate) fn of(image: OpenImage, options: &OpenOptions) -> Result<Self, DeviceError> {
        let memory = Replaced::new(image.map(options.read_only)?);
        let description = Replaced::new(image.describe(options)?);
        let OpenImage { file, info, name } = image;
        let blocks = BlockRegion { name, file, start: info.block_offset(), length: info.block_bytes.into(), read_only: options.read_only };
        let time = || Time::new(options.virtual_time);
        let clock = info.timing.filter(|_| options.timing).map(|timing| Clock::new(timing, info.line_latency, time()));
        let byte_path_is_timed = info.media.is_none();
        Ok(Self { description, memory, blocks, clock, byte_path_is_timed })
    }

    /// The drive's time; `None` if timing is off.
    pub(crate) fn time(&self) -> Option<&Time> {
        self.clock.as_ref().map(|clock| &clock.time)
    }

    fn byte_clock(&self) -> Option<&Clock> {
        self.clock.as_ref().filter(|_| self.byte_path_is_timed)
    }

    /// Brings the memory region into the process's page table, so that first loads do not fault.
    pub fn populate(&self) -> io::Result<()> {
        self.memory.populate(0, self.description.memory_bytes)
    }
}

impl Device for ImageDevice {
    fn byte_path(&self) -> &dyn BytePath {
        self
    }

    fn block_path(&self) -> &dyn BlockPath {
        self
    }

    fn description(&self) -> &DeviceDescription {
        &self.description
    }

    fn mapping_unit(&self) -> Option<u64> {
        Some(PAGE_BYTES as u64)
    }

    fn map(&self, ranges: &[MemoryRange], writable: bool) -> Result<Box<dyn MappedMemory>, DeviceError> {
        self.memory.map_ranges(&self.blocks.file, PAGE_BYTES as u64, ranges, writable)
    }

    fn lent_zone(&self) -> Option<io::Result<LentZone>> {
        let lends = self.clock.is_none(); // loads of others would not be timed
        lends.then(|| LentZone::of(&self.blocks.file, self.memory.file_offset(), self.memory.length()))
    }

    fn store_zone(&self, program: u32) -> Option<io::Result<(StoreZone, ZoneHold)>> {
        let lends = self.clock.is_none();
        lends.then(|| StoreZone::of(&self.blocks.file, self.memory.file_offset(), self.memory.length(), program))
    }

    fn is_zone_held(&self) -> bool {
        is_zone_held(&self.blocks.file)
    }

    /// [GR6] of `grow.rs`
    fn grow(&self, memory_bytes: Option<u64>, block_bytes: Option<u64>) -> Result<(), DeviceError> {
        let after = grow::grow_in_use(&self.blocks.file, Path::new(&self.blocks.name), memory_bytes, block_bytes)?;
        if after.memory_bytes > self.memory.length() {
            let larger = self.memory.larger(&self.blocks.file, after.memory_bytes, false);
            let refuse = |error| refused(Path::new(&self.blocks.name), format!("its new size cannot be mapped: {error}"));
            self.memory.replace(larger.map_err(refuse)?);
        }
        self.blocks.length.store(after.block_bytes, Release);
        let (memory_bytes, block_bytes) = (after.memory_bytes, after.block_bytes);
        self.description.replace(DeviceDescription { memory_bytes, block_bytes, ..self.description.clone() });
        Ok(())
    }

    fn virtual_time(&self) -> Option<&dyn VirtualTime> {
        self.clock.as_ref()?.time.as_virtual().map(|time| time as &dyn VirtualTime)
    }
}

impl BytePath for ImageDevice {
    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        let Some(clock) = self.byte_clock() else { return self.memory.load(offset, into) };
        let arrival = clock.time.now_ns();
        self.memory.load(offset, into)?;
        clock.finish_load(arrival, into.len());
        Ok(())
    }

    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        let Some(clock) = self.byte_clock() else { return self.memory.store(offset, from) };
        let arrival = clock.time.now_ns();
        self.memory.store(offset, from)?;
        clock.finish_store(arrival, from.len());
        Ok(())
    }

    /// Nothing to do: the page cache of the host is the drive's memory, and the CPU's caches are coherent with it ([EM2]).
    fn flush(&self, _offset: u64, _length: u64) {}

    fn fence(&self) {
        self.memory.fence();
    }
}

impl BlockPath for ImageDevice {
    fn transfer_each(
        &self,
        requests: &mut [BlockRequest<'_>],
        meanwhile: &mut dyn FnMut(),
        completed: &mut dyn FnMut(usize, &BlockRequest<'_>),
    ) -> Result<(), DeviceError> {
        let Some(clock) = &self.clock else {
            return batch::transfer(requests, None, meanwhile, completed, &mut |request| self.blocks.transfer(request).map(|()| 0));
        };
        let arrival = clock.time.now_ns();
        batch::transfer(requests, Some(&clock.time), meanwhile, completed, &mut |request| {
            let direction = match request {
                BlockRequest::Read { .. } => Direction::Read,
                BlockRequest::Write { .. } => Direction::Write,
            };
            let done = clock.submit(arrival, direction, request.bytes().len() as u64);
            self.blocks.transfer(request).map(|()| done)
        })
    }

    /// Nothing to do: what was written is in the page cache of the host, which survives the process ([EM2]).
    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, sector: Sector, count: u64) -> Result<(), DeviceError> {
        self.blocks.discard(sector, count)
    }
}
