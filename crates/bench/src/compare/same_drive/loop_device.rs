//! A loop device over a drive's file, and unmounting of what is mounted on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tandemfs_fuse::Unmount;

use crate::compare::command::{command, run};
use crate::failure::{Failure, Result};
use crate::machine::comes_about;

/// How long the kernel may take to release a device or mount.
pub const LET_GO_WITHIN: Duration = Duration::from_secs(10);

/// Attaches a loop device to a file, with direct I/O and 4 KiB sectors. A drive without a volatile cache gets no FLUSH ([SV4]).
///
/// [SV4]: super::server
pub fn attach(file: &Path, has_volatile_cache: bool) -> Result<PathBuf> {
    let options = ["--show", "--find", "--direct-io=on", "--sector-size", "4096"];
    let device = PathBuf::from(run(command("losetup")?.args(options).arg(file))?.trim());
    if let Err(failure) = tune(&device, has_volatile_cache) {
        drop(run(command("losetup")?.arg("--detach").arg(&device)));
        return Err(failure);
    }
    Ok(device)
}

/// Sets queue properties that the kernel cannot learn from a file.
fn tune(device: &Path, has_volatile_cache: bool) -> Result<()> {
    let directory = sysfs(device);
    let direct = fs::read_to_string(directory.join("loop/dio"))?;
    if direct.trim() != "1" {
        let name = device.display();
        return Err(Failure::new(format!("{name}: the kernel does no direct I/O on it, so it would be measured with a cache")));
    }
    let cache = if has_volatile_cache { "write back" } else { "write through" };
    for (name, value) in [("write_cache", cache), ("rotational", "0"), ("max_sectors_kb", "1024"), ("scheduler", "none")] {
        let path = directory.join("queue").join(name);
        fs::write(&path, value).map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    }
    Ok(())
}

/// Unmounts what is mounted on a loop device, then detaches it.
pub fn detach(device: &Path, mountpoint: &Path) -> Result<()> {
    for mountpoint in mounted_from(device) {
        // A lazy unmount: remaining users keep the mount, and their I/O fails.
        tandemfs_fuse::unmount(&mountpoint, Unmount::Lazy)?;
    }
    run(command("losetup")?.arg("--detach").arg(device))?;
    if !comes_about(LET_GO_WITHIN, || !is_attached(device, mountpoint)) {
        eprintln!("{}: still in use; the kernel frees it after its last user", device.display());
    }
    Ok(())
}

/// Whether a loop device is over the file of this mount; a freed device may be reused by others.
pub fn is_attached(device: &Path, mountpoint: &Path) -> bool {
    let file = fs::read_to_string(sysfs(device).join("loop/backing_file")).unwrap_or_default();
    Path::new(file.trim_end()).starts_with(mountpoint)
}

/// Cleans up after a drive's process that was killed.
pub fn clear(device: &Path, mountpoint: &Path) -> Result<()> {
    let detached = if is_attached(device, mountpoint) { detach(device, mountpoint) } else { Ok(()) };
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let is_mounted = mounts.lines().any(|line| line.split(' ').nth(1) == mountpoint.to_str());
    if is_mounted {
        tandemfs_fuse::unmount(mountpoint, Unmount::Lazy)?;
    }
    detached
}

fn sysfs(device: &Path) -> PathBuf {
    Path::new("/sys/block").join(device.file_name().unwrap_or_default())
}

/// Where a block device is mounted, the latest mount first.
fn mounted_from(device: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let places = text.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        (fields.next()? == device.to_str()?).then(|| fields.next())?.map(PathBuf::from)
    });
    places.collect::<Vec<_>>().into_iter().rev().collect()
}
