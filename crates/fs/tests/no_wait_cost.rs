//! What `no_wait` costs where nothing has to be waited for: an operation inside of it beside the same operation without.
//!
//!     cargo test --locked -p tandemfs-fs --test no_wait_cost -- --ignored --nocapture
//!
//! Both take turns in short rounds, so that what else the machine does meets both. Prints the medians of the rounds.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use tandemfs_device::Drive;
use tandemfs_emulator::{CreateOptions, ImageDevice, OpenOptions};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{Error, FileSystem, FormatOptions, MountOptions, NewInode, WriteOptions, make_file_system, no_wait};

const ROUNDS: usize = 301;
const FILE_BYTES: u64 = 1 << 20;
const WRITE_BYTES: usize = 4096;

/// On a drive without time of its own.
fn mounted() -> FileSystem {
    let path = PathBuf::from(format!("/dev/shm/tandemfs-no-wait-cost-{}", std::process::id()));
    let options = CreateOptions { profile: "romefs-a".into(), memory_bytes: 64 << 20, block_bytes: 64 << 20 };
    tandemfs_emulator::create(&path, &options).expect("an image");
    let opened = ImageDevice::open(&path, &OpenOptions { timing: false, ..OpenOptions::default() });
    std::fs::remove_file(&path).expect("removed; the device keeps it");
    let device = Arc::new(opened.expect("opens"));
    device.populate().expect("populated");
    let drive = Drive::new(device);
    make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
    FileSystem::mount(drive, &MountOptions::default()).expect("mounts")
}

fn ns_each(calls: u64, mut call: impl FnMut(u64)) -> f64 {
    let start = Instant::now();
    (0..calls).for_each(&mut call);
    start.elapsed().as_nanos() as f64 / calls as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Medians of both, and their quotient. A quotient for each round would show which of the two came first after the checkpoint.
fn compare(fs: &FileSystem, what: &str, calls: u64, waiting: impl Fn(u64), trying: impl Fn(u64)) {
    let (mut waited, mut tried) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let (first, second);
        if round % 2 == 0 {
            (first, second) = (ns_each(calls, &waiting), ns_each(calls, &trying));
        } else {
            let tried = ns_each(calls, &trying);
            (first, second) = (ns_each(calls, &waiting), tried);
        }
        waited.push(first);
        tried.push(second);
        fs.checkpoint().expect("done"); // so that the rings have room
    }
    let (waited, tried) = (median(waited), median(tried));
    println!("{what}: {waited:.1} ns, inside of no_wait {tried:.1} ns, quotient {:.3}", tried / waited);
}

#[test]
#[ignore = "a measurement, which a quiet machine makes exact"]
fn cost() {
    let fs = mounted();
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    let file = fs.create(InodeNumber::ROOT, b"file", &new).expect("made").inode;
    let bytes = [7; WRITE_BYTES];
    let write = |index: u64| {
        let offset = index.wrapping_mul(0x9e37_79b9) % (FILE_BYTES / WRITE_BYTES as u64) * WRITE_BYTES as u64;
        fs.write(file, offset, &bytes, WriteOptions::default()).map(drop)
    };
    (0..1000).for_each(|index| write(index).expect("written"));
    let get = |_| fs.attributes(file).map(drop);
    compare(&fs, "getattr", 10_000, |index| get(index).expect("there"), |index| no_wait(|| get(index)).expect("there"));
    let nothing = |_: u64| Ok::<(), Error>(());
    compare(&fs, "nothing", 10_000, |index| nothing(index).expect("done"), |index| no_wait(|| nothing(index)).expect("done"));
    compare(&fs, "4 KiB overwrite", 500, |index| write(index).expect("written"), |index| no_wait(|| write(index)).expect("written"));
}
