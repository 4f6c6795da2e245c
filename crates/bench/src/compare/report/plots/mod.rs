//! Plots of a comparison. The plotting library supports only fixed colours and sizes.
//!
//! [PO1] Plots are drawn with placeholder colours ([`INK`], [`GRID`], [`stand_in`]). [`drawn`] replaces them by the page's colour
//!       variables, so a plot follows the light or dark style, and removes the size, so it fills the available width.
//! [PO2] Only finite values are drawn: callers pass values above 0 to logarithmic axes; other values are left out here.
//! [PO3] When a plot is as wide as a phone, its letters are as large as the page's.

pub mod bytes;
pub mod latency;
pub mod ratios;
pub mod scale;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::document::Colour;
use super::html;
use crate::failure::Result;

/// Width of every plot, in SVG units.
const WIDTH: u32 = 720;
/// Font size ([PO3]). The library writes 1 / 1.24 of the given value.
const LETTERS: f64 = 22.0 * 1.24;
const FONT: &str = "sans-serif";
/// Text and axes.
const INK: RGBColor = RGBColor(0xf0, 0xa5, 0x5a);
/// Grid lines.
const GRID: RGBColor = RGBColor(0xf1, 0xa5, 0x5a);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The placeholder for a colour of the page ([PO1]).
fn stand_in(colour: Colour) -> RGBColor {
    RGBColor(colour.0, 0xa5, 0x5a)
}

/// The page's colour for a placeholder ([PO1]).
fn themed(hexadecimal: &str) -> Option<String> {
    match u8::from_str_radix(hexadecimal.strip_suffix("A55A")?, 16).ok()? {
        0xf0 => Some("currentColor".to_owned()),
        0xf1 => Some("var(--grid)".to_owned()),
        colour => Some(Colour(colour).variable()),
    }
}

/// An `svg` element of this height with a title, as wide as its container ([PO1]).
fn drawn(title: &str, height: u32, onto: impl FnOnce(&Area<'_>) -> Result<()>) -> Result<String> {
    let mut drawn = String::new();
    {
        let root = SVGBackend::with_string(&mut drawn, (WIDTH, height)).into_drawing_area();
        onto(&root)?;
        root.present()?;
    }
    let inner = drawn.split_once('>').map(|(_, inner)| inner).unwrap_or_default();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{0}\"><title>{0}</title>",
        html::escaped(title)
    );
    let mut pieces = inner.split("\"#");
    svg += pieces.next().unwrap_or_default();
    for piece in pieces {
        match piece.get(..6).and_then(themed) {
            Some(colour) => svg += &format!("\"{colour}{}", &piece[6..]),
            None => svg += &format!("\"#{piece}"),
        }
    }
    Ok(svg)
}

/// Text style with an anchor.
fn letters(horizontal: HPos, vertical: VPos) -> TextStyle<'static> {
    (FONT, LETTERS).into_font().color(&INK).pos(Pos::new(horizontal, vertical))
}

fn write(area: &Area<'_>, text: impl Into<String>, at: (i32, i32), horizontal: HPos, vertical: VPos) -> Result<()> {
    Ok(area.draw(&Text::new(text.into(), at, letters(horizontal, vertical)))?)
}

/// Round numbers (1, 2, 5 times powers of ten) in a range; only powers of ten if there would be more than `most`.
fn ticks(from: f64, to: f64, most: usize) -> Vec<f64> {
    let decades = from.log10().floor() as i32..=to.log10().ceil() as i32;
    let within = |digits: &[f64]| -> Vec<f64> {
        let all = decades.clone().flat_map(|power| digits.iter().map(move |digit| digit * 10_f64.powi(power)));
        all.filter(|tick| (from * 0.999..=to * 1.001).contains(tick)).collect()
    };
    let choices = [within(&[1.0, 2.0, 5.0]), within(&[1.0, 3.0]), within(&[1.0])];
    let [.., tenfolds] = &choices;
    let mut thinned = tenfolds.clone();
    while thinned.len() > most.max(1) {
        thinned = thinned.into_iter().step_by(2).collect();
    }
    choices.into_iter().find(|choice| (1..=most).contains(&choice.len())).unwrap_or(thinned)
}

/// Multiples of a power of two from 0 to `to`, at most `most` steps.
fn binary_steps(to: f64, most: usize) -> Vec<f64> {
    let step = (to / most.max(1) as f64).log2().ceil().exp2();
    (0..=most).map(|index| index as f64 * step).filter(|value| *value <= to * 1.001).collect()
}

/// Minimum and maximum of finite values above 0 ([PO2]); `None` without such values.
fn extremes(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|value| is_drawable(*value)).fold(None, |found, value| match found {
        None => Some((value, value)),
        Some((low, high)) => Some((value.min(low), value.max(high))),
    })
}

/// [PO2]
fn is_drawable(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

/// Maps values to coordinates.
#[derive(Debug, Clone, Copy)]
struct Axis {
    from: f64,
    to: f64,
    start: i32,
    end: i32,
    is_logarithmic: bool,
}

impl Axis {
    /// Coordinate of a value, limited to the ends of the axis.
    fn place(&self, value: f64) -> i32 {
        let share = if self.is_logarithmic {
            (value.max(f64::MIN_POSITIVE) / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
        self.start + (share * f64::from(self.end - self.start)).round() as i32
    }

    /// A logarithmic axis from a little below `low` to a little above `high`.
    fn logarithmic((low, high): (f64, f64), start: i32, end: i32) -> Self {
        let (from, to) = if high / low < 1.5 { (low / 1.5, high * 1.5) } else { (low / 1.1, high * 1.1) };
        Self { from, to, start, end, is_logarithmic: true }
    }

    /// A linear axis from 0 to `high`.
    fn linear(high: f64, start: i32, end: i32) -> Self {
        Self { from: 0.0, to: if is_drawable(high) { high } else { 1.0 }, start, end, is_logarithmic: false }
    }
}

/// A thin line.
fn rule(area: &Area<'_>, from: (i32, i32), to: (i32, i32), colour: RGBColor, width: u32) -> Result<()> {
    Ok(area.draw(&PathElement::new([from, to], colour.stroke_width(width)))?)
}

/// A filled rectangle between two corners, at least as wide as a line.
fn block(area: &Area<'_>, (left, top): (i32, i32), (right, bottom): (i32, i32), colour: Colour) -> Result<()> {
    let (left, right) = (left.min(right), left.max(right).max(left.min(right) + 2));
    Ok(area.draw(&Rectangle::new([(left, top), (right, bottom)], stand_in(colour).filled()))?)
}

/// A line through points with a dot at each; a single point is a dot.
fn line(area: &Area<'_>, points: &[(i32, i32)], colour: Colour) -> Result<()> {
    let colour = stand_in(colour);
    if points.len() > 1 {
        area.draw(&PathElement::new(points.to_vec(), colour.stroke_width(4)))?;
    }
    Ok(points.iter().try_for_each(|point| area.draw(&Circle::new(*point, 6, colour.filled())))?)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Checks that an `svg` is well-formed, themed, without fixed size and with finite numbers. Returns the number of shapes.
    pub fn shapes(svg: &str) -> usize {
        let tree = roxmltree::Document::parse(svg).unwrap_or_else(|error| panic!("{error}: {svg}"));
        assert!(tree.root_element().attribute("width").is_none() && tree.root_element().attribute("viewBox").is_some());
        assert!(!svg.contains("A55A") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        for node in tree.descendants().filter(roxmltree::Node::is_element) {
            for name in ["x", "y", "x1", "x2", "y1", "y2", "width", "height", "cx", "cy"] {
                let number = node.attribute(name).map(|value| value.parse::<f64>());
                assert!(number.is_none_or(|number| number.is_ok_and(|number| (-50.0..=20_000.0).contains(&number))), "{node:?}");
            }
        }
        let is_shape = |node: &roxmltree::Node<'_, '_>| ["rect", "line", "polyline", "circle"].contains(&node.tag_name().name());
        tree.descendants().filter(is_shape).count()
    }

    #[test]
    fn a_plot_has_the_colours_of_the_page_and_no_size() {
        let svg = drawn("a \"b\" <c>", 100, |area| {
            block(area, (0, 0), (10, 10), Colour(3))?;
            rule(area, (0, 0), (5, 5), GRID, 1)?;
            write(area, "#F0A55A <&>", (3, 4), HPos::Left, VPos::Top)
        });
        let svg = svg.expect("drawn");
        assert!(svg.contains("var(--c3)") && svg.contains("var(--grid)") && svg.contains("currentColor"), "{svg}");
        assert!(svg.contains("#F0A55A &lt;&amp;&gt;"), "text stays text: {svg}");
        assert_eq!(
            roxmltree::Document::parse(&svg).map(|tree| tree.root_element().attribute("aria-label").map(str::to_owned)).ok(),
            Some(Some("a \"b\" <c>".to_owned()))
        );
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks(0.4, 12.0, 6), [0.5, 1.0, 2.0, 5.0, 10.0]);
        assert_eq!(ticks(0.9, 1100.0, 5), [1.0, 10.0, 100.0, 1000.0]);
        assert!(ticks(1e-9, 1e9, 5).len() <= 5 && !ticks(1e-9, 1e9, 5).is_empty());
        assert_eq!(binary_steps(9.0, 5), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(binary_steps(4096.0, 4).len(), 5);
    }

    #[test]
    fn an_axis_keeps_everything_on_the_plot() {
        let axis = Axis::logarithmic((1.0, 100.0), 10, 110);
        assert!(axis.place(1.0) < axis.place(10.0) && axis.place(10.0) < axis.place(100.0));
        assert_eq!(
            [axis.place(0.0), axis.place(-1.0), axis.place(f64::NAN), axis.place(1e9)].map(|place| (10..=110).contains(&place)),
            [true; 4]
        );
    }
}
