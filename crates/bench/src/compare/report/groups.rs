//! A chapter for each group of cases, with the values of all file systems.

use std::collections::BTreeMap;

use super::document::{Block, Cell, Grid, Mark, Plot};
use super::losses::{interval, rate};
use super::plots::{latency, ratios, scale};
use super::subject::{Comparison, Subject};
use super::{figures, names};
use crate::compare::backing::Place;
use crate::compare::case::Group;
use crate::compare::peer::Peer;
use crate::compare::targets::{Judgement, Measure};
use crate::failure::Result;

const MEBIBYTE: f64 = 1_048_576.0;

/// Input of a chapter.
pub struct Material<'s, 'a> {
    /// All subjects.
    pub subjects: &'s [Subject<'a>],
    /// The results of all targets.
    pub judgements: &'s [Judgement],
    /// Descriptions of cases, by name.
    pub descriptions: &'s BTreeMap<String, String>,
}

/// The chapter of a group; empty if no case of it was measured.
pub fn chapter(group: Group, material: &Material<'_, '_>) -> Result<Vec<Block>> {
    let subjects: Vec<&Subject<'_>> = material.subjects.iter().filter(|subject| subject.group == group).collect();
    if subjects.is_empty() {
        return Ok(Vec::new());
    }
    let id = super::document::identifier(names::group(group));
    let mut blocks = vec![Block::Chapter { id, title: names::group(group).into() }, Block::Grid(overview(&subjects))];
    let mut ratio_plots = Vec::new();
    for place in [Place::Same, Place::Free] {
        let here: Vec<&Subject<'_>> = subjects.iter().copied().filter(|subject| subject.place == place).collect();
        let title = format!("{}: rate beside the best of ext4 and XFS, {}", names::group(group), names::place(place));
        ratio_plots.extend(ratios::plots(&title, &rows(&here, material.judgements))?);
    }
    if !ratio_plots.is_empty() {
        blocks.push(Block::Paragraph(
            "Bars are ratios of rates: 1 is the better of ext4 and XFS, which has no bar. Thin lines are 95 % intervals, a dashed line is the \
             mount's target."
                .into(),
        ));
    }
    plotted(&mut blocks, &subjects, ratio_plots);
    if group == Group::Scale {
        let plots = growth(&subjects)?;
        plotted(&mut blocks, &subjects, plots);
    }
    let mut seen: Vec<&str> = Vec::new();
    for subject in &subjects {
        if !seen.contains(&subject.case) {
            seen.push(subject.case);
            let both: Vec<&Subject<'_>> = subjects.iter().copied().filter(|other| other.case == subject.case).collect();
            blocks.push(case(&both, material.descriptions)?);
        }
    }
    Ok(blocks)
}

fn plotted(blocks: &mut Vec<Block>, subjects: &[&Subject<'_>], plots: Vec<Plot>) {
    if !plots.is_empty() {
        let took_part = |peer: &Peer| subjects.iter().any(|subject| subject.of(*peer).is_some());
        let legend = Peer::ALL.into_iter().filter(took_part).map(|peer| (names::colour(peer), names::peer(peer).to_owned()));
        blocks.push(Block::Plots { legend: legend.collect(), plots });
    }
}

/// One row per case and drive.
fn overview(subjects: &[&Subject<'_>]) -> Grid {
    let has_library = subjects.iter().any(|subject| subject.library().is_some());
    let mut head =
        vec!["case", "drive", "ratio", "95 % interval", "what it says", "TandemFS at the mount", "best of ext4 and XFS", "CPU a unit"];
    if has_library {
        head.push("library");
    }
    let mut grid = Grid::new("CPU a unit: CPU time of the machine for a unit of work, ours to theirs (below 1× is less)", &[0, 1, 4], head);
    for subject in subjects {
        let mut row = vec![Cell::linked(subject.case, subject.link()), names::place(subject.place).into()];
        let ours = [Peer::TandemfsRelaxed, Peer::TandemfsStrict].into_iter().filter_map(|peer| subject.of(peer));
        let ours = ours.max_by(|one, other| one.summary.rate.median.total_cmp(&other.summary.rate.median));
        let side = |summary: Option<&crate::compare::statistics::Summary>| match summary {
            Some(summary) => format!("{} ({})", rate(summary.rate.median, subject.unit), short_name(summary.peer)),
            None => "not measured".to_owned(),
        };
        let mount = subject.mount();
        match &mount {
            Some(found) => row.extend([
                Cell::marked(figures::ratio(found.ratio.median), found.standing.mark()),
                interval(found.ratio).into(),
                Cell::marked(found.standing.name(), found.standing.mark()),
            ]),
            None => row.extend(["–", "–", "nothing to compare"].map(Cell::from)),
        }
        row.push(side(ours.map(|measured| measured.summary)).into());
        row.push(side(subject.yardstick()).into());
        row.push(mount.as_ref().and_then(Comparison::cpu_ratio).map_or("–".to_owned(), figures::ratio).into());
        if has_library {
            row.push(match subject.library() {
                Some(found) => Cell::marked(figures::ratio(found.ratio.median), found.standing.mark()),
                None => "–".into(),
            });
        }
        grid.row(None, row);
    }
    grid
}

fn short_name(peer: Peer) -> &'static str {
    names::peer(peer).trim_start_matches("TandemFS ")
}

/// One row of bars per case.
fn rows(subjects: &[&Subject<'_>], judgements: &[Judgement]) -> Vec<ratios::Row> {
    let bars = |subject: &Subject<'_>| -> Vec<_> {
        let all = subject.peers.iter().filter_map(|measured| Some((measured.summary.peer, measured.ratio?)));
        all.map(|(peer, ratio)| (names::colour(peer), ratio, true)).collect()
    };
    let target = |subject: &Subject<'_>| {
        let here = judgements.iter().filter(|judgement| judgement.case == subject.case && judgement.place == subject.place);
        let wanted =
            here.filter(|judgement| judgement.peer != Peer::TandemfsLibrary).filter_map(|judgement| match judgement.target.measure {
                Measure::RateAtLeast(least) => Some(least),
                _ => None,
            });
        wanted.fold(None, |most: Option<f64>, least| Some(most.map_or(least, |most| most.max(least))))
    };
    let rows = subjects.iter().map(|subject| ratios::Row { name: subject.case.to_owned(), bars: bars(subject), target: target(subject) });
    rows.filter(|row| !row.bars.is_empty()).collect()
}

/// Everything about a case, on both drives.
fn case(subjects: &[&Subject<'_>], descriptions: &BTreeMap<String, String>) -> Result<Block> {
    let first = subjects[0];
    let mut blocks = Vec::new();
    if let Some(description) = descriptions.get(first.case) {
        blocks.push(Block::Paragraph(description.clone()));
    }
    let mut plots = Vec::new();
    for subject in subjects {
        blocks.push(Block::Grid(details(subject)));
        let timed =
            subject.peers.iter().filter_map(|measured| Some((names::colour(measured.summary.peer), measured.summary.latency_ns.clone()?)));
        let title = format!("{}: latency, {}", subject.case, names::place(subject.place));
        if let Some(svg) = latency::plot(&title, &timed.collect::<Vec<_>>())? {
            plots.push(Plot { title, svg });
        }
    }
    plotted(&mut blocks, subjects, plots);
    let tags = subjects.iter().filter_map(|subject| {
        let found = subject.mount().or_else(|| subject.library())?;
        Some((found.standing, format!("{} {}", names::place(subject.place), figures::ratio(found.ratio.median))))
    });
    let tags: Vec<_> = tags.collect();
    let tag = tags
        .iter()
        .map(|tag| tag.0)
        .min()
        .map(|worst| (worst.mark(), tags.iter().map(|tag| tag.1.as_str()).collect::<Vec<_>>().join(" · ")));
    Ok(Block::Fold { id: first.link(), summary: first.case.to_owned(), tag, blocks })
}

/// All file systems of a case on one drive.
fn details(subject: &Subject<'_>) -> Grid {
    let is_bytes = subject.unit == "bytes";
    let rate_name = if is_bytes { "median rate".to_owned() } else { format!("{}/s, median", subject.unit) };
    let cpu_name = if is_bytes { "CPU for one MiB".to_owned() } else { format!("CPU for one {}", figures::singular(subject.unit)) };
    let head = [
        "file system".to_owned(),
        "rounds".to_owned(),
        rate_name,
        "min – max".to_owned(),
        "ratio".to_owned(),
        "95 % interval".to_owned(),
        "p50".to_owned(),
        "p99".to_owned(),
        "p99.9".to_owned(),
        cpu_name,
        "daemon and client".to_owned(),
        "noise".to_owned(),
    ];
    let mut grid = Grid::new(format!("{}, {}", subject.case, names::place(subject.place)), &[0], head);
    let yardstick = subject.yardstick().map(|summary| summary.peer);
    for measured in &subject.peers {
        let summary = measured.summary;
        let shown = |value: f64| figures::rate(value, subject.unit);
        let (ratio, interval) = match measured.ratio {
            Some(ratio) => (figures::ratio(ratio.median), interval(ratio)),
            None if yardstick == Some(summary.peer) => ("1×, the best".to_owned(), "–".to_owned()),
            None => ("–".to_owned(), "–".to_owned()),
        };
        let latency = |of: fn(&crate::compare::record::Percentiles) -> f64| {
            summary.latency_ns.as_ref().map_or("–".to_owned(), |latency| figures::time(of(latency)))
        };
        let cpu = summary.cpu_seconds_per_unit.map(|seconds| seconds * 1e9 * if is_bytes { MEBIBYTE } else { 1.0 });
        let noise = figures::percent(summary.noise);
        grid.row(
            summary.peer.is_ours().then_some(Mark::Ours),
            [
                names::peer(summary.peer).into(),
                summary.rates.len().to_string().into(),
                shown(summary.rate.median).into(),
                format!("{} – {}", shown(summary.rate.low), shown(summary.rate.high)).into(),
                ratio.into(),
                interval.into(),
                latency(|latency| latency.p50).into(),
                latency(|latency| latency.p99).into(),
                latency(|latency| latency.p999).into(),
                cpu.map_or("–".to_owned(), figures::time).into(),
                summary.memory_bytes.map_or("–".to_owned(), |bytes| figures::bytes(bytes as f64)).into(),
                if summary.is_noisy() { Cell::marked(format!("{noise}, too noisy"), Mark::Open) } else { noise.into() },
            ],
        );
    }
    grid
}

/// The name without its parameter: shared by cases that differ only in the parameter.
pub fn family(name: &str) -> &str {
    match name.rsplit_once('-') {
        Some((rest, last)) if last.contains(|letter: char| letter.is_ascii_digit()) => rest,
        _ => name,
    }
}

/// One plot per family of cases and drive.
fn growth(subjects: &[&Subject<'_>]) -> Result<Vec<Plot>> {
    let mut families: Vec<(&str, Place, &str)> = Vec::new();
    for subject in subjects.iter().filter(|subject| subject.parameter.is_some()) {
        let key = (family(subject.case), subject.place, subject.unit);
        if !families.contains(&key) {
            families.push(key);
        }
    }
    let mut plots = Vec::new();
    for (name, place, unit) in families {
        let members = || subjects.iter().filter(move |subject| (family(subject.case), subject.place, subject.unit) == (name, place, unit));
        let is_bytes = unit == "bytes";
        let lines: Vec<scale::Line> = Peer::ALL
            .into_iter()
            .map(|peer| {
                let points = members().filter_map(|subject| Some((subject.parameter?, subject.of(peer)?.summary.rate.median)));
                let cost = |(parameter, rate): (f64, f64)| (parameter, if is_bytes { rate / MEBIBYTE } else { 1e9 / rate });
                (names::colour(peer), points.map(cost).collect())
            })
            .collect();
        let y = if is_bytes { "rate".to_owned() } else { format!("time for one {}", figures::singular(unit)) };
        let y_text = |value: f64| if is_bytes { format!("{} MiB/s", figures::three_digits(value)) } else { figures::time(value) };
        let (x, x_text) = varied(name);
        let title = format!("{name}: {y}, {}", names::place(place));
        let axes = scale::Axes { x, y: &y, x_text: &x_text, y_text: &y_text };
        if let Some(svg) = scale::plot(&title, &axes, &lines)? {
            plots.push(Plot { title, svg });
        }
    }
    Ok(plots)
}

/// The varied parameter of a family, derived from its name, and the format of its values.
fn varied(name: &str) -> (&'static str, fn(f64) -> String) {
    let has = |word: &str| name.split('-').any(|part| part.starts_with(word));
    match () {
        () if has("client") => ("clients", figures::three_digits),
        () if has("fill") => ("percent full", |value| format!("{} %", figures::three_digits(value))),
        () if has("age") => ("times that the drive was written over", figures::three_digits),
        () if has("overwrite") => ("bytes of the file", figures::bytes),
        () if has("create") || has("lookup") => ("files in the directory", figures::count),
        () => ("parameter", figures::count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_leave_the_parameter_out() {
        for (name, expected) in
            [("scale-overwrite-in-16mib", "scale-overwrite-in"), ("scale-clients-16", "scale-clients"), ("untar", "untar")]
        {
            assert_eq!(family(name), expected);
        }
    }

    #[test]
    fn every_case_of_this_program_that_varies_something_says_what() {
        let names: Vec<String> =
            crate::compare::cases::all().iter().filter(|case| case.parameter().is_some()).map(|case| case.name()).collect();
        for name in names {
            assert_ne!(varied(family(&name)).0, "parameter", "{name}");
        }
    }
}
