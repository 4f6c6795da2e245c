//! Requests of the largest size.

use std::sync::Arc;

use tandemfs_crash::{Event, MemoryDevice};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{FileSystem, FormatOptions, MountOptions, NewInode, WriteOptions, make_file_system};

/// A mounted file system and an empty file in it.
fn mounted(block_bytes: u32) -> (FileSystem, InodeNumber) {
    let drive = Drive::new(Arc::new(MemoryDevice::new(16 << 20, 64 << 20, PersistenceDomain::Gpf)));
    make_file_system(&drive, &FormatOptions { block_bytes, ..FormatOptions::default() }).expect("mkfs");
    let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    let file = fs.create(InodeNumber::ROOT, b"file", &new).expect("creates").inode;
    (fs, file)
}

/// The transient room was eight blocks: on a full device an overwrite of 1 MiB was refused (RULES R14).
#[test]
fn regression_largest_overwrite_refused_on_a_full_device() {
    for block_bytes in [4 << 10, 64 << 10, 1 << 20] {
        let (fs, file) = mounted(block_bytes);
        let piece = vec![1; 1 << 20];
        let mut end = 0;
        while let Ok(done) = fs.write(file, end, &piece, WriteOptions::default()) {
            end += done as u64;
        }
        assert!(end >= 48 << 20, "{end}");
        for round in 2..40 {
            let offset = u64::from(round) * 7919 * 64 % (end - (1 << 20));
            let done = fs.write(file, offset, &vec![round; 1 << 20], WriteOptions::default());
            assert_eq!(done.map_err(|error| error.to_string()), Ok(1 << 20), "blocks of {block_bytes}, overwrite at {offset}");
            let mut read = vec![0; 1 << 20];
            fs.read(file, offset, &mut read).expect("reads");
            assert!(read.iter().all(|byte| *byte == round));
        }
    }
}

#[test]
fn a_mebibyte_that_was_written_at_once_is_read_at_once() {
    let (fs, file) = mounted(64 << 10);
    let mut bytes = vec![7; 1 << 20];
    for piece in 0..8 {
        fs.write(file, piece << 20, &bytes, WriteOptions::default()).expect("writes");
    }
    fs.reset_statistics();
    for piece in 0..8 {
        fs.read(file, piece << 20, &mut bytes).expect("reads");
    }
    let reads = fs.drive().counters().snapshot().block_reads;
    assert!(reads <= 10, "{reads} requests for 8 MiB");
}

/// The byte path moves a long run faster than single pages: neighbours in the file are neighbours on the device.
#[test]
fn pages_of_logs_side_by_side_are_one_store_also_where_freed_pages_come_back() {
    let device = MemoryDevice::new(16 << 20, 64 << 20, PersistenceDomain::Gpf);
    let drive = Drive::new(Arc::new(device.clone()));
    make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
    let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    let file = fs.create(InodeNumber::ROOT, b"file", &new).expect("creates").inode;
    for round in 0..20_u8 {
        let bytes: Vec<u8> = (0..60_000).map(|at| (at / 100) as u8 ^ round).collect();
        device.start_recording();
        fs.write(file, 1000, &bytes, WriteOptions::default()).expect("written");
        let long = |event: &Event| matches!(event, Event::Store { bytes, .. } if bytes.len() > 1024);
        let stores = device.stop_recording().iter().filter(|event| long(event)).count();
        assert!(stores <= 4, "round {round}: {stores} stores for 15 pages");
        let mut found = vec![0; bytes.len()];
        fs.read(file, 1000, &mut found).expect("read");
        assert!(found == bytes, "round {round}");
    }
}
