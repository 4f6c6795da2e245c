//! From runs to results: medians, spreads, and intervals of ratios.
//!
//! [SS1] Medians over rounds are compared, so that one disturbed round has no effect.
//! [SS2] The interval of a ratio is a bootstrap interval: rounds are resampled with replacement, and the interval is the middle 95 % of the
//!       resulting ratios. A round is drawn with both sides, which were measured one after the other: a slow minute of the machine affects
//!       both. The seed is fixed, so the same lines give the same interval.
//! [SS3] A summary is computed from records alone.
//! [SS4] Noise is judged relative to its median in the same results. A record has it relative to the best time so far, which improves with
//!       time: after an hour every run would count as disturbed. A machine that is slow throughout is slow for all peers.
//! [SS5] The kernel samples CPU time a hundred times a second, and the emulated drive's CPU time is subtracted. So CPU time of runs shorter
//!       than a few samples is not reported.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::backing::Place;
use super::case::Group;
use super::peer::Peer;
use super::record::{Percentiles, Record};
use crate::measure::Samples;
use crate::workloads::random::Random;

/// Number of bootstrap samples.
const DRAWS: usize = 4000;
/// Seed of the bootstrap.
const SEED: u64 = 0x7461_6e64;
/// Share of the ratios below the interval, and above it.
const TAIL: f64 = 0.025;
/// Above this noise relative to the usual noise ([SS4]) a comparison decides nothing.
pub const NOISE_MAX: f64 = 0.10;
/// Least CPU seconds of a run that the kernel's sampling can measure ([SS5]).
const CPU_SECONDS_LEAST: f64 = 0.05;
/// With fewer rounds a comparison decides nothing.
pub const ROUNDS_LEAST: usize = 3;

/// A ratio of medians with its interval: at most the range of the ratios of the rounds, which covers the true median with 75 % of three rounds, 94 % of five and 97 % of six.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ratio {
    /// Ratio of the two medians.
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Ratio {
    /// The inverse ratio; for rates, the ratio of times.
    pub fn inverse(self) -> Self {
        Self { median: 1.0 / self.median, low: 1.0 / self.high, high: 1.0 / self.low }
    }
}

/// Spread of a value over the rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// Their median.
    pub median: f64,
    /// The smallest.
    pub low: f64,
    /// The largest.
    pub high: f64,
}

/// All rounds of one case on one file system.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Name of the case.
    pub case: String,
    /// Its group.
    pub group: Group,
    /// The drive.
    pub place: Place,
    /// The file system.
    pub peer: Peer,
    /// Number of concurrent clients.
    pub clients: u32,
    /// Unit of the work, in the plural.
    pub unit: String,
    /// Units per second of each round, in the order of rounds.
    pub rates: Vec<f64>,
    /// Units per second.
    pub rate: Spread,
    /// Duration of the measured part in seconds.
    pub seconds: Spread,
    /// CPU seconds of the whole machine per unit, median of the rounds; `None` if a round is too short to measure ([SS5]).
    pub cpu_seconds_per_unit: Option<f64>,
    /// Host memory, maximum of the rounds, in bytes.
    pub memory_bytes: Option<u64>,
    /// Median over the rounds of each percentile; maximum over all rounds.
    pub latency_ns: Option<BTreeMap<String, f64>>,
    /// Traffic to the drive per unit, if it is counted.
    pub traffic_per_unit: Option<BTreeMap<String, f64>>,
    /// Processes at the direct door, the fewest of a round.
    pub connections: Option<u64>,
    /// Median over the rounds of the deviation from the usual noise ([SS4]).
    pub noise: f64,
}

impl Summary {
    /// Whether the machine was too noisy for a decision.
    pub fn is_noisy(&self) -> bool {
        self.noise > NOISE_MAX
    }

    /// Whether there are too few rounds for a meaningful interval: that of one round has no width.
    pub fn is_of_few_rounds(&self) -> bool {
        self.rates.len() < ROUNDS_LEAST
    }
}

/// The median, or 0 for no values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    middle(&sorted)
}

fn middle(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[odd / 2],
        even => f64::midpoint(sorted[even / 2 - 1], sorted[even / 2]),
    }
}

/// Median, minimum and maximum; zeros for no values.
pub fn spread(values: &[f64]) -> Spread {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    Spread { median: middle(&sorted), low: sorted.first().copied().unwrap_or_default(), high: sorted.last().copied().unwrap_or_default() }
}

/// The ratio of the medians of `ours` and `theirs`, with its interval ([SS2]), over the rounds that both have. Both are in the order of
/// rounds, not empty, and all values are above 0.
pub fn ratio(ours: &[f64], theirs: &[f64]) -> Ratio {
    let median = median(ours) / median(theirs);
    let mut random = Random::new(SEED, 0);
    let rounds = ours.len().min(theirs.len());
    let (mut above, mut below) = (vec![0.0; rounds], vec![0.0; rounds]);
    let mut draw = || {
        for (one, other) in above.iter_mut().zip(&mut below) {
            let round = random.below(rounds as u64) as usize;
            (*one, *other) = (ours[round], theirs[round]);
        }
        above.sort_by(f64::total_cmp);
        below.sort_by(f64::total_cmp);
        middle(&above) / middle(&below)
    };
    let mut ratios: Vec<f64> = (0..DRAWS).map(|_| draw()).collect();
    ratios.sort_by(f64::total_cmp);
    let tail = (DRAWS as f64 * TAIL) as usize;
    // With few rounds, rounding in the division can put the ratio just outside its interval.
    Ratio { median, low: ratios[tail].min(median), high: ratios[DRAWS - 1 - tail].max(median) }
}

/// Percentiles of single operations; `None` without samples.
pub fn percentiles(samples: &Samples) -> Option<Percentiles> {
    (samples.count() > 0).then(|| Percentiles {
        count: samples.count(),
        mean: samples.mean_ns(),
        p50: samples.quantile_ns(0.5),
        p90: samples.quantile_ns(0.9),
        p99: samples.quantile_ns(0.99),
        p999: samples.quantile_ns(0.999),
        max: samples.quantile_ns(1.0),
    })
}

/// A summary for each case, place and file system, in the order of their first run.
pub fn summaries(records: &[Record]) -> Vec<Summary> {
    let mut groups: Vec<Vec<&Record>> = Vec::new();
    let mut places: BTreeMap<(&str, Place, Peer), usize> = BTreeMap::new();
    for record in records {
        let index = *places.entry((&record.case, record.place, record.peer)).or_insert(groups.len());
        if index == groups.len() {
            groups.push(Vec::new());
        }
        groups[index].push(record);
    }
    let usual = usual_noise(records);
    groups.iter_mut().filter_map(|rounds| summary(rounds, usual)).collect()
}

/// Median of [`Record::noise`].
pub fn usual_noise(records: &[Record]) -> f64 {
    median(&records.iter().map(|record| record.noise).collect::<Vec<f64>>())
}

/// Deviation of a run's noise from the usual noise, in either direction: 0.03 is 3 % ([SS4]).
pub fn disturbance(record: &Record, usual_noise: f64) -> f64 {
    ((1.0 + record.noise) / (1.0 + usual_noise) - 1.0).abs()
}

fn summary(rounds: &mut [&Record], usual_noise: f64) -> Option<Summary> {
    rounds.sort_by_key(|record| record.round);
    let first = *rounds.first()?;
    let values = |of: &dyn Fn(&Record) -> f64| -> Vec<f64> { rounds.iter().map(|record| of(record)).collect() };
    let rates = values(&Record::rate);
    let noise = median(&values(&|record| disturbance(record, usual_noise)));
    Some(Summary {
        case: first.case.clone(),
        group: first.group,
        place: first.place,
        peer: first.peer,
        clients: first.clients,
        unit: first.unit.clone(),
        rate: spread(&rates),
        rates,
        seconds: spread(&values(&|record| record.seconds)),
        cpu_seconds_per_unit: (median(&values(&|record| record.cpu_seconds)) >= CPU_SECONDS_LEAST)
            .then(|| median(&values(&|record| record.cpu_seconds / record.units))),
        memory_bytes: rounds.iter().filter_map(|record| record.memory_bytes).max(),
        latency_ns: medians(rounds, |record| Some((record.latency_ns.as_ref()?, 1.0))),
        traffic_per_unit: medians(rounds, |record| Some((record.traffic.as_ref()?, record.units))),
        connections: rounds.iter().filter_map(|record| record.connections).min(),
        noise,
    })
}

/// Medians of the fields of some rounds' values, each divided; `None` without values. A field that a round has not is left out.
fn medians<T: Serialize>(rounds: &[&Record], of: impl Fn(&Record) -> Option<(&T, f64)>) -> Option<BTreeMap<String, f64>> {
    let of_round = |(value, units)| match serde_json::to_value(value) {
        Ok(Value::Object(fields)) => Some((fields, units)),
        _ => None,
    };
    let all: Vec<_> = rounds.iter().filter_map(|record| of(record)).filter_map(of_round).collect();
    let of_field = |name: &String| {
        let values: Option<Vec<f64>> = all.iter().map(|(fields, units)| Some(fields[name].as_f64()? / units)).collect();
        Some((name.clone(), median(&values?)))
    };
    all.first().map(|(fields, _)| fields.keys().filter_map(of_field).collect())
}

#[cfg(test)]
pub mod tests {
    use proptest::prelude::*;

    use super::super::record::Traffic;
    use super::*;

    /// A run of one second with this many units.
    pub fn record(case: &str, peer: Peer, round: u32, units: f64) -> Record {
        Record {
            case: case.into(),
            group: Group::Micro,
            place: Place::Free,
            peer,
            round,
            clients: 1,
            units,
            unit: "operations".into(),
            seconds: 1.0,
            cpu_seconds: 0.5,
            memory_bytes: Some(1 << 20),
            latency_ns: None,
            traffic: None,
            connections: None,
            noise: 0.01,
        }
    }

    #[test]
    fn a_median_is_the_middle() {
        assert_eq!([median(&[]), median(&[3.0]), median(&[9.0, 1.0, 2.0]), median(&[4.0, 1.0, 2.0, 8.0])], [0.0, 3.0, 2.0, 3.0]);
        assert_eq!(spread(&[5.0, 1.0, 2.0]), Spread { median: 2.0, low: 1.0, high: 5.0 });
    }

    #[test]
    fn cpu_time_that_is_less_than_a_few_samples_is_not_told() {
        let told = |cpu_seconds: [f64; 3]| {
            let records: Vec<Record> =
                (0..3).map(|round| Record { cpu_seconds: cpu_seconds[round], ..record("x", Peer::Xfs, round as u32, 2.0) }).collect();
            summaries(&records)[0].cpu_seconds_per_unit
        };
        assert_eq!(told([0.0, 0.01, 0.0]), None);
        assert_eq!(told([0.06, 0.0, 0.07]), Some(0.03));
    }

    #[test]
    fn one_disturbed_round_moves_no_ratio() {
        let calm = ratio(&[300.0, 301.0, 299.0, 300.0, 302.0], &[100.0, 100.0, 101.0, 99.0, 100.0]);
        let disturbed = ratio(&[300.0, 301.0, 299.0, 300.0, 10.0], &[100.0, 100.0, 101.0, 99.0, 100.0]);
        assert!((calm.median - 3.0).abs() < 0.01 && calm.low > 2.9 && calm.high < 3.1, "{calm:?}");
        assert!((disturbed.median - 3.0).abs() < 0.01, "{disturbed:?}");
        assert!(disturbed.low < calm.low, "less is sure: {disturbed:?}");
    }

    #[test]
    fn a_minute_in_which_everybody_was_slow_leaves_the_ratio_sure() {
        let found = ratio(&[300.0, 150.0, 302.0, 75.0, 299.0], &[100.0, 50.0, 100.0, 25.0, 100.0]);
        assert!((found.median - 3.0).abs() < 0.05 && found.low > 2.9 && found.high < 3.1, "{found:?}");
    }

    #[test]
    fn rounds_become_a_summary() {
        let peers = [Peer::TandemfsRelaxed, Peer::Ext4];
        let mut records: Vec<Record> = (0..5)
            .flat_map(|round| peers.map(|peer| record("x", peer, round, if peer.is_ours() { 200.0 } else { 100.0 } + f64::from(round))))
            .collect();
        for record in &mut records {
            record.traffic = Some(Traffic { written_bytes: 100 * record.units as u64, ..Traffic::default() });
        }
        let all = summaries(&records);
        assert_eq!(all.len(), 2);
        let ours = &all[0];
        assert_eq!((ours.peer, ours.rate), (Peer::TandemfsRelaxed, Spread { median: 202.0, low: 200.0, high: 204.0 }));
        let traffic = ours.traffic_per_unit.as_ref().expect("counted");
        assert_eq!((traffic["written_bytes"], traffic.get("flash_read_bytes")), (100.0, None));
        assert_eq!((ours.memory_bytes, ours.is_noisy()), (Some(1 << 20), false));
    }

    #[test]
    fn a_machine_that_is_slow_throughout_is_slow_for_everybody() {
        let of = |noise: [f64; 4]| -> Vec<bool> {
            let mut records: Vec<Record> = (0..4).map(|round| record("untar", Peer::Xfs, round, 100.0)).collect();
            records.iter_mut().zip(noise).for_each(|(record, noise)| record.noise = noise);
            let usual = usual_noise(&records);
            records.iter().map(|record| disturbance(record, usual) > NOISE_MAX).collect()
        };
        assert_eq!(of([0.0, 0.01, 0.02, 0.3]), [false, false, false, true]);
        assert_eq!(of([0.2, 0.21, 0.22, 0.2]), [false; 4]);
        assert_eq!(of([0.2, 0.21, 0.22, 0.0]), [false, false, false, true], "also when it is faster for once");
    }

    #[test]
    fn percentiles_are_of_all_operations() {
        let mut samples = Samples::new();
        assert_eq!(percentiles(&samples), None);
        (1..=1000).for_each(|time| samples.add(std::time::Duration::from_nanos(time)));
        let found = percentiles(&samples).expect("times");
        assert_eq!([found.p50, found.p90, found.p99, found.p999, found.max], [500.0, 900.0, 990.0, 999.0, 1000.0]);
    }

    fn rates() -> impl Strategy<Value = Vec<f64>> {
        prop::collection::vec(0.01..1e6_f64, 1..12)
    }

    proptest! {
        #[test]
        fn an_interval_holds_its_ratio_and_stays_within_the_extremes(ours in rates(), theirs in rates()) {
            let found = ratio(&ours, &theirs);
            prop_assert!(found.low <= found.median && found.median <= found.high);
            let (ours, theirs) = (spread(&ours), spread(&theirs));
            prop_assert!(found.low >= ours.low / theirs.high * (1.0 - 1e-12) && found.high <= ours.high / theirs.low * (1.0 + 1e-12));
        }

        #[test]
        fn a_ratio_comes_again_and_scales(ours in rates(), theirs in rates(), power in -8_i32..8) {
            let found = ratio(&ours, &theirs);
            prop_assert_eq!(found, ratio(&ours, &theirs));
            // Scaling by a power of two is exact.
            let factor = f64::from(power).exp2();
            let scaled = ratio(&ours.iter().map(|rate| rate * factor).collect::<Vec<f64>>(), &theirs);
            prop_assert_eq!([scaled.low, scaled.median, scaled.high], [found.low * factor, found.median * factor, found.high * factor]);
        }

        #[test]
        fn the_order_of_rounds_changes_no_median(mut ours in rates()) {
            let before = median(&ours);
            ours.reverse();
            prop_assert_eq!(before, median(&ours));
        }

        #[test]
        fn equal_rounds_leave_nothing_open(rate in 0.01..1e6_f64, rounds in 1_usize..10) {
            let found = ratio(&vec![rate; rounds], &vec![rate; rounds]);
            prop_assert_eq!(found, Ratio { median: 1.0, low: 1.0, high: 1.0 });
        }
    }
}
