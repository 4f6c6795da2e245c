//! What the comparison and the process of the drive say to each other: a line of JSON each way over the child's standard streams.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::detour::Detour;
use super::written::Run;

/// What the process is started with (`--child`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// The drive's image.
    pub image: PathBuf,
    /// A directory to mount on.
    pub mountpoint: PathBuf,
    /// What is removed where nobody says good-bye.
    pub directory: PathBuf,
    /// Memory that is a cache in front of the block path, in bytes; 0 for none.
    pub cache_bytes: u64,
    /// What the way takes.
    pub detour: Detour,
}

/// The order of `--child` as one of several kinds.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Envelope {
    /// The only field, which tells it from other orders.
    pub same_drive: Order,
}

/// What is asked of the process.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ask {
    /// Count from nothing.
    Begin,
    /// What was counted.
    Traffic,
    /// Take this back from now on.
    Detour(Detour),
    /// Take everything down.
    End,
}

/// What it answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The block device, once everything is up.
    Ready(PathBuf),
    /// It is done.
    Done,
    /// What was counted.
    Traffic(Box<Counted>),
    /// A sentence: it could not be done.
    Failed(String),
}

/// What crossed the block path.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// Read, in bytes.
    pub read_bytes: u64,
    /// Written, in bytes.
    pub written_bytes: u64,
    /// FLUSH commands.
    pub flushes: u64,
    /// Discarded, in bytes.
    pub discarded_bytes: u64,
    /// Programmed to flash and read from it, in bytes; on drives that have flash.
    pub flash_bytes: Option<(u64, u64)>,
    /// Where it was written.
    pub written: Vec<Run>,
}
