//! The tail of small operations by the redo journal, beside an undo journal of records alone (WineFS §3.5): a measurement, not a test of limits.
//!
//!     cargo test --profile soak -p tandemfs-fs --test undo_variant -- --ignored --nocapture
//!
//! Memory in /dev/shm, in the domain *adr*: flushes and fences are executed, on memory that does not need them. *Whole* is the file system. *Redo* and *undo* are records alone, with as many lines as the
//! whole operation journals, and nothing else of a file system:
//! - redo: the new lines are one record in a ring; flush, fence. When half of the ring is full, the caller brings every line of it home, which
//!   the whole file system leaves to another thread.
//! - undo: the old lines are a record; flush, fence; the new lines are stored home; flush, fence; the end mark of the record; flush, fence.
//!
//! Subjects take turns, so a change of the machine's speed meets all of them. Operations are timed one by one. A batch in which the thread
//! was put off its CPU against its will says something of the other load: it counts for *all*, not for *undisturbed*.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use tandemfs_device::{BlockPath, BytePath, Device, DeviceDescription, Drive, Lines, PersistenceDomain, Structure};
use tandemfs_emulator::{DeviceOptions, open_device};
use tandemfs_format::inode::file_type;
use tandemfs_format::{InodeNumber, LINE_BYTES, LineAddress};
use tandemfs_fs::{FileSystem, FormatOptions, MountOptions, NewInode, WriteOptions, make_file_system};

const MIB: u64 = 1 << 20;
const ROUNDS: usize = 15;
const BATCH: usize = 128;
const BATCHES: usize = 48;
/// Lines of the ring of records, and lines of metadata that operations change: 16 MiB together, since devices are whole units.
const RING_LINES: u64 = 16_384;
const HOME_LINES: u64 = 262_144 - RING_LINES;
const FILE: u64 = 64 * MIB;

/// A drive in memory that is gone with the process.
fn drive(folder: &tempfile::TempDir, name: &str, bytes: u64) -> Drive {
    let path = folder.path().join(name);
    std::fs::File::create(&path).and_then(|file| file.set_len(bytes)).expect("a file");
    let device = open_device(&format!("memory={}", path.display()), &DeviceOptions::default()).expect("opens");
    let description = DeviceDescription { domain: PersistenceDomain::Adr, ..device.description().clone() };
    Drive::new(Arc::new(InAdr(device, description)))
}

/// A device whose flushes and fences are executed.
struct InAdr(Arc<dyn Device>, DeviceDescription);

impl Device for InAdr {
    fn byte_path(&self) -> &dyn BytePath {
        self.0.byte_path()
    }

    fn block_path(&self) -> &dyn BlockPath {
        self.0.block_path()
    }

    fn description(&self) -> &DeviceDescription {
        &self.1
    }
}

/// Numbers that look random.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Records alone.
struct Records {
    drive: Drive,
    numbers: Numbers,
    lines: u64,
    at: u64,
    behind: BTreeSet<u64>,
    image: Vec<u8>,
}

impl Records {
    fn new(drive: Drive, lines: u64) -> Self {
        let image = vec![0xa5; (LINE_BYTES + lines as usize * 72).next_multiple_of(LINE_BYTES)];
        let numbers = Numbers(lines);
        let records = Self { drive, numbers, lines, at: 0, behind: BTreeSet::new(), image };
        for line in (0..RING_LINES + HOME_LINES).step_by(64) {
            records.persist(line, &[1; 4096]); // the host gives memory at the first touch
        }
        records
    }

    fn persist(&self, line: u64, bytes: &[u8]) {
        let stored = self.drive.store(Structure::Journal, LineAddress::new(line), bytes).expect("stored");
        drop(self.drive.fence(self.drive.flush_lines(stored)));
    }

    /// Stores lines home, with one fence.
    fn home(&self, lines: impl Iterator<Item = u64>) {
        let mut in_flight = Lines::none();
        for line in lines {
            let stored = self.drive.store(Structure::Inode, LineAddress::new(line), &[7; LINE_BYTES]).expect("stored");
            in_flight = in_flight.and(self.drive.flush_lines(stored));
        }
        drop(self.drive.fence(in_flight));
    }

    fn record(&mut self) {
        let lines = (self.image.len() / LINE_BYTES) as u64;
        if self.at + lines > RING_LINES {
            self.at = 0;
        }
        self.persist(self.at, &self.image);
        self.at += lines;
    }

    fn changed(&mut self) -> Vec<u64> {
        (0..self.lines).map(|_| RING_LINES + self.numbers.below(HOME_LINES)).collect()
    }

    fn redo(&mut self) {
        let changed = self.changed();
        let before = self.at;
        self.record();
        self.behind.extend(changed);
        if self.at < before || before < RING_LINES / 2 && self.at >= RING_LINES / 2 {
            let behind = std::mem::take(&mut self.behind);
            self.home(behind.into_iter());
        }
    }

    fn undo(&mut self) {
        let changed = self.changed();
        let mut old = [0; LINE_BYTES];
        for line in &changed {
            self.drive.load(Structure::Inode, LineAddress::new(*line), &mut old).expect("loaded");
            self.image[..LINE_BYTES].copy_from_slice(&old);
        }
        self.record();
        self.home(changed.into_iter());
        self.persist(self.at - 1, &[9; LINE_BYTES]);
    }
}

/// How often this thread was put off its CPU against its will.
fn disturbances() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).expect("a number")
}

/// Times of one round, in nanoseconds.
#[derive(Default)]
struct Round {
    all: Vec<u64>,
    undisturbed: Vec<u64>,
}

fn round(operation: &mut dyn FnMut()) -> Round {
    let mut times = Round::default();
    for _ in 0..BATCHES {
        let before = disturbances();
        let batch: Vec<u64> = (0..BATCH)
            .map(|_| {
                let start = Instant::now();
                operation();
                start.elapsed().as_nanos() as u64
            })
            .collect();
        if disturbances() == before {
            times.undisturbed.extend(&batch);
        }
        times.all.extend(batch);
    }
    times
}

fn mean(times: &[u64]) -> Option<f64> {
    (!times.is_empty()).then(|| times.iter().sum::<u64>() as f64 / times.len() as f64 / 1000.0)
}

fn quantile(times: &mut [u64], parts: usize) -> Option<f64> {
    times.sort_unstable();
    let at = (times.len() * parts / 10_000).min(times.len().checked_sub(1)?);
    Some(times[at] as f64 / 1000.0)
}

/// The median over the rounds, and the range of their middle half.
fn over_rounds(values: impl Iterator<Item = Option<f64>>) -> String {
    let mut values: Vec<f64> = values.flatten().collect();
    values.sort_by(f64::total_cmp);
    let Some(last) = values.len().checked_sub(1) else { return "-".into() };
    format!("{:.2} ({:.2}-{:.2})", values[values.len() / 2], values[last / 4], values[last - last / 4])
}

/// Lines that an operation journals, from the bytes of its records: 32 B and 72 B a line.
fn journaled_lines(fs: &FileSystem, count: u64, operation: &mut dyn FnMut()) -> u64 {
    let journal = |fs: &FileSystem| fs.drive().counters().snapshot().by_structure[Structure::Journal as usize].byte_written_bytes;
    let before = journal(fs);
    (0..count).for_each(|_| operation());
    ((journal(fs) - before) / count).saturating_sub(32).div_ceil(72).max(1)
}

#[test]
#[ignore = "a measurement"]
fn tail_of_small_operations() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
    let device = drive(&folder, "whole", 1536 * MIB);
    make_file_system(&device, &FormatOptions::default()).expect("mkfs");
    let fs = FileSystem::mount(device, &MountOptions::default()).expect("mounts");
    let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    let file = fs.create(InodeNumber::ROOT, b"file", &new).expect("made").inode;
    for at in (0..FILE).step_by(MIB as usize) {
        fs.write(file, at, &vec![1; MIB as usize], WriteOptions::default()).expect("written");
    }
    let (mut numbers, mut names) = (Numbers(1), 0_u64);
    let mut overwrite = || {
        let at = numbers.below(FILE / 256) * 256;
        fs.write(file, at, &[3; 256], WriteOptions::default()).expect("written");
    };
    let mut create = || {
        names += 1;
        fs.create(InodeNumber::ROOT, format!("f{names}").as_bytes(), &new).expect("made");
    };
    let lines = [journaled_lines(&fs, 2000, &mut overwrite), journaled_lines(&fs, 2000, &mut create)];
    println!("lines of a record: overwrite {}, create {}", lines[0], lines[1]);
    let bytes = (RING_LINES + HOME_LINES) * LINE_BYTES as u64;
    let mut alone = Vec::new();
    for lines in lines {
        alone.push([
            Records::new(drive(&folder, &format!("redo{lines}"), bytes), lines),
            Records::new(drive(&folder, &format!("undo{lines}"), bytes), lines),
        ]);
    }
    let names_of = ["overwrite 256 B, whole", "overwrite, redo", "overwrite, undo", "create, whole", "create, redo", "create, undo"];
    let mut rounds: [Vec<Round>; 6] = Default::default();
    for _ in 0..ROUNDS {
        rounds[0].push(round(&mut overwrite));
        rounds[1].push(round(&mut || alone[0][0].redo()));
        rounds[2].push(round(&mut || alone[0][1].undo()));
        rounds[3].push(round(&mut create));
        rounds[4].push(round(&mut || alone[1][0].redo()));
        rounds[5].push(round(&mut || alone[1][1].undo()));
    }
    println!("microseconds; median of {ROUNDS} rounds of {} operations (middle half)", BATCH * BATCHES);
    for (name, mut rounds) in names_of.into_iter().zip(rounds) {
        let (all, quiet): (usize, usize) =
            rounds.iter().fold((0, 0), |(all, quiet), round| (all + round.all.len(), quiet + round.undisturbed.len()));
        println!("{name}: {} % undisturbed", quiet * 100 / all);
        let quiet = over_rounds(rounds.iter().map(|round| mean(&round.undisturbed)));
        println!("    mean: undisturbed {quiet}, all {}", over_rounds(rounds.iter().map(|round| mean(&round.all))));
        for (label, parts) in [("p50", 5000), ("p99", 9900), ("p99.9", 9990), ("p99.99", 9999)] {
            let quiet = over_rounds(rounds.iter_mut().map(|round| quantile(&mut round.undisturbed, parts)));
            let all = over_rounds(rounds.iter_mut().map(|round| quantile(&mut round.all, parts)));
            println!("  {label:>6}: undisturbed {quiet}, all {all}");
        }
    }
    fs.unmount().expect("unmounts");
}
