//! ext4: fixed metadata from dumpe2fs, journal and directories from debugfs. Directory inodes are found in the inode tables, since no tool
//! lists them.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::{Map, ask};
use crate::failure::{Failure, Result};

const JOURNAL_INODE: u64 = 8;
const MODE_MASK: u16 = 0o170_000;
const DIRECTORY: u16 = 0o040_000;

/// The map of a file system, mounted or not: its metadata is in the device's page cache, which the tools read too.
pub fn map(device: &Path, sector_count: u64, sector_bytes: u64) -> Result<Map> {
    let layout = Layout::parse(&ask("dumpe2fs", &[], device)?)?;
    let mut map = Map::new(sector_count);
    let per_block = layout.block_bytes / sector_bytes;
    if per_block == 0 || !layout.block_bytes.is_multiple_of(sector_bytes) {
        return Err(Failure::new(format!("ext4 has blocks of {} B, which share sectors of {sector_bytes} B", layout.block_bytes)));
    }
    for &(structure, first, count) in &layout.extents {
        map.claim(structure, first * per_block, count * per_block)?;
    }
    let directories = layout.directories(device)?;
    let mut inodes = vec![JOURNAL_INODE];
    inodes.extend(directories);
    for (inode, blocks) in blocks_of(device, &inodes)? {
        let structure = if inode == JOURNAL_INODE { "journal" } else { "directories" };
        for (first, count) in runs(blocks) {
            map.claim(structure, first * per_block, count * per_block)?;
        }
    }
    Ok(map)
}

/// Parsed output of dumpe2fs.
#[derive(Debug, Default, PartialEq)]
struct Layout {
    block_bytes: u64,
    inode_bytes: u64,
    inodes_per_group: u64,
    /// Structure, first block, number of blocks.
    extents: Vec<(&'static str, u64, u64)>,
    /// First block of each group's inode table, and number of used inodes.
    tables: Vec<(u64, u64)>,
}

impl Layout {
    fn parse(text: &str) -> Result<Self> {
        let field = |name: &str| -> Result<u64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|value| value.trim().parse().ok()).ok_or_else(|| Failure::new(format!("dumpe2fs says no '{name}'")))
        };
        let (block_bytes, inode_bytes) = (field("Block size")?, field("Inode size")?);
        let mut layout =
            Self { block_bytes, inode_bytes, inodes_per_group: field("Inodes per group")?, extents: Vec::new(), tables: Vec::new() };
        for line in text.lines().map(str::trim) {
            // "Primary superblock at 0, Group descriptors at 1-2": all places of a group have this form.
            for part in line.split(", ") {
                let Some((what, place)) = part.split_once(" at ") else { continue };
                let structure = match what {
                    "Primary superblock" | "Backup superblock" => "superblock",
                    "Group descriptors" | "Group descriptor" | "Reserved GDT blocks" => "group descriptors",
                    "Block bitmap" | "Inode bitmap" => "bitmaps",
                    "Inode table" => "inode tables",
                    _ => continue,
                };
                let (first, last) = span(place).ok_or_else(|| Failure::new(format!("dumpe2fs says '{part}'")))?;
                layout.extents.push((structure, first, last + 1 - first));
                if structure == "inode tables" {
                    layout.tables.push((first, layout.inodes_per_group));
                }
            }
            // "207 free blocks, 2037 free inodes, 2 directories, 2037 unused inodes": the last line of a group that has the number.
            if let (Some(unused), Some(table)) = (line.strip_suffix(" unused inodes"), layout.tables.last_mut())
                && let Some(unused) = unused.rsplit(' ').next().and_then(|unused| unused.parse::<u64>().ok())
            {
                table.1 = layout.inodes_per_group.saturating_sub(unused);
            }
        }
        if layout.tables.is_empty() {
            return Err(Failure::new("dumpe2fs names no inode table"));
        }
        Ok(layout)
    }

    /// Inode numbers of directories.
    fn directories(&self, device: &Path) -> Result<Vec<u64>> {
        let file = File::open(device)?;
        let mut found = Vec::new();
        for (group, &(first, used)) in (0..).zip(&self.tables) {
            let mut table = vec![0; (used * self.inode_bytes) as usize];
            file.read_exact_at(&mut table, first * self.block_bytes)?;
            for (index, inode) in (0..).zip(table.chunks_exact(self.inode_bytes as usize)) {
                let mode = u16::from_le_bytes([inode[0], inode[1]]);
                let links = u16::from_le_bytes([inode[26], inode[27]]);
                if mode & MODE_MASK == DIRECTORY && links > 0 {
                    found.push(group * self.inodes_per_group + index + 1);
                }
            }
        }
        Ok(found)
    }
}

/// "292-803 (+291)" or "260 (bg #0 + 260), csum …": the first and the last block.
fn span(place: &str) -> Option<(u64, u64)> {
    let place = place.split([' ', ',']).next()?;
    let (first, last) = place.split_once('-').unwrap_or((place, place));
    Some((first.parse().ok()?, last.parse().ok()?))
}

/// The blocks of inodes, including their extent trees.
fn blocks_of(device: &Path, inodes: &[u64]) -> Result<Vec<(u64, Vec<u64>)>> {
    let mut commands = tempfile::NamedTempFile::new()?;
    for inode in inodes {
        writeln!(commands, "blocks <{inode}>")?;
    }
    commands.flush()?;
    let path = commands.path().to_str().ok_or_else(|| Failure::new("the directory for temporary files has a name that is not Unicode"))?;
    // Checksums of metadata that is being changed may be wrong.
    let text = ask("debugfs", &["-n", "-f", path], device)?;
    parse_blocks(&text)
}

/// "debugfs: blocks <8>", then a line of numbers.
fn parse_blocks(text: &str) -> Result<Vec<(u64, Vec<u64>)>> {
    let mut found: Vec<(u64, Vec<u64>)> = Vec::new();
    for line in text.lines() {
        if let Some(inode) = line.strip_prefix("debugfs: blocks <").and_then(|rest| rest.strip_suffix('>')) {
            found.push((inode.parse()?, Vec::new()));
        } else if let Some((_, blocks)) = found.last_mut() {
            for block in line.split_whitespace() {
                blocks.push(block.parse().map_err(|_| Failure::new(format!("debugfs says '{line}'")))?);
            }
        }
    }
    Ok(found)
}

/// Merges blocks into runs; duplicates count once.
fn runs(mut blocks: Vec<u64>) -> Vec<(u64, u64)> {
    blocks.sort_unstable();
    blocks.dedup();
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for block in blocks {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == block => *count += 1,
            _ => runs.push((block, 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "\
Inode count:              65536
Block size:               4096
Inodes per group:         2048
Inode size:	          256

Group 0: (Blocks 0-32767) csum 0xb4dc [ITABLE_ZEROED]
  Primary superblock at 0, Group descriptors at 1-2
  Reserved GDT blocks at 3-33
  Block bitmap at 34 (+34), csum 0x5bf8f715
  Inode bitmap at 50 (+50), csum 0xc705d642
  Inode table at 66-193 (+66)
  207 free blocks, 2037 free inodes, 2 directories, 2037 unused inodes
  Free blocks: 7986-8192
Group 1: (Blocks 32768-65535) csum 0xf8f1 [INODE_UNINIT, ITABLE_ZEROED]
  Backup superblock at 32768, Group descriptors at 32769-32770
  Block bitmap at 35 (bg #0 + 35), csum 0x95564683
  Inode bitmap at 51 (bg #0 + 51), csum 0x00000000
  Inode table at 194-321 (bg #0 + 194)
  7421 free blocks, 2048 free inodes, 0 directories
";

    #[test]
    fn what_dumpe2fs_says_is_understood() {
        let layout = Layout::parse(SAID).expect("a layout");
        assert_eq!((layout.block_bytes, layout.inode_bytes, layout.inodes_per_group), (4096, 256, 2048));
        assert_eq!(layout.tables, [(66, 11), (194, 2048)]);
        let of = |name| {
            layout.extents.iter().filter(|(structure, ..)| *structure == name).map(|&(_, first, count)| (first, count)).collect::<Vec<_>>()
        };
        assert_eq!(of("superblock"), [(0, 1), (32768, 1)]);
        assert_eq!(of("group descriptors"), [(1, 2), (3, 31), (32769, 2)]);
        assert_eq!(of("bitmaps"), [(34, 1), (50, 1), (35, 1), (51, 1)]);
        assert_eq!(of("inode tables"), [(66, 128), (194, 128)]);
        assert!(Layout::parse("Block size: 4096\n").is_err());
    }

    #[test]
    fn what_debugfs_says_is_understood() {
        let said = "debugfs: blocks <8>\n10 11 12 40\ndebugfs: blocks <2>\n9 \ndebugfs: blocks <12>\n\n";
        let found = parse_blocks(said).expect("blocks");
        assert_eq!(found, [(8, vec![10, 11, 12, 40]), (2, vec![9]), (12, vec![])]);
        assert_eq!(runs(vec![40, 11, 10, 12, 12]), [(10, 3), (40, 1)]);
        assert!(parse_blocks("debugfs: blocks <8>\nFile not found\n").is_err());
    }
}
