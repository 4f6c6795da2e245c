//! What statfs(2) shows.

use tandemfs_fs::{FileSystem, ZoneSpace};

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

/// Space of a file system with a reserve.
pub fn statfs(fs: &FileSystem, reserve: Reserve) -> FileSystemSpace {
    let space = fs.space();
    let units = |memory: u64, block: u64| (memory + block) / SPACE_UNIT_BYTES;
    // Callers of statfs use the available space to decide whether a file fits, so it counts space for a large file.
    let zone = if space.block.total_bytes > 0 { space.block } else { space.memory };
    let large_file = ZoneSpace { available_bytes: fs.large_file_bytes(), ..zone };
    FileSystemSpace {
        units: units(space.memory.total_bytes, space.block.total_bytes),
        free: units(space.memory.free_bytes, space.block.free_bytes),
        available: reserve.left(&large_file) / SPACE_UNIT_BYTES,
        files: space.inodes_used + space.inodes_free,
        files_free: space.inodes_free,
    }
}

impl Vfs {
    /// What statfs(2) shows.
    pub fn statfs(&self) -> FileSystemSpace {
        statfs(&self.fs, self.settings.reserve)
    }
}
