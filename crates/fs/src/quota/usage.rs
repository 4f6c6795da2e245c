//! Whose an inode is, what it uses, and how a change of space changes that.

use tandemfs_format::inode::{INODE_LINES, Inode};
use tandemfs_format::quota::{Limit, QuotaKind};
use tandemfs_format::segment::Region;
use tandemfs_format::{LINE_BYTES, PAGE_BYTES, SECTOR_BYTES};

use crate::space::Space;

/// Bytes of the memory zone, bytes of the block zone, inodes: how much more (or less) of each.
pub(crate) type Change = [i64; 3];

/// Positions in a [`Change`], and names for people.
pub(super) const RESOURCES: [&str; 3] = ["bytes of the memory zone", "bytes of the block zone", "inodes"];

const MEMORY: usize = 0;
const BLOCK: usize = 1;
const INODES: usize = 2;

/// Whose an inode is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Ids {
    pub(crate) user: u32,
    pub(crate) group: u32,
    pub(crate) project: u32,
}

impl Ids {
    pub(crate) fn of(inode: &Inode) -> Self {
        Self { user: inode.uid, group: inode.gid, project: inode.project }
    }

    /// Each kind with its id.
    pub(crate) fn each(self) -> [(QuotaKind, u32); 3] {
        [(QuotaKind::User, self.user), (QuotaKind::Group, self.group), (QuotaKind::Project, self.project)]
    }
}

/// Adds a change to others.
pub(crate) fn add_change(sum: &mut Change, change: Change) {
    sum.iter_mut().zip(change).for_each(|(sum, change)| *sum += change);
}

/// What taking this space changes ([QT1]).
pub(crate) fn change_of(space: Space) -> Change {
    let mut change = [0; 3];
    let (resource, amount) = match space {
        Space::Region { region: Region::Inodes, lines, .. } => (INODES, lines / INODE_LINES),
        Space::Region { lines, .. } | Space::Slot { lines, .. } => (MEMORY, lines * LINE_BYTES as u64),
        Space::Pages { count, .. } => (MEMORY, count * PAGE_BYTES as u64),
        Space::Sectors { count, .. } => (BLOCK, count * SECTOR_BYTES as u64),
    };
    change[resource] = amount as i64;
    change
}

/// What an id uses of one resource, and its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QuotaUse {
    /// In bytes, or inodes.
    pub used: u64,
    /// 0 for none.
    pub limit: Limit,
    /// Seconds that usage may still stay above the soft limit; `None` where it is not above.
    pub grace_seconds_left: Option<u64>,
}

impl QuotaUse {
    /// What may be used for long, if that is limited: the soft limit, or else the hard one.
    pub fn most(&self) -> Option<u64> {
        [self.limit.soft, self.limit.hard].into_iter().find(|limit| *limit > 0)
    }
}

/// What an id uses, and its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaEntry {
    /// What kind of id.
    pub kind: QuotaKind,
    /// The id.
    pub id: u32,
    /// Of the memory zone, in bytes.
    pub memory: QuotaUse,
    /// Of the block zone, in bytes.
    pub block: QuotaUse,
    /// Inodes.
    pub inodes: QuotaUse,
}
