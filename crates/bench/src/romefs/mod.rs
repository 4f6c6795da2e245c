//! The evaluation of RomeFS (§4.2) in library mode, on an emulated CXL-SSD A. The paper's loads are scaled to a smaller memory zone.
//!
//! [RF1] Variants are the same code with different mount options, each on a new device.
//! [RF2] A load ends when the background work is done: write-back that is left over counts. In virtual time a worker of its own does it
//!       (`workloads/behind.rs`).
//! [RF3] As in the paper, the file's blocks are in the block zone before a load; every page of the device was touched before.
//! [RF4] Bytes are from the drive's counters. Time is virtual: what the drive takes and how long locks are waited for, on any machine,
//!       without the CPU's time. The CPU's share is what `breakdown` and `overhead` show, so these are wall-clock.
//!
//! `requests.rs` draws the loads, `setting.rs` creates volumes, `contest.rs` runs a load on a variant. Each experiment has its own file.

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
