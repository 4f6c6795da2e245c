//! The memory half: mapped, with the domain that the kernel vouches for ([AT1]).

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, flock};
use tandemfs_format::UNIT_BYTES;

use super::sysfs;
use crate::{DeviceError, Mapping, MappingOptions, PersistenceDomain};

#[derive(Debug)]
pub(crate) struct MemoryHalf {
    mapping: Mapping,
    domain: PersistenceDomain,
    /// Holds the lock.
    _file: File,
}

/// What the path names.
struct Found {
    bytes: u64,
    /// What its memory keeps if a store really reaches it.
    vouched: Option<PersistenceDomain>,
    /// A mapping of it always reaches the memory (devdax); of others only with MAP_SYNC.
    direct: bool,
}

impl MemoryHalf {
    pub(crate) fn open(path: &Path, read_only: bool) -> Result<Self, DeviceError> {
        let name = path.display().to_string();
        let refuse = |reason: String| DeviceError::Open { path: name.clone(), reason };
        let metadata = std::fs::metadata(path).map_err(|error| refuse(error.to_string()))?;
        if metadata.is_dir() {
            return Err(refuse("is a directory; a memory half is a /dev/dax device, a file or a block device".into()));
        }
        let file = open_file(path, read_only, metadata.file_type().is_block_device(), OFlags::empty())?;
        let found = look(&file, &metadata).map_err(refuse)?;
        if found.bytes < UNIT_BYTES {
            let what = if found.bytes == 0 { "is empty".to_owned() } else { format!("has {} B", found.bytes) };
            return Err(refuse(format!("{what}; a memory half has at least 2 MiB")));
        }
        // Whole units only: a devdax maps nothing else, and the format has no use for the rest.
        let length = found.bytes / UNIT_BYTES * UNIT_BYTES;
        let options = MappingOptions { offset: 0, length, read_only, synchronous: true };
        let mapping = Mapping::new(&name, &file, options).map_err(|error| refuse(format!("cannot be mapped: {error}")))?;
        let domain = match found.vouched {
            Some(vouched) if found.direct || mapping.is_synchronous() => Mapping::reachable_domain(vouched),
            _ => PersistenceDomain::Process,
        };
        Ok(Self { mapping, domain, _file: file })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.mapping.length()
    }

    pub(crate) fn domain(&self) -> PersistenceDomain {
        self.domain
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }
}

fn look(file: &File, metadata: &std::fs::Metadata) -> Result<Found, String> {
    let kind = metadata.file_type();
    if kind.is_char_device() {
        let directory = sysfs::device_directory("char", metadata.rdev()).ok_or("is not in /sys/dev/char; is it a devdax?")?;
        let bytes = sysfs::dax_bytes(&directory).ok_or("is no devdax; a memory half is a /dev/dax device, a file or a block device")?;
        return Ok(Found { bytes, vouched: sysfs::persistence_domain(&directory), direct: true });
    }
    if kind.is_block_device() {
        let mut file = file;
        let bytes = file.seek(SeekFrom::End(0)).map_err(|error| error.to_string())?;
        // A mapping of a block device is its page cache, also on persistent memory.
        return Ok(Found { bytes, vouched: None, direct: false });
    }
    if kind.is_file() {
        let directory = sysfs::device_directory("block", metadata.dev());
        let vouched = directory.and_then(|directory| sysfs::persistence_domain(&directory));
        return Ok(Found { bytes: metadata.len(), vouched, direct: false });
    }
    Err("is no device and no file".into())
}

/// Opens and locks a half ([AT2] of the module above).
pub(super) fn open_file(path: &Path, read_only: bool, is_block_device: bool, flags: OFlags) -> Result<File, DeviceError> {
    let name = || path.display().to_string();
    // O_EXCL on a block device: the kernel refuses one that is mounted or part of another.
    let exclusive = if is_block_device && !read_only { OFlags::EXCL } else { OFlags::empty() };
    let file = OpenOptions::new()
        .read(true)
        .write(!read_only)
        .custom_flags((flags | exclusive).bits() as i32)
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            Some(code) if code == rustix::io::Errno::BUSY.raw_os_error() => DeviceError::Busy { path: name() },
            _ => DeviceError::Open { path: name(), reason: error.to_string() },
        })?;
    let lock = if read_only { FlockOperation::NonBlockingLockShared } else { FlockOperation::NonBlockingLockExclusive };
    match flock(&file, lock) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(DeviceError::Busy { path: name() }),
        Err(error) => Err(DeviceError::Open { path: name(), reason: format!("cannot be locked: {error}") }),
    }
}
