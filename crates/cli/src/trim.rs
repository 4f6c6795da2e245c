//! `tandemfs trim`: makes the daemon of a mount discard what is free, as fstrim(8) does for file systems of the kernel.

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tandemfs_fuse::control;

use crate::arguments::TrimArguments;
use crate::failure::Failure;
use crate::output;
use crate::size;
use crate::umount;

/// Trims a mount.
pub fn run(arguments: &TrimArguments) -> Result<u8, Failure> {
    let mount = umount::find(&arguments.mountpoint)?;
    let place = mount.mountpoint.display();
    let style = ProgressStyle::with_template("trim [{wide_bar}] {percent:>3} %").unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = if output::shows_progress() { ProgressBar::new(1).with_style(style) } else { ProgressBar::hidden() };
    let result = control::trim(&mount, arguments.minimum, &mut |progress| {
        let number = |name: &str| progress[name].as_u64().unwrap_or(0);
        bar.set_length(number("total_bytes"));
        bar.set_position(number("done_bytes"));
    });
    bar.finish_and_clear();
    let mut result = result.map_err(|error| Failure::Failed(format!("{place}: the trim did not complete: {error}")))?;
    if arguments.json {
        result["mountpoint"] = json!(mount.mountpoint.to_string_lossy());
        output::print_json(&result)?;
    } else {
        let bytes = result["discarded_bytes"].as_u64().unwrap_or(0);
        output::print(&format!("{place}: {} discarded\n", size::show(bytes)))?;
    }
    Ok(0)
}
