//! Discards everything that is free, in steps (`tandemfs trim`). Discards of what was freed since the mount: `volume/discard.rs`.

use std::time::Duration;

use tandemfs_format::SECTOR_BYTES;

use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::wait::may_wait;

/// How far a trim has come.
#[derive(Debug, Clone)]
pub struct Trim {
    least_sectors: u64,
    group: usize,
    /// Where to go on in the group, in sectors.
    from: u64,
    discarded_bytes: u64,
}

impl Trim {
    /// Bytes discarded so far.
    pub fn discarded_bytes(&self) -> u64 {
        self.discarded_bytes
    }
}

/// The longest time that one call of [`FileSystem::discard_freed`] takes, but for the command that is under way then.
const FREED_AT_MOST: Duration = Duration::from_millis(500);

impl FileSystem {
    /// Discards sectors that were freed since the mount. Returns their size in bytes. It is a hint: what the drive refuses is free as
    /// before.
    pub fn discard_freed(&self) -> u64 {
        let _leaving = self.leaving.enter();
        self.volume.discard_freed(FREED_AT_MOST)
    }

    /// A trim of everything that is free in contiguous runs of at least `least_bytes`, rounded up to sectors. A run ends at the
    /// latest at a multiple of 128 MiB, so with a larger number nothing is discarded.
    pub fn trim(&self, least_bytes: u64) -> Trim {
        let least_sectors = least_bytes.div_ceil(SECTOR_BYTES as u64).max(1);
        Trim { least_sectors, group: 0, from: 0, discarded_bytes: 0 }
    }

    /// One step of a trim. False if there is nothing left to do. Work goes on beside it.
    ///
    /// # Errors
    /// `ReadOnly`, `Stopped`; `NotSupported` if the drive does not discard, or damaged metadata holds space back.
    pub fn trim_step(&self, trim: &mut Trim) -> Result<bool> {
        may_wait()?;
        self.volume.health.check_writable()?;
        if !self.volume.geometry.has_block_zone() {
            return Err(Error::NotSupported("the file system has no block zone, and there is nothing to discard in the memory zone"));
        }
        let groups = self.volume.sectors.groups();
        if trim.group >= groups {
            return Ok(false);
        }
        // Who finds no space meanwhile waits for the sectors that are taken here.
        let _leaving = self.leaving.enter();
        let step = self.volume.discard_free(trim.group, trim.from, trim.least_sectors);
        let (bytes, next) = step.ok_or(Error::NotSupported(match self.damage().holds_back {
            true => "damaged metadata may name free space, so nothing is discarded; unmount and run tandemfs check --repair",
            false => "the drive does not support discard",
        }))?;
        trim.discarded_bytes += bytes;
        (trim.group, trim.from) = match next {
            Some(from) => (trim.group, from),
            None => (trim.group + 1, 0),
        };
        Ok(trim.group < groups)
    }

    /// How much of the block zone a trim has passed, in bytes, and the size of the zone.
    pub fn trim_progress(&self, trim: &Trim) -> (u64, u64) {
        let total = self.volume.geometry.block_sectors();
        let done = trim.group as u64 * tandemfs_format::geometry::PIECE_SECTORS + trim.from;
        (done.min(total) * SECTOR_BYTES as u64, total * SECTOR_BYTES as u64)
    }
}
