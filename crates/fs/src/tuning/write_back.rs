//! State that write-back keeps from one pass to the next (`data/write_back.rs`).

use std::cmp::Reverse;
use std::time::Instant;

use tandemfs_format::InodeNumber;

use super::heat::Heat;
use crate::cache::Owner;
use crate::sync::Mutex;
use crate::sync::atomic::AtomicBool;
use crate::types::MountOptions;

/// The rest of the last window, the start of the next one, and requests to the background thread.
pub(crate) struct WriteBack {
    /// Start of the next window.
    pub(crate) cursor: Mutex<Cursor>,
    /// Best candidates of the last window that were not needed, the very best last ([WB2]).
    pub(crate) left: Mutex<Vec<Candidate>>,
    /// Whether the background thread was asked since it last had enough free space.
    pub(crate) asked: AtomicBool,
    /// Whether write-back shall stop at once.
    pub(crate) stop: AtomicBool,
    pub(crate) heat: Heat,
    /// When units were last to be emptied ([WB6]).
    pub(crate) emptied_at: Mutex<Option<Instant>>,
}

/// A block with logs. The greatest is written back first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Candidate {
    /// Ordered by age, then by what it frees; the age is 0 for the policy `MostSpace`.
    pub(crate) age: u32,
    pub(crate) lines: u32,
    /// Inode and block.
    pub(crate) place: Reverse<(u64, u64)>,
    /// Generation of the inode when it was read ([WB7]).
    pub(crate) generation: u32,
}

impl Candidate {
    pub(crate) fn owner(&self) -> Owner {
        Owner { inode: InodeNumber::new(self.place.0.0), generation: self.generation }
    }

    pub(crate) fn block(&self) -> u64 {
        self.place.0.1
    }
}

/// A position in the order of all files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) inode: u64,
    /// Generation and block to go on at. In an inode with another generation, at its first block ([WB7]).
    pub(crate) within: Option<(u32, u64)>,
}

impl Cursor {
    pub(crate) const fn start_of(inode: u64) -> Self {
        Self { inode, within: None }
    }
}

impl WriteBack {
    pub(crate) fn new(options: &MountOptions, last_txid: u64) -> Self {
        Self {
            cursor: Mutex::new(Cursor::start_of(1)),
            left: Mutex::default(),
            asked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            heat: Heat::new(options.write_back, options.memory_bytes, last_txid),
            emptied_at: Mutex::new(None),
        }
    }
}
