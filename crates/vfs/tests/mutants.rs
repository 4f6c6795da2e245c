//! A deliberate bug for each rule of this crate, and a scene that finds it; without a bug each scene finds nothing.

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::io::Errno;
use support::{ROOT, directory, empty, file, link, root, user, without_blocks};
use tandemfs_format::InodeNumber;
use tandemfs_vfs::mutant::{self, Mutant, Point};
use tandemfs_vfs::{OpenFile, Process, Refused, Result, Subject, Vfs, Why, no_wait};

/// Finds something where a bug is.
type Scene = fn() -> std::result::Result<(), String>;

fn run(bug: Mutant, scene: Scene) -> std::result::Result<(), String> {
    mutant::select(bug);
    let result = catch_unwind(AssertUnwindSafe(scene));
    mutant::select(Mutant::None);
    mutant::interfere(None);
    result.unwrap_or_else(|panic| Err(format!("panic: {}", panic.downcast_ref::<String>().map_or("?", String::as_str))))
}

#[track_caller]
fn is_caught(bug: Mutant, scene: Scene) {
    assert_eq!(run(Mutant::None, scene), Ok(()), "without a bug");
    match run(bug, scene) {
        Err(what) => println!("{bug:?}: {what}"),
        Ok(()) => panic!("{bug:?} escaped"),
    }
}

fn holds(is_so: bool, otherwise: &str) -> std::result::Result<(), String> {
    if is_so { Ok(()) } else { Err(otherwise.into()) }
}

fn is_refused<T>(result: Result<T>, expected: Errno, otherwise: &str) -> std::result::Result<(), String> {
    holds(result.err().and_then(|refused| refused.errno()) == Some(expected), otherwise)
}

fn is_crossed<T>(result: Result<T>, why: Why, otherwise: &str) -> std::result::Result<(), String> {
    holds(matches!(result, Err(Refused::Crossed(crossed)) if crossed.why == why), otherwise)
}

fn exists(vfs: &Vfs, path: &[u8]) -> bool {
    vfs.stat(&root(), Subject::unfollowed(ROOT, path)).is_ok()
}

fn write(vfs: &Vfs, opened: &OpenFile, bytes: &[u8]) {
    vfs.write(&root(), opened, bytes).expect("written");
}

/// The same volume, for what happens at a point.
fn at_point(point: Point, vfs: &Vfs, mut what: impl FnMut(&Vfs) + 'static) {
    let (vfs, mut is_done) = (vfs.clone(), false);
    mutant::interfere(Some(Box::new(move |reached| {
        if reached == point && !is_done {
            is_done = true;
            what(&vfs);
        }
    })));
}

#[test]
fn the_caller_s_rights_count() {
    fn scene() -> std::result::Result<(), String> {
        let vfs = empty();
        drop(file(&vfs, &root(), b"secret", 0o600));
        is_refused(vfs.open(&user(7, &[]), ROOT, b"secret", libc::O_RDONLY, 0), Errno::ACCESS, "a user opened the secret of root")
    }
    is_caught(Mutant::RightsOfTheDaemon, scene);
}

#[test]
fn an_open_file_holds_its_inode() {
    fn scene() -> std::result::Result<(), String> {
        let vfs = empty();
        let opened = file(&vfs, &root(), b"f", 0o644);
        write(&vfs, &opened, b"mine");
        vfs.unlink(&root(), ROOT, b"f").expect("removed");
        let other = file(&vfs, &root(), b"other", 0o644);
        write(&vfs, &other, b"else");
        let mut bytes = [0; 4];
        let done = vfs.read_at(&opened, 0, &mut bytes).map_err(|refused| format!("{refused:?}"))?;
        holds(done == 4 && bytes == *b"mine", "the file of somebody else was read")
    }
    is_caught(Mutant::OpenNotHeld, scene);
}

#[test]
fn a_walk_gives_back_what_it_held() {
    fn scene() -> std::result::Result<(), String> {
        let vfs = empty();
        let used = || vfs.statfs().files - vfs.statfs().files_free;
        let before = used();
        drop(file(&vfs, &root(), b"f", 0o644));
        assert!(exists(&vfs, b"f"));
        vfs.unlink(&root(), ROOT, b"f").expect("removed");
        holds(used() == before, "a removed file is still held")
    }
    is_caught(Mutant::HoldKept, scene);
}

/// In a sticky directory, `swapped` and `hers` change places after `swapped` was checked.
fn shared(point: Point) -> (Vfs, Process) {
    let vfs = empty();
    let (alice, bob) = (user(1001, &[]), user(1002, &[]));
    directory(&vfs, &root(), b"tmp", 0o1777);
    drop(file(&vfs, &bob, b"tmp/swapped", 0o666));
    drop(file(&vfs, &alice, b"tmp/hers", 0o666));
    at_point(point, &vfs, |vfs| {
        vfs.rename(&root(), (ROOT, b"tmp/hers"), (ROOT, b"tmp/swapped"), libc::RENAME_EXCHANGE).expect("exchanged");
    });
    (vfs, bob)
}

fn is_owned_by(vfs: &Vfs, path: &[u8], uid: u32) -> bool {
    vfs.stat(&root(), Subject::unfollowed(ROOT, path)).is_ok_and(|found| found.uid == uid)
}

#[test]
fn what_is_removed_is_what_was_checked() {
    fn scene() -> std::result::Result<(), String> {
        let (vfs, bob) = shared(Point::Checked);
        let removed = vfs.unlink(&bob, ROOT, b"tmp/swapped");
        holds(is_owned_by(&vfs, b"tmp/swapped", 1001), "a file of somebody else was removed from a sticky directory")?;
        is_refused(removed, Errno::PERM, "the second look allowed it")
    }
    is_caught(Mutant::RemovedUnseen, scene);
}

#[test]
fn what_is_moved_and_replaced_is_what_was_checked() {
    fn moved() -> std::result::Result<(), String> {
        let (vfs, bob) = shared(Point::Checked);
        let moved = vfs.rename(&bob, (ROOT, b"tmp/swapped"), (ROOT, b"taken"), 0);
        holds(is_owned_by(&vfs, b"tmp/swapped", 1001), "a file of somebody else was moved out of a sticky directory")?;
        is_refused(moved, Errno::PERM, "the second look allowed it")
    }
    fn replaced() -> std::result::Result<(), String> {
        let (vfs, bob) = shared(Point::Checked);
        drop(file(&vfs, &bob, b"tmp/new", 0o666));
        let moved = vfs.rename(&bob, (ROOT, b"tmp/new"), (ROOT, b"tmp/swapped"), 0);
        holds(is_owned_by(&vfs, b"tmp/swapped", 1001), "a file of somebody else was replaced in a sticky directory")?;
        is_refused(moved, Errno::PERM, "the second look allowed it")
    }
    is_caught(Mutant::RenamedUnseen, moved);
    is_caught(Mutant::RenamedUnseen, replaced);
}

#[test]
fn what_only_the_kernel_knows_is_left_to_it() {
    fn absolute() -> std::result::Result<(), String> {
        let vfs = empty();
        directory(&vfs, &root(), b"etc", 0o755);
        drop(file(&vfs, &root(), b"etc/passwd", 0o644));
        link(&vfs, b"/etc/passwd", b"l");
        let opened = vfs.open(&root(), ROOT, b"l", libc::O_RDONLY, 0);
        is_crossed(opened, Why::Absolute, "an absolute link led into the file system")
    }
    fn mounted_on() -> std::result::Result<(), String> {
        let vfs = empty();
        directory(&vfs, &root(), b"d", 0o755);
        let covered = vfs.stat(&root(), Subject::followed(ROOT, b"d")).expect("there").inode.get();
        let process = Process { mount_points: [InodeNumber::new(covered)].into(), ..root() };
        is_crossed(vfs.make_directory(&process, ROOT, b"d/new", 0o755), Why::MountPoint, "a name was made below a mount point")?;
        holds(!exists(&vfs, b"d/new"), "something has changed")
    }
    fn special() -> std::result::Result<(), String> {
        let vfs = empty();
        vfs.make_node(&root(), ROOT, b"pipe", 0o010_600, 0).expect("made");
        is_crossed(vfs.open(&root(), ROOT, b"pipe", libc::O_RDONLY, 0), Why::SpecialFile, "a pipe was opened as a file")
    }
    fn mounted_below() -> std::result::Result<(), String> {
        let vfs = empty();
        directory(&vfs, &root(), b"d", 0o755);
        directory(&vfs, &root(), b"d/e", 0o755);
        let covered = vfs.stat(&root(), Subject::followed(ROOT, b"d/e")).expect("there").inode.get();
        let process = Process { mount_points: [InodeNumber::new(covered)].into(), ..root() };
        is_crossed(vfs.rename(&process, (ROOT, b"d"), (ROOT, b"moved"), 0), Why::MountPoint, "a directory was moved with a mount point")?;
        holds(exists(&vfs, b"d") && !exists(&vfs, b"moved"), "something has changed")
    }
    is_caught(Mutant::MountsMoved, mounted_below);
    is_caught(Mutant::AbsoluteStaysHere, absolute);
    is_caught(Mutant::MountPointPassed, mounted_on);
    is_caught(Mutant::SpecialOpened, special);
}

/// A program of user 1001 with capabilities and set-user-id, open for writing by root.
fn program(vfs: &Vfs) -> OpenFile {
    const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let opened = file(vfs, &user(1001, &[]), b"program", 0o644);
    vfs.change_mode(&root(), Subject::followed(ROOT, b"program"), 0o4777).expect("changed");
    vfs.set_extended_attribute(&root(), Subject::followed(ROOT, b"program"), b"security.capability", &CAPABILITY, 0).expect("set");
    opened
}

fn has_capability(vfs: &Vfs) -> bool {
    vfs.extended_attribute(&root(), Subject::followed(ROOT, b"program"), b"security.capability").is_ok()
}

#[test]
fn privileges_go_before_the_data_changes() {
    fn scene() -> std::result::Result<(), String> {
        let vfs = empty();
        let opened = program(&vfs);
        let seen = std::rc::Rc::new(std::cell::Cell::new(None));
        let at_write = std::rc::Rc::clone(&seen);
        at_point(Point::Written, &vfs, move |vfs| at_write.set(Some(has_capability(vfs))));
        write(&vfs, &opened, b"other code");
        holds(seen.get() == Some(false), "other code had the capabilities of the program")
    }
    is_caught(Mutant::DataBeforePrivileges, scene);
}

#[test]
fn every_change_takes_privileges() {
    fn scene() -> std::result::Result<(), String> {
        let vfs = empty();
        let opened = program(&vfs);
        write(&vfs, &opened, &[7; 10_000]);
        vfs.change_mode(&root(), Subject::followed(ROOT, b"program"), 0o4777).expect("changed");
        let punch = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u32;
        vfs.allocate(&user(1002, &[]), &opened, punch, 0, 4096).expect("punched");
        let mode = support::mode(&vfs, b"program");
        holds(mode == 0o777, "a hole was punched into a set-user-id program")
    }
    is_caught(Mutant::PrivilegesKept, scene);
}

/// `f` of bob in a sticky directory is removed after it was checked, and alice makes one of her own, which gets its number.
#[test]
fn a_name_is_removed_only_for_the_file_that_was_checked() {
    fn scene() -> std::result::Result<(), String> {
        let vfs = empty();
        let (alice, bob) = (user(1001, &[]), user(1002, &[]));
        directory(&vfs, &root(), b"tmp", 0o1777);
        drop(file(&vfs, &bob, b"tmp/f", 0o666));
        let number = |vfs: &Vfs| vfs.stat(&root(), Subject::unfollowed(ROOT, b"tmp/f")).expect("there").inode;
        let first = number(&vfs);
        at_point(Point::Checked, &vfs, move |vfs| {
            vfs.file_system().unlink(vfs.stat(&root(), Subject::unfollowed(ROOT, b"tmp")).expect("there").inode, b"f").expect("removed");
            vfs.file_system().checkpoint().expect("done"); // gives its number back
            drop(file(vfs, &user(1001, &[]), b"tmp/f", 0o666));
            assert_eq!(number(vfs), first, "the same number");
        });
        let result = vfs.unlink(&bob, ROOT, b"tmp/f");
        holds(is_owned_by(&vfs, b"tmp/f", alice.credentials.uid), "the file of somebody else was removed")?;
        is_refused(result, Errno::PERM, "refused for another reason")
    }
    is_caught(Mutant::GenerationIgnored, scene);
}

fn would_wait<T>((result, _): (Result<T>, tandemfs_vfs::Owed), otherwise: &str) -> std::result::Result<(), String> {
    holds(matches!(result, Err(Refused::FileSystem(tandemfs_fs::Error::WouldWait))), otherwise)
}

#[test]
fn what_takes_long_is_refused_where_nobody_waits() {
    fn scene() -> std::result::Result<(), String> {
        let vfs = empty();
        let opened = file(&vfs, &root(), b"f", 0o644);
        let long = vec![7; tandemfs_vfs::QUICK_BYTES as usize + 1];
        let (short, mut into) = (&long[1..], vec![0; 1 << 20]);
        would_wait(no_wait(|| vfs.write_at(&root(), &opened, 0, &long, 0)), "a long write was done")?;
        assert_eq!(opened.attributes().expect("there").size, 0, "and changed nothing");
        assert_eq!(no_wait(|| vfs.write_at(&root(), &opened, 0, short, 0)).0.ok(), Some(short.len()), "a short one is done");
        assert_eq!(no_wait(|| vfs.read_at(&opened, 0, &mut into)).0.ok(), Some(short.len()), "a long buffer, and a short file");
        vfs.write_at(&root(), &opened, 0, &long, 0).expect("written");
        would_wait(no_wait(|| vfs.read_at(&opened, 0, &mut into)), "a long read was done")?;
        let stat = |steps: usize| {
            let path = [b"./".repeat(steps - 1), b"f".to_vec()].concat();
            no_wait(|| vfs.stat(&root(), Subject::unfollowed(ROOT, &path)))
        };
        would_wait(stat(tandemfs_vfs::QUICK_STEPS as usize + 1), "a long path was walked")?;
        assert!(stat(tandemfs_vfs::QUICK_STEPS as usize).0.is_ok());
        let list = || {
            let root_directory = vfs.open(&root(), ROOT, b".", libc::O_RDONLY, 0).expect("opened");
            no_wait(|| vfs.read_directory_behind(&root_directory, 0, &mut |_| true))
        };
        assert!(list().0.is_ok());
        (0..tandemfs_vfs::QUICK_ENTRIES).for_each(|number| drop(file(&vfs, &root(), format!("n{number}").as_bytes(), 0o644)));
        would_wait(list(), "a long listing was made")?;
        vfs.write_at(&root(), &opened, tandemfs_vfs::QUICK_FILE_BYTES as i64, b"x", 0).expect("written");
        would_wait(no_wait(|| vfs.truncate(&root(), Subject::Open(&opened), 0)), "a long file was cut")?;
        would_wait(no_wait(|| vfs.unlink(&root(), ROOT, b"f")), "a long file was removed")?;
        would_wait(no_wait(|| vfs.rename(&root(), (ROOT, b"n1"), (ROOT, b"f"), 0)), "a long file was replaced")?;
        Ok(())
    }
    is_caught(Mutant::LongInside, scene);
}

/// Pages that come in during every change; notes whether its end waits inside of `no_wait`.
#[derive(Default)]
struct Busy(std::sync::atomic::AtomicU32);

impl tandemfs_vfs::Caches for Busy {
    fn settle(&self, _: InodeNumber) -> tandemfs_fs::Result<()> {
        Ok(())
    }

    fn change(self: std::sync::Arc<Self>, _: InodeNumber, _: std::ops::Range<u64>) -> tandemfs_fs::Result<Box<dyn tandemfs_vfs::Change>> {
        Ok(Box::new(Changed(self)))
    }

    fn has_pages(&self, _: InodeNumber) -> bool {
        true
    }

    fn is_watched(&self, _: &[InodeNumber]) -> tandemfs_fs::Result<bool> {
        Ok(false)
    }

    fn name_gone(&self, _: InodeNumber, _: &[u8]) {}
}

struct Changed(std::sync::Arc<Busy>);

impl tandemfs_vfs::Change for Changed {
    fn ends_at_once(&mut self) -> bool {
        false
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        let is_inside = u32::from(tandemfs_fs::leaves_to_others());
        self.0.0.fetch_add(1 + (is_inside << 8), std::sync::atomic::Ordering::SeqCst);
    }
}

#[test]
fn the_end_of_a_change_is_owed_where_nobody_waits() {
    fn scene() -> std::result::Result<(), String> {
        let busy = std::sync::Arc::new(Busy::default());
        let vfs = empty().beside(std::sync::Arc::clone(&busy) as std::sync::Arc<dyn tandemfs_vfs::Caches>);
        let opened = file(&vfs, &root(), b"f", 0o644);
        let ended = || busy.0.load(std::sync::atomic::Ordering::SeqCst);
        let (done, owed) = no_wait(|| vfs.write_at(&root(), &opened, 0, b"bytes", 0));
        assert_eq!(done.ok(), Some(5));
        holds(ended() == 0 && !owed.is_nothing(), "the poller waited for pages")?;
        drop(owed);
        holds(ended() == 1, "a change did not end")?;
        vfs.write_at(&root(), &opened, 0, b"bytes", 0).expect("written");
        holds(ended() == 2, "a change that may wait did not end")
    }
    is_caught(Mutant::ChangeEndedInside, scene);
}

/// Privileges go before the data, by a change of their own: both or none where nobody waits.
#[test]
fn two_changes_are_refused_before_the_first() {
    let vfs = empty();
    let opened = file(&vfs, &root(), b"f", 0o755);
    let (process, capability) = (user(7, &[]), [&[0, 0, 0, 2][..], &[0; 16]].concat()); // of version 2
    vfs.set_extended_attribute(&root(), Subject::Open(&opened), b"security.capability", &capability, 0).expect("set");
    let writes = || vfs.write_at(&process, &opened, 0, b"x", 0);
    would_wait(no_wait(writes), "two changes").expect("refused");
    assert_eq!(vfs.extended_attribute(&root(), Subject::Open(&opened), b"security.capability").expect("kept").len(), 20);
    assert_eq!(writes().ok(), Some(1));
    assert_eq!(no_wait(writes).0.ok(), Some(1), "one change");
}

/// One inode is watched.
#[derive(Default)]
struct Watched(std::sync::atomic::AtomicU64);

impl tandemfs_vfs::Caches for Watched {
    fn settle(&self, _: InodeNumber) -> tandemfs_fs::Result<()> {
        Ok(())
    }

    fn change(self: std::sync::Arc<Self>, _: InodeNumber, _: std::ops::Range<u64>) -> tandemfs_fs::Result<Box<dyn tandemfs_vfs::Change>> {
        Ok(Box::new(Nothing))
    }

    fn has_pages(&self, _: InodeNumber) -> bool {
        false
    }

    fn is_watched(&self, inodes: &[InodeNumber]) -> tandemfs_fs::Result<bool> {
        let watched = self.0.load(std::sync::atomic::Ordering::SeqCst);
        Ok(inodes.iter().any(|inode| inode.get() == watched))
    }

    fn name_gone(&self, _: InodeNumber, _: &[u8]) {}
}

struct Nothing;

impl tandemfs_vfs::Change for Nothing {
    fn ends_at_once(&mut self) -> bool {
        true
    }
}

/// [KV8]: what watchers of a file or of its directory are told of is handed back unchanged, and nothing else.
#[test]
fn what_is_watched_is_handed_back() {
    fn scene() -> std::result::Result<(), String> {
        let watched = std::sync::Arc::new(Watched::default());
        let vfs = empty().beside(std::sync::Arc::clone(&watched) as std::sync::Arc<dyn tandemfs_vfs::Caches>);
        let process = Process { leaves_watched: true, umask: 0, ..root() };
        directory(&vfs, &root(), b"d", 0o755);
        directory(&vfs, &root(), b"e", 0o755);
        let opened = file(&vfs, &process, b"d/f", 0o644);
        let other = file(&vfs, &process, b"e/g", 0o644);
        let parent = vfs.stat(&root(), Subject::followed(ROOT, b"d")).expect("there").inode;
        let set_times = tandemfs_vfs::SetTimes::NOW;
        let path = |path: &'static [u8]| Subject::followed(ROOT, path);
        let of_file = |inode: InodeNumber| {
            watched.0.store(inode.get(), std::sync::atomic::Ordering::SeqCst);
            let calls: Vec<(&str, Result<()>)> = vec![
                ("write", vfs.write_at(&process, &opened, 0, b"bytes", 0).map(drop)),
                ("read", vfs.leaves_watched_file(&process, &opened)),
                ("ftruncate", vfs.truncate(&process, Subject::Open(&opened), 1)),
                ("truncate", vfs.truncate(&process, path(b"d/f"), 1)),
                ("fallocate", vfs.allocate(&process, &opened, 0, 0, 1)),
                ("open", vfs.open(&process, ROOT, b"d/f", libc::O_RDWR, 0).map(drop)),
                ("open to truncate", vfs.open(&process, ROOT, b"d/f", libc::O_RDWR | libc::O_TRUNC, 0).map(drop)),
                ("fchmod", vfs.change_mode(&process, Subject::Open(&opened), 0o600)),
                ("chmod", vfs.change_mode(&process, path(b"d/f"), 0o600)),
                ("chown", vfs.change_owner(&process, path(b"d/f"), Some(7), None)),
                ("utimens", vfs.set_times(&process, path(b"d/f"), set_times)),
                ("setxattr", vfs.set_extended_attribute(&process, path(b"d/f"), b"user.a", b"1", 0)),
                ("unlink", vfs.unlink(&process, ROOT, b"d/f")),
                ("rename", vfs.rename(&process, (ROOT, b"d/f"), (ROOT, b"e/h"), 0)),
                ("replace", vfs.rename(&process, (ROOT, b"e/g"), (ROOT, b"d/f"), 0)),
            ];
            calls
        };
        let of_directory = || {
            vec![
                ("creat", vfs.open(&process, ROOT, b"d/new", libc::O_CREAT | libc::O_WRONLY, 0o644).map(drop)),
                ("mkdir", vfs.make_directory(&process, ROOT, b"d/new", 0o755).map(drop)),
                ("mknod", vfs.make_node(&process, ROOT, b"d/new", 0o644, 0).map(drop)),
                ("symlink", vfs.make_link(&process, b"target", ROOT, b"d/new").map(drop)),
                ("link", vfs.link(&process, (ROOT, b"e/g"), (ROOT, b"d/new"), 0)),
            ]
        };
        let is_left = |result: &Result<()>| matches!(result, Err(Refused::Crossed(crossed)) if crossed.why == Why::Watched);
        let calls = of_file(parent).into_iter().chain(of_directory());
        for (call, result) in calls.collect::<Vec<_>>() {
            holds(is_left(&result), &format!("{call} of a watched directory's file: {result:?}"))?;
        }
        for (call, result) in of_file(opened.inode()) {
            holds(is_left(&result), &format!("{call} of a watched file: {result:?}"))?;
        }
        holds(is_left(&vfs.link(&process, (ROOT, b"d/f"), (ROOT, b"e/new"), 0)), "a watched file got a name")?;
        let found = vfs.stat(&root(), path(b"d/f")).expect("there");
        holds((found.size, found.mode & 0o7777, found.uid, found.nlink) == (0, 0o644, 0, 1), "something has changed")?;
        // Its end is handed back once.
        holds(is_left(&vfs.leaves_watched_end(&process, &opened)), "an end was not handed back")?;
        holds(vfs.leaves_watched_end(&process, &opened).is_ok(), "an end was handed back twice")?;
        // Who does not ask for it, and what is not watched.
        vfs.write_at(&root(), &opened, 0, b"bytes", 0).expect("written");
        vfs.write_at(&process, &other, 0, b"bytes", 0).expect("written");
        holds(vfs.leaves_watched_end(&process, &other).is_ok(), "the end of what nobody watches was handed back")
    }
    is_caught(Mutant::WatchersUntold, scene);
}

/// How many leases for stores there were at each settling.
#[derive(Default)]
struct Settled {
    fs: std::sync::OnceLock<std::sync::Weak<tandemfs_fs::FileSystem>>,
    leases: std::sync::Mutex<Vec<usize>>,
}

impl tandemfs_vfs::Caches for Settled {
    fn settle(&self, _: InodeNumber) -> tandemfs_fs::Result<()> {
        let fs = self.fs.get().and_then(std::sync::Weak::upgrade);
        self.leases.lock().expect("locked").extend(fs.map(|fs| fs.stores_lent().0));
        Ok(())
    }

    fn change(self: std::sync::Arc<Self>, _: InodeNumber, _: std::ops::Range<u64>) -> tandemfs_fs::Result<Box<dyn tandemfs_vfs::Change>> {
        Ok(Box::new(Nothing))
    }

    fn has_pages(&self, _: InodeNumber) -> bool {
        false
    }

    fn is_watched(&self, _: &[InodeNumber]) -> tandemfs_fs::Result<bool> {
        Ok(false)
    }

    fn name_gone(&self, _: InodeNumber, _: &[u8]) {}
}

/// [KV6]: pages are dropped before memory is lent for stores, and again behind that.
#[test]
fn pages_are_dropped_around_a_lease() {
    fn scene() -> std::result::Result<(), String> {
        let (settled, (_storing, access)) = (std::sync::Arc::new(Settled::default()), tandemfs_crash::Storing::new());
        let vfs = without_blocks().beside(std::sync::Arc::clone(&settled) as std::sync::Arc<dyn tandemfs_vfs::Caches>);
        let opened = file(&vfs, &root(), b"f", 0o644);
        write(&vfs, &opened, &[1; 10_000]);
        settled.fs.set(std::sync::Arc::downgrade(vfs.file_system())).map_err(|_| "set twice")?;
        let lease = vfs.lend_stores(&root(), &opened, 0, &std::sync::Arc::default(), &access).expect("it can be asked for");
        holds(lease.is_some(), "nothing is lent")?;
        let leases = settled.leases.lock().expect("locked").clone();
        holds(leases == [0, 1], &format!("settled beside so many leases: {leases:?}"))
    }
    is_caught(Mutant::LentBesidePages, scene);
}

/// Somebody who learns of sizes by changes alone.
struct GoesBySizes;

impl tandemfs_vfs::Caches for GoesBySizes {
    fn settle(&self, _: InodeNumber) -> tandemfs_fs::Result<()> {
        Ok(())
    }

    fn change(self: std::sync::Arc<Self>, _: InodeNumber, _: std::ops::Range<u64>) -> tandemfs_fs::Result<Box<dyn tandemfs_vfs::Change>> {
        Ok(Box::new(Nothing))
    }

    fn goes_by_sizes(&self, _: InodeNumber) -> bool {
        true
    }

    fn has_pages(&self, _: InodeNumber) -> bool {
        false
    }

    fn is_watched(&self, _: &[InodeNumber]) -> tandemfs_fs::Result<bool> {
        Ok(false)
    }

    fn name_gone(&self, _: InodeNumber, _: &[u8]) {}
}

/// [KV6]: who stores behind the end of a file tells nobody.
#[test]
fn no_room_is_lent_beside_pages() {
    fn scene() -> std::result::Result<(), String> {
        let (_storing, access) = tandemfs_crash::Storing::new();
        let vfs = without_blocks().beside(std::sync::Arc::new(GoesBySizes));
        let opened = file(&vfs, &root(), b"f", 0o644);
        write(&vfs, &opened, &[1; 10_000]);
        let lease = vfs.lend_stores_to_append(&root(), &opened, &std::sync::Arc::default(), &access).expect("it can be asked for");
        holds(lease.is_none(), "room is lent")
    }
    is_caught(Mutant::RoomLentBesideMappings, scene);
}

#[test]
fn kv1_mapped_by_readers() {
    fn scene() -> std::result::Result<(), String> {
        let vfs = empty();
        drop(file(&vfs, &root(), b"f", 0o644));
        let opened = vfs.open(&root(), ROOT, b"f", libc::O_RDONLY, 0).expect("opened");
        is_refused(vfs.map(&root(), &opened, 0, 4096, true), Errno::ACCESS, "it is mapped for stores")
    }
    is_caught(Mutant::MappedByReaders, scene);
}

/// [KV10]
#[test]
fn kv10_holes_filled_by_readers() {
    fn scene() -> std::result::Result<(), String> {
        let vfs = without_blocks();
        let opened = file(&vfs, &root(), b"f", 0o644);
        write(&vfs, &opened, &[1; 10_000]);
        vfs.truncate(&root(), Subject::Open(&opened), 1 << 20).expect("sized");
        let reader = vfs.open(&root(), ROOT, b"f", libc::O_RDONLY, 0).expect("opened");
        drop(vfs.map(&root(), &reader, 0, 8192, false).expect("there is no hole"));
        let before = vfs.stat(&root(), Subject::Open(&reader)).expect("there");
        is_crossed(vfs.map(&root(), &reader, 0, 1 << 20, false), Why::Cached, "a hole got space for who may read")?;
        let after = vfs.stat(&root(), Subject::Open(&reader)).expect("there");
        holds((after.space_512, after.mtime) == (before.space_512, before.mtime), "the file has changed")?;
        is_refused(vfs.map(&root(), &reader, 0, 2 << 20, false), Errno::INVAL, "more than the file is mapped")?;
        holds(vfs.map(&root(), &opened, 0, 1 << 20, false).is_ok(), "who may write gets it")?;
        holds(vfs.map(&root(), &reader, 0, 1 << 20, false).is_ok(), "and then there is none")
    }
    is_caught(Mutant::HolesFilledByReaders, scene);
}

/// A kernel by which somebody opens a file as soon as it is mapped for stores, and has seen it before it could know that.
#[derive(Default)]
struct OpenedMeanwhile(Settled);

impl tandemfs_vfs::Caches for OpenedMeanwhile {
    fn settle(&self, file: InodeNumber) -> tandemfs_fs::Result<()> {
        self.0.settle(file)
    }

    fn change(self: std::sync::Arc<Self>, _: InodeNumber, _: std::ops::Range<u64>) -> tandemfs_fs::Result<Box<dyn tandemfs_vfs::Change>> {
        Ok(Box::new(Nothing))
    }

    fn has_pages(&self, _: InodeNumber) -> bool {
        false
    }

    fn is_open(&self, file: InodeNumber) -> bool {
        self.0.fs.get().and_then(std::sync::Weak::upgrade).is_some_and(|fs| fs.is_mapped_for_stores(file))
    }

    fn is_watched(&self, _: &[InodeNumber]) -> tandemfs_fs::Result<bool> {
        Ok(false)
    }

    fn name_gone(&self, _: InodeNumber, _: &[u8]) {}
}

/// [KV9]: it is asked whether a file is open when it is known that it is mapped.
#[test]
fn kv9_mapped_though_open() {
    fn scene() -> std::result::Result<(), String> {
        let opens = std::sync::Arc::new(OpenedMeanwhile::default());
        let vfs = without_blocks().beside(std::sync::Arc::clone(&opens) as std::sync::Arc<dyn tandemfs_vfs::Caches>);
        let opened = file(&vfs, &root(), b"f", 0o644);
        write(&vfs, &opened, &[1; 10_000]);
        opens.0.fs.set(std::sync::Arc::downgrade(vfs.file_system())).map_err(|_| "set twice")?;
        holds(vfs.map(&root(), &opened, 0, 4096, false).is_ok(), "for loads")?;
        holds(
            matches!(vfs.map(&root(), &opened, 0, 4096, true), Err(tandemfs_vfs::Refused::Crossed(_))),
            "it is mapped for stores, and open",
        )?;
        holds(!vfs.file_system().is_mapped_for_stores(opened.inode()), "it still is mapped")
    }
    is_caught(Mutant::MappedThoughOpen, scene);
}

/// Somebody who keeps pages, while somebody else appends.
struct Appended {
    fs: std::sync::Arc<tandemfs_fs::FileSystem>,
    /// Where changes were said to be, and where they went then.
    said: std::sync::Mutex<Vec<(std::ops::Range<u64>, bool)>>,
}

struct Change(std::sync::Arc<Appended>);

impl tandemfs_vfs::Change for Change {
    fn moves_to(&mut self, bytes: std::ops::Range<u64>) -> bool {
        let mut said = self.0.said.lock().expect("no panic");
        let is_first = said.iter().all(|(_, has_moved)| !has_moved);
        said.push((bytes, true));
        !is_first
    }

    fn ends_at_once(&mut self) -> bool {
        true
    }
}

impl tandemfs_vfs::Caches for Appended {
    fn settle(&self, _: InodeNumber) -> tandemfs_fs::Result<()> {
        Ok(())
    }

    fn change(
        self: std::sync::Arc<Self>,
        file: InodeNumber,
        bytes: std::ops::Range<u64>,
    ) -> tandemfs_fs::Result<Box<dyn tandemfs_vfs::Change>> {
        let mut said = self.said.lock().expect("no panic");
        if said.is_empty() {
            self.fs.append(file, b"her", tandemfs_fs::WriteOptions::default())?;
        }
        said.push((bytes, false));
        drop(said);
        Ok(Box::new(Change(self)))
    }

    fn has_pages(&self, _: InodeNumber) -> bool {
        true
    }

    fn is_watched(&self, _: &[InodeNumber]) -> tandemfs_fs::Result<bool> {
        Ok(false)
    }

    fn name_gone(&self, _: InodeNumber, _: &[u8]) {}
}

#[test]
fn what_is_appended_counts_as_changed_where_it_goes() {
    fn scene() -> std::result::Result<(), String> {
        let vfs = empty();
        write(&vfs, &file(&vfs, &root(), b"log", 0o600), b"0123456789");
        let caches = std::sync::Arc::new(Appended { fs: vfs.file_system().clone(), said: std::sync::Mutex::default() });
        let vfs = vfs.beside(caches.clone());
        let log = vfs.open(&root(), ROOT, b"log", libc::O_WRONLY | libc::O_APPEND, 0).expect("opened");
        write(&vfs, &log, b"hello");
        let said = caches.said.lock().expect("no panic").clone();
        let expected = [(10..15, false), (13..18, true), (13..18, false), (13..18, true)];
        holds(said == expected, &format!("an append at 13 was said to change {said:?}"))?;
        holds(vfs.file_system().size(log.inode()).expect("known") == 18, "it was appended twice")
    }
    is_caught(Mutant::AppendGuessed, scene);
}
