//! What each user, group and project uses: the lines and sectors that their inodes claim, without the inodes' own lines, and the inodes.

use std::collections::BTreeMap;

use serde::Serialize;
use tandemfs_format::inode::Inode;
use tandemfs_format::quota::QuotaKind;
use tandemfs_format::{LINE_BYTES, SECTOR_BYTES};

/// What an id uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// `user`, `group` or `project`.
    pub kind: &'static str,
    /// The id.
    pub id: u32,
    /// Bytes of the memory zone.
    pub memory_bytes: u64,
    /// Bytes of the block zone.
    pub block_bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

/// What was counted of each id.
#[derive(Debug, Default)]
pub(crate) struct UsageCounts(BTreeMap<(QuotaKind, u32), [u64; 3]>);

impl UsageCounts {
    /// Adds an inode that uses so many lines and sectors.
    pub(crate) fn add(&mut self, inode: &Inode, lines: u64, sectors: u64) {
        for key in [(QuotaKind::User, inode.uid), (QuotaKind::Group, inode.gid), (QuotaKind::Project, inode.project)] {
            let [memory, block, inodes] = self.0.entry(key).or_default();
            *memory += lines * LINE_BYTES as u64;
            *block += sectors * SECTOR_BYTES as u64;
            *inodes += 1;
        }
    }

    /// By kind and id.
    pub(crate) fn list(&self) -> Vec<Usage> {
        let entry = |((kind, id), [memory, block, inodes]): (&(QuotaKind, u32), &[u64; 3])| Usage {
            kind: kind.name(),
            id: *id,
            memory_bytes: *memory,
            block_bytes: *block,
            inodes: *inodes,
        };
        self.0.iter().map(entry).collect()
    }
}
