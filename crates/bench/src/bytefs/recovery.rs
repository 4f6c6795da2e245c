//! §5.5: recovery time after the process was killed, by fill level of the write log. As in §4.7, the drive loads its DRAM, RECOVER writes
//! committed lines to flash, then the file system is mounted.

use std::time::{Duration, Instant};

use serde::Serialize;
use tandemfs_device::{Drive, Structure, TxId};
use tandemfs_format::LineAddress;
use tandemfs_fs::FileSystem;

use super::rig::{Image, Rig, Variant};
use super::setting::{PAPER_LOG_BYTES, Setting};
use crate::failure::{Failure, Result};
use crate::figures::time;
use crate::machine;
use crate::output::Outcome;
use crate::scene::{MIB, virtual_time};
use crate::workloads::{LibraryTarget, Load, Worker, Workload, lay_out};

/// Lines appended since the log was empty, in percent of its capacity. Cleaning starts at 85 %, so at 100 % cleaning is in progress.
const FILLS_PERCENT: [u64; 7] = [0, 10, 25, 50, 75, 84, 100];
const LINE_BYTES: u64 = 64;
/// Lines of a transaction that is uncommitted when the process is killed.
const OPEN_LINES: u64 = 256;
/// Files that the load uses.
const FILES: u64 = 12_000;
/// The paper's recovery time.
const PAPER: &str = "4.2 s (0.9 s to load the DRAM, 2.7 s to scan and write)";
const TARGET_NS: u64 = 1_000_000_000;

/// Wall-clock time in nanoseconds, and that of the processor, which does not grow when the machine is shared.
type Took = (u64, u64);

/// Runs and times `work`.
fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(Took, T)> {
    let (wall, cpu) = (Instant::now(), cpu_time());
    let value = work()?;
    Ok(((wall.elapsed().as_nanos() as u64, cpu_time().saturating_sub(cpu).as_nanos() as u64), value))
}

fn show((wall_ns, cpu_ns): Took) -> String {
    format!("{} ({})", time(wall_ns as f64), time(cpu_ns as f64))
}

/// CPU time of all threads of the process.
fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// A recovery.
#[derive(Serialize)]
struct Recovered {
    fill_percent: u64,
    log_bytes: u64,
    lines_in_log: u64,
    lines_kept: u64,
    lines_discarded: u64,
    transactions: u64,
    pages_read: u64,
    pages_programmed: u64,
    open_ns: Took,
    recover_ns: Took,
    recover_reckoned_ns: u64,
    mount_ns: Took,
    mount_reckoned_ns: u64,
}

impl Recovered {
    fn host_ns(&self) -> Took {
        [self.open_ns, self.recover_ns, self.mount_ns].iter().fold((0, 0), |sum, took| (sum.0 + took.0, sum.1 + took.1))
    }

    fn reckoned_ns(&self) -> u64 {
        self.recover_reckoned_ns + self.mount_reckoned_ns
    }

    fn is_met(&self) -> bool {
        self.host_ns().0.max(self.reckoned_ns()) < TARGET_NS
    }
}

/// Runs all fill levels on one drive.
pub fn run(setting: &Setting) -> Result<Outcome> {
    let mut outcome = Outcome::new("recovery", "time to recover by how full the write log was (§5.5)");
    // The paper's log at full size: recovery time depends on the log's size, not on the load's.
    let log_bytes = if setting.is_tiny() { setting.own_log_bytes() } else { PAPER_LOG_BYTES };
    let rig = Rig { staging_bytes: log_bytes, ..Rig::new(setting, Variant::Whole) };
    let load = Load { loops: Some(u64::MAX), files: FILES.min(log_bytes / 4096), ..setting.load(Workload::Varmail) };
    let (memory_bytes, block_bytes) = Setting::zones(&load);
    let (_scene, image, device) = rig.formatted(setting, memory_bytes, block_bytes)?;
    {
        let fs = rig.mount(device)?;
        lay_out(&load, &LibraryTarget::new(fs.clone(), None))?;
        fs.unmount()?;
    }

    let mut workers = Worker::all(&load);
    let mut results = Vec::new();
    for fill_percent in FILLS_PERCENT {
        let lines = fill_and_kill(&rig, &image, &mut workers, log_bytes / LINE_BYTES * fill_percent / 100)?;
        results.push(recover(&rig, &image, fill_percent, lines)?);
    }
    let caption = format!("Write log of {} MiB, filled by varmail, strict", log_bytes / MIB);
    outcome.listed(
        caption,
        &results,
        &[
            ("appended", &|each| format!("{} %", each.fill_percent)),
            ("lines kept", &|each| each.lines_kept.to_string()),
            ("discarded", &|each| each.lines_discarded.to_string()),
            ("transactions", &|each| each.transactions.to_string()),
            ("flash pages", &|each| format!("{} read, {} programmed", each.pages_read, each.pages_programmed)),
            ("open (processor)", &|each| show(each.open_ns)),
            ("RECOVER", &|each| show(each.recover_ns)),
            ("mount", &|each| show(each.mount_ns)),
            ("all, host", &|each| show(each.host_ns())),
            ("RECOVER, reckoned", &|each| time(each.recover_reckoned_ns as f64)),
            ("mount, reckoned", &|each| time(each.mount_reckoned_ns as f64)),
            ("all, reckoned", &|each| time(each.reckoned_ns() as f64)),
            ("< 1 s", &|each| if each.is_met() { "yes" } else { "NO" }.to_owned()),
        ],
    )?;
    outcome.note(format!("the paper: {PAPER}, after YCSB, how full its log of 256 MB was is not said"));
    outcome.note("host: what this program takes, in brackets of its processor; opening the image (which scans the log for its index) included; reckoned: what the drive's flash and links would take, which opening is no part of");
    outcome.note("nothing was unmounted: the file system is dropped as a killed process leaves it, with one transaction open and, at 100 %, a cleaning cut; cuts at every step are the crash tests' affair");
    Ok(outcome)
}

/// Runs the load until this many lines were appended to an empty log, then drops everything. Returns the number of lines in the log.
fn fill_and_kill(rig: &Rig, image: &Image, workers: &mut [Worker], lines: u64) -> Result<u64> {
    let fs = rig.mount(image.open()?)?;
    fs.drive().clean()?;
    let target = LibraryTarget::new(fs.clone(), None);
    let appended = |fs: &FileSystem| -> Result<u64> {
        let counts = fs.drive().drive_counts().ok_or_else(|| Failure::new("the drive counts nothing"))?;
        Ok(counts.firmware.log_appends)
    };
    let start = appended(&fs)?;
    let mut index = 0;
    while appended(&fs)? - start < lines {
        machine::check()?;
        workers[index].step(&target)?;
        index = (index + 1) % workers.len();
    }
    leave_open(fs.drive())?;
    drop((fs, target));
    image.lines_in_log()
}

/// Leaves an uncommitted transaction over lines at the end of the memory zone, as a kill during a change does. The lines contain garbage:
/// the mount afterwards is intact only if they are discarded.
fn leave_open(drive: &Drive) -> Result<()> {
    let last = drive.description().memory_bytes / LINE_BYTES;
    for line in last - OPEN_LINES..last {
        drop(drive.store_tagged(Structure::Inode, TxId::MAX, LineAddress::new(line), &[0xa5; LINE_BYTES as usize])?);
    }
    Ok(())
}

fn recover(rig: &Rig, image: &Image, fill_percent: u64, lines_in_log: u64) -> Result<Recovered> {
    let (open_ns, device) = timed(|| image.open())?;
    let clock = virtual_time(&*device)?;
    let drive = Drive::new(device.clone());
    let reckoned = clock.now_ns();
    let (recover_ns, found) = timed(|| drive.recover()?.ok_or_else(|| Failure::new("the drive has no transactions to recover")))?;
    let recover_reckoned_ns = clock.now_ns() - reckoned;
    let flash = drive.drive_counts().map(|counts| counts.flash).unwrap_or_default();
    let reckoned = clock.now_ns();
    let (mount_ns, fs) = timed(|| rig.mount(device.clone()))?;
    let mount_reckoned_ns = clock.now_ns() - reckoned;
    fs.unmount()?;
    Ok(Recovered {
        fill_percent,
        log_bytes: rig.staging_bytes,
        lines_in_log,
        lines_kept: found.lines_kept,
        lines_discarded: found.lines_discarded,
        transactions: found.transactions,
        pages_read: flash.pages_read,
        pages_programmed: flash.pages_programmed,
        open_ns,
        recover_ns,
        recover_reckoned_ns,
        mount_ns,
        mount_reckoned_ns,
    })
}
