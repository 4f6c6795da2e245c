//! Ratios as bars from 1 to either side: a bar to the right is faster than the better of ext4 and XFS.

use plotters::style::text_anchor::{HPos, VPos};

use super::{Area, Axis, GRID, INK, WIDTH, block, drawn, extremes, rule, ticks, write};
use crate::compare::report::document::{Colour, Plot};
use crate::compare::report::figures;
use crate::compare::statistics::Ratio;
use crate::failure::Result;

/// Cases per plot; further cases go into the next plot.
const ROWS_MAX: usize = 10;
const LABEL: i32 = 34;
const BAR: i32 = 26;
const BETWEEN: i32 = 18;
const TOP: i32 = 8;
const BOTTOM: i32 = 84;
const SIDE: i32 = 30;
/// Room for the ratio beside a bar.
const NUMBER: i32 = 96;

/// The row of a case.
#[derive(Debug, Clone)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Colour of the file system, ratio, and whether the ratio is written beside the bar.
    pub bars: Vec<(Colour, Ratio, bool)>,
    /// The target.
    pub target: Option<f64>,
}

/// As many plots as needed, all with the same axis.
pub fn plots(title: &str, rows: &[Row]) -> Result<Vec<Plot>> {
    let values = rows.iter().flat_map(|row| row.bars.iter().map(|bar| bar.1.median).chain(row.target));
    let Some((low, high)) = extremes(values.chain([0.8, 1.25])) else { return Ok(Vec::new()) };
    // Intervals may extend beyond the plot, ratios do not.
    let axis = Axis::logarithmic((low, high), SIDE, WIDTH as i32 - SIDE - NUMBER);
    let pages = rows.chunks(ROWS_MAX);
    let count = pages.len();
    pages
        .enumerate()
        .map(|(index, rows)| {
            let title = if count > 1 { format!("{title} ({} of {count})", index + 1) } else { title.to_owned() };
            let svg = page(&title, rows, axis)?;
            Ok(Plot { title, svg })
        })
        .collect()
}

fn page(title: &str, rows: &[Row], axis: Axis) -> Result<String> {
    let row_height = |row: &Row| LABEL + row.bars.len() as i32 * BAR + BETWEEN;
    let bottom = TOP + rows.iter().map(row_height).sum::<i32>();
    drawn(title, (bottom + BOTTOM) as u32, |area| {
        for tick in ticks(axis.from, axis.to, 7) {
            rule(area, (axis.place(tick), TOP), (axis.place(tick), bottom), GRID, 1)?;
            write(area, short(tick), (axis.place(tick), bottom + 8), HPos::Center, VPos::Top)?;
        }
        let mut top = TOP;
        for row in rows {
            draw_row(area, row, axis, top)?;
            top += row_height(row);
        }
        write(area, "slower ← best of ext4 and XFS = 1 → faster", (WIDTH as i32 / 2, bottom + 46), HPos::Center, VPos::Top)
    })
}

/// A round ratio without unnecessary digits.
fn short(tick: f64) -> String {
    let text = figures::three_digits(tick);
    let number = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{number}×")
}

fn draw_row(area: &Area<'_>, row: &Row, axis: Axis, top: i32) -> Result<()> {
    write(area, row.name.as_str(), (4, top + 6), HPos::Left, VPos::Top)?;
    for (index, (colour, ratio, is_written)) in row.bars.iter().enumerate() {
        let upper = top + LABEL + index as i32 * BAR;
        let (one, end) = (axis.place(1.0), axis.place(ratio.median));
        block(area, (one, upper + 1), (end, upper + BAR - 2), *colour)?;
        // The interval, drawn over the bar.
        let (low, high, middle) = (axis.place(ratio.low), axis.place(ratio.high), upper + BAR / 2);
        rule(area, (low, middle), (high, middle), INK, 2)?;
        if *is_written {
            write(area, figures::ratio(ratio.median), (high.max(one) + 8, middle), HPos::Left, VPos::Center)?;
        }
    }
    let foot = top + LABEL + row.bars.len() as i32 * BAR;
    rule(area, (axis.place(1.0), top + LABEL - 2), (axis.place(1.0), foot + 2), INK, 3)?;
    if let Some(target) = row.target {
        let x = axis.place(target);
        for start in (top + LABEL..foot).step_by(12) {
            rule(area, (x, start), (x, (start + 6).min(foot)), INK, 3)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::shapes;
    use super::*;

    #[test]
    fn every_case_is_drawn() {
        let ratio = |median: f64| Ratio { median, low: median * 0.9, high: median * 1.1 };
        let rows: Vec<Row> = (0..23)
            .map(|number| Row {
                name: format!("case-{number}"),
                bars: vec![(Colour(0), ratio(0.01 * f64::from(number + 1)), true), (Colour(3), ratio(f64::from(number + 1)), false)],
                target: (number % 2 == 0).then_some(3.0),
            })
            .collect();
        let plots = plots("ratios", &rows).expect("drawn");
        assert_eq!(plots.len(), 3);
        for (number, row) in rows.iter().enumerate() {
            let svg = &plots[number / ROWS_MAX].svg;
            assert!(svg.contains(&row.name) && shapes(svg) > 10, "{}", row.name);
        }
    }

    #[test]
    fn ratios_that_are_no_numbers_leave_the_plot_whole() {
        let broken = Ratio { median: f64::NAN, low: 0.0, high: f64::INFINITY };
        let row = Row { name: "x".into(), bars: vec![(Colour(0), broken, true)], target: Some(0.0) };
        assert!(shapes(&plots("broken", &[row]).expect("drawn")[0].svg) > 0);
        assert!(plots("nothing", &[]).expect("nothing").is_empty());
    }
}
