//! The page cache over flash against plain pages, with power failures at any step.

use std::sync::Arc;

use super::*;
use crate::flash::{Flash, FlashGeometry, FlashOptions};
use crate::medium::test_medium::TestMedium;
use crate::mutant;

const PAGES: u64 = 48;
const CACHE_AT: u64 = 1 << 20;
const CACHE_BYTES: u64 = 6 * PAGE;

fn geometry() -> (FlashGeometry, FlashOptions) {
    (FlashGeometry::for_capacity(PAGES, 2, 1, 1, 8, 60), FlashOptions { write_buffer_pages: 4, ..FlashOptions::default() })
}

struct Rig {
    medium: Arc<TestMedium>,
    replacement: Replacement,
    flash: Flash<TestMedium>,
    cache: PageCache<TestMedium>,
}

impl Rig {
    fn new(replacement: Replacement) -> Self {
        let (geometry, options) = geometry();
        assert!(geometry.dram_bytes(&options) <= CACHE_AT);
        let medium = Arc::new(TestMedium::new(CACHE_AT + dram_bytes(CACHE_BYTES)));
        drop(Flash::format(Arc::clone(&medium), 0, geometry, options).expect("formatted"));
        Self::open(medium, replacement).expect("opened")
    }

    fn open(medium: Arc<TestMedium>, replacement: Replacement) -> Result<Self, DeviceError> {
        let (geometry, options) = geometry();
        let flash = Flash::open(Arc::clone(&medium), 0, geometry, options)?;
        let cache = PageCache::open(Arc::clone(&medium), CACHE_AT, CACHE_BYTES, replacement, "test", PAGES)?;
        Ok(Self { medium, replacement, flash, cache })
    }

    fn read(&mut self, page: u64) -> Result<Box<PageBytes>, DeviceError> {
        let mut bytes = Box::new([0xee; FLASH_PAGE_BYTES]);
        self.cache.read_page(&mut self.flash, page, &mut bytes)?;
        Ok(bytes)
    }
}

struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// What an operation makes of its page.
enum Change {
    Nothing,
    /// Byte by byte, the old or the new.
    Bytes(usize, Vec<u8>),
    /// All of it, or nothing.
    Page(Box<PageBytes>),
}

fn step(rig: &mut Rig, draw: &mut Draw, page: u64) -> (Change, Result<(), DeviceError>) {
    let (cache, flash) = (&mut rig.cache, &mut rig.flash);
    let fresh = draw.below(255) as u8 + 1;
    match draw.below(12) {
        0..=4 => {
            let within = draw.below(4000) as usize;
            let bytes = vec![fresh; 1 + draw.below(90) as usize];
            let result = cache.store(flash, page, within, &bytes);
            (Change::Bytes(within, bytes), result)
        }
        5 | 6 => {
            let bytes = Box::new([fresh; FLASH_PAGE_BYTES]);
            let result = cache.write_page(flash, page, &bytes);
            (Change::Page(bytes), result)
        }
        7 => (Change::Page(Box::new([0; FLASH_PAGE_BYTES])), cache.discard(flash, page)),
        8 => (Change::Nothing, cache.clean(flash)),
        _ => (Change::Nothing, cache.load(flash, page, 5, &mut [0; 200]).and_then(|()| flash.settle())),
    }
}

fn run(replacement: Replacement, seed: u64, has_cuts: bool) -> Result<(), String> {
    let mut rig = Rig::new(replacement);
    let mut draw = Draw(seed);
    let mut model = vec![Box::new([0; FLASH_PAGE_BYTES]); PAGES as usize];
    for round in 0..400 {
        // Mostly few pages, so that they are hit again.
        let page = if draw.below(3) == 0 { draw.below(PAGES) } else { draw.below(10) };
        if has_cuts && draw.below(8) == 0 {
            let steps = if draw.below(2) == 0 { 20 } else { 1200 };
            rig.medium.cut_after(Some(draw.below(steps)));
        }
        let told = |what: &str| format!("{replacement:?}, seed {seed}, round {round}, page {page}: {what}");
        let (change, result) = step(&mut rig, &mut draw, page);
        let entry = &mut model[page as usize];
        match result {
            Ok(()) => match change {
                Change::Nothing => {}
                Change::Bytes(within, bytes) => entry[within..within + bytes.len()].copy_from_slice(&bytes),
                Change::Page(bytes) => *entry = bytes,
            },
            Err(error) if !has_cuts => return Err(told(&error.to_string())),
            Err(_) => {
                rig.medium.cut_after(None);
                rig = Rig::open(Arc::clone(&rig.medium), rig.replacement).map_err(|error| told(&error.to_string()))?;
                let found = rig.read(page).map_err(|error| told(&error.to_string()))?;
                let is_one = match &change {
                    Change::Nothing => found == *entry,
                    Change::Page(bytes) => found == *entry || found == *bytes,
                    Change::Bytes(within, bytes) => (0..FLASH_PAGE_BYTES).all(|at| {
                        let new = at.checked_sub(*within).and_then(|at| bytes.get(at));
                        found[at] == entry[at] || new == Some(&found[at])
                    }),
                };
                if !is_one {
                    return Err(told("neither the old nor the new after a power failure"));
                }
                *entry = found;
            }
        }
        if round % 20 == 19 {
            rig.medium.cut_after(None);
            if draw.below(2) == 0 {
                rig = Rig::open(Arc::clone(&rig.medium), rig.replacement).map_err(|error| told(&error.to_string()))?;
            }
            for (page, expected) in (0..).zip(&model) {
                if rig.read(page).map_err(|error| told(&error.to_string()))? != *expected {
                    return Err(told(&format!("page {page} is another")));
                }
                let mut part = [0; 64];
                rig.cache.load(&mut rig.flash, page, 1000, &mut part).map_err(|error| told(&error.to_string()))?;
                if part != expected[1000..1064] {
                    return Err(told(&format!("a load of page {page} finds something else")));
                }
            }
        }
    }
    Ok(())
}

const REPLACEMENTS: [Replacement; 2] = [Replacement::Clock, Replacement::Lru];

fn all(has_cuts: bool) -> Result<(), String> {
    (0..25).try_for_each(|seed| REPLACEMENTS.into_iter().try_for_each(|replacement| run(replacement, seed, has_cuts)))
}

#[test]
fn pages_are_what_was_stored_last() {
    all(false).expect("as the model");
}

#[test]
fn power_failures_leave_the_old_or_the_new() {
    all(true).expect("as the model");
}

#[test]
fn deliberate_bugs_are_caught() {
    for bug in
        [Mutant::CachedPageStaysClean, Mutant::SlotClearedBeforeWrite, Mutant::SlotNamedBeforeFilled, Mutant::DirtyPageDroppedBeforeWrite]
    {
        mutant::select(bug);
        let found = all(true);
        mutant::select(Mutant::None);
        assert!(found.is_err(), "{bug:?} was not caught");
    }
}

#[test]
fn tables_that_name_a_page_twice_or_none_of_the_drive_are_refused() {
    for word in [word_of(PAGES, false), word_of(3, false), DIRTY] {
        let mut rig = Rig::new(Replacement::Lru);
        rig.cache.store(&mut rig.flash, 3, 0, &[1]).expect("stored");
        rig.medium.store(CACHE_AT + 5 * WORD, &word.to_le_bytes()).expect("stored");
        let error = Rig::open(Arc::clone(&rig.medium), Replacement::Lru).err().expect("refused").to_string();
        assert!(error.contains("slot 5 of the page cache"), "{error}");
    }
}

/// A load that misses had to evict a page that was changed, which flash that is worn out does not take.
#[test]
fn regression_a_cache_over_worn_out_flash_could_not_be_read() {
    for replacement in REPLACEMENTS {
        let (geometry, options) = geometry();
        let options = FlashOptions { endurance_erasures: 1, ..options };
        let medium = Arc::new(TestMedium::new(CACHE_AT + dram_bytes(CACHE_BYTES)));
        let mut flash = Flash::format(Arc::clone(&medium), 0, geometry, options).expect("formatted");
        let mut cache = PageCache::open(Arc::clone(&medium), CACHE_AT, CACHE_BYTES, replacement, "test", PAGES).expect("opened");
        let mut stored = [0; PAGES as usize];
        let refused = (0..10_000_u64).find(|round| {
            let (page, value) = (round * 7 % PAGES, *round as u8);
            let is_refused = cache.store(&mut flash, page, 0, &[value]).is_err();
            if !is_refused {
                stored[page as usize] = value;
            }
            is_refused
        });
        assert!(refused.is_some(), "{replacement:?}: it did not wear out");
        for (page, value) in (0..).zip(stored) {
            let mut found = [0xee];
            cache.load(&mut flash, page, 0, &mut found).unwrap_or_else(|error| panic!("{replacement:?}, page {page}: {error}"));
            assert_eq!(found, [value], "{replacement:?}, page {page}");
        }
    }
}
