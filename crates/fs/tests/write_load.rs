//! A write load far larger than the memory zone: it does not stall, nothing is lost, and metadata keeps its room.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tandemfs_crash::{MemoryDevice, check_device, comes_within};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_emulator::{CreateOptions, ImageDevice, OpenOptions};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{Error, FileSystem, FormatOptions, MountOptions, NewInode, WriteBackPolicy, WriteOptions, make_file_system};

fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn create(fs: &FileSystem, name: &str) -> Result<InodeNumber, Error> {
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    fs.create(InodeNumber::ROOT, name.as_bytes(), &new).map(|made| made.inode)
}

fn percent_free(fs: &FileSystem) -> u64 {
    let zone = fs.space().memory;
    zone.free_bytes * 100 / (zone.free_bytes + zone.data_log_bytes).max(1)
}

/// The expected content of the file: every byte of a write is the write's number.
struct Shadow(Vec<u8>);

impl Shadow {
    fn write(&mut self, fs: &FileSystem, file: InodeNumber, offset: usize, bytes: &[u8]) {
        let done = fs.write(file, offset as u64, bytes, WriteOptions::default()).expect("never without space");
        assert_eq!(done, bytes.len());
        self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn compare(&self, fs: &FileSystem, file: InodeNumber) {
        let mut bytes = vec![0; 1 << 20];
        for (at, expected) in (0..).step_by(bytes.len()).zip(self.0.chunks(bytes.len())) {
            let done = fs.read(file, at, &mut bytes).expect("reads");
            assert!(bytes[..done] == *expected, "MiB {} differs", at >> 20);
        }
    }
}

/// Ten times the memory zone in small random writes, with a background thread. No write is refused, metadata keeps growing, and all data is
/// there at the end, also for a mount after a crash.
fn load(memory_bytes: u64, policy: WriteBackPolicy, seed: u64) {
    const FILE_BYTES: usize = 24 << 20;
    const ROUNDS: u64 = 40;
    let device = MemoryDevice::new(memory_bytes, 4 * FILE_BYTES as u64, PersistenceDomain::Gpf);
    let drive = Drive::new(Arc::new(device.clone()));
    make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
    let options = MountOptions { memory_bytes: 8 << 20, write_back: policy, ..MountOptions::default() };
    let fs = Arc::new(FileSystem::mount(drive, &options).expect("mounts"));
    fs.start_background().expect("a thread");
    let file = create(&fs, "file").expect("made");
    let mut shadow = Shadow(vec![0; FILE_BYTES]);
    for at in (0..FILE_BYTES).step_by(1 << 20) {
        shadow.write(&fs, file, at, &vec![1; 1 << 20]);
    }
    let mut random = seed;
    let (mut written, mut made) = (0, 0);
    let mut lowest_inodes = u64::MAX;
    for round in 0..ROUNDS {
        while written < 10 * memory_bytes * (round + 1) / ROUNDS {
            let length = if next(&mut random).is_multiple_of(8) { 64 } else { 4096 };
            let at = next(&mut random) as usize % (FILE_BYTES - length);
            shadow.write(&fs, file, at, &vec![next(&mut random) as u8; length]);
            written += length as u64;
        }
        for _ in 0..450 {
            create(&fs, &format!("small {made}")).expect("metadata has room");
            made += 1;
        }
        lowest_inodes = lowest_inodes.min(fs.space().inodes_free);
    }
    let (space, work) = (fs.space(), fs.statistics().work);
    println!("{memory_bytes} B, {policy:?}, seed {seed}: {space:?}, room for {lowest_inodes} inodes at least; {work:?}");
    assert!(work.write_back_batches > 0 && work.write_back_bytes > memory_bytes);
    shadow.compare(&fs, file);
    // Write-back that finishes after the load.
    assert!(comes_within(Duration::from_secs(60), || percent_free(&fs) >= 10), "write-back stays behind: {:?}", fs.space());
    let crashed = FileSystem::mount(Drive::new(Arc::new(device.fork())), &MountOptions::default()).expect("recovers");
    shadow.compare(&crashed, crashed.lookup(InodeNumber::ROOT, b"file").expect("there").inode);
    drop(crashed);
    fs.unmount().expect("unmounts");
    check_device(&device, false).unwrap_or_else(|findings| panic!("{findings}"));
}

#[test]
fn a_load_of_ten_times_the_memory_zone_is_never_refused() {
    load(16 << 20, WriteBackPolicy::MostSpace, 1);
    load(16 << 20, WriteBackPolicy::Oldest, 2);
    load(24 << 20, WriteBackPolicy::Coldest, 3);
}

/// Data logs have every unit that they may have; then metadata grows by more than its remaining units.
#[test]
fn metadata_gets_units_of_the_data_area() {
    let device = MemoryDevice::new(16 << 20, 128 << 20, PersistenceDomain::Gpf);
    let drive = Drive::new(Arc::new(device.clone()));
    make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
    let fs = Arc::new(FileSystem::mount(drive, &MountOptions { write_back_percent: 1, ..MountOptions::default() }).expect("mounts"));
    let file = create(&fs, "file").expect("made");
    for log in 0.. {
        if percent_free(&fs) < 8 {
            break;
        }
        fs.write(file, log * 70_000, &[5; 4000], WriteOptions::default()).expect("room");
    }
    let logs = fs.space().memory.data_log_bytes;
    assert!(logs > 3 << 20 && fs.space().inodes_free < 40_000, "{:?}", fs.space());
    fs.start_background().expect("a thread");
    let before = fs.space().inodes_used;
    let mut waited = 0;
    // Creates inodes for two units more, where one unit was left.
    while fs.space().inodes_used < before + 40_000 {
        match create(&fs, &format!("small {}", fs.space().inodes_used)) {
            Ok(_) => waited = 0,
            Err(Error::NoSpace { .. }) if waited < 2000 => {
                waited += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(error) => panic!("{error} with {:?}", fs.space()),
        }
    }
    assert!(fs.space().memory.data_log_bytes < logs / 4, "{:?}", fs.space());
    let mut bytes = [0; 4000];
    for log in [0, 7, logs / 4096 - 1] {
        fs.read(file, log * 70_000, &mut bytes).expect("reads");
        assert_eq!(bytes, [5; 4000], "{log}");
    }
    fs.unmount().expect("unmounts");
    check_device(&device, false).unwrap_or_else(|findings| panic!("{findings}"));
}

/// Random unaligned writes of 4 KiB on romefs-a with its timing: prints throughput over time.
/// `cargo test --release -p tandemfs-fs --test write_load -- --ignored --nocapture`; RATIO=5 ZONE_MIB=64 THREADS=1 change it.
#[test]
#[ignore = "a measurement: a minute, and a quiet machine"]
fn throughput_over_time() {
    let number = |name: &str, default: u64| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (ratio, zone_bytes, threads) = (number("RATIO", 5), number("ZONE_MIB", 64) << 20, number("THREADS", 1));
    let policy = match std::env::var("POLICY").as_deref() {
        Ok("oldest") => WriteBackPolicy::Oldest,
        Ok("coldest") => WriteBackPolicy::Coldest,
        _ => WriteBackPolicy::MostSpace,
    };
    let path = PathBuf::from(format!("/dev/shm/tandemfs-write-load-{}", std::process::id()));
    let file_bytes = ratio * zone_bytes;
    let profile = "romefs-a".to_owned();
    tandemfs_emulator::create(&path, &CreateOptions { profile, memory_bytes: zone_bytes, block_bytes: file_bytes * 2 }).expect("an image");
    let device = Arc::new(ImageDevice::open(&path, &OpenOptions::default()).expect("opens"));
    device.populate().expect("populated");
    std::fs::remove_file(&path).expect("removed; the device keeps it");
    let drive = Drive::new(device);
    make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
    let fs = Arc::new(FileSystem::mount(drive, &MountOptions { write_back: policy, ..MountOptions::default() }).expect("mounts"));
    fs.start_background().expect("a thread");
    let file = create(&fs, "file").expect("made");
    let data = vec![7; 1 << 20];
    for offset in (0..file_bytes).step_by(1 << 20) {
        fs.write(file, offset, &data, WriteOptions::default()).expect("writes");
    }
    fs.reset_statistics();
    let total = file_bytes;
    let start = Instant::now();
    let step = total / 20 / threads;
    let lines: Vec<Vec<(Duration, u64, u64, Duration)>> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| {
                let (fs, data) = (&fs, &data);
                scope.spawn(move || {
                    let mut seed = 0x9e37_79b9 + thread;
                    let (mut lines, mut done, mut worst) = (Vec::new(), 0, Duration::ZERO);
                    while done < total / threads {
                        let at = next(&mut seed) % (file_bytes - 4096);
                        let began = Instant::now();
                        fs.write(file, at, &data[..4096], WriteOptions::default()).expect("never without space");
                        worst = worst.max(began.elapsed());
                        let before = done / step;
                        done += 4096;
                        if done / step != before {
                            lines.push((start.elapsed(), percent_free(fs), fs.statistics().work.block_write_backs, worst));
                            worst = Duration::ZERO;
                        }
                    }
                    lines
                })
            })
            .collect();
        running.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let elapsed = start.elapsed();
    let mut before = Duration::ZERO;
    for (at, free, blocks, worst) in &lines[0] {
        let rate = (step * threads) as f64 / (*at - before).as_secs_f64() / 1e6;
        println!("{:7.3} s  {rate:7.1} MB/s  {free:3} % free  {blocks:7} blocks anew  slowest {worst:?}", at.as_secs_f64());
        before = *at;
    }
    println!(
        "1:{ratio}, {threads} threads, {policy:?}: {:.1} MB/s; {:?}",
        total as f64 / elapsed.as_secs_f64() / 1e6,
        fs.statistics().work
    );
    fs.unmount().expect("unmounts");
}

/// The background thread was slower than creations: they were refused while data logs had units.
#[test]
fn regression_creations_refused_before_units_were_emptied() {
    let device = MemoryDevice::new(16 << 20, 128 << 20, PersistenceDomain::Gpf);
    let drive = Drive::new(Arc::new(device.clone()));
    make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
    let fs = FileSystem::mount(drive, &MountOptions { write_back_percent: 1, ..MountOptions::default() }).expect("mounts");
    let file = create(&fs, "file").expect("made");
    let mut logs = 0;
    while percent_free(&fs) >= 8 {
        fs.write(file, logs * 70_000, &[5; 4000], WriteOptions::default()).expect("room");
        logs += 1;
    }
    // There is no background thread. Creates inodes for two units more, where one unit was left.
    for number in 0..40_000 {
        create(&fs, &format!("small {number}")).unwrap_or_else(|error| panic!("file {number}: {error}, {:?}", fs.space()));
    }
    let mut bytes = [0; 4000];
    for log in 0..logs {
        fs.read(file, log * 70_000, &mut bytes).expect("reads");
        assert_eq!(bytes, [5; 4000]);
    }
    fs.unmount().expect("unmounts");
    check_device(&device, false).unwrap_or_else(|findings| panic!("{findings}"));
}
