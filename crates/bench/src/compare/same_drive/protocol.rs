//! Messages between the comparison and a drive's process: one JSON line each, over the child's standard streams.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::detour::Detour;
use super::kernel_threads::Before;
use crate::compare::record::Traffic;

/// What the process is started with.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    /// The drive's image.
    pub image: PathBuf,
    /// A directory to mount on.
    pub mountpoint: PathBuf,
    /// Removed by the process if the caller is gone.
    pub directory: PathBuf,
    /// Bytes of memory used as a cache in front of the block path; 0 for none.
    pub cache_bytes: u64,
    /// The detour to subtract.
    pub detour: Detour,
}

/// A request to the process.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ask {
    /// Report the counters.
    Traffic,
    /// Subtract this detour from now on.
    Detour(Detour),
    /// Take everything down and exit.
    End,
}

/// A reply of the process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The block device is ready.
    Ready {
        /// The loop device over its file.
        loop_device: PathBuf,
        /// The mask of kernel workers to restore if the process is killed.
        kernel_threads: Before,
    },
    /// It is done.
    Done,
    /// The counters, from the start of the process.
    Traffic(Traffic),
    /// Failed, with a reason.
    Failed(String),
}
