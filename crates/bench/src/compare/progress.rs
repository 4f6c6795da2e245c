//! A progress bar with the current run and the estimated rest; hidden if standard error is not a terminal.

use std::collections::BTreeMap;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::backing::Place;
use super::peer::Peer;
use super::plan::Planned;

/// Progress of a comparison.
pub struct Progress {
    bar: ProgressBar,
    times: Times,
}

/// Times of the runs so far, complete: making, mounting, measuring, unmounting.
#[derive(Default)]
pub struct Times(BTreeMap<(usize, Place, Peer), Taken>);

#[derive(Clone, Copy, Default)]
struct Taken {
    seconds: f64,
    runs: u32,
    /// Times of warm-ups, which do less work.
    warm_up_seconds: f64,
    warm_ups: u32,
}

impl Times {
    /// Adds a run.
    pub fn add(&mut self, run: &Planned, time: Duration) {
        let taken = self.0.entry((run.case, run.place, run.peer)).or_default();
        if run.round.is_some() {
            taken.seconds += time.as_secs_f64();
            taken.runs += 1;
        } else {
            taken.warm_up_seconds += time.as_secs_f64();
            taken.warm_ups += 1;
        }
    }

    /// Estimated time of runs: that of earlier runs of the same kind, otherwise the average of all. `None` before the first run.
    pub fn estimate(&self, runs: &[Planned]) -> Option<Duration> {
        let mean = |seconds: f64, runs: u32| (runs > 0).then(|| seconds / f64::from(runs));
        let all = self.0.values().fold(Taken::default(), |sum, one| Taken {
            seconds: sum.seconds + one.seconds,
            runs: sum.runs + one.runs,
            warm_up_seconds: sum.warm_up_seconds + one.warm_up_seconds,
            warm_ups: sum.warm_ups + one.warm_ups,
        });
        let warm_up = mean(all.warm_up_seconds, all.warm_ups);
        let kept = mean(all.seconds, all.runs).or(warm_up)?;
        let of = |run: &Planned| {
            let one = self.0.get(&(run.case, run.place, run.peer)).copied().unwrap_or_default();
            match run.round {
                Some(_) => mean(one.seconds, one.runs).unwrap_or(kept),
                None => warm_up.unwrap_or(kept),
            }
        };
        Some(Duration::from_secs_f64(runs.iter().map(of).sum()))
    }
}

impl Progress {
    /// For this number of runs.
    pub fn new(runs: usize) -> Self {
        let bar = ProgressBar::with_draw_target(Some(runs as u64), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len}  {msg}") {
            bar.set_style(style);
        }
        Self { bar, times: Times::default() }
    }

    /// A run begins; `left` is this run and all later ones.
    pub fn begin(&self, what: &str, left: &[Planned]) {
        let time = self.times.estimate(left).map_or_else(String::new, |time| format!(", {} left", in_words(time)));
        self.bar.set_message(format!("{what}{time}"));
    }

    /// A run has ended.
    pub fn end(&mut self, run: &Planned, time: Duration) {
        self.times.add(run, time);
        self.bar.inc(1);
    }

    /// Estimated time of the next runs.
    pub fn estimate(&self, runs: &[Planned]) -> Option<Duration> {
        self.times.estimate(runs)
    }

    /// Prints a message without disturbing the bar, if there is one.
    pub fn say(&self, sentence: &str) {
        self.bar.suspend(|| eprintln!("tandemfs: {sentence}"));
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// A duration in words.
pub fn in_words(time: Duration) -> String {
    match time.as_secs() {
        below @ 0..100 => format!("{} s", below.max(1)),
        seconds => format!("{} min", seconds.div_ceil(60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(case: usize, peer: Peer, round: Option<u32>) -> Planned {
        Planned { case, place: Place::Free, peer, round }
    }

    #[test]
    fn the_rest_takes_what_the_same_took_before() {
        let mut times = Times::default();
        let left = [run(0, Peer::Ext4, Some(1)), run(0, Peer::Xfs, Some(1)), run(1, Peer::Ext4, Some(1))];
        assert_eq!(times.estimate(&left), None);
        times.add(&run(0, Peer::Ext4, None), Duration::from_secs(1));
        assert_eq!(times.estimate(&left), Some(Duration::from_secs(3)), "a warm-up is better than nothing");
        times.add(&run(0, Peer::Ext4, Some(0)), Duration::from_secs(10));
        times.add(&run(0, Peer::Xfs, Some(0)), Duration::from_secs(20));
        assert_eq!(times.estimate(&left), Some(Duration::from_secs(10 + 20 + 15)));
        assert_eq!(times.estimate(&[run(3, Peer::Xfs, None)]), Some(Duration::from_secs(1)));
        assert_eq!(times.estimate(&[]), Some(Duration::ZERO));
    }

    #[test]
    fn times_are_said_in_words() {
        assert_eq!([0, 42, 99, 100, 121].map(|seconds| in_words(Duration::from_secs(seconds))), ["1 s", "42 s", "99 s", "2 min", "3 min"]);
    }
}
