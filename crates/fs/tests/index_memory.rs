//! Host memory of the index: at most 32 B for each mapped block and 24 B for each data log, and it can be evicted.

use std::sync::Arc;

use tandemfs_crash::MemoryDevice;
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{AllocateMode, FileSystem, FormatOptions, MountOptions, NewInode, WriteOptions, make_file_system};

fn mount(device: &MemoryDevice, memory_bytes: u64) -> FileSystem {
    let options = MountOptions { memory_bytes, ..MountOptions::default() };
    FileSystem::mount(Drive::new(Arc::new(device.clone())), &options).expect("mounts")
}

fn file(fs: &FileSystem) -> InodeNumber {
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    match fs.lookup(InodeNumber::ROOT, b"file") {
        Ok(found) => found.inode,
        Err(_) => fs.create(InodeNumber::ROOT, b"file", &new).expect("creates").inode,
    }
}

/// Host memory that `look` fills, in bytes.
fn filled(fs: &FileSystem, look: impl Fn(&FileSystem, InodeNumber)) -> f64 {
    let file = file(fs);
    let before = fs.memory_bytes();
    look(fs, file);
    (fs.memory_bytes() - before) as f64
}

#[test]
fn a_mapped_block_costs_at_most_32_bytes_and_a_log_24() {
    const BLOCK: u64 = 4 << 10;
    const BLOCKS: u64 = 48_000;
    const LOGGED: u64 = 6000;
    const LOGS_OF_EACH: u64 = 8;
    let device = MemoryDevice::new(64 << 20, 256 << 20, PersistenceDomain::Gpf);
    make_file_system(&Drive::new(Arc::new(device.clone())), &FormatOptions { block_bytes: BLOCK as u32, ..FormatOptions::default() })
        .expect("mkfs");
    let fs = mount(&device, 256 << 20);
    let allocate = AllocateMode::Allocate { keep_size: false };
    fs.allocate(file(&fs), 0, BLOCKS * BLOCK, allocate).expect("room");
    fs.unmount().expect("unmounts");

    let look = |fs: &FileSystem, file: InodeNumber| {
        for block in 0..BLOCKS {
            fs.read(file, block * BLOCK, &mut [0; 64]).expect("reads");
        }
    };
    let fs = mount(&device, 256 << 20);
    let of_blocks = filled(&fs, look);
    let each = of_blocks / BLOCKS as f64;
    println!("{each:.2} B for each of {BLOCKS} mapped blocks");
    assert!((16.0..=32.0).contains(&each), "{each} B");
    for block in 0..LOGGED {
        for log in 0..LOGS_OF_EACH {
            fs.write(file(&fs), block * BLOCK + log * 400, &[1; 64], WriteOptions::default()).expect("writes");
        }
    }
    fs.unmount().expect("unmounts");

    let fs = mount(&device, 256 << 20);
    let each = (filled(&fs, look) - of_blocks) / (LOGGED * LOGS_OF_EACH) as f64;
    println!("{each:.2} B for each of {} data logs", LOGGED * LOGS_OF_EACH);
    assert!((12.0..=24.0).contains(&each), "{each} B");
    fs.unmount().expect("unmounts");

    let fs = mount(&device, 2 << 20);
    assert!(filled(&fs, look) <= f64::from(2 << 20), "the index is evicted where memory is short");
}

/// Beside its line in the metadata cache, which can be evicted (WineFS §5.7: less than 64 B an entry).
#[test]
fn a_directory_entry_costs_at_most_24_bytes_of_its_index() {
    const NAMES: u64 = 100_000;
    const OTHERS: u64 = 40_000;
    let device = MemoryDevice::new(256 << 20, 16 << 20, PersistenceDomain::Gpf);
    make_file_system(&Drive::new(Arc::new(device.clone())), &FormatOptions::default()).expect("mkfs");
    let fs = mount(&device, 256 << 20);
    let new = |kind| NewInode { mode: kind | 0o755, uid: 0, gid: 0, rdev: 0, target: b"" };
    let directory = |name: &[u8], names: u64| {
        let directory = fs.create(InodeNumber::ROOT, name, &new(file_type::DIRECTORY)).expect("made").inode;
        for number in 0..names {
            fs.create(directory, format!("name-{number}").as_bytes(), &new(file_type::REGULAR)).expect("made");
        }
        directory
    };
    let (large, other) = (directory(b"large", NAMES), directory(b"other", OTHERS));
    fs.unmount().expect("unmounts");
    // A cache of the least size is full of the other directory before, so that only the index comes on top.
    let fs = mount(&device, 0);
    for number in 0..OTHERS {
        fs.lookup(other, format!("name-{number}").as_bytes()).expect("there");
    }
    let before = fs.memory_bytes();
    fs.lookup(large, b"name-77").expect("there");
    let each = fs.memory_bytes().saturating_sub(before) as f64 / NAMES as f64;
    println!("{each:.2} B for each of {NAMES} names");
    assert!((5.0..=24.0).contains(&each), "{each} B");
}
