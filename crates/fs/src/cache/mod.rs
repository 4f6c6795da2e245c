//! Host copies of metadata: 4 KiB pages of lines, loaded on demand, evictable, with one dirty bit per line.
//!
//! [CA1] Metadata reads use these copies; while the working set fits the limit, the device is not read (`ARCHITECTURE.md`).
//! [CA2] A line changes here only by [`PageCache::apply`] and [`PageCache::apply_clean`], after its record is persistent or its transaction
//!       committed (RULES R4); so a checkpoint writes home only committed lines. Unlinked lines ([`Page::follow`]) are already home when
//!       they are stored here, and never dirty.
//! [CA3] A page with dirty lines is never evicted, because the list of dirty pages holds it. So their number is limited to a quarter of the
//!       cache ([`PageCache::is_full_of_dirty`]); above it, a committing thread checkpoints first ([CH6] of `journal/checkpoint.rs`).
//!
//! [CA4] Lines are raw bytes: the reader of a line verifies it with the line's own place. A line verified for an owner is not verified
//!       again for that owner until it changes; for another owner it is.
//!
//! If the two windows of a drive overlap (`device/src/firmware.rs` [FW1]), pages are read by blocks and lines written home by bytes, and
//! the drive does not order these against each other. This module keeps them coherent:
//!
//! [CA5] The drive shows lines that are stored but not committed. So a page with lines stored by a transaction has a host copy from before
//!       the first store until after COMMIT, and is not loaded in between: `Tx::put` loads and pins it (an `Arc` in the transaction),
//!       eviction skips pinned pages, and a page is looked up and loaded under its shard's lock. A failed transaction keeps its pages
//!       pinned forever (`journal/firmware_commit.rs` [FC2]).
//! [CA6] A page is read by blocks only while it has no host copy, and then every store to it has been fenced: stores of a transaction
//!       before its COMMIT, while the page was pinned ([CA5]); those of a checkpoint or replay before its list of written pages is dropped.
//! [CA7] A metadata page is written by blocks, or discarded, only where it is fresh (zeros, lines of holes, a copy), before it is linked and after
//!       all its former users are done (RULES R6), and the write is flushed before a line of the page is stored
//!       (`LineStore::zero_fresh_pages`, `LineStore::write_fresh_page`). Pages in use are written by bytes only (R16), because a block write
//!       makes every line of the page in the drive's log obsolete.
//! [CA8] Lines that do not verify may be loaded a second time ([`PageCache::reload`]): the transfer or the host copy may have been wrong. A
//!       dirty line is newer than the drive's and stays; and since the drive shows what is stored but not committed ([CA5]), the caller
//!       knows that no transaction has these lines.
//! [CA9] Lines of mapping pages are read by [`LineStore::mapping_line`] alone. With *sealed holes* (`docs/FORMAT.md`) such a line is never
//!       empty: a fresh page has all its lines sealed before it is linked, and whoever changes a line seals it, so zeros are damage
//!       (RULES R27).

pub(crate) mod file_pages;
mod line_store;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64 as Limit64, AtomicUsize as Limit}; // limits change seldom, and order nothing

use tandemfs_device::{Apart, Drive, Structure};
use tandemfs_format::{LINE_BYTES, Line, LineAddress, PAGE_BYTES, PAGE_LINES};

use crate::error::Result;
use crate::mutant::{Mutant, on};
use crate::near::{NearMap, SHARDS, shard_of};
use crate::statistics::{LiveWork, count};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use crate::sync::{EXPLORED, Mutex};
use crate::wait::{LongMutex, may_wait};
use file_pages::FilePages;

pub(crate) use line_store::{LineStore, Owner, damaged, load_bulk, zero_pages};

pub(crate) struct Page {
    address: LineAddress,
    structure: Structure,
    referenced: AtomicBool,
    body: Mutex<Body>,
}

struct Body {
    bytes: [u8; PAGE_BYTES],
    /// One bit per line that is newer here than at home.
    dirty: u64,
    /// The owner ([`Owner::tag`]) for which each line was verified; 0 for none ([CA4]).
    verified_for: [u32; PAGE_LINES as usize],
}

impl Page {
    pub(crate) fn line(&self, address: LineAddress) -> Line {
        let at = address.index_in_page() * LINE_BYTES;
        let mut line = [0; LINE_BYTES];
        line.copy_from_slice(&self.body.lock().bytes[at..at + LINE_BYTES]);
        line
    }

    /// Passes `count` lines from `first` on, all of this page, to `each`; before that, passes lines not yet verified for the owner with
    /// this tag to `verify` ([CA4]).
    pub(crate) fn lines(
        &self,
        first: LineAddress,
        count: usize,
        tag: u32,
        verify: impl Fn(LineAddress, &Line) -> Result<()>,
        mut each: impl FnMut(LineAddress, &Line) -> Result<()>,
    ) -> Result<()> {
        let body = &mut *self.body.lock();
        let start = first.index_in_page();
        let lines = body.bytes.as_chunks::<LINE_BYTES>().0[start..start + count].iter();
        for ((index, line), known) in (0..).zip(lines).zip(&mut body.verified_for[start..]) {
            if *known != tag {
                verify(first.nth(index), line)?;
                *known = tag;
            }
            each(first.nth(index), line)?;
        }
        Ok(())
    }

    /// The whole page.
    pub(crate) fn bytes(&self) -> [u8; PAGE_BYTES] {
        self.body.lock().bytes
    }

    /// Copies fresh lines that were stored on the device. No pointer to them exists yet, so none of them is dirty.
    pub(crate) fn follow(&self, first: LineAddress, bytes: &[u8]) {
        let mut body = self.body.lock();
        let start = first.index_in_page();
        body.bytes[start * LINE_BYTES..start * LINE_BYTES + bytes.len()].copy_from_slice(bytes);
        body.verified_for[start..start + bytes.len() / LINE_BYTES].fill(0);
    }

    pub(crate) fn structure(&self) -> Structure {
        self.structure
    }

    /// Passes each run of dirty lines to `write` and marks them clean. Stops at the first error; unwritten lines stay dirty.
    pub(crate) fn write_dirty<E>(
        &self,
        mut write: impl FnMut(LineAddress, &[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let mut body = self.body.lock();
        while body.dirty != 0 {
            let start = body.dirty.trailing_zeros() as usize;
            let length = (body.dirty >> start).trailing_ones() as usize;
            write(self.address.nth(start as u64), &body.bytes[start * LINE_BYTES..(start + length) * LINE_BYTES])?;
            body.dirty &= if start + length == 64 { 0 } else { u64::MAX << (start + length) };
        }
        Ok(())
    }
}

/// Consecutive lines, on the device and in host memory.
pub(crate) struct Home {
    pub(crate) device: Vec<u8>,
    pub(crate) host: Option<Vec<u8>>,
    /// One bit per line whose host copy is newer.
    pub(crate) newer: u64,
}

#[derive(Default)]
struct Shard {
    pages: NearMap<Arc<Page>>,
    order: VecDeque<u64>,
}

pub(crate) struct PageCache {
    /// Each apart from the others ([APT1] of the device's `apart.rs`), as are the words below that every commit changes.
    shards: Vec<Apart<LongMutex<Shard>>>,
    shard_pages_max: Limit,
    memory_bytes_max: Limit64,
    page_count: AtomicUsize,
    /// Pages of files; they use the memory left ([FP6] there).
    pub(crate) files: FilePages,
    dirty: Apart<Mutex<Vec<Arc<Page>>>>,
    /// Pages in that list, plus pages that a checkpoint has taken from it and not yet written home.
    dirty_count: Apart<AtomicUsize>,
    dirty_max: Limit,
}

/// Dirty pages may take this fraction (1/N) of the cache.
const DIRTY_PART: usize = 4;

/// Pages that are evicted under one hold of a shard's lock, when the limit falls.
const EVICTED_AT_ONCE: usize = 256;

/// Pages are numbered, not lines, so that neighbours have consecutive numbers.
fn page_number(start: LineAddress) -> u64 {
    start.number() / PAGE_LINES
}

impl PageCache {
    /// A cache of at most `memory_bytes`, including dirty pages if they are spread over many shards, as usual. Pages of files share this memory.
    pub(crate) fn new(memory_bytes: u64) -> Self {
        let shard_pages_max = Self::shard_pages_max(memory_bytes);
        Self {
            shards: (0..SHARDS).map(|_| Apart::default()).collect(),
            shard_pages_max: Limit::new(shard_pages_max),
            dirty_max: Limit::new(Self::dirty_max(shard_pages_max)),
            memory_bytes_max: Limit64::new(memory_bytes),
            page_count: AtomicUsize::new(0),
            files: FilePages::new(memory_bytes),
            dirty: Apart::default(),
            dirty_count: Apart::default(),
        }
    }

    fn shard_pages_max(memory_bytes: u64) -> usize {
        let pages = (memory_bytes - FilePages::least_bytes(memory_bytes)) as usize / size_of::<Page>();
        (pages / SHARDS).max(if EXPLORED { 1 } else { 4 })
    }

    fn dirty_max(shard_pages_max: usize) -> usize {
        SHARDS * shard_pages_max / DIRTY_PART
    }

    /// At most so many bytes from now on. Evicts what is more, but for dirty pages and pages in use: a checkpoint before it leaves few of them.
    /// Others find their shard locked for [`EVICTED_AT_ONCE`] pages at most.
    pub(crate) fn resize(&self, memory_bytes: u64, work: &LiveWork) {
        let shard_pages_max = Self::shard_pages_max(memory_bytes);
        self.shard_pages_max.store(shard_pages_max, Relaxed);
        self.dirty_max.store(Self::dirty_max(shard_pages_max), Relaxed);
        self.memory_bytes_max.store(memory_bytes, Relaxed);
        for shard in &self.shards {
            // Twice around the clock: the first round may find all pages referenced.
            let mut steps = 2 * shard.lock_waiting().order.len();
            while steps > 0 {
                let mut shard = shard.lock_waiting();
                if shard.pages.len() <= shard_pages_max || shard.order.is_empty() {
                    shard.pages.shrink_to_fit();
                    shard.order.shrink_to_fit();
                    break;
                }
                let at_once = steps.min(EVICTED_AT_ONCE);
                self.evict(&mut shard, at_once, shard_pages_max);
                steps -= at_once;
            }
        }
        self.files.resize(memory_bytes, memory_bytes.saturating_sub(self.memory_bytes()), work);
    }

    /// `page` is the number of the page's first line divided by the lines of a page.
    fn shard(&self, page: u64) -> &LongMutex<Shard> {
        &self.shards[shard_of(page)]
    }

    /// The page that holds `address`, loaded from the device if it is not here ([CA1]).
    pub(crate) fn page(&self, drive: &Drive, work: &LiveWork, structure: Structure, address: LineAddress) -> Result<Arc<Page>> {
        let start = address.page();
        let mut shard = self.shard(page_number(start)).lock()?;
        if let Some(page) = shard.pages.get(&page_number(start)) {
            page.referenced.store(true, Relaxed);
            return Ok(page.clone());
        }
        if drive.description().sector_of_page(start).is_some() {
            may_wait()?; // a block read
        }
        count(&work.metadata_page_loads);
        let mut bytes = [0; PAGE_BYTES];
        match drive.load_pages(structure, start, &mut bytes) {
            // [CA6]
            Err(_) if on(Mutant::FailedLoadIsZeros) => bytes.fill(0),
            other => other?,
        }
        Ok(self.insert(&mut shard, start, (structure, bytes), work))
    }

    /// As [`PageCache::page`], where a page cannot be read whole.
    pub(crate) fn page_of_readable_lines(
        &self,
        drive: &Drive,
        work: &LiveWork,
        structure: Structure,
        address: LineAddress,
    ) -> Result<Arc<Page>> {
        let start = address.page();
        let mut shard = self.shard(page_number(start)).lock()?;
        if let Some(page) = shard.pages.get(&page_number(start)) {
            return Ok(page.clone());
        }
        let mut bytes = [0; PAGE_BYTES];
        for (address, line) in (0..).map(|index| start.nth(index)).zip(bytes.chunks_exact_mut(LINE_BYTES)) {
            if drive.load(structure, address, line).is_err() {
                line.fill(0xff);
            }
        }
        Ok(self.insert(&mut shard, start, (structure, bytes), work))
    }

    /// Lines of one page as on the device, read while no thread can write them home, together with their host copies.
    pub(crate) fn home(&self, drive: &Drive, structure: Structure, first: LineAddress, count: u64) -> Result<Home> {
        let mut device = vec![0; count as usize * LINE_BYTES];
        let shard = self.shard(page_number(first.page())).lock_waiting();
        let Some(page) = shard.pages.get(&page_number(first.page())).cloned() else {
            // No host copy exists, so no thread has the page ([CA3]); the shard's lock prevents a load.
            drive.load(structure, first, &mut device)?;
            return Ok(Home { device, host: None, newer: 0 });
        };
        drop(shard);
        let body = page.body.lock();
        drive.load(structure, first, &mut device)?;
        let at = first.index_in_page() * LINE_BYTES;
        Ok(Home { host: Some(body.bytes[at..at + device.len()].to_vec()), newer: body.dirty >> first.index_in_page(), device })
    }

    /// Loads lines of one page from the device again ([CA8]). True if one of them has changed in the host copy.
    pub(crate) fn reload(&self, drive: &Drive, page: &Page, first: LineAddress, count: usize) -> Result<bool> {
        let mut device = vec![0; count * LINE_BYTES];
        let mut body = page.body.lock();
        drive.load(page.structure, first, &mut device)?;
        let mut has_changed = false;
        for (index, line) in (first.index_in_page()..).zip(device.chunks_exact(LINE_BYTES)) {
            let at = index * LINE_BYTES;
            if body.dirty >> index & 1 == 0 && body.bytes[at..at + LINE_BYTES] != *line {
                body.bytes[at..at + LINE_BYTES].copy_from_slice(line);
                body.verified_for[index] = 0;
                has_changed = true;
            }
        }
        Ok(has_changed)
    }

    /// The host copy of a line, if there is one.
    pub(crate) fn cached_line(&self, address: LineAddress) -> Option<Line> {
        let page = self.shard(page_number(address.page())).lock_waiting().pages.get(&page_number(address.page())).cloned()?;
        Some(page.line(address))
    }

    /// Whether a line of these has a newer host copy.
    pub(crate) fn is_any_dirty(&self, first: LineAddress, lines: u64) -> bool {
        let pages = page_number(first)..page_number(first) + lines / PAGE_LINES;
        self.dirty_count.load(Relaxed) > 0
            && pages.into_iter().any(|number| {
                let page = self.shard(number).lock_waiting().pages.get(&number).cloned();
                page.is_some_and(|page| page.body.lock().dirty != 0)
            })
    }

    /// Drops the host copies of whole pages that no transaction has ([GU3] of `alloc/departure.rs`).
    pub(crate) fn forget(&self, first: LineAddress, lines: u64) {
        for number in page_number(first)..page_number(first) + lines / PAGE_LINES {
            let mut shard = self.shard(number).lock_waiting();
            if shard.pages.remove(&number).is_some() {
                shard.order.retain(|other| *other != number);
                self.page_count.fetch_sub(1, Relaxed);
            }
        }
    }

    /// Inserts a page that was zeroed on the device, without loading it.
    ///
    /// # Errors
    /// `WouldWait`.
    pub(crate) fn insert_zeroed(&self, work: &LiveWork, structure: Structure, start: LineAddress) -> Result<Arc<Page>> {
        self.insert_fresh(work, structure, start, &[0; PAGE_BYTES])
    }

    /// Inserts a page that was written whole on the device, without loading it.
    ///
    /// # Errors
    /// `WouldWait`.
    pub(crate) fn insert_fresh(
        &self,
        work: &LiveWork,
        structure: Structure,
        start: LineAddress,
        bytes: &[u8; PAGE_BYTES],
    ) -> Result<Arc<Page>> {
        let mut shard = self.shard(page_number(start)).lock()?;
        Ok(self.insert(&mut shard, start, (structure, *bytes), work))
    }

    fn insert(
        &self,
        shard: &mut Shard,
        start: LineAddress,
        (structure, bytes): (Structure, [u8; PAGE_BYTES]),
        work: &LiveWork,
    ) -> Arc<Page> {
        let steps = shard.order.len();
        self.evict(shard, steps, self.shard_pages_max.load(Relaxed).saturating_sub(1));
        let page = Arc::new(Page {
            address: start,
            structure,
            referenced: AtomicBool::new(true),
            body: Mutex::new(Body { bytes, dirty: 0, verified_for: [0; PAGE_LINES as usize] }),
        });
        if shard.pages.insert(page_number(start), page.clone()).is_none() {
            shard.order.push_back(page_number(start));
            self.page_count.fetch_add(1, Relaxed);
            self.files.allow(self.memory_bytes_max.load(Relaxed).saturating_sub(self.memory_bytes()), work);
        }
        page
    }

    /// Evicts the oldest pages that were not used since the hand passed them until a shard has `pages`, in at most so many steps of the hand.
    fn evict(&self, shard: &mut Shard, steps: usize, pages: usize) {
        for _ in 0..steps {
            if shard.pages.len() <= pages {
                break;
            }
            let Some(oldest) = shard.order.pop_front() else { break };
            match shard.pages.get(&oldest) {
                None => {}
                // [CA3]: the dirty list holds a dirty page, and users hold pages in use.
                Some(page) if Arc::strong_count(page) > 1 || page.referenced.swap(false, Relaxed) => shard.order.push_back(oldest),
                Some(_) => {
                    shard.pages.remove(&oldest);
                    self.page_count.fetch_sub(1, Relaxed);
                }
            }
        }
    }

    /// Changes a line of a page, for live commits and for replay ([CA2]).
    pub(crate) fn apply(&self, page: &Arc<Page>, address: LineAddress, image: &Line) {
        let at = address.index_in_page() * LINE_BYTES;
        let first = {
            let mut body = page.body.lock();
            body.bytes[at..at + LINE_BYTES].copy_from_slice(image);
            let first = body.dirty == 0;
            body.dirty |= 1 << address.index_in_page();
            body.verified_for[address.index_in_page()] = 0;
            first
        };
        if first {
            self.dirty.lock().push(page.clone());
            self.dirty_count.fetch_add(1, Relaxed);
        }
    }

    /// Like `apply`, for a line that is already home: the page stays clean, and can be evicted.
    pub(crate) fn apply_clean(&self, page: &Page, address: LineAddress, image: &Line) {
        let at = address.index_in_page() * LINE_BYTES;
        let mut body = page.body.lock();
        body.bytes[at..at + LINE_BYTES].copy_from_slice(image);
        body.verified_for[address.index_in_page()] = 0;
    }

    #[cfg(test)]
    pub(crate) fn dirty_count(&self) -> usize {
        self.dirty_count.load(Relaxed)
    }

    /// Whether so many pages are dirty that a checkpoint must come before the next commit ([CA3]).
    pub(crate) fn is_full_of_dirty(&self) -> bool {
        self.dirty_count.load(Relaxed) >= self.dirty_max.load(Relaxed)
    }

    /// Whether half as many are dirty, so that a background checkpoint should start.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        self.dirty_count.load(Relaxed) >= self.dirty_max.load(Relaxed) / 2
    }

    /// Takes the list of dirty pages. Their lines are still dirty; [`Page::write_dirty`] makes them clean. They count until
    /// [`PageCache::are_home`] or [`PageCache::keep_dirty`].
    pub(crate) fn take_dirty(&self) -> Vec<Arc<Page>> {
        std::mem::take(&mut *self.dirty.lock())
    }

    /// Counts this many pages of a taken list as home.
    pub(crate) fn are_home(&self, pages: usize) {
        self.dirty_count.fetch_sub(pages, Relaxed);
    }

    /// Takes pages back whose lines could not be written home: committed lines must not leave the cache ([CA3]).
    pub(crate) fn keep_dirty(&self, pages: &[Arc<Page>]) {
        self.dirty.lock().extend_from_slice(pages);
    }

    /// Host memory used, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.page_count.load(Relaxed) * size_of::<Page>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    /// How many of three lines are passed to `verify` for an owner's tag.
    fn verifications(page: &Page, tag: u32) -> usize {
        let count = std::cell::Cell::new(0);
        let verify = |_, _: &Line| {
            count.set(count.get() + 1);
            Ok(())
        };
        page.lines(LineAddress::new(0), 3, tag, verify, |_, _| Ok(())).expect("verified");
        count.get()
    }

    #[test]
    fn a_line_is_verified_once_for_an_owner_and_again_when_it_changes() {
        let cache = PageCache::new(1 << 20);
        let page = cache.insert_zeroed(&LiveWork::default(), Structure::Mapping, LineAddress::new(0)).expect("nobody holds it");
        assert_eq!([verifications(&page, 7), verifications(&page, 7)], [3, 0]);
        assert_eq!(verifications(&page, 9), 3, "what is right for one owner is not for another");
        assert_eq!(verifications(&page, 7), 3);
        cache.apply(&page, LineAddress::new(1), &[1; LINE_BYTES]);
        assert_eq!(verifications(&page, 7), 1, "only the line that changed");
    }

    #[test]
    fn a_line_that_failed_is_verified_again() {
        let page =
            PageCache::new(1 << 20).insert_zeroed(&LiveWork::default(), Structure::Mapping, LineAddress::new(0)).expect("nobody holds it");
        let refuse = |_, _: &Line| Err(Error::NotFound);
        assert!(page.lines(LineAddress::new(0), 3, 7, refuse, |_, _| panic!("not verified")).is_err());
        assert_eq!(verifications(&page, 7), 3);
    }
}
