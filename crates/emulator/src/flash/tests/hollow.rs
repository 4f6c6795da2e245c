//! A medium without flash bytes, for figures.

use parking_lot::Mutex;
use tandemfs_device::DeviceError;

use crate::flash::{FlashGeometry, FlashOptions};
use crate::medium::{Medium, PageBytes, PhysicalPage, Spare};

/// A medium that keeps tables and spare areas, but no bytes of flash pages: what is left is the cost of the translation layer.
#[derive(Debug)]
pub(super) struct Hollow {
    dram: Mutex<Vec<u8>>,
    spares: Mutex<Vec<Spare>>,
}

impl Hollow {
    pub(super) fn new(geometry: &FlashGeometry, options: &FlashOptions) -> Self {
        Self {
            dram: Mutex::new(vec![0; geometry.dram_bytes(options) as usize]),
            spares: Mutex::new(vec![Spare::default(); geometry.physical_pages() as usize]),
        }
    }
}

impl Medium for Hollow {
    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        into.copy_from_slice(&self.dram.lock()[offset as usize..offset as usize + into.len()]);
        Ok(())
    }

    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.dram.lock()[offset as usize..offset as usize + from.len()].copy_from_slice(from);
        Ok(())
    }

    fn read_page(&self, _: PhysicalPage, _: &mut PageBytes) -> Result<(), DeviceError> {
        Ok(())
    }

    fn spare(&self, page: PhysicalPage) -> Result<Spare, DeviceError> {
        Ok(self.spares.lock()[page.0 as usize])
    }

    fn program_page(&self, page: PhysicalPage, _: &PageBytes, spare: Spare) -> Result<(), DeviceError> {
        self.spares.lock()[page.0 as usize] = spare;
        Ok(())
    }

    fn erase(&self, first: PhysicalPage, count: u64) -> Result<(), DeviceError> {
        self.spares.lock()[first.0 as usize..(first.0 + count) as usize].fill(Spare::default());
        Ok(())
    }
}
