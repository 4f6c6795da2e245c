//! The chapters of the report.

use std::collections::{BTreeMap, BTreeSet};

use super::markdown::Page;
use crate::compare::case::Group;
use crate::compare::peer::{Peer, name_of};
use crate::compare::record::{Calibration, Percentiles, SameDrive};
use crate::compare::same_drive::detour::is_equal;
use crate::compare::statistics::{NOISE_MAX, Ratio, Summary, disturbance, ratio, usual_noise};
use crate::compare::store::Results;
use crate::compare::subject::{Comparison, Standing, Subject};
use crate::compare::targets::{ComparisonTarget, Judgement, Measure, Point, TABLE, Verdict, is_case};
use crate::figures;

/// A mount slower than FUSE itself by this factor is listed.
const FAR: f64 = 1.5;
const MEBIBYTE: f64 = 1_048_576.0;

fn cells<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).into()
}

pub(super) fn or_dash<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "–".to_owned(), text)
}

pub(super) fn interval(ratio: Ratio) -> String {
    format!("{} – {}", figures::three_digits(ratio.low), figures::three_digits(ratio.high))
}

/// A rate for a column without a unit.
pub(super) fn rate(summary: &Summary) -> String {
    let value = summary.rate.median;
    if summary.unit == "bytes" { figures::rate(value, "bytes") } else { format!("{} {}/s", figures::count(value), summary.unit) }
}

fn comparisons<'s, 'a>(subjects: &'s [Subject<'a>]) -> impl Iterator<Item = (&'s Subject<'a>, Comparison<'a>)> {
    subjects.iter().flat_map(|subject| subject.comparisons().map(move |found| (subject, found)))
}

/// What TandemFS loses ([CM5]).
///
/// [CM5]: crate::compare
pub fn losses(page: &mut Page, subjects: &[Subject<'_>], judgements: &[Judgement], left_out: usize) {
    page.heading(2, "What TandemFS loses");
    page.text(&summary_sentence(subjects, judgements));
    let mut slower: Vec<_> = comparisons(subjects).filter(|(_, found)| found.ratio.median < 1.0).collect();
    slower.sort_by(|one, other| one.1.ratio.median.total_cmp(&other.1.ratio.median));
    let row = |(subject, found): (&Subject<'_>, Comparison<'_>)| {
        vec![
            subject.case.clone(),
            subject.place.title(),
            figures::ratio(found.ratio.median),
            interval(found.ratio),
            found.standing.name().to_owned(),
            format!("{}: {}", found.ours.peer.title(), rate(found.ours)),
            format!("{}: {}", found.theirs.peer.title(), rate(found.theirs)),
        ]
    };
    page.table(
        "Slower than the best of ext4 and XFS, the worst first (ratios of rates: below 1× is slower)",
        &["case", "drive", "ratio", "95 % interval", "what it says", "TandemFS", "beside"],
        slower.into_iter().map(row).collect(),
    );
    let missed = judgements.iter().filter(|judgement| judgement.verdict == Verdict::Missed);
    judgement_table(page, "Targets that are missed", missed);
    let is_absent = |subject: &&Subject<'_>| subject.yardstick().is_some() && !subject.0.iter().any(|summary| summary.peer.is_ours());
    let absent = subjects.iter().filter(is_absent);
    page.list(absent.map(|subject| format!("{}, {}: measured on ext4 or XFS, but not on TandemFS", subject.case, subject.place.title())));
    page.table(
        "More than 1.5 times what a FUSE file system takes that keeps nothing safe: this is not the way through FUSE",
        &["case", "drive", "times the time", "95 % interval"],
        subjects.iter().filter_map(far_from_fuse).collect(),
    );
    if let Some(text) = processor_time(subjects) {
        page.text(&text);
    }
    if left_out > 0 {
        page.text(&format!("Left out, or said of single runs: {left_out}, by name in the last chapter."));
    }
}

/// A case at the mount whose time is certainly more than 1.5 times that of the in-memory FUSE file system: FUSE itself is not the cause.
fn far_from_fuse(subject: &Subject<'_>) -> Option<Vec<String>> {
    let (ours, null) = (subject.mount()?.ours, subject.of(Peer::Null)?);
    let times = ratio(&ours.rates, &null.rates).inverse();
    let is_sure = times.low > FAR && !ours.is_noisy() && !null.is_noisy();
    is_sure.then(|| vec![subject.case.clone(), subject.place.title(), figures::ratio(times.median), interval(times)])
}

/// The results in numbers.
fn summary_sentence(subjects: &[Subject<'_>], judgements: &[Judgement]) -> String {
    let with = |standing: Standing| comparisons(subjects).filter(|(_, found)| found.standing == standing).count();
    let count = comparisons(subjects).count();
    if count == 0 {
        return "Nothing was measured on both TandemFS and one of ext4 and XFS, so there is nothing to compare yet.".to_owned();
    }
    let verdict = |verdict: Verdict| judgements.iter().filter(|judgement| judgement.verdict == verdict).count();
    let (met, missed) = (verdict(Verdict::Met), verdict(Verdict::Missed));
    format!(
        "Of {count} comparisons of TandemFS with the best of ext4 and XFS it is slower in {} and faster in {}; {} are within the interval, {} \
         too disturbed and {} of too few rounds to decide. Of {} targets that could be judged {met} are met, {missed} missed and {} undecided.",
        with(Standing::Slower),
        with(Standing::Faster),
        with(Standing::Within),
        with(Standing::Noisy),
        with(Standing::FewRounds),
        judgements.len(),
        judgements.len() - met - missed,
    )
}

/// The CPU cost of a daemon, compared with a kernel file system.
fn processor_time(subjects: &[Subject<'_>]) -> Option<String> {
    let ratios: Vec<f64> = subjects.iter().filter_map(|subject| subject.mount()?.cpu_ratio()).collect();
    let more = ratios.iter().filter(|ratio| **ratio > 1.0).count();
    let worst = ratios.iter().copied().fold(0.0, f64::max);
    (more > 0).then(|| {
        format!(
            "CPU time of the whole machine for a unit of work: at the mount TandemFS takes more than the yardstick in {more} of {} comparisons, \
             at the worst {}; the tables below have it for each case.",
            ratios.len(),
            figures::ratio(worst)
        )
    })
}

/// Each target and whether it is met.
pub fn targets(page: &mut Page, judgements: &[Judgement], decisive_us: Option<u32>) {
    page.heading(2, "Targets");
    if judgements.is_empty() {
        page.text("None of the rows has both its sides in these results.");
    } else {
        page.text(
            "A target is met when all of the 95 % interval is, missed when none of it is, and undecided otherwise or when the machine was too noisy.",
        );
        if let Some(us) = decisive_us {
            page.text(&format!(
                "On the same drive the verdict is that at block commands of {us} us, the profile's own or the lowest that this machine carries; \
                 what holds only at longer ones is not met. 10 us is what the profile assumes, 15 us a low-latency NVMe drive, 25 us a consumer \
                 NVMe drive, 50 us one behind a switch, 100 us one over a fabric. Writes of the other file systems end in the drive's cache; \
                 on this machine they take as long as the way to it, which the chapter on the same drive states.",
            ));
        }
        judgement_table(page, "", judgements.iter().filter(|judgement| !judgement.peer.is_direct()));
    }
    let open: Vec<String> = TABLE.iter().filter_map(|target| unmeasured(target, judgements)).collect();
    if !open.is_empty() {
        page.heading(3, "Not measured here");
        page.list(open);
    }
}

fn judgement_table<'j>(page: &mut Page, caption: &str, judgements: impl Iterator<Item = &'j Judgement>) {
    let row = |judgement: &Judgement| {
        vec![
            judgement.case.clone(),
            judgement.place.title(),
            wanted(judgement.target.measure),
            figures::ratio(judgement.ratio.median),
            interval(judgement.ratio),
            judgement.verdict.name().to_owned(),
            judgement.target.title.to_owned(),
            judgement.peer.title().to_owned(),
            judgement.other.title().to_owned(),
            or_dash(judgement.beside_ext4, |beside| figures::ratio(beside.median)),
            curve(judgement),
        ]
    };
    let head =
        ["case", "drive", "target", "found", "95 % interval", "verdict", "what", "TandemFS", "beside", "rate to ext4's", "by latency"];
    page.table(caption, &head, judgements.map(row).collect());
}

/// The results at all latencies of a block command: `25 us 2.31× missed`.
pub(super) fn curve(judgement: &Judgement) -> String {
    let point = |point: &Point| format!("{} us {} {}", point.us, figures::ratio(point.ratio.median), point.verdict.name());
    or_dash(Some(&judgement.curve).filter(|curve| !curve.is_empty()), |curve| curve.iter().map(point).collect::<Vec<_>>().join("; "))
}

/// The target in short form.
fn wanted(measure: Measure) -> String {
    match measure {
        Measure::RateAtLeast(least) => format!("rate ≥ {}", figures::ratio(least)),
        Measure::Reach(least) => format!("rate ≥ {} or what the library and the program allow", figures::ratio(least)),
        Measure::NotSlowerThanMount => "rate ≥ the mount's".to_owned(),
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

/// A group of cases: an overview, then all file systems of each case; nothing if no case of it was measured.
pub fn group(page: &mut Page, group: Group, subjects: &[Subject<'_>], description: &dyn Fn(&str) -> Option<String>) {
    let subjects: Vec<&Subject<'_>> = subjects.iter().filter(|subject| subject.group == group).collect();
    if subjects.is_empty() {
        return;
    }
    page.heading(2, group.title());
    page.table(
        "TandemFS beside the best of ext4 and XFS; CPU: time of the machine for a unit of work, ours to theirs (below 1× is less)",
        &["case", "drive", "TandemFS", "ratio", "95 % interval", "what it says", "rate", "best of ext4 and XFS", "CPU"],
        subjects.iter().flat_map(|subject| overview(subject)).collect(),
    );
    let mut before = "";
    for subject in subjects {
        if before != subject.case {
            page.heading(3, &subject.case);
            if let Some(text) = description(&subject.case) {
                page.text(&text);
            }
            before = &subject.case;
        }
        details(page, subject);
    }
}

fn overview(subject: &Subject<'_>) -> Vec<Vec<String>> {
    let row = |found: Comparison<'_>| {
        vec![
            subject.case.clone(),
            subject.place.title(),
            found.ours.peer.title().to_owned(),
            figures::ratio(found.ratio.median),
            interval(found.ratio),
            found.standing.name().to_owned(),
            rate(found.ours),
            format!("{} ({})", rate(found.theirs), found.theirs.peer.title()),
            or_dash(found.cpu_ratio(), figures::ratio),
        ]
    };
    let rows: Vec<_> = subject.comparisons().map(row).collect();
    if !rows.is_empty() {
        return rows;
    }
    let mut row = vec![subject.case.clone(), subject.place.title(), "–".to_owned(), "–".to_owned(), "–".to_owned()];
    row.extend(cells(["nothing to compare", "–", "–", "–"]));
    vec![row]
}

/// All file systems of a case on one drive.
fn details(page: &mut Page, subject: &Subject<'_>) {
    let is_bytes = subject.unit == "bytes";
    let per = if is_bytes { "MiB".to_owned() } else { figures::singular(&subject.unit) };
    let yardstick = subject.yardstick();
    let row = |summary: &&Summary| {
        let shown = |value: f64| figures::rate(value, &subject.unit);
        let beside = yardstick.filter(|yardstick| yardstick.peer != summary.peer).map(|yardstick| ratio(&summary.rates, &yardstick.rates));
        let latency = |of: fn(&Percentiles) -> f64| or_dash(summary.latency_ns.as_ref(), |latency| figures::time(of(latency)));
        let cpu = summary.cpu_seconds_per_unit.map(|seconds| seconds * 1e9 * if is_bytes { MEBIBYTE } else { 1.0 });
        let noise = figures::percent(summary.noise);
        vec![
            summary.peer.title().to_owned(),
            summary.rates.len().to_string(),
            shown(summary.rate.median),
            format!("{} – {}", shown(summary.rate.low), shown(summary.rate.high)),
            or_dash(beside, |beside| format!("{} ({})", figures::ratio(beside.median), interval(beside))),
            latency(|latency| latency.p50),
            latency(|latency| latency.p99),
            latency(|latency| latency.p999),
            or_dash(cpu, figures::time),
            or_dash(summary.memory_bytes, |bytes| figures::bytes(bytes as f64)),
            if summary.is_noisy() { format!("{noise}, too noisy") } else { noise },
        ]
    };
    let cpu = format!("CPU for one {per}");
    let head =
        ["file system", "rounds", "median rate", "min – max", "ratio (95 %)", "p50", "p99", "p99.9", &cpu, "daemon and client", "noise"];
    let caption = format!("{}, {} a second", subject.place.title(), subject.unit);
    page.table(&caption, &head, subject.0.iter().map(row).collect());
}

/// Traffic to the drive per unit of work; nothing if no other file system's drive counted it.
pub fn bytes(page: &mut Page, subjects: &[Subject<'_>]) {
    let is_counted = |subject: &&Subject<'_>| subject.0.iter().any(|summary| !summary.peer.is_ours() && summary.traffic_per_unit.is_some());
    let counted: Vec<&Subject<'_>> = subjects.iter().filter(is_counted).collect();
    if counted.is_empty() {
        return;
    }
    page.heading(2, "Bytes");
    page.text(
        "Medians for one unit of work, of the measured part; what the kernel still held at its end was written first, and counts. Programmed / \
         written is the drive's own amplification.",
    );
    let rows = counted.iter().flat_map(|subject| subject.0.iter().filter_map(|summary| traffic(subject, summary))).collect();
    page.table(
        "",
        &["case", "drive", "file system", "unit", "written", "read", "FLUSH", "flash programmed", "flash read", "programmed / written"],
        rows,
    );
}

fn traffic(subject: &Subject<'_>, summary: &Summary) -> Option<Vec<String>> {
    let found = summary.traffic_per_unit.as_ref()?;
    let amplification = found.flash_programmed_bytes.filter(|_| found.written_bytes > 0.0).map(|flash| flash / found.written_bytes);
    Some(vec![
        subject.case.clone(),
        subject.place.title(),
        summary.peer.title().to_owned(),
        figures::singular(&subject.unit),
        figures::bytes(found.written_bytes),
        figures::bytes(found.read_bytes),
        figures::three_digits(found.flushes),
        or_dash(found.flash_programmed_bytes, figures::bytes),
        or_dash(found.flash_read_bytes, figures::bytes),
        or_dash(amplification, figures::ratio),
    ])
}

/// The calibration of the same drives; nothing if there is none.
pub fn calibration(page: &mut Page, drives: &BTreeMap<u32, SameDrive>) {
    if drives.is_empty() {
        return;
    }
    page.heading(2, "The same drive, both ways");
    page.text(
        "Kernel file systems reach the emulated drive by a loop device, TandemFS by the drive's own block path. Medians of single requests on \
         both, before anything is compared: they have to be alike, or nothing on the same drive is.",
    );
    let row = |(us, row): (&u32, &Calibration)| {
        let ratio = row.loop_ns / row.drive_ns;
        let is_near = if is_equal(row.loop_ns, row.drive_ns) { "yes" } else { "no" };
        vec![
            us.to_string(),
            row.request.clone(),
            figures::time(row.loop_ns),
            figures::time(row.drive_ns),
            figures::ratio(ratio),
            is_near.to_owned(),
        ]
    };
    let head = ["block command, us", "request", "raw loop device", "block path of TandemFS", "loop to block path", "within 5 %"];
    let rows = drives.iter().flat_map(|(us, drive)| drive.calibrations.iter().map(move |found| (us, found)));
    page.table("", &head, rows.map(row).collect());
    let facts = drives
        .iter()
        .flat_map(|(us, drive)| drive.facts.iter().map(move |(name, value)| vec![us.to_string(), name.clone(), value.clone()]));
    page.table("", &["block command, us", "fact of the drive", ""], facts.collect());
}

/// Machine, versions, settings, left-out entries and disturbed runs.
pub fn background(page: &mut Page, results: &Results, left_out: Vec<String>) {
    let header = &results.header;
    page.heading(2, "Machine, settings, what is missing");
    for (caption, rows) in [("Machine", &header.machine), ("Programs and file systems", &header.programs), ("Settings", &header.settings)] {
        page.table("", &[caption, ""], rows.iter().map(|(name, value)| vec![name.clone(), value.clone()]).collect());
    }
    page.heading(3, "Left out");
    page.list(if left_out.is_empty() { vec!["nothing".to_owned()] } else { left_out });
    page.heading(3, "Noise");
    let usual = usual_noise(&results.runs);
    let noisy: Vec<_> = results.runs.iter().filter(|record| disturbance(record, usual) > NOISE_MAX).collect();
    let cases: BTreeSet<&str> = noisy.iter().map(|record| record.case.as_str()).collect();
    page.text(&format!(
        "{} of {} runs (cases: {}) were disturbed: a fixed piece of computing around them took more than {} longer or less than usual. Where that \
         holds for the median of a case's rounds, the case decides nothing.",
        noisy.len(),
        results.runs.len(),
        cases.len(),
        figures::percent(NOISE_MAX),
    ));
    page.list(noisy.iter().map(|record| format!("{}: {}", record.title(), figures::percent(disturbance(record, usual)))));
}

/// Missing or inconsistent entries, one sentence each.
pub fn left_out(results: &Results, subjects: &[Subject<'_>]) -> Vec<String> {
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
