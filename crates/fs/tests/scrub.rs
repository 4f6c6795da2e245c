//! Scrubbing: an intact file system is clean, also while it changes; damage is reported with its place.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tandemfs_crash::{Awake, FaultDevice, MemoryDevice, Place, fill};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{
    AllocateMode, Error, FileSystem, FormatOptions, MountOptions, NewInode, Scrub, ScrubFinding, ScrubbedKind, SetAttributes,
    SetExtendedAttribute, WriteOptions, make_file_system,
};

const BLOCK: usize = 64 << 10;

fn drive(device: &MemoryDevice) -> Drive {
    Drive::new(Arc::new(device.clone()))
}

fn formatted() -> (MemoryDevice, FileSystem) {
    formatted_on(false)
}

fn formatted_on(has_firmware: bool) -> (MemoryDevice, FileSystem) {
    let device = MemoryDevice::new(32 << 20, 64 << 20, PersistenceDomain::Gpf).given_firmware(has_firmware);
    make_file_system(&drive(&device), &FormatOptions::default()).expect("mkfs");
    let fs = FileSystem::mount(drive(&device), &MountOptions { write_back_percent: 90, ..MountOptions::default() }).expect("mounts");
    (device, fs)
}

fn file(fs: &FileSystem, parent: InodeNumber, name: &str) -> InodeNumber {
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    fs.create(parent, name.as_bytes(), &new).expect("creates").inode
}

fn write(fs: &FileSystem, inode: InodeNumber, offset: u64, bytes: &[u8]) {
    assert_eq!(fs.write(inode, offset, bytes, WriteOptions::default()).expect("writes"), bytes.len());
}

fn scrub(fs: &FileSystem) -> Scrub {
    let mut scrub = fs.scrub();
    while fs.scrub_step(&mut scrub) {}
    scrub
}

/// Files of every kind: whole blocks, logs in leaves and alone, a tree of two levels, directories of several pages.
fn fill_some(fs: &FileSystem) -> [InodeNumber; 3] {
    let new = NewInode { mode: file_type::DIRECTORY | 0o755, uid: 0, gid: 0, rdev: 0, target: b"" };
    let directory = fs.create(InodeNumber::ROOT, b"directory", &new).expect("creates").inode;
    for name in 0..300 {
        write(fs, file(fs, directory, &format!("{name}-{}", "n".repeat(name % 90))), 0, &fill(name as u64, 1 + name % 200));
    }
    let new = NewInode { mode: file_type::SYMLINK | 0o777, target: &[b'x'; 3000], ..new };
    fs.create(directory, b"link", &new).expect("creates");
    let blocks = file(fs, InodeNumber::ROOT, "blocks");
    write(fs, blocks, 0, &fill(1, 5 * BLOCK));
    write(fs, blocks, 400 * BLOCK as u64, &fill(2, 2 * BLOCK));
    fs.allocate(blocks, 20 * BLOCK as u64, 4 * BLOCK as u64, AllocateMode::Allocate { keep_size: true }).expect("given");
    let logs = file(fs, directory, "logs");
    for log in 0..14 {
        write(fs, logs, log * 4096 + 17, &fill(100 + log, 300));
    }
    let mixed = file(fs, directory, "mixed");
    write(fs, mixed, 0, &fill(3, 3 * BLOCK));
    for log in 0..9 {
        write(fs, mixed, BLOCK as u64 + log * 5000, &fill(200 + log, 900));
    }
    [blocks, logs, mixed]
}

/// The position of these bytes.
fn position(zone: &[u8], bytes: &[u8]) -> usize {
    zone.windows(bytes.len()).position(|window| window == bytes).expect("on the device")
}

#[test]
fn what_is_whole_is_clean_before_and_after_a_checkpoint_and_a_remount() {
    let (device, fs) = formatted();
    fill_some(&fs);
    let fresh = scrub(&fs);
    assert_eq!(fresh.findings(), []);
    assert!(fresh.counts().lines_not_home > 100, "{:?}", fresh.counts());
    fs.checkpoint().expect("a checkpoint");
    let home = scrub(&fs);
    assert_eq!((home.findings(), home.counts().lines_not_home), (&[][..], 0), "{:?}", home.counts());
    fs.unmount().expect("unmounts");
    let fs = FileSystem::mount(drive(&device), &MountOptions { memory_bytes: 0, ..MountOptions::default() }).expect("mounts");
    let before = device.zones();
    let cold = scrub(&fs);
    assert_eq!(cold.findings(), []);
    assert_eq!(home.counts(), cold.counts(), "what is read does not hang on what is in memory");
    let counts = cold.counts();
    assert_eq!((counts.inodes, counts.sectors), (306, (5 + 2 + 3) * 16), "{counts:?}");
    assert_eq!(counts.logs, 300 + 1 + 14 + 9, "{counts:?}");
    assert!(counts.bytes >= counts.sectors * 4096 + counts.lines * 64);
    assert!(device.zones() == before, "a scrub writes nothing");
    // A read-only mount whose journal stays in host memory.
    let fs = FileSystem::mount(drive(&device), &MountOptions { read_only: true, ..MountOptions::default() }).expect("mounts");
    assert_eq!(scrub(&fs).findings(), []);
}

fn only<'s>(scrub: &'s Scrub, what: &str) -> &'s ScrubFinding {
    assert_eq!(scrub.findings().len(), 1, "{what}: {:?}", scrub.findings());
    &scrub.findings()[0]
}

#[test]
fn a_damaged_sector_and_a_damaged_log_are_named_with_file_and_offset() {
    let (device, fs) = formatted();
    let [blocks, logs, mixed] = fill_some(&fs);
    let data = fill(1, 5 * BLOCK);
    let zones = device.zones();
    // Single sectors, and two consecutive ones across the border of a line of checksums.
    for (first, count) in [(BLOCK * 2 + 4096 * 3, 1), (BLOCK + 4096 * 15, 1), (4096 * 3, 2)] {
        let at = position(&zones.blocks, &data[first..first + 4096]);
        for sector in 0..count {
            device.damage(|zones| zones.blocks[at + sector * 4096 + 7] ^= 1);
        }
        let found = scrub(&fs);
        let finding = only(&found, "sectors");
        let expected = (ScrubbedKind::Sectors, Some(blocks), Some(first as u64), at as u64, count as u64 * 4096);
        assert_eq!((finding.kind, finding.inode, finding.file_offset, finding.device_offset, finding.length), expected);
        for sector in 0..count {
            device.damage(|zones| zones.blocks[at + sector * 4096 + 7] ^= 1);
        }
    }
    for (inode, bytes, offset) in [(logs, fill(105, 300), 5 * 4096 + 17), (mixed, fill(203, 900), BLOCK as u64 + 15_000)] {
        let at = position(&zones.memory, &bytes);
        device.damage(|zones| zones.memory[at + 200] ^= 0x80);
        let found = scrub(&fs);
        let finding = only(&found, "log");
        let expected = (ScrubbedKind::Log, Some(inode), Some(offset), at as u64, bytes.len() as u64);
        assert_eq!((finding.kind, finding.inode, finding.file_offset, finding.device_offset, finding.length), expected);
        let paths = fs.paths_of(&[inode, InodeNumber::ROOT]);
        assert_eq!(paths[&1], b"/");
        assert_eq!(paths[&inode.get()], if inode == logs { &b"/directory/logs"[..] } else { b"/directory/mixed" });
        device.damage(|zones| zones.memory[at + 200] ^= 0x80);
    }
    assert_eq!(scrub(&fs).findings(), []);
    assert_eq!(fs.stopped(), None);
    write(&fs, blocks, 0, b"goes on");
}

/// An intact host copy hides no damage on the device, and damage in one line hides none behind it.
#[test]
fn a_damaged_line_is_found_below_its_host_copy() {
    let (device, fs) = formatted();
    let [blocks, ..] = fill_some(&fs);
    fs.checkpoint().expect("a checkpoint");
    let old = device.zones();
    fs.set_attributes(blocks, &SetAttributes { permissions: Some(0o600), ..SetAttributes::default() }).expect("sets");
    fs.checkpoint().expect("a checkpoint");
    let new = device.zones();
    let line = (0..new.memory.len() / 64)
        .find(|line| {
            let (one, other) = (&old.memory[line * 64..][..64], &new.memory[line * 64..][..64]);
            // Neither the journal nor the superblocks: a line that was written home.
            *line as u64 * 64 >= 2 << 20 && one != other && one.iter().any(|byte| *byte != 0)
        })
        .expect("the inode's line");
    let offset = line as u64 * 64;
    let is_it = |found: &Scrub, what: &str| {
        let finding = only(found, what);
        assert_eq!((finding.kind, finding.inode, finding.device_offset, finding.length), (ScrubbedKind::Line, Some(blocks), offset, 64));
    };
    device.damage(|zones| zones.memory[line * 64 + 30] ^= 1);
    is_it(&scrub(&fs), "a flipped bit");
    // The older version is valid by itself: this is a lost write.
    device.damage(|zones| zones.memory[line * 64..][..64].copy_from_slice(&old.memory[line * 64..][..64]));
    is_it(&scrub(&fs), "a lost write");
    // The host copy is newer: the device's line does not matter until it is written.
    fs.set_attributes(blocks, &SetAttributes { permissions: Some(0o640), ..SetAttributes::default() }).expect("sets");
    assert_eq!(scrub(&fs).findings(), []);
    fs.checkpoint().expect("a checkpoint");
    assert_eq!(scrub(&fs).findings(), []);
}

/// An unreadable place is a finding, and the file system goes on.
#[test]
fn what_cannot_be_read_is_a_finding_and_stops_nothing() {
    let (device, fs) = formatted();
    let [blocks, logs, _] = fill_some(&fs);
    let zones = device.zones();
    let sector = position(&zones.blocks, &fill(1, BLOCK)[8192..12_288]) as u64;
    let log = position(&zones.memory, &fill(107, 300)) as u64;
    fs.unmount().expect("unmounts");
    // Behind the journal, which holds the name as well.
    let directory_slot = (2 << 20) + position(&device.zones().memory[2 << 20..], b"directory") as u64 / 64 * 64;
    let places = [
        (Place::Blocks(sector..sector + 4096), ScrubbedKind::Sectors, Some(blocks), Some(8192)),
        (Place::Memory(log..log + 64), ScrubbedKind::Log, Some(logs), Some(7 * 4096 + 17)),
        (Place::Memory(directory_slot..directory_slot + 64), ScrubbedKind::Line, Some(InodeNumber::ROOT), None),
        (Place::Memory(65_536..65_600), ScrubbedKind::Superblock, None, None),
    ];
    for (place, kind, inode, file_offset) in places {
        let faulty = Arc::new(FaultDevice::at(device.fork(), place.clone(), false));
        let read_only = kind == ScrubbedKind::Superblock;
        let fs = FileSystem::mount(Drive::new(faulty.clone()), &MountOptions { read_only, ..MountOptions::default() }).expect("mounts");
        let found = scrub(&fs);
        let finding = only(&found, &format!("{place:?}"));
        assert_eq!((finding.kind, finding.inode, finding.file_offset), (kind, inode, file_offset), "{place:?}");
        assert!(finding.cause.contains("fault device"), "{finding}");
        assert!(finding.to_string().contains(&format!("byte {} of the", finding.device_offset)), "{finding}");
        assert_eq!(fs.stopped(), None);
        if !read_only {
            write(&fs, logs, 1 << 20, b"goes on");
        }
    }
}

/// Three writers, repeated checkpoints, names that come and go: the scrub reports nothing.
#[test]
fn what_changes_meanwhile_is_no_damage() {
    nobody_is_accused(false);
}

/// With a drive that shows lines before they are committed, and before the host copies have them.
#[test]
fn what_the_drive_commits_meanwhile_is_no_damage() {
    nobody_is_accused(true);
}

fn nobody_is_accused(has_firmware: bool) {
    let (_device, fs) = formatted_on(has_firmware);
    let [blocks, logs, mixed] = fill_some(&fs);
    let rounds = AtomicU64::new(0);
    let (begun, scrubs) = (Awake::now(), AtomicU64::new(0));
    let goes_on = || begun.goes_on(Duration::from_secs(2), scrubs.load(Relaxed) > 1);
    std::thread::scope(|scope| {
        for (thread, inode) in [blocks, logs, mixed].into_iter().enumerate() {
            let (fs, rounds) = (&fs, &rounds);
            scope.spawn(move || {
                let mut random = tandemfs_crash::Random::new(thread as u64);
                while goes_on() {
                    let length = *random.pick(&[64, 700, 5000, 70_000, 200_000]);
                    let offset = random.below(6 * BLOCK as u64);
                    match random.below(8) {
                        0 => fs.allocate(inode, offset, length as u64, AllocateMode::Punch).expect("punches"),
                        1 => {
                            let cut = SetAttributes { size: Some(offset), ..SetAttributes::default() };
                            fs.set_attributes(inode, &cut).expect("cuts");
                        }
                        2 => {
                            fs.write_back().expect("writes back");
                        }
                        _ => match fs.write(inode, offset, &fill(offset, length), WriteOptions::default()) {
                            Ok(_) | Err(Error::NoSpace { .. }) => {}
                            Err(error) => panic!("{error}"),
                        },
                    }
                    rounds.fetch_add(1, Relaxed);
                }
            });
        }
        let fs = &fs;
        scope.spawn(move || {
            let mut name = 0;
            while goes_on() {
                let inode = file(fs, InodeNumber::ROOT, &format!("name-{name}"));
                write(fs, inode, 0, &fill(name, 100 + name as usize % 9000));
                if name >= 5 {
                    fs.unlink(InodeNumber::ROOT, format!("name-{}", name - 5).as_bytes()).expect("unlinks");
                }
                name += 1;
            }
        });
        scope.spawn(move || {
            while goes_on() {
                fs.checkpoint().expect("a checkpoint");
            }
        });
        while goes_on() {
            let found = scrub(fs);
            assert_eq!(found.findings(), [], "scrub {scrubs:?}");
            scrubs.fetch_add(1, Relaxed);
        }
        println!("{scrubs:?} scrubs beside {} changes", rounds.load(Relaxed));
        assert!(scrubs.load(Relaxed) > 1);
    });
    fs.checkpoint().expect("a checkpoint");
    assert_eq!(scrub(&fs).findings(), []);
}

/// One inode may have hundreds of MiB of attributes: a step reads a bounded piece of them, and damage in any piece is found.
#[test]
fn values_of_attributes_are_read_piece_by_piece() {
    let (device, fs) = formatted();
    let inode = file(&fs, InodeNumber::ROOT, "file");
    let any = SetExtendedAttribute::default();
    for number in 0..150 {
        fs.set_extended_attribute(inode, format!("user.{number}").as_bytes(), &fill(number, 65_536), any).expect("set");
    }
    write(&fs, inode, 0, &fill(1, BLOCK));
    fs.checkpoint().expect("home");
    let mut steps = 0;
    let mut step_by_step = |expected: usize| {
        let mut scrub = fs.scrub();
        let mut before = 0;
        while fs.scrub_step(&mut scrub) {
            let read = scrub.counts().bytes - before;
            assert!(read < 3 << 20, "{read} B in one step");
            before = scrub.counts().bytes;
            steps += 1;
        }
        assert!(scrub.counts().bytes > 150 * 65_536 && scrub.counts().sectors == (BLOCK / 4096) as u64, "{:?}", scrub.counts());
        assert_eq!(scrub.findings().len(), expected, "{:?}", scrub.findings());
    };
    step_by_step(0);
    let value = fill(149, 65_536);
    device.damage(|zones| {
        let at = zones.memory.windows(60).position(|window| *window == value[..60]).expect("the value");
        zones.memory[at + 7] ^= 1;
    });
    step_by_step(1);
    assert!(steps > 8, "{steps}");
}

/// A scrub was inside a file that was removed. Its number went to a link, and the link's text was read as records of blocks.
#[test]
fn regression_a_position_does_not_lead_into_the_next_inode_with_its_number() {
    for steps in 1.. {
        let (_device, fs) = formatted();
        let number = file(&fs, InodeNumber::ROOT, "file");
        for block in 0..400 {
            write(&fs, number, block * BLOCK as u64, &fill(block, 100));
        }
        write(&fs, number, 0, &fill(1, 40 * BLOCK));
        fs.checkpoint().expect("home");
        let mut scrub = fs.scrub();
        let is_on_its_way = (0..steps).all(|_| fs.scrub_step(&mut scrub));
        fs.unlink(InodeNumber::ROOT, b"file").expect("removed");
        fs.checkpoint().expect("its number is free");
        // This text reads as a pointer to a page of records.
        let new = NewInode { mode: file_type::SYMLINK | 0o777, uid: 0, gid: 0, rdev: 0, target: b"\x01\x0c\x42\x41" };
        assert_eq!(fs.create(InodeNumber::ROOT, b"link", &new).expect("made").inode, number, "the number is used again");
        while fs.scrub_step(&mut scrub) {}
        assert_eq!(scrub.findings(), [], "after {steps} steps");
        if !is_on_its_way {
            assert!(steps > 5, "{steps} steps are a whole scrub");
            break;
        }
    }
}
