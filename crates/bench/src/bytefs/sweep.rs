//! Throughput of the loads over a series of drives: shared by Fig. 13 and 14.

use super::course;
use super::rig::Rig;
use super::setting::Setting;
use crate::failure::{Failure, Result};
use crate::output::Outcome;
use crate::workloads::Workload;

/// Operations per second of each load (rows) on each drive (columns).
pub fn run(setting: &Setting, workloads: &[Workload], rigs: &[(String, Rig)], outcome: &mut Outcome) -> Result<Vec<Vec<f64>>> {
    let mut rates = Vec::new();
    for workload in workloads {
        let load = setting.load(*workload);
        let mut of_load = Vec::new();
        for (point, rig) in rigs {
            let course = course::run(setting, rig, &load)?;
            of_load.push(course.operations_a_second().ok_or_else(|| Failure::new("the drive reckons no time"))?);
            let mut record = course.json(&load, rig);
            record["point"] = point.as_str().into();
            outcome.record(record);
        }
        rates.push(of_load);
    }
    Ok(rates)
}
