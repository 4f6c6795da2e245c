//! chmod, chown, utimens, umask. Not truncate(2): what the kernel has of a file there (ETXTBSY, leases, `RLIMIT_FSIZE`) the daemon does not know.

use std::ffi::{c_char, c_int};

use tandemfs_client::{AtFlags, TimeToSet, Tree};

use super::{HERE, returned};
use crate::call::{Kind, Named, by_path, leave_to_kernel};
use crate::next::interpose;
use crate::report::Call;
use crate::{door, settings, sys};

/// Times that every file system keeps as they are; others are left to the kernel, which cuts them.
const SECONDS: std::ops::Range<i64> = 0..1 << 33;
const NANOSECONDS: std::ops::Range<i64> = 0..1_000_000_000;
const MICROSECONDS: std::ops::Range<i64> = 0..1_000_000;

/// # Safety
/// As fchmodat(2)'s.
unsafe fn chmod_by_door(named: Named, mode: libc::mode_t) -> Option<c_int> {
    // SAFETY: the caller's path.
    let done =
        unsafe { by_path(Call::ChangeMode, Kind::Changes, named, |start, path| start.target(path, AtFlags::empty()).set_mode(mode)) };
    done.map(returned)
}

/// # Safety
/// As fchownat(2)'s.
unsafe fn chown_by_door(named: Named, user: libc::uid_t, group: libc::gid_t, flags: c_int) -> Option<c_int> {
    let follows = match flags {
        0 => AtFlags::empty(),
        libc::AT_SYMLINK_NOFOLLOW => AtFlags::SYMLINK_NOFOLLOW,
        _ => {
            // SAFETY: the caller's path.
            unsafe { leave_to_kernel(Call::ChangeOwner, named) };
            return None;
        }
    };
    let id = |number: u32| (number != u32::MAX).then_some(number);
    // SAFETY: the caller's path.
    let done = unsafe {
        by_path(Call::ChangeOwner, Kind::Changes, named, |start, path| start.target(path, follows).set_owner(id(user), id(group)))
    };
    done.map(returned)
}

/// # Safety
/// As utimensat(2)'s.
unsafe fn set_times_by_door(named: Named, times: Option<[TimeToSet; 2]>, flags: c_int) -> Option<c_int> {
    let (Some([accessed, modified]), 0 | libc::AT_SYMLINK_NOFOLLOW) = (times, flags) else {
        // SAFETY: the caller's path.
        unsafe { leave_to_kernel(Call::SetTimes, named) };
        return None;
    };
    let follows = if flags == 0 { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    // SAFETY: the caller's path.
    let done =
        unsafe { by_path(Call::SetTimes, Kind::Changes, named, |start, path| start.target(path, follows).set_times(accessed, modified)) };
    done.map(returned)
}

fn at(seconds: i64, nanoseconds: i64) -> Option<TimeToSet> {
    let fits = SECONDS.contains(&seconds) && NANOSECONDS.contains(&nanoseconds);
    fits.then_some(TimeToSet::At { seconds, nanoseconds: nanoseconds as u32 })
}

/// Two times, both that of the call if there are none. None for times that are left to the kernel.
///
/// # Safety
/// `times` is null, or two that can be read.
pub(super) unsafe fn two<T: Copy>(times: *const T, one: impl Fn(T) -> Option<TimeToSet>) -> Option<[TimeToSet; 2]> {
    if times.is_null() {
        return Some([TimeToSet::Now; 2]);
    }
    // SAFETY: two times of the caller.
    let (accessed, modified) = unsafe { (*times, *times.add(1)) };
    Some([one(accessed)?, one(modified)?])
}

pub(super) fn of_timespec(time: libc::timespec) -> Option<TimeToSet> {
    match time.tv_nsec {
        libc::UTIME_NOW => Some(TimeToSet::Now),
        libc::UTIME_OMIT => Some(TimeToSet::Omit),
        nanoseconds => at(time.tv_sec, nanoseconds),
    }
}

fn of_timeval(time: libc::timeval) -> Option<TimeToSet> {
    MICROSECONDS.contains(&time.tv_usec).then(|| at(time.tv_sec, 1000 * time.tv_usec))?
}

interpose! {
    fn chmod(path: *const c_char, mode: libc::mode_t) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        unsafe { chmod_by_door((HERE, path), mode) }.unwrap_or_else(next)
    }

    fn fchmodat(directory: c_int, path: *const c_char, mode: libc::mode_t, flags: c_int) -> c_int, |next| {
        let named = (directory, path);
        // SAFETY: the caller's arguments.
        let done = unsafe {
            if flags == 0 {
                chmod_by_door(named, mode)
            } else {
                leave_to_kernel(Call::ChangeMode, named);
                None
            }
        };
        done.unwrap_or_else(next)
    }

    fn chown(path: *const c_char, user: libc::uid_t, group: libc::gid_t) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        unsafe { chown_by_door((HERE, path), user, group, 0) }.unwrap_or_else(next)
    }

    fn lchown(path: *const c_char, user: libc::uid_t, group: libc::gid_t) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        unsafe { chown_by_door((HERE, path), user, group, libc::AT_SYMLINK_NOFOLLOW) }.unwrap_or_else(next)
    }

    fn fchownat(directory: c_int, path: *const c_char, user: libc::uid_t, group: libc::gid_t, flags: c_int) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        unsafe { chown_by_door((directory, path), user, group, flags) }.unwrap_or_else(next)
    }

    fn utimensat(directory: c_int, path: *const c_char, times: *const libc::timespec, flags: c_int) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        unsafe { set_times_by_door((directory, path), two(times, of_timespec), flags) }.unwrap_or_else(next)
    }

    fn utimes(path: *const c_char, times: *const libc::timeval) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        unsafe { set_times_by_door((HERE, path), two(times, of_timeval), 0) }.unwrap_or_else(next)
    }

    fn lutimes(path: *const c_char, times: *const libc::timeval) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        unsafe { set_times_by_door((HERE, path), two(times, of_timeval), libc::AT_SYMLINK_NOFOLLOW) }.unwrap_or_else(next)
    }

    fn futimesat(directory: c_int, path: *const c_char, times: *const libc::timeval) -> c_int, |next| {
        // SAFETY: the caller's arguments.
        unsafe { set_times_by_door((directory, path), two(times, of_timeval), 0) }.unwrap_or_else(next)
    }

    fn utime(path: *const c_char, times: *const libc::utimbuf) -> c_int, |next| {
        let both = if times.is_null() {
            Some([TimeToSet::Now; 2])
        } else {
            // SAFETY: the caller's times.
            let times = unsafe { &*times };
            at(times.actime, 0).zip(at(times.modtime, 0)).map(<[TimeToSet; 2]>::from)
        };
        // SAFETY: the caller's arguments.
        unsafe { set_times_by_door((HERE, path), both, 0) }.unwrap_or_else(next)
    }
}

/// umask(2), which never fails: new directories by the door follow it.
///
/// # Safety
/// None.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn umask(mask: libc::mode_t) -> libc::mode_t {
    // SAFETY: a plain call; libc's function is nothing more.
    let before = unsafe { sys::call(libc::SYS_umask, [mask as usize, 0, 0, 0, 0]) };
    if settings::get().is_some() {
        door::set_umask((mask & 0o777) as u16);
    }
    before as libc::mode_t
}
