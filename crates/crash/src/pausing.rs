//! A device that pauses at every step, so that another thread may run there: many bugs show only while I/O is in flight (RULES R9). Block
//! requests proceed sector by sector and long stores in two halves, since no drive promises more.

use tandemfs_device::{BlockPath, BlockRequest, BytePath, Device, DeviceError, Firmware, Layer, TxId};
use tandemfs_format::{LINE_BYTES, SECTOR_BYTES, Sector};

use crate::memory_device::MemoryDevice;

/// The device. What it does reaches the [`MemoryDevice`] below, which records it.
pub struct PausingDevice {
    inner: MemoryDevice,
    pause: fn(),
}

impl PausingDevice {
    /// Over a device in memory; `pause` is called before every step.
    pub fn new(inner: MemoryDevice, pause: fn()) -> Self {
        Self { inner, pause }
    }
}

impl Layer for PausingDevice {
    fn below(&self) -> &dyn Device {
        &self.inner
    }

    fn store_tagged(&self, transaction: TxId, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        for (index, line) in (0..).zip(from.chunks(LINE_BYTES)) {
            (self.pause)();
            self.inner.store_tagged(transaction, offset + index * LINE_BYTES as u64, line)?;
        }
        Ok(())
    }

    fn commit(&self, transaction: TxId) -> Result<(), DeviceError> {
        (self.pause)();
        self.inner.commit(transaction)?;
        (self.pause)();
        Ok(())
    }

    fn clean(&self) -> Result<(), DeviceError> {
        (self.pause)();
        self.inner.clean()
    }

    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        (self.pause)();
        self.inner.load(offset, into)
    }

    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        (self.pause)();
        let half = (from.len() / 2).next_multiple_of(LINE_BYTES).min(from.len());
        let (first, second) = if from.len() > LINE_BYTES { from.split_at(half) } else { (from, &from[..0]) };
        self.inner.store(offset, first)?;
        if !second.is_empty() {
            (self.pause)();
            self.inner.store(offset + half as u64, second)?;
        }
        Ok(())
    }

    fn flush_lines(&self, offset: u64, length: u64) {
        (self.pause)();
        BytePath::flush(&self.inner, offset, length);
    }

    fn fence(&self) {
        (self.pause)();
        self.inner.fence();
    }

    fn transfer_each(
        &self,
        requests: &mut [BlockRequest<'_>],
        meanwhile: &mut dyn FnMut(),
        completed: &mut dyn FnMut(usize, &BlockRequest<'_>),
    ) -> Result<(), DeviceError> {
        let mut run_meanwhile = Some(meanwhile);
        for (index, request) in requests.iter_mut().enumerate() {
            match request {
                BlockRequest::Read { sector, buffer } => {
                    for (index, part) in (0..).zip(buffer.reborrow().chunks(SECTOR_BYTES)) {
                        (self.pause)();
                        self.inner.transfer(&mut [BlockRequest::Read { sector: sector.nth(index), buffer: part }], &mut || {})?;
                    }
                }
                BlockRequest::Write { sector, buffer } => {
                    for (index, part) in (0..).zip(buffer.chunks(SECTOR_BYTES)) {
                        (self.pause)();
                        self.inner.transfer(&mut [BlockRequest::Write { sector: sector.nth(index), buffer: part }], &mut || {})?;
                    }
                }
            }
            if let Some(meanwhile) = run_meanwhile.take() {
                meanwhile();
            }
            completed(index, request);
        }
        (self.pause)();
        if let Some(meanwhile) = run_meanwhile.take() {
            meanwhile();
        }
        Ok(())
    }

    fn flush_blocks(&self) -> Result<(), DeviceError> {
        (self.pause)();
        BlockPath::flush(&self.inner)?;
        (self.pause)();
        Ok(())
    }

    fn discard(&self, sector: Sector, count: u64) -> Result<(), DeviceError> {
        (self.pause)();
        self.inner.discard(sector, count)
    }
}
