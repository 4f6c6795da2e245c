//! Which pages of files are hot: how often each was used in a period (FusionFS §2.1, *hotspot detector*), without locks, in bounded memory.
//!
//! [HP1] A period has a number of uses, so that time without any changes nothing. At its end the least count is looked for that no more pages have than
//!       may be hot; from then on a page is hot that was used so often in the last whole period, or is already in this one.
//! [HP2] The hash of a page chooses a bucket of the table. The page has an entry there. Where the bucket is full, the page that was used least loses its
//!       entry. Two pages whose hashes agree share an entry, so both count as hotter than they are.
//! [HP3] Nobody waits: who finds that another thread has changed an entry meanwhile does not count his use. That costs an estimate, never a byte.

use std::ops::Range;

use tandemfs_format::InodeNumber;

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Entries of a bucket, and entries of the table for each page that may be hot.
const WAYS: usize = 4;
const ENTRIES_PER_HOT_PAGE: usize = 4;
/// Uses in a period for each page that may be hot.
const USES_PER_HOT_PAGE: u64 = 8;
/// The least count of a hot page: once may be by chance.
const LEAST: u32 = 2;
/// The largest count that is told from larger ones.
const COUNT_MAX: u64 = 255;
/// Pages of one use that are counted; a longer one is cold (it goes past the caches).
const PAGES_MAX: u64 = 64;

/// An entry: tag (32 bits), period (16), count of the period before it (8), count in it (8). 0: nobody's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    tag: u64,
    period: u64,
    before: u64,
    now: u64,
}

impl Entry {
    fn of(word: u64) -> Self {
        Self { tag: word >> 32, period: word >> 16 & 0xffff, before: word >> 8 & 0xff, now: word & 0xff }
    }

    fn word(self) -> u64 {
        self.tag << 32 | self.period << 16 | self.before << 8 | self.now
    }

    /// As it is in a period.
    fn at(self, period: u64) -> Self {
        match period.wrapping_sub(self.period) & 0xffff {
            0 => self,
            1 => Self { period, before: self.now, now: 0, ..self },
            _ => Self { period, before: 0, now: 0, ..self },
        }
    }
}

#[derive(Debug)]
pub(crate) struct HotPages {
    entries: Box<[AtomicU64]>,
    /// How many pages may be hot.
    most: usize,
    uses: AtomicU64,
    /// The least count of a hot page.
    least: AtomicU32,
}

impl HotPages {
    /// For so many hot pages at most.
    pub(super) fn new(most: usize) -> Self {
        let entries = (most * ENTRIES_PER_HOT_PAGE).next_power_of_two().max(WAYS);
        Self { entries: (0..entries).map(|_| AtomicU64::new(0)).collect(), most, uses: AtomicU64::new(0), least: AtomicU32::new(LEAST) }
    }

    /// Pages of a file are used. Whether all of them are hot.
    pub(super) fn note(&self, file: InodeNumber, pages: Range<u64>) -> bool {
        if pages.end - pages.start > PAGES_MAX {
            return false;
        }
        pages.filter(|page| !self.note_one(file, *page)).count() == 0 // each of them is counted
    }

    /// Whether all these pages are hot, which does not count as a use.
    pub(super) fn are_hot(&self, file: InodeNumber, mut pages: Range<u64>) -> bool {
        let period = self.period(self.uses.load(Relaxed));
        pages.end - pages.start <= PAGES_MAX
            && pages.all(|page| {
                let (tag, bucket) = self.bucket(file, page);
                let entries = bucket.iter().map(|word| Entry::of(word.load(Relaxed)).at(period));
                entries.filter(|entry| entry.tag == tag).any(|entry| self.is_hot(entry))
            })
    }

    fn period_uses(&self) -> u64 {
        USES_PER_HOT_PAGE * self.most as u64
    }

    fn period(&self, uses: u64) -> u64 {
        (uses / self.period_uses()) & 0xffff
    }

    /// The tag of a page, and the entries one of which may be its own.
    fn bucket(&self, file: InodeNumber, page: u64) -> (u64, &[AtomicU64]) {
        let hash = hash(file, page);
        let first = hash as usize % (self.entries.len() / WAYS) * WAYS;
        ((hash >> 32).max(1), &self.entries[first..first + WAYS])
    }

    fn is_hot(&self, entry: Entry) -> bool {
        entry.before.max(entry.now) >= self.least.load(Relaxed).into()
    }

    fn note_one(&self, file: InodeNumber, page: u64) -> bool {
        let uses = self.uses.fetch_add(1, Relaxed) + 1;
        if uses.is_multiple_of(self.period_uses()) {
            self.end_period(uses / self.period_uses() - 1);
        }
        let period = self.period(uses);
        let (tag, bucket) = self.bucket(file, page);
        let found: [(u64, Entry); WAYS] = std::array::from_fn(|way| {
            let word = bucket[way].load(Relaxed);
            (word, Entry::of(word).at(period))
        });
        let own = found.iter().position(|(_, entry)| entry.tag == tag);
        let way = own.unwrap_or_else(|| (0..WAYS).min_by_key(|way| found[*way].1.before + found[*way].1.now).unwrap_or(0)); // [HP2]
        let before = if own.is_some() { found[way].1 } else { Entry { tag, period, before: 0, now: 0 } };
        let entry = Entry { now: (before.now + 1).min(COUNT_MAX), ..before };
        let _overtaken = bucket[way].compare_exchange(found[way].0, entry.word(), Relaxed, Relaxed); // [HP3]
        self.is_hot(entry)
    }

    /// [HP1]
    fn end_period(&self, ended: u64) {
        let mut counts = [0_usize; COUNT_MAX as usize + 1];
        for word in &self.entries {
            let entry = Entry::of(word.load(Relaxed));
            if entry.period == ended & 0xffff {
                counts[entry.now as usize] += 1;
            }
        }
        let mut pages = 0;
        let fits = |count: &usize| {
            pages += counts[*count];
            pages <= self.most
        };
        let least = (LEAST as usize..=COUNT_MAX as usize).rev().take_while(fits).last().unwrap_or(COUNT_MAX as usize + 1);
        self.least.store(least as u32, Relaxed);
    }
}

fn hash(file: InodeNumber, page: u64) -> u64 {
    let mixed = (file.get().wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ page).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 31).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 30
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeNumber = InodeNumber::new(7);

    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 33
    }

    /// The share of uses of hot pages, of the second half.
    fn hot_share(hot: &HotPages, uses: u64, mut page: impl FnMut() -> u64) -> f64 {
        let mut found = 0;
        for number in 0..uses {
            let page = page();
            let is_hot = hot.note(FILE, page..page + 1);
            found += u64::from(is_hot && number >= uses / 2);
        }
        found as f64 / (uses / 2) as f64
    }

    #[test]
    fn pages_that_fit_are_hot_and_pages_at_random_are_not() {
        let mut state = 1;
        assert!(hot_share(&HotPages::new(1000), 100_000, || random(&mut state) % 900) > 0.95, "all of them fit");
        let cold = hot_share(&HotPages::new(1000), 200_000, || random(&mut state) % 100_000);
        assert!(cold < 0.1, "{cold}");
    }

    #[test]
    fn the_hot_tenth_is_told_from_the_rest() {
        let (hot, mut state) = (HotPages::new(1000), 1);
        let mut page = || match random(&mut state) % 10 {
            0 => 1000 + random(&mut state) % 50_000,
            _ => random(&mut state) % 500,
        };
        for _ in 0..100_000 {
            let page = page();
            hot.note(FILE, page..page + 1);
        }
        let (mut hot_of_hot, mut hot_of_cold) = (0, 0);
        for _ in 0..10_000 {
            let page = page();
            let is_hot = hot.note(FILE, page..page + 1);
            *if page < 1000 { &mut hot_of_hot } else { &mut hot_of_cold } += u32::from(is_hot);
        }
        assert!(hot_of_hot > 8500 && hot_of_cold < 200, "{hot_of_hot} of 9000, {hot_of_cold} of 1000");
    }

    #[test]
    fn no_more_pages_are_hot_than_may_be() {
        let (hot, mut state) = (HotPages::new(100), 1);
        for _ in 0..50_000 {
            let page = random(&mut state) % 1000;
            hot.note(FILE, page..page + 1);
        }
        let least = hot.least.load(Relaxed);
        let count = hot.entries.iter().filter(|word| Entry::of(word.load(Relaxed)).before >= least.into()).count();
        assert!(least > LEAST && count <= 100, "{count} pages with {least} uses");
    }

    #[test]
    fn what_cools_down_is_forgotten_and_long_uses_are_cold() {
        let hot = HotPages::new(10);
        for _ in 0..1000 {
            hot.note(FILE, 3..4);
        }
        assert!(hot.note(FILE, 3..4) && !hot.note(InodeNumber::new(8), 3..4));
        for number in 0..1000 {
            hot.note(FILE, 100 + number % 5..101 + number % 5);
        }
        assert!(!hot.note(FILE, 3..4));
        assert!((0..9).all(|_| !hot.note(FILE, 0..PAGES_MAX + 1)));
    }

    #[test]
    fn threads_count_beside_each_other() {
        let hot = HotPages::new(64);
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let hot = &hot;
                scope.spawn(move || {
                    for number in 0..20_000 {
                        let page = (number * 7 + thread) % 40;
                        hot.note(FILE, page..page + 1);
                    }
                });
            }
        });
        assert!((0..40).filter(|page| hot.note(FILE, *page..page + 1)).count() > 30);
    }
}
