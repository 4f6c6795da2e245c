//! Bytes that clients store to the memory zone themselves ([LNS1]–[LNS7] of `lent_stores.rs`, [STR1]–[STR8] of the client), through the server, the
//! shared memory and the client: what is stored is what others read, and what others do ends a lease first. Clients of other processes that
//! are killed or stopped inside of a lease, lie, or keep their description of the zone. Who gets the zone, and who does not.
//!
//! Server and client are in this process, but for those clients; see `server.rs`. The bug is that of the process: the tests run one after the
//! other. What a durable overwrite costs is a measurement:
//!
//!     cargo test --profile soak -p tandemfs-direct --test lent_stores -- --ignored --nocapture cost

mod support;

use std::fs::File as HostFile;
use std::hint::black_box;
use std::io::{BufRead, BufReader, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::{Pid, Signal, kill_process};
use tandemfs_client::mutant::{self as client_mutant, Mutant as ClientMutant};
use tandemfs_client::{Errno, Error, File, Mount, OpenOptions, Options, Tree};
use tandemfs_crash::{Awake, Random, comes_within, rounds_or, seed_or};
use tandemfs_device::{Drive, Mapping, MappingOptions, StoreZone};
use tandemfs_direct::mutant::{self, Mutant};
use tandemfs_direct::{Entrants, Limits, Server, StoreCounts};
use tandemfs_emulator::{DeviceOptions, open_device};
use tandemfs_format::InodeNumber;
use tandemfs_fs::{FileSystem, FormatOptions, IDLE_MAX, MountOptions, make_file_system};
use tandemfs_protocol::{
    GREETING_BYTES, Handle, Hello, LentRange, Number, Operation, Outcome, Place, Reception, StoreLease, StorePlace, Text, Welcome,
    ZonePlace,
};
use tandemfs_ring::{Answer, Client, LeaseToken, Leases, Slot};
use tandemfs_vfs::{At, Caches, Capabilities, Change, Credentials, OpenFile, Process, Settings, Subject, Vfs};

const ZONE_BYTES: u64 = 64 << 20;
const PAGE: usize = 4096;
/// Nobody is a member.
const GROUP: u32 = 54_321;
/// How long something may take on a machine that does much else; and how long a bug is watched.
const PATIENCE: Duration = Duration::from_secs(60);
const WATCHED: Duration = Duration::from_secs(2);
/// Requests before a window is asked for, which is one more.
const BEFORE: usize = 4;

fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A kernel that has no pages; somebody may watch everything by it.
#[derive(Default)]
struct Kernel {
    watches: AtomicBool,
}

struct Nothing;

impl Change for Nothing {
    fn ends_at_once(&mut self) -> bool {
        true
    }
}

impl Caches for Kernel {
    fn settle(&self, _: InodeNumber) -> tandemfs_fs::Result<()> {
        Ok(())
    }

    fn change(self: Arc<Self>, _: InodeNumber, _: Range<u64>) -> tandemfs_fs::Result<Box<dyn Change>> {
        Ok(Box::new(Nothing))
    }

    fn has_pages(&self, _: InodeNumber) -> bool {
        false
    }

    fn is_watched(&self, _: &[InodeNumber]) -> tandemfs_fs::Result<bool> {
        Ok(self.watches.load(SeqCst))
    }

    fn name_gone(&self, _: InodeNumber, _: &[u8]) {}
}

/// A file system on memory alone, and a server.
struct Scene {
    vfs: Vfs,
    server: Server,
    kernel: Arc<Kernel>,
    /// The memory, which has no name any more.
    image: HostFile,
}

fn scene_with(limits: Limits) -> Scene {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let path = std::env::temp_dir().join(format!("tandemfs-door-stores-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed)));
    let image = HostFile::options().read(true).write(true).create_new(true).open(&path).expect("a file");
    image.set_len(ZONE_BYTES).expect("sized");
    let device = open_device(&format!("memory={}", path.display()), &DeviceOptions::default());
    std::fs::remove_file(&path).expect("removed; the device keeps it");
    let drive = Drive::new(device.expect("opens"));
    make_file_system(&drive, &FormatOptions::default()).expect("formats");
    let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
    let kernel = Arc::<Kernel>::default();
    let vfs = Vfs::new(Arc::new(fs), Settings::default()).beside(kernel.clone());
    let limits = Limits { threads: 4, ..limits };
    let server = Server::start(vfs.clone(), support::mount_identity(), Box::new(|| true), Entrants::Everybody, limits).expect("starts");
    Scene { vfs, server, kernel, image }
}

fn scene() -> Scene {
    scene_with(Limits { stores_by: Some(GROUP), ..Limits::default() })
}

fn storing() -> Options {
    Options { stores: true, ..Options::default() }
}

fn somebody() -> Process {
    Process { umask: 0, ..Process::of(Credentials::new(0, 0, &[], Capabilities::ALL)) }
}

impl Scene {
    fn connect(&self, options: &Options) -> Mount {
        support::connect(&self.server, "/proc", options).expect("let in")
    }

    fn count(&self, is_counted: impl Fn(Number) -> bool) -> u64 {
        let (_, clients) = self.server.observer().clients();
        let counts = clients.iter().flat_map(|client| &client.counts.operations);
        counts.filter(|of| is_counted(of.number)).map(|of| of.count).sum()
    }

    /// How many requests something takes.
    fn requests_of(&self, act: impl FnOnce()) -> u64 {
        let before = self.count(|_| true);
        act();
        self.count(|_| true) - before
    }

    /// What has become of the leases of the last client.
    fn counts(&self) -> StoreCounts {
        let (_, clients) = self.server.observer().clients();
        clients.last().and_then(|client| client.stores).expect("a client that stores")
    }

    fn lent(&self) -> (usize, u64) {
        self.vfs.file_system().stores_lent()
    }

    fn open(&self, path: &str) -> OpenFile {
        self.vfs.open(&somebody(), At::Root, path.as_bytes(), libc::O_CREAT | libc::O_RDWR, 0o644).expect("opened")
    }

    fn write(&self, file: &OpenFile, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            done += self.vfs.write_at(&somebody(), file, (offset + done as u64) as i64, &bytes[done..], 0).expect("written");
        }
    }

    fn read(&self, file: &OpenFile, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0xee; length];
        let done = self.vfs.read_at(file, offset as i64, &mut bytes).expect("read");
        bytes.truncate(done);
        bytes
    }

    /// A file of so many bytes in the memory zone.
    fn made(&self, path: &str, length: usize) -> OpenFile {
        let file = self.open(path);
        self.write(&file, 0, &vec![1; length]);
        self.vfs.file_system().write_back_all().expect("written back");
        file
    }

    /// Waits until something is so; false if that does not come.
    fn comes(&self, is_so: impl Fn(&Self) -> bool) -> bool {
        comes_within(PATIENCE, || is_so(self))
    }
}

fn opened(mount: &Mount, path: &str) -> File {
    OpenOptions::new().read(true).write(true).open(mount, path).expect("opened")
}

/// Writes until the window is leased.
fn leased(scene: &Scene, file: &File, offset: u64) {
    let before = scene.lent().0;
    (0..BEFORE).for_each(|_| file.write_all_at(&[9; 8], offset).expect("written"));
    assert_eq!(scene.lent().0, before + 1, "a lease");
}

fn filled(random: &mut Random, length: usize) -> Vec<u8> {
    (0..length.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).take(length).collect()
}

#[test]
fn what_is_leased_is_written_and_read_without_a_request() {
    const BYTES: usize = (2 << 20) + 5000;
    let _alone = alone();
    let scene = scene();
    let other = scene.made("f", BYTES);
    let mount = scene.connect(&storing());
    assert!(mount.stores_by_itself() && !mount.loads_by_itself());
    let file = opened(&mount, "f");
    let (mut random, mut model) = (Random::new(1), vec![1; BYTES]);
    for window in 0..3_u64 {
        leased(&scene, &file, window << 20);
        model[(window << 20) as usize..][..8].fill(9);
    }
    assert_eq!((scene.count(|number| number == Number::LendStores), scene.counts().held), (3, 3));
    let requests = scene.requests_of(|| {
        for round in 0..300 {
            let (window, most) = (random.below(3) << 20, if round % 7 == 0 { 300_000 } else { 5000 });
            let room = (BYTES as u64 - window).min(1 << 20);
            let offset = random.below(room);
            let length = (1 + random.below(most)).min(room - offset) as usize;
            let (bytes, at) = (filled(&mut random, length), (window + offset) as usize);
            assert_eq!(file.write_at(&bytes, at as u64), Ok(length));
            model[at..at + length].copy_from_slice(&bytes);
            let mut found = vec![0; length];
            assert_eq!(file.read_at(&mut found, at as u64), Ok(length));
            assert!(found == bytes, "round {round}");
        }
    });
    assert_eq!(requests, 0);
    assert!(scene.read(&other, 0, BYTES + 1) == model, "what others read");
    let counts = scene.counts();
    assert_eq!((counts.held, counts.lent, counts.ended, counts.taken_away, counts.is_late), (0, 3, 3, 0, false));
    assert_eq!(scene.lent(), (0, 0));
    assert_eq!(file.write_at(&[7; 10], BYTES as u64 - 5), Ok(10), "growth is the daemon's");
    assert_eq!(scene.read(&other, BYTES as u64 - 5, 100), [7; 10]);
    drop((file, mount));
    scene.vfs.file_system().unmount().expect("unmounts");
}

/// What is read by whoever, after changes by the client and by somebody else, with leases and without.
#[test]
fn random_changes_are_seen_by_all() {
    const FILE_BYTES: u64 = (2 << 20) + 5000;
    let _alone = alone();
    let scene = scene();
    let (seed, rounds) = (seed_or(7), rounds_or(4000));
    let mut random = Random::new(seed);
    let mut model = filled(&mut random, FILE_BYTES as usize);
    let other = scene.open("f");
    scene.write(&other, 0, &model);
    let (mount, second) = (scene.connect(&Options { loads: true, ..storing() }), ());
    let file = opened(&mount, "f");
    let (mut stored, mut asked) = (0, 0);
    for round in 0..rounds {
        let offset = random.below(FILE_BYTES);
        let most = if random.one_in(6) { 200_000 } else { 9000 };
        let length = (1 + random.below(most)).min(FILE_BYTES - offset);
        let part = offset as usize..(offset + length) as usize;
        let set = |model: &mut Vec<u8>, bytes: &[u8]| {
            model.resize(model.len().max(part.end), 0);
            model[part.clone()].copy_from_slice(bytes);
        };
        match random.below(60) {
            0 => {
                let bytes = filled(&mut random, part.len());
                set(&mut model, &bytes);
                scene.write(&other, offset, &bytes);
            }
            1 if random.one_in(3) => {
                model.resize(offset as usize, 0);
                scene.vfs.truncate(&somebody(), Subject::Open(&other), offset as i64).expect("cut");
            }
            2 => {
                let flags = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                scene.vfs.allocate(&somebody(), &other, flags as u32, offset as i64, length as i64).expect("punched");
                let end = part.end.min(model.len());
                model[part.start.min(end)..end].fill(0);
            }
            3 => drop(scene.vfs.file_system().write_back_all().expect("written back")),
            // Freed pages go to another file.
            4 => scene.write(&scene.open("other"), 0, &filled(&mut random, part.len())),
            5 => {
                let there = &model[part.start.min(model.len())..part.end.min(model.len())];
                assert!(scene.read(&other, offset, part.len()) == there, "seed {seed}, round {round}: others read");
            }
            6..12 => {
                let there = &model[part.start.min(model.len())..part.end.min(model.len())];
                let mut found = vec![0; part.len()];
                let done = file.read_at(&mut found, offset).expect("read");
                assert!(&found[..done] == there, "seed {seed}, round {round}: the client reads");
            }
            _ => {
                let bytes = filled(&mut random, part.len());
                set(&mut model, &bytes);
                let requests = scene.requests_of(|| file.write_all_at(&bytes, offset).expect("written"));
                (stored, asked) = if requests == 0 { (stored + 1, asked) } else { (stored, asked + 1) };
            }
        }
    }
    println!("{stored} writes were stored, for {asked} something was asked");
    assert!(stored > 0 && asked > 0);
    assert!(scene.read(&other, 0, model.len() + 1) == model);
    drop((file, mount, second));
    scene.vfs.file_system().unmount().expect("unmounts");
}

/// A lease of one client, and another client, or its own process by another file.
#[test]
fn who_else_reads_or_writes_ends_the_lease_first() {
    let _alone = alone();
    let scene = scene();
    let _made = scene.made("f", 100_000);
    let mount = scene.connect(&storing());
    let file = opened(&mount, "f");
    let by_name = mount.open("f").expect("opened");
    for (what, act) in [
        ("a read", &(|| assert_eq!(by_name.read_at(&mut [0; 10], 5000), Ok(10))) as &dyn Fn()),
        ("a write", &|| assert_eq!(opened(&mount, "f").write_at(&[3; 10], 5000), Ok(10))),
        ("a truncation", &|| file.set_length(90_000).expect("cut")),
        ("a mapping of the library", &|| {
            let inode = InodeNumber::new(file.attributes().expect("there").node);
            drop(scene.vfs.file_system().map(inode, 0, 4096, false).expect("mapped"));
        }),
        ("O_APPEND", &|| {
            file.set_flags(libc::O_APPEND).expect("set");
            file.set_flags(0).expect("set");
        }),
        ("O_DIRECT", &|| {
            file.set_flags(libc::O_DIRECT).expect("set");
            file.set_flags(0).expect("set");
        }),
    ] {
        leased(&scene, &file, 4096);
        assert_eq!(scene.requests_of(|| file.write_all_at(&[4; 100], 5000).expect("written")), 0);
        act();
        assert_eq!(scene.lent(), (0, 0), "{what}");
        assert!(scene.requests_of(|| file.write_all_at(&[5; 100], 5000).expect("written")) > 0, "{what}");
        // The next lease comes with few requests again only after much use.
        (0..200).for_each(|_| file.write_all_at(&[5; 100], 5000).expect("written"));
        (0..100).for_each(|_| file.write_all_at(&[5; 100], 5000).expect("written"));
        by_name.read_at(&mut [0; 10], 5000).expect("read");
        assert_eq!(scene.lent(), (0, 0));
    }
    leased(&scene, &file, 4096);
    file.attributes().expect("told");
    mount.attributes("f").expect("told");
    mount.rename("f", "g").expect("moved");
    assert_eq!(scene.lent().0, 1, "names and attributes end no lease");
    file.sync_all().expect("durable");
    assert_eq!(scene.lent().0, 1, "nor does fsync");
    scene.vfs.file_system().start_background().expect("starts");
    std::thread::sleep(IDLE_MAX);
    assert!(scene.comes(|scene| scene.lent() == (0, 0)), "nothing was stored for a while");
}

#[test]
fn times_are_those_of_the_stores() {
    let _alone = alone();
    let scene = scene();
    let _made = scene.made("f", 100_000);
    let mount = scene.connect(&storing());
    let file = opened(&mount, "f");
    leased(&scene, &file, 0);
    let modified = || file.attributes().expect("told").modified;
    let before = modified();
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(modified(), before);
    let mut bytes = [0; 10];
    assert_eq!(scene.requests_of(|| assert_eq!(file.read_at(&mut bytes, 100), Ok(10))), 0);
    assert_eq!(modified(), before, "a load is no change");
    assert_eq!(scene.requests_of(|| assert_eq!(file.write_at(&bytes, 100), Ok(10))), 0);
    assert_ne!(modified(), before);
    assert_eq!(scene.lent().0, 1);
}

/// [LNS3], [STR4]
#[test]
fn only_what_may_be_stored_is_lent() {
    let _alone = alone();
    let scene = scene();
    let _made = scene.made("f", 100_000);
    let mount = scene.connect(&storing());
    for flags in [libc::O_APPEND, libc::O_DIRECT, libc::O_SYNC] {
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&mount, "f").expect("opened");
        assert!(scene.requests_of(|| (0..20).for_each(|_| file.write_all_at(&[1; PAGE], 0).expect("written"))) >= 20, "{flags:#o}");
        assert_eq!(scene.lent(), (0, 0));
    }
    let file = OpenOptions::new().write(true).custom_flags(libc::O_DSYNC).open(&mount, "f").expect("opened");
    leased(&scene, &file, 0);
    let reads = || file.read_at(&mut [0; 10], 0);
    assert_eq!(reads(), Err(Error::Errno(Errno::BADF)));
    client_mutant::select(ClientMutant::LoadsUnread);
    let found = reads();
    client_mutant::select(ClientMutant::None);
    assert_eq!(found, Ok(10), "LoadsUnread escaped");
    assert_eq!(mount.open(".").expect("opened").write_at(&[1], 0), Err(Error::Errno(Errno::BADF)));
}

/// [LNS3]
#[test]
fn a_lease_ends_with_its_file_and_with_its_client() {
    let _alone = alone();
    fn lent(ends_client: bool, within: Duration) -> (usize, u64) {
        let scene = scene();
        let _made = scene.made("f", 100_000);
        if ends_client {
            // It closes nothing.
            Raw::connect(scene.server.socket()).lease().expect("a lease");
            assert!(scene.comes(|scene| scene.server.clients().0 == 0));
            comes_within(within, || scene.lent() == (0, 0));
            return scene.lent();
        }
        let mount = scene.connect(&storing());
        let file = opened(&mount, "f");
        leased(&scene, &file, 0);
        drop(file);
        scene.lent()
    }
    for (ends_client, bug) in [(false, Mutant::LeasesOutliveFiles), (true, Mutant::LeasesOutliveClients)] {
        assert_eq!(lent(ends_client, PATIENCE), (0, 0));
        mutant::select(bug);
        let found = lent(ends_client, WATCHED);
        mutant::select(Mutant::None);
        assert_eq!(found, (1, 0), "{bug:?} escaped");
    }
}

/// [LNS4]
#[test]
fn what_is_watched_is_not_stored_to() {
    let _alone = alone();
    fn is_told(within: Duration) -> bool {
        let scene = scene();
        let _made = scene.made("f", 100_000);
        let mount = scene.connect(&Options { leaves_watched: true, ..storing() });
        let file = opened(&mount, "f");
        leased(&scene, &file, 0);
        scene.kernel.watches.store(true, SeqCst);
        let crossed = || matches!(file.write_at(&[1; 8], 0), Err(Error::Crossed(_)));
        let is_told = comes_within(within, crossed);
        assert!((0..20).all(|_| crossed() == is_told), "told: {is_told}");
        scene.kernel.watches.store(false, SeqCst);
        is_told
    }
    assert!(is_told(PATIENCE));
    mutant::select(Mutant::WatchedStoredTo);
    let found = is_told(WATCHED);
    mutant::select(Mutant::None);
    assert!(!found, "WatchedStoredTo escaped");
}

/// [STR7], [STR8]: behind the end of the server.
#[test]
fn nothing_is_stored_behind_the_end_of_the_server() {
    let _alone = alone();
    fn keeps_the_zone() -> bool {
        let scene = scene();
        let other = scene.made("f", 100_000);
        let mount = scene.connect(&storing());
        let file = opened(&mount, "f");
        leased(&scene, &file, 0);
        assert!(scene.vfs.file_system().drive().is_zone_held());
        let Scene { vfs, server, .. } = scene;
        drop(server);
        assert_eq!(vfs.file_system().stores_lent(), (0, 0));
        let before = vfs.file_system().drive().is_zone_held();
        assert_eq!(file.write_at(&[7; 8], 0), Err(Error::Errno(Errno::NOTCONN)));
        let mut found = [0; 8];
        assert_eq!(vfs.read_at(&other, 0, &mut found).expect("read"), 8);
        assert_eq!((found, before), ([9; 8], true));
        vfs.file_system().drive().is_zone_held()
    }
    assert!(!keeps_the_zone());
    client_mutant::select(ClientMutant::ZoneKept);
    let found = keeps_the_zone();
    client_mutant::select(ClientMutant::None);
    assert!(found, "ZoneKept escaped");
}

/// Records of several threads under leases, beside somebody who reads and writes.
#[test]
fn records_are_whole_and_none_is_lost() {
    const THREADS: usize = 2;
    const ROUNDS: u64 = 20_000;
    let _alone = alone();
    let scene = scene();
    let other = scene.made("f", 64 * PAGE);
    let mount = scene.connect(&storing());
    let file = opened(&mount, "f");
    let record = |round: u64| round.to_le_bytes().repeat(PAGE / 8);
    let place = |thread: usize| (thread * 5 * PAGE + 77) as u64;
    let done: [AtomicU64; THREADS] = Default::default();
    let before = scene.count(|number| number == Number::Write);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (file, done) = (&file, &done);
                scope.spawn(move || {
                    for round in 1..=ROUNDS {
                        file.write_all_at(&record(round), place(thread)).expect("written");
                        done[thread].store(round, SeqCst);
                        if round % 64 == 0 {
                            let mut found = vec![0; PAGE];
                            file.read_exact_at(&mut found, place(thread)).expect("read");
                            assert!(found == record(round), "its own");
                        }
                    }
                })
            })
            .collect();
        for look in 0.. {
            if writers.iter().all(|writer| writer.is_finished()) {
                break;
            }
            let thread = look % THREADS;
            let least = done[thread].load(SeqCst);
            let found = scene.read(&other, place(thread), PAGE);
            let rounds: Vec<u64> = found.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
            let first = if least == 0 { rounds[0] } else { least };
            assert!(rounds.iter().all(|round| *round == rounds[0] && *round >= first), "{:?} behind {least}", &rounds[..4]);
            std::thread::sleep(Duration::from_millis(1));
        }
        writers.into_iter().for_each(|writer| writer.join().expect("it ends"));
    });
    let asked = scene.count(|number| number == Number::Write) - before;
    println!("{asked} of {} writes were requests", ROUNDS * THREADS as u64);
    assert!(asked < ROUNDS, "no lease was used");
    for thread in 0..THREADS {
        assert!(scene.read(&other, place(thread), PAGE) == record(ROUNDS), "the last record of thread {thread}");
    }
    assert_eq!(scene.counts().taken_away, 0);
}

/// The image is cut short behind the daemon's back: the daemon has an error, and so has the client, which goes on.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_zone_that_fails_is_the_daemons_error() {
    let _alone = alone();
    let scene = scene();
    let _made = scene.made("f", 100_000);
    let mount = scene.connect(&storing());
    let file = opened(&mount, "f");
    leased(&scene, &file, 0);
    scene.image.set_len(0).expect("cut");
    assert_eq!(file.write_at(&[1; PAGE], 0), Err(Error::Errno(Errno::IO)));
    mount.ping().expect("the connection lives");
}

/// A client that does what no library does.
struct Raw {
    slot: Slot,
    client: Client,
    handle: Handle,
    zone: StoreZone,
    map: Mapping,
    words: HostFile,
    leases: Leases,
}

/// A greeting as the daemon sends it.
fn greeted(socket: BorrowedFd<'_>, hello: Hello) -> (Welcome, Vec<OwnedFd>) {
    let root = rustix::fs::open("/proc", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).expect("there");
    let (mut space, shown) = ([MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))], [root.as_fd()]);
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&shown)));
    rustix::net::sendmsg(socket, &[IoSlice::new(&hello.encode())], &mut control, SendFlags::NOSIGNAL).expect("sent");
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; GREETING_BYTES];
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC).expect("an answer");
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    let descriptors = rights.flatten().collect();
    match Reception::decode(&bytes).expect("a greeting") {
        Reception::Welcome(welcome) => (welcome, descriptors),
        Reception::Refusal(refusal) => panic!("{}", refusal.sentence),
    }
}

fn socket_to(path: &std::path::Path) -> OwnedFd {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket");
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).expect("an address")).expect("connected");
    socket
}

fn answered(slot: &mut Slot, operation: &Operation<'_>) -> Result<Answer, i32> {
    match Outcome::decode(slot.call(&operation.encode().expect("short")).expect("answered")).expect("an outcome") {
        Outcome::Done(answer) => Ok(answer),
        Outcome::Errno(errno) => Err(errno),
        Outcome::Crossed(crossed) => panic!("{crossed:?}"),
    }
}

impl Raw {
    fn connect(path: &std::path::Path) -> Self {
        let socket = socket_to(path);
        let (welcome, mut descriptors) = greeted(socket.as_fd(), Hello::new(1, 1 << 20).wanting_stores(true));
        let StorePlace { zone: ZonePlace { start, bytes }, .. } = welcome.stores.expect("it may store");
        let words = HostFile::from(descriptors.pop().expect("lease words"));
        let zone = StoreZone::received(descriptors.pop().expect("a zone"), start, bytes);
        assert_eq!(descriptors.len(), 3 + usize::from(descriptors.len() > 3), "arena, words, versions, perhaps a bell");
        let bell = if descriptors.len() > 3 { Some(descriptors.remove(2)) } else { None };
        let client = Client::map(descriptors[0].as_fd(), descriptors[1].as_fd(), bell, Some(socket)).expect("mapped");
        let mut slot = client.slot().expect("a slot");
        let open = Operation::Open { at: Place::Root, path: Text::Here(b"f"), flags: libc::O_RDWR, mode: 0, umask: 0 };
        let handle = Handle::of(answered(&mut slot, &open).expect("opened").value).expect("a handle");
        let (map, leases) = (zone.map().expect("mapped"), Leases::map(words.as_fd()).expect("mapped"));
        Self { slot, client, handle, zone, map, words, leases }
    }

    /// A lease of the first window, and where it begins in the zone.
    fn lease(&mut self) -> Option<(LeaseToken, u64)> {
        let buffer = self.client.buffer(4096).expect("room");
        let lend = Operation::LendStores { handle: self.handle, offset: 0, into: buffer.range() };
        let answer = answered(&mut self.slot, &lend).expect("lent");
        let mut bytes = vec![0; answer.value as usize];
        buffer.read(0, &mut bytes);
        let first = *LentRange::decode(&bytes, 0, self.map.length()).expect("ranges").first()?;
        Some((StoreLease::decode(answer.further).expect("a lease").0, first.zone_offset))
    }
}

/// A client of another process: it gets a lease, enters it, and does what it is told by lines.
#[test]
#[ignore = "started by a test"]
fn child() {
    let path = std::path::PathBuf::from(std::env::var_os("TANDEMFS_TEST_SOCKET").expect("where"));
    let say = |text: &str| {
        println!("\nchild: {text}");
        std::io::stdout().flush().expect("said");
    };
    let mut raw = Some(Raw::connect(&path));
    let (token, at) = raw.as_mut().expect("connected").lease().expect("a lease");
    let mut inside = None;
    let mut keeps: (Option<StoreZone>, Option<Mapping>) = (None, None);
    let mut last = None;
    say("ready");
    for line in std::io::stdin().lines() {
        match line.expect("a line").as_str() {
            "enter" => {
                let leases: &'static Leases =
                    Box::leak(Box::new(Leases::map(raw.as_ref().expect("connected").words.as_fd()).expect("mapped")));
                inside = leases.enter(token);
                say(if inside.is_some() { "inside" } else { "outside" });
            }
            "store" => {
                let map = raw.as_ref().map(|raw| &raw.map).or(keeps.1.as_ref()).expect("mapped");
                map.store(at, &[7; PAGE]).expect("stored");
                say("stored");
            }
            "leave" => say(&format!("left {}", inside.take().expect("inside").leave())),
            "lie" => {
                let words = raw.as_ref().expect("connected").words.try_clone().expect("cloned");
                last = Some(std::thread::spawn(move || {
                    let mut random = Random::new(5);
                    loop {
                        let word = 4096 + 64 * random.below(tandemfs_ring::LEASE_WORDS.into());
                        words.write_all_at(&random.next().to_le_bytes(), word).expect("written");
                    }
                }));
                say("lies");
            }
            "disconnect" => {
                let gone = raw.take().expect("connected");
                let zone = StoreZone::received(
                    gone.zone.descriptor().try_clone_to_owned().expect("cloned"),
                    gone.zone.start(),
                    gone.zone.length(),
                );
                keeps = (Some(zone), Some(gone.map));
                say("gone");
            }
            "hand on" => {
                let zone = raw.as_ref().expect("connected").zone.descriptor().try_clone_to_owned().expect("cloned");
                let child = Command::new("sleep").arg("600").stdin(Stdio::from(zone)).stdout(Stdio::null()).spawn();
                say(&format!("handed {}", child.expect("started").id()));
            }
            "reconnect" => {
                drop(raw.take());
                let socket = socket_to(&path);
                let (welcome, _descriptors) = greeted(socket.as_fd(), Hello::new(1, 1 << 20).wanting_stores(true));
                say(&format!("stores {}", welcome.stores.is_some()));
            }
            "lease" => say(&format!("lease {}", raw.as_mut().expect("connected").lease().is_some())),
            other => panic!("{other}"),
        }
    }
    drop((keeps, last));
}

struct Told {
    child: Child,
    tell: ChildStdin,
    said: BufReader<ChildStdout>,
}

impl Told {
    fn start(scene: &Scene) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--ignored", "--exact", "child", "--nocapture"])
            .env("TANDEMFS_TEST_SOCKET", scene.server.socket())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let (tell, said) = (child.stdin.take().expect("piped"), BufReader::new(child.stdout.take().expect("piped")));
        let mut told = Self { child, tell, said };
        assert_eq!(told.hear(), "ready");
        told
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        while self.said.read_line(&mut line).expect("a line") > 0 {
            if let Some(text) = line.trim_end().strip_prefix("child: ") {
                return text.to_owned();
            }
            line.clear();
        }
        panic!("it ended");
    }

    fn say(&mut self, line: &str) {
        writeln!(self.tell, "{line}").expect("told");
    }

    fn tell(&mut self, line: &str) -> String {
        self.say(line);
        self.hear()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id() as i32).expect("a process"), signal).expect("sent");
    }

    fn kill(mut self) {
        self.child.kill().expect("it lived");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

/// What comes of an act, how long it took by the clock, and how long this process ran meanwhile: for lower and upper bounds.
fn timed<T>(act: impl FnOnce() -> T) -> (T, Duration, Duration) {
    let (begun, awake) = (Instant::now(), Awake::now());
    (act(), begun.elapsed(), awake.elapsed())
}

/// It dies in the middle of a store: nobody waits.
#[test]
fn a_client_that_is_killed_inside_of_a_lease_delays_nobody() {
    let _alone = alone();
    let scene = scene();
    let other = scene.made("f", 100_000);
    let mut told = Told::start(&scene);
    assert_eq!((told.tell("enter"), told.tell("store")), ("inside".into(), "stored".into()));
    told.kill();
    let (found, _, took) = timed(|| scene.read(&other, 0, 2 * PAGE));
    assert!(found[..PAGE] == [7; PAGE] && found[PAGE..] == [1; PAGE], "what it had stored is the file's");
    assert!(took < Duration::from_millis(900), "{took:?}");
    assert!(scene.comes(|scene| scene.lent() == (0, 0) && !scene.vfs.file_system().drive().is_zone_held()));
    scene.vfs.file_system().unmount().expect("unmounts");
}

/// [LNS5]: it is stopped inside, and goes on when its bytes were taken away. Others wait once.
#[test]
fn a_client_that_is_stopped_inside_of_a_lease_delays_others_once() {
    let _alone = alone();
    fn may_again() -> bool {
        let scene = scene();
        let other = scene.made("f", 100_000);
        let mut told = Told::start(&scene);
        assert_eq!((told.tell("enter"), told.tell("store")), ("inside".into(), "stored".into()));
        told.signal(Signal::STOP);
        let (found, took, awake) = timed(|| scene.read(&other, 0, 2 * PAGE));
        assert!(found[..PAGE] == [7; PAGE] && found[PAGE..] == [1; PAGE], "what it had stored is in the copy");
        assert!(took >= Duration::from_millis(900) && awake < Duration::from_secs(5), "{took:?}");
        let counts = scene.counts();
        assert_eq!((counts.held, counts.ended, counts.taken_away, counts.is_late), (0, 1, 1, true));
        assert!(scene.lent().1 >= 100_000, "its pages are kept back: {:?}", scene.lent());
        scene.write(&other, 0, &[3; 2 * PAGE]);
        // Others would get its pages.
        let filler = scene.open("filler");
        (0..40).for_each(|at| drop(scene.vfs.write_at(&somebody(), &filler, at << 20, &[2; 1 << 20], 0)));
        told.signal(Signal::CONT);
        assert_eq!((told.tell("store"), told.tell("leave")), ("stored".into(), "left false".into()));
        assert_eq!(told.tell("lease"), "lease false", "it gets none any more");
        assert!(scene.read(&other, 0, 2 * PAGE) == [3; 2 * PAGE], "a late store is no part of the file");
        for at in 0..40 {
            let found = scene.read(&filler, at << 20, 1 << 20);
            assert!(found.iter().all(|byte| *byte == 2), "nor of another one");
        }
        let may = told.tell("reconnect") == "stores true";
        told.kill();
        scene.vfs.file_system().space();
        assert!(scene.comes(|scene| {
            scene.vfs.file_system().space();
            scene.lent() == (0, 0)
        }));
        scene.vfs.file_system().unmount().expect("unmounts");
        may
    }
    assert!(!may_again());
    mutant::select(Mutant::LateForgotten);
    let found = may_again();
    mutant::select(Mutant::None);
    assert!(found, "LateForgotten escaped");
}

/// Its connection ends, and it keeps its mapping, inside of the lease: the pages are kept back as long as it lives.
#[test]
fn a_client_that_keeps_its_mapping_keeps_its_pages_alone() {
    let _alone = alone();
    let scene = scene();
    let other = scene.made("f", 100_000);
    let mut told = Told::start(&scene);
    assert_eq!((told.tell("enter"), told.tell("disconnect")), ("inside".into(), "gone".into()));
    assert!(scene.comes(|scene| scene.lent().0 == 0 && scene.lent().1 >= 100_000), "{:?}", scene.lent());
    assert_eq!(told.tell("store"), "stored");
    assert!(scene.read(&other, 0, PAGE) == [1; PAGE]);
    assert!(scene.vfs.file_system().unmount().is_err(), "somebody can store to what the next mount gives out");
    told.kill();
    assert!(scene.comes(|scene| {
        scene.vfs.file_system().space();
        scene.lent() == (0, 0)
    }));
    scene.vfs.file_system().unmount().expect("unmounts");
}

/// A process that a client has started, and which outlives it.
struct Heir(Pid);

impl Drop for Heir {
    fn drop(&mut self) {
        let _gone = kill_process(self.0, Signal::KILL);
    }
}

/// It dies inside, and another process has its description.
#[test]
fn a_description_that_was_handed_on_counts() {
    let _alone = alone();
    let scene = scene();
    let other = scene.made("f", 100_000);
    let mut told = Told::start(&scene);
    assert_eq!(told.tell("enter"), "inside");
    let said = told.tell("hand on");
    let heir = Heir(said.strip_prefix("handed ").and_then(|id| Pid::from_raw(id.parse().ok()?)).expect("a process"));
    told.kill();
    assert!(scene.read(&other, 0, PAGE) == [1; PAGE]);
    assert!(scene.lent().1 >= 100_000, "{:?}", scene.lent());
    drop(heir);
    assert!(scene.comes(|scene| {
        scene.vfs.file_system().space();
        scene.lent() == (0, 0)
    }));
}

/// [LNS2]: its words change at any moment. Others wait once; its own file has bytes of its own.
#[test]
fn a_client_that_lies_harms_itself_alone() {
    let _alone = alone();
    let scene = scene();
    let (other, quiet) = (scene.made("f", 100_000), scene.made("g", 100_000));
    let mount = scene.connect(&storing());
    let file = opened(&mount, "g");
    leased(&scene, &file, 0);
    let mut told = Told::start(&scene);
    assert_eq!(told.tell("lie"), "lies");
    let (_, _, all) = timed(|| {
        for round in 0..200_u64 {
            let bytes = round.to_le_bytes().repeat(PAGE / 8);
            scene.write(&other, 0, &bytes);
            assert!(scene.read(&other, 0, PAGE) == bytes);
            assert_eq!(scene.requests_of(|| file.write_all_at(&bytes, 0).expect("written")), 0, "leases of others go on");
            if round % 10 == 0 {
                told.tell("lease");
            }
        }
    });
    assert!(all < Duration::from_secs(5), "{all:?}");
    told.kill();
    assert!(scene.read(&quiet, 0, PAGE) == 199_u64.to_le_bytes().repeat(PAGE / 8));
    assert!(scene.comes(|scene| scene.server.clients().0 == 1));
}

#[test]
fn the_zone_is_for_who_asks_where_the_mount_lends() {
    let _alone = alone();
    assert!(!scene_with(Limits { lends_to: Some(GROUP), ..Limits::default() }).connect(&storing()).stores_by_itself(), "for loads alone");
    let scene = scene();
    assert!(!scene.connect(&Options { loads: true, ..Options::default() }).stores_by_itself(), "a client that has not asked");
    assert!(scene.connect(&storing()).stores_by_itself());
    let socket = socket_to(scene.server.socket());
    let (welcome, mut descriptors) = greeted(socket.as_fd(), Hello::new(1, 1 << 20));
    assert_eq!((welcome.stores, welcome.operations & (Number::LendStores.bit() | Number::ReturnStores.bit())), (None, 0));
    descriptors.pop();
    let bell = if descriptors.len() > 2 { descriptors.pop() } else { None };
    let client = Client::map(descriptors[0].as_fd(), descriptors[1].as_fd(), bell, Some(socket)).expect("mapped");
    let mut slot = client.slot().expect("a slot");
    let (handle, into) = (Handle::of(1 << 32).expect("a number"), client.buffer(64).expect("room").range());
    let lease = StoreLease(LeaseToken { index: 0, epoch: 1 }).number().expect("a number");
    for operation in [Operation::LendStores { handle, offset: 0, into }, Operation::ReturnStores { lease }] {
        assert_eq!(answered(&mut slot, &operation), Err(libc::ENOSYS));
    }
}

/// A client gives back what it has, and what it has not.
#[test]
fn leases_are_given_back() {
    let _alone = alone();
    let scene = scene();
    let _made = scene.made("f", 100_000);
    let mut raw = Raw::connect(scene.server.socket());
    let (token, _) = raw.lease().expect("a lease");
    let back = |token| Operation::ReturnStores { lease: StoreLease(token).number().expect("a number") };
    assert_eq!(answered(&mut raw.slot, &back(LeaseToken { epoch: 7, ..token })).map(|_| scene.lent()), Ok((1, 0)), "not its");
    for _ in 0..2 {
        assert_eq!(answered(&mut raw.slot, &back(token)).map(|_| scene.lent()), Ok((0, 0)));
    }
    let none = Operation::ReturnStores { lease: std::num::NonZeroU64::new(5).expect("a number") };
    assert_eq!(answered(&mut raw.slot, &none), Err(libc::EINVAL));
    let wrong = Operation::LendStores { handle: raw.handle, offset: -1, into: raw.client.buffer(64).expect("room").range() };
    assert_eq!(answered(&mut raw.slot, &wrong), Err(libc::EINVAL));
    let beyond = Operation::LendStores { handle: raw.handle, offset: 1 << 40, into: raw.client.buffer(64).expect("room").range() };
    assert_eq!(answered(&mut raw.slot, &beyond).map(|answer| answer.value), Ok(0));
    assert!(raw.leases.enter(token).is_none());
}

/// [LNS6]
#[test]
fn nothing_is_lent_beside_much_that_is_kept_back() {
    let _alone = alone();
    let scene = scene_with(Limits { stores_by: Some(GROUP), kept_back_bytes: 90_000, ..Limits::default() });
    let other = scene.made("f", 100_000);
    let mut told = Told::start(&scene);
    assert_eq!(told.tell("enter"), "inside");
    assert_eq!(scene.read(&other, 0, 1), [1]);
    let _more = scene.made("g", 100_000);
    let mount = scene.connect(&storing());
    let file = opened(&mount, "g");
    (0..20).for_each(|_| file.write_all_at(&[1; 8], 0).expect("written"));
    assert_eq!((scene.lent().0, scene.counts().lent), (0, 0));
    told.kill();
    assert!(scene.comes(|scene| {
        scene.vfs.file_system().space();
        file.write_all_at(&[1; 8], 0).expect("written");
        scene.lent() == (1, 0)
    }));
}

/// Another user's process: prints whether it got the zone.
#[test]
#[ignore = "started by a test"]
fn stranger() {
    let socket = socket_to(std::env::var_os("TANDEMFS_TEST_SOCKET").expect("where").as_ref());
    let (welcome, descriptors) = greeted(socket.as_fd(), Hello::new(1, 1 << 20).wanting_stores(true));
    println!("stores: {}, descriptors: {}", welcome.stores.is_some(), descriptors.len());
}

/// [LNS1], by processes of other users, which root alone can start.
#[test]
fn the_zone_is_for_the_trusted_alone() {
    let _alone = alone();
    if !rustix::process::geteuid().is_root() {
        println!("not root: no processes of other users");
        return;
    }
    fn gets(user: u32, group: u32) -> bool {
        let scene = scene();
        // Where others may run it.
        let program = std::env::temp_dir().join(format!("tandemfs-door-stores-child-{}", std::process::id()));
        std::fs::copy(std::env::current_exe().expect("this program"), &program).expect("copied");
        let said = Command::new(&program)
            .args(["--ignored", "--exact", "stranger", "--nocapture"])
            .env("TANDEMFS_TEST_SOCKET", scene.server.socket())
            .current_dir("/")
            .uid(user)
            .gid(group)
            .output();
        std::fs::remove_file(&program).expect("removed");
        let said = String::from_utf8(said.expect("ran").stdout).expect("text");
        let line = said.lines().find(|line| line.contains("stores: ")).unwrap_or_else(|| panic!("{said}"));
        line.contains("stores: true")
    }
    assert!(gets(0, 0) && gets(65_534, GROUP), "root, and a member of the group");
    assert!(!gets(65_534, 65_534), "a stranger");
    mutant::select(Mutant::StoresForEverybody);
    let found = gets(65_534, 65_534);
    mutant::select(Mutant::None);
    assert!(found, "StoresForEverybody escaped");
}

/// Medians of a durable overwrite in nanoseconds: copies that are flushed and fenced, stores under a lease, requests.
#[test]
#[ignore = "a measurement"]
fn cost() {
    const BYTES: usize = 1 << 20;
    let _alone = alone();
    let scene = scene();
    let _made = scene.made("f", BYTES);
    let memory = tempfile_of(BYTES);
    let bytes = vec![7; 64 << 10];
    for name in ["copies", "copies and flushes", "leases", "requests"] {
        let mount = scene.connect(&Options { stores: name == "leases", ..Options::default() });
        let file = opened(&mount, "f");
        (0..BEFORE).for_each(|_| file.write_all_at(&bytes[..8], 0).expect("written"));
        assert_eq!(scene.lent().0, usize::from(name == "leases"));
        for (length, writes) in [(8, 40_000), (100, 40_000), (4096, 40_000), (64 << 10, 4000)] {
            let mut all: Vec<f64> = (0..7)
                .map(|_| {
                    let begun = Instant::now();
                    for write in 0..writes {
                        let at = (write * 7919 * 64 % (BYTES - length)) as u64;
                        let from = black_box(&bytes[..length]);
                        match name {
                            "copies" => memory.store(at, from).expect("stored"),
                            "copies and flushes" => {
                                memory.store_streaming(at, from).expect("stored");
                                memory.flush(at, length as u64);
                                memory.fence();
                            }
                            _ => assert_eq!(file.write_at(from, at), Ok(length)),
                        }
                    }
                    begun.elapsed().as_nanos() as f64 / writes as f64
                })
                .collect();
            all.sort_by(f64::total_cmp);
            println!("{name}: {length} B {:.0} ns ({:.0} to {:.0})", all[3], all[0], all[6]);
        }
    }
    let mount = scene.connect(&storing());
    let (file, other) = (opened(&mount, "f"), scene.open("f"));
    let mut all: Vec<f64> = (0..200)
        .map(|_| {
            (0..100).for_each(|_| file.write_all_at(&bytes[..8], 0).expect("written"));
            let begun = Instant::now();
            scene.read(&other, 0, 1);
            begun.elapsed().as_nanos() as f64
        })
        .collect();
    all.sort_by(f64::total_cmp);
    println!("a read that ends a lease of {} KiB: {:.0} us; {:?}", BYTES >> 10, all[100] / 1000.0, scene.counts());
}

/// Memory of a file without a name, mapped.
fn tempfile_of(bytes: usize) -> Mapping {
    let path = std::env::temp_dir().join(format!("tandemfs-door-stores-copies-{}", std::process::id()));
    let file = HostFile::options().read(true).write(true).create_new(true).open(&path).expect("a file");
    std::fs::remove_file(&path).expect("removed");
    file.set_len(bytes as u64).expect("sized");
    let map = Mapping::new("copies", &file, MappingOptions { length: bytes as u64, ..MappingOptions::default() }).expect("mapped");
    map.store(0, &vec![1; bytes]).expect("stored");
    map
}
