//! stat, statx, access.

use std::ffi::{c_char, c_int, c_uint};

use tandemfs_client::{AtFlags, Attributes, Time, Tree};

use super::{HERE, refused, returned};
use crate::call::{Kind, Named, attributes, by_path, leave_to_kernel};
use crate::descriptions;
use crate::next::interpose;
use crate::report::Call;
use crate::settings;

/// Flags of fstatat(2) and statx(2) that change nothing here, or only whether a link is followed: AT_NO_AUTOMOUNT and AT_STATX_.
const STAT_FLAGS: c_int = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT | libc::AT_EMPTY_PATH;
const STATX_FLAGS: c_int = STAT_FLAGS | libc::AT_STATX_FORCE_SYNC | libc::AT_STATX_DONT_SYNC;
/// What the door knows; the kernel says more of a file that it has open.
const STATX_KNOWN: c_uint = libc::STATX_BASIC_STATS | libc::STATX_BTIME | libc::STATX_MNT_ID;
/// The version of the structure that the old functions have on 64-bit machines.
pub(super) const STAT_VERSION: c_int = if cfg!(target_arch = "x86_64") { 1 } else { 0 };

fn followed(flags: c_int) -> AtFlags {
    if flags & libc::AT_SYMLINK_NOFOLLOW == 0 { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW }
}

/// Of a placeholder, with AT_EMPTY_PATH and without a path.
///
/// # Safety
/// As stat(2)'s.
unsafe fn attributes_of_open(call: Call, (descriptor, path): Named, flags: c_int) -> Option<Result<Attributes, tandemfs_client::Errno>> {
    if !descriptions::is_taken(descriptor) {
        return None;
    }
    // SAFETY: the caller's path.
    if flags & libc::AT_EMPTY_PATH != 0 && (path.is_null() || unsafe { *path } == 0) {
        return descriptions::by(call, descriptor, |open| open.file.attributes());
    }
    if !descriptions::is_directory(descriptor) {
        descriptions::real(descriptor); // a path begins nowhere there
    }
    None
}

/// The parts of a device number in 32 bits, as the kernel keeps it.
fn device_parts(number: u64) -> (u32, u32) {
    let number = number as u32;
    (number >> 8 & 0xfff, number & 0xff | number >> 12 & 0xf_ff00)
}

pub(super) fn fill(into: &mut libc::stat, found: &Attributes, device: u64) {
    // SAFETY: all-zero is a value of this plain structure.
    *into = unsafe { std::mem::zeroed() };
    let (major, minor) = device_parts(found.device_number);
    into.st_dev = device;
    into.st_ino = found.node;
    into.st_mode = found.mode;
    into.st_nlink = found.links.into();
    into.st_uid = found.user;
    into.st_gid = found.group;
    into.st_rdev = libc::makedev(major, minor);
    into.st_size = found.size_bytes.cast_signed();
    into.st_blksize = found.block_bytes.into();
    into.st_blocks = found.space_512.cast_signed();
    (into.st_atime, into.st_atime_nsec) = (found.accessed.seconds, found.accessed.nanoseconds.into());
    (into.st_mtime, into.st_mtime_nsec) = (found.modified.seconds, found.modified.nanoseconds.into());
    (into.st_ctime, into.st_ctime_nsec) = (found.changed.seconds, found.changed.nanoseconds.into());
}

/// stat(2) by the door.
///
/// # Safety
/// As fstatat(2)'s.
unsafe fn stat_by_door(named: Named, into: *mut libc::stat, flags: c_int) -> Option<c_int> {
    if into.is_null() || flags & !STAT_FLAGS != 0 {
        // SAFETY: the caller's path.
        unsafe { leave_to_kernel(Call::Stat, named) };
        return None;
    }
    let device = settings::get()?.mount.device;
    // SAFETY: the caller's path.
    let of_open = unsafe { attributes_of_open(Call::Stat, named, flags) };
    // SAFETY: as above.
    match of_open.or_else(|| unsafe { attributes(Call::Stat, named, followed(flags)) })? {
        Ok(found) => {
            // SAFETY: the caller's structure.
            fill(unsafe { &mut *into }, &found, device);
            Some(0)
        }
        Err(error) => Some(refused(error) as c_int),
    }
}

fn timestamp(time: Time) -> libc::statx_timestamp {
    // SAFETY: all-zero is a value of this plain structure.
    let mut shown: libc::statx_timestamp = unsafe { std::mem::zeroed() };
    (shown.tv_sec, shown.tv_nsec) = (time.seconds, time.nanoseconds);
    shown
}

fn fill_extended(into: &mut libc::statx, found: &Attributes, mount: &settings::Mount, mask: c_uint) {
    // SAFETY: all-zero is a value of this plain structure.
    *into = unsafe { std::mem::zeroed() };
    // As the kernel: what is there anyway, and the birth for those who ask.
    into.stx_mask = libc::STATX_BASIC_STATS | libc::STATX_MNT_ID | mask & libc::STATX_BTIME;
    into.stx_blksize = found.block_bytes;
    into.stx_nlink = found.links;
    (into.stx_uid, into.stx_gid) = (found.user, found.group);
    into.stx_mode = found.mode as u16;
    (into.stx_ino, into.stx_size, into.stx_blocks) = (found.node, found.size_bytes, found.space_512);
    into.stx_attributes_mask = mount.attributes_mask;
    into.stx_atime = timestamp(found.accessed);
    into.stx_mtime = timestamp(found.modified);
    into.stx_ctime = timestamp(found.changed);
    if mask & libc::STATX_BTIME != 0 {
        into.stx_btime = timestamp(found.created);
    }
    (into.stx_rdev_major, into.stx_rdev_minor) = device_parts(found.device_number);
    (into.stx_dev_major, into.stx_dev_minor) = mount.device_parts;
    into.stx_mnt_id = mount.shown_id;
}

/// faccessat(2) by the door.
///
/// # Safety
/// As faccessat(2)'s.
unsafe fn access_by_door(named: Named, mode: c_int, flags: c_int) -> Option<c_int> {
    // Whether a program may be executed is also a matter of the mount (`noexec`), which the kernel knows.
    if flags & !libc::AT_EACCESS != 0 || mode & !(libc::R_OK | libc::W_OK) != 0 {
        // SAFETY: the caller's path.
        unsafe { leave_to_kernel(Call::Access, named) };
        return None;
    }
    let (mode, effective) = (mode.cast_unsigned(), flags & libc::AT_EACCESS != 0);
    // SAFETY: the caller's path.
    let done =
        unsafe { by_path(Call::Access, Kind::Looks, named, |start, path| start.target(path, AtFlags::empty()).access(mode, effective)) };
    done.map(returned)
}

macro_rules! stat_functions {
    ($(fn $name:ident, $flags:expr;)*) => {
        interpose! {$(
            fn $name(path: *const c_char, into: *mut libc::stat) -> c_int, |next| {
                // SAFETY: the caller's arguments.
                unsafe { stat_by_door((HERE, path), into, $flags) }.unwrap_or_else(next)
            }
        )*}
    };
}

stat_functions! {
    fn stat, 0;
    fn stat64, 0;
    fn lstat, libc::AT_SYMLINK_NOFOLLOW;
    fn lstat64, libc::AT_SYMLINK_NOFOLLOW;
}

macro_rules! old_stat_functions {
    ($(fn $name:ident, $flags:expr;)*) => {
        interpose! {$(
            fn $name(version: c_int, path: *const c_char, into: *mut libc::stat) -> c_int, |next| {
                // SAFETY: the caller's arguments.
                let done = if version == STAT_VERSION { unsafe { stat_by_door((HERE, path), into, $flags) } } else { None };
                done.unwrap_or_else(next)
            }
        )*}
    };
}

old_stat_functions! {
    fn __xstat, 0;
    fn __xstat64, 0;
    fn __lxstat, libc::AT_SYMLINK_NOFOLLOW;
    fn __lxstat64, libc::AT_SYMLINK_NOFOLLOW;
}

interpose! {
    fn fstatat(directory: c_int, path: *const c_char, into: *mut libc::stat, flags: c_int) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        unsafe { stat_by_door((directory, path), into, flags) }.unwrap_or_else(next)
    }

    fn fstatat64(directory: c_int, path: *const c_char, into: *mut libc::stat, flags: c_int) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        unsafe { stat_by_door((directory, path), into, flags) }.unwrap_or_else(next)
    }

    fn __fxstatat(version: c_int, directory: c_int, path: *const c_char, into: *mut libc::stat, flags: c_int) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        let done = if version == STAT_VERSION { unsafe { stat_by_door((directory, path), into, flags) } } else { None };
        done.unwrap_or_else(next)
    }

    fn __fxstatat64(version: c_int, directory: c_int, path: *const c_char, into: *mut libc::stat, flags: c_int) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        let done = if version == STAT_VERSION { unsafe { stat_by_door((directory, path), into, flags) } } else { None };
        done.unwrap_or_else(next)
    }

    fn statx(directory: c_int, path: *const c_char, flags: c_int, mask: c_uint, into: *mut libc::statx) -> c_int, |next| {
        let named = (directory, path);
        // Who asks for nothing gets what the kernel happens to know.
        let asks = mask & (libc::STATX_BASIC_STATS | libc::STATX_BTIME) != 0;
        if into.is_null() || flags & !STATX_FLAGS != 0 || mask & !STATX_KNOWN != 0 || !asks {
            // SAFETY: the caller's path.
            unsafe { leave_to_kernel(Call::Statx, named) };
            return next();
        }
        let Some(settings) = settings::get() else { return next() };
        // SAFETY: the caller's path.
        let of_open = unsafe { attributes_of_open(Call::Statx, named, flags) };
        // SAFETY: as above.
        match of_open.or_else(|| unsafe { attributes(Call::Statx, named, followed(flags)) }) {
            Some(Ok(found)) if found.node != settings.mount.root => {
                // SAFETY: the caller's structure.
                fill_extended(unsafe { &mut *into }, &found, &settings.mount, mask);
                0
            }
            Some(Err(error)) => refused(error) as c_int,
            // The root has an attribute of its own.
            _ => {
                descriptions::real(directory);
                next()
            }
        }
    }

    fn access(path: *const c_char, mode: c_int) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        unsafe { access_by_door((HERE, path), mode, 0) }.unwrap_or_else(next)
    }

    fn euidaccess(path: *const c_char, mode: c_int) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        unsafe { access_by_door((HERE, path), mode, libc::AT_EACCESS) }.unwrap_or_else(next)
    }

    fn eaccess(path: *const c_char, mode: c_int) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        unsafe { access_by_door((HERE, path), mode, libc::AT_EACCESS) }.unwrap_or_else(next)
    }

    fn faccessat(directory: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        unsafe { access_by_door((directory, path), mode, flags) }.unwrap_or_else(next)
    }
}
