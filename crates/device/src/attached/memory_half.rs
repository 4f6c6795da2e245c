//! The memory half of an attached pair: a mapping, with the persistence domain that the kernel reports ([AT1]).

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use tandemfs_format::size::size;
use tandemfs_format::{PAGE_BYTES, UNIT_BYTES};

use super::{Access, Opened, open_half, sysfs};
use crate::nodes::cpus_of_node;
use crate::{
    DeviceError, LentZone, MappedMemory, Mapping, MappingOptions, MemoryNodes, MemoryRange, PersistenceDomain, Replaced, StoreZone,
    ZoneHold, is_zone_held,
};

/// In `adr`, stores of at least this many bytes bypass the CPU's caches, from which they would have to be flushed: a page of data is
/// rarely read again soon, and the CPU need not fetch lines that it overwrites.
const STREAMING_BYTES_MIN: usize = 4096;

#[derive(Debug)]
pub(crate) struct MemoryHalf {
    mapping: Replaced<Mapping>,
    domain: PersistenceDomain,
    /// Granule of its mappings, in bytes.
    unit: u64,
    nodes: MemoryNodes,
    /// Holds the lock.
    file: File,
}

/// What the path names.
struct Found {
    bytes: u64,
    /// Domain of its memory, if the mapping really reaches the memory.
    vouched: Option<PersistenceDomain>,
    /// Whether every mapping reaches the memory (devdax); other files need MAP_SYNC.
    direct: bool,
    /// Granule of its mappings, in bytes.
    unit: u64,
    /// The node of its memory (NUMA), if the mapping reaches the memory.
    node: Option<u32>,
}

impl MemoryHalf {
    pub(super) fn open(path: &Path, access: Access) -> Result<Self, DeviceError> {
        let name = path.display().to_string();
        let refuse = |reason: String| DeviceError::Open { path: name.clone(), reason };
        let Opened { file, metadata, .. } = open_half(path, access, false)?;
        let found = look(&file, &metadata).map_err(refuse)?;
        if found.bytes < UNIT_BYTES {
            let what = if found.bytes == 0 { "is empty".to_owned() } else { format!("has {}", size(found.bytes)) };
            return Err(refuse(format!("{what}; a memory half has at least 2 MiB")));
        }
        // Whole units only: a devdax maps nothing else, and the format has no use for the rest.
        let length = found.bytes / UNIT_BYTES * UNIT_BYTES;
        if metadata.is_file() && !access.read_only && metadata.blocks().saturating_mul(512) < length {
            reserve(&file, length).map_err(refuse)?;
        }
        let options = MappingOptions { offset: 0, length, read_only: access.read_only, synchronous: true, not_inherited: false };
        let mapping = Mapping::new(&name, &file, options).map_err(|error| refuse(format!("cannot be mapped: {error}")))?;
        let domain = match found.vouched {
            Some(vouched) if found.direct || mapping.is_synchronous() => Mapping::reachable_domain(vouched),
            _ => PersistenceDomain::Process,
        };
        let nodes = found.node.filter(|_| domain != PersistenceDomain::Process || found.direct);
        let nodes = nodes.map_or_else(MemoryNodes::default, |node| MemoryNodes::one(node, cpus_of_node(node).unwrap_or_default()));
        Ok(Self { mapping: Replaced::new(mapping), domain, unit: found.unit, nodes, file })
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

    pub(crate) fn nodes(&self) -> MemoryNodes {
        self.nodes.clone()
    }

    pub(crate) fn unit(&self) -> u64 {
        self.unit
    }

    /// Takes into use what the file or device has become larger by ([AT5]). The space of a sparse file is reserved first.
    pub(crate) fn grow(&self) -> Result<(), DeviceError> {
        let refuse = |reason: String| DeviceError::Open { path: self.mapping.name().to_owned(), reason };
        let metadata = self.file.metadata().map_err(|error| refuse(format!("cannot be examined: {error}")))?;
        let length = look(&self.file, &metadata).map_err(refuse)?.bytes / UNIT_BYTES * UNIT_BYTES;
        if length <= self.bytes() {
            return Ok(());
        }
        if metadata.is_file() {
            if metadata.blocks().saturating_mul(512) < length {
                reserve(&self.file, length).map_err(refuse)?;
            }
            self.file.sync_all().map_err(|error| refuse(format!("its new size cannot be made durable: {error}")))?;
        }
        let larger = self.mapping.larger(&self.file, length, false);
        self.mapping.replace(larger.map_err(|error| refuse(format!("its new size cannot be mapped: {error}")))?);
        Ok(())
    }

    /// Stores bytes, by the way that suits this domain.
    pub(crate) fn store(&self, offset: u64, bytes: &[u8], domain: PersistenceDomain) -> Result<(), DeviceError> {
        if domain.needs_flush() && bytes.len() >= STREAMING_BYTES_MIN {
            self.mapping.store_streaming(offset, bytes)
        } else {
            self.mapping.store(offset, bytes)
        }
    }

    /// Its first so many bytes.
    pub(crate) fn lent(&self, length: u64) -> std::io::Result<LentZone> {
        LentZone::of(&self.file, 0, length)
    }

    /// The same for stores.
    pub(crate) fn for_stores(&self, length: u64, program: u32) -> std::io::Result<(StoreZone, ZoneHold)> {
        StoreZone::of(&self.file, 0, length, program)
    }

    pub(crate) fn is_held(&self) -> bool {
        is_zone_held(&self.file)
    }

    pub(crate) fn map(&self, ranges: &[MemoryRange], writable: bool) -> Result<Box<dyn MappedMemory>, DeviceError> {
        self.mapping.map_ranges(&self.file, self.unit, ranges, writable)
    }
}

/// Allocates the space of a sparse file, so that a full disk is reported now and not as a failing store.
fn reserve(file: &File, length: u64) -> Result<(), String> {
    match fallocate(file, FallocateFlags::empty(), 0, length) {
        // The file system has no fallocate: a store without space returns an error later.
        Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
        Err(Errno::NOSPC) => {
            Err(format!("is sparse and its disk has no space for all of its {}; make space or name a smaller file", size(length)))
        }
        Err(error) => Err(format!("its space cannot be reserved: {error}")),
    }
}

fn look(file: &File, metadata: &std::fs::Metadata) -> Result<Found, String> {
    let kind = metadata.file_type();
    if kind.is_char_device() {
        let directory = sysfs::device_directory("char", metadata.rdev()).ok_or("is not in /sys/dev/char; is it a devdax?")?;
        let bytes = sysfs::dax_bytes(&directory).ok_or("is no devdax; a memory half is a /dev/dax device, a file or a block device")?;
        let unit = sysfs::dax_align(&directory).unwrap_or(UNIT_BYTES);
        return Ok(Found {
            bytes,
            vouched: sysfs::persistence_domain(&directory),
            direct: true,
            unit,
            node: sysfs::memory_node(&directory),
        });
    }
    if kind.is_block_device() {
        let mut file = file;
        let bytes = file.seek(SeekFrom::End(0)).map_err(|error| error.to_string())?;
        // A mapping of a block device is its page cache, also on persistent memory.
        return Ok(Found { bytes, vouched: None, direct: false, unit: PAGE_BYTES as u64, node: None });
    }
    if kind.is_file() {
        let directory = sysfs::device_directory("block", metadata.dev());
        let vouched = directory.as_deref().and_then(sysfs::persistence_domain);
        let node = directory.as_deref().and_then(sysfs::memory_node);
        return Ok(Found { bytes: metadata.len(), vouched, direct: false, unit: PAGE_BYTES as u64, node });
    }
    Err("is no device and no file".into())
}
