//! How a TandemFS is mounted, and what users are told where it cannot be. The mounting itself is `tandemfs-wire`'s.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::mount::MountFlags;
pub use tandemfs_wire::Unmount;
use tandemfs_wire::{self as wire, MountGuard, MountOptions};

use crate::mounts::SUBTYPE;
use crate::settings::MountSettings;

/// Why nothing was mounted or unmounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mountpoint is absent, or cannot be looked at.
    #[error("{}: {source}; name an existing directory to mount on", path.display())]
    Mountpoint {
        /// The mountpoint.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The mountpoint is a file.
    #[error("{}: not a directory; name an existing directory to mount on", path.display())]
    NotDirectory {
        /// The mountpoint.
        path: PathBuf,
    },
    /// Something is mounted there already.
    #[error("{}: a TandemFS is mounted there already; unmount it or name another directory", path.display())]
    Occupied {
        /// The mountpoint.
        path: PathBuf,
    },
    /// No FUSE in this kernel, or in this container.
    #[error("there is no /dev/fuse: load the kernel module (modprobe fuse), or give the container the device")]
    NoFuse,
    /// /dev/fuse cannot be opened.
    #[error("/dev/fuse: {source}; it must be open to this user (mode 0666 is usual), or mount as root")]
    FuseDenied {
        /// What the kernel said.
        source: io::Error,
    },
    /// An ordinary user without the helper.
    #[error("only root may mount without fusermount3; install the package fuse3, or mount as root")]
    NoHelper,
    /// The helper refused.
    #[error("{message}")]
    Helper {
        /// What it said.
        message: String,
    },
    /// The kernel refused the mount.
    #[error("{}: mount failed: {source}{}", path.display(), if reason.is_empty() { String::new() } else { format!(" ({reason})") })]
    Mount {
        /// The mountpoint.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
        /// And said in words, if it did.
        reason: String,
    },
    /// Files are open, or somebody's current directory is in it.
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
        /// What the kernel said.
        source: io::Error,
    },
    /// Serving failed after the mount.
    #[error("{}: serving the mount failed: {source}", path.display())]
    Serve {
        /// The mountpoint.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
}

/// Mounts; returns the channel to the kernel. `mountpoint` comes from `check_mountpoint`.
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
        // Reads of cached pages never reach the daemon (RULES R22), so access times are the engine's affair alone.
        atime: false,
        sync: settings.sync,
        dirsync: settings.dirsync,
        max_read: None,
    }
}

/// Unmounts a path, as root by umount(2), else by fusermount3.
pub fn unmount(mountpoint: &Path, how: Unmount) -> Result<(), MountError> {
    Ok(wire::unmount(mountpoint, how)?)
}

/// Changes the flags of a mount in place: `ro`, `nodev`, `nosuid`, `noexec`, `sync`, `dirsync`. Its daemon is not asked. Only root may.
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

/// What fusermount3 said, and what to do where that is known.
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
