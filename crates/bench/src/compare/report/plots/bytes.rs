//! Traffic to a drive per unit of work: a bar per file system, stacked by structure, and the bytes programmed to flash.

use plotters::style::text_anchor::{HPos, VPos};

use super::{Axis, GRID, INK, WIDTH, binary_steps, block, drawn, rule, write};
use crate::compare::report::document::Colour;
use crate::compare::report::figures;
use crate::failure::Result;

const ROW: i32 = 72;
const LABEL: i32 = 32;
const TOP: i32 = 6;
const BOTTOM: i32 = 84;
const LEFT: i32 = 6;
const RIGHT: i32 = 264;

/// The bar of a file system.
#[derive(Debug, Clone)]
pub struct Bar {
    /// Its name.
    pub name: String,
    /// Written bytes by structure.
    pub parts: Vec<(Colour, f64)>,
    /// Bytes programmed to flash, if the drive has flash.
    pub programmed: Option<f64>,
}

impl Bar {
    fn written(&self) -> f64 {
        self.parts.iter().map(|part| part.1).filter(|bytes| bytes.is_finite()).sum()
    }
}

/// A plot with bars below each other.
pub fn plot(title: &str, x: &str, bars: &[Bar]) -> Result<String> {
    let most = bars.iter().flat_map(|bar| [bar.written(), bar.programmed.unwrap_or_default()]).filter(|bytes| bytes.is_finite());
    let axis = Axis::linear(most.fold(0.0, f64::max), LEFT, WIDTH as i32 - RIGHT);
    let bottom = TOP + bars.len() as i32 * ROW;
    drawn(title, (bottom + BOTTOM) as u32, |area| {
        for step in binary_steps(axis.to, 4) {
            rule(area, (axis.place(step), TOP), (axis.place(step), bottom), GRID, 1)?;
            let position = if step == 0.0 { HPos::Left } else { HPos::Center };
            write(area, figures::bytes(step), (axis.place(step), bottom + 8), position, VPos::Top)?;
        }
        for (index, bar) in bars.iter().enumerate() {
            let top = TOP + index as i32 * ROW;
            write(area, bar.name.as_str(), (LEFT + 4, top + 4), HPos::Left, VPos::Top)?;
            let (upper, lower) = (top + LABEL, top + ROW - 12);
            let mut floor = 0.0;
            for (colour, bytes) in bar.parts.iter().filter(|part| part.1.is_finite() && part.1 > 0.0) {
                let (left, right) = (axis.place(floor), axis.place(floor + bytes));
                // A segment narrower than a line would cover its neighbours.
                if right > left {
                    block(area, (left, upper), (right, lower), *colour)?;
                }
                floor += bytes;
            }
            let mut end = axis.place(bar.written());
            if let Some(programmed) = bar.programmed.filter(|bytes| bytes.is_finite()) {
                let place = axis.place(programmed);
                rule(area, (axis.start, lower + 4), (place, lower + 4), INK, 3)?;
                rule(area, (place, upper - 4), (place, lower + 8), INK, 3)?;
                end = end.max(place);
            }
            let programmed = bar.programmed.map(|bytes| format!(" → {}", figures::bytes(bytes))).unwrap_or_default();
            write(area, figures::bytes(bar.written()) + &programmed, (end + 8, (upper + lower) / 2), HPos::Left, VPos::Center)?;
        }
        rule(area, (LEFT, TOP), (LEFT, bottom), INK, 2)?;
        write(area, x, (WIDTH as i32 / 2, bottom + 46), HPos::Center, VPos::Top)
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::shapes;
    use super::*;

    #[test]
    fn parts_are_stacked_and_nothing_is_a_plot_too() {
        let bar = |parts: Vec<(Colour, f64)>, programmed| Bar { name: "ext4".into(), parts, programmed };
        let two = bar(vec![(Colour(10), 4096.0), (Colour(11), 8192.0)], Some(30_000.0));
        let svg = plot("bytes", "a file", &[two]).expect("drawn");
        assert!(svg.contains("var(--c10)") && svg.contains("var(--c11)") && svg.contains("12.0 KiB → 29.3 KiB"), "{svg}");
        assert!(shapes(&svg) > 4);
        assert!(shapes(&plot("empty", "x", &[bar(vec![], None), bar(vec![(Colour(10), f64::NAN)], Some(f64::NAN))]).expect("drawn")) > 0);
    }
}
