//! XFS, from `xfs_db`'s check of every block. XFS has its own metadata cache, and `xfs_db` needs a clean log, so a mounted file system is
//! remounted read-only meanwhile. That fails if a file is open for writing; then there is no map.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{DATA, Map, ask};
use crate::failure::{Failure, Result};

/// The map of a file system, mounted or not; `None` if a file is open for writing.
pub fn map(device: &Path, sector_count: u64, sector_bytes: u64) -> Result<Option<Map>> {
    let Some(_still) = ReadOnly::new(device)? else { return Ok(None) };
    let sizes = ask("xfs_db", &["-r", "-c", "sb 0", "-c", "print blocksize agblocks"], device)?;
    let size = |name: &str| {
        let line = sizes.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
        line.and_then(|value| value.trim().parse::<u64>().ok()).ok_or_else(|| Failure::new(format!("xfs_db says no '{name}'")))
    };
    let (block_bytes, group_blocks) = (size("blocksize")?, size("agblocks")?);
    let per_block = block_bytes / sector_bytes;
    if per_block == 0 || !block_bytes.is_multiple_of(sector_bytes) {
        return Err(Failure::new(format!("XFS has blocks of {block_bytes} B, which share sectors of {sector_bytes} B")));
    }
    let said = ask("xfs_db", &["-r", "-c", "blockget -v"], device)?;
    let mut map = Map::new(sector_count);
    for (structure, first, count) in runs(&said, group_blocks)? {
        map.claim(structure, first * per_block, count * per_block)?;
    }
    Ok(Some(map))
}

/// "setting block 0/9 to freelist": the last such line of a block is valid. Data and free blocks are left out, since they are not claimed.
fn runs(said: &str, group_blocks: u64) -> Result<Vec<(&'static str, u64, u64)>> {
    let mut blocks: Vec<(u64, &'static str)> = Vec::new();
    for line in said.lines() {
        let Some(rest) = line.strip_prefix("setting block ") else { continue };
        let parts = rest.split_once(" to ").and_then(|(place, kind)| {
            let (group, block) = place.split_once('/')?;
            Some((group.parse::<u64>().ok()? * group_blocks + block.parse::<u64>().ok()?, kind))
        });
        let Some((block, kind)) = parts else { return Err(Failure::new(format!("xfs_db says '{line}'"))) };
        blocks.push((block, structure(kind.trim())));
    }
    // A stable sort: of entries for the same block the last printed one stays last.
    blocks.sort_by_key(|(block, _)| *block);
    let mut runs: Vec<(&'static str, u64, u64)> = Vec::new();
    for (index, &(block, structure)) in blocks.iter().enumerate() {
        if blocks.get(index + 1).is_some_and(|(next, _)| *next == block) || structure == DATA {
            continue;
        }
        match runs.last_mut() {
            Some((last, first, count)) if *last == structure && *first + *count == block => *count += 1,
            _ => runs.push((structure, block, 1)),
        }
    }
    Ok(runs)
}

fn structure(kind: &str) -> &'static str {
    match kind {
        "sb" | "agf" | "agi" | "agfl" => "superblock and group headers",
        "log" => "journal",
        "inode" => "inode tables",
        "dir" => "directories",
        "btbno" | "btcnt" | "btino" | "btfino" | "btrmap" | "btrefcnt" | "rmapbt" | "freelist" | "missing" => "allocation trees",
        "attr" | "btbmapa" | "btbmapd" | "symlink" | "quota" => "other metadata",
        _ => DATA,
    }
}

/// A file system remounted read-only until dropped.
struct ReadOnly(Option<PathBuf>);

impl ReadOnly {
    /// `None` if a file is open for writing.
    fn new(device: &Path) -> Result<Option<Self>> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let mut places = mounts.lines().filter_map(|line| line.strip_prefix(device.to_str()?)?.strip_prefix(' ')?.split(' ').next());
        let Some(mountpoint) = places.next().map(PathBuf::from) else { return Ok(Some(Self(None))) };
        let is_read_only = remount(&mountpoint, "remount,ro")?;
        Ok(is_read_only.then_some(Self(Some(mountpoint))))
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        if let Some(mountpoint) = &self.0
            && !remount(mountpoint, "remount,rw").is_ok_and(|done| done)
        {
            eprintln!("{}: it was made read-only and cannot be made writable again", mountpoint.display());
        }
    }
}

fn remount(mountpoint: &Path, options: &str) -> Result<bool> {
    Ok(Command::new("mount").args(["-o", options]).arg(mountpoint).stderr(Stdio::null()).status()?.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_xfs_db_says_is_understood() {
        let said = "setting block 0/0 to sb\nsetting block 0/1 to agf\ninode 128 040755 fmt\nsetting block 0/20 to free1\nsetting block 0/20 to free2\n\
                    setting block 1/5 to free1\nsetting block 1/5 to log\nsetting block 1/6 to log\nsetting block 0/30 to dir\nsetting block 0/31 to data\n";
        let found = runs(said, 1000).expect("runs");
        assert_eq!(found, [("superblock and group headers", 0, 2), ("directories", 30, 1), ("journal", 1005, 2)]);
        assert!(runs("setting block 5 to sb\n", 1000).is_err());
    }
}
