//! Names and attributes that the kernel keeps for a while ([TLD1]–[TLD4] of `crates/fuse/src/told.rs`): what a client has changed is seen by the
//! mount when its call has returned, while others ask by the mount all the time.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use tandemfs_protocol::{Operation, Place as Start, Text, TimeToSet};

use crate::client::{Door, named};
use crate::{ended, opened};

const NAMES: [&str; 5] = ["d/a", "d/b", "d/c", "d/sub", "d"];
const CHANGES: u32 = 2_000;

/// What `stat` says of a name: inode, mode, links, size, seconds and nanoseconds of both times.
type Shown = Option<(u64, u32, u64, u64, [(i64, i64); 2])>;

fn by_the_mount(path: &Path) -> Shown {
    match fs::symlink_metadata(path) {
        Ok(of) => Some((of.ino(), of.mode(), of.nlink(), of.size(), [(of.mtime(), of.mtime_nsec()), (of.ctime(), of.ctime_nsec())])),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            None
        }
    }
}

fn by_the_door(door: &mut Door, name: &str) -> Shown {
    let of = door.stat(name).ok()?;
    let time = |time: tandemfs_ring::Time| (time.seconds, i64::from(time.nanoseconds));
    Some((of.node, of.mode, of.links.into(), of.size_bytes, [time(of.modified), time(of.changed)]))
}

/// One change; whether it happens depends on what is there.
fn change(door: &mut Door, number: u32) {
    let (kind, which) = (number % 11, number / 11 % 3);
    let (name, other) = (NAMES[which as usize], NAMES[(which as usize + 1 + number as usize / 33 % 2) % 3]);
    let _refused = match kind {
        0 | 1 => door.make(name, &vec![7; number as usize % 5000 + 1]),
        2 => door.rename(name, other),
        3 => door.unlink(name),
        4 => door.call(&Operation::ChangeMode { subject: named(name), mode: 0o600 + number % 0o100 }).map(drop),
        5 => door.call(&Operation::ChangeOwner { subject: named("d"), user: Some(number), group: None }).map(drop),
        6 => {
            let modified = TimeToSet::At { seconds: number.into(), nanoseconds: 5 };
            door.call(&Operation::SetTimes { subject: named(name), accessed: TimeToSet::Omit, modified }).map(drop)
        }
        7 => door.call(&Operation::MakeDirectory { at: Start::Root, path: Text::Here(b"d/sub"), mode: 0o700, umask: 0 }).map(drop),
        8 => door.call(&Operation::RemoveDirectory { at: Start::Root, path: Text::Here(b"d/sub") }).map(drop),
        9 => door.open(name, libc::O_WRONLY | libc::O_TRUNC, 0).and_then(|handle| door.close(handle)),
        _ => door.open(name, libc::O_WRONLY, 0).and_then(|handle| {
            door.write(handle, (number % 9000).into(), b"here")?;
            door.close(handle)
        }),
    };
}

/// Ends the threads beside, also where a test fails.
struct End<'e>(&'e AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn what_the_kernel_keeps_is_right_when_a_change_by_the_door_has_returned() {
    let (place, mount, mut door) = opened("");
    fs::create_dir(mount.path("d")).expect("made");
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ends.load(Relaxed) {
                    NAMES.map(|name| by_the_mount(&mount.path(name)));
                }
            });
        }
        let _ends = End(&ends);
        for number in 0..CHANGES {
            // By a prime, so that kinds and names come in many orders.
            change(&mut door, number * 7919 % 100_003);
            for name in NAMES {
                let found = by_the_mount(&mount.path(name));
                assert_eq!(found, by_the_door(&mut door, name), "{name} after change {number}");
            }
        }
    });
    ended(&place, mount, door);
}

#[test]
fn what_nobody_changes_is_asked_for_once_a_second() {
    let (place, mount, door) = opened("");
    fs::create_dir(mount.path("d")).expect("made");
    fs::write(mount.path("d/a"), b"x").expect("written");
    let requests = || {
        let stats = mount.stats();
        ["lookup", "getattr"].map(|name| stats["file_system"]["operations"][name].as_u64().expect("counted"))
    };
    let (before, began) = (requests(), Instant::now());
    (0..1000).for_each(|_| drop(by_the_mount(&mount.path("d/a"))));
    let (after, most) = (requests(), 40 + 10 * began.elapsed().as_secs());
    assert!((0..2).all(|kind| (before[kind]..=before[kind] + most).contains(&after[kind])), "{before:?} {after:?}, at most {most}");
    ended(&place, mount, door);
}
