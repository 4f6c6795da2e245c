//! Model of the drive's memory as a cache in front of its block path, for kernel file systems (RomeFS §4.1, transparent cache). 8-way
//! set-associative with LRU. As durable as the byte path: a write is complete once it is cached.
//!
//! [CW1] A write takes a store of its size into the memory, a read hit a load. The drive writes it back behind its answer, which keeps its
//!       block path busy as before. A write for which the cache has no room, since all of it is still written back, waits for the block path.

use std::collections::VecDeque;

use tandemfs_emulator::Curve;

const WAYS: usize = 8;

#[derive(Debug, Clone, Copy, Default)]
struct Way {
    /// Sector + 1; 0 is an empty slot.
    sector: u64,
    used: u64,
}

/// The cached sectors.
#[derive(Debug)]
pub struct TransparentCache {
    sets: Vec<[Way; WAYS]>,
    clock: u64,
    sector_bytes: u64,
    room_bytes: u64,
    load: Curve,
    store: Curve,
    /// Writes that are not written back yet: when they will be, and their bytes.
    behind: VecDeque<(u64, u64)>,
    behind_bytes: u64,
}

impl TransparentCache {
    /// An empty cache; `None` if there is no room for one set.
    pub fn new(bytes: u64, sector_bytes: u64, load: Curve, store: Curve) -> Option<Self> {
        let set_count = (bytes / sector_bytes) as usize / WAYS;
        let sets = vec![[Way::default(); WAYS]; set_count];
        let cache = Self { sets, clock: 0, sector_bytes, room_bytes: bytes, load, store, behind: VecDeque::new(), behind_bytes: 0 };
        (set_count > 0).then_some(cache)
    }

    /// When a read that arrives at `arrival_ns` is complete; its block command would be at `done_ns` ([CW1]).
    pub fn read(&mut self, arrival_ns: u64, done_ns: u64, first: u64, count: u64) -> u64 {
        match self.touch(first, count) {
            true => done_ns.min(arrival_ns + self.load.latency_ns(count * self.sector_bytes)),
            false => done_ns,
        }
    }

    /// The same of a write.
    pub fn write(&mut self, arrival_ns: u64, done_ns: u64, first: u64, count: u64) -> u64 {
        self.touch(first, count);
        while let Some((_, bytes)) = self.behind.pop_front_if(|(written_back_ns, _)| *written_back_ns <= arrival_ns) {
            self.behind_bytes -= bytes;
        }
        let bytes = count * self.sector_bytes;
        if self.behind_bytes + bytes > self.room_bytes {
            return done_ns;
        }
        self.behind.push_back((done_ns, bytes));
        self.behind_bytes += bytes;
        done_ns.min(arrival_ns + self.store.latency_ns(bytes))
    }

    /// Inserts sectors. Returns whether all of them were cached before.
    fn touch(&mut self, first: u64, count: u64) -> bool {
        let mut was_there = true;
        for sector in first..first + count {
            self.clock += 1;
            let index = (sector % self.sets.len() as u64) as usize;
            let set = &mut self.sets[index];
            let found = set.iter_mut().find(|way| way.sector == sector + 1);
            was_there &= found.is_some();
            let way = match found {
                Some(way) => way,
                None => set.iter_mut().min_by_key(|way| way.used).unwrap_or_else(|| unreachable!("a set has eight ways")),
            };
            *way = Way { sector: sector + 1, used: self.clock };
        }
        was_there
    }

    /// Removes sectors.
    pub fn forget(&mut self, first: u64, count: u64) {
        let end = first.saturating_add(count);
        if count < self.sets.len() as u64 {
            for sector in first..end {
                let index = (sector % self.sets.len() as u64) as usize;
                self.sets[index].iter_mut().filter(|way| way.sector == sector + 1).for_each(|way| *way = Way::default());
            }
        } else {
            let ways = self.sets.iter_mut().flatten();
            ways.filter(|way| way.sector > first && way.sector <= end).for_each(|way| *way = Way::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(sectors: u64) -> Option<TransparentCache> {
        let timing = tandemfs_emulator::profile("romefs-a").and_then(|profile| profile.timing).expect("a profile with times");
        TransparentCache::new(sectors * 4096, 4096, timing.load, timing.store)
    }

    /// RomeFS Table 3.
    #[test]
    fn a_cached_write_takes_the_memorys_time_and_not_a_block_commands() {
        let mut cache = cache(16).expect("two sets");
        assert_eq!(cache.read(0, 60_000, 3, 1), 60_000, "a miss");
        assert_eq!(cache.write(1_000, 51_000, 3, 1), 1_000 + 2_560);
        assert_eq!(cache.read(2_000, 60_000, 3, 1), 2_000 + 2_930);
        assert_eq!(cache.write(3_000, 53_000, 0, 15), 53_000.min(3_000 + cache.store.latency_ns(15 * 4096)));
        assert_eq!(cache.write(4_000, 54_000, 9, 1), 54_000, "all of it is still written back");
        assert_eq!(cache.write(51_000, 101_000, 9, 1), 51_000 + 2_560, "the first one has been");
        assert_eq!(cache.write(200_000, 200_001, 9, 1), 200_001, "never later than the block command");
    }

    #[test]
    fn what_was_used_stays_and_the_oldest_of_a_set_leaves() {
        assert!(cache(7).is_none());
        let mut cache = cache(16).expect("two sets");
        assert!(!cache.touch(0, 16), "empty before");
        assert!(cache.touch(0, 16), "all fit");
        assert!(!cache.touch(16, 1), "another one");
        assert!(cache.touch(1, 15) && cache.touch(16, 1));
        assert!(!cache.touch(0, 1), "it was the oldest of its set");
        cache.forget(4, 2);
        assert!(!cache.touch(3, 3), "two of them are gone");
        cache.forget(0, 1 << 40);
        assert!(!cache.touch(6, 1));
        assert!(cache.touch(6, 1));
    }
}
