//! The chapter on bytes: traffic to the drive per unit of work, by structure, and bytes programmed to flash.

use std::collections::BTreeMap;

use super::document::{Block, Cell, Colour, Grid, Mark, Plot};
use super::names::{self, STRUCTURES_MAX};
use super::plots::bytes::{Bar, plot};
use super::subject::Subject;
use super::{document, figures};
use crate::compare::case::Group;
use crate::compare::peer::Peer;
use crate::compare::statistics::{Summary, TrafficPerUnit};
use crate::compare::targets::{Judgement, Measure};
use crate::failure::Result;

/// All structures except the largest.
const OTHER: &str = "other";
/// Written bytes without a known structure.
const UNSPLIT: &str = "not split";

/// The chapter; empty if no drive counted bytes.
pub fn chapter(subjects: &[Subject<'_>], judgements: &[Judgement]) -> Result<Vec<Block>> {
    let counted: Vec<&Subject<'_>> = subjects.iter().filter(|subject| is_counted(subject)).collect();
    if counted.is_empty() {
        return Ok(Vec::new());
    }
    let structures = structures(&counted);
    let colour = |name: &str| names::structure_colour(structures.iter().position(|each| each == name).unwrap_or(STRUCTURES_MAX));
    let mut blocks = vec![
        Block::Chapter { id: "bytes".into(), title: "Bytes".into() },
        Block::Paragraph(
            "Medians for one unit of work, of the measured part; what the kernel still held at its end was written first, and counts. Bars are \
             what the host wrote, by the structure of the file system that it belongs to; the line below a bar is what the flash programmed for \
             it, collection included; beside it stand both. Programmed / written is the drive's own amplification; programmed / by application is \
             counted where a case's unit is bytes that it writes."
                .into(),
        ),
        Block::Grid(overview(&counted)),
    ];
    let mut legend: Vec<(Colour, String)> = structures.iter().map(|name| (colour(name), name.clone())).collect();
    if legend.len() > STRUCTURES_MAX {
        legend.truncate(STRUCTURES_MAX);
        legend.push((names::structure_colour(STRUCTURES_MAX), OTHER.to_owned()));
    }
    // Cases with targets and the papers' loads are shown directly, others in a fold.
    let is_first = |subject: &Subject<'_>| {
        let is_judged =
            |judgement: &Judgement| matches!(judgement.target.measure, Measure::FlashBytesAtMost(_)) && judgement.case == subject.case;
        subject.group == Group::Filebench || judgements.iter().any(is_judged)
    };
    let (mut first, mut folds) = (Vec::new(), Vec::new());
    for subject in counted {
        let mut blocks = vec![Block::Grid(details(subject))];
        if subject.peers.iter().any(|measured| traffic(measured.summary).is_some_and(|found| found.written_bytes > 0.0)) {
            let bars: Vec<Bar> = subject.peers.iter().filter_map(|measured| bar(measured.summary, &colour)).collect();
            let svg = plot(&title(subject), &format!("written for one {}", figures::singular(subject.unit)), &bars)?;
            let drawn = Plot { title: title(subject), svg };
            if is_first(subject) {
                first.push(drawn);
            } else {
                blocks.push(Block::Plots { legend: legend.clone(), plots: vec![drawn] });
            }
        }
        folds.push(Block::Fold { id: link(subject), summary: title(subject), tag: None, blocks });
    }
    if !first.is_empty() {
        blocks.push(Block::Plots { legend, plots: first });
    }
    blocks.extend(folds);
    Ok(blocks)
}

fn title(subject: &Subject<'_>) -> String {
    format!("{}, {}", subject.case, names::place(subject.place))
}

/// Whether another file system's bytes were counted too.
fn is_counted(subject: &Subject<'_>) -> bool {
    subject.peers.iter().any(|measured| !measured.summary.peer.is_ours() && traffic(measured.summary).is_some())
}

fn traffic(summary: &Summary) -> Option<&TrafficPerUnit> {
    summary.traffic_per_unit.as_ref()
}

/// Written bytes by structure, the unassigned rest as its own part.
fn parts(traffic: &TrafficPerUnit) -> BTreeMap<&str, f64> {
    let mut parts: BTreeMap<&str, f64> = traffic.written_by_structure.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect();
    let rest = traffic.written_bytes - parts.values().sum::<f64>();
    // Medians of parts need not add up to the median of the sum.
    if rest > traffic.written_bytes * 0.005 {
        *parts.entry(UNSPLIT).or_default() += rest;
    }
    parts
}

/// Names of all structures, ordered by their share of what each file system wrote, largest first.
fn structures(subjects: &[&Subject<'_>]) -> Vec<String> {
    let mut shares: BTreeMap<&str, f64> = BTreeMap::new();
    for found in subjects.iter().flat_map(|subject| subject.peers.iter()).filter_map(|measured| traffic(measured.summary)) {
        for (name, bytes) in parts(found).into_iter().filter(|_| found.written_bytes > 0.0) {
            *shares.entry(name).or_default() += bytes / found.written_bytes;
        }
    }
    let mut names: Vec<(&str, f64)> = shares.into_iter().collect();
    names.sort_by(|one, other| other.1.total_cmp(&one.1));
    names.into_iter().map(|(name, _)| name.to_owned()).collect()
}

fn bar(summary: &Summary, colour: &dyn Fn(&str) -> Colour) -> Option<Bar> {
    let found = traffic(summary)?;
    let mut parts: Vec<(Colour, f64)> = parts(found).into_iter().map(|(name, bytes)| (colour(name), bytes)).collect();
    parts.sort_by_key(|part| part.0.0);
    Some(Bar { name: names::peer(summary.peer).to_owned(), parts, programmed: found.flash_programmed_bytes })
}

/// TandemFS compared with ext4, one row per case and drive.
fn overview(subjects: &[&Subject<'_>]) -> Grid {
    let head = ["case", "flash programmed", "written", "FLUSH", "TandemFS", "drive"];
    let mut grid = Grid::new("TandemFS to ext4 with its defaults, for a unit of work: below 1× is less", &[0, 4, 5], head);
    for subject in subjects {
        let Some(ext4) = subject.of(Peer::Ext4).and_then(|measured| traffic(measured.summary)) else { continue };
        for peer in [Peer::TandemfsRelaxed, Peer::TandemfsStrict] {
            let Some(ours) = subject.of(peer).and_then(|measured| traffic(measured.summary)) else { continue };
            let share = |of: fn(&TrafficPerUnit) -> Option<f64>| match (of(ours), of(ext4)) {
                (Some(ours), Some(theirs)) if theirs > 0.0 => {
                    let ratio = ours / theirs;
                    let mark = if ratio > 1.0 { Mark::Loss } else { Mark::Win };
                    // Ratios that print as 1.00 have no mark.
                    if (0.995..1.005).contains(&ratio) { figures::ratio(ratio).into() } else { Cell::marked(figures::ratio(ratio), mark) }
                }
                _ => "–".into(),
            };
            grid.row(
                None,
                [
                    Cell::linked(subject.case, link(subject)),
                    share(|traffic| traffic.flash_programmed_bytes),
                    share(|traffic| Some(traffic.written_bytes)),
                    share(|traffic| Some(traffic.flushes)),
                    names::peer(peer).into(),
                    names::place(subject.place).into(),
                ],
            );
        }
    }
    grid
}

fn link(subject: &Subject<'_>) -> String {
    format!("bytes-{}-{}", document::identifier(subject.case), subject.place.name())
}

/// All file systems of a case.
fn details(subject: &Subject<'_>) -> Grid {
    let head = [
        "file system",
        "written",
        "read",
        "FLUSH",
        "flash programmed",
        "flash read",
        "programmed / written",
        "programmed / by application",
        "by structure",
    ];
    let unit = figures::singular(subject.unit);
    let mut grid = Grid::new(format!("{}: for one {unit}", title(subject)), &[0, 8], head);
    for measured in &subject.peers {
        let Some(found) = traffic(measured.summary) else { continue };
        let flash = |bytes: Option<f64>| bytes.map_or("–".to_owned(), figures::bytes);
        let amplification = found.flash_programmed_bytes.filter(|_| found.written_bytes > 0.0).map(|flash| flash / found.written_bytes);
        // A case with unit bytes that reads them writes little, or reads as much as it writes.
        let writes_its_unit = subject.unit == "bytes" && found.written_bytes >= 0.5 && found.read_bytes < 0.25;
        let by_application = found.flash_programmed_bytes.filter(|_| writes_its_unit);
        let mut parts: Vec<(&str, f64)> = parts(found).into_iter().collect();
        parts.sort_by(|one, other| other.1.total_cmp(&one.1));
        let parts: Vec<String> = parts.into_iter().map(|(name, bytes)| format!("{name} {}", figures::bytes(bytes))).collect();
        grid.row(
            measured.summary.peer.is_ours().then_some(Mark::Ours),
            [
                names::peer(measured.summary.peer).into(),
                figures::bytes(found.written_bytes).into(),
                figures::bytes(found.read_bytes).into(),
                figures::three_digits(found.flushes).into(),
                flash(found.flash_programmed_bytes).into(),
                flash(found.flash_read_bytes).into(),
                amplification.map_or("–".to_owned(), figures::ratio).into(),
                by_application.map_or("–".to_owned(), figures::ratio).into(),
                parts.join(", ").into(),
            ],
        );
    }
    grid
}
