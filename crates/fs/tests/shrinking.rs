//! Shrinking zones: what lies behind the new ends moves, a power cut leaves the old sizes or the new ones with every byte, and what does not fit
//! changes nothing.

mod support;

use std::collections::{HashMap, HashSet};

use support::{drive, mount, sizes};
use tandemfs_crash::{MemoryDevice, Random, Recorded, Tree, check_device, each_state, fill, fill_with_blocks, works};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{
    AllocateMode, Error, FileSystem, FormatOptions, Growth, Home, NewInode, SetExtendedAttribute, WriteOptions, grow, make_file_system,
    read_superblock, shrink,
};

const MIB: u64 = 1 << 20;

fn new(kind: u16) -> NewInode<'static> {
    NewInode { mode: kind | 0o700, uid: 0, gid: 0, rdev: 0, target: b"" }
}

fn formatted(memory: u64, block: u64, domain: PersistenceDomain) -> MemoryDevice {
    let device = MemoryDevice::new(memory * MIB, block * MIB, domain);
    make_file_system(&drive(&device), &FormatOptions { block_bytes: 16 << 10, ..FormatOptions::default() }).expect("mkfs");
    device
}

/// A file with bytes, of which some are written again as data logs.
fn make(fs: &FileSystem, parent: InodeNumber, name: &str, seed: u64, bytes: usize) -> tandemfs_fs::Result<InodeNumber> {
    let inode = fs.create(parent, name.as_bytes(), &new(file_type::REGULAR))?.inode;
    for (at, piece) in (0..).step_by(1 << 20).zip(fill(seed, bytes).chunks(1 << 20)) {
        fs.write(inode, at, piece, WriteOptions::default())?;
    }
    if bytes > 5000 {
        fs.write(inode, 3000, &fill(seed + 1, 700), WriteOptions::default())?;
    }
    Ok(inode)
}

/// Directories with files of all kinds, most of which are removed: what is left lies everywhere.
fn scattered(device: &MemoryDevice, files: u64, bytes: usize, keep_one_in: u64) {
    let fs = mount(device);
    let mut directory = InodeNumber::ROOT;
    let mut made = Vec::new();
    for number in 0..files {
        if number % 300 == 0 {
            directory = fs.create(InodeNumber::ROOT, format!("dir {number}").as_bytes(), &new(file_type::DIRECTORY)).expect("made").inode;
        }
        let name = format!("file {number}");
        let size = if number % 3 == 0 { bytes } else { number as usize % 3000 };
        let inode = make(&fs, directory, &name, number, size).expect("made");
        if number % 11 == 0 {
            fs.set_extended_attribute(inode, b"user.long", &fill(number, 900), SetExtendedAttribute::default()).expect("set");
        }
        if number % 13 == 0 {
            fs.allocate(inode, 1 << 20, 100_000, AllocateMode::Allocate { keep_size: false }).expect("allocated");
        }
        made.push((directory, name));
    }
    for (number, (directory, name)) in made.iter().enumerate() {
        if !(number as u64).is_multiple_of(keep_one_in) {
            fs.unlink(*directory, name.as_bytes()).expect("removed");
        }
    }
    fs.unmount().expect("unmounts");
}

fn tree(device: &MemoryDevice) -> Tree {
    Tree::read(&mount(&device.fork())).expect("reads")
}

/// `check` finds nothing, the files are unchanged, everything works, fills, and grows again.
fn is_sound(device: &MemoryDevice, tree: &Tree) {
    check_device(device, false).expect("check finds nothing");
    let fs = mount(&device.fork());
    assert!(fs.recovery().clean, "the saved maps are taken");
    assert_eq!(Tree::read(&fs).expect("reads").difference(tree), None);
    works(&fs, tree).expect("works");
    let again = device.fork();
    let fs = mount(&again);
    fill_with_blocks(&fs, b"fill").expect("fills");
    fs.unmount().expect("unmounts");
    check_device(&again, false).expect("check finds nothing after it was filled");
    grow(&drive(&again), &Growth::default()).expect("grows");
    check_device(&again, false).expect("check finds nothing after it has grown");
}

/// What is behind the new ends does not matter any more.
fn cut_off(device: &MemoryDevice, memory: u64, block: u64) -> MemoryDevice {
    let Recorded { memory: mut first, blocks: mut second } = device.zones();
    first.truncate((memory * MIB) as usize);
    second.truncate((block * MIB) as usize);
    MemoryDevice::from_zones(Recorded { memory: first, blocks: second }, device.domain())
}

#[test]
fn each_zone_shrinks_and_every_file_stays() {
    let device = formatted(64, 256, PersistenceDomain::Adr);
    scattered(&device, 3000, 90_000, 7);
    let before = tree(&device);
    for (memory, block) in [(None, Some(48)), (Some(40), None), (Some(44), Some(100)), (Some(63), Some(255)), (Some(36), Some(41))] {
        let device = device.fork();
        let (old, after) = shrink(&drive(&device), &sizes(memory, block)).unwrap_or_else(|error| panic!("{memory:?}, {block:?}: {error}"));
        assert_eq!((old.memory_bytes(), old.block_sectors()), (64 * MIB, 256 * 256));
        let (memory, block) = (memory.unwrap_or(64) / 2 * 2, block.unwrap_or(256));
        assert_eq!((after.memory_bytes(), after.block_sectors()), (memory * MIB, block * 256));
        let superblock = read_superblock(&drive(&device)).expect("reads");
        assert_eq!((superblock.geometry, superblock.clean), (after, true));
        is_sound(&device, &before);
        is_sound(&cut_off(&device, memory, block), &before);
        let again = shrink(&drive(&device), &sizes(Some(memory), Some(block))).expect("nothing to do");
        assert_eq!(again, (after, after));
    }
}

/// Makes so many files, of which few stay: those and their inodes. Their names were long ones in a directory that is gone, whose units lie between
/// those of the inodes.
fn units_of_inodes(fs: &FileSystem, files: u64) -> Vec<(String, InodeNumber)> {
    let names = fs.create(InodeNumber::ROOT, b"names", &new(file_type::DIRECTORY)).expect("made").inode;
    let long = |number: u64| format!("{number:0>240}");
    let mut kept = Vec::new();
    for number in 0..files {
        let inode = fs.create(names, long(number).as_bytes(), &new(file_type::REGULAR)).expect("made").inode;
        if number % 9000 == 8999 {
            let name = format!("kept {number}");
            fs.link(inode, InodeNumber::ROOT, name.as_bytes()).expect("linked");
            fs.write(inode, 0, &fill(number, 9000), WriteOptions::default()).expect("written");
            kept.push((name, inode));
        }
    }
    (0..files).for_each(|number| fs.unlink(names, long(number).as_bytes()).expect("removed"));
    fs.remove_directory(InodeNumber::ROOT, b"names").expect("removed");
    kept
}

/// Many units of inodes, of which a few are used: they lie behind the new end, and keep their numbers.
#[test]
fn units_of_inodes_move_and_numbers_stay() {
    let device = formatted(128, 64, PersistenceDomain::Adr);
    let fs = mount(&device);
    let kept = units_of_inodes(&fs, 80_000);
    fs.unmount().expect("unmounts");
    let before = tree(&device);
    // Five units of inodes, a fixed one, and one or two of each other kind.
    let (_, after) = shrink(&drive(&device), &sizes(Some(26), None)).expect("shrinks");
    assert_eq!(after.memory_bytes(), 26 * MIB);
    let fs = mount(&device.fork());
    for (name, inode) in &kept {
        assert_eq!(fs.lookup(InodeNumber::ROOT, name.as_bytes()).expect("there").inode, *inode);
    }
    is_sound(&device, &before);
    is_sound(&cut_off(&device, 26, 64), &before);
}

/// Files of the memory zone, at home and in runs, and map pieces in units of their own.
#[test]
fn extents_of_the_memory_zone_and_map_pieces_move() {
    let device = formatted(44, 32, PersistenceDomain::Adr);
    let fs = mount(&device);
    fs.enable_homes().expect("enabled");
    for number in 0..30_u64 {
        let inode = fs.create(InodeNumber::ROOT, format!("file {number}").as_bytes(), &new(file_type::REGULAR)).expect("made").inode;
        fs.set_home(inode, Home::Memory).expect("set");
        fs.write(inode, 0, &fill(number, 300_000 + 7000 * number as usize), WriteOptions::default()).expect("written");
    }
    fs.unmount().expect("unmounts");
    let zones = device.zones();
    let mut memory = zones.memory;
    memory.resize((160 * MIB) as usize, 0xdb);
    let device = MemoryDevice::from_zones(Recorded { memory, blocks: zones.blocks }, PersistenceDomain::Adr);
    let (_, grown) = grow(&drive(&device), &Growth::default()).expect("grows");
    assert!(grown.map_unit() > 0);
    let fs = mount(&device);
    for number in 30..90_u64 {
        let inode = fs.create(InodeNumber::ROOT, format!("file {number}").as_bytes(), &new(file_type::REGULAR)).expect("made").inode;
        fs.set_home(inode, Home::Memory).expect("set");
        fs.write(inode, 0, &fill(number, 1_300_000), WriteOptions::default()).expect("written");
    }
    for number in (0..90_u64).filter(|number| number % 4 > 0) {
        fs.unlink(InodeNumber::ROOT, format!("file {number}").as_bytes()).expect("removed");
    }
    fs.unmount().expect("unmounts");
    let before = tree(&device);
    // The map pieces are at unit 22: they stay where they are, then they move to the new end.
    for (memory, unit) in [(80, 22), (44, 21)] {
        let device = device.fork();
        let (_, after) = shrink(&drive(&device), &sizes(Some(memory), None)).expect("shrinks");
        assert_eq!((after.memory_bytes(), after.map_unit()), (memory * MIB, unit));
        is_sound(&device, &before);
        is_sound(&cut_off(&device, memory, 32), &before);
    }
}

#[test]
fn what_does_not_fit_changes_nothing() {
    let device = formatted(32, 64, PersistenceDomain::Adr);
    let fs = mount(&device);
    make(&fs, InodeNumber::ROOT, "large", 3, 30 << 20).expect("made");
    fs.unmount().expect("unmounts");
    let before = tree(&device);
    let old = read_superblock(&drive(&device)).expect("reads").geometry;
    for (wanted, said) in [
        (sizes(None, Some(28)), "does not fit into 28 MiB"),
        (sizes(Some(16), Some(28)), "does not fit"),
        (sizes(Some(8), None), "too small"),
        (sizes(None, Some(2)), "too small"),
        (sizes(None, Some(0)), "taken away"),
        (sizes(Some(64), Some(48)), "one zone cannot grow"),
    ] {
        let why = shrink(&drive(&device), &wanted).expect_err("refused").to_string();
        assert!(why.contains(said) && !why.contains('\n'), "{why}");
        let superblock = read_superblock(&drive(&device)).expect("reads");
        assert!(superblock.clean && superblock.geometry == old, "{why}");
    }
    is_sound(&device, &before);
    let (_, after) = shrink(&drive(&device), &sizes(Some(20), Some(36))).expect("fits");
    assert_eq!((after.memory_bytes(), after.block_sectors()), (20 * MIB, 36 * 256));
    is_sound(&device, &before);
}

/// A zone that is nearly full in holes: whatever shrinks, and whatever is refused, keeps every byte.
#[test]
fn nearly_full_zones_shrink_or_say_why_not() {
    let device = formatted(32, 48, PersistenceDomain::Adr);
    scattered(&device, 1500, 60_000, 2);
    let before = tree(&device);
    let (mut smallest, mut refused) = (u64::MAX, 0);
    for block in (8..48).rev().step_by(3) {
        let device = device.fork();
        match shrink(&drive(&device), &sizes(None, Some(block))) {
            Ok(_) => smallest = smallest.min(block),
            Err(error @ Error::DoesNotFit { .. }) => {
                refused += 1;
                let superblock = read_superblock(&drive(&device)).expect("reads");
                assert!(superblock.clean && superblock.geometry.block_sectors() == 48 * 256, "{error}");
            }
            Err(error) => panic!("{block} MiB: {error}"),
        }
        is_sound(&device, &before);
    }
    for memory in (16..32).rev().step_by(2) {
        let device = device.fork();
        match shrink(&drive(&device), &sizes(Some(memory), None)) {
            Ok(_) => {}
            Err(Error::DoesNotFit { .. } | Error::Geometry { .. }) => refused += 1,
            Err(error) => panic!("{memory} MiB: {error}"),
        }
        is_sound(&device, &before);
    }
    assert!(smallest < 40 && refused > 0, "{smallest} MiB, {refused} refused");
}

/// After a power cut at any store of a shrink the device has the old or the new sizes and all files, and the same shrink goes on.
#[test]
fn a_power_cut_leaves_the_old_sizes_or_the_new_ones() {
    use PersistenceDomain::{Adr, Gpf};
    for (domain, budget) in [(Adr, 4), (Gpf, 1)] {
        let device = formatted(32, 48, domain);
        let fs = mount(&device);
        // Units of inodes behind the new end, in which few are left.
        units_of_inodes(&fs, 40_000);
        for number in 0..60_u64 {
            make(&fs, InodeNumber::ROOT, &format!("file {number}"), number, 200_000).expect("made");
        }
        for number in (0..60_u64).filter(|number| number % 3 > 0) {
            fs.unlink(InodeNumber::ROOT, format!("file {number}").as_bytes()).expect("removed");
        }
        fs.unmount().expect("unmounts");
        let before = tree(&device);
        let start = device.fork();
        device.start_recording();
        let wanted = sizes(Some(20), Some(12));
        let (old, new) = shrink(&drive(&device), &wanted).expect("shrinks");
        let events = device.stop_recording();
        let (mut seen, mut hashes) = (HashMap::new(), HashSet::new());
        each_state(&start, &events, 0, budget, &mut Random::new(7), &mut |cut, state| {
            if !hashes.insert(state.hash) {
                return;
            }
            let superblock = read_superblock(&drive(&state.device)).unwrap_or_else(|error| panic!("{cut:?}: {error}"));
            assert!(superblock.geometry == old || superblock.geometry == new, "{cut:?}: {:?}", superblock.geometry);
            let count = seen.entry(superblock.geometry == old).or_insert(0);
            *count += 1;
            if *count > 150 && *count % 9 > 0 {
                return;
            }
            check_device(&state.device, true).unwrap_or_else(|what| panic!("{cut:?}: {what}"));
            assert_eq!(tree(&state.device).difference(&before), None, "{cut:?}");
            if hashes.len() % 54 == 1 {
                let (_, shrunk) = shrink(&drive(&state.device), &wanted).unwrap_or_else(|error| panic!("{cut:?}: {error}"));
                assert_eq!(shrunk, new);
                is_sound(&state.device, &before);
            }
        });
        eprintln!("{domain}: {} states, {seen:?} looked at", hashes.len());
        assert!(seen.get(&true).is_some_and(|count| *count > 100) && seen.contains_key(&false), "{seen:?}");
    }
}
