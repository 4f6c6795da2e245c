//! The evaluation of ByteFS (§5) on an emulated SSD with firmware, with loads scaled to the machine.
//!
//! [Y1] Loads are those of `workloads/`, scaled by `--scale`. The write log and the host's page cache are scaled by the same factor from
//!      the paper's 256 MiB and 128 GiB, so a load fills them as often as in the paper; the drive is as large as the load needs.
//! [Y2] Time is virtual: nothing waits, computation takes no time, and the drive's model says what an access takes. The workers of a load
//!      are coroutines on a modelled host of 28 CPUs (ByteFS §5.1). They wait for the file system's locks, which are often held over
//!      accesses, as threads would (`device::sync::workers`). So throughput is what the drive and the locks allow, the same on every
//!      machine; other benchmarks measure the file system's own speed.
//! [Y3] Work of a mount's background thread (checkpoints, write-back, discards) is done by a worker of its own.
//! [Y4] Initial files are written first, then the file system is mounted again: caches are cold, the drive's log and flash stay as they
//!      are. A run ends when everything is durable (at its end, pages of twelve files at once are written back) and metadata is
//!      checkpointed. Traffic includes both; the time ends when everything is durable.
//! [Y5] Bytes between host and drive come from the file system's counters; flash pages come from the drive's counters.
//!
//! `rig.rs` defines drive and engine, `course.rs` runs a load on them, `setting.rs` has the sizes. `figures.rs` has the figures that run loads;
//! every other experiment has its own file.

mod course;
mod create;
mod directory;
mod discard;
mod figures;
mod recovery;
mod rig;
mod setting;

use crate::arguments::{BytefsArguments, BytefsExperiment, Evaluation};
use crate::bytefs::setting::Setting;
use crate::failure::{Failure, Result};
use crate::output::run_all;

/// Runs the experiments.
pub fn run(arguments: &BytefsArguments) -> Result<()> {
    let setting = Setting::new(arguments)?;
    if let Some(directory) = &arguments.on {
        let experiments = vec![BytefsExperiment::Loads];
        if !matches!(arguments.evaluation.experiments[..], [] | [BytefsExperiment::Loads]) {
            return Err(Failure::new("--on: only 'loads' runs on a directory; the others ask the drive for what it counts"));
        }
        let only_loads = Evaluation { experiments, ..arguments.evaluation.clone() };
        return run_all(&only_loads, &setting.describe(), |_| directory::run(&setting, directory));
    }
    run_all(&arguments.evaluation, &setting.describe(), |experiment| match experiment {
        BytefsExperiment::Loads => figures::LOADS.run(&setting),
        BytefsExperiment::Traffic => figures::TRAFFIC.run(&setting),
        BytefsExperiment::Flash => figures::FLASH.run(&setting),
        BytefsExperiment::Breakdown => figures::BREAKDOWN.run(&setting),
        BytefsExperiment::Latency => figures::LATENCY.run(&setting),
        BytefsExperiment::LogSize => figures::LOG_SIZE.run(&setting),
        BytefsExperiment::Create => create::run(&setting),
        BytefsExperiment::Recovery => recovery::run(&setting),
        BytefsExperiment::Discard => discard::run(&setting),
    })
}
