//! A small flash beside a plain array that says what must be in it.

use std::collections::HashMap;
use std::sync::Arc;

use tandemfs_device::DeviceError;

use crate::flash::{Flash, FlashGeometry, FlashOptions};
use crate::medium::test_medium::TestMedium;
use crate::medium::{FLASH_PAGE_BYTES, PageBytes, Pages};

/// Where the DRAM of the flash starts: not at its beginning, as in a drive.
pub(super) const DRAM_OFFSET: u64 = 4096;

/// Two channels, few small blocks: garbage collection works all the time.
pub(super) fn small_geometry() -> FlashGeometry {
    FlashGeometry { channel_count: 2, dies_per_channel: 1, planes_per_die: 1, blocks_per_plane: 11, pages_per_block: 8, logical_pages: 120 }
}

pub(super) fn small_options() -> FlashOptions {
    FlashOptions { endurance_erasures: 1_000_000, write_buffer_pages: 6, levelling_threshold_erasures: 3, ..FlashOptions::default() }
}

/// Random numbers from a seed (xorshift64*).
pub(super) struct Draw(u64);

impl Draw {
    pub(super) fn new(seed: u64) -> Self {
        let mut draw = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        draw.below(2);
        draw
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % bound
    }
}

/// A page that says all over what it is.
pub(super) fn page_of(value: u64) -> PageBytes {
    let mut page = [0; FLASH_PAGE_BYTES];
    for (word, bytes) in page.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&(value << 16 | word as u64).to_le_bytes());
    }
    page
}

/// What a page reads as: its value (none for zeros), or none of ours.
fn value_of(page: &PageBytes) -> Result<Option<u64>, String> {
    if page.iter().all(|&byte| byte == 0) {
        return Ok(None);
    }
    let value = u64::from_le_bytes(page[..8].try_into().expect("8 B")) >> 16;
    if *page == page_of(value) { Ok(Some(value)) } else { Err(format!("a mixture that starts like value {value}")) }
}

/// What a step does.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    Write(u64),
    Discard(u64),
    Read(u64),
    Settle,
    Reopen,
}

impl Step {
    /// Mostly writes, most of them to an eighth of the pages.
    pub(super) fn draw(draw: &mut Draw, logical_pages: u64) -> Self {
        let page = if draw.below(4) == 0 { draw.below(logical_pages) } else { draw.below(logical_pages.div_ceil(8)) };
        match draw.below(20) {
            0 => Self::Discard(page),
            1 | 2 => Self::Read(page),
            3..=5 => Self::Settle,
            6 => {
                if draw.below(20) == 0 {
                    Self::Reopen
                } else {
                    Self::Settle
                }
            }
            _ => Self::Write(page),
        }
    }
}

/// Value and stamp of a page; no value where it was discarded.
pub(super) type State = (Option<u64>, u64);

/// The flash, its medium, and what must be in it.
pub(super) struct Rig {
    pub(super) medium: Arc<TestMedium>,
    pub(super) geometry: FlashGeometry,
    pub(super) options: FlashOptions,
    pub(super) flash: Option<Flash<TestMedium>>,
    pub(super) model: HashMap<u64, State>,
    /// The change of a page during which an error occurred: it may have happened or not.
    pub(super) in_flight: Option<(u64, State)>,
    /// Counts of what was closed: moved pages, erased and retired blocks.
    pub(super) done: [u64; 3],
    next: u64,
}

impl Rig {
    pub(super) fn new(geometry: FlashGeometry, options: FlashOptions) -> Result<Self, DeviceError> {
        let medium = Arc::new(TestMedium::new(DRAM_OFFSET + geometry.dram_bytes(&options)));
        let flash = Flash::format(Arc::clone(&medium), DRAM_OFFSET, geometry, options)?;
        Ok(Self { medium, geometry, options, flash: Some(flash), model: HashMap::new(), in_flight: None, done: [0; 3], next: 1 })
    }

    pub(super) fn flash(&mut self) -> &mut Flash<TestMedium> {
        self.flash.as_mut().expect("it is open")
    }

    /// Forgets what is volatile and opens the flash again.
    pub(super) fn reopen(&mut self) -> Result<(), DeviceError> {
        if let Some(flash) = self.flash.take() {
            let counts = flash.counts();
            for (sum, count) in self.done.iter_mut().zip([counts.pages_moved, counts.blocks_erased, counts.blocks_retired]) {
                *sum += count;
            }
        }
        self.flash = Some(Flash::open(Arc::clone(&self.medium), DRAM_OFFSET, self.geometry, self.options)?);
        Ok(())
    }

    fn change(
        &mut self,
        page: u64,
        to: State,
        call: impl FnOnce(&mut Flash<TestMedium>) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.in_flight = Some((page, to));
        call(self.flash())?;
        self.model.insert(page, to);
        self.in_flight = None;
        Ok(())
    }

    pub(super) fn write(&mut self, page: u64) -> Result<(), DeviceError> {
        let stamp = self.next;
        self.next += 1;
        self.change(page, (Some(stamp), stamp), |flash| flash.write(page, &page_of(stamp), stamp))
    }

    /// Does one step. A wrong answer is a panic, an error is returned.
    pub(super) fn step(&mut self, step: Step) -> Result<(), DeviceError> {
        match step {
            Step::Write(page) => self.write(page),
            Step::Discard(page) => {
                let stamp = self.next;
                self.next += 1;
                self.change(page, (None, stamp), |flash| flash.discard(page, stamp))
            }
            Step::Read(page) => {
                let (found, expected) = (self.found(page)?, self.expected(page));
                assert_eq!(found, Ok(expected), "page {page}");
                Ok(())
            }
            Step::Settle => self.flash().settle(),
            Step::Reopen => self.reopen(),
        }
    }

    pub(super) fn expected(&self, page: u64) -> State {
        self.model.get(&page).copied().unwrap_or((None, 0))
    }

    /// Value and stamp that the flash has of a page.
    fn found(&mut self, page: u64) -> Result<Result<State, String>, DeviceError> {
        let mut bytes = [0xee; FLASH_PAGE_BYTES];
        let flash = self.flash();
        flash.read(page, &mut bytes)?;
        let stamp = flash.stamp(page)?;
        let is_mapped = flash.is_mapped(page)?;
        let value = value_of(&bytes);
        assert!(!matches!(value, Ok(value) if value.is_some() != is_mapped), "page {page}: mapped is {is_mapped}, it reads as {value:?}");
        Ok(value.map(|value| (value, stamp)))
    }

    /// Compares every page; the one in flight is old or new, and is from then on what it is.
    pub(super) fn compare(&mut self) -> Result<(), String> {
        for page in 0..self.geometry.logical_pages {
            let found = self.found(page).map_err(|error| format!("page {page}: {error}"))?;
            let found = found.map_err(|what| format!("page {page} is {what}"))?;
            if found == self.expected(page) {
                continue;
            }
            if self.in_flight == Some((page, found)) {
                self.model.insert(page, found);
                continue;
            }
            return Err(format!("page {page} is {found:?}, must be {:?} (in flight: {:?})", self.expected(page), self.in_flight));
        }
        self.in_flight = None;
        Ok(())
    }
}
