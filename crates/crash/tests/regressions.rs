//! Failures that random tests found, each with its operations as a literal list.

use std::sync::Arc;

use tandemfs_crash::{
    Access, Event, FaultDevice, Harness, Model, Operation, Place, Random, Setting, each_state, fill, mount, mount_device,
};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{Error, FileSystem, MountOptions, NewInode, WriteOptions};

use Operation::*;

fn run(setting: &Setting, operations: &[Operation]) {
    let mut harness = Harness::new(setting.format(), &setting.mount, Model::default()).expect("mounts");
    for operation in operations {
        if let Err(what) = harness.apply(operation).and_then(|()| harness.compare()) {
            panic!("{what}");
        }
    }
    harness.compare_space().expect("space");
}

fn small(block_bytes: u32) -> Setting {
    Setting::small(PersistenceDomain::Adr, block_bytes)
}

/// A short append into a sector whose end a truncation had cut off forgot that the rest of the sector was stale.
#[test]
fn regression_stale_tail_after_short_append() {
    run(&small(64 << 10), &[Create("f"), Append("f", 65_536, 1), Truncate("f", 387), Append("f", 59, 2), Write("f", 196_597, 100, 3)]);
}

/// Growing by truncation within the last sector forgot the same.
#[test]
fn regression_stale_tail_after_growing_within_a_sector() {
    run(&small(64 << 10), &[Create("f"), Append("f", 65_536, 1), Truncate("f", 387), Truncate("f", 400), Truncate("f", 5000)]);
}

/// Inode slots that wait for the watermark were not counted as free until someone took one.
#[test]
fn regression_free_inodes_after_checkpoint() {
    run(&small(64 << 10), &[Create("f"), Create("g"), Unlink("f"), Unlink("g"), Checkpoint]);
}

/// A cut tore one copy of the superblock; the next mount wrote the other one first, and a cut there left none.
#[test]
fn regression_both_superblocks_torn_by_two_cuts() {
    for copy in [0, 65_536] {
        let setting = small(64 << 10);
        let device = setting.format();
        device.damage(|zones| zones.memory[copy + 100] ^= 1);
        let start = device.fork();
        device.start_recording();
        drop(mount(&device, &setting.mount).expect("mounts"));
        let mut states = 0;
        each_state(&start, &device.stop_recording(), 0, 100, &mut Random::new(1), &mut |_, state| {
            mount(&state.device, &setting.mount).expect("mounts again");
            states += 1;
        });
        assert!(states > 100);
    }
}

/// One copy of the superblock, or the saved maps, on a poisoned page: nothing was mounted although the other copy, or a rebuild, was there.
#[test]
fn regression_what_is_there_twice_was_needed_twice() {
    let setting = small(64 << 10);
    let device = setting.format();
    mount(&device, &setting.mount).and_then(|fs| fs.unmount().map_err(|error| error.to_string())).expect("a clean unmount");
    let maps = mount(&device.fork(), &setting.mount).expect("mounts").superblock().geometry.piece(0).offset_bytes();
    let poisoned = |offset: u64| Arc::new(FaultDevice::at(device.fork(), Place::Memory(offset..offset + 4096), false));
    let read_only = MountOptions { read_only: true, ..setting.mount.clone() };
    for copy in [0, 65_536] {
        mount_device(poisoned(copy), &read_only).expect("the other copy is enough to read");
        assert!(matches!(mount_device(poisoned(copy), &setting.mount), Err(Error::Device(_))), "it cannot be written");
    }
    let fs = mount_device(poisoned(maps), &setting.mount).expect("the maps are rebuilt");
    assert!(!fs.recovery().clean);
}

/// Small logs share pages, and each of them met the bad one again until none of its slots was left.
#[test]
fn regression_each_slot_of_a_bad_page_was_tried() {
    tandemfs_crash::stay_on_one_cpu().expect("bound");
    let setting = small(64 << 10);
    let base = setting.format();
    let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    let begin = |fs: &FileSystem| {
        let file = fs.create(InodeNumber::ROOT, b"a", &new).expect("made").inode;
        fs.write(file, 0, &fill(1, 100), WriteOptions::default()).expect("written");
        file
    };
    let device = base.fork();
    begin(&mount(&device, &setting.mount).expect("mounts"));
    let at = device.zones().memory.windows(100).position(|window| window == fill(1, 100)).expect("the log") as u64;
    // The rest of the page that this log is in.
    let faulty = Arc::new(FaultDevice::at(base.fork(), Place::Memory(at + 256..at / 4096 * 4096 + 4096), false));
    let fs = mount_device(faulty.clone(), &setting.mount).expect("mounts");
    let file = begin(&fs);
    let failed = (1..20).filter(|index| fs.write(file, index * 300, &[7; 100], WriteOptions::default()).is_err()).count();
    assert_eq!((faulty.hit(), failed), (true, 1));
}

/// The allocators gave the bad sector or line that had failed one write to the next one, and to every other.
#[test]
fn regression_bad_free_space_was_given_out_for_ever() {
    for (length, is_block) in [(65_536, true), (300, false)] {
        let setting = small(64 << 10);
        let mut harness = Harness::new(setting.format(), &setting.mount, Model::default()).expect("mounts");
        harness.apply(&Create("a")).expect("made");
        harness.fs.unmount().expect("unmounts");
        let base = harness.device.fork();
        harness.apply(&Remount).expect("mounts");
        harness.device.start_recording();
        harness.apply(&Write("a", 0, length, 1)).expect("written");
        let place = harness.device.stop_recording().into_iter().find_map(|event| match event {
            Event::Write { sector, .. } if is_block => Some(Place::Blocks(sector.offset_bytes()..sector.offset_bytes() + 4096)),
            Event::Store { offset, bytes } if !is_block && bytes.len() == 300 => Some(Place::Memory(offset..offset + 300)),
            _ => None,
        });
        let faulty = Arc::new(FaultDevice::at(base.clone(), place.expect("its data"), false));
        let fs = mount_device(faulty.clone(), &setting.mount).expect("mounts");
        let mut model = Model::default();
        model.apply(&Create("a")).expect("as before");
        let mut harness = Harness::over(base, fs, &setting.mount, model);
        assert!(matches!(harness.perform(&Write("a", 0, length, 1)), Err(Error::Device(_))));
        harness.apply(&Write("a", 0, length, 1)).expect("elsewhere");
        harness.compare().expect("written");
        harness.apply(&Remount).expect("mounts");
        harness.compare_space().expect("what was held back is free again after a remount");
    }
}

/// If zeroing the first lines of a region's new unit failed, the unit leaked until the next mount.
#[test]
fn regression_unit_lost_when_growth_failed() {
    /// Mapping pages of a file that fill a unit together with the four above them.
    const PAGES: u64 = 508;
    let mut setting = small(4 << 10);
    setting.memory_bytes = 64 << 20;
    let mut harness = Harness::new(setting.format(), &setting.mount, Model::default()).expect("mounts");
    harness.perform(&Create("a")).expect("made");
    for page in 0..PAGES {
        harness.perform(&Write("a", page * 192 * 4096, 10, page)).expect("written");
    }
    harness.fs.unmount().expect("unmounts");
    for succeed in [0, 1, 30, 62, 63] {
        let device = harness.device.fork();
        let mounting = Arc::new(FaultDevice::counting(device.fork()));
        mount_device(mounting.clone(), &setting.mount).expect("mounts");
        let succeed = mounting.count(Access::Store) + succeed;
        let faulty = Arc::new(FaultDevice::new(device.clone(), Access::Store, succeed, false));
        let fs = mount_device(faulty.clone(), &setting.mount).expect("mounts");
        let before = fs.space().memory.free_bytes;
        let mut harness = Harness::over(device, fs, &setting.mount, Model::default());
        let next = Write("a", PAGES * 192 * 4096, 10, 1);
        assert!(matches!(harness.perform(&next), Err(Error::Device(_))));
        assert!(before - harness.fs.space().memory.free_bytes < 4096, "store {succeed}: a unit is lost");
        harness.perform(&next).expect("written");
        assert!(before - harness.fs.space().memory.free_bytes >= 2 << 20, "it took no unit: the test tests nothing");
    }
}

/// After a checkpoint that failed, pages that it had not written home could leave the cache; what was read then was older than what had
/// been acknowledged.
#[test]
fn regression_stale_reads_after_a_failed_checkpoint() {
    const PAGES: u64 = 400;
    let mut setting = small(4 << 10);
    setting.mount.memory_bytes = 64 << 10;
    let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    let device = setting.format();
    let fs = mount(&device, &setting.mount).expect("mounts");
    // A mapping page for each write: two files of more pages than the cache holds.
    let write = |fs: &FileSystem, file, block: u64| {
        for page in 0..PAGES {
            let offset = (page * 192 + block) * 4096;
            assert_eq!(fs.write(file, offset, &offset.to_le_bytes(), WriteOptions::default()).expect("written"), 8);
        }
    };
    let files = [&b"a"[..], b"b"].map(|name| fs.create(InodeNumber::ROOT, name, &new).expect("made").inode);
    files.iter().for_each(|file| write(&fs, *file, 0));
    fs.unmount().expect("unmounts");
    let run = |faulty: &Arc<FaultDevice>| {
        let fs = mount_device(faulty.clone(), &setting.mount).expect("mounts");
        write(&fs, files[0], 1);
        fs
    };
    let counting = Arc::new(FaultDevice::counting(device.fork()));
    let fs = run(&counting);
    let before = counting.count(Access::Store);
    fs.checkpoint().expect("home");
    // Of what the writes themselves did not write home.
    let stores = counting.count(Access::Store) - before;
    assert!(stores > 16, "{stores} stores of a checkpoint");
    for succeed in [0, 1, stores / 4, stores / 2, stores - 5] {
        let fs = run(&Arc::new(FaultDevice::new(device.fork(), Access::Store, before + succeed, false)));
        assert!(matches!(fs.checkpoint(), Err(Error::Stopped { .. })));
        for (file, block) in [(files[0], 1), (files[1], 0), (files[0], 1), (files[0], 0)] {
            for page in 0..PAGES {
                let offset = (page * 192 + block) * 4096;
                let mut found = [0; 8];
                fs.read(file, offset, &mut found).expect("reads go on");
                assert_eq!(u64::from_le_bytes(found), offset, "store {succeed} of the checkpoint failed");
            }
        }
    }
}

/// An inode whose lines are an older version of themselves (a lost write) names space that is free by now: freeing it was a panic.
#[test]
fn regression_space_freed_twice_was_a_panic() {
    let setting = small(64 << 10);
    let mut harness = Harness::new(setting.format(), &setting.mount, Model::default()).expect("mounts");
    for operation in [Create("a"), Append("a", 200, 1), Remount] {
        harness.apply(&operation).expect("done");
    }
    let older = harness.device.zones().memory;
    for operation in [Write("a", 0, 900, 2), Remount] {
        harness.apply(&operation).expect("done");
    }
    let inodes = harness.fs.superblock().geometry.unit(1).offset_bytes() as usize;
    harness.fs.unmount().expect("unmounts");
    harness.device.damage(|zones| zones.memory[inodes..inodes + 4096].copy_from_slice(&older[inodes..inodes + 4096]));
    let fs = mount(&harness.device, &setting.mount).expect("a clean mount believes the maps");
    fs.unlink(InodeNumber::ROOT, b"a").expect("the record is written");
    assert!(fs.stopped().is_some_and(|cause| cause.contains("contradicts")), "nothing is given out from maps that are wrong");
    assert!(matches!(fs.unmount(), Err(Error::Stopped { .. })), "and they are not saved");
}

/// New bytes in the holes of a block with logs took blocks of the transient room, which never came back; then overwrites were refused.
#[test]
fn regression_transient_room_given_to_holes_of_a_block() {
    let setting = Setting { block_zone_bytes: 16 << 20, ..small(1 << 20) };
    let mut harness = Harness::new(setting.format(), &setting.mount, Model::default()).expect("mounts");
    for operation in [
        Create("a"),
        Create("c"),
        Write("c", 15_249_408, 33, 398),
        Scatter("a", 100, 1000, 8192, 300, 257),
        Scatter("c", 0, 1000, 8192, 300, 590),
        Scatter("a", 100, 256, 65_536, 64, 948),
    ] {
        harness.apply(&operation).expect("agrees");
    }
    assert!(harness.refused_for_space > 100, "the zone is full");
    assert_eq!(harness.overwrites_refused, 0);
}

/// Overwrites across the end of a block's sectors, whose leaf was full of logs behind them, took whole blocks of the transient room, which never came
/// back where no block became wholly free; then even a punch was refused.
#[test]
fn regression_transient_room_given_to_overwrites_across_the_end_of_sectors() {
    let setting = Setting::small(PersistenceDomain::Gpf, 1 << 20);
    let mount = MountOptions { promote: tandemfs_fs::Promote::EveryRead, memory_bytes: 4_194_304, ..setting.mount };
    let setting = Setting { block_zone_bytes: 16 << 20, mount, ..setting };
    run(
        &setting,
        &[
            MakeDirectory("e"),
            Create("a"),
            Create("c"),
            CreateNameless(0, "e"),
            WriteHeld(0, 1_675_312, 739_505, 680),
            Rename("c", "e/a", tandemfs_fs::RenameMode::Replace),
            Link("e/a", "f"),
            Scatter("a", 5000, 1000, 8192, 300, 722),
            Scatter("f", 0, 1000, 4096, 4096, 607),
            Scatter("f", 0, 256, 65_536, 64, 820),
            Scatter("e/a", 5000, 1000, 4096, 4096, 210),
            Punch("e/a", 106_496, 85_521),
        ],
    );
}
