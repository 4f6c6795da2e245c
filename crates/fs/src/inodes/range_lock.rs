//! Locks on block ranges of one file: the only locks that are held while the block path works (RULES R9).
//!
//! A shared holder reads. An exclusive holder changes the blocks' records and the space that they name. Freed data space may be reused at
//! once because no reader can still hold its address (RULES R7). Leases ([LY2] of `lease.rs`) are registered here too: they outlast the
//! look-up that they come from, and whoever wants their blocks exclusively recalls them first. A file without leases pays for that with
//! one comparison under a lock that it takes anyway. So are the pins of mappings ([FM2] of `data/mapped.rs`), which nobody can recall: while
//! one is there, its blocks are had exclusively only by who leaves their pages in place.
//!
//! What was lent ([LM2] of `data/lent.rs`) is noted here as well, once for the file: each exclusive holder revokes it from his blocks before he
//! changes anything, which waits for nobody.
//!
//! Blocks that are lent for stores ([SL2] of `data/lent_stores.rs`) are held by their lease, to which its maker hands over his own range. Who wants
//! some of them ends the lease, one for all who wait. Until he has the range he is noted as `Recalling`, and where somebody is, no lease is made.
//!
//! Who copies blocks without keeping others out *watches* their range ([AE3] of `data/align.rs`): all changes of blocks and of their space
//! take the range exclusively, and that is noted in the watch.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;
use tandemfs_format::InodeNumber;

use crate::error::{Error, Result};
use crate::lease::{FILE_LAYOUTS_MAX, Lease};
use crate::mutant::{Mutant, on};
use crate::store_lease::StoreLease;
use crate::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::versions::Published;
use crate::wait::may_wait;
use crate::waits::LOCK_WAITS;

/// One wait for a range, however often the thread was woken meanwhile; its time is noted when it is over.
#[derive(Default)]
struct Waiting(Option<Instant>);

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(since) = self.0 {
            LOCK_WAITS.range_lock.record(since.elapsed());
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Shared,
    Exclusive,
    /// As `Shared`, of a thread that grants a lease.
    Granting,
    /// Keeps out only threads that grant leases, while a change waits for those that it recalled ([LY3]).
    Recalling,
    /// Keeps out who came later to read, while somebody waits to have the range exclusively: readers that follow each other would keep him waiting
    /// for ever. Who reads already, or has waited for longer, is not kept out, so nobody waits for a queue that has no end.
    Wanting,
    /// Keeps nobody out.
    Watching,
    /// `Watching` before somebody held some of the range exclusively.
    Changed,
    /// As `Exclusive`, by a lease for stores.
    Lent,
}

impl Kind {
    /// Whether two overlapping ranges cannot be held at once.
    fn conflicts(self, other: Self) -> bool {
        match (self, other) {
            (Self::Watching | Self::Changed, _) | (_, Self::Watching | Self::Changed) => false,
            (Self::Recalling | Self::Wanting, Self::Recalling | Self::Wanting) => false,
            (Self::Recalling, other) | (other, Self::Recalling) => other == Self::Granting,
            (Self::Wanting, other) | (other, Self::Wanting) => matches!(other, Self::Shared | Self::Granting),
            (Self::Lent, _) | (_, Self::Lent) => !on(Mutant::StoresNotEnded),
            (one, other) => one == Self::Exclusive || other == Self::Exclusive,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    first: u64,
    last: u64,
    kind: Kind,
    id: u64,
}

#[derive(Debug, Default)]
struct State {
    held: SmallVec<[Held; 4]>,
    next_id: u64,
    waiters: usize,
    /// Neither returned nor revoked.
    leases: Vec<Arc<Lease>>,
    /// Blocks that are mapped.
    pins: Vec<Pin>,
    /// Some of the file was lent.
    lent: Option<Box<Lending>>,
    /// Leases for stores.
    stores: Vec<Lent>,
}

/// A lease for stores, and the range that it holds.
#[derive(Debug)]
struct Lent {
    lease: Arc<StoreLease>,
    held: u64,
    /// Somebody is ending it.
    is_ending: bool,
}

/// How that is revoked which was lent of a file.
#[derive(Clone)]
pub(crate) struct Lending {
    pub(crate) versions: Arc<Published>,
    pub(crate) file: InodeNumber,
    /// Blocks of a window.
    pub(crate) window_blocks: u64,
}

impl fmt::Debug for Lending {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Lending").field("file", &self.file).finish_non_exhaustive()
    }
}

/// A mapping keeps these blocks where they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pin {
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// Whether it may change them.
    pub(crate) writable: bool,
    id: u64,
}

impl Pin {
    fn covers(&self, block: u64) -> bool {
        self.first <= block && block <= self.last
    }
}

/// How blocks are mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pinning {
    /// They are not.
    None,
    /// For loads alone.
    Loads,
    /// For loads and stores.
    Stores,
}

impl Pinning {
    /// How a block is mapped by some of these pins.
    pub(crate) fn of(pins: &[Pin], block: u64) -> Self {
        let of_pin = |pin: &Pin| if pin.writable { Self::Stores } else { Self::Loads };
        pins.iter().filter(|pin| pin.covers(block)).map(of_pin).max().unwrap_or(Self::None)
    }

    /// Cuts a range of blocks into parts that are mapped alike, in order.
    pub(crate) fn parts(pins: &[Pin], blocks: Range<u64>) -> Vec<(Range<u64>, Self)> {
        let ends = pins.iter().flat_map(|pin| [pin.first, pin.last.saturating_add(1)]);
        let mut cuts: Vec<u64> = ends.filter(|at| blocks.start < *at && *at < blocks.end).chain([blocks.start, blocks.end]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        cuts.windows(2).map(|ends| (ends[0]..ends[1], Self::of(pins, ends[0]))).collect()
    }
}

impl State {
    /// Whether a holder conflicts with who has come now.
    fn is_busy(&self, first: u64, last: u64, kind: Kind) -> bool {
        self.is_busy_since(first, last, kind, self.next_id)
    }

    /// Whether a holder conflicts with who came before any holder got this id.
    fn is_busy_since(&self, first: u64, last: u64, kind: Kind, came: u64) -> bool {
        let conflicts = |held: &Held| held.kind.conflicts(kind) && !(held.kind == Kind::Wanting && held.id >= came);
        self.held.iter().any(|held| held.first <= last && first <= held.last && conflicts(held))
    }

    fn leases_on(&self, first: u64, last: u64) -> impl Iterator<Item = &Arc<Lease>> {
        self.leases.iter().filter(move |lease| lease.overlaps(first, last))
    }

    fn is_leased(&self, first: u64, last: u64) -> bool {
        !self.leases.is_empty() && self.leases_on(first, last).next().is_some()
    }

    fn is_lent(&self, first: u64, last: u64) -> bool {
        self.stores.iter().any(|lent| overlaps(&lent.lease, first, last))
    }

    /// A lease for stores on some of these blocks, for the caller to end; `None` if there is none, or others end those that there are.
    fn claim(&mut self, first: u64, last: u64) -> Option<Arc<StoreLease>> {
        let lent = self.stores.iter_mut().find(|lent| !lent.is_ending && overlaps(&lent.lease, first, last))?;
        lent.is_ending = true;
        Some(lent.lease.clone())
    }

    fn is_pinned(&self, first: u64, last: u64) -> bool {
        !self.pins.is_empty() && self.pins.iter().any(|pin| pin.first <= last && first <= pin.last) && !on(Mutant::PinsIgnored)
    }

    /// Somebody has got a range exclusively ([LM2] of `data/lent.rs`).
    fn revoke(&self, first: u64, last: u64) {
        if let Some(lent) = &self.lent {
            lent.versions.places_change(lent.file, first / lent.window_blocks, last / lent.window_blocks);
        }
    }

    fn release(&mut self, id: u64) {
        if let Some(position) = self.held.iter().position(|held| held.id == id) {
            self.held.swap_remove(position);
        }
    }
}

fn overlaps(lease: &StoreLease, first: u64, last: u64) -> bool {
    let (from, to) = lease.blocks();
    from <= last && first <= to
}

#[derive(Debug, Default)]
pub(crate) struct RangeLock {
    state: Mutex<State>,
    released: Condvar,
    /// How many leases for stores there are: mostly none, so who asks pays one load.
    stores: AtomicUsize,
}

/// A held range; released on drop.
#[derive(Debug)]
pub(crate) struct RangeGuard<'l> {
    lock: &'l RangeLock,
    id: u64,
    /// Some blocks of the file, these or others, were mapped when the range was locked.
    pub(crate) is_of_mapped: bool,
}

impl RangeGuard<'_> {
    /// Returns the guard; with this deliberate bug, releases the range now.
    pub(crate) fn unless(self, released_early: Mutant) -> Option<Self> {
        (!on(released_early)).then_some(self)
    }

    /// Pins blocks of this range. The pin outlasts the range: [`RangeLock::unpin`] ends it.
    pub(crate) fn pin(&self, first: u64, last: u64, writable: bool) -> u64 {
        let mut state = self.lock.state.lock();
        let id = state.next_id;
        state.next_id += 1;
        state.pins.push(Pin { first, last, writable, id });
        id
    }

    /// Makes a watch an exclusive range. `None` if somebody held some of it exclusively since then, or there is a lease or a pin on it.
    pub(crate) fn exclusive_if_unchanged(self) -> Option<Self> {
        let lock = self.lock;
        let mut waiting = Waiting::default();
        let mut state = lock.state.lock();
        loop {
            let own = state.held.iter().position(|held| held.id == self.id)?;
            let Held { first, last, kind, .. } = state.held[own];
            let is_others = state.is_leased(first, last) || state.is_pinned(first, last) || state.is_lent(first, last);
            if kind != Kind::Watching && !on(Mutant::WatchIgnored) || is_others {
                drop(state);
                return None;
            }
            if !state.is_busy(first, last, Kind::Exclusive) {
                note_change(&mut state.held, first, last);
                state.held[own].kind = Kind::Exclusive;
                state.revoke(first, last);
                drop(state);
                return Some(self);
            }
            lock.wait(&mut state, &mut waiting);
        }
    }

    /// Whether somebody waits for the end of a lease for stores on some of this range.
    pub(crate) fn is_wanted(&self) -> bool {
        let state = self.lock.state.lock();
        let own = state.held.iter().find(|held| held.id == self.id).copied();
        own.is_some_and(|own| {
            let wants = |held: &Held| held.kind == Kind::Recalling && held.first <= own.last && own.first <= held.last;
            state.held.iter().any(wants)
        })
    }

    /// Hands this range to a lease for stores, as far as the lease has blocks of it ([SL2]).
    pub(crate) fn lend(self, lease: &Arc<StoreLease>) {
        let mut state = self.lock.state.lock();
        if let Some(held) = state.held.iter_mut().find(|held| held.id == self.id) {
            ((held.first, held.last), held.kind) = (lease.blocks(), Kind::Lent);
        }
        state.stores.push(Lent { lease: lease.clone(), held: self.id, is_ending: false });
        self.lock.stores.fetch_add(1, SeqCst);
        self.lock.wake(&state);
        drop(state);
        std::mem::forget(self); // the lease has it
    }

    /// Registers a lease on blocks of this range, then releases the range ([LY2]).
    ///
    /// # Errors
    /// `TooManyLayouts` of the file.
    pub(crate) fn grant(self, lease: &Arc<Lease>) -> Result<()> {
        let lock = self.lock;
        let _range = self.unless(Mutant::LeaseAfterRange);
        let mut state = lock.state.lock();
        if state.leases.len() >= FILE_LAYOUTS_MAX {
            return Err(Error::TooManyLayouts { most: FILE_LAYOUTS_MAX, of: "the file" });
        }
        state.leases.push(lease.clone());
        Ok(())
    }
}

impl RangeLock {
    /// Whether nobody holds any range, or a lease, or a pin, at this instant.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.held.is_empty() && state.leases.is_empty() && state.pins.is_empty()
    }

    /// Some of the file is about to be lent, by a holder of a shared range ([LM2] of `data/lent.rs`).
    pub(crate) fn lends(&self, lending: impl FnOnce() -> Lending) {
        self.state.lock().lent.get_or_insert_with(|| Box::new(lending()));
    }

    /// Revokes all that was lent of the file: this lock is given up, and the next one of the file knows nothing of it ([LM4]).
    pub(crate) fn revoke_all(&self) {
        self.state.lock().revoke(0, u64::MAX);
    }

    /// The leases for stores.
    pub(crate) fn store_leases(&self) -> Vec<Arc<StoreLease>> {
        match self.has_store_leases() {
            true => self.state.lock().stores.iter().map(|lent| lent.lease.clone()).collect(),
            false => Vec::new(),
        }
    }

    /// Whether there are any.
    #[inline]
    pub(crate) fn has_store_leases(&self) -> bool {
        self.stores.load(SeqCst) > 0
    }

    /// Ends a lease for stores, or waits until others have.
    ///
    /// # Errors
    /// As those of its end.
    pub(crate) fn end_stores(&self, lease: &StoreLease) -> Result<()> {
        let mut waiting = Waiting::default();
        let mut state = self.state.lock();
        while let Some(lent) = state.stores.iter_mut().find(|lent| std::ptr::eq(&raw const *lent.lease, lease)) {
            if std::mem::replace(&mut lent.is_ending, true) {
                self.wait(&mut state, &mut waiting);
            } else {
                let lease = lent.lease.clone();
                return self.end_claimed(&mut state, &lease);
            }
        }
        Ok(())
    }

    /// A lease for stores that was ended gives its range back.
    pub(crate) fn give_up(&self, lease: &Arc<StoreLease>) {
        let mut state = self.state.lock();
        let Some(position) = state.stores.iter().position(|lent| Arc::ptr_eq(&lent.lease, lease)) else { return };
        let Lent { held, .. } = state.stores.swap_remove(position);
        self.stores.fetch_sub(1, SeqCst);
        let (first, last) = lease.blocks();
        note_change(&mut state.held, first, last); // who copies beside it has old bytes
        state.release(held);
        self.wake(&state);
    }

    /// Ends a pin.
    pub(crate) fn unpin(&self, id: u64) {
        self.state.lock().pins.retain(|pin| pin.id != id);
    }

    /// Whether any of the file is mapped.
    pub(crate) fn is_mapped(&self) -> bool {
        !self.state.lock().pins.is_empty()
    }

    /// The pins on some of these blocks.
    pub(crate) fn pins(&self, first: u64, last: u64) -> Vec<Pin> {
        self.state.lock().pins.iter().filter(|pin| pin.first <= last && first <= pin.last).copied().collect()
    }

    /// Waits until no exclusive holder overlaps `first..=last`.
    ///
    /// # Errors
    /// `WouldWait`.
    pub(crate) fn shared(&self, first: u64, last: u64) -> Result<RangeGuard<'_>> {
        self.acquire(first, last, Kind::Shared)
    }

    /// As `shared`, without waiting; `None` if an exclusive holder overlaps.
    pub(crate) fn try_shared(&self, first: u64, last: u64) -> Option<RangeGuard<'_>> {
        let mut state = self.state.lock();
        (!state.is_busy(first, last, Kind::Shared)).then(|| self.hold(&mut state, first, last, Kind::Shared))
    }

    /// As `shared`, to grant a lease on some of the blocks: also waits for changes that are recalling leases there ([LY3]).
    ///
    /// # Errors
    /// `WouldWait`.
    pub(crate) fn to_grant(&self, first: u64, last: u64) -> Result<RangeGuard<'_>> {
        self.acquire(first, last, Kind::Granting)
    }

    /// Recalls the leases on `first..=last`, then waits until no holder overlaps it. The caller holds no lock that a holder of a lease may
    /// need, and no range.
    ///
    /// # Errors
    /// `Mapped` if some of it is; `WouldWait`.
    pub(crate) fn exclusive(&self, first: u64, last: u64) -> Result<RangeGuard<'_>> {
        let mut state = self.state.lock();
        if state.leases.is_empty() && state.pins.is_empty() && !state.is_busy(first, last, Kind::Exclusive) {
            return Ok(self.hold(&mut state, first, last, Kind::Exclusive)); // nearly always
        }
        drop(state);
        may_wait()?;
        self.recall_and_wait(first, last, false)
    }

    /// As `exclusive`, also where blocks are mapped: for who maps and unmaps.
    ///
    /// # Errors
    /// `WouldWait`.
    pub(crate) fn exclusive_to_map(&self, first: u64, last: u64) -> Result<RangeGuard<'_>> {
        may_wait()?;
        self.recall_and_wait(first, last, true)
    }

    /// As `exclusive`, also where blocks are mapped: for who leaves those pages where they are. Returns the pins on the range.
    ///
    /// # Errors
    /// `WouldWait`.
    pub(crate) fn exclusive_beside_pins(&self, first: u64, last: u64) -> Result<(RangeGuard<'_>, Vec<Pin>)> {
        match self.exclusive(first, last) {
            Err(Error::Mapped) => {
                let range = self.exclusive_to_map(first, last)?;
                Ok((range, self.pins(first, last)))
            }
            other => Ok((other?, Vec::new())),
        }
    }

    /// A step towards a range that somebody has: ends a lease for stores on it, or waits until something is released.
    fn end_or_wait<'l>(
        &'l self,
        state: &mut MutexGuard<'_, State>,
        (first, last, kind): (u64, u64, Kind),
        wanting: &mut Option<RangeGuard<'l>>,
        waiting: &mut Waiting,
    ) -> Result<()> {
        match state.claim(first, last) {
            Some(lease) => {
                if kind != Kind::Granting {
                    wanting.get_or_insert_with(|| self.hold(state, first, last, Kind::Recalling));
                }
                self.end_claimed(state, &lease)
            }
            None => {
                self.wait(state, waiting);
                Ok(())
            }
        }
    }

    fn end_claimed(&self, state: &mut MutexGuard<'_, State>, lease: &Arc<StoreLease>) -> Result<()> {
        let ended = MutexGuard::unlocked(state, || lease.end());
        if ended.is_err()
            && let Some(lent) = state.stores.iter_mut().find(|lent| Arc::ptr_eq(&lent.lease, lease))
        {
            lent.is_ending = false;
            self.wake(state); // the next one tries again
        }
        ended
    }

    #[cold]
    fn recall_and_wait(&self, first: u64, last: u64, passes_pins: bool) -> Result<RangeGuard<'_>> {
        let (mut recalling, mut wanting) = (None, None); // dropped after the lock of the state
        let mut waiting = Waiting::default();
        let mut state = self.state.lock();
        loop {
            if !passes_pins && state.is_pinned(first, last) {
                return Err(Error::Mapped);
            }
            if state.is_leased(first, last) && !on(Mutant::LeasesNotRecalled) {
                recalling.get_or_insert_with(|| self.hold(&mut state, first, last, Kind::Recalling));
                // A lease that came while this thread waited: its holder may read ([LY3]).
                if let Some(mark) = wanting.take() {
                    MutexGuard::unlocked(&mut state, || drop(mark));
                }
                self.recall(&mut state, first, last);
            } else if state.is_busy(first, last, Kind::Exclusive) {
                // Whose leases are recalled may still read.
                if recalling.is_none() && !state.is_lent(first, last) {
                    wanting.get_or_insert_with(|| self.hold(&mut state, first, last, Kind::Wanting));
                }
                self.end_or_wait(&mut state, (first, last, Kind::Exclusive), &mut recalling, &mut waiting)?;
            } else {
                return Ok(self.hold(&mut state, first, last, Kind::Exclusive));
            }
        }
    }

    /// As `exclusive`, for work that is no change: `None` if there are leases on the range ([LY5], [SL2]), or pins.
    pub(crate) fn exclusive_unless_leased(&self, first: u64, last: u64) -> Option<RangeGuard<'_>> {
        let mut wanting = None; // dropped after the lock of the state
        let mut waiting = Waiting::default();
        let mut state = self.state.lock();
        while !state.is_leased(first, last) && !state.is_pinned(first, last) && !state.is_lent(first, last) {
            if !state.is_busy(first, last, Kind::Exclusive) {
                return Some(self.hold(&mut state, first, last, Kind::Exclusive));
            }
            wanting.get_or_insert_with(|| self.hold(&mut state, first, last, Kind::Wanting));
            self.wait(&mut state, &mut waiting);
        }
        None
    }

    /// Waits until no exclusive holder but leases for stores overlaps `first..=last`, then watches it. For threads that may wait.
    pub(crate) fn watch(&self, first: u64, last: u64) -> RangeGuard<'_> {
        let mut waiting = Waiting::default();
        let mut state = self.state.lock();
        let is_held = |held: &Held| held.kind == Kind::Exclusive && held.first <= last && first <= held.last;
        while state.held.iter().any(is_held) {
            self.wait(&mut state, &mut waiting);
        }
        self.hold(&mut state, first, last, Kind::Watching)
    }

    /// Locks `first..=last` if nobody holds any of it at this instant, and no lease of either kind and no pin is on it.
    pub(crate) fn try_exclusive(&self, first: u64, last: u64) -> Option<RangeGuard<'_>> {
        let mut state = self.state.lock();
        let is_free = !state.is_busy(first, last, Kind::Exclusive) && !state.is_leased(first, last) && !state.is_pinned(first, last);
        is_free.then(|| self.hold(&mut state, first, last, Kind::Exclusive))
    }

    /// The holder of a lease returns it.
    pub(crate) fn returned(&self, lease: &Arc<Lease>) {
        let mut state = self.state.lock();
        state.leases.retain(|known| !Arc::ptr_eq(known, lease));
        self.wake(&state);
    }

    fn acquire(&self, first: u64, last: u64, kind: Kind) -> Result<RangeGuard<'_>> {
        let mut wanting = None; // dropped after the lock of the state
        let mut waiting = Waiting::default();
        let mut state = self.state.lock();
        let came = state.next_id;
        while state.is_busy_since(first, last, kind, came) {
            may_wait()?;
            self.end_or_wait(&mut state, (first, last, kind), &mut wanting, &mut waiting)?;
        }
        Ok(self.hold(&mut state, first, last, kind))
    }

    /// A step towards a range without leases ([LY3]): recalls them, or waits until one is returned, or revokes those that were waited for
    /// long enough ([LY4]).
    #[cold]
    fn recall(&self, state: &mut MutexGuard<'_, State>, first: u64, last: u64) {
        let not_recalled: Vec<Arc<Lease>> = state.leases_on(first, last).filter(|lease| !lease.is_recalled()).cloned().collect();
        if !not_recalled.is_empty() {
            MutexGuard::unlocked(state, || not_recalled.iter().for_each(|lease| lease.recall()));
            return;
        }
        let (now, mut next) = (Instant::now(), None);
        state.leases.retain(|lease| {
            let Some(end) = lease.end().filter(|_| lease.overlaps(first, last)) else { return true };
            if end <= now {
                lease.revoke();
                return false;
            }
            next = Some(next.map_or(end, |next: Instant| next.min(end)));
            true
        });
        if let Some(next) = next {
            state.waiters += 1;
            self.released.wait_for(state, next - now);
            state.waiters -= 1;
        }
    }

    fn wait(&self, state: &mut MutexGuard<'_, State>, waiting: &mut Waiting) {
        waiting.0.get_or_insert_with(Instant::now);
        state.waiters += 1;
        self.released.wait(state);
        state.waiters -= 1;
    }

    fn wake(&self, state: &State) {
        if state.waiters > 0 {
            self.released.notify_all();
        }
    }

    fn hold(&self, state: &mut State, first: u64, last: u64, kind: Kind) -> RangeGuard<'_> {
        let id = state.next_id;
        state.next_id += 1;
        if kind == Kind::Exclusive && !state.held.is_empty() {
            note_change(&mut state.held, first, last);
        }
        state.held.push(Held { first, last, kind, id });
        if kind == Kind::Exclusive {
            state.revoke(first, last);
        }
        RangeGuard { lock: self, id, is_of_mapped: !state.pins.is_empty() }
    }
}

/// Tells those who watch some of a range that somebody holds it exclusively.
fn note_change(held: &mut [Held], first: u64, last: u64) {
    for held in held.iter_mut().filter(|held| held.kind == Kind::Watching && held.first <= last && first <= held.last) {
        held.kind = Kind::Changed;
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.lock.state.lock();
        state.release(self.id);
        self.lock.wake(&state);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use super::*;

    #[test]
    fn a_range_is_had_at_once_or_not_at_all() {
        let lock = RangeLock::default();
        let held = lock.shared(3, 5);
        assert!(lock.try_exclusive(5, 9).is_none());
        let beside = lock.try_exclusive(6, 9);
        assert!(beside.is_some() && lock.try_exclusive(9, 9).is_none());
        drop((held, beside));
        assert!(lock.try_exclusive(0, u64::MAX).is_some() && lock.is_idle());
    }

    #[test]
    fn a_wait_is_one_however_often_the_thread_is_woken() {
        const LONG_NS: u64 = 1 << 27;
        let long_waits = || {
            let counts = LOCK_WAITS.range_lock.counts();
            counts.samples() - counts.below(LONG_NS)
        };
        let lock = RangeLock::default();
        let before = long_waits();
        let held = lock.try_exclusive(0, 0).expect("free");
        std::thread::scope(|scope| {
            scope.spawn(|| drop(lock.shared(0, 0).expect("had")));
            while lock.state.lock().waiters == 0 {
                std::thread::yield_now();
            }
            let since = Instant::now();
            while since.elapsed().as_nanos() < u128::from(2 * LONG_NS) {
                drop(lock.try_exclusive(5, 5).expect("free")); // wakes it for nothing
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            drop(held);
        });
        assert!(long_waits() > before, "many short ones were counted");
    }

    #[test]
    fn a_watch_keeps_nobody_out_and_knows_who_came() {
        let lock = RangeLock::default();
        let watch = lock.watch(3, 5);
        drop((lock.try_exclusive(6, 9).expect("free"), lock.try_exclusive(0, 2).expect("free"), lock.shared(3, 5).expect("free")));
        let held = watch.exclusive_if_unchanged().expect("nobody came");
        assert!(lock.try_shared(5, 5).is_none() && lock.try_shared(6, 6).is_some());
        drop(held);
        let (one, other) = (lock.watch(3, 5), lock.watch(5, 9));
        drop(lock.try_exclusive(5, 5).expect("a watch keeps nobody out"));
        assert!(one.exclusive_if_unchanged().is_none() && other.exclusive_if_unchanged().is_none());
        let (one, other) = (lock.watch(3, 5), lock.watch(5, 9));
        assert!(one.exclusive_if_unchanged().is_some() && other.exclusive_if_unchanged().is_none(), "a second watcher came");
        assert!(lock.is_idle());
    }

    #[test]
    fn readers_that_follow_each_other_do_not_keep_a_writer_waiting() {
        let lock = RangeLock::default();
        let waits_for = |waiters| {
            while lock.state.lock().waiters != waiters {
                std::thread::yield_now();
            }
        };
        let reads = lock.shared(0, 5).expect("free");
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| drop(lock.exclusive(3, 4).expect("had at last")));
            waits_for(1);
            assert!(lock.try_shared(4, 4).is_none() && lock.try_shared(0, 2).is_some(), "who comes later waits behind the writer");
            drop(reads);
            writer.join().expect("no panic");
            drop(lock.try_shared(0, 5).expect("free again"));

            // Who has waited for longer than a writer is not kept out by him.
            let writes = lock.exclusive(0, 5).expect("free");
            let reader = scope.spawn(|| lock.shared(3, 3).expect("had at last"));
            waits_for(1);
            let next = scope.spawn(|| drop(lock.exclusive(3, 4).expect("had at last")));
            waits_for(2);
            drop(writes);
            drop(reader.join().expect("no panic"));
            next.join().expect("no panic");
        });
        assert!(lock.is_idle());
    }

    /// [LY3] of `lease.rs`
    #[test]
    fn whose_lease_came_while_a_writer_waited_may_read_when_it_is_recalled() {
        let (lock, leases) = (Arc::new(RangeLock::default()), Arc::<crate::lease::Leases>::default());
        let granting = lock.to_grant(0, 5).expect("free");
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| drop(lock.exclusive(0, 5).expect("had at last")));
            while lock.state.lock().waiters == 0 {
                std::thread::yield_now();
            }
            let (own, of_holder) = (Arc::new(std::sync::OnceLock::<Arc<Lease>>::new()), Arc::clone(&lock));
            let lease = Arc::clone(&own);
            let reads_and_returns = move || {
                drop(of_holder.shared(0, 0).expect("read"));
                of_holder.returned(lease.get().expect("granted"));
            };
            let lease = leases.grant(vec![(0, 5)], Vec::new(), Box::new(reads_and_returns)).expect("granted");
            own.set(Arc::clone(&lease)).expect("once");
            granting.grant(&lease).expect("room");
            writer.join().expect("no panic");
        });
    }

    #[test]
    fn writers_of_a_block_exclude_each_other_and_its_readers() {
        let lock = RangeLock::default();
        let cells: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (lock, cells) = (&lock, &cells);
                scope.spawn(move || {
                    for round in 0..2000 {
                        let first = (thread * 3 + round) % 7;
                        if round % 3 == 0 {
                            let _guard = lock.shared(first, first + 1);
                            assert_eq!(cells[first as usize].load(SeqCst) % 2, 0, "a writer is inside");
                        } else {
                            let _guard = lock.exclusive(first, first + 1);
                            for cell in &cells[first as usize..first as usize + 2] {
                                assert_eq!(cell.fetch_add(1, SeqCst) % 2, 0);
                            }
                            for cell in &cells[first as usize..first as usize + 2] {
                                assert_eq!(cell.fetch_add(1, SeqCst) % 2, 1);
                            }
                        }
                    }
                });
            }
        });
    }
}
