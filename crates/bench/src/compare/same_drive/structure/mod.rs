//! Whose the sectors are that were written: the map of a kernel file system's layout, from its own tools.
//!
//! [SR1] Every written byte is counted for exactly one structure: what no structure claims is data. A map that claims a sector twice, or one
//!       outside the device, is wrong and refused.
//! [SR2] The map is of the moment after the work. A directory's block that was freed meanwhile counts as data, and a block that was data
//!       before it became a directory's counts as that.
//! [SR3] Counters are read before the map is: looking at the device is no traffic of the file system.
//!
//! ext4 has a map by dumpe2fs and debugfs, XFS by xfs_db unless a file is open for writing. Btrfs writes its trees wherever there is room, so
//! it has the total alone.

pub mod ext4;
pub mod xfs;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::written::Run;
use crate::failure::{Failure, Result};

/// What no structure claims.
pub const DATA: &str = "data";
/// Of file systems that have no map here.
pub const TOTAL: &str = "total";

/// Which sectors belong to which structure.
#[derive(Debug, Default)]
pub struct Map {
    /// First sector to the end behind the last, and the structure.
    claims: BTreeMap<u64, (u64, &'static str)>,
    sector_count: u64,
}

impl Map {
    /// Of a device of so many sectors, all of them data.
    pub fn new(sector_count: u64) -> Self {
        Self { claims: BTreeMap::new(), sector_count }
    }

    /// Gives sectors to a structure.
    ///
    /// # Errors
    /// They are another's, or outside the device ([SR1]).
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

    /// Whose a sector is, and up to where that holds.
    fn owner(&self, sector: u64) -> (u64, &'static str) {
        if let Some((_, &(end, structure))) = self.claims.range(..=sector).next_back()
            && end > sector
        {
            return (end, structure);
        }
        (self.claims.range(sector..).next().map_or(u64::MAX, |(first, _)| *first), DATA)
    }
}

/// Bytes by structure of whatever file system is on the device.
///
/// # Errors
/// A tool is missing or says what is not understood, or the map is wrong ([SR1]).
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

/// What a tool says.
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
