//! What the kernel says of devices, read from /sys.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

use crate::PersistenceDomain;

/// Whether two paths name one file or one device.
pub(crate) fn same_file(a: &Path, b: &Path) -> bool {
    match (fs::metadata(a), fs::metadata(b)) {
        (Ok(a), Ok(b)) if a.rdev() != 0 || b.rdev() != 0 => a.rdev() == b.rdev(),
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

/// The directory of a device number in /sys/dev/`class` ("char" or "block").
pub(crate) fn device_directory(class: &str, number: u64) -> Option<PathBuf> {
    fs::canonicalize(format!("/sys/dev/{class}/{}:{}", major(number), minor(number))).ok()
}

/// A file of a device's directory, or of one of its parents (a partition's drive, a namespace's region).
fn attribute(directory: &Path, name: &str) -> Option<String> {
    directory.ancestors().take_while(|path| *path != Path::new("/sys")).find_map(|path| {
        let text = fs::read_to_string(path.join(name)).ok()?;
        Some(text.trim().to_owned())
    })
}

/// Size of a devdax in bytes.
pub(crate) fn dax_bytes(directory: &Path) -> Option<u64> {
    fs::read_to_string(directory.join("size")).ok()?.trim().parse().ok()
}

/// What the platform keeps of the persistent memory that a device lies on; nothing where it does not lie on any.
pub(crate) fn persistence_domain(directory: &Path) -> Option<PersistenceDomain> {
    match attribute(directory, "persistence_domain")?.as_str() {
        "cpu_cache" => Some(PersistenceDomain::Gpf),
        "memory_controller" => Some(PersistenceDomain::Adr),
        _ => None,
    }
}

/// Whether a drive has a volatile write cache.
pub(crate) fn has_volatile_cache(directory: &Path) -> bool {
    // Unknown counts as yes: a needless FLUSH loses nothing.
    attribute(directory, "queue/write_cache").is_none_or(|mode| mode == "write back")
}

/// Whether a drive takes discards.
pub(crate) fn can_discard(directory: &Path) -> bool {
    attribute(directory, "queue/discard_max_bytes").is_some_and(|bytes| bytes != "0")
}
