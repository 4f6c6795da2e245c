//! How cost grows: a line per file system over the varied parameter.

use plotters::style::text_anchor::{HPos, VPos};

use super::{Axis, GRID, INK, WIDTH, drawn, extremes, is_drawable, line, rule, ticks, write};
use crate::compare::report::document::Colour;
use crate::failure::Result;

const HEIGHT: i32 = 460;
const LEFT: i32 = 160;
const RIGHT: i32 = 44;
const TOP: i32 = 52;
const BOTTOM: i32 = 84;

/// A line: its colour, and points of parameter and cost.
pub type Line = (Colour, Vec<(f64, f64)>);

/// Names of the axes, and the format of their values.
pub struct Axes<'a> {
    /// Name of the horizontal axis.
    pub x: &'a str,
    /// Name of the cost axis, above it.
    pub y: &'a str,
    /// Formats a parameter value.
    pub x_text: &'a dyn Fn(f64) -> String,
    /// Formats a cost value.
    pub y_text: &'a dyn Fn(f64) -> String,
}

/// A plot of the lines; `None` if there is nothing to draw. The horizontal axis is logarithmic if its values are far apart.
pub fn plot(title: &str, axes: &Axes<'_>, lines: &[Line]) -> Result<Option<String>> {
    let points = || lines.iter().flat_map(|line| line.1.iter().copied());
    let Some(ys) = extremes(points().map(|point| point.1)) else { return Ok(None) };
    let xs = points().map(|point| point.0).filter(|x| is_place(*x)).fold((f64::INFINITY, 0.0), |(low, high), x| (x.min(low), x.max(high)));
    if !is_place(xs.0) {
        return Ok(None);
    }
    let (start, end) = (LEFT + 24, WIDTH as i32 - RIGHT - 24);
    let is_logarithmic = xs.0 > 0.0 && xs.1 / xs.0 >= 12.0;
    let x = Axis { from: xs.0, to: if xs.1 > xs.0 { xs.1 } else { xs.0 * 2.0 + 1.0 }, start, end, is_logarithmic };
    let y = Axis::logarithmic(ys, HEIGHT - BOTTOM, TOP);
    drawn(title, HEIGHT as u32, |area| {
        for tick in ticks(y.from, y.to, 6) {
            rule(area, (LEFT, y.place(tick)), (WIDTH as i32 - RIGHT, y.place(tick)), GRID, 1)?;
            write(area, short(&(axes.y_text)(tick)), (LEFT - 10, y.place(tick)), HPos::Right, VPos::Center)?;
        }
        rule(area, (LEFT, HEIGHT - BOTTOM), (WIDTH as i32 - RIGHT, HEIGHT - BOTTOM), INK, 2)?;
        for tick in x_ticks(points().map(|point| point.0), x) {
            rule(area, (x.place(tick), HEIGHT - BOTTOM), (x.place(tick), HEIGHT - BOTTOM + 6), INK, 2)?;
            write(area, short(&(axes.x_text)(tick)), (x.place(tick), HEIGHT - BOTTOM + 10), HPos::Center, VPos::Top)?;
        }
        write(area, axes.y, (4, 8), HPos::Left, VPos::Top)?;
        write(area, axes.x, ((LEFT + WIDTH as i32 - RIGHT) / 2, HEIGHT - 36), HPos::Center, VPos::Top)?;
        for (colour, points) in lines {
            let mut points: Vec<_> = points.iter().copied().filter(|point| is_place(point.0) && is_drawable(point.1)).collect();
            points.sort_by(|one, other| one.0.total_cmp(&other.0));
            line(area, &points.into_iter().map(|point| (x.place(point.0), y.place(point.1))).collect::<Vec<_>>(), *colour)?;
        }
        Ok(())
    })
    .map(Some)
}

/// Whether a value can be a parameter: zero can, as the age of a new drive.
fn is_place(x: f64) -> bool {
    x.is_finite() && x >= 0.0
}

/// The measured parameter values for which there is room.
fn x_ticks(values: impl Iterator<Item = f64>, axis: Axis) -> Vec<f64> {
    const ROOM: i32 = 84;
    let mut all: Vec<f64> = values.filter(|value| is_place(*value)).collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    let mut kept: Vec<f64> = Vec::new();
    for value in all {
        if kept.last().is_none_or(|last| axis.place(value) - axis.place(*last) >= ROOM) {
            kept.push(value);
        }
    }
    kept
}

/// A value without unnecessary digits: `1 k` for `1.00 k`.
fn short(text: &str) -> String {
    let (number, unit) = text.split_once(' ').map_or((text, String::new()), |(number, unit)| (number, format!(" {unit}")));
    let number = if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number };
    format!("{number}{unit}")
}

#[cfg(test)]
mod tests {
    use super::super::tests::shapes;
    use super::*;
    use crate::compare::report::figures;

    #[test]
    fn lines_are_over_what_is_varied() {
        let axes = Axes { x: "files", y: "time", x_text: &figures::count, y_text: &figures::time };
        let lines = [(Colour(0), vec![(1e3, 5e3), (1e6, 9e3), (1e4, 6e3)]), (Colour(1), vec![(1e3, f64::NAN), (1e4, 0.0)])];
        let svg = plot("scale", &axes, &lines).expect("drawn").expect("points");
        assert!(shapes(&svg) > 4 && svg.contains(">\n1 k\n<") && svg.contains(">\n1 M\n<"), "{svg}");
        assert!(plot("nothing", &axes, &[(Colour(1), vec![])]).expect("drawn").is_none());
        let ages = plot("ages", &axes, &[(Colour(1), vec![(0.0, 5.0), (1.0, 6.0), (3.0, 7.0)])]).expect("drawn").expect("points");
        assert_eq!(ages.matches("<circle").count(), 3, "a drive that is new is one of them: {ages}");
        let one = plot("one", &axes, &[(Colour(1), vec![(10.0, 5.0)])]).expect("drawn").expect("a point");
        assert!(shapes(&one) > 0);
    }

    #[test]
    fn names_below_have_room() {
        let axis = Axis { from: 10.0, to: 95.0, start: 0, end: 300, is_logarithmic: false };
        let kept = x_ticks([10.0, 50.0, 50.0, 90.0, 95.0, f64::NAN].into_iter(), axis);
        assert_eq!(kept, [10.0, 50.0, 90.0]);
    }
}
