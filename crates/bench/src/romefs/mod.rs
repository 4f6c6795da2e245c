//! The evaluation of RomeFS (§4.2) in library mode, on an emulated CXL-SSD A. The paper's loads are scaled to a smaller memory zone.
//!
//! [RF1] Variants are the same code with different mount options, on separate devices, run in turns of one slice of the load.
//! [RF2] A slice ends when the background thread is idle. This time counts for the variant, so write-back never runs free of charge during
//!       another variant's slice. Slices are longer than the memory zone, so the wait is a small part. Whether throughput settles is
//!       measured on our variant alone, without slices.
//! [RF3] As in the paper, the file's blocks are in the block zone before a load; every page of the device was touched before.
//! [RF4] Bytes are from the drive's counters; times are wall-clock, but for `graph` and `threshold`, which run in virtual time: what the
//!       drive takes, on any machine, without the CPU's time.
//!
//! `requests.rs` draws the loads, `setting.rs` creates volumes, `contest.rs` runs variants in turns. Each experiment has its own file.

mod breakdown;
mod contest;
mod fragmentation;
mod graph;
mod overhead;
mod reads;
mod requests;
mod setting;
mod table4;
mod threads;
mod threshold;
mod writes;

use crate::arguments::{Experiment, RomefsArguments};
use crate::failure::Result;
use crate::report;
use crate::romefs::setting::Setting;

/// Runs the experiments and publishes each result at once.
pub fn run(arguments: &RomefsArguments) -> Result<()> {
    let setting = Setting::new(arguments)?;
    let as_json = arguments.common.json;
    let machine = report::begin(&setting.describe(), as_json)?;
    let experiments = if arguments.experiments.is_empty() { Experiment::ALL.to_vec() } else { arguments.experiments.clone() };
    for experiment in experiments {
        let outcome = match experiment {
            Experiment::Table4 => table4::run(&setting)?,
            Experiment::Writes => writes::run(&setting)?,
            Experiment::Breakdown => breakdown::run(&setting)?,
            Experiment::Reads => reads::run(&setting)?,
            Experiment::Threads => threads::run(&setting)?,
            Experiment::Fragmentation => fragmentation::run(&setting)?,
            Experiment::Overhead => overhead::run(&setting)?,
            Experiment::Graph => graph::run(&setting)?,
            Experiment::Threshold => threshold::run(&setting)?,
        };
        outcome.publish(&machine, as_json, arguments.output.as_deref())?;
    }
    Ok(())
}
