//! What survives a power failure of an emulated drive with firmware: battery-backed DRAM and flash cells. All other state of the firmware
//! is derived from them when the drive is opened.
//!
//! [MD1] Stores to the DRAM survive in program order; 8 B at a multiple of 8 are never torn. A power failure happens between any two steps.
//! [MD2] A flash page is programmed once between two erasures, its bytes before its spare area. A page with an empty spare area holds
//!       nothing.
//! [MD3] The spare area of an erased page is all zeros; its bytes have no meaning. An erasure can be interrupted anywhere.

use std::fmt::Debug;
use std::fs::File;

use tandemfs_device::{DeviceError, Mapping};
use tandemfs_format::SECTOR_BYTES;

/// Bytes of a flash page: the unit of reading and programming, and of translation.
pub(crate) const FLASH_PAGE_BYTES: usize = SECTOR_BYTES;

/// The bytes of a flash page.
pub(crate) type PageBytes = [u8; FLASH_PAGE_BYTES];

/// Number of a page of flash cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PhysicalPage(pub(crate) u64);

/// Spare area of a flash page, written with the page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Spare {
    /// The logical page that it holds, plus one; 0 where it holds nothing.
    pub(crate) logical_plus_one: u64,
    /// Lines of the write log with a sequence below this are older than the page ([`Pages::write`]).
    pub(crate) stamp: u64,
}

/// Battery-backed DRAM and flash cells ([MD1]–[MD3]).
pub(crate) trait Medium: Send + Sync + Debug {
    /// Copies bytes from the DRAM.
    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError>;
    /// Copies bytes to the DRAM.
    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError>;
    /// Reads a flash page.
    fn read_page(&self, page: PhysicalPage, into: &mut PageBytes) -> Result<(), DeviceError>;
    /// Spare area of a flash page; not a flash read, since the firmware keeps it in DRAM.
    fn spare(&self, page: PhysicalPage) -> Result<Spare, DeviceError>;
    /// Programs an erased flash page. [`DeviceError::Firmware`] says that the cells failed; after any other error the page counts as erased.
    fn program_page(&self, page: PhysicalPage, from: &PageBytes, spare: Spare) -> Result<(), DeviceError>;
    /// Erases pages that follow each other.
    fn erase(&self, first: PhysicalPage, count: u64) -> Result<(), DeviceError>;
    /// Gets space for pages that follow each other, where the cells are a sparse file: programs of them never fail for lack of it then. A
    /// full disk is [`DeviceError::Block`] with `StorageFull`. Changes no bytes.
    fn reserve(&self, _first: PhysicalPage, _count: u64) -> Result<(), DeviceError> {
        Ok(())
    }
    /// The DRAM as memory that others can map, with its file; `None` where it is none.
    fn mapped(&self) -> Option<(&Mapping, &File)> {
        None
    }
}

/// Logical pages as the write log sees them: what the translation layer offers.
pub(crate) trait Pages {
    /// Reads a logical page; one that was never written is zeros.
    fn read(&mut self, logical: u64, into: &mut PageBytes) -> Result<(), DeviceError>;
    /// Replaces a logical page, atomically at a power failure. In the same step, lines of the write log with a sequence below `stamp` become
    /// older than the page. So a block write invalidates them, and a cleaning retires the lines that it merged.
    fn write(&mut self, logical: u64, from: &PageBytes, stamp: u64) -> Result<(), DeviceError>;
    /// The stamp that the page was last written (or discarded) with; 0 for one that never was.
    fn stamp(&self, logical: u64) -> Result<u64, DeviceError>;
    /// Discards a logical page: it reads as zeros, and lines below `stamp` are obsolete.
    fn discard(&mut self, logical: u64, stamp: u64) -> Result<(), DeviceError>;
    /// Whether the flash has a page of this number, so that a read would access the flash.
    fn is_mapped(&self, logical: u64) -> Result<bool, DeviceError>;
}

/// A flash operation, for the timing model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlashWork {
    /// Which die does it.
    pub(crate) die: u32,
    pub(crate) kind: FlashWorkKind,
    /// Whether the access that caused it waits for it (a read of the host) or not (a buffered program, cleaning, garbage
    /// collection).
    pub(crate) is_waited_for: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlashWorkKind {
    Read,
    Program,
    Erase,
}

#[cfg(any(test, feature = "power-cuts"))]
#[cfg_attr(not(test), allow(dead_code))] // its own tests use more of it
pub(crate) mod test_medium {
    //! A medium in host memory whose power can fail at any step.

    use parking_lot::Mutex;

    use super::*;

    #[derive(Debug, Clone, Default)]
    struct Cells {
        dram: Vec<u8>,
        pages: std::collections::HashMap<u64, (Box<PageBytes>, Spare)>,
        /// Steps until the power fails; none where it does not.
        steps_left: Option<u64>,
        steps: u64,
        /// Its tables say what was never so: pages may be programmed twice.
        is_damaged: bool,
    }

    /// DRAM and flash in host memory. After [`TestMedium::cut_after`] so many steps happen, then each fails and changes nothing.
    #[derive(Debug, Default)]
    pub(crate) struct TestMedium(Mutex<Cells>);

    impl TestMedium {
        pub(crate) fn new(dram_bytes: u64) -> Self {
            Self(Mutex::new(Cells { dram: vec![0; dram_bytes as usize], ..Cells::default() }))
        }

        /// Lets the power fail after so many further steps; none restores it.
        pub(crate) fn cut_after(&self, steps: Option<u64>) {
            self.0.lock().steps_left = steps;
        }

        /// Whether the power has failed.
        pub(crate) fn is_off(&self) -> bool {
            self.0.lock().steps_left == Some(0)
        }

        /// Another medium with the same content, whose power lasts.
        pub(crate) fn copy(&self) -> Self {
            Self(Mutex::new(Cells { steps_left: None, ..self.0.lock().clone() }))
        }

        /// Changes a byte of the DRAM, as damage does.
        #[cfg(test)]
        pub(crate) fn damage(&self, offset: u64, to: impl FnOnce(u8) -> u8) {
            let mut cells = self.0.lock();
            cells.is_damaged = true;
            if let Some(byte) = cells.dram.get_mut(offset as usize) {
                *byte = to(*byte);
            }
        }

        /// Changes what one of the programmed pages says of itself.
        #[cfg(test)]
        pub(crate) fn damage_spare(&self, chance: u64) {
            let mut cells = self.0.lock();
            let mut pages: Vec<u64> = cells.pages.keys().copied().collect();
            pages.sort_unstable();
            if let Some(page) = pages.get((chance >> 8) as usize % pages.len().max(1))
                && let Some((_, spare)) = cells.pages.get_mut(page)
            {
                *spare = Spare { logical_plus_one: chance % 64, stamp: chance };
            }
        }

        /// Steps that changed something so far: stores, programs, erasures (a page is a step).
        pub(crate) fn steps(&self) -> u64 {
            self.0.lock().steps
        }
    }

    impl Cells {
        fn range(&self, offset: u64, length: usize) -> Result<std::ops::Range<usize>, DeviceError> {
            let (length, size) = (length as u64, self.dram.len() as u64);
            match offset.checked_add(length) {
                Some(end) if end <= size => Ok(offset as usize..end as usize),
                _ => Err(DeviceError::OutOfRange { device: "test".into(), offset, length, size }),
            }
        }

        fn step(&mut self) -> Result<(), DeviceError> {
            match &mut self.steps_left {
                Some(0) => Err(DeviceError::Firmware { device: "test".into(), command: "step", reason: "the power failed".into() }),
                left => {
                    if let Some(left) = left {
                        *left -= 1;
                    }
                    self.steps += 1;
                    Ok(())
                }
            }
        }
    }

    impl Medium for TestMedium {
        fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
            let cells = self.0.lock();
            into.copy_from_slice(&cells.dram[cells.range(offset, into.len())?]);
            Ok(())
        }

        /// Steps of 8 B at most, as [MD1] says.
        fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
            let mut cells = self.0.lock();
            let mut at = cells.range(offset, from.len())?.start;
            let mut rest = from;
            while !rest.is_empty() {
                let (word, further) = rest.split_at((8 - at % 8).min(rest.len()));
                cells.step()?;
                cells.dram[at..at + word.len()].copy_from_slice(word);
                (at, rest) = (at + word.len(), further);
            }
            Ok(())
        }

        fn read_page(&self, page: PhysicalPage, into: &mut PageBytes) -> Result<(), DeviceError> {
            match self.0.lock().pages.get(&page.0) {
                Some((bytes, _)) => into.copy_from_slice(&bytes[..]),
                None => into.fill(0xdb),
            }
            Ok(())
        }

        fn spare(&self, page: PhysicalPage) -> Result<Spare, DeviceError> {
            Ok(self.0.lock().pages.get(&page.0).map(|(_, spare)| *spare).unwrap_or_default())
        }

        fn program_page(&self, page: PhysicalPage, from: &PageBytes, spare: Spare) -> Result<(), DeviceError> {
            let mut cells = self.0.lock();
            cells.step()?;
            assert!(cells.is_damaged || !cells.pages.contains_key(&page.0), "{page:?} is programmed twice ([MD2])");
            cells.pages.insert(page.0, (Box::new(*from), Spare::default()));
            cells.step()?;
            cells.pages.insert(page.0, (Box::new(*from), spare));
            Ok(())
        }

        fn erase(&self, first: PhysicalPage, count: u64) -> Result<(), DeviceError> {
            let mut cells = self.0.lock();
            for page in first.0..first.0 + count {
                cells.step()?;
                cells.pages.remove(&page);
            }
            Ok(())
        }
    }
}
