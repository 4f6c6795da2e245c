//! The first chapter: the cases that TandemFS loses ([CM5]).
//!
//! [CM5]: crate::compare

use super::document::{Block, Cell, Grid, Mark};
use super::subject::{Comparison, Standing, Subject};
use super::targets;
use super::{figures, names};
use crate::compare::peer::Peer;
use crate::compare::statistics::{Ratio, ratio};
use crate::compare::targets::{Judgement, Verdict};

/// A mount slower than FUSE itself by this factor is listed.
const FAR: f64 = 1.5;

/// The chapter. `left_out` is the number of left-out entries.
pub fn chapter(subjects: &[Subject<'_>], judgements: &[Judgement], left_out: usize) -> Vec<Block> {
    let mut blocks = vec![Block::Chapter { id: "losses".into(), title: "What TandemFS loses".into() }];
    let mut slower: Vec<(&Subject<'_>, Comparison<'_>)> = all(subjects).filter(|(_, found)| found.ratio.median < 1.0).collect();
    slower.sort_by(|one, other| one.1.ratio.median.total_cmp(&other.1.ratio.median));
    blocks.push(Block::Paragraph(sentence(subjects, judgements)));
    if !slower.is_empty() {
        let head = ["case", "drive", "ratio", "95 % interval", "what it says", "TandemFS", "rate", "beside", "rate"];
        let caption = "Slower than the best of ext4 and XFS, the worst first (ratios of rates: below 1× is slower)";
        let mut grid = Grid::new(caption, &[0, 1, 4, 5, 7], head);
        for (subject, found) in slower {
            grid.row(None, cells(subject, &found));
        }
        blocks.push(Block::Grid(grid));
    }
    let missed: Vec<&Judgement> = judgements.iter().filter(|judgement| judgement.verdict == Verdict::Missed).collect();
    if !missed.is_empty() {
        blocks.push(Block::Grid(targets::grid("Targets that are missed", &missed)));
    }
    let absent: Vec<String> = subjects
        .iter()
        .filter(|subject| subject.yardstick().is_some() && !subject.peers.iter().any(|measured| measured.summary.peer.is_ours()))
        .map(|subject| format!("{}, {}: measured on ext4 or XFS, but not on TandemFS", subject.case, names::place(subject.place)))
        .collect();
    if !absent.is_empty() {
        blocks.push(Block::List(absent));
    }
    let far: Vec<Vec<Cell>> = subjects.iter().filter_map(far_from_fuse).collect();
    if !far.is_empty() {
        let caption = "More than 1.5 times what a FUSE file system takes that keeps nothing safe: this is not the way through FUSE";
        let mut grid = Grid::new(caption, &[0, 1], ["case", "drive", "times the time", "95 % interval"]);
        far.into_iter().for_each(|row| grid.row(None, row));
        blocks.push(Block::Grid(grid));
    }
    if let Some(text) = processor_time(subjects) {
        blocks.push(Block::Paragraph(text));
    }
    if left_out > 0 {
        blocks.push(Block::Paragraph(format!("Left out, or said of single runs: {left_out}, by name in the last chapter.")));
    }
    blocks
}

/// A case at the mount whose time is certainly more than 1.5 times that of the in-memory FUSE file system: FUSE itself is not the cause.
fn far_from_fuse(subject: &Subject<'_>) -> Option<Vec<Cell>> {
    let (ours, null) = (subject.mount()?.ours, subject.of(Peer::Null)?.summary);
    let times = ratio(&ours.rates, &null.rates).inverse();
    let is_sure = times.low > FAR && !ours.is_noisy() && !null.is_noisy();
    is_sure.then(|| {
        let times = [figures::ratio(times.median), interval(times)].map(Cell::from);
        [Cell::linked(subject.case, subject.link()), names::place(subject.place).into()].into_iter().chain(times).collect()
    })
}

fn all<'s, 'a>(subjects: &'s [Subject<'a>]) -> impl Iterator<Item = (&'s Subject<'a>, Comparison<'a>)> {
    subjects.iter().flat_map(|subject| subject.comparisons().map(move |found| (subject, found)))
}

fn cells(subject: &Subject<'_>, found: &Comparison<'_>) -> Vec<Cell> {
    vec![
        Cell::linked(subject.case, subject.link()),
        names::place(subject.place).into(),
        Cell::marked(figures::ratio(found.ratio.median), found.standing.mark()),
        interval(found.ratio).into(),
        Cell::marked(found.standing.name(), found.standing.mark()),
        names::peer(found.ours.peer).into(),
        rate(found.ours.rate.median, subject.unit).into(),
        names::peer(found.theirs.peer).into(),
        rate(found.theirs.rate.median, subject.unit).into(),
    ]
}

/// A rate for a column without a unit.
pub fn rate(value: f64, unit: &str) -> String {
    if unit == "bytes" { figures::rate(value, unit) } else { format!("{} {unit}/s", figures::count(value)) }
}

/// The two ends of an interval.
pub fn interval(ratio: Ratio) -> String {
    format!("{} – {}", figures::three_digits(ratio.low), figures::three_digits(ratio.high))
}

/// A summary of the results in numbers.
pub fn sentence(subjects: &[Subject<'_>], judgements: &[Judgement]) -> String {
    let with = |standing: Standing| all(subjects).filter(|(_, found)| found.standing == standing).count();
    let count = all(subjects).count();
    if count == 0 {
        return "Nothing was measured on both TandemFS and one of ext4 and XFS, so there is nothing to compare yet.".to_owned();
    }
    let noisy = with(Standing::Noisy);
    let few = with(Standing::FewRounds);
    let few = if few > 0 { format!(" {few} have too few rounds to decide.") } else { String::new() };
    let noise = if noisy > 0 { format!(" On {noisy} the machine was too disturbed to decide anything.") } else { String::new() };
    let verdict = |verdict: Verdict| judgements.iter().filter(|judgement| judgement.verdict == verdict).count();
    let (met, missed) = (verdict(Verdict::Met), verdict(Verdict::Missed));
    format!(
        "Of {count} comparisons of TandemFS with the best of ext4 and XFS it is slower in {} and faster in {}; {} are within the interval.{noise}{few} \
         Of {} targets that could be judged {met} are met, {missed} missed and {} undecided.",
        with(Standing::Slower),
        with(Standing::Faster),
        with(Standing::RatherSlower) + with(Standing::RatherFaster),
        judgements.len(),
        judgements.len() - met - missed,
    )
}

/// The CPU cost of a daemon, compared with a kernel file system.
fn processor_time(subjects: &[Subject<'_>]) -> Option<String> {
    let ratios: Vec<f64> =
        all(subjects).filter(|(_, found)| found.ours.peer != Peer::TandemfsLibrary).filter_map(|(_, found)| found.cpu_ratio()).collect();
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

/// The mark of a verdict.
pub fn verdict_mark(verdict: Verdict) -> Mark {
    match verdict {
        Verdict::Met => Mark::Win,
        Verdict::Missed => Mark::Loss,
        _ => Mark::Open,
    }
}
