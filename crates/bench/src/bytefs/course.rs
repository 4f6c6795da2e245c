//! Runs one load on one rig ([Y3], [Y4]).
//!
//! [Y3]: super
//! [Y4]: super

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tandemfs_device::sync::workers::ModelledHost;
use tandemfs_device::{CountersSnapshot, DriveCounts, Structure};
use tandemfs_fs::WorkCounts;

use super::rig::Rig;
use super::setting::Setting;
use crate::failure::{Failure, Result};
use crate::scene::virtual_time;
use crate::workloads::{Actor, Behind, Done, LibraryTarget, Load, Target, Worker, Workload, actors, lay_out};

/// Files that a kernel writes back in parallel at a sync.
const FLUSHERS: usize = 12;

/// Result of a load.
#[derive(Debug, Clone)]
pub struct Course {
    /// Totals of the workers.
    pub done: Done,
    is_small: bool,
    /// Traffic to the drive, until everything was durable and checkpointed.
    pub traffic: CountersSnapshot,
    /// The drive's own counters for the same time.
    pub drive: DriveCounts,
    /// Simulated time until all written data is durable; above 0.
    pub elapsed_ns: u64,
    /// The part of it until the last worker finished.
    pub calls_ns: u64,
    /// Wall-clock time on the host.
    pub host: Duration,
    /// The file system's counters.
    pub work: WorkCounts,
}

/// Runs the load's initial phase on a new drive, then the load.
pub fn run(setting: &Setting, rig: &Rig, load: &Load) -> Result<Course> {
    let (memory_bytes, block_bytes) = Setting::zones(load);
    let _host = ModelledHost::new();
    let (_scene, _, device) = rig.formatted(setting, memory_bytes, block_bytes)?;
    {
        let fs = rig.mount(device.clone())?;
        lay_out(load, &LibraryTarget::new(fs.clone(), setting.page_cache_bytes))?;
        fs.unmount()?;
    }
    let fs = rig.mount(device.clone())?;
    let target = LibraryTarget::new(fs.clone(), setting.page_cache_bytes);
    let mut workers = Worker::all(load);
    let counts = || fs.drive().drive_counts().ok_or_else(|| Failure::new("the drive counts nothing"));
    let before = counts()?;
    fs.reset_statistics();
    let start = Instant::now();
    let behind = Behind::new(&fs, virtual_time(&*device)?, workers.len());
    let after = || behind.tend();
    let calls_ns = behind.beside(actors(&mut workers, &target, &after))?;
    let done = workers.iter().fold(Done::default(), |done, worker| done.and(worker.done()));
    let flusher = |_| -> Actor<'_> {
        Box::new(|| {
            let goes_on = target.write_back_one()?;
            behind.tend()?;
            Ok(goes_on)
        })
    };
    let sync_ns = behind.beside((0..FLUSHERS).map(flusher).collect())?;
    target.synchronize_all()?;
    fs.checkpoint()?;
    let host = start.elapsed();
    let traffic = fs.drive().counters().snapshot();
    let now = counts()?;
    let drive = DriveCounts { firmware: now.firmware.since(&before.firmware), flash: now.flash.since(&before.flash) };
    let work = fs.statistics().work;
    drop(behind);
    fs.unmount()?;
    let elapsed_ns = calls_ns + sync_ns;
    if elapsed_ns == 0 {
        return Err(Failure::new("the drive reckons no time"));
    }
    let is_small = !Workload::MACRO.contains(&load.workload);
    Ok(Course { done, is_small, traffic, drive, elapsed_ns, calls_ns, host, work })
}

impl Course {
    /// Operations per second of simulated time.
    pub fn operations_a_second(&self) -> f64 {
        self.operations() as f64 * 1e9 / self.elapsed_ns as f64
    }

    /// Bytes of the selected structures: stored, written by blocks, loaded, read by blocks.
    pub fn bytes(&self, of: impl Fn(Structure) -> bool) -> [u64; 4] {
        Structure::ALL.into_iter().filter(|structure| of(*structure)).fold([0; 4], |sum, structure| {
            let bytes = self.traffic.by_structure[structure as usize];
            let more = [bytes.byte_written_bytes, bytes.block_written_bytes, bytes.byte_read_bytes, bytes.block_read_bytes];
            std::array::from_fn(|way| sum[way] + more[way])
        })
    }

    /// The operations that the figures count: files or directories if the load only makes or removes these, otherwise calls.
    pub fn operations(&self) -> u64 {
        if self.is_small { self.done.loops } else { self.done.operations() }
    }

    /// An amount per operation.
    pub fn each(&self, amount: u64) -> f64 {
        amount as f64 / self.operations().max(1) as f64
    }

    /// The result as JSON.
    pub fn json(&self, load: &Load, rig: &Rig) -> Value {
        let structure = |structure: Structure| -> (String, Value) {
            let [stored, written_by_blocks, loaded, read_by_blocks] = self.bytes(|each| each == structure);
            let bytes = json!({
                "byte_read_bytes": loaded, "byte_written_bytes": stored,
                "block_read_bytes": read_by_blocks, "block_written_bytes": written_by_blocks,
            });
            (structure.name().to_owned(), bytes)
        };
        let named = |entries: Vec<(&'static str, u64)>| -> Value {
            entries.into_iter().map(|(name, value)| (name.to_owned(), Value::from(value))).collect()
        };
        json!({
            "load": load.workload.name(), "files": load.files, "workers": load.workers, "variant": rig.variant.name(),
            "profile": rig.profile, "staging_bytes": rig.staging_bytes, "flash_ns": rig.flash_ns,
            "operations": self.operations(), "calls": self.done.operations(), "loops": self.done.loops,
            "user_written_bytes": self.done.written_bytes, "user_read_bytes": self.done.read_bytes,
            "reckoned_ns": self.elapsed_ns, "reckoned_calls_ns": self.calls_ns, "operations_per_second": self.operations_a_second(), "host_ns": self.host.as_nanos() as u64,
            "by_structure": Structure::ALL.into_iter().map(structure).collect::<Value>(), "fences": self.traffic.fences,
            "block_reads": self.traffic.block_reads, "block_writes": self.traffic.block_writes,
            "work": named(self.work.entries()),
            "firmware": named(self.drive.firmware.entries()),
            "flash": named(self.drive.flash.entries()),
        })
    }
}

/// Whether the structure is file data (sectors or logs); everything else is metadata.
pub fn is_data(structure: Structure) -> bool {
    matches!(structure, Structure::Data | Structure::DataLog)
}
