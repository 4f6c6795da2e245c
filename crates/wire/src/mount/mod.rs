//! Mounting and unmounting: as root by the kernel's own calls, as an ordinary user by fusermount3.

mod helper;
mod root;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::mount::UnmountFlags;

pub(crate) const DEVICE: &str = "/dev/fuse";

/// How a file system is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// What `findmnt` and `df` show as the source.
    pub source: String,
    /// What comes after `fuse.` in the type of the file system.
    pub subtype: Option<String>,
    /// Every user may use the mount. An ordinary user may allow it where `/etc/fuse.conf` says so.
    pub allow_other: bool,
    /// The kernel checks permissions.
    pub default_permissions: bool,
    /// Nothing is written.
    pub read_only: bool,
    /// Device files work.
    pub dev: bool,
    /// Set-user-id and set-group-id work.
    pub suid: bool,
    /// Programs can be run.
    pub exec: bool,
    /// Times of reads are kept.
    pub atime: bool,
    /// Each change is written at once.
    pub sync: bool,
    /// Each change of a directory is written at once.
    pub dirsync: bool,
    /// Longest READ in bytes; `None` = what is agreed on.
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

/// Why nothing was mounted or unmounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mountpoint is absent, or cannot be looked at.
    #[error("{}: {source}", path.display())]
    Mountpoint {
        /// The mountpoint.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// No FUSE in this kernel, or in this container.
    #[error("there is no {DEVICE}: FUSE is not loaded (modprobe fuse), or the container lacks the device")]
    NoDevice,
    /// `/dev/fuse` cannot be opened.
    #[error("{DEVICE}: {source}")]
    DeviceDenied {
        /// What the kernel said.
        source: io::Error,
    },
    /// An ordinary user without fusermount3.
    #[error("{}: not found; it mounts for ordinary users (package fuse3)", helper::PROGRAM)]
    NoHelper,
    /// fusermount3 refused.
    #[error("{message}")]
    Helper {
        /// What it said, or how it ended.
        message: String,
    },
    /// The kernel refused the mount.
    #[error("{}: cannot mount: {source}{}", path.display(), if reason.is_empty() { String::new() } else { format!(" ({reason})") })]
    Mount {
        /// The mountpoint.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
        /// And said in words, if it did.
        reason: String,
    },
    /// Files are open, or somebody's current directory is there.
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
        /// What the kernel said.
        source: io::Error,
    },
}

/// How to unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmount {
    /// Only when nobody uses it.
    Normal,
    /// Out of the tree at once; it ends when the last user goes.
    Lazy,
    /// Cut off at once: calls in progress fail. Root's privilege; for others it is `Lazy`.
    Force,
}

/// Unmounts what it guards when it is dropped, unless somebody else did: whatever is mounted there then is not touched.
#[derive(Debug)]
pub struct MountGuard {
    path: PathBuf,
    /// Number of the mount, which no other one will have; `None` where the kernel tells none (before 6.8).
    id: Option<u64>,
    armed: bool,
}

impl MountGuard {
    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Unmounts. An error leaves the mount as it is; it is unmounted lazily when the guard is dropped.
    pub fn unmount(&mut self, how: Unmount) -> Result<(), MountError> {
        if !self.is_in_place() {
            self.armed = false;
            return Err(MountError::NotMounted { path: self.path.clone() });
        }
        unmount(&self.path, how)?;
        self.armed = false;
        Ok(())
    }

    /// Leaves the mount to others.
    pub fn disarm(mut self) {
        self.armed = false;
    }

    fn is_in_place(&self) -> bool {
        self.id.is_none_or(|id| mount_id(&self.path) == Some(id))
    }
}

impl Drop for MountGuard {
    fn drop(&mut self) {
        if self.armed
            && self.is_in_place()
            && let Err(error) = unmount(&self.path, Unmount::Lazy)
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
        return Ok((device, MountGuard { path: absolute, id, armed: true }));
    }
    let device = helper::mount(&absolute, options)?;
    let id = mount_id(&absolute);
    Ok((device, MountGuard { path: absolute, id, armed: true }))
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
        // ENODEV, ENXIO: the node is there, the module is not.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ENXIO)) => Err(MountError::NoDevice),
        Err(source) => Err(MountError::DeviceDenied { source }),
    }
}

/// `STATX_MNT_ID_UNIQUE`
const UNIQUE_ID: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// Number of the mount at a path. The file system is not asked: it may not answer yet.
fn mount_id(path: &Path) -> Option<u64> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    unique_id(statx(CWD, path, flags, UNIQUE_ID))
}

fn unique_id(result: rustix::io::Result<rustix::fs::Statx>) -> Option<u64> {
    result.ok().filter(|found| found.stx_mask & UNIQUE_ID.bits() != 0).map(|found| found.stx_mnt_id)
}
