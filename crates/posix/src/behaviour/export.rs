//! What an NFS server needs: persistent handles, inode numbers and cookies.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, RawDir};
use rustix::io::Errno;

use crate::scene::{Scene, refused};
use crate::sys::{self, FileHandle};

fn text(mut file: File) -> String {
    let mut text = String::new();
    file.read_to_string(&mut text).expect("read");
    text
}

/// Makes the kernel evict unused dentries and inodes, so that a handle has to be looked up.
fn forget(scene: &Scene<'_>) {
    let root = rustix::fs::open(scene.root(), OFlags::DIRECTORY, Mode::empty()).expect("opened");
    rustix::fs::syncfs(root).expect("synced");
    let _ = fs::write("/proc/sys/vm/drop_caches", "2");
}

pub(crate) fn handles_lead_to_files(scene: &Scene<'_>) {
    scene.subdirectory("directory");
    scene.subdirectory("directory/deep");
    let file = scene.file("directory/deep/file", "text");
    let root = File::open(scene.root()).expect("opened");
    let (of_file, of_directory) =
        (FileHandle::of(&file).expect("a handle"), FileHandle::of(&scene.path("directory/deep")).expect("a handle"));
    assert_eq!(FileHandle::of(&file).expect("a handle"), of_file, "the same again");
    for forgotten in [false, true] {
        if forgotten {
            forget(scene);
        }
        assert_eq!(text(of_file.open(&root, libc::O_RDONLY).expect("opened")), "text");
        let directory = of_directory.open(&root, libc::O_RDONLY | libc::O_DIRECTORY).expect("opened");
        let up = rustix::fs::statat(&directory, "..", rustix::fs::AtFlags::empty()).expect("connected to its parent");
        assert_eq!(up.st_ino, fs::metadata(scene.path("directory")).expect("there").ino());
        rustix::fs::openat(&directory, "file", OFlags::RDONLY, Mode::empty()).expect("opened");
    }
    fs::rename(&file, scene.path("moved")).expect("renamed");
    fs::rename(scene.path("directory/deep"), scene.path("shallow")).expect("renamed");
    forget(scene);
    assert_eq!(text(of_file.open(&root, libc::O_RDONLY).expect("by handle wherever it is")), "text");
    of_directory.open(&root, libc::O_RDONLY | libc::O_DIRECTORY).expect("opened");
}

pub(crate) fn handles_of_removed_files_are_stale(scene: &Scene<'_>) {
    let root = File::open(scene.root()).expect("opened");
    let mut handles = Vec::new();
    for number in 0..50 {
        let path = scene.file(&format!("file-{number}"), "old");
        handles.push(FileHandle::of(&path).expect("a handle"));
        fs::remove_file(path).expect("removed");
    }
    // The numbers go to others.
    for number in 0..100 {
        scene.file(&format!("file-{number}"), "new");
    }
    for handle in &handles {
        stale_at_last(handle, &root);
    }
    forget(scene);
    for handle in &handles {
        refused(handle.open(&root, libc::O_RDONLY), Errno::STALE);
    }
}

/// A removed file can be opened by its handle as long as the kernel holds it: the last `close` of a FUSE file returns before its RELEASE was
/// served. Until then the handle leads to that file and no other, and then to nothing.
fn stale_at_last(handle: &FileHandle, root: &File) {
    let give_up = Instant::now() + Duration::from_secs(60);
    while let Ok(opened) = handle.open(root, libc::O_RDONLY) {
        assert_eq!(text(opened), "old", "a handle leads to another file");
        assert!(Instant::now() < give_up, "a removed file can still be opened after a minute");
        thread::sleep(Duration::from_millis(10));
    }
    refused(handle.open(root, libc::O_RDONLY), Errno::STALE);
}

pub(crate) fn handles_cookies_and_numbers_survive_a_remount(scene: &Scene<'_>) {
    let directory = scene.subdirectory("directory");
    for number in 0..300 {
        scene.file(&format!("directory/file-{number}"), number.to_string());
    }
    let handles: Vec<FileHandle> =
        (0..300).map(|number| FileHandle::of(&directory.join(format!("file-{number}"))).expect("a handle")).collect();
    let read = |from: i64| {
        let opened = rustix::fs::open(&directory, OFlags::DIRECTORY, Mode::empty()).expect("opened");
        sys::seek_directory(&opened, from).expect("sought");
        let mut buffer = vec![std::mem::MaybeUninit::uninit(); 2000];
        let (mut reader, mut listed) = (RawDir::new(&opened, &mut buffer), Vec::new());
        while let Some(entry) = reader.next() {
            let entry = entry.expect("listed");
            listed.push((entry.file_name().to_bytes().to_vec(), entry.ino(), entry.next_entry_cookie() as i64));
        }
        listed
    };
    let before = read(0);
    assert_eq!(before.len(), 302);
    scene.remount("");
    assert!(read(0) == before, "names, numbers and cookies");
    for at in [1, 2, 50, 299] {
        assert!(read(before[at].2) == before[at + 1..], "from the cookie of entry {at} on");
    }
    // What stays is found from a cookie whose own entry is gone.
    let (gone, cookie) = (&before[100].0, before[100].2);
    fs::remove_file(directory.join(std::str::from_utf8(gone).expect("UTF-8"))).expect("removed");
    scene.remount("");
    assert!(read(cookie) == before[101..], "from the cookie of a removed entry on");
    let root = File::open(scene.root()).expect("opened");
    for (number, handle) in handles.iter().enumerate() {
        if format!("file-{number}").as_bytes() == gone {
            refused(handle.open(&root, libc::O_RDONLY), Errno::STALE);
        } else {
            assert_eq!(text(handle.open(&root, libc::O_RDONLY).expect("opened")), number.to_string());
        }
    }
}
