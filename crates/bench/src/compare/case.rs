use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tandemfs_fs::FileSystem;

use super::peer::Peer;
use crate::failure::Result;
use crate::measure::Samples;

/// What a case belongs to; reports have a chapter for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// Single operations, durable or read.
    Micro,
    /// Buffered work on many small files, without fsync.
    Buffered,
    /// Filebench's personalities.
    Filebench,
    /// Programs that people run.
    Applications,
    /// How cost grows.
    Scale,
}

/// Something that is measured. It sees a directory and knows nothing of who serves it ([CM3]).
///
/// [CM3]: super
pub trait Case: Sync {
    /// Name on the command line, such as `durable-overwrite-4k`; clients and parameter are part of it (`-c4`).
    fn name(&self) -> String;

    /// Chapter of the report.
    fn group(&self) -> Group;

    /// One line for a reader: what is done, by how many, with which sizes.
    fn description(&self) -> String;

    /// Clients at once.
    fn clients(&self) -> u32 {
        1
    }

    /// What a case of [`Group::Scale`] varies.
    fn parameter(&self) -> Option<f64> {
        None
    }

    /// Whether it makes sense for a file system; the library takes part only where a case has a form for it.
    fn applies_to(&self, peer: Peer) -> bool {
        peer != Peer::TandemfsLibrary
    }

    /// Programs that must be installed.
    fn programs(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether it is one of the few that `--quick` runs.
    fn is_quick(&self) -> bool;

    /// Bytes that such a share of the work, at most all of it, needs on the drive at the most.
    fn bytes_needed(&self, share: f64) -> u64;

    /// Files that it makes at the most, where that is more than a drive of so many bytes is made for: ext4 has to know when it is made.
    fn files_needed(&self) -> Option<u64> {
        None
    }

    /// Least share of the work with which the fastest still takes some tenths of a second: below, a run measures how threads start and what
    /// the machine's neighbours do. A comparison that chooses the share by itself does not go below.
    fn share_least(&self) -> f64 {
        0.0
    }

    /// Lays out, then does the work once inside [`Stage::time`].
    ///
    /// # Errors
    /// A sentence: a call failed, or a result was wrong (what is read back is checked where that costs no time in the measured part).
    fn run(&self, stage: &mut Stage<'_>) -> Result<Outcome>;
}

/// Where a case runs once.
pub struct Stage<'a> {
    /// A directory on the file system, empty.
    pub directory: &'a Path,
    /// A directory of the host's memory, empty: logs, sockets, sources to copy from.
    pub scratch: &'a Path,
    /// The file system as a library, for [`Peer::TandemfsLibrary`]; `directory` is then not to be used.
    pub library: Option<&'a FileSystem>,
    /// Chooses everything that is drawn; the same for all peers of a round.
    pub seed: u64,
    /// Share of the work that is done.
    pub scale: f64,
    pub(super) clock: &'a mut dyn StageClock,
}

/// What the harness does around the measured part.
pub trait StageClock {
    /// Makes all that was written durable and forgets every cache, of the kernel and of the file system (unmount, mount, drop_caches).
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

    /// Runs the measured part. Time, CPU and traffic are those of this call alone.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn time<T>(&mut self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.clock.begin()?;
        let result = work();
        self.clock.end()?;
        result
    }
}

/// What a case did in its measured part.
pub struct Outcome {
    /// How much: operations, bytes.
    pub units: f64,
    /// What `units` counts, in the plural.
    pub unit: &'static str,
    /// Times of single operations, where it took them.
    pub latencies: Option<Samples>,
    /// Where a program measured itself: its own time instead of that of the measured part.
    pub own_time: Option<Duration>,
}

/// A group of cases of one file; the registry is the concatenation of all.
pub type Cases = Vec<Box<dyn Case>>;
