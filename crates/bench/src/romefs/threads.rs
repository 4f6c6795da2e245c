//! Fig. 9 and 10: 1 to 16 threads on one file, aligned random requests below 1 MiB, compared with the block path alone.

use serde_json::json;
use tandemfs_device::{BlockRequest, Drive, Structure};
use tandemfs_format::{SECTOR_BYTES, Sector};

use super::contest::Operation;
use super::requests::{Alignment, REQUEST_BYTES_MAX, Requests, Size};
use super::setting::{Setting, Variant, Volume, pattern, timing};
use crate::failure::Result;
use crate::machine;
use crate::measure::on_threads;
use crate::output::Outcome;
use crate::plot::{self, Labels, Series};
use crate::scene::{MIB, Scene};
use crate::table::Table;

const THREADS: [usize; 5] = [1, 2, 4, 8, 16];
const SIZE: Size = Size::Below(1 << 20);
const RATIO: u64 = 5;

/// Runs both operations.
pub fn run(setting: &Setting) -> Result<Outcome> {
    let mut outcome = Outcome::new("threads", "1 to 16 threads on one file, random requests of (0, 1 MiB) aligned to 4 KiB (Fig. 9, 10)");
    setting.require(setting.timed_device_bytes(setting.file_bytes(RATIO)) * 2)?;
    let block = timing()?.block;
    one_operation(setting, &mut outcome, Operation::Write, block.write_bytes_per_second)?;
    one_operation(setting, &mut outcome, Operation::Read, block.read_bytes_per_second)?;
    outcome.note(format!(
        "raw: the same requests by as many threads on the block path alone, in the same run, no file system; this machine has {} processors \
         and its copies bound both",
        std::thread::available_parallelism().map_or(1, usize::from)
    ));
    outcome.note("the time of RomeFS includes the write-back that was left over at the end");
    outcome.note("the drive's bandwidth is that of its block path; data logs move beside it, so a share may pass 100 %");
    Ok(outcome)
}

fn one_operation(setting: &Setting, outcome: &mut Outcome, operation: Operation, drive_rate: u64) -> Result<()> {
    let name = if operation == Operation::Write { "writes" } else { "reads" };
    let (file_bytes, load_bytes) = (setting.file_bytes(RATIO), setting.load_bytes(RATIO));
    let scene = Scene::new(&setting.common)?;
    let device = setting.timed_device(&scene, "device", file_bytes)?;
    let raw = Drive::new(setting.timed_device(&scene, "raw", file_bytes)?);
    let mut table = Table::new([name, "RomeFS", "of the drive's", "of raw", "raw", "raw of the drive's"]);
    let (mut ours, mut limits) = (Vec::new(), Vec::new());
    for threads in THREADS {
        let volume = Volume::laid_out(&device, file_bytes, &Variant::Default.options())?;
        if operation == Operation::Read {
            volume.fill_memory(Size::About(512 << 10))?;
        }
        volume.settle();
        // A B B A, each half of a load, twice: drift of the machine affects both sides.
        let half = load_bytes / 2;
        let on_file = |seed| {
            run_threads(threads, half, seed, file_bytes, &|offset, buffer| match operation {
                Operation::Write => volume.write(offset, buffer),
                Operation::Read => volume.read(offset, buffer),
            })
        };
        let on_raw = |seed| run_threads(threads, half, seed, file_bytes, &|offset, buffer| request(&raw, operation, offset, buffer));
        let (mut seconds, mut raw_seconds) = ((0.0, 0), (0.0, 0));
        let add = |sum: &mut (f64, u64), (seconds, bytes)| *sum = (sum.0 + seconds, sum.1 + bytes);
        for round in 0..2 {
            add(&mut seconds, on_file(2 * round)?);
            add(&mut raw_seconds, on_raw(2 * round)?);
            add(&mut raw_seconds, on_raw(2 * round + 1)?);
            add(&mut seconds, on_file(2 * round + 1)?);
        }
        // As in Fig. 6: write-back that is left over counts.
        let behind = volume.settle().as_secs_f64();
        seconds.0 += behind;
        volume.fs.unmount()?;
        let [rate, limit] = [seconds, raw_seconds].map(|(seconds, bytes)| bytes as f64 / seconds / 1e9);
        let drive = drive_rate as f64 / 1e9;
        table.row([
            threads.to_string(),
            format!("{rate:.2} GB/s"),
            format!("{:.0} %", 100.0 * rate / drive),
            format!("{:.0} %", 100.0 * rate / limit),
            format!("{limit:.2} GB/s"),
            format!("{:.0} %", 100.0 * limit / drive),
        ]);
        outcome.record(json!({
            "operation": name, "threads": threads, "bytes": half * 4, "gb_per_s": rate, "raw_gb_per_s": limit, "drive_gb_per_s": drive,
            "settle_seconds": behind,
        }));
        ours.push((threads as f64, rate));
        limits.push((threads as f64, limit));
    }
    outcome.table(format!("{name}, {} MiB for each number of threads, memory zone : file = 1 : {RATIO}", load_bytes * 2 / MIB), table);
    let drive = [(0.0, drive_rate as f64 / 1e9), (16.0, drive_rate as f64 / 1e9)];
    let series = [Series::new("RomeFS", ours), Series::new("raw block path", limits), Series::new("the drive's bandwidth", drive)];
    let labels = Labels::new(format!("Random {name} of (0, 1 MiB) on one file"), "threads", "throughput [GB/s]");
    outcome.plot(name, plot::lines(&labels, &series)?);
    Ok(())
}

/// Runs requests of `bytes` in total on `threads` threads. Returns seconds and bytes.
fn run_threads(
    threads: usize,
    bytes: u64,
    seed: u64,
    file_bytes: u64,
    each: &(dyn Fn(u64, &mut [u8]) -> Result<()> + Sync),
) -> Result<(f64, u64)> {
    let (done, elapsed) = on_threads((0..threads as u64).collect(), |thread| {
        let mut requests = Requests::new(seed * 100 + thread, SIZE, Alignment::Sector, file_bytes);
        let (mut buffer, mut done) = (pattern(REQUEST_BYTES_MAX), 0);
        while done < bytes / threads as u64 {
            machine::check()?;
            let (offset, length) = requests.draw();
            each(offset, &mut buffer[..length as usize])?;
            done += length;
        }
        Ok(done)
    })?;
    Ok((elapsed.as_secs_f64(), done.iter().sum()))
}

fn request(raw: &Drive, operation: Operation, offset: u64, buffer: &mut [u8]) -> Result<()> {
    let sector = Sector::new(offset / SECTOR_BYTES as u64);
    let mut requests = [match operation {
        Operation::Write => BlockRequest::Write { sector, buffer },
        Operation::Read => BlockRequest::Read { sector, buffer },
    }];
    drop(raw.transfer(Structure::Data, &mut requests, &mut || {})?);
    Ok(())
}
