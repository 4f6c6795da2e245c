//! The functions of libc that this library stands in front of.

mod attributes;
mod changes;
mod credentials;
mod data;
mod descriptors;
mod extended_attributes;
mod names;
mod open;
mod placeholders;
mod real;

use std::ffi::c_int;

use tandemfs_client::Errno;

use crate::sys;

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
