//! A drive whose memory belongs to the host against plain arrays, with power failures at any step.

use std::sync::Arc;

use tandemfs_device::{MemoryNodes, MoveDirection, PersistenceDomain, REQUEST_BYTES};

use super::*;
use crate::flash::FlashGeometry;
use crate::medium::test_medium::TestMedium;
use crate::mutant::{self, Mutant};
use crate::profiles::profile;

const PAGE: u64 = PAGE_BYTES as u64;
const MEMORY_PAGES: u64 = 512; // a unit, so that the cache begins at one
const CACHE_PAGES: u64 = 6;
const SECTORS: u64 = 24;
const QUEUE_DEPTH: u32 = 4;

fn model() -> FirmwareModel {
    let base = profile("hybrid-cache").and_then(|profile| profile.firmware).expect("a profile");
    let flash = FlashGeometry::for_capacity(SECTORS, 2, 1, 1, 4, 60);
    FirmwareModel {
        staging: Staging::HostCache { cache_bytes: CACHE_PAGES * PAGE, queue_depth: QUEUE_DEPTH, bytes_per_second: 1 << 30 },
        channel_count: 2,
        dies_per_channel: 1,
        planes_per_die: 1,
        blocks_per_plane: flash.blocks_per_plane,
        pages_per_block: 4,
        over_provisioning_percent: 60,
        write_buffer_pages: 4,
        timing: None,
        ..base
    }
}

fn formatted() -> Arc<TestMedium> {
    let model = model();
    let medium = Arc::new(TestMedium::new(DramLayout::new(&model, MEMORY_PAGES * PAGE, SECTORS).end));
    format(&medium, &model, MEMORY_PAGES * PAGE, SECTORS).expect("formatted");
    medium
}

fn open(medium: &Arc<TestMedium>) -> Result<HostCacheDrive<TestMedium>, DeviceError> {
    let description = DeviceDescription {
        name: "test".into(),
        memory_bytes: MEMORY_PAGES * PAGE,
        block_bytes: SECTORS * PAGE,
        cache_bytes: CACHE_PAGES * PAGE,
        domain: PersistenceDomain::Gpf,
        volatile_write_cache: false,
        discard: true,
        discard_zeroes: true,
        overlapping: false,
        request_bytes: REQUEST_BYTES,
        nodes: MemoryNodes::default(),
    };
    HostCacheDrive::open(medium, &model(), description, None, false)
}

fn done(drive: &impl CacheMoves, command: &CacheMove) -> Result<(), DeviceError> {
    let ticket = drive.submit(command)?.expect("a place in the queue");
    match drive.wait(ticket, Duration::ZERO) {
        MoveState::Done(result) => result,
        MoveState::Pending(_) => panic!("without times it is done at once"),
    }
}

struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[derive(Debug, Clone)]
enum Operation {
    Store { offset: u64, bytes: Vec<u8> },
    Write { sector: u64, bytes: Vec<u8> },
    Discard { sector: u64, count: u64 },
    Move(CacheMove),
}

impl Operation {
    fn draw(draw: &mut Draw) -> Self {
        let fresh = draw.below(255) as u8 + 1;
        let sector = draw.below(SECTORS);
        let cache_page = draw.below(CACHE_PAGES);
        let count = 1 + draw.below(3.min(CACHE_PAGES - cache_page).min(SECTORS - sector));
        let direction = |is_in| if is_in { MoveDirection::ToCache } else { MoveDirection::ToFlash };
        match draw.below(10) {
            0..=3 => {
                // The last page of the memory zone and the cache.
                let offset = (MEMORY_PAGES - 1) * PAGE + draw.below(CACHE_PAGES * PAGE);
                Self::Store { offset, bytes: vec![fresh; 1 + draw.below(300) as usize] }
            }
            4 | 5 => Self::Write { sector, bytes: vec![fresh; (count * PAGE) as usize] },
            6 => Self::Discard { sector, count },
            moves => {
                Self::Move(CacheMove { direction: direction(moves == 7), cache_page, sector: Sector::new(sector), count: count as u32 })
            }
        }
    }

    fn carry_out(&self, drive: &HostCacheDrive<TestMedium>) -> Result<(), DeviceError> {
        match self {
            Self::Store { offset, bytes } => BytePath::store(drive, *offset, bytes),
            Self::Write { sector, bytes } => {
                drive.transfer(&mut [BlockRequest::Write { sector: Sector::new(*sector), buffer: bytes[..].into() }], &mut || ())
            }
            Self::Discard { sector, count } => BlockPath::discard(drive, Sector::new(*sector), *count),
            Self::Move(command) => done(drive, command),
        }
    }
}

/// What the drive is to hold: memory from the last page of the memory zone on, and the flash.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    memory: Vec<u8>,
    flash: Vec<u8>,
}

const HELD_FROM: u64 = (MEMORY_PAGES - 1) * PAGE;

impl Held {
    fn of(drive: &HostCacheDrive<TestMedium>) -> Result<Self, DeviceError> {
        let mut held = Self { memory: vec![0; ((CACHE_PAGES + 1) * PAGE) as usize], flash: vec![0; (SECTORS * PAGE) as usize] };
        BytePath::load(drive, HELD_FROM, &mut held.memory)?;
        drive.transfer(&mut [BlockRequest::Read { sector: Sector::new(0), buffer: (&mut held.flash[..]).into() }], &mut || ())?;
        Ok(held)
    }

    fn apply(&mut self, operation: &Operation) {
        let place = |bytes: &mut [u8], at: u64, from: &[u8]| bytes[at as usize..at as usize + from.len()].copy_from_slice(from);
        match operation {
            Operation::Store { offset, bytes } => place(&mut self.memory, offset - HELD_FROM, bytes),
            Operation::Write { sector, bytes } => place(&mut self.flash, sector * PAGE, bytes),
            Operation::Discard { sector, count } => place(&mut self.flash, sector * PAGE, &vec![0; (count * PAGE) as usize]),
            Operation::Move(CacheMove { direction, cache_page, sector, count }) => {
                let (memory, flash) = ((cache_page + 1) * PAGE, sector.number() * PAGE);
                let length = u64::from(*count) * PAGE;
                match direction {
                    MoveDirection::ToCache => place(&mut self.memory, memory, &self.flash[flash as usize..(flash + length) as usize]),
                    MoveDirection::ToFlash => place(&mut self.flash, flash, &self.memory[memory as usize..(memory + length) as usize]),
                }
            }
        }
    }

    /// Whether it may be found after a power failure in the operation that leads from `old` to `new`: memory word by word, flash page by page.
    fn is_between(&self, old: &Self, new: &Self) -> bool {
        let mixed = |found: &[u8], old: &[u8], new: &[u8], unit: usize| {
            let units = found.chunks(unit).zip(old.chunks(unit).zip(new.chunks(unit)));
            units.into_iter().all(|(found, (old, new))| found == old || found == new)
        };
        mixed(&self.memory, &old.memory, &new.memory, 8) && mixed(&self.flash, &old.flash, &new.flash, PAGE_BYTES)
    }
}

fn run(seed: u64, has_cuts: bool) -> Result<u32, String> {
    let medium = formatted();
    let mut drive = open(&medium).map_err(|error| error.to_string())?;
    let mut draw = Draw(seed);
    let mut cuts = 0;
    let mut held = Held::of(&drive).map_err(|error| error.to_string())?;
    for round in 0..300 {
        let operation = Operation::draw(&mut draw);
        let told = |what: &str| format!("seed {seed}, round {round}, {operation:?}: {what}");
        if has_cuts && draw.below(6) == 0 {
            medium.cut_after(Some(draw.below(1600)));
        }
        let mut new = held.clone();
        new.apply(&operation);
        let result = operation.carry_out(&drive);
        let was_cut = medium.is_off();
        medium.cut_after(None);
        if let (Err(error), false) = (&result, was_cut) {
            return Err(told(&error.to_string()));
        }
        if was_cut || draw.below(40) == 0 {
            drop(drive);
            drive = open(&medium).map_err(|error| told(&error.to_string()))?;
        }
        let found = Held::of(&drive).map_err(|error| told(&error.to_string()))?;
        if result.is_err() {
            cuts += 1;
            if !found.is_between(&held, &new) {
                return Err(told("neither the old nor the new after a power failure"));
            }
        } else if found != new {
            return Err(told("something else is there"));
        }
        held = found;
    }
    Ok(cuts)
}

fn all(has_cuts: bool) -> Result<u32, String> {
    (0..12).map(|seed| run(seed, has_cuts)).sum()
}

#[test]
fn memory_and_flash_are_what_was_stored_written_and_moved() {
    all(false).expect("as the model");
}

#[test]
fn power_failures_leave_parts_of_what_was_under_way() {
    assert!(all(true).expect("as the model") > 100);
}

#[test]
fn deliberate_bugs_are_caught() {
    for bug in [Mutant::MovedPageForgotten, Mutant::MoveClearsSource] {
        mutant::select(bug);
        let found = all(true);
        mutant::select(Mutant::None);
        assert!(found.is_err(), "{bug:?} was not caught");
    }
}

#[test]
fn a_full_queue_takes_no_more_until_a_completion_is_taken() {
    let drive = open(&formatted()).expect("opened");
    let command = CacheMove { direction: MoveDirection::ToFlash, cache_page: 0, sector: Sector::new(3), count: 2 };
    let mut tickets: Vec<MoveTicket> = (0..QUEUE_DEPTH).map(|_| drive.submit(&command).expect("inside").expect("a place")).collect();
    assert_eq!(drive.submit(&command).expect("inside"), None);
    let MoveState::Done(Ok(())) = drive.poll(tickets.remove(1)) else { panic!("done") };
    let further = drive.submit(&command).expect("inside").expect("the place of the one that was taken");
    assert!(tickets.iter().all(|ticket| ticket.number() != further.number()));
    assert_eq!(drive.submit(&command).expect("inside"), None);
    assert_eq!(drive.counts().expect("counted").firmware.pages_moved_to_flash, u64::from(QUEUE_DEPTH + 1) * 2);
    let MoveState::Done(Err(DeviceError::Firmware { command: "MOVE", .. })) = drive.poll(MoveTicket::new(99)) else {
        panic!("a ticket of nobody")
    };
}

/// What the flash fails is told by the completion, and loses nothing of the source.
#[test]
fn a_move_to_flash_that_is_worn_out_fails_and_leaves_the_cache() {
    let (model, medium) = (FirmwareModel { endurance_erasures: 1, ..model() }, formatted());
    let mut drive = open(&medium).expect("opened");
    drop(drive);
    let description = open(&medium).expect("opened").description.clone();
    drive = HostCacheDrive::open(&medium, &model, description, None, false).expect("opened");
    BytePath::store(&drive, MEMORY_PAGES * PAGE, &[7; PAGE_BYTES]).expect("stored");
    let command = |sector| CacheMove { direction: MoveDirection::ToFlash, cache_page: 0, sector: Sector::new(sector), count: 1 };
    let failed = (0..10_000).find_map(|round| done(&drive, &command(round * 7 % SECTORS)).err());
    assert!(matches!(failed, Some(DeviceError::Firmware { ref device, .. }) if device == "test"), "{failed:?}");
    let mut found = [0; PAGE_BYTES];
    BytePath::load(&drive, MEMORY_PAGES * PAGE, &mut found).expect("loaded");
    assert_eq!(found, [7; PAGE_BYTES]);
}
