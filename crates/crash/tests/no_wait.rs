//! Operations inside of `no_wait`, while another thread holds what they need and does not get on: they return at once, either done or refused.
//! Who was refused has changed nothing, and gets the same answer later.

mod support;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use support::waiting::{Release, start};
use tandemfs_crash::{Access, MemoryDevice, Setting, StuckDevice, Tree, check_device, fill, heard_within, mount, mount_device};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{
    Error, FileSystem, LayoutOptions, NewInode, RenameMode, SetAttributes, SetExtendedAttribute, WriteOptions, announcing, no_wait,
};

const ROOT: InodeNumber = InodeNumber::ROOT;
/// Longer than anything takes that does not wait.
const LIMIT: Duration = Duration::from_secs(20);
const BLOCK: usize = 64 << 10;
const LOGS: usize = 5 * BLOCK + 100;

struct Scene {
    fs: FileSystem,
    device: MemoryDevice,
    stuck: Arc<StuckDevice>,
    setting: Setting,
    /// Blocks of sectors, and a log.
    a: InodeNumber,
    directory: InodeNumber,
    /// Files that nothing else touches.
    others: Vec<InodeNumber>,
}

fn make(fs: &FileSystem, parent: InodeNumber, name: &[u8], mode: u16) -> Result<InodeNumber, Error> {
    fs.create(parent, name, &NewInode { mode, uid: 0, gid: 0, rdev: 0, target: b"" }).map(|made| made.inode)
}

fn file(fs: &FileSystem, parent: InodeNumber, name: &[u8]) -> Result<InodeNumber, Error> {
    make(fs, parent, name, file_type::REGULAR | 0o644)
}

fn write(fs: &FileSystem, file: InodeNumber, offset: usize, seed: u64, length: usize) -> Result<usize, Error> {
    fs.write(file, offset as u64, &fill(seed, length), WriteOptions::default())
}

fn scene() -> Scene {
    let mut setting = Setting::small(PersistenceDomain::Adr, BLOCK as u32);
    setting.block_zone_bytes = 16 << 20;
    let device = setting.format();
    let stuck = StuckDevice::new(device.clone());
    let fs = mount_device(stuck.clone(), &setting.mount).expect("mounts");
    let directory = make(&fs, ROOT, b"directory", file_type::DIRECTORY | 0o755).expect("made");
    make(&fs, ROOT, b"empty", file_type::DIRECTORY | 0o755).expect("made");
    make(&fs, directory, b"inner", file_type::DIRECTORY | 0o755).expect("made");
    file(&fs, directory, b"inside").expect("made");
    let a = file(&fs, ROOT, b"a").expect("made");
    write(&fs, a, 0, 1, 2 * BLOCK).expect("written");
    write(&fs, a, LOGS, 2, 500).expect("written");
    fs.set_extended_attribute(a, b"user.kept", b"value", SetExtendedAttribute::default()).expect("set");
    let others = (0..6).map(|index| file(&fs, directory, format!("other-{index}").as_bytes()).expect("made")).collect();
    Scene { fs, device, stuck, setting, a, directory, others }
}

type Operation = (&'static str, fn(&Scene) -> Result<String, Error>);

fn said<T: std::fmt::Debug>(result: Result<T, Error>) -> Result<String, Error> {
    match result {
        Err(Error::WouldWait) => Err(Error::WouldWait),
        Err(error) => Ok(format!("{error:?}")),
        Ok(answer) => Ok(format!("{answer:?}")),
    }
}

/// What does not change with the time of day.
fn shown(s: &Scene, inode: InodeNumber) -> Result<(u16, u64, u32), Error> {
    s.fs.attributes(inode).map(|found| (found.mode, found.size, found.nlink))
}

const LOOKS: &[Operation] = &[
    ("getattr", |s| said(shown(s, s.a))),
    ("lookup", |s| said(s.fs.lookup(ROOT, b"a").map(|found| found.inode))),
    ("lookup of nothing", |s| said(s.fs.lookup(ROOT, b"nothing").map(|found| found.inode))),
    ("read of a log", |s| {
        let mut bytes = vec![0; 500];
        said(s.fs.read(s.a, LOGS as u64, &mut bytes).map(|_| bytes))
    }),
    ("readdir", |s| {
        let mut names = Vec::new();
        said(s.fs.read_directory(s.directory, 2, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        }))?;
        Ok(format!("{names:?}"))
    }),
    ("getxattr", |s| said(s.fs.extended_attribute(s.a, b"user.kept"))),
    ("fsync", |s| said(s.fs.sync())),
];

const CHANGES: &[Operation] = &[
    ("small write", |s| said(write(&s.fs, s.a, LOGS + 50, 3, 700))),
    ("append", |s| said(s.fs.append(s.a, &fill(4, 300), WriteOptions::default()).map(|(done, _)| done))),
    ("create", |s| said(file(&s.fs, ROOT, b"new").map(drop))),
    ("mkdir", |s| said(make(&s.fs, ROOT, b"new directory", file_type::DIRECTORY | 0o700).map(drop))),
    ("symlink", |s| {
        let new = NewInode { mode: file_type::SYMLINK | 0o777, uid: 0, gid: 0, rdev: 0, target: &[b'x'; 300] };
        said(s.fs.create(ROOT, b"link", &new).map(drop))
    }),
    ("link", |s| said(s.fs.link(s.a, s.directory, b"further").map(drop))),
    ("unlink", |s| said(s.fs.unlink(ROOT, b"a"))),
    ("rmdir", |s| said(s.fs.remove_directory(ROOT, b"empty"))),
    ("rename", |s| said(s.fs.rename(ROOT, b"a", s.directory, b"moved", RenameMode::Replace))),
    ("rename over", |s| said(s.fs.rename(ROOT, b"a", s.directory, b"inside", RenameMode::Replace))),
    ("setattr", |s| {
        let set = SetAttributes { permissions: Some(0o400), ..SetAttributes::default() };
        said(s.fs.set_attributes(s.a, &set).map(|found| (found.mode, found.size)))
    }),
    ("truncate", |s| {
        let set = SetAttributes { size: Some(LOGS as u64 + 20), ..SetAttributes::default() };
        said(s.fs.set_attributes(s.a, &set).map(|found| (found.mode, found.size)))
    }),
    ("setxattr", |s| said(s.fs.set_extended_attribute(s.a, b"user.new", &[7; 3000], SetExtendedAttribute::default()))),
    ("removexattr", |s| said(s.fs.remove_extended_attribute(s.a, b"user.kept"))),
];

/// A thread that comes to a stop with what it holds: the access that is stuck, its least length, and what the thread does.
type Holder = (&'static str, Access, u64, fn(&Scene));

/// Runs an operation beside holders, and the same on a second file system without them; compares answers, trees and space. Whether it was
/// refused beside them.
fn beside(holders: &[Holder], (what, operation): Operation) -> bool {
    let (s, plain) = (scene(), scene());
    let context = format!("{what} beside {}", holders[0].0);
    let refused = std::thread::scope(|scope| {
        let _release = Release(&s.stuck);
        let held: Vec<_> = holders
            .iter()
            .map(|(_, access, length_min, hold)| {
                s.stuck.set_trap(*access, *length_min);
                let done = start(scope, || hold(&s));
                assert!(s.stuck.is_stuck_within(LIMIT), "{context}: nothing is stuck");
                done
            })
            .collect();
        let counted = s.fs.statistics().operations;
        let tried = start(scope, || no_wait(|| operation(&s)));
        let answer = heard_within(LIMIT, &tried).unwrap_or_else(|| panic!("{context}: it waits"));
        if matches!(answer, Err(Error::WouldWait)) {
            assert_eq!(s.fs.statistics().operations, counted, "{context}: a refused operation is counted");
        }
        s.stuck.release();
        held.iter().for_each(|done| heard_within(LIMIT, done).unwrap_or_else(|| panic!("{context}: the holder goes on")));
        let (refused, answer) = match answer {
            Err(Error::WouldWait) => (true, operation(&s).expect("waits")),
            other => (false, other.unwrap_or_else(|error| panic!("{context}: {error}"))),
        };
        holders.iter().for_each(|(_, _, _, hold)| hold(&plain));
        assert_eq!(answer, operation(&plain).expect("waits"), "{context}");
        // A removal behind: it removes what was left to it ([NW5]).
        for s in [&s, &plain] {
            s.fs.unlink(s.directory, b"other-5").expect("removed");
        }
        refused
    });
    let tree = Tree::read(&s.fs).expect("reads");
    assert_eq!(tree.difference(&Tree::read(&plain.fs).expect("reads")), None, "{context}");
    assert_eq!(s.fs.statistics().operations, plain.fs.statistics().operations, "{context}");
    s.fs.checkpoint().expect("done");
    let rebuilt = mount(&s.device.fork(), &s.setting.mount).expect("mounts");
    assert_eq!((s.fs.space(), Tree::read(&rebuilt).expect("reads").difference(&tree)), (rebuilt.space(), None), "{context}");
    s.fs.unmount().expect("unmounts");
    check_device(&s.device, false).unwrap_or_else(|findings| panic!("{context}: {findings}"));
    refused
}

/// Each operation beside the holders: those that are refused are the ones named.
fn all_beside(holders: &[Holder], refused: &[&str]) {
    for operation in LOOKS.iter().chain(CHANGES) {
        assert_eq!(beside(holders, *operation), refused.contains(&operation.0), "{} beside {}: refused", operation.0, holders[0].0);
    }
}

fn touch(s: &Scene, inode: InodeNumber) {
    s.fs.set_attributes(inode, &SetAttributes { uid: Some(7), ..SetAttributes::default() }).expect("set");
}

/// The record of a change of `a`: its inode is locked.
#[test]
fn the_lock_of_an_inode() {
    all_beside(
        &[("a commit of the inode", Access::Store, 0, |s| touch(s, s.a))],
        &[
            "getattr",
            "lookup",
            "read of a log",
            "getxattr",
            "small write",
            "append",
            "link",
            "unlink",
            "rename",
            "rename over",
            "setattr",
            "truncate",
            "setxattr",
            "removexattr",
        ],
    );
}

/// The record of a change of the root directory.
#[test]
fn the_lock_of_a_directory() {
    all_beside(
        &[("a commit of the directory", Access::Store, 0, |s| touch(s, ROOT))],
        &["lookup", "lookup of nothing", "create", "mkdir", "symlink", "unlink", "rmdir", "rename", "rename over"],
    );
}

/// The move of a directory: two directories, the moved one, and the rename lock.
#[test]
fn the_rename_lock() {
    const MOVE: &[Holder] = &[("a move of a directory", Access::Store, 0, |s| {
        s.fs.rename(s.directory, b"inner", ROOT, b"outer", RenameMode::Replace).expect("moved");
    })];
    let further: Operation = ("another move", |s| said(s.fs.rename(ROOT, b"empty", s.directory, b"empty", RenameMode::Replace)));
    assert!(beside(MOVE, further));
    assert!(beside(MOVE, LOOKS[4]) && !beside(MOVE, LOOKS[0]));
}

/// A read of sectors of `a` that does not complete: its range is locked, shared.
#[test]
fn a_range() {
    let holder: &[Holder] = &[("a read of sectors", Access::Read, 0, |s| {
        assert_eq!(s.fs.read(s.a, 0, &mut vec![0; BLOCK]).expect("read"), BLOCK);
    })];
    let overwrite: Operation = ("overwrite of the block", |s| said(write(&s.fs, s.a, 100, 9, 64)));
    let cut: Operation = ("truncate in the block", |s| {
        said(s.fs.set_attributes(s.a, &SetAttributes { size: Some(10), ..SetAttributes::default() }).map(|found| found.size))
    });
    assert!(beside(holder, overwrite) && beside(holder, cut));
    for operation in LOOKS.iter().chain(CHANGES).filter(|(what, _)| *what != "append") {
        assert!(!beside(holder, *operation), "{}: refused", operation.0);
    }
}

/// As many records as there are rings: each change is refused, whoever it changes.
#[test]
fn all_rings() {
    const RECORDS: &[Holder] = &[
        ("commits in all rings", Access::Store, 0, |s| touch(s, s.others[0])),
        ("a second", Access::Store, 0, |s| touch(s, s.others[1])),
        ("a third", Access::Store, 0, |s| touch(s, s.others[2])),
        ("a fourth", Access::Store, 0, |s| touch(s, s.others[3])),
    ];
    all_beside(RECORDS, &CHANGES.iter().map(|(what, _)| *what).collect::<Vec<_>>());
}

/// A region whose mark rises is locked while its lines are zeroed. Who takes lines of it is refused; who frees some goes on ([NW5]).
#[test]
fn a_region() {
    let holder: &[Holder] = &[("a mark that rises", Access::Store, 4096, |s| {
        let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
        let nameless = |index: u32| {
            if index.is_multiple_of(10) {
                s.fs.checkpoint().expect("done"); // so that none stores whole pages
            }
            s.fs.create_nameless(s.directory, &new, 0).expect("made").inode
        };
        (0..3000).map(nameless).collect::<Vec<_>>().into_iter().for_each(|inode| s.fs.forget(inode, 1));
    })];
    all_beside(holder, &["readdir", "create", "mkdir", "symlink", "link", "rename", "rename over"]);
}

/// What needs the block path, a directory that is not in memory, or several transactions is refused though nobody holds anything.
#[test]
fn what_always_waits() {
    let s = scene();
    for index in 0..300 {
        file(&s.fs, ROOT, format!("file of a larger directory {index}").as_bytes()).expect("made");
    }
    let again = mount(&s.device.fork(), &s.setting.mount).expect("mounts");
    assert!(matches!(no_wait(|| again.lookup(ROOT, b"a")), Err(Error::WouldWait)), "the index is not in memory");
    again.lookup(ROOT, b"a").expect("loads it");
    assert_eq!(no_wait(|| again.lookup(ROOT, b"a")).expect("does not wait").inode, s.a);

    let before = (s.fs.statistics().operations, s.fs.space(), Tree::read(&s.fs).expect("reads"));
    s.fs.drop_file_pages(s.a).expect("dropped"); // what was just read is in host memory
    let counted = s.fs.statistics().operations;
    let refusals: [Operation; 4] = [
        ("sectors are read", |s| said(s.fs.read(s.a, 0, &mut [0; 100]))),
        ("sectors are written", |s| said(write(&s.fs, s.a, 0, 3, 4 * BLOCK))),
        ("two transactions", |s| said(write(&s.fs, s.a, 0, 3, (1 << 20) + 1))),
        ("a checkpoint", |s| said(s.fs.checkpoint())),
    ];
    for (what, refusal) in refusals {
        assert!(matches!(no_wait(|| refusal(&s)), Err(Error::WouldWait)), "{what}");
    }
    assert_eq!((s.fs.statistics().operations, s.fs.space()), (counted, before.1));
    assert_eq!(Tree::read(&s.fs).expect("reads").difference(&before.2), None);
}

/// A lease is not even recalled: the caller that may wait does that.
#[test]
fn a_lease() {
    let s = scene();
    let layout = s.fs.layout(s.a, 0, BLOCK as u64, LayoutOptions::default(), || {}).expect("granted");
    assert!(matches!(no_wait(|| write(&s.fs, s.a, 10, 5, 64)), Err(Error::WouldWait)));
    assert!(!layout.is_recalled());
    drop(layout);
    assert_eq!(no_wait(|| write(&s.fs, s.a, 10, 5, 64)).expect("does not wait"), 64);
}

/// What a thread hears of an operation that is announced.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Waits,
    Done,
}

thread_local! {
    static LISTENER: RefCell<Option<Sender<Heard>>> = const { RefCell::new(None) };
}

fn tell() {
    LISTENER.with_borrow(|listener| listener.as_ref().expect("set before").send(Heard::Waits).expect("heard"));
}

/// Runs an operation that announces its wait, beside holders that get on only behind what is heard first. Returns that.
fn heard_beside(holders: &[Holder], (what, operation): Operation) -> Heard {
    let s = scene();
    let context = format!("{what} beside {}", holders.first().map_or("nobody", |holder| holder.0));
    let first = std::thread::scope(|scope| {
        let _release = Release(&s.stuck);
        for (_, access, length_min, hold) in holders {
            s.stuck.set_trap(*access, *length_min);
            scope.spawn(|| hold(&s));
            assert!(s.stuck.is_stuck_within(LIMIT), "{context}: nothing is stuck");
        }
        let (sender, heard) = channel();
        let s = &s;
        scope.spawn(move || {
            LISTENER.set(Some(sender.clone()));
            announcing(tell, || operation(s)).expect("it is not refused");
            sender.send(Heard::Done).expect("heard");
        });
        let first = heard_within(LIMIT, &heard).unwrap_or_else(|| panic!("{context}: it waits without a word"));
        s.stuck.release();
        if first == Heard::Waits {
            let then = heard_within(LIMIT, &heard).unwrap_or_else(|| panic!("{context}: it does not get on"));
            assert_eq!(then, Heard::Done, "{context}: a wait is announced once");
        }
        first
    });
    s.fs.unmount().expect("unmounts");
    check_device(&s.device, false).unwrap_or_else(|findings| panic!("{context}: {findings}"));
    first
}

const INODE: &[Holder] = &[("a commit of the inode", Access::Store, 0, |s| touch(s, s.a))];

/// [NW6]: who waits has said so before, whatever it waits for; who does not wait says nothing.
#[test]
fn a_wait_is_announced() {
    for operation in LOOKS.iter().chain(CHANGES) {
        assert_eq!(heard_beside(&[], *operation), Heard::Done, "{} beside nobody", operation.0);
    }
    const DIRECTORY: &[Holder] = &[("a commit of the directory", Access::Store, 0, |s| touch(s, ROOT))];
    const RANGE: &[Holder] = &[("a read of sectors", Access::Read, 0, |s| {
        assert_eq!(s.fs.read(s.a, 0, &mut vec![0; BLOCK]).expect("read"), BLOCK);
    })];
    const RINGS: &[Holder] = &[
        ("commits in all rings", Access::Store, 0, |s| touch(s, s.others[0])),
        ("a second", Access::Store, 0, |s| touch(s, s.others[1])),
        ("a third", Access::Store, 0, |s| touch(s, s.others[2])),
        ("a fourth", Access::Store, 0, |s| touch(s, s.others[3])),
    ];
    let waits: [(&[Holder], Operation); 6] = [
        (INODE, ("getattr", LOOKS[0].1)),
        (INODE, ("small write", CHANGES[0].1)),
        (DIRECTORY, ("create", CHANGES[2].1)),
        (RANGE, ("overwrite of the block", |s| said(write(&s.fs, s.a, 100, 9, 64)))),
        (RINGS, ("create", CHANGES[2].1)),
        (&[], ("sectors are read", |s| said(s.fs.read(s.a, 0, &mut [0; 100])))),
    ];
    for (holders, (what, operation)) in waits {
        assert_eq!(heard_beside(holders, (what, operation)), Heard::Waits, "{what}");
    }
    assert_eq!(heard_beside(INODE, ("another file", |s| said(shown(s, s.others[0])))), Heard::Done);
}

/// Of a full memory zone nothing is said without looking for space, which waits.
#[test]
fn no_space() {
    let s = scene();
    let mut made = 0;
    while file(&s.fs, s.directory, format!("filler-{made}").as_bytes()).is_ok() {
        made += 1;
    }
    assert!(made > 1000);
    assert!(matches!(no_wait(|| file(&s.fs, s.directory, b"one more")), Err(Error::WouldWait)));
    assert!(matches!(file(&s.fs, s.directory, b"one more"), Err(Error::NoSpace { .. })));
    no_wait(|| s.fs.unlink(s.directory, b"filler-0")).expect("does not wait");
}

/// [NW5]: the last holder of an unlinked file goes inside of `no_wait`; the file goes with the next removal.
#[test]
fn the_last_holder_leaves_the_removal_to_others() {
    let s = scene();
    let attributes = s.fs.attributes(s.a).expect("there");
    s.fs.remember(s.a, attributes.generation, 1).expect("held");
    s.fs.unlink(ROOT, b"a").expect("removed");
    no_wait(|| {
        s.fs.forget(s.a, 1);
        Ok::<_, Error>(())
    })
    .expect("does not wait");
    assert!(s.fs.attributes(s.a).is_ok(), "nobody has removed it yet");
    s.fs.unlink(s.directory, b"inside").expect("removed");
    assert!(matches!(s.fs.attributes(s.a), Err(Error::Stale(_))));
    s.fs.unmount().expect("unmounts");
    check_device(&s.device, false).unwrap_or_else(|findings| panic!("{findings}"));
}

/// Many creations that are refused between others that are not: as many generations as transactions.
#[test]
fn a_refused_creation_uses_no_generation_up() {
    let s = scene();
    let stays = s.others[4];
    let generations = std::thread::scope(|scope| {
        let _release = Release(&s.stuck);
        for index in 0..4 {
            s.stuck.set_trap(Access::Store, 0);
            scope.spawn({
                let s = &s;
                move || touch(s, s.others[index])
            });
            assert!(s.stuck.is_stuck_within(LIMIT));
        }
        for _ in 0..1000 {
            assert!(matches!(no_wait(|| file(&s.fs, ROOT, b"new")), Err(Error::WouldWait)));
        }
        s.stuck.release();
        let first = s.fs.attributes(stays).expect("there").generation;
        (first, file(&s.fs, ROOT, b"new").and_then(|made| s.fs.attributes(made)).expect("made").generation)
    });
    assert!(generations.1 - generations.0 < 10, "{generations:?}");
}
