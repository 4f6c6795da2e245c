//! `tandemfs label`: shows or sets the label of a device, or of a mount through its daemon.

use std::path::Path;

use serde_json::json;
use tandemfs_fuse::control::{self, Request};
use tandemfs_fuse::mounts;

use crate::arguments::LabelArguments;
use crate::device::{self, Opening};
use crate::failure::{Failure, no_answer};
use crate::output;

/// Shows the label, or sets it.
pub fn run(arguments: &LabelArguments) -> Result<u8, Failure> {
    let label = label(&arguments.place, arguments.text.as_deref())?;
    if arguments.json {
        output::print_json(&json!({ "place": arguments.place, "label": label, "set": arguments.text.is_some() }))?;
    } else if arguments.text.is_none() {
        print(&label)?;
    }
    Ok(0)
}

/// The label, which is `text` from now on if that is given.
fn label(place: &str, text: Option<&str>) -> Result<String, Failure> {
    if let Some(mount) = mounts::find(Path::new(place)).ok().flatten() {
        let request = text.map_or(Request::Info, |text| Request::Label { text: text.to_owned() });
        let answer = control::ask(&mount, request).map_err(|error| no_answer(&mount, &error))?;
        return Ok(answer["label"].as_str().unwrap_or_default().to_owned());
    }
    if Path::new(place).is_dir() {
        return Err(Failure::Failed(format!("{place}: no TandemFS is mounted there, and a directory is no device")));
    }
    let opening = Opening { read_only: text.is_none(), ..Opening::default() };
    let drive = device::open(place, opening)?;
    match text {
        None => Ok(tandemfs_fs::read_superblock(&drive).map_err(Failure::because)?.label),
        Some(text) => {
            tandemfs_fs::set_label(&drive, text).map_err(|error| Failure::at(place, error))?;
            Ok(text.to_owned())
        }
    }
}

fn print(label: &str) -> Result<(), Failure> {
    output::print(&format!("{}\n", output::printable(label)))
}
