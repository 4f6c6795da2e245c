//! SVG plots: lines over time or threads, grouped and stacked bars. White background and dark text, so that they are readable on dark pages
//! too; colours suit colour-blind readers (Okabe and Ito).

use std::ops::Range;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::failure::Result;

const SIZE: (u32, u32) = (900, 480);
const FONT: &str = "sans-serif";
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
    RGBColor(120, 120, 120),
    RGBColor(0, 0, 0),
];

/// Title of a plot, and its axes with units.
#[derive(Debug, Clone)]
pub struct Labels {
    /// Title above the plot.
    pub title: String,
    /// Name of the horizontal axis.
    pub x: String,
    /// Name of the vertical axis.
    pub y: String,
}

impl Labels {
    /// Labels with title and axis names.
    pub fn new(title: impl Into<String>, x: impl Into<String>, y: impl Into<String>) -> Self {
        Self { title: title.into(), x: x.into(), y: y.into() }
    }
}

/// One line, or the bars of one colour, with a name in the legend.
#[derive(Debug, Clone)]
pub struct Series<T> {
    /// Name in the legend.
    pub name: String,
    /// Values to draw.
    pub values: Vec<T>,
}

impl<T> Series<T> {
    /// A series of these values.
    pub fn new(name: impl Into<String>, values: impl IntoIterator<Item = T>) -> Self {
        Self { name: name.into(), values: values.into_iter().collect() }
    }
}

/// Arrangement of the bars of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bars {
    /// Side by side.
    Grouped,
    /// On top of each other.
    Stacked,
}

type Chart<'a, 'b> =
    ChartContext<'a, SVGBackend<'b>, Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>>;

/// Lines through points (x, y).
pub fn lines(labels: &Labels, series: &[Series<(f64, f64)>]) -> Result<String> {
    let points = || series.iter().flat_map(|series| &series.values);
    let x_max = points().map(|point| point.0).fold(0.0, f64::max);
    let y_max = points().map(|point| point.1).fold(0.0, f64::max);
    draw(|root| {
        let mut chart = chart(root, labels, 0.0..above(x_max), 0.0..above(y_max * 1.25))?;
        mesh(&mut chart, labels, true)?;
        for (index, line) in series.iter().enumerate() {
            let style = COLOURS[index % COLOURS.len()].stroke_width(2);
            chart
                .draw_series(LineSeries::new(line.values.iter().copied(), style))?
                .label(&line.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
        legend(&mut chart)
    })
}

/// Bars: a value of each series in each group.
pub fn bars(labels: &Labels, groups: &[String], series: &[Series<f64>], way: Bars) -> Result<String> {
    let value = |series: &Series<f64>, group: usize| series.values.get(group).copied().unwrap_or_default();
    let height = |group: usize| match way {
        Bars::Grouped => series.iter().map(|series| value(series, group)).fold(0.0, f64::max),
        Bars::Stacked => series.iter().map(|series| value(series, group)).sum(),
    };
    let y_max = (0..groups.len()).map(height).fold(0.0, f64::max);
    // Room for the legend: above grouped bars, or to the right of stacks, which are all equally high.
    let (right, top) = match way {
        Bars::Grouped => (1.0, 1.35),
        Bars::Stacked => (1.25, 1.05),
    };
    draw(|root| {
        let mut chart = chart(root, labels, 0.0..groups.len().max(1) as f64 * right, 0.0..above(y_max * top))?;
        mesh(&mut chart, labels, false)?;
        let mut floors = vec![0.0; groups.len()];
        for (index, bars) in series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()].filled();
            let width = match way {
                Bars::Grouped => 0.8 / series.len() as f64,
                Bars::Stacked => 0.6,
            };
            let rectangles = (0..groups.len()).map(|group| {
                let (left, floor) = match way {
                    Bars::Grouped => (group as f64 + 0.1 + width * index as f64, 0.0),
                    Bars::Stacked => (group as f64 + 0.2, floors[group]),
                };
                let top = floor + value(bars, group);
                floors[group] = top;
                Rectangle::new([(left, floor), (left + width * 0.94, top)], colour)
            });
            let rectangles: Vec<_> = rectangles.collect();
            chart
                .draw_series(rectangles)?
                .label(&bars.name)
                .legend(move |(x, y)| Rectangle::new([(x + 4, y - 5), (x + 14, y + 5)], colour));
        }
        let style = (FONT, 14).into_font().into_text_style(root).pos(Pos::new(HPos::Center, VPos::Top));
        for (group, name) in groups.iter().enumerate() {
            let (x, y) = chart.plotting_area().map_coordinate(&(group as f64 + 0.5, 0.0));
            root.draw(&Text::new(name.clone(), (x, y + 6), style.clone()))?;
        }
        legend(&mut chart)
    })
}

/// The end of an axis, which must exceed its start (zero).
fn above(value: f64) -> f64 {
    if value.is_finite() && value > 0.0 { value } else { 1.0 }
}

fn draw(onto: impl FnOnce(&DrawingArea<SVGBackend<'_>, Shift>) -> Result<()>) -> Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        onto(&root)?;
        root.present()?;
    }
    Ok(svg)
}

fn chart<'a, 'b>(root: &'a DrawingArea<SVGBackend<'b>, Shift>, labels: &Labels, x: Range<f64>, y: Range<f64>) -> Result<Chart<'a, 'b>> {
    Ok(ChartBuilder::on(root)
        .caption(&labels.title, (FONT, 18))
        .margin(12)
        .x_label_area_size(48)
        .y_label_area_size(76)
        .build_cartesian_2d(x, y)?)
}

fn mesh(chart: &mut Chart<'_, '_>, labels: &Labels, x_numbers: bool) -> Result<()> {
    let number = |value: &f64| format!("{value:.2}").trim_end_matches('0').trim_end_matches('.').to_owned();
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(&labels.x).y_desc(&labels.y).axis_desc_style((FONT, 15)).label_style((FONT, 13)).light_line_style(WHITE);
    mesh.y_label_formatter(&number).x_label_formatter(&number);
    if !x_numbers {
        mesh.disable_x_mesh().x_labels(0);
    }
    Ok(mesh.draw()?)
}

fn legend<'a, 'b: 'a>(chart: &mut Chart<'a, 'b>) -> Result<()> {
    Ok(chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(160, 160, 160))
        .label_font((FONT, 13))
        .draw()?)
}
