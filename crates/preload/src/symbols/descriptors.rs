//! Functions that close descriptors, which must not close ours ([PRL6] of `lib.rs`): for a program they are not there. And `syscall`, for the
//! calls that are watched elsewhere.

use std::ffi::{c_int, c_long, c_uint};
use std::sync::atomic::Ordering::Relaxed;

use crate::door::{DESCRIPTORS, end, without_connection};
use crate::files;
use crate::mutant::{Mutant, on};
use crate::next::interpose;
use crate::sys;

fn is_ours(descriptor: c_int) -> bool {
    descriptor >= 0 && !on(Mutant::OursClosed) && DESCRIPTORS.iter().any(|ours| ours.load(Relaxed) == descriptor)
}

/// Our descriptors, in order.
fn ours() -> [c_int; 2] {
    let mut ours = [0, 1].map(|index| DESCRIPTORS[index].load(Relaxed));
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
        // SAFETY: a plain call, on what the program wants to close.
        let result = unsafe { sys::call(libc::SYS_close_range, [first as usize, last as usize, flags as usize, 0, 0]) };
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
        files::closing(descriptor);
        next()
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int, |next| {
        files::closing_many();
        match around(first, last) {
            Some(parts) => close_range_around(parts, flags.cast_unsigned()),
            None => next(),
        }
    }

    fn dup2(old: c_int, new: c_int) -> c_int, |next| {
        if is_ours(old) {
            return no_descriptor();
        }
        if is_ours(new) {
            return without_connection(next);
        }
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
        if old != new {
            files::closing(new);
        }
        next()
    }

    fn syscall(
        number: c_long, first: c_long, second: c_long, third: c_long, fourth: c_long, fifth: c_long, sixth: c_long
    ) -> c_long, |next| {
        match number {
            libc::SYS_close if is_ours(first as c_int) => return no_descriptor().into(),
            libc::SYS_close_range => {
                if let Some(parts) = around(first as c_uint, second as c_uint) {
                    return close_range_around(parts, third as c_uint).into();
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
            | libc::SYS_setns => end(), // of one thread alone
            libc::SYS_umask => {
                // SAFETY: a plain call.
                return unsafe { super::changes::umask(first as libc::mode_t) }.into();
            }
            _ => {}
        }
        next()
    }
}

/// closefrom(3), which libc makes of close_range.
///
/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn closefrom(first: c_int) {
    static NEXT: crate::next::Next = crate::next::Next::new("closefrom\0");
    files::closing_many();
    match around(first.max(0).cast_unsigned(), c_uint::MAX) {
        Some(parts) => {
            close_range_around(parts, 0);
        }
        None => {
            let next = NEXT.get();
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
