//! The evaluation of ByteFS (§5) on an emulated SSD with firmware, its loads scaled to the machine.
//!
//! [Y1] Loads are those of `workloads/`, a share (`--scale`) of the paper's. The write log and the host's page cache are the same share of
//!      the paper's 256 MiB and 128 GiB, so that a load fills either as often as it did there; the drive is as large as the load needs.
//! [Y2] Time is reckoned by the drive's model: nothing waits, workers are interleaved by their clocks, the processor's work takes no time.
//!      So throughput is what the drive allows; it says nothing of the file system's own speed, which other benchmarks measure.
//! [Y3] What a mount does by a thread behind the foreground (checkpoints, write-back) is done between calls on a clock of its own: it delays
//!      the foreground where both want the same part of the drive, and nowhere else.
//! [Y4] A load is laid out first, then the file system is mounted anew: caches are cold, the drive's log and flash are as the lay-out left
//!      them. A run ends when everything is durable (pages of twelve files at once are written back at its end) and
//!      metadata is home, and that is counted too; the time is that until everything is durable.
//! [Y5] Bytes between host and drive are those that the file system counted; flash pages are the drive's own counts.
//!
//! `rig.rs` says which drive and engine, `course.rs` runs a load on them, `setting.rs` has the sizes; then a file an experiment.

mod breakdown;
mod course;
mod create;
mod flash;
mod latency;
mod loads;
mod log_size;
mod overhead;
mod recovery;
mod rig;
mod setting;
mod sweep;
mod traffic;

use crate::arguments::{BytefsArguments, BytefsExperiment};
use crate::bytefs::setting::Setting;
use crate::failure::{Failure, Result};
use crate::report;

/// Runs the experiments and publishes each as it ends.
pub fn run(arguments: &BytefsArguments) -> Result<()> {
    let setting = Setting::new(arguments)?;
    let as_json = arguments.common.json;
    let machine = report::begin(&setting.describe(), as_json)?;
    let experiments = match (&arguments.on, &arguments.experiments[..]) {
        (None, []) => BytefsExperiment::ALL.to_vec(),
        (Some(_), [] | [BytefsExperiment::Loads]) => vec![BytefsExperiment::Loads],
        (Some(_), _) => return Err(Failure::new("--on: only 'loads' runs on a directory; the others ask the drive for what it counts")),
        (None, named) => named.to_vec(),
    };
    for experiment in experiments {
        let outcome = match (experiment, &arguments.on) {
            (BytefsExperiment::Loads, Some(directory)) => loads::run_on(&setting, directory)?,
            (BytefsExperiment::Loads, None) => loads::run(&setting)?,
            (BytefsExperiment::Traffic, _) => traffic::run(&setting)?,
            (BytefsExperiment::Flash, _) => flash::run(&setting)?,
            (BytefsExperiment::Breakdown, _) => breakdown::run(&setting)?,
            (BytefsExperiment::Latency, _) => latency::run(&setting)?,
            (BytefsExperiment::LogSize, _) => log_size::run(&setting)?,
            (BytefsExperiment::Create, _) => create::run(&setting)?,
            (BytefsExperiment::Recovery, _) => recovery::run(&setting)?,
            (BytefsExperiment::Overhead, _) => overhead::run(&setting)?,
        };
        outcome.publish(&machine, as_json, arguments.output.as_deref())?;
    }
    Ok(())
}
