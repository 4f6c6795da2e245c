use std::fs;

use tandemfs_wire::{InitFlags, Wanted};

/// Largest WRITE and READ by default.
const REQUEST_BYTES: u32 = 1 << 20;
/// Largest WRITE and READ where the kernel allows more. Each thread that serves requests keeps memory for one.
const REQUEST_BYTES_MAX: u32 = 4 << 20;
/// The kernel's default for the pages of a request, also before there was a parameter (Linux 6.13).
const PAGES_DEFAULT: u32 = 256;

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

/// Largest WRITE and READ of mounts made from now on: more than by default if the administrator has raised `fs.fuse.max_pages_limit`. If it
/// was lowered, the kernel itself cuts requests.
pub fn request_bytes_max() -> u32 {
    let limit = fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit").ok();
    of_limit(limit.and_then(|text| text.trim().parse().ok()).unwrap_or(PAGES_DEFAULT), rustix::param::page_size())
}

fn of_limit(pages: u32, page_bytes: usize) -> u32 {
    if pages <= PAGES_DEFAULT {
        return REQUEST_BYTES;
    }
    let bytes = u64::from(pages).saturating_mul(page_bytes as u64).clamp(REQUEST_BYTES.into(), REQUEST_BYTES_MAX.into()) as u32;
    bytes / REQUEST_BYTES * REQUEST_BYTES // A long write is cut at borders of blocks.
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_grow_only_above_the_default_limit_and_not_without_end() {
        for (pages, page_bytes, expected) in [
            (0, 4096, 1 << 20),
            (1, 4096, 1 << 20),
            (256, 4096, 1 << 20),
            (257, 4096, 1 << 20),
            (767, 4096, 2 << 20),
            (1024, 4096, 4 << 20),
            (1025, 4096, 4 << 20),
            (65_535, 4096, 4 << 20),
            (u32::MAX, 4096, 4 << 20),
            (256, 65_536, 1 << 20),
            (257, 65_536, 4 << 20),
        ] {
            assert_eq!(of_limit(pages, page_bytes), expected, "{pages} pages of {page_bytes} B");
        }
    }

    #[test]
    fn a_larger_write_is_agreed_with_its_pages() {
        let wanted = wanted(true, true, REQUEST_BYTES_MAX);
        assert_eq!((wanted.max_write, wanted.max_pages), (REQUEST_BYTES_MAX, None), "as many pages as the bytes need");
    }
}
