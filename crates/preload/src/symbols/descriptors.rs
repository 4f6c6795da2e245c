//! Functions that close descriptors, which must not close ours ([PRL6] of `lib.rs`): for a program they are not there. And `syscall`, for the
//! calls that are watched elsewhere.

use std::ffi::{c_int, c_long, c_uint};
use std::sync::atomic::Ordering::Relaxed;

use tandemfs_client::Errno;

use crate::descriptions;
use crate::door::{DESCRIPTORS, DESCRIPTORS_MAX, end, has_threads, is_own_process, without_connection};
use crate::files;
use crate::mutant::{Mutant, on};
use crate::next::{interpose, next};
use crate::report::Way;
use crate::sys;

fn is_ours(descriptor: c_int) -> bool {
    descriptor >= 0 && !on(Mutant::OursClosed) && DESCRIPTORS.iter().any(|ours| ours.load(Relaxed) == descriptor)
}

/// Our descriptors, in order.
fn ours() -> [c_int; DESCRIPTORS_MAX] {
    let mut ours = DESCRIPTORS.each_ref().map(|number| number.load(Relaxed));
    ours.sort_unstable();
    ours
}

/// The parts of a range without ours; none if none of ours is in it.
fn around(first: c_uint, last: c_uint) -> Option<impl Iterator<Item = (c_uint, c_uint)>> {
    if on(Mutant::OursClosed) {
        return None;
    }
    let inside = ours().map(|number| c_uint::try_from(number).ok().filter(|number| (first..=last).contains(number)));
    inside.iter().flatten().next()?;
    let ends = inside.into_iter().flatten().map(Some).chain([None]);
    let parts = ends.scan(first, move |from, ours| {
        let part = (*from, ours.map_or(Some(last), |ours| ours.checked_sub(1)));
        *from = ours.map_or(*from, |ours| ours.saturating_add(1));
        Some(part)
    });
    Some(parts.filter_map(|(from, to)| Some((from, to?))).filter(|(from, to)| from <= to))
}

fn close_range_around(parts: impl Iterator<Item = (c_uint, c_uint)>, flags: c_uint) -> c_int {
    for (first, last) in parts {
        let arguments = [first as usize, last as usize, flags as usize, 0, 0];
        // SAFETY: a plain call, on what the program wants to close.
        let call = || unsafe { sys::call(libc::SYS_close_range, arguments) };
        let result = if flags & libc::CLOSE_RANGE_CLOEXEC != 0 { descriptions::keeping_flags(call) } else { call() };
        if result < 0 {
            sys::set_errno(-result as c_int);
            return -1;
        }
    }
    0
}

fn no_descriptor() -> c_int {
    sys::set_errno(libc::EBADF);
    -1
}

interpose! {
    fn close(descriptor: c_int) -> c_int, |next| {
        if is_ours(descriptor) {
            return no_descriptor();
        }
        if descriptions::close(descriptor) {
            return 0;
        }
        files::closing(descriptor);
        next()
    }

    fn __close(descriptor: c_int) -> c_int, |next| {
        if is_ours(descriptor) {
            return no_descriptor();
        }
        if descriptions::close(descriptor) { 0 } else { next() }
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int, |next| {
        close_placeholders(first, last, flags.cast_unsigned());
        files::closing_many();
        match around(first, last) {
            Some(parts) => close_range_around(parts, flags.cast_unsigned()),
            None if flags.cast_unsigned() & libc::CLOSE_RANGE_CLOEXEC != 0 && descriptions::are_there() => {
                close_range_around(std::iter::once((first, last)), flags.cast_unsigned())
            }
            None => next(),
        }
    }

    fn dup(old: c_int) -> c_int, |next| {
        duplicated(old, [libc::SYS_dup as usize, 0, 0]).unwrap_or_else(|| {
            descriptions::real(old);
            next()
        })
    }

    fn dup2(old: c_int, new: c_int) -> c_int, |next| {
        if is_ours(old) {
            return no_descriptor();
        }
        if is_ours(new) {
            return without_connection(next);
        }
        [old, new].into_iter().for_each(descriptions::real);
        if old != new {
            files::closing(new);
        }
        next()
    }

    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int, |next| {
        if is_ours(old) {
            return no_descriptor();
        }
        if is_ours(new) {
            return without_connection(next);
        }
        [old, new].into_iter().for_each(descriptions::real);
        if old != new {
            files::closing(new);
        }
        next()
    }

    fn fcntl(descriptor: c_int, command: c_int, argument: c_long) -> c_int, |next| {
        controlled(descriptor, command, argument).unwrap_or_else(next)
    }

    fn fcntl64(descriptor: c_int, command: c_int, argument: c_long) -> c_int, |next| {
        controlled(descriptor, command, argument).unwrap_or_else(next)
    }

    fn __fcntl(descriptor: c_int, command: c_int, argument: c_long) -> c_int, |next| {
        controlled(descriptor, command, argument).unwrap_or_else(next)
    }

    fn syscall(
        number: c_long, first: c_long, second: c_long, third: c_long, fourth: c_long, fifth: c_long, sixth: c_long
    ) -> c_long, |next| {
        match number {
            libc::SYS_fcntl if second as c_int == libc::F_SETFD && descriptions::is_taken(first as c_int) => {
                return controlled(first as c_int, second as c_int, third).map_or_else(next, c_long::from);
            }
            libc::SYS_close if is_ours(first as c_int) => return no_descriptor().into(),
            libc::SYS_close if descriptions::close(first as c_int) => return 0,
            libc::SYS_close_range => {
                close_placeholders(first as c_uint, second as c_uint, third as c_uint);
                if let Some(parts) = around(first as c_uint, second as c_uint) {
                    return close_range_around(parts, third as c_uint).into();
                }
                if third as c_uint & libc::CLOSE_RANGE_CLOEXEC != 0 && descriptions::are_there() {
                    return close_range_around(std::iter::once((first as c_uint, second as c_uint)), third as c_uint).into();
                }
            }
            libc::SYS_setuid
            | libc::SYS_setgid
            | libc::SYS_setreuid
            | libc::SYS_setregid
            | libc::SYS_setresuid
            | libc::SYS_setresgid
            | libc::SYS_setgroups
            | libc::SYS_setfsuid
            | libc::SYS_setfsgid
            | libc::SYS_capset
            | libc::SYS_chroot
            | libc::SYS_unshare
            | libc::SYS_setns // of one thread alone
            | libc::SYS_mount
            | libc::SYS_umount2 => end(),
            libc::SYS_move_mount | libc::SYS_mount_setattr | libc::SYS_fsconfig => {
                before_call(number, [first, second, third, fifth], fourth);
                end();
            }
            libc::SYS_umask => {
                // SAFETY: a plain call.
                return unsafe { super::changes::umask(first as libc::mode_t) }.into();
            }
            libc::SYS_rt_sigaction if second != 0 => crate::lent::handles(first as c_int),
            libc::SYS_seccomp | libc::SYS_landlock_restrict_self => super::sandboxed(),
            libc::SYS_prctl if first as c_int == libc::PR_SET_SECCOMP => super::sandboxed(),
            libc::SYS_mmap | libc::SYS_munmap | libc::SYS_mremap | libc::SYS_mprotect | libc::SYS_msync | libc::SYS_madvise
            | libc::SYS_remap_file_pages if super::mappings::are_there() => {
                // SAFETY: the caller's arguments.
                return unsafe { super::mappings::call(number, [first, second, third, fourth, fifth, sixth]) };
            }
            // SAFETY: the caller's path.
            libc::SYS_inotify_add_watch => unsafe { super::watching((super::HERE, second as *const std::ffi::c_char)) },
            _ => before_call(number, [first, second, third, fifth], fourth),
        }
        next()
    }
}

/// A placeholder gets another number, by a call of the kernel with its further arguments.
fn duplicated(old: c_int, [number, command, least]: [usize; 3]) -> Option<c_int> {
    // SAFETY: a call on descriptors.
    let copy = descriptions::share(old, || unsafe { sys::call(number as c_long, [old as usize, command, least, 0, 0]) })?;
    Some(copy.unwrap_or_else(|error| super::refused(error) as c_int))
}

/// fcntl(2) of a placeholder; none if the kernel does it, before which the descriptor is what it needs.
fn controlled(descriptor: c_int, command: c_int, argument: c_long) -> Option<c_int> {
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC)
        && let Some(copy) = duplicated(descriptor, [libc::SYS_fcntl as usize, command as usize, argument as usize])
    {
        return Some(copy);
    }
    if command == libc::F_SETFD && descriptions::is_taken(descriptor) {
        let arguments = [descriptor as usize, command as usize, argument as usize, 0, 0];
        // SAFETY: a call on a descriptor.
        return match descriptions::keeping_flags(|| unsafe { sys::call(libc::SYS_fcntl, arguments) }) {
            failed @ ..0 => Some(super::refused(Errno::from_raw_os_error(-failed as i32)) as c_int),
            done => Some(done as c_int),
        };
    }
    before_control(descriptor, command);
    None
}

/// Before fcntl(2): what a placeholder has of its own are the flags of the descriptor. Whoever locks a file has nothing else open of it but real
/// descriptors, since the end of any of them ends the locks.
fn before_control(descriptor: c_int, command: c_int) {
    match command {
        libc::F_GETFD | libc::F_SETFD => {}
        libc::F_SETLK | libc::F_SETLKW => super::locked_by_kernel(descriptor),
        _ => descriptions::real(descriptor),
    }
}

/// Before ioctl(2). Requests to terminals (`T`), of attributes of files (`f`) and to sockets have no other descriptor than the one that they are
/// made to; of others nothing is known: FICLONE's argument is a descriptor, FIDEDUPERANGE's points to several.
pub(super) fn before_request(descriptor: c_int, request: libc::c_ulong) {
    const OF_ONE: [u8; 3] = [b'T', b'f', 0x89];
    if descriptions::are_there() && !OF_ONE.contains(&((request >> 8) as u8)) {
        descriptions::all_real(Way::KernelNeeded);
    } else {
        descriptions::real(descriptor);
    }
}

/// Before a call of any kind: whatever looks like the number of a placeholder among its arguments becomes real.
fn before_call(number: c_long, arguments: [c_long; 4], flags: c_long) {
    match number {
        libc::SYS_fcntl => before_control(arguments[0] as c_int, arguments[1] as c_int),
        libc::SYS_ioctl => before_request(arguments[0] as c_int, arguments[1] as libc::c_ulong),
        libc::SYS_mmap if flags as c_int & libc::MAP_ANONYMOUS == 0 => super::used_by_kernel(arguments[3] as c_int),
        libc::SYS_sendfile => [0, 1].into_iter().for_each(|index| super::used_by_kernel(arguments[index] as c_int)),
        libc::SYS_splice | libc::SYS_copy_file_range => {
            [0, 2].into_iter().for_each(|index| super::used_by_kernel(arguments[index] as c_int));
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll | libc::SYS_select => descriptions::all_real(Way::KernelNeeded),
        libc::SYS_execve | libc::SYS_execveat => descriptions::all_real(Way::Fork),
        libc::SYS_clone | libc::SYS_clone3 => {
            let flags = match number {
                libc::SYS_clone => Some(arguments[0]),
                // SAFETY: null, or the caller's structure, which begins with its flags.
                _ => unsafe { (arguments[0] as *const c_long).as_ref() }.copied(),
            };
            if flags.is_some_and(super::shares_descriptors) {
                descriptions::end();
            }
            descriptions::all_real(Way::Fork);
            crate::mappings::before_fork();
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork | libc::SYS_vfork => {
            descriptions::all_real(Way::Fork);
            crate::mappings::before_fork();
        }
        libc::SYS_io_uring_setup | libc::SYS_io_setup => descriptions::end(),
        libc::SYS_landlock_add_rule => descriptions::all_real(Way::KernelNeeded), // its descriptor is in a structure
        libc::SYS_prlimit64 if arguments[2] != 0 => end(),
        libc::SYS_sendmsg | libc::SYS_sendmmsg | libc::SYS_ppoll | libc::SYS_pselect6 => descriptions::all_real(Way::KernelNeeded),
        // Of locks, this library's own among them.
        libc::SYS_futex | libc::SYS_futex_waitv | libc::SYS_getrandom | libc::SYS_gettid => {}
        _ if descriptions::are_there() => arguments.iter().for_each(|argument| descriptions::real(*argument as c_int)),
        _ => {}
    }
}

/// close_range(2) of placeholders. With CLOSE_RANGE_UNSHARE other threads keep theirs: numbers of one then say nothing of the other's, as after unshare(2).
fn close_placeholders(first: c_uint, last: c_uint, flags: c_uint) {
    if flags & libc::CLOSE_RANGE_UNSHARE != 0 {
        if has_threads() && is_own_process() && !on(Mutant::UnsharedNotLeft) {
            end();
        }
        descriptions::all_real(Way::Fork);
    } else if flags & libc::CLOSE_RANGE_CLOEXEC == 0 {
        descriptions::close_all(first, last);
    }
}

/// closefrom(3), which libc makes of close_range.
///
/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn closefrom(first: c_int) {
    close_placeholders(first.max(0).cast_unsigned(), c_uint::MAX, 0);
    files::closing_many();
    match around(first.max(0).cast_unsigned(), c_uint::MAX) {
        Some(parts) => {
            close_range_around(parts, 0);
        }
        None => {
            let next = next!("closefrom").get();
            if !next.is_null() {
                // SAFETY: libc's function of this name, which has this type.
                unsafe { std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn(c_int)>(next)(first) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::SeqCst;

    #[test]
    fn ranges_go_around_ours() {
        let parts = |first, last| around(first, last).map(Iterator::collect::<Vec<_>>);
        assert_eq!(parts(0, 100), None, "there is none");
        DESCRIPTORS[0].store(20, SeqCst);
        assert_eq!(parts(0, 100), Some(vec![(0, 19), (21, 100)]));
        DESCRIPTORS[1].store(10, SeqCst);
        assert_eq!(parts(0, c_uint::MAX), Some(vec![(0, 9), (11, 19), (21, c_uint::MAX)]));
        assert_eq!(parts(10, 20), Some(vec![(11, 19)]));
        assert_eq!((parts(11, 19), parts(10, 10)), (None, Some(vec![])));
        DESCRIPTORS[1].store(0, SeqCst);
        assert_eq!(parts(0, 20), Some(vec![(1, 19)]));
        DESCRIPTORS.iter().for_each(|number| number.store(-1, SeqCst));
    }
}
