//! Large extents: ranges of many aligned extents that are kept whole while other space serves. The class is of 1 GiB where the processor has
//! such pages; here it is as small as the zones are (WineFS §4).

use std::sync::Arc;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tandemfs_crash::{MemoryDevice, Random, check_device, fill};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{
    AllocateMode, Error, FileMapping, FileSystem, FormatOptions, MountOptions, NewInode, SetAttributes, WriteOptions, make_file_system,
};

const MIB: u64 = 1 << 20;
/// Four units.
const LARGE: u64 = 8 * MIB;

fn device(memory_bytes: u64, block_bytes: u32) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(memory_bytes, 0, PersistenceDomain::Gpf));
    make_file_system(&Drive::new(device.clone()), &FormatOptions { block_bytes, ..FormatOptions::default() }).expect("mkfs");
    device
}

fn mounted(device: &Arc<MemoryDevice>, large_extent_bytes: u64) -> FileSystem {
    let options = MountOptions { large_extent_bytes, ..MountOptions::default() };
    FileSystem::mount(Drive::new(device.clone()), &options).expect("mounts")
}

fn create(fs: &FileSystem, name: &str) -> InodeNumber {
    let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    fs.create(InodeNumber::ROOT, name.as_bytes(), &new).expect("made").inode
}

fn allocate(fs: &FileSystem, file: InodeNumber, bytes: u64) -> Result<(), Error> {
    fs.allocate(file, 0, bytes, AllocateMode::Allocate { keep_size: false })
}

fn unlink(fs: &FileSystem, name: &str) {
    fs.unlink(InodeNumber::ROOT, name.as_bytes()).expect("removed");
}

/// Files come and go at three quarters of the zone: most are small, some are of one or two aligned extents. The thread goes from one CPU to the
/// next, and with it from one pool of space to the next.
fn age(fs: &FileSystem, seed: u64) {
    let mut random = Random::new(seed);
    let most = fs.space().memory.total_bytes / 4 * 3;
    let (mut files, mut used, mut written, mut number) = (Vec::new(), 0, 0, 0);
    let allowed = sched_getaffinity(None).expect("its CPUs");
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    while written < 8 * most {
        let bytes = match random.below(10) {
            0 => 2 * MIB,
            1 => 4 * MIB,
            _ => (1 + random.below(8)) * 64 * 1024,
        };
        while used + bytes > most && !files.is_empty() {
            let (name, bytes): (String, u64) = files.swap_remove(random.below(files.len() as u64) as usize);
            unlink(fs, &name);
            used -= bytes;
        }
        let name = format!("f{number}");
        if number % 8 == 0 {
            let mut one = CpuSet::new();
            one.set(cpus[number / 8 % cpus.len()]);
            sched_setaffinity(None, &one).expect("goes to a CPU");
        }
        number += 1;
        let file = create(fs, &name);
        if allocate(fs, file, bytes).is_err() {
            unlink(fs, &name);
            continue;
        }
        files.push((name, bytes));
        (used, written) = (used + bytes, written + bytes);
    }
}

#[test]
fn ageing_leaves_more_of_them_whole() {
    let left = |large_extent_bytes| {
        let device = device(512 * MIB, 64 << 10);
        let fs = mounted(&device, large_extent_bytes);
        age(&fs, 3);
        let (free, whole) = (fs.space().memory.free_bytes, fs.free_bytes_in_ranges_of(LARGE));
        fs.unmount().expect("unmounts");
        check_device(&device, false).unwrap_or_else(|found| panic!("{found}"));
        // What the maps say after a mount, and after a rebuild, is the same.
        let saved = mounted(&device, large_extent_bytes);
        assert_eq!(saved.free_bytes_in_ranges_of(LARGE), whole);
        drop(saved);
        let rebuilt = mounted(&device, large_extent_bytes);
        assert!(!rebuilt.recovery().clean);
        assert_eq!(rebuilt.free_bytes_in_ranges_of(LARGE), whole);
        whole as f64 / free as f64
    };
    let (with, without) = (left(LARGE), left(0));
    println!("free in whole ranges of 8 MiB: {with:.2} with the class, {without:.2} without");
    assert!(with > 0.25 && with > 1.3 * without, "{with} and {without}");
}

fn read(fs: &FileSystem, file: InodeNumber, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let count = fs.read(file, 0, &mut bytes).expect("read");
    bytes.truncate(count);
    bytes
}

/// [AR3] of `rows.rs`: a file that asks for all of a range at once gets one; what is left over goes to units of broken ones.
#[test]
fn a_file_that_is_allocated_at_once_gets_them() {
    let device = device(128 * MIB, 64 << 10);
    let fs = mounted(&device, LARGE);
    let before = (fs.space().memory, fs.free_bytes_in_ranges_of(LARGE));
    let (file, sparse, small) = (create(&fs, "file"), create(&fs, "sparse"), create(&fs, "small"));
    fs.write(small, 0, &[1; 10_000], WriteOptions::default()).expect("written");
    allocate(&fs, file, 3 * LARGE + 5 * MIB).expect("given out");
    fs.set_attributes(sparse, &SetAttributes { size: Some(2 * LARGE), ..SetAttributes::default() }).expect("sized");
    let mapping = fs.map(file, 0, 3 * LARGE + 5 * MIB, true).expect("mapped");
    assert_eq!((mapping.bytes_in_pages_of(LARGE), mapping.bytes_in_pages_of(2 * MIB)), (3 * LARGE, 3 * LARGE + 4 * MIB));
    let of_sparse = fs.map(sparse, 0, 2 * LARGE, true).expect("mapped");
    assert_eq!(of_sparse.bytes_in_pages_of(LARGE), 2 * LARGE);
    drop((mapping, of_sparse));
    // A part of one is freed unit by unit.
    fs.allocate(file, LARGE, 2 * MIB, AllocateMode::Punch).expect("punched");
    for name in ["file", "sparse", "small"] {
        unlink(&fs, name);
    }
    fs.checkpoint().expect("home");
    assert_eq!(fs.space().memory.extent_bytes, before.0.extent_bytes);
    assert!(fs.free_bytes_in_ranges_of(LARGE) + LARGE >= before.1, "but for what metadata has taken");
    // One that is refused halfway leaves nothing.
    let most = fs.space().memory.available_bytes;
    let file = create(&fs, "most");
    assert!(matches!(allocate(&fs, file, most + 4 * LARGE), Err(Error::NoSpace { .. })));
    assert_eq!(fs.space().memory.extent_bytes, 0);
    fs.unmount().expect("unmounts");
    check_device(&device, false).unwrap_or_else(|found| panic!("{found}"));
}

fn in_steps(mapping: &FileMapping<'_>) {
    assert_eq!(mapping.bytes_in_pages_of(LARGE), mapping.length().next_multiple_of(LARGE), "{:?}", mapping.extents());
}

/// [MG4] of `mapped_steps.rs`.
#[test]
fn a_device_of_larger_steps_maps_them() {
    for block_bytes in [4 << 10, 64 << 10, 1 << 20] {
        let plain = device(160 * MIB, block_bytes);
        let device = Arc::new(plain.fork().mapped_in_steps_of(LARGE));
        let fs = mounted(&device, LARGE);
        let (file, other) = (create(&fs, "file"), create(&fs, "other"));
        let mut content = fill(1, LARGE as usize + 300_000);
        for piece in (0..content.len().div_ceil(500_000)).rev() {
            let (at, end) = (piece * 500_000, content.len().min((piece + 1) * 500_000));
            fs.write(file, at as u64, &content[at..end], WriteOptions::default()).expect("written");
            fs.write(other, at as u64, &[7; 200_000], WriteOptions::default()).expect("written");
        }
        let refused = fs.map(file, 2 * MIB, 1, true).expect_err("refused").to_string();
        assert_eq!(refused, "on this device a mapping begins at a multiple of a large extent");
        let mapping = fs.map(file, 0, content.len() as u64, true).expect("mapped");
        in_steps(&mapping);
        let mut seen = vec![0; content.len()];
        mapping.load(0, &mut seen).expect("loaded");
        assert!(seen == content, "blocks of {block_bytes}");
        let mut behind = vec![1; LARGE as usize - 300_000];
        mapping.memory().copy_out(content.len() as u64, &mut behind).expect("loaded");
        assert!(behind.iter().all(|byte| *byte == 0), "blocks of {block_bytes}");
        mapping.store(LARGE - 3, b"across").expect("stored");
        content[LARGE as usize - 3..][..6].copy_from_slice(b"across");
        mapping.unmap().expect("unmapped");
        assert!(read(&fs, file, content.len() + 1) == content, "blocks of {block_bytes}");
        let written = fs.statistics().work.aligned_bytes;
        in_steps(&fs.map(file, LARGE, 1, false).expect("mapped"));
        assert_eq!(fs.statistics().work.aligned_bytes, written, "it is one already");
        // Without a whole one nothing is mapped, and nothing is kept. Want of room has data logs written back.
        fs.write_back_all().expect("written back");
        let before = fs.space().memory.extent_bytes;
        let sparse = create(&fs, "sparse");
        fs.set_attributes(sparse, &SetAttributes { size: Some(1 << 30), ..SetAttributes::default() }).expect("sized");
        assert!(matches!(fs.map(sparse, 0, 1 << 30, true), Err(Error::NoSpace { .. })));
        assert_eq!(fs.space().memory.extent_bytes, before, "blocks of {block_bytes}");
        fs.unmount().expect("unmounts");
        check_device(&device, false).unwrap_or_else(|found| panic!("blocks of {block_bytes}: {found}"));
        // A mount without the class cannot map here.
        let fs = mounted(&device, 0);
        let refused = fs.map(file, 0, 1, true).expect_err("refused").to_string();
        assert_eq!(refused, "this device maps in steps of more than 2 MiB, and files have no larger extents");
        assert!(read(&fs, file, content.len() + 1) == content, "blocks of {block_bytes}");
    }
}

#[test]
fn sizes_that_are_none_are_refused() {
    let device = device(64 * MIB, 64 << 10);
    for large_extent_bytes in [1, 2 * MIB, 12 * MIB, 2 << 30] {
        let options = MountOptions { large_extent_bytes, ..MountOptions::default() };
        let refused = FileSystem::mount(Drive::new(device.clone()), &options).err().expect("refused").to_string();
        assert_eq!(refused, "large extents have a power of two from 4 MiB to 1 GiB");
    }
    // A zone that is shorter than one has none.
    let fs = mounted(&device, 1 << 30);
    let file = create(&fs, "file");
    allocate(&fs, file, 5 * MIB).expect("given out");
    fs.unmount().expect("unmounts");
}
