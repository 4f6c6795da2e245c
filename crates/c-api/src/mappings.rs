//! Mapped ranges of files.

use std::ffi::{c_int, c_void};

use crate::failure::Failure;
use crate::guard::guarded;
use crate::held::{FileHandle, MappingHandle};
use crate::memory::{Answer, bytes, handle, room, take};
use crate::types::TANDEMFS_MAP_WRITABLE;

/// Maps a range of a file that lies in the drive's memory, for loads or, with `TANDEMFS_MAP_WRITABLE`, for stores as well, and stores a handle in
/// `*mapping`. It begins at a multiple of 4096 B (2 MiB on a device that maps in such steps) and ends with the file at the latest. The file may be closed.
/// Others change its bytes at any time, as those of any shared mapping.
///
/// `EREMOTE`: map it by the mount (`tandemfs_descriptor`), since the connection maps nothing or the kernel has pages of the file. `EBADF`, `EACCES`: it
/// is not open for reading, for writing. `EINVAL`: an empty range, one that begins elsewhere or ends behind the file; other flags. `EOPNOTSUPP`: the home of
/// the file is not the drive's memory. `ENOSPC`: there is no room for its bytes there. `ENOMEM`: it lies in too many pieces, or there
/// are too many mappings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_map(
    file: *const FileHandle,
    offset: u64,
    length: u64,
    flags: u32,
    mapping: *mut *mut MappingHandle,
) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        let (file, mapping) = unsafe { (handle(file)?, Answer::at(mapping)?) };
        let end = offset.checked_add(length).ok_or(Failure::of(libc::EINVAL))?;
        let mapped = match flags {
            0 => file.map(offset..end),
            TANDEMFS_MAP_WRITABLE => file.map_writable(offset..end),
            _ => return Err(Failure::of(libc::EINVAL)),
        };
        mapping.give(mapped.map_err(Into::into))?;
        Ok(0)
    })
}

/// Stores the address of the first byte in `*address`. It is valid until the mapping is unmapped, for as many bytes as were mapped. Only to a
/// writable one can be stored. A load of memory that cannot be read is a SIGBUS. Forked children have writable mappings, too, and no others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_mapping_address(mapping: *const MappingHandle, address: *mut *mut c_void) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        let (mapping, address) = unsafe { (handle(mapping)?, Answer::at(address)?) };
        address.store(mapping.as_ptr().cast_mut().cast());
        Ok(0)
    })
}

/// Copies bytes out of a mapping, from an offset in it. `EINVAL`: behind its end. `EIO`: memory that cannot be read, instead of a SIGBUS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_mapping_load(mapping: *const MappingHandle, offset: u64, into: *mut c_void, length: usize) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        let (mapping, into) = unsafe { (handle(mapping)?, room(into, length)?) };
        if into.len() != length {
            return Err(Failure::of(libc::EINVAL));
        }
        mapping.load(offset, into)?;
        Ok(0)
    })
}

/// Copies bytes into a mapping, at an offset in it; others see them at once. `EACCES`: it is for loads alone. `EINVAL`: behind its end. `EIO`: memory that
/// cannot be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_mapping_store(mapping: *const MappingHandle, offset: u64, from: *const c_void, length: usize) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        let (mapping, from) = unsafe { (handle(mapping)?, bytes(from, length)?) };
        if from.len() != length {
            return Err(Failure::of(libc::EINVAL));
        }
        mapping.store(offset, from)?;
        Ok(0)
    })
}

/// Stores 8 bytes at a multiple of 8 in a mapping, at once: a crash leaves the old ones or these. Errors as `tandemfs_mapping_store`, and `EINVAL` at
/// another offset.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_mapping_store_word(mapping: *const MappingHandle, offset: u64, word: u64) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        unsafe { handle(mapping) }?.store_word(offset, word)?;
        Ok(0)
    })
}

/// Makes durable what this process has stored to a range of a mapping, as msync(2) with `MS_SYNC`, without a system call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_mapping_sync(mapping: *const MappingHandle, offset: u64, length: u64) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        unsafe { handle(mapping) }?.sync(offset, length)?;
        Ok(0)
    })
}

/// Unmaps a mapping and frees its handle. A forked child frees the handle alone, and has a writable mapping until it ends or executes another
/// program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_unmap(mapping: *mut MappingHandle) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        drop(unsafe { take(mapping) }?);
        Ok(0)
    })
}
