//! `tandemfs resize`: grows a file system, and the emulated drive below it: one that is not mounted, or one in use through its daemon. One that is
//! not mounted also shrinks: first the file system (`fs/src/shrinking.rs`), then its emulated drive.
//!
//! Two atomic changes follow each other: the drive (`emulator/src/grow.rs`), then the file system (`fs/src/resize.rs`, in use
//! `fs/src/growing.rs`). Between them the drive is larger than its file system, which does no harm, and repeating the command completes the
//! change. Before the drive grows, the command checks that the file system can grow.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tandemfs_emulator::DeviceSpec;
use tandemfs_format::SECTOR_BYTES;
use tandemfs_format::geometry::Geometry;
use tandemfs_fs::Growth;
use tandemfs_fuse::control;
use tandemfs_fuse::mounts::{self, Mounted};

use crate::arguments::ResizeArguments;
use crate::device::{self, Opening};
use crate::failure::{self, Failure, no_answer};
use crate::output;
use crate::size;

/// Grows a device, or a mount.
pub fn run(arguments: &ResizeArguments) -> Result<u8, Failure> {
    let place = &arguments.place;
    let growth = Growth { memory_bytes: arguments.memory, block_bytes: arguments.block };
    let value = match mounts::find(Path::new(place)).ok().flatten() {
        Some(mount) => grow_mount(&mount, &growth)?,
        None if Path::new(place).is_dir() => {
            return Err(Failure::Failed(format!("{place}: no TandemFS is mounted there, and a directory is no device")));
        }
        None => resize_device(place, &growth)?,
    };
    let sizes = |name: &str| value[name].as_u64().map_or_else(String::new, size::show);
    let (memory, block) = (sizes("memory_bytes"), sizes("block_bytes"));
    let is_shrunk = value["shrunk"] == json!(true);
    let sentence = if is_shrunk || value["grown"] == json!(true) {
        let (memory_before, block_before) = (sizes("memory_bytes_before"), sizes("block_bytes_before"));
        let done = if is_shrunk { "shrunk" } else { "grown" };
        format!("{place}: {done}, memory {memory_before} to {memory}, block {block_before} to {block}\n")
    } else {
        format!("{place}: nothing to do, memory {memory}, block {block}\n")
    };
    output::print_result(arguments.json, &value, &sentence)?;
    Ok(0)
}

/// Asks the daemon of a mount.
fn grow_mount(mount: &Mounted, growth: &Growth) -> Result<Value, Failure> {
    let answer = control::resize(mount, growth.memory_bytes, growth.block_bytes).map_err(|error| no_answer(mount, &error))?;
    if answer["memory_left"] == json!(true) {
        let device = answer["device"].as_str().unwrap_or("the device");
        failure::warn(&format!(
            "{}: the memory zone cannot grow in use as it is mounted; unmount it and run 'tandemfs resize {device}'",
            mount.mountpoint.display()
        ));
    }
    Ok(answer)
}

fn resize_device(device: &str, growth: &Growth) -> Result<Value, Failure> {
    let superblock = tandemfs_fs::read_superblock(&device::open(device, Opening { read_only: true, ..Opening::default() })?);
    let now = superblock.map_err(Failure::because)?.geometry;
    let is_less = |wanted: Option<u64>, now: u64| wanted.is_some_and(|wanted| wanted < now);
    match is_less(growth.memory_bytes, now.memory_bytes()) || is_less(growth.block_bytes, now.block_sectors() * SECTOR_BYTES as u64) {
        true => shrink_device(device, growth),
        false => grow_device(device, growth),
    }
}

/// What is behind the new ends of the file system is nothing, so its drive may lose it. If that is interrupted, the drive stays larger.
fn shrink_device(device: &str, sizes: &Growth) -> Result<Value, Failure> {
    let drive = device::open(device, Opening::default())?;
    let (before, after) = tandemfs_fs::shrink(&drive, sizes).map_err(Failure::because)?;
    drop(drive);
    if let Some(image) = image(device) {
        let blocks = after.has_block_zone().then_some(after.block_sectors() * SECTOR_BYTES as u64);
        tandemfs_emulator::shrink(&image, Some(after.memory_bytes()), blocks).map_err(Failure::because)?;
    }
    Ok(values(device, &before, &after))
}

fn grow_device(device: &str, growth: &Growth) -> Result<Value, Failure> {
    if let (Some(image), true) = (image(device), *growth != Growth::default()) {
        tandemfs_fs::could_grow(&device::open(device, Opening::default())?, growth).map_err(Failure::because)?;
        grow_drive(&image, growth)?;
    }
    let drive = device::open(device, Opening::default())?;
    let (before, after) = tandemfs_fs::grow(&drive, growth).map_err(Failure::because)?;
    Ok(values(device, &before, &after))
}

fn values(device: &str, before: &Geometry, after: &Geometry) -> Value {
    let is_shrunk = after.memory_bytes() < before.memory_bytes() || after.block_sectors() < before.block_sectors();
    json!({
        "device": device,
        "grown": before != after && !is_shrunk,
        "shrunk": is_shrunk,
        "memory_bytes": after.memory_bytes(),
        "block_bytes": after.block_sectors() * SECTOR_BYTES as u64,
        "memory_bytes_before": before.memory_bytes(),
        "block_bytes_before": before.block_sectors() * SECTOR_BYTES as u64,
    })
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
