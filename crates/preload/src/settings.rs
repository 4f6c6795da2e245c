//! What `tandemfs run` says to this library, by the environment, and what the kernel says of the mount at the start of the program.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::mutant::Mutant;
use crate::sys;

/// `STATX_MNT_ID_UNIQUE`: an id that no later mount gets (Linux 6.8).
const UNIQUE_MOUNT_ID: u32 = 0x4000;
/// Calls on the mount before a process connects: many look at a file or two and end, for which a connection does not pay.
const CALLS_BEFORE: u32 = 8;

/// What is known from the start.
pub(crate) struct Settings {
    /// The mountpoint, absolute, without links, `.`, `..` and doubled slashes.
    pub(crate) mountpoint: CString,
    /// The daemon's socket, and whose daemon it must be.
    pub(crate) socket: PathBuf,
    pub(crate) user: u32,
    pub(crate) mount: Mount,
    pub(crate) calls_before: u32,
    /// Regular files may be opened by the door alone.
    pub(crate) placeholders: bool,
    /// The program may store to the drive's memory itself ([PRL19] of `lib.rs`).
    pub(crate) stores: bool,
    /// The table of what was found in code (`code/known.rs`).
    pub(crate) code: Option<CString>,
}

/// The mount, as the kernel names it.
pub(crate) struct Mount {
    id: u64,
    /// `st_dev` of its files.
    pub(crate) device: u64,
    /// The same, as statx(2) shows it.
    pub(crate) device_parts: (u32, u32),
    /// The inode of the root.
    pub(crate) root: u64,
    /// What statx(2) shows of every file: known attributes, and the id that mounts have at a time.
    pub(crate) attributes_mask: u64,
    pub(crate) shown_id: u64,
}

static SETTINGS: OnceLock<Settings> = OnceLock::new();
static IS_LEFT: AtomicBool = AtomicBool::new(false);

/// What was read at the start; none where nobody asked for the door, or once it was left.
pub(crate) fn get() -> Option<&'static Settings> {
    SETTINGS.get().filter(|_| !IS_LEFT.load(Relaxed))
}

/// From now on no call is looked at.
pub(crate) fn leave() {
    IS_LEFT.store(true, Relaxed);
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn number(name: &str) -> Option<u32> {
    variable(name)?.to_str()?.parse().ok()
}

/// Reads the environment; whether there is something to do.
pub(crate) fn read() -> bool {
    let found = || {
        let mountpoint = CString::new(variable("TANDEMFS_RUN_MOUNT")?.into_vec()).ok()?;
        // A program may have limited its system calls before it started this one, to fewer than this library needs.
        if number("TANDEMFS_RUN_FILTERS").is_some_and(|filters| sys::filters() > filters) {
            return None;
        }
        let socket = variable("TANDEMFS_RUN_SOCKET")?.into();
        let mount = Mount::of(&mountpoint)?;
        let calls_before = number("TANDEMFS_RUN_AFTER").unwrap_or(CALLS_BEFORE);
        let placeholders = variable("TANDEMFS_RUN_PLACEHOLDERS").is_some();
        let stores = variable("TANDEMFS_RUN_STORES").is_some();
        let code = variable("TANDEMFS_RUN_CODE").and_then(|path| CString::new(path.into_vec()).ok());
        Some(Settings { mountpoint, socket, user: number("TANDEMFS_RUN_USER")?, mount, calls_before, placeholders, stores, code })
    };
    let Some(settings) = found() else { return false };
    #[cfg(feature = "mutants")]
    if let Some(name) = variable("TANDEMFS_RUN_MUTANT") {
        crate::mutant::select(&name.to_string_lossy());
    }
    if let Some(path) = variable("TANDEMFS_RUN_REPORT") {
        crate::report::open(&path);
    }
    SETTINGS.set(settings).is_ok()
}

impl Mount {
    fn of(mountpoint: &CString) -> Option<Self> {
        let of = |mask| sys::known(libc::AT_FDCWD, mountpoint, 0, mask);
        let (found, shown) = (of(libc::STATX_INO | UNIQUE_MOUNT_ID)?, of(libc::STATX_INO | libc::STATX_MNT_ID)?);
        is_root(&found).then(|| Self {
            id: found.stx_mnt_id,
            device: libc::makedev(found.stx_dev_major, found.stx_dev_minor),
            device_parts: (found.stx_dev_major, found.stx_dev_minor),
            root: found.stx_ino,
            attributes_mask: found.stx_attributes_mask,
            shown_id: shown.stx_mnt_id,
        })
    }

    /// The inode of a file if it is one of this mount; what the kernel knows of it already.
    pub(crate) fn inode(&self, directory: std::ffi::c_int, path: &std::ffi::CStr) -> Option<u64> {
        let found = sys::known(directory, path, libc::AT_EMPTY_PATH, libc::STATX_INO | UNIQUE_MOUNT_ID)?;
        (found.stx_mnt_id == self.id).then_some(found.stx_ino)
    }

    /// The same of a name, also if it is one of a link.
    pub(crate) fn inode_of_name(&self, directory: std::ffi::c_int, path: &std::ffi::CStr) -> Option<u64> {
        let found = sys::known(directory, path, libc::AT_SYMLINK_NOFOLLOW, libc::STATX_INO | UNIQUE_MOUNT_ID)?;
        (found.stx_mnt_id == self.id).then_some(found.stx_ino)
    }

    /// What the kernel knows of a descriptor already, its size among it, if it is one of this mount.
    pub(crate) fn known(&self, descriptor: std::ffi::c_int) -> Option<libc::statx> {
        let mask = libc::STATX_INO | libc::STATX_TYPE | libc::STATX_SIZE | UNIQUE_MOUNT_ID;
        sys::known(descriptor, c"", libc::AT_EMPTY_PATH, mask).filter(|found| found.stx_mnt_id == self.id)
    }

    /// Whether a path leads to the root of the mount now, for this thread.
    pub(crate) fn is_at(&self, directory: std::ffi::c_int, path: &std::ffi::CStr) -> bool {
        sys::known(directory, path, 0, libc::STATX_INO | UNIQUE_MOUNT_ID)
            .is_some_and(|found| found.stx_mnt_id == self.id && is_root(&found))
            || crate::mutant::on(Mutant::MountpointRemembered)
    }
}

fn is_root(found: &libc::statx) -> bool {
    found.stx_attributes & libc::STATX_ATTR_MOUNT_ROOT as u64 != 0
}
