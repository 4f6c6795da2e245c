//! Space that only root may fill, as ext4's reserved blocks: a log or a mail spool of a user cannot take the last room from root.
//!
//! [RV1] Root and whoever has CAP_SYS_RESOURCE go on; others get ENOSPC for what would take more space, new names included, once a zone has no
//!       more than its share left. Data logs count as free in the memory zone: write-back gives their space back.
//! [RV2] What needs no more space is never refused: overwriting what is there, truncating, removing, punching.
//! [RV3] Without a reserve this is one comparison. With one it is a few counters, until the limit is reached.
//! [RV4] What the kernel's write-back cache took before the limit was reached comes without the name of the writer, and is not refused: near
//!       the limit files are opened past that cache (RULES R20), so `write` itself is told.

use tandemfs_format::InodeNumber;
use tandemfs_fs::{Error, Result, ZoneSpace};
use tandemfs_wire::Request;

use crate::caller::Caller;
use crate::door::Door;

/// The share that is reserved.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reserve {
    percent: u32,
}

impl Reserve {
    pub(crate) fn new(percent: u32) -> Self {
        Self { percent }
    }

    /// What is reserved of a zone, in bytes.
    pub(crate) fn bytes(self, total: u64) -> u64 {
        total / 100 * u64::from(self.percent)
    }

    /// What others than root may fill, in bytes.
    pub(crate) fn left(self, zone: &ZoneSpace) -> u64 {
        zone.available_bytes.saturating_sub(self.bytes(zone.total_bytes))
    }
}

impl Door {
    /// Whether the reserve is reached and a caller may not use it. Only then are its writes looked at one by one ([`Door::leaves_reserve`]).
    pub(crate) fn is_bound_by_reserve(&self, request: &Request<'_>) -> bool {
        self.reached().is_some() && !Caller::of(request).may_use_reserve()
    }

    /// Whether `length` bytes at `offset` of a file leave others what is reserved.
    pub(crate) fn leaves_reserve(&self, file: InodeNumber, offset: u64, length: u64) -> Result<()> {
        let Some(full) = self.reached() else { return Ok(()) };
        if self.fs.needs_space(file, offset, length)? { Err(full) } else { Ok(()) }
    }

    /// Whether a caller may make a name.
    pub(crate) fn leaves_reserve_to_names(&self, request: &Request<'_>) -> Result<()> {
        match self.reached() {
            Some(full) if !Caller::of(request).may_use_reserve() => Err(full),
            _ => Ok(()),
        }
    }

    /// What is told who may not use the reserve, where nothing else is left ([RV1]).
    fn reached(&self) -> Option<Error> {
        if self.reserve.percent == 0 {
            return None; // [RV3]
        }
        let (memory, block) = self.fs.zones();
        let memory = ZoneSpace { available_bytes: memory.available_bytes + memory.data_log_bytes, ..memory };
        let zone = [("memory", &memory), ("block", &block)].into_iter().find(|(_, space)| self.reserve.left(space) == 0)?.0;
        Some(Error::NoSpace { zone })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_each_zone_is_left_out() {
        let zone = ZoneSpace { total_bytes: 1000, free_bytes: 500, available_bytes: 400, data_log_bytes: 0, promoted_bytes: 0 };
        assert_eq!(Reserve::new(0).left(&zone), 400);
        assert_eq!(Reserve::new(5).left(&zone), 350);
        assert_eq!(Reserve::new(50).left(&zone), 0);
    }
}
