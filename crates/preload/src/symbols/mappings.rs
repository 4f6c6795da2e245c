//! mmap and its like: memory of the drive instead of the kernel's pages, where a program may store to the drive ([PRL20] of `lib.rs`).

use std::ffi::{c_int, c_long};

use tandemfs_client::Errno;

use super::{refused, returned};
use crate::mappings::{self, Moved, Wanted};
use crate::next::interpose;
use crate::sys;

pub(super) use mappings::are_there;

/// mmap(2), with libc's function.
fn map(
    start: usize,
    bytes: usize,
    (protection, flags): (c_int, c_int),
    (descriptor, offset): (c_int, i64),
    next: impl Fn() -> isize,
) -> isize {
    if flags & libc::MAP_ANONYMOUS == 0 {
        let wanted = Wanted::of(bytes, (protection, flags), offset);
        if let Some(mapped) = wanted.and_then(|wanted| mappings::map(descriptor, wanted)) {
            return mapped.map_or_else(refused, |start| start as isize);
        }
        super::used_by_kernel(descriptor);
        if let Some(wanted) = wanted {
            return or_again(descriptor, wanted, next);
        }
    }
    if flags & libc::MAP_FIXED != 0 && mappings::touches(start, bytes) {
        return mappings::covered(start, bytes, &next).map_or_else(next, |covered| covered.unwrap_or_else(refused));
    }
    next()
}

/// A mapping by the kernel, or one by the door of what the kernel does not map since it is mapped for stores.
fn or_again(descriptor: c_int, wanted: Wanted, next: impl Fn() -> isize) -> isize {
    let errno = sys::errno();
    match next() {
        -1 if sys::errno() == libc::ENODEV => match mappings::map_again(descriptor, wanted) {
            Some(start) => {
                sys::set_errno(errno);
                start as isize
            }
            None => refused(Errno::NODEV),
        },
        result => result,
    }
}

fn remap(start: usize, (bytes, new_bytes): (usize, usize), flags: c_int, target: usize, next: impl Fn() -> isize) -> isize {
    // No bytes: another mapping of what lies there, which would go on in the drive.
    if bytes == 0 && mappings::touches(start, 1) {
        return refused(Errno::INVAL);
    }
    if mappings::touches(start, bytes) {
        match mappings::remap(start, (bytes, new_bytes), flags) {
            Some(Moved::To(moved)) => return moved as isize,
            Some(Moved::Refused(error)) => return refused(error),
            Some(Moved::ByKernel) | None => {}
        }
    }
    if flags & libc::MREMAP_FIXED != 0 && mappings::touches(target, new_bytes) {
        return mappings::covered(target, new_bytes, &next).map_or_else(next, |covered| covered.unwrap_or_else(refused));
    }
    next()
}

fn sync(start: usize, bytes: usize, flags: c_int, next: impl Fn() -> c_int) -> c_int {
    let is_known = matches!(flags & !libc::MS_INVALIDATE, 0 | libc::MS_ASYNC | libc::MS_SYNC) && start.is_multiple_of(4096);
    if !is_known || !mappings::touches(start, bytes) {
        return next();
    }
    let synced = if flags & libc::MS_SYNC == 0 { Some(Ok(true)) } else { mappings::sync(start, bytes) };
    match synced {
        Some(Ok(true)) => 0,
        Some(Err(error)) => refused(error) as c_int,
        Some(Ok(false)) | None => next(),
    }
}

fn advise(start: usize, bytes: usize, advice: c_int, next: impl Fn() -> c_int) -> c_int {
    match advice {
        libc::MADV_REMOVE if mappings::touches(start, bytes) => returned(mappings::punch(start, bytes).map_or(Ok(()), Err)),
        // Those for loads are not inherited, and others are in any case.
        libc::MADV_DOFORK if mappings::touches(start, bytes) => 0,
        _ => next(),
    }
}

interpose! {
    fn mmap(start: usize, bytes: usize, protection: c_int, flags: c_int, descriptor: c_int, offset: libc::off_t) -> isize, |next| {
        map(start, bytes, (protection, flags), (descriptor, offset), next)
    }

    fn mmap64(start: usize, bytes: usize, protection: c_int, flags: c_int, descriptor: c_int, offset: libc::off_t) -> isize, |next| {
        map(start, bytes, (protection, flags), (descriptor, offset), next)
    }

    fn munmap(start: usize, bytes: usize) -> c_int, |next| {
        if !mappings::touches(start, bytes) || !start.is_multiple_of(4096) {
            return next();
        }
        // SAFETY: parts of what the caller unmaps.
        let unmapped = mappings::unmap(start, bytes, |start, bytes| unsafe { sys::call(libc::SYS_munmap, [start, bytes, 0, 0, 0]) });
        unmapped.map_or_else(next, returned)
    }

    fn mremap(start: usize, bytes: usize, new_bytes: usize, flags: c_int, target: usize) -> isize, |next| {
        remap(start, (bytes, new_bytes), flags, target, next)
    }

    fn mprotect(start: usize, bytes: usize, protection: c_int) -> c_int, |next| {
        if protection & libc::PROT_WRITE != 0 && mappings::touches(start, bytes) {
            mappings::before_stores(start, bytes);
        }
        next()
    }

    fn msync(start: usize, bytes: usize, flags: c_int) -> c_int, |next| {
        sync(start, bytes, flags, next)
    }

    fn madvise(start: usize, bytes: usize, advice: c_int) -> c_int, |next| {
        advise(start, bytes, advice, next)
    }

    fn remap_file_pages(start: usize, bytes: usize, protection: c_int, page: usize, flags: c_int) -> c_int, |next| {
        if mappings::touches(start, bytes) { refused(Errno::INVAL) as c_int } else { next() }
    }
}

/// One of these by `syscall`.
///
/// # Safety
/// As the call.
pub(super) unsafe fn call(number: c_long, arguments: [c_long; 6]) -> c_long {
    let [a, b, c, d, e, f] = arguments;
    let (start, bytes) = (a as usize, b as usize);
    // SAFETY: the caller's arguments.
    unsafe {
        match number {
            libc::SYS_mmap => mmap(start, bytes, c as c_int, d as c_int, e as c_int, f) as c_long,
            libc::SYS_munmap => munmap(start, bytes).into(),
            libc::SYS_mremap => mremap(start, bytes, c as usize, d as c_int, e as usize) as c_long,
            libc::SYS_mprotect => mprotect(start, bytes, c as c_int).into(),
            libc::SYS_msync => msync(start, bytes, c as c_int).into(),
            libc::SYS_madvise => madvise(start, bytes, c as c_int).into(),
            _ => remap_file_pages(start, bytes, c as c_int, d as usize, e as c_int).into(),
        }
    }
}
