use std::path::Path;

use serde::{Deserialize, Serialize};

use super::record::Traffic;
use crate::failure::Result;

/// On what everybody is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// Kernel file systems on a loop device over a file in memory, which takes no time at all; TandemFS on its emulated drive with timing.
    Free,
    /// All on the same emulated drive: kernel file systems by its block path behind a loop device.
    Same,
}

impl Place {
    /// The name on the command line, in records and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Same => "same",
        }
    }
}

/// A block device that a kernel file system is made on, fresh and all zeros; gone when it is dropped.
pub trait Backing {
    /// `/dev/loopN`.
    fn block_device(&self) -> &Path;

    /// What has crossed to the drive since [`Backing::begin_traffic`], where the drive counts it.
    ///
    /// # Errors
    /// The drive does not answer.
    fn traffic(&self) -> Result<Option<Traffic>>;

    /// Counts from nothing from now on.
    ///
    /// # Errors
    /// The drive does not answer.
    fn begin_traffic(&self) -> Result<()>;
}
