//! The reserve for root (`tandemfs-vfs`, [RV1]), and limits of quota, for callers of a mount: whether they may use the reserve or exceed limits is read
//! from `/proc` (`caller.rs`).
//!
//! [RV4] Data that the write-back cache accepted before the limit was reached comes without its writer's identity and is not refused. Near
//!       the limit files are opened without that cache (RULES R20), so that `write` itself gets the error. So are files that limits concern.
//! [RV5] What the kernel writes back from its cache is bound by no limit of quota, whoever stored it: those bytes were acknowledged, and a refusal would
//!       drop them. It is known by the mark of the WRITE, not by its caller, of whom an id-mapped connection says nothing ([DO6] of `door.rs`).

use tandemfs_format::InodeNumber;
use tandemfs_fs::Result;
use tandemfs_wire::{Operation, Request};

use crate::caller::Caller;
use crate::door::Door;
use crate::mutant::{self, Mutant};

/// Whether a request is what somebody asks for now, and not the write-back of what was acknowledged before ([RV5]).
fn is_asked_for(operation: &Operation<'_>) -> bool {
    !matches!(operation, Operation::Write(write) if write.from_cache) || mutant::on(Mutant::WriteBackBound)
}

impl Door {
    /// Serves a request of a caller who is bound by limits of quota. Root is not, nor is write-back ([RV5]).
    pub(crate) fn bound_by_quota<T>(&self, request: &Request<'_>, serve: impl FnOnce() -> T) -> T {
        match Caller::of(request).number().filter(|_| is_asked_for(&request.operation)) {
            Some(number) => self.fs.bound_by_quota(number, |number| Caller::numbered(number).may_use_reserve(), serve),
            None => serve(),
        }
    }

    /// Whether only the reserve is left and the caller may not use it. Only then each of its writes is checked by [`Door::leaves_reserve`].
    pub(crate) fn is_bound_by_reserve(&self, request: &Request<'_>) -> bool {
        self.reserve.reached(&self.fs).is_some() && !Caller::of(request).may_use_reserve()
    }

    /// Fails if writing `length` bytes at `offset` of a file would use the reserve.
    pub(crate) fn leaves_reserve(&self, file: InodeNumber, offset: u64, length: u64) -> Result<()> {
        self.reserve.leaves(&self.fs, file, offset, length)
    }

    /// Fails if only the reserve is left and the caller may not use it, so that it cannot create a name.
    pub(crate) fn leaves_reserve_to_names(&self, caller: &Caller) -> Result<()> {
        match self.reserve.reached(&self.fs) {
            Some(full) if !caller.may_use_reserve() => Err(full),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tandemfs_wire::Write;

    use super::*;
    use crate::mutant::is_caught;

    fn write_back_is_bound_by_no_limit() {
        let write = |from_cache| {
            Operation::Write(Write { handle: 0, offset: 0, data: &[], flags: 0, from_cache, kill_suidgid: false, lock_owner: None })
        };
        assert!(is_asked_for(&write(false)) && is_asked_for(&Operation::Statfs) && !is_asked_for(&write(true)));
    }

    #[test]
    fn limits_and_their_bug() {
        is_caught(Mutant::WriteBackBound, write_back_is_bound_by_no_limit);
    }
}
