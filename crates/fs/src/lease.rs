//! Leases: what keeps the sectors of a file as they are while a holder outside the file system knows their addresses (`data/layout.rs`
//! gives them out).
//!
//! [LY1] From the grant until the holder returns the lease, the leased blocks have the same bytes at the same sectors, committed and durable;
//!       holes and unwritten sectors stay such. The sectors are not freed, reused, discarded or written in place. After the lease was revoked
//!       ([LY4]) this ends: a holder that has read sectors asks `is_valid` *after* the read.
//! [LY2] All changes of a file's blocks lock their range exclusively (RULES R7, R9), and this lock recalls (`inodes/range_lock.rs`): no
//!       operation can forget it. A lease is registered before the range of its look-up is unlocked, so a change is either committed
//!       before the look-up, or finds the lease.
//! [LY3] A change calls the recall of each lease over its range, once for a lease, and waits until all of these leases are returned. It
//!       holds no range and no other lock meanwhile, so the holder may read. No lease on the range is granted until the change is done, so
//!       the change does not wait again and again.
//! [LY4] A lease that is not returned within [`RECALL_MAX`] is revoked, and the change goes on. Its holder may be late: what is freed of its
//!       sectors stays out of the allocator until the holder returns the lease. So it may see newer bytes of the file, never another
//!       file's.
//! [LY5] Write-back, rewriting and scrubbing do not recall: they leave leased blocks alone. Blocks with data logs are not leased (their
//!       holder reads them through the file system), so a lease keeps nothing in the memory zone.
//! [LY6] An unmount recalls all leases and waits once. If one is not returned, it changes nothing and fails: nobody could hold its sectors
//!       back after it. Leases are in host memory only; they end with the process.
//! [LY7] Leases are bounded, by file and in all, and so is what each of them keeps in host memory.
//! [LY8] A lease serves readers. Direct writes would need a mark in the format for sectors whose checksums are not known. A direct reader
//!       verifies no checksums.
//!
//! Held -(recall)-> Recalled -(bound passed)-> Revoked; any -(the holder drops it)-> Returned.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use tandemfs_format::Sector;

use crate::error::{Error, Result};
use crate::mutant::{Mutant, on};
use crate::space::Run;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use crate::sync::{Condvar, EXPLORED, Mutex};

/// How long a change waits for a lease that it recalled: a thousand times what a holder needs that answers (it stops its readers and drops
/// the layout), and not so long that the program whose write waits looks hung. In an explored schedule, where time does not pass, until
/// the lease is returned.
pub const RECALL_MAX: Duration = Duration::from_secs(if EXPLORED { 600 } else { 1 });
/// Most leases of one file.
pub const FILE_LAYOUTS_MAX: usize = 64;
/// Most leases in all. With the largest layouts they take 16 MiB of host memory.
pub const LAYOUTS_MAX: usize = 1024;

/// Tells a holder to return its lease.
pub(crate) type Callback = Box<dyn FnOnce() + Send>;

/// What one holder was told.
pub(crate) struct Lease {
    id: u64,
    /// Leased ranges of blocks, first and last, in order.
    blocks: Box<[(u64, u64)]>,
    /// The sectors of these blocks, ascending.
    sectors: Box<[Run]>,
    recall: Mutex<Recall>,
    is_recalled: AtomicBool,
    is_revoked: AtomicBool,
    leases: Arc<Leases>,
}

struct Recall {
    /// Called at the first recall.
    callback: Option<Callback>,
    /// When the lease is revoked; set by the first recall.
    end: Option<Instant>,
}

impl fmt::Debug for Lease {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Lease").field("id", &self.id).field("blocks", &self.blocks).finish_non_exhaustive()
    }
}

impl Lease {
    /// Whether it is on one of these blocks.
    pub(crate) fn overlaps(&self, first: u64, last: u64) -> bool {
        let behind = self.blocks.partition_point(|blocks| blocks.1 < first);
        self.blocks.get(behind).is_some_and(|blocks| blocks.0 <= last)
    }

    /// Asks the holder to return it, if nobody has yet ([LY3]). The caller holds no lock.
    pub(crate) fn recall(&self) {
        let mut recall = self.recall.lock();
        if recall.end.is_none() {
            recall.end = Some(Instant::now() + RECALL_MAX);
            self.is_recalled.store(true, SeqCst);
        }
        let callback = recall.callback.take();
        drop(recall);
        if let Some(callback) = callback {
            callback();
        }
    }

    pub(crate) fn is_recalled(&self) -> bool {
        self.is_recalled.load(SeqCst)
    }

    /// When it is to be revoked; `None` before it is recalled.
    pub(crate) fn end(&self) -> Option<Instant> {
        self.recall.lock().end
    }

    /// Ends its promise ([LY4]), before a change goes on.
    pub(crate) fn revoke(self: &Arc<Self>) {
        self.leases.hold_back_for(self);
        self.is_revoked.store(true, SeqCst);
        tracing::warn!(blocks = ?self.blocks, "a layout was not returned in time and is revoked; its sectors stay unused until it is dropped");
    }

    /// Whether [LY1] holds.
    pub(crate) fn is_valid(&self) -> bool {
        !self.is_revoked.load(SeqCst)
    }

    /// Drops the callback, which may own anything, before any lock is taken to return the lease.
    pub(crate) fn forget_callback(&self) {
        let callback = self.recall.lock().callback.take();
        drop(callback);
    }

    /// The holder no longer uses it.
    pub(crate) fn returned(&self) {
        self.leases.take_back(self.id);
    }

    /// Which of these sectors it is on, in order.
    fn sectors_within(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64)> {
        let end = |run: &Run| run.0.number() + run.1;
        let behind = self.sectors.partition_point(move |run| end(run) <= from);
        let within = self.sectors[behind..].iter().take_while(move |run| run.0.number() < to);
        within.map(move |run| (run.0.number().max(from), end(run).min(to)))
    }
}

/// All leases of a file system, and the freed sectors that are held back for revoked ones.
#[derive(Default)]
pub(crate) struct Leases {
    state: Mutex<State>,
    returned: Condvar,
    /// How many are revoked and not returned: mostly none, so freeing sectors costs one load.
    revoked: AtomicUsize,
    /// Some of the sectors that are held back may be free now.
    any_returned: AtomicBool,
}

#[derive(Default)]
struct State {
    held: Vec<Arc<Lease>>,
    next_id: u64,
    /// The file system is being unmounted.
    closed: bool,
    revoked: Vec<Arc<Lease>>,
    held_back: Vec<Run>,
}

impl Leases {
    /// A lease on these blocks, for a caller that has locked them and registers it there ([LY2]).
    ///
    /// # Errors
    /// `TooManyLayouts`, `Unmounting`.
    pub(crate) fn grant(self: &Arc<Self>, blocks: Vec<(u64, u64)>, mut sectors: Vec<Run>, callback: Callback) -> Result<Arc<Lease>> {
        sectors.sort_unstable_by_key(|run| run.0);
        let mut state = self.state.lock();
        if state.closed {
            return Err(Error::Unmounting);
        }
        if state.held.len() >= LAYOUTS_MAX {
            return Err(Error::TooManyLayouts { most: LAYOUTS_MAX, of: "the file system" });
        }
        let lease = Arc::new(Lease {
            id: state.next_id,
            blocks: blocks.into(),
            sectors: sectors.into(),
            recall: Mutex::new(Recall { callback: Some(callback), end: None }),
            is_recalled: AtomicBool::new(false),
            is_revoked: AtomicBool::new(false),
            leases: self.clone(),
        });
        state.next_id += 1;
        state.held.push(lease.clone());
        Ok(lease)
    }

    fn take_back(&self, id: u64) {
        let mut state = self.state.lock();
        state.held.retain(|lease| lease.id != id);
        if self.revoked.load(SeqCst) > 0 {
            state.revoked.retain(|lease| lease.id != id);
            self.revoked.store(state.revoked.len(), SeqCst);
            self.any_returned.store(!state.held_back.is_empty(), SeqCst);
        }
        drop(state);
        self.returned.notify_all();
    }

    fn hold_back_for(&self, lease: &Arc<Lease>) {
        let mut state = self.state.lock();
        state.revoked.push(lease.clone());
        self.revoked.store(state.revoked.len(), SeqCst);
    }

    /// Splits freed sectors: keeps those that a holder of a revoked lease may still read ([LY4]), and returns the others.
    pub(crate) fn hold_back(&self, sector: Sector, count: u64) -> SmallVec<[Run; 1]> {
        if self.revoked.load(SeqCst) == 0 || on(Mutant::LeasedSectorsFreed) {
            return SmallVec::from_iter([(sector, count)]);
        }
        let mut state = self.state.lock();
        let (first, end) = (sector.number(), sector.number() + count);
        let mut leased: Vec<(u64, u64)> = state.revoked.iter().flat_map(|lease| lease.sectors_within(first, end)).collect();
        leased.sort_unstable();
        let run = |from: u64, to: u64| (sector.nth(from - first), to - from);
        let (mut free, mut at) = (SmallVec::new(), first);
        for (from, to) in leased {
            if at < from {
                free.push(run(at, from));
            }
            if at < to {
                state.held_back.push(run(at.max(from), to));
                at = to;
            }
        }
        if at < end {
            free.push(run(at, end));
        }
        free
    }

    /// The sectors that are held back, if some of them may be free since the last call; the caller frees them by [`Leases::hold_back`].
    pub(crate) fn take_returned(&self) -> Vec<Run> {
        if !self.any_returned.load(SeqCst) {
            return Vec::new();
        }
        let mut state = self.state.lock();
        self.any_returned.store(false, SeqCst);
        std::mem::take(&mut state.held_back)
    }

    /// Recalls all leases, waits until they are returned, and grants no more ([LY6]).
    ///
    /// # Errors
    /// `LayoutsHeld`; leases can be granted again.
    pub(crate) fn close(&self) -> Result<()> {
        let mut state = self.state.lock();
        state.closed = true;
        let held = state.held.clone();
        drop(state);
        held.iter().for_each(|lease| lease.recall());
        drop(held);
        let end = Instant::now() + RECALL_MAX;
        let mut state = self.state.lock();
        while !state.held.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.closed = false;
                return Err(Error::LayoutsHeld { count: state.held.len() });
            }
            self.returned.wait_for(&mut state, left);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(sector: u64, count: u64) -> Run {
        (Sector::new(sector), count)
    }

    fn lease(leases: &Arc<Leases>, sectors: &[Run]) -> Arc<Lease> {
        leases.grant(vec![(2, 4), (7, 7)], sectors.to_vec(), Box::new(|| {})).expect("granted")
    }

    #[test]
    fn a_lease_is_on_its_blocks_alone() {
        let lease = lease(&Arc::default(), &[]);
        let overlaps =
            [(0, 1), (0, 2), (4, 5), (5, 6), (6, 9), (8, u64::MAX), (0, u64::MAX)].map(|(first, last)| lease.overlaps(first, last));
        assert_eq!(overlaps, [false, true, true, false, true, false, true]);
    }

    #[test]
    fn freed_sectors_of_revoked_leases_are_held_back_until_the_last_holder_returns_them() {
        let leases: Arc<Leases> = Arc::default();
        let free = |sector, count| leases.hold_back(Sector::new(sector), count).to_vec();
        let (one, other) = (lease(&leases, &[run(40, 4), run(10, 4)]), lease(&leases, &[run(12, 6)]));
        assert_eq!(free(0, 100), [run(0, 100)], "a lease that is held has been recalled before anybody frees its sectors");
        one.revoke();
        other.revoke();
        assert_eq!(free(0, 10), [run(0, 10)]);
        assert_eq!(free(8, 36), [run(8, 2), run(18, 22)]);
        assert_eq!(leases.take_returned(), [], "nobody has returned anything");
        one.returned();
        let again: Vec<Run> = leases.take_returned().into_iter().flat_map(|(sector, count)| leases.hold_back(sector, count)).collect();
        assert_eq!(again, [run(10, 2), run(40, 4)]);
        other.returned();
        let again: Vec<Run> = leases.take_returned().into_iter().flat_map(|(sector, count)| leases.hold_back(sector, count)).collect();
        assert_eq!(again.iter().map(|run| run.1).sum::<u64>(), 6);
        assert_eq!(leases.take_returned(), []);
    }

    #[test]
    fn leases_are_bounded_in_all() {
        let leases: Arc<Leases> = Arc::default();
        let held: Vec<_> = (0..LAYOUTS_MAX).map(|_| lease(&leases, &[])).collect();
        let refused = leases.grant(Vec::new(), Vec::new(), Box::new(|| {}));
        assert!(matches!(refused, Err(Error::TooManyLayouts { most: LAYOUTS_MAX, .. })), "{refused:?}");
        held[5].returned();
        lease(&leases, &[]);
    }
}
