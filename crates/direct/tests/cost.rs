//! What a call through the door costs, beside the same call of `vfs` in the thread that asks: the difference is the ring, the poller and the
//! client. Server and client are in this process; the drive is an image in memory without time of its own.
//!
//!     cargo test --release --locked -p tandemfs-direct --test cost -- --ignored --nocapture measure
//!
//! `measure_known`: answers that the client knows, and what published versions add to changes.
//!
//! Both take turns in short rounds, so that what else the machine does meets both. Prints the medians of the rounds, each the median of
//! batches of 32 calls, and the fastest batch, which a busy machine disturbs least. What a call returns for is durable.

mod support;

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tandemfs_client::{File, Mount, OpenOptions, Options, Tree};
use tandemfs_device::Drive;
use tandemfs_direct::{Entrants, Limits, Server};
use tandemfs_emulator::{CreateOptions, ImageDevice};
use tandemfs_fs::{FileSystem, FormatOptions, MountOptions, make_file_system};
use tandemfs_vfs::{At, Capabilities, Credentials, OpenFile, Process, Settings, Subject, Vfs};

const ROUNDS: usize = 15;
/// Calls between two looks at the clock.
const BATCH: usize = 32;
const BATCHES: usize = 100;
const FILE_BYTES: u64 = 1 << 20;
const BLOCK: usize = 4096;

/// What is written; aligned, since how fast `memmove` is depends on it, and the linker would choose it anew in each build.
#[repr(align(64))]
struct Written([u8; BLOCK]);

static WRITTEN: Written = Written([7; BLOCK]);

fn mounted() -> Vfs {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Relaxed);
    let path = PathBuf::from(format!("/dev/shm/tandemfs-door-cost-{}-{number}", std::process::id()));
    let options = CreateOptions { profile: "romefs-a".into(), memory_bytes: 256 << 20, block_bytes: 256 << 20 };
    tandemfs_emulator::create(&path, &options).expect("an image");
    let opened = ImageDevice::open(&path, &tandemfs_emulator::OpenOptions { timing: false, ..Default::default() });
    std::fs::remove_file(&path).expect("removed; the device keeps it");
    let device = Arc::new(opened.expect("opens"));
    device.populate().expect("populated");
    let drive = Drive::new(device);
    make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
    let fs = Arc::new(FileSystem::mount(drive, &MountOptions::default()).expect("mounts"));
    fs.start_background().expect("starts");
    Vfs::new(fs, Settings::default())
}

fn connected(vfs: &Vfs, options: &Options) -> (Server, Mount) {
    let stands = Box::new(|| true);
    let server = Server::start(vfs.clone(), support::mount_identity(), stands, Entrants::Everybody, Limits::default()).expect("starts");
    let mount = support::connect(&server, "/proc", options).expect("let in");
    (server, mount)
}

/// Calls by one of the two ways.
trait Way {
    fn nothing(&self);
    fn stat(&self);
    fn fstat(&self);
    fn open_and_close(&self);
    fn create(&self, name: &str);
    fn unlink(&self, name: &str);
    fn write(&self, offset: u64);
    fn append(&self);
    fn cut(&self);
    fn read(&self, offset: u64);
}

struct Library {
    vfs: Vfs,
    process: Process,
    file: OpenFile,
    log: OpenFile,
}

impl Library {
    fn open(vfs: &Vfs, process: &Process, name: &str, flags: i32) -> OpenFile {
        vfs.open(process, At::Root, name.as_bytes(), flags, 0o644).expect("opened")
    }
}

impl Way for Library {
    fn nothing(&self) {}

    fn stat(&self) {
        self.vfs.stat(&self.process, Subject::followed(At::Root, b"f")).expect("there");
    }

    fn fstat(&self) {
        self.file.attributes().expect("there");
    }

    fn open_and_close(&self) {
        drop(Self::open(&self.vfs, &self.process, "f", libc::O_RDWR));
    }

    fn create(&self, name: &str) {
        drop(Self::open(&self.vfs, &self.process, name, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL));
    }

    fn unlink(&self, name: &str) {
        self.vfs.unlink(&self.process, At::Root, name.as_bytes()).expect("removed");
    }

    fn write(&self, offset: u64) {
        self.vfs.write_at(&self.process, &self.file, offset as i64, &WRITTEN.0, 0).expect("written");
    }

    fn append(&self) {
        self.vfs.write_to(&self.process, &self.log, 0, (&WRITTEN.0).into(), 0).expect("appended");
    }

    fn cut(&self) {
        self.vfs.truncate(&self.process, Subject::Open(&self.log), 0).expect("cut");
    }

    fn read(&self, offset: u64) {
        self.vfs.read_at(&self.file, offset as i64, &mut [0; BLOCK]).expect("read");
    }
}

struct Door {
    mount: Mount,
    file: File,
    log: File,
}

impl Way for Door {
    fn nothing(&self) {
        self.mount.ping().expect("answered");
    }

    fn stat(&self) {
        self.mount.attributes("f").expect("there");
    }

    fn fstat(&self) {
        self.file.attributes().expect("there");
    }

    fn open_and_close(&self) {
        OpenOptions::new().read(true).write(true).open(&self.mount, "f").expect("opened").close().expect("closed");
    }

    fn create(&self, name: &str) {
        OpenOptions::new().write(true).create_new(true).open(&self.mount, name).expect("made").close().expect("closed");
    }

    fn unlink(&self, name: &str) {
        self.mount.unlink(name).expect("removed");
    }

    fn write(&self, offset: u64) {
        self.file.write_at(&WRITTEN.0, offset).expect("written");
    }

    fn append(&self) {
        self.log.append(&WRITTEN.0).expect("appended");
    }

    fn cut(&self) {
        self.log.set_length(0).expect("cut");
    }

    fn read(&self, offset: u64) {
        self.file.read_at(&mut [0; BLOCK], offset).expect("read");
    }
}

fn timed(call: &mut dyn FnMut(usize)) -> f64 {
    let begun = Instant::now();
    (0..BATCH).for_each(&mut *call);
    begun.elapsed().as_nanos() as f64 / BATCH as f64
}

fn block_of(index: usize, batch: usize) -> u64 {
    ((index + batch * BATCH) as u64).wrapping_mul(0x9e37_79b9) % (FILE_BYTES / BLOCK as u64) * BLOCK as u64
}

const CALLS: [&str; 9] =
    ["nothing", "stat", "fstat", "open + close", "create (+ close)", "unlink", "overwrite 4 KiB", "append 4 KiB", "read 4 KiB"];

/// A batch of each call.
fn batch(way: &dyn Way, number: usize) -> [f64; CALLS.len()] {
    let names: Vec<String> = (0..BATCH).map(|index| format!("made-{index}")).collect();
    let costs = [
        timed(&mut |_| way.nothing()),
        timed(&mut |_| way.stat()),
        timed(&mut |_| way.fstat()),
        timed(&mut |_| way.open_and_close()),
        timed(&mut |index| way.create(&names[index])),
        timed(&mut |index| way.unlink(&names[index])),
        timed(&mut |index| way.write(block_of(index, number))),
        timed(&mut |_| way.append()),
        timed(&mut |index| way.read(block_of(index, number))),
    ];
    way.cut();
    costs
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
#[ignore = "a measurement"]
fn measure() {
    let vfs = mounted();
    // Each call is a request.
    let (server, mount) = connected(&vfs, &Options { keeps_answers: false, ..Options::default() });
    let process = Process::of(Credentials::new(0, 0, &[], Capabilities::ALL));
    let both = libc::O_RDWR | libc::O_CREAT;
    let file = Library::open(&vfs, &process, "f", both);
    for offset in (0..FILE_BYTES).step_by(BLOCK) {
        vfs.write_at(&process, &file, offset as i64, &[1; BLOCK], 0).expect("written");
    }
    let log = Library::open(&vfs, &process, "log-1", both | libc::O_APPEND);
    let library = Library { vfs: vfs.clone(), process, file, log };
    let open = |name: &str| OpenOptions::new().read(true).write(true).create(true).open(&mount, name).expect("opened");
    let door = Door { file: open("f"), log: open("log-2"), mount: mount.clone() };
    let ways: [(&str, &dyn Way); 2] = [("library", &library), ("door", &door)];
    let mut rounds = vec![vec![Vec::new(); CALLS.len()]; ways.len()];
    let mut fastest = [[f64::INFINITY; CALLS.len()]; 2];
    for _ in 0..ROUNDS {
        for (way, (_, calls)) in ways.iter().enumerate() {
            let mut batches = vec![Vec::new(); CALLS.len()];
            let started = Instant::now();
            for number in 0..BATCHES {
                for (call, cost) in batch(*calls, number).into_iter().enumerate() {
                    batches[call].push(cost);
                    fastest[way][call] = fastest[way][call].min(cost);
                }
                if started.elapsed() > Duration::from_secs(2) {
                    break;
                }
            }
            for (call, batches) in batches.iter_mut().enumerate() {
                rounds[way][call].push(median(batches));
            }
        }
    }
    for (call, name) in CALLS.iter().enumerate() {
        let [library, door] = [0, 1].map(|way| median(&mut rounds[way][call].clone()));
        let range = |way: usize| {
            let mut all: Vec<f64> = rounds[way][call].clone();
            all.sort_by(f64::total_cmp);
            format!("{:.0} to {:.0}, fastest batch {:.0}", all[0], all[all.len() - 1], fastest[way][call])
        };
        println!("{name}: library {library:.0} ns ({}), door {door:.0} ns ({}), more {:.0} ns", range(0), range(1), door - library);
    }
    drop((door, mount));
    drop(server);
}

/// A name, and a call.
type Named<'c> = (&'static str, Box<dyn FnMut(usize) + 'c>);

/// The median of batches of each call, and the fastest.
fn in_turn(calls: &mut [Named<'_>]) -> Vec<(f64, f64)> {
    let mut batches = vec![Vec::new(); calls.len()];
    for _ in 0..ROUNDS * BATCHES {
        for ((_, call), batches) in calls.iter_mut().zip(&mut batches) {
            batches.push(timed(call));
        }
    }
    batches.iter_mut().map(|batches| (median(batches), batches[0])).collect()
}

fn printed(calls: &[Named<'_>], costs: &[(f64, f64)]) {
    for ((name, _), (median, fastest)) in calls.iter().zip(costs) {
        println!("{name}: {median:.0} ns, fastest batch {fastest:.0}");
    }
}

#[test]
#[ignore = "a measurement"]
fn measure_known() {
    let vfs = mounted();
    let (server, mount) = connected(&vfs, &Options::default());
    let file = OpenOptions::new().read(true).write(true).create(true).open(&mount, "f").expect("made");
    file.write_all_at(&[1; 1 << 16], 0).expect("written");
    for directory in ["d", "d/e", "d/e/g"] {
        mount.make_directory(directory, 0o755).expect("made");
    }
    drop(mount.create("d/e/g/f").expect("made"));
    let (mut into, mut other, from) = ([0; BLOCK], [0; BLOCK], [1; BLOCK]);
    let mut calls: [Named<'_>; 7] = [
        ("stat of a name", Box::new(|_| _ = black_box(mount.attributes("f").expect("there")))),
        ("stat of a path of four components", Box::new(|_| _ = black_box(mount.attributes("d/e/g/f").expect("there")))),
        ("access", Box::new(|_| mount.access("f", 4, false).expect("allowed"))),
        ("open of an absent name", Box::new(|_| assert!(mount.open("absent").is_err()))),
        ("fstat", Box::new(|_| _ = black_box(file.attributes().expect("there")))),
        ("read of 4 KiB", Box::new(|_| assert_eq!(black_box(file.read_at(&mut into, 4096)).expect("read"), BLOCK))),
        ("a copy of 4 KiB", Box::new(|_| black_box(&mut other).copy_from_slice(black_box(&from)))),
    ];
    let costs = in_turn(&mut calls);
    printed(&calls, &costs);
    drop(calls);
    drop((file, mount));

    let process = Process::of(Credentials::new(0, 0, &[], Capabilities::ALL));
    let plain = mounted();
    let libraries = [&plain, &vfs].map(|vfs| {
        let open = |name: &str| Library::open(vfs, &process, name, libc::O_RDWR | libc::O_CREAT);
        let (file, log) = (open("f"), open("log"));
        vfs.write_at(&process, &file, 0, &[1; FILE_BYTES as usize], 0).expect("written");
        Library { vfs: vfs.clone(), process: process.clone(), file, log }
    });
    let names: Vec<String> = (0..BATCH).map(|index| format!("made-{index}")).collect();
    let [plain, published] = &libraries;
    let mut calls: Vec<Named<'_>> = Vec::new();
    for (create, unlink, overwrite, library) in [
        ("create (+ close), nothing published", "unlink, nothing published", "overwrite 4 KiB, nothing published", plain),
        ("create (+ close), versions published", "unlink, versions published", "overwrite 4 KiB, versions published", published),
    ] {
        let names = &names;
        calls.push((create, Box::new(move |index| library.create(&names[index]))));
        calls.push((unlink, Box::new(move |index| library.unlink(&names[index]))));
        calls.push((overwrite, Box::new(move |index| library.write(block_of(index, 0)))));
    }
    let costs = in_turn(&mut calls);
    printed(&calls, &costs);
    drop(calls);
    drop(server);
}
