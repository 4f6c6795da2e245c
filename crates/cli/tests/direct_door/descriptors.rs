//! Descriptors of the mount for open files of clients ([DSC1]–[DSC3] of `crates/direct`).

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;

use tandemfs_protocol::{Handle, Operation};

use crate::client::{Door, Failure, named};
use crate::processes::Child;
use crate::support::{Mount, eventually, pattern};
use crate::{ended, errno, opened};

const NAME: &str = "tandemfs-opener";

/// Processes that open files for the daemon of a mount.
fn openers(mount: &Mount) -> Vec<PathBuf> {
    let parent = format!("PPid:\t{}\n", mount.process_id().as_raw_nonzero());
    let processes = fs::read_dir("/proc").expect("procfs").flatten().map(|entry| entry.path());
    let is_opener = |path: &PathBuf| {
        fs::read_to_string(path.join("status")).is_ok_and(|status| status.contains(&parent))
            && fs::read(path.join("cmdline")).is_ok_and(|words| words.starts_with(NAME.as_bytes()))
    };
    processes.filter(is_opener).collect()
}

fn flags(descriptor: &OwnedFd) -> i32 {
    rustix::fs::fcntl_getfl(descriptor).expect("open").bits().cast_signed()
}

#[test]
fn an_open_file_is_a_descriptor_of_the_mount_as_well() {
    let (place, mount, mut door) = opened("");
    let handle = door.open("file", libc::O_CREAT | libc::O_RDWR | libc::O_TRUNC, 0o600).expect("made");
    door.write(handle, 0, &pattern(1, 9000)).expect("written");
    let mut file = File::from(door.descriptor(handle).expect("sent"));
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).expect("read");
    assert_eq!(bytes, pattern(1, 9000));
    let (found, named) = (file.metadata().expect("seen"), fs::metadata(mount.path("file")).expect("there"));
    assert_eq!((found.ino(), found.dev(), found.nlink()), (named.ino(), named.dev(), 1));
    file.seek(SeekFrom::Start(100)).expect("sought");
    file.write_all(b"by the mount").expect("written");
    assert_eq!(door.read(handle, 100, 12).expect("read"), b"by the mount");
    door.write(handle, 9000, b"by the door").expect("longer");
    let mut end = [0; 11];
    file.read_exact_at(&mut end, 9000).expect("read");
    assert_eq!(&end, b"by the door");
    drop(file);
    door.close(handle).expect("closed");
    assert_eq!(door.call(&Operation::Descriptor { handle }), errno(libc::EBADF));
    ended(&place, mount, door);
}

#[test]
fn a_file_without_its_name_is_found_and_no_other() {
    let (place, mount, mut door) = opened("");
    let handle = door.open("file", libc::O_CREAT | libc::O_RDWR, 0o600).expect("made");
    door.write(handle, 0, b"removed").expect("written");
    door.unlink("file").expect("removed");
    fs::write(mount.path("file"), b"another").expect("written");
    let file = File::from(door.descriptor(handle).expect("sent"));
    assert_eq!(file.metadata().expect("seen").nlink(), 0);
    let mut bytes = [0; 7];
    file.read_exact_at(&mut bytes, 0).expect("read");
    assert_eq!(&bytes, b"removed");
    // Whoever goes last holds it. Another file beside it would keep the same room for inodes.
    fs::remove_file(mount.path("file")).expect("removed");
    door.close(handle).expect("closed");
    file.write_all_at(b"still here", 0).expect("written");
    let before = door.space().expect("told").files_free;
    drop(file);
    let start = std::time::Instant::now();
    while door.space().expect("told").files_free == before {
        assert!(start.elapsed() < crate::support::WITHIN, "a file that nobody holds is still there");
    }
    door.make("file", b"another").expect("made");
    let renamed = door.open("file", libc::O_RDONLY, 0).expect("opened");
    door.rename("file", "elsewhere").expect("renamed");
    let mut text = String::new();
    File::from(door.descriptor(renamed).expect("sent")).read_to_string(&mut text).expect("read");
    assert_eq!(text, "another");
    ended(&place, mount, door);
}

#[test]
fn access_and_flags_are_those_of_the_open_file() {
    let (place, mount, mut door) = opened("");
    door.make("file", b"0123456789").expect("made");
    let handles = [libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR | libc::O_APPEND].map(|flags| door.open("file", flags, 0).expect("opened"));
    // Whether they may be opened was asked when they were.
    fs::set_permissions(mount.path("file"), fs::Permissions::from_mode(0o0)).expect("closed");
    let [reads, writes, appends] = handles.map(|handle| door.descriptor(handle).expect("sent"));
    assert_eq!([&reads, &writes, &appends].map(|descriptor| flags(descriptor) & libc::O_ACCMODE), [0, 1, 2]);
    assert!(flags(&appends) & libc::O_APPEND != 0 && flags(&writes) & (libc::O_APPEND | libc::O_TRUNC) == 0);
    let (reads, writes, mut appends) = (File::from(reads), File::from(writes), File::from(appends));
    let refused = |result: std::io::Result<usize>| assert_eq!(result.map_err(|error| error.raw_os_error()), Err(Some(libc::EBADF)));
    refused(reads.write_at(b"x", 0));
    refused(writes.read_at(&mut [0], 0));
    appends.write_all(b"end").expect("appended");
    assert_eq!(reads.metadata().expect("seen").len(), 13);
    let directory = door.open(".", libc::O_RDONLY | libc::O_DIRECTORY, 0).expect("opened");
    let place_only = door.open("file", libc::O_PATH, 0).expect("opened");
    let sent = door.descriptor(directory).expect("sent");
    assert!(flags(&sent) & libc::O_DIRECTORY != 0);
    assert_eq!(rustix::fs::fstat(&sent).expect("seen").st_ino, fs::metadata(mount.root()).expect("there").ino());
    drop(sent);
    assert_eq!(door.call(&Operation::Descriptor { handle: place_only }), errno(libc::EBADF));
    for number in [1, 77, u64::MAX] {
        let handle = Handle::of(number).expect("not zero");
        assert_eq!(door.call(&Operation::Descriptor { handle }), errno(libc::EBADF), "{number:#x}");
    }
    drop((reads, writes, appends));
    ended(&place, mount, door);
}

/// Who may write what he has made keeps that, although he may not open it again.
#[test]
fn another_user_gets_what_he_has_open_and_nothing_else() {
    let (place, mount, door) = opened(",allow_other");
    drop(door);
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).expect("reachable");
    fs::set_permissions(mount.root(), fs::Permissions::from_mode(0o777)).expect("for all");
    Child::start("opens-for-itself", mount.root(), Some(65_534)).succeeds();
    mount.unmount();
    place.check();
}

/// The part of the other user.
pub fn opens_for_itself(mut door: Door) {
    let handle = door.open("own", libc::O_CREAT | libc::O_EXCL | libc::O_RDWR, 0o400).expect("made");
    assert_eq!(door.open("own", libc::O_RDWR, 0), Err(Failure::Errno(libc::EACCES)));
    let file = File::from(door.descriptor(handle).expect("sent"));
    file.write_all_at(b"mine", 0).expect("written");
    assert_eq!(door.read(handle, 0, 4).expect("read"), b"mine");
    assert_eq!(door.stat("own").map(|found| found.user), Ok(65_534));
    assert_eq!(door.call(&Operation::ChangeMode { subject: named("own"), mode: 0 }).map(drop), Ok(()));
    assert_eq!(flags(&door.descriptor(handle).expect("sent")) & libc::O_ACCMODE, libc::O_RDWR);
}

/// A client that asks and does not take costs others nothing, and leaves nothing behind.
#[test]
fn who_takes_no_descriptors_gets_no_more() {
    let (place, mount, mut door) = opened(",allow_other");
    let handle = door.open("file", libc::O_CREAT | libc::O_RDWR, 0o600).expect("made");
    let refused = (0..5000).find_map(|_| door.call(&Operation::Descriptor { handle }).err());
    assert_eq!(refused, Some(Failure::Errno(libc::ENOMEM)));
    assert_eq!(door.call(&Operation::Nothing).map(drop), Ok(()), "and is served otherwise");
    let opener = openers(&mount).pop().expect("a process that opens");
    let descriptors = || fs::read_dir(opener.join("fd")).expect("procfs").count();
    assert!(descriptors() <= 6, "{}", descriptors());
    fs::write(mount.path("made"), b"").expect("others are served");
    ended(&place, mount, door);
}

#[test]
fn the_process_that_opens_holds_nothing_and_ends_with_the_daemon() {
    let (place, mount, mut door) = opened("");
    assert_eq!(openers(&mount).len(), 0, "nobody has asked yet");
    let handle = door.open("file", libc::O_CREAT | libc::O_RDWR, 0o600).expect("made");
    drop(door.descriptor(handle).expect("sent"));
    let opener = openers(&mount).pop().expect("a process that opens");
    let links = fs::read_dir(opener.join("fd")).expect("procfs").flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    // What the test was started with, the daemon has as well.
    let is_held = |link: &PathBuf| link.starts_with(place.path("")) || link.starts_with("/dev/fuse");
    let held: Vec<PathBuf> = links.filter(is_held).collect();
    assert!(held.is_empty(), "{held:?}");
    // One that was killed is replaced.
    let number: i32 = opener.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok()).expect("a number");
    rustix::process::kill_process(rustix::process::Pid::from_raw(number).expect("a process"), rustix::process::Signal::KILL)
        .expect("killed");
    let mut tries = (0..3).map(|_| door.call(&Operation::Descriptor { handle }));
    assert_eq!(tries.next(), Some(errno(libc::EIO)), "it was asked and did not answer");
    assert!(tries.next().is_some_and(|sent| sent.is_ok()));
    drop(tries);
    let opener = openers(&mount).pop().expect("another process");
    assert!(opener.as_os_str().as_encoded_bytes() != format!("/proc/{number}").as_bytes());
    ended(&place, mount, door);
    eventually("its end", || !opener.exists());
    let (place, mount, mut door) = opened("");
    let handle = door.open("file", libc::O_CREAT | libc::O_RDWR, 0o600).expect("made");
    let held = door.descriptor(handle).expect("sent");
    let opener = openers(&mount).pop().expect("a process that opens");
    mount.kill();
    eventually("its end", || !opener.exists());
    assert!(held.as_raw_fd() > 0);
    drop(held);
    place.mount("strict").unmount();
    place.check();
}
