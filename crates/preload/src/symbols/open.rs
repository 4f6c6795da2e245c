//! open and its like: a regular file of the mount is opened by the door alone, under a placeholder, where that surely does what the mount would
//! do ([PRL12]–[PRL15] of `lib.rs`).

use std::ffi::{CStr, c_char, c_int};
use std::path::Path;
use std::sync::Arc;

use tandemfs_client::{Errno, Error, Start, Tree};

use super::{HERE, refused};
use crate::call::{Kind, Named, by_begun, is_known_absent, leave_to_kernel_because};
use crate::descriptions::{self, Opening};
use crate::door::Door;
use crate::mutant::{Mutant, on};
use crate::next::interpose;
use crate::report::{Call, Way, count};
use crate::{settings, start};

/// O_LARGEFILE as the kernel knows it; libc's is nothing on 64-bit machines.
const LARGE_FILE: c_int = if cfg!(target_arch = "aarch64") { 0o400_000 } else { 0o100_000 };
/// Flags of open(2) that a placeholder can have. The others are the kernel's: O_DIRECT, O_PATH, O_TMPFILE, O_ASYNC, O_NOATIME.
const FLAGS: c_int = libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_CLOEXEC
    | libc::O_NOFOLLOW
    | libc::O_DIRECTORY
    | libc::O_NOCTTY
    | libc::O_NONBLOCK
    | libc::O_SYNC
    | LARGE_FILE;
/// Permissions to execute a file.
const EXECUTE: u32 = 0o111;
/// Bits by which a program gets other rights.
const SET_ID: u32 = 0o6000;
/// Those of the owner to read and to write.
const OWN: u32 = 0o600;
/// Largest file that is read by the door when it is opened to be read alone ([PRL10] of `lib.rs`).
const READ_BYTES_MAX: u64 = 1 << 20;

fn is_served(flags: c_int, mode: libc::mode_t) -> bool {
    let truncates_unwritten = flags & libc::O_TRUNC != 0 && flags & libc::O_ACCMODE == libc::O_RDONLY;
    // A call that may make a file can be left to the mount afterwards only if who has made it may open it again.
    let makes_what_is_closed = flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT && mode & (OWN | EXECUTE) != OWN;
    // To empty a file takes these bits away, which Linux does not do to one that it has just made.
    let gives_rights = flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT && mode & SET_ID != 0;
    // O_TMPFILE has the bit of O_DIRECTORY.
    let makes_directory = flags & (libc::O_CREAT | libc::O_DIRECTORY) == libc::O_CREAT | libc::O_DIRECTORY;
    let is_odd = makes_directory || truncates_unwritten || makes_what_is_closed || gives_rights;
    flags & !FLAGS == 0 && flags & libc::O_ACCMODE != libc::O_ACCMODE && !is_odd
}

/// openat(2) by the door; none if the mount has to do it.
///
/// # Safety
/// As openat(2)'s.
pub(super) unsafe fn open_by_door(named: Named, flags: c_int, mode: libc::mode_t) -> Option<c_int> {
    let settings = settings::get().filter(|settings| settings.placeholders)?;
    let changes = flags & (libc::O_CREAT | libc::O_TRUNC) != 0;
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
    let is_read_seldom = !changes && !writes && settings.calls_before != 0;
    if !is_served(flags, mode) {
        // SAFETY: the caller's path. If it names a placeholder, that becomes real.
        unsafe { leave_to_kernel_because(Way::Arguments, Call::Open, named) };
        return None;
    }
    if let Err(why) = descriptions::may_try(settings.calls_before == 0) {
        // SAFETY: as above.
        if unsafe { leave_to_kernel_because(why, Call::Open, named) } {
            descriptions::passes();
        }
        return None;
    }
    // SAFETY: the caller's path.
    let begun = unsafe { start::of(settings, named.0, named.1) }?;
    if flags & libc::O_CREAT == 0 && is_known_absent(&begun, flags & libc::O_NOFOLLOW == 0) {
        count(Call::Open, Way::Door);
        return Some(refused(Errno::NOENT) as c_int);
    }
    let kind = if changes { Kind::Changes } else { Kind::Looks };
    let must_be_new = flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL;
    let work = |door: &Arc<Door>, start: Start<'_>, path: &Path| -> std::result::Result<tandemfs_client::Result<c_int>, Way> {
        if !door.mount().sends_descriptors() {
            return Err(Way::NotServed);
        }
        let moment = descriptions::may_open()?;
        // Before a file is made.
        let number = match descriptions::reserve(flags)? {
            Ok(number) => number,
            Err(error) => return Ok(Err(error.into())),
        };
        // Whether the file may be emptied is seen when it is open.
        let (file, found) = match start.open_and_stat(path, flags & !libc::O_TRUNC, mode) {
            Ok(opened) => opened,
            Err(Error::Errno(Errno::MFILE | Errno::NOMEM | Errno::NOSPC)) => return Err(Way::NoMemory),
            Err(error) => return Ok(Err(error)),
        };
        let kind = found.mode & libc::S_IFMT;
        let is_directory = kind == libc::S_IFDIR && !changes && !writes;
        if kind != libc::S_IFREG && !is_directory {
            return Err(Way::NotRegular);
        }
        // [PRL10]
        if is_read_seldom && !is_directory && found.size_bytes > READ_BYTES_MAX {
            return Err(Way::Pages);
        }
        // [PRL15]
        if writes && kind == libc::S_IFREG && found.mode & EXECUTE != 0 && !must_be_new && !on(Mutant::ProgramsWritten) {
            return Err(Way::Executable);
        }
        // [PRL14]
        if !must_be_new && descriptions::is_of_mount(found.node) {
            return Err(Way::KernelNeeded);
        }
        if flags & libc::O_TRUNC != 0
            && !must_be_new
            && let Err(error) = file.set_length(0)
        {
            return Ok(Err(error));
        }
        // SAFETY: the caller's path, which is none of a call that came here without one.
        let place = (named.0, unsafe { CStr::from_ptr(named.1) });
        let opening =
            Opening { inode: found.node, flags, is_directory, is_read_seldom: is_read_seldom && !is_directory, is_made: must_be_new };
        descriptions::add(number, (file, Arc::clone(door)), opening, place, moment).map(Ok)
    };
    let opened = by_begun(settings, Call::Open, kind, named.0, &begun, work)?;
    Some(opened.unwrap_or_else(|error| refused(error) as c_int))
}

/// The path of a call that the kernel follows may name a descriptor ([PRL13]).
///
/// # Safety
/// Null, or a text that ends with NUL.
pub(super) unsafe fn before_path(path: *const c_char) {
    if descriptions::are_there() && !path.is_null() {
        // SAFETY: the caller's text.
        start::before_path(unsafe { CStr::from_ptr(path) }.to_bytes());
    }
}

const CREATES: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

macro_rules! opens {
    ($($name:ident)*) => { interpose! {$(
        fn $name(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int, |next| {
            // SAFETY: the caller's arguments. Without O_CREAT the mode is any number, which nobody looks at.
            unsafe { open_by_door((HERE, path), flags, mode) }.unwrap_or_else(next)
        }
    )*} };
}

macro_rules! opens_at {
    ($($name:ident)*) => { interpose! {$(
        fn $name(directory: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int, |next| {
            // SAFETY: as above.
            unsafe { open_by_door((directory, path), flags, mode) }.unwrap_or_else(next)
        }
    )*} };
}

macro_rules! creates {
    ($($name:ident)*) => { interpose! {$(
        fn $name(path: *const c_char, mode: libc::mode_t) -> c_int, |next| {
            // SAFETY: the caller's arguments.
            unsafe { open_by_door((HERE, path), CREATES, mode) }.unwrap_or_else(next)
        }
    )*} };
}

opens! { open open64 __open __open64 }
opens_at! { openat openat64 }
creates! { creat creat64 }

interpose! {
    fn __open_2(path: *const c_char, flags: c_int) -> c_int, |next| {
        // SAFETY: the caller's arguments. libc ends a program that gives no mode where one is needed.
        let done = if flags & libc::O_CREAT == 0 { unsafe { open_by_door((HERE, path), flags, 0) } } else { None };
        done.unwrap_or_else(next)
    }

    fn __open64_2(path: *const c_char, flags: c_int) -> c_int, |next| {
        // SAFETY: as above.
        let done = if flags & libc::O_CREAT == 0 { unsafe { open_by_door((HERE, path), flags, 0) } } else { None };
        done.unwrap_or_else(next)
    }

    fn __openat_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int, |next| {
        // SAFETY: as above.
        let done = if flags & libc::O_CREAT == 0 { unsafe { open_by_door((directory, path), flags, 0) } } else { None };
        done.unwrap_or_else(next)
    }

    fn __openat64_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int, |next| {
        // SAFETY: as above.
        let done = if flags & libc::O_CREAT == 0 { unsafe { open_by_door((directory, path), flags, 0) } } else { None };
        done.unwrap_or_else(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_are_the_kernels_are_not_served() {
        let new = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
        assert!(is_served(new | libc::O_CLOEXEC | libc::O_APPEND | libc::O_DSYNC, 0o400) && is_served(new, 0o755));
        assert!(is_served(CREATES, 0o644) && is_served(libc::O_RDONLY | LARGE_FILE, 0));
        for flags in [libc::O_DIRECT, libc::O_PATH, libc::O_DIRECTORY | new, libc::O_TMPFILE | libc::O_RDWR, libc::O_ACCMODE, libc::O_TRUNC]
        {
            assert!(!is_served(flags, 0o600), "{flags:#o}");
        }
        assert!([0o755, 0o400, 0o200, 0, 0o4600, 0o2644].iter().all(|mode| !is_served(CREATES, *mode)));
        assert!(is_served(new | libc::O_TRUNC, 0o4755));
    }
}
