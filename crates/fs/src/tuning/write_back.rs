//! What write-back remembers from one pass to the next (`data/write_back.rs`).

use std::cmp::Reverse;
use std::time::Instant;

use tandemfs_format::InodeNumber;

use super::heat::Heat;
use crate::cache::Owner;
use crate::sync::Mutex;
use crate::sync::atomic::AtomicBool;
use crate::types::MountOptions;

/// One window's rest, where the next begins, and what the thread behind is asked for.
pub(crate) struct WriteBack {
    /// Where the next window begins.
    pub(crate) cursor: Mutex<Cursor>,
    /// The best of the last window that were not needed, the very best last ([WB2]).
    pub(crate) left: Mutex<Vec<Candidate>>,
    /// Whether the thread was asked since it last had enough.
    pub(crate) asked: AtomicBool,
    /// Whether it is to end at once.
    pub(crate) stop: AtomicBool,
    pub(crate) heat: Heat,
    /// When units were last to be emptied ([WB6]).
    pub(crate) emptied_at: Mutex<Option<Instant>>,
}

/// A block with logs. The greatest is written back first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Candidate {
    /// By age, then by what it frees; the age is 0 where the policy is most space.
    pub(crate) age: u32,
    pub(crate) lines: u32,
    /// Inode and block.
    pub(crate) place: Reverse<(u64, u64)>,
    /// Of the inode when it was looked at ([WB7]).
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

/// A place in the order of all files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) inode: u64,
    /// Where to go on in the inode that has this generation; in another one, at its first block ([WB7]).
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
