//! File pages: the one cache of file data in host memory. A page is found by its file and its number in it, and is here once, whoever brought it.
//!
//! Three kinds of users have pages here: readers without a cache of their own (the direct door, programs that link the library), whose reads
//! are answered from it; read-ahead, which puts here what a sequential reader will ask for (`inodes/read_ahead.rs`); and writes that a kernel's
//! page cache sends back whole, which are compared with the old page (the duplicate page of ByteFS §4.6; RULES R20). What the kernel caches
//! itself comes here only for that comparison: FUSE does not report when a page is modified, so pages are kept when the kernel reads one that may
//! come back, and when it writes one back.
//!
//! [FP1] A page holds what a read of it returns, and zeros beyond the end of the file. Only the holder of its block's range lock inserts it: shared,
//!       by a read that has just verified those bytes; exclusively, by a write after its commit. It is not verified again (as [CA4]).
//! [FP2] Whoever changes bytes of a file holds the range of their blocks exclusively, and takes their pages out, or drops them, before anything of the
//!       change can be seen. A write puts the changed pages back after its commit and before it returns, so a failed write leaves none; one that was
//!       refused (RULES R29) puts them back as they were. Truncation, punching, zeroing, shifting and removal leave none. So a page that is here has the bytes of the last commit that changed them: never
//!       older than a change that has returned, never newer than what is durable.
//! [FP3] Bytes that change without a call are not here: who maps blocks for stores, or lends them, drops their pages with the range held, and
//!       raises the versions after that. Reads of a mapped file keep nothing; who writes has no mapped block, and nobody has the range of a lent one.
//!       The exception is a lease that ends because the file system has stopped ([SL4]): its bytes are not moved any more.
//! [FP4] A look-up needs no range lock. It holds the inode's lock, shared, from before it reads the size until the bytes are copied, and copies all pages or
//!       none under one hold of the file's table. By [FP2] all of them are of that instant, and the size is, since a commit that changes it needs
//!       the inode's lock exclusively. A room for appending that was lent behind the end ([LR1] of `data/lent_room.rs`) makes the size older, but then the last
//!       block has no pages here ([FP3]), so no look-up comes to the end. What the bytes depend on is noted between the look-up and the copy: who
//!       changes them takes the page first and raises the version afterwards ([VS4] of `versions.rs`).
//! [FP5] Operations that move bytes without changing them (write-back, allocation, compaction) keep pages: those are indexed by file and offset, and
//!       belong to the in-core inode, so a reused inode number does not share them.
//! [FP6] Pages count against the memory option. With metadata pages they take half of it at most: they have what those leave, and a part
//!       that those cannot have ([`PageCache`](super::PageCache) updates the bound whenever it loads a page). The clock evicts the oldest page that
//!       was not read again since the hand passed. Coming here is no use of a page, and neither is the first read of one that was read ahead: whoever reads
//!       much once evicts what others read once. Long reads and writes leave no pages, and writes those alone that lengthen a file.
//!
//! Lock order: an inode's lock, the queue, the table of one file. No other lock but that of a range's state is taken under them.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64 as Limit; // it changes seldom, and orders nothing
use std::sync::{Arc, OnceLock, Weak};

use smallvec::SmallVec;
use tandemfs_device::Sink;
use tandemfs_format::PAGE_BYTES;

use crate::mutant::{Mutant, on};
use crate::near::NearMap;
use crate::statistics::{LiveWork, add};
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use crate::sync::patience::{Patience, patience};
use crate::sync::{Mutex, RwLock};

/// Longest write of which pages are kept that were not here, in bytes ([FP6]).
const WRITE_BYTES_MAX: usize = 128 << 10;
/// Longest read of which pages are kept, in bytes ...
const READ_BYTES_MAX: u64 = 256 << 10;
/// ... and as a part (1/N) of the bound.
const READ_PART: u64 = 8;
/// Pages have at least this part (1/N) of their most memory, whatever metadata takes.
const LEAST_PART: u64 = 8;
/// Host memory of a page's entry in its file's table and in the queue, with or without the page.
const PLACE_BYTES: u64 = 96;
/// Pages that one operation evicts beyond twice what it brought, where the bound has fallen far.
const EVICTED_BESIDES: usize = 64;
/// Pages that are evicted under one hold of the queue's lock, when the bound falls.
const EVICTED_AT_ONCE: usize = 1024;
const PAGE: u64 = PAGE_BYTES as u64;

/// The bytes of a page.
pub(crate) type PageBytes = [u8; PAGE_BYTES];

/// A page in memory. It is counted as long as it exists.
pub(crate) struct FilePage {
    bytes: Box<PageBytes>,
    all: Arc<AtomicU64>,
}

impl Drop for FilePage {
    fn drop(&mut self) {
        self.all.fetch_sub(PAGE, Relaxed);
    }
}

/// How a page was used ([FP6]). A race between two readers costs one of their notes.
struct Use(AtomicU32);

impl Use {
    /// Since it came, or since the hand passed it, nobody has read it again.
    const COLD: u32 = 0;
    /// Somebody has.
    const HOT: u32 = 1;
    /// It was read ahead, and nobody has asked for it.
    const AHEAD: u32 = 2;

    /// A reader has found it. True if it was read ahead for him.
    fn found(&self, counts: bool) -> bool {
        match self.0.load(Relaxed) {
            Self::AHEAD => {
                self.0.store(Self::COLD, Relaxed);
                true
            }
            Self::COLD if counts => {
                self.0.store(Self::HOT, Relaxed);
                false
            }
            _ => false,
        }
    }
}

/// The entry of a present or former page; it stays until the hand reaches it.
struct Place {
    page: Option<FilePage>,
    used: Use,
}

type Places = RwLock<NearMap<Place>>;

/// What a look-up has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    /// A part of it was read ahead.
    pub(crate) is_ahead: bool,
}

/// The pages of one file by number; most files have none.
#[derive(Default)]
pub(crate) struct PagesOfFile(OnceLock<Arc<Places>>);

impl PagesOfFile {
    /// Whether it has had any.
    #[inline]
    pub(crate) fn has_any(&self) -> bool {
        self.0.get().is_some()
    }

    /// Copies bytes of a file to `into` if all of them are here. The caller has the lock of the inode, and the bytes are inside the file; `found`
    /// notes what they depend on ([FP4]). `counts`: who reads has no cache of his own, so that it is a use of the pages.
    pub(crate) fn copy(&self, offset: u64, into: &mut Sink<'_>, counts: bool, found: impl FnOnce()) -> Option<Found> {
        let places = self.0.get()?.read();
        let last = (offset + into.len() as u64 - 1) / PAGE;
        let mut pages: SmallVec<[&Place; 8]> = SmallVec::new();
        for page in offset / PAGE..=last {
            pages.push(places.get(&page).filter(|place| place.page.is_some())?);
        }
        found();
        let is_ahead = lay(pages.into_iter(), offset, into, counts).1;
        Some(Found { is_ahead })
    }

    /// Copies as many bytes from `offset` on as are here, up to the length of `into`. The caller has the range of their blocks.
    pub(crate) fn copy_start(&self, offset: u64, into: &mut Sink<'_>, counts: bool) -> (usize, Found) {
        let Some(places) = self.0.get() else { return (0, Found { is_ahead: false }) };
        let places = places.read();
        let pages = (offset / PAGE..).map_while(|page| places.get(&page));
        let (done, is_ahead) = lay(pages, offset, into, counts);
        (done, Found { is_ahead })
    }

    /// Drops the pages that overlap bytes `start..end` ([FP2], [FP3]). The caller has locked their blocks exclusively, or changes
    /// nothing.
    pub(crate) fn forget(&self, start: u64, end: u64) {
        let Some(places) = self.0.get().filter(|_| !on(Mutant::PageOutlivesChange)) else { return };
        let mut places = places.write();
        let (first, last) = (start / PAGE, end.saturating_sub(1) / PAGE);
        if last - first < places.len() as u64 {
            (first..=last).for_each(|page| drop(places.get_mut(&page).and_then(|place| place.page.take())));
        } else {
            places.iter_mut().filter(|(page, _)| (first..=last).contains(page)).for_each(|(_, place)| place.page = None);
        }
    }
}

/// Copies pages that follow each other, the first of which has `offset`, while they are there and `into` has room. Returns how many bytes, and whether some
/// were read ahead.
fn lay<'p>(pages: impl Iterator<Item = &'p Place>, offset: u64, into: &mut Sink<'_>, counts: bool) -> (usize, bool) {
    let (mut done, mut is_ahead) = (0, false);
    for place in pages {
        let Some(page) = place.page.as_ref().filter(|_| done < into.len()) else { break };
        let skip = ((offset + done as u64) % PAGE) as usize;
        let length = (PAGE_BYTES - skip).min(into.len() - done);
        into.copy_from(done, &page.bytes[skip..skip + length]);
        is_ahead |= place.used.found(counts);
        done += length;
    }
    (done, is_ahead)
}

/// Pages that a write has taken out ([FP2]), indexed from the first page that it touches.
#[derive(Default)]
pub(crate) struct Taken {
    from: Option<Arc<Places>>,
    first: u64,
    pages: SmallVec<[Option<FilePage>; 1]>,
}

impl Drop for Taken {
    /// A write that was refused has changed nothing (RULES R29), and the caller of it has the range still.
    fn drop(&mut self) {
        let Some(places) = self.from.take().filter(|_| patience() == Patience::Refused) else { return };
        let mut places = places.write();
        for (number, page) in (self.first..).zip(&mut self.pages) {
            if let Some(place) = places.get_mut(&number).filter(|place| place.page.is_none()) {
                place.page = page.take();
            }
        }
    }
}

impl Taken {
    /// The bytes of a page.
    pub(crate) fn page(&self, page: u64) -> Option<&PageBytes> {
        self.pages.get(page.checked_sub(self.first)? as usize)?.as_ref().map(|page| &*page.bytes)
    }

    /// Whether there is any.
    pub(crate) fn has_any(&self) -> bool {
        self.pages.iter().any(Option::is_some)
    }
}

/// All pages of a mount.
pub(crate) struct FilePages {
    /// In the order of the clock.
    queue: Mutex<VecDeque<(Weak<Places>, u64)>>,
    /// Bytes of pages, and of their entries.
    pages_bytes: Arc<AtomicU64>,
    places_bytes: AtomicU64,
    bytes_max: Limit,
    /// The part of it that metadata leaves ([FP6]).
    allowed_bytes: AtomicU64,
}

impl FilePages {
    /// No pages; they may take `bytes_max`.
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self {
            queue: Mutex::default(),
            pages_bytes: Arc::default(),
            places_bytes: AtomicU64::new(0),
            bytes_max: Limit::new(bytes_max),
            allowed_bytes: AtomicU64::new(bytes_max),
        }
    }

    /// How much of its most memory pages always have.
    pub(crate) fn least_bytes(bytes_max: u64) -> u64 {
        bytes_max / LEAST_PART
    }

    /// Host memory used, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.pages_bytes.load(Relaxed) + self.places_bytes.load(Relaxed)
    }

    /// What they may take. Metadata that is loaded while the limit falls may have computed what it leaves from the limit before, so that counts too.
    fn bound(&self) -> u64 {
        self.allowed_bytes.load(Relaxed).min(self.bytes_max.load(Relaxed))
    }

    /// Longest read of which all pages are kept, in bytes ([FP6]).
    pub(crate) fn read_bytes_max(&self) -> u64 {
        READ_BYTES_MAX.min(self.bound() / READ_PART)
    }

    /// Whether pages of a write of this length are kept, even if they were not here.
    pub(crate) fn keeps_written(&self, bytes: usize) -> bool {
        bytes <= WRITE_BYTES_MAX
    }

    /// Sets the bytes that metadata leaves ([FP6]).
    pub(crate) fn allow(&self, bytes: u64, work: &LiveWork) {
        let bytes_max = self.bytes_max.load(Relaxed);
        let bytes = bytes.clamp(Self::least_bytes(bytes_max), bytes_max);
        if self.allowed_bytes.swap(bytes, Relaxed) > bytes {
            self.shrink(EVICTED_BESIDES, work);
        }
    }

    /// They may take `bytes_max` from now on, of which metadata leaves `bytes`. Evicts what is more; others find the queue locked for
    /// [`EVICTED_AT_ONCE`] pages at most.
    pub(crate) fn resize(&self, bytes_max: u64, bytes: u64, work: &LiveWork) {
        self.bytes_max.store(bytes_max, Relaxed);
        self.allow(bytes, work);
        while self.shrink(EVICTED_AT_ONCE, work) == EVICTED_AT_ONCE {}
        let mut queue = self.queue.lock();
        queue.shrink_to_fit();
    }

    /// After a read: keeps the pages that it read whole, or up to the end of the file. The caller has locked their blocks ([FP1]).
    pub(crate) fn keep_read(&self, file: &PagesOfFile, file_size: u64, offset: u64, bytes: &[u8], work: &LiveWork) {
        self.keep(file, file_size, (offset, bytes), Taken::default(), Some(Use::COLD), work);
    }

    /// As `keep_read`, for bytes that nobody has asked for yet.
    pub(crate) fn keep_ahead(&self, file: &PagesOfFile, file_size: u64, offset: u64, bytes: &[u8], work: &LiveWork) {
        self.keep(file, file_size, (offset, bytes), Taken::default(), Some(Use::AHEAD), work);
    }

    /// Before a write: takes out the pages that overlap bytes `start..end`. The caller has locked their blocks exclusively ([FP2]).
    pub(crate) fn take(&self, file: &PagesOfFile, start: u64, end: u64) -> Taken {
        // Pages of these blocks were inserted under the lock that the caller holds now, so the counter includes them.
        if self.pages_bytes.load(Relaxed) == 0 || on(Mutant::PageOutlivesWrite) {
            return Taken::default();
        }
        let Some(places) = file.0.get() else { return Taken::default() };
        let (mut map, first) = (places.write(), start / PAGE);
        let mut take = |page| map.get_mut(&page).and_then(|place| place.page.take());
        let pages: SmallVec<[Option<FilePage>; 1]> = (first..end.div_ceil(PAGE)).map(&mut take).collect();
        Taken { from: pages.iter().any(Option::is_some).then(|| places.clone()), first, pages }
    }

    /// After a write: puts the taken pages back, updated; with `all`, also keeps other pages that it wrote whole. The caller still has
    /// their blocks locked ([FP1]).
    pub(crate) fn put_back(&self, file: &PagesOfFile, file_size: u64, written: (u64, &[u8]), taken: Taken, all: bool, work: &LiveWork) {
        let new = (all && self.keeps_written(written.1.len())).then_some(Use::COLD);
        self.keep(file, file_size, written, taken, new, work);
    }

    /// Inserts pages with these bytes: those that were taken, and with `new` also whole pages that are not here, so used.
    fn keep(&self, file: &PagesOfFile, file_size: u64, (offset, bytes): (u64, &[u8]), mut taken: Taken, new: Option<u32>, work: &LiveWork) {
        let new = new.filter(|_| self.bound() >= PAGE + PLACE_BYTES);
        if bytes.is_empty() || (new.is_none() && !taken.has_any()) {
            return;
        }
        let end = offset + bytes.len() as u64;
        // Made before the table is locked: others are reading there.
        let mut pages: SmallVec<[(u64, FilePage, u32); 4]> = SmallVec::new();
        for page in offset / PAGE..end.div_ceil(PAGE) {
            let (from, to) = ((page * PAGE).max(offset), ((page + 1) * PAGE).min(end));
            let source = &bytes[(from - offset) as usize..(to - offset) as usize];
            let old = page.checked_sub(taken.first).and_then(|index| taken.pages.get_mut(index as usize)?.take());
            if let Some(mut old) = old {
                old.bytes[(from % PAGE) as usize..][..source.len()].copy_from_slice(source);
                pages.push((page, old, Use::HOT));
            } else if let Some(used) = new.filter(|_| from == page * PAGE && (to == (page + 1) * PAGE || end >= file_size)) {
                pages.push((page, self.page_of(source), used));
            }
        }
        let mut added: SmallVec<[u64; 32]> = SmallVec::new();
        let mut kept = 0;
        let places = file.0.get_or_init(Arc::default);
        let mut map = places.write();
        let mut spare: SmallVec<[FilePage; 4]> = SmallVec::new(); // freed behind the lock
        for (number, page, used) in pages {
            let place = map.entry(number).or_insert_with(|| {
                added.push(number);
                Place { page: None, used: Use(AtomicU32::new(used)) }
            });
            match place.page {
                Some(_) => spare.push(page), // an earlier reader inserted the same bytes
                None => {
                    (place.page, place.used) = (Some(page), Use(AtomicU32::new(used)));
                    kept += 1;
                }
            }
        }
        drop(map);
        drop(spare);
        add(&work.pages_kept, kept);
        if !added.is_empty() {
            self.places_bytes.fetch_add(added.len() as u64 * PLACE_BYTES, Relaxed);
            let weak = Arc::downgrade(places);
            self.queue.lock().extend(added.iter().map(|page| (weak.clone(), *page)));
        }
        self.shrink(2 * added.len() + EVICTED_BESIDES, work);
    }

    /// A page that begins with these bytes, and zeros behind them.
    fn page_of(&self, start: &[u8]) -> FilePage {
        let mut bytes = Vec::with_capacity(PAGE_BYTES);
        bytes.extend_from_slice(start);
        bytes.resize(PAGE_BYTES, 0);
        let Ok(bytes) = Box::<PageBytes>::try_from(bytes.into_boxed_slice()) else { unreachable!("it was made of this length") };
        self.pages_bytes.fetch_add(PAGE, Relaxed);
        FilePage { bytes, all: self.pages_bytes.clone() }
    }

    /// Evicts pages until the rest is within the bound, or until so many entries are gone. Returns how many are.
    fn shrink(&self, at_most: usize, work: &LiveWork) -> usize {
        if self.memory_bytes() <= self.bound() {
            return 0;
        }
        let (mut evicted, mut gone) = (0, 0);
        let mut queue = self.queue.lock();
        let mut steps = 2 * queue.len();
        while self.memory_bytes() > self.bound() && steps > 0 && gone < at_most {
            steps -= 1;
            let Some((file, page)) = queue.pop_front() else { break };
            if let Some(places) = file.upgrade() {
                let mut map = places.write();
                let is_hot = |place: &mut Place| place.page.is_some() && std::mem::take(place.used.0.get_mut()) == Use::HOT;
                if map.get_mut(&page).is_some_and(is_hot) {
                    queue.push_back((file, page));
                    continue;
                }
                evicted += u64::from(map.remove(&page).is_some_and(|place| place.page.is_some()));
                if map.is_empty() {
                    *map = NearMap::default(); // frees its host memory
                }
            }
            self.places_bytes.fetch_sub(PLACE_BYTES, Relaxed);
            gone += 1;
        }
        drop(queue);
        add(&work.pages_evicted, evicted);
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 30;

    fn work() -> LiveWork {
        LiveWork::default()
    }

    /// The first byte of a page, as a reader without a cache of his own finds it.
    fn found(file: &PagesOfFile, page: u64) -> Option<u8> {
        let mut bytes = [0; PAGE_BYTES];
        file.copy(page * PAGE, &mut Sink::Private(&mut bytes), true, || {}).map(|_| bytes[0])
    }

    #[test]
    fn pages_are_bounded_and_what_is_read_again_stays() {
        let (pages, work) = (FilePages::new(16 * (PAGE + PLACE_BYTES)), work());
        let (hot, cold) = (PagesOfFile::default(), PagesOfFile::default());
        pages.keep_read(&hot, PAGE, 0, &[1; PAGE_BYTES], &work);
        for page in 0..100 {
            pages.keep_read(&cold, SIZE, page * PAGE, &[2; PAGE_BYTES], &work);
            assert_eq!(found(&hot, 0), Some(1), "behind {page} others");
            assert!(pages.memory_bytes() <= 16 * (PAGE + PLACE_BYTES));
        }
        assert_eq!((found(&cold, 99), found(&cold, 0)), (Some(2), None));
        assert_eq!((work.pages_kept.value(), work.pages_evicted.value()), (101, 101 - 16));
        pages.keep_read(&cold, SIZE, 0, &[2; PAGE_BYTES], &work);
        drop((hot, cold)); // files leaving memory drop their pages; entries go when the hand reaches them
        assert_eq!(pages.pages_bytes.load(Relaxed), 0);
        pages.keep_read(&PagesOfFile::default(), SIZE, 0, &[1; PAGE_BYTES], &work);
        pages.allow(0, &work);
        assert!(pages.memory_bytes() <= FilePages::least_bytes(pages.bytes_max.load(Relaxed)));
    }

    /// The bound falls far at once: all of it goes now, in steps. Whoever keeps a page meanwhile evicts a few, not all.
    #[test]
    fn a_lower_bound_evicts_what_is_more() {
        let most = 4 * EVICTED_AT_ONCE as u64 * (PAGE + PLACE_BYTES);
        let (pages, work) = (FilePages::new(most), work());
        let file = PagesOfFile::default();
        for page in 0..3 * EVICTED_AT_ONCE as u64 {
            pages.keep_read(&file, SIZE, page * PAGE, &[1; PAGE_BYTES], &work);
            assert_eq!(found(&file, page), Some(1), "and it is hot now");
        }
        let before = pages.memory_bytes();
        pages.allow(most / 8, &work);
        pages.keep_read(&file, SIZE, SIZE / 2, &[1; PAGE_BYTES], &work);
        assert!(pages.memory_bytes() > before / 2, "others evict some");
        pages.resize(most / 4, most / 4, &work);
        assert!((most / 5..=most / 4).contains(&pages.memory_bytes()), "{} of {most}", pages.memory_bytes());
        pages.resize(most / 64, 0, &work);
        assert!(pages.memory_bytes() <= FilePages::least_bytes(most / 64));
        pages.resize(most, most, &work);
        for page in 0..1000 {
            pages.keep_read(&file, SIZE, page * PAGE, &[1; PAGE_BYTES], &work);
        }
        assert_eq!((0..1000).filter_map(|page| found(&file, page)).count(), 1000, "and a higher one keeps more");
    }

    /// [FP6]: a scan takes the place of what was read once, and of nothing else.
    #[test]
    fn whoever_reads_much_once_evicts_what_is_not_read_again() {
        let (pages, work) = (FilePages::new(64 * (PAGE + PLACE_BYTES)), work());
        let (once, again, scanned) = (PagesOfFile::default(), PagesOfFile::default(), PagesOfFile::default());
        for page in 0..16 {
            pages.keep_read(&once, SIZE, page * PAGE, &[1; PAGE_BYTES], &work);
            pages.keep_read(&again, SIZE, page * PAGE, &[2; PAGE_BYTES], &work);
            assert_eq!(found(&again, page), Some(2));
        }
        for page in 0..80 {
            pages.keep_ahead(&scanned, SIZE, page * PAGE, &[3; PAGE_BYTES], &work);
            assert_eq!(found(&scanned, page), Some(3), "what was read ahead is read once");
        }
        assert_eq!((0..16).filter_map(|page| found(&again, page)).count(), 16);
        assert_eq!((0..16).filter_map(|page| found(&once, page)).count(), 0);
    }

    #[test]
    fn what_was_read_ahead_says_so_once() {
        let (pages, work) = (FilePages::new(64 << 20), work());
        let file = PagesOfFile::default();
        pages.keep_ahead(&file, SIZE, 0, &[3; 2 * PAGE_BYTES], &work);
        let is_ahead = |offset| file.copy(offset, &mut Sink::Private(&mut [0; 100]), true, || {});
        let ahead = [0, 100, PAGE, PAGE + 100, 2 * PAGE - 50].map(|offset| is_ahead(offset).map(|found| found.is_ahead));
        assert_eq!(ahead, [Some(true), Some(false), Some(true), Some(false), None]);
    }

    #[test]
    fn a_look_up_has_all_pages_or_notes_nothing() {
        let (pages, work) = (FilePages::new(64 << 20), work());
        let file = PagesOfFile::default();
        pages.keep_read(&file, SIZE, 0, &[1; 2 * PAGE_BYTES], &work);
        pages.keep_read(&file, SIZE, 3 * PAGE, &[3; PAGE_BYTES], &work);
        let mut bytes = [9; 2 * PAGE_BYTES];
        assert!(file.copy(PAGE, &mut Sink::Private(&mut bytes), true, || panic!("a page is missing")).is_none());
        assert_eq!(bytes, [9; 2 * PAGE_BYTES], "and copies nothing");
        assert_eq!(file.copy_start(PAGE + 96, &mut Sink::Private(&mut bytes), true).0, PAGE_BYTES - 96);
        let mut noted = 0;
        assert!(file.copy(PAGE - 10, &mut Sink::Private(&mut bytes[..20]), true, || noted += 1).is_some());
        assert_eq!((noted, &bytes[..20]), (1, &[1; 20][..]));
    }

    #[test]
    fn only_whole_pages_and_ends_of_files_are_kept() {
        let (pages, work) = (FilePages::new(64 << 20), work());
        let file = PagesOfFile::default();
        let size = 3 * PAGE + 10;
        pages.keep_read(&file, size, 100, &[1; 2 * PAGE_BYTES], &work); // one whole page
        pages.keep_read(&file, size, 3 * PAGE, &[2; 10], &work); // the end
        pages.keep_read(&file, size, 2 * PAGE, &[3; 100], &work); // neither
        let taken = pages.take(&file, 0, size);
        assert!(taken.page(0).is_none() && taken.page(2).is_none());
        assert_eq!(taken.page(1).map(|page| page[0]), Some(1));
        assert_eq!(taken.page(3).map(|page| (page[9], page[10])), Some((2, 0)));
        // A write over part of a page updates it; what was not here does not come.
        pages.put_back(&file, size, (PAGE + 50, &[9; 10]), taken, false, &work);
        let taken = pages.take(&file, 0, size);
        assert_eq!(taken.page(1).map(|page| (page[49], page[50], page[59], page[60])), Some((1, 9, 9, 1)));
        assert!(taken.page(3).is_none(), "what the write did not touch was not to be taken");
    }

    #[test]
    fn forgetting_drops_what_is_touched() {
        let (pages, work) = (FilePages::new(64 << 20), work());
        for (start, end, left) in
            [(PAGE, PAGE + 1, [true, false, true]), (0, u64::MAX, [false; 3]), (PAGE - 1, PAGE + 1, [false, false, true])]
        {
            let file = PagesOfFile::default();
            pages.keep_read(&file, 3 * PAGE, 0, &[1; 3 * PAGE_BYTES], &work);
            file.forget(start, end);
            let taken = pages.take(&file, 0, 3 * PAGE);
            assert_eq!([0, 1, 2].map(|page| taken.page(page).is_some()), left, "{start}..{end}");
        }
    }
}
