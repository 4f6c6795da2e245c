//! What a mixed load does: a client of the door writes into pages that others read and write by the mount. A measurement.
//!
//!     cargo test --profile soak --locked -p tandemfs --test direct_door -- --ignored --nocapture mixed::measure
//!
//! Prints medians of the operations a second of each, over rounds. To compare two builds, run them in turn.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::support::pattern;
use super::{ended, opened};

const ROUNDS: usize = 21;
const ROUND: Duration = Duration::from_millis(300);
/// Who writes or reads: by the door, by the mount; in the same page, or each in one of his own.
const LOADS: [(&str, u64); 2] = [("the same page", 0), ("pages of their own", 4096)];

/// Calls a second of the door's writer, the mount's writer and the mount's reader.
fn round(door: &mut super::client::Door, handle: tandemfs_protocol::Handle, file: &std::fs::File, apart: u64) -> [f64; 3] {
    let (is_over, wrote, read) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut by_door = 0;
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let (is_over, wrote, read) = (&is_over, &wrote, &read);
        let until_over = move |count: &AtomicU64, call: &dyn Fn(u64)| {
            while !is_over.load(Relaxed) {
                call(count.fetch_add(1, Relaxed));
            }
        };
        scope.spawn(move || until_over(wrote, &|number| file.write_all_at(&pattern(number, 64), 64).expect("written")));
        scope.spawn(move || until_over(read, &|_| file.read_exact_at(&mut [0; 8], 1000 + apart).expect("read")));
        while begun.elapsed() < ROUND {
            door.write(handle, 2000 + 2 * apart as i64, &[7; 8]).expect("written");
            by_door += 1;
        }
        is_over.store(true, Relaxed);
    });
    let seconds = begun.elapsed().as_secs_f64();
    [by_door, wrote.into_inner(), read.into_inner()].map(|calls| calls as f64 / seconds)
}

#[test]
#[ignore = "a measurement"]
fn measure() {
    let (place, mount, mut door) = opened("");
    std::fs::write(mount.path("file"), [0; 16384]).expect("written");
    let handle = door.open("file", libc::O_RDWR, 0).expect("opened");
    let file = OpenOptions::new().read(true).write(true).open(mount.path("file")).expect("opened");
    let mut rates = LOADS.map(|_| <[Vec<f64>; 3]>::default());
    for _ in 0..ROUNDS {
        for ((_, apart), rates) in LOADS.iter().zip(&mut rates) {
            for (rates, rate) in rates.iter_mut().zip(round(&mut door, handle, &file, *apart)) {
                rates.push(rate);
            }
        }
    }
    for ((name, _), rates) in LOADS.iter().zip(rates) {
        let [by_door, wrote, read] = rates.map(|mut rates| {
            rates.sort_by(f64::total_cmp);
            rates[ROUNDS / 2]
        });
        println!("{name}: {by_door:.0} writes by the door, {wrote:.0} writes and {read:.0} reads by the mount a second");
    }
    drop(file);
    ended(&place, mount, door);
}
