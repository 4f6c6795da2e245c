//! How long a mount after a crash takes to rebuild the maps of many files, and what it needs of host memory: a measurement, not a test of limits.
//!
//!     TANDEMFS_FILES=3500000 cargo test --profile soak -p tandemfs-fs --test rebuild_speed -- --ignored --nocapture
//!
//! A memory zone of 16 GiB in /dev/shm of which the files take what they need; each file has a name in one of 1000 directories, and 100 bytes.
//! Each mount that is measured has a process of its own.

use std::process::Command;
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

/// One mount, in a process that has done nothing else, so that what an earlier mount freed is no room for it.
const CHILD: &str = "TANDEMFS_REBUILD_CHILD";

/// Opens the device, mounts it with `memory_bytes` of cache, and prints seconds, seconds of the processor, bytes resident, inodes used, bytes free.
fn measured_mount(path: &str, memory_bytes: u64) {
    let device = open_device(&format!("memory={path}"), &DeviceOptions::default()).expect("opens");
    let (before, start, processor) = (resident(), Instant::now(), processor_seconds());
    let fs = FileSystem::mount(Drive::new(device), &MountOptions { memory_bytes, ..MountOptions::default() }).expect("mounts");
    let (took, processor) = (start.elapsed().as_secs_f64(), processor_seconds() - processor);
    let (space, more) = (fs.space(), resident().saturating_sub(before));
    assert!(!fs.recovery().clean);
    println!("\n{CHILD} {took} {processor} {more} {} {}", space.inodes_used, space.memory.free_bytes);
}

/// What such a process says: times in seconds, bytes resident, and inodes used and bytes free.
fn measured(path: &str, memory_bytes: u64) -> (f64, f64, u64, (u64, u64)) {
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    child.args(["--ignored", "--exact", "--nocapture", "a_mount_after_a_crash_with_many_files"]);
    let output = child.env(CHILD, format!("{memory_bytes} {path}")).output().expect("starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.strip_prefix(CHILD)).unwrap_or_else(|| panic!("{text}{output:?}"));
    let words: Vec<&str> = line.split_whitespace().collect();
    let (seconds, number) =
        (|word: usize| words[word].parse::<f64>().expect("seconds"), |word: usize| words[word].parse::<u64>().expect("a number"));
    (seconds(0), seconds(1), number(2), (number(3), number(4)))
}

/// Removes the device at the end, also after a failure.
struct Removed(String);

impl Drop for Removed {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.0);
    }
}

#[test]
#[ignore = "a measurement"]
fn a_mount_after_a_crash_with_many_files() {
    if let Ok(asked) = std::env::var(CHILD) {
        let (memory_bytes, path) = asked.split_once(' ').expect("two words");
        return measured_mount(path, memory_bytes.parse().expect("a number"));
    }
    let files: u64 = std::env::var("TANDEMFS_FILES").ok().and_then(|files| files.parse().ok()).unwrap_or(1_000_000);
    let path = Removed(format!("/dev/shm/tandemfs-rebuild-speed-{}", std::process::id()));
    std::fs::File::create_new(&path.0).and_then(|file| file.set_len(MEMORY)).expect("room in /dev/shm");
    let device: Arc<dyn Device> = open_device(&format!("memory={}", path.0), &DeviceOptions::default()).expect("opens");
    make_file_system(&Drive::new(device.clone()), &FormatOptions::default()).expect("mkfs");
    let fs = FileSystem::mount(Drive::new(device.clone()), &MountOptions { memory_bytes: 256 << 20, ..MountOptions::default() })
        .expect("mounts");
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
    let expected = (fs.space().inodes_used, fs.space().memory.free_bytes);
    drop(fs); // a crash: nothing is saved
    drop(device);
    for memory_bytes in [64 << 20, 256 << 20] {
        let (mut times, mut processor, mut most) = (Vec::new(), Vec::new(), 0);
        for _ in 0..ROUNDS {
            let (took, seconds, more, found) = measured(&path.0, memory_bytes);
            assert_eq!(found, expected, "the rebuilt maps are those of the mount before");
            times.push(took);
            processor.push(seconds);
            most = most.max(more);
        }
        times.sort_unstable_by(f64::total_cmp);
        processor.sort_unstable_by(f64::total_cmp);
        println!(
            "memory={} MiB: {:.3} to {:.3} s, median {:.3} s; processor time {:.2} to {:.2} s; {:.1} MiB resident",
            memory_bytes >> 20,
            times[0],
            times[times.len() - 1],
            times[times.len() / 2],
            processor[0],
            processor[processor.len() - 1],
            most as f64 / 1_048_576.0
        );
    }
}
