//! Model of the drive's memory as a cache in front of its block path, for kernel file systems (RomeFS §4.1, transparent cache): which
//! sectors are cached. 8-way set-associative with LRU. As durable as the byte path: a write is complete once it is cached.

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
}

impl TransparentCache {
    /// An empty cache; `None` if there is no room for one set.
    pub fn new(bytes: u64, sector_bytes: u64) -> Option<Self> {
        let set_count = (bytes / sector_bytes) as usize / WAYS;
        (set_count > 0).then(|| Self { sets: vec![[Way::default(); WAYS]; set_count], clock: 0 })
    }

    /// Inserts sectors. Returns whether all of them were cached before.
    pub fn touch(&mut self, first: u64, count: u64) -> bool {
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

    #[test]
    fn what_was_used_stays_and_the_oldest_of_a_set_leaves() {
        assert!(TransparentCache::new(7 * 4096, 4096).is_none());
        let mut cache = TransparentCache::new(16 * 4096, 4096).expect("two sets");
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
