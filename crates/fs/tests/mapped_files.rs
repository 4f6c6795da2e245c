//! Files mapped into the process: what the bytes are, by mapping and by calls; what is refused meanwhile; what background work leaves alone;
//! checksums afterwards.

mod support;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use support::{create, load, mounted, read, write};
use tandemfs_crash::{MemoryDevice, Random, check_device, fill};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_emulator::{DeviceOptions, open_device};
use tandemfs_format::InodeNumber;
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_fs::{
    AllocateMode, Error, FileMapping, FileSystem, FormatOptions, Home, MountOptions, SetAttributes, Versions, WriteOptions,
    make_file_system,
};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
const BLOCK_SIZES: [u32; 4] = [4 << 10, 16 << 10, 64 << 10, 1 << 20];

fn device(block_zone_bytes: u64, block_bytes: u32, checksum_kind: ChecksumKind) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(48 * MIB, block_zone_bytes, PersistenceDomain::Adr));
    let options = FormatOptions { block_bytes, checksum_kind, ..FormatOptions::default() };
    make_file_system(&Drive::new(device.clone()), &options).expect("mkfs");
    device
}

fn size(size: u64) -> SetAttributes {
    SetAttributes { size: Some(size), ..SetAttributes::default() }
}

fn is_checked(device: &MemoryDevice, open_pages: u64, what: &str) {
    let counts = check_device(device, false).unwrap_or_else(|found| panic!("{what}: {found}"));
    assert_eq!(counts.open_pages, open_pages, "{what}");
}

/// Whole blocks, logs over and beside them, holes, given-out space, and an end within a page.
fn mixed(fs: &FileSystem, file: InodeNumber) -> Vec<u8> {
    let mut content = fill(1, 3 * MIB as usize + 5000);
    write(fs, file, 0, &content);
    for (offset, length) in [(100, 700), (MIB as usize - 20, 40), (2 * MIB as usize + 5, 3000), (content.len() - 10, 10)] {
        let bytes = fill(offset as u64, length);
        write(fs, file, offset as u64, &bytes);
        content[offset..offset + length].copy_from_slice(&bytes);
    }
    fs.allocate(file, MIB + 70_000, 300_000, AllocateMode::Punch).expect("punched");
    content[MIB as usize + 70_000..MIB as usize + 370_000].fill(0);
    fs.allocate(file, MIB + 100_000, 50_000, AllocateMode::Allocate { keep_size: true }).expect("given out");
    fs.set_attributes(file, &size(4 * MIB + 1234)).expect("grown");
    content.resize(4 * MIB as usize + 1234, 0);
    content
}

#[test]
fn calls_and_mappings_see_the_same_bytes_in_every_block_size() {
    for block_bytes in BLOCK_SIZES {
        for (block_zone, checksums) in [(0, ChecksumKind::Crc32c), (16 * MIB, ChecksumKind::Crc32c), (16 * MIB, ChecksumKind::None)] {
            let what = format!("blocks of {block_bytes}, {block_zone} B of block zone, {checksums:?}");
            let device = device(block_zone, block_bytes, checksums);
            let fs = mounted(&device);
            let file = create(&fs, b"file");
            let mut content = mixed(&fs, file);
            for range in [0..content.len() as u64, 8192..2 * MIB + 77, 4 * MIB..content.len() as u64] {
                let mapping = fs.map(file, range.start, range.end - range.start, false).expect("mapped");
                assert!(
                    load(&mapping, 0, (range.end - range.start) as usize) == content[range.start as usize..range.end as usize],
                    "{what}"
                );
                assert!(matches!(mapping.store(0, &[1]), Err(Error::ReadOnly)));
                mapping.unmap().expect("unmapped");
                assert!(read(&fs, file, 0, content.len() + 1) == content, "{what}");
            }
            fs.checkpoint().expect("home");
            is_checked(&device, 0, &what);
            let mapping = fs.map(file, 4096, content.len() as u64 - 4096, true).expect("mapped");
            assert!(load(&mapping, 0, content.len() - 4096) == content[4096..], "{what}");
            for (offset, length) in [(0, 1), (5000, 64), (MIB as usize + 60_000, 200_000), (content.len() - 4096 - 3, 3)] {
                let bytes = fill(offset as u64 + 9, length);
                mapping.store(offset as u64, &bytes).expect("stored");
                content[4096 + offset..4096 + offset + length].copy_from_slice(&bytes);
                assert!(read(&fs, file, 4096 + offset as u64, length) == bytes, "{what}: a call reads what was stored");
            }
            mapping.store_word(80, 0x0807_0605_0403_0201).expect("stored");
            content[4176..4184].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
            mapping.sync(0, mapping.length()).expect("durable");
            fs.checkpoint().expect("home");
            let open = check_device(&device, false).unwrap_or_else(|found| panic!("{what}, mapped: {found}")).open_pages;
            assert_eq!(open > 0, checksums == ChecksumKind::Crc32c, "{what}");
            mapping.unmap().expect("unmapped");
            assert!(read(&fs, file, 0, content.len() + 1) == content, "{what}");
            // What a block is after a mapping is a block like others.
            for (offset, length) in [(10, 500), (MIB as usize, 100_000), (3 * MIB as usize, 70_000)] {
                let bytes = fill(offset as u64 + 17, length);
                write(&fs, file, offset as u64, &bytes);
                content[offset..offset + length].copy_from_slice(&bytes);
            }
            fs.write_back_all().expect("written back");
            assert!(read(&fs, file, 0, content.len() + 1) == content, "{what}");
            fs.unmount().expect("unmounts");
            is_checked(&device, 0, &what);
            let fs = mounted(&device);
            assert!(read(&fs, file, 0, content.len() + 1) == content, "{what}");
            fs.unlink(InodeNumber::ROOT, b"file").expect("removed");
            assert_eq!((fs.space().memory.extent_bytes, fs.space().memory.data_log_bytes), (0, 0), "{what}: all space is back");
        }
    }
}

#[test]
fn a_range_that_cannot_be_mapped_is_refused_in_a_sentence() {
    let device = device(16 * MIB, 64 << 10, ChecksumKind::Crc32c);
    let fs = mounted(&device);
    let file = create(&fs, b"file");
    write(&fs, file, 0, &fill(1, 100_000));
    let refused = |file, offset, length| fs.map(file, offset, length, true).expect_err("refused").to_string();
    assert_eq!(refused(file, 0, 0), "an empty range");
    assert_eq!(refused(file, 100, 10), "a mapping begins at a multiple of 4096 B");
    assert_eq!(refused(file, 0, 100_001), "a mapping ends with the file at the latest");
    assert_eq!(refused(file, 1 << 40, 1), "a mapping ends with the file at the latest");
    assert!(matches!(fs.map(file, 0, u64::MAX, true), Err(Error::FileTooLarge)));
    assert!(matches!(fs.map(InodeNumber::ROOT, 0, 1, true), Err(Error::IsDirectory)));
    fs.set_home(file, Home::Block).expect("has another home");
    assert_eq!(refused(file, 0, 4096), "only a file whose home is the memory zone is mapped");
    fs.set_home(file, Home::Memory).expect("has a home");
    let mapping = fs.map(file, 0, 5000, true).expect("mapped");
    for (offset, length) in [(5000, 1), (4999, 2), (u64::MAX, 1)] {
        assert!(matches!(mapping.store(offset, &vec![1; length]), Err(Error::InvalidArgument(_))));
        assert!(matches!(mapping.load(offset, &mut vec![1; length]), Err(Error::InvalidArgument(_))));
        assert!(matches!(mapping.sync(offset, length as u64), Err(Error::InvalidArgument(_))));
    }
    assert!(matches!(mapping.store_word(4, 1), Err(Error::InvalidArgument(_))));
    drop(mapping);
    fs.unmount().expect("unmounts");
    is_checked(&device, 0, "refused");
    let reading = FileSystem::mount(Drive::new(device.clone()), &MountOptions { read_only: true, ..MountOptions::default() });
    assert!(matches!(reading.expect("mounts").map(file, 0, 1, false), Err(Error::ReadOnly)));
}

#[test]
fn a_file_elsewhere_is_moved_first() {
    let device = device(16 * MIB, 64 << 10, ChecksumKind::Crc32c);
    let fs = mounted(&device);
    fs.set_home(InodeNumber::ROOT, Home::Block).expect("has a home");
    let (file, content) = (create(&fs, b"file"), fill(1, 3 * MIB as usize + 100));
    write(&fs, file, 0, &content);
    fs.set_home(file, Home::Memory).expect("has a home");
    let mapping = fs.map(file, MIB, MIB + 5000, true).expect("mapped");
    assert!(load(&mapping, 0, MIB as usize + 5000) == content[MIB as usize..2 * MIB as usize + 5000]);
    mapping.store(3, b"stored").expect("stored");
    while fs.move_homes().expect("moves") {}
    drop(mapping);
    assert_eq!(fs.bytes_from_home(file).expect("known"), 0);
    assert!(read(&fs, file, MIB + 3, 6) == b"stored" && read(&fs, file, 0, MIB as usize) == content[..MIB as usize]);
    fs.unmount().expect("unmounts");
    is_checked(&device, 0, "moved");
}

#[test]
fn what_is_mapped_stays_in_its_pages() {
    for writable in [true, false] {
        let device = device(16 * MIB, 64 << 10, ChecksumKind::Crc32c);
        let fs = mounted(&device);
        let (file, mut content) = (create(&fs, b"file"), fill(1, 10 * 65_536 + 100));
        write(&fs, file, 0, &content);
        let mapping = fs.map(file, 65_536, 2 * 65_536, writable).expect("mapped");
        let at = mapping.extents().to_vec();
        for mode in [AllocateMode::Collapse, AllocateMode::Insert] {
            let result = fs.allocate(file, 0, 65_536, mode);
            assert!(matches!(result, Err(Error::Mapped)), "{mode:?}: {result:?}");
        }
        assert!(matches!(fs.unmount(), Err(Error::MappingsHeld { count: 1 })));
        let places =
            [(0, 65_536), (3 * 65_536, 70_000), (content.len() - 50, 5000), (65_536, 100), (70_001, 6), (65_530, 9000), (100, 300_000)];
        for (offset, length) in places {
            let bytes = fill(offset as u64 + 2, length);
            write(&fs, file, offset as u64, &bytes);
            content.resize(content.len().max(offset + length), 0);
            content[offset..offset + length].copy_from_slice(&bytes);
            assert!(load(&mapping, 0, 131_072) == content[65_536..3 * 65_536], "{length} B at {offset} by a call, {writable}");
        }
        assert_eq!(fs.statistics().work.mapped_writes, 7, "pieces of 32 KiB");
        if writable {
            mapping.store(7, &[9; 70_000]).expect("stored");
            content[65_543..135_543].fill(9);
        }
        fs.write_back_all().expect("written back");
        fs.set_home(file, Home::Block).expect("has another home");
        while fs.move_homes().expect("moves") {}
        assert_eq!(mapping.extents(), at);
        assert!(load(&mapping, 0, 131_072) == content[65_536..3 * 65_536] && read(&fs, file, 0, content.len()) == content);
        assert_eq!(fs.bytes_from_home(file).expect("known"), 131_072, "what is mapped stays");
        mapping.unmap().expect("unmapped");
        fs.retry_moves();
        while fs.move_homes().expect("moves") {}
        assert_eq!(fs.bytes_from_home(file).expect("known"), 0);
        fs.set_attributes(file, &size(100_000)).expect("cut");
        assert!(read(&fs, file, 0, content.len()) == content[..100_000]);
        fs.unmount().expect("unmounts");
        is_checked(&device, 0, "unmapped");
    }
}

#[test]
fn mappings_that_overlap_share_their_pages() {
    for block_bytes in BLOCK_SIZES {
        let device = device(0, block_bytes, ChecksumKind::Crc32c);
        let fs = mounted(&device);
        let (file, mut content) = (create(&fs, b"file"), fill(1, 4 * MIB as usize));
        write(&fs, file, 0, &content);
        let one = fs.map(file, 0, 3 * MIB, true).expect("mapped");
        let other = fs.map(file, 2 * MIB, 2 * MIB, true).expect("mapped");
        let reading = fs.map(file, MIB, 2 * MIB, false).expect("mapped");
        one.store(2 * MIB + 100, b"by one").expect("stored");
        other.store(200, b"by the other").expect("stored");
        assert_eq!((load(&other, 100, 6), load(&one, 2 * MIB + 200, 12)), (b"by one".to_vec(), b"by the other".to_vec()));
        assert_eq!(load(&reading, MIB + 100, 6), b"by one");
        one.unmap().expect("unmapped");
        other.store(300, b"later").expect("stored");
        content[2 * MIB as usize + 100..][..6].copy_from_slice(b"by one");
        content[2 * MIB as usize + 200..][..12].copy_from_slice(b"by the other");
        content[2 * MIB as usize + 300..][..5].copy_from_slice(b"later");
        assert!(read(&fs, file, 0, content.len()) == content);
        fs.checkpoint().expect("home");
        is_checked(&device, 2 * MIB / PAGE, "one is left");
        drop(other);
        write(&fs, file, MIB, &[77]);
        content[MIB as usize] = 77;
        assert_eq!(load(&reading, 0, 1), [77]);
        drop(reading);
        assert!(read(&fs, file, 0, content.len()) == content);
        fs.unmount().expect("unmounts");
        is_checked(&device, 0, "none is left");
    }
}

#[test]
fn an_unlinked_file_lives_as_long_as_its_mapping() {
    let device = device(0, 64 << 10, ChecksumKind::Crc32c);
    let fs = mounted(&device);
    let file = create(&fs, b"file");
    write(&fs, file, 0, &fill(1, 200_000));
    let mapping = fs.map(file, 0, 200_000, true).expect("mapped");
    fs.unlink(InodeNumber::ROOT, b"file").expect("unlinked");
    write(&fs, create(&fs, b"other"), 0, &fill(2, 400_000));
    mapping.store(100_000, b"still there").expect("stored");
    assert_eq!(load(&mapping, 100_000, 11), b"still there");
    drop(mapping);
    assert!(fs.attributes(file).is_err(), "it is gone with the mapping");
    fs.unmount().expect("unmounts");
    is_checked(&device, 0, "unlinked");
}

/// Bytes behind the end that a truncation left do not come back, and are not seen.
#[test]
fn the_last_page_ends_with_zeros() {
    for writable in [true, false] {
        let device = device(0, 16 << 10, ChecksumKind::Crc32c);
        let fs = mounted(&device);
        let file = create(&fs, b"file");
        write(&fs, file, 0, &[7; 40_000]);
        fs.write_back_all().expect("pages");
        fs.set_attributes(file, &size(10_000)).expect("cut");
        let mapping = fs.map(file, 8192, 1808, writable).expect("mapped");
        let mut behind = [1; 4096];
        mapping.memory().copy_out(0, &mut behind).expect("the page is there");
        assert!(behind[..1808] == [7; 1808] && behind[1808..] == [0; 2288]);
        drop(mapping);
        fs.set_attributes(file, &size(20_000)).expect("grown");
        let found = read(&fs, file, 0, 30_000);
        assert!(found.len() == 20_000 && found[..10_000] == [7; 10_000] && found[10_000..] == [0; 10_000]);
        fs.unmount().expect("unmounts");
        is_checked(&device, 0, "cut");
    }
}

/// Holes and given-out space of whole 2 MiB get aligned extents; a zone without room is an error, and nothing stays taken.
#[test]
fn holes_get_aligned_extents_where_there_is_room() {
    let device = device(0, 64 << 10, ChecksumKind::Crc32c);
    let fs = mounted(&device);
    let file = create(&fs, b"file");
    fs.set_attributes(file, &size(8 * MIB)).expect("sparse");
    let mapping = fs.map(file, 0, 8 * MIB, true).expect("mapped");
    for extent in mapping.extents() {
        assert_eq!((extent.device_offset % (2 * MIB), extent.bytes % (2 * MIB)), (0, 0), "{:?}", mapping.extents());
    }
    assert!(load(&mapping, 0, 8 * MIB as usize).iter().all(|byte| *byte == 0));
    mapping.store(5 * MIB, b"stored").expect("stored");
    drop(mapping);
    assert!(read(&fs, file, 5 * MIB, 6) == b"stored");
    let other = create(&fs, b"other");
    fs.set_attributes(other, &size(100 * MIB)).expect("sparse");
    let before = fs.space().memory.extent_bytes;
    assert!(matches!(fs.map(other, 0, 100 * MIB, true), Err(Error::NoSpace { .. })));
    assert_eq!(fs.space().memory.extent_bytes, before);
    let part = fs.map(other, 64 * MIB, 2 * MIB, true).expect("a part of it");
    part.store(0, b"x").expect("stored");
    drop(part);
    fs.unmount().expect("unmounts");
    is_checked(&device, 0, "mapped");
}

#[test]
fn threads_map_store_read_and_write_side_by_side() {
    let device = device(16 * MIB, 16 << 10, ChecksumKind::Crc32c);
    let fs = mounted(&device);
    let file = create(&fs, b"file");
    write(&fs, file, 0, &vec![0; 4 * MIB as usize]);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let fs = &fs;
            scope.spawn(move || {
                for round in 1..20_u8 {
                    let mapping = match fs.map(file, thread * MIB, MIB, true) {
                        Ok(mapping) => mapping,
                        Err(error) => panic!("{error}"),
                    };
                    mapping.store(u64::from(round) * 4000, &[round; 3000]).expect("stored");
                    write(fs, file, thread * MIB + 900_000, &[round; 50_000]);
                    assert!(load(&mapping, 900_000, 50_000) == [round; 50_000]);
                    let seen = read(fs, file, thread * MIB + u64::from(round) * 4000, 3000);
                    assert!(seen == [round; 3000]);
                    mapping.unmap().expect("unmapped");
                    write(fs, file, thread * MIB + 500_000 + u64::from(round) * 100, &[round; 100]);
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..20 {
                fs.write_back_all().expect("written back");
                let mut scrub = fs.scrub();
                while fs.scrub_step(&mut scrub) {}
                assert_eq!(scrub.findings().len(), 0);
            }
        });
    });
    for thread in 0..4_u64 {
        for round in 1..20_u8 {
            assert!(read(&fs, file, thread * MIB + u64::from(round) * 4000, 3000) == [round; 3000]);
            assert!(read(&fs, file, thread * MIB + 500_000 + u64::from(round) * 100, 100) == [round; 100]);
        }
    }
    fs.unmount().expect("unmounts");
    is_checked(&device, 0, "side by side");
}

/// Real mappings of a file, in place of the recorded ones of the other tests.
#[test]
fn a_file_of_a_real_device_is_mapped_into_the_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("memory");
    std::fs::File::create(&path).and_then(|file| file.set_len(64 * MIB)).expect("a file");
    let device = open_device(&format!("memory={}", path.display()), &DeviceOptions::default()).expect("opens");
    let drive = Drive::new(device);
    make_file_system(&drive, &FormatOptions { block_bytes: 16 << 10, ..FormatOptions::default() }).expect("mkfs");
    let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
    let file = create(&fs, b"file");
    let mut content = mixed(&fs, file);
    let mapping = fs.map(file, 0, content.len() as u64, true).expect("mapped");
    assert!(mapping.memory().address().is_some());
    assert!(load(&mapping, 0, content.len()) == content);
    let bytes = fill(3, 2 * MIB as usize);
    mapping.store(MIB + 5, &bytes).expect("stored");
    content[MIB as usize + 5..][..bytes.len()].copy_from_slice(&bytes);
    assert!(read(&fs, file, 0, content.len()) == content);
    mapping.sync(0, mapping.length()).expect("durable");
    mapping.unmap().expect("unmapped");
    assert!(read(&fs, file, 0, content.len()) == content);
    fs.unmount().expect("unmounts");
}

/// What a program sees of a file through a mapping that begins at `offset`, as far as the file reaches.
fn is_seen(mapping: &FileMapping<'_>, offset: usize, content: &[u8], what: &str) {
    let end = content.len().min(offset + mapping.length() as usize);
    if offset < end {
        assert!(load(mapping, 0, end - offset) == content[offset..end], "{what}");
    }
}

/// Truncation, growth, punching, zeroing, allocation, writes and appends, in random order, of files that are mapped in parts.
#[test]
fn changes_of_mapped_files_are_those_of_others() {
    for (block_bytes, zone, kind, mapping_unit) in [
        (4 << 10, 16 * MIB, ChecksumKind::Crc32c, PAGE),
        (16 << 10, 0, ChecksumKind::Crc32c, PAGE),
        (16 << 10, 0, ChecksumKind::None, PAGE),
        (64 << 10, 16 * MIB, ChecksumKind::Crc32c, PAGE),
        (1 << 20, 0, ChecksumKind::Crc32c, 2 * MIB),
    ] {
        let device = Arc::new(device(zone, block_bytes, kind).fork().mapped_in_steps_of(mapping_unit));
        let fs = mounted(&device);
        let file = create(&fs, b"file");
        let block = block_bytes as usize;
        let mut random = Random::new(u64::from(block_bytes));
        for round in 0..if mapping_unit == PAGE { 6 } else { 2 } {
            let mut content = fill(round, 6 * block + 1234);
            fs.set_attributes(file, &size(0)).expect("emptied");
            write(&fs, file, 0, &content);
            let stored = fs.map(file, 0, 3 * block as u64, true).expect("mapped");
            let loaded = fs.map(file, 2 * block as u64, content.len() as u64 - 2 * block as u64, round % 2 == 0).expect("mapped");
            for step in 0..60 {
                let at = random.below(8 * block as u64) as usize;
                let most = [100, 5000, 2 * block as u64][random.below(3) as usize];
                let length = 1 + random.below(most) as usize;
                let bytes = fill(random.below(u64::MAX), length);
                let what = format!("blocks of {block}, {kind:?}, round {round}, step {step}: {length} B at {at} of {}", content.len());
                match random.below(8) {
                    0 | 1 => {
                        fs.set_attributes(file, &size(at as u64)).unwrap_or_else(|error| panic!("size, {what}: {error}"));
                        content.resize(at, 0);
                    }
                    2 => {
                        assert_eq!(fs.write(file, at as u64, &bytes, WriteOptions::default()).expect(&what), length, "{what}");
                        content.resize(content.len().max(at + length), 0);
                        content[at..at + length].copy_from_slice(&bytes);
                    }
                    3 if content.len() < 10 * block => {
                        let appended = fs.append(file, &bytes, WriteOptions::default()).expect(&what);
                        assert_eq!(appended, (length, (content.len() + length) as u64), "{what}");
                        content.extend_from_slice(&bytes);
                    }
                    4 | 5 => {
                        let mode = [AllocateMode::Punch, AllocateMode::Zero { keep_size: true }][random.below(2) as usize];
                        fs.allocate(file, at as u64, length as u64, mode).expect(&what);
                        let end = content.len().min(at + length);
                        content[at.min(end)..end].fill(0);
                    }
                    6 => {
                        let keep_size = random.below(2) == 0;
                        fs.allocate(file, at as u64, length as u64, AllocateMode::Allocate { keep_size }).expect(&what);
                        content.resize(content.len().max(if keep_size { 0 } else { at + length }), 0);
                    }
                    _ => {
                        // Also behind the end, where it is no part of the file.
                        let at = at % (3 * block - length.min(3 * block - 1));
                        let bytes = &bytes[..length.min(3 * block - at)];
                        stored.store(at as u64, bytes).expect("stored");
                        let end = content.len().min(at + bytes.len());
                        if at < end {
                            content[at..end].copy_from_slice(&bytes[..end - at]);
                        }
                    }
                }
                assert!(read(&fs, file, 0, 20 * block) == content, "{what}");
                is_seen(&stored, 0, &content, &what);
                is_seen(&loaded, 2 * block, &content, &what);
            }
            drop(stored);
            assert!(read(&fs, file, 0, 20 * block) == content, "round {round}: one mapping is gone");
            drop(loaded);
            assert!(read(&fs, file, 0, 20 * block) == content, "round {round}: nothing is mapped");
            let grown = content.len() + block;
            fs.set_attributes(file, &size(grown as u64)).expect("grown");
            content.resize(grown, 0);
            assert!(read(&fs, file, 0, 20 * block) == content, "round {round}: it has grown");
        }
        fs.unmount().expect("unmounts");
        is_checked(&device, 0, "changed");
    }
}

/// Pages that a truncation leaves to the file are given back by the next one, and punching needs no room.
#[test]
fn mapped_files_are_cut_and_punched_on_a_full_zone() {
    let device = device(0, 64 << 10, ChecksumKind::Crc32c);
    let fs = mounted(&device);
    let file = create(&fs, b"file");
    write(&fs, file, 0, &fill(1, 4 * MIB as usize));
    let mapping = fs.map(file, 0, 4 * MIB, true).expect("mapped");
    let other = create(&fs, b"other");
    let mut at = 0;
    while fs.write(other, at, &fill(2, 65_536), WriteOptions::default()).is_ok() {
        at += 65_536;
    }
    fs.allocate(file, 1000, 100_000, AllocateMode::Punch).expect("punched");
    assert!(load(&mapping, 1000, 100_000).iter().all(|byte| *byte == 0));
    fs.set_attributes(file, &size(MIB + 5)).expect("cut");
    fs.set_attributes(file, &size(4 * MIB)).expect("grown over its own pages");
    assert!(load(&mapping, MIB + 5, 3 * MIB as usize - 5).iter().all(|byte| *byte == 0));
    fs.set_attributes(file, &size(0)).expect("cut");
    let taken = fs.attributes(file).expect("known").space_512;
    assert_eq!(taken, 4 * MIB / 512, "mapped pages stay the file's");
    drop(mapping);
    fs.set_attributes(file, &size(0)).expect("cut again");
    assert_eq!(fs.attributes(file).expect("known").space_512, 0);
    fs.unmount().expect("unmounts");
    is_checked(&device, 0, "full");
}

/// A version for each thing.
#[derive(Default)]
struct Table(Mutex<HashMap<u64, u64>>);

struct Publishing(Arc<Table>);

impl Versions for Publishing {
    fn raise(&self, thing: u64) {
        *self.0.0.lock().expect("not poisoned").entry(thing).or_default() += 1;
    }

    fn current(&self, thing: u64) -> (u32, u64) {
        (thing as u32, self.0.0.lock().expect("not poisoned").get(&thing).copied().unwrap_or_default())
    }
}

/// [VS4] of `versions.rs`.
#[test]
fn bytes_that_were_read_are_not_kept_of_a_file_that_is_mapped() {
    /// Whether bytes that were read before a mapping may still be kept, and whether those that are read meanwhile may.
    fn kept() -> (bool, bool) {
        let device = device(16 * MIB, 4096, ChecksumKind::Crc32c);
        let (fs, table) = (mounted(&device), Arc::<Table>::default());
        assert!(fs.publish(Box::new(Publishing(Arc::clone(&table)))));
        let file = create(&fs, b"file");
        write(&fs, file, 0, &[1; 20_000]);
        drop(fs.map(file, 4096, 4096, true).expect("mapped")); // nothing is to be moved or opened by the next one
        let looked = || fs.noting(|| read(&fs, file, 4096, 100), |_, noted| noted.versions(None).collect::<Vec<_>>());
        let before = looked();
        assert!(!before.is_empty() && looked() == before);
        let mapping = fs.map(file, 4096, 4096, false).expect("mapped");
        let meanwhile = looked();
        mapping.unmap().expect("unmapped");
        let after = looked();
        assert!(!after.is_empty());
        (before == after, !meanwhile.is_empty())
    }
    assert_eq!(kept(), (false, false));
}
