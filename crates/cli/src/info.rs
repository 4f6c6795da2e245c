//! `tandemfs info`: properties of a device or a mount.

use std::path::Path;

use serde_json::{Value, json};
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_fuse::control::{self, Request};
use tandemfs_fuse::mounts;

use crate::arguments::InfoArguments;
use crate::device::{self, Opening};
use crate::failure::Failure;
use crate::output;

/// Shows a mount if the path is a mount point, otherwise a device.
pub fn run(arguments: &InfoArguments) -> Result<u8, Failure> {
    let info = match mounts::find(Path::new(&arguments.place)).ok().flatten() {
        Some(mount) => control::ask(&mount, Request::Info)
            .map_err(|error| Failure::Failed(format!("{}: its daemon does not answer: {error}", arguments.place)))?,
        None => of_device(&arguments.place)?,
    };
    if arguments.json {
        output::print_json(&info)?;
    } else {
        output::print_rows(&output::rows(&info))?;
    }
    Ok(0)
}

fn of_device(device: &str) -> Result<Value, Failure> {
    if Path::new(device).is_dir() {
        return Err(Failure::Failed(format!("{device}: no TandemFS is mounted there, and a directory is no device")));
    }
    let drive = device::open(device, Opening { read_only: true, ..Opening::default() })?;
    let superblock = tandemfs_fs::read_superblock(&drive).map_err(Failure::because)?;
    let geometry = &superblock.geometry;
    Ok(json!({
        "mounted": false,
        "device": drive.description().name,
        "pair": superblock.pair,
        "label": superblock.label,
        "clean": superblock.clean,
        "created_seconds": superblock.created_seconds,
        "mount_generation": superblock.generation,
        "checksum": match superblock.checksum_kind { ChecksumKind::None => "none", ChecksumKind::Crc32c => "crc32c" },
        "features": { "incompat": superblock.incompat, "ro_compat": superblock.ro_compat, "compat": superblock.compat },
        "persistence_domain": drive.domain().name(),
        "block_bytes": geometry.block_bytes(),
        "journal": { "rings": geometry.ring_count(), "ring_bytes": geometry.ring_bytes() },
        "memory_zone": { "total_bytes": geometry.memory_bytes() },
        "block_zone": { "total_bytes": geometry.block_sectors() * tandemfs_format::SECTOR_BYTES as u64 },
    }))
}
