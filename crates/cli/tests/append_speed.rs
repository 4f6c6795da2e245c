//! Appends of 4 KiB, each synced, and files that are made, appended to, synced and removed, through a mount (WineFS Fig. 6b and 6c): files whose
//! home is the memory zone beside files whose home is the block zone, whose appends are redirected: in blocks of 4 KiB to fresh sectors, in
//! larger ones to data logs first. A measurement, not a test of limits.
//!
//!     cargo test --profile soak -p tandemfs --test append_speed -- --ignored --nocapture
//!
//! The image is in /dev/shm without times. Each thread does an operation on one home, then on the other, in changing order, and each is timed:
//! whatever else the machine does meets both alike, and what it takes away is in the upper part of the times, not in the median.

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use support::{Place, succeeds};

/// How long each kind of operation is measured.
const TIME: Duration = Duration::from_secs(10);
/// Appends to a file before it is emptied, and to a file that is removed.
const APPENDS: u64 = 4096;
const SMALL: u64 = 16;
const PAGE: [u8; 4096] = [5; 4096];

fn append(mut file: &File) {
    file.write_all(&PAGE).expect("appended");
    file.sync_all().expect("synced");
}

fn appended(path: &Path) -> File {
    OpenOptions::new().append(true).create(true).open(path).expect("opened")
}

/// A file of each thread, and the directory that it is in.
struct Home {
    files: Vec<(PathBuf, File)>,
}

impl Home {
    fn new(root: &Path, home: &str, threads: usize) -> Self {
        let of_thread = |thread| {
            let directory = root.join(format!("{home}-{thread}"));
            fs::create_dir(&directory).expect("made");
            succeeds(&["home", "set", home, directory.to_str().expect("UTF-8")]);
            let file = appended(&directory.join("appended"));
            (directory, file)
        };
        Self { files: (0..threads).map(of_thread).collect() }
    }

    fn append(&self, thread: usize, count: u64) {
        let file = &self.files[thread].1;
        if count.is_multiple_of(APPENDS) {
            file.set_len(0).expect("emptied");
        }
        append(file);
    }

    fn come_and_go(&self, thread: usize, count: u64) {
        let path = self.files[thread].0.join(format!("file-{count}"));
        let file = appended(&path);
        (0..SMALL).for_each(|_| append(&file));
        drop(file);
        fs::remove_file(path).expect("removed");
    }
}

/// One operation of a thread with this number, the `count`-th.
type Operation = fn(&Home, usize, u64);

/// Microseconds of each operation of all threads, of each home.
fn measured(homes: &[Home; 2], threads: usize, operation: Operation) -> [Vec<f64>; 2] {
    let start = Barrier::new(threads);
    let of_threads: Vec<[Vec<f64>; 2]> = std::thread::scope(|scope| {
        let timing: Vec<_> = (0..threads)
            .map(|thread| {
                let start = &start;
                scope.spawn(move || {
                    let mut times = [Vec::new(), Vec::new()];
                    start.wait();
                    let (began, mut count) = (Instant::now(), 0_u64);
                    while began.elapsed() < TIME {
                        let first = (count % 2) as usize;
                        for which in [first, 1 - first] {
                            let before = Instant::now();
                            operation(&homes[which], thread, count);
                            times[which].push(before.elapsed().as_secs_f64() * 1e6);
                        }
                        count += 1;
                    }
                    times
                })
            })
            .collect();
        timing.into_iter().map(|thread| thread.join().expect("ends")).collect()
    });
    [0, 1].map(|which| of_threads.iter().flat_map(|times| times[which].iter().copied()).collect())
}

/// The tenth and the half of the times that are shortest end here.
fn low_and_median(mut times: Vec<f64>) -> [f64; 2] {
    times.sort_unstable_by(f64::total_cmp);
    [times[times.len() / 10], times[times.len() / 2]]
}

fn measure(block: &str, mode: &str) {
    let place = Place::empty();
    succeeds(&["device", "create", &place.image(), "--profile", "off", "--memory", "1G", "--block", "2G"]);
    succeeds(&["mkfs", "--block-size", block, &place.image()]);
    let mount = place.mount(mode);
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    let homes = ["memory", "block"].map(|home| Home::new(mount.root(), home, threads));
    let operations: [(&str, Operation); 2] = [("append", Home::append), ("file with 16 appends", Home::come_and_go)];
    for (name, operation) in operations {
        for threads in [1, threads] {
            let times = measured(&homes, threads, operation);
            let count = times[0].len();
            let [[low_memory, memory], [low_block, of_block]] = times.map(low_and_median);
            println!(
                "blocks of {block}, {mode}, {name}, threads {threads}: median us (tenth), home memory {memory:.1} ({low_memory:.1}), \
                 home block {of_block:.1} ({low_block:.1}), {count} each; memory's speed beside block {:.2} ({:.2})",
                of_block / memory,
                low_block / low_memory
            );
        }
    }
    drop(homes);
    mount.unmount();
    place.check();
}

#[test]
#[ignore = "a measurement"]
fn synced_appends_through_a_mount() {
    for block in ["4K", "64K"] {
        for mode in ["strict", "relaxed"] {
            measure(block, mode);
        }
    }
}
