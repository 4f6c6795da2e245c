//! What `tandemfs home`, `tandemfs aligned` and `tandemfs defrag` have in common: files of a mount, their attributes, and waiting until
//! the background thread of the mount has done what an attribute asks for.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;
use tandemfs_fuse::control::{self, Request};
use tandemfs_fuse::mounts::{self, Mounted};

use crate::failure::Failure;
use crate::output;

/// How often waiting looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Waiting ends if nothing was done for so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A file in a mount.
pub struct Place {
    /// As it was given.
    pub given: PathBuf,
    /// Where it is.
    pub path: PathBuf,
    mount: Mounted,
}

impl Place {
    /// A failure that concerns this file.
    pub fn failure(&self, what: &str) -> Failure {
        Failure::at(self.given.display(), what)
    }
}

/// Finds a regular file or a directory in a mount. `what` says of other files why they are none.
pub fn place_of(given: &Path, what: &str) -> Result<Place, Failure> {
    let found = mounts::containing(given).map_err(|error| Failure::at(given.display(), error))?;
    let Some((mount, path)) = found else {
        return Err(Failure::at(given.display(), "is in no mounted TandemFS; 'findmnt -t fuse.tandemfs' lists the mounts"));
    };
    let place = Place { given: given.to_owned(), path, mount };
    let kind = std::fs::metadata(&place.path).map_err(|error| Failure::at(given.display(), error))?.file_type();
    if kind.is_file() || kind.is_dir() { Ok(place) } else { Err(place.failure(what)) }
}

/// Sets an attribute that needs homes; for the first one of a file system, lets it have them ([HX2] of `home_attribute.rs` in the file
/// system). `refused` says why it was refused.
pub fn set(place: &Place, attribute: &[u8], value: &str, refused: impl Fn(Errno) -> Option<&'static str>) -> Result<(), Failure> {
    let set = || setxattr(&place.path, attribute, value.as_bytes(), XattrFlags::empty());
    match set() {
        Err(Errno::OPNOTSUPP) => {
            enable(place)?;
            set()
        }
        other => other,
    }
    .map_err(|error| refused(error).map_or_else(|| Failure::at(place.given.display(), error), |what| place.failure(what)))
}

/// Asks the daemon, which answers the user who mounted.
fn enable(place: &Place) -> Result<(), Failure> {
    let nobody = "the file system has no homes of files yet; the user who mounted it sets the first one, with 'tandemfs home set'";
    let info = control::ask(&place.mount, Request::Info).map_err(|_| place.failure(nobody))?;
    if info["options"]["xattr"] == "off" {
        return Err(place.failure("the file system is mounted without extended attributes (noxattr), so it cannot be set"));
    }
    control::ask(&place.mount, Request::EnableHomes).map(drop).map_err(|error| place.failure(&error.to_string()))
}

/// The value of an attribute; `None` without it.
pub fn value_of(place: &Place, attribute: &[u8]) -> Result<Option<String>, Failure> {
    let mut value = [0; 64];
    match getxattr(&place.path, attribute, &mut value) {
        Ok(length) => Ok(Some(String::from_utf8_lossy(value.get(..length).unwrap_or_default()).into_owned())),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(error) => Err(Failure::at(place.given.display(), error)),
    }
}

/// Bytes that are still to be done, by an attribute that counts them.
pub fn left(place: &Place, attribute: &[u8]) -> Result<u64, Failure> {
    let Some(text) = value_of(place, attribute)? else { return Ok(0) };
    text.parse().map_err(|_| place.failure(&format!("'{text}' is no number of bytes")))
}

/// A bar for so many bytes.
pub fn bar_of(what: &str, total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template(&format!("{what} [{{wide_bar}}] {{percent:>3}} %"));
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    if output::shows_progress() && total > 0 { ProgressBar::new(total).with_style(style) } else { ProgressBar::hidden() }
}

/// Waits until nothing is left to do for a file, with progress. Returns how many bytes are left when nothing was done for long.
pub fn wait(place: &Place, attribute: &[u8], total: u64, bar: &ProgressBar) -> Result<u64, Failure> {
    let (mut least, mut done_at, start) = (total, Instant::now(), bar.position());
    loop {
        let now = left(place, attribute)?;
        if now < least {
            (least, done_at) = (now, Instant::now());
        }
        bar.set_position(start + total - least);
        if least == 0 || done_at.elapsed() > PATIENCE {
            return Ok(least);
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}
