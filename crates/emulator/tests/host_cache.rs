//! A drive whose cache the host manages, from outside: sizes, MOVE commands, mapped ranges, times, what is refused.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tandemfs_device::{
    BlockRequest, CacheMove, CacheMoves, Device, DeviceError, Drive, Fenced, MemoryRange, MoveDirection, MoveState, Moved,
    PersistenceDomain, Structure,
};
use tandemfs_emulator::{
    CacheManagement, CreateOptions, ModelOptions, OpenOptions, Replacement, Staging, create_with, info, open_image, statistics,
};
use tandemfs_format::Sector;
use tempfile::TempDir;

const MEMORY_BYTES: u64 = 16 << 20;
const BLOCK_BYTES: u64 = 64 << 20;
const PAGE: u64 = 4096;
const AN_HOUR: Duration = Duration::from_secs(3600);

fn image_with(model: &ModelOptions, block_bytes: u64) -> (TempDir, PathBuf) {
    let directory = TempDir::new_in("/dev/shm").expect("a directory");
    let path = directory.path().join("disk.img");
    let options = CreateOptions { profile: "hybrid-cache".to_owned(), memory_bytes: MEMORY_BYTES, block_bytes };
    create_with(&path, &options, model).expect("created");
    (directory, path)
}

fn untimed() -> ModelOptions {
    ModelOptions { no_timing: true, ..ModelOptions::default() }
}

fn open(path: &Path) -> Arc<dyn Device> {
    open_image(path, &OpenOptions::default()).expect("opened")
}

fn in_virtual_time(path: &Path) -> Arc<dyn Device> {
    open_image(path, &OpenOptions { virtual_time: true, ..OpenOptions::default() }).expect("opened")
}

fn write(device: &dyn Device, sector: u64, bytes: &[u8]) {
    let mut requests = [BlockRequest::Write { sector: Sector::new(sector), buffer: bytes.into() }];
    device.block_path().transfer(&mut requests, &mut || ()).expect("written");
}

fn read(device: &dyn Device, sector: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; count * PAGE as usize];
    let mut requests = [BlockRequest::Read { sector: Sector::new(sector), buffer: (&mut bytes[..]).into() }];
    device.block_path().transfer(&mut requests, &mut || ()).expect("read");
    bytes
}

fn load(device: &dyn Device, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; length];
    device.byte_path().load(offset, &mut bytes).expect("loaded");
    bytes
}

fn moves(device: &dyn Device) -> &dyn CacheMoves {
    device.cache_moves().expect("the host's cache")
}

fn command(direction: MoveDirection, cache_page: u64, sector: u64, count: u32) -> CacheMove {
    CacheMove { direction, cache_page, sector: Sector::new(sector), count }
}

fn done(device: &dyn Device, command: CacheMove) -> Result<(), DeviceError> {
    let ticket = moves(device).submit(&command)?.expect("a place");
    match moves(device).wait(ticket, AN_HOUR) {
        MoveState::Done(result) => result,
        MoveState::Pending(_) => panic!("an hour is enough"),
    }
}

#[test]
fn the_cache_is_4_gib_a_tib_or_as_chosen() {
    for (block_bytes, chosen, found) in
        [(64 << 20, None, 2 << 20), (1 << 30, None, 4 << 20), (3 << 29, None, 6 << 20), (64 << 20, Some(3 * PAGE), 3 * PAGE)]
    {
        let (_directory, path) = image_with(&ModelOptions { cache_bytes: chosen, ..untimed() }, block_bytes);
        let description = open(&path).description().clone();
        assert_eq!((description.memory_bytes, description.block_bytes, description.cache_bytes), (MEMORY_BYTES, block_bytes, found));
        assert_eq!(description.cache(), MemoryRange { offset: MEMORY_BYTES, length: found });
        assert_eq!(info(&path).expect("an image").host_cache_bytes(), found);
        assert!(!description.overlapping && !description.volatile_write_cache && description.domain == PersistenceDomain::Gpf);
    }
}

#[test]
fn pages_are_copied_between_cache_and_flash_and_the_drive_keeps_no_mapping() {
    let (_directory, path) = image_with(&untimed(), BLOCK_BYTES);
    let device = open(&path);
    write(&*device, 100, &[[1; 4096], [2; 4096], [3; 4096]].concat());
    let ticket = moves(&*device).submit(&command(MoveDirection::ToCache, 5, 100, 3)).expect("inside").expect("a place");
    let MoveState::Done(Ok(())) = moves(&*device).poll(ticket) else { panic!("without times it is done") };
    let at = MEMORY_BYTES + 5 * PAGE;
    assert_eq!(load(&*device, at, 3 * 4096), [[1; 4096], [2; 4096], [3; 4096]].concat());
    // A store to the copy changes the copy alone, and a block write the flash alone.
    device.byte_path().store(at + 4096 + 10, b"stored").expect("stored");
    write(&*device, 100, &[9; 4096]);
    assert_eq!(read(&*device, 101, 1), [2; 4096]);
    assert_eq!(load(&*device, at, 4096), [1; 4096]);
    // The same page of the cache to another sector, twice.
    for sector in [7, 8] {
        done(&*device, command(MoveDirection::ToFlash, 6, sector, 1)).expect("moved");
        assert_eq!(read(&*device, sector, 1)[8..18], *b"\x02\x02stored\x02\x02");
    }
    let counts = device.counts().expect("counted").firmware;
    assert_eq!((counts.pages_moved_to_cache, counts.pages_moved_to_flash), (3, 2));
    drop(device);
    let device = open(&path);
    assert_eq!(load(&*device, at + 4096 + 10, 6), b"stored", "battery-backed");
    drop(device);
    let lifetime = statistics(&path).expect("counted").lifetime.firmware;
    assert_eq!((lifetime.pages_moved_to_cache, lifetime.pages_moved_to_flash), (3, 2));
}

#[test]
fn the_cache_can_be_mapped_with_the_memory_zone_beside_it() {
    let (_directory, path) = image_with(&untimed(), BLOCK_BYTES);
    let device = open(&path);
    assert_eq!(device.mapping_unit(), Some(PAGE));
    let ranges = [MemoryRange { offset: MEMORY_BYTES + PAGE, length: PAGE }, MemoryRange { offset: 0, length: PAGE }];
    let map = device.map(&ranges, true).expect("mapped");
    map.copy_in(10, b"by address").expect("stored");
    map.copy_in(PAGE, b"zone").expect("stored");
    assert_eq!((&load(&*device, MEMORY_BYTES + PAGE + 10, 10)[..], &load(&*device, 0, 4)[..]), (&b"by address"[..], &b"zone"[..]));
    done(&*device, command(MoveDirection::ToFlash, 1, 3, 1)).expect("moved");
    assert_eq!(read(&*device, 3, 1)[10..20], *b"by address");
    let behind = MemoryRange { offset: MEMORY_BYTES + (2 << 20), length: PAGE };
    assert!(matches!(device.map(&[behind], false), Err(DeviceError::OutOfRange { .. })), "the drive's own tables");
}

#[test]
fn what_is_outside_or_for_reading_only_is_refused() {
    let (_directory, path) = image_with(&ModelOptions { cache_bytes: Some(8 * PAGE), ..untimed() }, BLOCK_BYTES);
    let device = open(&path);
    let last = BLOCK_BYTES / PAGE - 1;
    for (page, sector, count) in [(8, 0, 1), (7, 0, 2), (u64::MAX, 0, 1), (0, last, 2), (0, u64::MAX, 1), (0, 0, 9)] {
        for direction in [MoveDirection::ToCache, MoveDirection::ToFlash] {
            let refused = moves(&*device).submit(&command(direction, page, sector, count));
            assert!(matches!(refused, Err(DeviceError::OutOfRange { .. })), "{page} {sector} {count}");
        }
    }
    assert!(matches!(moves(&*device).submit(&command(MoveDirection::ToCache, 0, 0, 0)), Err(DeviceError::Block { .. })), "no pages");
    assert!(matches!(device.byte_path().load(MEMORY_BYTES + 8 * PAGE, &mut [0]), Err(DeviceError::OutOfRange { .. })));
    device.byte_path().store(MEMORY_BYTES + 8 * PAGE - 1, &[5]).expect("the last byte");
    drop(device);
    let device = open_image(&path, &OpenOptions { read_only: true, ..OpenOptions::default() }).expect("opened");
    let refused = moves(&*device).submit(&command(MoveDirection::ToCache, 0, 0, 1)).expect_err("it would store").to_string();
    assert!(refused.contains("move to cache of 4096 B at byte 0 failed: Read-only file system"), "{refused}");
    assert!(matches!(device.byte_path().store(0, &[1]), Err(DeviceError::Block { operation: "store", .. })));
    assert_eq!(load(&*device, MEMORY_BYTES + 8 * PAGE - 1, 1), [5]);
}

#[test]
fn profiles_say_who_manages() {
    let by_clock = ModelOptions { cache_management: Some(CacheManagement::Drive(Replacement::Clock)), ..untimed() };
    let (_directory, path) = image_with(&by_clock, BLOCK_BYTES);
    let device = open(&path);
    assert!(device.cache_moves().is_none() && device.description().overlapping && device.description().cache_bytes == 0);
    let staging = info(&path).expect("an image").firmware.expect("firmware").staging;
    assert_eq!(staging, Staging::Cache { cache_bytes: 2 << 20, replacement: Replacement::Clock }, "of the same size");
    let directory = TempDir::new_in("/dev/shm").expect("a directory");
    let options = CreateOptions { profile: "bytefs-dual".to_owned(), memory_bytes: MEMORY_BYTES, block_bytes: BLOCK_BYTES };
    let by_host = ModelOptions { cache_management: Some(CacheManagement::Host), ..untimed() };
    let refused = create_with(&directory.path().join("disk.img"), &options, &by_host).expect_err("refused").to_string();
    assert!(refused.contains("name profile hybrid-cache"), "{refused}");
    let options = CreateOptions { profile: "hybrid-cache".to_owned(), ..options };
    for (model, said) in [
        (ModelOptions { write_log_bytes: Some(1 << 20), ..untimed() }, "no write log"),
        (ModelOptions { cache_bytes: Some(100), ..untimed() }, "not a multiple of 4 KiB"),
        (ModelOptions { cache_bytes: Some(0), ..untimed() }, "stages nothing"),
        (ModelOptions { cache_bytes: Some(1 << 30), ..untimed() }, "larger than the drive"),
    ] {
        let refused = create_with(&directory.path().join("disk.img"), &options, &model).expect_err("refused").to_string();
        assert!(refused.contains(said) && !refused.contains('\n'), "{refused}");
    }
}

/// By the times of the profile: 4.8 us a command, a look-up, 3 us a flash read, 8 GB/s inside.
#[test]
fn moves_take_the_times_of_the_profile_and_overlap() {
    let (_directory, path) = image_with(&ModelOptions::default(), BLOCK_BYTES);
    let device = in_virtual_time(&path);
    let time = device.virtual_time().expect("virtual time");
    // More than the write buffer holds, so that what is moved comes from the flash.
    (0..32).for_each(|part| write(&*device, part * 64, &[part as u8; 64 * 4096]));
    time.set_now_ns(time.latest_ns() + 1_000_000_000);
    let begun = time.now_ns();
    let ticket = moves(&*device).submit(&command(MoveDirection::ToCache, 0, 0, 1)).expect("inside").expect("a place");
    assert_eq!(time.now_ns(), begun, "nobody waits for a submission");
    let MoveState::Pending(ticket) = moves(&*device).poll(ticket) else { panic!("not yet") };
    let MoveState::Pending(mut ticket) = moves(&*device).wait(ticket, Duration::from_micros(2)) else { panic!("not yet") };
    let mut polls = 0;
    while let MoveState::Pending(pending) = moves(&*device).poll(ticket) {
        (ticket, polls) = (pending, polls + 1);
    }
    let alone = time.now_ns() - begun;
    let claimed = 4_800 + 89 + 3_000 + 512;
    assert!(polls > 10 && alone.abs_diff(claimed) <= 200, "{polls} looks, {alone} ns, {claimed} claimed");
    // Sixteen at once take hardly longer than one.
    let begun = time.now_ns();
    let tickets: Vec<_> = (0..16)
        .map(|index| moves(&*device).submit(&command(MoveDirection::ToCache, index, 64 + index, 1)).expect("inside").expect("a place"))
        .collect();
    for ticket in tickets {
        let MoveState::Done(Ok(())) = moves(&*device).wait(ticket, AN_HOUR) else { panic!("done") };
    }
    let together = time.now_ns() - begun;
    assert!(together < 3 * alone, "{together} ns for sixteen, {alone} ns for one");
    // A load of a line takes 358 ns, and no MOVE shares its way.
    let begun = time.now_ns();
    load(&*device, MEMORY_BYTES, 64);
    assert_eq!(time.now_ns() - begun, 358);
    // To the flash: into the write buffer, which is the bandwidth inside and no program of 80 us.
    let begun = time.now_ns();
    done(&*device, command(MoveDirection::ToFlash, 0, 3000, 16)).expect("moved");
    let written = time.now_ns() - begun;
    assert!((4_800 + 16 * 512..30_000).contains(&written), "{written} ns for 64 KiB");
}

#[test]
fn a_drive_in_use_waits_for_moves_and_counts_them() {
    let (_directory, path) = image_with(&ModelOptions::default(), BLOCK_BYTES);
    let drive = Drive::new(open(&path));
    let cache = drive.cache().expect("the host's cache");
    assert_eq!((cache.page_count(), cache.range().offset, cache.queue_depth()), (512, MEMORY_BYTES, 64));
    let stored = drive.store_within(Structure::Data, cache.address(3), 100, b"kept").expect("stored");
    let fenced: Fenced = drive.fence(drive.flush_lines(stored));
    let mut moving = cache.write_back(3, Sector::new(40), 1, &fenced).expect("inside").expect("a place");
    let written = loop {
        match cache.wait(moving, Duration::from_micros(3)) {
            Moved::Pending(still) => moving = still,
            Moved::Done(result) => break result.expect("moved"),
        }
    };
    let _flushed = drive.flush_blocks(written).expect("flushed");
    let mut moving = cache.bring_in(Sector::new(40), 7, 1, &fenced).expect("inside").expect("a place");
    let _fenced: Fenced = loop {
        match cache.poll(moving) {
            Moved::Pending(still) => moving = still,
            Moved::Done(result) => break result.expect("moved"),
        }
    };
    let mut found = [0; 104];
    drive.load(Structure::Data, cache.address(7), &mut found).expect("loaded");
    assert_eq!(&found[100..], b"kept");
    let counted = drive.counters().snapshot();
    assert_eq!((counted.moves, counted.moved_to_cache_bytes, counted.moved_to_flash_bytes), (2, PAGE, PAGE));
    drive.counters().reset();
    assert_eq!(drive.counters().snapshot().moves, 0);
}
