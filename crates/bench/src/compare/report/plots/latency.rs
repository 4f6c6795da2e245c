//! Latency of single operations, from the median to the maximum.

use plotters::style::text_anchor::{HPos, VPos};

use super::{Axis, GRID, INK, WIDTH, drawn, extremes, is_drawable, line, rule, ticks, write};
use crate::compare::record::Percentiles;
use crate::compare::report::document::Colour;
use crate::compare::report::figures;
use crate::failure::Result;

const HEIGHT: i32 = 420;
const LEFT: i32 = 118;
const RIGHT: i32 = 40;
const TOP: i32 = 16;
const BOTTOM: i32 = 84;
const NAMES: [&str; 5] = ["p50", "p90", "p99", "p99.9", "max"];

/// One line per file system over the percentiles; `None` without samples.
pub fn plot(title: &str, peers: &[(Colour, Percentiles)]) -> Result<Option<String>> {
    let of = |latency: &Percentiles| [latency.p50, latency.p90, latency.p99, latency.p999, latency.max];
    let Some(range) = extremes(peers.iter().flat_map(|(_, latency)| of(latency))) else { return Ok(None) };
    let axis = Axis::logarithmic(range, HEIGHT - BOTTOM, TOP);
    let column = |index: usize| LEFT + 30 + index as i32 * (WIDTH as i32 - LEFT - RIGHT - 60) / (NAMES.len() - 1) as i32;
    drawn(title, HEIGHT as u32, |area| {
        for tick in ticks(axis.from, axis.to, 6) {
            rule(area, (LEFT, axis.place(tick)), (WIDTH as i32 - RIGHT, axis.place(tick)), GRID, 1)?;
            write(area, tick_name(tick), (LEFT - 10, axis.place(tick)), HPos::Right, VPos::Center)?;
        }
        rule(area, (LEFT, HEIGHT - BOTTOM), (WIDTH as i32 - RIGHT, HEIGHT - BOTTOM), INK, 2)?;
        for (index, name) in NAMES.iter().enumerate() {
            write(area, *name, (column(index), HEIGHT - BOTTOM + 8), HPos::Center, VPos::Top)?;
        }
        write(area, "time of an operation, by percentile", (WIDTH as i32 / 2, HEIGHT - 36), HPos::Center, VPos::Top)?;
        for (colour, latency) in peers {
            let points = of(latency).into_iter().enumerate().filter(|(_, value)| is_drawable(*value));
            line(area, &points.map(|(index, value)| (column(index), axis.place(value))).collect::<Vec<_>>(), *colour)?;
        }
        Ok(())
    })
    .map(Some)
}

/// A round time without unnecessary digits.
fn tick_name(nanoseconds: f64) -> String {
    let text = figures::time(nanoseconds);
    let (number, unit) = text.split_once(' ').unwrap_or((&text, ""));
    let short = if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number };
    format!("{short} {unit}")
}

#[cfg(test)]
mod tests {
    use super::super::tests::shapes;
    use super::*;

    #[test]
    fn each_has_a_line_of_five_points() {
        let latency = Percentiles { count: 10, mean: 2e3, p50: 1e3, p90: 2e3, p99: 5e3, p999: 9e4, max: 3e6 };
        let one = plot("latency", &[(Colour(0), latency.clone())]).expect("drawn").expect("times");
        let two = plot("latency", &[(Colour(0), latency.clone()), (Colour(1), latency)]).expect("drawn").expect("times");
        assert_eq!(shapes(&two) - shapes(&one), 6, "five dots and a line");
        assert!(one.contains("p99.9") && one.contains("10 us"), "{one}");
    }

    #[test]
    fn times_that_are_none_are_left_out() {
        let nothing = Percentiles { count: 0, mean: 0.0, p50: 0.0, p90: 0.0, p99: f64::NAN, p999: 0.0, max: 0.0 };
        assert!(plot("none", &[(Colour(0), nothing.clone())]).expect("drawn").is_none());
        let some = Percentiles { max: 7.0, ..nothing };
        assert!(shapes(&plot("one", &[(Colour(0), some)]).expect("drawn").expect("a time")) > 0);
    }
}
