//! Listings.

use std::ffi::{c_char, c_int};
use std::os::unix::ffi::OsStrExt;

use parking_lot::Mutex;
use tandemfs_client::Tree;

use crate::failure::Failure;
use crate::guard::guarded;
use crate::held::{DirectoryHandle, MountHandle};
use crate::memory::{Answer, handle, path, take};
use crate::types::{Entry, TANDEMFS_NAME_BYTES};

/// Opens a directory to list it, as opendir(3), and stores a handle in `*directory`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_opendir(mount: *const MountHandle, path: *const c_char, directory: *mut *mut DirectoryHandle) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        let (mount, path, directory) = unsafe { (handle(mount)?, self::path(path)?, Answer::at(directory)?) };
        directory.give(mount.read_directory(path).map(Mutex::new).map_err(Into::into))?;
        Ok(0)
    })
}

/// Stores the next entry in `*entry`, among them "." and "..", and returns 1; returns 0 at the end, where nothing is stored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_readdir(directory: *const DirectoryHandle, entry: *mut Entry) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        let (directory, entry) = unsafe { (handle(directory)?, Answer::at(entry)?) };
        let Some(next) = directory.lock().next() else { return Ok(0) };
        let next = next?;
        let (given, mut name) = (next.name().as_bytes(), [0; TANDEMFS_NAME_BYTES]);
        if given.len() >= name.len() {
            return Err(Failure::of(libc::ENAMETOOLONG));
        }
        name.iter_mut().zip(given).for_each(|(place, byte)| *place = *byte as c_char);
        entry.store(Entry { inode: next.inode(), cookie: next.cookie(), kind: next.kind(), name });
        Ok(1)
    })
}

/// Goes on behind the entry with this cookie; 0 is the start.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_seekdir(directory: *const DirectoryHandle, cookie: u64) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        unsafe { handle(directory) }?.lock().seek(cookie);
        Ok(0)
    })
}

/// Closes a listing and frees its handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_closedir(directory: *mut DirectoryHandle) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        drop(unsafe { take(directory) }?);
        Ok(0)
    })
}
