//! Ranges of files that clients map from the memory zone ([MAP1]–[MAP5] of `mappings.rs`, [CMP1]–[CMP3] of the client), through the server, the
//! shared memory and the client. Who has no zone: `lent.rs`.
//!
//! Server and client are in this process; see `server.rs`. The bug is that of the process: the tests run one after the other. What a mapped
//! gigabyte costs, in page faults and time, is a measurement:
//!
//!     cargo test --profile soak -p tandemfs-direct --test mapped -- --ignored --nocapture cost

#[path = "support/pages.rs"]
mod pages;
mod support;

use std::fs::File as HostFile;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tandemfs_client::mutant::{self as client_mutant, Mutant as ClientMutant};
use tandemfs_client::{Errno, Error, File, Mapping, Mount, OpenOptions, Options, Tree, Why};
use tandemfs_crash::Random;
use tandemfs_device::Drive;
use tandemfs_direct::mutant::{self, Mutant};
use tandemfs_direct::{Entrants, Limits, Server};
use tandemfs_emulator::{DeviceOptions, open_device};
use tandemfs_fs::{FileSystem, FormatOptions, MountOptions, make_file_system};
use tandemfs_vfs::{At, Capabilities, Credentials, OpenFile, Process, Settings, Subject, Vfs};

use pages::Pages;

const ZONE_BYTES: u64 = 64 << 20;
/// Nobody is a member.
const GROUP: u32 = 54_321;

fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file system on memory alone, and a server.
struct Scene {
    vfs: Vfs,
    server: Server,
    pages: Arc<Pages>,
}

fn scene_of(zone_bytes: u64, limits: Limits) -> Scene {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let path = std::env::temp_dir().join(format!("tandemfs-door-mapped-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed)));
    let image = HostFile::options().read(true).write(true).create_new(true).open(&path).expect("a file");
    image.set_len(zone_bytes).expect("sized");
    let device = open_device(&format!("memory={}", path.display()), &DeviceOptions::default());
    std::fs::remove_file(&path).expect("removed; the device keeps it");
    let drive = Drive::new(device.expect("opens"));
    make_file_system(&drive, &FormatOptions::default()).expect("formats");
    let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
    let pages = Arc::<Pages>::default();
    let vfs = Vfs::new(Arc::new(fs), Settings::default()).beside(pages.clone());
    let limits = Limits { threads: 4, lends_to: Some(GROUP), ..limits };
    let server = Server::start(vfs.clone(), support::mount_identity(), Box::new(|| true), Entrants::Everybody, limits).expect("starts");
    Scene { vfs, server, pages }
}

fn scene() -> Scene {
    scene_of(ZONE_BYTES, Limits::default())
}

fn somebody() -> Process {
    Process { umask: 0, ..Process::of(Credentials::new(0, 0, &[], Capabilities::ALL)) }
}

impl Scene {
    fn connect(&self) -> Mount {
        support::connect(&self.server, "/proc", &Options { maps: true, ..Options::default() }).expect("let in")
    }

    fn open(&self, path: &str) -> OpenFile {
        self.vfs.open(&somebody(), At::Root, path.as_bytes(), libc::O_CREAT | libc::O_RDWR, 0o644).expect("opened")
    }

    fn write(&self, file: &OpenFile, offset: u64, bytes: &[u8]) -> Result<(), tandemfs_vfs::Refused> {
        let mut done = 0;
        while done < bytes.len() {
            done += self.vfs.write_at(&somebody(), file, (offset + done as u64) as i64, &bytes[done..], 0)?;
        }
        Ok(())
    }

    /// Writes a file, and opens it as a client.
    fn file(&self, mount: &Mount, bytes: &[u8]) -> File {
        self.write(&self.open("f"), 0, bytes).expect("written");
        mount.open("f").expect("opened")
    }

    /// Waits until there are so many mappings; false if that does not come.
    fn has_mappings(&self, count: usize) -> bool {
        let begun = Instant::now();
        while self.server.mappings() != count {
            if begun.elapsed() > Duration::from_secs(10) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }
}

fn bytes_of(mapping: &Mapping) -> Vec<u8> {
    let mut bytes = vec![0xee; mapping.length() as usize];
    mapping.load(0, &mut bytes).expect("loaded");
    bytes
}

fn filled(random: &mut Random, length: usize) -> Vec<u8> {
    (0..length.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).take(length).collect()
}

#[test]
fn a_mapping_has_the_bytes_of_the_file_whoever_changes_them() {
    let _alone = alone();
    let (scene, mut random) = (scene(), Random::new(1));
    let mount = scene.connect();
    assert!(mount.maps() && !mount.loads_by_itself());
    let mut model = filled(&mut random, (3 << 20) + 1000);
    let file = scene.file(&mount, &model);
    let mapping = file.map(0..model.len() as u64).expect("mapped");
    let part = file.map(8192..20_000).expect("mapped");
    drop(file);
    assert!(bytes_of(&mapping) == model && bytes_of(&part) == model[8192..20_000]);
    let writer = scene.open("f");
    for round in 0..200 {
        let offset = random.below(model.len() as u64 - 1) as usize;
        let length = (1 + random.below(100_000) as usize).min(model.len() - offset);
        let bytes = filled(&mut random, length);
        scene.write(&writer, offset as u64, &bytes).expect("written");
        model[offset..offset + length].copy_from_slice(&bytes);
        if round % 20 == 0 {
            scene.vfs.file_system().write_back_all().expect("written back");
        }
        assert!(bytes_of(&mapping) == model && bytes_of(&part) == model[8192..20_000], "round {round}");
    }
    assert_eq!(
        (mapping.load(model.len() as u64, &mut [0]), mapping.load(u64::MAX, &mut [0])),
        (Err(Errno::INVAL.into()), Err(Errno::INVAL.into()))
    );
    scene.vfs.truncate(&somebody(), Subject::Open(&writer), 100_000).expect("cut");
    model[100_000..].fill(0);
    assert!(bytes_of(&mapping) == model, "what was cut off is zeros");
    scene.vfs.truncate(&somebody(), Subject::Open(&writer), model.len() as i64).expect("grown");
    scene.write(&writer, 2 << 20, b"again").expect("written");
    model[2 << 20..][..5].copy_from_slice(b"again");
    assert!(bytes_of(&mapping) == model, "and is the file's again");
    assert_eq!(scene.server.mappings(), 2);
    drop((mapping, part));
    assert_eq!(scene.server.mappings(), 0);
}

/// [CMP1]
#[test]
fn the_daemon_is_told_that_a_mapping_is_gone() {
    let _alone = alone();
    fn left() -> usize {
        let scene = scene();
        let mount = scene.connect();
        drop(scene.file(&mount, &[1; 10_000]).map(0..10_000).expect("mapped"));
        scene.server.mappings()
    }
    assert_eq!(left(), 0);
    client_mutant::select(ClientMutant::UnmapNotTold);
    let found = left();
    client_mutant::select(ClientMutant::None);
    assert_eq!(found, 1, "UnmapNotTold escaped");
}

/// [MAP2]: a further connection of this process ends the first one, whose mapping is still there.
#[test]
fn pages_stay_while_they_are_mapped_whatever_has_ended() {
    let _alone = alone();
    fn stay() -> bool {
        let scene = scene();
        let mount = scene.connect();
        let mapping = scene.file(&mount, &[1; 1 << 20]).map(0..1 << 20).expect("mapped");
        let other = support::connect(&scene.server, "/proc", &Options::default()).expect("let in");
        while !mount.has_ended() {
            std::thread::sleep(Duration::from_millis(1));
        }
        other.ping().expect("answered");
        scene.vfs.unlink(&somebody(), At::Root, b"f").expect("removed");
        std::thread::sleep(Duration::from_millis(500)); // the server has looked
        let filler = scene.open("filler");
        let mut at = 0;
        while scene.write(&filler, at, &[2; 1 << 20]).is_ok() {
            at += 1 << 20;
        }
        let stayed = bytes_of(&mapping) == [1; 1 << 20] && scene.server.mappings() == 1;
        drop((mapping, mount));
        assert!(scene.has_mappings(0), "they are kept for ever");
        stayed
    }
    assert!(stay());
    mutant::select(Mutant::PinsEndWithClients);
    let found = stay();
    mutant::select(Mutant::None);
    assert!(!found, "PinsEndWithClients escaped");
}

/// The server ends before who maps.
#[test]
fn a_server_that_ends_keeps_nothing() {
    let _alone = alone();
    let scene = scene();
    let mount = scene.connect();
    let mapping = scene.file(&mount, &[1; 10_000]).map(0..10_000).expect("mapped");
    let Scene { vfs, server, .. } = scene;
    drop(server);
    assert!(mount.has_ended());
    vfs.file_system()
        .map(vfs.stat(&somebody(), Subject::at(At::Root, b"f", 0).expect("a path")).expect("there").inode, 0, 1, false)
        .expect("mapped");
    assert_eq!(bytes_of(&mapping), [1; 10_000]);
}

#[test]
fn what_cannot_be_mapped_is_refused() {
    let _alone = alone();
    let scene = scene();
    let mount = scene.connect();
    let file = scene.file(&mount, &[1; 10_000]);
    let errno = |result: Result<Mapping, Error>| match result {
        Err(Error::Errno(errno)) => errno,
        other => panic!("{other:?}"),
    };
    for (range, what) in [
        (0..0, "empty"),
        (100..200, "not at a page"),
        (0..10_001, "behind the end"),
        (12_288..12_289, "behind the end"),
        (Range { start: 4096, end: 0 }, "backwards"),
        (u64::MAX - 4095..u64::MAX, "no offset"),
    ] {
        assert_eq!(errno(file.map(range)), Errno::INVAL, "{what}");
    }
    assert_eq!(errno(file.map(0..u64::MAX)), Errno::NOMEM, "more than a client may map");
    assert_eq!(errno(file.map(0..1 << 40)), Errno::INVAL, "not refused for its length alone");
    assert_eq!(errno(mount.open(".").expect("opened").map(0..4096)), Errno::INVAL, "a directory");
    let written = OpenOptions::new().write(true).open(&mount, "f").expect("opened");
    assert_eq!(errno(written.map(0..4096)), Errno::BADF);
    scene.pages.0.store(true, SeqCst);
    let crossed = file.map(0..4096);
    assert!(matches!(&crossed, Err(Error::Crossed(crossed)) if crossed.why == Why::Cached), "{crossed:?}"); // [MAP4]
    scene.pages.0.store(false, SeqCst);
    file.map(0..10_000).expect("mapped");
    assert_eq!(scene.server.mappings(), 0, "what was refused is not kept");
    let mount = support::connect(&scene.server, "/proc", &Options { loads: true, ..Options::default() }).expect("let in");
    let crossed = mount.open("f").expect("opened").map(0..4096);
    assert!(matches!(&crossed, Err(Error::Crossed(crossed)) if crossed.why == Why::NotServed), "{crossed:?}");
}

/// [MAP1]
#[test]
fn mappings_are_bounded() {
    let _alone = alone();
    fn last(limits: Limits) -> Result<(), Error> {
        let scene = scene_of(ZONE_BYTES, limits);
        let mount = scene.connect();
        let file = scene.file(&mount, &[1; 10_000]);
        let all: Vec<Mapping> = (0..3).map(|_| file.map(0..10_000).expect("mapped")).collect();
        let last = file.map(0..10_000).map(drop);
        drop(all);
        file.map(0..10_000).expect("there is room again");
        last
    }
    let few = || Limits { mappings: 3, ..Limits::default() };
    let small = || Limits { mapped_bytes: 39_999, ..Limits::default() };
    assert_eq!(last(Limits::default()), Ok(()));
    assert_eq!((last(few()), last(small())), (Err(Errno::NOMEM.into()), Err(Errno::NOMEM.into())));
    mutant::select(Mutant::MappingsUnbounded);
    let found = (last(few()), last(small()));
    mutant::select(Mutant::None);
    assert_eq!(found, (Ok(()), Ok(())), "MappingsUnbounded escaped");
}

/// Page faults of this process so far.
fn faults() -> u64 {
    let line = std::fs::read_to_string("/proc/self/stat").expect("there");
    let fields: Vec<&str> = line.rsplit(')').next().expect("a line").split_whitespace().collect();
    [7, 9].map(|index: usize| fields[index].parse::<u64>().expect("a number")).iter().sum() // minflt and majflt
}

/// Page faults and rate of a mapped file of 1 GiB, read once in order and once again, in copies of 1 MiB.
#[test]
#[ignore = "a measurement"]
fn cost() {
    const FILE_BYTES: u64 = 1 << 30;
    let _alone = alone();
    let scene = scene_of(FILE_BYTES + (256 << 20), Limits::default());
    let mount = scene.connect();
    let (writer, mut bytes) = (scene.open("f"), vec![1; 1 << 20]);
    (0..FILE_BYTES >> 20).for_each(|at| scene.write(&writer, at << 20, &bytes).expect("written"));
    let file = mount.open("f").expect("opened");
    let (begun, before) = (Instant::now(), faults());
    let mapping = file.map(0..FILE_BYTES).expect("mapped");
    println!("map: {} us, {} faults", begun.elapsed().as_micros(), faults() - before);
    for round in ["first", "second"] {
        let (begun, before) = (Instant::now(), faults());
        (0..FILE_BYTES >> 20).for_each(|at| mapping.load(at << 20, &mut bytes).expect("loaded"));
        let rate = FILE_BYTES as f64 / begun.elapsed().as_secs_f64() / 1e9;
        println!("{round} time: {rate:.2} GB/s, {} faults", faults() - before);
    }
}
