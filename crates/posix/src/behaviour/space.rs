//! statfs, `df`, `df -i`, `du`.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};

use super::sizes::{open, pattern};
use crate::scene::{Difference, Scene};

const BLOCK: u64 = 4096;

fn totals(scene: &Scene<'_>) -> rustix::fs::StatVfs {
    // What the kernel holds back goes first.
    let root = rustix::fs::open(scene.root(), OFlags::DIRECTORY, Mode::empty()).expect("opened");
    rustix::fs::syncfs(root).expect("synced");
    rustix::fs::statvfs(scene.root()).expect("statvfs")
}

/// How many could still be made may change with the room that other metadata takes; how many are there is exact.
fn inodes_used(totals: &rustix::fs::StatVfs) -> u64 {
    totals.f_files - totals.f_ffree
}

/// Space that comes back a little later than the call that gave it back.
#[track_caller]
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed() < std::time::Duration::from_secs(60), "{what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// The totals once they do not move any more: the kernel gives up some files of earlier tests a little after their last descriptor is
/// closed.
pub(super) fn settled(scene: &Scene<'_>) -> rustix::fs::StatVfs {
    let (mut last, mut since) = (totals(scene), std::time::Instant::now());
    eventually("the totals come to rest", || {
        let now = totals(scene);
        if (now.f_bfree, now.f_ffree) != (last.f_bfree, last.f_ffree) {
            (last, since) = (now, std::time::Instant::now());
        }
        since.elapsed() > std::time::Duration::from_millis(200)
    });
    last
}

/// The totals before and after `work`, which adds so many inodes; it gets the number of its attempt. A file of an earlier test that the
/// kernel gives up meanwhile, however late, takes an inode out of the difference: then all of it is done again.
fn added<T>(scene: &Scene<'_>, inodes: u64, work: impl Fn(u32) -> T) -> (rustix::fs::StatVfs, rustix::fs::StatVfs, T) {
    let attempts = (0..10).find_map(|attempt| {
        let before = settled(scene);
        let made = work(attempt);
        let after = totals(scene);
        (inodes_used(&after) == inodes_used(&before) + inodes).then_some((before, after, made))
    });
    attempts.unwrap_or_else(|| panic!("ten attempts, and never {inodes} inodes more than before"))
}

pub(crate) fn file_system_totals(scene: &Scene<'_>) {
    let (before, during, file) = added(scene, 1, |attempt| {
        let file = open(scene, &format!("file-{attempt}"));
        file.write_all_at(&pattern(1, 16 << 20), 0).expect("written");
        file.sync_all().expect("synced");
        file
    });
    assert_eq!(before.f_namemax, 255);
    assert!(before.f_bavail <= before.f_bfree && before.f_bfree < before.f_blocks && before.f_ffree < before.f_files);
    // Its data and what maps and proves it: below one part in a hundred. A piece that is being moved is there twice.
    let taken = |now: &rustix::fs::StatVfs| before.f_bfree.saturating_sub(now.f_bfree) * now.f_frsize;
    let is_whole = |taken: u64| (16 << 20..(16 << 20) + (200 << 10)).contains(&taken);
    eventually(&format!("16 MiB take what they hold: {}", taken(&during)), || is_whole(taken(&totals(scene))));
    assert_eq!(before.f_blocks, during.f_blocks);
    added(scene, 100, |attempt| {
        for number in 0..100 {
            scene.file(&format!("small-{attempt}-{number}"), "");
        }
    });
    drop(file);
    for entry in fs::read_dir(scene.directory()).expect("listed") {
        fs::remove_file(entry.expect("entry").path()).expect("removed");
    }
    eventually("the inodes come back", || inodes_used(&totals(scene)) <= inodes_used(&before));
    // The directory itself may keep pages that held the names.
    eventually("the space comes back", || (before.f_bfree - totals(scene).f_bfree.min(before.f_bfree)) * BLOCK <= 32 << 10);
    let seen = std::process::Command::new("df").args(["--output=size,avail,itotal,iavail", "-B1"]).arg(scene.root()).output().expect("df");
    let text = String::from_utf8(seen.stdout).expect("UTF-8");
    let now = totals(scene);
    let words: Vec<u64> = text.lines().nth(1).expect("a line").split_whitespace().map(|word| word.parse().expect("a number")).collect();
    assert_eq!(words, [now.f_blocks * now.f_frsize, now.f_bavail * now.f_frsize, now.f_files, now.f_ffree], "df");
}

pub(crate) fn files_take_what_they_hold(scene: &Scene<'_>) {
    let directory = scene.subdirectory("directory");
    let name = |name: &str| format!("directory/{name}");
    for (file, holes, length) in [("empty", 0, 0), ("block", 0, 4096), ("large", 0, 10 << 20), ("sparse", 100 << 20, 65_536)] {
        let opened = open(scene, &name(file));
        opened.write_all_at(&pattern(1, length), holes).expect("written");
        opened.sync_all().expect("synced");
        drop(opened);
        let taken = || fs::metadata(scene.path(&name(file))).expect("there").blocks() * 512;
        eventually(&format!("{file} takes its {length} B: {}", taken()), || (length as u64..=length as u64 + 65_536).contains(&taken()));
    }
    let sum: u64 =
        fs::read_dir(&directory).expect("listed").map(|entry| entry.expect("entry").metadata().expect("there").blocks() * 512).sum();
    let own = fs::metadata(&directory).expect("there").blocks() * 512;
    let du = std::process::Command::new("du").args(["-s", "-B1"]).arg(&directory).output().expect("du");
    let text = String::from_utf8(du.stdout).expect("UTF-8");
    assert_eq!(text.split_whitespace().next().expect("a number").parse::<u64>().expect("a number"), sum + own, "du");
}

pub(crate) fn a_nameless_inode_counts(scene: &Scene<'_>) {
    let (before, during, file) = added(scene, 1, |_| {
        let file = rustix::fs::open(scene.directory(), OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR).expect("O_TMPFILE");
        rustix::io::write(&file, &pattern(1, 4 << 20)).expect("written");
        rustix::fs::fsync(&file).expect("synced");
        file
    });
    assert!((before.f_bfree - during.f_bfree) * BLOCK >= 4 << 20);
    drop(file);
    eventually("nobody has it any more", || inodes_used(&totals(scene)) <= inodes_used(&before));
    // With a name in between.
    let file = rustix::fs::open(scene.directory(), OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR).expect("O_TMPFILE");
    rustix::fs::linkat(&file, "", rustix::fs::CWD, scene.path("named"), AtFlags::EMPTY_PATH).expect("named");
    drop(file);
    fs::remove_file(scene.path("named")).expect("removed");
    eventually("it went with its name", || inodes_used(&totals(scene)) <= inodes_used(&before));
}

/// `st_blocks` by stat, in bytes.
fn taken(path: &Path) -> u64 {
    fs::metadata(path).expect("there").blocks() * 512
}

/// What `st_blocks` says right after a change is what a fresh mount says.
fn assert_taken_stays(scene: &Scene<'_>, named: &[&str]) {
    let all = || named.iter().map(|name| (*name, taken(&scene.path(name)))).collect::<Vec<_>>();
    let before = all();
    scene.remount("");
    assert_eq!(before, all(), "st_blocks before and after a remount");
}

pub(crate) fn blocks_after_an_attribute(scene: &Scene<'_>) {
    // More than an inode holds; on ext4 as much as it has room for.
    let length = if scene.differs(Difference::LargeAttributes) { 60_000 } else { 3500 };
    for (name, bytes) in [("empty", 0), ("small", 100), ("large", 300_000)] {
        let path = scene.file(name, pattern(1, bytes));
        // What the kernel keeps of it is of before.
        let file = open(scene, name);
        file.sync_all().expect("synced");
        let before = taken(&path);
        rustix::fs::setxattr(&path, "user.large", &pattern(2, length), rustix::fs::XattrFlags::CREATE).expect("set");
        assert!(
            (before + length as u64..=before + length as u64 + 32_768).contains(&taken(&path)),
            "{name}: {} B with an attribute, {before} without",
            taken(&path)
        );
        let kept = rustix::fs::fstat(&file).expect("open");
        assert_eq!(kept.st_blocks as u64 * 512, taken(&path), "{name}: by the descriptor");
    }
    assert_taken_stays(scene, &["empty", "small", "large"]);
    for name in ["empty", "small", "large"] {
        rustix::fs::removexattr(scene.path(name), "user.large").expect("removed");
    }
    assert!(taken(&scene.path("empty")) < 3500, "{} B are taken by nothing", taken(&scene.path("empty")));
    assert_taken_stays(scene, &["empty", "small", "large"]);
}

pub(crate) fn blocks_after_a_synchronised_write(scene: &Scene<'_>) {
    let names = ["small", "page", "large", "sparse", "overwritten", "appended", "shrunk"];
    for (name, offset, length) in [
        ("small", 0, 100),
        ("page", 0, 4096),
        ("large", 0, 3 << 20),
        ("sparse", 10 << 20, 70_000),
        ("overwritten", 0, 200_000),
        ("shrunk", 0, 500_000),
    ] {
        let file = open(scene, name);
        assert_eq!(taken(&scene.path(name)), 0);
        file.write_all_at(&pattern(1, length), offset).expect("written");
        // Whatever it is now, it is not kept.
        let _before = taken(&scene.path(name));
        file.sync_all().expect("synced");
        // The descriptor is still open.
        let (by_name, by_file) = (taken(&scene.path(name)), rustix::fs::fstat(&file).expect("open").st_blocks as u64 * 512);
        assert_eq!(by_name, by_file, "{name}");
        assert!((length as u64..=length as u64 + 131_072).contains(&by_name) || length < 4096, "{name}: {by_name} B for {length}");
    }
    let file = open(scene, "overwritten");
    file.write_all_at(&pattern(2, 50_000), 70_001).expect("written");
    file.sync_all().expect("synced");
    drop(file);
    let mut file = OpenOptions::new().append(true).create(true).open(scene.path("appended")).expect("opened");
    for number in 0..50 {
        file.write_all(&pattern(number, 3000)).expect("appended");
        file.sync_data().expect("synced");
    }
    open(scene, "shrunk").set_len(1000).expect("shrunk");
    drop(file);
    assert_taken_stays(scene, &names);
}

/// Bytes written into allocated space use no further space, wherever in a block the range begins and ends.
pub(crate) fn blocks_of_given_space_stay(scene: &Scene<'_>) {
    let offsets = [2000, 5000, 300_123, 65_536, 999_000, 1_001_000];
    // A file each: on ext4 a block of the mapping is counted once a file has more pieces than its inode has room for.
    let names = offsets.map(|offset| offset.to_string());
    for (offset, name) in offsets.into_iter().zip(&names) {
        let file = open(scene, name);
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 1234, 1_000_000).expect("given out");
        let given = taken(&scene.path(name));
        assert!((1_000_000..1_200_000).contains(&given), "{given}");
        file.write_all_at(&pattern(3, 100), offset).expect("written");
        file.sync_all().expect("synced");
        assert_eq!(taken(&scene.path(name)), given, "100 B at {offset}");
    }
    assert_taken_stays(scene, &names.each_ref().map(String::as_str));
}
