//! unlink, rmdir, mkdir, rename, link, symlink, readlink.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tandemfs_client::{AtFlags, Attributes, Tree};

use super::{HERE, refused, returned};
use crate::call::{Kind, Named, by_path, by_path_and_door, by_paths, leave_to_kernel};
use crate::descriptions;
use crate::next::interpose;
use crate::report::{Call, Way};

/// Flags of renameat2(2) that the door serves. What is exchanged may be directories.
const RENAME_FLAGS: c_uint = libc::RENAME_NOREPLACE;
/// Longest target of a link, without its NUL.
const TARGET_BYTES_MAX: usize = 4095;

/// # Safety
/// As unlinkat(2)'s.
unsafe fn unlink_by_door(named: Named) -> Option<c_int> {
    // SAFETY: the caller's path.
    unsafe { by_path(Call::Unlink, Kind::Changes, named, |start, path| start.unlink(path)) }.map(returned)
}

/// # Safety
/// As unlinkat(2)'s.
unsafe fn rmdir_by_door(named: Named) -> Option<c_int> {
    // SAFETY: the caller's path.
    let done = unsafe {
        by_path_and_door(Call::RemoveDirectory, Kind::Changes, named, |door, start, path| {
            let is_kept = !door.directories().is_empty() || descriptions::has_directories();
            let victim = if is_kept { start.attributes_of_link(path).ok() } else { None };
            // The kernel finds no directory that has no name any more, so it has it before.
            victim.iter().for_each(|victim| descriptions::directory_becomes_real(victim.node));
            start.remove_directory(path)?;
            let _closed = victim.and_then(|victim| door.directories().give_up(victim.node));
            Ok(())
        })
    };
    done.map(returned)
}

/// # Safety
/// As mkdirat(2)'s.
unsafe fn mkdir_by_door(named: Named, mode: libc::mode_t) -> Option<c_int> {
    // SAFETY: the caller's path.
    unsafe { by_path(Call::MakeDirectory, Kind::Changes, named, |start, path| start.make_directory(path, mode).map(drop)) }.map(returned)
}

/// As [`leave_to_kernel`], for a call with two paths.
///
/// # Safety
/// As renameat2(2)'s.
unsafe fn leave_both_to_kernel(call: Call, from: Named, to: Named) {
    // SAFETY: the caller's path.
    unsafe { leave_to_kernel(call, from) };
    descriptions::real(to.0);
}

/// # Safety
/// As renameat2(2)'s.
unsafe fn rename_by_door(from: Named, to: Named, flags: c_uint) -> Option<c_int> {
    if flags & !RENAME_FLAGS != 0 {
        // SAFETY: the caller's paths.
        unsafe { leave_both_to_kernel(Call::Rename, from, to) };
        return None;
    }
    // SAFETY: the caller's paths.
    let done = unsafe {
        by_paths(Call::Rename, Kind::Changes, from, to, |(old, from), (new, to)| {
            // The kernel finds `..` of what it knows by what it knows, so it has to know where directories are.
            let is_directory = |found: Attributes| found.mode & libc::S_IFMT == libc::S_IFDIR;
            match old.attributes_of_link(from).is_ok_and(is_directory) {
                true => {
                    // One that is replaced has no name any more, as one that is removed.
                    let replaced = if descriptions::has_directories() { new.attributes_of_link(to).ok() } else { None };
                    replaced.iter().for_each(|replaced| descriptions::directory_becomes_real(replaced.node));
                    Err(Way::MovedDirectory)
                }
                false => Ok(old.rename_with(from, &new, to, flags)),
            }
        })
    };
    done.map(returned)
}

/// # Safety
/// As linkat(2)'s.
unsafe fn link_by_door(from: Named, to: Named, flags: c_int) -> Option<c_int> {
    let follows = match flags {
        0 => AtFlags::empty(),
        libc::AT_SYMLINK_FOLLOW => AtFlags::SYMLINK_FOLLOW,
        _ => {
            // SAFETY: the caller's paths.
            unsafe { leave_both_to_kernel(Call::Link, from, to) };
            return None;
        }
    };
    // SAFETY: the caller's paths.
    unsafe { by_paths(Call::Link, Kind::Changes, from, to, |(old, from), (new, to)| Ok(old.link_with(from, &new, to, follows))) }
        .map(returned)
}

/// # Safety
/// As symlinkat(2)'s.
unsafe fn symlink_by_door(target: *const c_char, named: Named) -> Option<c_int> {
    // SAFETY: null, or the caller's text.
    let target = if target.is_null() { &[][..] } else { unsafe { CStr::from_ptr(target) }.to_bytes() };
    if target.is_empty() || target.len() > TARGET_BYTES_MAX {
        // SAFETY: the caller's path.
        unsafe { leave_to_kernel(Call::MakeLink, named) };
        return None;
    }
    let target = Path::new(std::ffi::OsStr::from_bytes(target));
    // SAFETY: the caller's path.
    unsafe { by_path(Call::MakeLink, Kind::Changes, named, |start, path| start.make_link(target, path).map(drop)) }.map(returned)
}

/// # Safety
/// As readlinkat(2)'s.
unsafe fn readlink_by_door(named: Named, into: *mut c_char, room: usize) -> Option<isize> {
    if into.is_null() || room == 0 || room > isize::MAX as usize {
        // SAFETY: the caller's path.
        unsafe { leave_to_kernel(Call::ReadLink, named) };
        return None;
    }
    // SAFETY: the caller's path, and its buffer, which has room for what is copied. The text is freed inside ([PRL3] of `lib.rs`).
    let copied = unsafe {
        by_path(Call::ReadLink, Kind::Looks, named, |start, path| {
            let target = start.read_link(path)?;
            let target = target.as_os_str().as_bytes();
            let length = target.len().min(room);
            into.cast::<u8>().copy_from_nonoverlapping(target.as_ptr(), length);
            Ok(length as isize)
        })
    };
    copied.map(|copied| copied.unwrap_or_else(refused))
}

interpose! {
    fn unlink(path: *const c_char) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        unsafe { unlink_by_door((HERE, path)) }.unwrap_or_else(next)
    }

    fn unlinkat(directory: c_int, path: *const c_char, flags: c_int) -> c_int, |next| {
        let named = (directory, path);
        // SAFETY: the caller's arguments.
        let done = unsafe {
            match flags {
                0 => unlink_by_door(named),
                libc::AT_REMOVEDIR => rmdir_by_door(named),
                _ => {
                    leave_to_kernel(Call::Unlink, named);
                    None
                }
            }
        };
        done.unwrap_or_else(next)
    }

    fn rmdir(path: *const c_char) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        unsafe { rmdir_by_door((HERE, path)) }.unwrap_or_else(next)
    }

    fn mkdir(path: *const c_char, mode: libc::mode_t) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        unsafe { mkdir_by_door((HERE, path), mode) }.unwrap_or_else(next)
    }

    fn mkdirat(directory: c_int, path: *const c_char, mode: libc::mode_t) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        unsafe { mkdir_by_door((directory, path), mode) }.unwrap_or_else(next)
    }

    fn rename(from: *const c_char, to: *const c_char) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        unsafe { rename_by_door((HERE, from), (HERE, to), 0) }.unwrap_or_else(next)
    }

    fn renameat(old: c_int, from: *const c_char, new: c_int, to: *const c_char) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        unsafe { rename_by_door((old, from), (new, to), 0) }.unwrap_or_else(next)
    }

    fn renameat2(old: c_int, from: *const c_char, new: c_int, to: *const c_char, flags: c_uint) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        unsafe { rename_by_door((old, from), (new, to), flags) }.unwrap_or_else(next)
    }

    fn link(from: *const c_char, to: *const c_char) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        unsafe { link_by_door((HERE, from), (HERE, to), 0) }.unwrap_or_else(next)
    }

    fn linkat(old: c_int, from: *const c_char, new: c_int, to: *const c_char, flags: c_int) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        unsafe { link_by_door((old, from), (new, to), flags) }.unwrap_or_else(next)
    }

    fn symlink(target: *const c_char, path: *const c_char) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        unsafe { symlink_by_door(target, (HERE, path)) }.unwrap_or_else(next)
    }

    fn symlinkat(target: *const c_char, directory: c_int, path: *const c_char) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        unsafe { symlink_by_door(target, (directory, path)) }.unwrap_or_else(next)
    }

    fn readlink(path: *const c_char, into: *mut c_char, room: usize) -> isize, |next| {
        // SAFETY: the caller's arguments.
        unsafe { readlink_by_door((HERE, path), into, room) }.unwrap_or_else(next)
    }

    fn readlinkat(directory: c_int, path: *const c_char, into: *mut c_char, room: usize) -> isize, |next| {
        // SAFETY: the caller's arguments.
        unsafe { readlink_by_door((directory, path), into, room) }.unwrap_or_else(next)
    }

    fn __readlink_chk(path: *const c_char, into: *mut c_char, room: usize, has: usize) -> isize, |next| {
        // SAFETY: the caller's arguments. libc ends a program whose buffer is shorter than it says.
        let done = if room <= has { unsafe { readlink_by_door((HERE, path), into, room) } } else { None };
        done.unwrap_or_else(next)
    }

    fn __readlinkat_chk(directory: c_int, path: *const c_char, into: *mut c_char, room: usize, has: usize) -> isize, |next| {
        // SAFETY: the caller's arguments. libc ends a program whose buffer is shorter than it says.
        let done = if room <= has { unsafe { readlink_by_door((directory, path), into, room) } } else { None };
        done.unwrap_or_else(next)
    }
}
