//! Requests that do not complete in the drive: threads that do not need what these requests hold continue (RULES R9), the others wait, and
//! after the release everything is correct. Every wait is bounded, so a file system that hangs fails the test instead of hanging it.

mod support;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::Scope;
use std::time::Duration;

use support::waiting::{Release, start};
use tandemfs_crash::Setting;
use tandemfs_crash::{Access, MemoryDevice, StuckDevice, Tree, check_device, content, fill, heard_within, mount, mount_device};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{Error, FileSystem, NewInode, RenameMode, SetAttributes, WriteOptions};

/// Longer than anything takes that does not wait for the stuck request.
const LIMIT: Duration = Duration::from_secs(20);
/// How long something is watched that must wait.
const A_WHILE: Duration = Duration::from_millis(150);
const BLOCK: usize = 64 << 10;

struct Scene {
    fs: FileSystem,
    device: MemoryDevice,
    stuck: Arc<StuckDevice>,
    setting: Setting,
    a: InodeNumber,
    b: InodeNumber,
}

fn create(fs: &FileSystem, name: &[u8]) -> Result<InodeNumber, Error> {
    let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    fs.create(InodeNumber::ROOT, name, &new).map(|made| made.inode)
}

fn write(fs: &FileSystem, file: InodeNumber, offset: usize, seed: u64, length: usize) -> Result<(), Error> {
    let done = fs.write(file, offset as u64, &fill(seed, length), WriteOptions::default())?;
    assert_eq!(done, length);
    Ok(())
}

fn scene() -> Scene {
    let mut setting = Setting::small(PersistenceDomain::Adr, BLOCK as u32);
    setting.block_zone_bytes = 16 << 20;
    let device = setting.format();
    let stuck = StuckDevice::new(device.clone());
    let fs = mount_device(stuck.clone(), &setting.mount).expect("mounts");
    let (a, b) = (create(&fs, b"a").expect("made"), create(&fs, b"b").expect("made"));
    for file in [a, b] {
        write(&fs, file, 0, 1, 4 * BLOCK).expect("written");
        write(&fs, file, 5 * BLOCK + 100, 2, 500).expect("written");
    }
    Scene { fs, device, stuck, setting, a, b }
}

fn goes_on<T>(what: &str, receiver: &Receiver<T>) -> T {
    heard_within(LIMIT, receiver).unwrap_or_else(|| panic!("{what} waits for the stuck request"))
}

fn waits<T>(what: &str, receiver: &Receiver<T>) {
    assert!(matches!(receiver.recv_timeout(A_WHILE), Err(RecvTimeoutError::Timeout)), "{what} does not wait for the stuck request");
}

/// Names, attributes, reads, and what only looks.
fn others_go_on<'scope>(scope: &'scope Scope<'scope, '_>, s: &'scope Scene, what: &str, number: u64) {
    let name = format!("new-{number}");
    let other = format!("moved-{number}");
    let done = start(scope, move || -> Result<(), Error> {
        let file = create(&s.fs, name.as_bytes())?;
        s.fs.set_attributes(file, &SetAttributes { permissions: Some(0o400), ..SetAttributes::default() })?;
        s.fs.link(file, InodeNumber::ROOT, format!("{name}-link").as_bytes())?;
        s.fs.rename(InodeNumber::ROOT, name.as_bytes(), InodeNumber::ROOT, other.as_bytes(), RenameMode::Replace)?;
        s.fs.unlink(InodeNumber::ROOT, other.as_bytes())
    });
    goes_on(&format!("{what}: a change of names"), &done).expect("done");
    let done = start(scope, || write(&s.fs, s.b, 5 * BLOCK + 50, 3, 200));
    goes_on(&format!("{what}: a small write of another file"), &done).expect("written");
    let done = start(scope, || content(&s.fs, s.b));
    goes_on(&format!("{what}: a read of another file"), &done).expect("read");
    let done = start(scope, || {
        s.fs.read_directory(InodeNumber::ROOT, 0, &mut |_| true)?;
        s.fs.attributes(s.a)?;
        let (_space, _statistics) = (s.fs.space(), s.fs.statistics());
        s.fs.sync()
    });
    goes_on(&format!("{what}: looking"), &done).expect("done");
}

fn all_is_right(s: &Scene, what: &str) {
    let seen = Tree::read(&s.fs).unwrap_or_else(|error| panic!("{what}: {error}"));
    let again = mount(&s.device.fork(), &s.setting.mount).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(Tree::read(&again).expect("reads").difference(&seen), None, "{what}");
    s.fs.unmount().unwrap_or_else(|error| panic!("{what}: {error}"));
    check_device(&s.device, false).unwrap_or_else(|findings| panic!("{what}: {findings}"));
}

#[test]
fn a_stuck_write_holds_up_its_blocks_alone() {
    let s = scene();
    std::thread::scope(|scope| {
        let _release = Release(&s.stuck);
        s.stuck.set_trap(Access::Write, 0);
        let stuck = start(scope, || write(&s.fs, s.a, BLOCK, 7, BLOCK));
        assert!(s.stuck.is_stuck_within(LIMIT));
        others_go_on(scope, &s, "stuck write", 1);
        let done = start(scope, || write(&s.fs, s.b, 2 * BLOCK, 4, BLOCK));
        goes_on("a large write of another file", &done).expect("written");
        let done = start(scope, || write(&s.fs, s.a, 3 * BLOCK, 5, BLOCK));
        goes_on("a large write of other blocks of the file", &done).expect("written");
        let done = start(scope, || write(&s.fs, s.a, 5 * BLOCK + 100, 6, 600));
        goes_on("a small write of another block of the file", &done).expect("written");
        let done = start(scope, || s.fs.read(s.a, 0, &mut vec![0; BLOCK]));
        goes_on("a read of another block of the file", &done).expect("read");
        let done = start(scope, || s.fs.checkpoint());
        goes_on("a checkpoint", &done).expect("done");
        let reader = start(scope, || {
            let mut bytes = vec![0; BLOCK];
            s.fs.read(s.a, BLOCK as u64, &mut bytes).map(|_| bytes)
        });
        waits("a read of the block", &reader);
        let writer = start(scope, || write(&s.fs, s.a, BLOCK + 10, 8, 10));
        waits("a write of the block", &writer);
        s.stuck.release();
        goes_on("the write itself", &stuck).expect("written");
        let mut read = goes_on("the read", &reader).expect("read");
        goes_on("the other write", &writer).expect("written");
        // The read saw the write whole, with or without the one after it.
        let expected = fill(7, BLOCK);
        if read[10..20] == fill(8, 10)[..] {
            read[10..20].copy_from_slice(&expected[10..20]);
        }
        assert!(read == expected);
    });
    all_is_right(&s, "stuck write");
}

#[test]
fn a_stuck_read_holds_up_writers_of_its_blocks_alone() {
    let s = scene();
    std::thread::scope(|scope| {
        let _release = Release(&s.stuck);
        s.stuck.set_trap(Access::Read, 0);
        let stuck = start(scope, || {
            let mut bytes = vec![0; BLOCK];
            s.fs.read(s.a, BLOCK as u64, &mut bytes).map(|_| bytes)
        });
        assert!(s.stuck.is_stuck_within(LIMIT));
        others_go_on(scope, &s, "stuck read", 1);
        let done = start(scope, || s.fs.read(s.a, BLOCK as u64, &mut vec![0; BLOCK]));
        goes_on("a read of the same block", &done).expect("read");
        let done = start(scope, || s.fs.checkpoint());
        goes_on("a checkpoint", &done).expect("done");
        let writer = start(scope, || write(&s.fs, s.a, BLOCK, 9, BLOCK));
        waits("a write of the block", &writer);
        s.stuck.release();
        assert!(goes_on("the read itself", &stuck).expect("read") == fill(1, 4 * BLOCK)[BLOCK..2 * BLOCK], "what was there when it began");
        goes_on("the write", &writer).expect("written");
    });
    all_is_right(&s, "stuck read");
}

#[test]
fn a_stuck_flush_holds_up_those_who_need_it_alone() {
    let s = scene();
    std::thread::scope(|scope| {
        let _release = Release(&s.stuck);
        s.stuck.set_trap(Access::Flush, 0);
        let stuck = start(scope, || write(&s.fs, s.a, BLOCK, 7, BLOCK));
        assert!(s.stuck.is_stuck_within(LIMIT));
        others_go_on(scope, &s, "stuck FLUSH", 1);
        let done = start(scope, || s.fs.read(s.a, 0, &mut vec![0; BLOCK]));
        goes_on("a read of another block of the file", &done).expect("read");
        let done = start(scope, || s.fs.checkpoint());
        goes_on("a checkpoint", &done).expect("done");
        // Their writes completed after this FLUSH began, so it does not serve them (RULES R8).
        let waiting = start(scope, || write(&s.fs, s.b, BLOCK, 8, BLOCK));
        waits("a large write of another file", &waiting);
        s.stuck.release();
        goes_on("the write itself", &stuck).expect("written");
        goes_on("the other write", &waiting).expect("written");
    });
    all_is_right(&s, "stuck FLUSH");
}

#[test]
fn a_stuck_store_of_a_log_holds_up_its_block_alone() {
    let s = scene();
    std::thread::scope(|scope| {
        let _release = Release(&s.stuck);
        // Journal records are multiples of 64 B; the log is the only store of this length or more.
        s.stuck.set_trap(Access::Store, 3001);
        let stuck = start(scope, || write(&s.fs, s.a, 7 * BLOCK, 7, 3001));
        assert!(s.stuck.is_stuck_within(LIMIT));
        others_go_on(scope, &s, "stuck store of a log", 1);
        let done = start(scope, || write(&s.fs, s.a, BLOCK, 5, BLOCK));
        goes_on("a write of other blocks of the file", &done).expect("written");
        let done = start(scope, || s.fs.checkpoint());
        goes_on("a checkpoint", &done).expect("done");
        let reader = start(scope, || s.fs.read(s.a, 7 * BLOCK as u64, &mut [0; 100]));
        waits("a read of the block", &reader);
        s.stuck.release();
        goes_on("the write itself", &stuck).expect("written");
        goes_on("the read", &reader).expect("read");
    });
    all_is_right(&s, "stuck store of a log");
}

/// Blocks that are written back together are held up together; all others, of the same files too, are not.
#[test]
fn a_stuck_write_back_holds_up_its_blocks_alone() {
    for access in [Access::Read, Access::Write, Access::Flush] {
        let s = scene();
        // Blocks with logs: the fifth of both files (a log alone), the first two of `a` (over sectors).
        write(&s.fs, s.a, 50, 3, 300).expect("written");
        write(&s.fs, s.a, BLOCK + 50, 4, 300).expect("written");
        std::thread::scope(|scope| {
            let _release = Release(&s.stuck);
            s.stuck.set_trap(access, 0);
            let stuck = start(scope, || s.fs.write_back_all());
            assert!(s.stuck.is_stuck_within(LIMIT), "{access:?}");
            let done = start(scope, || write(&s.fs, s.a, 2 * BLOCK + 100, 5, 600));
            goes_on("a small write of another block of the file", &done).expect("written");
            let done = start(scope, || s.fs.read(s.a, 3 * BLOCK as u64, &mut vec![0; BLOCK]));
            goes_on("a read of another block of the file", &done).expect("read");
            if access != Access::Flush {
                let done = start(scope, || write(&s.fs, s.b, BLOCK, 6, BLOCK));
                goes_on("a large write of other blocks", &done).expect("written");
            }
            let done = start(scope, || -> Result<(), Error> {
                let file = create(&s.fs, b"new")?;
                s.fs.attributes(s.a)?;
                write(&s.fs, file, 0, 7, 900)?;
                s.fs.checkpoint()
            });
            goes_on("names, attributes, a new file and a checkpoint", &done).expect("done");
            let second = start(scope, || s.fs.write_back_all());
            let writer = start(scope, || write(&s.fs, s.a, BLOCK + 10, 8, 100));
            waits("a write of a block that is written back", &writer);
            s.stuck.release();
            assert!(goes_on("the write-back itself", &stuck).expect("works") >= 4, "{access:?}");
            goes_on("another write-back", &second).expect("works");
            goes_on("the write", &writer).expect("written");
        });
        all_is_right(&s, "stuck write-back");
    }
}

/// A record on its way into a ring holds the inodes of its transaction and that ring; others take other rings (RULES R2). A checkpoint
/// waits for it, since it holds the watermark back (RULES R1).
#[test]
fn a_stuck_store_of_a_record_holds_up_its_inodes_and_checkpoints() {
    let s = scene();
    let permissions = SetAttributes { permissions: Some(0o640), ..SetAttributes::default() };
    std::thread::scope(|scope| {
        let _release = Release(&s.stuck);
        s.stuck.set_trap(Access::Store, 0);
        let stuck = start(scope, || s.fs.set_attributes(s.a, &permissions));
        assert!(s.stuck.is_stuck_within(LIMIT));
        others_go_on_but_this_file(scope, &s);
        let reader = start(scope, || s.fs.attributes(s.a));
        waits("looking at the inode", &reader);
        let checkpoint = start(scope, || s.fs.checkpoint());
        waits("a checkpoint", &checkpoint);
        let done = start(scope, || content(&s.fs, s.b));
        goes_on("a read of another file beside a waiting checkpoint", &done).expect("read");
        s.stuck.release();
        goes_on("the change itself", &stuck).expect("done");
        assert_eq!(goes_on("looking", &reader).expect("there").mode & 0o7777, 0o640);
        goes_on("the checkpoint", &checkpoint).expect("done");
    });
    all_is_right(&s, "stuck store of a record");
}

fn others_go_on_but_this_file<'scope>(scope: &'scope Scope<'scope, '_>, s: &'scope Scene) {
    let done = start(scope, || {
        create(&s.fs, b"new")?;
        s.fs.unlink(InodeNumber::ROOT, b"new")?;
        write(&s.fs, s.b, BLOCK, 3, BLOCK)?;
        write(&s.fs, s.b, 5 * BLOCK, 3, 100)?;
        content(&s.fs, s.b)
    });
    goes_on("stuck store of a record: work on other inodes", &done).expect("done");
    let done = start(scope, || (s.fs.space(), s.fs.statistics()));
    goes_on("stuck store of a record: looking", &done);
}
