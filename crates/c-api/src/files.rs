//! Open files.

use std::ffi::{c_int, c_void};
use std::os::fd::IntoRawFd;

use crate::guard::guarded;
use crate::held::FileHandle;
use crate::memory::{Answer, bytes, handle, room, take};
use crate::types::Attributes;

/// As close(2), and frees the handle, whatever it returns. Mappings of the file stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_close(file: *mut FileHandle) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        unsafe { take(file) }?.close()?;
        Ok(0)
    })
}

/// As pread(2): returns how many bytes were read, 0 at the end of the file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_pread(file: *const FileHandle, into: *mut c_void, length: usize, offset: u64) -> i64 {
    guarded(|| {
        // SAFETY: as the header says.
        let (file, into) = unsafe { (handle(file)?, room(into, length)?) };
        Ok(file.read_at(into, offset)? as i64)
    })
}

/// As pwrite(2): returns how many bytes were written. They are durable then where the mount promises that of a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_pwrite(file: *const FileHandle, from: *const c_void, length: usize, offset: u64) -> i64 {
    guarded(|| {
        // SAFETY: as the header says.
        let (file, from) = unsafe { (handle(file)?, bytes(from, length)?) };
        Ok(file.write_at(from, offset)? as i64)
    })
}

/// Writes at the end of the file, as pwritev2(2) with `RWF_APPEND`: returns how many bytes, and stores the offset behind them in `*end`, which may be
/// null. Up to 1 MiB no write of others comes between.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_append(file: *const FileHandle, from: *const c_void, length: usize, end: *mut u64) -> i64 {
    guarded(|| {
        // SAFETY: as the header says.
        let (file, from) = unsafe { (handle(file)?, bytes(from, length)?) };
        let (done, behind) = file.append(from)?;
        // SAFETY: as the header says.
        if let Ok(end) = unsafe { Answer::at(end) } {
            end.store(behind);
        }
        Ok(done as i64)
    })
}

/// As fstat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_fstat(file: *const FileHandle, attributes: *mut Attributes) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        let (file, attributes) = unsafe { (handle(file)?, Answer::at(attributes)?) };
        attributes.store(file.attributes()?.into());
        Ok(0)
    })
}

/// As ftruncate(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_ftruncate(file: *const FileHandle, length: u64) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        unsafe { handle(file) }?.set_length(length)?;
        Ok(0)
    })
}

/// As fallocate(2), with its flags.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_fallocate(file: *const FileHandle, flags: u32, offset: u64, length: u64) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        unsafe { handle(file) }?.allocate(flags, offset, length)?;
        Ok(0)
    })
}

/// As fsync(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_fsync(file: *const FileHandle) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        unsafe { handle(file) }?.sync_all()?;
        Ok(0)
    })
}

/// As fdatasync(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_fdatasync(file: *const FileHandle) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        unsafe { handle(file) }?.sync_data()?;
        Ok(0)
    })
}

/// Returns a descriptor of the mount for this file, with the same access and flags and an offset of its own, for calls that are not here: locks,
/// extended attributes, mmap(2). Also of a directory. It is closed on exec, and yours to close.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_descriptor(file: *const FileHandle) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        Ok(unsafe { handle(file) }?.descriptor()?.into_raw_fd())
    })
}
