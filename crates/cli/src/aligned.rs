//! `tandemfs aligned` and `tandemfs defrag`: which files lie in aligned extents of 2 MiB, by the extended attribute `user.tandemfs.aligned`,
//! through any mount.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use rustix::io::Errno;
use serde_json::{Value, json};
use tandemfs_format::UNIT_BYTES;
use tandemfs_fs::{ALIGNED_ATTRIBUTE, ALIGNED_LEFT_ATTRIBUTE};

use crate::arguments::{AlignedCommand, AlignedGetArguments, AlignedSetArguments, DefragArguments};
use crate::failure::Failure;
use crate::output;
use crate::placement::{self, Place};
use crate::size;

/// Shows or sets which files are to be aligned.
pub fn run(command: &AlignedCommand) -> Result<u8, Failure> {
    match command {
        AlignedCommand::Get(arguments) => get(arguments),
        AlignedCommand::Set(arguments) => set(arguments),
    }
}

fn get(arguments: &AlignedGetArguments) -> Result<u8, Failure> {
    let mut found = Vec::new();
    for path in &arguments.paths {
        let place = place_of(path)?;
        let is_aligned = placement::value_of(&place, ALIGNED_ATTRIBUTE)?.is_some_and(|value| value == "yes");
        found.push((path, is_aligned, left(&place)?));
    }
    if arguments.json {
        let value = |(path, is_aligned, left): &(&PathBuf, bool, u64)| json!({ "path": path.to_string_lossy(), "aligned": is_aligned, "left_bytes": left });
        output::print_json(&found.iter().map(value).collect::<Value>())?;
        return Ok(0);
    }
    for (path, is_aligned, left) in found {
        let rest = if left > 0 { format!(", {} still to rewrite", size::show(left)) } else { String::new() };
        output::print(&format!("{}: {}{rest}\n", output::printable(&path.to_string_lossy()), if is_aligned { "yes" } else { "no" }))?;
    }
    Ok(0)
}

fn set(arguments: &AlignedSetArguments) -> Result<u8, Failure> {
    let places = arguments.paths.iter().map(|path| place_of(path)).collect::<Result<Vec<_>, _>>()?;
    places.iter().try_for_each(|place| set_one(place, &arguments.aligned))?;
    if arguments.wait && arguments.aligned == "yes" { wait_for(&places) } else { Ok(0) }
}

/// Rewrites files, and those below directories.
pub fn defrag(arguments: &DefragArguments) -> Result<u8, Failure> {
    let mut places = Vec::new();
    for path in &arguments.paths {
        let place = place_of(path)?;
        if fs::metadata(&place.path).map_err(|error| Failure::at(path.display(), error))?.is_dir() {
            below(&place.path, &mut places)?;
        } else {
            places.push(place);
        }
    }
    places.iter().try_for_each(|place| set_one(place, "yes"))?;
    wait_for(&places)
}

/// Adds the regular files below a directory that have 2 MiB or more, without what is mounted there.
fn below(directory: &Path, places: &mut Vec<Place>) -> Result<(), Failure> {
    let failed = |path: &Path, error| Failure::at(path.display(), error);
    let device = fs::symlink_metadata(directory).map_err(|error| failed(directory, error))?.dev();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).map_err(|error| failed(&directory, error))? {
            let path = entry.map_err(|error| failed(&directory, error))?.path();
            let metadata = fs::symlink_metadata(&path).map_err(|error| failed(&path, error))?;
            if metadata.is_dir() && metadata.dev() == device {
                directories.push(path);
            } else if metadata.is_file() && metadata.len() >= UNIT_BYTES {
                places.push(place_of(&path)?);
            }
        }
    }
    Ok(())
}

/// Waits until all of them are aligned; says which are not.
fn wait_for(places: &[Place]) -> Result<u8, Failure> {
    let totals = places.iter().map(left).collect::<Result<Vec<u64>, _>>()?;
    let bar: ProgressBar = placement::bar_of("rewrite", totals.iter().sum());
    let mut failed = None;
    for (place, total) in places.iter().zip(totals) {
        let left = placement::wait(place, ALIGNED_LEFT_ATTRIBUTE, total, &bar)?;
        if left > 0 {
            let why = "in use or damaged, or there is no free aligned extent; the mount tries again by itself";
            failed.get_or_insert_with(|| place.failure(&format!("{} were not rewritten: it is {why}", size::show(left))));
        }
    }
    bar.finish_and_clear();
    failed.map_or(Ok(0), Err)
}

fn place_of(given: &Path) -> Result<Place, Failure> {
    placement::place_of(given, "only regular files and directories are aligned")
}

fn set_one(place: &Place, value: &str) -> Result<(), Failure> {
    placement::set(place, ALIGNED_ATTRIBUTE, value, |error| match error {
        Errno::ACCESS | Errno::PERM => Some("you may not write it; nothing was changed"),
        Errno::ROFS => Some("the file system is mounted read-only"),
        _ => None,
    })
}

/// Bytes that are still to be rewritten.
fn left(place: &Place) -> Result<u64, Failure> {
    placement::left(place, ALIGNED_LEFT_ATTRIBUTE)
}
