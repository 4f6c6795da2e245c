//! A drive with firmware as a [`Device`]: both windows reach the same logical pages (`device::firmware` [FW1]).
//!
//! [FD1] There is one lock, the controller's. The duration of an access is computed under the lock; the wait happens after it is released.
//! [FD2] When an access returns, its data is in battery-backed DRAM or in the flash, so FLUSH and flushing lines do nothing. A fence costs
//!       its write-verify read, which on a real drive proves that posted stores have arrived.
//! [FD3] A drive opened read-only refuses every change with EROFS. There RECOVER only hides uncommitted lines.

use std::io;

use parking_lot::Mutex;
use tandemfs_device::{
    BlockPath, BlockRequest, BytePath, Device, DeviceDescription, DeviceError, DriveCounts, DriveRecovery, Firmware, FlashWear, TxId,
    VirtualTime,
};
use tandemfs_format::{LINE_BYTES, SECTOR_BYTES, Sector};

use crate::batch;
use crate::controller::{Condition, Controller};
use crate::grow::refuse_firmware;
use crate::medium::{FLASH_PAGE_BYTES, Medium};
use crate::mutant::{Mutant, on};
use crate::timing::Time;

const SECTOR: u64 = SECTOR_BYTES as u64;
/// Pages discarded under one hold of the lock, so that other accesses can run in between.
const DISCARDED_AT_ONCE: u64 = 4096;

/// An open drive with firmware.
#[derive(Debug)]
pub(crate) struct FirmwareDrive<M: Medium> {
    description: DeviceDescription,
    read_only: bool,
    /// `None` if timing is off.
    time: Option<Time>,
    has_transactions: bool,
    controller: Mutex<Controller<M>>,
}

impl<M: Medium> FirmwareDrive<M> {
    /// `time` is given if and only if the controller has a timeline.
    pub(crate) fn new(mut controller: Controller<M>, description: DeviceDescription, time: Option<Time>, read_only: bool) -> Self {
        let has_transactions = controller.has_transactions();
        controller.set_read_only(read_only);
        Self { description, read_only, time, has_transactions, controller: Mutex::new(controller) }
    }

    /// State of the drive besides its counters.
    pub(crate) fn condition(&self) -> Condition {
        self.controller.lock().condition()
    }

    fn now_ns(&self) -> u64 {
        self.time.as_ref().map_or(0, Time::now_ns)
    }

    /// Runs an access that arrives now; its result contains the completion time.
    fn reckoned<T>(&self, access: impl FnOnce(&mut Controller<M>, u64) -> Result<T, DeviceError>) -> Result<T, DeviceError> {
        let at = self.now_ns();
        let result = access(&mut self.controller.lock(), at);
        result.map_err(|error| self.named(error))
    }

    /// Runs a command and waits until the drive would have completed it ([FD1]).
    fn timed<T>(&self, command: impl FnOnce(&mut Controller<M>, u64) -> Result<(u64, T), DeviceError>) -> Result<T, DeviceError> {
        let (done, value) = self.reckoned(command)?;
        if let Some(time) = &self.time {
            time.wait_until(done);
        }
        Ok(value)
    }

    /// Runs a load, store or fence and stalls until the drive would have completed it ([FD1]).
    fn stalled(&self, access: impl FnOnce(&mut Controller<M>, u64) -> Result<u64, DeviceError>) -> Result<(), DeviceError> {
        let done = self.reckoned(access)?;
        if let Some(time) = &self.time {
            time.stall_until(done);
        }
        Ok(())
    }

    /// Adds the drive's name to errors of the flash, which does not know it.
    fn named(&self, error: DeviceError) -> DeviceError {
        match error {
            DeviceError::Firmware { device, command, reason } if device == "flash" => {
                DeviceError::Firmware { device: self.description.name.clone(), command, reason }
            }
            other => other,
        }
    }

    fn check_window(&self, offset: u64, length: usize) -> Result<(), DeviceError> {
        let (length, size) = (length as u64, self.description.byte_window_bytes());
        if offset.checked_add(length).is_some_and(|end| end <= size) {
            return Ok(());
        }
        Err(DeviceError::OutOfRange { device: self.description.name.clone(), offset, length, size })
    }

    /// The logical page of a sector, and where the request is in the block window, in bytes. Behind the last page comes the first, so the
    /// pages of the memory zone follow those of the block zone.
    fn page_of(&self, operation: &'static str, sector: Sector, length: u64) -> Result<(u64, u64), DeviceError> {
        let (offset, size) = (sector.number().saturating_mul(SECTOR), self.description.block_window_bytes());
        if offset.checked_add(length).is_none_or(|end| end > size) {
            return Err(DeviceError::OutOfRange { device: self.description.name.clone(), offset, length, size });
        }
        if !length.is_multiple_of(SECTOR) {
            return Err(self.failed(operation, offset, length, io::ErrorKind::InvalidInput.into()));
        }
        let page = self.description.memory_bytes / FLASH_PAGE_BYTES as u64 + sector.number();
        let pages = size / FLASH_PAGE_BYTES as u64;
        if page >= pages && on(Mutant::MemoryZoneReversed) {
            return Ok((self.description.memory_bytes / FLASH_PAGE_BYTES as u64 - 1 - (page - pages), offset));
        }
        Ok((page % pages, offset))
    }

    fn check_writable(&self, operation: &'static str, offset: u64, length: u64) -> Result<(), DeviceError> {
        if self.read_only { Err(self.failed(operation, offset, length, rustix::io::Errno::ROFS.into())) } else { Ok(()) }
    }

    fn check_command(&self, command: &'static str) -> Result<(), DeviceError> {
        if !self.read_only {
            return Ok(());
        }
        let reason = "the drive is open for reading".to_owned();
        Err(DeviceError::Firmware { device: self.description.name.clone(), command, reason })
    }

    fn failed(&self, operation: &'static str, offset: u64, length: u64, source: io::Error) -> DeviceError {
        DeviceError::Block { device: self.description.name.clone(), operation, offset, length, source }
    }

    fn transfer_one(&self, at: u64, request: &mut BlockRequest<'_>) -> Result<u64, DeviceError> {
        match request {
            BlockRequest::Read { sector, buffer } => {
                let (page, _) = self.page_of("read", *sector, buffer.len() as u64)?;
                buffer.with_private(|bytes| self.controller.lock().read_pages(at, page, bytes)).map_err(|error| self.named(error))
            }
            BlockRequest::Write { sector, buffer } => {
                let length = buffer.len() as u64;
                let (page, offset) = self.page_of("write", *sector, length)?;
                self.check_writable("write", offset, length)?;
                let mut copy = Vec::new();
                let bytes = buffer.stable(&mut copy);
                self.controller.lock().write_pages(at, page, bytes).map_err(|error| self.named(error))
            }
        }
    }
}

impl<M: Medium> Drop for FirmwareDrive<M> {
    fn drop(&mut self) {
        self.controller.get_mut().close();
    }
}

impl<M: Medium> Device for FirmwareDrive<M> {
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
        self.has_transactions.then_some(self as &dyn Firmware)
    }

    fn grow(&self, memory_bytes: Option<u64>, block_bytes: Option<u64>) -> Result<(), DeviceError> {
        refuse_firmware(&self.description, memory_bytes, block_bytes)
    }

    fn counts(&self) -> Option<DriveCounts> {
        Some(self.controller.lock().counts())
    }

    fn wear(&self) -> Option<FlashWear> {
        Some(self.controller.lock().wear().shown())
    }

    fn virtual_time(&self) -> Option<&dyn VirtualTime> {
        self.time.as_ref()?.as_virtual().map(|clocks| clocks as &dyn VirtualTime)
    }
}

impl<M: Medium> BytePath for FirmwareDrive<M> {
    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.check_window(offset, into.len())?;
        self.stalled(|controller, at| controller.load(at, offset, into))
    }

    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.check_window(offset, from.len())?;
        self.check_writable("store", offset, from.len() as u64)?;
        self.stalled(|controller, at| controller.store(at, 0, offset, from))
    }

    /// Nothing to do ([FD2]).
    fn flush(&self, _offset: u64, _length: u64) {}

    fn fence(&self) {
        if let Some(time) = &self.time {
            let at = time.now_ns();
            let done = self.controller.lock().fence(at);
            time.stall_until(done);
        }
    }
}

impl<M: Medium> BlockPath for FirmwareDrive<M> {
    fn transfer_each(
        &self,
        requests: &mut [BlockRequest<'_>],
        meanwhile: &mut dyn FnMut(),
        completed: &mut dyn FnMut(usize, &BlockRequest<'_>),
    ) -> Result<(), DeviceError> {
        let arrival = self.now_ns();
        batch::transfer(requests, self.time.as_ref(), meanwhile, completed, &mut |request| self.transfer_one(arrival, request))
    }

    /// Nothing to do ([FD2]).
    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, sector: Sector, count: u64) -> Result<(), DeviceError> {
        let (first, offset) = self.page_of("discard", sector, count.saturating_mul(SECTOR))?;
        self.check_writable("discard", offset, count * SECTOR)?;
        let mut done = 0;
        while done < count {
            let part = (count - done).min(DISCARDED_AT_ONCE);
            self.timed(|controller, at| Ok((controller.discard(at, first + done, part)?, ())))?;
            done += part;
        }
        Ok(())
    }
}

impl<M: Medium> Firmware for FirmwareDrive<M> {
    fn store_tagged(&self, transaction: TxId, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.check_window(offset, from.len())?;
        self.check_writable("store", offset, from.len() as u64)?;
        if !offset.is_multiple_of(LINE_BYTES as u64) || !from.len().is_multiple_of(LINE_BYTES) {
            return Err(self.failed("store", offset, from.len() as u64, io::ErrorKind::InvalidInput.into()));
        }
        self.stalled(|controller, at| controller.store(at, transaction.get(), offset, from))
    }

    fn commit(&self, transaction: TxId) -> Result<(), DeviceError> {
        self.check_command("COMMIT")?;
        self.timed(|controller, at| Ok((controller.commit(at, transaction.get())?, ())))
    }

    fn recover(&self) -> Result<DriveRecovery, DeviceError> {
        self.timed(Controller::recover)
    }

    fn clean(&self) -> Result<(), DeviceError> {
        self.check_command("CLEAN")?;
        self.timed(|controller, at| Ok((controller.clean(at)?, ())))
    }
}
