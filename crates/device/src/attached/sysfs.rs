//! Properties of devices that the kernel reports in /sys.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

use tandemfs_format::SECTOR_BYTES;

use crate::{PersistenceDomain, REQUEST_BYTES};

/// The directory of a device number in /sys/dev/`class` ("char" or "block").
pub(super) fn device_directory(class: &str, number: u64) -> Option<PathBuf> {
    fs::canonicalize(format!("/sys/dev/{class}/{}:{}", major(number), minor(number))).ok()
}

fn read(directory: &Path, name: &str) -> Option<String> {
    Some(fs::read_to_string(directory.join(name)).ok()?.trim().to_owned())
}

/// A device's directory and its parents: a partition's drive, a namespace's region.
fn ancestors(directory: &Path) -> impl Iterator<Item = &Path> {
    directory.ancestors().take_while(|path| *path != Path::new("/sys"))
}

/// Size of a devdax in bytes.
pub(super) fn dax_bytes(directory: &Path) -> Option<u64> {
    read(directory, "size")?.parse().ok()
}

/// Granule of a devdax's mappings in bytes.
pub(super) fn dax_align(directory: &Path) -> Option<u64> {
    read(directory, "align")?.parse().ok().filter(|bytes: &u64| bytes.is_power_of_two())
}

/// Domain that the platform provides for the persistent memory below a device; none if there is no persistent memory below it.
///
/// A devdax can be volatile memory (CXL memory without persistence, memory reserved at boot). Only a region of persistent memory
/// survives: it keeps at least flushed lines, and with `cpu_cache` the CPU's caches too. A region of a virtual machine
/// (virtio-pmem) needs a flush by the host, which a mapping cannot request, so it counts as volatile.
pub(super) fn persistence_domain(directory: &Path) -> Option<PersistenceDomain> {
    let is_region = |path: &&Path| read(path, "uevent").is_some_and(|text| text.lines().any(|line| line == "DEVTYPE=nd_pmem"));
    let region = ancestors(directory).find(is_region)?;
    if region.components().any(|part| part.as_os_str().to_string_lossy().starts_with("virtio")) {
        return None;
    }
    match read(region, "persistence_domain").as_deref() {
        Some("cpu_cache") => Some(PersistenceDomain::Gpf),
        _ => Some(PersistenceDomain::Adr),
    }
}

/// The node of the memory below a device (NUMA): that whose CPUs are nearest, or else the memory's own. A volume over several devices has
/// none here.
pub(super) fn memory_node(directory: &Path) -> Option<u32> {
    let number = |name| ancestors(directory).find_map(|path| read(path, name)?.parse::<u32>().ok());
    number("numa_node").or_else(|| number("target_node"))
}

/// Whether a drive has a volatile write cache.
pub(super) fn has_volatile_cache(directory: &Path) -> bool {
    // Unknown counts as yes: an unnecessary FLUSH does no harm.
    ancestors(directory).find_map(|path| read(path, "queue/write_cache")).is_none_or(|mode| mode != "write through")
}

/// Whether a drive supports discards.
pub(super) fn can_discard(directory: &Path) -> bool {
    ancestors(directory).find_map(|path| read(path, "queue/discard_max_bytes")).is_some_and(|bytes| bytes != "0")
}

/// Preferred request size of a drive in bytes: the optimal size that it reports, limited by the largest size of one command.
pub(super) fn request_bytes(directory: &Path) -> Option<u32> {
    let number = |name| ancestors(directory).find_map(|path| read(path, name))?.parse::<u64>().ok();
    let most = number("queue/max_sectors_kb").map_or(u64::MAX, |kib| kib << 10);
    let best = number("queue/optimal_io_size").filter(|bytes| *bytes >= REQUEST_BYTES.into()).unwrap_or(REQUEST_BYTES.into());
    // A striped device may report megabytes; then a request would no longer be spread over channels.
    let bytes = best.min(most).min(4 * u64::from(REQUEST_BYTES)) / SECTOR_BYTES as u64 * SECTOR_BYTES as u64;
    u32::try_from(bytes).ok().filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with files like those in /sys.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a file in a directory")).expect("made");
            fs::write(path, text).expect("written");
        }
        root
    }

    #[test]
    fn the_domain_is_that_of_the_region() {
        let domain = |files: &[(&str, &str)], device: &str| {
            let root = tree(files);
            let device = root.path().join(device);
            fs::create_dir_all(&device).expect("made");
            persistence_domain(&device)
        };
        let region = ("ndbus0/region0/uevent", "DEVTYPE=nd_pmem\nMODALIAS=nd:t2\n");
        let dax = "ndbus0/region0/dax0.0/dax/dax0.0";
        assert_eq!(domain(&[region, ("ndbus0/region0/persistence_domain", "cpu_cache\n")], dax), Some(PersistenceDomain::Gpf));
        assert_eq!(domain(&[region, ("ndbus0/region0/persistence_domain", "memory_controller\n")], dax), Some(PersistenceDomain::Adr));
        assert_eq!(domain(&[region], "ndbus0/region0/pfn0.1/block/pmem0"), Some(PersistenceDomain::Adr));
        let virtual_region = ("virtio3/ndbus0/region0/uevent", "DEVTYPE=nd_pmem\n");
        assert_eq!(domain(&[virtual_region], "virtio3/ndbus0/region0/namespace0.0/block/pmem0"), None);
        assert_eq!(domain(&[("hmem.0/uevent", "DRIVER=hmem\n")], "hmem.0/dax0.0"), None);
    }

    #[test]
    fn the_node_is_the_one_with_cpus_or_that_of_the_memory() {
        let node = |files: &[(&str, &str)]| memory_node(&tree(files).path().join("region0/dax0.0"));
        assert_eq!(node(&[("region0/dax0.0/numa_node", "1\n"), ("region0/dax0.0/target_node", "3\n")]), Some(1));
        assert_eq!(node(&[("region0/dax0.0/numa_node", "-1\n"), ("region0/dax0.0/target_node", "3\n")]), Some(3));
        assert_eq!(node(&[("region0/numa_node", "0\n"), ("region0/dax0.0/size", "7\n")]), Some(0), "of the region");
        assert_eq!(node(&[("region0/dax0.0/numa_node", "-1\n"), ("region0/dax0.0/target_node", "many\n")]), None);
    }

    #[test]
    fn a_partition_has_its_drives_queue() {
        let root = tree(&[("nvme0n1/queue/write_cache", "write through\n"), ("nvme0n1/queue/discard_max_bytes", "0\n")]);
        let partition = root.path().join("nvme0n1/nvme0n1p1");
        assert!(!has_volatile_cache(&partition) && !can_discard(&partition));
        let root = tree(&[("sda/queue/write_cache", "write back\n"), ("sda/queue/discard_max_bytes", "2147450880\n")]);
        let drive = root.path().join("sda");
        assert!(has_volatile_cache(&drive) && can_discard(&drive));
        assert!(has_volatile_cache(root.path()), "unknown counts as volatile");
    }

    #[test]
    fn requests_are_as_large_as_the_drive_says_within_bounds() {
        let bytes = |files: &[(&str, &str)]| request_bytes(tree(files).path());
        assert_eq!(bytes(&[]), Some(REQUEST_BYTES));
        assert_eq!(bytes(&[("queue/max_sectors_kb", "64\n"), ("queue/optimal_io_size", "0\n")]), Some(64 << 10));
        assert_eq!(bytes(&[("queue/max_sectors_kb", "1280\n"), ("queue/optimal_io_size", "262144\n")]), Some(256 << 10));
        assert_eq!(bytes(&[("queue/optimal_io_size", "67108864\n")]), Some(4 * REQUEST_BYTES));
        assert_eq!(bytes(&[("queue/optimal_io_size", "512\n"), ("queue/max_sectors_kb", "127\n")]), Some(124 << 10));
    }
}
