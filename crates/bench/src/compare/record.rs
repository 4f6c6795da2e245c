use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::backing::Place;
use super::case::Group;
use super::peer::Peer;

/// Format of the lines. A file of another version is not resumed.
pub const VERSION: u32 = 1;

/// A line of the results: the first is the header, all others are runs. The header comes again where something was left out or calibrated
/// later; the last one counts.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "line")]
pub enum Line {
    /// What holds for all runs of the file.
    Header(Header),
    /// One run.
    Run(Box<Record>),
}

/// What holds for all runs of a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// [`VERSION`].
    pub version: u32,
    /// Facts of the machine: name and value.
    pub machine: Vec<(String, String)>,
    /// Versions of the programs that took part, and of the kernel's file systems: name and value.
    pub programs: Vec<(String, String)>,
    /// How the comparison was asked for (`--quick`, rounds, scale): name and value. Runs of other settings are not mixed with these.
    pub settings: Vec<(String, String)>,
    /// What is missing on this machine and why: a peer, a case or a program, and a sentence.
    pub left_out: Vec<(String, String)>,
    /// What the raw loop device and our own block path take, before anything is compared on the same drive.
    pub calibration: Vec<Calibration>,
}

/// Latency of one shape of request on the raw loop device and on the block path that TandemFS uses.
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
    /// What it was measured on.
    pub place: Place,
    /// Who was measured.
    pub peer: Peer,
    /// From 0.
    pub round: u32,
    /// Clients at once.
    pub clients: u32,
    /// What a case of [`Group::Scale`] varies: files in the directory, bytes of the file, percent full.
    pub parameter: Option<f64>,
    /// What was done: operations, transactions, files or bytes.
    pub units: f64,
    /// What `units` counts, in the plural: `operations`, `bytes`, `transactions`.
    pub unit: String,
    /// How long it took.
    pub seconds: f64,
    /// Seconds of all CPUs of the machine that were busy meanwhile, interrupts and kernel threads included.
    pub cpu_seconds: f64,
    /// Largest resident memory of the file system's daemon and of the client, without shared mappings of images, in bytes.
    pub memory_bytes: Option<u64>,
    /// Of single operations, where the case times them.
    pub latency_ns: Option<Percentiles>,
    /// What crossed to the drive, where it counts.
    pub traffic: Option<Traffic>,
    /// How much longer than the best so far a fixed piece of computing took around this run: 0.03 is 3 % longer.
    pub noise: f64,
}

impl Record {
    /// Units a second.
    pub fn rate(&self) -> f64 {
        self.units / self.seconds
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
    /// 90 % are at most this.
    pub p90: f64,
    /// 99 % are at most this.
    pub p99: f64,
    /// 99.9 % are at most this.
    pub p999: f64,
    /// The slowest.
    pub max: f64,
}

/// What crossed to a drive and what the drive did with it, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// Read by the host, both paths.
    pub read_bytes: u64,
    /// Written by the host, both paths.
    pub written_bytes: u64,
    /// FLUSH commands.
    pub flushes: u64,
    /// Programmed to flash, collection included, where the drive has flash.
    pub flash_programmed_bytes: Option<u64>,
    /// Read from flash, where the drive has flash.
    pub flash_read_bytes: Option<u64>,
    /// Bytes written, by the file system's structure: `journal`, `inode tables`, `data`, …
    pub written_by_structure: BTreeMap<String, u64>,
}
