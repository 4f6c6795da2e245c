//! Fig. 14: throughput at several sizes of the write log.

use super::rig::{Rig, Variant};
use super::setting::Setting;
use super::sweep;
use crate::failure::Result;
use crate::output::Outcome;
use crate::plot::{self, Labels, Series};
use crate::scene::MIB;
use crate::table::Table;
use crate::workloads::Workload;

/// Sizes of the paper, in MiB.
const SIZES_MIB: [u64; 5] = [64, 128, 256, 512, 1024];

/// Runs the application loads.
pub fn run(setting: &Setting) -> Result<Outcome> {
    let mut outcome = Outcome::new("log-size", "operations a second by the size of the write log (Fig. 14)");
    let workloads = setting.loads(&Workload::MACRO)?;
    let rigs: Vec<(String, Rig)> = SIZES_MIB
        .into_iter()
        .map(|size| {
            let staging_bytes = setting.log_bytes(size * MIB);
            (format!("{size} MiB"), Rig { staging_bytes, ..Rig::new(setting, Variant::Whole) })
        })
        .collect();
    let rates = sweep::run(setting, &workloads, &rigs, &mut outcome)?;
    let mut table = Table::new(["log of the paper".to_owned()].into_iter().chain(rigs.iter().map(|(name, _)| name.clone())));
    let here = rigs.iter().map(|(_, rig)| format!("{:.2} MiB", rig.staging_bytes as f64 / MIB as f64));
    table.row(["log of this run".to_owned()].into_iter().chain(here));
    let (mut series, sizes) = (Vec::new(), SIZES_MIB.map(|size| size as f64));
    for (workload, rates) in workloads.iter().zip(&rates) {
        let relative = rates.iter().map(|rate| rate / rates[0]);
        table.row(
            [workload.name().to_owned()]
                .into_iter()
                .chain(rates.iter().zip(relative.clone()).map(|(rate, relative)| format!("{rate:.0} ({relative:.2} x)"))),
        );
        series.push(Series::new(workload.name(), sizes.into_iter().zip(relative)));
    }
    outcome.table("Operations a second, reckoned, and as a ratio to the smallest log", table);
    let labels = Labels::new("ByteFS by the size of the write log", "log at the paper's scale [MiB]", "operations a second [64 MiB = 1]");
    outcome.plot("throughput", plot::lines(&labels, &series)?);
    outcome.note("the paper gives a figure only, normalised to 64 MiB: most loads gain, OLTP little since its locality is good already");
    Ok(outcome)
}
