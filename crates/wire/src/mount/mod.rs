//! Mounting and unmounting: as root by system calls, as an ordinary user by fusermount3.

mod helper;
mod root;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::mount::UnmountFlags;

pub(crate) const DEVICE: &str = "/dev/fuse";

/// Mount options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// The source shown by `findmnt`.
    pub source: String,
    /// The part of the file system type after `fuse.`.
    pub subtype: Option<String>,
    /// Every user may access the mount. Ordinary users may set this if `/etc/fuse.conf` allows it.
    pub allow_other: bool,
    /// The kernel checks permissions.
    pub default_permissions: bool,
    /// The mount is read-only.
    pub read_only: bool,
    /// Device files work.
    pub dev: bool,
    /// Set-user-id and set-group-id work.
    pub suid: bool,
    /// Programs can be run.
    pub exec: bool,
    /// Access times are updated.
    pub atime: bool,
    /// Every change is synchronous.
    pub sync: bool,
    /// Every directory change is synchronous.
    pub dirsync: bool,
    /// Longest READ in bytes; `None` = the negotiated size.
    pub max_read: Option<u32>,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            source: "fuse".into(),
            subtype: None,
            allow_other: false,
            default_permissions: false,
            read_only: false,
            dev: false,
            suid: false,
            exec: true,
            atime: true,
            sync: false,
            dirsync: false,
            max_read: None,
        }
    }
}

/// Why mounting or unmounting failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mountpoint does not exist or is not accessible.
    #[error("{}: {source}", path.display())]
    Mountpoint {
        /// The mountpoint.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// This kernel or container has no FUSE.
    #[error("there is no {DEVICE}: FUSE is not loaded (modprobe fuse), or the container lacks the device")]
    NoDevice,
    /// `/dev/fuse` cannot be opened.
    #[error("{DEVICE}: {source}")]
    DeviceDenied {
        /// The kernel's error.
        source: io::Error,
    },
    /// An ordinary user cannot mount without fusermount3.
    #[error("{}: not found; it mounts for ordinary users (package fuse3)", helper::PROGRAM)]
    NoHelper,
    /// fusermount3 refused.
    #[error("{message}")]
    Helper {
        /// Its message, or its exit status.
        message: String,
    },
    /// The kernel refused the mount.
    #[error("{}: cannot mount: {source}{}", path.display(), if reason.is_empty() { String::new() } else { format!(" ({reason})") })]
    Mount {
        /// The mountpoint.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
        /// The kernel's message, if it gave one.
        reason: String,
    },
    /// The mount is in use: open files, or a process's current directory.
    #[error("{}: in use", path.display())]
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
    /// The kernel refused to unmount.
    #[error("{}: cannot unmount: {source}", path.display())]
    Unmount {
        /// The mountpoint.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

/// How to unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmount {
    /// Only if it is not in use.
    Normal,
    /// Detach at once; the mount ends when its last user is gone.
    Lazy,
    /// Abort at once: calls in progress fail. For root only; for others it is `Lazy`.
    Force,
}

/// Where a mount was made, and which one it is.
#[derive(Debug, Clone)]
pub struct MountPlace {
    path: PathBuf,
    /// The unique id of the mount; `None` if the kernel does not report one (before 6.8).
    id: Option<u64>,
}

impl MountPlace {
    /// The mountpoint.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the mount is there, and no other one over it. Where the kernel tells no ids, always.
    pub fn is_in_place(&self) -> bool {
        self.id.is_none_or(|id| mount_id(&self.path) == Some(id))
    }
}

/// Unmounts its mount when it is dropped. If that mount is gone already, another mount at the same path is not touched.
#[derive(Debug)]
pub struct MountGuard {
    place: MountPlace,
    armed: bool,
}

impl MountGuard {
    /// The mountpoint.
    pub fn path(&self) -> &Path {
        &self.place.path
    }

    /// Where the mount is.
    pub fn place(&self) -> MountPlace {
        self.place.clone()
    }

    /// Unmounts. After an error the mount stays; it is unmounted lazily when the guard is dropped.
    pub fn unmount(&mut self, how: Unmount) -> Result<(), MountError> {
        if !self.place.is_in_place() {
            self.armed = false;
            return Err(MountError::NotMounted { path: self.place.path.clone() });
        }
        unmount(&self.place.path, how)?;
        self.armed = false;
        Ok(())
    }

    /// Drops the guard without unmounting.
    pub fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for MountGuard {
    fn drop(&mut self) {
        if self.armed
            && self.place.is_in_place()
            && let Err(error) = unmount(&self.place.path, Unmount::Lazy)
        {
            tracing::warn!("{error}");
        }
    }
}

/// Mounts on a directory or file; returns the connection for [`crate::Session::start`]. Calls into the mount wait until a session serves
/// it.
pub fn mount(path: impl AsRef<Path>, options: &MountOptions) -> Result<(OwnedFd, MountGuard), MountError> {
    let path = path.as_ref();
    let of_path = |source: io::Error| MountError::Mountpoint { path: path.to_owned(), source };
    let absolute = path.canonicalize().map_err(of_path)?;
    if rustix::process::geteuid().is_root() {
        let (device, id) = root::mount(&absolute, options)?;
        return Ok((device, MountGuard { place: MountPlace { path: absolute, id }, armed: true }));
    }
    let device = helper::mount(&absolute, options)?;
    let id = mount_id(&absolute);
    Ok((device, MountGuard { place: MountPlace { path: absolute, id }, armed: true }))
}

/// Unmounts a path: by umount(2), or for an ordinary user by fusermount3.
pub fn unmount(path: impl AsRef<Path>, how: Unmount) -> Result<(), MountError> {
    let path = path.as_ref();
    let flags = match how {
        Unmount::Normal => UnmountFlags::empty(),
        Unmount::Lazy => UnmountFlags::DETACH,
        Unmount::Force => UnmountFlags::FORCE,
    };
    match rustix::mount::unmount(path, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::PERM) => helper::unmount(path, how),
        Err(rustix::io::Errno::BUSY) => Err(MountError::InUse { path: path.to_owned() }),
        Err(rustix::io::Errno::INVAL) => Err(MountError::NotMounted { path: path.to_owned() }),
        Err(error) => Err(MountError::Unmount { path: path.to_owned(), source: error.into() }),
    }
}

fn open_device() -> Result<OwnedFd, MountError> {
    match std::fs::File::options().read(true).write(true).open(DEVICE) {
        Ok(file) => Ok(file.into()),
        // ENODEV, ENXIO: the device node exists, but the kernel module is not loaded.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ENXIO)) => Err(MountError::NoDevice),
        Err(source) => Err(MountError::DeviceDenied { source }),
    }
}

/// `STATX_MNT_ID_UNIQUE`
const UNIQUE_ID: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// The unique id of the mount at a path. The file system gets no request: it may not be served yet.
fn mount_id(path: &Path) -> Option<u64> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    unique_id(statx(CWD, path, flags, UNIQUE_ID))
}

fn unique_id(result: rustix::io::Result<rustix::fs::Statx>) -> Option<u64> {
    result.ok().filter(|found| found.stx_mask & UNIQUE_ID.bits() != 0).map(|found| found.stx_mnt_id)
}
