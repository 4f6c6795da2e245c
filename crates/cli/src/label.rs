//! `tandemfs label`: shows or sets the label of a device, or of a mount through its daemon.

use std::path::Path;

use serde_json::Value;
use tandemfs_fuse::control::{self, Request};
use tandemfs_fuse::mounts;

use crate::arguments::LabelArguments;
use crate::device::{self, Opening};
use crate::failure::Failure;
use crate::output;

/// Shows the label, or sets it.
pub fn run(arguments: &LabelArguments) -> Result<u8, Failure> {
    let place = &arguments.place;
    if let Some(mount) = mounts::find(Path::new(place)).ok().flatten() {
        let request = arguments.text.as_ref().map_or(Request::Info, |text| Request::Label { text: text.clone() });
        let answer = control::ask(&mount, request).map_err(|error| Failure::at(place, error))?;
        if arguments.text.is_none() {
            print(answer["label"].as_str().unwrap_or_default())?;
        }
        debug_assert!(answer.get("label").is_some_and(Value::is_string), "{answer}");
        return Ok(0);
    }
    if Path::new(place).is_dir() {
        return Err(Failure::Failed(format!("{place}: no TandemFS is mounted there, and a directory is no device")));
    }
    match &arguments.text {
        None => {
            let drive = device::open(place, Opening { read_only: true, ..Opening::default() })?;
            print(&tandemfs_fs::read_superblock(&drive).map_err(Failure::because)?.label)?;
        }
        Some(text) => {
            let drive = device::open(place, Opening::default())?;
            tandemfs_fs::set_label(&drive, text).map_err(|error| Failure::at(place, error))?;
        }
    }
    Ok(0)
}

/// Escapes control characters.
fn print(label: &str) -> Result<(), Failure> {
    let shown: String = label
        .chars()
        .flat_map(|character| if character.is_control() { character.escape_default().collect::<Vec<_>>() } else { vec![character] })
        .collect();
    output::print(&format!("{shown}\n"))
}
