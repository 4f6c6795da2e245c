//! Mounting as root by fsopen(2) and related calls. Every kernel with the oldest supported protocol version has them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, statx};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
    move_mount,
};

use super::{MountError, MountOptions, UNIQUE_ID, open_device, unique_id};

/// The file type bits of a mode.
const KIND: u32 = 0o170_000;
const MESSAGE_BYTES_MAX: usize = 512;

/// Returns the connection, and the mount id if the kernel reports it.
pub(super) fn mount(path: &Path, options: &MountOptions) -> Result<(OwnedFd, Option<u64>), MountError> {
    let metadata = std::fs::metadata(path).map_err(|source| MountError::Mountpoint { path: path.to_owned(), source })?;
    let device = open_device()?;
    let refused = |error: rustix::io::Errno, reason: String| {
        let source = io::Error::from(error);
        MountError::Mount { path: path.to_owned(), source, reason }
    };
    let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC).map_err(|error| refused(error, String::new()))?;
    configure(&context, &device, metadata.mode() & KIND, options).map_err(|error| refused(error, message(&context)))?;
    let mounted = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes(options));
    let mounted = mounted.map_err(|error| refused(error, message(&context)))?;
    let id = unique_id(statx(&mounted, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, UNIQUE_ID));
    move_mount(&mounted, c"", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).map_err(|error| refused(error, String::new()))?;
    Ok((device, id))
}

fn configure(context: &OwnedFd, device: &OwnedFd, kind: u32, options: &MountOptions) -> rustix::io::Result<()> {
    let context = context.as_fd();
    let set = |key: &str, value: String| fsconfig_set_string(context, key, value);
    set("source", options.source.clone())?;
    if let Some(subtype) = &options.subtype {
        set("subtype", subtype.clone())?;
    }
    set("fd", device.as_raw_fd().to_string())?;
    set("rootmode", format!("{kind:o}"))?;
    set("user_id", rustix::process::getuid().as_raw().to_string())?;
    set("group_id", rustix::process::getgid().as_raw().to_string())?;
    if let Some(bytes) = options.max_read {
        set("max_read", bytes.to_string())?;
    }
    let flags = [
        (options.allow_other, "allow_other"),
        (options.default_permissions, "default_permissions"),
        (options.read_only, "ro"),
        (options.sync, "sync"),
        (options.dirsync, "dirsync"),
    ];
    flags.into_iter().filter(|(wanted, _)| *wanted).try_for_each(|(_, flag)| fsconfig_set_flag(context, flag))?;
    fsconfig_create(context)
}

fn attributes(options: &MountOptions) -> MountAttrFlags {
    let all = [
        (options.read_only, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (!options.suid, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (!options.dev, MountAttrFlags::MOUNT_ATTR_NODEV),
        (!options.exec, MountAttrFlags::MOUNT_ATTR_NOEXEC),
        (!options.atime, MountAttrFlags::MOUNT_ATTR_NOATIME),
    ];
    all.into_iter().filter(|(wanted, _)| *wanted).fold(MountAttrFlags::empty(), |all, (_, flag)| all | flag)
}

/// The kernel's message about the last failure; the kernel prefixes it with a letter for its severity.
fn message(context: &OwnedFd) -> String {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    match rustix::io::read(context, &mut bytes) {
        Ok(length) => String::from_utf8_lossy(bytes.get(2..length).unwrap_or_default()).trim().to_owned(),
        Err(_) => String::new(),
    }
}
