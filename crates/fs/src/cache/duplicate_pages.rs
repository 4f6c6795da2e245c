//! Duplicate pages: host copies of file data as on the device. They show which lines of a page have changed when a kernel's page cache writes
//! the whole page back (the duplicate page of ByteFS §4.6; RULES R20).
//!
//! ByteFS copies a page in the kernel when it is modified. FUSE does not report that event, so copies are made when the kernel reads a page
//! (READ of a file open for writing) and when it writes one back (WRITE of a whole page).
//!
//! [CP1] A copy holds the bytes that a read returns, and zeros beyond the end of the file. Only the holder of its block's range lock
//!       inserts or removes it: shared by a read that has just verified those bytes, exclusively by a write after its commit.
//! [CP2] An operation that changes bytes of a file holds the exclusive range lock and first drops or takes out the copies: a write takes
//!       them and puts the updated copies back after its commit, so a failed write leaves none. Truncation, punching, zeroing and removal
//!       drop them. A stale copy would hide a change forever, because lines equal to the copy are not written.
//! [CP3] Operations that move bytes without changing them (write-back, allocation) keep copies: copies are indexed by file and offset, and
//!       belong to the in-core inode, so a reused inode number does not share them.
//! [CP4] Copies count against the memory option, at most an eighth of it, and use only what metadata pages leave
//!       ([`PageCache`](super::PageCache) updates the bound whenever it loads a page). The oldest copy not used since goes first. Writes
//!       longer than [`WRITE_BYTES_MAX`] add no copies: such pages are rarely changed by a few lines soon after.
//!
//! Lock order: the queue, then the pages of one file. No other lock is taken under them.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, Weak};

use smallvec::SmallVec;
use tandemfs_format::PAGE_BYTES;

use crate::mutant::{Mutant, on};
use crate::near::NearMap;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Copies may take this fraction (1/N) of the memory option.
const MEMORY_SHARE: u64 = 8;
/// Maximum length of a write whose pages are kept ([CP4]).
const WRITE_BYTES_MAX: usize = 128 << 10;
/// Host memory of a page's entry in its file's map and in the queue, with or without a copy.
const PLACE_BYTES: u64 = 96;
const PAGE: u64 = PAGE_BYTES as u64;

/// The bytes of a page.
pub(crate) type PageBytes = [u8; PAGE_BYTES];

/// A copy. It is counted as long as it exists.
pub(crate) struct DuplicatePage {
    bytes: Box<PageBytes>,
    all: Arc<AtomicU64>,
}

impl DuplicatePage {
    /// The page.
    pub(crate) fn bytes(&self) -> &PageBytes {
        &self.bytes
    }
}

impl Drop for DuplicatePage {
    fn drop(&mut self) {
        self.all.fetch_sub(PAGE, Relaxed);
    }
}

/// The entry of a present or former copy; it stays until the queue reaches it.
#[derive(Default)]
struct Place {
    page: Option<DuplicatePage>,
    referenced: bool,
}

type Places = Mutex<NearMap<Place>>;

/// The copies of one file by page number; most files have none.
#[derive(Default)]
pub(crate) struct FilePages(OnceLock<Arc<Places>>);

impl FilePages {
    /// Drops copies ([CP2]) of pages that overlap bytes `start..end`. The caller has locked their blocks exclusively.
    pub(crate) fn forget(&self, start: u64, end: u64) {
        let Some(places) = self.0.get().filter(|_| !on(Mutant::DuplicatePageStale)) else { return };
        let mut places = places.lock();
        let (first, last) = (start / PAGE, end.saturating_sub(1) / PAGE);
        if last - first < places.len() as u64 {
            (first..=last).for_each(|page| drop(places.get_mut(&page).and_then(|place| place.page.take())));
        } else {
            places.iter_mut().filter(|(page, _)| (first..=last).contains(page)).for_each(|(_, place)| place.page = None);
        }
    }
}

/// Pages that a write has taken out ([CP2]), indexed from the first page that it touches.
#[derive(Default)]
pub(crate) struct Taken {
    first: u64,
    pages: SmallVec<[Option<DuplicatePage>; 1]>,
}

impl Taken {
    /// The copy of a page.
    pub(crate) fn page(&self, page: u64) -> Option<&PageBytes> {
        self.pages.get(page.checked_sub(self.first)? as usize)?.as_ref().map(DuplicatePage::bytes)
    }
}

/// All copies of a mount.
pub(crate) struct DuplicatePages {
    queue: Mutex<VecDeque<(Weak<Places>, u64)>>,
    /// Bytes of copies, and of their entries.
    pages_bytes: Arc<AtomicU64>,
    places_bytes: AtomicU64,
    bytes_max: u64,
    /// The part of it that metadata leaves ([CP4]).
    allowed_bytes: AtomicU64,
}

impl DuplicatePages {
    pub(crate) fn new(memory_bytes: u64) -> Self {
        let bytes_max = memory_bytes / MEMORY_SHARE;
        Self {
            queue: Mutex::default(),
            pages_bytes: Arc::default(),
            places_bytes: AtomicU64::new(0),
            bytes_max,
            allowed_bytes: AtomicU64::new(bytes_max),
        }
    }

    /// Host memory used, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.pages_bytes.load(Relaxed) + self.places_bytes.load(Relaxed)
    }

    /// Sets the bytes that metadata leaves ([CP4]).
    pub(crate) fn allow(&self, bytes: u64) {
        let bytes = bytes.min(self.bytes_max);
        if self.allowed_bytes.swap(bytes, Relaxed) > bytes {
            self.shrink();
        }
    }

    /// After a read: keeps the pages that it read whole, or up to the end of the file. The caller has locked their blocks ([CP1]).
    pub(crate) fn keep_read(&self, file: &FilePages, file_size: u64, offset: u64, bytes: &[u8]) {
        self.keep(file, file_size, offset, bytes, Taken::default(), true);
    }

    /// Before a write: takes the copies of pages that overlap bytes `start..end`. The caller has locked their blocks exclusively ([CP2]).
    pub(crate) fn take(&self, file: &FilePages, start: u64, end: u64) -> Taken {
        // Copies of these pages were inserted under the lock that the caller holds now, so the counter includes them.
        if self.pages_bytes.load(Relaxed) == 0 {
            return Taken::default();
        }
        let Some(places) = file.0.get() else { return Taken::default() };
        let mut places = places.lock();
        let first = start / PAGE;
        let mut take = |page| places.get_mut(&page).and_then(|place| place.page.take());
        Taken { first, pages: (first..end.div_ceil(PAGE)).map(&mut take).collect() }
    }

    /// After a write: puts the taken copies back, updated; with `all`, also keeps other pages that it wrote whole. The caller still has
    /// their blocks locked ([CP1]).
    pub(crate) fn put_back(&self, file: &FilePages, file_size: u64, offset: u64, bytes: &[u8], taken: Taken, all: bool) {
        self.keep(file, file_size, offset, bytes, taken, all && bytes.len() <= WRITE_BYTES_MAX);
    }

    fn keep(&self, file: &FilePages, file_size: u64, offset: u64, bytes: &[u8], mut taken: Taken, all: bool) {
        let all = all && self.allowed_bytes.load(Relaxed) >= PAGE + PLACE_BYTES;
        if bytes.is_empty() || (!all && taken.pages.iter().all(Option::is_none)) {
            return;
        }
        let end = offset + bytes.len() as u64;
        let mut new: SmallVec<[u64; 32]> = SmallVec::new();
        let places = file.0.get_or_init(Arc::default);
        let mut map = places.lock();
        for page in offset / PAGE..end.div_ceil(PAGE) {
            let (from, to) = ((page * PAGE).max(offset), ((page + 1) * PAGE).min(end));
            let source = &bytes[(from - offset) as usize..(to - offset) as usize];
            let is_whole = from == page * PAGE && (to == (page + 1) * PAGE || end >= file_size);
            let old = page.checked_sub(taken.first).and_then(|index| taken.pages.get_mut(index as usize)?.take());
            if old.is_none() && !(all && is_whole) {
                continue;
            }
            let place = map.entry(page).or_insert_with(|| {
                new.push(page);
                Place::default()
            });
            place.referenced = true;
            if place.page.is_some() {
                continue; // an earlier reader inserted the same bytes
            }
            let mut page_now = old.unwrap_or_else(|| self.empty_page());
            page_now.bytes[(from % PAGE) as usize..][..source.len()].copy_from_slice(source);
            place.page = Some(page_now);
        }
        drop(map);
        if !new.is_empty() {
            self.places_bytes.fetch_add(new.len() as u64 * PLACE_BYTES, Relaxed);
            let weak = Arc::downgrade(places);
            self.queue.lock().extend(new.into_iter().map(|page| (weak.clone(), page)));
        }
        self.shrink();
    }

    fn empty_page(&self) -> DuplicatePage {
        self.pages_bytes.fetch_add(PAGE, Relaxed);
        DuplicatePage { bytes: Box::new([0; PAGE_BYTES]), all: self.pages_bytes.clone() }
    }

    /// Evicts copies until the rest is within the bound: the oldest that was not used since the queue last reached it.
    fn shrink(&self) {
        if self.memory_bytes() <= self.allowed_bytes.load(Relaxed) {
            return;
        }
        let mut queue = self.queue.lock();
        let mut steps = 2 * queue.len();
        while self.memory_bytes() > self.allowed_bytes.load(Relaxed) && steps > 0 {
            steps -= 1;
            let Some((file, page)) = queue.pop_front() else { return };
            if let Some(places) = file.upgrade() {
                let mut map = places.lock();
                let is_used = |place: &mut Place| place.page.is_some() && std::mem::take(&mut place.referenced);
                if map.get_mut(&page).is_some_and(is_used) {
                    queue.push_back((file, page));
                    continue;
                }
                map.remove(&page);
                if map.is_empty() {
                    *map = NearMap::default(); // frees its host memory
                }
            }
            self.places_bytes.fetch_sub(PLACE_BYTES, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_bounded_and_what_is_used_stays() {
        let duplicates = DuplicatePages::new(8 * 16 * (PAGE + PLACE_BYTES));
        let (hot, cold) = (FilePages::default(), FilePages::default());
        duplicates.keep_read(&hot, PAGE, 0, &[1; PAGE_BYTES]);
        for page in 0..100 {
            duplicates.keep_read(&cold, 1 << 30, page * PAGE, &[2; PAGE_BYTES]);
            duplicates.keep_read(&hot, PAGE, 0, &[1; PAGE_BYTES]);
            assert!(duplicates.memory_bytes() <= 16 * (PAGE + PLACE_BYTES));
        }
        assert!(duplicates.take(&hot, 0, PAGE).page(0).is_some());
        assert!(duplicates.take(&cold, 99 * PAGE, 100 * PAGE).page(99).is_some());
        assert!(duplicates.take(&cold, 0, PAGE).page(0).is_none());
        duplicates.keep_read(&cold, 1 << 30, 0, &[2; PAGE_BYTES]);
        drop((hot, cold)); // files leaving memory drop their copies; entries go when the queue reaches them
        assert_eq!(duplicates.pages_bytes.load(Relaxed), 0);
        duplicates.allow(0);
        assert_eq!((duplicates.memory_bytes(), duplicates.queue.lock().len()), (0, 0));
    }

    #[test]
    fn only_whole_pages_and_ends_of_files_are_kept() {
        let duplicates = DuplicatePages::new(64 << 20);
        let file = FilePages::default();
        let size = 3 * PAGE + 10;
        duplicates.keep_read(&file, size, 100, &[1; 2 * PAGE_BYTES]); // one whole page
        duplicates.keep_read(&file, size, 3 * PAGE, &[2; 10]); // the end
        duplicates.keep_read(&file, size, 2 * PAGE, &[3; 100]); // neither
        let taken = duplicates.take(&file, 0, size);
        assert!(taken.page(0).is_none() && taken.page(2).is_none());
        assert_eq!(taken.page(1).map(|page| page[0]), Some(1));
        assert_eq!(taken.page(3).map(|page| (page[9], page[10])), Some((2, 0)));
        // A write over part of a page updates its copy; a page without a copy gets none.
        duplicates.put_back(&file, size, PAGE + 50, &[9; 10], taken, false);
        let taken = duplicates.take(&file, 0, size);
        assert_eq!(taken.page(1).map(|page| (page[49], page[50], page[59], page[60])), Some((1, 9, 9, 1)));
        assert!(taken.page(3).is_none(), "what the write did not touch was not to be taken");
    }

    #[test]
    fn forgetting_drops_what_is_touched() {
        let duplicates = DuplicatePages::new(64 << 20);
        for (start, end, left) in
            [(PAGE, PAGE + 1, [true, false, true]), (0, u64::MAX, [false; 3]), (PAGE - 1, PAGE + 1, [false, false, true])]
        {
            let file = FilePages::default();
            duplicates.keep_read(&file, 3 * PAGE, 0, &[1; 3 * PAGE_BYTES]);
            file.forget(start, end);
            let taken = duplicates.take(&file, 0, 3 * PAGE);
            assert_eq!([0, 1, 2].map(|page| taken.page(page).is_some()), left, "{start}..{end}");
        }
    }
}
