//! Times.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, StatxFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;

use super::sizes::{open, pattern};
use crate::scene::{ALICE, BOB, Difference, Scene, refused};

type Time = (i64, i64);

/// atime, mtime and ctime.
fn times(path: &Path) -> (Time, Time, Time) {
    let seen = fs::symlink_metadata(path).expect("there");
    ((seen.atime(), seen.atime_nsec()), (seen.mtime(), seen.mtime_nsec()), (seen.ctime(), seen.ctime_nsec()))
}

fn set(path: &Path, atime: Time, mtime: Time) -> rustix::io::Result<()> {
    let time = |(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec };
    rustix::fs::utimensat(CWD, path, &Timestamps { last_access: time(atime), last_modification: time(mtime) }, AtFlags::SYMLINK_NOFOLLOW)
}

const NOW: Time = (0, UTIME_NOW);
const OMIT: Time = (0, UTIME_OMIT);
/// 2017: no time of this test.
const THEN: Time = (1_500_000_000, 123_456_789);

/// Longer than the kernel's coarse clock stands still.
fn pause() {
    std::thread::sleep(Duration::from_millis(12));
}

pub(crate) fn set_now_and_omitted(scene: &Scene<'_>) {
    let path = scene.file("file", "x");
    std::os::unix::fs::symlink("file", scene.path("link")).expect("linked");
    for path in [path, scene.path("link"), scene.subdirectory("directory")] {
        set(&path, THEN, (THEN.0 + 5, 999_999_999)).expect("set");
        let first = times(&path);
        assert_eq!((first.0, first.1), (THEN, (THEN.0 + 5, 999_999_999)));
        assert!(first.2.0 > THEN.0, "ctime is the time of the call");
        set(&path, OMIT, (7, 0)).expect("set");
        assert_eq!((times(&path).0, times(&path).1), (THEN, (7, 0)));
        set(&path, (8, 1), OMIT).expect("set");
        assert_eq!((times(&path).0, times(&path).1), ((8, 1), (7, 0)));
        let before = times(&path);
        pause();
        set(&path, OMIT, OMIT).expect("nothing to do");
        assert_eq!(times(&path), before, "nothing was said, nothing changed");
        set(&path, OMIT, NOW).expect("set");
        let after = times(&path);
        assert!(after.1 > before.2 && after.0 == (8, 1) && after.2 >= after.1);
        refused(set(&path, (0, 1_000_000_000), NOW), Errno::INVAL);
    }
}

pub(crate) fn from_1901_to_2446(scene: &Scene<'_>) {
    let path = scene.file("file", "x");
    let (first, last) = (-(1_i64 << 31), (1_i64 << 34) - (1 << 31) - 1);
    for time in [(first, 0), (first + 1, 999_999_999), (-1, 1), (-2, 250_000_000), (0, 0), (1 << 31, 5), (1 << 32, 6), (last, 0)] {
        set(&path, time, time).expect("set");
        assert_eq!((times(&path).0, times(&path).1), (time, time));
    }
    // Times out of range are clamped.
    for (given, expected) in [(first - 1, first), (i64::MIN, first), (last + 1, last), (i64::MAX, last)] {
        set(&path, (given, 1), (given, 1)).expect("set");
        let expected = if scene.differs(Difference::TimesOutOfRange) { given } else { expected };
        assert_eq!(times(&path).1.0, expected, "{given}");
    }
}

pub(crate) fn changed_by_what_changes(scene: &Scene<'_>) {
    let (file, directory) = (scene.file("file", "text"), scene.subdirectory("directory"));
    // What happens, and whether the file's mtime, its ctime, and its directory's mtime go on.
    type Action<'a> = (&'static str, Box<dyn Fn() + 'a>, [bool; 3]);
    let opened = open(scene, "file");
    let actions: [Action<'_>; 16] = [
        ("write", Box::new(|| opened.write_all_at(b"w", 0).expect("done")), [true, true, false]),
        ("write of nothing", Box::new(|| assert_eq!(opened.write_at(b"", 0).expect("done"), 0)), [false, false, false]),
        ("truncate", Box::new(|| opened.set_len(2).expect("done")), [true, true, false]),
        ("grow", Box::new(|| opened.set_len(9000).expect("done")), [true, true, false]),
        ("truncate to its size", Box::new(|| opened.set_len(9000).expect("done")), [true, true, false]),
        ("O_TRUNC", Box::new(|| drop(File::create(&file).expect("done"))), [true, true, false]),
        ("O_TRUNC of nothing", Box::new(|| drop(File::create(&file).expect("done"))), [true, true, false]),
        (
            "fallocate",
            Box::new(|| rustix::fs::fallocate(&opened, rustix::fs::FallocateFlags::empty(), 0, 5000).expect("done")),
            [true, true, false],
        ),
        ("read", Box::new(|| drop(fs::read(&file).expect("done"))), [false, false, false]),
        ("chmod", Box::new(|| fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("done")), [false, true, false]),
        ("chown", Box::new(|| chown(&file, Some(0), Some(0)).expect("done")), [false, true, false]),
        ("link", Box::new(|| fs::hard_link(&file, scene.path("second")).expect("done")), [false, true, true]),
        ("unlink of the other name", Box::new(|| fs::remove_file(scene.path("second")).expect("done")), [false, true, true]),
        (
            "rename elsewhere and back",
            Box::new(|| {
                fs::rename(&file, directory.join("f")).expect("done");
                fs::rename(directory.join("f"), &file).expect("done");
            }),
            [false, true, true],
        ),
        ("mkdir beside it", Box::new(|| fs::create_dir(scene.path("new")).expect("done")), [false, false, true]),
        ("rmdir beside it", Box::new(|| fs::remove_dir(scene.path("new")).expect("done")), [false, false, true]),
    ];
    for (what, action, expected) in &actions {
        set(&file, THEN, THEN).expect("set");
        set(scene.directory(), THEN, THEN).expect("set");
        let before = times(&file);
        pause();
        action();
        let after = times(&file);
        let found = [after.1 != THEN, after.2 != before.2, times(scene.directory()).1 != THEN];
        assert_eq!(found, *expected, "{what}: [mtime, ctime, mtime of the directory] went on");
        assert!(after.2 >= before.2, "{what}: time runs forwards");
    }
    pause();
    let before = times(&directory);
    fs::rename(&directory, scene.path("moved")).expect("renamed");
    assert!(times(&scene.path("moved")).2 > before.2, "a renamed directory");
    assert_eq!(times(&scene.path("moved")).1, before.1);
    // A mapping's stores.
    set(&file, THEN, THEN).expect("set");
    let mapping = crate::sys::Mapping::new(&opened, 100, true, true).expect("mapped");
    mapping.set(0, b"m");
    mapping.sync().expect("synced");
    assert!(times(&file).1 != THEN, "stores to a mapping");
}

/// `cp -a`, rsync and tar write, set the times, close: what the kernel writes back later leaves the times alone.
pub(crate) fn kept_by_late_writes(scene: &Scene<'_>) {
    let path = scene.path("file");
    let mut file = File::create(&path).expect("created");
    file.write_all(&pattern(1, 300_000)).expect("written");
    set(&path, THEN, (THEN.0 + 1, 1)).expect("set");
    assert_eq!(times(&path).1, (THEN.0 + 1, 1), "at once");
    file.sync_all().expect("synced");
    assert_eq!(times(&path).1, (THEN.0 + 1, 1), "after write-back");
    drop(file);
    assert_eq!((times(&path).0, times(&path).1), (THEN, (THEN.0 + 1, 1)), "after close");
    let from = scene.subdirectory("from");
    scene.file("from/inner", pattern(2, 100_000));
    set(&from.join("inner"), THEN, (9, 9)).expect("set");
    set(&from, THEN, (10, 10)).expect("set");
    let done = std::process::Command::new("cp").arg("-a").arg(&from).arg(scene.path("to")).status().expect("cp");
    assert!(done.success());
    let root = rustix::fs::open(scene.directory(), rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty()).expect("opened");
    rustix::fs::syncfs(root).expect("synced");
    assert_eq!((times(&scene.path("to/inner")).1, times(&scene.path("to")).1), ((9, 9), (10, 10)), "cp -a");
}

pub(crate) fn who_may_set_them(scene: &Scene<'_>) {
    let path = scene.file("file", "x");
    chown(&path, Some(ALICE.uid), Some(ALICE.gid)).expect("given");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o642)).expect("changed");
    ALICE.does(|| set(&path, THEN, THEN)).expect("the owner may");
    BOB.does(|| set(&path, NOW, NOW)).expect("who may write may set the present");
    refused(BOB.does(|| set(&path, THEN, NOW)), Errno::PERM);
    refused(BOB.does(|| set(&path, NOW, OMIT)), Errno::PERM);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("changed");
    refused(BOB.does(|| set(&path, NOW, NOW)), Errno::ACCESS);
}

pub(crate) fn access_times(scene: &Scene<'_>) {
    let path = scene.file("file", pattern(1, 10_000));
    let read = || File::open(&path).expect("opened").read_exact(&mut [0; 100]).expect("read");
    // relatime: a read updates an atime that is not later than mtime.
    set(&path, THEN, (THEN.0 + 1, 0)).expect("set");
    read();
    if scene.differs(Difference::AccessTimesKept) {
        assert_eq!(times(&path).0, THEN, "as with noatime");
    } else {
        assert!(times(&path).0 > THEN, "relatime");
    }
    // With O_NOATIME reads do not update atime.
    set(&path, THEN, (THEN.0 + 1, 0)).expect("set");
    let quiet = rustix::fs::open(&path, rustix::fs::OFlags::NOATIME, rustix::fs::Mode::empty()).expect("opened");
    rustix::io::read(&quiet, &mut [0_u8; 100][..]).expect("read");
    assert_eq!(times(&path).0, THEN);
}

pub(crate) fn birth(scene: &Scene<'_>) {
    let path = scene.file("file", "x");
    let stat = || rustix::fs::statx(CWD, &path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::ALL).expect("there");
    let born = stat();
    assert!(StatxFlags::from_bits_retain(born.stx_mask).contains(StatxFlags::BTIME), "a time of birth");
    let time = |stamp: rustix::fs::StatxTimestamp| (stamp.tv_sec, stamp.tv_nsec);
    assert!(time(born.stx_btime) <= time(born.stx_mtime) && born.stx_btime.tv_sec > THEN.0);
    pause();
    fs::write(&path, "more").expect("written");
    set(&path, (5, 5), (6, 6)).expect("set");
    let later = stat();
    assert_eq!((time(later.stx_btime), later.stx_mtime.tv_sec), (time(born.stx_btime), 6), "nothing changes it");
    assert_eq!(
        (later.stx_ino, later.stx_size, later.stx_nlink, later.stx_mode),
        (fs::metadata(&path).expect("there").ino(), 4, 1, 0o100_644)
    );
}
