//! How long operations, accesses and waits took: a log-linear histogram that is cheap enough to stand in every operation.
//!
//! Reading the clock twice costs as much as a fiftieth of a small write, so one operation in [`LATENCY_SAMPLED_1_IN`] is timed. Which one,
//! the count of operations decides by a multiplication, so that programs that repeat a few operations have each of them timed. What takes
//! microseconds anyway, as a wait for a lock that is held, is always timed.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// One operation of so many is timed, on average; of block requests too.
pub const LATENCY_SAMPLED_1_IN: u64 = 16;
/// One load, store or fence of so many is timed: each takes less time than the clock.
pub const BYTE_PATH_SAMPLED_1_IN: u64 = 64;

/// Buckets of each power of two: the width of a bucket is an eighth of its start at most.
const PARTS: u64 = 8;
const PARTS_LOG2: u32 = PARTS.trailing_zeros();
/// The last bucket begins at 128 s and has what is longer, too.
const BUCKETS: usize = ((36 - PARTS_LOG2 + 1) as u64 * PARTS + PARTS) as usize;
/// 2^64 divided by the golden ratio: multiples of it lie evenly in 64 bits.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

fn bucket(ns: u64) -> usize {
    let log2 = (ns | 1).ilog2();
    let index = match log2.checked_sub(PARTS_LOG2) {
        None => ns,
        Some(shift) => u64::from(shift + 1) * PARTS + ((ns >> shift) - PARTS),
    };
    (index as usize).min(BUCKETS - 1)
}

/// Nanoseconds below which everything in a bucket lies.
fn end_ns(bucket: usize) -> u64 {
    let (power, part) = ((bucket as u64 + 1) / PARTS, (bucket as u64 + 1) % PARTS);
    if power == 0 { part } else { (PARTS + part) << (power - 1) }
}

/// The times of one kind of operation. It takes memory when the first is recorded.
#[derive(Debug, Default)]
pub struct Latencies {
    buckets: OnceLock<Box<[AtomicU64; BUCKETS]>>,
}

impl Latencies {
    /// No times.
    pub const fn new() -> Self {
        Self { buckets: OnceLock::new() }
    }

    /// The start of an operation; `None` if it is not to be timed. `count` operations of its kind came before.
    #[inline]
    pub fn start(count: u64) -> Option<Instant> {
        Self::start_of(LATENCY_SAMPLED_1_IN, count)
    }

    /// The same where one in `one_in` is timed. Instead of operations, `count` may count what each has of something, as bytes.
    #[inline]
    pub fn start_of(one_in: u64, count: u64) -> Option<Instant> {
        (count.wrapping_mul(SPREAD) < u64::MAX / one_in).then(Instant::now)
    }

    /// Adds the time since a start, if there was one.
    #[inline]
    pub fn end(&self, since: Option<Instant>) {
        if let Some(since) = since {
            self.record(since.elapsed());
        }
    }

    /// Runs something and adds its time.
    #[inline]
    pub fn timed<T>(&self, run: impl FnOnce() -> T) -> T {
        let since = Instant::now();
        let result = run();
        self.record(since.elapsed());
        result
    }

    /// Adds an operation's time.
    pub fn record(&self, took: Duration) {
        let buckets = self.buckets.get_or_init(|| Box::new([const { AtomicU64::new(0) }; BUCKETS]));
        buckets[bucket(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX))].fetch_add(1, Relaxed);
    }

    /// What was recorded.
    pub fn counts(&self) -> LatencyCounts {
        let buckets = self.buckets.get().into_iter().flat_map(|buckets| buckets.iter());
        let counts = buckets.map(|count| count.load(Relaxed)).enumerate().filter(|(_, count)| *count > 0);
        LatencyCounts(counts.map(|(bucket, count)| (end_ns(bucket), count)).collect())
    }

    /// Forgets everything.
    pub fn reset(&self) {
        self.buckets.get().into_iter().flat_map(|buckets| buckets.iter()).for_each(|count| count.store(0, Relaxed));
    }
}

/// Recorded times: the upper bound of each bucket in nanoseconds and how many lie in it, upwards, without empty ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LatencyCounts(pub Vec<(u64, u64)>);

impl LatencyCounts {
    /// How many there are.
    pub fn samples(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    /// The time that a share of all does not exceed, `0.5` for the median, in nanoseconds; at most an eighth too large. `None` without times.
    pub fn percentile(&self, share: f64) -> Option<u64> {
        let rank = ((self.samples() as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        self.0.iter().find_map(|(end, count)| {
            seen += count;
            (seen >= rank).then_some(*end)
        })
    }

    /// The sum of all times in nanoseconds, each taken for the middle of its bucket: off by a sixteenth at most.
    pub fn sum_ns(&self) -> u64 {
        let middle = |end: u64| match bucket(end - 1) {
            0 => 0,
            within => end_ns(within - 1).midpoint(end),
        };
        self.0.iter().filter(|(end, _)| *end > 0).fold(0, |sum, (end, count)| sum.saturating_add(middle(*end).saturating_mul(*count)))
    }

    /// How many took less than this time. Exact for powers of two.
    pub fn below(&self, ns: u64) -> u64 {
        self.0.iter().take_while(|(end, _)| *end <= ns).map(|(_, count)| count).sum()
    }

    /// What was recorded since `before`, or all of it if it was reset in between.
    pub fn since(&self, before: &Self) -> Self {
        let was = |end: u64| before.0.iter().find(|(other, _)| *other == end).map_or(0, |(_, count)| *count);
        let is_reset = before.0.iter().any(|(end, count)| self.0.iter().find(|(other, _)| other == end).is_none_or(|(_, now)| now < count));
        match is_reset {
            true => self.clone(),
            false => Self(self.0.iter().map(|(end, count)| (*end, count - was(*end))).filter(|(_, count)| *count > 0).collect()),
        }
    }

    /// The times of both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let mut all = self.0.clone();
        for (end, count) in &other.0 {
            match all.binary_search_by_key(end, |(end, _)| *end) {
                Ok(found) => all[found].1 += count,
                Err(place) => all.insert(place, (*end, *count)),
            }
        }
        Self(all)
    }
}

/// The times of one kind of what is timed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindTimes {
    /// Its name, as `block_read`.
    pub name: &'static str,
    /// One of so many is timed, on average; 1 if all are.
    pub sampled_1_in: u64,
    /// The times.
    pub counts: LatencyCounts,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_and_are_narrow() {
        let mut last = 0;
        for bucket_number in 0..BUCKETS - 1 {
            let end = end_ns(bucket_number);
            assert!(end > last, "{bucket_number}");
            assert_eq!((bucket(last), bucket(end - 1), bucket(end)), (bucket_number, bucket_number, bucket_number + 1), "{last}..{end}");
            assert!(last < PARTS || (end - last) * PARTS <= last, "{last}..{end}");
            last = end;
        }
        assert_eq!((bucket(u64::MAX), bucket(last)), (BUCKETS - 1, BUCKETS - 1));
        assert!(Duration::from_nanos(last) > Duration::from_secs(120), "{last}");
    }

    #[test]
    fn percentiles_are_at_most_an_eighth_too_large() {
        let latencies = Latencies::default();
        assert_eq!((latencies.counts().percentile(0.5), latencies.counts().samples()), (None, 0));
        (1..=10_000).for_each(|us| latencies.record(Duration::from_micros(us)));
        let counts = latencies.counts();
        assert_eq!(counts.samples(), 10_000);
        for (share, exact) in [(0.5, 5_000_000), (0.9, 9_000_000), (0.99, 9_900_000), (1.0, 10_000_000)] {
            let found = counts.percentile(share).expect("times");
            assert!((exact..=exact + exact / PARTS + 1).contains(&found), "{share}: {found} for {exact}");
        }
        let (sum, exact): (u64, u64) = (counts.sum_ns(), (1..=10_000).sum::<u64>() * 1000);
        assert!(sum.abs_diff(exact) * 16 <= exact, "{sum} for {exact}");
        latencies.reset();
        assert_eq!((latencies.counts(), latencies.counts().sum_ns()), (LatencyCounts::default(), 0));
    }

    #[test]
    fn what_is_below_a_power_of_two_is_known_exactly() {
        let latencies = Latencies::new();
        for ns in [0, 127, 128, 255, 256, 1023, 1024, 5_000_000_000] {
            latencies.record(Duration::from_nanos(ns));
        }
        let counts = latencies.counts();
        assert_eq!([128, 256, 1024, 2048, 1 << 40].map(|ns| counts.below(ns)), [2, 4, 6, 7, 8]);
        assert_eq!(latencies.timed(|| 7), 7);
        latencies.end(None);
        latencies.end(Some(Instant::now()));
        assert_eq!(latencies.counts().samples(), 10);
    }

    #[test]
    fn differences_and_sums() {
        let latencies = Latencies::default();
        latencies.record(Duration::from_nanos(5));
        let before = latencies.counts();
        latencies.record(Duration::from_nanos(5));
        latencies.record(Duration::from_micros(70));
        let after = latencies.counts();
        let between = after.since(&before);
        assert_eq!(between.samples(), 2);
        assert_eq!(between.and(&before), after);
        assert_eq!(before.since(&after), before, "it was reset");
        assert_eq!(after.since(&after), LatencyCounts::default());
    }

    #[test]
    fn one_in_sixteen_is_timed_in_whatever_turn() {
        for (step, first) in [(1, 0), (2, 1), (3, 2), (16, 5), (64, 0), (1000, 7)] {
            let timed = |one_in| (0..16_000).filter(|turn| Latencies::start_of(one_in, first + turn * step).is_some()).count();
            for (one_in, expected) in [(LATENCY_SAMPLED_1_IN, 900..=1100), (BYTE_PATH_SAMPLED_1_IN, 200..=300)] {
                let timed = timed(one_in);
                assert!(expected.contains(&timed), "{timed} of 16000 with every {step}th from {first}");
            }
        }
    }
}
