use tandemfs_wire::{InitFlags, Wanted};

/// Requests of read-ahead and write-back in flight.
const BACKGROUND_MAX: u16 = 64;

/// Sizes and abilities that every mount of TandemFS agrees on with the kernel; also for a file system that is measured beside one, so that
/// the kernel sends both the same requests. Over io_uring requests come where [`crate::MountSettings::serving`] says so.
pub fn wanted(write_back_cache: bool, access_lists: bool, request_bytes_max: u32) -> Wanted {
    let always = [
        InitFlags::ASYNC_READ,
        InitFlags::DO_READDIRPLUS,
        InitFlags::READDIRPLUS_AUTO,
        InitFlags::PARALLEL_DIROPS,
        InitFlags::ASYNC_DIO,
        InitFlags::CACHE_SYMLINKS,
        InitFlags::HANDLE_KILLPRIV_V2,
        // Look-ups of "." and ".." by number: open_by_handle_at, and so NFS.
        InitFlags::EXPORT_SUPPORT,
        InitFlags::DIRECT_IO_ALLOW_MMAP,
        // Pages stay when a size changes: nobody else changes them ([DO1] of `door.rs`).
        InitFlags::EXPLICIT_INVAL_DATA,
    ];
    let of_lists = access_lists.then_some(InitFlags::POSIX_ACL | InitFlags::DONT_MASK); // [DO5] of `door.rs`
    let write_back = write_back_cache.then_some(InitFlags::WRITEBACK_CACHE);
    Wanted {
        flags: always.into_iter().chain(write_back).chain(of_lists).collect(),
        max_write: request_bytes_max,
        max_readahead: request_bytes_max,
        max_background: BACKGROUND_MAX,
        ..Wanted::default()
    }
}
