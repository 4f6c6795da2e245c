//! `tandemfs info`: properties of a device or a mount.

use std::path::Path;

use serde_json::{Map, Value, json};
use tandemfs_emulator::DeviceSpec;
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_fuse::control::{self, Request};
use tandemfs_fuse::mounts::{self, Mounted};

use crate::arguments::InfoArguments;
use crate::device::{self, Opening};
use crate::failure::{Failure, no_answer};
use crate::output;

/// Shows a mount if the path is a mount point, otherwise a device.
pub fn run(arguments: &InfoArguments) -> Result<u8, Failure> {
    let info = match mounts::find(Path::new(&arguments.place)).ok().flatten() {
        Some(mount) => of_mount(&mount)?,
        None => of_device(&arguments.place)?,
    };
    if arguments.json {
        output::print_json(&info)?;
    } else {
        output::print_rows(&output::rows(&info))?;
    }
    Ok(0)
}

/// What the daemon says, and what only the kernel knows.
fn of_mount(mount: &Mounted) -> Result<Value, Failure> {
    let mut info = control::ask(mount, Request::Info).map_err(|error| no_answer(mount, &error))?;
    // A remount changes these without the daemon.
    info["read_only"] = json!(mount.has("ro"));
    info["flags"] = json!(mount.flags.join(","));
    let device = info["device"].as_str().unwrap_or_default().to_owned();
    let domain = info["persistence_domain"].as_str().unwrap_or_default().to_owned();
    survival(&mut info, &device, &domain);
    Ok(info)
}

/// What survives what. An image is a file of this machine: whatever drive it plays, a power failure of the machine can take any of its pages.
fn survival(info: &mut Value, device: &str, domain: &str) {
    let is_image = matches!(device.parse(), Ok(DeviceSpec::Image(_)));
    info["persistence_domain"] = json!(if is_image && domain != "none" { "process" } else { domain });
    info["emulated_domain"] = if is_image { json!(domain) } else { Value::Null };
    info["survives"] = json!(match info["persistence_domain"].as_str() {
        Some("none") => "a clean unmount only",
        Some("process") => "death of the daemon; not a power failure or crash of this machine",
        _ => "death of the daemon, and a power failure or crash of this machine",
    });
}

fn of_device(device: &str) -> Result<Value, Failure> {
    if Path::new(device).is_dir() {
        return Err(Failure::Failed(format!("{device}: no TandemFS is mounted there, and a directory is no device")));
    }
    let drive = device::open(device, Opening { read_only: true, ..Opening::default() })?;
    let superblock = tandemfs_fs::read_superblock(&drive).map_err(Failure::because)?;
    let geometry = &superblock.geometry;
    let mut info = json!({
        "mounted": false,
        "device": drive.description().name,
        "uuid": superblock.uuid(),
        "pair": superblock.pair,
        "label": superblock.label,
        "clean": superblock.clean,
        "created_seconds": superblock.created_seconds,
        "mount_generation": superblock.generation,
        "checksum": match superblock.checksum_kind { ChecksumKind::None => "none", ChecksumKind::Crc32c => "crc32c" },
        "errors": superblock.error_counters.entries().into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect::<Map<_, _>>(),
        "features": { "incompat": superblock.incompat, "ro_compat": superblock.ro_compat, "compat": superblock.compat },
        "block_bytes": geometry.block_bytes(),
        "journal": { "rings": geometry.ring_count(), "ring_bytes": geometry.ring_bytes() },
        "memory_zone": { "total_bytes": geometry.memory_bytes() },
        "block_zone": { "total_bytes": geometry.block_sectors() * tandemfs_format::SECTOR_BYTES as u64 },
    });
    survival(&mut info, device, drive.domain().name());
    Ok(info)
}
