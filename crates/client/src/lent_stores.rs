//! Bytes of files that the client stores to the memory zone itself, under leases ([LNS1]–[LNS7] of `crates/direct`, [LSE1]–[LSE7] of the ring).
//!
//! A write whose bytes all lie in one leased window is a copy into the file's own pages, made durable as the domain asks. Everything else is a
//! request, which ends a lease that is in its way.
//!
//! [STR1] A thread stores inside of the lease alone, to the places that came with its epoch. What was stored counts if the thread leaves and
//!       the lease was not taken away; otherwise the whole write is made by a request.
//! [STR2] What counts is durable: where the domain needs it, the bytes are flushed and fenced inside of the lease.
//! [STR3] Writes to a window exclude each other and loads of it, in this process as well: a read by [`load`](Stores::load) sees none by half. A thread that cannot
//!       have the window within [`WINDOW_WAIT`] asks the daemon, so nothing here waits without an end.
//! [STR4] Bytes of a leased window are loaded under its lease, by a file that may be read: a request would end it.
//! [STR5] The daemon's list is believed as far as it stays inside of the window and the zone ([MSG6] of the protocol).
//! [STR6] A window is asked for when it is overwritten by requests for the fourth time, with at most 64 KiB each. What lets the file grow, as far as this
//!       client knows its size, does not count: a lease ends with its file and lends no room beyond the end, so files that are written
//!       once from their start to their end would pay for leases of no use. Where others want it more often than it is written, that
//!       grows rare: a lease by which fewer than 64 writes were stored doubles the requests before the next one, up to 1024.
//! [STR7] Bounded: 64 sets of four windows; one with a lease stays until that has ended. The zone is unmapped when a call finds that the connection
//!       has ended: it keeps the next mount from starting ([SZ2] of the device layer).
//! [STR8] Nothing is stored behind the end of the daemon, as far as the ring knows: at most 20 ms after it was killed ([VER7] of the ring).
//! [STR9] `fdatasync` is answered without a request while the version of the file's bytes is that of the last one ([KNW5] of `crates/direct`):
//!       stores under leases do not raise it, and are durable by [STR2]. `fsync` is a request: times of what was stored are the daemon's.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::RwLock;
use tandemfs_device::Mapping;
use tandemfs_protocol::{Handle, LENT_WINDOW_BYTES, LentRange, StoreLease};
use tandemfs_ring::{Client, LeaseToken, Leases};

use crate::lent::spread;
use crate::mutant::{self, Mutant};
use crate::store_access::{StoreAccess, Zone};

const SETS: usize = 64;
const WAYS: usize = 4;
/// Requests before a window is asked for, and the most that it grows to.
const WANTED_MIN: u32 = 4;
const WANTED_MAX: u32 = 1024;
/// Writes that make a lease worth while.
const USES: u32 = 64;
/// How long a thread waits for others that have its window: longer than they need for all of it ([STR3]).
const WINDOW_WAIT: Duration = Duration::from_millis(2);

/// What the daemon has lent.
#[derive(Debug)]
struct Lease {
    token: LeaseToken,
    ranges: Box<[LentRange]>,
}

#[derive(Debug)]
struct Window {
    handle: Handle,
    number: u64,
    lease: Option<Lease>,
    /// Held by who stores, and shared by who loads ([STR3]).
    order: RwLock<()>,
    uses: AtomicU32,
    /// Requests since it was asked for, and with how many it is asked for again.
    misses: AtomicU32,
    wanted: u32,
}

impl Window {
    fn new(handle: Handle, number: u64) -> Self {
        let (uses, misses) = (AtomicU32::new(0), AtomicU32::new(1));
        Self { handle, number, lease: None, order: RwLock::default(), uses, misses, wanted: WANTED_MIN }
    }

    fn is_leased(&self, leases: &Leases) -> bool {
        self.lease.as_ref().is_some_and(|lease| leases.is_lent(lease.token))
    }

    fn is_used(&self) {
        let uses = self.uses.load(Relaxed);
        if uses < USES {
            self.uses.store(uses + 1, Relaxed); // two at once may count as one
        }
    }
}

impl Lease {
    /// Calls `each` with the place in the zone and the place in the bytes of each part; none if not all of them are lent, or `each` says so.
    fn parts(&self, offset: u64, length: usize, mut each: impl FnMut(u64, Range<usize>) -> Option<()>) -> Option<()> {
        let first = self.ranges.partition_point(|range| range.file_offset + range.bytes <= offset);
        let mut done = 0;
        for range in &self.ranges[first..] {
            let skip = (offset + done as u64).checked_sub(range.file_offset)?;
            let there = usize::try_from(range.bytes - skip).map_or(usize::MAX, |there| there.min(length - done));
            each(range.zone_offset + skip, done..done + there)?;
            done += there;
            if done == length {
                return Some(());
            }
        }
        None
    }

    fn has(&self, offset: u64, length: usize) -> bool {
        self.parts(offset, length, |_, _| Some(())).is_some()
    }
}

#[derive(Debug, Default)]
struct Set {
    windows: [Option<Box<Window>>; WAYS],
    next: usize,
}

impl Set {
    fn find(&self, handle: Handle, number: u64) -> Option<&Window> {
        self.windows.iter().flatten().map(|window| &**window).find(|window| (window.handle, window.number) == (handle, number))
    }

    /// The window's place: its own, a free one, or that of a window without a lease. None where all have leases ([STR7]).
    fn place(&mut self, leases: &Leases, handle: Handle, number: u64) -> Option<&mut Window> {
        let is_its = |window: &Window| (window.handle, window.number) == (handle, number);
        let own = self.windows.iter().position(|window| window.as_ref().is_some_and(|window| is_its(window)));
        let place = match own.or_else(|| self.windows.iter().position(Option::is_none)) {
            Some(place) => place,
            None => {
                let mut turns = (1..=WAYS).map(|step| (self.next + step) % WAYS);
                let free = turns.find(|place| self.windows[*place].as_ref().is_none_or(|window| !window.is_leased(leases)))?;
                self.next = free;
                free
            }
        };
        let window = self.windows[place].get_or_insert_with(|| Box::new(Window::new(handle, number)));
        if !is_its(window) {
            **window = Window::new(handle, number);
        }
        Some(window)
    }
}

/// The memory zone for stores, the lease words, and the windows that the connection has leases of.
#[derive(Debug)]
pub(crate) struct Stores<Z = Mapping> {
    access: StoreAccess<Z>,
    sets: Box<[OnceLock<Box<RwLock<Set>>>]>,
}

/// The window of an offset, and where in it bytes lie; none if they do not lie in one.
fn window_of(offset: u64, length: usize) -> Option<u64> {
    let number = offset / LENT_WINDOW_BYTES;
    let last = offset.checked_add(length as u64)?.checked_sub(1)?;
    (length > 0 && last / LENT_WINDOW_BYTES == number).then_some(number)
}

impl<Z: Zone> Stores<Z> {
    pub(crate) fn new(zone: Z, needs_flush: bool, leases: Leases) -> Self {
        Self { access: StoreAccess::new(zone, needs_flush, leases), sets: (0..SETS).map(|_| OnceLock::new()).collect() }
    }

    pub(crate) fn zone_bytes(&self) -> u64 {
        self.access.zone.length()
    }

    pub(crate) fn access(&self) -> &StoreAccess<Z> {
        &self.access
    }

    fn set(&self, handle: Handle, number: u64) -> &OnceLock<Box<RwLock<Set>>> {
        &self.sets[spread(handle, number) % SETS]
    }

    /// Stores bytes of an open file, durably; none if the daemon has to write them, all of them.
    #[inline]
    pub(crate) fn store(&self, ring: &Client, handle: Handle, offset: u64, from: &[u8]) -> Option<()> {
        let number = window_of(offset, from.len())?;
        let set = self.set(handle, number).get()?.try_read_for(WINDOW_WAIT)?;
        let window = set.find(handle, number)?;
        let lease = window.lease.as_ref().filter(|lease| lease.has(offset, from.len()))?;
        if !ring.may_answer_itself() {
            return None; // [STR8]
        }
        let _order = if mutant::on(Mutant::StoresUnordered) { None } else { Some(window.order.try_write_for(WINDOW_WAIT)?) };
        let inside = self.access.leases.enter(lease.token)?;
        let stored = lease.parts(offset, from.len(), |at, part| self.access.put(at, &from[part]));
        let durable = self.access.persist(); // [STR2]
        let counts = inside.leave() || mutant::on(Mutant::TakenStoresCount);
        window.is_used();
        stored.and(durable).filter(|()| counts) // [STR1]
    }

    /// Loads bytes of an open file that may be read, all of them, if they lie in a leased window ([STR4]).
    #[inline]
    pub(crate) fn load(&self, ring: &Client, handle: Handle, offset: u64, into: &mut [u8]) -> Option<()> {
        let number = window_of(offset, into.len())?;
        let set = self.set(handle, number).get()?.try_read_for(WINDOW_WAIT)?;
        let window = set.find(handle, number)?;
        let lease = window.lease.as_ref().filter(|lease| lease.has(offset, into.len()))?;
        if !ring.may_answer_itself() {
            return None;
        }
        let _order = window.order.try_read_for(WINDOW_WAIT)?;
        let inside = self.access.leases.enter_to_load(lease.token)?;
        let loaded = lease.parts(offset, into.len(), |at, part| self.access.zone.load(at, &mut into[part]));
        loaded.filter(|()| inside.leave())
    }

    /// Bytes were written by a request; whether their window is to be asked for now ([STR6]).
    pub(crate) fn is_wanted(&self, handle: Handle, offset: u64, length: usize) -> bool {
        let Some(number) = window_of(offset, length) else { return false };
        let lock = self.set(handle, number).get_or_init(Box::default);
        {
            let Some(set) = lock.try_read() else { return false };
            if let Some(window) = set.find(handle, number) {
                let wanted = if window.uses.load(Relaxed) >= USES { WANTED_MIN } else { window.wanted };
                return !window.is_leased(&self.access.leases) && window.misses.fetch_add(1, Relaxed) + 1 >= wanted;
            }
        }
        if let Some(mut set) = lock.try_write() {
            set.place(&self.access.leases, handle, number);
        }
        false
    }

    /// Keeps what the daemon said of a window: a lease with its places, or that nothing is lent. Returns a lease that there is no place for.
    pub(crate) fn keep(&self, handle: Handle, offset: u64, lent: Option<(StoreLease, Vec<LentRange>)>) -> Option<StoreLease> {
        let number = offset / LENT_WINDOW_BYTES;
        let returned = lent.as_ref().map(|(lease, _)| *lease);
        let Some(mut set) = self.set(handle, number).get_or_init(Box::default).try_write_for(WINDOW_WAIT) else { return returned };
        let Some(window) = set.place(&self.access.leases, handle, number) else { return returned };
        let is_worth_while = *window.uses.get_mut() >= USES;
        window.wanted = if is_worth_while { WANTED_MIN } else { (2 * window.wanted).min(WANTED_MAX) };
        window.lease = lent.map(|(lease, ranges)| Lease { token: lease.0, ranges: ranges.into() });
        (*window.uses.get_mut(), *window.misses.get_mut()) = (0, 0);
        None
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use parking_lot::Mutex;
    use tandemfs_device::StoreZone;
    use tandemfs_ring::{Arena, LeaseWords};

    use super::*;
    use crate::store_access::weak::{PAGE, Weak, living};

    fn handle(number: u64) -> Handle {
        Handle::of(number).expect("a number")
    }

    fn range(file_page: u64, zone_page: u64, bytes: u64) -> LentRange {
        LentRange { file_offset: file_page * PAGE, zone_offset: zone_page * PAGE, bytes }
    }

    /// A client of a daemon that lives, what it stores by, the daemon's words, and the zone.
    fn scene() -> (Client, Stores, std::sync::Arc<LeaseWords>, File, std::sync::Arc<Arena>) {
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(16 * PAGE).expect("sized");
        let (zone, _hold) = StoreZone::of(&file, 0, 16 * PAGE, 0).expect("opened");
        let words = LeaseWords::new().expect("made");
        let stores = Stores::new(zone.map().expect("mapped"), true, Leases::map(words.file()).expect("mapped"));
        let (ring, arena) = living();
        (ring, stores, words, file, arena)
    }

    #[test]
    fn bytes_go_to_all_their_ranges_or_nowhere() {
        let (ring, stores, words, file, _arena) = scene();
        let lease = words.lend().expect("a word");
        let ranges = vec![range(1, 7, 2 * PAGE), range(3, 2, PAGE), range(4, 11, 100)];
        assert_eq!(stores.keep(handle(1), PAGE, Some((StoreLease(lease.token()), ranges))), None);
        let store = |offset, bytes: &[u8]| stores.store(&ring, handle(1), offset, bytes);
        let at = |page: u64, within: u64, length: usize| {
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, page * PAGE + within).expect("read");
            bytes
        };
        assert_eq!(store(PAGE + 10, &[5; 9000]), Some(()));
        assert_eq!((at(7, 0, 10), at(7, 10, 8182), at(2, 0, 818), at(2, 818, 10)), (vec![0; 10], vec![5; 8182], vec![5; 818], vec![0; 10]));
        let mut loaded = [0; 20];
        assert_eq!(stores.load(&ring, handle(1), PAGE, &mut loaded), Some(()));
        assert_eq!((&loaded[..10], &loaded[10..]), (&[0; 10][..], &[5; 10][..]));
        for (offset, length) in [(PAGE - 1, 2), (0, 1), (4 * PAGE + 90, 11), (4 * PAGE + 100, 1), (5 * PAGE, 1), (PAGE, 0), (u64::MAX, 2)] {
            assert_eq!(store(offset, &vec![9; length]), None, "{length} bytes at {offset}");
        }
        assert_eq!(stores.store(&ring, handle(2), PAGE, &[1]), None, "another file");
        assert_eq!(at(11, 0, 101), [0; 101], "a part that is lent of one that is not");
        assert!(lease.has_stored());
        assert_eq!(stores.load(&ring, handle(1), PAGE, &mut loaded), Some(()));
        assert!(!lease.has_stored(), "loads are no stores");
        lease.revoke();
        assert_eq!((store(PAGE, &[6]), stores.load(&ring, handle(1), PAGE, &mut loaded)), (None, None));
        let (next, ranges) = (words.lend().expect("a word"), vec![range(1, 7, PAGE)]);
        stores.keep(handle(1), PAGE, Some((StoreLease(next.token()), ranges)));
        assert_eq!(store(PAGE, &[6]), Some(()));
        assert_eq!(at(7, 0, 1), [6]);
    }

    /// [STR2]
    #[test]
    fn what_counts_is_flushed_and_fenced() {
        fn is_durable() -> bool {
            let (ring, _, words, _file, _arena) = scene();
            let lease = words.lend().expect("a word");
            let stores = Stores::new(Weak::new(|| {}), true, Leases::map(words.file()).expect("mapped"));
            stores.keep(handle(1), 0, Some((StoreLease(lease.token()), vec![range(0, 7, PAGE), range(1, 2, PAGE)])));
            assert_eq!(stores.store(&ring, handle(1), 100, &[5; 5000]), Some(()));
            let lines = stores.access.zone.lines.lock();
            lines.0.is_empty() && lines.1.is_empty()
        }
        let _alone = mutant::ALONE.lock();
        assert!(is_durable());
        for bug in [Mutant::StoresUnflushed, Mutant::StoresUnfenced] {
            mutant::select(bug);
            let found = is_durable();
            mutant::select(Mutant::None);
            assert!(!found, "{bug:?} escaped");
        }
    }

    /// [STR1]
    #[test]
    fn what_was_taken_away_does_not_count() {
        fn counts() -> bool {
            let (ring, _, words, _file, _arena) = scene();
            let lease = words.lend().expect("a word");
            let stores = Stores::new(Weak::new(|| lease.take_away()), false, Leases::map(words.file()).expect("mapped"));
            stores.keep(handle(1), 0, Some((StoreLease(lease.token()), vec![range(0, 7, PAGE)])));
            stores.store(&ring, handle(1), 100, &[5; 100]).is_some()
        }
        let _alone = mutant::ALONE.lock();
        assert!(!counts());
        mutant::select(Mutant::TakenStoresCount);
        let found = counts();
        mutant::select(Mutant::None);
        assert!(found, "TakenStoresCount escaped");
    }

    /// [STR3]: a second thread comes in the middle of a store.
    #[test]
    fn stores_and_loads_of_a_window_exclude_each_other() {
        fn come_in() -> (bool, bool) {
            let (ring, _, words, _file, _arena) = scene();
            let lease = words.lend().expect("a word");
            let (enters, entered) = std::sync::mpsc::channel();
            let (leaves, left) = std::sync::mpsc::channel();
            let (enters, left) = (Mutex::new(Some(enters)), Mutex::new(left));
            let stops_once = || {
                let first = enters.lock().take();
                if let Some(enters) = first {
                    enters.send(()).expect("it waits");
                    left.lock().recv().expect("told");
                }
            };
            let stores = Stores::new(Weak::new(stops_once), false, Leases::map(words.file()).expect("mapped"));
            stores.keep(handle(1), 0, Some((StoreLease(lease.token()), vec![range(0, 7, PAGE)])));
            std::thread::scope(|scope| {
                let first = scope.spawn(|| stores.store(&ring, handle(1), 0, &[5; 100]));
                entered.recv().expect("told");
                let stored = stores.store(&ring, handle(1), 50, &[6; 100]).is_some();
                let loaded = stores.load(&ring, handle(1), 0, &mut [0; 100]).is_some();
                leaves.send(()).expect("it waits");
                assert_eq!(first.join().expect("it ends"), Some(()));
                (stored, loaded)
            })
        }
        let _alone = mutant::ALONE.lock();
        assert_eq!(come_in(), (false, false));
        mutant::select(Mutant::StoresUnordered);
        let found = come_in();
        mutant::select(Mutant::None);
        assert_eq!(found, (true, true), "StoresUnordered escaped");
    }

    #[test]
    fn leases_without_use_grow_rare_and_windows_are_bounded() {
        let (_ring, stores, words, _file, _arena) = scene();
        let misses = || (1..5000).find(|_| stores.is_wanted(handle(1), 0, 8)).expect("wanted at last");
        let mut all = Vec::new();
        for _ in 0..12 {
            all.push(misses());
            assert_eq!(stores.keep(handle(1), 0, None), None);
        }
        assert_eq!(all[..4], [4, 8, 16, 32]);
        assert_eq!(all[9..], [1024, 1024, 1024]);
        let lease = words.lend().expect("a word");
        stores.keep(handle(1), 0, Some((StoreLease(lease.token()), vec![range(0, 0, PAGE)])));
        assert!((0..5000).all(|_| !stores.is_wanted(handle(1), 0, 8)), "it has the lease");
        let used = || {
            stores.set(handle(1), 0).get().expect("made").read().find(handle(1), 0).map(|window| {
                (0..USES).for_each(|_| window.is_used());
            })
        };
        used().expect("kept");
        for window in 0..10_000 {
            stores.is_wanted(handle(2), window * LENT_WINDOW_BYTES, 8);
        }
        assert!(stores.set(handle(1), 0).get().expect("made").read().find(handle(1), 0).is_some(), "a lease stays");
        let count: usize = stores.sets.iter().flat_map(|set| set.get()).map(|set| set.read().windows.iter().flatten().count()).sum();
        assert_eq!(count, SETS * WAYS);
        drop(lease);
        assert_eq!(misses(), 4, "it was of use");
        stores.keep(handle(1), 0, None);
        assert_eq!((misses(), stores.keep(handle(1), 0, None), misses()), (4, None, 8));
        // Four windows of one set have leases: there is no place for another one.
        let of_set = |number: &u64| std::ptr::eq(stores.set(handle(3), *number), &raw const stores.sets[0]);
        let numbers: Vec<u64> = (0..).filter(of_set).take(WAYS + 1).collect();
        let leases: Vec<_> = numbers.iter().map(|_| words.lend().expect("a word")).collect();
        let kept = numbers
            .iter()
            .zip(&leases)
            .map(|(number, lease)| stores.keep(handle(3), number * LENT_WINDOW_BYTES, Some((StoreLease(lease.token()), Vec::new()))));
        let kept: Vec<_> = kept.collect();
        assert_eq!(kept, [None, None, None, None, Some(StoreLease(leases[WAYS].token()))]);
    }
}
