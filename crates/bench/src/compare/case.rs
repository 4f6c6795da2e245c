use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tandemfs_fs::FileSystem;

use super::peer::Peer;
use super::record::Percentiles;
use crate::failure::Result;

/// The group of a case; each group has a chapter in the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// Single operations, durable or read.
    Micro,
    /// Buffered work on many small files, without fsync.
    Buffered,
    /// Filebench's personalities.
    Filebench,
    /// Application programs.
    Applications,
    /// Growth of cost with a parameter.
    Scale,
}

impl Group {
    /// All, in the order of the report.
    pub const ALL: [Self; 5] = [Self::Micro, Self::Filebench, Self::Applications, Self::Buffered, Self::Scale];

    /// The name for readers of reports.
    pub fn title(self) -> &'static str {
        match self {
            Self::Micro => "Single operations",
            Self::Buffered => "Buffered work on many small files",
            Self::Filebench => "Filebench's personalities",
            Self::Applications => "Applications",
            Self::Scale => "How cost grows",
        }
    }
}

/// A case to measure. It gets a directory and does not know which file system serves it ([CM3]).
///
/// [CM3]: super
pub trait Case: Sync {
    /// Name on the command line, such as `durable-overwrite-4k`, including clients and parameter (`-c4`).
    fn name(&self) -> String;

    /// Group, and so chapter of the report.
    fn group(&self) -> Group;

    /// One line for readers: the operation, number of clients, sizes.
    fn description(&self) -> String;

    /// Number of concurrent clients.
    fn clients(&self) -> u32 {
        1
    }

    /// The varied parameter of a case of [`Group::Scale`].
    fn parameter(&self) -> Option<f64> {
        None
    }

    /// Whether the case can run on a peer; the library is included only if the case has an implementation for it.
    fn applies_to(&self, peer: Peer) -> bool {
        peer != Peer::TandemfsLibrary
    }

    /// Programs that must be installed.
    fn programs(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether `--quick` includes it.
    fn is_quick(&self) -> bool;

    /// Upper bound of the bytes that this share of the work (at most all) needs on the drive.
    fn bytes_needed(&self, share: f64) -> u64;

    /// Upper bound of its files, if that exceeds the default for a drive of this size: ext4 needs the number at mkfs.
    fn files_needed(&self) -> Option<u64> {
        None
    }

    /// The drive's memory zone, if the load fixes its share of the data.
    fn memory_bytes(&self) -> Option<u64> {
        None
    }

    /// Least share of the work for which the fastest peer still takes some tenths of a second. Shorter runs measure thread starts and
    /// noise. A comparison that chooses the share automatically does not go below this.
    fn share_least(&self) -> f64 {
        0.0
    }

    /// Sets up, then does the work once inside [`Stage::time`].
    ///
    /// # Errors
    /// A call failed, or a result was wrong (reads are verified where that takes no time in the measured part).
    fn run(&self, stage: &mut Stage<'_>) -> Result<Outcome>;
}

/// The environment of one run of a case.
pub struct Stage<'a> {
    /// An empty directory on the file system.
    pub directory: &'a Path,
    /// An empty directory in the host's memory, for logs, sockets and sources to copy.
    pub scratch: &'a Path,
    /// The file system as a library, for [`Peer::TandemfsLibrary`]; `directory` is then unused.
    pub library: Option<&'a FileSystem>,
    /// Seed of all random choices; the same for all peers of a round.
    pub seed: u64,
    /// Share of the work to do.
    pub scale: f64,
    pub(super) clock: &'a mut dyn StageClock,
}

/// The harness's part around the measured part.
pub trait StageClock {
    /// Makes all writes durable and drops every cache, of the kernel and of the file system (unmount, mount, drop_caches).
    fn make_cold(&mut self) -> Result<()>;
    /// The measured part begins.
    fn begin(&mut self) -> Result<()>;
    /// The measured part has ended.
    fn end(&mut self) -> Result<()>;
}

impl Stage<'_> {
    /// Makes everything durable and all caches cold.
    ///
    /// # Errors
    /// The file system cannot be unmounted or mounted.
    pub fn make_cold(&mut self) -> Result<()> {
        self.clock.make_cold()
    }

    /// Runs the measured part. Only this call counts for time, CPU and traffic.
    ///
    /// # Errors
    /// Errors of `work`.
    pub fn time<T>(&mut self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.clock.begin()?;
        let result = work();
        self.clock.end()?;
        result
    }
}

/// What a case did in its measured part.
pub struct Outcome {
    /// Amount of work: operations or bytes.
    pub units: f64,
    /// Unit of `units`, in the plural.
    pub unit: &'static str,
    /// Times of single operations, if the case measures them.
    pub latencies: Option<Percentiles>,
    /// The program's own measurement, used instead of the time of the measured part.
    pub own_time: Option<Duration>,
}

/// The cases of one file; the registry concatenates all.
pub type Cases = Vec<Box<dyn Case>>;
