//! Opening devices, and the commands on emulated ones.

use std::path::Path;

use serde_json::{Value, json};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_emulator::{CreateOptions, DeviceOptions};

use crate::arguments::{DeviceCreateArguments, DeviceInfoArguments};
use crate::failure::Failure;
use crate::output;
use crate::size;

/// How a device is opened.
#[derive(Debug, Clone, Copy, Default)]
pub struct Opening {
    /// Nothing will be written.
    pub read_only: bool,
    /// The emulator's timing model.
    pub timing: bool,
    /// A lower persistence domain.
    pub domain: Option<PersistenceDomain>,
}

/// Takes a device into use; nobody else can meanwhile.
pub fn open(device: &str, opening: Opening) -> Result<Drive, Failure> {
    let options = DeviceOptions { timing: opening.timing, read_only: opening.read_only, shared: opening.read_only, domain: None };
    let drive = Drive::new(tandemfs_emulator::open_device(device, &options).map_err(Failure::because)?);
    match opening.domain {
        None => Ok(drive),
        Some(domain) => drive.with_domain(domain).map_err(|own| {
            Failure::Failed(format!(
                "{device}: domain={domain} promises more than the device keeps; it has '{own}', name that or a lower one"
            ))
        }),
    }
}

/// Whether a name is of a pair, and not the path of an image.
fn is_pair(device: &str) -> bool {
    device.starts_with("memory=") || device.starts_with("block=")
}

/// A device as an absolute name that holds in another directory.
pub fn absolute(device: &str) -> String {
    let resolve = |path: &str| Path::new(path).canonicalize().ok().and_then(|path| path.to_str().map(str::to_owned));
    if !is_pair(device) {
        return resolve(device).unwrap_or_else(|| device.to_owned());
    }
    let half = |part: &str| match part.split_once('=') {
        Some((name, path)) => format!("{name}={}", resolve(path).unwrap_or_else(|| path.to_owned())),
        None => part.to_owned(),
    };
    device.split(',').map(half).collect::<Vec<_>>().join(",")
}

/// `device create`.
pub fn create(arguments: &DeviceCreateArguments) -> Result<u8, Failure> {
    let (image, profile) = (&arguments.image, &arguments.profile);
    let options = CreateOptions { profile: profile.clone(), memory_bytes: arguments.memory, block_bytes: arguments.block };
    let info = tandemfs_emulator::create(image, &options).map_err(Failure::because)?;
    output::print(&format!(
        "{}: emulated drive, profile {}, memory {}, block {}\n",
        image.display(),
        info.profile,
        size::show(info.memory_bytes),
        size::show(info.block_bytes)
    ))?;
    Ok(0)
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
        "has_timing": info.timing.is_some(),
        "memory_bytes": info.memory_bytes,
        "block_bytes": info.block_bytes,
        "allocated_bytes": std::fs::metadata(image).map(|file| std::os::unix::fs::MetadataExt::blocks(&file) * 512).ok(),
    }))
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
                "has_timing": profile.timing.is_some(),
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
        assert_eq!(absolute("absent=file"), "absent=file");
    }
}
