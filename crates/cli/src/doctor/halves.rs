//! What a device consists of: the files and drives that a specification names.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};
use tandemfs_emulator::{DeviceSpec, HeaderState};

use super::finding::Finding;
use super::machine::Machine;
use crate::huge_pages::{BasePagesOnly, base_pages_only};
use crate::size;

/// TandemFS's sectors, in bytes.
const SECTOR_BYTES: u64 = 4096;
/// Size of a huge page.
const HUGE_BYTES: u64 = 2 << 20;

/// What is unusual of a device's parts.
pub fn findings(machine: &Machine, device: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    match device.parse() {
        Ok(DeviceSpec::Image(path)) => about_image(machine, &path, &mut found),
        Ok(DeviceSpec::Pair { memory, block, .. }) => {
            about_memory(machine, &memory, &mut found);
            about_block(&block, &mut found);
        }
        Ok(DeviceSpec::Memory(memory)) => about_memory(machine, &memory, &mut found),
        Err(_) => {}
    }
    found
}

fn about_image(machine: &Machine, path: &Path, found: &mut Vec<Finding>) {
    found.push(Finding::note(
        "emulated",
        format!("{} is an emulated drive: a power failure or crash of this machine can take any of its pages", path.display()),
        "use it for trials; a pair of drives keeps what is promised",
    ));
    if tandemfs_emulator::header_state(path).is_ok_and(|state| state == HeaderState::Damaged) {
        found.push(Finding::unusual(
            "image_header_damaged",
            format!("the header of {} is damaged, its copy is used", path.display()),
            "unmount, and run tandemfs check --repair",
        ));
    }
    about_disk(path, found);
    about_huge_pages(machine, path, found);
}

/// A sparse image, or a file as a half, can outgrow its disk.
fn about_disk(path: &Path, found: &mut Vec<Finding>) {
    let (Ok(file), Ok(disk)) = (fs::metadata(path), rustix::fs::statvfs(path)) else { return };
    let missing = file.len().saturating_sub(file.blocks() * 512);
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if missing > free {
        found.push(Finding::unusual(
            "disk_small",
            format!("{} can still grow by {}, and its disk has {} free", path.display(), size::show(missing), size::show(free)),
            "make room on that disk; when it is full, the block zone counts as full",
        ));
    }
}

fn about_huge_pages(machine: &Machine, path: &Path, found: &mut Vec<Finding>) {
    if let Some(BasePagesOnly { why, advice }) = base_pages_only(path, |file| machine.read(file)) {
        found.push(Finding::note("no_huge_pages", format!("{} {why}: mapped files have no huge pages", path.display()), advice));
    }
}

fn about_file(which: &str, path: &Path, found: &mut Vec<Finding>) {
    found.push(Finding::note(
        "file_as_half",
        format!("the {which} half {} is a file: what is acknowledged survives the daemon, and not a power failure", path.display()),
        "use it for trials; name a device for what has to last",
    ));
    about_disk(path, found);
}

fn about_memory(machine: &Machine, path: &Path, found: &mut Vec<Finding>) {
    let Ok(metadata) = fs::metadata(path) else { return };
    if metadata.is_file() {
        about_file("memory", path, found);
        about_huge_pages(machine, path, found);
    } else if metadata.file_type().is_char_device()
        && let Some(directory) = directory("char", metadata.rdev())
    {
        about_devdax(path, &directory, found);
    }
}

fn about_devdax(path: &Path, directory: &Path, found: &mut Vec<Finding>) {
    let align = number(directory, "align");
    if let Some(align) = align.filter(|align| *align < HUGE_BYTES) {
        found.push(Finding::unusual(
            "no_huge_pages",
            format!(
                "{} is mapped in steps of {}, so without huge pages: each access costs more look-ups of addresses",
                path.display(),
                size::show(align)
            ),
            "make the namespace anew with an alignment of 2M (ndctl create-namespace --align 2M, or daxctl)",
        ));
    }
}

fn about_block(path: &Path, found: &mut Vec<Finding>) {
    let Ok(metadata) = fs::metadata(path) else { return };
    if metadata.is_file() {
        about_file("block", path, found);
    } else if metadata.file_type().is_block_device()
        && let Some(directory) = directory("block", metadata.rdev())
    {
        about_drive(path, &directory, found);
    }
}

/// A block device, by its directory in /sys or that of its partition.
fn about_drive(path: &Path, directory: &Path, found: &mut Vec<Finding>) {
    let place = path.display();
    // A partition has no queue of its own.
    let drive = directory.ancestors().take(2).find(|directory| directory.join("queue").is_dir());
    let Some(drive) = drive else { return };
    let physical = number(drive, "queue/physical_block_size");
    if let Some(bytes) = physical.filter(|bytes| *bytes != SECTOR_BYTES) {
        let advice = if bytes < SECTOR_BYTES {
            "give the drive sectors of 4 KiB if it can (nvme id-ns -H, nvme format --lbaf), before mkfs"
        } else {
            "the drive reads and writes more than it is asked for; use one with sectors of 4 KiB"
        };
        let what = format!("{place} has sectors of {}; TandemFS reads and writes 4 KiB", size::show(bytes));
        found.push(Finding::unusual("sector_size", what, advice));
    }
    let write_cache = word(drive, "queue/write_cache");
    if write_cache.as_deref() == Some("write through") && has_volatile_cache(drive) {
        found.push(Finding::unusual(
            "cache_without_flush",
            format!("{place} says that its cache is volatile, and the kernel sends it no FLUSH (queue/write_cache is 'write through')"),
            "echo 'write back' > /sys/block/DRIVE/queue/write_cache, and mount again; until then a power failure can take what was synced",
        ));
    }
    if number(drive, "queue/rotational") == Some(1) {
        found.push(Finding::unusual(
            "rotating",
            format!("{place} is a rotating disk, for which nothing here is made"),
            "use a solid-state drive",
        ));
    }
    if number(drive, "queue/discard_max_bytes") == Some(0) {
        found.push(Finding::note(
            "no_discard",
            format!("{place} takes no discards (TRIM), so it does not learn what is free"),
            "nothing to do if the drive has none; a device mapper may have to be told to pass them on",
        ));
    }
}

/// Whether a SCSI or ATA drive itself says that its cache is lost with the power. An NVMe drive does not say so in /sys.
fn has_volatile_cache(drive: &Path) -> bool {
    let disks = fs::read_dir(drive.join("device/scsi_disk")).into_iter().flatten().flatten();
    disks.filter_map(|disk| word(&disk.path(), "cache_type")).any(|kind| kind.starts_with("write back"))
}

fn directory(class: &str, device: u64) -> Option<PathBuf> {
    fs::canonicalize(format!("/sys/dev/{class}/{}:{}", major(device), minor(device))).ok()
}

fn word(directory: &Path, name: &str) -> Option<String> {
    fs::read_to_string(directory.join(name)).ok().map(|text| text.trim().to_owned())
}

fn number(directory: &Path, name: &str) -> Option<u64> {
    word(directory, name)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::finding::names;
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("a directory");
        for (path, text) in files {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, text).expect("written");
        }
        directory
    }

    #[test]
    fn drives_are_judged_by_what_the_kernel_says() {
        let found = |changed: &[(&str, &str)], within: &str| {
            let well = [
                ("sda/queue/physical_block_size", "4096\n"),
                ("sda/queue/write_cache", "write back\n"),
                ("sda/queue/rotational", "0\n"),
                ("sda/queue/discard_max_bytes", "2147450880\n"),
                ("sda/device/scsi_disk/0:0:0:0/cache_type", "write back\n"),
                ("sda/sda1/partition", "1\n"),
            ];
            let files: Vec<_> = well.iter().chain(changed).copied().collect();
            let root = tree(&files);
            let mut found = Vec::new();
            about_drive("/dev/sda".as_ref(), &root.path().join(within), &mut found);
            names(&found)
        };
        for within in ["sda", "sda/sda1"] {
            assert_eq!(found(&[], within), Vec::<&str>::new());
            assert_eq!(found(&[("sda/queue/physical_block_size", "512\n")], within), ["sector_size"]);
            assert_eq!(found(&[("sda/queue/write_cache", "write through\n")], within), ["cache_without_flush"]);
            assert_eq!(found(&[("sda/queue/rotational", "1\n")], within), ["rotating"]);
            assert_eq!(found(&[("sda/queue/discard_max_bytes", "0\n")], within), ["no_discard"]);
        }
        let safe = [("sda/queue/write_cache", "write through\n"), ("sda/device/scsi_disk/0:0:0:0/cache_type", "write through\n")];
        assert_eq!(found(&safe, "sda"), Vec::<&str>::new());
    }

    #[test]
    fn a_devdax_in_small_steps_has_no_huge_pages() {
        let found = |align: &str| {
            let root = tree(&[("align", align)]);
            let mut found = Vec::new();
            about_devdax("/dev/dax0.0".as_ref(), root.path(), &mut found);
            names(&found)
        };
        assert_eq!((found("2097152\n"), found("4096\n")), (vec![], vec!["no_huge_pages"]));
    }
}
