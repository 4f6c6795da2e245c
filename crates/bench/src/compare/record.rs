use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::backing::Place;
use super::case::Group;
use super::peer::Peer;
use super::same_drive::{self, way::Times};

/// Format version of the results file. A file of another version is not resumed.
pub const VERSION: u32 = 5;

/// Facts and settings common to all runs of a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// [`VERSION`].
    pub version: u32,
    /// Facts of the machine: name and value.
    pub machine: Vec<(String, String)>,
    /// Versions of the programs used and of kernel file systems: name and value.
    pub programs: Vec<(String, String)>,
    /// Options of the comparison (`--quick`, rounds, scale): name and value. Runs with different settings are never mixed.
    pub settings: Vec<(String, String)>,
    /// What is missing on this machine: a peer, a case or a program, and the reason.
    pub left_out: Vec<(String, String)>,
    /// The drives that all file systems share, by the microseconds of a block command.
    pub same_drives: BTreeMap<u32, SameDrive>,
    /// Microseconds of a block command at which verdicts on the same drive are made: the profile's own, or the lowest that this machine
    /// carries; `None` if nothing was measured on the same drive.
    pub decisive_us: Option<u32>,
}

/// A drive that all file systems share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SameDrive {
    /// Latencies of the raw loop device and of our own block path, measured before any comparison.
    pub calibrations: Vec<Calibration>,
    /// Times of block reads and of block writes.
    pub times: [Times; 2],
    /// What the peers' way takes for one write of 4 KiB on this machine, whatever the drive does, in nanoseconds; if it was measured.
    pub carried_ns: Option<f64>,
    /// Sentences on requests that are no comparison.
    pub notes: Vec<String>,
    /// The settings from which it is made again.
    pub made_from: same_drive::Settings,
}

/// Latency of one kind of request on the raw loop device and on TandemFS's block path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Such as `4 KiB write + flush, queue depth 1`.
    pub request: String,
    /// Median on the loop device, as fio sees it.
    pub loop_ns: f64,
    /// Median on the emulated drive's own block path, as TandemFS sees it.
    pub drive_ns: f64,
}

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Name of the case.
    pub case: String,
    /// Its group.
    pub group: Group,
    /// The drive.
    pub place: Place,
    /// The file system.
    pub peer: Peer,
    /// Number of the round, from 0.
    pub round: u32,
    /// Number of concurrent clients.
    pub clients: u32,
    /// Amount of work: operations, transactions, files or bytes.
    pub units: f64,
    /// Unit of `units`, in the plural: `operations`, `bytes`, `transactions`.
    pub unit: String,
    /// Duration of the measured part.
    pub seconds: f64,
    /// Busy seconds of all CPUs during the measured part, including interrupts and kernel threads.
    pub cpu_seconds: f64,
    /// Largest resident memory of daemon and client, without shared mappings of images, in bytes.
    pub memory_bytes: Option<u64>,
    /// Latencies of single operations, if the case measures them.
    pub latency_ns: Option<Percentiles>,
    /// Traffic to the drive, if it is counted.
    pub traffic: Option<Traffic>,
    /// Processes that have been at the direct door since the last mount, where programs run under `tandemfs run`.
    pub connections: Option<u64>,
    /// How much longer than its best time a fixed computation took around this run: 0.03 is 3 % longer.
    pub noise: f64,
}

impl Record {
    /// Units per second.
    pub fn rate(&self) -> f64 {
        self.units / self.seconds
    }

    /// The name of the run for readers of reports.
    pub fn title(&self) -> String {
        format!("{}, {}, {}, round {}", self.case, self.place.title(), self.peer.title(), self.round + 1)
    }
}

/// Latencies of the operations of a run, in nanoseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Operations.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// The slowest.
    pub max: f64,
}

/// Traffic between host and drive, and the drive's flash operations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// Bytes read by the host, both paths.
    pub read_bytes: u64,
    /// Bytes written by the host, both paths.
    pub written_bytes: u64,
    /// FLUSH commands.
    pub flushes: u64,
    /// Bytes programmed to flash, including garbage collection, if the drive has flash.
    pub flash_programmed_bytes: Option<u64>,
    /// Bytes read from flash, if the drive has flash.
    pub flash_read_bytes: Option<u64>,
}

impl Traffic {
    /// Traffic between an earlier count and this one.
    pub fn since(&self, before: &Self) -> Self {
        let flash = |now: Option<u64>, before: Option<u64>| now.map(|now| now.saturating_sub(before.unwrap_or_default()));
        Self {
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
            flushes: self.flushes.saturating_sub(before.flushes),
            flash_programmed_bytes: flash(self.flash_programmed_bytes, before.flash_programmed_bytes),
            flash_read_bytes: flash(self.flash_read_bytes, before.flash_read_bytes),
        }
    }
}
