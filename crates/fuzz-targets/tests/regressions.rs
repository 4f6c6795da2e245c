//! Bugs that the fuzzer found, each as a literal image or call. Those of format decoders are in `crates/format`, those of check in
//! `crates/check`, those of the door beside its target.

use std::sync::Arc;

use tandemfs_crash::{Harness, MemoryDevice, Model, Operation, Setting, check_device};
use tandemfs_device::{BytePath, Drive, PersistenceDomain};
use tandemfs_format::allocation_map::{PIECE_BYTES, PieceKind, encode};
use tandemfs_format::geometry::SEGMENT_TABLE_LINES;
use tandemfs_format::segment::{Region, Segment};
use tandemfs_format::superblock::Superblock;
use tandemfs_format::{InodeNumber, LINE_BYTES, Line, LineAddress, PairSeed, UNIT_LINES};
use tandemfs_fs::{Error, FileSystem, MountOptions, NewInode, read_superblock};
use tandemfs_fuzz_targets::TARGETS;

/// A cleanly unmounted device with a file of a whole block and a file of one data log.
fn device() -> (MemoryDevice, Superblock) {
    let setting = Setting::small(PersistenceDomain::Gpf, 64 << 10);
    let mut harness = Harness::new(setting.format(), &setting.mount, Model::default()).expect("mounts");
    for operation in
        [Operation::Create("block"), Operation::Write("block", 0, 65_536, 1), Operation::Create("log"), Operation::Write("log", 0, 300, 2)]
    {
        harness.perform(&operation).expect("done");
    }
    harness.fs.unmount().expect("unmounts");
    let superblock = read_superblock(&Drive::new(Arc::new(harness.device.clone()))).expect("a superblock");
    (harness.device.fork(), superblock)
}

fn mount(device: &MemoryDevice) -> Result<FileSystem, Error> {
    FileSystem::mount(Drive::new(Arc::new(device.clone())), &MountOptions::default())
}

fn pair(superblock: &Superblock) -> PairSeed {
    PairSeed::new(superblock.pair)
}

/// The segments, with the addresses of their lines.
fn segments(device: &MemoryDevice, superblock: &Superblock) -> Vec<(LineAddress, Segment)> {
    let lines = (0..SEGMENT_TABLE_LINES).map(|index| superblock.geometry.segment_line(index));
    let decode = |address: LineAddress| {
        let mut line: Line = [0; LINE_BYTES];
        device.load(address.offset_bytes(), &mut line).expect("loads");
        Segment::decode(&line, pair(superblock), address, superblock.geometry.memory_units())
            .expect("verifies")
            .map(|found| (address, found))
    };
    lines.filter_map(decode).collect()
}

fn write_piece(device: &MemoryDevice, superblock: &Superblock, index: u64, kind: PieceKind, change: impl FnOnce(&mut [u8])) {
    let at = superblock.geometry.piece(index).offset_bytes();
    let mut bits = vec![0; PIECE_BYTES];
    device.load(at + LINE_BYTES as u64, &mut bits).expect("loads");
    change(&mut bits);
    let header = encode(pair(superblock), kind, index, superblock.generation, &bits);
    device.store(at, &[&header[..], &bits].concat()).expect("stores");
}

/// Saved maps were accepted although they marked lines that no segment had yet: the count of free lines fell below zero.
#[test]
fn regression_a_saved_map_that_takes_lines_beyond_the_mark_is_no_map() {
    for region in [Region::Inodes, Region::Dentries, Region::Mappings, Region::Leaves] {
        let (device, superblock) = device();
        let Some((_, segment)) = segments(&device, &superblock).into_iter().find(|(_, segment)| segment.region == region) else { continue };
        write_piece(&device, &superblock, segment.start_unit, PieceKind::Region, |bits| {
            bits[segment.high_water_lines as usize / 8..].fill(0xff);
        });
        let fs = mount(&device).expect("mounts");
        assert!(!fs.recovery().clean, "{region:?}: the maps are built anew");
        let new = NewInode { mode: 0o100_644, uid: 0, gid: 0, rdev: 0, target: b"" };
        fs.create(InodeNumber::ROOT, b"new", &new).expect("works");
        fs.unmount().expect("unmounts");
        check_device(&device, false).expect("whole");
    }
}

/// A file was removed whose space was not marked in the saved maps: the allocators asserted that they had allocated it.
#[test]
fn regression_space_that_nobody_has_stops_the_file_system_and_does_not_panic() {
    let units = device().1.geometry.memory_units();
    let data_unit = |device: &MemoryDevice, superblock: &Superblock| {
        let of_regions: Vec<u64> = segments(device, superblock).iter().map(|(_, segment)| segment.start_unit).collect();
        (superblock.geometry.fixed_units()..units).rev().find(|unit| {
            let mut bits = vec![0; PIECE_BYTES];
            device.load(superblock.geometry.piece(*unit).offset_bytes() + LINE_BYTES as u64, &mut bits).expect("loads");
            !of_regions.contains(unit) && bits.iter().any(|byte| *byte != 0)
        })
    };
    for name in ["block", "log"] {
        let (device, superblock) = device();
        let (index, kind) = match name {
            "block" => (units, PieceKind::Sectors),
            _ => (data_unit(&device, &superblock).expect("a unit with logs"), PieceKind::Data),
        };
        write_piece(&device, &superblock, index, kind, |bits| bits[..128].fill(0));
        let fs = mount(&device).expect("mounts");
        let _removed = fs.unlink(InodeNumber::ROOT, name.as_bytes());
        let cause = fs.stopped().unwrap_or_else(|| panic!("{name}: not noticed"));
        assert!(cause.contains("space was freed that nobody had"), "{name}: {cause}");
        assert!(matches!(fs.unlink(InodeNumber::ROOT, b"other"), Err(Error::Stopped { .. } | Error::NotFound)));
        assert!(fs.unmount().is_err(), "{name}: left as after a crash");
    }
}

/// A segment of inodes ended within its first inode: slot zero was marked as used beyond the high-water mark.
#[test]
fn regression_a_segment_with_half_an_inode_does_not_panic() {
    let (device, superblock) = device();
    let (address, segment) = segments(&device, &superblock).into_iter().find(|(_, found)| found.region == Region::Inodes).expect("inodes");
    assert!(segment.unit_count * UNIT_LINES >= segment.high_water_lines);
    let half = Segment { high_water_lines: 1, ..segment };
    device.store(address.offset_bytes(), &half.encode(pair(&superblock), address)).expect("stores");
    if let Ok(fs) = mount(&device) {
        assert!(fs.attributes(InodeNumber::ROOT).is_err(), "there is no root");
    }
    check_device(&device, false).expect_err("check says what is wrong");
}

/// `cookie + 1` overflowed.
#[test]
fn regression_a_listing_from_the_last_cookie_there_can_be_is_empty() {
    let (device, _) = device();
    let fs = mount(&device).expect("mounts");
    for cookie in [u64::MAX, u64::MAX - 1, i64::MAX as u64] {
        let listed = fs.read_directory(InodeNumber::ROOT, cookie, &mut |entry| panic!("{entry:?} after {cookie}"));
        listed.expect("lists nothing");
    }
}

/// A repaired image whose file has a tree of height 8: a truncation of it asked for more lines than a transaction has, and panicked.
#[test]
fn regression_a_truncation_in_a_tree_that_is_too_high_does_not_panic() {
    let input = [
        1, 0, 3, 183, 70, 99, 128, 157, 186, 215, 244, 17, 46, 75, 104, 133, 162, 191, 220, 124, 22, 51, 80, 109, 138, 167, 196, 225, 19,
        30, 127, 180, 51, 178, 156, 9, 105, 169, 220, 113, 120, 241, 138, 213, 172, 194, 125, 186, 68, 80, 233, 166, 136, 230, 224, 112,
        45, 23, 85, 138, 250, 95,
    ];
    let image = TARGETS.iter().find(|target| target.name == "image").expect("a target");
    (image.run)(&input);
}
