//! The xattr family.

use std::ffi::{CStr, OsString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use tandemfs_client::{AtFlags, Crossed, Errno, Error, File, Tree, Why};

use super::{HERE, refused, returned};
use crate::call::{Kind, by_path, leave_to_kernel};
use crate::next::interpose;
use crate::report::Call;
use crate::{descriptions, sys};

/// Security modules have a say in these: where there is one with labels of its own, they are the kernel's, and otherwise those that are not
/// there may be looked for by the door.
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
    (!name.is_empty() && name.len() <= NAME_BYTES_MAX).then_some(name)
}

/// As [`served`], of a name that is changed.
///
/// # Safety
/// As [`served`].
unsafe fn changed<'n>(name: *const c_char) -> Option<&'n [u8]> {
    // SAFETY: the caller's text.
    unsafe { served(name) }.filter(|name| !name.starts_with(SECURITY))
}

/// Whether the kernel has security modules that label files: it has their file systems only then.
fn has_labels() -> bool {
    static HAS_LABELS: AtomicU8 = AtomicU8::new(0);
    const UNKNOWN: u8 = 0;
    match HAS_LABELS.load(Relaxed) {
        UNKNOWN => {
            let mut bytes = [0; 4096];
            let found = sys::head_of(c"/proc/filesystems", &mut bytes);
            let has =
                found.is_none_or(|found| found.len() == 4096 || [&b"selinuxfs"[..], b"smackfs"].iter().any(|name| has_word(found, name)));
            HAS_LABELS.store(1 + u8::from(has), Relaxed);
            has
        }
        known => known == 2,
    }
}

fn has_word(text: &[u8], word: &[u8]) -> bool {
    text.split(u8::is_ascii_whitespace).any(|found| found == word)
}

/// A value that is looked for; a security module's own is the kernel's ([`SECURITY`]).
fn looked_for(name: &[u8], value: Result<Vec<u8>, Error>) -> Result<Vec<u8>, Error> {
    match value {
        Ok(_) if name.starts_with(SECURITY) => Err(Error::Crossed(Crossed { why: Why::NotServed, argument: 0 })),
        other => other,
    }
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
        let Some(name) = sought(name).filter(|_| room == 0 || !into.is_null()) else {
            leave_to_kernel(Call::GetAttribute, (HERE, path));
            return None;
        };
        let copied = by_path(Call::GetAttribute, Kind::Looks, (HERE, path), |start, path| {
            Ok(hand_over(looked_for(name, start.target(path, flags).extended_attribute(name))?, into, room)?)
        });
        copied.map(|copied| copied.unwrap_or_else(refused))
    }
}

/// A name that may be looked for by the door.
///
/// # Safety
/// As [`served`].
unsafe fn sought<'n>(name: *const c_char) -> Option<&'n [u8]> {
    // SAFETY: the caller's text.
    unsafe { served(name) }.filter(|name| !name.starts_with(SECURITY) || !has_labels())
}

/// A call by a placeholder; none if the mount has to do it, which then has the descriptor.
fn of_open<T>(call: Call, descriptor: c_int, is_served: bool, work: impl FnOnce(&File) -> Result<T, Error>) -> Option<Result<T, Errno>> {
    if !is_served {
        descriptions::real(descriptor);
        return None;
    }
    descriptions::by(call, descriptor, |open| work(&open.file))
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
        let Some(name) = changed(name).filter(|_| is_served) else {
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
        let Some(name) = changed(name) else {
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

    fn fgetxattr(descriptor: c_int, name: *const c_char, into: *mut c_void, room: usize) -> isize, |next| {
        if !descriptions::is_taken(descriptor) {
            return next();
        }
        // SAFETY: the caller's name.
        let name = unsafe { sought(name) }.filter(|_| room == 0 || !into.is_null());
        let copied = of_open(Call::GetAttribute, descriptor, name.is_some(), |file| {
            let name = name.unwrap_or_default();
            // SAFETY: the caller's buffer.
            Ok(unsafe { hand_over(looked_for(name, file.extended_attribute(name))?, into, room) }?)
        });
        copied.map_or_else(next, |copied| copied.unwrap_or_else(refused))
    }

    fn flistxattr(descriptor: c_int, into: *mut c_char, room: usize) -> isize, |next| {
        let is_served = room == 0 || !into.is_null();
        let copied = of_open(Call::ListAttributes, descriptor, is_served, |file| {
            // SAFETY: the caller's buffer.
            Ok(unsafe { hand_over(list_of(file.extended_attributes()?), into.cast(), room) }?)
        });
        copied.map_or_else(next, |copied| copied.unwrap_or_else(refused))
    }

    fn fsetxattr(descriptor: c_int, name: *const c_char, value: *const c_void, bytes: usize, how: c_int) -> c_int, |next| {
        if !descriptions::is_taken(descriptor) {
            return next();
        }
        let is_served = bytes <= VALUE_BYTES_MAX && (bytes == 0 || !value.is_null());
        // SAFETY: the caller's name.
        let name = unsafe { changed(name) }.filter(|_| is_served);
        // SAFETY: the caller's value.
        let value = if bytes == 0 || name.is_none() { &[][..] } else { unsafe { std::slice::from_raw_parts(value.cast::<u8>(), bytes) } };
        let done = of_open(Call::SetAttribute, descriptor, name.is_some(), |file| {
            file.set_extended_attribute(name.unwrap_or_default(), value, how)
        });
        done.map_or_else(next, returned)
    }

    fn fremovexattr(descriptor: c_int, name: *const c_char) -> c_int, |next| {
        if !descriptions::is_taken(descriptor) {
            return next();
        }
        // SAFETY: the caller's name.
        let name = unsafe { changed(name) };
        let done = of_open(Call::RemoveAttribute, descriptor, name.is_some(), |file| file.remove_extended_attribute(name.unwrap_or_default()));
        done.map_or_else(next, returned)
    }
}

/// Names as flistxattr(2) has them, each with a NUL behind it.
fn list_of(names: Vec<OsString>) -> Vec<u8> {
    names.iter().flat_map(|name| name.as_bytes().iter().copied().chain([0])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_of_security_modules_are_words_of_the_list() {
        let list = b"nodev\tsysfs\nnodev\tselinuxfs\n\text4\n";
        assert!(has_word(list, b"selinuxfs") && has_word(list, b"ext4"));
        assert!(!has_word(list, b"smackfs") && !has_word(list, b"selinux") && !has_word(list, b"ext"));
    }

    #[test]
    fn a_list_of_names_is_as_the_kernels() {
        assert_eq!(list_of(vec!["user.a".into(), "user.bc".into()]), b"user.a\0user.bc\0");
        assert_eq!(list_of(Vec::new()), b"");
    }
}
