//! `tandemfs home`: shows and sets where files lie, by the extended attribute `user.tandemfs.home`, through any mount.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;
use serde_json::{Value, json};
use tandemfs_fs::{HOME_ATTRIBUTE, HOME_LEFT_ATTRIBUTE};
use tandemfs_fuse::control::{self, Request};
use tandemfs_fuse::mounts::{self, Mounted};

use crate::arguments::{HomeCommand, HomeGetArguments, HomeSetArguments};
use crate::failure::Failure;
use crate::output;
use crate::size;

/// How often `--wait` looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// `--wait` gives up if nothing moved for so long.
const PATIENCE: Duration = Duration::from_secs(60);

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

/// A file in a mount.
struct Place {
    /// As it was given.
    given: PathBuf,
    path: PathBuf,
    mount: Mounted,
}

impl Place {
    fn failure(&self, what: &str) -> Failure {
        Failure::at(self.given.display(), what)
    }
}

fn place_of(given: &Path) -> Result<Place, Failure> {
    let found = mounts::containing(given).map_err(|error| Failure::at(given.display(), error))?;
    let Some((mount, path)) = found else {
        return Err(Failure::at(given.display(), "is in no mounted TandemFS; 'findmnt -t fuse.tandemfs' lists the mounts"));
    };
    let place = Place { given: given.to_owned(), path, mount };
    let kind = std::fs::metadata(&place.path).map_err(|error| Failure::at(given.display(), error))?.file_type();
    if kind.is_file() || kind.is_dir() { Ok(place) } else { Err(place.failure("only regular files and directories have a home")) }
}

/// Sets a home; for the first one of a file system, lets it have homes ([HX2] of `home_attribute.rs` in the file system).
fn set_one(place: &Place, home: &str) -> Result<(), Failure> {
    let set = || setxattr(&place.path, HOME_ATTRIBUTE, home.as_bytes(), XattrFlags::empty());
    match set() {
        Err(Errno::OPNOTSUPP) => {
            enable(place)?;
            set()
        }
        other => other,
    }
    .map_err(|error| refused(place, error))
}

/// Asks the daemon, which answers the user who mounted.
fn enable(place: &Place) -> Result<(), Failure> {
    let nobody = "the file system has no homes yet; the user who mounted it sets the first one, with 'tandemfs home set'";
    let info = control::ask(&place.mount, Request::Info).map_err(|_| place.failure(nobody))?;
    if info["options"]["xattr"] == "off" {
        return Err(place.failure("the file system is mounted without extended attributes (noxattr), so no home can be set"));
    }
    control::ask(&place.mount, Request::EnableHomes).map(drop).map_err(|error| place.failure(&error.to_string()))
}

fn refused(place: &Place, error: Errno) -> Failure {
    place.failure(match error {
        Errno::PERM => "only the owner of a file makes the memory zone its home; nothing was changed",
        Errno::ACCESS => "you may not write it; nothing was changed",
        Errno::ROFS => "the file system is mounted read-only",
        Errno::OPNOTSUPP => "the file system has no block zone: all of its files live in the memory zone; nothing was changed",
        Errno::NOSPC => {
            "the memory zone has no room for what it holds (see home_limit= of 'tandemfs mount', and 'tandemfs stats'); nothing was changed"
        }
        other => return Failure::at(place.given.display(), other),
    })
}

fn home_of(place: &Place) -> Result<String, Failure> {
    let mut value = [0; 64];
    match getxattr(&place.path, HOME_ATTRIBUTE, &mut value) {
        Ok(length) => Ok(String::from_utf8_lossy(value.get(..length).unwrap_or_default()).into_owned()),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok("auto".into()),
        Err(error) => Err(Failure::at(place.given.display(), error)),
    }
}

/// Bytes that are still to move.
fn left(place: &Place) -> Result<u64, Failure> {
    let mut value = [0; 64];
    match getxattr(&place.path, HOME_LEFT_ATTRIBUTE, &mut value) {
        Ok(length) => {
            let text = String::from_utf8_lossy(value.get(..length).unwrap_or_default());
            text.parse().map_err(|_| place.failure(&format!("'{text}' is no number of bytes")))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(0),
        Err(error) => Err(Failure::at(place.given.display(), error)),
    }
}

/// Waits until a file is at home, with progress.
fn wait(place: &Place) -> Result<(), Failure> {
    let total = left(place)?;
    let style = ProgressStyle::with_template("move [{wide_bar}] {percent:>3} %").unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = if output::shows_progress() && total > 0 { ProgressBar::new(total).with_style(style) } else { ProgressBar::hidden() };
    let (mut least, mut moved_at) = (total, Instant::now());
    while least > 0 {
        std::thread::sleep(LOOK_INTERVAL);
        let now = left(place)?;
        if now < least {
            (least, moved_at) = (now, Instant::now());
            bar.set_position(total - now);
        } else if moved_at.elapsed() > PATIENCE {
            bar.finish_and_clear();
            let why = "in use or damaged, or its home has no room; the mount tries again by itself";
            return Err(place.failure(&format!("{} did not move: it is {why}", size::show(now))));
        }
    }
    bar.finish_and_clear();
    Ok(())
}
