//! The daemon's knowledge of the kernel's page cache. With it, direct WRITEs and writeback of the same pages stay consistent.
//!
//! Before a direct WRITE the kernel writes back and drops the pages of its range. After an asynchronous direct WRITE it does nothing more.
//! In between a reader or a mapping may bring a page with the old bytes into the cache. Readers would then see the old bytes after the
//! write was acknowledged, and the writeback of a store elsewhere in that page would overwrite the new bytes on the drive.
//!
//! [PC1] A READ that fills cached pages and a WRITE from or through them record a note of each page *before* they read or change the file.
//!       A direct WRITE takes the notes of its pages *after* it changed the file. So it finds a note of every request that may have read
//!       old bytes.
//! [PC2] A direct WRITE that finds a note is acknowledged after the kernel has dropped those pages once more. The same holds if another
//!       direct WRITE to the same page is waiting for its drop.
//! [PC3] A direct WRITE registers its range before it changes the file and keeps it registered until it is acknowledged. Writeback of a
//!       page skips registered bytes. A direct WRITE first waits for writeback of its pages that is in progress.
//! [PC4] A change of a range that brings no bytes of its own may fail or end early. Writeback that begins meanwhile waits until it has ended, and skips what
//!       it has replaced alone: mappings may have stored there since the kernel wrote the range back.
//!
//! Notes expire. The kernel drops a page, then queues the WRITE, so only reads while the WRITE was queued matter. Notes last much longer
//! than a request waits in that queue. If a bucket of the table is full, one of its notes is changed to match any page: this may cause
//! unnecessary drops, but none is missed.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tandemfs_format::InodeNumber;
use tandemfs_fs::announce_wait;

use crate::mutant::{self, Mutant};

/// A page of the kernel's cache.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// How long a note of a page that was read lasts.
pub(crate) const READ_HOLDS: Duration = Duration::from_secs(10);
/// How long a note of a page that was written lasts. Shorter, since the kernel writes pages back just before nearly every direct WRITE of
/// them.
pub(crate) const WRITE_HOLDS: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(10);
/// Notes per bucket. If a gigabyte is read within the lifetime of notes, nearly all buckets have room.
const PLACES: usize = 4;
const BUCKETS: usize = 1 << 17;
const SHARDS: usize = 64;
/// Tag of a note that matches any page of its bucket.
const SEVERAL: u32 = u32::MAX;

/// The start of the page that contains this offset.
pub(crate) fn page_of(offset: u64) -> u64 {
    offset / PAGE_BYTES * PAGE_BYTES
}

/// Notes of pages, and writes in progress.
#[derive(Debug)]
pub(crate) struct PageCache {
    /// The tag of a page and the tick at which its note expires; 0 if empty.
    notes: Box<[[AtomicU64; PLACES]]>,
    started: Instant,
    shards: Box<[Shard]>,
}

#[derive(Debug, Default)]
struct Shard {
    writes: Mutex<Writes>,
    /// Writeback, or a change that it waits for, has ended.
    changed: Condvar,
}

/// Writes in progress to the inodes of a shard.
#[derive(Debug, Default)]
struct Writes {
    next: u64,
    direct: Vec<Write>,
    back: Vec<Write>,
}

#[derive(Debug, Clone)]
struct Write {
    id: u64,
    inode: InodeNumber,
    bytes: Range<u64>,
    /// A direct write that waits for the kernel to drop its pages ([PC2]).
    drops: bool,
    /// A WRITE of the kernel, not a change beside it.
    is_of_kernel: bool,
    /// A change whose end writeback waits for ([PC4]).
    is_awaited: bool,
    /// Of writeback that waits: what such changes have replaced.
    replaced: Vec<Range<u64>>,
}

impl Write {
    fn shares_page(&self, other: &Self) -> bool {
        let pages = |write: &Self| write.bytes.start / PAGE_BYTES..write.bytes.end.div_ceil(PAGE_BYTES);
        let (ours, theirs) = (pages(self), pages(other));
        self.inode == other.inode && ours.start < theirs.end && theirs.start < ours.end
    }
}

impl Default for PageCache {
    fn default() -> Self {
        Self {
            notes: (0..BUCKETS).map(|_| Default::default()).collect(),
            started: Instant::now(),
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
        }
    }
}

impl PageCache {
    /// Records notes of pages ([PC1]). To be called before the file is read or changed.
    pub(crate) fn note(&self, inode: InodeNumber, bytes: Range<u64>, holds: Duration) {
        let now = self.tick();
        let until = now.wrapping_add((holds.as_millis() / TICK.as_millis()) as u32 + 1);
        for page in bytes.start / PAGE_BYTES..bytes.end.div_ceil(PAGE_BYTES) {
            let (bucket, tag) = self.bucket(inode, page);
            while !put(bucket, tag, now, until) {}
        }
        fence(SeqCst);
    }

    /// As [`PageCache::begin_direct`]; none, and nothing begun, if writeback would have to be waited for.
    pub(crate) fn try_begin_direct(self: &Arc<Self>, inode: InodeNumber, bytes: Range<u64>) -> Option<DirectWrite> {
        let mut writes = self.shard(inode).lock();
        let write = writes.new_write(inode, bytes);
        if writes.back.iter().any(|back| back.shares_page(&write)) {
            return None;
        }
        writes.direct.push(write.clone());
        drop(writes);
        Some(self.registered(write))
    }

    /// Begins a change that counts as a direct WRITE ([PC3]).
    pub(crate) fn begin_direct(self: &Arc<Self>, inode: InodeNumber, bytes: Range<u64>) -> DirectWrite {
        self.begin(inode, bytes, |_| {})
    }

    /// The same, of a change that may fail or end early ([PC4]). Until [`DirectWrite::has_replaced`] says otherwise it has replaced nothing.
    pub(crate) fn begin_change(self: &Arc<Self>, inode: InodeNumber, bytes: Range<u64>) -> DirectWrite {
        self.begin(inode, bytes, |write| write.is_awaited = !mutant::on(Mutant::ChangesUnawaited))
    }

    /// Begins a direct WRITE of the kernel, which may be a piece of a longer call ([`DirectWrite::follows_from`]).
    pub(crate) fn begin_piece(self: &Arc<Self>, inode: InodeNumber, bytes: Range<u64>) -> DirectWrite {
        self.begin(inode, bytes, |write| write.is_of_kernel = true)
    }

    fn begin(self: &Arc<Self>, inode: InodeNumber, bytes: Range<u64>, set: impl FnOnce(&mut Write)) -> DirectWrite {
        let shard = self.shard(inode);
        let mut writes = shard.lock();
        let mut write = writes.new_write(inode, bytes);
        set(&mut write);
        writes.direct.push(write.clone());
        // Later writeback skips these bytes; earlier writeback is waited for.
        while writes.back.iter().any(|back| back.id < write.id && back.shares_page(&write)) {
            announce_wait();
            writes = shard.changed.wait(writes).unwrap_or_else(PoisonError::into_inner);
        }
        drop(writes);
        self.registered(write)
    }

    fn registered(self: &Arc<Self>, write: Write) -> DirectWrite {
        DirectWrite { cache: Arc::clone(self), write, replaced: 0..0 }
    }

    /// Begins writeback of bytes ([PC3]), behind changes that may fail ([PC4]).
    pub(crate) fn begin_writing_back(self: &Arc<Self>, inode: InodeNumber, bytes: Range<u64>) -> WritingBack {
        let shard = self.shard(inode);
        let mut writes = shard.lock();
        let write = writes.new_write(inode, bytes.clone());
        let mut parts = vec![bytes];
        let mut leave_out = |bytes: &Range<u64>| parts = parts.drain(..).flat_map(|part| without(part, bytes)).collect();
        writes.direct.iter().filter(|direct| !direct.is_awaited && direct.shares_page(&write)).for_each(|direct| leave_out(&direct.bytes));
        writes.back.push(write.clone());
        while writes.direct.iter().any(|direct| direct.is_awaited && direct.id < write.id && direct.shares_page(&write)) {
            announce_wait();
            writes = shard.changed.wait(writes).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(own) = writes.back.iter_mut().find(|own| own.id == write.id) {
            own.replaced.drain(..).for_each(|replaced| leave_out(&replaced));
        }
        drop(writes);
        WritingBack { cache: Arc::clone(self), write, parts }
    }

    /// Removes the notes of pages; returns whether there were any. To be called after the file was changed.
    fn take_notes(&self, inode: InodeNumber, bytes: &Range<u64>) -> bool {
        fence(SeqCst);
        let now = self.tick();
        let mut found = false;
        for page in bytes.start / PAGE_BYTES..bytes.end.div_ceil(PAGE_BYTES) {
            let (bucket, tag) = self.bucket(inode, page);
            for place in bucket {
                let note = place.load(Relaxed);
                if !holds_at(note, now) || (tag_of(note) != tag && tag_of(note) != SEVERAL) {
                    continue;
                }
                found = true;
                if tag_of(note) == tag {
                    // A note that was changed concurrently stays; it costs one more drop.
                    let _ = place.compare_exchange(note, 0, Relaxed, Relaxed);
                }
            }
        }
        found
    }

    fn bucket(&self, inode: InodeNumber, page: u64) -> (&[AtomicU64; PLACES], u32) {
        let mut hash = inode.get().wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ page.wrapping_mul(0xC2B2_AE3D_27D4_EB4F);
        hash = (hash ^ hash >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        hash ^= hash >> 32;
        (&self.notes[hash as usize % BUCKETS], ((hash >> 33) as u32).max(1))
    }

    fn tick(&self) -> u32 {
        (self.started.elapsed().as_millis() / TICK.as_millis()) as u32
    }

    fn shard(&self, inode: InodeNumber) -> &Shard {
        &self.shards[inode.get() as usize % SHARDS]
    }
}

impl Shard {
    fn lock(&self) -> MutexGuard<'_, Writes> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writes {
    fn new_write(&mut self, inode: InodeNumber, bytes: Range<u64>) -> Write {
        self.next += 1;
        Write { id: self.next, inode, bytes, drops: false, is_of_kernel: false, is_awaited: false, replaced: Vec::new() }
    }
}

/// A direct WRITE in progress. It ends when it is dropped, before the acknowledgement.
#[derive(Debug)]
pub(crate) struct DirectWrite {
    cache: Arc<PageCache>,
    write: Write,
    /// Of a change that may fail ([PC4]).
    replaced: Range<u64>,
}

impl DirectWrite {
    /// Whether bytes are among those that are registered.
    pub(crate) fn covers(&self, bytes: &Range<u64>) -> bool {
        self.write.bytes.start <= bytes.start && bytes.end <= self.write.bytes.end
    }

    /// Whether this direct WRITE and others of the kernel in progress cover the file without gaps from `start` up to this one. If so, they are pieces of
    /// one system call. Changes of clients are none.
    pub(crate) fn follows_from(&self, start: u64) -> bool {
        let writes = self.cache.shard(self.write.inode).lock();
        let mut reached = start;
        while reached < self.write.bytes.start {
            let is_piece =
                |write: &Write| write.inode == self.write.inode && (write.is_of_kernel || mutant::on(Mutant::ClientsWritePieces));
            let reaches = |write: &&Write| is_piece(write) && write.bytes.start <= reached && write.bytes.end > reached;
            match writes.direct.iter().filter(reaches).map(|write| write.bytes.end).max() {
                Some(end) => reached = end,
                None => return false,
            }
        }
        true
    }

    /// Whether the kernel must drop the pages before the acknowledgement ([PC2]). To be called after the file was changed.
    pub(crate) fn must_drop(&self) -> bool {
        let mut writes = self.cache.shard(self.write.inode).lock();
        let noted = self.cache.take_notes(self.write.inode, &self.write.bytes);
        let drops = noted || writes.direct.iter().any(|other| other.drops && other.shares_page(&self.write));
        if let Some(own) = writes.direct.iter_mut().find(|own| own.id == self.write.id) {
            own.drops = drops;
        }
        drops
    }
}

impl DirectWrite {
    /// What a change that may fail has replaced ([PC4]).
    pub(crate) fn has_replaced(&mut self, bytes: Range<u64>) {
        self.replaced = bytes;
    }
}

impl Drop for DirectWrite {
    fn drop(&mut self) {
        let shard = self.cache.shard(self.write.inode);
        let mut writes = shard.lock();
        writes.direct.retain(|direct| direct.id != self.write.id);
        if self.write.is_awaited {
            let waiting = writes.back.iter_mut().filter(|back| back.id > self.write.id && back.shares_page(&self.write));
            waiting.for_each(|back| back.replaced.push(self.replaced.clone()));
            drop(writes);
            shard.changed.notify_all();
        }
    }
}

/// Writeback in progress.
#[derive(Debug)]
pub(crate) struct WritingBack {
    cache: Arc<PageCache>,
    write: Write,
    parts: Vec<Range<u64>>,
}

impl WritingBack {
    /// The parts of the range that are to be written, in order.
    pub(crate) fn parts(&self) -> &[Range<u64>] {
        &self.parts
    }
}

impl Drop for WritingBack {
    fn drop(&mut self) {
        let shard = self.cache.shard(self.write.inode);
        shard.lock().back.retain(|back| back.id != self.write.id);
        shard.changed.notify_all();
    }
}

/// Puts a note into a bucket: over a note of the same page, else into a free place, else as a note that matches any page. False if another
/// thread changed the place first.
fn put(bucket: &[AtomicU64; PLACES], tag: u32, now: u32, until: u32) -> bool {
    let notes = bucket.each_ref().map(|place| place.load(Relaxed));
    let same = notes.iter().position(|note| holds_at(*note, now) && tag_of(*note) == tag);
    let at = same.or_else(|| notes.iter().position(|note| !holds_at(*note, now)));
    let (at, new) = match at {
        Some(at) if same.is_some() => (at, note_of(tag, later(until_of(notes[at]), until))),
        Some(at) => (at, note_of(tag, until)),
        None => (0, note_of(SEVERAL, later(until_of(notes[0]), until))),
    };
    bucket[at].compare_exchange(notes[at], new, Relaxed, Relaxed).is_ok()
}

/// The parts of a range that are not in another range.
fn without(range: Range<u64>, other: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let before = range.start..range.end.min(other.start.max(range.start));
    let behind = range.start.max(other.end.min(range.end))..range.end;
    [before, behind].into_iter().filter(|part| !part.is_empty())
}

fn note_of(tag: u32, until: u32) -> u64 {
    u64::from(tag) << 32 | u64::from(until)
}

fn tag_of(note: u64) -> u32 {
    (note >> 32) as u32
}

fn until_of(note: u64) -> u32 {
    note as u32
}

/// Ticks wrap around after 497 days.
fn holds_at(note: u64, tick: u32) -> bool {
    note != 0 && (until_of(note).wrapping_sub(tick) as i32) > 0
}

fn later(one: u32, other: u32) -> u32 {
    if (one.wrapping_sub(other) as i32) > 0 { one } else { other }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeNumber = InodeNumber::new(7);
    const OTHER: InodeNumber = InodeNumber::new(8);

    fn cache() -> Arc<PageCache> {
        Arc::default()
    }

    #[test]
    fn a_direct_write_finds_the_note_of_its_page_once() {
        let cache = cache();
        cache.note(FILE, 4096..12288, READ_HOLDS);
        let write = |bytes| cache.begin_direct(FILE, bytes).must_drop();
        assert!(!write(0..4096) && !write(12288..16384));
        assert!(write(8191..8192), "a byte of a noted page");
        assert!(!write(4096..8192), "its note was taken");
        assert!(write(8192..8193));
        assert!(!cache.begin_direct(OTHER, 4096..12288).must_drop());
    }

    #[test]
    fn a_note_ends_by_itself() {
        let cache = cache();
        cache.note(FILE, 0..1, Duration::ZERO);
        let noted = Instant::now();
        while noted.elapsed() < 3 * TICK {
            std::thread::yield_now();
        }
        assert!(!cache.begin_direct(FILE, 0..1).must_drop());
    }

    #[test]
    fn a_bucket_without_room_keeps_the_notes_of_all_its_pages() {
        let cache = cache();
        let (first, _) = cache.bucket(FILE, 0);
        let first = std::ptr::from_ref(first);
        let sharing = (0..).filter(|page| std::ptr::eq(cache.bucket(FILE, *page).0, first)).take(PLACES + 2);
        let pages: Vec<Range<u64>> = sharing.map(|page| page * PAGE_BYTES..page * PAGE_BYTES + 1).collect();
        let (last, others) = pages.split_last().expect("several");
        for noted in &others[..PLACES] {
            cache.note(FILE, noted.clone(), READ_HOLDS);
        }
        assert!(!cache.begin_direct(FILE, last.clone()).must_drop(), "there is room for each note");
        cache.note(FILE, others[PLACES].clone(), READ_HOLDS);
        for page in &pages {
            assert!(cache.begin_direct(FILE, page.clone()).must_drop());
        }
    }

    #[test]
    fn a_second_write_waits_for_the_same_drop() {
        let cache = cache();
        cache.note(FILE, 0..1, READ_HOLDS);
        let first = cache.begin_direct(FILE, 0..100);
        let second = cache.begin_direct(FILE, 2000..2100);
        let elsewhere = cache.begin_direct(FILE, 4096..4097);
        assert!(first.must_drop() && second.must_drop() && !elsewhere.must_drop());
        drop((first, second));
        assert!(!cache.begin_direct(FILE, 2000..2100).must_drop());
    }

    #[test]
    fn pieces_of_one_call_follow_each_other() {
        let cache = cache();
        let begin = |bytes| cache.begin_piece(FILE, bytes);
        let (_first, third) = (begin(100..200), begin(300..400));
        assert!(!third.follows_from(100));
        let second = begin(200..300);
        assert!(third.follows_from(100) && second.follows_from(150) && !third.follows_from(50) && third.follows_from(300));
    }

    /// A client that cuts a file off has all behind the cut registered.
    #[test]
    fn changes_of_clients_are_no_pieces() {
        fn check() {
            let cache = cache();
            let (_cut, piece) = (cache.begin_direct(FILE, 0..1 << 40), cache.begin_piece(FILE, 5000..6000));
            assert!(!piece.follows_from(0));
        }
        crate::mutant::is_caught(Mutant::ClientsWritePieces, check);
    }

    #[test]
    fn pages_that_come_back_leave_out_the_bytes_of_direct_writes() {
        let cache = cache();
        let direct = cache.begin_direct(FILE, 100..200);
        let parts = |bytes| cache.begin_writing_back(FILE, bytes).parts().to_vec();
        assert_eq!(parts(0..4096), [0..100, 200..4096]);
        assert!(parts(100..200).is_empty());
        assert_eq!(parts(150..300).as_slice(), std::slice::from_ref(&(200..300)));
        let second = cache.begin_direct(FILE, 4000..5000);
        assert_eq!(parts(0..8192), [0..100, 200..4000, 5000..8192]);
        drop((direct, second));
        assert_eq!(parts(0..4096).as_slice(), std::slice::from_ref(&(0..4096)));
    }

    /// [PC4]
    #[test]
    fn pages_that_come_back_wait_for_a_change_and_keep_what_it_left() {
        fn parts_beside(replaced: Range<u64>) -> Vec<Range<u64>> {
            let cache = cache();
            let mut change = cache.begin_change(FILE, 0..100_000);
            let (begun, waits) = std::sync::mpsc::channel();
            std::thread::scope(|scope| {
                scope.spawn(|| begun.send(cache.begin_writing_back(FILE, 4096..12_288).parts().to_vec()).expect("somebody waits"));
                assert_eq!(cache.begin_writing_back(OTHER, 0..1).parts(), std::slice::from_ref(&(0..1)));
                let early = waits.recv_timeout(Duration::from_millis(50));
                change.has_replaced(replaced);
                drop(change);
                early.unwrap_or_else(|_| waits.recv_timeout(Duration::from_secs(60)).expect("it goes on"))
            })
        }
        fn check() {
            assert_eq!(parts_beside(0..0).as_slice(), std::slice::from_ref(&(4096..12_288)), "it failed");
            assert_eq!(parts_beside(0..8192).as_slice(), std::slice::from_ref(&(8192..12_288)), "it was short");
            assert_eq!(parts_beside(0..100_000), []);
        }
        check();
        crate::mutant::is_caught(Mutant::ChangesUnawaited, check);
    }

    #[test]
    fn a_direct_write_waits_for_a_page_that_is_being_written_back() {
        let cache = cache();
        let back = cache.begin_writing_back(FILE, 0..4096);
        let elsewhere = cache.begin_direct(FILE, 4096..8192); // does not wait
        let (begun, waits) = std::sync::mpsc::channel();
        let thread = {
            let cache = Arc::clone(&cache);
            std::thread::spawn(move || {
                let _write = cache.begin_direct(FILE, 0..10);
                begun.send(()).expect("somebody waits");
            })
        };
        assert!(waits.recv_timeout(Duration::from_millis(50)).is_err(), "it must wait");
        drop(back);
        waits.recv_timeout(Duration::from_secs(60)).expect("it goes on");
        thread.join().expect("no panic");
        drop(elsewhere);
    }

    #[test]
    fn a_direct_write_that_would_wait_for_writeback_is_not_begun() {
        let cache = Arc::new(PageCache::default());
        let back = cache.begin_writing_back(FILE, 0..4096);
        assert!(cache.try_begin_direct(FILE, 100..200).is_none());
        let other = cache.begin_writing_back(FILE, 0..4096);
        assert_eq!(other.parts(), std::slice::from_ref(&(0..4096)), "nothing is left out");
        drop((back, other));
        let write = cache.try_begin_direct(FILE, 100..200).expect("nobody writes back");
        assert_eq!(cache.begin_writing_back(FILE, 0..4096).parts(), [0..100, 200..4096]);
        drop(write);
        assert_eq!(cache.begin_writing_back(FILE, 0..4096).parts(), std::slice::from_ref(&(0..4096)));
    }
}
