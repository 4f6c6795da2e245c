//! Special files: FIFOs, sockets, devices.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::fs::{CWD, FileType, Mode};
use rustix::io::Errno;

use crate::scene::{ALICE, Difference, Scene, refused};
use crate::sys;

pub(crate) fn fifos(scene: &Scene<'_>) {
    let path = scene.path("fifo");
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o640), 0).expect("made");
    let metadata = fs::metadata(&path).expect("there");
    assert_eq!((metadata.file_type().is_fifo(), metadata.mode(), metadata.len()), (true, 0o010_640, 0));
    let nonblocking = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&path);
    refused(nonblocking, Errno::NXIO);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut text = String::new();
            File::open(&path).expect("opened").read_to_string(&mut text).expect("read");
            text
        });
        OpenOptions::new().write(true).open(&path).expect("opened").write_all(b"through").expect("written");
        assert_eq!(reader.join().expect("read"), "through");
    });
    assert_eq!(fs::metadata(&path).expect("there").len(), 0);
    refused(rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR, 0), Errno::EXIST);
}

pub(crate) fn sockets(scene: &Scene<'_>) {
    let path = scene.path("s");
    // `sun_path` has 108 bytes.
    let link = std::env::temp_dir().join(format!("tandemfs-posix-{}", std::process::id()));
    std::os::unix::fs::symlink(scene.directory(), &link).expect("linked");
    struct Removal<'p>(&'p std::path::Path);
    impl Drop for Removal<'_> {
        fn drop(&mut self) {
            let _ = fs::remove_file(self.0);
        }
    }
    let _removal = Removal(&link);
    let listener = UnixListener::bind(link.join("s")).expect("bound");
    refused(UnixListener::bind(link.join("s")), Errno::ADDRINUSE);
    fs::rename(&path, scene.path("t")).expect("renamed");
    let mut client = UnixStream::connect(link.join("t")).expect("connected by its new name");
    client.write_all(b"hello").expect("sent");
    drop(client);
    let mut text = String::new();
    listener.accept().expect("accepted").0.read_to_string(&mut text).expect("read");
    assert_eq!(text, "hello");
    assert!(fs::metadata(scene.path("t")).expect("there").file_type().is_socket());
    drop(listener);
    refused(UnixStream::connect(link.join("t")), Errno::CONNREFUSED);
    refused(File::open(scene.path("t")), Errno::NXIO);
}

pub(crate) fn devices(scene: &Scene<'_>) {
    let make = |name: &str, kind, major, minor| {
        rustix::fs::mknodat(CWD, scene.path(name), kind, Mode::from_raw_mode(0o666), rustix::fs::makedev(major, minor))
    };
    make("null", FileType::CharacterDevice, 1, 3).expect("made");
    make("zero", FileType::CharacterDevice, 1, 5).expect("made");
    make("far", FileType::BlockDevice, 4095, 1_048_575).expect("made");
    let metadata = fs::metadata(scene.path("far")).expect("there");
    assert!(metadata.file_type().is_block_device());
    assert_eq!((rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev())), (4095, 1_048_575));
    assert_eq!(fs::read(scene.path("null")).expect("empty"), b"");
    let mut bytes = [1; 16];
    File::open(scene.path("zero")).expect("opened").read_exact(&mut bytes).expect("read");
    assert_eq!(bytes, [0; 16]);
    OpenOptions::new().write(true).open(scene.path("null")).expect("opened").write_all(b"gone").expect("written");
    refused(File::open(scene.path("far")), Errno::NXIO);
    let path = scene.path("theirs");
    let result = ALICE.does(|| rustix::fs::mknodat(CWD, &path, FileType::CharacterDevice, Mode::RUSR, rustix::fs::makedev(1, 3)));
    refused(result, Errno::PERM);
    ALICE.does(|| rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR, 0)).expect("a FIFO is free to all");
    rustix::fs::mknodat(CWD, scene.path("file"), FileType::RegularFile, Mode::RUSR, 0).expect("made");
    assert!(fs::metadata(scene.path("file")).expect("there").is_file());
}

/// Regular files and directories are always ready for poll, and epoll has no use for them.
pub(crate) fn regular_files_are_always_ready(scene: &Scene<'_>) {
    let path = scene.file("file", "text");
    let file = OpenOptions::new().read(true).write(true).open(&path).expect("opened");
    for (opened, is_file) in [(file, true), (File::open(scene.directory()).expect("opened"), false)] {
        if is_file && scene.differs(Difference::EpollTakesFiles) {
            sys::epoll_add(&opened).expect("taken");
        } else {
            refused(sys::epoll_add(&opened), Errno::PERM);
        }
        let both = libc::POLLIN | libc::POLLOUT;
        assert_eq!(sys::poll_now(&opened, both).expect("polled"), both, "ready at once for both");
    }
}
