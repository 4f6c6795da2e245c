//! Runs one load on one rig ([Y3], [Y4]).
//!
//! [Y3]: super
//! [Y4]: super

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tandemfs_device::sync::workers::ModelledHost;
use tandemfs_device::sync::{Condvar, Mutex};
use tandemfs_device::{CountersSnapshot, DriveCounts, Structure, VirtualTime};
use tandemfs_fs::{FileSystem, WorkCounts};

use super::rig::{Rig, virtual_time};
use super::setting::Setting;
use crate::failure::{Failure, Result};
use crate::workloads::{Actor, Done, LibraryTarget, Load, Target, Worker, Workload, actors, lay_out, together};

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
    let behind = Behind::new(&fs, virtual_time(&*device)?, workers.len(), None);
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

/// The work of a mount's background thread, a worker of its own ([Y3]).
///
/// [Y3]: super
pub struct Behind<'c> {
    fs: Arc<FileSystem>,
    time: &'c dyn VirtualTime,
    state: Mutex<State>,
    asked: Condvar,
    /// Journal bytes after which a mount's thread is woken.
    journal_bytes_max: u64,
    /// How often freed sectors are discarded; `None`: never.
    discard_every_ns: Option<u64>,
}

#[derive(Default)]
struct State {
    jobs: Jobs,
    has_ended: bool,
    calls: u64,
    journal_bytes: u64,
    discard_at_ns: u64,
    discarded_bytes: u64,
    is_discarding: bool,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
struct Jobs {
    checkpoint: bool,
    write_back: bool,
    discard: bool,
}

impl<'c> Behind<'c> {
    /// The background work of a file system that so many workers use; with an interval, freed sectors are discarded so often.
    pub fn new(fs: &Arc<FileSystem>, time: &'c dyn VirtualTime, workers: usize, discard_every_ns: Option<u64>) -> Self {
        let geometry = &fs.superblock().geometry;
        // A mount's thread is woken when half of one ring is full, and each CPU has its own.
        let rings = u64::from(geometry.ring_count()).min(workers as u64);
        let state = State { discard_at_ns: time.now_ns() + discard_every_ns.unwrap_or_default(), ..State::default() };
        let journal_bytes_max = rings * geometry.ring_bytes() / 2;
        Self { fs: fs.clone(), time, state: Mutex::new(state), asked: Condvar::default(), journal_bytes_max, discard_every_ns }
    }

    /// Bytes of sectors that were discarded.
    pub fn discarded_bytes(&self) -> u64 {
        self.state.lock().discarded_bytes
    }

    /// Whether sectors are being discarded now.
    pub fn is_discarding(&self) -> bool {
        self.state.lock().is_discarding
    }

    /// Runs actors with this work beside them. Returns the nanoseconds that they took.
    pub fn beside<'a>(&'a self, actors: Vec<Actor<'a>>) -> Result<u64> {
        self.state.lock().has_ended = false;
        together(
            self.time,
            actors,
            || self.work(),
            || {
                self.state.lock().has_ended = true;
                self.asked.notify_one();
            },
        )
    }

    /// Called after each call of a worker.
    pub fn tend(&self) -> Result<()> {
        let journal = self.fs.drive().counters().snapshot().by_structure[Structure::Journal as usize].byte_written_bytes;
        let now = self.time.now_ns();
        let mut state = self.state.lock();
        if journal.saturating_sub(state.journal_bytes) > self.journal_bytes_max {
            (state.journal_bytes, state.jobs.checkpoint) = (journal, true);
        }
        state.calls += 1;
        if state.calls.is_multiple_of(CALLS_A_LOOK) {
            let memory = self.fs.space().memory;
            state.jobs.write_back |= memory.free_bytes * 100 < (memory.free_bytes + memory.data_log_bytes) * WRITE_BACK_PERCENT;
        }
        if let Some(interval_ns) = self.discard_every_ns.filter(|_| now >= state.discard_at_ns) {
            (state.discard_at_ns, state.jobs.discard) = (now + interval_ns, true);
        }
        if state.jobs != Jobs::default() {
            self.asked.notify_one();
        }
        Ok(())
    }

    fn work(&self) -> Result<()> {
        let mut state = self.state.lock();
        loop {
            let jobs = std::mem::take(&mut state.jobs);
            if jobs == Jobs::default() {
                if state.has_ended {
                    return Ok(());
                }
                self.asked.wait(&mut state);
                continue;
            }
            state.is_discarding = jobs.discard;
            drop(state);
            let discarded_bytes = if jobs.discard { self.fs.discard_freed() } else { 0 };
            self.state.lock().is_discarding = false;
            if jobs.checkpoint {
                self.fs.checkpoint()?;
            }
            if jobs.write_back {
                self.fs.write_back()?;
            }
            state = self.state.lock();
            state.discarded_bytes += discarded_bytes;
        }
    }
}
