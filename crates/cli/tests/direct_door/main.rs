//! The direct door of a real mount: what is done by one way is seen by the other, in both orders and with the kernel's caches warm; clients
//! that die, lie, are of another version or another user. As root.

#[path = "../support/mod.rs"]
mod support;

mod client;
mod descriptors;
mod mapping;
mod mixed;
mod processes;

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};

use client::{DATA_BYTES, Door, Failure, named, root_of, say, socket_of};
use processes::Child;
use support::{Mount, Place, eventually, fails, pattern};
use tandemfs_protocol::{Hello, Number, Operation, Place as Start, Reception, Refusal, Subject, Text, TimeToSet, VERSION, Whence, Why};
use tandemfs_ring::{Range, Request};

fn errno<T>(errno: i32) -> client::Result<T> {
    Err(Failure::Errno(errno))
}

fn opened(options: &str) -> (Place, Mount, Door) {
    let place = Place::formatted();
    let mount = place.mount(&format!("direct{options}"));
    let door = Door::connect(mount.root()).expect("let in");
    (place, mount, door)
}

fn refused(result: Result<Door, Refusal>) -> Refusal {
    match result {
        Ok(_) => panic!("let in"),
        Err(refusal) => refusal,
    }
}

fn ended(place: &Place, mount: Mount, door: Door) {
    drop(door);
    mount.unmount();
    place.check();
}

#[test]
fn names_change_by_both_ways_with_warm_caches() {
    let (place, mount, mut door) = opened("");
    let names = |directory: &str| {
        let mut names: Vec<_> = fs::read_dir(mount.path(directory))
            .expect("listed")
            .map(|entry| entry.expect("one").file_name().into_string().expect("UTF-8"))
            .collect();
        names.sort();
        names
    };
    let missing = |name: &str| fs::metadata(mount.path(name)).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    assert!(missing("new") && names("").is_empty(), "the kernel may keep that");
    door.make("new", b"by the door").expect("made");
    assert_eq!(fs::read(mount.path("new")).expect("there"), b"by the door");
    assert_eq!(names(""), ["new"]);
    door.rename("new", "other").expect("renamed");
    assert!(missing("new") && !missing("other"));
    fs::create_dir(mount.path("sub")).expect("made");
    fs::rename(mount.path("other"), mount.path("sub/moved")).expect("renamed");
    assert_eq!(door.names("").expect_err("an empty path"), Failure::Errno(libc::ENOENT));
    assert_eq!((door.names(".").expect("listed"), door.names("sub").expect("listed")), (vec!["sub".to_owned()], vec!["moved".to_owned()]));
    assert_eq!(names("sub"), ["moved"]);
    door.unlink("sub/moved").expect("removed");
    assert!(missing("sub/moved") && names("sub").is_empty());
    fs::write(mount.path("sub/moved"), b"again").expect("written");
    assert_eq!(door.contents("sub/moved").expect("there"), b"again");
    let remove = Operation::RemoveDirectory { at: Start::Root, path: Text::Here(b"sub") };
    assert_eq!(door.call(&remove), errno(libc::ENOTEMPTY));
    fs::remove_file(mount.path("sub/moved")).expect("removed");
    assert_eq!(door.contents("sub/moved"), errno(libc::ENOENT));
    door.call(&remove).expect("empty");
    assert!(missing("sub"));
    ended(&place, mount, door);
}

#[test]
fn many_names_are_listed_piece_by_piece() {
    let (place, mount, mut door) = opened("");
    let expected: Vec<String> = (0..300).map(|number| format!("file-{number:04}")).collect();
    for name in &expected {
        File::create(mount.path(name)).expect("made");
    }
    assert_eq!(door.names(".").expect("listed"), expected);
    ended(&place, mount, door);
}

#[test]
fn data_changes_by_both_ways_with_warm_caches() {
    let (place, mount, mut door) = opened("");
    let (first, second) = (pattern(1, 300_000), pattern(2, 300_000));
    fs::write(mount.path("file"), &first).expect("written");
    let mut file = OpenOptions::new().read(true).write(true).open(mount.path("file")).expect("opened");
    let read = |file: &mut File| {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(0)).expect("sought");
        file.read_to_end(&mut bytes).expect("read");
        bytes
    };
    assert!(read(&mut file) == first, "now the kernel has its pages");
    assert!(door.contents("file").expect("read") == first);
    let handle = door.open("file", libc::O_RDWR, 0).expect("opened");
    door.write(handle, 0, &second[..100_000]).expect("written");
    let mixed = [&second[..100_000], &first[100_000..]].concat();
    assert!(read(&mut file) == mixed);
    door.write(handle, 300_000, &second[..5000]).expect("longer");
    assert_eq!(file.metadata().expect("seen").len(), 305_000);
    assert!(read(&mut file) == [&mixed[..], &second[..5000]].concat());
    door.call(&Operation::Truncate { subject: Subject::Open(handle), length: 1000 }).expect("shorter");
    assert!(read(&mut file) == mixed[..1000]);
    file.write_all_at(b"by the mount", 500).expect("written");
    assert_eq!(door.read(handle, 500, 12).expect("read"), b"by the mount");
    file.set_len(600).expect("shorter");
    assert_eq!(door.read(handle, 590, 100).expect("read").len(), 10);
    door.call(&Operation::Allocate { handle, flags: 3, offset: 0, length: 512 }).expect("punched");
    assert!(read(&mut file)[..512].iter().all(|byte| *byte == 0));
    let seek = door.call(&Operation::Seek { handle, offset: 0, whence: Whence::Data }).expect("sought");
    assert_eq!(seek.value, file.metadata().map(|_| seek.value).expect("seen"));
    door.call(&Operation::Sync { handle, data_only: true }).expect("durable");
    door.close(handle).expect("closed");
    assert_eq!(door.close(handle), errno(libc::EBADF));
    drop(file);
    ended(&place, mount, door);
}

/// open(2) with O_CREAT, but without O_EXCL, was EEXIST where a client made the file between the kernel's look-up and its request.
#[test]
fn regression_files_that_the_door_made_meanwhile_were_not_opened() {
    let (place, mount, mut door) = opened("");
    let (begin, names) = (std::sync::Barrier::new(2), 1000);
    std::thread::scope(|scope| {
        let by_mount = scope.spawn(|| {
            let open = |name: i32| OpenOptions::new().create(true).append(true).open(mount.path(&name.to_string())).err();
            let refused = |name| {
                begin.wait();
                open(name)
            };
            (0..names).filter_map(refused).map(|error| error.to_string()).collect::<Vec<_>>()
        });
        for name in 0..names {
            begin.wait();
            (0..name % 50).for_each(|_| std::hint::spin_loop());
            let handle = door.open(&name.to_string(), libc::O_CREAT | libc::O_WRONLY, 0o644).expect("opened");
            door.close(handle).expect("closed");
        }
        assert_eq!(by_mount.join().expect("no panic"), Vec::<String>::new());
    });
    ended(&place, mount, door);
}

#[test]
fn appends_by_both_ways_go_behind_each_other() {
    let (place, mount, mut door) = opened("");
    let mut file = OpenOptions::new().create(true).append(true).read(true).open(mount.path("log")).expect("opened");
    let handle = door.open("log", libc::O_WRONLY | libc::O_APPEND, 0).expect("opened");
    let mut expected = Vec::new();
    for round in 0..200_u64 {
        let (by_mount, by_door) = (pattern(round, 37), pattern(round + 1, 4097));
        file.write_all(&by_mount).expect("appended");
        expected.extend_from_slice(&by_mount);
        let answer = door.write(handle, 0, &by_door).expect("appended");
        expected.extend_from_slice(&by_door);
        assert_eq!((answer.value, answer.further), (4097, expected.len() as u64));
    }
    assert!(door.contents("log").expect("read") == expected);
    assert!(fs::read(mount.path("log")).expect("read") == expected);
    drop(file);
    ended(&place, mount, door);
}

/// The kernel may not know the end.
#[test]
fn regression_appends_past_the_cache_overwrote_what_the_door_had_appended() {
    let (place, mount, mut door) = opened("");
    let past_the_cache = OpenOptions::new().create(true).append(true).custom_flags(libc::O_DIRECT).open(mount.path("log")).expect("opened");
    let handle = door.open("log", libc::O_WRONLY | libc::O_APPEND, 0).expect("opened");
    let mut expected = Vec::new();
    for round in 0..60_u64 {
        let (by_mount, by_door) = (pattern(round, 4096), pattern(round + 1, 4096 * (1 + round as usize % 3)));
        let mut aligned = vec![0; 2 * 4096];
        let start = aligned.as_ptr().align_offset(4096);
        aligned[start..start + 4096].copy_from_slice(&by_mount);
        assert_eq!((&past_the_cache).write(&aligned[start..start + 4096]).expect("appended"), 4096);
        expected.extend_from_slice(&by_mount);
        door.write(handle, 0, &by_door).expect("appended");
        expected.extend_from_slice(&by_door);
    }
    assert!(door.contents("log").expect("read") == expected);
    assert!(fs::read(mount.path("log")).expect("read") == expected);
    drop(past_the_cache);
    ended(&place, mount, door);
}

/// The kernel was told of sizes by a byte of the file for its page cache. Its page could belong to a WRITE on its way to the daemon ([BS7]).
#[test]
fn regression_sizes_that_the_kernel_is_told_changed_writes_under_way() {
    const RECORD: usize = 1 << 20;
    let (place, mount, mut door) = opened("");
    let mut file = OpenOptions::new().create(true).append(true).open(mount.path("log")).expect("opened");
    let handle = door.open("log", libc::O_WRONLY | libc::O_APPEND, 0).expect("opened");
    std::thread::scope(|scope| {
        let by_mount = scope.spawn(|| {
            let record = vec![b'm'; RECORD];
            (0..60).for_each(|_| assert_eq!(file.write(&record).expect("appended"), RECORD));
        });
        while !by_mount.is_finished() {
            door.write(handle, 0, &[b'd'; 4096]).expect("appended");
        }
    });
    let log = fs::read(mount.path("log")).expect("read");
    let changed = log.chunks(4096).position(|page| page.iter().any(|byte| *byte != page[0]));
    assert_eq!(changed, None, "a page of the log has bytes of two writers");
    assert_eq!(log.iter().filter(|byte| **byte == b'm').count(), 60 * RECORD);
    drop(file);
    ended(&place, mount, door);
}

/// Pieces of one call that come at once, each of fewer bytes than a request may have: a request has so many pages at most.
#[test]
fn regression_pieces_of_an_append_past_the_cache_changed_their_order() {
    const SEGMENTS: usize = 1024;
    let (place, mount, door) = opened("");
    let file = OpenOptions::new().create(true).append(true).custom_flags(libc::O_DIRECT).open(mount.path("log")).expect("opened");
    let mut memory = vec![0_u8; SEGMENTS * 4096];
    let mut expected = Vec::new();
    for round in 0..2000_u64 {
        let bytes = pattern(round, SEGMENTS * 8);
        memory.chunks_mut(4096).zip(bytes.chunks(8)).for_each(|(page, segment)| page[..8].copy_from_slice(segment));
        let segments: Vec<_> = memory.chunks(4096).map(|page| std::io::IoSlice::new(&page[..8])).collect();
        assert_eq!(rustix::io::writev(&file, &segments).expect("appended"), bytes.len());
        expected.extend_from_slice(&bytes);
    }
    let log = fs::read(mount.path("log")).expect("read");
    assert_eq!(log.len(), expected.len());
    assert_eq!(log.iter().zip(&expected).position(|(found, expected)| found != expected), None, "the first byte that is another");
    drop(file);
    ended(&place, mount, door);
}

/// Such a log is rotated by `truncate`: the kernel goes on where the end was.
#[test]
fn regression_appends_by_the_mount_left_a_hole_where_the_door_had_cut_the_file_off() {
    let (place, mount, mut door) = opened("");
    let mut file = OpenOptions::new().create(true).append(true).open(mount.path("log")).expect("opened");
    for round in 0..20_u8 {
        file.write_all(&[round; 5000]).expect("appended");
        assert_eq!(fs::metadata(mount.path("log")).expect("there").len(), 5000);
        let handle = door.open("log", libc::O_WRONLY | libc::O_TRUNC, 0).expect("opened");
        door.close(handle).expect("closed");
        file.write_all(b"first").expect("appended");
        file.write_all(b", second").expect("appended");
        assert_eq!(fs::read(mount.path("log")).expect("read"), b"first, second");
        file.set_len(0).expect("cut");
    }
    drop(file);
    ended(&place, mount, door);
}

/// The kernel keeps the last page of such a WRITE locked until it is answered, and fills the next one's meanwhile: drops of pages wait for those.
#[test]
fn regression_appends_by_the_mount_waited_for_drops_of_pages_that_waited_for_them() {
    const RECORD: usize = 10_000;
    let (place, mount, mut door) = opened("");
    let mut file = OpenOptions::new().create(true).append(true).open(mount.path("log")).expect("opened");
    let handle = door.open("log", libc::O_WRONLY | libc::O_APPEND, 0).expect("opened");
    let by_door = std::thread::scope(|scope| {
        let by_mount = scope.spawn(|| (0..2000).for_each(|_| assert_eq!(file.write(&[b'm'; RECORD]).expect("appended"), RECORD)));
        let path = mount.path("log");
        let reads = scope.spawn(move || {
            while !by_mount.is_finished() {
                fs::read(&path).expect("read");
            }
        });
        let mut count = 0;
        while !reads.is_finished() {
            door.write(handle, 0, &[b'd'; 777]).expect("appended");
            count += 1;
        }
        count
    });
    let log = fs::read(mount.path("log")).expect("read");
    let of = |letter: u8| log.iter().filter(|byte| **byte == letter).count();
    assert_eq!((of(b'm'), of(b'd'), log.len()), (2000 * RECORD, by_door * 777, 2000 * RECORD + by_door * 777));
    drop(file);
    ended(&place, mount, door);
}

/// A WRITE that is moved behind what a client has appended leaves the kernel's end behind by as much.
#[test]
fn regression_appends_behind_what_the_door_had_appended_overwrote_each_other() {
    let (place, mount, mut door) = opened("");
    for (name, flags) in [("log", 0), ("past-the-cache", libc::O_DIRECT)] {
        let by_mount = OpenOptions::new().create(true).append(true).custom_flags(flags).open(mount.path(name)).expect("opened");
        let handle = door.open(name, libc::O_WRONLY | libc::O_APPEND, 0).expect("opened");
        let mut expected = pattern(1, 3 * 4096);
        door.write(handle, 0, &expected).expect("appended");
        for round in 0..8_u64 {
            let mut aligned = vec![0; 2 * 4096];
            let start = aligned.as_ptr().align_offset(4096);
            aligned[start..start + 4096].copy_from_slice(&pattern(round + 2, 4096));
            assert_eq!((&by_mount).write(&aligned[start..start + 4096]).expect("appended"), 4096);
            expected.extend_from_slice(&aligned[start..start + 4096]);
        }
        assert!(door.contents(name).expect("read") == expected, "{name}");
        assert!(fs::read(mount.path(name)).expect("read") == expected, "{name}");
        door.close(handle).expect("closed");
    }
    ended(&place, mount, door);
}

/// A `write` by the mount changes the cached page before its WRITE reaches the daemon, and does not hold the page until then. A client drops the page
/// meanwhile, and another reader gets it once more.
#[test]
fn regression_a_page_that_was_dropped_and_read_again_during_a_write_kept_older_bytes() {
    let (place, mount, mut door) = opened("");
    fs::write(mount.path("file"), [0; 8192]).expect("written");
    let handle = door.open("file", libc::O_RDWR, 0).expect("opened");
    let file = OpenOptions::new().read(true).write(true).open(mount.path("file")).expect("opened");
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (file, is_over) = (&file, &is_over);
        for reader in 0..3_u64 {
            scope.spawn(move || {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    file.read_exact_at(&mut [0; 8], 1000 + reader * 8).expect("read");
                }
            });
        }
        let writer = scope.spawn(move || {
            let mut wrong = 0;
            for round in 0..10_000_u64 {
                let mut found = [0; 64];
                file.write_all_at(&pattern(round, 64), 64).expect("written");
                file.read_exact_at(&mut found, 64).expect("read");
                wrong += u32::from(found[..] != pattern(round, 64)[..]);
            }
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            wrong
        });
        while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
            door.write(handle, 2000, &[7; 8]).expect("written");
        }
        assert_eq!(writer.join().expect("no panic"), 0, "rounds in which other bytes were read than had been written");
    });
    drop(file);
    ended(&place, mount, door);
}

/// RWF_NOAPPEND is not in the kernel's request: its offset is told from an old end by what clients have changed.
#[test]
fn a_write_that_shall_not_append_goes_to_its_offset_where_no_client_reached_behind_it() {
    let (place, mount, mut door) = opened("");
    let appending = OpenOptions::new().create(true).append(true).read(true).open(mount.path("log")).expect("opened");
    let at = |bytes: &[u8], offset| {
        let no_append = rustix::io::ReadWriteFlags::from_bits_retain(libc::RWF_NOAPPEND.cast_unsigned());
        rustix::io::pwritev2(&appending, &[std::io::IoSlice::new(bytes)], offset, no_append)
    };
    (&appending).write_all(b"0123456789").expect("appended");
    match at(b"at", 2) {
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::INVAL) => {
            println!("not RWF_NOAPPEND, which this kernel does not know");
            return ended(&place, mount, door);
        }
        written => assert_eq!(written, Ok(2)),
    }
    assert_eq!(door.contents("log").expect("read"), b"01at456789");
    let handle = door.open("log", libc::O_WRONLY | libc::O_APPEND, 0).expect("opened");
    door.write(handle, 0, b"door").expect("appended");
    assert_eq!(at(b"behind", 20), Ok(6));
    assert_eq!(door.contents("log").expect("read"), b"01at456789door\0\0\0\0\0\0behind");
    assert_eq!(at(b"at", 2), Ok(2), "the kernel might have known no other end");
    assert_eq!(door.contents("log").expect("read"), b"01at456789door\0\0\0\0\0\0behindat");
    drop(appending);
    ended(&place, mount, door);
}

/// The number of a file of which the kernel has known nothing, and which clients had changed, is taken again.
#[test]
fn regression_what_clients_changed_counts_for_a_later_file_of_the_number() {
    let (place, mount, mut door) = opened("");
    let old = door.open("old", libc::O_CREAT | libc::O_RDWR, 0o644).expect("created");
    door.write(old, 0, &[1; 100]).expect("written");
    let number = door.stat("old").expect("stat").node;
    door.close(old).expect("closed");
    door.unlink("old").expect("unlinked");
    let new = (0..1000).find_map(|index| {
        let name = format!("new-{index}");
        let new = OpenOptions::new().create(true).append(true).open(mount.path(&name)).expect("opened");
        (new.metadata().expect("open").ino() == number).then_some((name, new))
    });
    let (name, mut new) = new.expect("the number is taken again");
    new.write_all(b"0123456789").expect("appended");
    let no_append = rustix::io::ReadWriteFlags::from_bits_retain(libc::RWF_NOAPPEND.cast_unsigned());
    match rustix::io::pwritev2(&new, &[std::io::IoSlice::new(b"at")], 2, no_append) {
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::INVAL) => println!("not RWF_NOAPPEND, which this kernel does not know"),
        written => {
            assert_eq!(written, Ok(2));
            assert_eq!(fs::read(mount.path(&name)).expect("read"), b"01at456789");
        }
    }
    drop(new);
    ended(&place, mount, door);
}

#[test]
fn attributes_change_by_both_ways_with_warm_caches() {
    let (place, mount, mut door) = opened("");
    fs::write(mount.path("file"), b"x").expect("written");
    assert_eq!(fs::metadata(mount.path("file")).expect("seen").mode() & 0o7777, 0o644);
    door.call(&Operation::ChangeMode { subject: named("file"), mode: 0o600 }).expect("changed");
    door.call(&Operation::ChangeOwner { subject: named("file"), user: Some(5), group: Some(6) }).expect("changed");
    let accessed = TimeToSet::At { seconds: 11, nanoseconds: 12 };
    door.call(&Operation::SetTimes { subject: named("file"), accessed, modified: TimeToSet::Omit }).expect("changed");
    let seen = fs::metadata(mount.path("file")).expect("seen");
    assert_eq!((seen.mode() & 0o7777, seen.uid(), seen.gid(), seen.atime(), seen.atime_nsec()), (0o600, 5, 6, 11, 12));
    fs::set_permissions(mount.path("file"), fs::Permissions::from_mode(0o640)).expect("changed");
    fs::hard_link(mount.path("file"), mount.path("again")).expect("linked");
    let shown = door.stat("again").expect("seen");
    assert_eq!((shown.mode & 0o7777, shown.links, shown.user, shown.size_bytes), (0o640, 2, 5, 1));
    assert_eq!(shown.node, seen.ino());
    let set =
        |value: Range| Operation::SetAttribute { subject: named("file"), name: b"user.x", value: Range { length: 5, ..value }, flags: 0 };
    door.call_with(b"value", 0, set).expect("set");
    let get = |into: Range| Operation::GetAttribute { subject: named("again"), name: b"user.x", into };
    assert_eq!(door.call_with(&[], 100, get).expect("there").1, b"value");
    assert_eq!(door.call_with(&[], 2, get).map(|_| ()), errno(libc::ERANGE));
    let space = door.space().expect("told");
    assert!(space.free > 0 && space.free <= space.units && space.name_bytes_max == 255);
    ended(&place, mount, door);
}

#[test]
fn a_mapping_sees_the_door_and_is_seen_by_it() {
    let (place, mount, mut door) = opened("");
    fs::write(mount.path("mapped"), vec![b'.'; 8192]).expect("written");
    let file = OpenOptions::new().read(true).write(true).open(mount.path("mapped")).expect("opened");
    let mapping = mapping::Mapped::new(file.as_fd(), 8192);
    mapping.store(100, b"mapped");
    assert_eq!(&door.contents("mapped").expect("read")[96..110], b"....mapped....");
    let handle = door.open("mapped", libc::O_RDWR, 0).expect("opened");
    mapping.store(200, b"again");
    door.write(handle, 300, b"by the door").expect("written");
    assert_eq!(mapping.load(300, 11), b"by the door");
    mapping.store(310, b"R!");
    assert_eq!(door.read(handle, 200, 5).expect("read"), b"again");
    assert_eq!(door.read(handle, 300, 12).expect("read"), b"by the dooR!");
    drop((mapping, file));
    ended(&place, mount, door);
}

/// A mapping does not ask for the size of its file.
#[test]
fn regression_a_mapping_of_another_process_reaches_what_the_door_appends() {
    let (place, mount, mut door) = opened("");
    fs::write(mount.path("grows"), vec![b'.'; 4096]).expect("written");
    let file = OpenOptions::new().read(true).write(true).open(mount.path("grows")).expect("opened");
    let mapping = mapping::Mapped::new(file.as_fd(), 64 << 10);
    assert_eq!(mapping.load(4000, 2), b"..");
    let handle = door.open("grows", libc::O_WRONLY | libc::O_APPEND, 0).expect("opened");
    for round in 1..16_u64 {
        door.write(handle, 0, &pattern(round, 4096)).expect("appended");
        // Nothing but the mapping is asked; SIGBUS would end this test.
        assert!(mapping.load(round as usize * 4096, 4096) == pattern(round, 4096), "round {round}");
    }
    door.call(&Operation::Truncate { subject: Subject::Open(handle), length: 5000 }).expect("cut");
    door.call(&Operation::Truncate { subject: Subject::Open(handle), length: 20_000 }).expect("longer");
    assert!(mapping.load(5000, 15_000).iter().all(|byte| *byte == 0), "what was cut off does not come back");
    drop((mapping, file));
    ended(&place, mount, door);
}

#[test]
fn what_the_kernel_has_to_do_goes_back() {
    let (place, mount, mut door) = opened("");
    std::os::unix::fs::symlink("/etc/passwd", mount.path("out")).expect("linked");
    assert_eq!(door.contents("out"), Err(Failure::Crossed(Why::Absolute)));
    assert_eq!(door.contents("../etc"), Err(Failure::Crossed(Why::AboveRoot)));
    fs::create_dir(mount.path("inner")).expect("made");
    assert_eq!(door.contents("inner/x"), errno(libc::ENOENT));
    let inner = mount.path("inner");
    let inner = inner.to_str().expect("UTF-8");
    let tool = |words: &[&str]| assert!(support::run(std::process::Command::new(words[0]).args(&words[1..])).status.success(), "{words:?}");
    tool(&["mount", "-t", "tmpfs", "tmpfs", inner]);
    let mut seen = Err(Failure::Ended);
    let start = std::time::Instant::now();
    while seen != Err(Failure::Crossed(Why::MountPoint)) && start.elapsed() < support::WITHIN {
        seen = door.contents("inner/x");
    }
    tool(&["umount", inner]);
    assert_eq!(seen, Err(Failure::Crossed(Why::MountPoint)));
    let unknown = Request { handle: 1, ..Request::new(60) };
    assert_eq!(door.call_raw(&unknown), errno(libc::ENOSYS));
    ended(&place, mount, door);
}

/// Drives with firmware refuse more where nobody may wait: what is refused comes back from the pool.
#[test]
fn a_drive_with_firmware_is_served_alike() {
    let place = Place::with_firmware();
    let mount = place.mount("direct");
    let mut door = Door::connect(mount.root()).expect("let in");
    for round in 0..40_u64 {
        let (name, bytes) = (format!("f{round}"), pattern(round, 700 * (1 + round as usize)));
        door.make(&name, &bytes).expect("made");
        let handle = door.open(&name, libc::O_RDWR, 0).expect("opened");
        door.write(handle, 100, &pattern(round + 1, 300)).expect("written");
        door.close(handle).expect("closed");
        let expected = [&bytes[..100], &pattern(round + 1, 300), &bytes[400..]].concat();
        assert!(door.contents(&name).expect("read") == expected && fs::read(mount.path(&name)).expect("read") == expected, "{name}");
        if round % 3 == 0 {
            door.unlink(&name).expect("removed");
        }
    }
    door.rename("f1", "f2").expect("replaced");
    assert_eq!(door.names(".").expect("listed").len(), 25);
    ended(&place, mount, door);
}

#[test]
fn a_client_of_another_version_gets_a_sentence() {
    let (place, mount, door) = opened("");
    let (socket, root) = (socket_of(mount.root()), root_of(mount.root()));
    let told = |hello: &[u8]| {
        let (_socket, answer, descriptors) = say(&socket, hello);
        assert!(descriptors.is_empty());
        match Reception::decode(&answer).expect("a reception") {
            Reception::Refusal(refusal) => refusal,
            Reception::Welcome(welcome) => panic!("{welcome:?}"),
        }
    };
    let hello = Hello::new(1, 4096);
    let refusal = told(&Hello { version: VERSION + 1, ..hello.showing(root.as_fd()) }.encode());
    assert_eq!((refusal.version, refusal.errno), (VERSION, libc::EPROTONOSUPPORT));
    assert!(refusal.sentence.contains("install the same release"), "{}", refusal.sentence);
    assert_eq!(told(b"GET / HTTP/1.1").errno, libc::EPROTO);
    assert_eq!(told(&hello.encode()).errno, libc::EACCES, "without a root");
    let elsewhere = root_of("/proc".as_ref());
    assert_eq!(
        told(&hello.showing(elsewhere.as_fd()).encode()).errno,
        libc::EACCES,
        "the root of another mount, with the same inode number"
    );
    fs::create_dir(mount.path("sub")).expect("made");
    let below = root_of(&mount.path("sub"));
    assert_eq!(told(&hello.showing(below.as_fd()).encode()).errno, libc::EACCES);
    drop((root, below));
    ended(&place, mount, door);
}

#[test]
fn a_hostile_client_ends_with_a_line_in_the_log_and_others_stay() {
    let (place, mount, mut door) = opened("");
    door.make("kept", b"kept").expect("made");
    let child = Child::start("lies", mount.root(), None);
    child.succeeds();
    let log = fs::read_to_string(place.path("log")).expect("a log");
    assert!(log.contains("what no program sends") && log.contains("its connection ends"), "{log}");
    assert_eq!(door.contents("kept").expect("still there"), b"kept");
    ended(&place, mount, door);
}

#[test]
fn what_a_killed_client_had_open_is_given_back() {
    let (place, mount, mut door) = opened("");
    let used = |door: &mut Door| door.space().map(|space| space.files - space.files_free).expect("told");
    let before = used(&mut door);
    for _ in 0..5 {
        let mut child = Child::start("holds", mount.root(), None);
        child.says("held");
        assert!(used(&mut door) > before, "files without a name are held");
        child.kill();
    }
    let door = std::cell::RefCell::new(door);
    eventually("space of removed files", || used(&mut door.borrow_mut()) == before);
    let mut hammer = Child::start("hammers", mount.root(), None);
    hammer.says("began");
    std::thread::sleep(std::time::Duration::from_millis(50));
    hammer.kill();
    ended(&place, mount, door.into_inner());
}

/// The middle and the 99th percentile of the times of a call, in microseconds. Of so many that stops of the machine are among those above.
fn times(door: &mut Door, during: std::time::Duration) -> (u128, u128) {
    const CALLS_MIN: usize = 1000;
    let (start, mut times) = (std::time::Instant::now(), Vec::new());
    while start.elapsed() < during || times.len() < CALLS_MIN {
        let begun = std::time::Instant::now();
        door.stat("kept").expect("there");
        times.push(begun.elapsed().as_nanos());
    }
    times.sort_unstable();
    (times[times.len() / 2] / 1000, times[times.len() * 99 / 100] / 1000)
}

/// Hostile and stopped clients: others go on. Their times are printed; that they do not wait for those clients is what is asserted.
#[test]
fn others_do_not_wait_for_hostile_or_stopped_clients() {
    let (place, mount, mut door) = opened("");
    door.make("kept", b"kept").expect("made");
    let during = std::time::Duration::from_millis(600);
    let (middle, worst) = times(&mut door, during);
    println!("alone: p50 {middle}, p99 {worst} us");
    let mut hostile = Child::start("lies-again-and-again", mount.root(), None);
    hostile.says("began");
    let (middle, worst) = times(&mut door, during);
    println!("beside a client that lies: p50 {middle}, p99 {worst} us");
    assert!(worst < 2_000_000, "{worst} us: longer than the scheduler of a busy machine takes");
    hostile.kill();
    let mut long = Child::start("asks-for-much", mount.root(), None);
    long.says("began");
    let (middle, worst) = times(&mut door, during);
    println!("beside a client whose requests are long: p50 {middle}, p99 {worst} us");
    assert!(worst < 2_000_000, "{worst} us");
    long.kill();
    let mut stopped = Child::start("hammers", mount.root(), None);
    stopped.says("began");
    stopped.stop();
    let (middle, worst) = times(&mut door, during);
    println!("beside a client that is stopped: p50 {middle}, p99 {worst} us");
    assert!(worst < 2_000_000, "{worst} us");
    door.make("kept", b"again").expect("made");
    ended(&place, mount, door); // with the stopped client connected
    stopped.kill();
    let log = fs::read_to_string(place.path("log")).expect("a log");
    assert!(log.contains("what no program sends"), "{log}");
}

/// A socket of a daemon whose mount has ended, at a place and with a device number that another mount has now.
#[test]
fn a_daemon_whose_mount_is_detached_lets_nobody_in() {
    let (place, mount, door) = opened("");
    let (socket, root) = (socket_of(mount.root()), root_of(mount.root()));
    let held = File::create(mount.path("held")).expect("made");
    let refusal_of = |root: &std::os::fd::OwnedFd| {
        let (_socket, answer, _) = say(&socket, &Hello::new(1, 4096).showing(root.as_fd()).encode());
        match Reception::decode(&answer).expect("a reception") {
            Reception::Refusal(refusal) => Some(refusal.errno),
            Reception::Welcome(_) => None,
        }
    };
    assert_eq!(refusal_of(&root), None, "while it stands");
    let umount = support::run(std::process::Command::new("umount").arg("-l").arg(mount.root()));
    assert!(umount.status.success());
    // Served until its last file is closed, but at no place.
    assert_eq!(refusal_of(&root), Some(libc::EOPNOTSUPP));
    drop((held, root, door));
    assert!(mount.daemon_ends_within(support::WITHIN), "nobody has a file of it");
    drop(mount);
    place.check();
}

#[test]
fn there_are_limits() {
    let place = Place::formatted();
    let mount = place.mount("direct,direct_clients=1,direct_spin=0");
    let mut first = Child::start("holds", mount.root(), None);
    first.says("held");
    let refusal = refused(Door::connect(mount.root()));
    assert_eq!(refusal.errno, libc::ENOMEM, "{}", refusal.sentence);
    first.kill();
    eventually("room", || Door::connect(mount.root()).is_ok());
    mount.unmount();
    place.check();
    let mountpoint = place.mountpoint();
    for (options, word) in [
        ("direct=no-such-group", "/etc/group"),
        ("direct_clients=0", "direct_clients"),
        ("direct_spin=x", "direct_spin"),
        ("direct,strict,atomic", "do not go together"),
    ] {
        fails(2, word, &["mount", &place.image(), &mountpoint, "-o", options]);
    }
}

#[test]
fn other_users_have_their_own_rights() {
    let place = Place::formatted();
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).expect("opened");
    let mount = place.mount("direct,allow_other");
    fs::write(mount.path("secret"), b"of root").expect("written");
    fs::set_permissions(mount.path("secret"), fs::Permissions::from_mode(0o600)).expect("closed");
    fs::create_dir(mount.path("all")).expect("made");
    fs::set_permissions(mount.path("all"), fs::Permissions::from_mode(0o777)).expect("opened");
    Child::start("other-user", mount.root(), Some(65_534)).succeeds();
    assert_eq!(fs::metadata(mount.path("all/own")).expect("made").uid(), 65_534);
    Child::start("drops-rights", mount.root(), None).succeeds();
    mount.unmount();
    let mount = place.mount("direct");
    Child::start("is-refused", mount.root(), Some(65_534)).succeeds();
    mount.unmount();
    place.check();
}

#[test]
fn a_client_of_a_daemon_that_is_gone_is_told() {
    let (place, mount, mut door) = opened("");
    door.make("kept", b"kept").expect("made");
    mount.kill();
    assert_eq!(door.contents("kept"), Err(Failure::Ended));
    let mount = place.mount("direct");
    let mut door = Door::connect(mount.root()).expect("let in");
    assert_eq!(door.contents("kept").expect("durable"), b"kept");
    mount.unmount();
    assert_eq!(door.contents("kept"), Err(Failure::Ended));
    place.check();
}

#[test]
fn every_operation_of_the_protocol_is_served() {
    let (place, mount, mut door) = opened("");
    let root = named(".");
    let path = Text::Here(b"a");
    for operation in [
        Operation::Nothing,
        Operation::SyncFileSystem,
        Operation::MakeDirectory { at: Start::Root, path, mode: 0o755, umask: 0 },
        Operation::MakeNode { at: Start::Root, path: Text::Here(b"pipe"), mode: 0o10_644, umask: 0, device: 0 },
        Operation::MakeLink { at: Start::Root, path: Text::Here(b"link"), target: Text::Here(b"a") },
        Operation::Link { from: (Start::Root, Text::Here(b"pipe")), to: (Start::Root, Text::Here(b"pipe2")), flags: 0 },
        Operation::Access { subject: root, mode: 7, effective: true },
        Operation::ListAttributes { subject: root, into: Range::default() },
    ] {
        door.call(&operation).unwrap_or_else(|failure| panic!("{operation:?}: {failure:?}"));
    }
    let link = |into| Operation::ReadLink { at: Start::Root, path: Text::Here(b"link"), into };
    assert_eq!(door.call_with(&[], 100, link).map(|(_, bytes)| bytes), Ok(b"a".to_vec()));
    assert_eq!(door.call(&Operation::RemoveAttribute { subject: root, name: b"user.none" }), errno(libc::ENODATA));
    assert_eq!(fs::read_link(mount.path("link")).expect("a link"), std::path::Path::new("a"));
    door.make("from", &pattern(1, 9000)).expect("made");
    door.make("to", b"").expect("made");
    let (from, to) = (door.open("from", libc::O_RDONLY, 0).expect("opened"), door.open("to", libc::O_RDWR, 0).expect("opened"));
    let copied = door.call(&Operation::CopyRange { from: (from, 0), to: (to, 0), length: 9000, flags: 0 }).expect("copied").value;
    assert_eq!(door.read(to, 0, 9000).expect("read"), pattern(1, copied as usize));
    door.call(&Operation::SetFlags { handle: to, flags: libc::O_APPEND }).expect("set");
    assert_eq!(door.write(to, 0, b"x").expect("appended").further, copied + 1);
    let long = |from: Range| Operation::Unlink { at: Start::Root, path: Text::There(from) };
    assert_eq!(door.call_with(b"a/../././././pipe2", 0, long).map(|_| ()), Ok(()));
    assert!(door.stat("pipe2") == errno(libc::ENOENT) && DATA_BYTES > 0 && Number::all_bits() > 0);
    ended(&place, mount, door);
}
