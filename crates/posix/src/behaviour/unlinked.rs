//! Open files without names.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::scene::{Scene, refused};
use crate::sys::Mapping;

fn read_write(path: &std::path::Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).expect("opened")
}

/// Everything that can be done with a file can be done without its name.
fn is_alive(file: &File, bytes: &[u8]) {
    let metadata = file.metadata().expect("open");
    assert_eq!((metadata.nlink(), metadata.len()), (0, bytes.len() as u64));
    let mut found = vec![0; bytes.len()];
    file.read_exact_at(&mut found, 0).expect("read");
    assert!(found == bytes, "its bytes");
    file.write_all_at(b"more", 100_000).expect("written");
    file.set_len(60_000).expect("truncated");
    file.sync_all().expect("synced");
    file.set_permissions(fs::Permissions::from_mode(0o600)).expect("changed");
    let mapping = Mapping::new(file, 4096, true, true).expect("mapped");
    mapping.set(1, b"M");
    let mut byte = [0];
    file.read_exact_at(&mut byte, 1).expect("read");
    assert_eq!((&byte, file.metadata().expect("open").len()), (b"M", 60_000));
}

pub(crate) fn still_open(scene: &Scene<'_>) {
    let bytes = vec![7; 70_000];
    let path = scene.file("file", &bytes);
    let file = read_write(&path);
    fs::remove_file(&path).expect("removed");
    let other = scene.file("file", "another");
    is_alive(&file, &bytes);
    assert_eq!(fs::read(other).expect("read"), b"another");
    // By a mapping alone.
    let mapping = Mapping::new(&file, 60_000, true, true).expect("mapped");
    drop(file);
    mapping.set(59_999, b"E");
    assert_eq!(mapping.get(59_998, 2), b"\x07E");
}

pub(crate) fn replaced_and_still_open(scene: &Scene<'_>) {
    let bytes = vec![9; 80_000];
    let (old, new) = (scene.file("old", &bytes), scene.file("new", "new"));
    let file = read_write(&old);
    fs::rename(&new, &old).expect("replaced");
    is_alive(&file, &bytes);
    assert_eq!(fs::read(&old).expect("read"), b"new");
}

pub(crate) fn a_directory_that_is_gone(scene: &Scene<'_>) {
    let path = scene.subdirectory("directory");
    let held = rustix::fs::open(&path, OFlags::DIRECTORY, Mode::empty()).expect("opened");
    fs::remove_dir(&path).expect("removed");
    assert_eq!(rustix::fs::fstat(&held).expect("open").st_nlink, 0);
    refused(rustix::fs::openat(&held, "new", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR), Errno::NOENT);
    refused(rustix::fs::mkdirat(&held, "new", Mode::RWXU), Errno::NOENT);
    refused(rustix::fs::symlinkat("x", &held, "new"), Errno::NOENT);
    let file = scene.file("file", "x");
    refused(rustix::fs::renameat(rustix::fs::CWD, &file, &held, "new"), Errno::NOENT);
    refused(rustix::fs::linkat(rustix::fs::CWD, &file, &held, "new", rustix::fs::AtFlags::empty()), Errno::NOENT);
    // It lists nothing: neither names nor the two dots, or it cannot be listed at all.
    let listed: Vec<_> = rustix::fs::Dir::read_from(&held).map(|entries| entries.flatten().collect()).unwrap_or_default();
    let names: Vec<&[u8]> = listed.iter().map(|entry| entry.file_name().to_bytes()).filter(|name| !matches!(*name, b"." | b"..")).collect();
    assert!(names.is_empty(), "{names:?}");
}

/// A killed daemon takes what has no name with it, and leaks nothing.
pub(crate) fn open_and_nameless_files_go_in_a_crash(scene: &Scene<'_>) {
    let (path, replaced) = (scene.path("file"), scene.path("replaced"));
    scene.file("kept", "kept");
    // Files of earlier tests that the kernel gives up late go in the crash as well.
    let before = super::space::settled(scene);
    let bytes = vec![5; 4 << 20];
    for (file, name) in [(read_write(&path), &path), (read_write(&replaced), &replaced)] {
        file.write_all_at(&bytes, 0).expect("written");
        file.sync_all().expect("synced");
        if *name == path {
            fs::remove_file(name).expect("removed");
        } else {
            fs::rename(scene.file("new", "new"), name).expect("replaced");
        }
        // Held across the crash by the kernel, in a mount that answers no more.
        std::mem::forget(file);
    }
    let nameless = rustix::fs::open(scene.directory(), OFlags::TMPFILE | OFlags::WRONLY, Mode::RUSR).expect("O_TMPFILE");
    rustix::io::write(&nameless, &bytes).expect("written");
    std::mem::forget(nameless);
    scene.crash();
    assert_eq!(fs::read(scene.path("kept")).expect("read"), b"kept");
    assert_eq!(fs::read(&replaced).expect("read"), b"new");
    let after = rustix::fs::statvfs(scene.root()).expect("statvfs");
    let used = |totals: &rustix::fs::StatVfs| totals.f_files - totals.f_ffree;
    assert!(used(&after) <= used(&before) + 1, "{} inodes before, {} after: only the new file is there", used(&before), used(&after));
    let gone = before.f_bfree.saturating_sub(after.f_bfree);
    assert!(gone < 64, "{gone} of {} blocks are gone", before.f_bfree);
}
