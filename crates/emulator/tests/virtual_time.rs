//! The timing model against what it claims: in virtual time, where the host's speed does not matter, latency and bandwidth of each path
//! lie within 5 % of the profile. In real time only lower bounds can be held.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use tandemfs_device::{BlockRequest, Device};
use tandemfs_emulator::{Access, CreateOptions, FirmwareTiming, ModelOptions, OpenOptions, Timing, create_with, info, open_image};
use tandemfs_format::Sector;
use tempfile::TempDir;

const MEMORY_BYTES: u64 = 16 << 20;
const BLOCK_BYTES: u64 = 128 << 20;
/// Sectors that are measured: more than the write buffer holds, so that the first of them are on the flash.
const SECTORS: u64 = 8192;
const MEASURED: u64 = 4096;

fn image(profile: &str, model: &ModelOptions) -> (TempDir, std::path::PathBuf) {
    let directory = TempDir::new_in("/dev/shm").expect("a directory");
    let path = directory.path().join("disk.img");
    let options = CreateOptions { profile: profile.to_owned(), memory_bytes: MEMORY_BYTES, block_bytes: BLOCK_BYTES };
    create_with(&path, &options, model).expect("created");
    (directory, path)
}

fn device(profile: &str) -> (TempDir, Arc<dyn Device>) {
    let (directory, path) = image(profile, &ModelOptions::default());
    let device = open_image(&path, &OpenOptions { virtual_time: true, ..OpenOptions::default() }).expect("opened");
    (directory, device)
}

fn now(device: &dyn Device) -> u64 {
    device.virtual_time().expect("virtual time").now_ns()
}

/// Lets everything come to rest.
fn rest(device: &dyn Device) {
    let time = device.virtual_time().expect("virtual time");
    time.set_now_ns(time.latest_ns() + 1_000_000_000);
}

#[track_caller]
fn close(found: u64, claimed: u64, what: &str) {
    let apart = found.abs_diff(claimed) as f64 / claimed as f64;
    assert!(apart <= 0.05, "{what}: {found} found, {claimed} claimed");
}

/// Mean time of a batch of `depth` requests of one size, one batch after another.
fn batches(device: &dyn Device, is_read: bool, size: usize, depth: usize) -> u64 {
    let mut buffers = vec![vec![0x5a; size]; depth];
    let batch_sectors = (size / 4096 * depth) as u64;
    let count = (MEASURED / batch_sectors).clamp(1, 64);
    let begun = now(device);
    for batch in 0..count {
        let mut requests: Vec<BlockRequest<'_>> = buffers
            .iter_mut()
            .enumerate()
            .map(|(index, buffer)| {
                // What is written is elsewhere, so that what is read stays on the flash.
                let first = if is_read { 0 } else { SECTORS };
                let sector = Sector::new(first + batch * batch_sectors + (index * size / 4096) as u64);
                if is_read {
                    BlockRequest::Read { sector, buffer: buffer.into() }
                } else {
                    BlockRequest::Write { sector, buffer: buffer.as_slice().into() }
                }
            })
            .collect();
        device.block_path().transfer(&mut requests, &mut || ()).expect("done");
        if !is_read {
            rest_between(device, batch);
        }
    }
    (now(device) - begun - if is_read { 0 } else { count * BETWEEN_NS }) / count
}

/// Between batches of writes the dies may finish, so that what is measured is the way into the buffer.
const BETWEEN_NS: u64 = 100_000_000;

fn rest_between(device: &dyn Device, _batch: u64) {
    let time = device.virtual_time().expect("virtual time");
    time.set_now_ns(time.now_ns() + BETWEEN_NS);
}

fn fill(device: &dyn Device) {
    let buffer = vec![1; 64 << 10];
    for sector in (0..SECTORS).step_by(16) {
        let mut requests = [BlockRequest::Write { sector: Sector::new(sector), buffer: (&buffer).into() }];
        device.block_path().transfer(&mut requests, &mut || ()).expect("written");
    }
    rest(device);
}

fn model(profile: &str) -> (FirmwareTiming, u64) {
    let model = tandemfs_emulator::profile(profile).and_then(|profile| profile.firmware).expect("firmware");
    (model.timing.expect("timed"), u64::from(model.die_count()))
}

#[test]
fn block_requests_take_what_the_profile_claims() {
    for profile in ["bytefs", "bytefs-cxl", "bytefs-dual"] {
        let (_directory, device) = device(profile);
        let (timing, dies) = model(profile);
        fill(&*device);
        for size in [4096, 16 << 10, 64 << 10] {
            for depth in [1, 2, 4, 8, 16, 32, 64] {
                for (is_read, access) in [(true, Access::Read), (false, Access::Write)] {
                    rest(&*device);
                    let found = batches(&*device, is_read, size, depth);
                    let claim = timing.claim(access, size as u64, depth as u64, dies);
                    close(found, claim.latency_ns, &format!("{profile}: {access:?} of {size} B, {depth} at a time"));
                }
            }
        }
    }
}

#[test]
fn lines_take_what_the_profile_claims() {
    for profile in ["bytefs", "bytefs-cxl", "bytefs-dual"] {
        let (_directory, device) = device(profile);
        let (timing, dies) = model(profile);
        let bytes = device.byte_path();
        for size in [64, 128, 512, 4096_usize] {
            let buffer = vec![3; size];
            let begun = now(&*device);
            for index in 0..256 {
                bytes.store(index * 4096, &buffer).expect("stored");
            }
            let stored = (now(&*device) - begun) / 256;
            // In the cache the first store of a page may have to wait for it; what is claimed is the way to the DRAM.
            let (mut into, begun) = (vec![0; size], now(&*device));
            for index in 0..256 {
                bytes.load(index * 4096, &mut into).expect("loaded");
            }
            let loaded = (now(&*device) - begun) / 256;
            let claim = |access| timing.claim(access, size as u64, 1, dies).latency_ns;
            close(stored, claim(Access::Store), &format!("{profile}: a store of {size} B"));
            close(loaded, claim(Access::Load), &format!("{profile}: a load of {size} B"));
        }
        let begun = now(&*device);
        bytes.fence();
        assert_eq!(now(&*device) - begun, u64::from(timing.verify_read_ns), "{profile}");
    }
}

#[test]
fn a_line_that_is_on_the_flash_waits_for_it() {
    let (_directory, device) = device("bytefs");
    let (timing, _) = model("bytefs");
    fill(&*device);
    let first = device.description().line_of_sector(Sector::new(0)).expect("overlapping").offset_bytes();
    let begun = now(&*device);
    for page in 0..1000 {
        device.byte_path().load(first + page * 4096, &mut [0; 64]).expect("loaded");
    }
    let expected = u64::from(timing.flash_read_ns + timing.line_read_ns);
    close((now(&*device) - begun) / 1000, expected, "a load from the flash");
}

#[test]
fn a_transaction_is_its_lines_a_fence_and_a_command() {
    let (_directory, device) = device("bytefs");
    let (timing, _) = model("bytefs");
    let firmware = device.firmware().expect("transactions");
    let begun = now(&*device);
    for number in 1..=1000 {
        let transaction = tandemfs_device::TxId::new(number).expect("not zero");
        firmware.store_tagged(transaction, u64::from(number) * 128, &[1; 128]).expect("stored");
        device.byte_path().fence();
        firmware.commit(transaction).expect("committed");
    }
    let expected = u64::from(2 * timing.line_write_ns + timing.verify_read_ns + timing.command_ns);
    close((now(&*device) - begun) / 1000, expected, "a transaction");
}

/// Threads that begin together share the link, the dies and nothing else.
#[test]
fn threads_share_what_the_drive_has_once() {
    for (profile, threads) in [("bytefs", 4_u64), ("bytefs-cxl", 4), ("bytefs-cxl", 32)] {
        let (_directory, device) = device(profile);
        let (timing, dies) = model(profile);
        let start = now(&*device);
        // In step, as threads are that really wait: one that runs ahead is served first.
        let barrier = Barrier::new(threads as usize);
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (device, barrier) = (&device, &barrier);
                scope.spawn(move || {
                    device.virtual_time().expect("virtual time").set_now_ns(start);
                    for index in 0..200 {
                        barrier.wait();
                        device.byte_path().store((thread * 200 + index) * 1024, &[1; 1024]).expect("stored");
                    }
                });
            }
        });
        let found = device.virtual_time().expect("virtual time").latest_ns() - start;
        let claim = timing.claim(Access::Store, 1024, threads, dies);
        close(found, 200 * claim.latency_ns, &format!("{profile}: {threads} threads"));
    }
}

/// Dies that cannot follow make their writers wait: with flash that is slow, writing for long is bound by it.
#[test]
fn writing_for_long_is_bound_by_the_dies() {
    let model = ModelOptions { flash_program_ns: Some(800_000), ..ModelOptions::default() };
    let (_directory, path) = image("bytefs", &model);
    let device = open_image(&path, &OpenOptions { virtual_time: true, ..OpenOptions::default() }).expect("opened");
    let model = info(&path).expect("an image").firmware.expect("firmware");
    let rate = model.timing.expect("timed").sustained_write_bytes_per_second(model.die_count().into());
    let buffer = vec![1; 64 << 10];
    let mut begun = 0;
    for sector in (0..BLOCK_BYTES / 4096).step_by(16) {
        // The first fill the buffers: of the drive, and of the model.
        if sector == 3072 {
            begun = now(&*device);
        }
        let mut requests = [BlockRequest::Write { sector: Sector::new(sector), buffer: (&buffer).into() }];
        device.block_path().transfer(&mut requests, &mut || ()).expect("written");
    }
    let bytes = BLOCK_BYTES - 3072 * 4096;
    close(bytes * 1_000_000_000 / (now(&*device) - begun), rate, "bytes a second");
}

/// Lines that come faster than the dies can clean the log wait for it: each of them costs its page a read and a program.
#[test]
fn storing_for_long_is_bound_by_the_cleaning_of_the_log() {
    let model = ModelOptions { write_log_bytes: Some(1 << 20), over_provisioning_percent: Some(100), ..ModelOptions::default() };
    let (_directory, path) = image("bytefs", &model);
    let device = open_image(&path, &OpenOptions { virtual_time: true, ..OpenOptions::default() }).expect("opened");
    let (pages, buffer) = (24 << 10, vec![1; 64 << 10]);
    for sector in (0..pages).step_by(16) {
        let mut requests = [BlockRequest::Write { sector: Sector::new(sector), buffer: (&buffer).into() }];
        device.block_path().transfer(&mut requests, &mut || ()).expect("written");
    }
    rest(&*device);
    let first = device.description().line_of_sector(Sector::new(0)).expect("overlapping").offset_bytes();
    let store = |count: u64| {
        let begun = now(&*device);
        for number in 0..count {
            device.byte_path().store(first + number % pages * 4096, &[2; 64]).expect("stored");
        }
        (now(&*device) - begun) / count
    };
    assert_eq!(store(8_000), 600, "there is room in the log");
    store(24_000);
    let (timing, dies) = self::model("bytefs");
    let least = u64::from(timing.flash_read_ns + timing.flash_program_ns) / dies;
    let found = store(48_000);
    assert!((least * 9 / 10..least * 2).contains(&found), "{found} ns a line, the dies take {least}");
}

#[test]
fn drives_without_firmware_take_what_they_claim() {
    for profile in ["romefs-a", "romefs-b", "cmm-h"] {
        let (_directory, device) = device(profile);
        let timing: Timing = tandemfs_emulator::profile(profile).and_then(|profile| profile.timing).expect("timed");
        for size in [4096, 64 << 10] {
            for depth in [1, 8, 64] {
                for (is_read, access) in [(true, Access::Read), (false, Access::Write)] {
                    rest(&*device);
                    let found = batches(&*device, is_read, size, depth);
                    let claim = timing.claim(access, size as u64, depth as u64);
                    close(found, claim.latency_ns, &format!("{profile}: {access:?} of {size} B, {depth} at a time"));
                }
            }
        }
        for size in [64, 4096_usize] {
            rest(&*device);
            let begun = now(&*device);
            device.byte_path().store(0, &vec![1; size]).expect("stored");
            close(now(&*device) - begun, timing.claim(Access::Store, size as u64, 1).latency_ns, profile);
        }
    }
}

#[test]
fn loads_of_a_cmm_h_lie_as_they_were_measured() {
    let (_directory, device) = device("cmm-h");
    let mut latencies: Vec<u64> = (0..200_000)
        .map(|_| {
            rest_a_little(&*device);
            let begun = now(&*device);
            device.byte_path().load(0, &mut [0; 64]).expect("loaded");
            now(&*device) - begun
        })
        .collect();
    latencies.sort_unstable();
    let at = |share: f64| latencies[(latencies.len() as f64 * share) as usize];
    close(at(0.5), 771, "the median");
    close(at(0.948), 980, "95 %");
    assert!((28_000..=37_000).contains(&at(0.99)), "99 %: {}", at(0.99));
    assert!((57_000..=66_000).contains(&at(0.999)), "99.9 %: {}", at(0.999));
    assert!(latencies.last().is_some_and(|&latency| (200_000..=400_000).contains(&latency)));
    let above_5_us = latencies.iter().filter(|&&latency| latency > 5_000).count() as f64 / latencies.len() as f64;
    assert!((0.035..0.045).contains(&above_5_us), "{above_5_us}");
}

fn rest_a_little(device: &dyn Device) {
    let time = device.virtual_time().expect("virtual time");
    time.set_now_ns(time.now_ns() + 1000);
}

#[test]
fn an_hour_passes_in_seconds() {
    let (_directory, device) = device("bytefs");
    let begun = Instant::now();
    let buffer = vec![1; 4096];
    while now(&*device) < 3_600_000_000_000 {
        for sector in 0..64 {
            let mut requests = [BlockRequest::Write { sector: Sector::new(sector), buffer: (&buffer).into() }];
            device.block_path().transfer(&mut requests, &mut || ()).expect("written");
        }
        rest(&*device);
    }
    // Who really waited would need the hour.
    assert!(begun.elapsed() < Duration::from_secs(600));
}

#[test]
fn real_waits_are_no_shorter_than_claimed() {
    let (_directory, path) = image("bytefs", &ModelOptions::default());
    let device = open_image(&path, &OpenOptions::default()).expect("opened");
    assert!(device.virtual_time().is_none());
    let at_least = |nanoseconds: u64, what: &str, access: &mut dyn FnMut()| {
        let begun = Instant::now();
        access();
        assert!(begun.elapsed() >= Duration::from_nanos(nanoseconds), "{what} took {:?}", begun.elapsed());
    };
    at_least(600 * 8, "a store of 512 B", &mut || device.byte_path().store(0, &[1; 512]).expect("stored"));
    at_least(4_800 * 2, "a load of 128 B", &mut || device.byte_path().load(0, &mut [0; 128]).expect("loaded"));
    at_least(4_800, "a fence", &mut || device.byte_path().fence());
    let buffer = [1; 4096];
    at_least(4_800 + 1_638, "a block write", &mut || {
        let mut requests = [BlockRequest::Write { sector: Sector::new(0), buffer: (&buffer).into() }];
        device.block_path().transfer(&mut requests, &mut || ()).expect("written");
    });
}
