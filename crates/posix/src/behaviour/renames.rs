//! Renaming.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use crate::scene::{ALICE, Scene, refused};

fn rename(scene: &Scene<'_>, from: &str, to: &str, flags: RenameFlags) -> rustix::io::Result<()> {
    rustix::fs::renameat_with(CWD, scene.path(from), CWD, scene.path(to), flags)
}

pub(crate) fn replace_and_refuse(scene: &Scene<'_>) {
    scene.file("one", "1");
    scene.file("two", "2");
    refused(rename(scene, "one", "two", RenameFlags::NOREPLACE), Errno::EXIST);
    refused(rename(scene, "one", "one", RenameFlags::NOREPLACE), Errno::EXIST);
    refused(rename(scene, "absent", "two", RenameFlags::empty()), Errno::NOENT);
    refused(rename(scene, "one", "two", RenameFlags::NOREPLACE | RenameFlags::EXCHANGE), Errno::INVAL);
    refused(rename(scene, "one", "two", RenameFlags::from_bits_retain(1 << 20)), Errno::INVAL);
    rename(scene, "one", "three", RenameFlags::NOREPLACE).expect("renamed");
    rename(scene, "three", "two", RenameFlags::empty()).expect("replaced");
    assert_eq!(fs::read(scene.path("two")).expect("read"), b"1");
    refused(fs::metadata(scene.path("three")), Errno::NOENT);
    // Two names of one file: nothing happens, both stay.
    fs::hard_link(scene.path("two"), scene.path("same")).expect("linked");
    rename(scene, "two", "same", RenameFlags::empty()).expect("nothing to do");
    assert_eq!(fs::metadata(scene.path("two")).expect("there").nlink(), 2);
    rename(scene, "two", "two", RenameFlags::empty()).expect("nothing to do");
    // The replaced file loses only one name.
    scene.file("new", "new");
    rename(scene, "new", "same", RenameFlags::empty()).expect("replaced");
    assert_eq!(fs::metadata(scene.path("two")).expect("there").nlink(), 1);
    assert_eq!((fs::read(scene.path("two")).expect("read"), fs::read(scene.path("same")).expect("read")), (b"1".to_vec(), b"new".to_vec()));
}

pub(crate) fn exchange(scene: &Scene<'_>) {
    scene.file("file", "f");
    scene.subdirectory("directory");
    scene.file("directory/inner", "i");
    scene.subdirectory("elsewhere");
    rename(scene, "file", "directory", RenameFlags::EXCHANGE).expect("of different kinds");
    assert_eq!(
        (fs::read(scene.path("directory")).expect("read"), fs::read(scene.path("file/inner")).expect("read")),
        (b"f".to_vec(), b"i".to_vec())
    );
    refused(rename(scene, "file", "absent", RenameFlags::EXCHANGE), Errno::NOENT);
    let links = |name: &str| fs::metadata(scene.path(name)).expect("there").nlink();
    scene.file("elsewhere/other", "o");
    rename(scene, "file", "elsewhere/other", RenameFlags::EXCHANGE).expect("across directories");
    assert_eq!((links("."), links("elsewhere")), (3, 3));
    assert_eq!(fs::read(scene.path("elsewhere/other/inner")).expect("read"), b"i");
    let (up, elsewhere) = (fs::metadata(scene.path("elsewhere/other/..")), fs::metadata(scene.path("elsewhere")));
    assert_eq!(up.expect("there").ino(), elsewhere.expect("there").ino());
    // A directory with its own ancestor.
    refused(rename(scene, "elsewhere", "elsewhere/other", RenameFlags::EXCHANGE), Errno::INVAL);
    refused(rename(scene, "elsewhere/other", "elsewhere", RenameFlags::EXCHANGE), Errno::INVAL);
}

/// An overlay file system leaves a character device 0:0 where something was moved away.
pub(crate) fn whiteout(scene: &Scene<'_>) {
    let is_whiteout = |name: &str| {
        let metadata = fs::symlink_metadata(scene.path(name)).expect("there");
        (metadata.file_type().is_char_device(), metadata.rdev(), metadata.nlink()) == (true, 0, 1)
    };
    scene.file("one", "1");
    rename(scene, "one", "two", RenameFlags::WHITEOUT).expect("renamed");
    assert!(is_whiteout("one"));
    assert_eq!(fs::read(scene.path("two")).expect("read"), b"1");
    refused(rename(scene, "two", "one", RenameFlags::WHITEOUT | RenameFlags::NOREPLACE), Errno::EXIST);
    refused(rename(scene, "two", "one", RenameFlags::WHITEOUT | RenameFlags::EXCHANGE), Errno::INVAL);
    // Over something, and of a directory into another.
    scene.file("three", "3");
    rename(scene, "two", "three", RenameFlags::WHITEOUT).expect("replaced");
    assert!(is_whiteout("two"));
    assert_eq!(fs::read(scene.path("three")).expect("read"), b"1");
    scene.subdirectory("directory");
    scene.subdirectory("elsewhere");
    scene.file("directory/inner", "i");
    let links = |name: &str| fs::metadata(scene.path(name)).expect("there").nlink();
    rename(scene, "directory", "elsewhere/moved", RenameFlags::WHITEOUT | RenameFlags::NOREPLACE).expect("renamed");
    assert!(is_whiteout("directory"));
    assert_eq!((links("."), links("elsewhere")), (3, 3));
    assert_eq!(fs::read(scene.path("elsewhere/moved/inner")).expect("read"), b"i");
    fs::remove_file(scene.path("directory")).expect("removed");
    // An unprivileged user can make a whiteout (device 0:0, since Linux 5.8) but no other device.
    let (from, to) = (scene.file("theirs", ""), scene.path("moved"));
    ALICE.does(|| rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::WHITEOUT)).expect("renamed");
    assert!(is_whiteout("theirs"));
}

pub(crate) fn directories(scene: &Scene<'_>) {
    for name in ["full", "full/below", "empty", "moved", "moved/inner"] {
        scene.subdirectory(name);
    }
    scene.file("file", "x");
    scene.file("moved/inner/deep", "d");
    let plain = RenameFlags::empty();
    refused(rename(scene, "moved", "full", plain), Errno::NOTEMPTY);
    refused(rename(scene, "moved", "file", plain), Errno::NOTDIR);
    refused(rename(scene, "file", "empty", plain), Errno::ISDIR);
    for inside in ["moved/new", "moved/inner/new", "moved/inner"] {
        refused(rename(scene, "moved", inside, plain), Errno::INVAL);
    }
    let held = File::open(scene.path("moved/inner")).expect("opened");
    rename(scene, "moved", "empty", plain).expect("over an empty directory");
    assert_eq!(fs::read(scene.path("empty/inner/deep")).expect("read"), b"d");
    rename(scene, "empty/inner", "full/inner", plain).expect("renamed");
    // `..` is the new parent at once, also from what was open before.
    let number = |name: &str| fs::metadata(scene.path(name)).expect("there").ino();
    assert_eq!(number("full/inner/.."), number("full"));
    let up = fs::metadata(format!("/proc/self/fd/{}/..", held.as_raw_fd())).expect("there");
    assert_eq!(up.ino(), number("full"));
    let links = |name: &str| fs::metadata(scene.path(name)).expect("there").nlink();
    assert_eq!((links("."), links("full"), links("empty"), links("full/inner")), (4, 4, 2, 2));
}

pub(crate) fn the_name_is_always_there(scene: &Scene<'_>) {
    let path = scene.file("name", "0");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0;
            while !done.load(SeqCst) || reads == 0 {
                let mut text = String::new();
                File::open(&path).expect("always there").read_to_string(&mut text).expect("read");
                text.parse::<u32>().expect("always whole");
                reads += 1;
            }
            reads
        });
        for number in 0..500 {
            let new = scene.file("new", number.to_string());
            fs::rename(new, &path).expect("replaced");
        }
        done.store(true, SeqCst);
        assert!(reader.join().expect("read") > 0);
    });
}
