//! The xattr family, by path.

use std::ffi::{CStr, c_char, c_int, c_void};

use tandemfs_client::{AtFlags, Errno, Tree};

use super::{HERE, refused, returned};
use crate::call::{Kind, by_path, leave_to_kernel};
use crate::next::interpose;
use crate::report::Call;

/// Security modules have a say in these.
const SECURITY: &[u8] = b"security.";
/// Longer values are refused by the kernel.
const VALUE_BYTES_MAX: usize = 65536;
const NAME_BYTES_MAX: usize = 255;

const FOLLOW: AtFlags = AtFlags::empty();
const LINK: AtFlags = AtFlags::SYMLINK_NOFOLLOW;

/// A name that the door serves.
///
/// # Safety
/// Null, or a text that ends with NUL and stays as it is.
unsafe fn served<'n>(name: *const c_char) -> Option<&'n [u8]> {
    if name.is_null() {
        return None;
    }
    // SAFETY: the caller's text.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    (!name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.starts_with(SECURITY)).then_some(name)
}

/// Copies a value to the caller, whose room may be nothing: it then asks for the length alone. The value is freed inside ([PRL3] of `lib.rs`).
///
/// # Safety
/// So many bytes may be written.
unsafe fn hand_over(value: Vec<u8>, into: *mut c_void, room: usize) -> Result<isize, Errno> {
    match value.len() {
        length if room == 0 => Ok(length as isize),
        length if length > room => Err(Errno::RANGE),
        length => {
            // SAFETY: the caller's buffer has room for that.
            unsafe { into.cast::<u8>().copy_from_nonoverlapping(value.as_ptr(), length) };
            Ok(length as isize)
        }
    }
}

/// # Safety
/// As getxattr(2)'s.
unsafe fn get(path: *const c_char, name: *const c_char, into: *mut c_void, room: usize, flags: AtFlags) -> Option<isize> {
    // SAFETY: the caller's arguments.
    unsafe {
        let Some(name) = served(name).filter(|_| room == 0 || !into.is_null()) else {
            leave_to_kernel(Call::GetAttribute, (HERE, path));
            return None;
        };
        let copied = by_path(Call::GetAttribute, Kind::Looks, (HERE, path), |start, path| {
            Ok(hand_over(start.target(path, flags).extended_attribute(name)?, into, room)?)
        });
        copied.map(|copied| copied.unwrap_or_else(refused))
    }
}

/// # Safety
/// As listxattr(2)'s.
unsafe fn list(path: *const c_char, into: *mut c_char, room: usize, flags: AtFlags) -> Option<isize> {
    // SAFETY: the caller's arguments.
    unsafe {
        if room > 0 && into.is_null() {
            leave_to_kernel(Call::ListAttributes, (HERE, path));
            return None;
        }
        let copied = by_path(Call::ListAttributes, Kind::Looks, (HERE, path), |start, path| {
            Ok(hand_over(start.target(path, flags).extended_attributes()?, into.cast(), room)?)
        });
        copied.map(|copied| copied.unwrap_or_else(refused))
    }
}

/// # Safety
/// As setxattr(2)'s.
unsafe fn set(path: *const c_char, name: *const c_char, value: *const c_void, bytes: usize, how: c_int, flags: AtFlags) -> Option<c_int> {
    // SAFETY: the caller's arguments.
    unsafe {
        let is_served = bytes <= VALUE_BYTES_MAX && (bytes == 0 || !value.is_null());
        let Some(name) = served(name).filter(|_| is_served) else {
            leave_to_kernel(Call::SetAttribute, (HERE, path));
            return None;
        };
        let value = if bytes == 0 { &[][..] } else { std::slice::from_raw_parts(value.cast::<u8>(), bytes) };
        let done = by_path(Call::SetAttribute, Kind::Changes, (HERE, path), |start, path| {
            start.target(path, flags).set_extended_attribute(name, value, how)
        });
        done.map(returned)
    }
}

/// # Safety
/// As removexattr(2)'s.
unsafe fn remove(path: *const c_char, name: *const c_char, flags: AtFlags) -> Option<c_int> {
    // SAFETY: the caller's arguments.
    unsafe {
        let Some(name) = served(name) else {
            leave_to_kernel(Call::RemoveAttribute, (HERE, path));
            return None;
        };
        let done = by_path(Call::RemoveAttribute, Kind::Changes, (HERE, path), |start, path| {
            start.target(path, flags).remove_extended_attribute(name)
        });
        done.map(returned)
    }
}

interpose! {
    fn getxattr(path: *const c_char, name: *const c_char, into: *mut c_void, room: usize) -> isize, |next| {
        // SAFETY: the caller's arguments.
        unsafe { get(path, name, into, room, FOLLOW) }.unwrap_or_else(next)
    }

    fn lgetxattr(path: *const c_char, name: *const c_char, into: *mut c_void, room: usize) -> isize, |next| {
        // SAFETY: the caller's arguments.
        unsafe { get(path, name, into, room, LINK) }.unwrap_or_else(next)
    }

    fn listxattr(path: *const c_char, into: *mut c_char, room: usize) -> isize, |next| {
        // SAFETY: the caller's arguments.
        unsafe { list(path, into, room, FOLLOW) }.unwrap_or_else(next)
    }

    fn llistxattr(path: *const c_char, into: *mut c_char, room: usize) -> isize, |next| {
        // SAFETY: the caller's arguments.
        unsafe { list(path, into, room, LINK) }.unwrap_or_else(next)
    }

    fn setxattr(path: *const c_char, name: *const c_char, value: *const c_void, bytes: usize, how: c_int) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        unsafe { set(path, name, value, bytes, how, FOLLOW) }.unwrap_or_else(next)
    }

    fn lsetxattr(path: *const c_char, name: *const c_char, value: *const c_void, bytes: usize, how: c_int) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        unsafe { set(path, name, value, bytes, how, LINK) }.unwrap_or_else(next)
    }

    fn removexattr(path: *const c_char, name: *const c_char) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        unsafe { remove(path, name, FOLLOW) }.unwrap_or_else(next)
    }

    fn lremovexattr(path: *const c_char, name: *const c_char) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        unsafe { remove(path, name, LINK) }.unwrap_or_else(next)
    }
}
