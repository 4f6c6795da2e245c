//! A drive with firmware in host memory whose power fails at a chosen step of its medium, for tests of layers above drives
//! (`docs/TESTING.md`). Behind a feature that no program enables.

use std::sync::Arc;

use tandemfs_device::{Device, DeviceDescription, DeviceError, MemoryNodes, PersistenceDomain, REQUEST_BYTES};

use crate::controller::Controller;
use crate::firmware_drive::FirmwareDrive;
use crate::layout::DramLayout;
use crate::medium::FLASH_PAGE_BYTES;
use crate::medium::test_medium::TestMedium;
use crate::model::{FirmwareModel, ModelOptions};
use crate::profiles::profile;

const NAME: &str = "drive in memory";

/// A drive of the profile `bytefs` without timing. Its contents survive closing and opening.
#[derive(Debug, Clone)]
pub struct DriveInMemory {
    medium: Arc<TestMedium>,
    model: FirmwareModel,
    memory_bytes: u64,
    block_bytes: u64,
}

impl DriveInMemory {
    /// Makes an empty drive of these zones, in bytes, with a write buffer of so many pages.
    ///
    /// # Errors
    /// [`DeviceError::Open`] if no drive can have these sizes.
    pub fn new(memory_bytes: u64, block_bytes: u64, chosen: &ModelOptions, write_buffer_pages: u32) -> Result<Self, DeviceError> {
        let refused = |reason: String| DeviceError::Open { path: NAME.into(), reason };
        let base = profile("bytefs").and_then(|profile| profile.firmware).ok_or_else(|| refused("the profile has no firmware".into()))?;
        let pages = (memory_bytes + block_bytes) / FLASH_PAGE_BYTES as u64;
        let chosen = ModelOptions { no_timing: true, ..*chosen };
        let model = FirmwareModel { write_buffer_pages, ..base }.chosen(&chosen, memory_bytes, block_bytes).map_err(refused)?;
        let medium = Arc::new(TestMedium::new(DramLayout::new(&model, memory_bytes, pages).end));
        Controller::format(&medium, &model, memory_bytes / FLASH_PAGE_BYTES as u64, pages)?;
        Ok(Self { medium, model, memory_bytes, block_bytes })
    }

    /// Opens it. Only one opening may be in use.
    ///
    /// # Errors
    /// Errors of the firmware; after the power failed, any.
    pub fn open(&self) -> Result<Arc<dyn Device>, DeviceError> {
        let pages = (self.memory_bytes + self.block_bytes) / FLASH_PAGE_BYTES as u64;
        let controller = Controller::open(&self.medium, NAME, &self.model, self.memory_bytes / FLASH_PAGE_BYTES as u64, pages, None)?;
        let description = DeviceDescription {
            name: NAME.into(),
            memory_bytes: self.memory_bytes,
            block_bytes: self.block_bytes,
            cache_bytes: 0,
            domain: PersistenceDomain::Adr,
            volatile_write_cache: false,
            discard: true,
            discard_zeroes: true,
            overlapping: true,
            request_bytes: REQUEST_BYTES,
            nodes: MemoryNodes::default(),
        };
        Ok(Arc::new(FirmwareDrive::new(controller, description, None, false)))
    }

    /// Another drive with the same content, whose power lasts.
    pub fn copy(&self) -> Self {
        Self { medium: Arc::new(self.medium.copy()), ..self.clone() }
    }

    /// Lets the power fail after so many further steps: stores of 8 B, flash pages programmed or erased. None restores it.
    pub fn cut_after(&self, steps: Option<u64>) {
        self.medium.cut_after(steps);
    }

    /// Whether the power has failed.
    pub fn is_off(&self) -> bool {
        self.medium.is_off()
    }

    /// Steps so far.
    pub fn steps(&self) -> u64 {
        self.medium.steps()
    }
}
