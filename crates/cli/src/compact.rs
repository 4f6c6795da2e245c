//! `tandemfs compact`: makes the daemon of a mount move what is left in sparse units of metadata together, so that small writes get their
//! space.

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tandemfs_fuse::control;

use crate::arguments::CompactArguments;
use crate::failure::Failure;
use crate::output;
use crate::size;
use crate::umount;

/// Compacts a mount.
pub fn run(arguments: &CompactArguments) -> Result<u8, Failure> {
    let mount = umount::find(&arguments.mountpoint)?;
    let place = mount.mountpoint.display();
    let style = ProgressStyle::with_template("compact [{wide_bar}] {percent:>3} %").unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = if output::shows_progress() { ProgressBar::new(1).with_style(style) } else { ProgressBar::hidden() };
    let result = control::compact(&mount, &mut |progress| {
        let number = |name: &str| progress[name].as_u64().unwrap_or(0);
        bar.set_length(number("total_inodes"));
        bar.set_position(number("done_inodes"));
    });
    bar.finish_and_clear();
    let mut result = result.map_err(|error| Failure::Failed(format!("{place}: the compaction did not complete: {error}")))?;
    if arguments.json {
        result["mountpoint"] = json!(mount.mountpoint.to_string_lossy());
        output::print_json(&result)?;
    } else {
        let number = |name: &str| size::show(result[name].as_u64().unwrap_or(0));
        output::print(&format!(
            "{place}: {} of metadata moved, {} of the memory zone freed\n",
            number("moved_bytes"),
            number("freed_bytes")
        ))?;
    }
    Ok(0)
}
