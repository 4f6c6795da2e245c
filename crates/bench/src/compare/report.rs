//! The report of a comparison: a Markdown file, made only from the file of results by the template `report.md.jinja`.
//!
//! [REP1] Cases that TandemFS loses come first, then targets, then all results.
//! [REP2] Every case and every run is in the report, or listed with a reason among the left-out ones.
//! [REP3] A value has a unit and three digits; a ratio has its interval; values from a disturbed machine are marked and decide nothing.
//! [REP4] Names come from a file that anybody may have written: they are always treated as text.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use minijinja::{AutoEscape, Environment, UndefinedBehavior, context};
use serde::Serialize;

use super::backing::Place;
use super::case::Group;
use super::cases;
use super::peer::{Peer, name_of};
use super::same_drive::detour::is_equal;
use super::session::RESULTS;
use super::statistics::{NOISE_MAX, Ratio, Summary, disturbance, ratio, summaries, usual_noise};
use super::store::Results;
use super::subject::{self, Comparison, Subject};
use super::targets::{self, ComparisonTarget, Judgement, Measure, TABLE, is_case};
use crate::arguments::ReportArguments;
use crate::failure::{Failure, Result};
use crate::figures;
use crate::output::say;
use crate::table::Table;

const REPORT: &str = "report.md";
const TEMPLATE: &str = include_str!("report.md.jinja");
/// Ends what is shown in the terminal.
const SEPARATOR: char = '\u{c}';
/// A mount that takes so many times as long as `null` loses elsewhere than on the way through FUSE.
const FAR: f64 = 1.5;

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
    let text = text(&Results::read(results)?)?;
    let (first, rest) = text.split_once(SEPARATOR).unwrap_or((&text, ""));
    let path = directory.join(REPORT);
    let failed = |path: &Path, error| Failure::new(format!("{}: {error}", path.display()));
    fs::create_dir_all(directory).map_err(|error| failed(directory, error))?;
    fs::write(&path, format!("{}\n\n{}\n", first.trim_end(), rest.trim())).map_err(|error| failed(&path, error))?;
    Ok(format!("{}\n\nThe whole report: {}\n", first.trim_end(), path.display()))
}

/// A case on a drive, with all file systems.
#[derive(Serialize)]
struct Shown<'a> {
    case: &'a str,
    place: Place,
    group: Group,
    unit: &'a str,
    description: Option<&'a String>,
    rows: Vec<Row<'a>>,
    /// Measured on the yardstick alone.
    is_absent: bool,
    /// Whether a kernel file system's bytes were counted.
    is_counted: bool,
}

/// A file system, and its rate to the yardstick's.
#[derive(Serialize)]
struct Row<'a> {
    of: &'a Summary,
    is_noisy: bool,
    beside: Option<Ratio>,
}

/// A judgement with what was measured of it.
#[derive(Serialize)]
struct Judged<'a> {
    #[serde(flatten)]
    judgement: &'a Judgement,
    wanted: String,
    is_direct: bool,
    is_beside_mount: bool,
    ours: Option<&'a Summary>,
    beside: Option<&'a Summary>,
    asleep: Option<&'a Summary>,
}

/// A comparison with the yardstick.
#[derive(Serialize)]
struct Compared<'a> {
    #[serde(flatten)]
    comparison: Comparison<'a>,
    at_mount: bool,
    cpu_ratio: Option<f64>,
}

/// A case in which the mount takes much longer than `null`.
#[derive(Serialize)]
struct Far<'a> {
    case: &'a str,
    place: Place,
    ratio: Ratio,
}

fn text(results: &Results) -> Result<String> {
    let descriptions: BTreeMap<String, String> = cases::all().into_iter().map(|case| (case.name, case.description)).collect();
    let summaries = summaries(&results.runs);
    let subjects = subject::subjects(&summaries);
    let judgements = targets::judge(&subjects, results.header.decisive_us);
    let comparisons: Vec<Compared<'_>> = subjects.iter().flat_map(Subject::comparisons).map(compared).collect();
    let mut losses: Vec<&Compared<'_>> = comparisons.iter().filter(|found| found.comparison.ratio.median < 1.0).collect();
    losses.sort_by(|one, other| one.comparison.ratio.median.total_cmp(&other.comparison.ratio.median));
    let usual = usual_noise(&results.runs);
    let noisy = results.runs.iter().map(|record| (record.title(), disturbance(record, usual)));
    let rendered = environment()?.get_template(REPORT)?.render(context! {
        header => &results.header,
        runs => results.runs.len(),
        groups => Group::ALL.map(|group| (group, group.title())),
        comparisons => &comparisons,
        losses,
        far => subjects.iter().filter_map(far_from_fuse).collect::<Vec<_>>(),
        far_times => FAR,
        judgements => judgements.iter().map(|judgement| judged(judgement, &subjects)).collect::<Vec<_>>(),
        unmeasured => TABLE.iter().filter_map(|target| unmeasured(target, &judgements)).collect::<Vec<_>>(),
        subjects => subjects.iter().map(|subject| shown(subject, descriptions.get(&subject.case))).collect::<Vec<_>>(),
        left_out => left_out(results, &subjects),
        noisy => noisy.filter(|(_, disturbance)| *disturbance > NOISE_MAX).collect::<Vec<_>>(),
        noise_max => NOISE_MAX,
    })?;
    Ok(aligned(&rendered))
}

fn environment() -> Result<Environment<'static>> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| AutoEscape::Custom("markdown"));
    environment.set_formatter(|out, _, value| {
        match value.as_str() {
            _ if value.is_none() => out.write_char('–')?,
            Some(text) if !value.is_safe() => out.write_str(&plain(text))?,
            _ => write!(out, "{value}")?,
        }
        Ok(())
    });
    for (name, write) in [
        ("ratio", figures::ratio as fn(f64) -> String),
        ("digits", figures::three_digits),
        ("time", figures::time),
        ("bytes", figures::bytes),
        ("count", figures::count),
        ("percent", figures::percent),
    ] {
        environment.add_filter(name, move |value: Option<f64>| value.map(write));
    }
    environment.add_filter("rate", |value: f64, unit: String| figures::rate(value, &unit));
    environment.add_filter("singular", |unit: String| figures::singular(&unit));
    environment.add_filter("peer", |name: String| Peer::from_str(&name, false).map_or("–", Peer::title));
    environment.add_filter("place", |name: String| Place::try_from(name).map_or_else(|name| name, Place::title));
    environment.add_test("equal_to", |one: f64, other: f64| is_equal(one, other));
    environment.add_global("separator", minijinja::Value::from_safe_string(SEPARATOR.into()));
    environment.add_template(REPORT, TEMPLATE)?;
    Ok(environment)
}

fn shown<'a>(subject: &Subject<'a>, description: Option<&'a String>) -> Shown<'a> {
    let (first, yardstick) = (subject.0[0], subject.yardstick());
    let row = |summary: &&'a Summary| Row {
        of: summary,
        is_noisy: summary.is_noisy(),
        beside: yardstick.filter(|yardstick| yardstick.peer != summary.peer).map(|yardstick| ratio(&summary.rates, &yardstick.rates)),
    };
    Shown {
        case: &first.case,
        place: first.place,
        group: first.group,
        unit: &first.unit,
        description,
        rows: subject.0.iter().map(row).collect(),
        is_absent: yardstick.is_some() && !subject.0.iter().any(|summary| summary.peer.is_ours()),
        is_counted: subject.0.iter().any(|summary| !summary.peer.is_ours() && summary.traffic_per_unit.is_some()),
    }
}

fn compared(comparison: Comparison<'_>) -> Compared<'_> {
    Compared { at_mount: comparison.ours.peer.is_mount(), cpu_ratio: comparison.cpu_ratio(), comparison }
}

fn judged<'a>(judgement: &'a Judgement, subjects: &[Subject<'a>]) -> Judged<'a> {
    let subject = subjects.iter().find(|subject| subject.case == judgement.case && subject.place == judgement.place);
    let of = |peer| subject.and_then(|subject| subject.of(peer));
    Judged {
        judgement,
        wanted: wanted(judgement.target.measure),
        is_direct: judgement.peer.is_direct(),
        is_beside_mount: matches!(judgement.target.measure, Measure::NotSlowerThanMount | Measure::NotSlowerThanBeside),
        ours: of(judgement.peer),
        beside: of(judgement.other),
        asleep: of(Peer::TandemfsDirectAsleep),
    }
}

fn far_from_fuse<'a>(subject: &Subject<'a>) -> Option<Far<'a>> {
    let (ours, null) = (subject.best_mount().filter(|_| subject.yardstick().is_some())?, subject.of(Peer::Null)?);
    let ratio = ratio(&ours.rates, &null.rates).inverse();
    (ratio.low > FAR && !ours.is_noisy() && !null.is_noisy()).then_some(Far { case: &ours.case, place: ours.place, ratio })
}

/// The target in short form.
fn wanted(measure: Measure) -> String {
    match measure {
        Measure::RateAtLeast(least) => format!("rate ≥ {}", figures::ratio(least)),
        Measure::Reach(least) => format!("rate ≥ {} or what the library and the program allow", figures::ratio(least)),
        Measure::NotSlowerThanMount | Measure::NotSlowerThanBeside => "rate ≥ the mount's".to_owned(),
        Measure::TimesNullAtMost(most) => format!("time ≤ {}", figures::ratio(most)),
        Measure::FlashBytesAtMost(most) => format!("flash bytes ≤ {}", figures::ratio(most)),
    }
}

/// A sentence with the cases of a row that were not judged.
fn unmeasured(target: &ComparisonTarget, judgements: &[Judgement]) -> Option<String> {
    let is_judged = |case: &str| judgements.iter().any(|judgement| judgement.target == *target && is_case(&judgement.case, case));
    let open: Vec<&str> = target.cases.iter().copied().filter(|case| !is_judged(case)).collect();
    let place = target.place.map_or_else(|| "any".to_owned(), |kind| name_of(&kind));
    let ours = target.peers.iter().copied().map(Peer::title).collect::<Vec<_>>().join(", ");
    (!open.is_empty()).then(|| format!("{} ({ours}; {place} drive; {}): {}", target.title, wanted(target.measure), open.join(", ")))
}

/// Missing or inconsistent entries, one sentence each.
fn left_out(results: &Results, subjects: &[Subject<'_>]) -> Vec<String> {
    let mut left_out: Vec<String> = results.header.left_out.iter().map(|(what, why)| format!("{what}: {why}")).collect();
    // Cases with fewer rounds on some peers than on others, as in an unfinished comparison.
    let most = subjects.iter().flat_map(|subject| &subject.0).map(|summary| summary.rates.len()).max().unwrap_or_default();
    for subject in subjects {
        let fewer = subject.0.iter().filter(|summary| summary.rates.len() < most);
        let fewer: Vec<String> = fewer.map(|summary| format!("{} {}", summary.peer.title(), summary.rates.len())).collect();
        if !fewer.is_empty() {
            let (case, place) = (&subject.case, subject.place.title());
            left_out.push(format!("{case}, {place}: fewer rounds than the {most} of others ({})", fewer.join(", ")));
        }
    }
    left_out
}

/// Aligns the columns of tables, so that they can be read as text, and leaves one blank line where there are several.
fn aligned(text: &str) -> String {
    let (mut aligned, mut lines) = (String::with_capacity(text.len() * 2), text.lines().peekable());
    while let Some(line) = lines.next() {
        if !line.starts_with('|') {
            if !(line.is_empty() && (aligned.is_empty() || aligned.ends_with("\n\n"))) {
                aligned += line;
                aligned.push('\n');
            }
            continue;
        }
        let cells = |line: &str| -> Vec<String> { line.trim_matches('|').split(" |").map(|cell| cell.trim().to_owned()).collect() };
        let mut table = Table::new(cells(line));
        let _rule = lines.next();
        while let Some(row) = lines.next_if(|line| line.starts_with('|')) {
            table.row(cells(row));
        }
        aligned += &table.markdown();
    }
    aligned
}

/// A text on one line with HTML and Markdown markup escaped.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => plain += "&lt;",
            '>' => plain += "&gt;",
            '&' => plain += "&amp;",
            '*' | '`' | '[' | ']' | '\\' | '|' => plain.extend(['\\', letter]),
            letter if letter.is_control() => plain.push(' '),
            _ => plain.push(letter),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let made_from = same_drive::Settings::new("romefs-a", 64 << 20);
        Header {
            left_out: vec![("rocksdb-fillsync".into(), "db_bench is not installed".into())],
            same_drives: BTreeMap::from([(
                25,
                SameDrive {
                    calibrations: vec![Calibration { request: "4 KiB write + flush".into(), loop_ns: 131_000.0, drive_ns: 110_000.0 }],
                    times: [true, false].map(|is_read| made_from.times(is_read).expect("times")),
                    carried_ns: None,
                    notes: vec!["1 MiB read: no comparison".into()],
                    made_from: made_from.clone(),
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
    fn no_text_is_markup() {
        assert_eq!(plain("t & u"), "t &amp; u");
        assert_eq!(plain("a <b> [c](d)\n*1* | `2`"), "a &lt;b&gt; \\[c\\](d) \\*1\\* \\| \\`2\\`");
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
