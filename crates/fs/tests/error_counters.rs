//! Errors are counted since the file system was made, and the counts survive mounts, crashes but for the latest, and builds that do not
//! know them.

use std::sync::Arc;

use tandemfs_crash::{FaultDevice, MemoryDevice, Place, fill};
use tandemfs_device::{Drive, PersistenceDomain, Structure};
use tandemfs_format::checksum::crc32c;
use tandemfs_format::error_counters::ErrorCounters;
use tandemfs_format::geometry::SUPERBLOCK_OFFSETS;
use tandemfs_format::inode::file_type;
use tandemfs_format::superblock::compat;
use tandemfs_format::{InodeNumber, LineAddress};
use tandemfs_fs::{
    Error, FileSystem, FormatOptions, MountOptions, NewInode, Scrub, WriteOptions, make_file_system, missing_features, read_superblock,
    upgrade,
};

fn drive(device: &MemoryDevice) -> Drive {
    Drive::new(Arc::new(device.clone()))
}

fn mounted(device: &MemoryDevice) -> FileSystem {
    FileSystem::mount(drive(device), &MountOptions::default()).expect("mounts")
}

/// The place of a sector in the block zone.
fn position(device: &MemoryDevice, sector: &[u8]) -> usize {
    device.zones().blocks.chunks(4096).position(|found| found == sector).expect("on the device") * 4096
}

/// A file system with a file of sectors, one of which is damaged.
fn damaged() -> (MemoryDevice, InodeNumber) {
    let device = MemoryDevice::new(16 << 20, 32 << 20, PersistenceDomain::Gpf);
    make_file_system(&drive(&device), &FormatOptions::default()).expect("mkfs");
    let fs = mounted(&device);
    let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    let file = fs.create(InodeNumber::ROOT, b"file", &new).expect("made").inode;
    fs.write(file, 0, &fill(1, 131_072), WriteOptions::default()).expect("written");
    fs.unmount().expect("unmounts");
    assert_eq!(fs.error_counters(), ErrorCounters::default());
    let at = position(&device, &fill(1, 131_072)[8192..12_288]);
    device.damage(|zones| zones.blocks[at + 5] ^= 1);
    (device, file)
}

fn on_device(device: &MemoryDevice) -> ErrorCounters {
    read_superblock(&drive(device)).expect("whole").error_counters
}

fn scrub(fs: &FileSystem) -> Scrub {
    let mut scrub = fs.scrub();
    while fs.scrub_step(&mut scrub) {}
    scrub
}

fn read(fs: &FileSystem, file: InodeNumber) {
    let error = fs.read(file, 8192, &mut [0; 4096]).expect_err("damaged");
    assert!(matches!(error, Error::DamagedData { .. }), "{error}");
}

#[test]
fn errors_are_counted_over_mounts() {
    let (device, file) = damaged();
    for round in 1..=3 {
        let fs = mounted(&device);
        read(&fs, file);
        assert_eq!(fs.error_counters().data_damaged, round);
        fs.note_damage(file);
        fs.note_damage(file);
        fs.unmount().expect("unmounts");
        let found = on_device(&device);
        assert_eq!((found.data_damaged, found.metadata_damaged), (round, round));
        assert!(found.last_error_seconds > 1_500_000_000, "{found:?}");
    }
    // A read-only mount counts in host memory alone.
    let before = device.zones();
    let fs = FileSystem::mount(drive(&device), &MountOptions { read_only: true, ..MountOptions::default() }).expect("mounts");
    read(&fs, file);
    fs.note_scrub(&scrub(&fs));
    assert_eq!((fs.error_counters().data_damaged, fs.error_counters().scrub_findings), (4, 1));
    drop(fs);
    assert!(device.zones() == before, "nothing is written");
}

/// A scrub that ends is known although the machine fails right after it.
#[test]
fn the_end_of_a_scrub_is_written_at_once() {
    let (device, file) = damaged();
    let fs = mounted(&device);
    read(&fs, file);
    assert_eq!(on_device(&device).data_damaged, 0, "counts wait for a write of the superblock");
    let found = scrub(&fs);
    fs.note_scrub(&found);
    drop(fs); // the daemon dies
    let counters = on_device(&device);
    assert_eq!((counters.data_damaged, counters.scrub_findings, counters.scrub_bytes), (1, 1, found.counts().bytes));
    assert!(counters.scrub_seconds > 1_500_000_000);
    let fs = mounted(&device);
    assert_eq!(fs.error_counters().scrub_findings, 1);
    fs.unmount().expect("unmounts");
    assert!(read_superblock(&drive(&device)).expect("whole").clean);
}

#[test]
fn accesses_that_the_device_fails_are_counted() {
    let (device, file) = damaged();
    let at = position(&device, &fill(1, 131_072)[..4096]) as u64;
    let faulty = Arc::new(FaultDevice::at(device.fork(), Place::Blocks(at..at + 4096), false));
    let fs = FileSystem::mount(Drive::new(faulty), &MountOptions::default()).expect("mounts");
    assert!(fs.read(file, 0, &mut [0; 4096]).is_err());
    let counters = fs.error_counters();
    assert!(counters.device_reads_failed > 0 && counters.last_error_seconds > 0, "{counters:?}");
    assert_eq!(counters.data_damaged, 0);
}

/// A build that does not know the counters keeps the bit and writes zeros; and a file system of before gets them by an upgrade.
#[test]
fn counters_begin_anew_where_another_build_has_written() {
    let (device, file) = damaged();
    let fs = mounted(&device);
    read(&fs, file);
    fs.unmount().expect("unmounts");
    let edit = |change: &dyn Fn(&mut [u8])| {
        for offset in SUPERBLOCK_OFFSETS {
            let (mut bytes, address) = ([0; 1024], LineAddress::new(offset / 64));
            drive(&device).load(Structure::Superblock, address, &mut bytes).expect("loads");
            change(&mut bytes);
            let crc = crc32c(&bytes[4..]);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
            drop(drive(&device).persist(Structure::Superblock, address, &bytes).expect("stores"));
        }
    };
    edit(&|bytes| bytes[220..340].fill(0));
    let fs = mounted(&device);
    assert_eq!(fs.error_counters(), ErrorCounters::default());
    read(&fs, file);
    fs.unmount().expect("unmounts");
    assert_eq!(on_device(&device).data_damaged, 1);

    edit(&|bytes| {
        bytes[220..340].fill(0);
        bytes[16..24].fill(0);
    });
    let fs = mounted(&device);
    read(&fs, file);
    fs.unmount().expect("unmounts");
    assert_eq!(on_device(&device), ErrorCounters::default(), "not without the feature");
    let missing: Vec<&str> = missing_features(&drive(&device)).expect("whole").iter().map(|feature| feature.name).collect();
    assert_eq!(missing, ["error counters"]);
    upgrade(&drive(&device)).expect("upgrades");
    assert_eq!(read_superblock(&drive(&device)).expect("whole").compat, compat::ERROR_COUNTERS);
    let fs = mounted(&device);
    read(&fs, file);
    fs.unmount().expect("unmounts");
    assert_eq!(on_device(&device).data_damaged, 1);
}
