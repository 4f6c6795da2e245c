//! System calls past libc, whose functions this library stands in front of, and errno.

use std::ffi::{CStr, c_int};
use std::io::Write;
use std::ops::Range;

use tandemfs_client::Errno;

/// A system call. The result is as the kernel returns it: a negative errno on failure.
///
/// # Safety
/// As the call says of its arguments.
#[cfg(target_arch = "x86_64")]
unsafe fn call_with_six(number: libc::c_long, arguments: [usize; 6]) -> isize {
    let result: isize;
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the kernel changes nothing but the result, rcx, r11 and what the arguments point to, which the caller answers for.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    result
}

/// A system call. The result is as the kernel returns it: a negative errno on failure.
///
/// # Safety
/// As the call says of its arguments.
#[cfg(target_arch = "aarch64")]
unsafe fn call_with_six(number: libc::c_long, arguments: [usize; 6]) -> isize {
    let result: isize;
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the kernel changes nothing but the result and what the arguments point to, which the caller answers for.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number, inlateout("x0") a => result, in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack)
        );
    }
    result
}

/// A system call. The result is as the kernel returns it: a negative errno on failure.
///
/// # Safety
/// As the call says of its arguments.
pub(crate) unsafe fn call(number: libc::c_long, arguments: [usize; 5]) -> isize {
    let [a, b, c, d, e] = arguments;
    // SAFETY: the caller's arguments.
    unsafe { call_with_six(number, [a, b, c, d, e, 0]) }
}

/// Puts a shared mapping of a file at addresses of the caller's.
pub(crate) fn map_shared_at(place: Range<usize>, protection: c_int, descriptor: c_int, offset: u64) -> Result<(), Errno> {
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    let arguments = [place.start, place.end - place.start, protection as usize, flags as usize, descriptor as usize, offset as usize];
    // SAFETY: the caller has these addresses.
    match unsafe { call_with_six(libc::SYS_mmap, arguments) } {
        failed @ -4095..0 => Err(Errno::from_raw_os_error(-failed as i32)),
        _ => Ok(()),
    }
}

/// Unmaps addresses of the caller's, and keeps them so that nobody gets them.
pub(crate) fn reserve(place: Range<usize>) -> Result<(), Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let arguments = [place.start, place.end - place.start, libc::PROT_NONE as usize, flags as usize, usize::MAX, 0];
    // SAFETY: as above.
    match unsafe { call_with_six(libc::SYS_mmap, arguments) } {
        failed @ -4095..0 => Err(Errno::from_raw_os_error(-failed as i32)),
        _ => Ok(()),
    }
}

/// Memory of zeros, which a forked child finds as zeros again, whatever was in it; none if the kernel refuses.
pub(crate) fn page_empty_in_children(bytes: usize) -> Option<*mut u8> {
    let bytes = bytes.next_multiple_of(4096);
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping.
    let start = unsafe { call_with_six(libc::SYS_mmap, [0, bytes, protection as usize, flags as usize, usize::MAX, 0]) };
    if (-4095..0).contains(&start) {
        return None;
    }
    // SAFETY: the mapping that was made here.
    let empties = unsafe { call(libc::SYS_madvise, [start as usize, bytes, libc::MADV_WIPEONFORK as usize, 0, 0]) };
    (empties == 0).then_some(start as *mut u8)
}

pub(crate) fn process_id() -> i32 {
    // SAFETY: no arguments.
    unsafe { call(libc::SYS_getpid, [0; 5]) as i32 }
}

pub(crate) fn thread_id() -> i32 {
    // SAFETY: no arguments.
    unsafe { call(libc::SYS_gettid, [0; 5]) as i32 }
}

/// Whether there is a thread of that id in this process.
pub(crate) fn is_thread(thread: i32) -> bool {
    // SAFETY: no signal is sent.
    unsafe { call(libc::SYS_tgkill, [process_id() as usize, thread as usize, 0, 0, 0]) == 0 }
}

/// The ids that a thread's accesses have, but for setfsuid(2).
pub(crate) fn effective_ids() -> (u32, u32) {
    // SAFETY: no arguments.
    unsafe { (call(libc::SYS_geteuid, [0; 5]) as u32, call(libc::SYS_getegid, [0; 5]) as u32) }
}

/// statx(2) without a request to the daemon: AT_STATX_DONT_SYNC. None on failure.
pub(crate) fn known(directory: c_int, path: &CStr, flags: c_int, mask: u32) -> Option<libc::statx> {
    // SAFETY: all-zero is a value of this plain structure.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let flags = flags | libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT;
    let arguments = [directory as usize, path.as_ptr() as usize, flags as usize, mask as usize, &raw mut found as usize];
    // SAFETY: the path ends with NUL, and the kernel fills in the structure.
    let result = unsafe { call(libc::SYS_statx, arguments) };
    (result == 0).then_some(found)
}

/// readlink(2) of a file of `/proc`; none on failure and if the target does not fit.
fn link_target<'b>(path: &CStr, into: &'b mut [u8]) -> Option<&'b [u8]> {
    let arguments = [libc::AT_FDCWD as usize, path.as_ptr() as usize, into.as_mut_ptr() as usize, into.len(), 0];
    // SAFETY: the path ends with NUL, and the kernel writes into the buffer, whose length it is told.
    let result = unsafe { call(libc::SYS_readlinkat, arguments) };
    usize::try_from(result).ok().filter(|length| *length < into.len()).map(|length| &into[..length])
}

/// The path that the kernel has for a descriptor, or for the working directory (`AT_FDCWD`); none on failure and if it does not fit.
pub(crate) fn path_of(descriptor: c_int, into: &mut [u8]) -> Option<&[u8]> {
    let mut name = [0; 40];
    match descriptor {
        libc::AT_FDCWD => name[..14].copy_from_slice(b"/proc/self/cwd"),
        _ => write!(&mut name[..], "/proc/self/fd/{descriptor}").ok()?,
    }
    link_target(CStr::from_bytes_until_nul(&name).ok()?, into)
}

/// The first bytes of a file of the kernel's; none if it cannot be read.
pub(crate) fn head_of<'b>(path: &CStr, into: &'b mut [u8]) -> Option<&'b [u8]> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the path ends with NUL.
    let descriptor = unsafe { call(libc::SYS_openat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags as usize, 0, 0]) };
    let descriptor = usize::try_from(descriptor).ok()?;
    // SAFETY: the kernel writes into the buffer, whose length it is told.
    let read = unsafe { call(libc::SYS_read, [descriptor, into.as_mut_ptr() as usize, into.len(), 0, 0]) };
    close(descriptor as c_int);
    usize::try_from(read).ok().map(|length| &into[..length])
}

/// Seccomp filters of this process; none of a kernel that does not count them, and if `/proc` cannot be read.
pub(crate) fn filters() -> u32 {
    let mut status = [0; 4096];
    head_of(c"/proc/self/status", &mut status).and_then(filters_of).unwrap_or(0)
}

fn filters_of(status: &[u8]) -> Option<u32> {
    let count = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Seccomp_filters:"))?;
    std::str::from_utf8(count).ok()?.trim().parse().ok()
}

/// The flags of an open file description; none if the number is no descriptor.
pub(crate) fn file_flags(descriptor: c_int) -> Option<c_int> {
    // SAFETY: a plain call.
    let flags = unsafe { call(libc::SYS_fcntl, [descriptor as usize, libc::F_GETFL as usize, 0, 0, 0]) };
    (flags >= 0).then_some(flags as c_int)
}

/// Closes a descriptor that nobody else owns any more.
pub(crate) fn close(descriptor: c_int) {
    // SAFETY: the caller's own descriptor.
    unsafe { call(libc::SYS_close, [descriptor as usize, 0, 0, 0, 0]) };
}

/// Lets others run for a moment.
pub(crate) fn pause() {
    let moment = libc::timespec { tv_sec: 0, tv_nsec: 50_000 };
    // SAFETY: the kernel reads the time.
    unsafe { call(libc::SYS_nanosleep, [&raw const moment as usize, 0, 0, 0, 0]) };
}

/// Signals of a thread that are blocked: the kernel's set.
#[derive(Clone, Copy)]
pub(crate) struct Signals(u64);

impl Signals {
    pub(crate) const ALL: Self = Self(!0);
    /// All but SIGBUS.
    pub(crate) const ALL_BUT_FAULTS: Self = Self(!(1 << (libc::SIGBUS - 1)));

    /// Those that are blocked now.
    pub(crate) fn of_thread() -> Self {
        let mut blocked = 0_u64;
        // SAFETY: the kernel fills in one set of eight bytes.
        unsafe { call(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, 0, &raw mut blocked as usize, 8, 0]) };
        Self(blocked)
    }

    /// Blocks these alone, also those that libc keeps for itself, and returns what was blocked before.
    pub(crate) fn set(self) -> Self {
        let mut before = 0_u64;
        let (new, old) = (&raw const self.0, &raw mut before);
        // SAFETY: the kernel reads one set of eight bytes and fills in the other.
        unsafe { call(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, new as usize, old as usize, 8, 0]) };
        Self(before)
    }
}

/// Whether a signal has a handler.
pub(crate) fn has_handler(signal: c_int) -> bool {
    let mut action = [0_usize; 8]; // the kernel's structure begins with the handler and is shorter
    // SAFETY: the kernel fills in the structure, with a set of eight bytes.
    let result = unsafe { call(libc::SYS_rt_sigaction, [signal as usize, 0, action.as_mut_ptr() as usize, 8, 0]) };
    result == 0 && action[0] != libc::SIG_DFL && action[0] != libc::SIG_IGN
}

pub(crate) fn errno() -> c_int {
    // SAFETY: libc's own cell of this thread.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(number: c_int) {
    // SAFETY: libc's own cell of this thread.
    unsafe { *libc::__errno_location() = number }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_counted() {
        assert_eq!(filters_of(b"Name:\ta\nSeccomp:\t2\nSeccomp_filters:\t3\nSpeculation:\tx\n"), Some(3));
        assert_eq!((filters_of(b"Seccomp:\t2\n"), filters_of(b"")), (None, None));
        let expected = std::fs::read("/proc/self/status").ok().and_then(|status| filters_of(&status)).unwrap_or(0);
        assert_eq!(filters(), expected);
    }
}
