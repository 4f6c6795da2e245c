//! The server of the direct door in this process, in front of a file system in memory: what waits holds nobody up, limits, who is let in. A
//! deliberate bug for each rule, and a scene that finds it; without a bug each scene finds nothing.
//!
//! The server believes that its mount is `/proc`, whose root has the number that a root has. Clients are of this process, so a server has one
//! at a time. The bug is that of the process: the tests run one after the other.

mod support;

use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tandemfs_client::{ConnectError, Errno, Error, Mount, OpenOptions, Options, Tree, Unless, Why};
use tandemfs_crash::{Access, MemoryDevice, StuckDevice, comes_within, heard_within};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_direct::mutant::{self, Mutant};
use tandemfs_direct::{Entrants, Limits, Opener, Server, Wanted};
use tandemfs_format::InodeNumber;
use tandemfs_fs::{FileSystem, FormatOptions, MountOptions, leaves_to_others, make_file_system};
use tandemfs_vfs::{At, Caches, Capabilities, Change, Credentials, Process, QUICK_BYTES, Settings, Subject, Vfs};

/// Longer than anything takes that does not wait.
const LIMIT: Duration = Duration::from_secs(60);

/// Whether a scene is played with a bug.
static HAS_BUG: AtomicBool = AtomicBool::new(false);

/// How long a scene waits for what a bug prevents.
fn patience() -> Duration {
    if HAS_BUG.load(SeqCst) { Duration::from_secs(3) } else { LIMIT }
}

type Found = Result<(), String>;

fn run(bug: Mutant, scene: fn() -> Found) -> Found {
    mutant::select(bug);
    HAS_BUG.store(bug != Mutant::None, SeqCst);
    let result = catch_unwind(AssertUnwindSafe(scene));
    mutant::select(Mutant::None);
    result.unwrap_or_else(|panic| Err(format!("panic: {}", panic.downcast_ref::<String>().map_or("?", String::as_str))))
}

#[track_caller]
fn is_caught(bug: Mutant, scene: fn() -> Found) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(run(Mutant::None, scene), Ok(()), "without a bug");
    if bug != Mutant::None {
        match run(bug, scene) {
            Err(what) => println!("{bug:?}: {what}"),
            Ok(()) => panic!("{bug:?} escaped"),
        }
    }
}

fn holds(is_so: bool, otherwise: &str) -> Found {
    if is_so { Ok(()) } else { Err(otherwise.into()) }
}

struct Scene {
    // The server ends before its device is released, and releasing ends what is stuck.
    stuck: Arc<StuckDevice>,
    server: Server,
    vfs: Vfs,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.stuck.release();
    }
}

fn limits() -> Limits {
    Limits { threads: 4, ..Limits::default() }
}

fn scene_beside(limits: Limits, caches: Option<Arc<dyn Caches>>, stands: bool) -> Scene {
    let device = MemoryDevice::new(32 << 20, 16 << 20, PersistenceDomain::Gpf);
    make_file_system(&Drive::new(Arc::new(device.clone())), &FormatOptions::default()).expect("formats");
    let stuck = StuckDevice::new(device);
    let fs = FileSystem::mount(Drive::new(stuck.clone()), &MountOptions::default()).expect("mounts");
    let vfs = Vfs::new(Arc::new(fs), Settings::default());
    let vfs = match caches {
        Some(caches) => vfs.beside(caches),
        None => vfs,
    };
    let server =
        Server::start(vfs.clone(), support::mount_identity(), Box::new(move || stands), Entrants::Everybody, limits).expect("starts");
    Scene { stuck, server, vfs }
}

/// With somebody who opens `/dev/null` in the place of every file, and notes for what.
fn scene_with_opener(wanted: &Arc<Mutex<Vec<Wanted>>>) -> Scene {
    let device = MemoryDevice::new(32 << 20, 16 << 20, PersistenceDomain::Gpf);
    make_file_system(&Drive::new(Arc::new(device.clone())), &FormatOptions::default()).expect("formats");
    let stuck = StuckDevice::new(device);
    let fs = FileSystem::mount(Drive::new(stuck.clone()), &MountOptions::default()).expect("mounts");
    let vfs = Vfs::new(Arc::new(fs), Settings::default());
    let noted = Arc::clone(wanted);
    let opener: Opener = Box::new(move |wanted, client| {
        noted.lock().expect("no panic").push(*wanted);
        let access = rustix::fs::OFlags::from_bits_retain((wanted.flags & libc::O_ACCMODE).cast_unsigned());
        support::send_descriptor(
            client,
            &wanted.handle.get().to_le_bytes(),
            &rustix::fs::open("/dev/null", access, rustix::fs::Mode::empty())?,
        )
    });
    let (identity, stands) = (support::mount_identity(), Box::new(|| true));
    let server =
        Server::start_with(vfs.clone(), identity, stands, Entrants::Everybody, limits(), (Some(opener), Arc::default())).expect("starts");
    Scene { stuck, server, vfs }
}

fn scene(limits: Limits) -> Scene {
    scene_beside(limits, None, true)
}

impl Scene {
    fn connect_with(&self, root: &str, options: &Options) -> Result<Mount, ConnectError> {
        support::connect(&self.server, root, options)
    }

    fn generation(&self, path: &str) -> u32 {
        let process = Process::of(Credentials::new(0, 0, &[], Capabilities::ALL));
        self.vfs.stat(&process, Subject::followed(At::Root, path.as_bytes())).expect("there").generation
    }

    fn connect(&self) -> Mount {
        self.connect_with("/proc", &Options::default()).expect("let in")
    }
}

fn refusal(result: Result<Mount, ConnectError>) -> Result<i32, String> {
    match result {
        Ok(_) => Err("let in".into()),
        Err(ConnectError::Refused { errno, .. }) => Ok(errno),
        Err(other) => panic!("{other}"),
    }
}

fn used(mount: &Mount) -> u64 {
    let space = mount.space().expect("told");
    space.files - space.files_free
}

#[test]
fn what_waits_for_the_drive_holds_nobody_up() {
    fn found() -> Found {
        let scene = scene(limits());
        let mount = scene.connect();
        let file = OpenOptions::new().read(true).write(true).create(true).open(&mount, "blocks").expect("made");
        file.write_all_at(&vec![7; 1 << 20], 0).expect("written");
        drop(mount.create("other").expect("made"));
        for _ in 0..20 {
            mount.ping().expect("answered"); // it is alone ([SRV5] of `serving.rs`)
        }
        scene.stuck.set_trap(Access::Read, 1);
        let (waiting, other) = (mount.clone(), mount.clone());
        let reader = std::thread::spawn(move || {
            let _open = waiting;
            let mut bytes = [0; 4096];
            file.read_exact_at(&mut bytes, 8192).map(|()| bytes)
        });
        assert!(scene.stuck.is_stuck_within(LIMIT), "nothing is stuck");
        let (sender, receiver) = channel();
        let looks = std::thread::spawn(move || {
            for round in 0..100 {
                other.attributes("other").expect("there");
                drop(other.create(format!("made-{round}")).expect("made"));
                other.unlink(format!("made-{round}")).expect("removed");
            }
            sender.send(()).expect("somebody listens");
        });
        let answered = heard_within(patience(), &receiver).is_some();
        scene.stuck.release();
        looks.join().expect("ended");
        assert_eq!(reader.join().expect("ended"), Ok([7; 4096]), "and is answered in the end");
        holds(answered, "another request waited for the drive as well")
    }
    is_caught(Mutant::PollerWaits, found);
    is_caught(Mutant::PollerNotHandedOn, found);
}

#[test]
fn large_transfers_arrive() {
    fn found() -> Found {
        let scene = scene(limits());
        let mount = scene.connect();
        let file = OpenOptions::new().read(true).write(true).create(true).open(&mount, "large").expect("made");
        let bytes: Vec<u8> = (0..3 << 20).map(|at| (at / 5) as u8).collect();
        let mut model = bytes.clone();
        file.write_all_at(&bytes, 0).expect("written");
        for (offset, length) in [(1000, 200_000), (65_536, 131_072), (5000, (1 << 20) + 7), (3 << 19, 128 << 10), (9, 100)] {
            model[offset..offset + length].copy_from_slice(&bytes[7..length + 7]);
            file.write_all_at(&bytes[7..length + 7], offset as u64).expect("written");
            let mut part = vec![0; length + 5000];
            let at = offset.saturating_sub(2500);
            file.read_exact_at(&mut part, at as u64).expect("read");
            holds(part == model[at..at + part.len()], "other bytes around what was written")?;
        }
        let mut whole = vec![0; model.len()];
        file.read_exact_at(&mut whole, 0).expect("read");
        holds(whole == model, "other bytes")
    }
    is_caught(Mutant::None, found);
}

#[test]
fn a_removed_file_is_gone_when_its_closer_goes_on() {
    fn found() -> Found {
        let scene = scene(limits());
        let mount = scene.connect();
        drop(mount.create("first").expect("made"));
        let before = used(&mount);
        for round in 0..20 {
            let name = format!("removed-{round}");
            let file = OpenOptions::new().write(true).create(true).open(&mount, &name).expect("made");
            file.write_all_at(&[1; 5000], 0).expect("written");
            mount.unlink(&name).expect("removed");
            file.close().expect("closed");
            drop(mount.create("new").expect("made"));
            mount.rename("new", "first").expect("replaced");
            if used(&mount) != before {
                return Err("a removed file still takes its place".into());
            }
        }
        Ok(())
    }
    is_caught(Mutant::FilesLeft, found);
}

/// Pages that always come in during a change.
#[derive(Default)]
struct Busy {
    is_dropped: AtomicBool,
    has_waited_inside: AtomicBool,
}

struct Changed(Arc<Busy>);

impl Change for Changed {
    fn ends_at_once(&mut self) -> bool {
        false
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        if leaves_to_others() {
            self.0.has_waited_inside.store(true, SeqCst);
        }
        self.0.is_dropped.store(true, SeqCst);
    }
}

impl Caches for Busy {
    fn settle(&self, _: InodeNumber) -> tandemfs_fs::Result<()> {
        Ok(())
    }

    fn change(self: Arc<Self>, _: InodeNumber, _: Range<u64>) -> tandemfs_fs::Result<Box<dyn Change>> {
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

/// What a client leaves to the mount has changed nothing.
#[test]
fn transfers_are_handed_back_that_a_client_leaves_to_the_mount() {
    fn found() -> Found {
        let scene = scene_beside(limits(), Some(Arc::new(Busy::default()) as Arc<dyn Caches>), true);
        let mount = scene.connect();
        let file = OpenOptions::new().read(true).write(true).create(true).open(&mount, "f").expect("made");
        file.write_all_at(&[1; 100], 0).expect("written");
        let (cached, grows) = (Unless { cached: true, grows: false }, Unless { cached: false, grows: true });
        let crossed = |result: tandemfs_client::Result<usize>| match result {
            Err(Error::Crossed(crossed)) => Some(crossed.why),
            _ => None,
        };
        let mut bytes = [0; 200];
        assert_eq!(crossed(file.write_at_unless(&[2; 10], 5, cached)), Some(Why::Cached));
        assert_eq!(crossed(file.read_at_unless(&mut bytes, 0, cached)), Some(Why::Cached));
        assert_eq!(crossed(file.write_at_unless(&[2; 10], 91, grows)), Some(Why::Grows));
        assert_eq!(file.read_at_unless(&mut bytes, 0, Unless::default()), Ok(100));
        holds(bytes[..100] == [1; 100], "a transfer that was handed back has changed the file")?;
        assert_eq!(file.write_at_unless(&[2; 10], 90, grows), Ok(10));
        holds(file.attributes().expect("open").size_bytes == 100, "the file has grown")
    }
    is_caught(Mutant::None, found);
}

#[test]
fn pages_are_dropped_before_the_answer_and_not_by_the_poller() {
    fn found() -> Found {
        let busy = Arc::new(Busy::default());
        let scene = scene_beside(limits(), Some(Arc::clone(&busy) as Arc<dyn Caches>), true);
        let mount = scene.connect();
        let file = OpenOptions::new().write(true).create(true).open(&mount, "f").expect("made");
        for _ in 0..20 {
            busy.is_dropped.store(false, SeqCst);
            file.write_all_at(&[1; 100], 0).expect("written");
            if !busy.is_dropped.load(SeqCst) {
                return Err("answered while the kernel has old pages".into());
            }
        }
        assert!(!busy.has_waited_inside.load(SeqCst), "the poller dropped them");
        Ok(())
    }
    is_caught(Mutant::AnsweredBeforeOwed, found);
}

#[test]
fn open_files_are_bounded() {
    fn found() -> Found {
        let scene = scene(Limits { open_files: 4, ..limits() });
        let mount = scene.connect();
        let files: Vec<_> = (0..4).map(|number| mount.create(format!("f{number}")).expect("made")).collect();
        let beyond = mount.create("beyond").map(drop);
        assert!(matches!(mount.attributes("beyond"), Err(Error::Errno(Errno::NOENT))) || beyond.is_ok(), "made, though not opened");
        drop(files);
        holds(beyond == Err(Error::Errno(Errno::MFILE)), "more files are open than allowed")
    }
    is_caught(Mutant::FilesUnbounded, found);
}

#[test]
fn the_memory_of_all_clients_is_bounded() {
    fn found() -> Found {
        let scene = scene(Limits { all_data_bytes: 1 << 20, ..limits() });
        let refused = refusal(scene.connect_with("/proc", &Options { data_bytes: 4 << 20, ..Options::default() }))?;
        assert_eq!(refused, Errno::NOMEM.raw_os_error());
        drop(scene.connect_with("/proc", &Options { data_bytes: 1 << 20, ..Options::default() }).expect("there is room for this"));
        Ok(())
    }
    is_caught(Mutant::MemoryUnbounded, found);
}

#[test]
fn files_end_with_their_client() {
    fn found() -> Found {
        let scene = scene(limits());
        let mount = scene.connect();
        let before = used(&mount);
        for number in 0..10 {
            std::mem::forget(mount.create(format!("f{number}")).expect("made")); // it would close it
            mount.unlink(format!("f{number}")).expect("removed");
        }
        assert_eq!(used(&mount), before + 10, "held");
        let mount = {
            // A process has one connection: the old one ends.
            let next = scene.connect();
            std::mem::forget(mount);
            next
        };
        holds(comes_within(patience(), || used(&mount) == before), "files of a client that has ended are held")
    }
    is_caught(Mutant::FilesOutliveClients, found);
}

#[test]
fn a_client_whose_groups_have_changed_ends() {
    fn set_groups(groups: &[libc::gid_t]) {
        // SAFETY: the list is only read.
        assert_eq!(unsafe { libc::setgroups(groups.len(), groups.as_ptr()) }, 0, "as root");
    }
    fn found() -> Found {
        let scene = scene(limits());
        let mount = scene.connect();
        mount.attributes(".").expect("served");
        set_groups(&[65_533]);
        let has_ended = comes_within(patience(), || match mount.attributes(".") {
            Err(Error::Errno(Errno::NOTCONN)) => true,
            other => {
                assert!(other.is_ok(), "{other:?}");
                false
            }
        });
        set_groups(&[]);
        holds(has_ended, "still served with the groups that it had")
    }
    if rustix::process::geteuid().is_root() {
        is_caught(Mutant::CredentialsKept, found);
    }
}

/// [CRD6]: whoever closes one may wait for who made it.
#[test]
fn no_descriptor_is_taken_from_a_client() {
    fn found() -> Found {
        let scene = scene(limits());
        let socket = support::socket_to(scene.server.socket());
        let null = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).expect("there");
        let refused = support::send_descriptor(socket.as_fd(), b"what no client says", &null) == Err(Errno::PERM);
        let mode = std::fs::metadata(scene.server.socket()).expect("there").permissions().mode() & 0o777;
        holds(refused || mode == 0o600, "anybody may send descriptors")
    }
    is_caught(Mutant::DescriptorsTaken, found);
}

/// A process that has got other rights since it connected may not be who holds the socket.
#[test]
fn who_has_got_rights_since_it_connected_is_refused() {
    fn socket_as_nobody(path: &std::path::Path) -> OwnedFd {
        use rustix::process::{Gid, Uid};
        let nobody = (Gid::from_raw(65_534), Uid::from_raw(65_534));
        let as_nobody = || {
            // Of this thread alone, as if the rest of the process had started a set-id program behind it.
            rustix::thread::set_thread_res_gid(None, nobody.0, None).expect("as root");
            rustix::thread::set_thread_res_uid(None, nobody.1, None).expect("as root");
            support::socket_to(path)
        };
        std::thread::scope(|scope| scope.spawn(as_nobody).join().expect("connected"))
    }
    fn found() -> Found {
        let scene = scene(limits());
        let socket = socket_as_nobody(scene.server.socket());
        let refused = support::hello_over(socket, "/proc", &Options::default()).map(drop);
        holds(matches!(refused, Err(ConnectError::Refused { .. })), "rights count that came after the connection")
    }
    if rustix::process::geteuid().is_root() {
        is_caught(Mutant::ConnectedAsSomebodyElse, found);
    }
}

#[test]
fn a_client_with_a_limit_for_its_files_ends_and_is_refused() {
    fn set_limit(bytes: Option<u64>) {
        let limit = rustix::process::Rlimit { current: bytes, maximum: None };
        rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).expect("set");
    }
    fn found() -> Found {
        let scene = scene(limits());
        let mount = scene.connect();
        mount.attributes(".").expect("served");
        set_limit(Some(1 << 30));
        let result = match comes_within(patience(), || mount.attributes(".").is_err()) {
            true => refusal(scene.connect_with("/proc", &Options::default())).map(drop),
            false => Err("its files may grow beyond its limit".into()),
        };
        set_limit(None);
        result
    }
    is_caught(Mutant::SizeLimitIgnored, found);
}

/// A descriptor can do what the open file can, and is of the file that is open, whatever its name is by now.
#[test]
fn descriptors_have_the_access_of_the_open_file() {
    fn found() -> Found {
        let wanted = Arc::default();
        let scene = scene_with_opener(&wanted);
        let mount = scene.connect();
        assert!(mount.sends_descriptors());
        drop(mount.create("file").expect("made"));
        let inode = mount.attributes("file").expect("there").node;
        let generation = scene.generation("file");
        for (flags, kept) in [
            (libc::O_RDONLY, libc::O_RDONLY),
            (libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_CLOEXEC, libc::O_WRONLY),
            (libc::O_RDWR | libc::O_APPEND | libc::O_NOFOLLOW, libc::O_RDWR | libc::O_APPEND),
            (
                libc::O_WRONLY | libc::O_SYNC | libc::O_NONBLOCK | libc::O_DIRECT,
                libc::O_WRONLY | libc::O_SYNC | libc::O_NONBLOCK | libc::O_DIRECT,
            ),
        ] {
            let file = mount.open_with("file", flags, 0o644).expect("opened");
            mount.rename("file", "other").expect("renamed");
            let descriptor = file.descriptor();
            mount.rename("other", "file").expect("renamed");
            let descriptor = descriptor.map_err(|error| error.to_string())?;
            let access = rustix::fs::fcntl_getfl(&descriptor).expect("open").bits().cast_signed() & libc::O_ACCMODE;
            let last = wanted.lock().expect("no panic").pop().expect("asked for");
            holds((last.inode.get(), last.generation) == (inode, generation), "another file")?;
            holds(last.flags == kept && access == kept & libc::O_ACCMODE, "other flags")?;
        }
        Ok(())
    }
    is_caught(Mutant::AccessNotKept, found);
    is_caught(Mutant::GenerationNotSaid, found);
}

#[test]
fn descriptors_are_of_files_and_directories_that_are_open() {
    fn found() -> Found {
        let wanted = Arc::<Mutex<Vec<Wanted>>>::default();
        let scene = scene_with_opener(&wanted);
        let mount = scene.connect();
        drop(mount.create("file").expect("made"));
        let errno = |flags| {
            let file = mount.open_with(if flags & libc::O_DIRECTORY == 0 { "file" } else { "." }, flags, 0).expect("opened");
            file.descriptor().map(drop)
        };
        holds(errno(libc::O_PATH) == Err(Errno::BADF.into()), "a descriptor of a place")?;
        holds(errno(libc::O_ACCMODE) == Err(Errno::BADF.into()), "a descriptor of no access")?;
        holds(wanted.lock().expect("no panic").is_empty(), "somebody was asked to open")?;
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        holds(errno(flags).is_ok(), "no descriptor of a directory")?;
        holds(wanted.lock().expect("no panic").pop().is_some_and(|wanted| wanted.flags == flags), "other flags")
    }
    is_caught(Mutant::DescriptorsOfAll, found);
}

/// Another process that is a client until its standard input ends.
#[test]
#[ignore = "started by a test"]
fn other_client() {
    let socket = std::env::var_os("TANDEMFS_TEST_SOCKET").expect("where");
    let _mount = support::connect_to(socket.as_ref(), "/proc", &Options::default()).expect("let in");
    println!("let in");
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).expect("read");
}

#[test]
fn a_descriptor_comes_to_the_client_whose_file_it_is() {
    fn found() -> Found {
        let scene = scene_with_opener(&Arc::default());
        let mut other = Command::new(std::env::current_exe().expect("this program"))
            .args(["--ignored", "--exact", "other_client", "--nocapture"])
            .env("TANDEMFS_TEST_SOCKET", scene.server.socket())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut said = BufReader::new(other.stdout.take().expect("piped")).lines();
        let is_in = said.any(|line| line.is_ok_and(|line| line.contains("let in")));
        let mount = scene.connect();
        let result = mount.create("file").expect("made").descriptor();
        drop(other.stdin.take());
        said.for_each(drop);
        other.wait().expect("ended");
        assert!(is_in, "there was no other client");
        result.map(drop).map_err(|error| error.to_string())
    }
    is_caught(Mutant::SentToAnother, found);
}

#[test]
fn without_an_opener_there_are_no_descriptors() {
    fn found() -> Found {
        let scene = scene(limits());
        let mount = scene.connect();
        let file = mount.create("file").expect("made");
        let refused = matches!(file.descriptor(), Err(Error::Crossed(crossed)) if crossed.why == Why::NotServed);
        holds(refused && !mount.sends_descriptors(), "it is said that there are")
    }
    is_caught(Mutant::None, found);
}

#[test]
fn the_root_of_another_mount_does_not_open_the_door() {
    fn found() -> Found {
        let scene = scene(limits());
        let refused = refusal(scene.connect_with("/sys", &Options::default()))?; // its root has the same number
        holds(refused == Errno::ACCESS.raw_os_error(), "refused for another reason")
    }
    is_caught(Mutant::AnyRoot, found);
}

#[test]
fn a_daemon_whose_mount_has_ended_lets_nobody_in() {
    fn found() -> Found {
        let scene = scene_beside(limits(), None, false);
        let refused = refusal(scene.connect_with("/proc", &Options::default()))?;
        holds(refused == Errno::NOTCONN.raw_os_error(), "refused for another reason")
    }
    is_caught(Mutant::MountNotAsked, found);
}

/// What is longer than the poller's bounds is served all the same.
#[test]
fn long_and_short_requests_are_served_alike() {
    fn found() -> Found {
        let scene = scene(limits());
        let mount = scene.connect();
        let file = OpenOptions::new().read(true).write(true).create(true).open(&mount, "f").expect("made");
        for length in [1, QUICK_BYTES - 1, QUICK_BYTES, QUICK_BYTES + 1, 700_000] {
            let bytes: Vec<u8> = (0..length).map(|at| (at * 7 + length) as u8).collect();
            file.write_all_at(&bytes, 3).expect("written");
            let mut back = vec![0; bytes.len()];
            file.read_exact_at(&mut back, 3).expect("read");
            assert!(back == bytes, "{length} bytes");
        }
        mount.make_directory("d", 0o755).expect("made");
        for number in 0..300 {
            drop(mount.create(format!("d/{number}")).expect("made"));
        }
        assert_eq!(mount.read_directory("d").expect("opened").filter(Result::is_ok).count(), 302);
        let path = format!("{}f", "d/../".repeat(100));
        assert_eq!(mount.attributes(path).expect("there").size_bytes, 700_003);
        mount.create("f").expect("cut off"); // more than the poller frees
        assert_eq!(mount.attributes("f").expect("there").size_bytes, 0);
        Ok(())
    }
    is_caught(Mutant::None, found);
}
