//! How long a mount after a crash takes to rebuild the maps of many files, and what it needs of host memory: a measurement, not a test of limits.
//!
//!     TANDEMFS_FILES=3500000 cargo test --profile soak -p tandemfs-fs --test rebuild_speed -- --ignored --nocapture
//!
//! A memory zone of 16 GiB in /dev/shm of which the files take what they need; each file has a name in one of 1000 directories, and 100 bytes.

use std::sync::Arc;
use std::time::Instant;

use tandemfs_device::{Device, Drive};
use tandemfs_emulator::{DeviceOptions, open_device};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{FileSystem, FormatOptions, MountOptions, NewInode, WriteOptions, make_file_system};

const MEMORY: u64 = 16 << 30;
const DIRECTORIES: u64 = 1000;
/// Mounts that are measured.
const ROUNDS: u64 = 5;

/// What this process has in memory besides files, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("read");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("there");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

/// Processor time of this process, all threads, in seconds.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("read");
    let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
    let ticks = |field: usize| fields[field].parse::<f64>().expect("a number");
    (ticks(11) + ticks(12)) / 100.0
}

fn create(fs: &FileSystem, parent: InodeNumber, name: &str, kind: u16) -> InodeNumber {
    fs.create(parent, name.as_bytes(), &NewInode { mode: kind | 0o700, uid: 0, gid: 0, rdev: 0, target: b"" }).expect("made").inode
}

#[test]
#[ignore = "a measurement"]
fn a_mount_after_a_crash_with_many_files() {
    let files: u64 = std::env::var("TANDEMFS_FILES").ok().and_then(|files| files.parse().ok()).unwrap_or(1_000_000);
    let path = format!("/dev/shm/tandemfs-rebuild-speed-{}", std::process::id());
    std::fs::File::create_new(&path).and_then(|file| file.set_len(MEMORY)).expect("room in /dev/shm");
    let device = open_device(&format!("memory={path}"), &DeviceOptions::default());
    std::fs::remove_file(&path).expect("removed; the device keeps it");
    let device: Arc<dyn Device> = device.expect("opens");
    let mount = |memory_bytes| {
        let options = MountOptions { memory_bytes, ..MountOptions::default() };
        FileSystem::mount(Drive::new(device.clone()), &options).expect("mounts")
    };
    make_file_system(&Drive::new(device.clone()), &FormatOptions::default()).expect("mkfs");
    let fs = mount(256 << 20);
    let directories: Vec<_> =
        (0..DIRECTORIES).map(|number| create(&fs, InodeNumber::ROOT, &format!("d{number}"), file_type::DIRECTORY)).collect();
    for number in 0..files {
        let file = create(&fs, directories[(number % DIRECTORIES) as usize], &format!("file{number}"), file_type::REGULAR);
        fs.write(file, 0, &[number as u8; 100], WriteOptions::default()).expect("written");
        if number % 100_000 == 0 {
            fs.checkpoint().expect("home");
        }
    }
    fs.checkpoint().expect("home");
    println!("{files} files take {} MiB of the memory zone", (MEMORY - fs.space().memory.free_bytes) >> 20);
    let free = fs.space();
    drop(fs); // a crash: nothing is saved
    let before = resident();
    for memory_bytes in [64 << 20, 256 << 20] {
        let mut times = Vec::new();
        let mut most = 0;
        for _ in 0..ROUNDS {
            let (start, processor) = (Instant::now(), processor_seconds());
            let fs = mount(memory_bytes);
            times.push((start.elapsed(), processor_seconds() - processor));
            most = most.max(resident().saturating_sub(before));
            assert!(!fs.recovery().clean && fs.space().inodes_used == free.inodes_used);
            assert_eq!(fs.space().memory.free_bytes, free.memory.free_bytes, "the rebuilt maps are those of the mount before");
            drop(fs);
        }
        times.sort_unstable_by_key(|(time, _)| *time);
        let mut processor: Vec<f64> = times.iter().map(|(_, seconds)| *seconds).collect();
        processor.sort_unstable_by(f64::total_cmp);
        println!(
            "memory={} MiB: {:.3} to {:.3} s, median {:.3} s; processor time {:.2} to {:.2} s; {} MiB resident",
            memory_bytes >> 20,
            times[0].0.as_secs_f64(),
            times[times.len() - 1].0.as_secs_f64(),
            times[times.len() / 2].0.as_secs_f64(),
            processor[0],
            processor[processor.len() - 1],
            most >> 20
        );
    }
}
