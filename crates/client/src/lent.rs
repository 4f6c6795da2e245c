//! Bytes of files that the client loads from the memory zone, where the daemon has lent it ([LND1]–[LND3] of `crates/direct`).
//!
//! [LDS1] Loaded bytes are given out if the version words were as they were told when the load began, and still are behind it ([VER9] of the
//!       ring). A read over two windows compares the words of both before it loads from either, and again behind both loads. What is loaded in
//!       between may be anything; nothing of it is looked at. Where they differ the daemon is asked.
//! [LDS2] The daemon's list is believed as far as it stays inside of the window and the zone ([MSG6] of the protocol). A load that fails (an
//!       image that was cut short, a poisoned line) is left to the daemon as well, which says what is the matter ([LZ4] of the device layer).
//! [LDS3] A window is looked up when it is read by requests for the second time, but for reads that are left to the mount where its kernel has
//!       pages ([`Unless`](crate::Unless)). Where it changes more often than it is read, that grows rare:
//!       each look-up that fewer than 16 reads had a use for doubles the requests before the next one, up to 1024.
//! [LDS4] Bounded: 256 sets of four windows of 1 MiB, made when they are needed; 1.8 MB when all are, in 64 pieces each. Nobody waits, as [KN4]
//!       of `known.rs` says.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use parking_lot::RwLock;
use tandemfs_device::Mapping;
use tandemfs_protocol::{Handle, LENT_WINDOW_BYTES, LentRange};
use tandemfs_ring::{Client, Seen};

use crate::mutant::{self, Mutant};

const SETS: usize = 256;
const WAYS: usize = 4;
/// Requests before a window is looked up, and the most that it grows to.
const WANTED_MIN: u32 = 2;
const WANTED_MAX: u32 = 1024;
/// Reads that make a look-up worth while.
const USES: u32 = 16;

#[derive(Debug)]
struct Window {
    handle: Handle,
    number: u64,
    /// None before it was looked up for the first time, or where nothing of it is lent.
    ranges: Box<[LentRange]>,
    seen: Seen,
    uses: AtomicU32,
    /// Requests since it was looked up, and with how many it is looked up again.
    misses: AtomicU32,
    wanted: u32,
}

impl Window {
    fn new(handle: Handle, number: u64) -> Self {
        let (ranges, seen) = (Box::default(), Seen::default());
        Self { handle, number, ranges, seen, uses: AtomicU32::new(0), misses: AtomicU32::new(1), wanted: WANTED_MIN }
    }

    /// Loads bytes of the file, all of them.
    fn load(&self, zone: &Mapping, offset: u64, into: &mut [u8]) -> Option<()> {
        let first = self.ranges.partition_point(|range| range.file_offset + range.bytes <= offset);
        let mut done = 0;
        for range in &self.ranges[first..] {
            let skip = (offset + done as u64).checked_sub(range.file_offset)?;
            let there = usize::try_from(range.bytes - skip).map_or(usize::MAX, |there| there.min(into.len() - done));
            zone.load(range.zone_offset + skip, &mut into[done..done + there]).ok()?; // [LDS2]
            done += there;
            if done == into.len() {
                return Some(());
            }
        }
        None
    }

    fn is_used(&self) {
        let uses = self.uses.load(Relaxed);
        if uses < USES {
            self.uses.store(uses + 1, Relaxed); // two at once may count as one
        }
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

    /// The window's place; another one goes where all are taken.
    fn place(&mut self, handle: Handle, number: u64) -> &mut Window {
        let is_its = |window: &Window| (window.handle, window.number) == (handle, number);
        let place = self.windows.iter().position(|window| window.as_ref().is_none_or(|window| is_its(window)));
        let place = place.unwrap_or_else(|| {
            self.next = (self.next + 1) % WAYS;
            self.next
        });
        let window = self.windows[place].get_or_insert_with(|| Box::new(Window::new(handle, number)));
        if !is_its(window) {
            **window = Window::new(handle, number);
        }
        window
    }
}

/// The memory zone, and the windows that the connection knows the places of.
#[derive(Debug)]
pub(crate) struct Lent {
    zone: Mapping,
    sets: Box<[OnceLock<Box<RwLock<Set>>>]>,
}

impl Lent {
    pub(crate) fn new(zone: Mapping) -> Self {
        Self { zone, sets: (0..SETS).map(|_| OnceLock::new()).collect() }
    }

    pub(crate) fn zone_bytes(&self) -> u64 {
        self.zone.length()
    }

    fn set(&self, handle: Handle, number: u64) -> &OnceLock<Box<RwLock<Set>>> {
        &self.sets[spread(handle, number) % SETS]
    }

    /// Loads bytes of an open file, all of them or none; they lie in two windows at most ([LDS1]).
    #[inline]
    pub(crate) fn read(&self, ring: &Client, handle: Handle, offset: u64, into: &mut [u8]) -> Option<()> {
        let number = offset / LENT_WINDOW_BYTES;
        let border = number.checked_add(1)?.checked_mul(LENT_WINDOW_BYTES)?;
        let here = into.len().min((border - offset) as usize);
        if into.is_empty() || into.len() - here > LENT_WINDOW_BYTES as usize {
            return None;
        }
        let (here, rest) = into.split_at_mut(here);
        self.loaded(ring, handle, number, |window| {
            window.load(&self.zone, offset, here)?;
            match rest.is_empty() {
                true => Some(()),
                false => self.loaded(ring, handle, number + 1, |next| next.load(&self.zone, border, rest)),
            }
        })
    }

    #[inline]
    fn loaded(&self, ring: &Client, handle: Handle, number: u64, load: impl FnOnce(&Window) -> Option<()>) -> Option<()> {
        let set = self.set(handle, number).get()?.try_read()?;
        let window = set.find(handle, number)?;
        match mutant::on(Mutant::LoadsNotCompared) {
            false => ring.load_while_so(&window.seen, || load(window))?,
            true => load(window)?,
        }
        window.is_used();
        Some(())
    }

    /// Bytes were read by a request; whether their window is to be looked up now ([LDS3]).
    pub(crate) fn is_wanted(&self, ring: &Client, handle: Handle, offset: u64) -> bool {
        let number = offset / LENT_WINDOW_BYTES;
        let lock = self.set(handle, number).get_or_init(Box::default);
        {
            let Some(set) = lock.try_read() else { return false };
            if let Some(window) = set.find(handle, number) {
                // What it was told is still so: these bytes are not lent.
                return !ring.is_still_so(&window.seen) && window.misses.fetch_add(1, Relaxed) + 1 >= window.wanted;
            }
        }
        if let Some(mut set) = lock.try_write() {
            set.place(handle, number);
        }
        false
    }

    /// Keeps what the daemon said of a window.
    pub(crate) fn keep(&self, handle: Handle, offset: u64, ranges: Vec<LentRange>, seen: Seen) {
        let number = offset / LENT_WINDOW_BYTES;
        let Some(mut set) = self.set(handle, number).get_or_init(Box::default).try_write() else { return };
        let window = set.place(handle, number);
        let is_worth_while = *window.uses.get_mut() >= USES;
        window.wanted = if is_worth_while { WANTED_MIN } else { (2 * window.wanted).min(WANTED_MAX) };
        (window.ranges, window.seen) = (ranges.into(), seen);
        (*window.uses.get_mut(), *window.misses.get_mut()) = (0, 0);
    }
}

/// Where a window of an open file is looked for: a number that differs in all bits for neighbours.
pub(crate) fn spread(handle: Handle, window: u64) -> usize {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = (handle.get().wrapping_mul(FACTOR) ^ window).wrapping_mul(FACTOR);
    (mixed >> 32) as usize
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use tandemfs_device::LentZone;

    use super::*;

    const PAGE: u64 = 4096;

    fn handle(number: u64) -> Handle {
        Handle::of(number).expect("a number")
    }

    /// Its pages have their numbers in them.
    fn zone() -> Mapping {
        let file = tempfile::tempfile().expect("a temporary file");
        (0..16_u8).for_each(|page| file.write_all_at(&[page; PAGE as usize], u64::from(page) * PAGE).expect("written"));
        LentZone::of(&file, 0, 16 * PAGE).and_then(|zone| zone.map()).expect("mapped")
    }

    fn range(file_page: u64, zone_page: u64, bytes: u64) -> LentRange {
        LentRange { file_offset: file_page * PAGE, zone_offset: zone_page * PAGE, bytes }
    }

    #[test]
    fn bytes_come_from_all_ranges_or_not_at_all() {
        let zone = zone();
        let ranges = [range(1, 7, 2 * PAGE), range(3, 2, PAGE), range(5, 11, 100)];
        let window = Window { ranges: ranges.into(), ..Window::new(handle(1), 0) };
        let load = |offset, length| {
            let mut bytes = vec![0; length];
            window.load(&zone, offset, &mut bytes).map(|()| bytes)
        };
        let page = PAGE as usize;
        assert_eq!(load(PAGE, 3 * page), Some([vec![7; page], vec![8; page], vec![2; page]].concat()));
        assert_eq!(load(3 * PAGE - 1, 2), Some(vec![8, 2]));
        assert_eq!(load(5 * PAGE + 40, 60), Some(vec![11; 60]));
        for (offset, length) in [(PAGE - 1, 2), (0, 1), (4 * PAGE - 1, 2), (4 * PAGE, 1), (5 * PAGE + 40, 61), (6 * PAGE, 1)] {
            assert_eq!(load(offset, length), None, "{length} bytes at {offset}");
        }
        let beyond = Window { ranges: [range(0, 15, 2 * PAGE)].into(), ..Window::new(handle(1), 0) };
        assert_eq!(beyond.load(&zone, PAGE, &mut [0; 8]), None, "outside of the zone");
    }

    #[test]
    fn look_ups_without_use_grow_rare_and_windows_are_bounded() {
        let arena = tandemfs_ring::Arena::new(tandemfs_ring::Sizes { slots: 1, data_bytes: PAGE }, tandemfs_ring::Doorbell::Futex);
        let arena = arena.expect("made");
        let ring = Client::map(arena.descriptors().arena, arena.descriptors().words, None, None).expect("mapped");
        let lent = Lent::new(zone());
        let misses = || (1..5000).find(|_| lent.is_wanted(&ring, handle(1), 0)).expect("wanted at last");
        let mut all = Vec::new();
        for _ in 0..12 {
            all.push(misses());
            lent.keep(handle(1), 0, Vec::new(), Seen::default());
        }
        assert_eq!(all[..4], [2, 4, 8, 16]);
        assert_eq!(all[10..], [1024, 1024]);
        let used = || {
            lent.set(handle(1), 0).get().expect("made").read().find(handle(1), 0).map(|window| {
                (0..USES).for_each(|_| window.is_used());
            })
        };
        used().expect("kept");
        assert_eq!(misses(), 1024);
        lent.keep(handle(1), 0, Vec::new(), Seen::default());
        assert_eq!(misses(), 2, "it was of use");
        for window in 0..10_000 {
            lent.is_wanted(&ring, handle(2), window * LENT_WINDOW_BYTES);
        }
        let count: usize = lent.sets.iter().flat_map(|set| set.get()).map(|set| set.read().windows.iter().flatten().count()).sum();
        assert_eq!(count, SETS * WAYS);
    }
}
