//! Opening devices, and the commands on emulated ones.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tandemfs_device::{Device, DeviceError, Drive, PersistenceDomain};
use tandemfs_emulator::{
    CacheManagement, CreateOptions, DeviceOptions, FirmwareModel, GarbageCollection, MediaModel, MediaOptions, ModelOptions, NO_BLOCKS,
    Replacement, Staging,
};
use tandemfs_fuse::mounts::{self, Mounted};

use crate::arguments::{self, DeviceCreateArguments, DeviceInfoArguments};
use crate::claim;
use crate::failure::Failure;
use crate::huge_pages::base_pages_only;
use crate::output;
use crate::probe;
use crate::signatures;
use crate::size;

/// How long a command waits for the end of a daemon that is unmounted.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
const TRY_EVERY: Duration = Duration::from_millis(20);

/// Options of opening a device.
#[derive(Debug, Clone, Copy, Default)]
pub struct Opening {
    /// Open read-only.
    pub read_only: bool,
    /// The emulator's timing model.
    pub timing: bool,
    /// A lower persistence domain.
    pub domain: Option<PersistenceDomain>,
    /// To format it: it need not be a TandemFS with its halves in place.
    pub formats: bool,
}

/// Opens and locks a device. If it is the block half of a pair, as fsck(8) names what fstab has by UUID, its memory half is searched.
pub fn open(device: &str, opening: Opening) -> Result<Drive, Failure> {
    let Opening { read_only, timing, .. } = opening;
    let device = &if opening.formats { device.to_owned() } else { probe::completed(device.to_owned())? };
    let options = DeviceOptions { timing, read_only, shared: read_only, ..DeviceOptions::default() };
    let drive = Drive::new(open_after_an_unmount(device, &options).map_err(Failure::because)?);
    if let Some(swapped) = signatures::swapped(device, &drive).filter(|_| !opening.formats) {
        return Err(Failure::Failed(swapped));
    }
    match opening.domain {
        None => Ok(drive),
        Some(domain) => drive.with_domain(domain).map_err(|own| {
            Failure::Failed(format!(
                "{device}: domain={domain} promises more than the device keeps; it has '{own}', name that or a lower one"
            ))
        }),
    }
}

/// Opens a device. umount(8) returns before the daemon has written everything home, so a device of a daemon without a mount is waited for.
fn open_after_an_unmount(device: &str, options: &DeviceOptions) -> Result<Arc<dyn Device>, DeviceError> {
    let start = Instant::now();
    let mut is_last_try = false;
    loop {
        match tandemfs_emulator::open_device(device, options) {
            Err(DeviceError::Busy { .. }) if !is_last_try && start.elapsed() < ENDS_WITHIN => match is_ending(device) {
                true => std::thread::sleep(TRY_EVERY),
                false => is_last_try = true, // it may have ended after the device was found busy
            },
            opened => return opened,
        }
    }
}

/// Whether a daemon has a device that is mounted nowhere.
fn is_ending(device: &str) -> bool {
    let id = claim::device_id(device);
    let is_mounted = |mount: &Mounted| mount.source.to_str().is_some_and(|source| claim::device_id(source) == id);
    claim::has_daemon(device) && mounts::mounted().is_ok_and(|mounts| !mounts.iter().any(is_mounted))
}

/// Whether a specification names a pair, not an image.
fn is_pair(device: &str) -> bool {
    device.starts_with("memory=") || device.starts_with("block=")
}

/// A device specification with absolute paths.
pub fn absolute(device: &str) -> String {
    let resolve = |path: &str| Path::new(path).canonicalize().ok().and_then(|path| path.to_str().map(str::to_owned));
    if !is_pair(device) {
        return resolve(device).unwrap_or_else(|| device.to_owned());
    }
    let half = |part: &str| match part.split_once('=') {
        Some((name @ "cache", size)) => format!("{name}={size}"),
        Some((name, path)) => format!("{name}={}", resolve(path).unwrap_or_else(|| path.to_owned())),
        None => part.to_owned(),
    };
    device.split(',').map(half).collect::<Vec<_>>().join(",")
}

/// `device create`.
pub fn create(arguments: &DeviceCreateArguments) -> Result<u8, Failure> {
    let (image, profile) = (&arguments.image, &arguments.profile);
    let has_sizes = tandemfs_emulator::profile(profile).is_none_or(|profile| profile.firmware.is_some());
    let size = |name: &str, size: Option<u64>| match size {
        Some(bytes) => Ok(bytes),
        None if has_sizes => Ok(0),
        None => Err(Failure::Usage(format!("--{name} is missing; say how large the drive is, such as --memory 1G --block 16G"))),
    };
    let is_alone = tandemfs_emulator::profile(profile).is_some_and(|profile| profile.default_block_bytes == 0);
    let memory_bytes = size("memory", arguments.memory)?;
    let block_bytes = match arguments.block {
        Some(0) => NO_BLOCKS,
        None if is_alone => NO_BLOCKS,
        other => size("block", other)?,
    };
    let options = CreateOptions { profile: profile.clone(), memory_bytes, block_bytes };
    let info = tandemfs_emulator::create_with(image, &options, &chosen(arguments)).map_err(Failure::because)?;
    let small = base_pages_only(image, |file| std::fs::read_to_string(file).ok());
    let value = json!({
        "device": image.to_string_lossy(),
        "profile": info.profile,
        "memory_bytes": info.memory_bytes,
        "block_bytes": info.block_bytes,
        "base_pages_only": small.is_some(),
    });
    let (memory, block) = (size::show(info.memory_bytes), size::show_or_none(info.block_bytes));
    let image = image.display();
    let mut sentence = format!("{image}: emulated drive, profile {}, memory {memory}, block {block}\n", info.profile);
    if let Some(small) = small {
        sentence += &format!("{image} {}: its mapped files will have base pages only, no huge ones; {}\n", small.why, small.advice);
    }
    output::print_result(arguments.json, &value, &sentence)?;
    Ok(0)
}

fn chosen(arguments: &DeviceCreateArguments) -> ModelOptions {
    ModelOptions {
        write_log_bytes: arguments.write_log,
        transaction_log_bytes: None,
        cache_bytes: arguments.cache,
        cache_management: arguments.cache_management.map(|management| match management {
            arguments::CacheManagement::Host => CacheManagement::Host,
            arguments::CacheManagement::Clock => CacheManagement::Drive(Replacement::Clock),
            arguments::CacheManagement::Lru => CacheManagement::Drive(Replacement::Lru),
        }),
        flash_read_ns: arguments.flash_latency.map(|(read_ns, _)| read_ns),
        flash_program_ns: arguments.flash_latency.map(|(_, program_ns)| program_ns),
        channel_count: arguments.channels,
        over_provisioning_percent: arguments.over_provisioning,
        garbage_collection: arguments.garbage_collection.map(|policy| match policy {
            arguments::GarbageCollection::Greedy => GarbageCollection::Greedy,
            arguments::GarbageCollection::CostBenefit => GarbageCollection::CostBenefit,
        }),
        media: arguments.media_model.then_some(MediaOptions {
            cache_bytes: arguments.cpu_cache,
            dimm_count: arguments.dimms,
            persistent_caches: arguments.persistent_caches,
        }),
        no_timing: arguments.no_timing,
        ..ModelOptions::default()
    }
}

/// `device info`.
pub fn info(arguments: &DeviceInfoArguments) -> Result<u8, Failure> {
    let info = if is_pair(&arguments.device) { of_pair(&arguments.device)? } else { of_image(&arguments.device)? };
    if arguments.json {
        output::print_json(&info)?;
    } else {
        output::print_rows(&output::rows(&info))?;
    }
    Ok(0)
}

/// Read without a lock: also of a drive that is mounted.
fn of_image(image: &str) -> Result<Value, Failure> {
    let info = tandemfs_emulator::info(Path::new(image)).map_err(Failure::because)?;
    Ok(json!({
        "device": image,
        "kind": "emulated",
        "profile": info.profile,
        "profile_description": tandemfs_emulator::profile(&info.profile).map(|profile| profile.description),
        "profile_domain": info.domain.name(),
        "has_timing": info.has_timing(),
        "memory_bytes": info.memory_bytes,
        "block_bytes": info.block_bytes,
        "firmware": info.firmware.as_ref().map(of_firmware),
        "media": info.media.as_ref().map(of_media),
        "allocated_bytes": std::fs::metadata(image).map(|file| std::os::unix::fs::MetadataExt::blocks(&file) * 512).ok(),
    }))
}

/// The model of CPU caches and persistent memory.
fn of_media(model: &MediaModel) -> Value {
    json!({
        "cpu_cache_bytes": model.cache_bytes,
        "cpu_cache_ways": model.cache_ways,
        "reservable_ways": model.reservable_ways,
        "dimms": model.dimm_count,
        "dimm_buffer_bytes": model.buffer_bytes,
        "dimm_read_bytes_per_second": model.read_bytes_per_second,
        "dimm_write_bytes_per_second": model.write_bytes_per_second,
        "hit_ns": model.hit_ns,
        "flush_ns": model.flush_ns,
    })
}

/// The parts of a drive with firmware.
fn of_firmware(model: &FirmwareModel) -> Value {
    json!({
        "write_log": match model.staging {
            Staging::WriteLog { log_bytes, transaction_log_bytes, clean_at_percent } => json!({
                "log_bytes": log_bytes,
                "transaction_log_bytes": transaction_log_bytes,
                "clean_at_percent": clean_at_percent,
            }),
            Staging::Cache { .. } | Staging::HostCache { .. } => Value::Null,
        },
        "cache": match model.staging {
            Staging::WriteLog { .. } => Value::Null,
            Staging::Cache { cache_bytes, replacement } => json!({
                "cache_bytes": cache_bytes,
                "management": match replacement {
                    Replacement::Clock => "clock",
                    Replacement::Lru => "lru",
                },
            }),
            Staging::HostCache { cache_bytes, queue_depth, bytes_per_second } => json!({
                "cache_bytes": cache_bytes,
                "management": "host",
                "moves_at_once": queue_depth,
                "move_bytes_per_second": bytes_per_second,
            }),
        },
        "flash": {
            "channels": model.channel_count,
            "dies_per_channel": model.dies_per_channel,
            "planes_per_die": model.planes_per_die,
            "blocks_per_plane": model.blocks_per_plane,
            "pages_per_block": model.pages_per_block,
            "over_provisioning_percent": model.over_provisioning_percent,
            "garbage_collection": match model.garbage_collection {
                GarbageCollection::Greedy => "greedy",
                GarbageCollection::CostBenefit => "cost-benefit",
            },
            "write_buffer_pages": model.write_buffer_pages,
            "endurance_erasures": model.endurance_erasures,
        },
        "times": model.timing.map(|timing| json!({
            "line_read_ns": timing.line_read_ns,
            "line_write_ns": timing.line_write_ns,
            "verify_read_ns": timing.verify_read_ns,
            "command_ns": timing.command_ns,
            "link_read_bytes_per_second": timing.read_bytes_per_second,
            "link_write_bytes_per_second": timing.write_bytes_per_second,
            "flash_read_ns": timing.flash_read_ns,
            "flash_program_ns": timing.flash_program_ns,
            "flash_erase_ns": timing.flash_erase_ns,
        })),
    })
}

fn of_pair(device: &str) -> Result<Value, Failure> {
    let drive = open(device, Opening { read_only: true, ..Opening::default() })?;
    let description = drive.description();
    Ok(json!({
        "device": description.name,
        "kind": "attached",
        "persistence_domain": description.domain.name(),
        "volatile_write_cache": description.volatile_write_cache,
        "discard": description.discard,
        "memory_bytes": description.memory_bytes,
        "block_bytes": description.block_bytes,
        "cache_bytes": description.cache_bytes,
    }))
}

/// `device profiles`.
pub fn profiles(as_json: bool) -> Result<u8, Failure> {
    let profiles = tandemfs_emulator::profiles();
    if as_json {
        let all = profiles.iter().map(|profile| {
            json!({
                "name": profile.name,
                "description": profile.description,
                "domain": profile.domain.name(),
                "has_timing": profile.has_timing(),
                "has_firmware": profile.firmware.is_some(),
            })
        });
        output::print_json(&all.collect())?;
    } else {
        let all: Vec<_> = profiles.iter().map(|profile| (profile.name.to_owned(), profile.description.to_owned())).collect();
        output::print_rows(&all)?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices_hold_in_another_directory() {
        let here = std::env::current_dir().expect("a directory");
        let here = here.to_str().expect("UTF-8");
        assert_eq!(absolute("."), here);
        assert_eq!(absolute("memory=.,block=/dev/null"), format!("memory={here},block=/dev/null"));
        assert_eq!(absolute("memory=.,block=/dev/null,cache=4G"), format!("memory={here},block=/dev/null,cache=4G"));
        assert_eq!(absolute("absent=file"), "absent=file");
    }
}
