use tandemfs_wire::{InitFlags, Wanted};

/// Most background requests (read-ahead and writeback) in flight.
const BACKGROUND_MAX: u16 = 64;

/// The flags and sizes that every TandemFS mount negotiates with the kernel. Benchmarks use them too for the file system that they compare
/// with, so that the kernel sends both the same requests. [`crate::MountSettings::serving`] decides on io_uring. The mount needs
/// `default_permissions`.
pub fn wanted(write_back_cache: bool, access_lists: bool, request_bytes_max: u32) -> Wanted {
    let always = [
        InitFlags::ASYNC_READ,
        InitFlags::DO_READDIRPLUS,
        InitFlags::READDIRPLUS_AUTO,
        InitFlags::PARALLEL_DIROPS,
        InitFlags::ASYNC_DIO,
        InitFlags::CACHE_SYMLINKS,
        InitFlags::HANDLE_KILLPRIV_V2,
        // Lookups of "." and ".." by number: open_by_handle_at, and so NFS.
        InitFlags::EXPORT_SUPPORT,
        InitFlags::DIRECT_IO_ALLOW_MMAP,
        // Pages stay when the size changes, since nobody else changes the file ([DO1] of `door.rs`).
        InitFlags::EXPLICIT_INVAL_DATA,
        // The kernel says whether an access control list takes the set-group-id bit ([DO5] of `door.rs`).
        InitFlags::SETXATTR_EXT,
        InitFlags::ALLOW_IDMAP, // [DO6] of `door.rs`
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
