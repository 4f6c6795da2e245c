//! A medium whose image lies on a disk that may be full.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use tandemfs_device::DeviceError;

use crate::medium::test_medium::TestMedium;
use crate::medium::{FLASH_PAGE_BYTES, Medium, PageBytes, PhysicalPage, Spare};

#[derive(Debug)]
pub(super) struct FullHost {
    medium: TestMedium,
    is_full: AtomicBool,
}

impl FullHost {
    pub(super) fn new(dram_bytes: u64) -> Self {
        Self { medium: TestMedium::new(dram_bytes), is_full: AtomicBool::new(false) }
    }

    pub(super) fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }
}

impl Medium for FullHost {
    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.medium.load(offset, into)
    }

    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.medium.store(offset, from)
    }

    fn read_page(&self, page: PhysicalPage, into: &mut PageBytes) -> Result<(), DeviceError> {
        self.medium.read_page(page, into)
    }

    fn spare(&self, page: PhysicalPage) -> Result<Spare, DeviceError> {
        self.medium.spare(page)
    }

    fn program_page(&self, page: PhysicalPage, from: &PageBytes, spare: Spare) -> Result<(), DeviceError> {
        if self.is_full.load(Ordering::Relaxed) {
            let (offset, length) = (page.0 * FLASH_PAGE_BYTES as u64, FLASH_PAGE_BYTES as u64);
            let source = io::ErrorKind::StorageFull.into();
            return Err(DeviceError::Block { device: "test".into(), operation: "program", offset, length, source });
        }
        self.medium.program_page(page, from, spare)
    }

    fn erase(&self, first: PhysicalPage, count: u64) -> Result<(), DeviceError> {
        self.medium.erase(first, count)
    }
}
