//! Fig. 13: throughput at several flash latencies, and over CXL.

use super::rig::{Link, Rig, Variant};
use super::setting::Setting;
use super::sweep;
use crate::failure::Result;
use crate::output::Outcome;
use crate::plot::{self, Bars, Labels, Series};
use crate::table::Table;
use crate::workloads::Workload;

const US: u32 = 1000;
/// Read and program time of a page in nanoseconds, and the link (§5.6).
const POINTS: [(&str, (u32, u32), Link); 4] = [
    ("25/200 us", (25 * US, 200 * US), Link::Pcie),
    ("40/60 us", (40 * US, 60 * US), Link::Pcie),
    ("3/80 us", (3 * US, 80 * US), Link::Pcie),
    ("3/80 us, CXL", (3 * US, 80 * US), Link::Cxl),
];
/// Index of the drive of Table 4.
const BASE: usize = 1;
const VARIANTS: [Variant; 2] = [Variant::Whole, Variant::Dual];

/// Runs the application loads on complete ByteFS and on its dual interface alone.
pub fn run(setting: &Setting) -> Result<Outcome> {
    let mut outcome = Outcome::new("latency", "operations a second by the latency of the flash (Fig. 13)");
    let workloads = setting.loads(&Workload::MACRO)?;
    let groups: Vec<String> = workloads.iter().map(|workload| workload.name().to_owned()).collect();
    let mut of_variants = Vec::new();
    for variant in VARIANTS {
        let rigs: Vec<(String, Rig)> = POINTS
            .iter()
            .filter_map(|(name, flash_ns, link)| {
                Some(((*name).to_owned(), Rig { flash_ns: Some(*flash_ns), ..Rig::over(setting, variant, *link)? }))
            })
            .collect();
        let rates = sweep::run(setting, &workloads, &rigs, &mut outcome)?;
        let mut table = Table::new([variant.name()].into_iter().chain(POINTS.iter().map(|(name, ..)| *name)));
        for (name, rates) in groups.iter().zip(&rates) {
            let rate = |point| rates.get(point).map_or_else(|| "–".to_owned(), |rate: &f64| format!("{rate:.0}"));
            table.row([name.clone()].into_iter().chain((0..POINTS.len()).map(rate)));
        }
        outcome.table(format!("Operations a second, reckoned, {}", variant.name()), table);
        of_variants.push(rates);
    }
    let mut gains = Table::new(["whole / dual"].into_iter().chain(POINTS.iter().map(|(name, ..)| *name)));
    for (index, name) in groups.iter().enumerate() {
        let (whole, dual): (&Vec<f64>, &Vec<f64>) = (&of_variants[0][index], &of_variants[1][index]);
        let gain = |point: usize| dual.get(point).map_or_else(|| "–".to_owned(), |dual| format!("{:.2} x", whole[point] / dual));
        gains.row([name.clone()].into_iter().chain((0..POINTS.len()).map(gain)));
    }
    outcome.table("What the log and the transactions add at each latency", gains);
    let series: Vec<Series<f64>> = POINTS
        .iter()
        .enumerate()
        .map(|(point, (name, ..))| Series::new(*name, of_variants[0].iter().map(|rates| rates[point] / rates[BASE])))
        .collect();
    let labels = Labels::new("ByteFS by the latency of the flash", "load", "operations a second [40/60 us = 1]");
    outcome.plot("throughput", plot::bars(&labels, &groups, &series, Bars::Grouped)?);
    outcome.note("there is no profile of a drive with only a page cache behind CXL");
    outcome.note(
        "the paper gives a figure only: the gain over others is larger where programming takes longer, and CXL helps what loads and stores",
    );
    Ok(outcome)
}
