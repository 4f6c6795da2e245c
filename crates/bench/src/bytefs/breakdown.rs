//! Fig. 12: the contribution of each part of ByteFS to throughput.

use super::course;
use super::rig::{Rig, Variant};
use super::setting::Setting;
use crate::failure::{Failure, Result};
use crate::output::Outcome;
use crate::plot::{self, Bars, Labels, Series};
use crate::table::Table;
use crate::workloads::Workload;

/// Runs the application loads on the three variants.
pub fn run(setting: &Setting) -> Result<Outcome> {
    let mut outcome = Outcome::new("breakdown", "operations a second with each part of ByteFS (Fig. 12)");
    let workloads = setting.loads(&Workload::MACRO)?;
    let mut table = Table::new(["load"].into_iter().chain(Variant::ALL.map(Variant::name)).chain(["log / dual", "whole / dual"]));
    let mut rates: Vec<[f64; 3]> = Vec::new();
    for workload in &workloads {
        let load = setting.load(*workload);
        let mut of_load = [0.0; 3];
        for (rate, variant) in of_load.iter_mut().zip(Variant::ALL) {
            let rig = Rig::new(setting, variant);
            let course = course::run(setting, &rig, &load)?;
            *rate = course.operations_a_second().ok_or_else(|| Failure::new("the drive reckons no time"))?;
            outcome.record(course.json(&load, &rig));
        }
        let [dual, log, whole] = of_load;
        table.row(
            [workload.name().to_owned()]
                .into_iter()
                .chain(of_load.map(|rate| format!("{rate:.0}")))
                .chain([log, whole].map(|rate| format!("{:.2} x", rate / dual))),
        );
        rates.push(of_load);
    }
    outcome.table("Operations a second, reckoned", table);
    let groups: Vec<String> = workloads.iter().map(|workload| workload.name().to_owned()).collect();
    let series: Vec<Series<f64>> = Variant::ALL
        .iter()
        .enumerate()
        .map(|(index, variant)| Series::new(variant.name(), rates.iter().map(|rates| rates[index] / rates[0])))
        .collect();
    let labels = Labels::new("Throughput with each part of ByteFS", "load", "operations a second [dual interface only = 1]");
    outcome.plot("throughput", plot::bars(&labels, &groups, &series, Bars::Grouped)?);
    outcome.note("dual interface only: profile bytefs-dual (a cache of pages in the drive, as large as the log) and the journal; + write log: profile bytefs and the journal; + transactions: profile bytefs and the drive's transactions");
    outcome.note("the paper gives a figure only: varmail and fileserver gain by both, webproxy mostly by the interface, OLTP by the log and the choice of the interface");
    Ok(outcome)
}
