//! The block half: sectors of 4 KiB by io_uring and `O_DIRECT`. All I/O is aligned to 4 KiB, so drives with 512 B and with 4 KiB sectors
//! serve alike.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags, fallocate};
use tandemfs_format::{SECTOR_BYTES, Sector};

use super::memory_half::open_file;
use super::rings::Rings;
use super::sysfs;
use crate::{BlockRequest, DeviceError};

#[derive(Debug)]
pub(crate) struct BlockHalf {
    name: String,
    file: File,
    bytes: u64,
    volatile_cache: bool,
    discard: bool,
    rings: Rings,
}

impl BlockHalf {
    pub(crate) fn open(path: &Path, read_only: bool) -> Result<Self, DeviceError> {
        let name = path.display().to_string();
        let refuse = |reason: String| DeviceError::Open { path: name.clone(), reason };
        let metadata = std::fs::metadata(path).map_err(|error| refuse(error.to_string()))?;
        let kind = metadata.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(refuse("is no block device and no file; the block half is one of them".into()));
        }
        // Some file systems refuse O_DIRECT; then the page cache is in between and nothing is lost but speed.
        let (mut file, direct) = match open_file(path, read_only, kind.is_block_device(), OFlags::DIRECT) {
            Err(DeviceError::Open { .. }) => (open_file(path, read_only, kind.is_block_device(), OFlags::empty())?, false),
            other => (other?, true),
        };
        let bytes = file.seek(SeekFrom::End(0)).map_err(|error| refuse(error.to_string()))? / SECTOR_BYTES as u64 * SECTOR_BYTES as u64;
        if bytes == 0 {
            return Err(refuse("is empty; a block half has at least 4 MiB".into()));
        }
        let directory = kind.is_block_device().then(|| sysfs::device_directory("block", metadata.rdev())).flatten();
        Ok(Self {
            volatile_cache: directory.as_deref().is_none_or(sysfs::has_volatile_cache),
            discard: directory.as_deref().is_none_or(sysfs::can_discard),
            rings: Rings::new(direct),
            name,
            file,
            bytes,
        })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn has_volatile_cache(&self) -> bool {
        self.volatile_cache
    }

    pub(crate) fn can_discard(&self) -> bool {
        self.discard
    }

    pub(crate) fn transfer(&self, requests: &mut [BlockRequest<'_>], meanwhile: &mut dyn FnMut()) -> Result<(), DeviceError> {
        for request in requests.iter() {
            let (sector, length) = place(request);
            if sector.offset_bytes().checked_add(length).is_none_or(|end| end > self.bytes) || length % SECTOR_BYTES as u64 != 0 {
                let (device, offset) = (self.name.clone(), sector.offset_bytes());
                return Err(DeviceError::OutOfRange { device, offset, length, size: self.bytes });
            }
        }
        match self.rings.run(&self.file, requests, meanwhile) {
            Ok(()) => Ok(()),
            Err((index, source)) => {
                let (sector, length) = place(&requests[index]);
                let operation = if matches!(requests[index], BlockRequest::Read { .. }) { "read" } else { "write" };
                Err(self.error(operation, sector.offset_bytes(), length, source))
            }
        }
    }

    pub(crate) fn flush(&self) -> Result<(), DeviceError> {
        self.file.sync_data().map_err(|source| self.error("flush", 0, self.bytes, source))
    }

    pub(crate) fn discard(&self, sector: Sector, count: u64) -> Result<(), DeviceError> {
        let (offset, length) = (sector.offset_bytes(), count * SECTOR_BYTES as u64);
        fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length)
            .map_err(|source| self.error("discard", offset, length, source.into()))
    }

    fn error(&self, operation: &'static str, offset: u64, length: u64, source: io::Error) -> DeviceError {
        DeviceError::Block { device: self.name.clone(), operation, offset, length, source }
    }
}

fn place(request: &BlockRequest<'_>) -> (Sector, u64) {
    match request {
        BlockRequest::Read { sector, buffer } => (*sector, buffer.len() as u64),
        BlockRequest::Write { sector, buffer } => (*sector, buffer.len() as u64),
    }
}
