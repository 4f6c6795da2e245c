//! The last chapters: method, machine, and what is missing.

use std::collections::BTreeSet;

use super::document::{Block, Cell, Grid, Mark};
use super::results::{Results, run_name};
use super::subject::Subject;
use super::{figures, names};
use crate::compare::record::Calibration;
use crate::compare::statistics::{NOISE_MAX, disturbance, usual_noise};

/// Largest accepted deviation between the two paths to the same drive.
const DEVIATION_MAX: f64 = 0.05;

/// The calibration of the same drive; empty if there is none.
pub fn calibration(rows: &[Calibration]) -> Vec<Block> {
    if rows.is_empty() {
        return Vec::new();
    }
    let mut grid = Grid::new("", &[0], ["request", "raw loop device", "block path of TandemFS", "loop to block path", "within 5 %"]);
    for row in rows {
        let ratio = row.loop_ns / row.drive_ns;
        let is_near = (ratio - 1.0).abs() <= DEVIATION_MAX;
        let (mark, word) = if is_near { (Mark::Win, "yes") } else { (Mark::Loss, "no") };
        grid.row(
            None,
            [
                row.request.as_str().into(),
                figures::time(row.loop_ns).into(),
                figures::time(row.drive_ns).into(),
                figures::ratio(ratio).into(),
                Cell::marked(word, mark),
            ],
        );
    }
    vec![
        Block::Chapter { id: "calibration".into(), title: "The same drive, both ways".into() },
        Block::Paragraph(
            "Kernel file systems reach the emulated drive by a loop device, TandemFS by the drive's own block path. Medians of single requests on \
             both, before anything is compared: they have to be alike, or nothing on the same drive is."
                .into(),
        ),
        Block::Grid(grid),
    ]
}

/// Machine, versions, settings, left-out entries and disturbed runs.
pub fn chapter(results: &Results, subjects: &[Subject<'_>]) -> Vec<Block> {
    let header = &results.header;
    let mut blocks = vec![Block::Chapter { id: "background".into(), title: "Machine, settings, what is missing".into() }];
    for (caption, rows) in [("Machine", &header.machine), ("Programs and file systems", &header.programs), ("Settings", &header.settings)] {
        if !rows.is_empty() {
            blocks.push(facts(caption, rows));
        }
    }
    blocks.push(Block::Section("Left out".into()));
    let left_out = left_out(results, subjects);
    blocks.push(match left_out.is_empty() {
        true => Block::Paragraph("Nothing.".into()),
        false => Block::List(left_out),
    });
    blocks.push(Block::Section("Noise".into()));
    blocks.extend(noise(results));
    blocks
}

/// Missing or inconsistent entries, one sentence each.
pub fn left_out(results: &Results, subjects: &[Subject<'_>]) -> Vec<String> {
    let mut left_out: Vec<String> = results.header.left_out.iter().map(|(what, why)| format!("{what}: {why}")).collect();
    left_out.extend(results.notes.iter().cloned());
    left_out.extend(uneven(subjects));
    left_out
}

fn facts(caption: &str, rows: &[(String, String)]) -> Block {
    let mut grid = Grid::new("", &[0, 1], [caption, ""]);
    for (name, value) in rows {
        grid.row(None, [name.as_str().into(), value.as_str().into()]);
    }
    Block::Grid(grid)
}

/// Cases with fewer rounds on some peers than on others, as in an unfinished comparison.
fn uneven(subjects: &[Subject<'_>]) -> Vec<String> {
    let most =
        subjects.iter().flat_map(|subject| subject.peers.iter()).map(|measured| measured.summary.rates.len()).max().unwrap_or_default();
    let mut sentences = Vec::new();
    for subject in subjects {
        let fewer: Vec<String> = subject
            .peers
            .iter()
            .filter(|measured| measured.summary.rates.len() < most)
            .map(|measured| format!("{} {}", names::peer(measured.summary.peer), measured.summary.rates.len()))
            .collect();
        if !fewer.is_empty() {
            sentences.push(format!(
                "{}, {}: fewer rounds than the {most} of others ({})",
                subject.case,
                names::place(subject.place),
                fewer.join(", ")
            ));
        }
    }
    sentences
}

fn noise(results: &Results) -> Vec<Block> {
    let limit = figures::percent(NOISE_MAX);
    let usual = usual_noise(&results.records);
    let noisy: Vec<_> = results.records.iter().filter(|record| disturbance(record, usual) > NOISE_MAX).collect();
    let count = results.records.len();
    if noisy.is_empty() {
        return vec![Block::Paragraph(format!("None of {count} runs was disturbed by more than {limit}."))];
    }
    let cases: BTreeSet<&str> = noisy.iter().map(|record| record.case.as_str()).collect();
    let rows = noisy.iter().map(|record| format!("{}: {}", run_name(record), figures::percent(disturbance(record, usual))));
    vec![
        Block::Warning(format!(
            "{} of {count} runs (cases: {}) were disturbed: a fixed piece of computing around them took more than {limit} longer or less than usual. \
             Where that holds for the median of a case's rounds, the case decides nothing.",
            noisy.len(),
            cases.len()
        )),
        Block::Fold { id: "noisy".into(), summary: "The runs".into(), tag: None, blocks: vec![Block::List(rows.collect())] },
    ]
}
