//! Runs one load on one rig ([Y3], [Y4]).
//!
//! [Y3]: super
//! [Y4]: super

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tandemfs_device::{CountersSnapshot, DriveCounts, PathBytes, Structure};
use tandemfs_fs::{FileSystem, WorkCounts};

use super::rig::Rig;
use super::setting::Setting;
use crate::failure::Result;
use crate::machine::Pinned;
use crate::scene::Scene;
use crate::workloads::{Clock, Done, LibraryTarget, Load, Target, Worker, Workload, interleave, lay_out, run_interleaved};

/// Files that a kernel writes back in parallel at a sync.
const FLUSHERS: usize = 12;
/// Calls between two checks of how full the memory zone is.
const CALLS_A_LOOK: u64 = 512;
/// Background write-back starts when less than this percentage of the data area is free; foreground write-back starts later.
const WRITE_BACK_PERCENT: u64 = 15;

/// Result of a load.
#[derive(Debug, Clone)]
pub struct Course {
    /// Totals of the workers.
    pub done: Done,
    is_small: bool,
    /// Traffic to the drive, until everything was durable and checkpointed.
    pub traffic: CountersSnapshot,
    /// The drive's own counters for the same time.
    pub drive: Option<DriveCounts>,
    /// Simulated time until all written data is durable.
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
    // The file system's pools are per CPU: on one CPU, the same load uses the same places.
    let _pinned = Pinned::new();
    setting.require(rig.image_bytes(memory_bytes, block_bytes))?;
    let scene = Scene::new(&setting.common)?;
    let image = rig.create(&scene, "drive", memory_bytes, block_bytes)?;
    let (device, clock) = image.open()?;
    rig.format(device.clone())?;
    {
        let fs = rig.mount(device.clone())?;
        lay_out(load, &LibraryTarget::new(fs.clone(), setting.page_cache_bytes))?;
        fs.unmount()?;
    }
    let fs = rig.mount(device)?;
    let target = LibraryTarget::new(fs.clone(), setting.page_cache_bytes);
    let mut workers = Worker::all(load);
    let before = fs.drive().drive_counts();
    fs.reset_statistics();
    let start = Instant::now();
    let mut behind = Behind::new(&fs, &clock, None);
    let (done, calls_ns) = run_interleaved(&mut workers, &target, &clock, &mut || behind.tend())?;
    let sync_ns = interleave(FLUSHERS, &clock, &mut |_| {
        let goes_on = target.write_back_one()?;
        behind.tend()?;
        Ok(goes_on)
    })?;
    target.synchronize_all()?;
    fs.checkpoint()?;
    let host = start.elapsed();
    let traffic = fs.drive().counters().snapshot();
    let drive = fs
        .drive()
        .drive_counts()
        .zip(before)
        .map(|(now, before)| DriveCounts { firmware: now.firmware.since(&before.firmware), flash: now.flash.since(&before.flash) });
    let work = fs.statistics().work;
    fs.unmount()?;
    let is_small = !Workload::MACRO.contains(&load.workload);
    Ok(Course { done, is_small, traffic, drive, elapsed_ns: calls_ns + sync_ns, calls_ns, host, work })
}

impl Course {
    /// Operations per second of simulated time; `None` if the drive has no timing.
    pub fn operations_a_second(&self) -> Option<f64> {
        (self.elapsed_ns > 0).then(|| self.operations() as f64 * 1e9 / self.elapsed_ns as f64)
    }

    /// Bytes of the selected structures, by path.
    pub fn bytes(&self, of: impl Fn(Structure) -> bool) -> PathBytes {
        Structure::ALL.into_iter().filter(|structure| of(*structure)).fold(PathBytes::default(), |sum, structure| {
            let bytes = self.traffic.by_structure[structure as usize];
            PathBytes {
                byte_read_bytes: sum.byte_read_bytes + bytes.byte_read_bytes,
                byte_written_bytes: sum.byte_written_bytes + bytes.byte_written_bytes,
                block_read_bytes: sum.block_read_bytes + bytes.block_read_bytes,
                block_written_bytes: sum.block_written_bytes + bytes.block_written_bytes,
            }
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
        let structures: serde_json::Map<String, Value> = Structure::ALL
            .into_iter()
            .map(|structure| {
                let bytes = self.traffic.by_structure[structure as usize];
                let value = json!({
                    "byte_read_bytes": bytes.byte_read_bytes, "byte_written_bytes": bytes.byte_written_bytes,
                    "block_read_bytes": bytes.block_read_bytes, "block_written_bytes": bytes.block_written_bytes,
                });
                (structure.name().to_owned(), value)
            })
            .collect();
        let named = |entries: Vec<(&'static str, u64)>| -> Value {
            entries.into_iter().map(|(name, value)| (name.to_owned(), Value::from(value))).collect::<serde_json::Map<_, _>>().into()
        };
        json!({
            "load": load.workload.name(), "files": load.files, "workers": load.workers, "variant": rig.variant.name(),
            "profile": rig.profile, "staging_bytes": rig.staging_bytes, "flash_ns": rig.flash_ns,
            "operations": self.operations(), "calls": self.done.operations(), "loops": self.done.loops,
            "user_written_bytes": self.done.written_bytes, "user_read_bytes": self.done.read_bytes,
            "reckoned_ns": self.elapsed_ns, "reckoned_calls_ns": self.calls_ns, "operations_per_second": self.operations_a_second(), "host_ns": self.host.as_nanos() as u64,
            "by_structure": structures, "fences": self.traffic.fences,
            "block_reads": self.traffic.block_reads, "block_writes": self.traffic.block_writes,
            "work": named(self.work.entries()),
            "firmware": self.drive.map(|drive| named(drive.firmware.entries())),
            "flash": self.drive.map(|drive| named(drive.flash.entries())),
        })
    }
}

/// Whether the structure is file data (sectors or logs); everything else is metadata.
pub fn is_data(structure: Structure) -> bool {
    matches!(structure, Structure::Data | Structure::DataLog)
}

/// The work of a mount's background thread, on its own clock ([Y3]).
///
/// [Y3]: super
pub struct Behind<'c> {
    fs: Arc<FileSystem>,
    clock: &'c dyn Clock,
    now_ns: u64,
    calls: u64,
    journal_bytes: u64,
    ring_bytes: u64,
    /// How often freed sectors are discarded; `None`: never.
    discard_every_ns: Option<u64>,
    /// When they are discarded next, on the foreground's clock.
    discard_at_ns: u64,
    discarded_bytes: u64,
}

impl<'c> Behind<'c> {
    /// The background work of this file system; with an interval, freed sectors are discarded so often.
    pub fn new(fs: &Arc<FileSystem>, clock: &'c dyn Clock, discard_every_ns: Option<u64>) -> Self {
        let (ring_bytes, now_ns) = (fs.superblock().geometry.ring_bytes(), clock.now_ns());
        let discard_at_ns = now_ns + discard_every_ns.unwrap_or_default();
        let fs = fs.clone();
        Self { fs, clock, now_ns, calls: 0, journal_bytes: 0, ring_bytes, discard_every_ns, discard_at_ns, discarded_bytes: 0 }
    }

    /// Bytes of sectors that were discarded.
    pub fn discarded_bytes(&self) -> u64 {
        self.discarded_bytes
    }

    /// Called after each call of a worker.
    pub fn tend(&mut self) -> Result<()> {
        let journal = self.fs.drive().counters().snapshot().by_structure[Structure::Journal as usize].byte_written_bytes;
        // The single calling thread uses one ring; a mount's thread is woken when half of it is full.
        if journal.saturating_sub(self.journal_bytes) > self.ring_bytes / 2 {
            self.journal_bytes = journal;
            self.aside(|fs| Ok(fs.checkpoint()?))?;
        }
        self.calls += 1;
        if self.calls.is_multiple_of(CALLS_A_LOOK) {
            let memory = self.fs.space().memory;
            if memory.free_bytes * 100 < (memory.free_bytes + memory.data_log_bytes) * WRITE_BACK_PERCENT {
                self.aside(|fs| fs.write_back().map(|_blocks| ()).map_err(Into::into))?;
            }
        }
        let now = self.clock.now_ns();
        if let Some(interval_ns) = self.discard_every_ns.filter(|_| now >= self.discard_at_ns) {
            self.discard_at_ns = now + interval_ns;
            let mut bytes = 0;
            self.aside(|fs| {
                bytes = fs.discard_freed();
                Ok(())
            })?;
            self.discarded_bytes += bytes;
        }
        Ok(())
    }

    fn aside(&mut self, work: impl FnOnce(&FileSystem) -> Result<()>) -> Result<()> {
        let foreground = self.clock.now_ns();
        self.clock.set_now_ns(self.now_ns.max(foreground));
        let result = work(&self.fs);
        self.now_ns = self.clock.now_ns();
        self.clock.set_now_ns(foreground);
        result
    }
}
