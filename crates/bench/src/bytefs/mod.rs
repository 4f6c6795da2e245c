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
mod overhead;
mod recovery;
mod rig;
mod setting;

use crate::arguments::{BytefsArguments, BytefsExperiment};
use crate::bytefs::setting::Setting;
use crate::failure::{Failure, Result};
use crate::report;

/// Runs the experiments and publishes each result at once.
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
            (BytefsExperiment::Loads, Some(directory)) => directory::run(&setting, directory)?,
            (BytefsExperiment::Loads, None) => figures::LOADS.run(&setting)?,
            (BytefsExperiment::Traffic, _) => figures::TRAFFIC.run(&setting)?,
            (BytefsExperiment::Flash, _) => figures::FLASH.run(&setting)?,
            (BytefsExperiment::Breakdown, _) => figures::BREAKDOWN.run(&setting)?,
            (BytefsExperiment::Latency, _) => figures::LATENCY.run(&setting)?,
            (BytefsExperiment::LogSize, _) => figures::LOG_SIZE.run(&setting)?,
            (BytefsExperiment::Create, _) => create::run(&setting)?,
            (BytefsExperiment::Recovery, _) => recovery::run(&setting)?,
            (BytefsExperiment::Discard, _) => discard::run(&setting)?,
            (BytefsExperiment::Overhead, _) => overhead::run(&setting)?,
        };
        outcome.publish(&machine, as_json, arguments.output.as_deref())?;
    }
    Ok(())
}
