//! Growing zones in use: what was there stays, new space is found by writers that had none, and a power cut leaves the old sizes or the new
//! ones with everything that was acknowledged.

mod support;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use support::{drive, mount, sizes};
use tandemfs_crash::{MemoryDevice, Random, Recorded, Tree, check_device, each_state, fill, fill_with_blocks, works};
use tandemfs_device::{Device, NodeSpec, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{
    Error, FileSystem, FormatOptions, Growth, Home, MountOptions, NewInode, WriteOptions, make_file_system, read_superblock,
};

const MIB: u64 = 1 << 20;
const BLOCK: usize = 16 << 10;

fn file() -> NewInode<'static> {
    NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" }
}

/// A file system with files, of the first `from` MiB of a device of `to` MiB (memory and block); what is behind has old bytes.
fn formatted(from: (u64, u64), to: (u64, u64), domain: PersistenceDomain) -> MemoryDevice {
    let device = MemoryDevice::new(from.0 * MIB, from.1 * MIB, domain);
    let options = FormatOptions { block_bytes: BLOCK as u32, ..FormatOptions::default() };
    make_file_system(&drive(&device), &options).expect("mkfs");
    let fs = mount(&device);
    for number in 0..20_u64 {
        let inode = fs.create(InodeNumber::ROOT, format!("file {number}").as_bytes(), &file()).expect("made").inode;
        fs.write(inode, number * 1000, &fill(number, 40_000), WriteOptions::default()).expect("written");
    }
    fs.unmount().expect("unmounts");
    let Recorded { mut memory, mut blocks } = device.zones();
    memory.resize((to.0 * MIB) as usize, 0xdb);
    blocks.resize((to.1 * MIB) as usize, 0xdb);
    MemoryDevice::from_zones(Recorded { memory, blocks }, domain).showing(from.0 * MIB, from.1 * MIB)
}

/// `check` finds nothing, also after a crash of this moment, and neither it nor a rebuild of the maps changes what a mount reads.
fn is_sound(device: &MemoryDevice, tree: &Tree, clean: bool) {
    check_device(device, !clean).expect("check finds nothing");
    let fs = mount(&device.fork());
    assert_eq!(fs.recovery().clean, clean);
    assert_eq!(Tree::read(&fs).expect("reads").difference(tree), None);
    works(&fs, tree).expect("works");
}

#[test]
fn each_zone_grows_in_use_and_all_of_it_is_used() {
    for (memory, block) in [(16, 64), (48, 16), (48, 64), (16, 300)] {
        let device = formatted((16, 16), (memory, block), PersistenceDomain::Adr);
        let fs = mount(&device);
        let (before, old) = (fs.space(), fs.superblock());
        fill_with_blocks(&fs, b"full").expect("fills");
        let grown = fs.grow_zones(&Growth::default()).expect("grows");
        assert_eq!(grown.before, old.geometry);
        assert_eq!((grown.after.memory_bytes(), grown.after.block_sectors()), (memory * MIB, block * 256));
        assert_eq!(fs.superblock().geometry, grown.after);
        assert!(!read_superblock(&drive(&device)).expect("reads").clean);
        let now = fs.space();
        assert_eq!(now.block.total_bytes - before.block.total_bytes, (block - 16) * MIB);
        assert_eq!(now.memory.total_bytes - before.memory.total_bytes, (memory - 16) * MIB);
        if block > 16 {
            assert!(now.block.free_bytes >= (block - 16) * MIB, "{now:?}");
            let further = fill_with_blocks(&fs, b"further").expect("fills what is new");
            assert!(further >= (block - 16) * MIB / BLOCK as u64, "{further} blocks");
        } else {
            let (inodes, more) = (before.inodes_used + before.inodes_free, now.inodes_used + now.inodes_free);
            assert!(more > inodes, "{more} files, {inodes} before");
        }
        let tree = Tree::read(&fs).expect("reads");
        is_sound(&device, &tree, false); // a crash of now
        fs.unlink(InodeNumber::ROOT, b"full").expect("removed");
        let tree = Tree::read(&fs).expect("reads");
        fs.unmount().expect("unmounts");
        is_sound(&device, &tree, true);
        let fs = mount(&device);
        assert_eq!(fs.grow_zones(&Growth::default()).map(|grown| grown.before == grown.after).ok(), Some(true), "nothing left to do");
    }
}

/// More map pieces than fit behind the rings: they move to units of their own at the new end, or of the old zone, which nobody gets then.
#[test]
fn maps_that_have_no_room_move() {
    // 44 MiB: the memory zone whose map pieces have the least room behind the rings: for those of 1152 MiB of blocks.
    for (to, place) in [((200, 16), Some(22)), ((44, 1200), None)] {
        let device = formatted((44, 16), to, PersistenceDomain::Adr);
        let fs = mount(&device);
        let grown = fs.grow_zones(&Growth::default()).expect("grows");
        let unit = grown.after.map_unit();
        assert!(unit > 0 && place.is_none_or(|place| place == unit), "unit {unit}");
        // Data logs and names until neither finds room: none may get a unit of the map pieces.
        let mut names: u64 = 0;
        while let Ok(made) = fs.create(InodeNumber::ROOT, format!("small {names}").as_bytes(), &file()) {
            let stored = fs.write(made.inode, 0, &fill(names, 3000), WriteOptions::default());
            names += 1;
            if stored.is_err() || names == 12_000 {
                break;
            }
        }
        assert!(names > 5000, "{names}");
        let tree = Tree::read(&fs).expect("reads");
        is_sound(&device, &tree, false);
        fs.unmount().expect("unmounts");
        is_sound(&device, &tree, true);
    }
}

/// What was acknowledged before a power cut at any store of a growth and of what goes on behind it is there, with the old sizes or the new ones.
#[test]
fn a_power_cut_leaves_the_old_sizes_or_the_new_ones() {
    use PersistenceDomain::{Adr, Gpf};
    for (from, to, domain, budget, least) in [
        ((16, 16), (32, 24), Adr, 60, 60),
        ((16, 16), (32, 24), Gpf, 8, 60),
        ((44, 16), (64, 16), Adr, 60, 60),
        ((44, 16), (44, 1200), Gpf, 4, 30),
    ] {
        let device = formatted(from, to, domain);
        let fs = mount(&device);
        let fork = |fs: &FileSystem| Tree::read(fs).expect("reads");
        let large = fs.create(InodeNumber::ROOT, b"large", &file()).expect("made").inode;
        while fs.write(large, fs.attributes(large).expect("there").size, &fill(3, 8 * BLOCK), WriteOptions::default()).is_ok() {}
        fs.checkpoint().expect("checkpoint");
        let start = device.fork();
        device.start_recording();
        let mut trees = vec![fork(&fs)];
        let old = fs.superblock().geometry;
        let grown = fs.grow_zones(&Growth::default()).expect("grows");
        assert_ne!(old, grown.after);
        device.mark(0);
        let behind = fs.attributes(large).expect("there").size;
        for number in 0..6_u64 {
            let name = format!("after {number}");
            let inode = fs.create(InodeNumber::ROOT, name.as_bytes(), &file()).expect("made").inode;
            trees.push(fork(&fs));
            fs.write(inode, 0, &fill(number, 6000), WriteOptions::default()).expect("written");
            trees.push(fork(&fs));
        }
        if to.1 > from.1 {
            fs.write(large, behind, &fill(9, BLOCK), WriteOptions::default()).expect("written to new space");
            trees.push(fork(&fs));
        }
        let mut seen = HashMap::new();
        let mut hashes = HashSet::new();
        each_state(&start, &device.stop_recording(), 0, budget, &mut Random::new(7), &mut |cut, state| {
            if !hashes.insert(state.hash) {
                return;
            }
            state.device.grow(None, None).expect("it has become larger");
            let superblock = read_superblock(&drive(&state.device)).unwrap_or_else(|error| panic!("{cut:?}: {error}"));
            assert!(!superblock.clean);
            assert!(superblock.geometry == old || superblock.geometry == grown.after, "{cut:?}: {:?}", superblock.geometry);
            *seen.entry(superblock.geometry == old).or_insert(0) += 1;
            check_device(&state.device, true).unwrap_or_else(|what| panic!("{cut:?}: {what}"));
            let fs = mount(&state.device);
            let tree = Tree::read(&fs).expect("reads");
            let is_known = trees.iter().any(|known| tree.difference(known).is_none());
            assert!(is_known, "{cut:?}: {:?}", tree.difference(&trees[0]));
            if hashes.len() % 7 == 1 {
                works(&fs, &tree).unwrap_or_else(|what| panic!("{cut:?}: {what}"));
                let again = fs.grow_zones(&Growth::default()).expect("grows again");
                assert_eq!(
                    (again.after.memory_bytes(), again.after.block_sectors()),
                    (grown.after.memory_bytes(), grown.after.block_sectors())
                );
                let tree = Tree::read(&fs).expect("reads");
                fs.unmount().expect("unmounts");
                is_sound(&state.device, &tree, true);
            }
        });
        assert!(hashes.len() >= least, "{} states, {domain}: {seen:?}", hashes.len());
        assert!([true, false].iter().all(|sizes| seen.get(sizes).is_some_and(|count| *count > 0)), "{seen:?}");
    }
}

/// Ends what goes on beside a test, also if that fails.
struct Ends<'d>(&'d AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Writers and readers go on while both zones grow step by step; a writer that found no space finds some.
#[test]
fn writers_and_readers_go_on() {
    let (from, to) = ((32, 16), (96, 256));
    let device = formatted(from, to, PersistenceDomain::Adr);
    let fs = mount(&device);
    let (done, full, slowest) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let names: Vec<String> = (0..3).map(|writer| format!("writer {writer}")).collect();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3_u64)
            .map(|writer| {
                let (fs, done, full, slowest, name) = (&fs, &done, &full, &slowest, &names[writer as usize]);
                scope.spawn(move || {
                    let inode = fs.create(InodeNumber::ROOT, name.as_bytes(), &file()).expect("made").inode;
                    let mut written: u64 = 0;
                    while !done.load(Relaxed) && written < 2000 {
                        let begun = Instant::now();
                        let bytes = fill(writer << 32 | written, BLOCK);
                        match fs.write(inode, written * BLOCK as u64, &bytes, WriteOptions::default()) {
                            Ok(_) => {
                                written += 1;
                                slowest.fetch_max(begun.elapsed().as_micros() as u64, Relaxed);
                            }
                            Err(Error::NoSpace { .. }) => _ = full.fetch_add(1, Relaxed),
                            Err(error) => panic!("{error}"),
                        }
                    }
                    written
                })
            })
            .collect();
        scope.spawn(|| {
            let mut number: u64 = 0;
            while !done.load(Relaxed) {
                let name = format!("file {}", number % 20);
                let inode = fs.lookup(InodeNumber::ROOT, name.as_bytes()).expect("there").inode;
                let mut bytes = vec![0; 40_000];
                fs.read(inode, number % 20 * 1000, &mut bytes).expect("read");
                assert!(bytes == fill(number % 20, 40_000), "{name}");
                number += 1;
            }
        });
        let ends = Ends(&done);
        let end = Instant::now() + Duration::from_secs(60);
        while full.load(Relaxed) == 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(full.load(Relaxed) > 0, "the block zone was full");
        for step in 1..=16 {
            let wanted = sizes(Some(32 + 4 * step), Some(16 + 15 * step));
            let begun = Instant::now();
            let grown = fs.grow_zones(&wanted).expect("grows");
            assert_eq!(grown.after.block_sectors(), (16 + 15 * step) * 256);
            assert!(begun.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_millis(500));
        drop(ends);
        let written: Vec<u64> = writers.into_iter().map(|writer| writer.join().expect("a writer")).collect();
        assert!(written.iter().sum::<u64>() > 16 * MIB / BLOCK as u64, "{written:?}");
        for (writer, written) in (0_u64..).zip(&written) {
            let inode = fs.lookup(InodeNumber::ROOT, names[writer as usize].as_bytes()).expect("there").inode;
            for block in 0..*written {
                let mut bytes = vec![0; BLOCK];
                fs.read(inode, block * BLOCK as u64, &mut bytes).expect("read");
                assert!(bytes == fill(writer << 32 | block, BLOCK), "block {block} of writer {writer}");
            }
        }
    });
    let tree = Tree::read(&fs).expect("reads");
    is_sound(&device, &tree, false);
    fs.unmount().expect("unmounts");
    is_sound(&device, &tree, true);
}

/// Extents of files in the memory zone find the new units, and the limit follows the zone.
#[test]
fn files_of_the_memory_zone_grow_with_it() {
    let device = formatted((16, 16), (64, 16), PersistenceDomain::Adr);
    let fs = mount(&device);
    fs.enable_homes().expect("enabled");
    let inode = fs.create(InodeNumber::ROOT, b"at home", &file()).expect("made").inode;
    fs.set_home(inode, Home::Memory).expect("set");
    let mut written = 0;
    let mut write_all = || {
        while fs.write(inode, written, &fill(written, 64 << 10), WriteOptions::default()).is_ok() {
            written += 64 << 10;
        }
        fs.space().memory.extent_bytes
    };
    let before = write_all();
    fs.grow_zones(&Growth::default()).expect("grows");
    let after = write_all();
    assert!(after > before + 30 * MIB, "{before} B, then {after} B");
    let tree = Tree::read(&fs).expect("reads");
    is_sound(&device, &tree, false);
    fs.unmount().expect("unmounts");
    is_sound(&device, &tree, true);
}

#[test]
fn what_cannot_grow_in_use_is_refused_and_nothing_is_changed() {
    let device = formatted((16, 16), (32, 32), PersistenceDomain::Adr);
    let fs = mount(&device);
    let tree = Tree::read(&fs).expect("reads");
    let old = fs.superblock().geometry;
    for (growth, said) in [
        (sizes(Some(14), None), "cannot shrink"),
        (sizes(None, Some(15)), "cannot shrink"),
        (sizes(Some(64), None), "less than"),
        (sizes(None, Some(64)), "less than"),
        (sizes(Some(32), Some(15)), "cannot shrink"),
    ] {
        let why = fs.grow_zones(&growth).expect_err("refused").to_string();
        assert!(why.contains(said) && !why.contains('\n'), "{why}");
        assert_eq!(fs.superblock().geometry, old);
    }
    // One zone alone; a size that it has already is nothing to do.
    let grown = fs.grow_zones(&sizes(Some(16), Some(20))).expect("grows");
    assert_eq!((grown.after.memory_bytes(), grown.after.block_sectors()), (16 * MIB, 5120));
    fs.unmount().expect("unmounts");
    assert!(matches!(fs.grow_zones(&Growth::default()), Err(Error::ReadOnly | Error::Stopped { .. })), "after the unmount");
    is_sound(&device, &tree, true);
    let read_only = FileSystem::mount(drive(&device), &MountOptions { read_only: true, ..MountOptions::default() }).expect("mounts");
    assert!(matches!(read_only.grow_zones(&Growth::default()), Err(Error::ReadOnly)));

    // Several nodes of memory, or a class of large extents: the block zone alone, and the memory zone by a sentence.
    let spec: NodeSpec = "2".parse().expect("two nodes");
    let nodes = spec.over(32 * MIB, 2).expect("two nodes");
    let on_nodes = FileSystem::mount(drive(&device.fork()).with_nodes(nodes), &MountOptions::default()).expect("mounts");
    let large = MountOptions { large_extent_bytes: 4 * MIB, ..MountOptions::default() };
    let with_class = FileSystem::mount(drive(&device.fork()), &large).expect("mounts");
    for fs in [on_nodes, with_class] {
        let why = fs.grow_zones(&sizes(Some(32), Some(32))).expect_err("refused");
        assert!(matches!(why, Error::GrowsUnmounted { .. }) && why.to_string().contains("tandemfs resize"), "{why}");
        let grown = fs.grow_zones(&Growth::default()).expect("grows");
        assert_eq!((grown.after.memory_bytes(), grown.after.block_sectors(), grown.is_memory_left), (16 * MIB, 8192, true));
        fs.unmount().expect("unmounts");
    }
}
