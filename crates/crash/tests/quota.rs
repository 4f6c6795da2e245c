//! Quota: usage in memory equals what `tandemfs_check` counts anew after every operation, after a crash and after a remount; limits refuse what
//! would pass them, and nothing else.
//!
//!     TANDEMFS_SEED=N TANDEMFS_ROUNDS=100 cargo test --release -p tandemfs-crash --test quota      100 file systems a combination

mod support;

use support::quota::{Counted, FILE, NOBODY, TREE, bound, changes, compare, counted, kept, limit, set_limits, usage_of};
use tandemfs_crash::{Random, Setting, check_device, fill, mount, rounds_or, seed_or};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_format::quota::{Limit, QuotaKind};
use tandemfs_fs::{AllocateMode, Error, FileSystem, Home, NewInode, QuotaSet, RenameMode, SetAttributes, WriteOptions};

const MIB: u64 = 1 << 20;
const NONE: Limit = Limit { soft: 0, hard: 0 };

fn settings() -> Vec<Setting> {
    let small = Setting::small(PersistenceDomain::Gpf, 64 << 10);
    vec![
        small.clone(),
        small.clone().with_firmware(),
        small.clone().with_memory_homes(),
        small.without_blocks(),
        Setting::small(PersistenceDomain::Gpf, 4 << 10),
    ]
}

/// A file system with room for what limits allow.
fn roomy() -> (tandemfs_crash::MemoryDevice, FileSystem) {
    let setting = Setting { memory_bytes: 32 << 20, block_zone_bytes: 64 << 20, ..Setting::small(PersistenceDomain::Gpf, 64 << 10) };
    let device = setting.format();
    let fs = mount(&device, &setting.mount).expect("mounts");
    (device, fs)
}

fn make(fs: &FileSystem, parent: InodeNumber, name: &str, owner: u32, mode: u16) -> Result<InodeNumber, Error> {
    fs.create(parent, name.as_bytes(), &NewInode { mode, uid: owner, gid: owner, rdev: 0, target: b"" }).map(|made| made.inode)
}

fn owner(uid: u32) -> SetAttributes {
    SetAttributes { uid: Some(uid), ..SetAttributes::default() }
}

fn is_exceeded<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::QuotaExceeded { .. }))
}

/// Operations at random of several users, groups and projects, some of them refused for limits.
#[test]
fn usage_in_memory_is_what_check_counts() {
    let (seed, rounds) = (seed_or(1), rounds_or(4));
    let (mut refused, mut done) = (0, 0);
    for (index, setting) in settings().into_iter().enumerate() {
        for seed in seed..seed + rounds {
            let mut random = Random::new(seed * 31 + index as u64);
            let device = setting.format();
            let mut fs = mount(&device, &setting.mount).expect("mounts");
            let says = |what: &str| format!("TANDEMFS_SEED={seed}, setting {index}: {what}");
            // Something is there when counting begins.
            changes(&fs, &mut random, 20, &mut |_| {});
            for user in 1..4 {
                set_limits(&fs, QuotaKind::User, user, [limit(0, MIB / 4), limit(0, MIB / 8), limit(0, 2)]);
            }
            set_limits(&fs, QuotaKind::Group, 11, [limit(0, MIB / 8), limit(1, MIB / 8), limit(1, 2)]);
            set_limits(&fs, QuotaKind::Project, 5, [limit(0, MIB), limit(0, MIB / 4), limit(0, 4)]);
            compare(&device, &fs).unwrap_or_else(|what| panic!("{}", says(&what)));
            for _ in 0..4 {
                let mut steps = Vec::new();
                let Counted { refused: more, done: also } = changes(&fs, &mut random, 25, &mut |step| {
                    steps.push(step);
                    compare(&device, &fs).unwrap_or_else(|what| panic!("{}", says(&format!("{what} after {steps:?}"))));
                });
                (refused, done) = (refused + more, done + also);
                // A crash, and a clean unmount: the next mount counts the same.
                let before = counted(&fs);
                let crashed = mount(&device.fork(), &setting.mount).expect("mounts after a crash");
                assert_eq!(counted(&crashed), before, "{}", says("after a crash"));
                fs.unmount().expect("unmounts");
                check_device(&device, false).unwrap_or_else(|what| panic!("{}", says(&what)));
                fs = mount(&device, &setting.mount).expect("mounts again");
                assert_eq!(counted(&fs), before, "{}", says("after a remount"));
            }
        }
    }
    assert!(refused > 10 * rounds && done > 100 * rounds, "{refused} refused, {done} done");
}

#[test]
fn limits_of_each_zone_and_of_inodes_are_exact() {
    let (device, fs) = roomy();
    let file = make(&fs, InodeNumber::ROOT, "f", 7, FILE).expect("made");
    set_limits(&fs, QuotaKind::User, 7, [NONE, limit(0, 4 * MIB), limit(0, 3)]);
    assert!(fs.superblock().has_quota());

    // Blocks, to the last one.
    let block = fill(1, 64 << 10);
    for index in 0..64 {
        bound(&fs, NOBODY, || fs.write(file, index * (64 << 10), &block, WriteOptions::default())).expect("below the limit");
    }
    assert_eq!(usage_of(&fs, QuotaKind::User, 7)[1], 4 * MIB);
    let over = bound(&fs, NOBODY, || fs.write(file, 4 * MIB, &block, WriteOptions::default()));
    assert!(matches!(over, Err(Error::QuotaExceeded { kind: QuotaKind::User, id: 7, resource: "bytes of the block zone" })), "{over:?}");
    assert!(is_exceeded(&bound(&fs, NOBODY, || fs.allocate(file, 4 * MIB, 4096, AllocateMode::Allocate { keep_size: true }))));
    assert_eq!(usage_of(&fs, QuotaKind::User, 7)[1], 4 * MIB, "a refusal takes nothing");
    bound(&fs, NOBODY, || fs.write(file, 0, &fill(2, 64 << 10), WriteOptions::default())).expect("takes no more than it gives back");
    let mut read = vec![0; 64 << 10];
    fs.read(file, 0, &mut read).expect("reads");
    assert_eq!(read, fill(2, 64 << 10));

    // Others are not concerned, nor who may exceed limits, nor work of the file system.
    let other = make(&fs, InodeNumber::ROOT, "g", 8, FILE).expect("made");
    bound(&fs, NOBODY, || fs.write(other, 0, &block, WriteOptions::default())).expect("another user");
    bound(&fs, |_| true, || fs.write(file, 4 * MIB, &block, WriteOptions::default())).expect("privileged");
    fs.write(file, 5 * MIB, &block, WriteOptions::default()).expect("nobody's operation");
    assert_eq!(usage_of(&fs, QuotaKind::User, 7)[1], 4 * MIB + (128 << 10));

    // Space that is given back can be used again.
    bound(&fs, NOBODY, || fs.allocate(file, 0, MIB, AllocateMode::Punch)).expect("punched above the limit");
    bound(&fs, NOBODY, || fs.write(file, 0, &block, WriteOptions::default())).expect("below the limit");
    fs.set_attributes(file, &SetAttributes { size: Some(0), ..SetAttributes::default() }).expect("emptied");
    assert_eq!(usage_of(&fs, QuotaKind::User, 7), [0, 0, 1]);

    // Inodes.
    for name in ["1", "2"] {
        bound(&fs, NOBODY, || make(&fs, InodeNumber::ROOT, name, 7, FILE)).expect("below the limit");
    }
    for mode in [FILE, file_type::DIRECTORY | 0o755, file_type::FIFO | 0o600] {
        assert!(is_exceeded(&bound(&fs, NOBODY, || make(&fs, InodeNumber::ROOT, "3", 7, mode))));
    }
    let nameless = NewInode { mode: FILE, uid: 7, gid: 7, rdev: 0, target: b"" };
    assert!(is_exceeded(&bound(&fs, NOBODY, || fs.create_nameless(InodeNumber::ROOT, &nameless, 0))));
    bound(&fs, NOBODY, || fs.link(file, InodeNumber::ROOT, b"link")).expect("a name is no inode");
    fs.unlink(InodeNumber::ROOT, b"2").expect("removed");
    bound(&fs, NOBODY, || make(&fs, InodeNumber::ROOT, "3", 7, FILE)).expect("there is room for one");
    compare(&device, &fs).expect("counted anew");
}

/// Small writes take the block path where the limit of the memory zone is near, and metadata still fits.
#[test]
fn logs_give_way_to_blocks_at_the_limit_of_the_memory_zone() {
    let (device, fs) = roomy();
    let file = make(&fs, InodeNumber::ROOT, "f", 7, FILE).expect("made");
    set_limits(&fs, QuotaKind::User, 7, [limit(0, MIB / 4), NONE, NONE]);
    for index in 0..300 {
        bound(&fs, NOBODY, || fs.write(file, index * (64 << 10), &[7; 1000], WriteOptions::default())).expect("by blocks at last");
    }
    let [memory, block, _] = usage_of(&fs, QuotaKind::User, 7);
    assert!(memory <= MIB / 4 && block > 0, "{memory} B in the memory zone, {block} B in the block zone");
    compare(&device, &fs).expect("counted anew");
    // Write-back moves it all from one zone to the other, refused or not.
    set_limits(&fs, QuotaKind::User, 7, [NONE, limit(0, 1), NONE]);
    fs.write_back().expect("written back");
    assert!(usage_of(&fs, QuotaKind::User, 7)[1] >= block);
    compare(&device, &fs).expect("counted anew");
}

#[test]
fn a_soft_limit_holds_when_its_grace_period_is_over() {
    let (device, fs) = roomy();
    let grace = |seconds| fs.set_quota(&QuotaSet { kind: QuotaKind::Group, limits: None, grace_seconds: Some(seconds) }).expect("set");
    let file = make(&fs, InodeNumber::ROOT, "f", 7, FILE).expect("made");
    set_limits(&fs, QuotaKind::Group, 7, [NONE, limit(128 << 10, MIB), NONE]);
    let write = |fs: &FileSystem, index: u64| {
        bound(fs, NOBODY, || fs.write(file, index * (64 << 10), &fill(index, 64 << 10), WriteOptions::default()))
    };
    for index in 0..4 {
        write(&fs, index).expect("within the grace period");
    }
    let left = |fs: &FileSystem| {
        let entries = fs.quota_entries().expect("counted");
        entries.iter().find(|entry| (entry.kind, entry.id) == (QuotaKind::Group, 7)).expect("listed").block.grace_seconds_left
    };
    assert!(left(&fs).is_some_and(|left| left > 6 * 24 * 3600), "{:?}", left(&fs));
    grace(0);
    assert!(is_exceeded(&write(&fs, 4)) && left(&fs) == Some(0));
    write(&fs, 0).expect("takes nothing");
    // The period is stored: a remount does not begin it anew.
    fs.unmount().expect("unmounts");
    let options = Setting::small(PersistenceDomain::Gpf, 64 << 10).mount;
    let fs = mount(&device, &options).expect("mounts");
    assert!(is_exceeded(&write(&fs, 4)));
    // Back below the limit it is forgotten.
    fs.allocate(file, 0, 3 << 16, AllocateMode::Punch).expect("punched");
    assert_eq!(left(&fs), None);
    write(&fs, 0).expect("below");
    write(&fs, 1).expect("a new period begins");
    assert!(is_exceeded(&write(&fs, 2)));
    fs.unmount().expect("unmounts");
    check_device(&device, false).expect("nothing is found");
}

#[test]
fn usage_follows_the_owner() {
    let (device, fs) = roomy();
    let file = make(&fs, InodeNumber::ROOT, "f", 7, FILE).expect("made");
    fs.write(file, 0, &fill(1, 300_000), WriteOptions::default()).expect("written");
    set_limits(&fs, QuotaKind::User, 9, [NONE, limit(0, 128 << 10), NONE]);
    let before = usage_of(&fs, QuotaKind::User, 7);
    assert!(before[0] + before[1] >= 300_000 && before[1] >= 256 << 10, "{before:?}");
    assert!(is_exceeded(&bound(&fs, NOBODY, || fs.set_attributes(file, &owner(9)))), "it does not fit");
    assert_eq!((usage_of(&fs, QuotaKind::User, 7), fs.attributes(file).expect("there").uid), (before, 7));
    bound(&fs, NOBODY, || fs.set_attributes(file, &owner(8))).expect("no limits");
    fs.set_attributes(file, &owner(9)).expect("not bound");
    let group = SetAttributes { gid: Some(5), size: Some(10), ..SetAttributes::default() };
    fs.set_attributes(file, &group).expect("size and group at once");
    assert_eq!(usage_of(&fs, QuotaKind::User, 7)[2] + usage_of(&fs, QuotaKind::User, 8)[2], 0);
    assert_eq!(usage_of(&fs, QuotaKind::Group, 5)[2], 1);
    compare(&device, &fs).expect("counted anew");
}

#[test]
fn a_project_is_a_tree_that_nothing_of_another_enters() {
    let (device, fs) = roomy();
    let root = InodeNumber::ROOT;
    let tree = make(&fs, root, "tree", 0, TREE).expect("made");
    let old = make(&fs, tree, "old", 1, FILE).expect("made");
    let below = make(&fs, tree, "below", 1, TREE).expect("made");
    let outside = make(&fs, root, "outside", 1, FILE).expect("made");
    assert_eq!(fs.set_project_of_tree(tree, 5, &mut || true).expect("set"), 3);
    let made = [make(&fs, below, "new", 1, FILE).expect("made"), make(&fs, below, "directory", 1, TREE).expect("made")];
    let link = NewInode { mode: file_type::SYMLINK | 0o777, uid: 1, gid: 1, rdev: 0, target: b"nowhere, but far away" };
    let link = fs.create(below, b"link", &link).expect("made").inode;
    let found: Vec<_> = [tree, old, below, made[0], made[1], link].map(|inode| fs.project(inode).expect("there")).to_vec();
    assert_eq!(found, [(5, true), (5, false), (5, true), (5, false), (5, true), (5, false)]);
    set_limits(&fs, QuotaKind::Project, 5, [NONE, NONE, limit(0, 7)]);
    assert_eq!(usage_of(&fs, QuotaKind::Project, 5)[2], 6);

    let replace = |from, name: &[u8], to, new: &[u8], mode| fs.rename(from, name, to, new, mode);
    assert!(matches!(replace(root, b"outside", tree, b"in", RenameMode::Replace), Err(Error::OtherProject)));
    assert!(matches!(replace(tree, b"old", root, b"outside", RenameMode::Exchange), Err(Error::OtherProject)));
    assert!(matches!(replace(root, b"outside", tree, b"old", RenameMode::Exchange), Err(Error::OtherProject)));
    assert!(matches!(fs.link(outside, tree, b"in"), Err(Error::OtherProject)));
    replace(tree, b"old", below, b"old", RenameMode::Replace).expect("within the tree");
    fs.link(old, tree, b"again").expect("within the tree");
    replace(below, b"new", root, b"new", RenameMode::Replace).expect("out of the tree, as XFS has it");
    assert_eq!(fs.project(made[0]).expect("there"), (5, false), "it keeps its project");
    replace(root, b"new", below, b"new", RenameMode::Replace).expect("back");

    bound(&fs, NOBODY, || make(&fs, below, "seventh", 1, FILE)).expect("below the limit");
    assert!(is_exceeded(&bound(&fs, NOBODY, || make(&fs, below, "eighth", 1, FILE))));
    assert!(is_exceeded(&bound(&fs, NOBODY, || fs.rename_leaving_whiteout((below, b"new"), (tree, b"new"), RenameMode::Replace, (0, 0)))));
    make(&fs, root, "eighth", 1, FILE).expect("not in the tree");
    assert_eq!(fs.set_project_of_tree(tree, 0, &mut || true).expect("set"), 8, "again is linked twice");
    assert_eq!((usage_of(&fs, QuotaKind::Project, 5)[2], fs.project(below).expect("there")), (0, (0, false)));
    compare(&device, &fs).expect("counted anew");
    fs.unmount().expect("unmounts");
    check_device(&device, false).expect("nothing is found");
}

#[test]
fn limits_are_durable_hidden_and_end_with_the_last_one() {
    let (device, fs) = roomy();
    assert!(
        fs.quota_entries().expect("counted for this call").iter().all(|entry| entry.memory.limit == NONE) && !fs.superblock().has_quota()
    );
    for (kind, id, soft, hard) in [(QuotaKind::Project, 0, 0, 1), (QuotaKind::User, 1, 2, 1)] {
        let set = QuotaSet { kind, limits: Some((id, [limit(soft, hard), NONE, NONE])), grace_seconds: None };
        assert!(matches!(fs.set_quota(&set), Err(Error::InvalidArgument(_))));
    }
    assert!(!fs.superblock().has_quota(), "what is refused gives no feature");
    set_limits(&fs, QuotaKind::User, 1, [NONE; 3]);
    fs.set_project_of_tree(InodeNumber::ROOT, 0, &mut || true).expect("set");
    assert!(!fs.superblock().has_quota(), "nor does what sets nothing");
    // More than one chunk.
    for id in 0..600 {
        set_limits(&fs, QuotaKind::User, id * 3, [limit(1, 2), NONE, limit(0, u64::MAX)]);
    }
    fs.set_quota(&QuotaSet { kind: QuotaKind::User, limits: None, grace_seconds: Some(77) }).expect("set");
    let mut names = 0;
    fs.extended_attributes(InodeNumber::ROOT, &mut |_, _| names += 1).expect("listed");
    assert_eq!(names, 0);
    let name = b"system.tandemfs.quota.user.0";
    assert!(matches!(fs.extended_attribute(InodeNumber::ROOT, name), Err(Error::NotSupported(_))));
    assert!(matches!(fs.set_extended_attribute(InodeNumber::ROOT, name, b"x", Default::default()), Err(Error::NotSupported(_))));
    assert!(matches!(fs.remove_extended_attribute(InodeNumber::ROOT, name), Err(Error::NotSupported(_))));
    let before = kept(&fs);
    assert_eq!(before.iter().filter(|(kind, ..)| *kind == QuotaKind::User).count(), 600);
    drop(fs);
    let options = Setting::small(PersistenceDomain::Gpf, 64 << 10).mount;
    let fs = mount(&device, &options).expect("mounts after a crash");
    assert_eq!((kept(&fs), fs.quota_grace_seconds().expect("read")), (before, [77, 604_800, 604_800]));
    for id in 0..600 {
        set_limits(&fs, QuotaKind::User, id * 3, [NONE; 3]);
    }
    assert!(kept(&fs).is_empty() && fs.superblock().has_quota());
    let file = make(&fs, InodeNumber::ROOT, "f", 0, FILE).expect("made");
    set_limits(&fs, QuotaKind::User, 0, [NONE, NONE, limit(0, 1)]);
    assert!(is_exceeded(&bound(&fs, NOBODY, || make(&fs, InodeNumber::ROOT, "g", 0, FILE))), "counted anew when limits came again");
    fs.set_home(file, Home::Block).expect("set");
    compare(&device, &fs).expect("counted anew");
    fs.unmount().expect("unmounts");
    check_device(&device, false).expect("nothing is found");
}

/// Who maps a file may be another user; what is moved for him, and space that would be of use and is not needed, are not refused.
#[test]
fn a_file_at_its_limit_is_mapped() {
    let setting = Setting::small(PersistenceDomain::Gpf, 64 << 10).with_memory_homes();
    let device = setting.format();
    let fs = std::sync::Arc::new(mount(&device, &setting.mount).expect("mounts"));
    let file = make(&fs, InodeNumber::ROOT, "f", 7, FILE).expect("made");
    fs.write(file, 0, &fill(1, 3 << 15), WriteOptions::default()).expect("written");
    fs.set_home(file, Home::Memory).expect("set");
    fs.write(file, 100, &fill(2, 300), WriteOptions::default()).expect("a log over the block");
    fs.write(file, (3 << 15) + 10, &fill(3, 300), WriteOptions::default()).expect("a log in the last block");
    set_limits(&fs, QuotaKind::User, 7, [limit(0, 1), limit(0, 1), NONE]);
    let mapping = bound(&fs, NOBODY, || fs.map(file, 0, (3 << 15) + 310, true));
    drop(mapping.expect("mapped"));
    let lost = bound(&fs, NOBODY, || fs.write(file, MIB, &fill(2, 300), WriteOptions::default()));
    assert!(is_exceeded(&lost), "what grows is refused");
    compare(&device, &fs).expect("counted anew");
    fs.unmount().expect("unmounts");
    check_device(&device, false).expect("nothing is found");
}

/// A thread that does not wait is refused as any other, and changes nothing.
#[test]
fn a_refusal_leaves_generations_and_space_as_they_were() {
    let (device, fs) = roomy();
    set_limits(&fs, QuotaKind::User, 7, [NONE, NONE, limit(0, 1)]);
    let before = fs.space();
    for _ in 0..1000 {
        bound(&fs, NOBODY, || make(&fs, InodeNumber::ROOT, "f", 7, FILE)).expect("one");
        assert!(is_exceeded(&bound(&fs, NOBODY, || tandemfs_fs::no_wait(|| make(&fs, InodeNumber::ROOT, "g", 7, FILE)))));
        fs.unlink(InodeNumber::ROOT, b"f").expect("removed");
    }
    fs.checkpoint().expect("home");
    let after = fs.space();
    assert_eq!((before.inodes_used, before.block), (after.inodes_used, after.block));
    compare(&device, &fs).expect("counted anew");
}

/// Threads of two users that meet one limit of a project: it is never passed, not even by what is in flight.
#[test]
fn a_limit_holds_for_threads_beside_each_other() {
    let (device, fs) = roomy();
    let tree = make(&fs, InodeNumber::ROOT, "tree", 0, TREE).expect("made");
    fs.set_project_of_tree(tree, 5, &mut || true).expect("set");
    let files: Vec<_> = (0..4).map(|user| make(&fs, tree, &user.to_string(), user, FILE).expect("made")).collect();
    set_limits(&fs, QuotaKind::Project, 5, [NONE, limit(0, 4 * MIB), NONE]);
    std::thread::scope(|scope| {
        for file in &files {
            scope.spawn(|| {
                for index in 0..40 {
                    let written =
                        bound(&fs, NOBODY, || fs.write(*file, index * (64 << 10), &fill(index, 64 << 10), WriteOptions::default()));
                    assert!(written.is_ok() || is_exceeded(&written), "{written:?}");
                    assert!(usage_of(&fs, QuotaKind::Project, 5)[1] <= 4 * MIB);
                }
            });
        }
    });
    assert_eq!(usage_of(&fs, QuotaKind::Project, 5)[1], 4 * MIB, "and all of it was given");
    compare(&device, &fs).expect("counted anew");
}

/// The first limit is set while others write: each transaction is counted once.
#[test]
fn counting_begins_beside_writers() {
    let (device, fs) = roomy();
    let files: Vec<_> = (0..3).map(|user| make(&fs, InodeNumber::ROOT, &user.to_string(), user, FILE).expect("made")).collect();
    std::thread::scope(|scope| {
        for (user, file) in (0..).zip(&files) {
            let fs = &fs;
            scope.spawn(move || {
                for index in 0..60_u32 {
                    let offset = u64::from(index % 40) * 5000;
                    fs.write(*file, offset, &fill(offset, 5000), WriteOptions::default()).expect("writes");
                    fs.set_attributes(*file, &owner(user + 10 * (index % 3))).expect("given away");
                    fs.set_attributes(*file, &SetAttributes { size: Some(offset), ..SetAttributes::default() }).expect("cut");
                }
            });
        }
        for _ in 0..10 {
            set_limits(&fs, QuotaKind::User, 3, [NONE, NONE, limit(0, 1000)]);
            set_limits(&fs, QuotaKind::User, 3, [NONE; 3]);
        }
        set_limits(&fs, QuotaKind::User, 3, [NONE, NONE, limit(0, 1000)]);
    });
    compare(&device, &fs).expect("counted anew");
}
