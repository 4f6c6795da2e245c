//! `tandemfs doctor`: what is unusual of a device or a mount and of the machine, and what to do.

mod file_system;
mod finding;
mod halves;
mod machine;

use std::path::Path;

use serde_json::{Value, json};
use tandemfs_fuse::control::{self, Request};
use tandemfs_fuse::mounts::{self, Mounted};

use crate::arguments::DoctorArguments;
use crate::device::{self, Opening};
use crate::failure::{Failure, no_answer};
use crate::output;
use finding::{Finding, Level};
use machine::Machine;

/// Nothing is unusual.
const WELL: u8 = 0;
/// Something is.
const UNUSUAL: u8 = 4;
/// It could not be looked at.
const NOT_RUN: u8 = 8;

/// Looks, and says what it found.
pub fn run(arguments: &DoctorArguments) -> Result<u8, Failure> {
    let machine = Machine::this();
    let found = findings(&machine, &arguments.place).map_err(|failure| match failure {
        Failure::Failed(message) => Failure::Status(NOT_RUN, message),
        other => other,
    })?;
    let count = |level: Level| found.iter().filter(|finding| finding.level == level).count();
    let (unusual, notes) = (count(Level::Unusual), count(Level::Note));
    let status = if unusual == 0 { WELL } else { UNUSUAL };
    if arguments.json {
        let findings: Vec<Value> = found.iter().map(Finding::json).collect();
        output::print_json(
            &json!({ "place": arguments.place, "unusual": unusual, "notes": notes, "findings": findings, "exit_status": status }),
        )?;
    } else {
        output::print(&page(&arguments.place, &found, (unusual, notes)))?;
    }
    Ok(status)
}

fn page(place: &str, found: &[Finding], (unusual, notes): (usize, usize)) -> String {
    let lines = found.iter().map(|finding| {
        let level = if finding.level == Level::Unusual { "unusual" } else { "note   " };
        format!("{level}  {}\n         -> {}  [{}]\n", output::printable(&finding.what), output::printable(&finding.advice), finding.name)
    });
    let summary = match (unusual, notes) {
        (0, 0) => format!("{place}: nothing is unusual\n"),
        (0, _) => format!("{place}: nothing is unusual; {}\n", output::count(notes as u64, "note", "notes")),
        _ => format!("{place}: {unusual} unusual, {}\n", output::count(notes as u64, "note", "notes")),
    };
    lines.chain([summary]).collect()
}

/// All of them, what matters more first.
fn findings(machine: &Machine, place: &str) -> Result<Vec<Finding>, Failure> {
    let mount = mounts::find(Path::new(place)).ok().flatten().or_else(|| mount_of(place));
    let mut found = match mount {
        Some(mount) => of_mount(machine, &mount)?,
        None => of_device(machine, place)?,
    };
    found.extend(machine.findings());
    found.sort_by_key(|finding| finding.level);
    Ok(found)
}

/// The mount of a device.
fn mount_of(device: &str) -> Option<Mounted> {
    let device = device::absolute(device);
    mounts::mounted().ok()?.into_iter().find(|mount| mount.source.to_str() == Some(&device))
}

fn of_mount(machine: &Machine, mount: &Mounted) -> Result<Vec<Finding>, Failure> {
    let ask = |request| control::ask(mount, request).map_err(|error| no_answer(mount, &error));
    let (info, stats) = (ask(Request::Info)?, ask(Request::Stats { reset: false })?);
    let mut found = halves::findings(machine, info["device"].as_str().unwrap_or_default());
    found.extend(file_system::of_mount(machine, &info, &stats));
    Ok(found)
}

fn of_device(machine: &Machine, device: &str) -> Result<Vec<Finding>, Failure> {
    if Path::new(device).is_dir() {
        return Err(Failure::Failed(format!("{device}: no TandemFS is mounted there, and a directory is no device")));
    }
    let drive = device::open(device, Opening { read_only: true, ..Opening::default() })?;
    let superblock = tandemfs_fs::read_superblock(&drive).map_err(Failure::because)?;
    let mut found = halves::findings(machine, device);
    found.extend(file_system::of_device(&drive, &superblock)?);
    Ok(found)
}
