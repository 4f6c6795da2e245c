//! The block half of an attached pair: sectors of 4 KiB through io_uring and `O_DIRECT`. All I/O is aligned to 4 KiB, so drives with
//! sectors of 512 B and of 4 KiB both work.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};

use rustix::fs::{AtFlags, FallocateFlags, OFlags, StatxFlags, fallocate, fcntl_getfl, fcntl_setfl, statx};
use rustix::io::Errno;
use rustix::ioctl;
use tandemfs_format::{SECTOR_BYTES, Sector};

use super::rings::Rings;
use super::{Access, Opened, open_half, sysfs};
use crate::{BlockRequest, DeviceError, REQUEST_BYTES};

#[derive(Debug)]
pub(crate) struct BlockHalf {
    name: String,
    file: File,
    bytes: AtomicU64,
    volatile_cache: bool,
    discard: bool,
    request_bytes: u32,
    is_block_device: bool,
    read_only: bool,
    rings: Rings,
}

impl BlockHalf {
    pub(super) fn open(path: &Path, access: Access) -> Result<Self, DeviceError> {
        let name = path.display().to_string();
        let refuse = |reason: String| DeviceError::Open { path: name.clone(), reason };
        let Opened { mut file, metadata, mut direct } = open_half(path, access, true)?;
        let kind = metadata.file_type();
        if kind.is_char_device() {
            return Err(refuse(format!(
                "is a character device, which a block half cannot be; if it is the devdax, the halves are swapped: write memory={name}"
            )));
        }
        let bytes = file.seek(SeekFrom::End(0)).map_err(|error| refuse(error.to_string()))? / SECTOR_BYTES as u64 * SECTOR_BYTES as u64;
        if bytes == 0 {
            return Err(refuse("is empty; a block half has at least 4 MiB".into()));
        }
        let mut memory_alignment = 1;
        if direct {
            let (memory, offset) = direct_alignment(&file);
            memory_alignment = memory;
            if memory > SECTOR_BYTES || offset > SECTOR_BYTES {
                // The drive's alignment is coarser than our sectors: only the page cache can serve them.
                let flags = fcntl_getfl(&file).map_err(|error| refuse(error.to_string()))?;
                fcntl_setfl(&file, flags - OFlags::DIRECT).map_err(|error| refuse(error.to_string()))?;
                (direct, memory_alignment) = (false, 1);
            }
        }
        let directory = kind.is_block_device().then(|| sysfs::device_directory("block", metadata.rdev())).flatten();
        Ok(Self {
            // A page cache in between is a volatile cache too.
            volatile_cache: !direct || directory.as_deref().is_none_or(sysfs::has_volatile_cache),
            discard: directory.as_deref().is_none_or(sysfs::can_discard),
            request_bytes: directory.as_deref().and_then(sysfs::request_bytes).unwrap_or(REQUEST_BYTES),
            rings: Rings::new(memory_alignment),
            is_block_device: kind.is_block_device(),
            read_only: access.read_only,
            name,
            file,
            bytes: AtomicU64::new(bytes),
        })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Acquire)
    }

    /// Takes into use what the file or device has become larger by ([AT5]).
    pub(crate) fn grow(&self) -> Result<(), DeviceError> {
        let refuse = |reason: String| DeviceError::Open { path: self.name.clone(), reason };
        // Nobody uses the file's position.
        let end = (&self.file).seek(SeekFrom::End(0)).map_err(|error| refuse(error.to_string()))?;
        let bytes = end / SECTOR_BYTES as u64 * SECTOR_BYTES as u64;
        if bytes > self.bytes() {
            if !self.is_block_device {
                self.file.sync_all().map_err(|error| refuse(format!("its new size cannot be made durable: {error}")))?;
            }
            self.bytes.store(bytes, Release);
        }
        Ok(())
    }

    pub(crate) fn has_volatile_cache(&self) -> bool {
        self.volatile_cache
    }

    pub(crate) fn can_discard(&self) -> bool {
        self.discard
    }

    /// Preferred largest size of one request, in bytes.
    pub(crate) fn request_bytes(&self) -> u32 {
        self.request_bytes
    }

    pub(crate) fn transfer_each(
        &self,
        requests: &mut [BlockRequest<'_>],
        meanwhile: &mut dyn FnMut(),
        completed: &mut dyn FnMut(usize, &BlockRequest<'_>),
    ) -> Result<(), DeviceError> {
        for request in requests.iter() {
            let (operation, sector, length) = place(request);
            self.check(operation, sector, length)?;
        }
        match self.rings.run(&self.file, requests, meanwhile, completed) {
            Ok(()) => Ok(()),
            Err((index, source)) => {
                let (operation, sector, length) = place(&requests[index]);
                Err(self.error(operation, sector.offset_bytes(), length, source))
            }
        }
    }

    pub(crate) fn flush(&self) -> Result<(), DeviceError> {
        self.file.sync_data().map_err(|source| self.error("flush", 0, self.bytes(), source))
    }

    pub(crate) fn discard(&self, sector: Sector, count: u64) -> Result<(), DeviceError> {
        let length = count.saturating_mul(SECTOR_BYTES as u64);
        self.check("discard", sector, length)?;
        if length == 0 {
            return Ok(());
        }
        let offset = sector.offset_bytes();
        let discarded = if self.is_block_device {
            discard_range(&self.file, offset, length)
        } else {
            fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length)
        };
        match discarded {
            // Discard is a hint: a drive without it is no error.
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
            Err(source) => Err(self.error("discard", offset, length, source.into())),
        }
    }

    fn check(&self, operation: &'static str, sector: Sector, length: u64) -> Result<(), DeviceError> {
        let offset = sector.number().saturating_mul(SECTOR_BYTES as u64);
        if offset.checked_add(length).is_none_or(|end| end > self.bytes()) {
            return Err(DeviceError::OutOfRange { device: self.name.clone(), offset, length, size: self.bytes() });
        }
        if !length.is_multiple_of(SECTOR_BYTES as u64) {
            return Err(self.error(operation, offset, length, io::ErrorKind::InvalidInput.into()));
        }
        if self.read_only && operation != "read" {
            return Err(self.error(operation, offset, length, Errno::ROFS.into()));
        }
        Ok(())
    }

    fn error(&self, operation: &'static str, offset: u64, length: u64, source: io::Error) -> DeviceError {
        DeviceError::Block { device: self.name.clone(), operation, offset, length, source }
    }
}

fn place(request: &BlockRequest<'_>) -> (&'static str, Sector, u64) {
    match request {
        BlockRequest::Read { sector, buffer } => ("read", *sector, buffer.len() as u64),
        BlockRequest::Write { sector, buffer } => ("write", *sector, buffer.len() as u64),
    }
}

/// Alignment that O_DIRECT needs for buffers and offsets, in bytes; whole sectors if the kernel (before 6.1) does not report it.
fn direct_alignment(file: &File) -> (usize, usize) {
    let found = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
    let told = found.filter(|found| found.stx_mask & StatxFlags::DIOALIGN.bits() != 0 && found.stx_dio_mem_align.is_power_of_two());
    told.map_or((SECTOR_BYTES, SECTOR_BYTES), |found| (found.stx_dio_mem_align as usize, found.stx_dio_offset_align as usize))
}

/// BLKDISCARD: unlike a punched hole it does not require zeros, which many drives could provide only by writing them.
fn discard_range(file: &File, offset: u64, length: u64) -> Result<(), Errno> {
    const BLKDISCARD: ioctl::Opcode = ioctl::opcode::none(0x12, 119);
    // SAFETY: the opcode takes a pointer to offset and length in bytes and changes nothing of this process.
    unsafe { ioctl::ioctl(file, ioctl::Setter::<BLKDISCARD, [u64; 2]>::new([offset, length])) }
}
