//! Page faults and bandwidth of large mapped files. What this library decides, that huge pages are possible, is a test; how many faults the
//! kernel then takes, and what copies cost, is a measurement:
//!
//!     cargo test --profile soak -p tandemfs-fs --test mapped_faults -- --ignored --nocapture
//!
//! It measures on a tmpfs with `huge=always`, which it mounts if it may, and in the directory TANDEMFS_MAPPED_DIR (default /var/tmp).

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use tandemfs_crash::Random;
use tandemfs_device::Drive;
use tandemfs_emulator::{DeviceOptions, open_device};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{
    AllocateMode, FileMapping, FileSystem, FormatOptions, MountOptions, NewInode, SetAttributes, WriteOptions, make_file_system,
};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const HUGE: u64 = 2 * MIB;
/// One copy of a sequential pass.
const PIECE: usize = MIB as usize;

/// A file system in a file of this directory, which has no name any more.
fn file_system(directory: &Path, memory_bytes: u64) -> FileSystem {
    let path = directory.join(format!("tandemfs-mapped-{}-{memory_bytes}", std::process::id()));
    std::fs::File::create_new(&path).and_then(|file| file.set_len(memory_bytes)).expect("a file");
    let device = open_device(&format!("memory={}", path.display()), &DeviceOptions::default());
    std::fs::remove_file(&path).expect("removed; the device keeps it");
    let drive = Drive::new(device.expect("opens"));
    make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
    FileSystem::mount(drive, &MountOptions::default()).expect("mounts")
}

fn create(fs: &FileSystem, name: &str) -> InodeNumber {
    let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    fs.create(InodeNumber::ROOT, name.as_bytes(), &new).expect("made").inode
}

fn set_size(fs: &FileSystem, file: InodeNumber, size: u64) {
    fs.set_attributes(file, &SetAttributes { size: Some(size), ..SetAttributes::default() }).expect("sized");
}

/// Fills and empties until holes are everywhere: small files come and go, a tenth of them stays.
fn age(fs: &FileSystem, bytes: u64) {
    let mut random = Random::new(5);
    let mut files = Vec::new();
    let mut number = 0;
    for round in 0..3 {
        let mut made = 0;
        while made < bytes {
            let length = 64 * KIB * (1 + random.below(40));
            let name = format!("small-{round}-{number}");
            let file = create(fs, &name);
            number += 1;
            made += length;
            match fs.write(file, 0, &vec![7; length as usize], WriteOptions::default()) {
                Ok(_) => files.push(name),
                Err(_) => break,
            }
        }
        files.retain(|name| {
            let stays = random.one_in(10);
            if !stays {
                fs.unlink(InodeNumber::ROOT, name.as_bytes()).expect("removed");
            }
            stays
        });
    }
}

/// The share of a mapping that huge pages can map, in percent.
fn aligned_percent(mapping: &FileMapping<'_>) -> u64 {
    let huge = |extent: &tandemfs_fs::MappedExtent| {
        let end = (extent.device_offset + extent.bytes) / HUGE * HUGE;
        end.saturating_sub(extent.device_offset.next_multiple_of(HUGE))
    };
    mapping.extents().iter().map(huge).sum::<u64>() * 100 / mapping.length()
}

/// Whether addresses of all whole huge pages of the device agree with it modulo 2 MiB.
fn is_congruent(mapping: &FileMapping<'_>) -> bool {
    let start = mapping.memory().address().expect("mapped").as_ptr() as u64;
    let first = mapping.extents().first().expect("not empty").file_offset;
    let has_huge = |extent: &&tandemfs_fs::MappedExtent| extent.bytes >= 2 * HUGE;
    mapping.extents().iter().filter(has_huge).all(|extent| (start + extent.file_offset - first) % HUGE == extent.device_offset % HUGE)
}

#[test]
fn large_files_are_mapped_where_huge_pages_are_possible() {
    let folder = tempfile::tempdir().expect("a folder");
    let fs = file_system(folder.path(), 128 * MIB);
    age(&fs, 24 * MIB);
    for (name, is_sparse) in [("given", false), ("sparse", true)] {
        let file = create(&fs, name);
        if is_sparse {
            set_size(&fs, file, 16 * MIB);
        } else {
            fs.allocate(file, 0, 16 * MIB, AllocateMode::Allocate { keep_size: false }).expect("given out");
        }
        let mapping = fs.map(file, 0, 16 * MIB, true).expect("mapped");
        assert_eq!(aligned_percent(&mapping), 100, "{name}: {:?}", mapping.extents());
        assert!(is_congruent(&mapping), "{name}");
        drop(mapping);
        // From the middle of an aligned extent on, what is behind it still lies where huge pages can.
        let mapping = fs.map(file, MIB, 14 * MIB, false).expect("mapped");
        assert!(is_congruent(&mapping), "{name}");
    }
    fs.unmount().expect("unmounts");
}

// ---- measurement --------------------------------------------------------------------------------------------------------------------------

/// Page faults of this thread so far.
fn faults() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/stat").expect("of Linux");
    let fields: Vec<&str> = text.rsplit_once(')').expect("a name").1.split_whitespace().collect();
    fields[7].parse::<u64>().expect("a number") + fields[9].parse::<u64>().expect("a number")
}

/// Time and faults of a pass.
fn timed(what: &str, bytes: u64, pass: impl FnOnce()) -> (f64, u64) {
    let (start, before) = (Instant::now(), faults());
    pass();
    let (seconds, faults) = (start.elapsed().as_secs_f64(), faults() - before);
    let rate = bytes as f64 / seconds / 1e9;
    println!("  {what:<34} {faults:>8} faults  {rate:>6.2} GB/s");
    (rate, faults)
}

fn passes(fs: &FileSystem, file: InodeNumber, bytes: u64) -> u64 {
    let mapped = Instant::now();
    let mapping = fs.map(file, 0, bytes, true).expect("mapped");
    println!(
        "  map: {:.3} s, {} extents, {} % of it aligned",
        mapped.elapsed().as_secs_f64(),
        mapping.extents().len(),
        aligned_percent(&mapping)
    );
    let mut buffer = vec![3; PIECE];
    let (_, first) = timed("store, sequential, first", bytes, || {
        (0..bytes).step_by(PIECE).for_each(|at| mapping.store(at, &buffer).expect("stored"));
    });
    timed("store, sequential, again", bytes, || (0..bytes).step_by(PIECE).for_each(|at| mapping.store(at, &buffer).expect("stored")));
    timed("load, sequential", bytes, || {
        (0..bytes).step_by(PIECE).for_each(|at| mapping.load(at, black_box(&mut buffer)).expect("loaded"));
    });
    let mut random = Random::new(9);
    let places: Vec<u64> = (0..bytes / 4096).map(|_| random.below(bytes / 4096) * 4096).collect();
    timed("store 4 KiB, random", bytes, || places.iter().for_each(|at| mapping.store(*at, &buffer[..4096]).expect("stored")));
    timed("load 4 KiB, random", bytes, || places.iter().for_each(|at| mapping.load(*at, black_box(&mut buffer[..4096])).expect("loaded")));
    let unmapped = Instant::now();
    mapping.unmap().expect("unmapped");
    println!("  unmap (checksums): {:.3} s", unmapped.elapsed().as_secs_f64());
    first
}

/// Mounts a tmpfs with huge pages on an empty directory. `None` if that is not allowed.
fn huge_tmpfs(directory: &Path, bytes: u64) -> Option<()> {
    let options = format!("huge=always,size={bytes}");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tandemfs-test"]).arg(directory).output().ok()?;
    mounted.status.success().then_some(())
}

#[test]
#[ignore = "a measurement"]
fn faults_and_bandwidth_of_a_large_file() {
    let bytes = std::env::var("TANDEMFS_MAPPED_MIB").ok().and_then(|text| text.parse().ok()).unwrap_or(1024) * MIB;
    let memory = bytes / 4 * 9;
    let elsewhere = PathBuf::from(std::env::var_os("TANDEMFS_MAPPED_DIR").unwrap_or_else(|| "/var/tmp".into()));
    let folder = tempfile::tempdir().expect("a folder");
    let is_huge = huge_tmpfs(folder.path(), memory + 64 * MIB).is_some();
    for (place, directory) in [("tmpfs with huge=always", folder.path()), ("the directory", &elsewhere)] {
        if place.starts_with("tmpfs") && !is_huge {
            println!("{place}: may not be mounted here");
            continue;
        }
        let fs = file_system(directory, memory);
        if place.starts_with("tmpfs") {
            // The device keeps it, and a test that is killed leaves no mount.
            let gone = Command::new("umount").arg("-l").arg(directory).status().expect("runs");
            assert!(gone.success(), "the tmpfs stays mounted");
        }
        for aged in [false, true] {
            if aged {
                age(&fs, bytes / 2);
            }
            println!("{place}, {}:", if aged { "aged" } else { "new" });
            let file = create(&fs, "large");
            fs.allocate(file, 0, bytes, AllocateMode::Allocate { keep_size: false }).expect("given out");
            let first = passes(&fs, file, bytes);
            // The kernel takes base pages where the host has no huge one left.
            println!("  {first} faults a pass, {} of base pages alone", bytes / 4096);
            fs.unlink(InodeNumber::ROOT, b"large").expect("removed");
            let file = create(&fs, "sparse");
            set_size(&fs, file, bytes);
            let mapping = fs.map(file, 0, bytes, true).expect("mapped");
            timed("touch each page of a sparse file", bytes, || {
                (0..bytes).step_by(4096).for_each(|at| mapping.store_word(at, 1).expect("stored"));
            });
            drop(mapping);
            fs.unlink(InodeNumber::ROOT, b"sparse").expect("removed");
            fs.checkpoint().expect("home");
        }
        let before = faults();
        for pool in 0..bytes / (128 * MIB) {
            let file = create(&fs, &format!("pool-{pool}"));
            fs.allocate(file, 0, 128 * MIB, AllocateMode::Allocate { keep_size: false }).expect("given out");
            let mapping = fs.map(file, 0, 128 * MIB, true).expect("mapped");
            let of_pool = faults();
            (0..128 * MIB).step_by(4096).for_each(|at| mapping.store_word(at, 1).expect("stored"));
            if pool == 0 {
                println!("  pools of 128 MiB: {} faults for the first", faults() - of_pool);
            }
        }
        println!("  pools of 128 MiB: {} faults in all, with their making", faults() - before);
    }
}
