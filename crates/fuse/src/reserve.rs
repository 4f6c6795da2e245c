//! Space reserved for root, like ext4's reserved blocks: a user's log or mail spool cannot take the last space from root.
//!
//! [RV1] Root and holders of CAP_SYS_RESOURCE may use the reserve, if the daemon can see that they are (`caller.rs`). Others get ENOSPC for any operation that needs more space, new names
//!       included, once a zone has only its reserve left. Data logs count as free in the memory zone, since write-back frees their space.
//! [RV2] Operations that need no more space are never refused: overwriting allocated data, truncating, removing, punching holes.
//! [RV3] Without a reserve the check costs one comparison. With a reserve it reads a few counters, until the limit is reached.
//! [RV4] Data that the write-back cache accepted before the limit was reached comes without its writer's identity and is not refused. Near
//!       the limit files are opened without that cache (RULES R20), so that `write` itself gets the error.

use tandemfs_format::InodeNumber;
use tandemfs_fs::{Error, Result, ZoneSpace};
use tandemfs_wire::Request;

use crate::caller::Caller;
use crate::door::Door;

/// The reserved share of each zone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reserve {
    percent: u32,
}

impl Reserve {
    pub(crate) fn new(percent: u32) -> Self {
        Self { percent }
    }

    /// The reserved bytes of a zone.
    pub(crate) fn bytes(self, total: u64) -> u64 {
        total / 100 * u64::from(self.percent)
    }

    /// The bytes of a zone that users other than root may fill.
    pub(crate) fn left(self, zone: &ZoneSpace) -> u64 {
        zone.available_bytes.saturating_sub(self.bytes(zone.total_bytes))
    }
}

impl Door {
    /// Whether only the reserve is left and the caller may not use it. Only then each of its writes is checked by [`Door::leaves_reserve`].
    pub(crate) fn is_bound_by_reserve(&self, request: &Request<'_>) -> bool {
        self.reached().is_some() && !Caller::of(request).may_use_reserve()
    }

    /// Fails if writing `length` bytes at `offset` of a file would use the reserve.
    pub(crate) fn leaves_reserve(&self, file: InodeNumber, offset: u64, length: u64) -> Result<()> {
        let Some(full) = self.reached() else { return Ok(()) };
        if self.fs.needs_space(file, offset, length)? { Err(full) } else { Ok(()) }
    }

    /// Fails if only the reserve is left and the caller may not use it, so that it cannot create a name.
    pub(crate) fn leaves_reserve_to_names(&self, request: &Request<'_>) -> Result<()> {
        match self.reached() {
            Some(full) if !Caller::of(request).may_use_reserve() => Err(full),
            _ => Ok(()),
        }
    }

    /// The error for callers that may not use the reserve, if nothing else is left ([RV1]).
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
        let zone = ZoneSpace { total_bytes: 1000, free_bytes: 500, available_bytes: 400, ..ZoneSpace::default() };
        assert_eq!(Reserve::new(0).left(&zone), 400);
        assert_eq!(Reserve::new(5).left(&zone), 350);
        assert_eq!(Reserve::new(50).left(&zone), 0);
    }
}
