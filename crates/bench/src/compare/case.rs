use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tandemfs_fs::FileSystem;

use super::peer::Peer;
use super::record::Percentiles;
use super::statistics::percentiles;
use crate::failure::Result;
use crate::measure::Samples;

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
}

impl Group {
    /// All, in the order of the report.
    pub const ALL: [Self; 4] = [Self::Micro, Self::Filebench, Self::Applications, Self::Buffered];

    /// The name for readers of reports.
    pub fn title(self) -> &'static str {
        match self {
            Self::Micro => "Single operations",
            Self::Buffered => "Buffered work on many small files",
            Self::Filebench => "Filebench's personalities",
            Self::Applications => "Applications",
        }
    }
}

/// The work of a case: sets up, then does it once inside [`Stage::time`]. Fails if a call failed, or if a result was wrong: what was written
/// is read back where that takes no time in the measured part.
type Work = Box<dyn Fn(&mut Stage<'_>) -> Result<Outcome> + Sync>;

/// A case to measure. It gets a directory and does not know which file system serves it ([CM3]).
///
/// [CM3]: super
pub struct Case {
    /// Name on the command line, such as `durable-overwrite-4k-c1`, including clients.
    pub name: String,
    /// Group, and so chapter of the report.
    pub group: Group,
    /// One line for readers: the operation, number of clients, sizes.
    pub description: String,
    /// Number of concurrent clients.
    pub clients: u32,
    /// Programs that must be installed.
    pub programs: &'static [&'static str],
    /// Whether `--quick` includes it.
    pub is_quick: bool,
    /// Least share of the work for which the fastest peer still takes some tenths of a second. Shorter runs measure thread starts and
    /// noise. A comparison that chooses the share automatically does not go below this.
    pub share_least: f64,
    /// Upper bound of the bytes that all of the work needs on the drive.
    pub bytes_needed: u64,
    /// Exponent of the share of the work in the bytes needed; 0 if they are the same for every share.
    pub bytes_exponent: f64,
    /// The drive's memory zone, if the load fixes its share of the data.
    pub memory_bytes: Option<u64>,
    /// Whether it has a form for the library.
    pub has_library_form: bool,
    /// Whether its program makes something durable before it goes on, which can be switched off ([`Stage::is_durable`]).
    pub is_durable: bool,
    /// The work.
    pub run: Work,
}

impl Case {
    /// A case for one client with the drive's least size, no programs, and no least share.
    pub fn new(group: Group, name: String, description: String, run: impl Fn(&mut Stage<'_>) -> Result<Outcome> + Sync + 'static) -> Self {
        Self {
            name,
            group,
            description,
            clients: 1,
            programs: &[],
            is_quick: false,
            share_least: 0.0,
            bytes_needed: 0,
            bytes_exponent: 0.0,
            memory_bytes: None,
            has_library_form: false,
            is_durable: false,
            run: Box::new(run),
        }
    }

    /// Whether the case can run on a peer.
    pub fn applies_to(&self, peer: Peer) -> bool {
        match peer {
            Peer::TandemfsLibrary => self.has_library_form,
            Peer::Ext4Volatile => self.is_durable,
            _ => true,
        }
    }

    /// Upper bound of the bytes that this share of the work (at most all) needs on the drive.
    pub fn bytes_needed(&self, share: f64) -> u64 {
        (self.bytes_needed as f64 * share.powf(self.bytes_exponent)).ceil() as u64
    }
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
    /// Whether programs make durable what they acknowledge; false for [`Peer::Ext4Volatile`].
    pub is_durable: bool,
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
    /// The case runs in another process, whose memory counts.
    fn runs_in(&mut self, _process: u32) {}
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
#[derive(Serialize, Deserialize)]
pub struct Outcome {
    /// Amount of work: operations or bytes.
    pub units: f64,
    /// Unit of `units`, in the plural.
    pub unit: String,
    /// Times of single operations, if the case measures them.
    pub latencies: Option<Percentiles>,
    /// The program's own measurement, used instead of the time of the measured part.
    pub own_time: Option<Duration>,
}

impl Outcome {
    /// Work that is counted, in the time of the measured part.
    pub fn counted(units: u64, unit: &str) -> Self {
        Self { units: units as f64, unit: unit.to_owned(), latencies: None, own_time: None }
    }

    /// Operations whose times were measured.
    pub fn timed(samples: &Samples) -> Self {
        Self { latencies: percentiles(samples), ..Self::counted(samples.count(), "operations") }
    }

    /// Work that the program or load timed itself.
    pub fn of_own_time(units: f64, unit: &str, seconds: f64) -> Self {
        Self { units, unit: unit.to_owned(), latencies: None, own_time: Some(Duration::from_secs_f64(seconds)) }
    }
}

/// The cases of one file; the registry concatenates all.
pub type Cases = Vec<Case>;
