//! `tandemfs stats`: the counters of a mount.

use tandemfs_fuse::control::{self, Request};

use crate::arguments::StatsArguments;
use crate::failure::{Failure, no_answer};
use crate::output;
use crate::umount;

/// Shows the counters.
pub fn run(arguments: &StatsArguments) -> Result<u8, Failure> {
    let mount = umount::find(&arguments.mountpoint)?;
    let stats = control::ask(&mount, Request::Stats { reset: arguments.reset }).map_err(|error| no_answer(&mount, &error))?;
    if arguments.json {
        output::print_json(&stats)?;
    } else {
        output::print_rows(&output::rows(&stats))?;
    }
    Ok(0)
}
