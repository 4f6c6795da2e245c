//! Several threads: names that change between check and change ([KV3] of `lib.rs`).

mod support;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use rustix::io::Errno;
use support::{ROOT, directory, empty, file, root, user};
use tandemfs_crash::Awake;
use tandemfs_vfs::{Result, Subject, Vfs};

const TIME: Duration = Duration::from_millis(700);

/// What must have happened more often than this, for something to have raced.
const ENOUGH: u32 = 10;

/// Root exchanges `tmp/hers` and `tmp/his` all the time, and counts how often.
fn exchange(vfs: &Vfs, ends: &AtomicBool, count: &AtomicU32) {
    while !ends.load(Relaxed) {
        match vfs.rename(&root(), (ROOT, b"tmp/hers"), (ROOT, b"tmp/his"), libc::RENAME_EXCHANGE) {
            Ok(()) => _ = count.fetch_add(1, Relaxed),
            Err(refused) => assert_eq!(refused.errno(), Some(Errno::NOENT), "{refused:?}"),
        }
    }
}

fn owner(vfs: &Vfs, path: &[u8]) -> Option<u32> {
    vfs.stat(&root(), Subject::unfollowed(ROOT, path)).ok().map(|found| found.uid)
}

/// Bob takes what has either name as long as he may; Alice's file in a sticky directory must stay, under one name or the other.
fn hers_stays(take: fn(&Vfs, &[u8]) -> Result<()>) {
    let vfs = empty();
    let (alice, bob) = (user(1001, &[]), user(1002, &[]));
    directory(&vfs, &root(), b"tmp", 0o1777);
    directory(&vfs, &bob, b"loot", 0o700);
    drop(file(&vfs, &alice, b"tmp/hers", 0o666));
    drop(file(&vfs, &bob, b"tmp/his", 0o666));
    let (ends, exchanged, taken, refused) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let exchanging = scope.spawn(|| exchange(&vfs, &ends, &exchanged));
        let begun = Awake::now();
        while begun.goes_on(TIME, [&exchanged, &taken, &refused].iter().all(|count| count.load(Relaxed) > ENOUGH)) {
            match take(&vfs, b"tmp/his") {
                Ok(()) => {
                    taken.fetch_add(1, Relaxed);
                    let names = [&b"tmp/hers"[..], b"tmp/his"].map(|path| owner(&vfs, path));
                    assert!(names.contains(&Some(1001)) || names == [None, None], "{names:?}");
                    // The name that is free is Bob's again, whichever it is.
                    let free = if names[0].is_none() { &b"tmp/hers"[..] } else { b"tmp/his" };
                    drop(file(&vfs, &bob, free, 0o666));
                }
                Err(error) => {
                    let expected = matches!(error.errno(), Some(Errno::PERM | Errno::NOENT | Errno::BUSY));
                    assert!(expected, "{error:?}");
                    refused.fetch_add(1, Relaxed);
                }
            }
        }
        ends.store(true, Relaxed);
        exchanging.join().expect("ends");
    });
    let owners: Vec<_> = [&b"tmp/hers"[..], b"tmp/his"].iter().filter_map(|path| owner(&vfs, path)).collect();
    assert!(owners.contains(&1001), "hers is gone: {owners:?}");
    let [exchanged, taken, refused] = [exchanged, taken, refused].map(AtomicU32::into_inner);
    println!("{exchanged} exchanges, {taken} taken, {refused} refused");
    assert!(exchanged > ENOUGH && taken > ENOUGH && refused > ENOUGH, "{exchanged} {taken} {refused}: nothing raced");
}

#[test]
fn nobody_removes_a_file_that_came_under_a_checked_name() {
    hers_stays(|vfs, path| vfs.unlink(&user(1002, &[]), ROOT, path));
}

#[test]
fn nobody_moves_a_file_that_came_under_a_checked_name() {
    hers_stays(|vfs, path| vfs.rename(&user(1002, &[]), (ROOT, path), (ROOT, b"loot/it"), 0));
}
