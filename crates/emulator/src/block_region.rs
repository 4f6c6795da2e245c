//! The block path of an image: reads and writes of the file by offset. If the host's disk is full, the write that needed space returns an
//! error.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Acquire};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use tandemfs_device::{BlockRequest, DeviceError};
use tandemfs_format::{SECTOR_BYTES, Sector};

/// The block region of an image.
#[derive(Debug)]
pub(crate) struct BlockRegion {
    pub(crate) name: String,
    pub(crate) file: File,
    /// Where the region starts in the file, in bytes.
    pub(crate) start: u64,
    /// Size in bytes; it grows.
    pub(crate) length: AtomicU64,
    pub(crate) read_only: bool,
}

impl BlockRegion {
    /// Does one request on the host.
    pub(crate) fn transfer(&self, request: &mut BlockRequest<'_>) -> Result<(), DeviceError> {
        match request {
            BlockRequest::Read { sector, buffer } => {
                let offset = self.offset("read", *sector, buffer.len() as u64)?;
                let length = buffer.len() as u64;
                buffer.read_exact_at(&self.file, self.start + offset).map_err(|source| self.failed("read", offset, length, source))
            }
            BlockRequest::Write { sector, buffer } => {
                let length = buffer.len() as u64;
                let offset = self.offset("write", *sector, length)?;
                self.check_writable("write", offset, length)?;
                buffer.write_all_at(&self.file, self.start + offset).map_err(|source| self.failed("write", offset, length, source))
            }
        }
    }

    /// Frees the host's space of sectors. They then read as zeros if the host supports it; missing support is no error.
    pub(crate) fn discard(&self, sector: Sector, count: u64) -> Result<(), DeviceError> {
        let length = count.saturating_mul(SECTOR_BYTES as u64);
        let offset = self.offset("discard", sector, length)?;
        self.check_writable("discard", offset, length)?;
        if length == 0 {
            return Ok(());
        }
        match fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, self.start + offset, length) {
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
            Err(source) => Err(self.failed("discard", offset, length, source.into())),
        }
    }

    fn offset(&self, operation: &'static str, sector: Sector, length: u64) -> Result<u64, DeviceError> {
        let offset = sector.number().saturating_mul(SECTOR_BYTES as u64);
        if offset.checked_add(length).is_none_or(|end| end > self.length.load(Acquire)) {
            let size = self.length.load(Acquire);
            return Err(DeviceError::OutOfRange { device: self.name.clone(), offset, length, size });
        }
        if !length.is_multiple_of(SECTOR_BYTES as u64) {
            return Err(self.failed(operation, offset, length, io::ErrorKind::InvalidInput.into()));
        }
        Ok(offset)
    }

    fn check_writable(&self, operation: &'static str, offset: u64, length: u64) -> Result<(), DeviceError> {
        if self.read_only { Err(self.failed(operation, offset, length, Errno::ROFS.into())) } else { Ok(()) }
    }

    fn failed(&self, operation: &'static str, offset: u64, length: u64, source: io::Error) -> DeviceError {
        DeviceError::Block { device: self.name.clone(), operation, offset, length, source }
    }
}
