//! Options of a mount.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode};
use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::scene::{ALICE, Difference, Scene, refused};

/// Remounts with options, and without them again, also when the test fails.
fn with_options(scene: &Scene<'_>, options: &str, work: impl FnOnce()) {
    struct Back<'s>(&'s Scene<'s>);
    impl Drop for Back<'_> {
        fn drop(&mut self) {
            self.0.remount("");
        }
    }
    scene.remount(options);
    let back = Back(scene);
    work();
    drop(back);
}

/// The options that `/proc/self/mountinfo` shows for the mount, its own and the file system's.
fn shown(root: &Path) -> Vec<String> {
    let text = fs::read_to_string("/proc/self/mountinfo").expect("read");
    let line = text.lines().rfind(|line| line.split(' ').nth(4) == root.to_str()).expect("mounted").to_owned();
    let (own, rest) = (line.split(' ').nth(5).unwrap_or_default(), line.rsplit(' ').next().unwrap_or_default());
    own.split(',').chain(rest.split(',')).map(str::to_owned).collect()
}

pub(crate) fn read_only(scene: &Scene<'_>) {
    let file = scene.file("file", "text");
    scene.subdirectory("directory");
    symlink("file", scene.path("link")).expect("linked");
    with_options(scene, "ro", || {
        assert_eq!(fs::read(&file).expect("read"), b"text");
        assert_eq!(fs::read_dir(scene.directory()).expect("listed").count(), 3);
        assert_eq!(fs::read_link(scene.path("link")).expect("read").to_str(), Some("file"));
        assert!(shown(scene.root()).contains(&"ro".to_owned()));
        let (new, directory) = (scene.path("new"), scene.path("directory"));
        refused(OpenOptions::new().write(true).open(&file), Errno::ROFS);
        refused(File::create(&new), Errno::ROFS);
        refused(fs::create_dir(&new), Errno::ROFS);
        refused(symlink("x", &new), Errno::ROFS);
        refused(fs::hard_link(&file, &new), Errno::ROFS);
        refused(fs::rename(&file, &new), Errno::ROFS);
        refused(fs::remove_file(&file), Errno::ROFS);
        refused(fs::remove_dir(&directory), Errno::ROFS);
        refused(rustix::fs::mkfifoat(CWD, &new, Mode::RUSR), Errno::ROFS);
        refused(fs::set_permissions(&file, fs::Permissions::from_mode(0o600)), Errno::ROFS);
        refused(std::os::unix::fs::chown(&file, Some(1), None), Errno::ROFS);
        refused(File::open(&file).expect("opened").set_modified(std::time::UNIX_EPOCH), Errno::ROFS);
        refused(rustix::fs::accessat(CWD, &file, rustix::fs::Access::WRITE_OK, rustix::fs::AtFlags::empty()), Errno::ROFS);
        refused(rustix::fs::open(scene.directory(), rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR, Mode::RUSR), Errno::ROFS);
    });
    fs::write(&file, "more").expect("written again");
}

pub(crate) fn no_devices_no_set_id_no_programs(scene: &Scene<'_>) {
    let (null, id) = (scene.path("null"), scene.path("id"));
    rustix::fs::mknodat(CWD, &null, FileType::CharacterDevice, Mode::from_raw_mode(0o666), rustix::fs::makedev(1, 3)).expect("made");
    fs::copy("/usr/bin/id", &id).expect("copied");
    fs::set_permissions(&id, fs::Permissions::from_mode(0o4755)).expect("changed");
    let alices_id = || {
        ALICE.does(|| {
            let output = Command::new(&id).arg("-u").output()?;
            std::io::Result::Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        })
    };
    fs::write(&null, "x").expect("a device works");
    assert_eq!(alices_id().expect("runs"), "0", "a set-user-id program works");
    with_options(scene, "nodev,nosuid", || {
        refused(OpenOptions::new().write(true).open(&null), Errno::ACCESS);
        assert_eq!(alices_id().expect("runs"), ALICE.uid.to_string());
        assert_eq!(fs::metadata(&id).expect("there").mode() & 0o7777, 0o4755, "the bit is there, without force");
    });
    with_options(scene, "noexec", || {
        refused(alices_id(), Errno::ACCESS);
        fs::write(&null, "x").expect("a device works");
    });
    assert_eq!(alices_id().expect("runs"), "0");
}

pub(crate) fn synchronous(scene: &Scene<'_>) {
    for option in ["sync", "dirsync"] {
        with_options(scene, option, || {
            assert!(shown(scene.root()).contains(&option.to_owned()), "{option}: {:?}", shown(scene.root()));
            let path = scene.path(option);
            File::create(&path).expect("created").write_all(b"now").expect("written");
            assert_eq!(fs::read(path).expect("read"), b"now");
        });
    }
}

/// The times of a file: atime and mtime, in nanoseconds.
fn times(path: &Path) -> (i128, i128) {
    let found = fs::metadata(path).expect("there");
    let of = |seconds: i64, nanoseconds: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
    (of(found.atime(), found.atime_nsec()), of(found.mtime(), found.mtime_nsec()))
}

/// A file with an atime of long ago and an mtime one second after it, read under these options. Whether its atime has changed.
fn read_changes_atime(scene: &Scene<'_>, options: &str) -> bool {
    let path = scene.file("read", "bytes");
    let file = OpenOptions::new().write(true).open(&path).expect("opened");
    let long_ago = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    let times_of = fs::FileTimes::new().set_accessed(long_ago).set_modified(long_ago + std::time::Duration::from_secs(1));
    file.set_times(times_of).expect("set");
    drop(file);
    let mut changed = None;
    with_options(scene, options, || {
        let before = times(&path);
        assert_eq!((before.0, before.1), (1_000_000_000_000_000_000, 1_000_000_001_000_000_000), "{options}: set times survive a remount");
        assert_eq!(fs::read(&path).expect("read"), b"bytes");
        let after = times(&path);
        assert_eq!(after.1, before.1, "{options}: a read changes no mtime");
        changed = Some(after.0 != before.0);
    });
    changed.expect("the work was done")
}

pub(crate) fn times_of_access(scene: &Scene<'_>) {
    assert!(!read_changes_atime(scene, "noatime"));
    for options in ["relatime", "strictatime"] {
        assert_eq!(read_changes_atime(scene, options), !scene.differs(Difference::AccessTimesKept), "{options}");
    }
}

/// Times that the kernel may keep in memory for long are seen at once, and are there after an unmount.
pub(crate) fn lazy_times(scene: &Scene<'_>) {
    let path = scene.file("file", "bytes");
    let before = times(&path).1;
    std::thread::sleep(std::time::Duration::from_millis(20));
    let mut seen = 0;
    with_options(scene, "lazytime", || {
        OpenOptions::new().append(true).open(&path).expect("opened").write_all(b"more").expect("written");
        seen = times(&path).1;
        assert!(seen > before, "a write changes mtime");
    });
    assert_eq!((times(&path).1, fs::read(&path).expect("read")), (seen, b"bytesmore".to_vec()));
}

/// What mount(8) does for `-o remount`.
pub(crate) fn remounted_in_place(scene: &Scene<'_>) {
    let file = scene.file("file", "text");
    let again = |flags| rustix::mount::mount_remount(scene.root(), flags, c"").expect("remounted");
    let held = File::open(&file).expect("opened");
    again(MountFlags::RDONLY);
    let while_read_only = fs::write(&file, "more");
    again(MountFlags::NOEXEC | MountFlags::NOSUID);
    let while_no_programs = shown(scene.root());
    again(MountFlags::empty());
    refused(while_read_only, Errno::ROFS);
    assert!(while_no_programs.contains(&"noexec".to_owned()) && while_no_programs.contains(&"rw".to_owned()), "{while_no_programs:?}");
    assert_eq!(fs::read(&file).expect("read"), b"text");
    drop(held);
    fs::write(&file, "more").expect("written");
    let writer = OpenOptions::new().write(true).open(&file).expect("opened");
    refused(rustix::mount::mount_remount(scene.root(), MountFlags::RDONLY, c""), Errno::BUSY);
    drop(writer);
}
