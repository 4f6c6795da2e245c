//! The report of a comparison: a Markdown file, made only from the file of results.
//!
//! [REP1] Cases that TandemFS loses come first, then targets, then all results.
//! [REP2] Every case and every run is in the report, or listed with a reason among the left-out ones.
//! [REP3] A value has a unit and three digits; a ratio has its interval; values from a disturbed machine are marked and decide nothing.
//! [REP4] Names come from a file that anybody may have written: they are always treated as text.
//!
//! `chapters.rs` writes each chapter into a page of `markdown.rs`, `door.rs` that of the direct door.

mod chapters;
mod door;
mod markdown;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use self::markdown::Page;
use super::case::Group;
use super::session::RESULTS;
use super::statistics::summaries;
use super::store::Results;
use super::{cases, subject, targets};
use crate::arguments::ReportArguments;
use crate::failure::{Failure, Result};
use crate::output::say;

const REPORT: &str = "report.md";

/// `tandemfs-bench report`.
///
/// # Errors
/// Those of [`write`]; standard output is closed.
pub fn run(arguments: &ReportArguments) -> Result<()> {
    let (results, directory) = places(arguments);
    say(&write(&results, &directory)?)
}

/// The results file, and the directory of its report.
fn places(arguments: &ReportArguments) -> (PathBuf, PathBuf) {
    let named = &arguments.results;
    let results = if named.is_dir() { named.join(RESULTS) } else { named.clone() };
    let beside = || results.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned();
    let directory = arguments.output.clone().unwrap_or_else(beside);
    (results, directory)
}

/// Makes `report.md` in a directory from a file of results. Returns its first chapters (losses, targets), for the terminal.
///
/// # Errors
/// A sentence: the results cannot be read, or the report cannot be written.
pub fn write(results: &Path, directory: &Path) -> Result<String> {
    let (first, rest) = text(&Results::read(results)?);
    let path = directory.join(REPORT);
    let failed = |path: &Path, error| Failure::new(format!("{}: {error}", path.display()));
    fs::create_dir_all(directory).map_err(|error| failed(directory, error))?;
    fs::write(&path, format!("# TandemFS beside ext4, XFS and Btrfs\n\n{first}{}\n", rest.trim_end()))
        .map_err(|error| failed(&path, error))?;
    Ok(format!("{first}The whole report: {}\n", path.display()))
}

/// The first chapters, and the rest.
fn text(results: &Results) -> (String, String) {
    let descriptions: BTreeMap<String, String> = cases::all().iter().map(|case| (case.name.clone(), case.description.clone())).collect();
    let summaries = summaries(&results.runs);
    let subjects = subject::subjects(&summaries);
    let judgements = targets::judge(&subjects, results.header.decisive_us);
    let left_out = chapters::left_out(results, &subjects);
    let (mut first, mut rest) = (Page::default(), Page::default());
    if results.runs.is_empty() {
        first.text("No run has been recorded yet: these results hold their header only.");
    }
    chapters::losses(&mut first, &subjects, &judgements, left_out.len());
    chapters::targets(&mut first, &judgements, results.header.decisive_us);
    door::door(&mut first, &subjects, &judgements);
    for group in Group::ALL {
        chapters::group(&mut rest, group, &subjects, &|case| descriptions.get(case).cloned());
    }
    chapters::bytes(&mut rest, &subjects);
    chapters::calibration(&mut rest, &results.header.same_drives);
    chapters::background(&mut rest, results, left_out);
    (first.0, rest.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::backing::Place;
    use crate::compare::peer::Peer;
    use crate::compare::record::{Calibration, Header, Percentiles, Record, SameDrive, Traffic};
    use crate::compare::same_drive;
    use crate::compare::statistics::tests::record;
    use crate::compare::store;

    const HOSTILE: &str = "<script>alert('x')</script>";
    const NOISY: &str = "redis-always-p1";

    /// Three rounds of every peer on a loss, a win, a case that is noisy and one with a name that must be escaped.
    fn sample() -> Vec<Record> {
        let mut records = Vec::new();
        for (case, group, factor) in [
            ("untar", Group::Buffered, 0.12),
            ("durable-overwrite-4k-c1", Group::Micro, 4.1),
            ("varmail", Group::Filebench, 5.2),
            (NOISY, Group::Applications, 2.9),
            (HOSTILE, Group::Applications, 0.71),
        ] {
            for (peer, round) in Peer::all().flat_map(|peer| [0, 1, 2].map(|round| (peer, round))) {
                let units = if peer.is_ours() { 1e4 * factor } else { 1e4 };
                let traffic =
                    Traffic { written_bytes: 4096 * units as u64, flash_programmed_bytes: Some(8192 * units as u64), ..Traffic::default() };
                records.push(Record {
                    group,
                    place: Place::Same(25),
                    latency_ns: Some(Percentiles { count: 1, mean: 2e3, p50: 1e3, p90: 2e3, p99: 5e3, p999: 9e4, max: 3e6 }),
                    traffic: Some(traffic),
                    noise: if case == NOISY { 0.31 } else { 0.02 },
                    ..record(case, peer, round, units)
                });
            }
        }
        records
    }

    fn header() -> Header {
        Header {
            left_out: vec![("rocksdb-fillsync".into(), "db_bench is not installed".into())],
            same_drives: BTreeMap::from([(
                25,
                SameDrive {
                    calibrations: vec![Calibration { request: "4 KiB write + flush".into(), loop_ns: 131_000.0, drive_ns: 110_000.0 }],
                    facts: vec![("link, read".into(), "4.00 GB/s".into())],
                    made_from: same_drive::Settings::new("romefs-a", 64 << 20),
                },
            )]),
            ..store::tests::header("1")
        }
    }

    /// The report made from results, and what the terminal shows of it.
    fn made(header: &Header, records: &[Record]) -> (String, String) {
        let directory = tempfile::tempdir().expect("a directory");
        let results = directory.path().join(RESULTS);
        store::tests::write(&results, header.clone(), records);
        let shown = write(&results, &directory.path().join("made")).unwrap_or_else(|failure| panic!("{failure}"));
        (fs::read_to_string(directory.path().join("made").join(REPORT)).expect("made"), shown)
    }

    #[test]
    fn what_is_lost_comes_first_and_every_case_is_there() {
        let (report, shown) = made(&header(), &sample());
        let titles: Vec<&str> = report.lines().filter(|line| line.starts_with("## ")).collect();
        let first = ["## What TandemFS loses", "## Targets", "## Under tandemfs run", "## Single operations"];
        assert_eq!(titles[..4], first, "[REP1]");
        let reach = report.lines().find(|line| line.starts_with("| varmail ") && line.contains(" least")).expect("a reach");
        let limits = ["4.80 × ", "0.800 × TandemFS library |", "0.900 × ext4, volatile least |"];
        assert!(limits.iter().all(|words| reach.contains(words)), "{reach}");
        assert!(titles.contains(&"## Bytes") && titles.contains(&"## The same drive, both ways"), "{titles:?}");
        let first = report.lines().find(|line| line.starts_with("| ") && !line.starts_with("| case")).expect("a row");
        assert!(first.starts_with("| untar"), "the worst first: {first}");
        for record in sample() {
            assert!(record.case == HOSTILE || report.contains(&format!("### {}\n", record.case)), "[REP2] {}", record.case);
            assert!(report.lines().any(|line| line.starts_with(&format!("| {} ", record.peer.title()))), "{:?}", record.peer);
        }
        assert!(shown.contains("untar") && shown.contains("missed") && !shown.contains("Single operations"), "{shown}");
        assert!(!report.contains("NaN") && !report.contains("<script") && report.contains("&lt;script&gt;alert("), "[REP4]");
    }

    #[test]
    fn noise_what_was_left_out_and_what_does_not_fit_are_said() {
        let mut records = sample();
        records.retain(|record| record.round < 2 || record.case != "varmail" || record.peer != Peer::Xfs);
        let (report, _) = made(&header(), &records);
        assert!(report.contains(&format!("{NOISY}, same drive, 25 us, ext4, round 2: 28.4 %")), "{report}");
        for words in ["noisy: decides nothing", "undecided: the machine was too noisy"] {
            assert!(report.lines().any(|line| line.starts_with(&format!("| {NOISY} ")) && line.contains(words)), "[REP3] {words}");
        }
        assert!(report.contains("rocksdb-fillsync: db_bench is not installed"));
        assert!(report.contains("varmail, same drive, 25 us: fewer rounds than the 3 of others (XFS 2)"), "{report}");
        let calibration = report.lines().find(|line| line.contains("4 KiB write + flush")).expect("a row");
        assert!(calibration.contains("1.19×") && calibration.ends_with("no |"), "{calibration}");
    }

    #[test]
    fn results_without_runs_or_with_one_make_an_honest_report() {
        let (report, shown) = made(&header(), &[]);
        assert!(report.contains("No run has been recorded yet") && shown.contains("nothing to compare yet"), "{shown}");
        for peer in Peer::all() {
            let (report, shown) = made(&header(), &[record("lonely", peer, 0, 5.0)]);
            assert!(report.contains("lonely") && shown.contains("nothing to compare yet"), "{shown}");
            assert_eq!(shown.contains("but not on TandemFS"), peer.is_yardstick(), "{peer:?}");
        }
    }

    #[test]
    fn a_report_goes_beside_its_results_or_where_it_is_asked_for() {
        let directory = tempfile::tempdir().expect("a directory");
        let directory = directory.path();
        let asked = |results: &Path, output: Option<&Path>| {
            places(&ReportArguments { results: results.to_owned(), output: output.map(Path::to_owned) })
        };
        let file = directory.join(RESULTS);
        assert_eq!(asked(directory, None), (file.clone(), directory.to_owned()));
        assert_eq!(asked(&file, Some(Path::new("else/where"))), (file.clone(), "else/where".into()));
        assert_eq!(asked(Path::new("other.json"), None), ("other.json".into(), ".".into()));
        store::tests::write(&file, header(), &[]);
        let sentence = write(&file, &file.join("below")).expect_err("a file is no directory").to_string();
        assert!(sentence.contains("below") && !sentence.contains('\n'), "{sentence}");
    }
}
