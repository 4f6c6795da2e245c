//! Opening and creating.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::scene::{Scene, refused};

pub(crate) fn exclusive_creation_has_one_winner(scene: &Scene<'_>) {
    for round in 0..50 {
        let (path, winners) = (scene.path(&format!("lock-{round}")), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| match File::create_new(&path) {
                    Ok(_) => drop(winners.fetch_add(1, SeqCst)),
                    Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists),
                });
            }
        });
        assert_eq!(winners.into_inner(), 1);
    }
    symlink("nowhere", scene.path("dangling")).expect("linked");
    refused(File::create_new(scene.path("dangling")), Errno::EXIST);
    fs::write(scene.path("dangling"), "x").expect("made behind the link");
    assert_eq!(fs::read(scene.path("nowhere")).expect("read"), b"x");
    // The descriptor that created a file writes it, whatever the permissions say.
    let mut read_only = OpenOptions::new().write(true).create_new(true).mode(0o400).open(scene.path("read-only")).expect("created");
    read_only.write_all(b"x").expect("written");
}

pub(crate) fn flags_that_refuse(scene: &Scene<'_>) {
    let (file, directory) = (scene.file("file", "text"), scene.subdirectory("directory"));
    symlink("file", scene.path("link")).expect("linked");
    let open = |path: &std::path::Path, flags| rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR);
    refused(open(&scene.path("link"), OFlags::NOFOLLOW), Errno::LOOP);
    refused(open(&scene.path("link"), OFlags::NOFOLLOW | OFlags::CREATE), Errno::LOOP);
    refused(open(&scene.path("link"), OFlags::NOFOLLOW | OFlags::DIRECTORY), Errno::NOTDIR);
    refused(open(&directory, OFlags::WRONLY), Errno::ISDIR);
    refused(open(&directory, OFlags::RDWR), Errno::ISDIR);
    refused(open(&directory, OFlags::CREATE), Errno::ISDIR);
    refused(open(&directory, OFlags::CREATE | OFlags::EXCL), Errno::EXIST);
    refused(open(&file, OFlags::DIRECTORY), Errno::NOTDIR);
    refused(open(&scene.path("absent"), OFlags::RDONLY), Errno::NOENT);
    let readable = File::open(&file).expect("opened");
    refused(readable.write_at(b"x", 0), Errno::BADF);
    refused(readable.set_len(0), Errno::INVAL);
    let writable = OpenOptions::new().write(true).open(&file).expect("opened");
    refused(writable.read_at(&mut [0], 0), Errno::BADF);
    refused(File::open(&directory).expect("opened").read(&mut [0]), Errno::ISDIR);
    open(&file, OFlags::WRONLY | OFlags::TRUNC).expect("opened");
    assert_eq!(fs::metadata(&file).expect("there").len(), 0);
}

pub(crate) fn path_descriptors(scene: &Scene<'_>) {
    let file = scene.file("file", "text");
    symlink("file", scene.path("link")).expect("linked");
    let at = |path: &std::path::Path| rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()).expect("opened");
    let held = at(&file);
    assert_eq!(rustix::fs::fstat(&held).expect("there").st_size, 4);
    refused(rustix::io::read(&held, &mut [0_u8; 1][..]), Errno::BADF);
    refused(rustix::fs::fchmod(&held, Mode::RUSR), Errno::BADF);
    let link = at(&scene.path("link"));
    assert_eq!(rustix::fs::readlinkat(&link, "", Vec::new()).expect("read").to_bytes(), b"file");
    // The permissions of a path are of no matter; opening it anew asks for them.
    let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&held));
    assert_eq!(fs::read(&again).expect("read"), b"text");
    // It holds the file when the last name is gone.
    fs::remove_file(&file).expect("removed");
    scene.file("file", "another");
    let stat = rustix::fs::fstat(&held).expect("there");
    assert_eq!((stat.st_nlink, stat.st_size), (0, 4));
    assert_eq!(fs::read(&again).expect("read"), b"text");
    let directory = at(&scene.subdirectory("directory"));
    scene.file("directory/inner", "i");
    fs::rename(scene.path("directory"), scene.path("moved")).expect("renamed");
    rustix::fs::openat(&directory, "inner", OFlags::RDONLY, Mode::empty()).expect("relative to where it went");
}

pub(crate) fn appends_of_many_processes(scene: &Scene<'_>) {
    let path = scene.path("log");
    let script = r#"i=0; while [ $i -lt 100 ]; do printf '%s-%03d-%s\n' "$2" $i "$3" >> "$1"; i=$((i+1)); done"#;
    let children: Vec<_> = (0..4)
        .map(|writer| {
            let mut command = Command::new("sh");
            command.args(["-c", script, "appender"]).arg(&path).arg(writer.to_string()).arg("y".repeat(20 + 61 * writer));
            command.spawn().expect("a shell")
        })
        .collect();
    // Beside them a descriptor that stays open.
    let mut here = OpenOptions::new().append(true).create(true).open(&path).expect("opened");
    for number in 0..100 {
        here.write_all(format!("9-{number:03}-{}\n", "z".repeat(300)).as_bytes()).expect("appended");
    }
    for mut child in children {
        assert!(child.wait().expect("ended").success());
    }
    let text = fs::read_to_string(&path).expect("read");
    for writer in [0, 1, 2, 3, 9] {
        let own: Vec<&str> = text.lines().filter(|line| line.starts_with(&format!("{writer}-"))).collect();
        assert_eq!(own.len(), 100, "writer {writer}");
        assert!(own.iter().enumerate().all(|(number, line)| line[2..5] == format!("{number:03}")), "in order, nothing torn");
    }
    assert_eq!(text.lines().count(), 500);
}

pub(crate) fn nameless_files(scene: &Scene<'_>) {
    let open = |flags| rustix::fs::open(scene.directory(), OFlags::TMPFILE | flags, Mode::from_raw_mode(0o640)).map(File::from);
    let mut file = open(OFlags::RDWR).expect("O_TMPFILE");
    file.write_all(b"nameless").expect("written");
    let metadata = file.metadata().expect("open");
    assert_eq!((metadata.nlink(), metadata.mode(), metadata.len()), (0, 0o100_640, 8));
    assert_eq!(fs::read_dir(scene.directory()).expect("listed").count(), 0);
    let number = metadata.ino();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    rustix::fs::linkat(CWD, &path, CWD, scene.path("named"), AtFlags::SYMLINK_FOLLOW).expect("named");
    let named = fs::metadata(scene.path("named")).expect("there");
    assert_eq!((named.ino(), named.nlink(), named.len()), (number, 1, 8));
    rustix::fs::linkat(&file, "", CWD, scene.path("again"), AtFlags::EMPTY_PATH).expect("named again");
    file.write_all(b" no more").expect("written");
    drop(file);
    assert_eq!(fs::read(scene.path("again")).expect("read"), b"nameless no more");
    // With O_EXCL it never gets a name.
    let never = open(OFlags::WRONLY | OFlags::EXCL).expect("opened");
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&never));
    refused(rustix::fs::linkat(CWD, &path, CWD, scene.path("never"), AtFlags::SYMLINK_FOLLOW), Errno::NOENT);
    refused(open(OFlags::RDONLY), Errno::INVAL);
    let at_file = rustix::fs::open(scene.path("named"), OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR);
    refused(at_file, Errno::NOTDIR);
    // Once it was named and lost its names, it stays nameless.
    let file = open(OFlags::RDWR).expect("opened");
    rustix::fs::linkat(&file, "", CWD, scene.path("short"), AtFlags::EMPTY_PATH).expect("named");
    fs::remove_file(scene.path("short")).expect("removed");
    refused(rustix::fs::linkat(&file, "", CWD, scene.path("short"), AtFlags::EMPTY_PATH), Errno::NOENT);
}

pub(crate) fn a_running_program_is_not_written(scene: &Scene<'_>) {
    let program = scene.path("program");
    fs::copy("/bin/sleep", &program).expect("copied");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("changed");
    // A child that another thread started meanwhile may hold the copy open for writing for an instant.
    let mut running = (0..100)
        .find_map(|_| {
            Command::new(&program).arg("60").spawn().inspect_err(|_| std::thread::sleep(std::time::Duration::from_millis(5))).ok()
        })
        .expect("runs");
    let opened = OpenOptions::new().write(true).open(&program);
    running.kill().expect("killed");
    running.wait().expect("ended");
    refused(opened, Errno::TXTBSY);
    OpenOptions::new().write(true).open(&program).expect("nobody runs it");
}
