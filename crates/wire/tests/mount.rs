//! Real mounts over `/dev/fuse` and, if the kernel supports it, over io_uring. Another process serves them.

mod support;

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, XattrFlags};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use support::server::{self, PATIENCE, Served, mount_line, obstacle};
use tandemfs_wire::{MountError, MountOptions, Unmount, mount, unmount};

#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn serve() {
    server::serve();
}

/// Runs a test over the device, and over io_uring with the same server options.
fn over_both(words: &str, test: impl Fn(Served)) {
    if let Some(why) = obstacle() {
        return println!("skipped: {why}");
    }
    test(Served::start(words));
    match server::over_ring(words) {
        Err(why) => println!("skipped over io_uring: {why}"),
        Ok(served) => test(served),
    }
}

fn over_device(words: &str, test: impl FnOnce(Served)) {
    match obstacle() {
        Some(why) => println!("skipped: {why}"),
        None => test(Served::start(words)),
    }
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index * 7 + index / 4096) as u8).collect()
}

#[test]
fn data_comes_back_as_it_was_written() {
    over_both("write-back", |served| {
        let path = served.path("data");
        let data = pattern((3 << 20) + 517);
        fs::write(&path, &data).expect("written");
        assert!(fs::read(&path).expect("read") == data);
        let file = OpenOptions::new().read(true).write(true).open(&path).expect("opened");
        file.write_all_at(b"amid", 1_000_003).expect("written");
        file.sync_all().expect("synced");
        file.set_len(2 << 20).expect("cut");
        drop_caches(&file);
        let mut expected = data.clone();
        expected[1_000_003..1_000_007].copy_from_slice(b"amid");
        expected.truncate(2 << 20);
        assert!(fs::read(&path).expect("read") == expected);
        drop(file);
        assert!(served.end().success());
    });
}

/// Drops the cached pages of a file, so that its next read causes a request.
fn drop_caches(file: &File) {
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).expect("advised");
}

#[test]
fn small_and_large_requests_pass_one_thread() {
    over_both("one-thread", |served| {
        let path = served.path("file");
        for bytes in [0, 1, 100, 1023, 1024, 1025, 4096, 65_536, 1 << 20] {
            let data = pattern(bytes);
            fs::write(&path, &data).expect("written");
            drop_caches(&File::open(&path).expect("opened"));
            assert!(fs::read(&path).expect("read") == data, "{bytes}");
        }
        assert!(served.end().success());
    });
}

#[test]
fn names_are_made_changed_and_removed() {
    over_both("", |served| {
        let path = |name: &str| served.path(name);
        fs::create_dir(path("directory")).expect("made");
        fs::write(path("directory/file"), b"x").expect("written");
        fs::hard_link(path("directory/file"), path("other")).expect("linked");
        assert_eq!(fs::metadata(path("other")).expect("there").nlink(), 2);
        symlink("directory/file", path("link")).expect("made");
        assert_eq!(fs::read_link(path("link")).expect("read").to_str(), Some("directory/file"));
        assert_eq!(fs::read(path("link")).expect("followed"), b"x");
        fs::rename(path("other"), path("new")).expect("renamed");
        let (new, file) = (path("new"), path("directory/file"));
        let flags = rustix::fs::renameat_with(CWD, &new, CWD, &file, RenameFlags::NOREPLACE);
        assert_eq!(flags, Err(rustix::io::Errno::EXIST));
        fs::write(path("single"), b"other").expect("written");
        rustix::fs::renameat_with(CWD, path("single"), CWD, &new, RenameFlags::EXCHANGE).expect("exchanged");
        assert_eq!(fs::read(&new).expect("read"), b"other");
        assert_eq!(fs::remove_dir(path("directory")).expect_err("not empty").raw_os_error(), Some(libc::ENOTEMPTY));
        fs::remove_file(&file).expect("removed");
        fs::remove_dir(path("directory")).expect("removed");
        assert_eq!(fs::metadata(path("directory")).expect_err("gone").raw_os_error(), Some(libc::ENOENT));
        assert!(served.end().success());
    });
}

#[test]
fn a_directory_is_listed_in_many_replies() {
    over_both("", |served| {
        let names: BTreeSet<String> = (0..1500).map(|number| format!("a name of some length {number}")).collect();
        fs::create_dir(served.path("many")).expect("made");
        for name in &names {
            File::create(served.path("many").join(name)).expect("made");
        }
        for _ in 0..2 {
            let listed = fs::read_dir(served.path("many")).expect("listed");
            let listed: BTreeSet<String> = listed.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect();
            assert!(listed == names);
        }
        assert!(served.end().success());
    });
}

#[test]
fn attributes_are_told_and_changed() {
    over_both("noatime", |served| {
        let path = served.path("file");
        let file = File::create(&path).expect("made");
        let (read, written) = (rustix::fs::Timespec { tv_sec: -5, tv_nsec: 250_000_000 }, rustix::fs::Timespec { tv_sec: 5, tv_nsec: 1 });
        let times = rustix::fs::Timestamps { last_access: read, last_modification: written };
        rustix::fs::futimens(&file, &times).expect("set");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("set");
        std::os::unix::fs::chown(&path, Some(12), Some(34)).expect("set");
        let found = fs::metadata(&path).expect("told");
        assert_eq!((found.atime(), found.atime_nsec(), found.mtime(), found.mtime_nsec()), (-5, 250_000_000, 5, 1));
        assert_eq!((found.mode(), found.uid(), found.gid(), found.blksize()), (0o100_640, 12, 34, 4096));
        assert!(found.created().is_ok(), "the time of birth, by STATX");
        let line = mount_line(&served.path("")).expect("mounted");
        assert!(line.contains("noatime") && line.contains("fuse.wire-test"), "{line}");
        assert_eq!(rustix::fs::statvfs(&path).expect("told").f_namemax, 255);
        drop(file);
        assert!(served.end().success());
    });
}

#[test]
fn extended_attributes_of_all_lengths_pass() {
    over_both("", |served| {
        let path = served.path("file");
        File::create(&path).expect("made");
        for bytes in [0, 1, 1000, 2000, 64 << 10] {
            let (name, value) = (format!("user.of{bytes}"), pattern(bytes));
            rustix::fs::setxattr(&path, &name, &value, XattrFlags::empty()).expect("set");
            let mut found = vec![0; bytes + 1];
            assert_eq!(rustix::fs::getxattr(&path, &name, &mut found), Ok(bytes));
            assert!(found[..bytes] == value);
            assert_eq!(rustix::fs::getxattr_query(&path, &name), Ok(bytes));
        }
        let too_short = rustix::fs::getxattr(&path, "user.of1000", &mut [0; 999]);
        assert_eq!(too_short, Err(rustix::io::Errno::RANGE));
        let mut names = vec![0; 1000];
        let length = rustix::fs::listxattr(&path, &mut names).expect("listed");
        assert_eq!(names[..length].split(|&byte| byte == 0).filter(|name| !name.is_empty()).count(), 5);
        rustix::fs::removexattr(&path, "user.of1").expect("removed");
        assert_eq!(rustix::fs::getxattr(&path, "user.of1", &mut [0; 9]), Err(rustix::io::Errno::NODATA));
        assert!(served.end().success());
    });
}

#[test]
fn rarer_operations_arrive() {
    over_both("", |mut served| {
        let path = served.path("file");
        fs::write(&path, pattern(10_000)).expect("written");
        let from = File::open(&path).expect("opened");
        let to = File::create(served.path("copy")).expect("made");
        assert_eq!(rustix::fs::copy_file_range(&from, Some(&mut 5000), &to, Some(&mut 0), 100_000), Ok(5000));
        assert!(fs::read(served.path("copy")).expect("read") == pattern(10_000)[5000..]);
        rustix::fs::fallocate(&to, rustix::fs::FallocateFlags::empty(), 0, 6000).expect("reserved");
        assert_eq!(to.metadata().expect("told").len(), 6000);
        assert_eq!(rustix::fs::seek(&from, rustix::fs::SeekFrom::Data(77)), Ok(77));
        assert_eq!(rustix::fs::seek(&from, rustix::fs::SeekFrom::Hole(77)), Ok(10_000));
        let mut nameless = OpenOptions::new().read(true).write(true).custom_flags_tmpfile().open(served.path("")).expect("made");
        nameless.write_all(b"nameless").expect("written");
        nameless.seek(SeekFrom::Start(0)).expect("sought");
        let mut text = String::new();
        nameless.read_to_string(&mut text).expect("read");
        assert_eq!((text.as_str(), nameless.metadata().expect("told").nlink()), ("nameless", 1));
        // The kernel sends the directory's group if the caller has it as a supplementary group.
        std::os::unix::fs::chown(served.path(""), None, Some(4321)).expect("set");
        let made = Command::new("setpriv").args(["--groups=4321", "touch"]).arg(served.path("grouped")).status();
        if made.is_ok_and(|status| status.success()) {
            assert_eq!(served.ask("event"), "Group(4321)");
        }
        drop((from, to, nameless));
        assert!(served.end().success());
    });
}

/// Threads that run only when nobody else wants to would answer a few requests a second on a CPU that others keep busy.
#[test]
fn callers_are_served_on_a_busy_cpu() {
    over_both("", |served| {
        let cpu = sched_getaffinity(None).map(|allowed| (0..CpuSet::MAX_CPU).find(|&cpu| allowed.is_set(cpu)).expect("this one"));
        let mut only = CpuSet::new();
        only.set(cpu.expect("told"));
        let file = File::create(served.path("file")).expect("made");
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            let asks = scope.spawn(|| {
                sched_setaffinity(None, &only).expect("bound");
                // First alone, so that the serving threads adapt to a calm machine.
                let start = Instant::now();
                while start.elapsed() < Duration::from_millis(300) {
                    file.sync_data().expect("answered");
                }
                scope.spawn(|| {
                    sched_setaffinity(None, &only).expect("bound");
                    while !ended.load(Relaxed) {
                        std::hint::spin_loop();
                    }
                });
                let start = Instant::now();
                (0..1500).for_each(|_| file.sync_data().expect("answered"));
                ended.store(true, Relaxed);
                start.elapsed()
            });
            let took = asks.join().expect("no panic");
            assert!(took < Duration::from_secs(100), "{took:?}");
        });
        drop(file);
        assert!(served.end().success());
    });
}

trait Tmpfile {
    fn custom_flags_tmpfile(&mut self) -> &mut Self;
}

impl Tmpfile for OpenOptions {
    fn custom_flags_tmpfile(&mut self) -> &mut Self {
        std::os::unix::fs::OpenOptionsExt::custom_flags(self, libc::O_TMPFILE)
    }
}

#[test]
fn a_parked_request_leaves_its_thread_to_others() {
    over_both("one-thread parks", |mut served| {
        let slow = served.path("slow");
        let reader = thread::spawn(move || fs::read(slow));
        assert_eq!(served.ask("event"), "Parked");
        // A parked request blocks neither the only thread of this CPU nor any other.
        for number in 0..50 {
            fs::write(served.path(&format!("meanwhile {number}")), b"x").expect("written");
        }
        assert!(!reader.is_finished());
        // The kernel may also read the end of the file, which parks again.
        while !reader.is_finished() {
            served.ask("finish");
        }
        assert_eq!(reader.join().expect("no panic").expect("read"), b"at last");
        assert!(served.end().success());
    });
}

/// The data lies in the memory for the reply until the reply is given.
#[test]
fn a_parked_write_keeps_its_data_apart() {
    over_both("one-thread parks", |mut served| {
        let slow = served.path("slow");
        let data = pattern(200_000);
        let writer = thread::spawn({
            let data = data.clone();
            move || OpenOptions::new().write(true).open(slow).and_then(|file| file.write_all_at(&data, 0))
        });
        assert_eq!(served.ask("event"), "Parked");
        assert_eq!(fs::read(served.path("steady")).expect("served meanwhile"), b"old");
        while !writer.is_finished() {
            served.ask("finish");
        }
        writer.join().expect("no panic").expect("written");
        let slow = served.path("slow");
        let reader = thread::spawn(move || fs::read(slow));
        while !reader.is_finished() {
            served.ask("finish");
        }
        assert!(reader.join().expect("no panic").expect("read") == data);
        assert!(served.end().success());
    });
}

/// Not SIGINT: a background job of a shell ignores it.
#[test]
fn a_signal_to_the_caller_reaches_the_handler() {
    over_both("parks", |mut served| {
        let mut reader = Command::new("cat").arg(served.path("slow")).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("run");
        // The request is parked, so it was sent: from then on the kernel passes on signals.
        assert_eq!(served.ask("event"), "Parked");
        rustix::process::kill_process(rustix::process::Pid::from_child(&reader), rustix::process::Signal::USR1).expect("sent");
        assert_eq!(served.ask("event"), "Interrupted");
        // The kernel requests the page again. Over io_uring it does not pass on a signal that came before that (ring.rs).
        let started = Instant::now();
        while reader.try_wait().expect("a child").is_none() {
            assert!(started.elapsed() < PATIENCE, "the reader does not end");
            served.ask("finish");
        }
        assert_eq!(reader.wait().expect("ended").signal(), Some(libc::SIGUSR1));
        assert!(served.end().success());
    });
}

#[test]
fn an_unmount_ends_a_session_whose_requests_are_parked() {
    over_both("one-thread parks", |mut served| {
        let slow = served.path("slow");
        let reader = thread::spawn(move || fs::read(slow));
        assert_eq!(served.ask("event"), "Parked");
        // Aborts like `umount --force`, so that calls in progress fail.
        while !reader.is_finished() {
            let _busy = unmount(served.path(""), Unmount::Force);
        }
        let error = reader.join().expect("no panic").expect_err("cut off");
        assert!(matches!(error.raw_os_error(), Some(libc::ECONNABORTED | libc::ENOTCONN)), "{error}");
        let _gone = unmount(served.path(""), Unmount::Lazy);
        let said = served.ask("nothing that has an answer");
        assert_eq!(said, "session ended");
    });
}

#[test]
fn a_reply_that_is_dropped_is_an_error() {
    over_both("", |served| {
        let error = fs::read(served.path("dropped")).expect_err("dropped");
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
        assert_eq!(fs::read(served.path("steady")).expect("read"), b"old");
        assert!(served.end().success());
    });
}

#[test]
fn a_handler_that_panics_ends_the_session() {
    over_both("", |mut served| {
        // After a failed read-ahead the kernel requests the page again; by then the session may have ended.
        let error = fs::read(served.path("panic")).expect_err("panicked");
        assert!(matches!(error.raw_os_error(), Some(libc::EIO | libc::ECONNABORTED | libc::ENOTCONN | libc::ECANCELED)), "{error}");
        assert_eq!(served.ask("nothing that has an answer"), "session the handler of requests panicked");
        // A queue of a CPU outlives the session for a moment, and what comes to it meanwhile is called off.
        let (started, read) = (Instant::now(), || fs::read(served.path("steady")).expect_err("nobody serves"));
        let mut error = read();
        while error.raw_os_error() == Some(libc::ECANCELED) && started.elapsed() < PATIENCE {
            error = read();
        }
        assert!(matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED)), "{error}");
    });
}

#[test]
fn the_kernel_is_told_what_it_must_not_keep() {
    over_both("", |mut served| {
        let steady = served.path("steady");
        let open = File::open(&steady).expect("opened");
        let read = || {
            let mut bytes = [0; 3];
            open.read_exact_at(&mut bytes, 0).map(|()| bytes)
        };
        assert_eq!(read().expect("read"), *b"old");
        assert_eq!(served.ask("replace steady new"), "ok");
        assert_eq!(read().expect("kept"), *b"old");
        assert_eq!(served.ask("invalidate-attributes steady"), "ok");
        assert_eq!(read().expect("kept"), *b"old");
        assert_eq!(served.ask("invalidate steady"), "ok");
        assert_eq!(read().expect("asked"), *b"new");
        assert_eq!(served.ask("replace steady odd"), "ok");
        assert_eq!(served.ask("invalidate-range steady"), "ok");
        assert_eq!(read().expect("asked"), *b"odd");
        assert_eq!(served.ask("store steady put"), "ok");
        assert_eq!(read().expect("kept"), *b"put");
        assert_eq!(served.ask("retrieve steady"), "0 put");
        // [NO2]: no byte of the page is another one.
        for (size, cached) in [(2, "0 put"), (4, "0 put."), (6, "0 put...")] {
            assert_eq!(served.ask(&format!("raise-size steady {size}")), "ok");
            assert_eq!(served.ask("retrieve steady"), cached);
        }
        assert_eq!(served.ask("raise-size never-seen 6"), "NotFound");
        assert_eq!(served.ask("invalidate-entry steady"), "ok");
        assert_eq!(served.ask("invalidate-entry never-seen"), "NotFound");
        assert_eq!(served.ask("invalidate absent"), "NotFound");
        assert!(steady.exists());
        assert_eq!(served.ask("expire-entry steady"), "ok");
        assert!(steady.exists());
        assert_eq!(served.ask("delete steady"), "ok");
        assert!(["ok", "Unsupported"].contains(&served.ask("epoch").as_str()));
        assert!(["ok", "Unsupported"].contains(&served.ask("prune steady").as_str()));
        assert_eq!(served.ask("resend"), "ok");
        assert!(steady.exists());
        drop(open);
        unmount(served.path(""), Unmount::Lazy).expect("unmounted");
        assert_eq!(served.ask("nothing that has an answer"), "session ended");
        assert_eq!(served.ask("invalidate steady"), "Gone");
    });
}

#[test]
fn several_threads_serve_over_channels_of_their_own() {
    over_both("threads clone", |served| {
        assert!(served.about.contains("device: 4") || served.about.contains("OVER_IO_URING"), "{}", served.about);
        thread::scope(|scope| {
            for number in 0..8 {
                let path = served.path(&format!("of {number}"));
                scope.spawn(move || {
                    for round in 0..40 {
                        let data = pattern(round * 1000);
                        fs::write(&path, &data).expect("written");
                        drop_caches(&File::open(&path).expect("opened"));
                        assert!(fs::read(&path).expect("read") == data);
                    }
                });
            }
        });
        assert!(served.end().success());
    });
}

/// One thread serves. Each request that waits gets a thread of its own, as long as there are spare ones.
#[test]
fn requests_are_served_while_others_wait_in_their_threads() {
    over_device("waits", |mut served| {
        assert!(served.about.contains("device: 1"), "{}", served.about);
        let directory = served.path("");
        let read = |name: &str| {
            let path = directory.join(name);
            thread::spawn(move || fs::read(path).expect("read"))
        };
        let steady = served.path("steady");
        let mut waiting = Vec::new();
        for (name, bytes) in [("waits-1", b"1"), ("waits-2", b"2")] {
            waiting.push((read(name), bytes));
            assert_eq!(served.ask("event"), "Waits");
            drop_caches(&File::open(&steady).expect("opened"));
            assert_eq!(fs::read(&steady).expect("served meanwhile"), b"old");
        }
        drop_caches(&File::open(&steady).expect("opened"));
        // The last spare thread: nobody takes its place.
        waiting.push((read("waits-3"), b"3"));
        assert_eq!(served.ask("event"), "Waits");
        let late = read("steady");
        thread::sleep(Duration::from_millis(50));
        assert!(!late.is_finished(), "all threads wait");
        served.ask("finish");
        waiting.into_iter().for_each(|(reader, bytes)| assert_eq!(reader.join().expect("no panic"), bytes));
        assert_eq!(late.join().expect("no panic"), b"old");
        // Who does not say that it waits holds up the others.
        drop_caches(&File::open(&steady).expect("opened"));
        let holds = read("holds");
        assert_eq!(served.ask("event"), "Waits");
        let late = read("steady");
        thread::sleep(Duration::from_millis(50));
        assert!(!late.is_finished(), "the only place is taken");
        served.ask("finish");
        assert_eq!((holds.join().expect("no panic"), late.join().expect("no panic")), (b"4".to_vec(), b"old".to_vec()));
        assert!(served.end().success());
    });
}

/// Spare threads, and one that waits, do not hold up the end.
#[test]
fn an_unmount_ends_spare_threads_and_those_that_wait() {
    over_device("waits", |mut served| {
        let waits = served.path("waits-1");
        let reader = thread::spawn(move || fs::read(waits));
        assert_eq!(served.ask("event"), "Waits");
        while !reader.is_finished() {
            let _busy = unmount(served.path(""), Unmount::Force);
        }
        reader.join().expect("no panic").expect_err("cut off");
        let _gone = unmount(served.path(""), Unmount::Lazy);
        // In either order: the answer to the order, and the end of the session.
        let mut said = [served.ask("finish"), served.ask("nothing that has an answer")];
        said.sort_unstable();
        assert_eq!(said, ["0", "session ended"]);
    });
}

#[test]
fn a_polled_session_calls_idle_between_requests() {
    over_device("polled", |mut served| {
        fs::write(served.path("file"), b"x").expect("written");
        let since = Instant::now();
        while served.ask("idle") == "0" {
            assert!(since.elapsed() < server::PATIENCE, "idle is never called");
        }
        assert_eq!(fs::read(served.path("file")).expect("read"), b"x");
        assert!(served.end().success());
    });
}

#[test]
fn a_read_only_mount_takes_no_writes() {
    over_device("read-only", |served| {
        let error = File::create(served.path("file")).expect_err("read-only");
        assert_eq!(error.raw_os_error(), Some(libc::EROFS));
        assert_eq!(fs::read(served.path("steady")).expect("read"), b"old");
        assert!(served.end().success());
    });
}

/// These mounts have no server and get no requests.
#[test]
fn a_guard_unmounts_its_own_mount_and_no_other() {
    if let Some(why) = obstacle() {
        return println!("skipped: {why}");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    let (device, guard) = mount(path, &MountOptions::default()).expect("mounted");
    assert!(mount_line(path).is_some());
    drop(guard);
    assert_eq!(mount_line(path), None);
    drop(device);

    let (_device, mut guard) = mount(path, &MountOptions::default()).expect("mounted");
    unmount(path, Unmount::Lazy).expect("unmounted by somebody else");
    let data = CString::new("size=64k").expect("text");
    rustix::mount::mount("none", path, "tmpfs", rustix::mount::MountFlags::empty(), data.as_c_str()).expect("a tmpfs");
    let refused = guard.unmount(Unmount::Lazy);
    drop(guard);
    let stays = mount_line(path);
    unmount(path, Unmount::Lazy).expect("the tmpfs");
    assert!(stays.is_some_and(|line| line.contains("tmpfs")));
    assert!(matches!(refused, Err(MountError::NotMounted { .. })), "{refused:?}");
}

#[test]
fn what_cannot_be_mounted_is_said() {
    if let Some(why) = obstacle() {
        return println!("skipped: {why}");
    }
    let absent = mount(Path::new("/nowhere/at/all"), &MountOptions::default());
    assert!(matches!(absent, Err(MountError::Mountpoint { .. })), "{absent:?}");
    let directory = tempfile::tempdir().expect("a directory");
    assert!(matches!(unmount(directory.path(), Unmount::Normal), Err(MountError::NotMounted { .. })));
    let options = MountOptions { subtype: Some(String::new()), source: String::new(), ..MountOptions::default() };
    if let Err(error) = mount(directory.path(), &options) {
        assert!(error.to_string().contains("cannot mount"), "{error}");
    }
}
