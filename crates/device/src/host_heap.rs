//! The heap of the C library, which keeps freed memory of small pieces for later.

/// Gives what is free in the heap back to the system, as far as it is whole pages. Threads that allocate meanwhile wait, for some milliseconds a
/// gigabyte, so this is for when much was freed at once. Does nothing with other C libraries than glibc.
pub fn give_back_free_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no pointer, may be called by any thread at any time, and only gives pages back that hold no allocation.
    let _is_any = unsafe { libc::malloc_trim(0) };
}
