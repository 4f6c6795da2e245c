//! `threshold=auto` measures on free space only and damages nothing.

use std::sync::Arc;

use tandemfs_crash::{MemoryDevice, check_device};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{Error, FileSystem, FormatOptions, MountOptions, NewInode, Threshold, WriteOptions, make_file_system};

const BLOCK_BYTES: u32 = 16 << 10;
const AUTO: MountOptions = MountOptions { threshold: Threshold::Auto, ..MountOptions::DEFAULT };

fn formatted(memory_bytes: u64, block_zone_bytes: u64) -> (Arc<MemoryDevice>, Drive) {
    let device = Arc::new(MemoryDevice::new(memory_bytes, block_zone_bytes, PersistenceDomain::Gpf));
    let drive = Drive::new(device.clone());
    make_file_system(&drive, &FormatOptions { block_bytes: BLOCK_BYTES, ..FormatOptions::default() }).expect("mkfs");
    (device, drive)
}

fn create(fs: &FileSystem, name: &[u8]) -> InodeNumber {
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    fs.create(InodeNumber::ROOT, name, &new).expect("creates").inode
}

#[test]
fn what_was_measured_explains_what_was_chosen() {
    let (_, drive) = formatted(32 << 20, 64 << 20);
    let fs = FileSystem::mount(drive, &AUTO).expect("mounts");
    let report = fs.threshold();
    let sizes: Vec<u32> = report.measured.iter().map(|latency| latency.size_bytes).collect();
    // On a busy machine the time limit may end before the largest size.
    assert!(!sizes.is_empty() && sizes == (0..7).map(|power| BLOCK_BYTES << power).take(sizes.len()).collect::<Vec<_>>(), "{sizes:?}");
    let met = report.measured.iter().find(|latency| latency.block_path_ns <= latency.byte_path_ns);
    assert_eq!(report.chosen_bytes, met.or(report.measured.last()).map(|latency| latency.size_bytes).expect("measured"));
    assert_eq!(report.bytes, report.chosen_bytes, "the zone is empty");
    assert!(report.reason.contains("block path"), "{}", report.reason);
}

#[test]
fn measuring_takes_no_space_and_changes_no_data() {
    let (device, drive) = formatted(32 << 20, 64 << 20);
    let fs = FileSystem::mount(drive.clone(), &MountOptions::default()).expect("mounts");
    let file = create(&fs, b"file");
    let bytes: Vec<u8> = (0..300_000_u32).map(|index| (index / 7) as u8).collect();
    fs.write(file, 100, &bytes, WriteOptions::default()).expect("written");
    let space = fs.space();
    fs.unmount().expect("unmounted");
    for _ in 0..3 {
        let fs = FileSystem::mount(drive.clone(), &AUTO).expect("mounts");
        assert_eq!(fs.space(), space);
        let mut found = vec![0; bytes.len()];
        fs.read(file, 100, &mut found).expect("read");
        assert!(found == bytes);
        fs.unmount().expect("unmounted");
        check_device(&device, false).expect("consistent");
    }
}

#[test]
fn a_full_device_mounts_with_the_block_size() {
    let (_, drive) = formatted(16 << 20, 8 << 20);
    let fs = FileSystem::mount(drive.clone(), &MountOptions::default()).expect("mounts");
    let file = create(&fs, b"file");
    let mut offset = 0;
    let full = loop {
        match fs.write(file, offset, &[1; BLOCK_BYTES as usize], WriteOptions::default()) {
            Ok(written) => offset += written as u64,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::NoSpace { .. }), "{full}");
    fs.unmount().expect("unmounted");
    let fs = FileSystem::mount(drive, &AUTO).expect("mounts");
    let report = fs.threshold();
    assert_eq!((report.bytes, report.chosen_bytes), (BLOCK_BYTES, BLOCK_BYTES));
    assert!(report.reason.contains("could not be measured"), "{}", report.reason);
    fs.write(file, 5, &[2; 100_000], WriteOptions::default()).expect("an overwrite");
}

#[test]
fn with_a_threshold_of_none_nothing_becomes_a_log() {
    let (_, drive) = formatted(32 << 20, 64 << 20);
    let options = MountOptions { threshold: Threshold::BlocksOnly, ..MountOptions::DEFAULT };
    let fs = FileSystem::mount(drive, &options).expect("mounts");
    let file = create(&fs, b"file");
    for (offset, length) in [(0, 10), (100, 64), (16_000, 5_000), (200_000, 70_001)] {
        fs.write(file, offset, &vec![3; length], WriteOptions::default()).expect("written");
    }
    assert_eq!(fs.space().memory.data_log_bytes, 0);
    assert_eq!(fs.threshold().bytes, 0);
    let mut found = [0; 12];
    fs.read(file, 0, &mut found).expect("read");
    assert_eq!(found, [3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 0, 0]);
}
