//! Assigns written sectors to structures, with a map of a kernel file system's layout from its own tools.
//!
//! [SR1] Every written byte is counted for exactly one structure; unclaimed sectors are data. A map that claims a sector twice, or one
//!       outside the device, is an error.
//! [SR2] The map shows the state after the work. A freed directory block counts as data; a data block that became a directory block counts
//!       as directory.
//! [SR3] Counters are read before the map is built: reads by the tools are not the file system's traffic.
//!
//! ext4 is mapped with dumpe2fs and debugfs, XFS with xfs_db unless a file is open for writing. Btrfs has only the total, since its trees
//! move with every write.

pub mod ext4;
pub mod xfs;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::written::Run;
use crate::failure::{Failure, Result};

/// Unclaimed sectors.
pub const DATA: &str = "data";
/// For file systems without a map.
pub const TOTAL: &str = "total";

/// Map from sectors to structures.
#[derive(Debug, Default)]
pub struct Map {
    /// First sector to the end (exclusive) and the structure.
    claims: BTreeMap<u64, (u64, &'static str)>,
    sector_count: u64,
}

impl Map {
    /// For a device of this many sectors, all of them data.
    pub fn new(sector_count: u64) -> Self {
        Self { claims: BTreeMap::new(), sector_count }
    }

    /// Assigns sectors to a structure.
    ///
    /// # Errors
    /// They belong to another structure, or are outside the device ([SR1]).
    pub fn claim(&mut self, structure: &'static str, first: u64, count: u64) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let end = first.saturating_add(count);
        if end > self.sector_count {
            return Err(Failure::new(format!(
                "the layout has {structure} in sectors {first} to {end}, and the device has {}",
                self.sector_count
            )));
        }
        match self.claims.range(..end).next_back() {
            Some((other_first, (other_end, other))) if *other_end > first => Err(Failure::new(format!(
                "the layout has {structure} in sectors {first} to {end}, and {other} in {other_first} to {other_end}"
            ))),
            _ => {
                self.claims.insert(first, (end, structure));
                Ok(())
            }
        }
    }

    /// Bytes by structure ([SR1]).
    pub fn split(&self, written: &[Run], sector_bytes: u64) -> BTreeMap<String, u64> {
        let mut bytes: BTreeMap<String, u64> = BTreeMap::new();
        for &Run(first, count, times) in written {
            let (mut at, end) = (first, first + count);
            while at < end {
                let (until, structure) = self.owner(at);
                let until = until.min(end);
                *bytes.entry(structure.to_owned()).or_default() += (until - at) * sector_bytes * u64::from(times);
                at = until;
            }
        }
        bytes
    }

    /// The structure of a sector, and the end of the run with that structure.
    fn owner(&self, sector: u64) -> (u64, &'static str) {
        if let Some((_, &(end, structure))) = self.claims.range(..=sector).next_back()
            && end > sector
        {
            return (end, structure);
        }
        (self.claims.range(sector..).next().map_or(u64::MAX, |(first, _)| *first), DATA)
    }
}

/// Bytes by structure, for the file system found on the device.
///
/// # Errors
/// A tool is missing or its output is not understood, or the map is invalid ([SR1]).
pub fn of(device: &Path, device_bytes: u64, sector_bytes: u64, written: &[Run]) -> Result<BTreeMap<String, u64>> {
    let total = written.iter().map(|run| run.1 * sector_bytes * u64::from(run.2)).sum::<u64>();
    let mut head = vec![0; 8192];
    File::open(device)?.read_exact_at(&mut head, 0)?;
    let sector_count = device_bytes / sector_bytes;
    let map = if head[1080..1082] == [0x53, 0xef] {
        Some(ext4::map(device, sector_count, sector_bytes)?)
    } else if head[..4] == *b"XFSB" {
        xfs::map(device, sector_count, sector_bytes)?
    } else {
        None
    };
    let split = map.map_or_else(|| BTreeMap::from([(TOTAL.to_owned(), total)]), |map| map.split(written, sector_bytes));
    let sum = split.values().sum::<u64>();
    if sum != total {
        return Err(Failure::new(format!("the structures come to {sum} B, and {total} B were written; this is a bug of the benchmark")));
    }
    Ok(split)
}

/// Runs a tool and returns its output.
fn ask(program: &str, arguments: &[&str], device: &Path) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).arg(device).env("LC_ALL", "C").stdin(Stdio::null());
    let output = command.output().map_err(|error| Failure::new(format!("{program}: {error}; its package has to be installed")))?;
    if !output.status.success() {
        return Err(Failure::new(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_written_byte_has_one_owner() {
        let mut map = Map::new(100);
        map.claim("journal", 10, 10).expect("free");
        map.claim("inode tables", 20, 5).expect("free");
        map.claim("superblock", 0, 1).expect("free");
        let written = [Run(0, 1, 3), Run(5, 18, 2), Run(24, 2, 1), Run(90, 10, 1)];
        let split = map.split(&written, 4096);
        let pages = |name: &str| split.get(name).map(|bytes| bytes / 4096);
        assert_eq!(pages("superblock"), Some(3));
        assert_eq!(pages("journal"), Some(20));
        assert_eq!(pages("inode tables"), Some(3 * 2 + 1));
        assert_eq!(pages(DATA), Some(5 * 2 + 1 + 10));
        assert_eq!(split.values().sum::<u64>() / 4096, 3 + 36 + 2 + 10);
    }

    #[test]
    fn a_wrong_map_is_refused() {
        let mut map = Map::new(100);
        map.claim("journal", 10, 10).expect("free");
        for (first, count) in [(19, 1), (5, 6), (0, 100), (12, 2)] {
            let failure = map.claim("data", first, count).expect_err("overlaps").to_string();
            assert!(failure.contains("and journal in 10 to 20"), "{failure}");
        }
        assert!(map.claim("journal", 99, 2).expect_err("outside").to_string().contains("the device has 100"));
        assert!(map.claim("journal", u64::MAX, 2).is_err());
        map.claim("nothing", 10, 0).expect("nothing is claimed");
        map.claim("directories", 20, 80).expect("just behind");
    }
}
