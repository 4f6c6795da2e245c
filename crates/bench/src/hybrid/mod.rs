//! The drive of Habicht et al. (§3.1): a cache that the host manages, beside the same drive that manages its cache itself.
//!
//! [HY1] Time is virtual: what the drive takes, on any machine. So throughput, and the time that a processor stalls for loads and stores, do
//!       not depend on the host. The time of its own program does, and contains the emulator's work: it is shown apart.

mod writes;

use crate::arguments::{HybridArguments, HybridExperiment};
use crate::failure::Result;
use crate::output::run_all;

/// Runs the experiments.
pub fn run(arguments: &HybridArguments) -> Result<()> {
    let common = &arguments.evaluation.common;
    let quick = if common.quick { "; quick: fewer writes" } else { "" };
    let description = format!("profile: hybrid-cache, in virtual time{quick}");
    run_all(&arguments.evaluation, &description, |experiment| match experiment {
        HybridExperiment::Writes => writes::run(common),
    })
}
