//! Growing zones, and labels: old content stays, new space can be used, and a refused change changes nothing.

mod support;

use std::collections::{HashMap, HashSet};

use support::{drive, mount};
use tandemfs_crash::{MemoryDevice, Random, Recorded, Tree, check_device, each_state, fill, fill_with_blocks, works};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{Error, FormatOptions, Growth, NewInode, WriteOptions, grow, make_file_system, read_superblock, set_label};

const MIB: u64 = 1 << 20;

fn file() -> NewInode<'static> {
    NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" }
}

/// A file system with files, of `memory` and `block` MiB.
fn formatted(memory: u64, block: u64) -> MemoryDevice {
    let device = MemoryDevice::new(memory * MIB, block * MIB, PersistenceDomain::Adr);
    let options = FormatOptions { label: "before".into(), block_bytes: 16 << 10, ..FormatOptions::default() };
    make_file_system(&drive(&device), &options).expect("mkfs");
    let fs = mount(&device);
    for number in 0..20_u64 {
        let inode = fs.create(InodeNumber::ROOT, format!("file {number}").as_bytes(), &file()).expect("made").inode;
        fs.write(inode, number * 1000, &fill(number, 40_000), WriteOptions::default()).expect("written");
    }
    fs.unmount().expect("unmounts");
    device
}

/// The same zones on a larger device, whose new space holds old bytes.
fn enlarged(device: &MemoryDevice, memory: u64, block: u64) -> MemoryDevice {
    let Recorded { memory: mut first, blocks: mut second } = device.zones();
    first.resize((memory * MIB) as usize, 0xdb);
    second.resize((block * MIB) as usize, 0xdb);
    MemoryDevice::from_zones(Recorded { memory: first, blocks: second }, PersistenceDomain::Adr)
}

/// `check` finds nothing, the files are unchanged, everything can be filled, and then all of it can be freed.
fn is_sound(device: &MemoryDevice, tree: &Tree) -> u64 {
    check_device(device, false).expect("check finds nothing");
    let fs = mount(device);
    assert!(fs.recovery().clean, "the saved maps are taken");
    assert_eq!(Tree::read(&fs).expect("reads").difference(tree), None);
    let blocks = fill_with_blocks(&fs, b"fill").expect("fills");
    fs.unlink(InodeNumber::ROOT, b"fill").expect("removed");
    fs.unmount().expect("unmounts");
    check_device(device, false).expect("check finds nothing after it was filled");
    assert_eq!(Tree::read(&mount(device)).expect("reads").difference(tree), None);
    blocks
}

fn tree(device: &MemoryDevice) -> Tree {
    Tree::read(&mount(device)).expect("reads")
}

#[test]
fn each_zone_grows_and_all_of_it_is_used() {
    for (memory, block) in [(16, 64), (48, 16), (48, 64)] {
        let device = enlarged(&formatted(16, 16), memory, block);
        let before = tree(&device.fork());
        let old_blocks = is_sound(&device.fork(), &before);
        let (old, new) = grow(&drive(&device), &Growth::default()).expect("grows");
        assert_eq!((old.memory_bytes(), old.block_sectors()), (16 * MIB, 4096));
        assert_eq!((new.memory_bytes(), new.block_sectors()), (memory * MIB, block * 256));
        let superblock = read_superblock(&drive(&device)).expect("reads");
        assert_eq!((superblock.geometry, superblock.clean, superblock.label.as_str()), (new, true, "before"));
        let blocks = is_sound(&device, &before);
        if block > 16 {
            assert!(blocks as f64 > old_blocks as f64 * block as f64 / 16.0 * 0.9, "{blocks} blocks, {old_blocks} before");
        }
        assert_eq!(grow(&drive(&device), &Growth::default()).map(|(old, new)| old == new).ok(), Some(true), "nothing left to do");
    }
}

/// More map pieces than fit behind the rings: they move to units of their own, stay there while there is room, and the units behind the
/// rings become ordinary units.
#[test]
fn maps_that_have_no_room_move() {
    let mut device = formatted(16, 16);
    let before = tree(&device.fork());
    // A piece covers 2 MiB of the memory zone; there is room for 126 pieces behind the rings.
    for (memory, map_unit) in [(200, 0), (300, 100), (320, 100)] {
        device = enlarged(&device, memory, 16);
        let (_, new) = grow(&drive(&device), &Growth::default()).expect("grows");
        assert_eq!((new.map_unit(), new.fixed_units()), (map_unit, 1), "{memory} MiB");
        is_sound(&device, &before);
        // Without the saved maps: rebuilt from the tree.
        let crashed = device.fork();
        drop(mount(&crashed));
        let fs = mount(&crashed);
        assert!(!fs.recovery().clean);
        assert_eq!(Tree::read(&fs).expect("reads").difference(&before), None);
    }
}

/// After a power cut in a growth the device has the old or the new sizes and all files; it passes `check`, works, and can grow then.
#[test]
fn a_power_cut_leaves_the_old_sizes_or_the_new_ones() {
    use PersistenceDomain::{Adr, Gpf};
    // 44 MiB: the memory zone whose map pieces have the least room behind the rings.
    for (from, memory, block, domain, budget, least) in
        [(16, 32, 24, Adr, 200, 60), (16, 32, 24, Gpf, 16, 60), (44, 64, 16, Adr, 200, 60), (44, 64, 24, Gpf, 16, 60)]
    {
        let start = MemoryDevice::from_zones(enlarged(&formatted(from, 16), memory, block).zones(), domain);
        let before = tree(&start.fork());
        let device = start.fork();
        device.start_recording();
        let (old, new) = grow(&drive(&device), &Growth::default()).expect("grows");
        assert_eq!(new.map_unit() > 0, from == 44);
        let mut seen = HashMap::new();
        let mut hashes = HashSet::new();
        each_state(&start, &device.stop_recording(), 0, budget, &mut Random::new(7), &mut |cut, state| {
            if !hashes.insert(state.hash) {
                return;
            }
            let superblock = read_superblock(&drive(&state.device)).unwrap_or_else(|error| panic!("{cut:?}: {error}"));
            let sizes = if superblock.geometry == old { "old" } else { "new" };
            assert!(superblock.geometry == old || superblock.geometry == new, "{cut:?}: {:?}", superblock.geometry);
            *seen.entry((sizes, superblock.clean)).or_insert(0) += 1;
            check_device(&state.device, true).unwrap_or_else(|what| panic!("{cut:?}: {what}"));
            let fs = mount(&state.device);
            assert_eq!(Tree::read(&fs).expect("reads").difference(&before), None, "{cut:?}");
            works(&fs, &before).unwrap_or_else(|what| panic!("{cut:?}: {what}"));
            fs.unmount().expect("unmounts");
            let (_, grown) = grow(&drive(&state.device), &Growth::default()).expect("grows again");
            assert_eq!(grown, new, "{cut:?}");
            if hashes.len() % 40 == 1 {
                is_sound(&state.device, &before);
            }
        });
        assert!(hashes.len() >= least, "{} states of {memory} MiB, {domain}: {seen:?}", hashes.len());
        for state in [("old", false), ("new", true)] {
            assert!(seen.get(&state).is_some_and(|count| *count > 1), "{state:?}: {seen:?}");
        }
        assert!(!seen.contains_key(&("new", false)), "{seen:?}");
    }
}

#[test]
fn a_power_cut_leaves_the_old_label_or_the_new_one() {
    let start = formatted(16, 16);
    let before = tree(&start.fork());
    let device = start.fork();
    device.start_recording();
    set_label(&drive(&device), "after").expect("set");
    let mut seen = HashSet::new();
    each_state(&start, &device.stop_recording(), 0, 400, &mut Random::new(3), &mut |cut, state| {
        let superblock = read_superblock(&drive(&state.device)).unwrap_or_else(|error| panic!("{cut:?}: {error}"));
        assert!(superblock.clean);
        seen.insert(superblock.label);
        check_device(&state.device, true).unwrap_or_else(|what| panic!("{cut:?}: {what}"));
        let fs = mount(&state.device);
        assert!(fs.recovery().clean, "the maps are valid still");
        assert_eq!(Tree::read(&fs).expect("reads").difference(&before), None, "{cut:?}");
    });
    assert_eq!(seen, HashSet::from(["before".to_owned(), "after".to_owned()]));
}

#[test]
fn sizes_that_cannot_be_are_refused_and_nothing_is_changed() {
    let device = enlarged(&formatted(16, 16), 32, 32);
    let before = tree(&device.fork());
    let sizes = |memory: Option<u64>, block: Option<u64>| Growth { memory_bytes: memory, block_bytes: block };
    for (growth, said) in [
        (sizes(Some(14 * MIB), None), "cannot shrink"),
        (sizes(None, Some(16 * MIB - 4096)), "cannot shrink"),
        (sizes(Some(0), Some(0)), "cannot shrink"),
        (sizes(Some(64 * MIB), None), "less than"),
        (sizes(None, Some(u64::MAX)), "less than"),
        (sizes(Some(32 * MIB), Some(14 * MIB)), "cannot shrink"),
    ] {
        let why = grow(&drive(&device), &growth).expect_err("refused").to_string();
        assert!(why.contains(said) && !why.contains('\n'), "{why}");
        let superblock = read_superblock(&drive(&device)).expect("reads");
        assert!(superblock.clean && superblock.geometry.memory_bytes() == 16 * MIB && superblock.geometry.block_sectors() == 4096);
    }
    is_sound(&device, &before);
    // One zone alone; sizes are rounded down to units and sectors.
    let (_, new) = grow(&drive(&device), &sizes(None, Some(20 * MIB + 5))).expect("grows");
    assert_eq!((new.memory_bytes(), new.block_sectors()), (16 * MIB, 5120));
    let (_, new) = grow(&drive(&device), &sizes(Some(19 * MIB), None)).expect("grows");
    assert_eq!((new.memory_bytes(), new.block_sectors()), (18 * MIB, 5120));
    is_sound(&device, &before);
}

/// A file system that was not unmounted is recovered first.
#[test]
fn a_crashed_file_system_grows_too() {
    let device = formatted(16, 16);
    let fs = mount(&device);
    fs.create(InodeNumber::ROOT, b"in the journal", &file()).expect("made");
    let before = Tree::read(&fs).expect("reads");
    drop(fs);
    let device = enlarged(&device, 32, 32);
    assert!(!read_superblock(&drive(&device)).expect("reads").clean);
    grow(&drive(&device), &Growth::default()).expect("grows");
    is_sound(&device, &before);
}

#[test]
fn labels_are_set_and_bounds_are_kept() {
    let device = formatted(16, 16);
    let before = tree(&device.fork());
    let longest = "ü".repeat(32);
    for label in ["", "mail", &longest, "spool of the night"] {
        set_label(&drive(&device), label).expect("set");
        let superblock = read_superblock(&drive(&device)).expect("reads");
        assert_eq!((superblock.label.as_str(), superblock.clean), (label, true));
        check_device(&device, false).expect("check finds nothing");
    }
    for label in ["x".repeat(65), "ü".repeat(33), "a\0b".into()] {
        assert!(matches!(set_label(&drive(&device), &label), Err(Error::Label)), "{label:?}");
    }
    assert_eq!(read_superblock(&drive(&device)).expect("reads").label, "spool of the night");
    is_sound(&device, &before);
    // A file system that was not unmounted keeps the changes in its journal.
    let fs = mount(&device);
    fs.create(InodeNumber::ROOT, b"in the journal", &file()).expect("made");
    let with_journal = Tree::read(&fs).expect("reads");
    drop(fs);
    set_label(&drive(&device), "mail").expect("set");
    assert_eq!(tree(&device).difference(&with_journal), None);
}
