//! TandemFS's targets relative to the other file systems, as data, and whether they are met.
//!
//! [RC1] A target is judged by the interval of the ratio: met if the whole interval meets it, missed if none of it does, undecided if only a
//!       part does or if the machine was too noisy on either side.
//! [RC3] On the same drive a target is judged at several latencies of a block command, and its verdict is that at the lowest: the profile's
//!       own, or, where this machine cannot carry it, the lowest that it can. Without a measurement there it is undecided.
//! [RC2] The yardstick is the better of ext4 and XFS in the same runs, for each case.

use serde::Serialize;

use super::backing::{Kind, Place};
use super::peer::Peer;
use super::statistics::{Ratio, Summary, ratio};
use super::subject::Subject;

/// The measure of a target.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Our rate is at least this many times that of the yardstick ([RC2]).
    RateAtLeast(f64),
    /// Our time is at most this many times that of the in-memory FUSE file system, which shows the unavoidable cost of FUSE.
    TimesNullAtMost(f64),
    /// Our bytes programmed to flash are at most this share of ext4's.
    FlashBytesAtMost(f64),
}

/// A row of the table of targets.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ComparisonTarget {
    /// Title of the row, for readers.
    pub title: &'static str,
    /// Names of the cases, without a suffix for clients or for commands at once.
    pub cases: &'static [&'static str],
    /// The forms of TandemFS that are judged, each separately.
    pub peers: &'static [Peer],
    /// The drive; `None` for every drive.
    pub place: Option<Kind>,
    /// The target value.
    pub measure: Measure,
}

const DURABLE: &[&str] = &["durable-overwrite-4k", "append-fsync-4k", "create-write-fsync-4k"];
const MANY_FILES: &[&str] = &["untar", "cp-r", "rm-r", "list-cold", "readdir-cold"];

/// Both modes at the mount, as programs use it.
const MODES: &[Peer] = &[Peer::TandemfsRelaxed, Peer::TandemfsStrict];
const RELAXED: &[Peer] = &[Peer::TandemfsRelaxed];
const STRICT: &[Peer] = &[Peer::TandemfsStrict];
const LIBRARY: &[Peer] = &[Peer::TandemfsLibrary];

/// All targets.
pub const TABLE: &[ComparisonTarget] = &[
    row("durable overwrite, append, create; strict, through FUSE", DURABLE, STRICT, Some(Kind::Free), 3.0),
    row("durable overwrite, append, create; strict, through FUSE", DURABLE, STRICT, Some(Kind::Same), 5.0),
    row("durable overwrite, append, create; library", DURABLE, LIBRARY, Some(Kind::Free), 10.0),
    row("varmail", &["varmail"], MODES, Some(Kind::Same), 4.8),
    row("fileserver, without durability (ByteFS §5.2)", &["fileserver"], MODES, Some(Kind::Same), 2.2),
    row("webproxy, without durability (ByteFS §5.2)", &["webproxy"], MODES, Some(Kind::Same), 1.3),
    row("fileserver, an fsync after each write (RomeFS §4.3)", &["fileserver-fsync"], MODES, Some(Kind::Same), 2.05),
    row("webproxy, an fsync after each write (RomeFS §4.3)", &["webproxy-fsync"], MODES, Some(Kind::Same), 3.17),
    row("oltp", &["oltp"], MODES, Some(Kind::Same), 4.1),
    row("Redis, appendfsync always", &["redis-always"], MODES, Some(Kind::Same), 2.5),
    row("SQLite, WAL and FULL", &["sqlite-wal-full", "sqlite-mixed-wal"], MODES, Some(Kind::Same), 2.5),
    row("pgbench, reading and writing", &["pgbench-read-write"], MODES, Some(Kind::Same), 2.5),
    row("RocksDB, fillsync", &["rocksdb-fillsync"], MODES, Some(Kind::Same), 2.5),
    row("warm reads", &["read-4k-random-warm", "read-1m-sequential-warm"], MODES, None, 0.9),
    row("warm getattr", &["getattr-warm"], MODES, None, 0.9),
    row("sequential 1 MiB, both ways", &["read-1m-sequential-cold", "write-1m-sequential"], MODES, None, 0.9),
    row("git status", &["git-status-cold", "git-status-warm"], MODES, None, 0.9),
    ComparisonTarget {
        title: "many small files without fsync, beside a FUSE file system that keeps nothing safe",
        cases: MANY_FILES,
        peers: MODES,
        place: None,
        measure: Measure::TimesNullAtMost(1.25),
    },
    ComparisonTarget {
        title: "bytes to flash beside ext4's",
        cases: &["varmail", "create-write-fsync-4k"],
        peers: RELAXED,
        place: Some(Kind::Same),
        measure: Measure::FlashBytesAtMost(1.0 / 3.0),
    },
];

const fn row(
    title: &'static str,
    cases: &'static [&'static str],
    peers: &'static [Peer],
    place: Option<Kind>,
    times: f64,
) -> ComparisonTarget {
    ComparisonTarget { title, cases, peers, place, measure: Measure::RateAtLeast(times) }
}

/// Result of a target ([RC1]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The whole interval meets it.
    Met,
    /// No part of the interval meets it.
    Missed,
    /// The limit is inside the interval.
    UndecidedByInterval,
    /// The machine was too noisy.
    UndecidedByNoise,
    /// It was not measured at the latency that decides ([RC3]).
    UndecidedByLatency,
}

impl Verdict {
    /// The verdict in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "missed",
            Self::UndecidedByInterval => "undecided: more rounds are needed",
            Self::UndecidedByNoise => "undecided: the machine was too noisy",
            Self::UndecidedByLatency => "undecided: not measured at the latency that decides",
        }
    }
}

/// A target and its measurement for one case.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Judgement {
    /// The target.
    pub target: ComparisonTarget,
    /// The case.
    pub case: String,
    /// The drive.
    pub place: Place,
    /// The form of TandemFS.
    pub peer: Peer,
    /// The peer that the ratio is relative to.
    pub other: Peer,
    /// The ratio as in [`Measure`]: of rates, times or bytes.
    pub ratio: Ratio,
    /// Ratio of our rate to ext4's, for rows judged by another measure.
    pub beside_ext4: Option<Ratio>,
    /// The result.
    pub verdict: Verdict,
    /// The same at all latencies of a block command, from the lowest ([RC3]); the first is this one. Empty on the free drive.
    pub curve: Vec<Point>,
}

/// A result at one latency of a block command.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Point {
    /// Microseconds of a block command.
    pub us: u32,
    /// The ratio.
    pub ratio: Ratio,
    /// The result, if this latency decided.
    pub verdict: Verdict,
}

/// Judges every row of [`TABLE`] for which both sides were measured, in the order of the table. `decisive_us` is the latency that decides
/// on the same drive ([RC3]).
pub fn judge(subjects: &[Subject<'_>], decisive_us: Option<u32>) -> Vec<Judgement> {
    let mut subjects: Vec<&Subject<'_>> = subjects.iter().collect();
    subjects.sort_by_key(|subject| subject.place);
    let mut judgements: Vec<Judgement> = Vec::new();
    for target in TABLE {
        let is_meant = |subject: &&&Subject<'_>| target.is_of(&subject.case, subject.place);
        let found =
            subjects.iter().filter(is_meant).flat_map(|subject| target.peers.iter().filter_map(|peer| judge_one(*target, subject, *peer)));
        for judgement in found {
            let is_same = |other: &&mut Judgement| {
                (other.target, other.place.kind(), other.peer, &other.case)
                    == (*target, judgement.place.kind(), judgement.peer, &judgement.case)
            };
            match judgements.iter_mut().find(is_same) {
                Some(lowest) => lowest.curve.extend(judgement.curve),
                None => judgements.push(judgement),
            }
        }
    }
    for judgement in &mut judgements {
        if let (Place::Same(us), Some(decisive_us)) = (judgement.place, decisive_us)
            && us > decisive_us
        {
            judgement.verdict = Verdict::UndecidedByLatency;
        }
    }
    judgements
}

/// Whether a case on a drive decides a row of [`TABLE`].
pub fn decides(case: &str, place: Place) -> bool {
    TABLE.iter().any(|target| target.is_of(case, place))
}

impl ComparisonTarget {
    fn is_of(&self, case: &str, place: Place) -> bool {
        self.place.is_none_or(|wanted| wanted == place.kind()) && self.cases.iter().any(|name| is_case(case, name))
    }
}

fn judge_one(target: ComparisonTarget, subject: &Subject<'_>, peer: Peer) -> Option<Judgement> {
    let ours = subject.of(peer)?;
    let rates = |other: &Summary| ratio(&ours.rates, &other.rates);
    let (other, found) = match target.measure {
        Measure::RateAtLeast(_) => {
            let other = subject.yardstick()?;
            (other, rates(other))
        }
        Measure::TimesNullAtMost(_) => {
            let other = subject.of(Peer::Null)?;
            (other, rates(other).inverse())
        }
        Measure::FlashBytesAtMost(_) => {
            let other = subject.of(Peer::Ext4)?;
            let flash = |summary: &Summary| summary.traffic_per_unit.as_ref()?.flash_programmed_bytes;
            // If ext4 programs nothing, the ratio says nothing: all work stayed in the drive's DRAM. Zero for us is the best share.
            (other, ratio(&[flash(ours)?], &[flash(other).filter(|bytes| *bytes > 0.0)?]))
        }
    };
    let beside_ext4 = match target.measure {
        Measure::RateAtLeast(_) => None,
        _ => subject.of(Peer::Ext4).map(rates),
    };
    let counts_time = !matches!(target.measure, Measure::FlashBytesAtMost(_));
    let verdict = match () {
        () if counts_time && (ours.is_noisy() || other.is_noisy()) => Verdict::UndecidedByNoise,
        () if counts_time && (ours.is_of_few_rounds() || other.is_of_few_rounds()) => Verdict::UndecidedByInterval,
        () => verdict(target.measure, found),
    };
    Some(Judgement {
        target,
        case: ours.case.clone(),
        place: ours.place,
        peer: ours.peer,
        other: other.peer,
        ratio: found,
        beside_ext4,
        verdict,
        curve: match ours.place {
            Place::Same(us) => vec![Point { us, ratio: found, verdict }],
            Place::Free => Vec::new(),
        },
    })
}

/// Whether a name is that of a case with any number of clients (`-c4`) or of commands at once (`-p10`).
pub fn is_case(name: &str, case: &str) -> bool {
    let is_number = |text: &str| text.strip_prefix(['c', 'p']).is_some_and(|number| number.parse::<u32>().is_ok());
    name.strip_prefix(case).is_some_and(|rest| rest.is_empty() || rest.strip_prefix('-').is_some_and(is_number))
}

fn verdict(measure: Measure, found: Ratio) -> Verdict {
    let (sure, never) = match measure {
        Measure::RateAtLeast(least) => (found.low >= least, found.high < least),
        Measure::TimesNullAtMost(most) | Measure::FlashBytesAtMost(most) => (found.high <= most, found.low > most),
    };
    match (sure, never) {
        (true, _) => Verdict::Met,
        (_, true) => Verdict::Missed,
        _ => Verdict::UndecidedByInterval,
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{Record, Traffic};
    use super::super::statistics::summaries;
    use super::super::statistics::tests::record;
    use super::super::subject::subjects;
    use super::*;

    fn rounds(case: &str, peer: Peer, rates: &[f64]) -> Vec<Record> {
        rates.iter().zip(0..).map(|(rate, round)| record(case, peer, round, *rate)).collect()
    }

    fn judged_at(records: &[Record], decisive_us: Option<u32>) -> Vec<Judgement> {
        judge(&subjects(&summaries(records)), decisive_us)
    }

    fn judged(sides: &[Vec<Record>]) -> Vec<Judgement> {
        judged_at(&sides.concat(), None)
    }

    #[test]
    fn the_better_of_ext4_and_xfs_is_the_yardstick() {
        let name = "durable-overwrite-4k-c1";
        let ours = rounds(name, Peer::TandemfsStrict, &[320.0, 321.0, 322.0]);
        let slow = rounds(name, Peer::Ext4, &[50.0, 51.0, 52.0]);
        let btrfs = rounds(name, Peer::Btrfs, &[500.0, 500.0, 500.0]);
        let found = judged(&[ours.clone(), slow.clone(), btrfs.clone()]);
        assert_eq!(found.iter().map(|each| (each.other, each.verdict)).collect::<Vec<_>>(), [(Peer::Ext4, Verdict::Met)]);
        let found = judged(&[ours, slow, btrfs, rounds(name, Peer::Xfs, &[200.0, 200.0, 201.0])]);
        assert_eq!(found.iter().map(|each| (each.other, each.verdict)).collect::<Vec<_>>(), [(Peer::Xfs, Verdict::Missed)]);
    }

    #[test]
    fn an_interval_on_both_sides_and_noise_decide_nothing() {
        let name = "append-fsync-4k-c4";
        let ext4 = rounds(name, Peer::Ext4, &[100.0, 100.0, 100.0]);
        let wide = rounds(name, Peer::TandemfsStrict, &[250.0, 310.0, 400.0]);
        assert_eq!(judged(&[wide, ext4.clone()])[0].verdict, Verdict::UndecidedByInterval);
        let mut fast = rounds(name, Peer::TandemfsStrict, &[900.0, 900.0, 900.0]);
        assert_eq!(judged(&[fast.clone(), ext4.clone()])[0].verdict, Verdict::Met);
        fast.iter_mut().for_each(|record| record.noise = 0.5);
        assert_eq!(judged(&[fast, ext4])[0].verdict, Verdict::UndecidedByNoise);
    }

    #[test]
    fn regression_one_round_decides_nothing() {
        let name = "append-fsync-4k-c4";
        let (ours, ext4) = (rounds(name, Peer::TandemfsStrict, &[900.0]), rounds(name, Peer::Ext4, &[100.0, 100.0, 100.0]));
        assert_eq!(judged(&[ours, ext4])[0].verdict, Verdict::UndecidedByInterval);
    }

    #[test]
    fn many_small_files_are_held_against_fuse_that_does_nothing() {
        let (null, ext4) = (rounds("untar", Peer::Null, &[100.0; 3]), rounds("untar", Peer::Ext4, &[400.0; 3]));
        let found = judged(&[rounds("untar", Peer::TandemfsRelaxed, &[90.0; 3]), null.clone(), ext4.clone()]);
        assert_eq!((found[0].other, found[0].verdict), (Peer::Null, Verdict::Met));
        assert!((found[0].ratio.median - 100.0 / 90.0).abs() < 1e-9);
        assert!(found[0].beside_ext4.is_some_and(|beside| (beside.median - 0.225).abs() < 1e-9));
        assert_eq!(judged(&[rounds("untar", Peer::TandemfsRelaxed, &[70.0; 3]), null, ext4])[0].verdict, Verdict::Missed);
    }

    #[test]
    fn flash_is_counted_not_timed() {
        let side = |peer, flash: u64| {
            let mut records = rounds("varmail", peer, &[10.0; 3]);
            for record in &mut records {
                record.place = Place::Same(25);
                record.noise = if peer == Peer::Ext4 { 0.5 } else { 0.0 };
                record.traffic = Some(Traffic { flash_programmed_bytes: Some(flash), ..Traffic::default() });
            }
            records
        };
        let verdicts = |ours, ext4| {
            let found = judged(&[side(Peer::TandemfsRelaxed, ours), side(Peer::Ext4, ext4)]);
            found.iter().map(|each| each.verdict).collect::<Vec<_>>()
        };
        assert_eq!(verdicts(9_000, 30_000), [Verdict::UndecidedByNoise, Verdict::Met]);
        assert_eq!(verdicts(11_000, 30_000), [Verdict::UndecidedByNoise, Verdict::Missed]);
        assert_eq!(verdicts(0, 30_000), [Verdict::UndecidedByNoise, Verdict::Met], "everything is in the drive's DRAM still");
        assert_eq!(verdicts(0, 0), [Verdict::UndecidedByNoise], "for everybody: it says nothing");
    }

    #[test]
    fn the_lowest_latency_decides_and_the_others_are_shown() {
        let side = |peer: Peer, us: u32, rate: f64| {
            let mut records = rounds("durable-overwrite-4k-c1", peer, &[rate; 3]);
            records.iter_mut().for_each(|record| record.place = Place::Same(us));
            records
        };
        let ours = [50, 25].map(|us| side(Peer::TandemfsStrict, us, 100.0));
        let records = [ours.concat(), side(Peer::Ext4, 25, 40.0), side(Peer::Ext4, 50, 10.0)].concat();
        let judged = |decisive_us| judged_at(&records, decisive_us);
        let found = judged(Some(25));
        assert_eq!((found.len(), found[0].place, found[0].verdict), (1, Place::Same(25), Verdict::Missed));
        let curve: Vec<(u32, Verdict)> = found[0].curve.iter().map(|point| (point.us, point.verdict)).collect();
        assert_eq!(curve, [(25, Verdict::Missed), (50, Verdict::Met)], "met at a longer latency is not met");
        assert_eq!(judged(Some(15))[0].verdict, Verdict::UndecidedByLatency, "15 us could have been measured");
    }

    #[test]
    fn regression_every_target_names_cases_that_there_are() {
        let names: Vec<String> = crate::compare::cases::all().iter().map(|case| case.name.clone()).collect();
        for case in TABLE.iter().flat_map(|target| target.cases) {
            assert!(names.iter().any(|name| is_case(name, case)), "no case is called {case}: {names:?}");
        }
    }

    #[test]
    fn a_row_is_for_its_cases_only() {
        assert!(is_case("oltp", "oltp") && is_case("oltp-c4", "oltp") && is_case("redis-p100", "redis"));
        assert!(!is_case("oltpish", "oltp") && !is_case("untar-sync", "untar") && !is_case("oltp-cold", "oltp"));
        let sides = |ours| [rounds("untar", ours, &[1.0]), rounds("untar", Peer::Ext4, &[1.0]), rounds("untar", Peer::Null, &[1.0])];
        assert_eq!(judged(&sides(Peer::TandemfsLibrary)), []);
        assert_eq!(judged(&sides(Peer::TandemfsStrict))[0].peer, Peer::TandemfsStrict, "each mode by itself");
    }
}
