//! TandemFS's targets relative to the other file systems, as data, and whether they are met.
//!
//! [RC1] A target is judged by the interval of the ratio: met if the whole interval meets it, missed if none of it does, undecided if only a
//!       part does or if the machine was too noisy on either side.
//! [RC3] On the same drive a target is judged at several latencies of a block command, and its verdict is that at the lowest: the profile's
//!       own, or, where this machine cannot carry it, the lowest that it can. Without a measurement there it is undecided.
//! [RC2] The yardstick is the better of ext4 and XFS in the same runs, for each case.
//! [RC4] A reach of the direct door is the least of three in the same rounds: a multiple of the yardstick, a share of what the library does, and
//!       a share of what the program does with durability switched off. Without the third, which programs of a reach always have, a reach
//!       can be met, but not missed.

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
    /// The same, or what the library or the program itself allow, if that is less ([RC4]).
    Reach(f64),
    /// Our rate is not below that of the better mode at a mount without the direct door.
    NotSlowerThanMount,
    /// Our rate is not below that of the same mount without `tandemfs run`.
    NotSlowerThanBeside,
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
    /// Names of the cases, with or without a suffix for clients or for commands at once; every case if there are none.
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
const DIRECT: &[Peer] = &[Peer::TandemfsDirect];

/// What a program may lose of the library's rate on its way through the direct door ([RC4]).
const OF_LIBRARY: f64 = 0.8;
/// And of its own rate without durability.
const OF_VOLATILE: f64 = 0.9;
/// A rate that is surely above this share of the mount's, and not surely below the mount's, is not slower.
const AS_FAST: f64 = 0.95;

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
    reach("durable overwrite", &["durable-overwrite-4k-c1", "durable-overwrite-4k-c4"], 15.0),
    reach("durable append", &["append-fsync-4k-c1", "append-fsync-4k-c4"], 25.0),
    reach("durable create", &["create-write-fsync-4k-c1", "create-write-fsync-4k-c4"], 20.0),
    reach("durable, 16 clients", &["durable-overwrite-4k-c16", "append-fsync-4k-c16", "create-write-fsync-4k-c16"], 3.0),
    reach("varmail", &["varmail"], 4.8),
    reach("oltp", &["oltp"], 4.1),
    reach("SQLite, WAL and FULL", &["sqlite-wal-full"], 5.0),
    reach("SQLite, mixed", &["sqlite-mixed-wal"], 1.5),
    reach("Redis, appendfsync always", &["redis-always-p1"], 4.0),
    reach("pgbench, reading and writing", &["pgbench-read-write"], 2.2),
    reach("RocksDB, fillsync", &["rocksdb-fillsync"], 15.0),
    reach("fileserver, an fsync after each write", &["fileserver-fsync"], 2.0),
    reach("webproxy, an fsync after each write", &["webproxy-fsync"], 3.2),
    row(
        "many small files",
        &["untar", "cp-r", "rm-r", "readdir-cold", "git-status-cold", "git-status-warm"],
        DIRECT,
        Some(Kind::Same),
        0.8,
    ),
    ComparisonTarget {
        title: "not slower than by the better mode of a mount without the direct door",
        cases: &[],
        peers: DIRECT,
        place: None,
        measure: Measure::NotSlowerThanMount,
    },
    ComparisonTarget {
        title: "not slower than by the same mount without tandemfs run",
        cases: &[],
        peers: DIRECT,
        place: None,
        measure: Measure::NotSlowerThanBeside,
    },
];

const fn reach(title: &'static str, cases: &'static [&'static str], times: f64) -> ComparisonTarget {
    ComparisonTarget { title, cases, peers: DIRECT, place: Some(Kind::Same), measure: Measure::Reach(times) }
}

const fn row(
    title: &'static str,
    cases: &'static [&'static str],
    peers: &'static [Peer],
    place: Option<Kind>,
    times: f64,
) -> ComparisonTarget {
    ComparisonTarget { title, cases, peers, place, measure: Measure::RateAtLeast(times) }
}

/// Result of a target ([RC1]), in words in the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// The whole interval meets it.
    #[serde(rename = "met")]
    Met,
    /// No part of the interval meets it.
    #[serde(rename = "missed")]
    Missed,
    /// The limit is inside the interval.
    #[serde(rename = "undecided: more rounds are needed")]
    UndecidedByInterval,
    /// The machine was too noisy.
    #[serde(rename = "undecided: the machine was too noisy")]
    UndecidedByNoise,
    /// It was not measured at the latency that decides ([RC3]).
    #[serde(rename = "undecided: not measured at the latency that decides")]
    UndecidedByLatency,
    /// What may limit a reach was not measured ([RC4]).
    #[serde(rename = "undecided: not measured without durability")]
    UndecidedByLimit,
}

/// What a rate is held against: so many times that of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Limit {
    /// The peer.
    pub other: Peer,
    /// How many times its rate.
    pub times: f64,
    /// Units per second.
    pub rate: f64,
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
    /// Everything that limits a [`Measure::Reach`] ([RC4]); empty for others. The ratio is to the peer of the least.
    pub limits: Vec<Limit>,
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

/// Whether a case on a drive decides a row of [`TABLE`] that names its cases.
pub fn decides(case: &str, place: Place) -> bool {
    TABLE.iter().any(|target| !target.cases.is_empty() && target.is_of(case, place))
}

impl ComparisonTarget {
    fn is_of(&self, case: &str, place: Place) -> bool {
        let is_meant = self.cases.is_empty() || self.cases.iter().any(|name| is_case(case, name));
        self.place.is_none_or(|wanted| wanted == place.kind()) && is_meant
    }
}

fn judge_one(target: ComparisonTarget, subject: &Subject<'_>, peer: Peer) -> Option<Judgement> {
    let ours = subject.of(peer)?;
    let rates = |other: &Summary| ratio(&ours.rates, &other.rates);
    let (mut measure, mut limits) = (target.measure, Vec::new());
    let (other, found) = match target.measure {
        Measure::Reach(times) => {
            let allow = [(subject.of(Peer::TandemfsLibrary), OF_LIBRARY), (subject.of(Peer::Ext4Volatile), OF_VOLATILE)];
            let mut sides = vec![(subject.yardstick()?, times)];
            sides.extend(allow.into_iter().filter_map(|(side, times)| Some((side?, times))));
            limits = sides.iter().map(|(side, times)| Limit { other: side.peer, times: *times, rate: times * side.rate.median }).collect();
            sides.sort_by(|(one, times), (other, more)| (times * one.rate.median).total_cmp(&(more * other.rate.median)));
            let (least, times) = sides[0];
            measure = Measure::RateAtLeast(times);
            (least, rates(least))
        }
        Measure::NotSlowerThanMount => {
            let other = subject.best_mount()?;
            (other, rates(other))
        }
        Measure::NotSlowerThanBeside => {
            let other = subject.of(Peer::TandemfsBeside)?;
            (other, rates(other))
        }
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
            let flash = |summary: &Summary| summary.traffic_per_unit.as_ref()?.get("flash_programmed_bytes").copied();
            // If ext4 programs nothing, the ratio says nothing: all work stayed in the drive's DRAM. Zero for us is the best share.
            (other, ratio(&[flash(ours)?], &[flash(other).filter(|bytes| *bytes > 0.0)?]))
        }
    };
    let beside_ext4 = match target.measure {
        Measure::TimesNullAtMost(_) | Measure::FlashBytesAtMost(_) => subject.of(Peer::Ext4).map(rates),
        _ => None,
    };
    let counts_time = !matches!(target.measure, Measure::FlashBytesAtMost(_));
    let verdict = match () {
        () if counts_time && (ours.is_noisy() || other.is_noisy()) => Verdict::UndecidedByNoise,
        () if counts_time && (ours.is_of_few_rounds() || other.is_of_few_rounds()) => Verdict::UndecidedByInterval,
        () => verdict(measure, found),
    };
    let lacks_a_limit = !limits.is_empty() && subject.of(Peer::Ext4Volatile).is_none();
    let verdict = if verdict == Verdict::Missed && lacks_a_limit { Verdict::UndecidedByLimit } else { verdict };
    Some(Judgement {
        target,
        case: ours.case.clone(),
        place: ours.place,
        peer: ours.peer,
        other: other.peer,
        limits,
        ratio: found,
        beside_ext4,
        verdict,
        curve: match ours.place {
            Place::Same(us) => vec![Point { us, ratio: found, verdict }],
            Place::Free | Place::Untimed => Vec::new(),
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
        Measure::RateAtLeast(least) | Measure::Reach(least) => (found.low >= least, found.high < least),
        Measure::NotSlowerThanMount | Measure::NotSlowerThanBeside => (found.low >= AS_FAST && found.high >= 1.0, found.high < 1.0),
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
    fn a_reach_is_the_least_of_three() {
        let side = |peer: Peer, rate: f64| {
            let mut records = rounds("durable-overwrite-4k-c4", peer, &[rate; 3]);
            records.iter_mut().for_each(|record| record.place = Place::Same(10));
            records
        };
        let reach = |sides: &[(Peer, f64)]| {
            let records: Vec<Record> = sides.iter().flat_map(|(peer, rate)| side(*peer, *rate)).collect();
            let mut found = judged_at(&records, Some(10));
            found.retain(|each| matches!(each.target.measure, Measure::Reach(_)));
            (found[0].other, found[0].verdict, found[0].limits.iter().map(|limit| limit.rate).collect::<Vec<_>>())
        };
        let (ours, ext4, xfs) = ((Peer::TandemfsDirect, 900.0), (Peer::Ext4, 80.0), (Peer::Xfs, 100.0));
        let (library, volatile) = ((Peer::TandemfsLibrary, 5000.0), (Peer::Ext4Volatile, 2000.0));
        assert_eq!(reach(&[ours, ext4, xfs, library, volatile]), (Peer::Xfs, Verdict::Missed, vec![1500.0, 4000.0, 1800.0]));
        let volatile = (Peer::Ext4Volatile, 1000.0);
        assert_eq!(reach(&[ours, ext4, xfs, library, volatile]), (Peer::Ext4Volatile, Verdict::Met, vec![1500.0, 4000.0, 900.0]));
        let library = (Peer::TandemfsLibrary, 1000.0);
        assert_eq!(reach(&[ours, ext4, xfs, library, volatile]), (Peer::TandemfsLibrary, Verdict::Met, vec![1500.0, 800.0, 900.0]));
        assert_eq!(reach(&[ours, ext4, xfs]).1, Verdict::UndecidedByLimit, "the program may not be able to do more");
    }

    #[test]
    fn what_is_not_slower_than_the_mount_is_as_fast_as_its_better_mode() {
        let verdict = |rates: [f64; 3]| {
            let relaxed = rounds("anything", Peer::TandemfsRelaxed, &[100.0; 3]);
            let found =
                judged(&[rounds("anything", Peer::TandemfsDirect, &rates), relaxed, rounds("anything", Peer::TandemfsStrict, &[50.0; 3])]);
            assert_eq!((found.len(), found[0].other), (1, Peer::TandemfsRelaxed));
            found[0].verdict
        };
        assert_eq!(
            [[120.0; 3], [100.0; 3], [99.0; 3], [60.0; 3]].map(verdict),
            [Verdict::Met, Verdict::Met, Verdict::Missed, Verdict::Missed]
        );
        assert_eq!(verdict([96.0, 100.0, 101.0]), Verdict::Met);
        assert_eq!(verdict([80.0, 100.0, 120.0]), Verdict::UndecidedByInterval);
        assert!(!decides("anything", Place::Free), "it takes no time from what has targets of its own");
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
