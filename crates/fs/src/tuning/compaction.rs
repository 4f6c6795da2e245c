//! State that compaction keeps from one step to the next (`compaction/`).

use std::time::{Duration, Instant};

use crate::alloc::departure::Pace;

/// How often one operation without space has units emptied: others may take them first.
pub(crate) const COMPACTIONS_MAX: u32 = 4;
/// The same where files may lie in the memory zone, and may need many units: each time twice as many as before are asked for.
pub(crate) const GATHERINGS_MAX: u32 = 12;

/// A pass over all inodes, and when the next one may begin.
#[derive(Debug, Default)]
pub(crate) struct Compaction {
    /// The pass that is under way.
    pub(crate) pass: Option<Pass>,
    /// When the background thread last looked whether there is something to do.
    pub(crate) looked_at: Option<Instant>,
    /// When the background thread last worked, and how long.
    pub(crate) worked_at: Option<Instant>,
    pub(crate) worked: Duration,
    /// When an operation without space last tried regions that were given up.
    pub(crate) anew_at: Option<Instant>,
    /// Transactions that were committed by then, all of them and those of compaction.
    pub(crate) transactions: u64,
}

/// A pass.
#[derive(Debug)]
pub(crate) struct Pass {
    pub(crate) pace: Pace,
    /// The next inode, and where to go on in it: generation and block.
    pub(crate) next: u64,
    pub(crate) within: Option<(u32, u64)>,
    /// Whether it is the second one over the same units.
    pub(crate) is_second: bool,
    /// Objects that were in use, or could not be read: they are where they were.
    pub(crate) left: u64,
    /// It empties units so that aligned extents stay.
    pub(crate) aligns: bool,
    /// Units that had become free for any use, or aligned extents of the block zone, before it began.
    pub(crate) emptied_before: u64,
    /// Moves everything, wherever it is.
    pub(crate) everything: bool,
}

impl Pass {
    pub(crate) fn new(pace: Pace) -> Self {
        Self { emptied_before: 0, pace, next: 1, within: None, is_second: false, left: 0, aligns: false, everything: false }
    }
}

/// How far a compaction by hand has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CompactionRun {
    /// Passes that have begun.
    pub passes: u64,
    /// Metadata and data that was moved, in bytes.
    pub moved_bytes: u64,
    /// Space that became data area again, or aligned extents of the block zone, in bytes.
    pub freed_bytes: u64,
}
