//! `tandemfs set`: shows or changes settings of a mount while it is in use, through its daemon.

use serde_json::{Value, json};
use tandemfs_fs::MountOptions;
use tandemfs_fuse::control;
use tandemfs_fuse::mounts::Mounted;

use crate::arguments::SetArguments;
use crate::failure::{self, Failure, no_answer};
use crate::mount_options;
use crate::output;
use crate::umount;

/// What the daemon says after a change.
pub struct Answer {
    /// Names and values of all settings.
    pub settings: Value,
    /// What it adapted, in sentences.
    pub warnings: Vec<String>,
}

/// Shows or changes settings.
pub fn run(arguments: &SetArguments) -> Result<u8, Failure> {
    // A word that no daemon takes is an invalid command line. The daemon reads the words again, since it knows its mount.
    let words = arguments.settings.iter().map(String::as_str);
    mount_options::change(words, &MountOptions::DEFAULT, u64::MAX).map_err(Failure::Usage)?;
    let mount = umount::find(&arguments.mountpoint)?;
    let Answer { settings, warnings } = ask(&mount, arguments.settings.clone())?;
    for warning in &warnings {
        failure::warn(warning);
    }
    if arguments.json {
        output::print_json(&json!({ "mountpoint": mount.mountpoint, "settings": settings, "warnings": warnings }))?;
    } else {
        output::print_rows(&output::rows(&settings))?;
    }
    Ok(0)
}

/// Asks a mount to change settings, all or none.
pub fn ask(mount: &Mounted, words: Vec<String>) -> Result<Answer, Failure> {
    let answer = control::set(mount, words).map_err(|error| no_answer(mount, &error))?;
    let warnings = answer["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
    Ok(Answer { settings: answer["settings"].clone(), warnings })
}
