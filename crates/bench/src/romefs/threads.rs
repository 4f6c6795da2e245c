//! Fig. 9 and 10: 1 to 16 threads on one file, aligned random requests below 1 MiB, compared with the block path alone.

use serde::Serialize;
use tandemfs_device::{BlockRequest, Drive, Structure};
use tandemfs_format::{SECTOR_BYTES, Sector};

use super::contest::{self, Load, Operation};
use super::requests::{Alignment, Size};
use super::setting::{Setting, Variant, Volume, timing};
use crate::failure::Result;
use crate::output::Outcome;
use crate::scene::MIB;

const THREADS: [u64; 5] = [1, 2, 4, 8, 16];
const SIZE: Size = Size::Below(1 << 20);
const RATIO: u64 = 5;

/// Runs both operations.
pub fn run(setting: &Setting) -> Result<Outcome> {
    let mut outcome = Outcome::new(
        "threads",
        "1 to 16 threads on one file, random requests of (0, 1 MiB) aligned to 4 KiB, in virtual time (Fig. 9, 10)",
    );
    setting.require(setting.device_bytes(setting.file_bytes(RATIO)) * 2)?;
    let block = timing()?.block;
    one_operation(setting, &mut outcome, Operation::Write, block.write_bytes_per_second)?;
    one_operation(setting, &mut outcome, Operation::Read, block.read_bytes_per_second)?;
    outcome.note("raw: the same requests by as many threads on the block path alone, no file system");
    outcome.note("the time of RomeFS includes the write-back that was left over at the end");
    outcome.note("the drive's bandwidth is that of its block path; data logs move beside it, so a share may pass 100 %");
    Ok(outcome)
}

/// So many threads with one operation.
#[derive(Serialize)]
struct Run {
    operation: &'static str,
    threads: u64,
    bytes: u64,
    gb_per_s: f64,
    raw_gb_per_s: f64,
    drive_gb_per_s: f64,
}

fn one_operation(setting: &Setting, outcome: &mut Outcome, operation: Operation, drive_rate: u64) -> Result<()> {
    let name = if operation == Operation::Write { "writes" } else { "reads" };
    let (file_bytes, load_bytes) = (setting.file_bytes(RATIO), setting.load_bytes(RATIO));
    let mut runs = Vec::new();
    for threads in THREADS {
        let load = Load { operation, size: SIZE, alignment: Alignment::Sector, threads, bytes: load_bytes, seed: 1 };
        let (_scene, device) = setting.virtual_device(file_bytes)?;
        let volume = Volume::laid_out(&device, file_bytes, &Variant::Default.options())?;
        if operation == Operation::Read {
            volume.fill_memory(Size::About(512 << 10))?;
        }
        let standing = contest::run("RomeFS", &volume, &*device, load)?;
        volume.fs.unmount()?;
        let (_raw_scene, raw_device) = setting.virtual_device(file_bytes)?;
        let raw = Drive::new(raw_device.clone());
        let limit = load.rate_on(&*raw_device, file_bytes, &|offset, buffer| request(&raw, operation, offset, buffer))?;
        let [gb_per_s, raw_gb_per_s] = [standing.rate(), limit].map(|rate| rate / 1e9);
        let drive_gb_per_s = drive_rate as f64 / 1e9;
        runs.push(Run { operation: name, threads, bytes: standing.bytes, gb_per_s, raw_gb_per_s, drive_gb_per_s });
    }
    let percent = |of: f64, to: f64| format!("{:.0} %", 100.0 * of / to);
    outcome.listed(
        format!("{name}, {} MiB for each number of threads, memory zone : file = 1 : {RATIO}", load_bytes / MIB),
        &runs,
        &[
            (name, &|run| run.threads.to_string()),
            ("RomeFS", &|run| format!("{:.2} GB/s", run.gb_per_s)),
            ("of the drive's", &|run| percent(run.gb_per_s, run.drive_gb_per_s)),
            ("of raw", &|run| percent(run.gb_per_s, run.raw_gb_per_s)),
            ("raw", &|run| format!("{:.2} GB/s", run.raw_gb_per_s)),
            ("raw of the drive's", &|run| percent(run.raw_gb_per_s, run.drive_gb_per_s)),
        ],
    )
}

fn request(raw: &Drive, operation: Operation, offset: u64, buffer: &mut [u8]) -> Result<()> {
    let sector = Sector::new(offset / SECTOR_BYTES as u64);
    let mut requests = [match operation {
        Operation::Write => BlockRequest::Write { sector, buffer: buffer.into() },
        Operation::Read => BlockRequest::Read { sector, buffer: buffer.into() },
    }];
    drop(raw.transfer(Structure::Data, &mut requests, &mut || {})?);
    Ok(())
}
