//! Space reserved for root, like ext4's reserved blocks: a user's log or mail spool cannot take the last space from root.
//!
//! [RV1] Root and holders of CAP_SYS_RESOURCE may use the reserve. Others get ENOSPC for any operation that needs more space, new names
//!       included, once a zone has only its reserve left. Data logs count as free in the memory zone, since write-back frees their space.
//! [RV2] Operations that need no more space are never refused: overwriting allocated data, truncating, removing, punching holes.
//! [RV3] Without a reserve the check costs one comparison. With a reserve it reads a few counters, until the limit is reached.

use tandemfs_format::InodeNumber;
use tandemfs_fs::{Error, FileSystem, Result, ZoneSpace};

use crate::Vfs;
use crate::credentials::Credentials;

/// The reserved share of each zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserve {
    percent: u32,
}

impl Reserve {
    /// A share in percent; 0 for none.
    pub fn new(percent: u32) -> Self {
        Self { percent }
    }

    /// The reserved bytes of a zone.
    pub fn bytes(self, total: u64) -> u64 {
        total / 100 * u64::from(self.percent)
    }

    /// The bytes of a zone that users other than root may fill.
    pub fn left(self, zone: &ZoneSpace) -> u64 {
        zone.available_bytes.saturating_sub(self.bytes(zone.total_bytes))
    }

    /// The error for callers that may not use the reserve, if nothing else is left ([RV1]).
    pub fn reached(self, fs: &FileSystem) -> Option<Error> {
        if self.percent == 0 {
            return None; // [RV3]
        }
        let (memory, block) = fs.zones();
        let memory = ZoneSpace { available_bytes: memory.available_bytes + memory.data_log_bytes, ..memory };
        let zone =
            [("memory", &memory), ("block", &block)].into_iter().find(|(_, space)| space.total_bytes > 0 && self.left(space) == 0)?.0;
        Some(Error::NoSpace { zone })
    }

    /// Fails if writing `length` bytes at `offset` of a file would use the reserve.
    ///
    /// # Errors
    /// `NoSpace`, and those of reading the file's mapping.
    pub fn leaves(self, fs: &FileSystem, file: InodeNumber, offset: u64, length: u64) -> Result<()> {
        let Some(full) = self.reached(fs) else { return Ok(()) };
        if fs.needs_space(file, offset, length)? { Err(full) } else { Ok(()) }
    }
}

impl Vfs {
    /// Fails if only the reserve is left and the caller may not use it, so that it cannot create a name.
    pub(crate) fn leaves_reserve_to_names(&self, who: &Credentials) -> Result<()> {
        match self.settings.reserve.reached(&self.fs) {
            Some(full) if !who.may_use_reserve() => Err(full),
            _ => Ok(()),
        }
    }

    /// Runs operations of a caller who is bound by limits of quota, unless he may exceed them.
    pub fn bound_by_quota<T>(&self, who: &Credentials, operations: impl FnOnce() -> T) -> T {
        if who.may_use_reserve() { operations() } else { self.fs.bound_by_quota(0, |_| false, operations) }
    }

    /// Whether a caller may get space that it does not need yet.
    pub(crate) fn may_have_more(&self, who: &Credentials) -> bool {
        who.may_use_reserve() || self.settings.reserve.reached(&self.fs).is_none()
    }

    /// Fails if a change of a range would use the reserve, and the caller may not.
    pub(crate) fn leaves_reserve(&self, who: &Credentials, file: InodeNumber, offset: u64, length: u64) -> Result<()> {
        if who.may_use_reserve() { Ok(()) } else { self.settings.reserve.leaves(&self.fs, file, offset, length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_each_zone_is_left_out() {
        let zone = ZoneSpace { total_bytes: 1000, free_bytes: 500, available_bytes: 400, ..ZoneSpace::default() };
        assert_eq!(Reserve::new(0).left(&zone), 400);
        assert_eq!(Reserve::new(5).left(&zone), 350);
        assert_eq!(Reserve::new(50).left(&zone), 0);
    }
}
