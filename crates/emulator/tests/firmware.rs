//! Drives with firmware from outside: what can be created and refused, what both windows show, what survives.

use std::fs::{self, File, OpenOptions as FileOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tandemfs_device::{BlockRequest, Device, DeviceError, Drive, PersistenceDomain, Structure, TxId};
use tandemfs_emulator::{
    CacheManagement, CreateOptions, GarbageCollection, ModelOptions, OpenOptions, Replacement, Staging, create, create_with, info,
    open_image, statistics,
};
use tandemfs_format::{LineAddress, Sector};
use tempfile::TempDir;

const MEMORY_BYTES: u64 = 16 << 20;
const BLOCK_BYTES: u64 = 64 << 20;
const WITH_FIRMWARE: [&str; 3] = ["bytefs", "bytefs-cxl", "bytefs-dual"];

fn options(profile: &str) -> CreateOptions {
    CreateOptions { profile: profile.to_owned(), memory_bytes: MEMORY_BYTES, block_bytes: BLOCK_BYTES }
}

fn chosen() -> ModelOptions {
    ModelOptions { no_timing: true, transaction_log_bytes: None, ..ModelOptions::default() }
}

fn image_with(profile: &str, model: &ModelOptions) -> (TempDir, PathBuf) {
    let directory = TempDir::new_in("/dev/shm").expect("a directory");
    let path = directory.path().join("disk.img");
    create_with(&path, &options(profile), model).expect("created");
    (directory, path)
}

fn image(profile: &str) -> (TempDir, PathBuf) {
    image_with(profile, &chosen())
}

fn open(path: &Path) -> Arc<dyn Device> {
    open_image(path, &OpenOptions::default()).expect("opened")
}

fn refusal(path: &Path) -> String {
    match open_image(path, &OpenOptions::default()) {
        Err(DeviceError::Open { reason, .. }) => reason,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("opened"),
    }
}

fn read(device: &dyn Device, sector: u64) -> Vec<u8> {
    let mut buffer = vec![0xee; 4096];
    let mut requests = [BlockRequest::Read { sector: Sector::new(sector), buffer: (&mut buffer).into() }];
    device.block_path().transfer(&mut requests, &mut || ()).expect("read");
    buffer
}

fn write(device: &dyn Device, sector: u64, bytes: &[u8]) {
    let mut requests = [BlockRequest::Write { sector: Sector::new(sector), buffer: bytes.into() }];
    device.block_path().transfer(&mut requests, &mut || ()).expect("written");
}

fn load<const N: usize>(device: &dyn Device, offset: u64) -> [u8; N] {
    let mut into = [0xee; N];
    device.byte_path().load(offset, &mut into).expect("loaded");
    into
}

fn transaction(number: u32) -> TxId {
    TxId::new(number).expect("not zero")
}

#[test]
fn both_windows_show_the_same_bytes() {
    for profile in WITH_FIRMWARE {
        let (_directory, path) = image(profile);
        let device = open(&path);
        let description = device.description().clone();
        assert!(description.overlapping && description.byte_window_bytes() == MEMORY_BYTES + BLOCK_BYTES);
        // A sector of the block zone by bytes: across a line and a page.
        write(&*device, 7, &[1; 8192]);
        let at = description.line_of_sector(Sector::new(7)).expect("overlapping").offset_bytes();
        device.byte_path().store(at + 4090, b"twelve bytes").expect("stored");
        assert_eq!(&load::<14>(&*device, at + 4089), b"\x01twelve bytes\x01", "{profile}");
        assert!(read(&*device, 7)[4090..] == *b"twelve" && read(&*device, 8)[..7] == *b" bytes\x01", "{profile}");
        // A block write invalidates what was stored.
        write(&*device, 8, &[2; 4096]);
        assert_eq!(&load::<12>(&*device, at + 4090), b"twelve\x02\x02\x02\x02\x02\x02", "{profile}");
        // A page of the memory zone by blocks.
        let sector = description.sector_of_page(LineAddress::new(64)).expect("overlapping").number();
        device.byte_path().store(4096, &[3; 100]).expect("stored");
        let found = read(&*device, sector);
        assert!(found[..100] == [3; 100] && found[100..].iter().all(|&byte| byte == 0), "{profile}");
        // One request over the end of the block zone goes on with the memory zone.
        let last = BLOCK_BYTES / 4096 - 1;
        write(&*device, last, &[4; 12288]);
        assert_eq!(load::<8192>(&*device, 0), [4; 8192], "{profile}");
        assert_eq!(load::<64>(&*device, MEMORY_BYTES + BLOCK_BYTES - 64), [4; 64]);
        // Discarded pages are zeros here.
        device.byte_path().store(64, &[5; 64]).expect("stored");
        device.block_path().discard(Sector::new(last), 2).expect("discarded");
        assert_eq!(load::<4096>(&*device, 0), [0; 4096], "{profile}");
        assert_eq!(load::<64>(&*device, 4096), [4; 64], "{profile}");
        drop(device);
        let device = open(&path);
        assert_eq!(&load::<12>(&*device, at + 4090), b"twelve\x02\x02\x02\x02\x02\x02", "{profile}");
        assert!(load::<64>(&*device, 4096) == [4; 64] && load::<64>(&*device, 64) == [0; 64], "{profile}");
    }
}

#[test]
fn accesses_outside_are_errors() {
    let (_directory, path) = image("bytefs");
    let device = open(&path);
    let window = MEMORY_BYTES + BLOCK_BYTES;
    for offset in [window, window - 63, u64::MAX - 63] {
        assert!(matches!(device.byte_path().load(offset, &mut [0; 64]), Err(DeviceError::OutOfRange { .. })));
        assert!(matches!(device.byte_path().store(offset, &[0; 64]), Err(DeviceError::OutOfRange { .. })));
    }
    let firmware = device.firmware().expect("a log");
    assert!(matches!(firmware.store_tagged(transaction(1), window, &[0; 64]), Err(DeviceError::OutOfRange { .. })));
    assert!(matches!(firmware.store_tagged(transaction(1), 32, &[0; 64]), Err(DeviceError::Block { operation: "store", .. })));
    assert!(matches!(firmware.store_tagged(transaction(1), 64, &[0; 32]), Err(DeviceError::Block { operation: "store", .. })));
    let buffer = [0; 4096];
    for sector in [window / 4096, u64::MAX] {
        let mut requests = [BlockRequest::Write { sector: Sector::new(sector), buffer: (&buffer).into() }];
        assert!(matches!(device.block_path().transfer(&mut requests, &mut || ()), Err(DeviceError::OutOfRange { .. })));
        assert!(device.block_path().discard(Sector::new(sector), 1).is_err());
    }
    let mut requests = [BlockRequest::Write { sector: Sector::new(0), buffer: (&buffer[..100]).into() }];
    assert!(matches!(device.block_path().transfer(&mut requests, &mut || ()), Err(DeviceError::Block { operation: "write", .. })));
}

#[test]
fn what_was_committed_survives_and_only_that() {
    for profile in ["bytefs", "bytefs-cxl"] {
        let (_directory, path) = image(profile);
        let device = open(&path);
        assert_eq!(device.description().domain, PersistenceDomain::Adr);
        let firmware = device.firmware().expect("transactions");
        device.byte_path().store(0, &[1; 256]).expect("stored");
        firmware.store_tagged(transaction(5), 64, &[5; 64]).expect("stored");
        firmware.store_tagged(transaction(6), 128, &[6; 64]).expect("stored");
        assert_eq!(load::<64>(&*device, 128), [6; 64], "visible at once");
        firmware.commit(transaction(5)).expect("committed");
        assert!(matches!(firmware.commit(transaction(9)), Err(DeviceError::Firmware { command: "COMMIT", .. })), "stored nothing");
        drop(device); // and the power with it
        for read_only in [true, false, false] {
            let device = open_image(&path, &OpenOptions { read_only, ..OpenOptions::default() }).expect("opened");
            device.firmware().expect("transactions").recover().expect("recovered");
            let line = |number: u8| load::<64>(&*device, u64::from(number) * 64);
            assert_eq!([0, 1, 2, 3].map(line), [[1; 64], [5; 64], [1; 64], [1; 64]], "{profile}");
            assert_eq!(read(&*device, BLOCK_BYTES / 4096)[60..132], [&[1; 4][..], &[5; 64], &[1; 4]].concat());
        }
    }
}

/// The image of a process that was killed in the middle, as [EM2] of the crate has it.
#[test]
fn what_was_committed_survives_the_kill_of_the_process() {
    if let Some(path) = std::env::var_os("TANDEMFS_TEST_KILL") {
        let device = open(Path::new(&path));
        let firmware = device.firmware().expect("transactions");
        for number in 1..=300 {
            firmware.store_tagged(transaction(number), u64::from(number) * 128, &[number as u8; 128]).expect("stored");
            write(&*device, u64::from(number), &[number as u8; 4096]);
            if number < 300 {
                firmware.commit(transaction(number)).expect("committed");
            }
        }
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).expect("killed");
    }
    let (_directory, path) = image("bytefs");
    let child = std::process::Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "what_was_committed_survives_the_kill_of_the_process"])
        .env("TANDEMFS_TEST_KILL", &path)
        .output()
        .expect("runs");
    assert!(!child.status.success());
    let device = open(&path);
    let recovery = device.firmware().expect("transactions").recover().expect("recovered");
    assert_eq!((recovery.transactions, recovery.lines_kept, recovery.lines_discarded), (299, 598, 2));
    for number in 1..=300_u64 {
        let expected = if number < 300 { number as u8 } else { 0 };
        assert_eq!(load::<128>(&*device, number * 128), [expected; 128], "{number}");
        assert!(read(&*device, number).iter().all(|&byte| byte == number as u8), "{number}");
    }
    drop(device);
    let lifetime = statistics(&path).expect("counted").lifetime;
    assert!(lifetime.firmware.commits >= 200 && lifetime.flash.pages_written > 0, "{lifetime:?}");
}

#[test]
fn a_drive_with_a_cache_has_no_transactions() {
    let (_directory, path) = image("bytefs-dual");
    let drive = Drive::new(open(&path));
    assert!(!drive.has_transactions());
    assert_eq!(drive.recover().expect("nothing to do"), None);
    let error = drive.clean().expect_err("refused").to_string();
    assert!(error.contains("the drive has no transactions"), "{error}");
}

#[test]
fn opening_for_reading_writes_nothing() {
    for profile in WITH_FIRMWARE {
        let (_directory, path) = image(profile);
        let device = open(&path);
        for page in 0..3000 {
            device.byte_path().store(page * 4096, &[7; 64]).expect("stored");
        }
        write(&*device, 0, &[8; 4096]);
        if let Some(firmware) = device.firmware() {
            firmware.store_tagged(transaction(1), 0, &[9; 64]).expect("stored");
        }
        drop(device);
        let before = fs::read(&path).expect("read");
        let reading = OpenOptions { read_only: true, shared: true, ..OpenOptions::default() };
        let device = open_image(&path, &reading).expect("opened");
        let beside = open_image(&path, &reading).expect("opened beside it");
        if let Some(firmware) = device.firmware() {
            firmware.recover().expect("hidden");
            assert!(matches!(firmware.commit(transaction(1)), Err(DeviceError::Firmware { command: "COMMIT", .. })));
            assert!(firmware.clean().is_err());
        }
        assert!(load::<64>(&*device, 0) == [7; 64] && load::<64>(&*device, 2999 * 4096) == [7; 64] && read(&*beside, 0)[0] == 8);
        assert!(matches!(device.byte_path().store(0, &[1]), Err(DeviceError::Block { operation: "store", .. })));
        let mut requests = [BlockRequest::Write { sector: Sector::new(0), buffer: (&[0; 4096]).into() }];
        assert!(matches!(device.block_path().transfer(&mut requests, &mut || ()), Err(DeviceError::Block { operation: "write", .. })));
        assert!(device.block_path().discard(Sector::new(0), 1).is_err());
        assert!(matches!(open_image(&path, &OpenOptions::default()).err(), Some(DeviceError::Busy { .. })));
        statistics(&path).expect("counted beside them");
        drop((device, beside));
        assert!(fs::read(&path).expect("read") == before, "{profile}");
    }
}

/// Pages moved by garbage collection would only be in host memory.
#[test]
fn a_drive_that_is_only_read_leaves_work_behind_to_the_next_opening() {
    let (_directory, path) = image("bytefs");
    let device = open(&path);
    let (sectors, mut state) = (BLOCK_BYTES / 4096, 1_u64);
    let moved = |device: &dyn Device| device.counts().expect("firmware").flash.pages_moved;
    // Until it is in the middle of moving pages.
    let mut before = 0;
    while moved(&*device) < 100 || moved(&*device) == before {
        before = moved(&*device);
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        write(&*device, (state >> 33) % sectors, &[7; 4096]);
    }
    drop(device);
    let moved_by_loads = |read_only| {
        let device = open_image(&path, &OpenOptions { read_only, ..OpenOptions::default() }).expect("opened");
        for sector in 0..sectors {
            let _content = read(&*device, sector);
        }
        moved(&*device)
    };
    assert_eq!(moved_by_loads(true), 0);
    assert!(moved_by_loads(false) > 0, "there was nothing to do");
}

#[test]
fn what_makes_no_drive_is_refused_in_one_sentence_and_leaves_nothing() {
    let directory = TempDir::new_in("/dev/shm").expect("a directory");
    let path = directory.path().join("disk.img");
    let refuse = |profile: &str, model: ModelOptions, said: &str| {
        let error = create_with(&path, &options(profile), &model).expect_err("refused").to_string();
        assert!(error.contains(said) && !error.contains('\n'), "{error}");
        assert!(!path.exists());
    };
    let none = ModelOptions::default();
    refuse("bytefs", ModelOptions { write_log_bytes: Some(1 << 30), ..none }, "is larger than the drive, which has 80 MiB");
    refuse("bytefs", ModelOptions { write_log_bytes: Some(0), ..none }, "a write log of 0 B stages nothing");
    refuse("bytefs", ModelOptions { write_log_bytes: Some(4100), ..none }, "not a multiple of 4 KiB");
    refuse("bytefs", ModelOptions { channel_count: Some(0), ..none }, "zero channels");
    refuse("bytefs", ModelOptions { channel_count: Some(1 << 20), ..none }, "planes");
    refuse("bytefs", ModelOptions { over_provisioning_percent: Some(0), ..none }, "0 % of over-provisioning");
    refuse("bytefs", ModelOptions { over_provisioning_percent: Some(1000), ..none }, "1000 % of over-provisioning");
    refuse("bytefs", ModelOptions { cache_bytes: Some(1 << 20), ..none }, "has a write log and no page cache");
    refuse("bytefs-dual", ModelOptions { write_log_bytes: Some(1 << 20), ..none }, "has a page cache and no write log");
    refuse("bytefs-dual", ModelOptions { cache_bytes: Some(1 << 40), ..none }, "larger than the drive");
    refuse("off", ModelOptions { channel_count: Some(4), ..none }, "profile 'off' has no firmware");
    create(&path, &options("off")).expect("created");
    let error = statistics(&path).expect_err("nothing counted").to_string();
    assert!(error.contains("profile 'off' has no firmware"), "{error}");
}

#[test]
fn what_was_chosen_is_in_the_header() {
    let (_directory, path) = image_with(
        "bytefs",
        &ModelOptions {
            write_log_bytes: Some(1 << 20),
            flash_read_ns: Some(3_000),
            channel_count: Some(4),
            over_provisioning_percent: Some(25),
            garbage_collection: Some(GarbageCollection::CostBenefit),
            ..ModelOptions::default()
        },
    );
    let model = info(&path).expect("an image").firmware.expect("with firmware");
    assert!(matches!(model.staging, Staging::WriteLog { log_bytes: 1_048_576, .. }));
    assert_eq!((model.channel_count, model.over_provisioning_percent), (4, 25));
    assert_eq!(model.garbage_collection, GarbageCollection::CostBenefit);
    let timing = model.timing.expect("timed");
    assert_eq!((timing.flash_read_ns, timing.flash_program_ns), (3_000, 60_000));
}

/// A header of one drive before the DRAM and flash of another.
#[test]
fn an_image_with_another_geometry_is_refused() {
    let (_directory, path) = image("bytefs");
    let others = [
        ("bytefs", ModelOptions { write_log_bytes: Some(1 << 20), ..chosen() }, "write log"),
        ("bytefs", ModelOptions { channel_count: Some(4), ..chosen() }, ""),
        ("bytefs", ModelOptions { over_provisioning_percent: Some(50), ..chosen() }, "was cut short"),
        ("bytefs-dual", chosen(), ""),
    ];
    for (profile, model, said) in others {
        let (_other_directory, other) = image_with(profile, &model);
        let mut page = vec![0; 4096];
        File::open(&other).and_then(|file| file.read_exact_at(&mut page, 0)).expect("read");
        let mut own = vec![0; 4096];
        let file = FileOptions::new().read(true).write(true).open(&path).expect("opened");
        file.read_exact_at(&mut own, 0).expect("read");
        file.write_all_at(&page, 0).expect("written");
        if profile == "bytefs" {
            let reason = refusal(&path);
            assert!(reason.contains(said) && !reason.contains('\n'), "{reason}");
        } else {
            // A log where the cache's table should be: refused, or an empty cache where the words happen to be zeros.
            let _ = open_image(&path, &OpenOptions::default());
        }
        file.write_all_at(&own, 0).expect("written");
        open(&path);
    }
    // A plain image knows nothing of firmware.
    let (_plain_directory, plain) = image("romefs-a");
    assert!(info(&plain).expect("an image").firmware.is_none());
    FileOptions::new().write(true).open(&path).and_then(|file| file.set_len(100 << 20)).expect("cut");
    assert!(refusal(&path).contains("was cut short"));
}

/// The whole drive is overwritten several times, so that the log is cleaned and blocks are collected.
#[test]
fn a_full_drive_is_overwritten_again_and_again() {
    for profile in ["bytefs", "bytefs-dual"] {
        let is_log = profile == "bytefs";
        let staged = Some(1 << 20);
        let (write_log_bytes, cache_bytes) = if is_log { (staged, None) } else { (None, staged) };
        let (_directory, path) = image_with(profile, &ModelOptions { write_log_bytes, cache_bytes, ..chosen() });
        let device = open(&path);
        let (sectors, mut state) = (BLOCK_BYTES / 4096, 1_u64);
        let mut content = vec![(0_u8, 0_u8); sectors as usize];
        for round in 1..=3_u8 {
            for _ in 0..sectors {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let sector = (state >> 33) % sectors;
                let entry = &mut content[sector as usize];
                if state >> 63 == 0 {
                    write(&*device, sector, &[round; 4096]);
                    *entry = (round, round);
                } else {
                    let at = device.description().line_of_sector(Sector::new(sector)).expect("overlapping").offset_bytes();
                    device.byte_path().store(at + 64, &[round + 10; 64]).expect("stored");
                    entry.1 = round + 10;
                }
            }
        }
        let counts = device.counts().expect("counted");
        assert!(counts.flash.blocks_erased > 0 && counts.flash.pages_moved > 0, "{counts:?}");
        if is_log {
            assert!(counts.firmware.log_cleanings > 0 && counts.firmware.log_invalidations > 0, "{counts:?}");
        } else {
            assert!(counts.firmware.cache_misses > 0 && counts.firmware.cache_evictions > 0, "{counts:?}");
        }
        drop(device);
        let found = statistics(&path).expect("counted");
        assert_eq!(found.lifetime.flash, counts.flash);
        assert!(found.wear.erasures_max > 0 && found.write_amplification() >= Some(0.9), "{found:?}");
        let device = open(&path);
        for (sector, &(whole, line)) in content.iter().enumerate() {
            let bytes = read(&*device, sector as u64);
            let mut expected = [whole; 4096];
            expected[64..128].fill(line);
            assert!(bytes == expected, "{profile}: sector {sector}: {} and {}", bytes[0], bytes[64]);
        }
        drop(device);
        assert!(statistics(&path).expect("counted").lifetime.flash.pages_read > counts.flash.pages_read, "they add up over openings");
    }
}

#[test]
fn the_drive_keeps_what_was_used_last() {
    for replacement in [Replacement::Lru, Replacement::Clock] {
        let model = ModelOptions { cache_bytes: Some(3 * 4096), cache_management: Some(CacheManagement::Drive(replacement)), ..chosen() };
        let (_directory, path) = image_with("bytefs-dual", &model);
        let device = open(&path);
        assert!(device.cache_moves().is_none() && device.description().cache_bytes == 0, "the drive's own");
        for page in [0, 1, 2, 0, 0, 3] {
            device.byte_path().store(page * 4096, &[page as u8 + 1; 64]).expect("stored");
        }
        let hits = || device.counts().expect("counted").firmware.cache_hits;
        assert_eq!(hits(), 2, "{replacement:?}");
        assert_eq!(load::<64>(&*device, 0), [1; 64]);
        assert_eq!(hits(), 3, "{replacement:?}: page 0 was used again, so page 1 left");
        assert_eq!(load::<64>(&*device, 4096), [2; 64]);
        assert_eq!(hits(), 3, "{replacement:?}");
        device.counts().expect("counted");
    }
}

#[test]
fn the_smallest_drive_of_each_profile_works() {
    for profile in WITH_FIRMWARE {
        let directory = TempDir::new_in("/dev/shm").expect("a directory");
        let path = directory.path().join("disk.img");
        let smallest = CreateOptions { profile: profile.to_owned(), memory_bytes: 16 << 20, block_bytes: 16 << 20 };
        create(&path, &smallest).expect("created");
        let drive = Drive::new(open(&path));
        let fenced = drive.persist(Structure::Inode, LineAddress::new(1), &[1; 64]).expect("stored");
        drop(fenced);
    }
}
