//! Artificial results for tests of the report: every kind of case, place and peer, and unusual values.

use std::collections::BTreeMap;

use crate::compare::backing::Place;
use crate::compare::case::Group;
use crate::compare::peer::Peer;
use crate::compare::record::{Calibration, Header, Percentiles, Record, Traffic, VERSION};

/// A name that must be escaped.
pub const HOSTILE: &str = "<script>alert('x')</script>";
/// The case with the largest loss of TandemFS, on both drives.
pub const WORST: &str = "untar";
/// A case whose runs are all noisy.
pub const NOISY: &str = "redis-always-p1";

/// Name, group, unit, parameter, rate of ext4, and the factor of relaxed TandemFS over it.
type Case = (&'static str, Group, &'static str, Option<f64>, f64, f64);

const CASES: [Case; 17] = [
    ("durable-overwrite-4k-c1", Group::Micro, "operations", None, 9_000.0, 4.1),
    ("durable-overwrite-4k-c16", Group::Micro, "operations", None, 40_000.0, 6.3),
    ("append-fsync-4k-c1", Group::Micro, "operations", None, 7_000.0, 3.3),
    ("create-write-fsync-4k-c1", Group::Micro, "operations", None, 4_000.0, 5.9),
    ("read-4k-random-warm-c1", Group::Micro, "operations", None, 1_100_000.0, 0.97),
    ("write-1m-sequential", Group::Micro, "bytes", None, 1_900_000_000.0, 0.71),
    (WORST, Group::Buffered, "files", None, 61_000.0, 0.12),
    ("git-status-warm", Group::Buffered, "entries", None, 90_000.0, 0.99),
    ("varmail", Group::Filebench, "operations", None, 12_000.0, 5.2),
    ("fileserver", Group::Filebench, "operations", None, 8_000.0, 1.4),
    (NOISY, Group::Applications, "requests", None, 20_000.0, 2.9),
    (HOSTILE, Group::Applications, "queries", None, 700.0, 1.5),
    ("scale-create-in-1000", Group::Scale, "operations", Some(1e3), 30_000.0, 1.2),
    ("scale-create-in-10000", Group::Scale, "operations", Some(1e4), 28_000.0, 1.25),
    ("scale-create-in-1000000", Group::Scale, "operations", Some(1e6), 11_000.0, 2.2),
    ("scale-age-0", Group::Scale, "bytes", Some(0.0), 1.5e9, 1.05),
    ("scale-age-3", Group::Scale, "bytes", Some(3.0), 1.1e9, 0.9),
];

/// Rate of a file system relative to ext4's; `ours` is that of relaxed TandemFS.
fn factor(peer: Peer, ours: f64) -> f64 {
    match peer {
        Peer::TandemfsRelaxed => ours,
        Peer::TandemfsStrict => ours * 0.93,
        Peer::TandemfsLibrary => ours * 3.7,
        Peer::Ext4 => 1.0,
        Peer::Ext4Journal => 0.61,
        Peer::Xfs => 0.94,
        Peer::Btrfs => 0.48,
        Peer::Null => ours * 1.6,
    }
}

/// Records of three rounds.
pub fn records() -> Vec<Record> {
    let mut records = Vec::new();
    for round in 0..3 {
        for place in [Place::Free, Place::Same] {
            for case in CASES {
                let peers = Peer::ALL.into_iter().filter(|peer| *peer != Peer::TandemfsLibrary || case.1 == Group::Micro);
                records.extend(peers.map(|peer| record(case, place, peer, round)));
            }
        }
    }
    records
}

fn record((case, group, unit, parameter, rate, ours): Case, place: Place, peer: Peer, round: u32) -> Record {
    let place_factor = if place == Place::Same && !peer.is_ours() { 0.7 } else { 1.0 };
    let rate = rate * place_factor * factor(peer, ours) * (1.0 + 0.03 * f64::from(round) - 0.02 * f64::from(round % 2));
    let (seconds, time_ns) = (2.0, 1e9 / rate);
    let units = (rate * seconds).round();
    let times = |factor: f64| time_ns * factor;
    let latency = Percentiles {
        count: units as u64,
        mean: times(1.0),
        p50: times(0.9),
        p90: times(1.5),
        p99: times(3.0),
        p999: times(if peer.is_ours() { 9.0 } else { 30.0 }),
        max: times(400.0),
    };
    let written = units * if unit == "bytes" { 1.05 } else { 4096.0 * if peer.is_ours() { 1.3 } else { 4.0 } };
    let parts: &[(&str, f64)] = match peer {
        Peer::Xfs => &[("log", 0.5), ("data", 0.3)],
        peer if peer.is_ours() => &[("journal", 0.2), ("data logs", 0.5), ("blocks", 0.2), ("inodes", 0.1)],
        _ => &[("journal", 0.6), ("data", 0.25), ("inode tables", 0.1), ("bitmaps", 0.03), ("directories", 0.02)],
    };
    Record {
        case: case.into(),
        group,
        place,
        peer,
        round,
        clients: 1,
        parameter,
        units,
        unit: unit.into(),
        seconds,
        cpu_seconds: if peer.is_ours() { 1.9 } else { 1.1 },
        memory_bytes: (peer.is_ours() || peer == Peer::Null).then_some(90 << 20),
        latency_ns: (unit != "bytes").then_some(latency),
        traffic: (place == Place::Same).then(|| Traffic {
            read_bytes: units as u64 * 12,
            written_bytes: written as u64,
            flushes: units as u64,
            flash_programmed_bytes: Some((written * 1.7) as u64),
            flash_read_bytes: Some((written * 0.2) as u64),
            written_by_structure: parts
                .iter()
                .map(|(name, share)| ((*name).to_owned(), (written * share) as u64))
                .collect::<BTreeMap<_, _>>(),
        }),
        noise: if case == NOISY { 0.31 } else { 0.02 },
    }
}

/// A header with all kinds of entries.
pub fn header() -> Header {
    let pairs = |pairs: &[(&str, &str)]| pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Header {
        version: VERSION,
        machine: pairs(&[
            ("cpu", "a processor with a name that is long enough to need room, 2 GHz"),
            ("memory", "16 GiB"),
            ("kernel", "6.18"),
        ]),
        programs: pairs(&[("fio", "3.33"), ("mkfs.ext4", "1.47"), (HOSTILE, HOSTILE)]),
        settings: pairs(&[("rounds", "3"), ("scale", "0.05")]),
        left_out: pairs(&[("rocksdb-fillsync", "db_bench is not installed"), ("f2fs", "this kernel has no f2fs")]),
        calibration: vec![
            Calibration { request: "4 KiB read, queue depth 1".into(), loop_ns: 81_000.0, drive_ns: 80_000.0 },
            Calibration { request: "4 KiB write + flush, queue depth 1".into(), loop_ns: 131_000.0, drive_ns: 110_000.0 },
        ],
    }
}
