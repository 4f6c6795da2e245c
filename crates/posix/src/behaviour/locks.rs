//! Locks, leases and notifications: the kernel implements them; a file system could only break them.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, inotify};
use rustix::io::Errno;

use super::sizes::open;
use crate::scene::{Difference, Scene, refused};
use crate::sys::{self, LockOwner};

pub(crate) fn whole_files(scene: &Scene<'_>) {
    let (one, two) = (open(scene, "file"), open(scene, "file"));
    rustix::fs::flock(&one, FlockOperation::NonBlockingLockShared).expect("shared");
    rustix::fs::flock(&two, FlockOperation::NonBlockingLockShared).expect("shared by both");
    refused(rustix::fs::flock(&two, FlockOperation::NonBlockingLockExclusive), Errno::AGAIN);
    // Refused, the conversion has given the shared lock up.
    rustix::fs::flock(&one, FlockOperation::NonBlockingLockExclusive).expect("alone now");
    refused(rustix::fs::flock(&two, FlockOperation::NonBlockingLockShared), Errno::AGAIN);
    // It belongs to the open file, so a copy of the descriptor holds it on.
    let copy = one.try_clone().expect("duplicated");
    drop(one);
    refused(rustix::fs::flock(&two, FlockOperation::NonBlockingLockShared), Errno::AGAIN);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| rustix::fs::flock(&two, FlockOperation::LockExclusive));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished());
        drop(copy);
        waiting.join().expect("ended").expect("it waited for the last copy");
    });
}

pub(crate) fn ranges_of_processes(scene: &Scene<'_>) {
    let (one, two) = (open(scene, "file"), open(scene, "file"));
    sys::lock(&one, LockOwner::Process, libc::F_WRLCK, 100, 50, false).expect("locked");
    sys::lock(&two, LockOwner::Process, libc::F_WRLCK, 100, 50, false).expect("one's own locks do not conflict");
    // Another owner's eyes.
    let seen = |start, length| sys::conflict(&two, LockOwner::OpenFile, libc::F_WRLCK, start, length).expect("asked");
    assert_eq!(seen(0, 1000), (libc::F_WRLCK, 100, 50));
    assert_eq!(seen(150, 1000).0, libc::F_UNLCK);
    sys::lock(&one, LockOwner::Process, libc::F_UNLCK, 110, 10, false).expect("a piece is given up");
    assert_eq!((seen(105, 100), seen(110, 10).0), ((libc::F_WRLCK, 100, 10), libc::F_UNLCK));
    sys::lock(&one, LockOwner::Process, libc::F_RDLCK, 120, 30, false).expect("converted");
    let reader = sys::conflict(&two, LockOwner::OpenFile, libc::F_RDLCK, 120, 30).expect("asked");
    assert_eq!((reader.0, seen(120, 30).0), (libc::F_UNLCK, libc::F_RDLCK));
    refused(sys::lock(&File::open(scene.path("file")).expect("opened"), LockOwner::Process, libc::F_WRLCK, 0, 1, false), Errno::BADF);
    // Closing any descriptor of the file gives all of them up: also the one that was just opened and closed.
    assert_eq!(seen(0, 0).0, libc::F_UNLCK);
}

pub(crate) fn ranges_of_open_files(scene: &Scene<'_>) {
    let (one, two) = (open(scene, "file"), open(scene, "file"));
    sys::lock(&one, LockOwner::OpenFile, libc::F_WRLCK, 0, 0, false).expect("the whole file");
    refused(sys::lock(&two, LockOwner::OpenFile, libc::F_RDLCK, 1 << 40, 1, false), Errno::AGAIN);
    drop(open(scene, "file"));
    refused(sys::lock(&two, LockOwner::OpenFile, libc::F_RDLCK, 0, 1, false), Errno::AGAIN);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| sys::lock(&two, LockOwner::OpenFile, libc::F_WRLCK, 5, 5, true));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished());
        sys::lock(&one, LockOwner::OpenFile, libc::F_UNLCK, 5, 5, false).expect("a piece is given up");
        waiting.join().expect("ended").expect("it got its piece");
    });
    refused(sys::lock(&two, LockOwner::OpenFile, libc::F_WRLCK, 4, 1, false), Errno::AGAIN);
    drop(one);
    sys::lock(&two, LockOwner::OpenFile, libc::F_WRLCK, 0, 0, false).expect("closing gave it up");
}

pub(crate) fn leases(scene: &Scene<'_>) {
    sys::ignore_lease_signals();
    let path = scene.file("file", "x");
    let holder = File::open(&path).expect("opened");
    sys::set_lease(&holder, libc::F_RDLCK).expect("nobody writes it");
    assert_eq!(sys::lease(&holder).expect("asked"), libc::F_RDLCK);
    let write = |flags| OpenOptions::new().write(true).custom_flags(flags).open(&path);
    File::open(&path).expect("readers are no matter");
    refused(write(libc::O_NONBLOCK), Errno::AGAIN);
    std::thread::scope(|scope| {
        let start = Instant::now();
        let opener = scope.spawn(|| write(0));
        std::thread::sleep(Duration::from_millis(20));
        sys::set_lease(&holder, libc::F_UNLCK).expect("given up");
        opener.join().expect("ended").expect("opened");
        assert!(start.elapsed() < Duration::from_secs(60));
    });
    refused(sys::set_lease(&File::open(scene.directory()).expect("opened"), libc::F_RDLCK), Errno::INVAL);
}

/// How long a watch may go unnoticed on a busy machine, where it is noticed a little after it began.
const NOTICED_WITHIN: Duration = Duration::from_secs(60);

pub(crate) fn notices(scene: &Scene<'_>) {
    let watcher = inotify::init(inotify::CreateFlags::NONBLOCK).expect("made");
    inotify::add_watch(&watcher, scene.directory(), inotify::WatchFlags::ALL_EVENTS).expect("watched");
    let begun = Instant::now();
    loop {
        let seen = noticed_changes(scene, &watcher);
        use inotify::ReadFlags as Flags;
        let was_seen = |(flags, name): &(Flags, &str)| seen.iter().any(|(events, of)| events == flags && of == name);
        let of_descriptors = [(Flags::CREATE, "file"), (Flags::OPEN, "file"), (Flags::MODIFY, "file"), (Flags::CLOSE_WRITE, "file")];
        let of_paths = [
            (Flags::MOVED_FROM, "file"),
            (Flags::MOVED_TO, "moved"),
            (Flags::ATTRIB, "moved"),
            (Flags::DELETE, "moved"),
            (Flags::CREATE | Flags::ISDIR, "directory"),
        ];
        if of_descriptors.iter().chain(&of_paths).all(was_seen) {
            return;
        }
        assert!(scene.differs(Difference::WatchesNoticedLater) && begun.elapsed() < NOTICED_WITHIN, "{seen:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Makes changes in a watched directory, and returns what its watcher is told of them.
fn noticed_changes(scene: &Scene<'_>, watcher: &OwnedFd) -> Vec<(inotify::ReadFlags, String)> {
    let mut file = File::create(scene.path("file")).expect("created");
    file.write_all(b"x").expect("written");
    drop(file);
    fs::rename(scene.path("file"), scene.path("moved")).expect("renamed");
    fs::set_permissions(scene.path("moved"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("changed");
    fs::remove_file(scene.path("moved")).expect("removed");
    fs::remove_dir(scene.subdirectory("directory")).expect("removed");
    let mut buffer = [std::mem::MaybeUninit::uninit(); 8192];
    let mut reader = inotify::Reader::new(watcher, &mut buffer);
    let mut seen = Vec::new();
    while let Ok(event) = reader.next() {
        let name = event.file_name().map(|name| name.to_str().expect("UTF-8").to_owned()).unwrap_or_default();
        seen.push((event.events(), name));
    }
    seen
}
