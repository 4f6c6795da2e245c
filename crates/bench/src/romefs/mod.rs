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
mod graph;
mod overhead;
mod reads;
mod requests;
mod setting;
mod table4;
mod threads;
mod threshold;
mod writes;

use crate::arguments::{RomefsArguments, RomefsExperiment};
use crate::failure::Result;
use crate::output::run_all;
use crate::romefs::setting::Setting;

/// Runs the experiments.
pub fn run(arguments: &RomefsArguments) -> Result<()> {
    let setting = Setting::new(arguments)?;
    run_all(&arguments.evaluation, &setting.describe(), |experiment| match experiment {
        RomefsExperiment::Table4 => table4::run(&setting),
        RomefsExperiment::Writes => writes::run(&setting),
        RomefsExperiment::Breakdown => breakdown::run(&setting),
        RomefsExperiment::Reads => reads::run(&setting),
        RomefsExperiment::Threads => threads::run(&setting),
        RomefsExperiment::Overhead => overhead::run(&setting),
        RomefsExperiment::Graph => graph::run(&setting),
        RomefsExperiment::Threshold => threshold::run(&setting),
    })
}
