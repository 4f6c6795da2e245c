use std::fs;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::command::{command, run};
use super::memory_file::MemoryFile;
use super::record::Traffic;
use crate::failure::{Failure, Result};

/// The kind of drive used for a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Kernel file systems on a loop device over a file in memory, which takes no time at all; TandemFS on its emulated drive with timing.
    Free,
    /// As `free`, but without timing for TandemFS as well: what is left is the CPU's
    Untimed,
    /// All on the same emulated drive: kernel file systems by its block path behind a loop device.
    Same,
}

/// The drive of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Place {
    /// [`Kind::Free`].
    Free,
    /// [`Kind::Untimed`].
    Untimed,
    /// [`Kind::Same`], with block commands of at least so many microseconds.
    Same(u32),
}

impl Place {
    /// Its kind.
    pub fn kind(self) -> Kind {
        match self {
            Self::Free => Kind::Free,
            Self::Untimed => Kind::Untimed,
            Self::Same(_) => Kind::Same,
        }
    }

    /// The name in records: `free`, `same-25us`.
    pub fn name(self) -> String {
        match self {
            Self::Free => "free".to_owned(),
            Self::Untimed => "untimed".to_owned(),
            Self::Same(us) => format!("same-{us}us"),
        }
    }

    /// The name for readers of reports.
    pub fn title(self) -> String {
        match self {
            Self::Free => "free drive".to_owned(),
            Self::Untimed => "free drive, ours without times too".to_owned(),
            Self::Same(us) => format!("same drive, {us} us"),
        }
    }
}

impl From<Place> for String {
    fn from(place: Place) -> Self {
        place.name()
    }
}

impl TryFrom<String> for Place {
    type Error = String;

    fn try_from(name: String) -> std::result::Result<Self, String> {
        let us = name.strip_prefix("same-").and_then(|rest| rest.strip_suffix("us")?.parse().ok());
        match (name.as_str(), us) {
            ("free", _) => Ok(Self::Free),
            ("untimed", _) => Ok(Self::Untimed),
            (_, Some(us)) => Ok(Self::Same(us)),
            _ => Err(format!("'{name}' is no drive")),
        }
    }
}

/// A block device for a kernel file system; removed when dropped. It initially contains zeros or data of an earlier run.
pub trait Backing {
    /// Path of the device, `/dev/loopN`.
    fn block_device(&self) -> &Path;

    /// All traffic to the drive so far.
    ///
    /// # Errors
    /// The drive does not answer.
    fn traffic(&self) -> Result<Traffic>;

    /// The process that emulates the drive, if any: its CPU time is not the file system's.
    fn process(&self) -> Option<u32> {
        None
    }
}

/// A loop device over a file in memory, without a timing model. Detached when dropped.
pub struct FreeDrive<'f> {
    device: PathBuf,
    file: &'f MemoryFile,
}

impl<'f> FreeDrive<'f> {
    /// Attaches a file.
    ///
    /// # Errors
    /// No loop device is available.
    pub fn start(file: &'f MemoryFile) -> Result<Self> {
        let device = run(command("losetup")?.args(["--find", "--show"]).arg(file.path()))?;
        Ok(Self { device: device.trim().into(), file })
    }
}

/// Fields of `/sys/block/DEVICE/stat`, in sectors of 512 B: Documentation/block/stat.rst of the kernel.
fn counts_of(text: &str) -> Result<Traffic> {
    let fields: Vec<u64> = text.split_ascii_whitespace().map_while(|field| field.parse().ok()).collect();
    match fields[..] {
        [_, _, read, _, _, _, written, ..] => Ok(Traffic {
            read_bytes: read * 512,
            written_bytes: written * 512,
            flushes: fields.get(15).copied().unwrap_or_default(),
            ..Traffic::default()
        }),
        _ => Err(Failure::new("the kernel's counters of a block device are not as they should be")),
    }
}

impl Backing for FreeDrive<'_> {
    fn block_device(&self) -> &Path {
        &self.device
    }

    fn traffic(&self) -> Result<Traffic> {
        let name = self.device.file_name().unwrap_or_default().to_string_lossy();
        counts_of(&fs::read_to_string(format!("/sys/block/{name}/stat"))?)
    }
}

impl Drop for FreeDrive<'_> {
    fn drop(&mut self) {
        let detached = command("losetup").and_then(|mut losetup| run(losetup.arg("--detach").arg(&self.device)));
        if let Err(failure) = detached {
            eprintln!("tandemfs: {} of {} is left behind: {failure}", self.device.display(), self.file.path().display());
        }
    }
}

/// Fails if loop devices cannot be created here.
///
/// # Errors
/// Loop devices are not available; the message has the reason.
pub fn require_loop_devices() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("only root may make and mount the other file systems; run the comparison as root"));
    }
    if !Path::new("/dev/loop-control").exists() {
        return Err(Failure::new(
            "there is no /dev/loop-control: load the kernel module (modprobe loop), or give the container the devices",
        ));
    }
    command("losetup").map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_one_name() {
        for place in [Place::Free, Place::Untimed, Place::Same(25)] {
            assert_eq!(Place::try_from(place.name()), Ok(place));
        }
        assert!(Place::try_from("same".to_owned()).is_err() && Place::try_from("same-us".to_owned()).is_err());
    }

    #[test]
    fn the_kernels_counters_are_read() {
        let text = "  6 0 48 1 22 4 6256 24 0 16 26 1 2 3 4 9 1\n";
        let counts = Traffic { read_bytes: 48 * 512, written_bytes: 6256 * 512, flushes: 9, ..Traffic::default() };
        assert_eq!(counts_of(text).expect("counters"), counts);
        // A kernel before 5.5 does not count flushes.
        assert_eq!(counts_of("6 0 48 1 22 4 6256 24 0 16 26").expect("counters"), Traffic { flushes: 0, ..counts });
        assert!(counts_of("nothing").is_err());
    }
}
