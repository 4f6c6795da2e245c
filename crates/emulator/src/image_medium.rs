//! DRAM and flash of an emulated drive in its image ([M1]–[M3]): the DRAM is mapped shared, so stores to it survive the process in the order
//! in which they were made; flash pages are read and written by offset, and erasing gives their space back to the host.
//!
//! An image that is open for reading only is never written: its DRAM is mapped privately, and flash pages that the firmware programs or
//! erases (it may finish what a power failure left half done) are kept in host memory.
//!
//! [M1]: crate::medium
//! [M3]: crate::medium

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use tandemfs_device::{DeviceError, Mapping};

use crate::image_file::OpenImage;
use crate::layout::{DramLayout, SPARE_BYTES};
use crate::medium::{FLASH_PAGE_BYTES, Medium, PageBytes, PhysicalPage, Spare};

const PAGE: u64 = FLASH_PAGE_BYTES as u64;
const ZEROS: PageBytes = [0; FLASH_PAGE_BYTES];

/// Battery-backed DRAM and flash in an image.
#[derive(Debug)]
pub(crate) struct ImageMedium {
    name: String,
    dram: Mapping,
    /// Holds the lock.
    file: File,
    /// Where the spare areas start in the DRAM, in bytes.
    spares_at: u64,
    /// Where the flash starts in the file, in bytes.
    flash_at: u64,
    flash_bytes: u64,
    /// Flash pages that differ from the image, which is not written; none for one that was erased.
    changed: Option<Mutex<HashMap<PhysicalPage, Option<Box<PageBytes>>>>>,
}

impl ImageMedium {
    pub(crate) fn new(image: OpenImage, layout: &DramLayout, read_only: bool) -> Result<Self, DeviceError> {
        let dram = image.map(false, read_only)?;
        let flash_at = image.info.block_offset();
        let flash_bytes = image.info.file_bytes() - flash_at;
        let OpenImage { file, name, .. } = image;
        Ok(Self { name, dram, file, spares_at: layout.spares, flash_at, flash_bytes, changed: read_only.then(Mutex::default) })
    }

    fn offset(&self, page: PhysicalPage, count: u64) -> Result<u64, DeviceError> {
        let (offset, length) = (page.0.saturating_mul(PAGE), count.saturating_mul(PAGE));
        if offset.checked_add(length).is_none_or(|end| end > self.flash_bytes) {
            return Err(DeviceError::OutOfRange { device: self.name.clone(), offset, length, size: self.flash_bytes });
        }
        Ok(offset)
    }

    fn failed(&self, operation: &'static str, offset: u64, length: u64, source: io::Error) -> DeviceError {
        DeviceError::Block { device: format!("{} (flash)", self.name), operation, offset, length, source }
    }

    fn spare_at(&self, page: PhysicalPage) -> u64 {
        self.spares_at + page.0 * SPARE_BYTES
    }

    fn erase_cells(&self, first: PhysicalPage, count: u64, offset: u64) -> Result<(), DeviceError> {
        let length = count * PAGE;
        match fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, self.flash_at + offset, length) {
            Ok(()) => Ok(()),
            // A host file system that cannot give space back can still be written to.
            Err(Errno::OPNOTSUPP) => (0..count)
                .try_for_each(|index| self.file.write_all_at(&ZEROS, self.flash_at + (first.0 + index) * PAGE))
                .map_err(|source| self.failed("erase", offset, length, source)),
            Err(source) => Err(self.failed("erase", offset, length, source.into())),
        }
    }
}

impl Medium for ImageMedium {
    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.dram.load(offset, into)
    }

    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.dram.store(offset, from)
    }

    fn read_page(&self, page: PhysicalPage, into: &mut PageBytes) -> Result<(), DeviceError> {
        let offset = self.offset(page, 1)?;
        if let Some(changed) = &self.changed
            && let Some(bytes) = changed.lock().get(&page)
        {
            into.copy_from_slice(bytes.as_deref().unwrap_or(&ZEROS));
            return Ok(());
        }
        self.file.read_exact_at(into, self.flash_at + offset).map_err(|source| self.failed("read", offset, PAGE, source))
    }

    fn spare(&self, page: PhysicalPage) -> Result<Spare, DeviceError> {
        self.offset(page, 1)?;
        let mut words = [0; 16];
        self.dram.load(self.spare_at(page), &mut words)?;
        let word = |at: usize| words[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        Ok(Spare { logical_plus_one: word(0), stamp: word(8) })
    }

    fn program_page(&self, page: PhysicalPage, from: &PageBytes, spare: Spare) -> Result<(), DeviceError> {
        let offset = self.offset(page, 1)?;
        match &self.changed {
            Some(changed) => drop(changed.lock().insert(page, Some(Box::new(*from)))),
            None => self.file.write_all_at(from, self.flash_at + offset).map_err(|source| self.failed("program", offset, PAGE, source))?,
        }
        // [M2]: what makes the page hold something comes last, in one word.
        self.dram.store(self.spare_at(page) + 8, &spare.stamp.to_le_bytes())?;
        self.dram.store(self.spare_at(page), &spare.logical_plus_one.to_le_bytes())
    }

    fn erase(&self, first: PhysicalPage, count: u64) -> Result<(), DeviceError> {
        let offset = self.offset(first, count)?;
        // Spare areas first: an erasure that is cut leaves pages that hold nothing, whatever is in them.
        let zeros = [0; 4096];
        let (mut at, mut left) = (self.spare_at(first), (count * SPARE_BYTES) as usize);
        while left > 0 {
            let length = left.min(zeros.len());
            self.dram.store(at, &zeros[..length])?;
            (at, left) = (at + length as u64, left - length);
        }
        match &self.changed {
            Some(changed) => changed.lock().extend((first.0..first.0 + count).map(|page| (PhysicalPage(page), None))),
            None => self.erase_cells(first, count, offset)?,
        }
        Ok(())
    }
}
