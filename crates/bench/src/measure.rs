//! Timing: each operation goes into a histogram, and subjects are interleaved ([BE1], [BE3]).

use std::sync::Barrier;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::failure::{Failure, Result};
use crate::machine;

/// Longest time that the histogram distinguishes: ten minutes.
const TIME_NS_MAX: u64 = 600_000_000_000;

/// Times of one kind of operation.
pub struct Samples(Histogram<u64>);

impl Samples {
    /// Without samples.
    pub fn new() -> Self {
        // A fixed range: only `record` grows a histogram, and `saturating_record` would cap times at its present range.
        match Histogram::new_with_bounds(1, TIME_NS_MAX, 3) {
            Ok(histogram) => Self(histogram),
            Err(_) => unreachable!("the bounds and three significant digits are allowed"),
        }
    }

    /// Adds a time.
    pub fn add(&mut self, time: Duration) {
        self.add_ns(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds a time in nanoseconds.
    pub fn add_ns(&mut self, nanoseconds: u64) {
        self.0.saturating_record(nanoseconds);
    }

    /// Adds the times of another measurement of the same operation.
    pub fn merge(&mut self, other: &Self) {
        // Both have the same bounds, so every sample fits.
        let _always_fits = self.0.add(&other.0);
    }

    /// Number of samples.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Median.
    pub fn median_ns(&self) -> f64 {
        self.0.value_at_quantile(0.5) as f64
    }

    /// 99th percentile.
    pub fn p99_ns(&self) -> f64 {
        self.0.value_at_quantile(0.99) as f64
    }

    /// Quantile for `share`, from 0 to 1.
    pub fn quantile_ns(&self, share: f64) -> f64 {
        self.0.value_at_quantile(share) as f64
    }

    /// The mean.
    pub fn mean_ns(&self) -> f64 {
        self.0.mean()
    }
}

/// Collects the times of all subjects of one measurement. Times of the warm-up are discarded.
pub struct Recorder {
    samples: Vec<Samples>,
    warming_up: bool,
}

impl Recorder {
    /// Runs an operation and records its time for `subject`.
    #[inline]
    pub fn time<T>(&mut self, subject: usize, operation: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = operation();
        let time = start.elapsed();
        if !self.warming_up {
            self.samples[subject].add(time);
        }
        result
    }
}

/// One batch of a subject.
pub type Batch<'a> = Box<dyn FnMut(&mut Recorder) -> Result<()> + 'a>;

/// A batch that makes an operation so many times.
pub fn repeated<'a>(times: usize, mut operation: impl FnMut(&mut Recorder) -> Result<()> + 'a) -> Batch<'a> {
    Box::new(move |recorder| (0..times).try_for_each(|_| operation(recorder)))
}

/// Runs all batches `rounds` times, alternately forward and backward, after a tenth as many warm-up rounds. Returns each subject's times.
pub fn interleaved(subjects: usize, rounds: usize, batches: &mut [Batch<'_>]) -> Result<Vec<Samples>> {
    let mut recorder = Recorder { samples: (0..subjects).map(|_| Samples::new()).collect(), warming_up: true };
    let warm_up = rounds.div_ceil(10);
    for round in 0..warm_up + rounds {
        machine::check()?;
        recorder.warming_up = round < warm_up;
        for index in 0..batches.len() {
            let index = if round % 2 == 0 { index } else { batches.len() - 1 - index };
            batches[index](&mut recorder)?;
        }
    }
    // A subject without samples would be shown as infinitely fast.
    if let Some(silent) = recorder.samples.iter().position(|samples| samples.count() == 0) {
        return Err(Failure::new(format!("subject {silent} of the measurement took no times; this is a bug of the benchmark")));
    }
    Ok(recorder.samples)
}

/// Runs all works at once, each on its own thread. Returns their results, and the time from when the first began until the last had ended,
/// by their own clocks: the thread that waits for them may run long after they began, or even ended.
pub fn on_threads<W: Send, T: Send>(works: Vec<W>, run: impl Fn(W) -> Result<T> + Sync) -> Result<(Vec<T>, Duration)> {
    let (barrier, run) = (Barrier::new(works.len()), &run);
    std::thread::scope(|scope| {
        let start_thread = |work| {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                let begun = Instant::now();
                Ok((run(work)?, begun, Instant::now()))
            })
        };
        let threads: Vec<_> = works.into_iter().map(start_thread).collect();
        let (mut results, mut all) = (Vec::new(), None);
        for thread in threads {
            let (result, begun, ended) = thread.join().unwrap_or_else(|_| Err(Failure::new("a thread of the load panicked")))?;
            let (first, last) = all.unwrap_or((begun, ended));
            all = Some((begun.min(first), ended.max(last)));
            results.push(result);
        }
        Ok((results, all.map_or(Duration::ZERO, |(first, last): (Instant, Instant)| last - first)))
    })
}

/// Pseudo-random numbers (xorshift), the same in each run.
#[derive(Debug, Clone)]
pub struct Jumps(u64);

impl Jumps {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// The next one below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_any_length_are_kept() {
        for nanoseconds in [1, 80, 1_690, 5_000_000, 90_000_000_000] {
            let mut samples = Samples::new();
            samples.add(Duration::from_nanos(nanoseconds));
            let (median, expected) = (samples.median_ns(), nanoseconds as f64);
            assert!((median - expected).abs() <= expected / 500.0, "{nanoseconds} ns became {median}");
            assert_eq!(samples.count(), 1);
        }
    }

    #[test]
    fn regression_a_waiting_thread_that_runs_late_shortens_no_load() {
        let _all_on_one_cpu = machine::Pinned::new();
        for _ in 0..20 {
            let spin = |()| {
                let start = Instant::now();
                while start.elapsed() < Duration::from_millis(1) {}
                Ok(start.elapsed())
            };
            let (took, elapsed) = on_threads(vec![(); 2], spin).expect("run");
            assert!(took.iter().all(|took| *took <= elapsed), "{took:?} in {elapsed:?}");
        }
    }

    #[test]
    fn a_median_and_a_p99_are_of_all_times() {
        let mut samples = Samples::new();
        (1..=1000).for_each(|time| samples.add(Duration::from_nanos(time)));
        assert_eq!((samples.median_ns(), samples.p99_ns()), (500.0, 990.0));
    }

    #[test]
    fn a_subject_that_took_no_times_is_an_error() {
        let mut batches: [Batch<'_>; 1] = [Box::new(|recorder| {
            recorder.time(0, || std::thread::sleep(Duration::from_micros(50)));
            Ok(())
        })];
        let samples = interleaved(1, 20, &mut batches).expect("measured");
        assert!(samples[0].count() == 20 && samples[0].median_ns() >= 50_000.0, "{}", samples[0].median_ns());
        assert!(interleaved(2, 20, &mut batches).is_err());
    }
}
