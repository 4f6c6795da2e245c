//! The functions of libc that this library stands in front of.

mod attributes;
mod changes;
mod copies;
mod credentials;
mod data;
mod descriptors;
mod extended_attributes;
mod mappings;
mod names;
mod open;
mod placeholders;
mod real;
mod streams;

use std::ffi::{c_int, c_long};

use tandemfs_client::Errno;

use crate::call::Named;
use crate::{descriptions, door, settings, start, sys};

/// The path of a call that has no directory.
const HERE: c_int = libc::AT_FDCWD;

/// A result as libc returns it.
fn returned(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => refused(error) as c_int,
    }
}

fn refused(error: Errno) -> isize {
    sys::set_errno(error.raw_os_error());
    -1
}

/// Before the kernel uses more of a descriptor's file than bytes at an offset ([PRL14] of `lib.rs`), also of one that was real from the start.
fn used_by_kernel(descriptor: c_int) {
    descriptions::real(descriptor);
    if descriptions::are_over() {
        return;
    }
    let settings = settings::get().filter(|settings| settings.placeholders);
    if let Some(found) = settings.and_then(|settings| settings.mount.known(descriptor)) {
        descriptions::is_used_by_kernel(found.stx_ino);
    }
}

/// As [`used_by_kernel`], before a lock of the process, which ends with any descriptor of the file that is closed: mappings of it that would become the
/// mount's later, by such a descriptor, do so before.
fn locked_by_kernel(descriptor: c_int) {
    descriptions::real(descriptor);
    if mappings::are_there()
        && let Some(found) = settings::get().and_then(|settings| settings.mount.known(descriptor))
    {
        crate::mappings::before_lock(found.stx_ino);
    }
    used_by_kernel(descriptor);
}

/// Whether clone(2) with these flags makes a process that has the descriptors of this one in common with it, and is no thread: it knows nothing of
/// placeholders that are made here while it runs.
fn shares_descriptors(flags: c_long) -> bool {
    flags & c_long::from(libc::CLONE_FILES) != 0 && flags & c_long::from(libc::CLONE_THREAD) == 0
}

/// Before a program watches a path: what it changes itself is told to it at once by the mount ([PRL17] of `lib.rs`).
///
/// # Safety
/// The path is null, or a text that ends with NUL and stays as it is.
unsafe fn watching((directory, path): Named) {
    let Some(settings) = settings::get() else { return };
    let is_here = if path.is_null() {
        settings.mount.inode(directory, c"").is_some()
    } else {
        // SAFETY: the caller's text.
        let is_here = unsafe { start::of(settings, directory, path) }.is_some();
        descriptions::real(directory);
        is_here
    };
    if is_here {
        sandboxed();
    }
}

/// Before a process limits what it may ask of the kernel (seccomp), which may not be enough for this library, or what it may open (Landlock),
/// of which the daemon does not know: everything goes by the mount from now on.
fn sandboxed() {
    // Not in a child of vfork, whose memory is that of its parent.
    if door::is_own_process() {
        door::end();
        settings::leave();
    }
}
