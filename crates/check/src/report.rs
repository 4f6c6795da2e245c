//! The result of a check; serialises to the JSON of `tandemfs check --json`.

use std::fmt;

use serde::Serialize;
use uuid::Uuid;

use crate::finding::{Finding, Severity};
use crate::usage::Usage;

/// Counters of the check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Inodes in use that verify.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Regular files.
    pub files: u64,
    /// Symbolic links.
    pub links: u64,
    /// Devices, FIFOs, sockets.
    pub special: u64,
    /// Directory entries.
    pub names: u64,
    /// Blocks of files, without holes.
    pub blocks: u64,
    /// Sectors of extents.
    pub sectors: u64,
    /// Pages of the memory zone that hold blocks.
    pub pages: u64,
    /// Pages among them that are open: a mapping may change them, or might when a crash came, and they have no checksums meanwhile. A
    /// mount closes them.
    pub open_pages: u64,
    /// Runs of blocks.
    pub runs: u64,
    /// Data logs.
    pub logs: u64,
    /// Bytes in data logs.
    pub log_bytes: u64,
    /// Bytes of the slots that data logs take.
    pub log_slot_bytes: u64,
    /// Bytes of file data read and verified.
    pub data_bytes: u64,
    /// Bytes of files that earlier repairs gave up.
    pub lost_bytes: u64,
    /// Journal records that wait for replay.
    pub journal_records: u64,
}

/// A finding with its severity, path and sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Located {
    /// The finding.
    #[serde(flatten)]
    pub finding: Finding,
    /// How bad it is.
    pub severity: Severity,
    /// Whether repair can repair it.
    pub repairable: bool,
    /// Path of its inode, where one is known.
    pub path: Option<String>,
    /// The finding as a sentence.
    pub message: String,
}

impl Located {
    pub(crate) fn new(finding: Finding, path: Option<String>) -> Self {
        let message = finding.to_string();
        Self { severity: finding.severity(), repairable: finding.repairable(), finding, path, message }
    }
}

impl fmt::Display for Located {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(formatter, "{} ({path})", self.message),
            None => formatter.write_str(&self.message),
        }
    }
}

/// Data that a repair gave up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LostRange {
    /// The inode.
    pub inode: u64,
    /// Its path, where one is known.
    pub path: Option<String>,
    /// Offset in the file in bytes.
    pub offset: u64,
    /// Bytes; `None` for all of a file whose size is unknown.
    pub bytes: Option<u64>,
}

impl fmt::Display for LostRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &self.path {
            Some(path) => format!("{path} (inode {})", self.inode),
            None => format!("inode {}", self.inode),
        };
        match self.bytes {
            Some(bytes) => write!(formatter, "{name}: {bytes} B at byte {}", self.offset),
            None => write!(formatter, "{name}: all of it"),
        }
    }
}

/// An inode without a name that got one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Placed {
    /// The inode.
    pub inode: u64,
    /// Its path now.
    pub path: String,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The device's name.
    pub device: String,
    /// The pair.
    pub pair: Uuid,
    /// The UUID that users see.
    pub uuid: Uuid,
    /// The label.
    pub label: String,
    /// Whether the file system had been unmounted cleanly.
    pub clean: bool,
    /// One copy of the superblock is torn or older, as a power cut leaves it: the next mount rewrites it.
    pub superblock_copy_behind: bool,
    /// The identity of the block half is torn or older, as after a power cut while it was changed; the next mount writes it again.
    pub identity_behind: bool,
    /// What was counted.
    pub counts: Counts,
    /// What each user, group and project uses, counted anew; empty without the feature *quota*.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub usage: Vec<Usage>,
    /// What was repaired, or would be with [`crate::CheckOptions::dry_run`].
    pub repaired: Vec<Located>,
    /// What was corrected or rebuilt because its checksums prove it, and what [`crate::CheckOptions::rescue`] could not rebuild, as sentences.
    pub rescued: Vec<String>,
    /// Nothing was written: `repaired`, `lost` and `placed` say what a repair would do, `findings` what it would leave.
    pub dry_run: bool,
    /// File data that the repair gave up. Reading it fails from now on; without *lost records* it reads as zeros.
    pub lost: Vec<LostRange>,
    /// File data that earlier repairs gave up and nothing has overwritten since. No finding: no repair can change it.
    pub lost_before: Vec<LostRange>,
    /// Inodes without a name that got one.
    pub placed: Vec<Placed>,
    /// Bytes in the file for undoing.
    pub undo_bytes: u64,
    /// The remaining findings.
    pub findings: Vec<Located>,
    /// Findings beyond the largest number asked for, counted only.
    pub findings_left_out: u64,
}

impl Report {
    /// Whether no findings remain.
    pub fn is_consistent(&self) -> bool {
        self.findings.is_empty() && self.findings_left_out == 0
    }

    /// Findings of a severity that are left.
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|located| located.severity == severity).count()
    }
}
