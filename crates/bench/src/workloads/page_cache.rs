//! A substitute for the kernel's page cache in front of a mount in *relaxed* semantics, for runs on the library.
//!
//! [WP1] Writes dirty pages here; they are written back at fsync, when too many are dirty, or at eviction. Dirty pages of a removed file
//!       are dropped.
//! [WP2] Whole pages are written back, consecutive ones together. As behind a mount, the file system finds the lines that changed
//!       (`WriteOptions::compare`).
//! [WP3] Memory is bounded by clock eviction: pages not used since the clock hand last passed are evicted first.
//! [WP4] A kernel also writes back pages that have been dirty for 30 s; this cache does not.
//! [WP5] Locks are those of a kernel: the inode's for a write, and each page's while it is read from or written to the file system. The
//!       cache itself is never locked meanwhile, so workers wait for each other only where they would in a kernel. FUSE also holds the
//!       inode's lock for an fsync; this cache does not.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use tandemfs_device::sync::{Condvar, Mutex, MutexGuard};

use crate::failure::{Failure, Result};

/// Bytes of a page.
const PAGE: usize = 4096;
/// Longest write of consecutive pages: what a kernel sends in one request.
const WRITE_BYTES_MAX: usize = 1 << 20;
/// Most of the cache that may be dirty, in percent (`vm.dirty_ratio`).
const DIRTY_PERCENT: u64 = 20;

/// The file system below the cache.
pub trait Backing {
    /// Reads up to the end of the file; the rest of the buffer is unchanged.
    fn read(&self, file: u64, offset: u64, into: &mut [u8]) -> Result<usize>;
    /// Writes durably.
    fn write(&self, file: u64, offset: u64, from: &[u8]) -> Result<()>;
}

#[derive(Debug)]
struct Page {
    bytes: Box<[u8; PAGE]>,
    is_dirty: bool,
    is_used: bool,
    /// Being read or written back ([WP5]).
    is_locked: bool,
}

#[derive(Debug, Default)]
struct CachedFile {
    inode: Arc<Mutex<()>>,
    size: u64,
    /// File size as the file system knows it.
    size_below: u64,
    pages: BTreeMap<u64, Page>,
    dirty: u64,
}

#[derive(Debug, Default)]
struct Cached {
    files: HashMap<u64, CachedFile>,
    /// Pages in the order of the clock hand. Entries of pages that are gone are dropped when the hand reaches them.
    clock: VecDeque<(u64, u64)>,
    /// Files in the order in which they became dirty.
    dirty_files: VecDeque<u64>,
    pages: u64,
    dirty: u64,
}

/// Volatile pages of files.
#[derive(Debug)]
pub struct PageCache {
    cached: Mutex<Cached>,
    unlocked: Condvar,
    pages_max: u64,
}

impl Cached {
    fn page(&mut self, file: u64, number: u64) -> Option<&mut Page> {
        self.files.get_mut(&file)?.pages.get_mut(&number)
    }

    /// Pages of the file below the cache.
    fn pages_below(&self, file: u64) -> u64 {
        self.files.get(&file).map_or(0, |file| file.size_below.div_ceil(PAGE as u64))
    }

    fn insert(&mut self, file: u64, number: u64, is_locked: bool) -> &mut Page {
        self.clock.push_back((file, number));
        self.pages += 1;
        let page = Page { bytes: Box::new([0; PAGE]), is_dirty: false, is_used: true, is_locked };
        self.files.entry(file).or_default().pages.entry(number).or_insert(page)
    }

    fn set_dirty(&mut self, file: u64) {
        let Some(cached) = self.files.get_mut(&file) else { return };
        if cached.dirty == 0 {
            self.dirty_files.push_back(file);
        }
        (cached.dirty, self.dirty) = (cached.dirty + 1, self.dirty + 1);
    }
}

impl PageCache {
    /// With a limit in bytes.
    pub fn new(bytes_max: u64) -> Self {
        Self { cached: Mutex::default(), unlocked: Condvar::default(), pages_max: (bytes_max / PAGE as u64).max(64) }
    }

    /// Called when a file is opened: sets its size unless the file is cached.
    pub fn open(&self, file: u64, size: u64) {
        let new = || CachedFile { size, size_below: size, ..CachedFile::default() };
        self.cached.lock().files.entry(file).or_insert_with(new);
    }

    /// The size, including data not yet written back.
    pub fn size(&self, file: u64) -> Option<u64> {
        self.cached.lock().files.get(&file).map(|file| file.size)
    }

    /// Drops a removed file ([WP1]).
    pub fn forget(&self, file: u64) {
        let mut cached = self.cached.lock();
        while cached.files.get(&file).is_some_and(|file| file.pages.values().any(|page| page.is_locked)) {
            self.unlocked.wait(&mut cached);
        }
        if let Some(gone) = cached.files.remove(&file) {
            cached.pages -= gone.pages.len() as u64;
            cached.dirty -= gone.dirty;
        }
    }

    /// Reads up to the end of the file.
    pub fn read(&self, below: &dyn Backing, file: u64, offset: u64, into: &mut [u8]) -> Result<usize> {
        let size = self.size(file).unwrap_or_default();
        let length = size.saturating_sub(offset).min(into.len() as u64) as usize;
        let end = offset + length as u64;
        let last = end.div_ceil(PAGE as u64);
        let mut copy = |number: u64, bytes: &[u8]| {
            let (from, to) = within(number, offset, end);
            let start = (number * PAGE as u64 + from as u64 - offset) as usize;
            into[start..start + to - from].copy_from_slice(&bytes[from..to]);
        };
        let mut number = offset / PAGE as u64;
        while number < last {
            let mut cached = self.cached.lock();
            let below_end = cached.pages_below(file);
            match cached.page(file, number) {
                Some(page) if page.is_locked => {
                    self.unlocked.wait(&mut cached);
                    continue;
                }
                Some(page) => {
                    page.is_used = true;
                    copy(number, &page.bytes[..]);
                }
                None if number < below_end => {
                    for bytes in self.load(cached, below, file, number, last)?.chunks_exact(PAGE) {
                        copy(number, bytes);
                        number += 1;
                    }
                    continue;
                }
                None => {}
            }
            number += 1;
        }
        self.evict(below)?;
        Ok(length)
    }

    /// Loads the missing pages from `first` on, by one read. Returns their bytes.
    fn load(&self, mut cached: MutexGuard<'_, Cached>, below: &dyn Backing, file: u64, first: u64, last: u64) -> Result<Vec<u8>> {
        let end = last.min(cached.pages_below(file));
        let next = cached.files.get(&file).and_then(|file| file.pages.range(first..end).next().map(|(next, _)| *next));
        let end = next.unwrap_or(end);
        for number in first..end {
            cached.insert(file, number, true);
        }
        drop(cached);
        let mut bytes = vec![0; (end - first) as usize * PAGE];
        let result = below.read(file, first * PAGE as u64, &mut bytes);
        let mut cached = self.cached.lock();
        for (number, bytes) in (first..).zip(bytes.chunks_exact(PAGE)) {
            if let Some(page) = cached.page(file, number) {
                page.bytes.copy_from_slice(bytes);
                page.is_locked = false;
            }
        }
        drop(cached);
        self.unlocked.notify_all();
        result.map(|_| bytes)
    }

    /// Writes to pages, at the file's end if no offset is given.
    pub fn write(&self, below: &dyn Backing, file: u64, offset: Option<u64>, from: &[u8]) -> Result<()> {
        let inode = self.cached.lock().files.entry(file).or_default().inode.clone();
        let writing = inode.lock();
        let offset = offset.or_else(|| self.size(file)).ok_or_else(|| Failure::new("a file that is not open"))?;
        let end = offset + from.len() as u64;
        let mut number = offset / PAGE as u64;
        while number < end.div_ceil(PAGE as u64) {
            let (start, to) = within(number, offset, end);
            let mut cached = self.cached.lock();
            let below_end = cached.pages_below(file);
            let page = match cached.page(file, number) {
                Some(page) if page.is_locked => {
                    self.unlocked.wait(&mut cached);
                    continue;
                }
                // A page that is written in part must be loaded first.
                None if (start, to) != (0, PAGE) && number < below_end => {
                    self.load(cached, below, file, number, number + 1)?;
                    continue;
                }
                None => cached.insert(file, number, false),
                Some(page) => page,
            };
            let at = (number * PAGE as u64 + start as u64 - offset) as usize;
            page.bytes[start..to].copy_from_slice(&from[at..at + to - start]);
            page.is_used = true;
            if !std::mem::replace(&mut page.is_dirty, true) {
                cached.set_dirty(file);
            }
            if let Some(cached) = cached.files.get_mut(&file) {
                cached.size = cached.size.max(end.min((number + 1) * PAGE as u64));
            }
            number += 1;
        }
        drop(writing);
        loop {
            let oldest = {
                let mut cached = self.cached.lock();
                if cached.dirty * 100 <= self.pages_max * DIRTY_PERCENT {
                    break;
                }
                cached.dirty_files.pop_front()
            };
            let Some(oldest) = oldest else { break };
            self.write_back(below, oldest)?;
        }
        self.evict(below)
    }

    /// Writes a file's dirty pages back ([WP2]), in one pass: pages that become dirty behind it stay so.
    pub fn write_back(&self, below: &dyn Backing, file: u64) -> Result<()> {
        let mut next = 0;
        loop {
            let mut cached = self.cached.lock();
            let Some(of_file) = cached.files.get_mut(&file) else { return Ok(()) };
            let Some((&first, page)) = of_file.pages.range(next..).find(|(_, page)| page.is_dirty || page.is_locked) else {
                if of_file.dirty > 0 {
                    cached.dirty_files.push_back(file);
                }
                return Ok(());
            };
            if page.is_locked {
                self.unlocked.wait(&mut cached);
                continue;
            }
            let (mut bytes, mut number) = (Vec::new(), first);
            while let Some(page) = of_file.pages.get_mut(&number).filter(|page| page.is_dirty && !page.is_locked) {
                let length = (of_file.size - number * PAGE as u64).min(PAGE as u64) as usize;
                bytes.extend_from_slice(&page.bytes[..length]);
                (page.is_dirty, page.is_locked) = (false, true);
                number += 1;
                if bytes.len() >= WRITE_BYTES_MAX {
                    break;
                }
            }
            of_file.dirty -= number - first;
            cached.dirty -= number - first;
            drop(cached);
            next = number;

            let start = first * PAGE as u64;
            let result = below.write(file, start, &bytes);
            let mut cached = self.cached.lock();
            if let Some(of_file) = cached.files.get_mut(&file) {
                of_file.size_below = of_file.size_below.max(start + bytes.len() as u64);
                of_file.pages.range_mut(first..number).for_each(|(_, page)| page.is_locked = false);
            }
            drop(cached);
            self.unlocked.notify_all();
            result?;
        }
    }

    /// Writes back the file that became dirty first. Returns false if there is none.
    pub fn write_back_one(&self, below: &dyn Backing) -> Result<bool> {
        loop {
            let (file, is_dirty) = {
                let mut cached = self.cached.lock();
                let Some(file) = cached.dirty_files.pop_front() else { return Ok(false) };
                (file, cached.files.get(&file).is_some_and(|file| file.dirty > 0))
            };
            if is_dirty {
                self.write_back(below, file)?;
                return Ok(true);
            }
        }
    }

    /// Writes all files back.
    pub fn write_back_all(&self, below: &dyn Backing) -> Result<()> {
        while self.write_back_one(below)? {}
        Ok(())
    }

    /// Drops all clean pages; after [`Self::write_back_all`] these are all.
    pub fn drop_clean(&self) {
        let mut cached = self.cached.lock();
        cached.files.retain(|_, file| file.dirty > 0);
        cached.pages = cached.files.values().map(|file| file.pages.len() as u64).sum();
    }

    /// [WP3].
    fn evict(&self, below: &dyn Backing) -> Result<()> {
        let mut cached = self.cached.lock();
        let mut left = 2 * cached.clock.len(); // more are in use by others
        while cached.pages > self.pages_max && left > 0 {
            left -= 1;
            let Some((file, number)) = cached.clock.pop_front() else { break };
            let Some(page) = cached.page(file, number) else { continue };
            if page.is_locked || std::mem::take(&mut page.is_used) {
                cached.clock.push_back((file, number));
            } else if page.is_dirty {
                cached.clock.push_front((file, number));
                drop(cached);
                self.write_back(below, file)?;
                cached = self.cached.lock();
            } else if let Some(of_file) = cached.files.get_mut(&file) {
                of_file.pages.remove(&number);
                cached.pages -= 1;
            }
        }
        Ok(())
    }
}

/// The part of a page in a range of the file.
fn within(number: u64, offset: u64, end: u64) -> (usize, usize) {
    let start = number * PAGE as u64;
    ((offset.max(start) - start) as usize, (end.min(start + PAGE as u64) - start) as usize)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use tandemfs_device::VirtualTime;
    use tandemfs_device::sync::advanced;

    use super::*;
    use crate::workloads::random::Random;
    use crate::workloads::{Actor, together};

    /// Files in memory, and a record of the writes.
    #[derive(Default)]
    struct Below {
        files: Mutex<HashMap<u64, Vec<u8>>>,
        writes: Mutex<Vec<(u64, u64, usize)>>,
    }

    impl Backing for Below {
        fn read(&self, file: u64, offset: u64, into: &mut [u8]) -> Result<usize> {
            let files = self.files.lock();
            let bytes = files.get(&file).map_or(&[][..], |bytes| &bytes[(offset as usize).min(bytes.len())..]);
            let length = bytes.len().min(into.len());
            into[..length].copy_from_slice(&bytes[..length]);
            Ok(length)
        }

        fn write(&self, file: u64, offset: u64, from: &[u8]) -> Result<()> {
            let mut files = self.files.lock();
            let bytes = files.entry(file).or_default();
            bytes.resize(bytes.len().max(offset as usize + from.len()), 0);
            bytes[offset as usize..][..from.len()].copy_from_slice(from);
            self.writes.lock().push((file, offset, from.len()));
            Ok(())
        }
    }

    #[test]
    fn pages_that_follow_each_other_go_together() {
        let (below, cache) = (Below::default(), PageCache::new(1 << 20));
        cache.open(1, 0);
        cache.write(&below, 1, Some(0), &[1; 3 * PAGE + 100]).expect("written");
        assert_eq!((cache.size(1), below.writes.lock().len()), (Some(3 * PAGE as u64 + 100), 0));
        cache.write_back(&below, 1).expect("written back");
        assert_eq!(std::mem::take(&mut *below.writes.lock()), [(1, 0, 3 * PAGE + 100)]);
        cache.write_back(&below, 1).expect("nothing to do");

        cache.write(&below, 1, Some(60), &[2; 68]).expect("written");
        cache.write(&below, 1, Some(2 * PAGE as u64 + 64), &[2; 449]).expect("written");
        cache.write(&below, 1, Some(3 * PAGE as u64 + 100), &[2; 3]).expect("appended");
        cache.write_back(&below, 1).expect("written back");
        assert_eq!(std::mem::take(&mut *below.writes.lock()), [(1, 0, PAGE), (1, 2 * PAGE as u64, PAGE + 103)]);
    }

    #[test]
    fn removed_files_are_never_written() {
        let (below, cache) = (Below::default(), PageCache::new(1 << 20));
        cache.open(1, 0);
        cache.write(&below, 1, Some(0), &[1; 10 * PAGE]).expect("written");
        cache.forget(1);
        cache.write_back_all(&below).expect("nothing to do");
        let cached = cache.cached.lock();
        assert_eq!((below.writes.lock().len(), cached.pages, cached.dirty), (0, 0, 0));
    }

    /// A drive of virtual time on which each access takes 100 ns.
    #[derive(Default)]
    struct Slow(AtomicU64, Below);

    impl VirtualTime for Slow {
        fn now_ns(&self) -> u64 {
            self.0.load(SeqCst)
        }
        fn set_now_ns(&self, now: u64) {
            self.0.store(now, SeqCst);
        }
        fn latest_ns(&self) -> u64 {
            self.now_ns()
        }
    }

    impl Slow {
        fn pass(&self) {
            self.set_now_ns(self.now_ns() + 100);
            advanced(self.now_ns());
        }
    }

    impl Backing for Slow {
        fn read(&self, file: u64, offset: u64, into: &mut [u8]) -> Result<usize> {
            self.pass();
            self.1.read(file, offset, into)
        }
        fn write(&self, file: u64, offset: u64, from: &[u8]) -> Result<()> {
            self.pass();
            self.1.write(file, offset, from)
        }
    }

    /// [WP5]: workers wait for a page in flight, and for nothing else of the cache.
    #[test]
    fn a_page_in_flight_is_waited_for() {
        type Call<'a> = &'a dyn Fn(&mut [u8]) -> Result<()>;
        let (slow, cache) = (Slow::default(), PageCache::new(1 << 20));
        slow.1.write(1, 0, &[7; 3 * PAGE]).expect("laid out");
        cache.open(1, 3 * PAGE as u64);
        let ends = |calls: &[Call<'_>]| {
            let (start, ends) = (slow.now_ns(), Mutex::new(vec![0; calls.len()]));
            let mut actors: Vec<Actor<'_>> = Vec::new();
            for (index, call) in calls.iter().enumerate() {
                let (slow, ends) = (&slow, &ends);
                actors.push(Box::new(move || {
                    call(&mut [0; 8])?;
                    ends.lock()[index] = slow.now_ns() - start;
                    Ok(false)
                }));
            }
            together(&slow, actors, || Ok(()), || {}).expect("run");
            ends.into_inner()
        };
        let read = |page: usize, into: &mut [u8]| cache.read(&slow, 1, (page * PAGE) as u64, into).map(drop);
        let write = |page: usize| cache.write(&slow, 1, Some((page * PAGE) as u64), &[9; 10]);
        assert_eq!(ends(&[&|into| read(0, into), &|into| read(0, into), &|_| write(0)]), [100; 3], "one read serves all");
        assert_eq!(ends(&[&|_| cache.write_back(&slow, 1), &|_| write(0), &|into| read(1, into)]), [100; 3]);
        assert_eq!(ends(&[&|into| read(1, into), &|_| write(0)]), [0; 2], "nothing is in flight");
        assert_eq!(ends(&[&|_| write(2), &|_| write(0), &|into| read(0, into)]), [100, 100, 0], "the inode is locked for a write");
        cache.write_back_all(&slow).expect("written back");
        assert!(slow.1.files.lock()[&1][..10] == [9; 10] && slow.1.files.lock()[&1][2 * PAGE..][..11] == [9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 7]);
    }

    /// Random requests are compared with plain files; the cache is always too small.
    #[test]
    fn reads_return_what_was_written() {
        let (below, cache) = (Below::default(), PageCache::new(64 * PAGE as u64));
        let mut random = Random::new(3, 0);
        let mut model: HashMap<u64, Vec<u8>> = HashMap::new();
        for round in 0..20_000_u64 {
            let file = random.below(5);
            let bytes = model.entry(file).or_default();
            cache.open(file, bytes.len() as u64);
            let offset = random.below(40 * PAGE as u64).min(bytes.len() as u64);
            let length_max = [80, 3 * PAGE as u64][random.below(2) as usize];
            let length = 1 + random.below(length_max) as usize;
            match random.below(8) {
                0..3 => {
                    let data: Vec<u8> = (0..length).map(|_| random.next() as u8 % 3).collect();
                    cache.write(&below, file, Some(offset), &data).expect("written");
                    bytes.resize(bytes.len().max(offset as usize + length), 0);
                    bytes[offset as usize..][..length].copy_from_slice(&data);
                }
                3..6 => {
                    let mut into = vec![0; length];
                    let read = cache.read(&below, file, offset, &mut into).expect("read");
                    let end = bytes.len().min(offset as usize + length);
                    assert_eq!(into[..read], bytes[offset as usize..end], "round {round}");
                }
                6 => {
                    cache.write_back(&below, file).expect("written back");
                    assert_eq!(below.files.lock().get(&file).map_or(0, Vec::len), bytes.len());
                    assert!(below.files.lock().get(&file).is_none_or(|below| below == bytes), "round {round}");
                }
                _ if round % 40 == 7 => {
                    cache.forget(file);
                    below.files.lock().remove(&file);
                    model.remove(&file);
                }
                _ => {
                    cache.write_back_all(&below).expect("written back");
                    cache.drop_clean();
                    let cached = cache.cached.lock();
                    assert_eq!((cached.pages, cached.dirty), (0, 0));
                }
            }
            let cached = cache.cached.lock();
            let counted: u64 = cached.files.values().map(|file| file.pages.len() as u64).sum();
            assert!(cached.pages == counted && cached.pages <= 64, "round {round}: {} and {counted}", cached.pages);
        }
    }
}
