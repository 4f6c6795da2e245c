//! `tandemfs home`: shows and sets where files lie, by the extended attribute `user.tandemfs.home`, through any mount.

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde_json::{Value, json};
use tandemfs_fs::{HOME_ATTRIBUTE, HOME_LEFT_ATTRIBUTE};

use crate::arguments::{HomeCommand, HomeGetArguments, HomeSetArguments};
use crate::failure::Failure;
use crate::output;
use crate::placement::{self, Place};
use crate::size;

/// Shows or sets homes.
pub fn run(command: &HomeCommand) -> Result<u8, Failure> {
    match command {
        HomeCommand::Get(arguments) => get(arguments),
        HomeCommand::Set(arguments) => set(arguments),
    }
}

fn get(arguments: &HomeGetArguments) -> Result<u8, Failure> {
    let mut found = Vec::new();
    for path in &arguments.paths {
        let place = place_of(path)?;
        let home = home_of(&place)?;
        found.push((path, home, left(&place)?));
    }
    if arguments.json {
        let value =
            |(path, home, left): &(&PathBuf, String, u64)| json!({ "path": path.to_string_lossy(), "home": home, "left_bytes": left });
        output::print_json(&found.iter().map(value).collect::<Value>())?;
        return Ok(0);
    }
    for (path, home, left) in found {
        let moving = if left > 0 { format!(", {} still to move", size::show(left)) } else { String::new() };
        output::print(&format!("{}: {home}{moving}\n", output::printable(&path.to_string_lossy())))?;
    }
    Ok(0)
}

fn set(arguments: &HomeSetArguments) -> Result<u8, Failure> {
    let places = arguments.paths.iter().map(|path| place_of(path)).collect::<Result<Vec<_>, _>>()?;
    for place in &places {
        set_one(place, &arguments.home)?;
    }
    if arguments.wait {
        places.iter().try_for_each(wait)?;
    }
    Ok(0)
}

fn place_of(given: &Path) -> Result<Place, Failure> {
    placement::place_of(given, "only regular files and directories have a home")
}

/// Sets a home.
fn set_one(place: &Place, home: &str) -> Result<(), Failure> {
    placement::set(place, HOME_ATTRIBUTE, home, refused)
}

fn refused(error: Errno) -> Option<&'static str> {
    Some(match error {
        Errno::PERM => "only the owner of a file makes the memory zone its home; nothing was changed",
        Errno::ACCESS => "you may not write it; nothing was changed",
        Errno::ROFS => "the file system is mounted read-only",
        Errno::OPNOTSUPP => "the file system has no block zone: all of its files live in the memory zone; nothing was changed",
        Errno::NOSPC => {
            "the memory zone has no room for what it holds (see home_limit= of 'tandemfs mount', and 'tandemfs stats'); nothing was changed"
        }
        _ => return None,
    })
}

fn home_of(place: &Place) -> Result<String, Failure> {
    Ok(placement::value_of(place, HOME_ATTRIBUTE)?.unwrap_or_else(|| "auto".into()))
}

/// Bytes that are still to move.
fn left(place: &Place) -> Result<u64, Failure> {
    placement::left(place, HOME_LEFT_ATTRIBUTE)
}

/// Waits until a file is at home, with progress.
fn wait(place: &Place) -> Result<(), Failure> {
    let total = left(place)?;
    let bar = placement::bar_of("move", total);
    let left = placement::wait(place, HOME_LEFT_ATTRIBUTE, total, &bar)?;
    bar.finish_and_clear();
    if left > 0 {
        let why = "in use or damaged, or its home has no room; the mount tries again by itself";
        return Err(place.failure(&format!("{} did not move: it is {why}", size::show(left))));
    }
    Ok(())
}
