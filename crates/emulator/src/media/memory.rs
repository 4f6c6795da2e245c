//! The model as a whole: a cache in front of DIMMs, and what each access makes the media do. Pure: no I/O and no time.

use tandemfs_device::{Mechanism, MediaCounts, StoreWay, Structure};
use tandemfs_format::{LINE_BYTES, PAGE_BYTES};

use super::buffer::{CombiningBuffer, MEDIA_LINE_BYTES, MediaWrite, ReadBuffer};
use super::cpu_cache::{CpuCache, Leaving};
use super::model::MediaModel;
use crate::timing::MediaWork;

const LINE: u64 = LINE_BYTES as u64;
/// Lines after which the next DIMM follows.
const LINES_A_TURN: u64 = PAGE_BYTES as u64 / LINE;

/// A CPU's cache in front of DIMMs of persistent memory.
#[derive(Debug)]
pub(crate) struct PersistentMemory {
    cache: CpuCache,
    dimms: Dimms,
    reservable_ways: u32,
}

/// Everything behind the cache, and what was counted.
#[derive(Debug)]
struct Dimms {
    dimms: Box<[Dimm]>,
    counts: MediaCounts,
}

#[derive(Debug)]
struct Dimm {
    combining: CombiningBuffer,
    read: ReadBuffer,
}

impl PersistentMemory {
    /// An empty cache and empty buffers.
    pub(crate) fn new(model: &MediaModel) -> Self {
        let capacity = model.buffer_bytes as usize / MEDIA_LINE_BYTES as usize;
        let dimm = || Dimm { combining: CombiningBuffer::new(capacity), read: ReadBuffer::new(capacity) };
        let dimms = Dimms { dimms: (0..model.dimm_count).map(|_| dimm()).collect(), counts: MediaCounts::default() };
        Self { cache: CpuCache::new(model.sets(), model.cache_ways), dimms, reservable_ways: model.reservable_ways }
    }

    /// What was counted so far.
    pub(crate) fn counts(&self) -> &MediaCounts {
        &self.dimms.counts
    }

    /// A load of bytes.
    pub(crate) fn load(&mut self, structure: Option<Structure>, offset: u64, length: u64) -> MediaWork {
        let mut work = MediaWork::default();
        for line in lines(offset, length) {
            let touched = self.cache.load(line);
            self.dimms.touched(line, structure, touched.is_hit, touched.evicted, &mut work);
        }
        work
    }

    /// A store of bytes.
    pub(crate) fn store(&mut self, structure: Option<Structure>, way: StoreWay, offset: u64, length: u64) -> MediaWork {
        let mut work = MediaWork::default();
        self.dimms.counts.of_mut(structure).stored_bytes += length;
        // Whole lines alone go past the caches.
        let whole = if way == StoreWay::NonTemporal { offset.div_ceil(LINE)..(offset + length) / LINE } else { 0..0 };
        for line in lines(offset, length) {
            if whole.contains(&line) {
                self.cache.discard(line);
                work.bypassing_lines += 1;
                self.dimms.write(line, structure, Mechanism::NonTemporal, &mut work);
            } else {
                let touched = self.cache.store(line, structure, way == StoreWay::Pinned);
                self.dimms.touched(line, structure, touched.is_hit, touched.evicted, &mut work);
            }
        }
        work
    }

    /// A flush of the lines of a range.
    pub(crate) fn flush(&mut self, offset: u64, length: u64) -> MediaWork {
        let mut work = MediaWork::default();
        for line in lines(offset, length) {
            if let Some(Leaving { owner, .. }) = self.cache.flush(line) {
                work.flushed_lines += 1;
                self.dimms.write(line, owner, Mechanism::Flushed, &mut work);
            }
        }
        work
    }

    /// See [`Media::reserve_ways`](tandemfs_device::Media::reserve_ways).
    pub(crate) fn reserve_ways(&mut self, ways: u32) -> Result<(), u32> {
        if ways > self.reservable_ways {
            return Err(self.reservable_ways);
        }
        let mut work = MediaWork::default();
        let Self { cache, dimms, .. } = self;
        cache.reserve(ways as usize, |leaving| dimms.leave(leaving, &mut work));
        Ok(())
    }

    /// See [`Media::write_back_all`](tandemfs_device::Media::write_back_all).
    pub(crate) fn write_back_all(&mut self) {
        let mut work = MediaWork::default();
        let Self { cache, dimms, .. } = self;
        cache.write_back_all(|leaving| dimms.leave(leaving, &mut work));
        let left: Vec<MediaWrite> = dimms.dimms.iter_mut().flat_map(|dimm| dimm.combining.drain()).collect();
        left.iter().for_each(|write| dimms.written(write, &mut work));
    }
}

impl Dimms {
    fn dimm(&mut self, line: u64) -> &mut Dimm {
        let turn = line / LINES_A_TURN % self.dimms.len() as u64;
        &mut self.dimms[turn as usize]
    }

    /// A line was found in the cache, or is fetched, and another may have made place for it.
    fn touched(&mut self, line: u64, structure: Option<Structure>, is_hit: bool, evicted: Option<Leaving>, work: &mut MediaWork) {
        if is_hit {
            self.counts.hit_lines += 1;
            work.hit_lines += 1;
        } else {
            self.counts.missed_lines += 1;
            work.missed_lines += 1;
            self.read(line, structure, work);
        }
        evicted.into_iter().for_each(|leaving| self.leave(leaving, work));
    }

    fn read(&mut self, line: u64, structure: Option<Structure>, work: &mut MediaWork) {
        let dimm = self.dimm(line);
        if !dimm.combining.holds(line) && dimm.read.read(line) {
            self.counts.of_mut(structure).read_bytes += MEDIA_LINE_BYTES;
            work.read_bytes += MEDIA_LINE_BYTES;
        }
    }

    fn leave(&mut self, leaving: Leaving, work: &mut MediaWork) {
        let mechanism = if leaving.is_pinned { Mechanism::Pinned } else { Mechanism::Evicted };
        self.write(leaving.line, leaving.owner, mechanism, work);
    }

    /// A line reaches its DIMM.
    fn write(&mut self, line: u64, owner: Option<Structure>, mechanism: Mechanism, work: &mut MediaWork) {
        if let Some(write) = self.dimm(line).combining.write(line, (owner, mechanism)) {
            self.written(&write, work);
        }
    }

    /// A media line is written ([PMM4], [PMM5]).
    ///
    /// [PMM4]: super
    /// [PMM5]: super
    fn written(&mut self, write: &MediaWrite, work: &mut MediaWork) {
        work.written_bytes += MEDIA_LINE_BYTES;
        work.read_bytes += if write.is_partial() { MEDIA_LINE_BYTES } else { 0 };
        for ((structure, mechanism), bytes) in write.shares() {
            let of = self.counts.of_mut(structure);
            of.written_bytes[mechanism as usize] += bytes;
            of.merge_read_bytes += if write.is_partial() { bytes } else { 0 };
        }
    }
}

/// The lines that a range touches.
fn lines(offset: u64, length: u64) -> std::ops::Range<u64> {
    let end = if length == 0 { offset / LINE } else { (offset + length).div_ceil(LINE) };
    offset / LINE..end
}
