//! `tandemfs mkfs`.

use serde_json::{Value, json};
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_fs::FormatOptions;

use crate::arguments::{Checksum, MkfsArguments};
use crate::device::{self, Opening};
use crate::failure::{self, Failure};
use crate::output;
use crate::signatures::Areas;
use crate::size;

/// Formats a device.
pub fn run(arguments: &MkfsArguments) -> Result<u8, Failure> {
    let block_bytes = u32::try_from(arguments.block_size)
        .map_err(|_| Failure::Usage(format!("a block of {} is too large; at most 1M is possible", size::show(arguments.block_size))))?;
    let options = FormatOptions {
        block_bytes,
        checksum_kind: match arguments.checksum {
            Checksum::Crc32c => ChecksumKind::Crc32c,
            Checksum::None => ChecksumKind::None,
        },
        label: arguments.label.clone(),
        force: arguments.force,
        discard: !arguments.no_discard,
        // The user who formats owns the root directory, so that an ordinary user can use it.
        root_owner: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
    };
    let drive = device::open(&arguments.device, Opening { formats: true, ..Opening::default() })?;
    // Nothing is erased for sizes or a label that are refused. What the device contains is named below, all of it.
    tandemfs_fs::check_format(&drive, &FormatOptions { force: true, ..options.clone() }).map_err(Failure::because)?;
    let areas = Areas::of(&arguments.device, &drive)?;
    if arguments.force {
        areas.wipe()?;
    } else {
        areas.refuse_occupied()?;
    }
    let superblock = tandemfs_fs::make_file_system(&drive, &options).map_err(Failure::because)?;
    let geometry = &superblock.geometry;
    let (memory_bytes, block_zone_bytes) = (geometry.memory_bytes(), geometry.block_sectors() * tandemfs_format::SECTOR_BYTES as u64);
    let odd = tandemfs_fs::odd_zones(geometry, options.checksum_kind == ChecksumKind::Crc32c);
    for zone in &odd {
        failure::warn(&zone.message);
    }
    let warnings: Vec<Value> = odd
        .iter()
        .map(|odd| {
            json!({
                "zone": odd.zone,
                "has_bytes": odd.has_bytes,
                "recommended_bytes": odd.recommended_bytes,
                "message": odd.message,
            })
        })
        .collect();
    let value = json!({
        "device": arguments.device,
        "uuid": superblock.uuid(),
        "pair": superblock.pair,
        "label": superblock.label,
        "memory_bytes": memory_bytes,
        "block_bytes": block_zone_bytes,
        "block_size_bytes": geometry.block_bytes(),
        "warnings": warnings,
    });
    let sentence = format!(
        "{}: formatted, UUID {}, memory {}, block {} in blocks of {}\n",
        arguments.device,
        superblock.uuid(),
        size::show(memory_bytes),
        size::show_or_none(block_zone_bytes),
        size::show(geometry.block_bytes().into()),
    );
    output::print_result(arguments.json, &value, &sentence)?;
    Ok(0)
}
