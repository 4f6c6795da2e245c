//! `tandemfs resize`: grows a file system that is not mounted, and the emulated drive below it.
//!
//! Two atomic changes follow each other: the drive (`emulator/src/grow.rs`), then the file system (`fs/src/resize.rs`). Between them the
//! drive is larger than its file system, which does no harm, and repeating the command completes the change. Before the drive grows, the
//! command checks that the file system can grow.

use std::path::{Path, PathBuf};

use serde_json::json;
use tandemfs_emulator::DeviceSpec;
use tandemfs_format::SECTOR_BYTES;
use tandemfs_format::geometry::Geometry;
use tandemfs_fs::Growth;

use crate::arguments::ResizeArguments;
use crate::device::{self, Opening};
use crate::failure::Failure;
use crate::output;
use crate::size;

/// Grows a device.
pub fn run(arguments: &ResizeArguments) -> Result<u8, Failure> {
    let device = &arguments.device;
    let growth = Growth { memory_bytes: arguments.memory, block_bytes: arguments.block };
    if let (Some(image), true) = (image(device), growth != Growth::default()) {
        tandemfs_fs::could_grow(&device::open(device, Opening::default())?, &growth).map_err(Failure::because)?;
        grow_drive(&image, &growth)?;
    }
    let drive = device::open(device, Opening::default())?;
    let (before, after) = tandemfs_fs::grow(&drive, &growth).map_err(Failure::because)?;
    let value = json!({
        "device": device,
        "grown": before != after,
        "memory_bytes": after.memory_bytes(),
        "block_bytes": after.block_sectors() * SECTOR_BYTES as u64,
        "memory_bytes_before": before.memory_bytes(),
        "block_bytes_before": before.block_sectors() * SECTOR_BYTES as u64,
    });
    let sentence = if before == after {
        format!("{device}: nothing to do, memory {}, block {}\n", memory(&after), block(&after))
    } else {
        let (from, to) = ((memory(&before), block(&before)), (memory(&after), block(&after)));
        format!("{device}: grown, memory {} to {}, block {} to {}\n", from.0, to.0, from.1, to.1)
    };
    output::print_result(arguments.json, &value, &sentence)?;
    Ok(0)
}

/// The image of an emulated drive, where the device is one.
fn image(device: &str) -> Option<PathBuf> {
    match device.parse() {
        Ok(DeviceSpec::Image(path)) => Some(path),
        _ => None,
    }
}

/// A drive that is large enough already stays as it is.
fn grow_drive(image: &Path, growth: &Growth) -> Result<(), Failure> {
    let info = tandemfs_emulator::info(image).map_err(Failure::because)?;
    let larger = |wanted: Option<u64>, has: u64| wanted.filter(|wanted| *wanted > has);
    let (memory, block) = (larger(growth.memory_bytes, info.memory_bytes), larger(growth.block_bytes, info.block_bytes));
    tandemfs_emulator::grow(image, memory, block).map(drop).map_err(Failure::because)
}

fn memory(geometry: &Geometry) -> String {
    size::show(geometry.memory_bytes())
}

fn block(geometry: &Geometry) -> String {
    size::show(geometry.block_sectors() * SECTOR_BYTES as u64)
}
