//! After every change of a file, the inode's space count equals what `tandemfs_check` counts, with either way of counting data logs; and a
//! small write into allocated space does not change it.
//!
//!     TANDEMFS_SEED=N TANDEMFS_ROUNDS=100 cargo test --release -p tandemfs-crash --test counted_space      100 files a combination

use tandemfs_crash::{Random, Setting, check_device, fill, mount, rounds_or, seed_or};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_format::superblock::ro_compat;
use tandemfs_fs::{AllocateMode, Error, FileSystem, NewInode, SetAttributes, WriteOptions};

const PAGE: u64 = 4096;
const FILE_BYTES_MAX: u64 = 300_000;
/// Changes of one file.
const STEPS: usize = 40;

fn create(fs: &FileSystem, name: &str) -> InodeNumber {
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    fs.create(InodeNumber::ROOT, name.as_bytes(), &new).expect("creates").inode
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Write(u64, u64),
    Truncate(u64),
    Allocate(u64, u64, AllocateMode),
    WriteBack,
}

fn draw(random: &mut Random) -> Step {
    let place = |random: &mut Random| {
        let near = random.below(FILE_BYTES_MAX / PAGE) * PAGE;
        // Often in the first two blocks, so that logs, sectors and their ends meet.
        let near = if random.one_in(3) { near } else { near % (2 * 65_536) };
        match random.below(3) {
            0 => near,
            1 => near + random.below(PAGE),
            _ => near.saturating_sub(random.below(400)),
        }
    };
    let (offset, length) = (place(random), 1 + random.below(60_000));
    match random.below(20) {
        0..=9 => Step::Write(offset, 1 + random.below(600)),
        10 | 11 => Step::Write(offset, length),
        12 | 13 => Step::Truncate(offset),
        14 | 15 => Step::Allocate(offset, length, AllocateMode::Allocate { keep_size: random.one_in(2) }),
        16 => Step::Allocate(offset, length, AllocateMode::Zero { keep_size: random.one_in(2) }),
        17 => Step::Allocate(offset, length, AllocateMode::Punch),
        18 => Step::Allocate(offset / 65_536 * 65_536, 65_536, *random.pick(&[AllocateMode::Collapse, AllocateMode::Insert])),
        _ => Step::WriteBack,
    }
}

fn apply(fs: &FileSystem, file: InodeNumber, step: Step) -> Result<(), Error> {
    match step {
        Step::Write(offset, length) => fs.write(file, offset, &fill(offset, length as usize), WriteOptions::default()).map(drop),
        Step::Truncate(size) => fs.set_attributes(file, &SetAttributes { size: Some(size), ..SetAttributes::default() }).map(drop),
        Step::Allocate(offset, length, mode) => fs.allocate(file, offset, length, mode),
        Step::WriteBack => fs.write_back().map(drop),
    }
}

/// Files changed at random; `tandemfs_check` counts after each change.
fn every_change_counts(features: u64, firmware: bool) {
    let (seed, rounds) = (seed_or(1), rounds_or(14));
    let mut done = 0;
    for seed in seed..seed + rounds {
        let mut random = Random::new(seed);
        let small = Setting::small(PersistenceDomain::Gpf, *random.pick(&[16 << 10, 64 << 10, 64 << 10, 256 << 10]));
        let setting = if firmware { small.with_firmware() } else { small };
        let device = setting.format_with(features);
        let mut fs = mount(&device, &setting.mount).expect("mounts");
        let file = create(&fs, "file");
        let mut steps = Vec::new();
        for _ in 0..STEPS {
            let step = draw(&mut random);
            steps.push(step);
            match apply(&fs, file, step) {
                Ok(()) => done += 1,
                // Ranges that a collapse or an insert refuses.
                Err(Error::InvalidArgument(_)) => {}
                Err(error) => panic!("TANDEMFS_SEED={seed}, {setting:?}, {steps:?}: {error}"),
            }
            check_device(&device, true).unwrap_or_else(|what| panic!("TANDEMFS_SEED={seed}, {setting:?}, {steps:?}: {what}"));
        }
        let before = fs.attributes(file).expect("there").space_512;
        fs.unmount().expect("unmounts");
        check_device(&device, false).unwrap_or_else(|what| panic!("TANDEMFS_SEED={seed}, {setting:?}, {steps:?}: {what}"));
        fs = mount(&device, &setting.mount).expect("mounts");
        assert_eq!(fs.superblock().ro_compat, features);
        assert_eq!(fs.attributes(file).expect("there").space_512, before);
        fs.set_attributes(file, &SetAttributes { size: Some(0), ..SetAttributes::default() }).expect("emptied");
        assert_eq!(fs.attributes(file).expect("there").space_512, 0, "TANDEMFS_SEED={seed}, {setting:?}, {steps:?}");
    }
    assert!(done > rounds * STEPS as u64 / 2, "{done} changes");
}

#[test]
fn every_change_counts_what_is_behind_the_sectors() {
    every_change_counts(ro_compat::KNOWN, false);
    every_change_counts(ro_compat::KNOWN, true);
    every_change_counts(ro_compat::COVERED_LOGS_UNCOUNTED, false);
}

#[test]
fn every_change_counts_all_logs_without_the_feature() {
    every_change_counts(0, false);
    every_change_counts(0, true);
}

/// In the middle of a block given space ends and logs go on, across its end as well.
#[test]
fn a_small_write_into_given_space_changes_no_count() {
    let (seed, rounds) = (seed_or(1), rounds_or(60));
    let (mut merged, mut beyond) = (0, 0);
    for seed in seed..seed + rounds {
        let mut random = Random::new(seed);
        let setting = Setting::small(PersistenceDomain::Gpf, 64 << 10);
        let device = setting.format();
        let fs = mount(&device, &setting.mount).expect("mounts");
        assert!(fs.superblock().has(ro_compat::COVERED_LOGS_UNCOUNTED), "what mkfs sets");
        for number in 0..8 {
            let file = create(&fs, &format!("{number}"));
            let given = 65_536 * random.below(2) + PAGE * (1 + random.below(8));
            if random.one_in(2) {
                // Written sectors instead of room.
                fs.write(file, 0, &fill(1, given as usize), WriteOptions::default()).expect("writes");
                fs.write_back().expect("written back");
            }
            fs.allocate(file, 0, given, AllocateMode::Allocate { keep_size: false }).expect("room");
            let count = |fs: &FileSystem| fs.attributes(file).expect("there").space_512;
            let across = (given - random.below(200), 1 + random.below(700));
            fs.write(file, across.0, &fill(2, across.1 as usize), WriteOptions::default()).expect("writes");
            beyond += u64::from(across.0 + across.1 > given && count(&fs) > given / 512);
            let before = count(&fs);
            // Fewer than fill the leaf: then the block is written anew up to the end of the file.
            for _ in 0..8 {
                let length = 1 + random.below(300);
                let near = if random.one_in(2) { given.saturating_sub(random.below(1000) + length) } else { random.below(given - length) };
                fs.write(file, near, &fill(3, length as usize), WriteOptions::default()).expect("writes");
                assert_eq!(count(&fs), before, "TANDEMFS_SEED={seed}, {length} B at {near} of {given} B given, {across:?} across");
            }
        }
        merged += fs.statistics().work.merges;
        fs.unmount().expect("unmounts");
        check_device(&device, false).unwrap_or_else(|what| panic!("TANDEMFS_SEED={seed}: {what}"));
    }
    assert!(merged > rounds && beyond > rounds, "{merged} merges, {beyond} logs behind given space");
}
