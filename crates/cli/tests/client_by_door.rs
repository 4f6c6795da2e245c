//! The client library through the direct door of a real mount, beside system calls on the same mount. As root: the daemon must see who its
//! clients are.

#[path = "direct_door/mapping.rs"]
mod mapping;
#[path = "../../client/examples/notes.rs"]
#[allow(dead_code, reason = "the example is called without its command line")]
mod notes;
mod support;

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use mapping::Mapped;
use rustix::fs::XattrFlags;
use support::{Mount, Place, pattern};
use tandemfs_client::{ConnectError, Errno, Error, OpenOptions, TimeToSet, Tree, Why};

type Door = tandemfs_client::Mount;

fn opened(mode: &str) -> (Place, Mount, Door) {
    let place = Place::formatted();
    let mount = place.mount(&format!("direct,{mode}"));
    let door = Door::connect(mount.root()).expect("let in");
    (place, mount, door)
}

fn ended(place: &Place, mount: Mount, door: Door) {
    drop(door);
    mount.unmount();
    place.check();
}

#[test]
fn the_example_keeps_notes_on_a_mount() {
    for mode in ["strict", "relaxed"] {
        let (place, mount, door) = opened(mode);
        notes::keep_notes(&door).expect("kept");
        assert_eq!(fs::read_to_string(mount.path("notes/list")).expect("there"), "milk\nbread\n", "{mode}");
        fs::write(mount.path("notes/nothing"), "by the mount").expect("written");
        notes::keep_notes(&door).expect("kept once more");
        ended(&place, mount, door);
    }
}

#[test]
fn files_are_the_same_by_both_ways() {
    let (place, mount, door) = opened("strict");
    let data = pattern(1, (5 << 20) + 77);
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o640).open(&door, "f").expect("made");
    file.write_all_at(&data, 0).expect("written");
    assert!(fs::read(mount.path("f")).expect("there") == data, "several requests");
    let by_mount = fs::OpenOptions::new().read(true).write(true).open(mount.path("f")).expect("opened");
    by_mount.write_all_at(b"by the mount", 3 << 20).expect("written");
    let mut back = vec![0; data.len()];
    file.read_exact_at(&mut back, 0).expect("read");
    assert_eq!(&back[3 << 20..][..12], b"by the mount");
    assert!(back[..3 << 20] == data[..3 << 20]);

    assert_eq!(file.append(b"the end").expect("appended"), (7, data.len() as u64 + 7));
    file.set_length(1 << 20).expect("cut");
    file.allocate(3, 64 << 10, 128 << 10).expect("a hole of two blocks");
    assert_eq!((file.seek_hole(0), file.seek_data(64 << 10)), (Ok(64 << 10), Ok(192 << 10)));
    assert_eq!(rustix::fs::seek(&by_mount, rustix::fs::SeekFrom::Hole(0)), Ok(64 << 10));
    let copy = OpenOptions::new().read(true).write(true).create(true).open(&door, "g").expect("made");
    assert_eq!(file.copy_range(0, &copy, 100, 50_000), Ok(50_000));
    assert_eq!(fs::read(mount.path("g")).expect("there")[100..], fs::read(mount.path("f")).expect("there")[..50_000]);
    file.sync_all().expect("durable");
    file.sync_data().expect("durable");
    file.set_times(TimeToSet::At { seconds: 5, nanoseconds: 6 }, TimeToSet::Omit).expect("set");
    file.set_mode(0o604).expect("changed");
    file.set_owner(Some(7), None).expect("changed");
    let (shown, seen) = (file.attributes().expect("there"), fs::metadata(mount.path("f")).expect("there"));
    assert_eq!((shown.mode, shown.size_bytes, shown.user, shown.node), (0o100_604, 1 << 20, 7, seen.ino()));
    assert_eq!((shown.accessed.seconds, shown.accessed.nanoseconds, shown.modified.seconds), (5, 6, seen.mtime()));
    assert_eq!((seen.mode(), seen.len(), seen.uid(), seen.atime()), (0o100_604, 1 << 20, 7, 5));
    file.close().expect("closed");
    drop((copy, by_mount));
    ended(&place, mount, door);
}

#[test]
fn names_are_the_same_by_both_ways() {
    let (place, mount, door) = opened("strict");
    door.set_umask(0o027);
    assert_eq!(door.make_directory("d", 0o777).expect("made").mode, 0o040_750);
    let directory = door.open("d").expect("opened");
    for number in 0..700 {
        drop(directory.create(format!("{number:03}")).expect("made"));
    }
    let mut names: Vec<_> = door.read_directory("d").expect("opened").map(|entry| entry.expect("listed").name().to_owned()).collect();
    names.retain(|name| name != "." && name != "..");
    names.sort();
    let mut expected: Vec<_> = fs::read_dir(mount.path("d")).expect("listed").map(|entry| entry.expect("one").file_name()).collect();
    expected.sort();
    assert_eq!(names, expected);
    assert_eq!(fs::metadata(mount.path("d/000")).expect("there").permissions().mode() & 0o777, 0o640);

    directory.rename_with("000", &door, "out", 0).expect("moved");
    door.link("out", "also").expect("linked");
    let target = "t".repeat(300);
    door.make_link(&target, "l").expect("made");
    assert_eq!(door.read_link("l").expect("read"), Path::new(&target));
    assert_eq!(fs::read_link(mount.path("l")).expect("read"), Path::new(&target));
    assert_eq!((fs::metadata(mount.path("also")).expect("there").nlink(), door.attributes("also").expect("there").links), (2, 2));
    door.make_node("pipe", 0o010_600, 0).expect("made");
    assert!(matches!(door.open("pipe"), Err(Error::Crossed(crossed)) if crossed.why == Why::SpecialFile), "for the kernel");
    assert!(matches!(door.attributes("/etc"), Err(Error::Crossed(crossed)) if crossed.why == Why::Absolute));

    let value = pattern(4, 60_000);
    door.set_extended_attribute("out", b"user.large", &value, 0).expect("set");
    rustix::fs::setxattr(mount.path("out"), "user.small", b"1", XattrFlags::empty()).expect("set");
    assert!(door.extended_attribute("also", b"user.large").expect("there") == value);
    let mut names = door.extended_attributes("out").expect("listed");
    names.sort();
    assert_eq!(names, ["user.large", "user.small"]);
    door.remove_extended_attribute("out", b"user.small").expect("removed");
    assert_eq!(rustix::fs::getxattr(mount.path("out"), "user.small", &mut [0_u8; 8][..]), Err(Errno::NODATA));
    door.unlink("also").expect("removed");
    assert!(!mount.path("also").exists());
    let (space, seen) = (door.space().expect("told"), rustix::fs::statvfs(mount.root()).expect("told"));
    assert_eq!((space.units * space.unit_bytes, space.files), (seen.f_blocks * seen.f_frsize, seen.f_files));
    drop(directory);
    ended(&place, mount, door);
}

/// What is said of a path: number, size, mode, links, owner, times; or the error.
type Said = Result<(u64, u64, u32, u64, u32, [(i64, i64); 2]), i32>;

fn said_by_mount(path: &Path) -> Said {
    let found = fs::metadata(path).map_err(|error| error.raw_os_error().expect("of the kernel"))?;
    let times = [(found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec())];
    Ok((found.ino(), found.len(), found.mode(), found.nlink(), found.uid(), times))
}

fn said_by_door(door: &Door, path: &str) -> Said {
    let found = door.attributes(path).map_err(|error| error.errno().expect("not for the kernel").raw_os_error())?;
    let times = [found.modified, found.changed].map(|time| (time.seconds, time.nanoseconds.into()));
    Ok((found.node, found.size_bytes, found.mode, found.links.into(), found.user, times))
}

/// A change by the mount or the door; most fail.
fn change(mount: &Mount, door: &Door, path: &str, other: &str, number: u64) {
    let (here, there) = (mount.path(path), mount.path(other));
    match number % 12 {
        0 => drop(fs::write(here, other)),
        1 => drop(fs::create_dir(here)),
        2 => drop(fs::remove_file(here)),
        3 => drop(fs::remove_dir(here)),
        4 => drop(fs::rename(here, there)),
        5 => drop(fs::set_permissions(here, fs::Permissions::from_mode(0o600 | number as u32 & 0o177))),
        6 => drop(fs::OpenOptions::new().write(true).open(here).and_then(|file| file.set_len(number % 10_000))),
        7 => drop(std::os::unix::fs::symlink(other, here)),
        8 => drop(fs::hard_link(there, here)),
        9 => drop(door.create(path)),
        10 => drop(door.make_directory(path, 0o755)),
        _ => drop(door.rename(path, other)),
    }
}

/// The client answers what it knows. What anybody changes by the mount or by the door, and what is mounted inside, it knows no more.
#[test]
fn what_is_known_is_what_the_mount_says() {
    const PATHS: [&str; 9] = ["a", "b", "c", "a/a", "a/b", "b/a", "b/c", "a/b/c", "a/../b"];
    for mode in ["strict", "relaxed"] {
        let (place, mount, door) = opened(mode);
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            state >> 33
        };
        for step in 0..300 {
            let path = |number: u64| PATHS[number as usize % 8];
            change(&mount, &door, path(random()), path(random()), random());
            for path in PATHS {
                assert_eq!(said_by_door(&door, path), said_by_mount(&mount.path(path)), "{mode}, step {step}, {path}");
            }
        }
        fs::create_dir(mount.path("inner")).expect("made");
        assert_eq!([0, 1].map(|_| said_by_door(&door, "inner/x")), [Err(Errno::NOENT.raw_os_error()); 2]);
        let inner = mount.path("inner");
        let tool = |words: &[&std::ffi::OsStr]| {
            assert!(support::run(std::process::Command::new(words[0]).args(&words[1..])).status.success(), "{words:?}");
        };
        tool(&["mount".as_ref(), "-t".as_ref(), "tmpfs".as_ref(), "tmpfs".as_ref(), inner.as_os_str()]);
        let start = std::time::Instant::now();
        let is_seen = || matches!(door.attributes("inner/x"), Err(Error::Crossed(crossed)) if crossed.why == Why::MountPoint);
        while !is_seen() && start.elapsed() < support::WITHIN {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let seen = is_seen();
        tool(&["umount".as_ref(), inner.as_os_str()]);
        assert!(seen, "{mode}: what is mounted inside stays unknown");
        ended(&place, mount, door);
    }
}

/// Bytes that are read by the door again and again, and changed by writes and mappings of the mount in between.
#[test]
fn bytes_that_are_known_are_those_of_the_mount() {
    for mode in ["strict", "relaxed"] {
        let (place, mount, door) = opened(mode);
        fs::write(mount.path("f"), pattern(1, 20_000)).expect("written");
        let by_door = OpenOptions::new().read(true).write(true).open(&door, "f").expect("opened");
        let by_mount = fs::OpenOptions::new().read(true).write(true).open(mount.path("f")).expect("opened");
        let mapping = Mapped::new(by_mount.as_fd(), 20_000);
        for round in 0..200_u64 {
            let (offset, bytes) = ((round * 977) % 19_000, pattern(round, 300));
            match round % 4 {
                0 => by_mount.write_all_at(&bytes, offset).expect("written"),
                1 => by_door.write_all_at(&bytes, offset).expect("written"),
                2 => mapping.store(offset as usize, &bytes),
                _ => {
                    assert!(mapping.load(offset as usize, 300).len() == 300);
                    by_door.write_all_at(&bytes, offset).expect("written");
                }
            }
            for look in 0..3 {
                let mut seen = [0; 300];
                by_door.read_exact_at(&mut seen, offset).expect("read");
                assert!(seen[..] == bytes, "{mode}, round {round}, look {look}");
            }
            assert!(mapping.load(offset as usize, 300) == bytes, "{mode}, round {round}: the mapping");
        }
        drop((mapping, by_mount, by_door));
        ended(&place, mount, door);
    }
}

/// A call by the door and the system call, which must fail alike.
type Pair = (&'static str, fn(&Door) -> Result<(), Error>, fn(&Path) -> rustix::io::Result<()>);

fn open_by_kernel(path: &Path, flags: rustix::fs::OFlags) -> rustix::io::Result<()> {
    rustix::fs::open(path, flags, rustix::fs::Mode::from_raw_mode(0o600)).map(drop)
}

#[test]
fn errors_are_those_of_system_calls() {
    use rustix::fs::OFlags;
    let (place, mount, door) = opened("strict");
    fs::create_dir(mount.path("d")).expect("made");
    fs::write(mount.path("d/f"), "x").expect("written");
    fs::write(mount.path("f"), "x").expect("written");
    std::os::unix::fs::symlink("l", mount.path("l")).expect("made");
    let pairs: [Pair; 12] = [
        ("no such file", |door| door.open("n").map(drop), |root| open_by_kernel(&root.join("n"), OFlags::RDONLY)),
        ("a file as a directory", |door| door.open("f/x").map(drop), |root| open_by_kernel(&root.join("f/x"), OFlags::RDONLY)),
        ("a directory for writing", |door| door.create("d").map(drop), |root| open_by_kernel(&root.join("d"), OFlags::WRONLY)),
        ("a loop", |door| door.open("l").map(drop), |root| open_by_kernel(&root.join("l"), OFlags::RDONLY)),
        ("a long name", |door| door.open("n".repeat(256)).map(drop), |root| open_by_kernel(&root.join("n".repeat(256)), OFlags::RDONLY)),
        ("an empty path", |door| door.open("").map(drop), |_| open_by_kernel(Path::new(""), OFlags::RDONLY)),
        (
            "there already",
            |door| OpenOptions::new().write(true).create_new(true).open(door, "f").map(drop),
            |root| open_by_kernel(&root.join("f"), OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL),
        ),
        ("a file as a listing", |door| door.read_directory("f").map(drop), |root| open_by_kernel(&root.join("f"), OFlags::DIRECTORY)),
        ("not empty", |door| door.remove_directory("d"), |root| rustix::fs::rmdir(root.join("d"))),
        ("a directory to unlink", |door| door.unlink("d"), |root| rustix::fs::unlink(root.join("d"))),
        ("into itself", |door| door.rename("d", "d/e"), |root| rustix::fs::rename(root.join("d"), root.join("d/e"))),
        (
            "no such attribute",
            |door| door.extended_attribute("f", b"user.n").map(drop),
            |root| rustix::fs::getxattr(root.join("f"), "user.n", &mut [0_u8; 8][..]).map(drop),
        ),
    ];
    for (what, by_door, by_kernel) in pairs {
        let (found, expected) = (by_door(&door), by_kernel(mount.root()));
        assert_eq!(found.err().and_then(|error| error.errno()), Some(expected.expect_err(what)), "{what}");
    }
    let reader = door.open("f").expect("opened");
    assert_eq!(reader.write_at(b"x", 0), Err(Error::Errno(Errno::BADF)));
    drop(reader);
    ended(&place, mount, door);
}

#[test]
fn threads_share_one_connection() {
    let (place, mount, door) = opened("strict");
    let again = Door::connect(mount.root()).expect("let in");
    std::thread::scope(|scope| {
        for thread in 0..6_u64 {
            let door = if thread % 2 == 0 { door.clone() } else { again.clone() };
            scope.spawn(move || {
                let name = format!("f{thread}");
                let file = OpenOptions::new().read(true).write(true).create(true).open(&door, &name).expect("made");
                for round in 0..40 {
                    let data = pattern(100 * thread + round, 30_000);
                    file.write_all_at(&data, 1000 * round).expect("written");
                    let mut back = vec![0; data.len()];
                    file.read_exact_at(&mut back, 1000 * round).expect("read");
                    assert!(back == data, "{name}, round {round}");
                }
            });
        }
    });
    door.ping().expect("the second connect did not end the first");
    drop(again);
    ended(&place, mount, door);
}

#[test]
fn a_daemon_that_ends_is_told_and_the_next_one_is_found() {
    let (place, mount, door) = opened("strict");
    let file = OpenOptions::new().write(true).create(true).open(&door, "f").expect("made");
    file.write_all_at(b"acknowledged", 0).expect("written");
    mount.kill();
    assert_eq!(door.ping(), Err(Error::Errno(Errno::NOTCONN)));
    assert_eq!(file.write_at(b"x", 0), Err(Error::Errno(Errno::NOTCONN)));
    drop((file, door));

    let mount = place.mount("direct,strict");
    let door = Door::connect(mount.root()).expect("let in");
    let mut bytes = [0; 12];
    door.open("f").expect("opened").read_exact_at(&mut bytes, 0).expect("read");
    assert_eq!(&bytes, b"acknowledged", "the strict mode is the door's, too");
    mount.unmount();
    assert_eq!(door.ping(), Err(Error::Errno(Errno::NOTCONN)));
    assert!(matches!(Door::connect(place.mountpoint()), Err(ConnectError::NotMounted(_))));
    place.check();
}

/// The kernel holds an inode by a name that it was told of.
#[test]
fn regression_space_of_what_a_client_removes_stayed_taken() {
    let (place, mount, door) = opened("strict");
    // Inodes, and bytes.
    let taken = || {
        let found = rustix::fs::statvfs(mount.root()).expect("told");
        (found.f_files - found.f_ffree, (found.f_blocks - found.f_bfree) * found.f_frsize)
    };
    fs::create_dir(mount.path("d")).expect("made");
    let before = taken();
    let data = pattern(1, 8 << 20);
    for name in ["removed", "moved", "replaced", "d/linked"] {
        fs::write(mount.path(name), &data).expect("written");
    }
    fs::create_dir(mount.path("directory")).expect("made");
    fs::hard_link(mount.path("d/linked"), mount.path("also")).expect("linked");
    fs::write(mount.path("new"), "x").expect("written");
    let during = taken();
    assert!(during.0 - before.0 >= 6 && during.1 - before.1 >= 32 << 20, "{before:?}, {during:?}");
    door.unlink("removed").expect("removed");
    door.rename("moved", "elsewhere").expect("moved");
    door.unlink("elsewhere").expect("removed");
    door.rename("new", "replaced").expect("replaced");
    door.unlink("replaced").expect("removed");
    door.unlink("d/linked").expect("removed");
    door.unlink("also").expect("removed");
    door.remove_directory("directory").expect("removed");
    support::eventually("inodes and space come back", || {
        let now = taken();
        now.0 <= before.0 && now.1 <= before.1 + (1 << 20)
    });
    // Who has it open keeps it, and reads on.
    fs::write(mount.path("open"), &data).expect("written");
    let file = fs::File::open(mount.path("open")).expect("opened");
    door.unlink("open").expect("removed");
    let mut back = vec![0; data.len()];
    file.read_exact_at(&mut back, 0).expect("read");
    assert!(back == data);
    drop(file);
    support::eventually("it goes with its last descriptor", || taken().0 <= before.0);
    ended(&place, mount, door);
}
