//! A substitute for the kernel's page cache in front of a mount in *relaxed* semantics, for runs on the library.
//!
//! [WP1] Writes dirty pages here; they are written back at fsync, when too many are dirty, or at eviction. Dirty pages of a removed file
//!       are dropped.
//! [WP2] Whole pages are written back, consecutive ones together. As behind a mount, the file system finds the lines that changed
//!       (`WriteOptions::compare`).
//! [WP3] Memory is bounded by clock eviction: pages not used since the clock hand last passed are evicted first.
//! [WP4] A kernel also writes back pages that have been dirty for 30 s; this cache does not.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::failure::Result;

/// Bytes of a page.
const PAGE: usize = 4096;
/// Longest write of consecutive pages: what a kernel sends in one request.
const WRITE_BYTES_MAX: usize = 1 << 20;
/// Most of the cache that may be dirty, in percent (`vm.dirty_ratio`).
const DIRTY_PERCENT: u64 = 20;

type PageBytes = Box<[u8; PAGE]>;

/// The file system below the cache.
pub trait Backing {
    /// Reads up to the end of the file; the rest of the buffer is unchanged.
    fn read(&self, file: u64, offset: u64, into: &mut [u8]) -> Result<usize>;
    /// Writes durably.
    fn write(&self, file: u64, offset: u64, from: &[u8]) -> Result<()>;
}

#[derive(Debug)]
struct Page {
    bytes: PageBytes,
    is_dirty: bool,
    is_used: bool,
}

#[derive(Debug, Default)]
struct CachedFile {
    size: u64,
    /// File size as the file system knows it.
    size_below: u64,
    pages: BTreeMap<u64, Page>,
    dirty: u64,
}

/// Volatile pages of files.
#[derive(Debug)]
pub struct PageCache {
    files: HashMap<u64, CachedFile>,
    /// Pages in the order of the clock hand. Entries of pages that are gone are dropped when the hand reaches them.
    clock: VecDeque<(u64, u64)>,
    /// Files in the order in which they became dirty.
    dirty_files: VecDeque<u64>,
    pages: u64,
    dirty: u64,
    pages_max: u64,
}

impl PageCache {
    /// With a limit in bytes.
    pub fn new(bytes_max: u64) -> Self {
        Self {
            files: HashMap::new(),
            clock: VecDeque::new(),
            dirty_files: VecDeque::new(),
            pages: 0,
            dirty: 0,
            pages_max: (bytes_max / PAGE as u64).max(64),
        }
    }

    /// Called when a file is opened: sets its size unless the file is cached.
    pub fn open(&mut self, file: u64, size: u64) {
        self.files.entry(file).or_insert_with(|| CachedFile { size, size_below: size, ..CachedFile::default() });
    }

    /// The size, including data not yet written back.
    pub fn size(&self, file: u64) -> Option<u64> {
        self.files.get(&file).map(|file| file.size)
    }

    /// Drops a removed file ([WP1]).
    pub fn forget(&mut self, file: u64) {
        if let Some(gone) = self.files.remove(&file) {
            self.pages -= gone.pages.len() as u64;
            self.dirty -= gone.dirty;
        }
    }

    /// Reads up to the end of the file.
    pub fn read(&mut self, below: &dyn Backing, file: u64, offset: u64, into: &mut [u8]) -> Result<usize> {
        let size = self.size(file).unwrap_or_default();
        let length = size.saturating_sub(offset).min(into.len() as u64) as usize;
        if length == 0 {
            return Ok(0);
        }
        let end = offset + length as u64;
        self.fill(below, file, offset / PAGE as u64, end.div_ceil(PAGE as u64))?;
        let cached = self.files.entry(file).or_default();
        for number in offset / PAGE as u64..end.div_ceil(PAGE as u64) {
            let (from, to) = within(number, offset, end);
            let start = (number * PAGE as u64 + from as u64 - offset) as usize;
            let Some(page) = cached.pages.get_mut(&number) else { continue };
            page.is_used = true;
            into[start..start + to - from].copy_from_slice(&page.bytes[from..to]);
        }
        self.evict(below)?;
        Ok(length)
    }

    /// Loads missing pages, consecutive ones by one read.
    fn fill(&mut self, below: &dyn Backing, file: u64, first: u64, end: u64) -> Result<()> {
        let cached = self.files.entry(file).or_default();
        let end = end.min(cached.size_below.div_ceil(PAGE as u64));
        let mut number = first;
        while number < end {
            if cached.pages.contains_key(&number) {
                number += 1;
                continue;
            }
            let until = cached.pages.range(number..end).next().map_or(end, |(next, _)| *next);
            let mut bytes = vec![0; (until - number) as usize * PAGE];
            below.read(file, number * PAGE as u64, &mut bytes)?;
            for (number, bytes) in (number..).zip(bytes.chunks_exact(PAGE)) {
                let mut page = Box::new([0; PAGE]);
                page.copy_from_slice(bytes);
                cached.pages.insert(number, Page { bytes: page, is_dirty: false, is_used: true });
                self.clock.push_back((file, number));
                self.pages += 1;
            }
            number = until;
        }
        Ok(())
    }

    /// Writes to pages.
    pub fn write(&mut self, below: &dyn Backing, file: u64, offset: u64, from: &[u8]) -> Result<()> {
        let end = offset + from.len() as u64;
        let (first, last) = (offset / PAGE as u64, end.div_ceil(PAGE as u64));
        // A partly written page must be loaded first.
        for (number, is_partial) in
            [(first, !offset.is_multiple_of(PAGE as u64) || end < (first + 1) * PAGE as u64), (last - 1, !end.is_multiple_of(PAGE as u64))]
        {
            if is_partial {
                self.fill(below, file, number, number + 1)?;
            }
        }
        let cached = self.files.entry(file).or_default();
        for number in first..last {
            let page = cached.pages.entry(number).or_insert_with(|| {
                self.clock.push_back((file, number));
                self.pages += 1;
                // Fully written, or beyond the file's end below: otherwise `fill` has loaded the page.
                Page { bytes: Box::new([0; PAGE]), is_dirty: false, is_used: true }
            });
            if !page.is_dirty {
                page.is_dirty = true;
                if cached.dirty == 0 {
                    self.dirty_files.push_back(file);
                }
                (cached.dirty, self.dirty) = (cached.dirty + 1, self.dirty + 1);
            }
            let (start, to) = within(number, offset, end);
            let at = (number * PAGE as u64 + start as u64 - offset) as usize;
            page.bytes[start..to].copy_from_slice(&from[at..at + to - start]);
            page.is_used = true;
        }
        cached.size = cached.size.max(end);
        while self.dirty * 100 > self.pages_max * DIRTY_PERCENT {
            let Some(oldest) = self.dirty_files.pop_front() else { break };
            self.write_back(below, oldest)?;
        }
        self.evict(below)
    }

    /// Writes a file's dirty pages back ([WP2]).
    pub fn write_back(&mut self, below: &dyn Backing, file: u64) -> Result<()> {
        let Some(cached) = self.files.get_mut(&file).filter(|cached| cached.dirty > 0) else { return Ok(()) };
        let mut whole: Option<(u64, Vec<u8>)> = None;
        for (number, page) in cached.pages.iter_mut().filter(|(_, page)| page.is_dirty) {
            let start = number * PAGE as u64;
            let length = (cached.size - start).min(PAGE as u64) as usize;
            match &mut whole {
                Some((at, bytes)) if *at + bytes.len() as u64 == start && bytes.len() < WRITE_BYTES_MAX => {
                    bytes.extend_from_slice(&page.bytes[..length]);
                }
                _ => {
                    if let Some((at, bytes)) = whole.replace((start, page.bytes[..length].to_vec())) {
                        below.write(file, at, &bytes)?;
                    }
                }
            }
            page.is_dirty = false;
        }
        if let Some((at, bytes)) = whole {
            below.write(file, at, &bytes)?;
        }
        self.dirty -= cached.dirty;
        (cached.dirty, cached.size_below) = (0, cached.size);
        Ok(())
    }

    /// Writes back the file that became dirty first. Returns false if there is none.
    pub fn write_back_one(&mut self, below: &dyn Backing) -> Result<bool> {
        while let Some(file) = self.dirty_files.pop_front() {
            if self.files.get(&file).is_some_and(|file| file.dirty > 0) {
                self.write_back(below, file)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes all files back.
    pub fn write_back_all(&mut self, below: &dyn Backing) -> Result<()> {
        while self.write_back_one(below)? {}
        Ok(())
    }

    /// Drops all clean pages; after [`Self::write_back_all`] these are all.
    pub fn drop_clean(&mut self) {
        self.files.retain(|_, file| file.dirty > 0);
        self.pages = self.files.values().map(|file| file.pages.len() as u64).sum();
    }

    /// [WP3].
    fn evict(&mut self, below: &dyn Backing) -> Result<()> {
        while self.pages > self.pages_max {
            let Some((file, number)) = self.clock.pop_front() else { break };
            let Some(page) = self.files.get_mut(&file).and_then(|cached| cached.pages.get_mut(&number)) else { continue };
            if page.is_used {
                page.is_used = false;
                self.clock.push_back((file, number));
                continue;
            }
            if page.is_dirty {
                self.write_back(below, file)?;
            }
            if let Some(cached) = self.files.get_mut(&file)
                && cached.pages.remove(&number).is_some()
            {
                self.pages -= 1;
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
    use parking_lot::Mutex;

    use super::*;
    use crate::workloads::random::Random;

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
        let (below, mut cache) = (Below::default(), PageCache::new(1 << 20));
        cache.open(1, 0);
        cache.write(&below, 1, 0, &[1; 3 * PAGE + 100]).expect("written");
        assert_eq!((cache.size(1), below.writes.lock().len()), (Some(3 * PAGE as u64 + 100), 0));
        cache.write_back(&below, 1).expect("written back");
        assert_eq!(std::mem::take(&mut *below.writes.lock()), [(1, 0, 3 * PAGE + 100)]);
        cache.write_back(&below, 1).expect("nothing to do");

        cache.write(&below, 1, 60, &[2; 68]).expect("written");
        cache.write(&below, 1, 2 * PAGE as u64 + 64, &[2; 449]).expect("written");
        cache.write(&below, 1, 3 * PAGE as u64 + 100, &[2; 3]).expect("appended");
        cache.write_back(&below, 1).expect("written back");
        assert_eq!(std::mem::take(&mut *below.writes.lock()), [(1, 0, PAGE), (1, 2 * PAGE as u64, PAGE + 103)]);
    }

    #[test]
    fn removed_files_are_never_written() {
        let (below, mut cache) = (Below::default(), PageCache::new(1 << 20));
        cache.open(1, 0);
        cache.write(&below, 1, 0, &[1; 10 * PAGE]).expect("written");
        cache.forget(1);
        cache.write_back_all(&below).expect("nothing to do");
        assert_eq!((below.writes.lock().len(), cache.pages, cache.dirty), (0, 0, 0));
    }

    /// Random requests are compared with plain files; the cache is always too small.
    #[test]
    fn reads_return_what_was_written() {
        let (below, mut cache) = (Below::default(), PageCache::new(64 * PAGE as u64));
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
                    cache.write(&below, file, offset, &data).expect("written");
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
                    assert_eq!((cache.pages, cache.dirty), (0, 0));
                }
            }
            let counted: u64 = cache.files.values().map(|file| file.pages.len() as u64).sum();
            assert!(cache.pages == counted && cache.pages <= 64, "round {round}: {} and {counted}", cache.pages);
        }
    }
}
