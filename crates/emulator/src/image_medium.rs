//! DRAM and flash of an emulated drive in its image ([MD1]–[MD3]). The DRAM is mapped shared, so stores to it survive the process in
//! program order. The flash is read through a mapping but programmed by file offset: a drive uses all of its blocks before it reuses one,
//! and a mapped store to a page that the host's file does not have yet costs a page fault, which takes longer than the whole write. The host's
//! space for a block is reserved before the block is written (`flash/host_space.rs`). An erasure clears only spare areas: freeing space would
//! make each later program write into a hole again.
//!
//! An image opened read-only is never written: what the firmware stores, programs or erases stays in host memory (`part.rs`).
//!
//! [MD1]: crate::medium
//! [MD3]: crate::medium

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use tandemfs_device::{DeviceError, Mapping};

use crate::image_file::OpenImage;
use crate::layout::{DramLayout, SPARE_BYTES};
use crate::medium::{FLASH_PAGE_BYTES, Medium, PageBytes, PhysicalPage, Spare};
use crate::part::Part;

const PAGE: u64 = FLASH_PAGE_BYTES as u64;

/// Battery-backed DRAM and flash in an image.
#[derive(Debug)]
pub(crate) struct ImageMedium {
    dram: Part,
    flash: Part,
    /// Where the spare areas start in the DRAM, in bytes.
    spares_at: u64,
    /// Where the flash starts in the file, in bytes.
    flash_at: u64,
    read_only: bool,
    /// Holds the lock ([EM3] of the crate).
    file: File,
}

impl ImageMedium {
    pub(crate) fn new(image: OpenImage, layout: &DramLayout, read_only: bool) -> Result<Self, DeviceError> {
        let dram = Part::new(image.map(read_only)?, read_only);
        let flash = Part::new(image.map_flash(read_only)?, read_only);
        let flash_at = image.info.block_offset();
        Ok(Self { dram, flash, spares_at: layout.spares, flash_at, read_only, file: image.file })
    }

    fn spare_at(&self, page: PhysicalPage) -> u64 {
        self.spares_at.saturating_add(page.0.saturating_mul(SPARE_BYTES))
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
        self.flash.load(page.0.saturating_mul(PAGE), into)
    }

    fn spare(&self, page: PhysicalPage) -> Result<Spare, DeviceError> {
        let mut words = [0; 16];
        self.dram.load(self.spare_at(page), &mut words)?;
        let word = |at: usize| words[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        Ok(Spare { logical_plus_one: word(0), stamp: word(8) })
    }

    fn program_page(&self, page: PhysicalPage, from: &PageBytes, spare: Spare) -> Result<(), DeviceError> {
        let offset = page.0.saturating_mul(PAGE);
        if self.read_only {
            self.flash.store(offset, from)?;
        } else {
            let failed = |source| DeviceError::Block { device: "flash".into(), operation: "program", offset, length: PAGE, source };
            self.file.write_all_at(from, self.flash_at + offset).map_err(failed)?;
        }
        // [MD2]: what makes the page hold something comes last, in one word.
        self.dram.store(self.spare_at(page) + 8, &spare.stamp.to_le_bytes())?;
        self.dram.store(self.spare_at(page), &spare.logical_plus_one.to_le_bytes())
    }

    fn erase(&self, first: PhysicalPage, count: u64) -> Result<(), DeviceError> {
        let zeros = [0; 4096];
        let (mut at, mut left) = (self.spare_at(first), (count * SPARE_BYTES) as usize);
        while left > 0 {
            let length = left.min(zeros.len());
            self.dram.store(at, &zeros[..length])?;
            (at, left) = (at + length as u64, left - length);
        }
        Ok(())
    }

    fn mapped(&self) -> Option<(&Mapping, &File)> {
        Some((self.dram.mapping(), &self.file))
    }

    fn reserve(&self, first: PhysicalPage, count: u64) -> Result<(), DeviceError> {
        if self.read_only {
            return Ok(());
        }
        let (offset, length) = (first.0.saturating_mul(PAGE), count.saturating_mul(PAGE));
        loop {
            let source = match fallocate(&self.file, FallocateFlags::empty(), self.flash_at + offset, length) {
                // A host file system that cannot reserve can still be written to.
                Ok(()) | Err(Errno::OPNOTSUPP) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(error) => error.into(),
            };
            return Err(DeviceError::Block { device: "flash".into(), operation: "reserve", offset, length, source });
        }
    }
}
