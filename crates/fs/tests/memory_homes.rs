//! Files whose home is the memory zone: which path their bytes take, inheritance, full zones, damage, moving.

use std::sync::Arc;

use tandemfs_crash::{MemoryDevice, Recorded, check_device, fill};
use tandemfs_device::{Drive, PersistenceDomain, Structure};
use tandemfs_format::inode::file_type;
use tandemfs_format::superblock::incompat;
use tandemfs_format::{InodeNumber, LineAddress};
use tandemfs_fs::{
    AllocateMode, Error, FileSystem, FormatOptions, Growth, Home, LayoutOptions, LayoutPlace, MountOptions, NewInode, ScrubbedKind, SeekTo,
    SetAttributes, WriteOptions, grow, make_file_system, read_superblock,
};

const BLOCK: usize = 64 << 10;
const MIB: u64 = 1 << 20;

fn device(block_bytes: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(32 * MIB, block_bytes, PersistenceDomain::Adr));
    make_file_system(&Drive::new(device.clone()), &FormatOptions::default()).expect("mkfs");
    device
}

fn mounted(device: &Arc<MemoryDevice>) -> FileSystem {
    FileSystem::mount(Drive::new(device.clone()), &MountOptions::default()).expect("mounts")
}

fn create(fs: &FileSystem, parent: InodeNumber, name: &[u8], kind: u16) -> InodeNumber {
    fs.create(parent, name, &NewInode { mode: kind | 0o700, uid: 0, gid: 0, rdev: 0, target: b"" }).expect("made").inode
}

/// A file that lies in the memory zone.
fn at_home(fs: &FileSystem) -> InodeNumber {
    let file = create(fs, InodeNumber::ROOT, b"file", file_type::REGULAR);
    fs.set_home(file, Home::Memory).expect("has a home");
    file
}

fn write(fs: &FileSystem, file: InodeNumber, offset: usize, bytes: &[u8]) {
    assert_eq!(fs.write(file, offset as u64, bytes, WriteOptions::default()).expect("written"), bytes.len());
}

fn read(fs: &FileSystem, file: InodeNumber, offset: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let count = fs.read(file, offset as u64, &mut bytes).expect("read");
    bytes.truncate(count);
    bytes
}

fn move_all(fs: &FileSystem, file: InodeNumber) -> Result<(), Error> {
    let mut block = Some(0);
    while let Some(at) = block {
        block = fs.move_home(file, at)?;
    }
    Ok(())
}

fn pages(fs: &FileSystem) -> u64 {
    fs.space().memory.extent_bytes / 4096
}

/// Sectors in use beside those of an empty file system.
fn sectors(fs: &FileSystem) -> u64 {
    let block = fs.space().block;
    (block.total_bytes - block.free_bytes) / 4096
}

#[test]
fn its_bytes_are_stored_and_loaded_and_no_block_request_is_made() {
    let fs = mounted(&device(16 * MIB));
    let file = at_home(&fs);
    let content = fill(1, 5 * BLOCK + 3000);
    fs.drive().counters().reset();
    write(&fs, file, 0, &content);
    write(&fs, file, 100, &content[..700]);
    let expected = [&content[..100], &content[..700], &content[800..]].concat();
    for (offset, length) in [(0, content.len()), (50, 1), (4096, 4096), (BLOCK - 10, 20), (5 * BLOCK, 3000), (777, 2 * BLOCK)] {
        assert!(read(&fs, file, offset, length) == expected[offset..offset + length], "{length} B from {offset}");
    }
    let data = fs.drive().counters().snapshot();
    assert_eq!((data.block_reads, data.block_writes), (0, 0), "{data:?}");
    assert_eq!((pages(&fs), sectors(&fs)), (5 * 16, 0), "whole blocks are pages, the rest is data logs");
    assert_eq!(fs.statistics().work.home_written_bytes, 5 * BLOCK as u64);
    fs.write_back_all().expect("written back");
    assert_eq!((pages(&fs), sectors(&fs), fs.space().memory.data_log_bytes), (5 * 16 + 1, 0, 0), "logs become pages");
    assert!(read(&fs, file, 0, content.len()) == expected);
}

#[test]
fn what_is_made_in_a_directory_has_its_home() {
    let device = device(16 * MIB);
    let fs = mounted(&device);
    let directory = create(&fs, InodeNumber::ROOT, b"d", file_type::DIRECTORY);
    let before = create(&fs, directory, b"before", file_type::REGULAR);
    fs.set_home(directory, Home::Memory).expect("has a home");
    let below = create(&fs, directory, b"below", file_type::DIRECTORY);
    let file = create(&fs, below, b"file", file_type::REGULAR);
    let fifo = create(&fs, directory, b"fifo", file_type::FIFO);
    fs.unmount().expect("unmounts");
    let fs = mounted(&device);
    let homes = [directory, below, file, before, fifo, InodeNumber::ROOT].map(|number| fs.home(number).expect("there"));
    assert_eq!(homes, [Home::Memory, Home::Memory, Home::Memory, Home::Auto, Home::Auto, Home::Auto]);
    assert!(matches!(fs.set_home(fifo, Home::Block), Err(Error::InvalidArgument(_))));
    fs.set_home(below, Home::Auto).expect("has no home");
    let other = create(&fs, below, b"other", file_type::REGULAR);
    assert_eq!(fs.home(other).expect("there"), Home::Auto);
}

#[test]
fn the_feature_is_gained_with_the_first_home_and_kept() {
    let device = device(16 * MIB);
    let has = || read_superblock(&Drive::new(device.clone())).expect("there").incompat & incompat::MEMORY_HOME != 0;
    let fs = mounted(&device);
    let file = create(&fs, InodeNumber::ROOT, b"file", file_type::REGULAR);
    fs.set_home(file, Home::Auto).expect("as it was");
    assert!(!has());
    fs.set_home(file, Home::Memory).expect("has a home");
    assert!(has(), "durable when the call returns");
    fs.set_home(file, Home::Auto).expect("has no home");
    fs.unmount().expect("unmounts");
    assert!(has(), "never cleared");
}

#[test]
fn where_the_memory_zone_is_full_the_block_zone_serves() {
    let fs = mounted(&device(64 * MIB));
    let file = at_home(&fs);
    let block = |number: usize| fill(number as u64, BLOCK);
    let blocks = 600;
    for number in 0..blocks {
        write(&fs, file, number * BLOCK, &block(number));
    }
    let in_memory = pages(&fs) / 16;
    assert!(in_memory > 100 && sectors(&fs) == (blocks as u64 - in_memory) * 16, "{in_memory} blocks in the memory zone");
    // Rewriting what lies there needs no room elsewhere (RULES R14).
    let sectors_before = sectors(&fs);
    for number in 0..50 {
        write(&fs, file, number * BLOCK, &block(number + 1000));
    }
    assert_eq!((pages(&fs) / 16, sectors(&fs)), (in_memory, sectors_before));
    assert!(matches!(move_all(&fs, file), Err(Error::NoSpace { zone: "memory" })), "nothing more fits");
    fs.allocate(file, 0, 100 * BLOCK as u64, AllocateMode::Punch).expect("punched");
    assert!(matches!(move_all(&fs, file), Err(Error::NoSpace { .. })), "what fits moves into what became free");
    assert!(pages(&fs) / 16 > in_memory - 5 && sectors(&fs) < sectors_before);
    for number in 100..blocks {
        assert!(read(&fs, file, number * BLOCK, BLOCK) == block(number), "block {number}");
    }
}

#[test]
fn moving_changes_nothing_but_the_place() {
    let device = device(16 * MIB);
    let fs = mounted(&device);
    let file = create(&fs, InodeNumber::ROOT, b"file", file_type::REGULAR);
    let content = fill(3, 3 * BLOCK + 100);
    write(&fs, file, 0, &content);
    write(&fs, file, 500, &content[..3000]);
    let expected = [&content[..500], &content[..3000], &content[3500..]].concat();
    fs.allocate(file, 6 * BLOCK as u64, 2 * BLOCK as u64, AllocateMode::Allocate { keep_size: true }).expect("given out");
    fs.write_back_all().expect("written back");
    let attributes = fs.attributes(file).expect("there");
    for (home, in_memory) in [(Home::Memory, true), (Home::Auto, true), (Home::Block, false), (Home::Memory, true)] {
        fs.set_home(file, home).expect("has a home");
        move_all(&fs, file).expect("moved");
        let (pages, sectors) = (pages(&fs), sectors(&fs));
        let all = 3 * 16 + 1 + 2 * 16;
        assert_eq!((pages, sectors), if in_memory { (all, 0) } else { (0, all) }, "{home:?}");
        assert!(read(&fs, file, 0, content.len()) == expected, "{home:?}");
        let now = fs.attributes(file).expect("there");
        assert_eq!((now.mtime, now.size, now.space_512), (attributes.mtime, attributes.size, attributes.space_512));
    }
    // Room that was given out is still room: filling it takes nothing.
    let hole = fs.seek(file, 3 * BLOCK as u64 + 4096, SeekTo::Data);
    assert_eq!(hole.expect("seeks"), None, "unwritten pages hold no data");
    let before = pages(&fs);
    write(&fs, file, 6 * BLOCK, &fill(4, 2 * BLOCK));
    assert_eq!((pages(&fs), sectors(&fs)), (before, 0));
    fs.unmount().expect("unmounts");
    let fs = mounted(&device);
    assert!(fs.recovery().clean && pages(&fs) == before && read(&fs, file, 0, 3 * BLOCK) == expected[..3 * BLOCK]);
    fs.set_attributes(file, &SetAttributes { size: Some(5), ..SetAttributes::default() }).expect("cut");
    assert_eq!((pages(&fs), read(&fs, file, 0, 100)), (1, expected[..5].to_vec()));
}

#[test]
fn a_layout_says_that_pages_are_read_through_the_file_system() {
    let fs = mounted(&device(16 * MIB));
    let file = at_home(&fs);
    write(&fs, file, 0, &fill(1, BLOCK));
    let layout = fs.layout(file, 0, BLOCK as u64, LayoutOptions::default(), || {}).expect("given");
    let places: Vec<_> = layout.extents().iter().map(|extent| extent.place).collect();
    assert_eq!(places, [LayoutPlace::ThroughFileSystem]);
}

#[test]
fn damage_of_a_page_is_an_error_and_is_scrubbed() {
    let device = device(16 * MIB);
    let fs = mounted(&device);
    let file = at_home(&fs);
    let content = fill(9, 2 * BLOCK);
    write(&fs, file, 0, &content);
    // The page with byte 70,000 of the file, wherever it lies.
    let page = &content[69_632..73_728];
    let mut bytes = vec![0; 4096];
    let found = (0..32 * MIB / 4096).map(|page| LineAddress::new(page * 64)).find(|address| {
        fs.drive().load(Structure::Data, *address, &mut bytes).expect("loads");
        bytes == page
    });
    let address = found.expect("in the memory zone");
    drop(fs.drive().persist(Structure::Data, address.nth(3), &[0x5a; 64]).expect("stores"));
    let result = fs.read(file, 70_000, &mut [0; 10]);
    assert!(matches!(result, Err(Error::DamagedData { offset: 69_632, .. })), "{result:?}");
    assert!(read(&fs, file, 0, BLOCK) == content[..BLOCK]);
    let mut scrub = fs.scrub();
    while fs.scrub_step(&mut scrub) {}
    let found: Vec<_> = scrub.findings().iter().map(|found| (found.kind, found.file_offset, found.device_offset)).collect();
    assert_eq!(found, [(ScrubbedKind::Pages, Some(69_632), address.offset_bytes())]);
    fs.set_home(file, Home::Block).expect("has a home");
    assert!(matches!(move_all(&fs, file), Err(Error::DamagedData { .. })), "damage stays where it is");
}

/// A zone that grows keeps what lies in it, saved maps included, and files use the new space.
#[test]
fn zones_grow_with_files_in_memory() {
    let device = MemoryDevice::new(32 * MIB, 16 * MIB, PersistenceDomain::Adr);
    make_file_system(&Drive::new(Arc::new(device.clone())), &FormatOptions::default()).expect("mkfs");
    let fs = mounted(&Arc::new(device.clone()));
    let file = at_home(&fs);
    let content = fill(5, 5 * MIB as usize + 3000);
    write(&fs, file, 0, &content);
    write(&fs, file, MIB as usize + 100, &content[..3000]);
    let expected = [&content[..MIB as usize + 100], &content[..3000], &content[MIB as usize + 3100..]].concat();
    fs.unmount().expect("unmounts");
    let Recorded { mut memory, mut blocks } = device.zones();
    memory.resize(64 * MIB as usize, 0xdb);
    blocks.resize(32 * MIB as usize, 0xdb);
    let grown = MemoryDevice::from_zones(Recorded { memory, blocks }, PersistenceDomain::Adr);
    grow(&Drive::new(Arc::new(grown.clone())), &Growth::default()).expect("grows");
    check_device(&grown, false).expect("check finds nothing");
    let fs = mounted(&Arc::new(grown.clone()));
    assert!(fs.recovery().clean && read(&fs, file, 0, expected.len()) == expected);
    write(&fs, file, 6 * MIB as usize, &fill(6, 30 * MIB as usize));
    assert_eq!((pages(&fs), sectors(&fs)), (35 * 256, 0), "more than the zone had before");
    fs.unmount().expect("unmounts");
    check_device(&grown, false).expect("check finds nothing after it was filled");
}

/// Map pieces that no longer fit behind the rings, while extents take every unit behind them: they go to the new units. Nothing shrinks.
#[test]
fn a_zone_full_of_extents_grows_past_its_map_pieces_and_does_not_shrink() {
    let device = MemoryDevice::new(44 * MIB, 4 * MIB, PersistenceDomain::Adr);
    make_file_system(&Drive::new(Arc::new(device.clone())), &FormatOptions::default()).expect("mkfs");
    let fs = mounted(&Arc::new(device.clone()));
    let file = at_home(&fs);
    let mut blocks = 0;
    while fs.space().block.free_bytes == fs.space().block.total_bytes {
        write(&fs, file, blocks * BLOCK, &fill(blocks as u64, BLOCK)); // until the memory zone has no room
        blocks += 1;
    }
    assert!(blocks * BLOCK > 20 * MIB as usize, "{blocks} blocks");
    let holds = |fs: &FileSystem| {
        (0..blocks).for_each(|block| assert!(read(fs, file, block * BLOCK, BLOCK) == fill(block as u64, BLOCK), "block {block}"));
    };
    fs.unmount().expect("unmounts");
    let Recorded { mut memory, blocks: sectors } = device.zones();
    memory.resize(64 * MIB as usize, 0xdb);
    let grown = MemoryDevice::from_zones(Recorded { memory, blocks: sectors }, PersistenceDomain::Adr);
    let drive = Drive::new(Arc::new(grown.clone()));
    let (_, after) = grow(&drive, &Growth::default()).expect("grows");
    assert_eq!((after.map_units(), after.memory_units()), (22..23, 32));
    check_device(&grown, false).expect("check finds nothing");
    let smaller = Growth { memory_bytes: Some(44 * MIB), block_bytes: None };
    assert!(matches!(grow(&drive, &smaller), Err(Error::Shrinks { zone: "memory", .. })));
    let fs = mounted(&Arc::new(grown.clone()));
    holds(&fs);
    // What had no room at home moves into the new units.
    fs.retry_moves();
    fs.set_home(file, Home::Memory).expect("has a home");
    while fs.move_homes().expect("moves") {}
    assert_eq!((fs.bytes_from_home(file).expect("known"), pages(&fs)), (0, blocks as u64 * 16));
    holds(&fs);
    fs.unmount().expect("unmounts");
    check_device(&grown, false).expect("check finds nothing after it was filled");
}
