//! Mappings of files on a device that maps in steps of 2 MiB alone: what is fragmented is rewritten first, and what lies behind the end of a
//! file is nobody's. The granule is simulated; `tests/vm` has a real devdax.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use support::{create, load, mounted, read, write};
use tandemfs_crash::{MemoryDevice, check_device, fill};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_fs::{AllocateMode, Error, FileMapping, FileSystem, FormatOptions, Home, SetAttributes, WriteOptions, make_file_system};

const MIB: u64 = 1 << 20;
const STEP: u64 = 2 * MIB;

fn device(block_zone_bytes: u64, block_bytes: u32, checksum_kind: ChecksumKind, unit: u64) -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(64 * MIB, block_zone_bytes, PersistenceDomain::Adr).mapped_in_steps_of(unit);
    let options = FormatOptions { block_bytes, checksum_kind, ..FormatOptions::default() };
    let device = Arc::new(device);
    make_file_system(&Drive::new(device.clone()), &options).expect("mkfs");
    device
}

fn set_size(fs: &FileSystem, file: InodeNumber, size: u64) {
    fs.set_attributes(file, &SetAttributes { size: Some(size), ..SetAttributes::default() }).expect("sized");
}

fn is_clean(device: &MemoryDevice, what: &str) {
    let counts = check_device(device, false).unwrap_or_else(|found| panic!("{what}: {found}"));
    assert_eq!(counts.open_pages, 0, "{what}");
}

/// Pieces in the wrong order with others between, logs over them, a hole, given-out space, and an end in the middle of a step.
fn fragmented(fs: &FileSystem, file: InodeNumber, other: InodeNumber) -> Vec<u8> {
    let mut content = fill(3, 5 * MIB as usize + 5000);
    for piece in (0..content.len().div_ceil(100_000)).rev() {
        let (at, end) = (piece * 100_000, content.len().min((piece + 1) * 100_000));
        write(fs, file, at as u64, &content[at..end]);
        write(fs, other, at as u64, &[7; 70_000]);
    }
    for (offset, length) in [(100, 700), (MIB as usize - 20, 40), (content.len() - 10, 10)] {
        let bytes = fill(offset as u64, length);
        write(fs, file, offset as u64, &bytes);
        content[offset..offset + length].copy_from_slice(&bytes);
    }
    fs.allocate(file, 3 * MIB, 300_000, AllocateMode::Punch).expect("punched");
    content[3 * MIB as usize..3 * MIB as usize + 300_000].fill(0);
    set_size(fs, file, 9 * MIB + 1234);
    content.resize(9 * MIB as usize + 1234, 0);
    fs.allocate(file, 7 * MIB, 50_000, AllocateMode::Allocate { keep_size: true }).expect("given out");
    content
}

/// The device refuses everything that is not whole steps.
fn in_steps(mapping: &FileMapping<'_>, what: &str) {
    for extent in mapping.extents() {
        assert_eq!((extent.device_offset % STEP, extent.bytes % STEP), (0, 0), "{what}: {:?}", mapping.extents());
    }
    let mapped: u64 = mapping.extents().iter().map(|extent| extent.bytes).sum();
    assert_eq!(mapped, mapping.length().next_multiple_of(STEP), "{what}");
}

#[test]
fn a_fragmented_file_is_rewritten_and_mapped() {
    for block_bytes in [4 << 10, 16 << 10, 64 << 10, 1 << 20] {
        for (block_zone, checksums) in [(0, ChecksumKind::Crc32c), (16 * MIB, ChecksumKind::Crc32c), (0, ChecksumKind::None)] {
            let what = format!("blocks of {block_bytes}, {block_zone} B of block zone, {checksums:?}");
            let device = device(block_zone, block_bytes, checksums, STEP);
            let fs = mounted(&device);
            let (file, other) = (create(&fs, b"file"), create(&fs, b"other"));
            let mut content = fragmented(&fs, file, other);
            let before = fs.statistics().work.aligned_bytes;
            let part = fs.map(file, STEP, 3 * MIB, false).expect("mapped");
            in_steps(&part, &what);
            assert!(load(&part, 0, 3 * MIB as usize) == content[STEP as usize..5 * MIB as usize], "{what}");
            assert!(fs.statistics().work.aligned_bytes >= before + 2 * STEP, "{what}: it was rewritten");
            let whole = fs.map(file, 0, content.len() as u64, true).expect("mapped");
            in_steps(&whole, &what);
            assert!(load(&whole, 0, content.len()) == content, "{what}");
            assert!(read(&fs, file, 0, content.len() + 1) == content, "{what}: by calls");
            let end = content.len() - 4;
            for (at, bytes) in [(STEP as usize - 3, b"across"), (end - 6, b"at end")] {
                whole.store(at as u64, bytes).expect("stored");
                content[at..at + bytes.len()].copy_from_slice(bytes);
            }
            assert!(read(&fs, file, 0, content.len() + 1) == content, "{what}: a call reads what was stored");
            whole.sync(0, whole.length()).expect("durable");
            drop(part);
            whole.unmap().expect("unmapped");
            assert!(read(&fs, file, 0, content.len() + 1) == content, "{what}: unmapped");
            let again = fs.statistics().work.aligned_bytes;
            let whole = fs.map(file, 0, content.len() as u64, false).expect("mapped");
            assert_eq!(fs.statistics().work.aligned_bytes, again, "{what}: nothing is rewritten twice");
            drop(whole);
            fs.unmount().expect("unmounts");
            is_clean(&device, &what);
            let fs = mounted(&device);
            assert!(read(&fs, file, 0, content.len() + 1) == content, "{what}: mounted again");
            for name in [b"file".as_slice(), b"other"] {
                fs.unlink(InodeNumber::ROOT, name).expect("removed");
            }
            assert_eq!((fs.space().memory.extent_bytes, fs.space().memory.data_log_bytes), (0, 0), "{what}: all space is back");
        }
    }
}

#[test]
fn what_no_step_begins_with_is_refused_in_a_sentence() {
    let device = device(0, 64 << 10, ChecksumKind::Crc32c, STEP);
    let fs = mounted(&device);
    let file = create(&fs, b"file");
    write(&fs, file, 0, &fill(1, 5 * MIB as usize));
    let refused = |fs: &FileSystem, offset, length| fs.map(file, offset, length, true).expect_err("refused").to_string();
    assert_eq!(refused(&fs, 4096, 1), "on this device a mapping begins at a multiple of 2 MiB");
    assert_eq!(refused(&fs, 4 * MIB, MIB + 1), "a mapping ends with the file at the latest");
    assert_eq!(refused(&fs, 1 << 60, 1), "a mapping ends with the file at the latest");
    assert_eq!(refused(&fs, 0, 1 << 60), "a mapping ends with the file at the latest");
    fs.set_home(file, Home::Auto).expect("has no home");
    fs.unmount().expect("unmounts");
    let huge = Arc::new(device.fork().mapped_in_steps_of(1 << 30));
    let fs = mounted(&huge);
    assert_eq!(refused(&fs, 0, 1), "this device maps in steps of more than 2 MiB, and files have no larger extents");
}

/// [MG2]: bytes of others behind the end of a file are not seen, and bytes stored there are not the file's when it grows.
#[test]
fn what_is_mapped_behind_the_end_is_nobodys() {
    for block_bytes in [4 << 10, 64 << 10] {
        let device = device(0, block_bytes, ChecksumKind::Crc32c, STEP);
        let fs = mounted(&device);
        // The first time leaves out what is kept for metadata; the second time takes that, and leaves out what has been written.
        for _ in 0..2 {
            let secret = create(&fs, b"secret");
            let mut secrets = 0;
            while fs.write(secret, secrets, &vec![0x5e; STEP as usize], WriteOptions::default()).is_ok() {
                secrets += STEP;
            }
            fs.unlink(InodeNumber::ROOT, b"secret").expect("removed");
        }
        let file = create(&fs, b"file");
        let mut content = fill(1, 70_000);
        write(&fs, file, 0, &content);
        let mapping = fs.map(file, 0, 70_000, true).expect("mapped");
        let mut behind = vec![1; STEP as usize - 70_000];
        mapping.memory().copy_out(70_000, &mut behind).expect("loaded");
        assert!(behind.iter().all(|byte| *byte == 0), "blocks of {block_bytes}");
        // A second mapping leaves what the first one has.
        mapping.memory().copy_in(70_000, &vec![9; behind.len()]).expect("stored");
        let second = fs.map(file, 0, 1, false).expect("mapped");
        second.memory().copy_out(STEP - 8, &mut behind[..8]).expect("loaded");
        assert_eq!(behind[..8], [9; 8]);
        drop(second);
        assert!(read(&fs, file, 0, 80_000) == content);
        set_size(&fs, file, 200_000);
        content.resize(200_000, 0);
        assert!(read(&fs, file, 0, 300_000) == content, "blocks of {block_bytes}: grown");
        assert!(load(&mapping, 0, 70_000) == content[..70_000]);
        fs.append(file, &[4; 50_000], WriteOptions::default()).expect("appended");
        content.extend_from_slice(&[4; 50_000]);
        write(&fs, file, 600_000, &[6; 1000]);
        content.resize(600_000, 0);
        content.extend_from_slice(&[6; 1000]);
        assert!(read(&fs, file, 0, 3 * MIB as usize) == content, "blocks of {block_bytes}: written behind the end");
        let mut seen = vec![0; content.len()];
        mapping.memory().copy_out(0, &mut seen).expect("loaded");
        assert!(seen == content, "the mapping has the bytes that came behind the old end");
        // Growth beyond the step.
        write(&fs, file, 3 * MIB, b"far");
        content.resize(3 * MIB as usize, 0);
        content.extend_from_slice(b"far");
        assert!(read(&fs, file, 0, 4 * MIB as usize) == content, "blocks of {block_bytes}: grown beyond the step");
        mapping.unmap().expect("unmapped");
        assert!(read(&fs, file, 0, 4 * MIB as usize) == content);
        set_size(&fs, file, 100);
        fs.unmount().expect("unmounts");
        is_clean(&device, "behind");
        let fs = mounted(&device);
        assert!(read(&fs, file, 0, 200) == content[..100]);
        assert!(fs.space().memory.extent_bytes <= u64::from(block_bytes).max(4096), "a truncation gives back what is behind the end");
    }
}

/// [MG3]
#[test]
fn a_range_without_room_is_refused_and_keeps_nothing() {
    let device = device(0, 64 << 10, ChecksumKind::Crc32c, STEP);
    let fs = mounted(&device);
    let file = create(&fs, b"file");
    set_size(&fs, file, 100 * MIB);
    let before = fs.space().memory.extent_bytes;
    assert!(matches!(fs.map(file, 0, 100 * MIB, true), Err(Error::NoSpace { .. })));
    assert_eq!(fs.space().memory.extent_bytes, before);
    // The bytes are there, but in holes alone: a block of each aligned extent is taken by another file.
    let (mut fillers, mut count) = (Vec::new(), 0);
    loop {
        let name = format!("filler-{count}");
        let filler = create(&fs, name.as_bytes());
        count += 1;
        if fs.write(filler, 0, &vec![1; 256 << 10], WriteOptions::default()).is_err() {
            break;
        }
        fillers.push(name);
    }
    for (_, name) in fillers.iter().enumerate().filter(|(index, _)| index % 8 != 0 && *index < fillers.len() - 8) {
        fs.unlink(InodeNumber::ROOT, name.as_bytes()).expect("removed");
    }
    // The holes are made aligned extents, as for everybody who finds no room.
    let mapping = fs.map(file, 0, 4 * STEP, true).expect("mapped");
    in_steps(&mapping, "gathered");
    drop(mapping);
    set_size(&fs, file, 0);
    fs.unmount().expect("unmounts");
    is_clean(&device, "full");
}

/// A file is read and written by calls while ranges of it are rewritten and mapped.
#[test]
fn others_use_the_file_while_it_is_rewritten() {
    let device = device(0, 16 << 10, ChecksumKind::Crc32c, STEP);
    let fs = mounted(&device);
    let (file, other) = (create(&fs, b"file"), create(&fs, b"other"));
    let content = fragmented(&fs, file, other);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (fs, ends, content) = (&fs, &ends, &content);
        scope.spawn(move || {
            for round in 0..20_u64 {
                let mapping = fs.map(file, round % 4 * STEP, STEP, round % 2 == 0).expect("mapped");
                in_steps(&mapping, "beside writers");
                mapping.unmap().expect("unmapped");
                // Taken apart again.
                write(fs, file, round % 4 * STEP + 300_000, &vec![1; 70_000]);
            }
            ends.store(true, SeqCst);
        });
        scope.spawn(move || {
            while !ends.load(SeqCst) {
                write(fs, file, 100, &content[100..900]);
                write(fs, file, STEP + 10, &content[STEP as usize + 10..STEP as usize + 100_000]);
                let mut bytes = vec![0; 100_000];
                assert_eq!(fs.read(file, STEP + 10, &mut bytes).expect("read"), 100_000);
                assert!(bytes == content[STEP as usize + 10..STEP as usize + 100_010]);
            }
        });
    });
    let mut expected = content.clone();
    for piece in 0..4 {
        let at = (piece * STEP) as usize + 300_000;
        expected[at..at + 70_000].fill(1);
    }
    assert!(read(&fs, file, 0, content.len() + 1) == expected);
    fs.unmount().expect("unmounts");
    is_clean(&device, "side by side");
}
