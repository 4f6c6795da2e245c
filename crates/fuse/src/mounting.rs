//! Mounting and unmounting a TandemFS, and the messages for users when that fails. `tandemfs-wire` makes the system calls.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::mount::MountFlags;
pub use tandemfs_wire::Unmount;
use tandemfs_wire::{self as wire, MountGuard, MountOptions};

use crate::mounts::SUBTYPE;
use crate::settings::MountSettings;

/// Why mounting, unmounting or serving failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mountpoint does not exist or is not accessible.
    #[error("{}: {source}; name an existing directory to mount on", path.display())]
    Mountpoint {
        /// The mountpoint.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The mountpoint is not a directory.
    #[error("{}: not a directory; name an existing directory to mount on", path.display())]
    NotDirectory {
        /// The mountpoint.
        path: PathBuf,
    },
    /// A TandemFS is mounted there already.
    #[error("{}: a TandemFS is mounted there already; unmount it or name another directory", path.display())]
    Occupied {
        /// The mountpoint.
        path: PathBuf,
    },
    /// This kernel or container has no FUSE.
    #[error("there is no /dev/fuse: load the kernel module (modprobe fuse), or give the container the device")]
    NoFuse,
    /// /dev/fuse cannot be opened.
    #[error("/dev/fuse: {source}; it must be open to this user (mode 0666 is usual), or mount as root")]
    FuseDenied {
        /// The kernel's error.
        source: io::Error,
    },
    /// An ordinary user cannot mount without fusermount3.
    #[error("only root may mount without fusermount3; install the package fuse3, or mount as root")]
    NoHelper,
    /// fusermount3 refused.
    #[error("{message}")]
    Helper {
        /// Its message.
        message: String,
    },
    /// The kernel refused the mount.
    #[error("{}: mount failed: {source}{}", path.display(), if reason.is_empty() { String::new() } else { format!(" ({reason})") })]
    Mount {
        /// The mountpoint.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
        /// The kernel's message, if it gave one.
        reason: String,
    },
    /// Only root may change the flags of a mount.
    #[error("{}: only root is permitted to remount", path.display())]
    RemountDenied {
        /// The mountpoint.
        path: PathBuf,
    },
    /// The mount is in use: open files, or a process's current directory.
    #[error("{}: in use; close what is open on it ('fuser -vm' shows it), or use --lazy", path.display())]
    InUse {
        /// The mountpoint.
        path: PathBuf,
    },
    /// Nothing is mounted there.
    #[error("{}: not mounted", path.display())]
    NotMounted {
        /// The mountpoint.
        path: PathBuf,
    },
    /// umount(2) failed.
    #[error("{}: unmount failed: {source}", path.display())]
    Unmount {
        /// The mountpoint.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Serving failed after the mount.
    #[error("{}: serving the mount failed: {source}", path.display())]
    Serve {
        /// The mountpoint.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Mounts; returns the connection to the kernel. `mountpoint` comes from `check_mountpoint`.
pub(crate) fn mount(mountpoint: &Path, settings: &MountSettings) -> Result<(OwnedFd, MountGuard), MountError> {
    Ok(wire::mount(mountpoint, &options(settings))?)
}

fn options(settings: &MountSettings) -> MountOptions {
    MountOptions {
        source: settings.source.clone(),
        subtype: Some(SUBTYPE.into()),
        allow_other: settings.allow_other || settings.allow_root,
        default_permissions: true, // [DO5] of `door.rs`
        read_only: settings.read_only,
        dev: settings.dev,
        suid: settings.suid,
        exec: settings.exec,
        // Reads of cached pages never reach the daemon (RULES R22), so the kernel does not keep access times.
        atime: false,
        sync: settings.sync,
        dirsync: settings.dirsync,
        max_read: None,
    }
}

/// Unmounts a path: root by umount(2), other users by fusermount3.
pub fn unmount(mountpoint: &Path, how: Unmount) -> Result<(), MountError> {
    Ok(wire::unmount(mountpoint, how)?)
}

/// Changes the flags of a mount in place: `ro`, `nodev`, `nosuid`, `noexec`, `sync`. The daemon is not involved. Only root may do this. The
/// kernel leaves `dirsync` as it is.
pub fn remount(mountpoint: &Path, settings: &MountSettings) -> Result<(), MountError> {
    let flags = [
        (!settings.dev, MountFlags::NODEV),
        (!settings.suid, MountFlags::NOSUID),
        (!settings.exec, MountFlags::NOEXEC),
        (settings.read_only, MountFlags::RDONLY),
        (settings.sync, MountFlags::SYNCHRONOUS),
        (settings.dirsync, MountFlags::DIRSYNC),
        (true, MountFlags::NOATIME),
    ];
    let flags = flags.into_iter().filter(|(wanted, _)| *wanted).fold(MountFlags::empty(), |all, (_, flag)| all | flag);
    rustix::mount::mount_remount(mountpoint, flags, c"").map_err(|error| match error {
        rustix::io::Errno::BUSY => MountError::InUse { path: mountpoint.to_owned() },
        rustix::io::Errno::PERM => MountError::RemountDenied { path: mountpoint.to_owned() },
        error => MountError::Mount { path: mountpoint.to_owned(), source: error.into(), reason: String::new() },
    })
}

impl From<wire::MountError> for MountError {
    fn from(error: wire::MountError) -> Self {
        match error {
            wire::MountError::Mountpoint { path, source } => Self::Mountpoint { path, source },
            wire::MountError::NoDevice => Self::NoFuse,
            wire::MountError::DeviceDenied { source } => Self::FuseDenied { source },
            wire::MountError::NoHelper => Self::NoHelper,
            wire::MountError::Helper { message } => Self::Helper { message: advised(message) },
            wire::MountError::Mount { path, source, reason } => Self::Mount { path, source, reason },
            wire::MountError::InUse { path } => Self::InUse { path },
            wire::MountError::NotMounted { path } => Self::NotMounted { path },
            wire::MountError::Unmount { path, source } => Self::Unmount { path, source },
        }
    }
}

/// fusermount3's message, with advice where the remedy is known.
fn advised(message: String) -> String {
    if message.contains("user_allow_other") {
        "allow_other and allow_root need the line 'user_allow_other' in /etc/fuse.conf, which root can add".to_owned()
    } else if message.contains("Operation not permitted") {
        format!("{message}; fusermount3 must be set-user-id root (reinstall the package fuse3), or mount as root")
    } else {
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_lets_root_in_lets_others_in_as_far_as_the_kernel_knows() {
        let of = |allow_other, allow_root| options(&MountSettings { allow_other, allow_root, ..MountSettings::default() }).allow_other;
        assert!(!of(false, false) && of(true, false) && of(false, true));
        let options = options(&MountSettings { source: "memory=/a,block=/b".into(), ..MountSettings::default() });
        assert!(options.default_permissions && !options.atime && !options.dev && !options.suid && options.exec);
        assert_eq!((options.source.as_str(), options.subtype.as_deref()), ("memory=/a,block=/b", Some("tandemfs")));
    }

    #[test]
    fn what_the_helper_says_becomes_one_sentence() {
        let said = |message: &str| MountError::from(wire::MountError::Helper { message: message.into() }).to_string();
        assert!(
            said("fusermount3: option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf").contains("root can add")
        );
        assert!(said("fusermount3: mount failed: Operation not permitted").ends_with("or mount as root"));
        assert_eq!(said("fusermount3: failed to chdir to /x: gone"), "fusermount3: failed to chdir to /x: gone");
    }
}
