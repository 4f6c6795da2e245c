//! The second chapter: each target and whether it is met.

use super::document::{Block, Cell, Grid, identifier};
use super::losses::{interval, verdict_mark};
use super::{figures, names};
use crate::compare::targets::{ComparisonTarget, Judgement, Measure, TABLE, is_case};

/// Makes the chapter.
pub fn chapter(judgements: &[Judgement]) -> Vec<Block> {
    let mut blocks = vec![Block::Chapter { id: "targets".into(), title: "Targets".into() }];
    let all: Vec<&Judgement> = judgements.iter().collect();
    if all.is_empty() {
        blocks.push(Block::Paragraph("None of the rows has both its sides in these results.".into()));
    } else {
        blocks.push(Block::Paragraph(
            "A target is met when all of the 95 % interval is, missed when none of it is, and undecided otherwise or when the machine was too noisy."
                .into(),
        ));
        blocks.push(Block::Grid(grid("", &all)));
    }
    let open: Vec<String> = TABLE.iter().filter_map(|target| unmeasured(target, judgements)).collect();
    if !open.is_empty() {
        blocks.push(Block::Section("Not measured here".into()));
        blocks.push(Block::List(open));
    }
    blocks
}

/// A table with one row per judgement.
pub fn grid(caption: &str, judgements: &[&Judgement]) -> Grid {
    let head = ["case", "drive", "target", "found", "95 % interval", "verdict", "what", "TandemFS", "beside", "rate to ext4's"];
    let mut grid = Grid::new(caption, &[0, 1, 5, 6, 7, 8], head);
    for judgement in judgements {
        let mark = verdict_mark(judgement.verdict);
        grid.row(
            None,
            [
                Cell::linked(judgement.case.as_str(), format!("case-{}", identifier(&judgement.case))),
                names::place(judgement.place).into(),
                wanted(judgement.target.measure).into(),
                Cell::marked(figures::ratio(judgement.ratio.median), mark),
                interval(judgement.ratio).into(),
                Cell::marked(judgement.verdict.name(), mark),
                judgement.target.title.into(),
                names::peer(judgement.peer).into(),
                names::peer(judgement.other).into(),
                judgement.beside_ext4.map_or("–".to_owned(), |beside| figures::ratio(beside.median)).into(),
            ],
        );
    }
    grid
}

/// The target in short form.
fn wanted(measure: Measure) -> String {
    match measure {
        Measure::RateAtLeast(least) => format!("rate ≥ {}", figures::ratio(least)),
        Measure::TimesNullAtMost(most) => format!("time ≤ {}", figures::ratio(most)),
        Measure::FlashBytesAtMost(most) => format!("flash bytes ≤ {}", figures::ratio(most)),
    }
}

/// A sentence with the cases of a row that were not judged.
fn unmeasured(target: &ComparisonTarget, judgements: &[Judgement]) -> Option<String> {
    let is_judged = |case: &str| judgements.iter().any(|judgement| judgement.target == *target && is_case(&judgement.case, case));
    let open: Vec<&str> = target.cases.iter().copied().filter(|case| !is_judged(case)).collect();
    let place = target.place.map_or("any drive", names::place);
    let ours = target.peers.iter().copied().map(names::peer).collect::<Vec<_>>().join(", ");
    (!open.is_empty()).then(|| format!("{} ({ours}; {place}; {}): {}", target.title, wanted(target.measure), open.join(", ")))
}
