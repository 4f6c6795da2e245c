//! What statfs(2) shows.

use tandemfs_fs::{FileSystem, QuotaEntry, QuotaUse, ZoneSpace};

use crate::Vfs;
use crate::reserve::Reserve;

/// The unit of [`FileSystemSpace`], in bytes.
pub const SPACE_UNIT_BYTES: u64 = 4096;
/// Longest name, in bytes.
pub const NAME_BYTES_MAX: u32 = 255;

/// Space of a file system, in units of [`SPACE_UNIT_BYTES`], and its inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystemSpace {
    /// In all.
    pub units: u64,
    /// Free.
    pub free: u64,
    /// Free for a large file of a user.
    pub available: u64,
    /// Inodes in all.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
}

/// Space of a file system with a reserve, or of a project in it that has limits: of each zone what the project may have (its soft limit, or else the
/// hard one, as XFS shows it), and of that what is free for it.
pub fn statfs(fs: &FileSystem, reserve: Reserve, project: Option<&QuotaEntry>) -> FileSystemSpace {
    let mut space = fs.space();
    let mut large_file_bytes = fs.large_file_bytes();
    if let Some(project) = project {
        bound(&mut space.memory, &project.memory);
        bound(&mut space.block, &project.block);
        let files = project.inodes.most().unwrap_or(u64::MAX);
        space.inodes_free = space.inodes_free.min(files.saturating_sub(project.inodes.used));
        space.inodes_used = if files < u64::MAX { project.inodes.used } else { space.inodes_used };
        let left = |of: &QuotaUse| of.most().map_or(u64::MAX, |most| most.saturating_sub(of.used));
        large_file_bytes = large_file_bytes.min(left(if space.block.total_bytes > 0 { &project.block } else { &project.memory }));
    }
    let units = |memory: u64, block: u64| (memory + block) / SPACE_UNIT_BYTES;
    // Callers of statfs use the available space to decide whether a file fits, so it counts space for a large file.
    let zone = if space.block.total_bytes > 0 { space.block } else { space.memory };
    let large_file = ZoneSpace { available_bytes: large_file_bytes, ..zone };
    FileSystemSpace {
        units: units(space.memory.total_bytes, space.block.total_bytes),
        free: units(space.memory.free_bytes, space.block.free_bytes),
        available: reserve.left(&large_file) / SPACE_UNIT_BYTES,
        files: space.inodes_used + space.inodes_free,
        files_free: space.inodes_free,
    }
}

fn bound(zone: &mut ZoneSpace, project: &QuotaUse) {
    let Some(most) = project.most() else { return };
    zone.total_bytes = zone.total_bytes.min(most);
    zone.free_bytes = zone.free_bytes.min(most.saturating_sub(project.used));
}

impl Vfs {
    /// What statfs(2) shows.
    pub fn statfs(&self) -> FileSystemSpace {
        statfs(&self.fs, self.settings.reserve, None)
    }
}
