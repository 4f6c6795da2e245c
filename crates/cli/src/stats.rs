//! `tandemfs stats`: the counters of a mount.

use tandemfs_fuse::control::{self, Request};

use crate::arguments::StatsArguments;
use crate::failure::Failure;
use crate::output;
use crate::umount;

/// Shows the counters.
pub fn run(arguments: &StatsArguments) -> Result<u8, Failure> {
    let mount = umount::find(&arguments.mountpoint)?;
    let stats = control::ask(&mount, Request::Stats { reset: arguments.reset })
        .map_err(|error| Failure::Failed(format!("{}: its daemon does not answer: {error}", mount.mountpoint.display())))?;
    if arguments.json {
        output::print_json(&stats)?;
    } else {
        output::print_rows(&output::rows(&stats))?;
    }
    Ok(0)
}
