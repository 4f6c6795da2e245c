//! Compaction of metadata (`compaction/` of `fs`): sparse units are emptied and become data area, at every cut, on every kind of drive,
//! beside other work, around damage. And the deliberate bugs of it. A mutant is global to the process, so the tests of this file run one
//! after the other.

mod damage;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use damage::lines::{Image, What};
use support::bugs::{self, alone};
use tandemfs_check::{CheckOptions, RestoreOptions, check, restore};
use tandemfs_crash::{Awake, Event, MemoryDevice, Random, Setting, Tree, check_device, each_state, fill, mount, rounds_or, works};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{AllocateMode, CompactionRun, Error, FileSystem, MountOptions, NewInode, RenameMode, SetExtendedAttribute, WriteOptions};

const MIB: u64 = 1 << 20;
/// Groups that fill more than two units of each region.
const GROUPS: u64 = 1150;
/// Groups that are made during a compaction: fewer than the units that stay have room for.
const NEW_GROUPS: u64 = 200;
/// Of the first so many groups a thread keeps one in three.
const KEPT_UP_TO: u64 = 300;
/// Passes beside threads free something within this time.
const PASSES_WITHIN: Duration = Duration::from_secs(60);
/// States of a recording that are looked at.
const STATES: u64 = 30;

fn new(kind: u16) -> NewInode<'static> {
    NewInode { mode: kind | 0o700, uid: 0, gid: 0, rdev: 0, target: b"" }
}

fn text(error: Error) -> String {
    error.to_string()
}

/// Every domain and both engines; room for a few units of each region.
fn settings() -> Vec<Setting> {
    let small = |domain| {
        let setting = Setting::small(domain, 4096);
        Setting { memory_bytes: 32 * MIB, mount: MountOptions { memory_bytes: 64 * MIB, ..setting.mount.clone() }, ..setting }
    };
    let domains = [PersistenceDomain::Adr, PersistenceDomain::Gpf, PersistenceDomain::Process];
    let firmware = [small(PersistenceDomain::Adr).with_firmware(), small(PersistenceDomain::Gpf).with_idle_firmware()];
    domains.into_iter().map(small).chain(firmware).collect()
}

fn make(fs: &FileSystem, parent: InodeNumber, name: &str, kind: u16) -> Result<InodeNumber, String> {
    fs.create(parent, name.as_bytes(), &new(kind)).map(|made| made.inode).map_err(|error| format!("{name}: {error}"))
}

fn write(fs: &FileSystem, file: InodeNumber, offset: u64, bytes: &[u8]) -> Result<(), String> {
    fs.write(file, offset, bytes, WriteOptions::default()).map(drop).map_err(|error| format!("writing at {offset}: {error}"))
}

fn set(fs: &FileSystem, inode: InodeNumber, name: &str, value: &[u8]) -> Result<(), String> {
    fs.set_extended_attribute(inode, name.as_bytes(), value, SetExtendedAttribute::default()).map_err(|error| format!("{name}: {error}"))
}

/// A directory with a file: a page of entries, a page of the mapping, a leaf, a set of attributes with a value apart.
fn make_group(fs: &FileSystem, group: u64) -> Result<(), String> {
    let directory = make(fs, InodeNumber::ROOT, &format!("group {group}"), file_type::DIRECTORY)?;
    let file = make(fs, directory, "file", file_type::REGULAR)?;
    for offset in [0, 200, 4096] {
        write(fs, file, offset, &fill(group + offset, 60))?;
    }
    set(fs, file, "user.large", &fill(group, 3000))
}

fn remove_group(fs: &FileSystem, group: u64) -> Result<(), String> {
    let name = format!("group {group}");
    let directory = fs.lookup(InodeNumber::ROOT, name.as_bytes()).map_err(text)?.inode;
    fs.unlink(directory, b"file").map_err(text)?;
    fs.remove_directory(InodeNumber::ROOT, name.as_bytes()).map_err(text)
}

/// Fills units with groups and removes all but one in twenty.
fn make_sparse(fs: &FileSystem, seed: u64) -> Result<Vec<u64>, String> {
    let mut random = Random::new(seed);
    (0..GROUPS).try_for_each(|group| make_group(fs, group))?;
    let (kept, gone): (Vec<u64>, Vec<u64>) = (0..GROUPS).partition(|_| random.one_in(20));
    gone.into_iter().try_for_each(|group| remove_group(fs, group))?;
    Ok(kept)
}

fn compact(fs: &FileSystem) -> Result<CompactionRun, String> {
    let mut run = CompactionRun::default();
    while fs.compact_step(&mut run).map_err(text)? {}
    Ok(run)
}

/// What is left when nineteen of twenty groups are gone takes the fewest units, and what it says is what it was.
fn gives_back(setting: &Setting) -> Result<(), String> {
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    let empty = fs.space().memory.free_bytes;
    let kept = make_sparse(&fs, 3)?;
    let (before, expected) = (fs.space().memory.free_bytes, Tree::read(&fs)?);
    let run = compact(&fs)?;
    let after = fs.space().memory.free_bytes;
    if run.passes != 1 || run.freed_bytes < 6 * 2 * MIB || run.moved_bytes == 0 || after < before + 8 * MIB {
        return Err(format!("{run:?}: free at first {empty}, before {before}, after {after}"));
    }
    let again = compact(&fs)?;
    if again.moved_bytes > 0 {
        return Err(format!("a second time: {again:?}"));
    }
    same(&fs, &expected)?;
    // Names come in pages that have moved.
    for group in &kept {
        let directory = fs.lookup(InodeNumber::ROOT, format!("group {group}").as_bytes()).map_err(text)?.inode;
        make(&fs, directory, "other", file_type::REGULAR)?;
    }
    let expected = Tree::read(&fs)?;
    check_device(&device, true)?;
    // What became data area takes data, and no replay touches it.
    let logs = make(&fs, InodeNumber::ROOT, "logs", file_type::REGULAR)?;
    for block in 0..2000 {
        write(&fs, logs, block * 4096, &fill(block, 2000))?;
    }
    fs.unlink(InodeNumber::ROOT, b"logs").map_err(text)?;
    let after_cut = mount(&device.fork(), &setting.mount)?;
    same(&after_cut, &expected)?;
    fs.unmount().map_err(text)?;
    check_device(&device, false)?;
    same(&mount(&device, &setting.mount)?, &expected)
}

fn same(fs: &FileSystem, expected: &Tree) -> Result<(), String> {
    Tree::read(fs)?.difference(expected).map_or(Ok(()), |difference| Err(difference.to_string()))
}

/// A tree with each thing that moves: pages of several heights, leaves of three sizes, vectors written and reserved, streams of every shape.
/// The file ends behind `last` blocks.
fn make_all_kinds(fs: &FileSystem, block: u64, last: u64) -> Result<(), String> {
    let directory = make(fs, InodeNumber::ROOT, "directory", file_type::DIRECTORY)?;
    for name in 0..70 {
        make(fs, directory, &format!("a name of more than one slot, which is why it is as long as this: {name}"), file_type::REGULAR)?;
    }
    let file = make(fs, directory, "file", file_type::REGULAR)?;
    for at in [0, 1, 200, last] {
        write(fs, file, at * block, &fill(at, block as usize))?;
    }
    for log in 0..13 {
        write(fs, file, log * 300, &fill(log, 60))?;
        write(fs, file, 200 * block + log % 5 * 300, &fill(log, 60))?;
    }
    write(fs, file, 7 * block, &fill(7, 100))?;
    write(fs, file, 7 * block + 500, &fill(8, 100))?;
    fs.allocate(file, 205 * block, block, AllocateMode::Allocate { keep_size: false }).map_err(text)?;
    set(fs, file, "user.small", b"value")?;
    set(fs, directory, "user.near", &fill(1, 900))?;
    set(fs, directory, "user.apart", &fill(2, 2000))?;
    set(fs, directory, "user.pages", &fill(3, 9000))
}

/// Every cut while everything moves: the tree stays as it is.
fn cuts_of_moves(setting: &Setting) -> Result<(), String> {
    for block_bytes in [4096, 64 << 10] {
        let mut setting = Setting { memory_bytes: 16 * MIB, block_zone_bytes: 16 * MIB, ..setting.clone() };
        setting.format.block_bytes = block_bytes;
        let device = setting.format();
        let fs = mount(&device, &setting.mount)?;
        make_all_kinds(&fs, block_bytes.into(), 210)?;
        let expected = Tree::read(&fs)?;
        let start = device.fork();
        device.start_recording();
        fs.move_everything().map_err(text)?;
        fs.checkpoint().map_err(text)?;
        let events = device.stop_recording();
        if fs.statistics().work.compacted_bytes < 10 * 4096 {
            return Err(format!("only {} B moved", fs.statistics().work.compacted_bytes));
        }
        same(&fs, &expected)?;
        states(&setting, &start, &events, &expected)?;
        fs.unmount().map_err(text)?;
        check_device(&device, false)?;
    }
    Ok(())
}

/// Every cut of a compaction and of the departures that follow.
fn cuts_of_a_compaction(setting: &Setting) -> Result<(), String> {
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    make_sparse(&fs, 5)?;
    fs.checkpoint().map_err(text)?;
    let expected = Tree::read(&fs)?;
    let start = device.fork();
    device.start_recording();
    let run = compact(&fs)?;
    let events = device.stop_recording();
    if run.freed_bytes == 0 {
        return Err(format!("{run:?}"));
    }
    states(setting, &start, &events, &expected)
}

/// Looks at about [`STATES`] states of a recording; `TANDEMFS_ROUNDS` times as many.
fn states(setting: &Setting, start: &MemoryDevice, events: &[Event], expected: &Tree) -> Result<(), String> {
    let one_in = (events.len() as u64 / (STATES * rounds_or(1))).max(1);
    let (mut random, mut result, mut looked) = (Random::new(1), Ok(()), 0_u64);
    let look = |device: &MemoryDevice| {
        check_device(device, true)?;
        let fs = mount(device, &setting.mount)?;
        same(&fs, expected)?;
        works(&fs, expected)?;
        fs.unmount().map_err(text)?;
        check_device(device, false).map(drop)
    };
    let (mut chosen, mut states) = (Random::new(2), 0_u64);
    each_state(start, events, 0, 1, &mut random, &mut |cut, state| {
        states += 1;
        // Chance alone would choose hardly any in some recordings.
        if result.is_ok() && (chosen.one_in(one_in) || states.is_power_of_two()) {
            looked += 1;
            result = look(&state.device).map_err(|what| format!("cut before event {} of {}: {what}", cut.event, events.len()));
        }
    });
    assert!(looked > 5 || result.is_err(), "{looked} states");
    result
}

/// Units come back although others make names, files and attributes between the steps: what they need comes from other units, as long as those
/// have room. So no more has to move than if nobody worked.
fn beside_new_names(setting: &Setting) -> Result<(), String> {
    let alone = mount(&setting.format(), &setting.mount)?;
    make_sparse(&alone, 3)?;
    let alone = compact(&alone)?;
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    make_sparse(&fs, 3)?;
    let (mut run, mut steps) = (CompactionRun::default(), 0);
    while fs.compact_step(&mut run).map_err(text)? {
        if steps < NEW_GROUPS {
            make_group(&fs, GROUPS + steps)?;
        }
        steps += 1;
    }
    if run.freed_bytes < 4 * 2 * MIB || run.moved_bytes > alone.moved_bytes * 5 / 4 || steps < NEW_GROUPS {
        return Err(format!("{run:?} in {steps} steps, {alone:?} alone"));
    }
    let expected = Tree::read(&fs)?;
    check_device(&device, true)?;
    fs.unmount().map_err(text)?;
    check_device(&device, false)?;
    same(&mount(&device, &setting.mount)?, &expected)
}

/// The same with threads that take and free lines of every region all the time.
fn beside_threads(setting: &Setting) -> Result<(), String> {
    let device = setting.format();
    let fs = Arc::new(mount(&device, &setting.mount)?);
    make_sparse(&fs, 3)?;
    let is_over = AtomicBool::new(false);
    let run = std::thread::scope(|scope| {
        let workers: Vec<_> = (1..=2)
            .map(|thread| {
                let (fs, is_over) = (&fs, &is_over);
                scope.spawn(move || -> Result<u64, String> {
                    let mut made = 0;
                    while !is_over.load(Relaxed) || made < 20 {
                        let group = thread * 1_000_000 + made;
                        make_group(fs, group)?;
                        // However long the passes take, what stays fits.
                        if made % 3 > 0 || made >= KEPT_UP_TO {
                            remove_group(fs, group)?;
                        }
                        made += 1;
                    }
                    Ok(made)
                })
            })
            .collect();
        // A pass that an operation ended is tried again, as somebody would by hand. How many it takes is the scheduler's choice.
        let start = Awake::now();
        let run = loop {
            match compact(&fs) {
                Ok(run) if run.freed_bytes == 0 && start.elapsed() < PASSES_WITHIN => std::thread::yield_now(),
                run => break run.map(|run| run.freed_bytes),
            }
        };
        is_over.store(true, Relaxed);
        for worker in workers {
            worker.join().expect("no panic")?;
        }
        run
    })?;
    if run == 0 {
        return Err("no unit came back".into());
    }
    let expected = Tree::read(&fs)?;
    fs.unmount().map_err(text)?;
    drop(fs);
    check_device(&device, false)?;
    same(&mount(&device, &setting.mount)?, &expected)
}

/// Lines of directory entries with a wrong bit, on the device and in no host copy: they stay where they are, and what they say of themselves.
fn damage_stays(setting: &Setting) -> Result<(), String> {
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    let kept = make_sparse(&fs, 3)?;
    fs.unmount().map_err(text)?;
    let victim = format!("group {}", kept[0]);
    let mark = b"file";
    device.damage(|zones| {
        // The entries of the groups that are left: byte 17 of a head is where the name begins.
        let lines = zones.memory.as_chunks_mut::<64>().0;
        let damaged = lines.iter_mut().filter(|line| line[4] == 1 && line[6] == 4 && line[17..21] == *mark && line[21] == 0);
        damaged.for_each(|line| line[40] ^= 1);
    });
    let fs = mount(&device, &setting.mount)?;
    let run = compact(&fs)?;
    let directory = fs.lookup(InodeNumber::ROOT, victim.as_bytes()).map_err(text)?.inode;
    match fs.lookup(directory, mark) {
        Err(Error::Damaged { .. }) if run.moved_bytes > 0 => Ok(()),
        found => Err(format!("{run:?}; the damaged name: {found:?}")),
    }
}

/// Names that are removed after their page has moved stay away when a repair, or a restore, searches the pages of the directory: nothing in
/// the pages that it left behind is taken for a name. After a clean unmount or as a crash leaves the image.
fn old_names_stay_away(setting: &Setting, clean: bool) -> Result<(), String> {
    let setting = Setting { memory_bytes: 16 * MIB, block_zone_bytes: 16 * MIB, ..setting.clone() };
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    let directory = make(&fs, InodeNumber::ROOT, "directory", file_type::DIRECTORY)?;
    let mut inodes = Vec::new();
    for name in 0..300 {
        inodes.push(make(&fs, directory, &format!("name {name}"), file_type::REGULAR)?);
    }
    let other = make(&fs, InodeNumber::ROOT, "other", file_type::REGULAR)?;
    fs.move_everything().map_err(text)?;
    fs.unlink(directory, b"name 7").map_err(text)?;
    fs.checkpoint().map_err(text)?;
    if make(&fs, InodeNumber::ROOT, "of somebody else", file_type::REGULAR)? != inodes[7] {
        return Err("the number is not used again".into());
    }
    fs.rename(InodeNumber::ROOT, b"other", directory, b"name 70", RenameMode::Replace).map_err(text)?;
    let expected = Tree::read(&fs)?;
    match clean {
        true => fs.unmount(),
        false => fs.checkpoint(),
    }
    .map_err(text)?;
    let device = device.fork();
    device.damage(|zones| {
        let lines: Vec<_> =
            Image::new(zones).lines_of(directory).into_iter().filter(|(what, _)| matches!(what, What::Mapping(_))).collect();
        assert!(!lines.is_empty(), "its pages are named by a page");
        for (_, line) in lines {
            zones.memory[line.offset_bytes() as usize..][..64].fill(0x6b);
        }
    });
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let to = folder.path().join("restored");
    let drive = || Drive::new(Arc::new(device.clone()));
    restore(&drive(), &to, &RestoreOptions::default(), &mut |_| {}).map_err(|error| error.to_string())?;
    for (name, is_there) in [("name 7", false), ("name 8", true), ("name 70", true)] {
        if to.join("directory").join(name).exists() != is_there {
            return Err(format!("restored: {name} is there: {}", !is_there));
        }
    }
    let options = CheckOptions { repair: true, threads: 1, ..CheckOptions::default() };
    let report = check(&drive(), &options, &mut |_| {}).map_err(|error| error.to_string())?;
    if !report.is_consistent() || !report.placed.is_empty() {
        return Err(format!("{:?}, {:?}", report.findings, report.placed));
    }
    let fs = mount(&device, &setting.mount)?;
    same(&fs, &expected)?;
    if fs.lookup(directory, b"name 70").map_err(text)?.inode != other {
        return Err("the name leads to what it replaced".into());
    }
    fs.unmount().map_err(text)?;
    check_device(&device, false).map(drop)
}

fn sound(scenario: impl Fn(&Setting) -> Result<(), String>) {
    bugs::sound(&settings(), scenario);
}

fn caught(bug: Mutant, scenario: impl Fn(&Setting) -> Result<(), String>) {
    bugs::caught(bug, &settings()[0], scenario);
}

#[test]
fn sparse_units_become_data_area() {
    sound(gives_back);
}

#[test]
fn every_cut_of_a_move_leaves_the_tree() {
    sound(cuts_of_moves);
}

#[test]
fn every_cut_of_a_compaction_leaves_the_tree() {
    sound(cuts_of_a_compaction);
}

#[test]
fn damaged_lines_do_not_move() {
    sound(damage_stays);
}

#[test]
fn regression_names_that_were_removed_came_back_from_pages_that_had_moved() {
    sound(|setting| [true, false].into_iter().try_for_each(|clean| old_names_stay_away(setting, clean)));
}

/// Engines that left the old pages as they were: the maps of a clean unmount say that nobody has them.
#[test]
fn pages_that_older_engines_left_are_not_searched_after_a_clean_unmount() {
    let _alone = alone();
    bugs::run(Mutant::MovedEntriesLeft, || old_names_stay_away(&settings()[0], true)).unwrap_or_else(|what| panic!("{what}"));
}

#[test]
fn cz9_moved_entries_left() {
    caught(Mutant::MovedEntriesLeft, |setting| old_names_stay_away(setting, false));
}

#[test]
fn units_come_back_beside_new_names() {
    sound(beside_new_names);
}

#[test]
fn units_come_back_beside_threads() {
    sound(beside_threads);
}

#[test]
fn eu1_given_from_emptied() {
    caught(Mutant::GivenFromEmptied, beside_new_names);
}

#[test]
fn eu1_moved_into_emptied() {
    caught(Mutant::MovedIntoEmptied, gives_back);
}

#[test]
fn cz5_moved_page_not_followed() {
    caught(Mutant::MovedPageNotFollowed, gives_back);
}

#[test]
fn cz4_damaged_moved() {
    caught(Mutant::DamagedMoved, damage_stays);
}

#[test]
fn r6_freed_metadata_at_once() {
    caught(Mutant::FreedMetadataAtOnce, cuts_of_moves);
}

/// A directory that needs a page finds one, although all units belong to regions that hardly use them.
#[test]
fn a_region_takes_the_sparse_units_of_another_one() {
    let _alone = alone();
    for setting in settings() {
        let setting = Setting { memory_bytes: 16 * MIB, ..setting };
        let device = setting.format();
        let fs = mount(&device, &setting.mount).expect("mounts");
        let sparse = make(&fs, InodeNumber::ROOT, "sparse", file_type::REGULAR).expect("made");
        let mut pages = 0;
        while write(&fs, sparse, pages * 192 * 4096, &[1; 60]).is_ok() {
            pages += 1;
        }
        for page in (0..pages).filter(|page| page % 20 > 0) {
            fs.allocate(sparse, page * 192 * 4096, 4096, AllocateMode::Punch).expect("punched");
        }
        let made = (0..700).find_map(|group| {
            let made = make(&fs, InodeNumber::ROOT, &group.to_string(), file_type::DIRECTORY);
            made.and_then(|directory| make(&fs, directory, "file", file_type::REGULAR)).err()
        });
        assert_eq!(made, None, "{setting:?}: {:?}", fs.space());
        assert!(fs.statistics().work.compacted_bytes > 0, "{setting:?}");
        let mut bytes = [0; 60];
        for page in (0..pages).step_by(20) {
            fs.read(sparse, page * 192 * 4096, &mut bytes).expect("read");
            assert_eq!(bytes, [1; 60]);
        }
        fs.unmount().expect("unmounts");
        check_device(&device, false).unwrap_or_else(|findings| panic!("{findings}"));
    }
}

/// Threads write, read, list, set attributes and scrub while everything moves again and again.
#[test]
fn threads_work_while_everything_moves() {
    let _alone = alone();
    for setting in [settings().remove(1), settings().remove(3)] {
        let mut setting = Setting { memory_bytes: 24 * MIB, block_zone_bytes: 32 * MIB, ..setting };
        setting.format.block_bytes = 64 << 10;
        setting.mount.memory_bytes = 4 * MIB; // host copies are evicted
        let device = setting.format();
        let fs = Arc::new(mount(&device, &setting.mount).expect("mounts"));
        make_all_kinds(&fs, 64 << 10, 40_000).expect("made");
        let directory = fs.lookup(InodeNumber::ROOT, b"directory").expect("there").inode;
        let file = fs.lookup(directory, b"file").expect("there").inode;
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let own = &fs;
            let workers = [
                scope.spawn(move || {
                    let other = make(own, directory, "other", file_type::REGULAR).expect("made");
                    for round in 0..400 {
                        let (block, bytes) = (round % 40, fill(round, 60_000 + round as usize % 3000));
                        write(own, other, block << 16, &bytes).expect("written");
                        write(own, other, (block << 16) + 100, &bytes[..50]).expect("written");
                        let mut found = vec![0; bytes.len()];
                        own.read(other, block << 16, &mut found).expect("read");
                        assert!(found[..100] == bytes[..100] && found[100..150] == bytes[..50] && found[150..] == bytes[150..]);
                    }
                }),
                scope.spawn(move || {
                    for round in 0..300 {
                        let name = format!("name {round}");
                        make(own, directory, &name, file_type::REGULAR).expect("made");
                        set(own, directory, "user.apart", &fill(round, 2000)).expect("set");
                        assert_eq!(own.extended_attribute(directory, b"user.apart").expect("there"), fill(round, 2000));
                        own.unlink(directory, name.as_bytes()).expect("removed");
                    }
                }),
                scope.spawn(move || {
                    let mut bytes = vec![0; 64 << 10];
                    for round in 0..600 {
                        let at = [1, 200, 40_000][round % 3];
                        own.read(file, at << 16, &mut bytes).expect("read");
                        assert_eq!(bytes[4096..], fill(at, 64 << 10)[4096..], "block {at}");
                    }
                }),
            ];
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    fs.move_everything().expect("moves");
                }
            });
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    let mut scrub = fs.scrub();
                    while fs.scrub_step(&mut scrub) && !is_over.load(Relaxed) {}
                    assert_eq!(scrub.findings(), [], "a scrub");
                }
            });
            let ended: Vec<_> = workers.into_iter().map(|thread| thread.join()).collect();
            is_over.store(true, Relaxed);
            assert!(ended.iter().all(Result::is_ok));
        });
        assert!(fs.statistics().work.compacted_bytes > 0);
        fs.unmount().expect("unmounts");
        check_device(&device, false).unwrap_or_else(|findings| panic!("{findings}"));
    }
}
