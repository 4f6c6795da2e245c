//! Calls by path.

use std::ffi::{c_char, c_int};
use std::os::unix::ffi::OsStrExt;

use tandemfs_client::Tree;

use crate::guard::guarded;
use crate::held::{FileHandle, MountHandle};
use crate::memory::{Answer, handle, path, room};
use crate::types::Attributes;

/// Opens a file as open(2), with its flags and, where a file is made, permissions, and stores a handle in `*file`. Also of a directory. There is no
/// offset. With `O_APPEND` every write goes to the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_open(
    mount: *const MountHandle,
    path: *const c_char,
    flags: c_int,
    mode: u32,
    file: *mut *mut FileHandle,
) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        let (mount, path, file) = unsafe { (handle(mount)?, self::path(path)?, Answer::at(file)?) };
        file.give(mount.open_with(path, flags, mode).map_err(Into::into))?;
        Ok(0)
    })
}

/// As stat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_stat(mount: *const MountHandle, path: *const c_char, attributes: *mut Attributes) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        let (mount, path, attributes) = unsafe { (handle(mount)?, self::path(path)?, Answer::at(attributes)?) };
        attributes.store(mount.attributes(path)?.into());
        Ok(0)
    })
}

/// As lstat(2): of a link itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_lstat(mount: *const MountHandle, path: *const c_char, attributes: *mut Attributes) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        let (mount, path, attributes) = unsafe { (handle(mount)?, self::path(path)?, Answer::at(attributes)?) };
        attributes.store(mount.attributes_of_link(path)?.into());
        Ok(0)
    })
}

/// As access(2), with `R_OK` and its like, by the real ids of the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_access(mount: *const MountHandle, path: *const c_char, mode: u32) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        let (mount, path) = unsafe { (handle(mount)?, self::path(path)?) };
        mount.access(path, mode, false)?;
        Ok(0)
    })
}

/// As truncate(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_truncate(mount: *const MountHandle, path: *const c_char, length: u64) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        let (mount, path) = unsafe { (handle(mount)?, self::path(path)?) };
        mount.set_length(path, length)?;
        Ok(0)
    })
}

/// As chmod(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_chmod(mount: *const MountHandle, path: *const c_char, mode: u32) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        let (mount, path) = unsafe { (handle(mount)?, self::path(path)?) };
        mount.set_mode(path, mode)?;
        Ok(0)
    })
}

/// As unlink(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_unlink(mount: *const MountHandle, path: *const c_char) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        let (mount, path) = unsafe { (handle(mount)?, self::path(path)?) };
        mount.unlink(path)?;
        Ok(0)
    })
}

/// As renameat2(2) with its flags, 0 for rename(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_rename(mount: *const MountHandle, from: *const c_char, to: *const c_char, flags: u32) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        let (mount, from, to) = unsafe { (handle(mount)?, path(from)?, path(to)?) };
        mount.rename_with(from, mount, to, flags)?;
        Ok(0)
    })
}

/// As mkdir(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_mkdir(mount: *const MountHandle, path: *const c_char, mode: u32) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        let (mount, path) = unsafe { (handle(mount)?, self::path(path)?) };
        mount.make_directory(path, mode)?;
        Ok(0)
    })
}

/// As rmdir(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_rmdir(mount: *const MountHandle, path: *const c_char) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        let (mount, path) = unsafe { (handle(mount)?, self::path(path)?) };
        mount.remove_directory(path)?;
        Ok(0)
    })
}

/// As link(2): `path` becomes another name of the file `from`. A link is not followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_link(mount: *const MountHandle, from: *const c_char, path: *const c_char) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        let (mount, from, path) = unsafe { (handle(mount)?, self::path(from)?, self::path(path)?) };
        mount.link(from, path)?;
        Ok(0)
    })
}

/// As symlink(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_symlink(mount: *const MountHandle, target: *const c_char, path: *const c_char) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        let (mount, target, path) = unsafe { (handle(mount)?, self::path(target)?, self::path(path)?) };
        mount.make_link(target, path)?;
        Ok(0)
    })
}

/// As readlink(2): stores at most `into_bytes` bytes, without a NUL, and returns how many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_readlink(mount: *const MountHandle, path: *const c_char, into: *mut c_char, into_bytes: usize) -> i64 {
    guarded(|| {
        // SAFETY: as the header says.
        let (mount, path, into) = unsafe { (handle(mount)?, self::path(path)?, room(into.cast(), into_bytes)?) };
        if into.is_empty() {
            return Err(tandemfs_client::Errno::INVAL.into());
        }
        let target = mount.read_link(path)?;
        let target = target.as_os_str().as_bytes();
        let length = target.len().min(into.len());
        into[..length].copy_from_slice(&target[..length]);
        Ok(length as i64)
    })
}
