//! What ageing did: free space in aligned pieces, and where the bytes of files lie.

use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::population::Population;
use super::target::Target;
use crate::failure::{Failure, Result};

/// A huge page.
pub const HUGE_BYTES: u64 = 2 << 20;
/// Files whose pieces are counted.
const FILES: usize = 200;
/// The file that is made to see how it could be mapped.
const LARGE: &str = "large";

/// Free space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Free {
    /// All of it.
    pub bytes: u64,
    /// The part in free pieces of 2 MiB at multiples of 2 MiB; none where no tool tells.
    pub aligned_bytes: Option<u64>,
}

/// Bytes of a file that lie in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Where they start in the file.
    pub offset: u64,
    /// Where they start on the device.
    pub at: u64,
    /// How many they are.
    pub bytes: u64,
}

/// The state of an aged file system at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Share of the capacity that files take, in percent; 0 for the new file system.
    pub utilization_percent: f64,
    /// Bytes created so far, in capacities.
    pub churn: f64,
    /// Bytes that compaction between the steps has moved so far.
    pub moved_bytes: u64,
    /// Number of files.
    pub files: u64,
    /// The largest difference of an age group's share from the profile's.
    pub age_error: f64,
    /// Free space, in bytes.
    pub free_bytes: u64,
    /// The share of it in free aligned pieces of 2 MiB.
    pub aligned_free_share: Option<f64>,
    /// Pieces that a file is in, mean of up to 200 files spread over all ages.
    pub pieces_a_file: Option<f64>,
    /// Size of the new large file, in bytes.
    pub large_bytes: u64,
    /// The share of it that can be mapped with huge pages.
    pub large_huge_share: Option<f64>,
}

/// Looks at a file system. Makes a file of at most `large_bytes`, and at most half of what is free, and removes it.
pub fn sample(target: &dyn Target, population: &Population, capacity_bytes: u64, large_bytes: u64) -> Result<Sample> {
    target.settle()?;
    let free = target.free()?;
    let (files, live_bytes) = population.live();
    let large_bytes = (large_bytes.min(free.bytes / 2) / HUGE_BYTES * HUGE_BYTES).max(HUGE_BYTES);
    target.create(LARGE, large_bytes, false)?;
    let large = target.settle().and_then(|()| target.pieces(LARGE));
    target.remove(LARGE)?;
    let sampled: Result<Vec<usize>> =
        population.sample(FILES).iter().map(|file| Ok(joined(&target.pieces(&population.path(file))?).len())).collect();
    Ok(Sample {
        utilization_percent: live_bytes as f64 * 100.0 / capacity_bytes as f64,
        churn: population.created_bytes() as f64 / capacity_bytes as f64,
        moved_bytes: 0,
        files,
        age_error: if files == 0 { 0.0 } else { population.age_error() },
        free_bytes: free.bytes,
        aligned_free_share: free.aligned_bytes.map(|aligned| aligned as f64 / free.bytes.max(1) as f64),
        pieces_a_file: sampled
            .ok()
            .filter(|counts| !counts.is_empty())
            .map(|counts| counts.iter().sum::<usize>() as f64 / counts.len() as f64),
        large_bytes,
        large_huge_share: large.ok().map(|pieces| huge_bytes(&pieces) as f64 / large_bytes as f64),
    })
}

/// Pieces that follow each other in the file and on the device are one.
fn joined(pieces: &[Piece]) -> Vec<Piece> {
    let mut joined: Vec<Piece> = Vec::new();
    for piece in pieces {
        match joined.last_mut() {
            Some(last) if last.offset + last.bytes == piece.offset && last.at + last.bytes == piece.at => last.bytes += piece.bytes,
            _ => joined.push(*piece),
        }
    }
    joined
}

/// Bytes of the file that huge pages can map: at multiples of 2 MiB of the file, 2 MiB in a row at a multiple of 2 MiB of the device.
fn huge_bytes(pieces: &[Piece]) -> u64 {
    let huge = |piece: &Piece| {
        if piece.at % HUGE_BYTES != piece.offset % HUGE_BYTES {
            return 0;
        }
        let start = piece.offset.next_multiple_of(HUGE_BYTES);
        ((piece.offset + piece.bytes).saturating_sub(start)) / HUGE_BYTES * HUGE_BYTES
    };
    joined(pieces).iter().map(huge).sum()
}

/// Bytes in aligned pieces of 2 MiB of free ranges (start and length on the device).
fn aligned_bytes(ranges: impl IntoIterator<Item = (u64, u64)>) -> u64 {
    let whole = |(start, bytes): (u64, u64)| (start + bytes).saturating_sub(start.next_multiple_of(HUGE_BYTES)) / HUGE_BYTES * HUGE_BYTES;
    ranges.into_iter().map(whole).sum()
}

/// The same of other file systems, by their own tools.
pub mod of_peer {
    use super::*;

    /// Free space of a mounted file system, of which `bytes` are free: `dumpe2fs` for ext4, `xfs_spaceman` for XFS.
    pub fn free(directory: &Path, bytes: u64) -> Result<Free> {
        let text = output("findmnt", &["--noheadings", "--output", "FSTYPE,SOURCE,TARGET", "--target"], directory)?;
        let mut words = text.split_whitespace();
        let (kind, source, mount_point) =
            (words.next().unwrap_or_default(), words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let aligned_bytes = match kind {
            "ext2" | "ext3" | "ext4" => {
                let text = output("dumpe2fs", &[], Path::new(source))?;
                Some(aligned_bytes(ext4_ranges(&text).ok_or_else(|| unknown("dumpe2fs"))?))
            }
            "xfs" => {
                let info = output("xfs_info", &[], Path::new(mount_point))?;
                let text = output("xfs_spaceman", &["-c", "freesp -d"], Path::new(mount_point))?;
                Some(aligned_bytes(xfs_ranges(&info, &text).ok_or_else(|| unknown("xfs_spaceman"))?))
            }
            _ => None,
        };
        Ok(Free { bytes, aligned_bytes })
    }

    /// Where the bytes of a file lie, by `filefrag`.
    pub fn pieces(path: &Path) -> Result<Vec<Piece>> {
        Ok(filefrag_pieces(&output("filefrag", &["-v", "-b4096"], path)?))
    }

    fn unknown(tool: &str) -> Failure {
        Failure::new(format!("{tool} printed something unknown"))
    }

    /// What a tool prints about a path.
    fn output(tool: &str, options: &[&str], path: &Path) -> Result<String> {
        let ended = Command::new(tool).args(options).arg(path).env("LC_ALL", "C").output();
        let ended = ended.map_err(|error| Failure::new(format!("{tool}: {error}")))?;
        if !ended.status.success() {
            return Err(Failure::new(format!("{tool} {}: {}", path.display(), String::from_utf8_lossy(&ended.stderr).trim())));
        }
        Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
    }

    /// Free ranges in the lines `  Free blocks: 12-40, 99` of each group.
    pub fn ext4_ranges(text: &str) -> Option<Vec<(u64, u64)>> {
        let block = text.lines().find_map(|line| line.strip_prefix("Block size:"))?.trim().parse::<u64>().ok()?;
        // Runs end at groups, so neighbours are joined.
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for line in text.lines().filter_map(|line| line.strip_prefix("  Free blocks:")) {
            for run in line.split(',').map(str::trim).filter(|run| !run.is_empty()) {
                let (first, last) = run.split_once('-').unwrap_or((run, run));
                let (first, last) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
                let (start, bytes) = (first * block, (last + 1).checked_sub(first)? * block);
                match ranges.last_mut() {
                    Some(before) if before.0 + before.1 == start => before.1 += bytes,
                    _ => ranges.push((start, bytes)),
                }
            }
        }
        Some(ranges)
    }

    /// Free ranges in the lines `agno agbno len` of the tool, with the geometry that `xfs_info` prints.
    pub fn xfs_ranges(info: &str, text: &str) -> Option<Vec<(u64, u64)>> {
        let number = |name: &str| {
            let digits = info.split(name).nth(1)?;
            digits.split(|at: char| !at.is_ascii_digit()).next()?.parse::<u64>().ok()
        };
        let data = info.find("data").map(|at| &info[at..])?;
        let block = data.split("bsize=").nth(1)?.split(|at: char| !at.is_ascii_digit()).next()?.parse::<u64>().ok()?;
        let group = number("agsize=")?;
        let mut ranges = Vec::new();
        for line in text.lines() {
            let words: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
            if let [of_group, first, count] = words[..] {
                ranges.push(((of_group * group + first) * block, count * block));
            }
        }
        Some(ranges)
    }

    /// The lines `ext: logical..: physical..: length:` of `filefrag -v -b4096`.
    pub fn filefrag_pieces(text: &str) -> Vec<Piece> {
        let piece = |line: &str| {
            let mut fields = line.split(':').map(str::trim);
            fields.next()?.parse::<u64>().ok()?;
            let first = |field: &str| field.split("..").next()?.trim().parse::<u64>().ok();
            let (logical, physical, length) = (first(fields.next()?)?, first(fields.next()?)?, fields.next()?.parse::<u64>().ok()?);
            Some(Piece { offset: logical * 4096, at: physical * 4096, bytes: length * 4096 })
        };
        text.lines().filter_map(piece).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn only_aligned_rows_count_as_huge() {
        let at = |offset, at, bytes| Piece { offset: offset * MIB, at: at * MIB, bytes: bytes * MIB };
        assert_eq!(huge_bytes(&[at(0, 4, 4)]), 4 * MIB);
        assert_eq!(huge_bytes(&[at(0, 4, 1), at(1, 5, 1)]), 2 * MIB, "in a row in two pieces");
        assert_eq!(huge_bytes(&[at(0, 4, 1), at(1, 7, 1)]), 0);
        assert_eq!(huge_bytes(&[at(0, 3, 4)]), 0, "not at a multiple of the device");
        assert_eq!(huge_bytes(&[at(1, 5, 4)]), 2 * MIB, "the middle");
        assert_eq!(aligned_bytes([(MIB, 4 * MIB), (8 * MIB, MIB)]), 2 * MIB);
    }

    #[test]
    fn tools_of_peers_are_read() {
        let ext4 = "Block size:               4096\nGroup 0: (Blocks 0-32767)\n  Free blocks: 512-1023, 2000\n  Free inodes: 12-80\n\
                    Group 1:\n  Free blocks: \n";
        assert_eq!(of_peer::ext4_ranges(ext4), Some(vec![(2 * MIB, 2 * MIB), (2000 * 4096, 4096)]));
        assert_eq!(of_peer::ext4_ranges("nothing"), None);
        let info = "meta-data=/dev/loop0 isize=512    agcount=4, agsize=65536 blks\n         =  sectsz=512\n\
                    data     =                       bsize=4096   blocks=262144, imaxpct=25\n";
        let listed = "    agno    agbno      len\n       0        6        1\n       1      512      512\n   from      to extents\n";
        assert_eq!(of_peer::xfs_ranges(info, listed), Some(vec![(6 * 4096, 4096), ((65_536 + 512) * 4096, 2 * MIB)]));
        let filefrag = "Filesystem type is: ef53\nFile size of f is 3145728 (768 blocks of 4096 bytes)\n \
                        ext:     logical_offset:        physical_offset: length:   expected: flags:\n   \
                        0:        0..     511:       4247..      4758:    512:             unwritten\n   \
                        1:      512..     767:       9000..      9255:    256:       4759: last,eof\nf: 2 extents found\n";
        let pieces = of_peer::filefrag_pieces(filefrag);
        assert_eq!(pieces.len(), 2);
        assert_eq!(pieces[1], Piece { offset: 2 * MIB, at: 9000 * 4096, bytes: MIB });
    }
}
