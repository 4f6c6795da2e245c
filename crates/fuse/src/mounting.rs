//! Mounting and unmounting. Done here and not by fuser, which in version 0.18 unmounts the path once more after somebody else has
//! unmounted it (and so whatever was mounted below), and says little when it fails.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::mounts::FILE_SYSTEM_TYPE;
use crate::settings::MountSettings;

const DEV_FUSE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";

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
    #[error("only root may mount without {HELPER}; install the package fuse3, or mount as root")]
    NoHelper,
    /// The helper refused.
    #[error("{message}")]
    Helper {
        /// What it said.
        message: String,
    },
    /// mount(2) failed.
    #[error("{}: mount failed: {source}", path.display())]
    Mount {
        /// The mountpoint.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Files are open, or somebody's current directory is in it.
    #[error("{}: in use; close what is open on it ('fuser -vm' shows it), or use --lazy", path.display())]
    InUse {
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

/// How to unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmount {
    /// Only when nobody uses it.
    Normal,
    /// Out of the tree at once; it ends when the last user goes.
    Lazy,
    /// Cut off from its daemon at once: calls in progress fail, and what only the kernel's cache holds is lost. For a daemon that hangs.
    Force,
}

/// Mounts and returns the channel to the kernel. `mountpoint` comes from `check_mountpoint`.
pub(crate) fn mount(mountpoint: &Path, settings: &MountSettings) -> Result<OwnedFd, MountError> {
    let metadata = fs::metadata(mountpoint).map_err(|source| MountError::Mountpoint { path: mountpoint.to_owned(), source })?;
    if rustix::process::geteuid().is_root() {
        mount_as_root(mountpoint, metadata.mode(), settings)
    } else {
        mount_by_helper(mountpoint, settings)
    }
}

fn mount_as_root(mountpoint: &Path, root_mode: u32, settings: &MountSettings) -> Result<OwnedFd, MountError> {
    let device = open_fuse()?;
    let mut options = format!(
        "fd={},rootmode={:o},user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        root_mode & 0o170_000,
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw()
    );
    if settings.allow_other || settings.allow_root {
        options.push_str(",allow_other");
    }
    let flags = mount_flags(settings);
    let failed = |source: io::Error| MountError::Mount { path: mountpoint.to_owned(), source };
    let options = CString::new(options).map_err(|error| failed(error.into()))?;
    rustix::mount::mount(settings.source.as_str(), mountpoint, FILE_SYSTEM_TYPE, flags, options.as_c_str())
        .map_err(|error| failed(error.into()))?;
    Ok(device)
}

/// Changes the flags of a mount in place: `ro`, `nodev`, `nosuid`, `noexec`, `sync`, `dirsync`. Its daemon is not asked. Only root may.
pub fn remount(mountpoint: &Path, settings: &MountSettings) -> Result<(), MountError> {
    rustix::mount::mount_remount(mountpoint, mount_flags(settings), c"").map_err(|error| match error {
        rustix::io::Errno::BUSY => MountError::InUse { path: mountpoint.to_owned() },
        error => MountError::Mount { path: mountpoint.to_owned(), source: error.into() },
    })
}

fn mount_flags(settings: &MountSettings) -> MountFlags {
    let flags = [
        (!settings.dev, MountFlags::NODEV),
        (!settings.suid, MountFlags::NOSUID),
        (!settings.exec, MountFlags::NOEXEC),
        (settings.read_only, MountFlags::RDONLY),
        (settings.sync, MountFlags::SYNCHRONOUS),
        (settings.dirsync, MountFlags::DIRSYNC),
        // Reads of cached pages never reach the daemon (RULES R22), so access times are the engine's affair alone.
        (true, MountFlags::NOATIME),
    ];
    flags.into_iter().filter(|(wanted, _)| *wanted).fold(MountFlags::empty(), |all, (_, flag)| all | flag)
}

fn open_fuse() -> Result<OwnedFd, MountError> {
    match File::options().read(true).write(true).open(DEV_FUSE) {
        Ok(file) => Ok(file.into()),
        // ENODEV, ENXIO: the node is there, the module is not.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ENXIO)) => Err(MountError::NoFuse),
        Err(source) => Err(MountError::FuseDenied { source }),
    }
}

/// fusermount3 mounts for ordinary users and sends the channel over the socket that it finds as its standard input.
fn mount_by_helper(mountpoint: &Path, settings: &MountSettings) -> Result<OwnedFd, MountError> {
    drop(open_fuse()?);
    let failed = |source: io::Error| MountError::Mount { path: mountpoint.to_owned(), source };
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let mut child = Command::new(HELPER)
        .arg("-o")
        .arg(helper_options(settings))
        .arg("--")
        .arg(mountpoint)
        .env("_FUSE_COMMFD", "0")
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(no_helper)?;
    let received = receive(&ours);
    let mut message = String::new();
    if let Some(stderr) = &mut child.stderr {
        let _ = stderr.read_to_string(&mut message);
    }
    let status = child.wait().map_err(failed)?;
    match received {
        Ok(Some(device)) if status.success() => Ok(device),
        _ => Err(helper_refused(&message, status)),
    }
}

/// Options for fusermount3, which splits them at commas.
fn helper_options(settings: &MountSettings) -> String {
    let source = settings.source.replace('\\', "\\\\").replace(',', "\\,");
    let mut options = format!("fsname={source},subtype=tandemfs,default_permissions,noatime");
    let flags = [
        (settings.allow_other || settings.allow_root, ",allow_other"),
        (!settings.dev, ",nodev"),
        (!settings.suid, ",nosuid"),
        (!settings.exec, ",noexec"),
        (settings.read_only, ",ro"),
        (settings.sync, ",sync"),
        (settings.dirsync, ",dirsync"),
    ];
    options.extend(flags.into_iter().filter(|(wanted, _)| *wanted).map(|(_, name)| name));
    options
}

fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    rustix::io::retry_on_intr(|| rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC))?;
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

/// Unmounts a path, as root by umount(2), else by fusermount3.
pub fn unmount(mountpoint: &Path, how: Unmount) -> Result<(), MountError> {
    let flags = match how {
        Unmount::Normal => UnmountFlags::NOFOLLOW,
        Unmount::Lazy => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
        Unmount::Force => UnmountFlags::NOFOLLOW | UnmountFlags::FORCE,
    };
    match rustix::mount::unmount(mountpoint, flags) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::PERM) => unmount_by_helper(mountpoint, how),
        Err(rustix::io::Errno::BUSY) => Err(MountError::InUse { path: mountpoint.to_owned() }),
        Err(error) => Err(MountError::Unmount { path: mountpoint.to_owned(), source: error.into() }),
    }
}

fn unmount_by_helper(mountpoint: &Path, how: Unmount) -> Result<(), MountError> {
    let mut command = Command::new(HELPER);
    command.arg("-u");
    match how {
        Unmount::Normal => {}
        // Cutting off is root's privilege; detaching is the most that a user can do.
        Unmount::Lazy | Unmount::Force => drop(command.arg("-z")),
    }
    let output = command.arg("--").arg(mountpoint).stdin(Stdio::null()).output().map_err(no_helper)?;
    let message = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(()),
        false if message.contains("busy") => Err(MountError::InUse { path: mountpoint.to_owned() }),
        false => Err(helper_refused(&message, output.status)),
    }
}

fn no_helper(error: io::Error) -> MountError {
    match error.kind() {
        io::ErrorKind::NotFound => MountError::NoHelper,
        _ => MountError::Helper { message: format!("{HELPER}: {error}") },
    }
}

fn helper_refused(message: &str, status: std::process::ExitStatus) -> MountError {
    let first = message.lines().map(str::trim).find(|line| !line.is_empty());
    let message = match first {
        Some(line) if line.contains("user_allow_other") => {
            "allow_other and allow_root need the line 'user_allow_other' in /etc/fuse.conf, which root can add".to_owned()
        }
        Some(line) if line.contains("Operation not permitted") => {
            format!("{line}; {HELPER} must be set-user-id root (reinstall the package fuse3), or mount as root")
        }
        Some(line) => line.to_owned(),
        None => format!("{HELPER} failed without a word ({status})"),
    };
    MountError::Helper { message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_of_devices_survives_the_helpers_commas() {
        let settings = MountSettings { source: "memory=/a,block=/b\\c".into(), allow_root: true, ..MountSettings::default() };
        let options = helper_options(&settings);
        assert!(options.starts_with("fsname=memory=/a\\,block=/b\\\\c,subtype=tandemfs,default_permissions,"), "{options}");
        assert!(options.ends_with(",allow_other,nodev,nosuid"), "{options}");
    }

    #[test]
    fn what_the_helper_says_becomes_one_sentence() {
        let status = Command::new("false").status().expect("runs");
        let said = |message: &str| helper_refused(message, status).to_string();
        assert!(
            said("fusermount3: option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf\n").contains("root can add")
        );
        assert_eq!(said("\nfusermount3: failed to chdir to /x: gone\n"), "fusermount3: failed to chdir to /x: gone");
        assert!(said("").contains("without a word"));
    }
}
