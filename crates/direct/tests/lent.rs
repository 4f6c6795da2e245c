//! Bytes that clients load from the memory zone themselves ([LND1]–[LND3] of `lib.rs`, [LDS1]–[LDS4] of the client), through the server, the
//! shared memory and the client: what is read is held against a model after each change, beside threads that write, behind the end of the
//! server and of the image. Who gets the zone, and who does not.
//!
//! Server and client are in this process; see `server.rs`. The bug is that of the process: the tests run one after the other. What a read
//! costs is a measurement:
//!
//!     cargo test --profile soak -p tandemfs-direct --test lent -- --ignored --nocapture cost

#[path = "support/greeting.rs"]
mod greeting;
#[path = "support/memory.rs"]
mod memory;
#[path = "support/pages.rs"]
mod pages;
mod support;

use std::fs::File as HostFile;
use std::hint::black_box;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

use tandemfs_client::mutant::{self as client_mutant, Mutant as ClientMutant};
use tandemfs_client::{Errno, Error, File, Mount, OpenOptions, Options, Tree};
use tandemfs_crash::{Random, rounds_or, seed_or};
use tandemfs_direct::mutant::{self, Mutant};
use tandemfs_direct::{Entrants, Limits, Server};
use tandemfs_format::InodeNumber;
use tandemfs_protocol::{Handle, Hello, Number, Operation, Outcome, Place, Text};
use tandemfs_ring::{Client, Range};
use tandemfs_vfs::{At, OpenFile, Settings, Subject, Vfs};

use greeting::greeted;
use memory::{GROUP, alone, file_system, filled, somebody};
use pages::Pages;
use support::socket_to;

const ZONE_BYTES: u64 = 64 << 20;

/// A file system on memory alone, and a server.
struct Scene {
    vfs: Vfs,
    server: Server,
    /// The memory, which has no name any more.
    image: HostFile,
    pages: Arc<Pages>,
}

fn scene_lending(lends_to: Option<u32>) -> Scene {
    let (fs, image) = file_system(ZONE_BYTES);
    let pages = Arc::<Pages>::default();
    let vfs = Vfs::new(Arc::new(fs), Settings::default()).beside(pages.clone());
    let (stands, limits) = (Box::new(|| true), Limits { threads: 4, lends_to, ..Limits::default() });
    let server = Server::start(vfs.clone(), support::mount_identity(), stands, Entrants::Everybody, limits).expect("starts");
    Scene { vfs, server, image, pages }
}

fn scene() -> Scene {
    scene_lending(Some(GROUP))
}

fn loading() -> Options {
    Options { loads: true, ..Options::default() }
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

    fn open(&self, path: &str) -> OpenFile {
        self.vfs.open(&somebody(), At::Root, path.as_bytes(), libc::O_CREAT | libc::O_RDWR, 0o644).expect("opened")
    }

    fn write(&self, file: &OpenFile, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            done += self.vfs.write_at(&somebody(), file, (offset + done as u64) as i64, &bytes[done..], 0).expect("written");
        }
    }

    fn write_back(&self) {
        self.vfs.file_system().write_back_all().expect("written back");
    }
}

fn read(file: &File, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; length];
    let done = file.read_at(&mut bytes, offset).expect("read");
    bytes.truncate(done);
    bytes
}

#[test]
fn what_is_lent_is_read_without_a_request() {
    /// The rest is a data log.
    const LENT: u64 = 3 << 20;
    let _alone = alone();
    let scene = scene();
    let mut random = Random::new(1);
    let model = filled(&mut random, LENT as usize + 1000);
    scene.write(&scene.open("f"), 0, &model);
    scene.write_back();
    let mount = scene.connect(&loading());
    assert!(mount.loads_by_itself());
    let file = mount.open("f").expect("opened");
    for _ in 0..3 {
        (0..4_u64).for_each(|window| assert_eq!(read(&file, window << 20, 100), model[(window as usize) << 20..][..100]));
    }
    assert_eq!(scene.count(|number| number == Number::Lend), 4, "each window once");
    let requests = scene.requests_of(|| {
        for _ in 0..200 {
            let offset = random.below(LENT - 1) as usize;
            let length = (1 + random.below(2 << 20)).min(LENT - offset as u64) as usize;
            assert!(read(&file, offset as u64, length) == model[offset..offset + length], "{length} bytes at {offset}");
        }
        assert!(read(&file, 0, LENT as usize) == model[..LENT as usize], "all of it");
    });
    assert_eq!(requests, 0);
    let end = model.len() as u64;
    assert_eq!((read(&file, end - 10, 100).len(), read(&file, end, 100).len()), (10, 0), "the end is the daemon's to say");
    let (_, clients) = scene.server.observer().clients();
    assert!(clients[0].has_zone);
}

/// After each change by somebody else the client reads what is there, whether it loads or asks.
#[test]
fn random_changes_are_seen_at_once() {
    const FILE_BYTES: u64 = (2 << 20) + 5000;
    let _alone = alone();
    let scene = scene();
    let (seed, rounds) = (seed_or(7), rounds_or(1000));
    let mut random = Random::new(seed);
    let mut model = filled(&mut random, FILE_BYTES as usize);
    let writer = scene.open("f");
    scene.write(&writer, 0, &model);
    scene.write_back();
    let mount = scene.connect(&loading());
    let file = mount.open("f").expect("opened");
    let (mut loaded, mut asked) = (0, 0);
    for round in 0..rounds {
        let offset = random.below(FILE_BYTES);
        let most = if random.one_in(4) { 300_000 } else { 9000 };
        let length = (1 + random.below(most)).min(FILE_BYTES - offset);
        let part = offset as usize..(offset + length) as usize;
        match random.below(24) {
            0 | 1 => {
                let bytes = filled(&mut random, part.len());
                model.resize(model.len().max(part.end), 0);
                model[part.clone()].copy_from_slice(&bytes);
                scene.write(&writer, offset, &bytes);
            }
            2 if random.one_in(3) => {
                model.resize(offset as usize, 0);
                scene.vfs.truncate(&somebody(), Subject::Open(&writer), offset as i64).expect("cut");
            }
            3 => {
                let flags = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                scene.vfs.allocate(&somebody(), &writer, flags as u32, offset as i64, length as i64).expect("punched");
                let end = part.end.min(model.len());
                model[part.start.min(end)..end].fill(0);
            }
            4 => scene.write_back(),
            // Freed pages go to another file.
            5 => scene.write(&scene.open("other"), 0, &filled(&mut random, part.len())),
            _ => {}
        }
        for _ in 0..6 {
            let requests = scene.requests_of(|| {
                let offset = random.below(model.len() as u64 + 100);
                let most = if random.one_in(3) { 1 << 20 } else { 5000 };
                let length = 1 + random.below(most) as usize;
                let there = &model[(offset as usize).min(model.len())..(offset as usize + length).min(model.len())];
                let found = read(&file, offset, length);
                assert!(found == there, "seed {seed}, round {round}: {length} bytes at {offset} of {}", model.len());
            });
            (loaded, asked) = if requests == 0 { (loaded + 1, asked) } else { (loaded, asked + 1) };
        }
    }
    println!("{loaded} reads were loaded, for {asked} something was asked");
    assert!(loaded > 0 && asked > 0);
}

/// [LDS1] of `crates/client`
#[test]
fn what_has_changed_is_not_loaded() {
    let _alone = alone();
    fn is_right() -> bool {
        let scene = scene();
        let writer = scene.open("f");
        scene.write(&writer, 0, &[1; 100_000]);
        scene.write_back();
        let mount = scene.connect(&loading());
        let file = mount.open("f").expect("opened");
        let loads = (0..4).all(|_| read(&file, 0, 5000) == [1; 5000]);
        scene.write(&writer, 0, &[2; 100_000]);
        loads && read(&file, 0, 5000) == [2; 5000]
    }
    assert!(is_right());
    client_mutant::select(ClientMutant::LoadsNotCompared);
    let found = !is_right();
    client_mutant::select(ClientMutant::None);
    assert!(found, "LoadsNotCompared escaped");
}

/// Each word says which version of which block it is of.
fn content(block: usize, version: u64) -> Vec<u8> {
    ((block as u64) << 32 | version).to_le_bytes().repeat(512)
}

#[test]
fn what_is_loaded_beside_writers_is_whole_and_not_old() {
    const BLOCKS: usize = 64;
    const READS: usize = 20_000;
    let _alone = alone();
    let scene = scene();
    let writer = scene.open("f");
    scene.write(&writer, 0, &(0..BLOCKS).flat_map(|block| content(block, 0)).collect::<Vec<_>>());
    scene.write_back();
    let mount = scene.connect(&loading());
    let file = mount.open("f").expect("opened");
    let (begun, done): (Vec<_>, Vec<_>) = (0..BLOCKS).map(|_| (AtomicU64::new(0), AtomicU64::new(0))).unzip();
    let ends = AtomicBool::new(false);
    let read_requests = || scene.count(|number| number == Number::Read);
    std::thread::scope(|scope| {
        let changer = scope.spawn(|| {
            let (mut random, mut version) = (Random::new(1), 0);
            while !ends.load(Relaxed) {
                version += 1;
                let block = random.below(BLOCKS as u64) as usize;
                begun[block].store(version, SeqCst);
                scene.write(&writer, (block * 4096) as u64, &content(block, version));
                done[block].store(version, SeqCst);
                scene.write_back();
                // Time in which windows can be looked up and used.
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let other = scope.spawn(|| {
            while !ends.load(Relaxed) {
                scene.write(&scene.open("other"), 0, &content(1 << 20, 7).repeat(16));
                scene.vfs.unlink(&somebody(), At::Root, b"other").expect("removed");
            }
        });
        let readers: Vec<_> = (0..2)
            .map(|reader| {
                let (file, begun, done) = (&file, &begun, &done);
                scope.spawn(move || {
                    let mut random = Random::new(2 + reader);
                    for _ in 0..READS {
                        let block = random.below(BLOCKS as u64) as usize;
                        let least = done[block].load(SeqCst);
                        let found = read(file, (block * 4096) as u64, 4096);
                        let most = begun[block].load(SeqCst);
                        let word = u64::from_le_bytes(found[..8].try_into().expect("eight bytes"));
                        assert_eq!((word >> 32) as usize, block, "the bytes are of another place");
                        let version = word & u64::from(u32::MAX);
                        assert!((least..=most).contains(&version), "version {version} of block {block}, not {least} to {most}");
                        assert!(found == content(block, version), "block {block} is of several versions");
                    }
                })
            })
            .collect();
        let results: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
        ends.store(true, Relaxed);
        changer.join().expect("it ended");
        other.join().expect("it ended");
        assert!(results.iter().all(Result::is_ok), "a reader found something else");
    });
    println!("{} of {} reads asked", read_requests(), 2 * READS);
}

/// [KNW5]
#[test]
fn nothing_is_lent_where_the_kernel_has_pages() {
    let _alone = alone();
    fn requests() -> u64 {
        let scene = scene();
        scene.write(&scene.open("f"), 0, &[1; 100_000]);
        scene.write_back();
        let mount = scene.connect(&loading());
        let file = mount.open("f").expect("opened");
        let reads = |count| scene.requests_of(|| (0..count).for_each(|_| assert_eq!(read(&file, 0, 50_000), [1; 50_000])));
        assert_eq!(reads(5), 3, "the kernel has none yet: two reads and the look-up");
        scene.pages.0.store(true, SeqCst);
        scene.vfs.file_system().revoke_bytes(InodeNumber::new(file.attributes().expect("there").node));
        reads(50)
    }
    let asked = requests();
    assert!(asked >= 50, "{asked}");
    mutant::select(Mutant::KernelPagesKept);
    let found = requests();
    mutant::select(Mutant::None);
    assert!(found < 50, "KernelPagesKept escaped");
}

#[test]
fn who_opened_for_writing_or_past_the_cache_is_lent_nothing() {
    let _alone = alone();
    let scene = scene();
    scene.write(&scene.open("f"), 0, &[1; 100_000]);
    scene.write_back();
    let mount = scene.connect(&loading());
    let file = OpenOptions::new().write(true).open(&mount, "f").expect("opened");
    assert!((0..5).all(|_| file.read_at(&mut [0; 10], 0) == Err(Error::Errno(Errno::BADF))));
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&mount, "f").expect("opened");
    assert!(scene.requests_of(|| (0..20).for_each(|_| assert_eq!(read(&file, 0, 50_000), [1; 50_000]))) >= 20);
}

/// The image is cut short behind the daemon's back: the daemon has an error, and so has the client, which goes on.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_zone_that_fails_is_the_daemons_error() {
    let _alone = alone();
    let scene = scene();
    scene.write(&scene.open("f"), 0, &vec![1; 3 << 20]);
    scene.write_back();
    let mount = scene.connect(&loading());
    let file = mount.open("f").expect("opened");
    (0..9).for_each(|round| assert_eq!(read(&file, (round % 3) << 20, 100), [1; 100]));
    assert_eq!(scene.requests_of(|| assert_eq!(read(&file, 0, 3 << 20).len(), 3 << 20)), 0, "all is lent");
    scene.image.set_len(0).expect("cut");
    assert_eq!(file.read_at(&mut vec![0; 200_000], 1000), Err(Error::Errno(Errno::IO)));
    mount.ping().expect("the connection lives");
}

/// [VER7]
#[test]
fn nothing_is_loaded_behind_the_end_of_the_server() {
    let _alone = alone();
    let scene = scene();
    scene.write(&scene.open("f"), 0, &[1; 100_000]);
    scene.write_back();
    let mount = scene.connect(&loading());
    let file = mount.open("f").expect("opened");
    (0..4).for_each(|_| assert_eq!(read(&file, 0, 50_000), [1; 50_000]));
    assert_eq!(scene.requests_of(|| assert_eq!(read(&file, 0, 50_000), [1; 50_000])), 0);
    drop(scene.server);
    assert_eq!(file.read_at(&mut [0; 50_000], 0), Err(Error::Errno(Errno::NOTCONN)));
}

#[test]
fn the_zone_is_for_who_asks_where_the_mount_lends() {
    let _alone = alone();
    assert!(!scene_lending(None).connect(&loading()).loads_by_itself(), "a mount that lends to nobody");
    let scene = scene();
    assert!(!scene.connect(&Options::default()).loads_by_itself(), "a client that has not asked");
    assert!(scene.connect(&loading()).loads_by_itself());
}

/// [LND2], [MAP3]: a client that asks for places, or maps, all the same.
#[test]
fn who_has_no_zone_is_told_nothing() {
    let _alone = alone();
    fn told(maps: bool) -> Outcome {
        let scene = scene();
        scene.write(&scene.open("f"), 0, &[1; 100_000]);
        scene.write_back();
        let socket = socket_to(scene.server.socket());
        let (welcome, mut descriptors) = greeted(socket.as_fd(), Hello::new(1, 1 << 20));
        assert_eq!((welcome.zone, welcome.operations & (Number::Lend.bit() | Number::Map.bit())), (None, 0));
        descriptors.truncate(descriptors.len() - usize::from(welcome.version_words > 0));
        let mut descriptors = descriptors.into_iter();
        let (arena, words) = (descriptors.next().expect("an arena"), descriptors.next().expect("words"));
        let client = Client::map(arena.as_fd(), words.as_fd(), descriptors.next(), Some(socket)).expect("mapped");
        assert!(descriptors.next().is_none(), "a descriptor more");
        let mut slot = client.slot().expect("a slot");
        let open =
            Operation::Open { at: Place::Root, path: Text::Here(b"f"), flags: libc::O_RDONLY, mode: 0, umask: 0, into: Range::default() };
        let opened = slot.call(&open.encode().expect("short")).expect("answered");
        let handle = Handle::of(opened.value).expect("a handle");
        let into = client.buffer(4096).expect("room").range();
        let asks = match maps {
            true => Operation::Map { handle, offset: 0, length: 4096, into },
            false => Operation::Lend { handle, offset: 0, into },
        };
        Outcome::decode(slot.call(&asks.encode().expect("short")).expect("answered")).expect("an outcome")
    }
    for (maps, bug) in [(false, Mutant::LentWithoutZone), (true, Mutant::MappedWithoutZone)] {
        assert_eq!(told(maps), Outcome::Errno(Errno::NOSYS.raw_os_error()));
        mutant::select(bug);
        let found = told(maps);
        mutant::select(Mutant::None);
        assert!(matches!(found, Outcome::Done(answer) if answer.value > 0), "{bug:?} escaped");
    }
}

/// Another user's process: prints whether it got the zone.
#[test]
#[ignore = "started by a test"]
fn child() {
    let socket = socket_to(std::env::var_os("TANDEMFS_TEST_SOCKET").expect("where").as_ref());
    let (welcome, descriptors) = greeted(socket.as_fd(), Hello::new(1, 1 << 20).wanting_zone(true));
    println!("zone: {}, descriptors: {}", welcome.zone.is_some(), descriptors.len());
}

/// [LND1], by processes of other users, which root alone can start; who is trusted is also told by ids alone in `peers.rs`.
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
        let program = std::env::temp_dir().join(format!("tandemfs-door-lent-child-{}", std::process::id()));
        std::fs::copy(std::env::current_exe().expect("this program"), &program).expect("copied");
        let said = Command::new(&program)
            .args(["--ignored", "--exact", "child", "--nocapture"])
            .env("TANDEMFS_TEST_SOCKET", scene.server.socket())
            .current_dir("/")
            .uid(user)
            .gid(group)
            .output();
        std::fs::remove_file(&program).expect("removed");
        let said = String::from_utf8(said.expect("ran").stdout).expect("text");
        let line = said.lines().find(|line| line.contains("zone: ")).unwrap_or_else(|| panic!("{said}"));
        line.contains("zone: true")
    }
    assert!(gets(0, 0) && gets(65_534, GROUP), "root, and a member of the group");
    assert!(!gets(65_534, 65_534), "a stranger");
    mutant::select(Mutant::ZoneForEverybody);
    let found = gets(65_534, 65_534);
    mutant::select(Mutant::None);
    assert!(found, "ZoneForEverybody escaped");
}

/// Medians of a read in nanoseconds, by loads and by requests, beside copies of the same length in the memory of this process.
#[test]
#[ignore = "a measurement"]
fn cost() {
    let _alone = alone();
    let scene = scene();
    scene.write(&scene.open("f"), 0, &vec![1; 16 << 20]);
    scene.write_back();
    let memory = vec![1; 16 << 20];
    for (name, options) in [
        ("copies", Options { keeps_answers: false, ..Options::default() }),
        ("loads", Options { loads: true, keeps_answers: false, ..Options::default() }),
        ("requests", Options { keeps_answers: false, ..Options::default() }),
    ] {
        let mount = scene.connect(&options);
        let file = mount.open("f").expect("opened");
        let mut bytes = vec![0; 1 << 20];
        (0..64).for_each(|round| assert_eq!(file.read_at(&mut bytes[..4096], (round % 16) << 20), Ok(4096)));
        for (length, reads) in [(100, 40_000), (4096, 40_000), (64 << 10, 4000), (1 << 20, 300)] {
            let mut all: Vec<f64> = (0..7)
                .map(|_| {
                    let begun = Instant::now();
                    for read in 0..reads {
                        let offset = (read * 7919) % ((16 << 20) - length);
                        if name == "copies" {
                            black_box(&mut bytes[..length]).copy_from_slice(&memory[offset..offset + length]);
                        } else {
                            assert_eq!(file.read_at(&mut bytes[..length], offset as u64), Ok(length));
                        }
                    }
                    begun.elapsed().as_nanos() as f64 / reads as f64
                })
                .collect();
            all.sort_by(f64::total_cmp);
            println!("{name}: {length} B {:.0} ns ({:.0} to {:.0})", all[3], all[0], all[6]);
        }
    }
}
