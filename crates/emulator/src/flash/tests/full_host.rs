//! A medium whose image lies on a disk that may be full ([HF1]–[HF3] of `host_space.rs`).

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tandemfs_device::DeviceError;

use super::rig::{Draw, page_of, small_geometry, small_options};
use crate::flash::{Flash, FlashGeometry, FlashOptions};
use crate::medium::test_medium::TestMedium;
use crate::medium::{FLASH_PAGE_BYTES, Medium, PageBytes, Pages, PhysicalPage, Spare};

#[derive(Debug)]
pub(super) struct FullHost {
    medium: TestMedium,
    is_full: AtomicBool,
    /// Pages with space.
    reserved: Mutex<HashSet<u64>>,
}

impl FullHost {
    pub(super) fn new(dram_bytes: u64) -> Self {
        Self { medium: TestMedium::new(dram_bytes), is_full: AtomicBool::new(false), reserved: Mutex::default() }
    }

    /// The error of a full disk, if it is full.
    fn refuse(&self, operation: &'static str, first: PhysicalPage, count: u64) -> Result<(), DeviceError> {
        if !self.is_full.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (offset, length) = (first.0 * FLASH_PAGE_BYTES as u64, count * FLASH_PAGE_BYTES as u64);
        Err(DeviceError::Block { device: "test".into(), operation, offset, length, source: io::ErrorKind::StorageFull.into() })
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
        if !self.reserved.lock().contains(&page.0) {
            self.refuse("program", page, 1)?;
        }
        self.medium.program_page(page, from, spare)
    }

    fn erase(&self, first: PhysicalPage, count: u64) -> Result<(), DeviceError> {
        self.medium.erase(first, count)
    }

    fn reserve(&self, first: PhysicalPage, count: u64) -> Result<(), DeviceError> {
        let pages = first.0..first.0 + count;
        let mut reserved = self.reserved.lock();
        if !pages.clone().all(|page| reserved.contains(&page)) {
            self.refuse("reserve", first, count)?;
            reserved.extend(pages);
        }
        Ok(())
    }
}

const WINDOW_PAGES: u64 = 30;

/// A flash beside what must be in it; its disk is full from the beginning.
struct Full {
    medium: Arc<FullHost>,
    geometry: FlashGeometry,
    options: FlashOptions,
    flash: Flash<FullHost>,
    stamps: Vec<u64>,
    next: u64,
}

impl Full {
    fn new() -> Self {
        let (geometry, options) = (small_geometry(), FlashOptions { window_pages: WINDOW_PAGES, ..small_options() });
        let medium = Arc::new(FullHost::new(geometry.dram_bytes(&options)));
        let flash = Flash::format(Arc::clone(&medium), 0, geometry, options).expect("formatted");
        medium.set_full(true);
        let stamps = vec![0; geometry.logical_pages as usize];
        Self { medium, geometry, options, flash, stamps, next: 1 }
    }

    /// Whether the page was written; a full disk may refuse that.
    fn write(&mut self, logical: u64) -> Result<bool, String> {
        self.next += 1;
        let written = self.flash.write(logical, &page_of(self.next), self.next);
        self.flash.settle().map_err(|error| format!("settling: {error}"))?;
        match written {
            Ok(()) => {
                self.stamps[logical as usize] = self.next;
                Ok(true)
            }
            Err(DeviceError::Block { operation: "reserve", .. }) if self.stamps[logical as usize] == 0 => Ok(false),
            Err(error) => Err(format!("page {logical}: {error}")),
        }
    }

    fn discard(&mut self, logical: u64) -> Result<(), String> {
        self.next += 1;
        self.stamps[logical as usize] = 0;
        self.flash.discard(logical, self.next).map_err(|error| error.to_string())
    }

    fn open_again(&mut self) -> Result<(), String> {
        let opened = Flash::open(Arc::clone(&self.medium), 0, self.geometry, self.options);
        self.flash = opened.map_err(|error| error.to_string())?;
        Ok(())
    }

    fn compare(&mut self) -> Result<(), String> {
        let mut page = [0; FLASH_PAGE_BYTES];
        for (logical, &stamp) in (0..).zip(&self.stamps) {
            self.flash.read(logical, &mut page).map_err(|error| error.to_string())?;
            let expected = if stamp == 0 { [0; FLASH_PAGE_BYTES] } else { page_of(stamp) };
            if page != expected {
                return Err(format!("page {logical} is not as it was written"));
            }
        }
        match self.flash.read_only_reason() {
            None => Ok(()),
            Some(reason) => Err(format!("read-only: {reason}")),
        }
    }
}

/// [HF2]: on a full disk new pages behind the byte window are refused; everything else goes on, for longer than the flash has pages.
pub(super) fn a_full_disk_refuses_new_pages_alone() -> Result<(), String> {
    let mut full = Full::new();
    let mut draw = Draw::new(6);
    let mut refused = 0;
    for logical in (WINDOW_PAGES..full.geometry.logical_pages).rev() {
        refused += u64::from(!full.write(logical)?);
    }
    if refused < full.geometry.logical_pages / 2 {
        return Err(format!("only {refused} new pages were refused"));
    }
    let placed: Vec<u64> = (WINDOW_PAGES..full.geometry.logical_pages).filter(|&page| full.stamps[page as usize] > 0).collect();
    for round in 0..2000 {
        let window = draw.below(WINDOW_PAGES);
        if !full.write(window)? {
            return Err(format!("page {window} of the window was refused"));
        }
        if let Some(&page) = placed.get(draw.below(placed.len().max(1) as u64) as usize) {
            full.write(page)?;
        }
        if round % 500 == 499 {
            full.open_again()?;
        }
    }
    full.compare()?;
    // What is discarded makes room for as much.
    for &page in &placed {
        full.discard(page)?;
    }
    for page in WINDOW_PAGES..WINDOW_PAGES + placed.len() as u64 {
        if !full.write(page)? {
            return Err(format!("page {page} was refused, though as many were discarded"));
        }
    }
    full.compare()
}

#[test]
fn regression_stores_go_on_while_the_disk_of_the_image_is_full() {
    a_full_disk_refuses_new_pages_alone().unwrap();
}

/// [HF3]: with room on the disk, nothing is collected before the whole drive is used up.
#[test]
fn new_pages_are_taken_again_when_the_disk_has_room() {
    let mut full = Full::new();
    let pages = WINDOW_PAGES..full.geometry.logical_pages;
    let refused = pages.clone().filter(|&page| !full.write(page).unwrap()).count();
    assert!(refused > 0);
    full.medium.set_full(false);
    for page in pages {
        assert!(full.write(page).unwrap(), "page {page}");
    }
    full.compare().unwrap();
    assert_eq!(full.flash.counts().blocks_erased, 0);
}

/// A disk without room for the window and for collection gets no drive.
#[test]
fn a_drive_is_not_made_on_a_disk_that_is_full_already() {
    let (geometry, options) = (small_geometry(), FlashOptions { window_pages: WINDOW_PAGES, ..small_options() });
    let medium = Arc::new(FullHost::new(geometry.dram_bytes(&options)));
    medium.set_full(true);
    let error = Flash::format(medium, 0, geometry, options).expect_err("there is no room");
    assert!(matches!(error, DeviceError::Block { operation: "reserve", .. }), "{error}");
}
