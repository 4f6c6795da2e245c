//! The evaluation of RomeFS (§4.2) in library mode, on an emulated CXL-SSD A. Its paper's loads, scaled to a smaller memory zone.
//!
//! [RF1] Variants of the file system are one code with other mount options, on devices of their own, run in turns of a slice of the load.
//! [RF2] A slice ends when the thread behind the foreground rests. That time counts for the variant, so nobody's write-back is done for
//!       free while the others run. Slices are longer than the memory zone, so that this rest is a small part; whether throughput settles
//!       is seen in a run of our variant alone, without slices.
//! [RF3] The file's blocks are in the block zone before a load, as in the paper; every page of the device was touched before.
//! [RF4] Bytes are those that the drive counted; times are wall-clock.
//!
//! `requests.rs` draws the loads, `setting.rs` makes what they run on, `contest.rs` runs variants in turns; then a file an experiment.

mod breakdown;
mod contest;
mod fragmentation;
mod overhead;
mod reads;
mod requests;
mod setting;
mod table4;
mod threads;
mod writes;

use crate::arguments::{Experiment, RomefsArguments};
use crate::failure::Result;
use crate::report;
use crate::romefs::setting::Setting;

/// Runs the experiments and publishes each as it ends.
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
        };
        outcome.publish(&machine, as_json, arguments.output.as_deref())?;
    }
    Ok(())
}
