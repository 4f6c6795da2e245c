//! Empty units of metadata become data area again (`alloc/departure.rs` of `fs`): at every cut, over crashes, on every kind of drive. And the
//! deliberate bugs of it. A mutant is global to the process, so the tests of this file run one after the other.

mod support;

use std::sync::Arc;

use support::bugs::{self, alone};
use tandemfs_crash::{MemoryDevice, Random, Setting, Tree, check_device, each_state, fill, mount};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{Error, FileSystem, MountOptions, NewInode, WriteOptions};

const BLOCK: u64 = 64 << 10;
/// A write of this length becomes five data logs.
const LOG_BYTES: usize = 20_000;
/// Directories of a group, with one file each.
const GROUP: u64 = 40;

fn new(kind: u16) -> NewInode<'static> {
    NewInode { mode: kind | 0o700, uid: 0, gid: 0, rdev: 0, target: b"" }
}

/// A memory zone of seven units, four of which are regions from the start.
fn settings() -> Vec<Setting> {
    let small = |domain| Setting::small(domain, BLOCK as u32);
    let domains = [PersistenceDomain::Adr, PersistenceDomain::Gpf, PersistenceDomain::Process];
    let firmware = [small(PersistenceDomain::Adr).with_firmware(), small(PersistenceDomain::Gpf).with_idle_firmware()];
    domains.into_iter().map(small).chain(firmware).collect()
}

fn make(fs: &FileSystem, parent: InodeNumber, name: &str, kind: u16) -> Result<InodeNumber, String> {
    fs.create(parent, name.as_bytes(), &new(kind)).map(|made| made.inode).map_err(|error| format!("{name}: {error}"))
}

/// A directory with others in it, so that each takes a page of entries; a group takes one page more than directories.
fn make_group(fs: &FileSystem, group: u64) -> Result<(), String> {
    let parent = make(fs, InodeNumber::ROOT, &format!("group {group}"), file_type::DIRECTORY)?;
    for name in 0..GROUP {
        let directory = make(fs, parent, &format!("{name}"), file_type::DIRECTORY)?;
        make(fs, directory, "file", file_type::REGULAR)?;
    }
    Ok(())
}

fn remove_group(fs: &FileSystem, group: u64) -> Result<(), String> {
    let what = |error: Error| format!("group {group}: {error}");
    let name = format!("group {group}");
    let parent = fs.lookup(InodeNumber::ROOT, name.as_bytes()).map_err(what)?.inode;
    for child in 0..GROUP {
        let directory = fs.lookup(parent, child.to_string().as_bytes()).map_err(what)?.inode;
        fs.unlink(directory, b"file").map_err(what)?;
        fs.remove_directory(parent, child.to_string().as_bytes()).map_err(what)?;
    }
    fs.remove_directory(InodeNumber::ROOT, name.as_bytes()).map_err(what)
}

fn given_back(fs: &FileSystem) -> u64 {
    fs.statistics().work.units_given_back
}

/// Writes data logs into one block each, until `enough`.
fn write_logs(fs: &FileSystem, file: InodeNumber, blocks: u64) -> Result<(), String> {
    for block in 0..blocks {
        fs.write(file, block * BLOCK, &fill(block, LOG_BYTES), WriteOptions::default())
            .map_err(|error| format!("block {block}: {error}"))?;
    }
    Ok(())
}

fn holds_logs(fs: &FileSystem, file: InodeNumber, blocks: u64) -> Result<(), String> {
    let mut bytes = vec![0; LOG_BYTES];
    for block in 0..blocks {
        fs.read(file, block * BLOCK, &mut bytes).map_err(|error| format!("block {block}: {error}"))?;
        if bytes != fill(block, LOG_BYTES) {
            return Err(format!("block {block} has other bytes"));
        }
    }
    Ok(())
}

/// Directories fill three units and go. Data logs take the units, then the power is cut: no replay touches them.
fn data_follows_metadata(setting: &Setting) -> Result<(), String> {
    const GROUPS: u64 = 29;
    const BLOCKS: u64 = 180;
    let device = setting.format();
    // With few host copies there would be a checkpoint in between.
    let fs = mount(&device, &MountOptions { memory_bytes: 64 << 20, ..setting.mount.clone() })?;
    for group in 0..GROUPS {
        make_group(&fs, group)?;
    }
    for group in 0..GROUPS - 2 {
        remove_group(&fs, group)?;
    }
    fs.checkpoint().map_err(|error| error.to_string())?;
    // The records of these are in the journal when the units leave.
    for group in GROUPS - 2..GROUPS {
        remove_group(&fs, group)?;
    }
    fs.write_back().map_err(|error| error.to_string())?;
    if given_back(&fs) != 2 {
        return Err(format!("{} units left the entries", given_back(&fs)));
    }
    let file = make(&fs, InodeNumber::ROOT, "file", file_type::REGULAR)?;
    write_logs(&fs, file, BLOCKS)?;
    if fs.space().memory.data_log_bytes < BLOCKS * LOG_BYTES as u64 {
        return Err("the byte path did not take the writes".into());
    }
    check_device(&device, true)?;
    let after_cut = mount(&device.fork(), &setting.mount)?;
    holds_logs(&after_cut, file, BLOCKS)?;
    fs.checkpoint().map_err(|error| error.to_string())?;
    holds_logs(&fs, file, BLOCKS)?;
    fs.unmount().map_err(|error| error.to_string())?;
    check_device(&device, false).map(drop)
}

/// The unit in the middle of three is empty. Every cut of the transaction that lets it go leaves all names.
fn cuts_of_a_departure(setting: &Setting) -> Result<(), String> {
    let setting = &Setting { memory_bytes: 20 << 20, ..setting.clone() };
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    let logs = make(&fs, InodeNumber::ROOT, "logs", file_type::REGULAR)?;
    write_logs(&fs, logs, 3)?;
    for group in 0..13 {
        make_group(&fs, group)?;
    }
    // The next unit goes to the mappings, so that those of the entries are no neighbours.
    let sparse = make(&fs, InodeNumber::ROOT, "sparse", file_type::REGULAR)?;
    for page in 0..520 {
        fs.write(sparse, page * 192 * BLOCK, &[1; 60], WriteOptions::default()).map_err(|error| error.to_string())?;
    }
    for group in 13..29 {
        make_group(&fs, group)?;
    }
    fs.unlink(InodeNumber::ROOT, b"sparse").map_err(|error| error.to_string())?;
    for group in 12..=24 {
        remove_group(&fs, group)?;
    }
    fs.checkpoint().map_err(|error| error.to_string())?;
    let expected = Tree::read(&fs)?;
    let start = device.fork();
    device.start_recording();
    fs.write_back().map_err(|error| error.to_string())?;
    let events = device.stop_recording();
    if given_back(&fs) != 2 {
        return Err(format!("{} units left, not one of entries and one of mappings", given_back(&fs)));
    }
    let look = |device: &MemoryDevice| {
        check_device(device, true)?;
        let fs = mount(device, &setting.mount)?;
        if let Some(difference) = Tree::read(&fs)?.difference(&expected) {
            return Err(difference.to_string());
        }
        make_group(&fs, 100)?;
        remove_group(&fs, 100)?;
        fs.unmount().map_err(|error| error.to_string())?;
        check_device(device, false).map(drop)
    };
    let mut result = Ok(());
    let mut states = 0;
    each_state(&start, &events, 0, 6, &mut Random::new(1), &mut |cut, state| {
        states += 1;
        if result.is_ok() {
            result = look(&state.device).map_err(|what| format!("cut before event {} of {}: {what}", cut.event, events.len()));
        }
    });
    assert!(states > 2, "{states} states");
    result
}

/// A unit of mapping pages becomes one of inodes: nobody finds the old lines.
fn inodes_follow_mappings(setting: &Setting) -> Result<(), String> {
    let options = MountOptions { memory_bytes: 64 << 20, write_back_percent: 90, ..setting.mount.clone() };
    let device = setting.format();
    let fs = mount(&device, &options)?;
    let what = |error: Error| error.to_string();
    let sparse = make(&fs, InodeNumber::ROOT, "sparse", file_type::REGULAR)?;
    for page in 0..600 {
        fs.write(sparse, page * 192 * BLOCK, &[1; 60], WriteOptions::default()).map_err(what)?;
    }
    let logs = make(&fs, InodeNumber::ROOT, "logs", file_type::REGULAR)?;
    write_logs(&fs, logs, 30)?;
    fs.unlink(InodeNumber::ROOT, b"sparse").map_err(what)?;
    fs.checkpoint().map_err(what)?;
    fs.write_back().map_err(what)?;
    if given_back(&fs) != 1 {
        return Err(format!("{} units left", given_back(&fs)));
    }
    for name in 0..16_500 {
        make(&fs, InodeNumber::ROOT, &name.to_string(), file_type::REGULAR)?;
    }
    let mut scrub = fs.scrub();
    while fs.scrub_step(&mut scrub) {}
    if let Some(finding) = scrub.findings().first() {
        return Err(finding.to_string());
    }
    holds_logs(&fs, logs, 30)?;
    fs.unmount().map_err(what)?;
    check_device(&device, false).map(drop)
}

/// Metadata of several kinds and data take turns, with crashes in between; nothing that stays is touched.
fn turns(setting: &Setting, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let device = setting.format();
    let mut fs = mount(&device, &setting.mount)?;
    let what = |error: Error| error.to_string();
    let kept = make(&fs, InodeNumber::ROOT, "kept", file_type::REGULAR)?;
    write_logs(&fs, kept, 20)?;
    let mut given = 0;
    for round in 0..6 {
        let groups = 15 + random.below(14);
        let made = (0..groups).find(|group| make_group(&fs, *group).is_err()).unwrap_or(groups);
        let file = make(&fs, InodeNumber::ROOT, "file", file_type::REGULAR);
        if let Ok(file) = &file {
            let pages = random.below(600);
            let _full = (0..pages).find(|page| fs.write(*file, page * 192 * BLOCK, &[1; 60], WriteOptions::default()).is_err());
        }
        if random.one_in(2) {
            fs.checkpoint().map_err(what)?;
        }
        if file.is_ok() {
            fs.unlink(InodeNumber::ROOT, b"file").map_err(what)?;
        }
        // The last group that was made may be a part of one.
        for group in 0..made {
            remove_group(&fs, group)?;
        }
        fs.write_back().map_err(what)?;
        let logs = make(&fs, InodeNumber::ROOT, &format!("logs {round}"), file_type::REGULAR)?;
        let blocks = random.below(150);
        write_logs(&fs, logs, blocks)?;
        given += given_back(&fs);
        match random.below(3) {
            0 => fs = mount(&device, &setting.mount)?,
            1 => {
                fs.unmount().map_err(what)?;
                check_device(&device, false)?;
                fs = mount(&device, &setting.mount)?;
            }
            _ => {}
        }
        holds_logs(&fs, logs, blocks).map_err(|what| format!("round {round}: {what}"))?;
        holds_logs(&fs, kept, 20).map_err(|what| format!("round {round}: {what}"))?;
        fs.unlink(InodeNumber::ROOT, format!("logs {round}").as_bytes()).map_err(what)?;
    }
    if given == 0 {
        return Err("no unit left its region".into());
    }
    fs.unmount().map_err(what)?;
    check_device(&device, false).map(drop)
}

fn sound(scenario: impl Fn(&Setting) -> Result<(), String>) {
    bugs::sound(&settings(), scenario);
}

fn caught(bug: Mutant, scenario: impl Fn(&Setting) -> Result<(), String>) {
    bugs::caught(bug, &settings()[0], scenario);
}

#[test]
fn data_that_follows_metadata_survives_a_replay() {
    sound(data_follows_metadata);
}

#[test]
fn every_cut_of_a_departure_leaves_every_name() {
    sound(cuts_of_a_departure);
}

#[test]
fn inodes_that_follow_mappings_are_new() {
    sound(inodes_follow_mappings);
}

#[test]
fn metadata_and_data_take_turns() {
    sound(|setting| (0..2).try_for_each(|seed| turns(setting, seed).map_err(|what| format!("seed {seed}: {what}"))));
}

#[test]
fn r6_unit_leaves_before_watermark() {
    caught(Mutant::UnitLeavesBeforeWatermark, data_follows_metadata);
}

#[test]
fn gu2_unit_renumbered_apart() {
    caught(Mutant::UnitRenumberedApart, cuts_of_a_departure);
}

/// After everything was deleted, small writes take the byte path again, at once and after a mount.
#[test]
fn regression_space_of_removed_metadata_serves_small_writes() {
    let _alone = alone();
    for setting in settings() {
        let device = setting.format();
        let fs = Arc::new(mount(&device, &setting.mount).expect("mounts"));
        let free = fs.space().memory.free_bytes;
        let made = (0..).find(|group| make_group(&fs, *group).is_err()).expect("it is full");
        assert_eq!(fs.space().memory.free_bytes, 0, "{setting:?}");
        for group in 0..made {
            remove_group(&fs, group).expect("removed");
        }
        fs.write_back().expect("works");
        assert!(fs.space().memory.free_bytes >= free / 2, "{setting:?}: {:?}", fs.space());
        let file = make(&fs, InodeNumber::ROOT, "file", file_type::REGULAR).expect("made");
        write_logs(&fs, file, 10).expect("written");
        assert!(fs.space().memory.data_log_bytes >= 10 * LOG_BYTES as u64, "the byte path");
        fs.unmount().expect("unmounts");
        let fs = mount(&device, &setting.mount).expect("mounts");
        let memory = fs.space().memory;
        assert!(memory.free_bytes + memory.data_log_bytes >= free / 2, "{setting:?}: {memory:?}");
        holds_logs(&fs, file, 10).expect("whole");
    }
}

/// Threads make and remove metadata, write and verify data, scrub, and look for files that are gone, while units leave: nobody sees damage.
#[test]
fn threads_work_while_units_leave() {
    let _alone = alone();
    for setting in [settings().remove(1), settings().remove(3)] {
        let setting = Setting { memory_bytes: 20 << 20, block_zone_bytes: 16 << 20, ..setting };
        let device = setting.format();
        let fs = Arc::new(mount(&device, &setting.mount).expect("mounts"));
        let many = make(&fs, InodeNumber::ROOT, "many", file_type::DIRECTORY).expect("made");
        // Inodes of two units.
        for name in 0..16_600 {
            make(&fs, many, &name.to_string(), file_type::REGULAR).expect("made");
        }
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        std::thread::scope(|scope| {
            let changes = [
                scope.spawn(|| {
                    for name in (0..16_600).rev() {
                        fs.unlink(many, name.to_string().as_bytes()).expect("removed");
                    }
                }),
                scope.spawn(|| {
                    for round in 0..3 {
                        let made = (0..20).find(|group| make_group(&fs, 100 * round + group).is_err()).unwrap_or(20);
                        (0..made).for_each(|group| remove_group(&fs, 100 * round + group).expect("removed"));
                    }
                }),
                scope.spawn(|| {
                    for round in 0..12 {
                        let file = make(&fs, InodeNumber::ROOT, "logs", file_type::REGULAR).expect("made");
                        write_logs(&fs, file, 60).unwrap_or_else(|what| panic!("{what}"));
                        holds_logs(&fs, file, 60).unwrap_or_else(|what| panic!("round {round}: {what}"));
                        fs.unlink(InodeNumber::ROOT, b"logs").expect("removed");
                    }
                }),
            ];
            scope.spawn(|| {
                while !is_over.load(relaxed) {
                    fs.write_back().expect("works");
                    std::thread::yield_now();
                }
            });
            scope.spawn(|| {
                while !is_over.load(relaxed) {
                    let mut scrub = fs.scrub();
                    while fs.scrub_step(&mut scrub) && !is_over.load(relaxed) {}
                    assert_eq!(scrub.findings(), [], "a scrub");
                }
            });
            scope.spawn(|| {
                let mut random = Random::new(9);
                while !is_over.load(relaxed) {
                    let number = InodeNumber::new(16_000 + random.below(1200));
                    let found = fs.attributes(number);
                    assert!(matches!(found, Ok(_) | Err(Error::Stale(_))), "inode {number}: {found:?}");
                }
            });
            let ended: Vec<_> = changes.into_iter().map(|thread| thread.join()).collect();
            is_over.store(true, relaxed);
            assert!(ended.iter().all(Result::is_ok));
        });
        fs.checkpoint().expect("home");
        fs.write_back().expect("works");
        fs.unmount().expect("unmounts");
        assert!(given_back(&fs) > 0, "units left");
        check_device(&device, false).unwrap_or_else(|findings| panic!("{findings}"));
    }
}
