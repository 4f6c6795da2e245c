use fuser::{InitFlags, KernelConfig};

/// Requests of read-ahead and write-back in flight.
const BACKGROUND_MAX: u16 = 64;

/// Agrees on sizes and abilities with the kernel, as every mount of TandemFS does; also for a file system that is measured beside one, so
/// that the kernel sends both the same requests.
pub fn negotiate(config: &mut KernelConfig, write_back_cache: bool, access_lists: bool, request_bytes_max: u32) {
    let wanted = [
        InitFlags::FUSE_DO_READDIRPLUS,
        InitFlags::FUSE_READDIRPLUS_AUTO,
        InitFlags::FUSE_PARALLEL_DIROPS,
        InitFlags::FUSE_ASYNC_DIO,
        InitFlags::FUSE_CACHE_SYMLINKS,
        InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        // Look-ups of "." and ".." by number: open_by_handle_at, and so NFS.
        InitFlags::FUSE_EXPORT_SUPPORT,
        InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        // Pages stay when a size changes: nobody else changes them ([DO1] of `door.rs`).
        InitFlags::FUSE_EXPLICIT_INVAL_DATA,
        // Where an administrator allows it: a request is served on its caller's CPU.
        InitFlags::FUSE_OVER_IO_URING,
    ];
    let of_lists = access_lists.then_some(InitFlags::FUSE_POSIX_ACL | InitFlags::FUSE_DONT_MASK); // [DO5] of `door.rs`
    let write_back = write_back_cache.then_some(InitFlags::FUSE_WRITEBACK_CACHE);
    for flag in wanted.into_iter().chain(write_back).chain(of_lists) {
        if config.add_capabilities(flag).is_err() {
            tracing::info!(?flag, "the kernel does not offer this");
        }
    }
    // The nearest possible value where the kernel allows less.
    if let Err(possible) = config.set_max_write(request_bytes_max) {
        let _ = config.set_max_write(possible);
    }
    if let Err(possible) = config.set_max_readahead(request_bytes_max) {
        let _ = config.set_max_readahead(possible);
    }
    let _ = config.set_max_background(BACKGROUND_MAX);
}
