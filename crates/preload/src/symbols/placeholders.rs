//! Calls that a placeholder serves: bytes at the offset, the offset, attributes, size, `fsync` ([PRL12] of `lib.rs`). Of real descriptors they are
//! the kernel's.

use std::ffi::{c_int, c_void};

use tandemfs_client::{Errno, Result, TimeToSet, Unless};

use super::attributes::{STAT_VERSION, fill};
use super::changes::{of_timespec, two};
use super::data::{Limits, Parts};
use super::descriptors::before_request;
use super::{copies, refused, returned};
use crate::descriptions::{self, Description};
use crate::next::interpose;
use crate::report::Call;
use crate::settings;

/// Bytes of several parts are copied once more, so longer ones are the kernel's.
const PARTS: Limits = Limits { parts: 1024, bytes: 1 << 20 };

/// # Safety
/// As readv(2)'s.
unsafe fn read_next(descriptor: c_int, parts: *const libc::iovec, count: c_int) -> Option<isize> {
    if !descriptions::is_taken(descriptor) {
        return None;
    }
    // SAFETY: the caller's parts.
    let Some(parts) = (unsafe { Parts::within(parts, count, PARTS) }) else {
        descriptions::real(descriptor);
        return None;
    };
    let done = descriptions::by_offset(Call::ReadNext, descriptor, |open, offset| {
        // SAFETY: the caller's memory.
        let done = unsafe { parts.read_from(&open.file, offset, open.reads()?) }?;
        Ok((done, offset + done as u64))
    })?;
    Some(done.map_or_else(refused, |bytes| bytes as isize))
}

/// # Safety
/// As writev(2)'s.
unsafe fn write_next(descriptor: c_int, parts: *const libc::iovec, count: c_int) -> Option<isize> {
    if !descriptions::is_taken(descriptor) {
        return None;
    }
    // SAFETY: the caller's parts.
    let Some(parts) = (unsafe { Parts::within(parts, count, PARTS) }) else {
        descriptions::real(descriptor);
        return None;
    };
    let done = descriptions::by_offset(Call::WriteNext, descriptor, |open, offset| {
        // SAFETY: the caller's memory.
        unsafe {
            match open.appends() {
                true => parts.append_to(&open.file),
                false => parts.write_to(&open.file, offset, Unless::default()).map(|done| (done, offset + done as u64)),
            }
        }
    })?;
    Some(done.map_or_else(refused, |bytes| bytes as isize))
}

/// # Safety
/// So many bytes can be written.
unsafe fn read_one(descriptor: c_int, into: *mut c_void, count: usize) -> Option<isize> {
    let part = libc::iovec { iov_base: into, iov_len: count };
    // SAFETY: one part; the rest is the caller's.
    unsafe { read_next(descriptor, &raw const part, 1) }
}

fn seek(descriptor: c_int, offset: i64, whence: c_int) -> Option<i64> {
    let sought = descriptions::by_offset(Call::Seek, descriptor, |open, from| {
        open.must_be_a_file()?;
        let relative = |base: u64| base.checked_add_signed(offset).filter(|to| i64::try_from(*to).is_ok()).ok_or(Errno::INVAL);
        let start = u64::try_from(offset);
        let to = match whence {
            libc::SEEK_SET => start.map_err(|_| Errno::INVAL)?,
            libc::SEEK_CUR => relative(from)?,
            libc::SEEK_END => relative(open.file.attributes()?.size_bytes)?,
            libc::SEEK_DATA => open.file.seek_data(start.map_err(|_| Errno::NXIO)?)?,
            libc::SEEK_HOLE => open.file.seek_hole(start.map_err(|_| Errno::NXIO)?)?,
            _ => return Err(Errno::INVAL.into()),
        };
        Ok((to, to))
    })?;
    Some(sought.map_or_else(|error| refused(error) as i64, |to| to.cast_signed()))
}

/// # Safety
/// Null, or a structure that can be written.
unsafe fn stat_open(descriptor: c_int, into: *mut libc::stat) -> Option<c_int> {
    if !descriptions::is_taken(descriptor) || into.is_null() {
        return None;
    }
    let device = settings::get()?.mount.device;
    let found = descriptions::by(Call::StatOpen, descriptor, |open| open.file.attributes())?;
    // SAFETY: the caller's structure.
    Some(returned(found.map(|found| fill(unsafe { &mut *into }, &found, device))))
}

fn resize(descriptor: c_int, length: i64) -> Option<c_int> {
    let done = descriptions::by(Call::Resize, descriptor, |open| open.file.set_length(u64::try_from(length).map_err(|_| Errno::INVAL)?))?;
    Some(returned(done))
}

fn allocate(descriptor: c_int, mode: c_int, offset: i64, length: i64) -> Option<c_int> {
    let done = descriptions::by(Call::Allocate, descriptor, |open| {
        let (from, bytes) = (u64::try_from(offset), u64::try_from(length));
        let (Ok(from), Ok(bytes @ 1..)) = (from, bytes) else { return Err(Errno::INVAL.into()) };
        open.file.allocate(mode.cast_unsigned(), from, bytes)
    })?;
    Some(returned(done))
}

/// What a file answers to a question for a terminal.
fn is_no_terminal(descriptor: c_int) -> Option<Errno> {
    descriptions::by::<()>(Call::Terminal, descriptor, |_| Err(Errno::NOTTY.into()))?.err()
}

/// posix_fadvise(3), which returns its error: a placeholder has no pages to read ahead or to drop.
fn advise(descriptor: c_int, length: i64, advice: c_int) -> Option<c_int> {
    let done = descriptions::by(Call::Advise, descriptor, |_| match advice {
        libc::POSIX_FADV_NORMAL..=libc::POSIX_FADV_NOREUSE if length >= 0 => Ok(()),
        _ => Err(Errno::INVAL.into()),
    })?;
    Some(done.err().map_or(0, Errno::raw_os_error))
}

fn change(call: Call, descriptor: c_int, work: impl FnOnce(&Description) -> Result<()>) -> Option<c_int> {
    descriptions::by(call, descriptor, work).map(returned)
}

macro_rules! of_two_widths {
    ($(fn $name:ident $wide:ident($($argument:ident: $type:ty),*) -> $result:ty $body:block)*) => { interpose! {$(
        fn $name($($argument: $type),*) -> $result, |next| {
            let done: Option<$result> = $body;
            done.unwrap_or_else(next)
        }

        fn $wide($($argument: $type),*) -> $result, |next| {
            let done: Option<$result> = $body;
            done.unwrap_or_else(next)
        }
    )*} };
}

of_two_widths! {
    fn lseek lseek64(descriptor: c_int, offset: libc::off_t, whence: c_int) -> libc::off_t { seek(descriptor, offset, whence) }
    fn __lseek llseek(descriptor: c_int, offset: libc::off_t, whence: c_int) -> libc::off_t { seek(descriptor, offset, whence) }
    // SAFETY: the caller's structure.
    fn fstat fstat64(descriptor: c_int, into: *mut libc::stat) -> c_int { unsafe { stat_open(descriptor, into) } }
    fn __fxstat __fxstat64(version: c_int, descriptor: c_int, into: *mut libc::stat) -> c_int {
        // SAFETY: the caller's structure.
        if version == STAT_VERSION { unsafe { stat_open(descriptor, into) } } else { None }
    }
    fn ftruncate ftruncate64(descriptor: c_int, length: libc::off_t) -> c_int { resize(descriptor, length) }
    fn posix_fadvise posix_fadvise64(descriptor: c_int, offset: libc::off_t, length: libc::off_t, advice: c_int) -> c_int {
        advise(descriptor, length, advice)
    }
    fn fallocate fallocate64(descriptor: c_int, mode: c_int, offset: libc::off_t, length: libc::off_t) -> c_int {
        allocate(descriptor, mode, offset, length)
    }
}

macro_rules! reads_and_writes {
    ($($read:ident $write:ident)*) => { interpose! {$(
        fn $read(descriptor: c_int, into: *mut c_void, count: usize) -> isize, |next| {
            // SAFETY: the caller's arguments.
            unsafe { read_one(descriptor, into, count) }.unwrap_or_else(next)
        }

        fn $write(descriptor: c_int, from: *const c_void, count: usize) -> isize, |next| {
            let part = libc::iovec { iov_base: from.cast_mut(), iov_len: count };
            // SAFETY: one part of the caller's.
            unsafe { write_next(descriptor, &raw const part, 1) }.unwrap_or_else(next)
        }
    )*} };
}

reads_and_writes! { read write __read __write }

interpose! {
    fn __read_chk(descriptor: c_int, into: *mut c_void, count: usize, has: usize) -> isize, |next| {
        // SAFETY: the caller's arguments. libc ends a program whose buffer is shorter than it says.
        let done = if count <= has { unsafe { read_one(descriptor, into, count) } } else { None };
        done.unwrap_or_else(next)
    }

    fn readv(descriptor: c_int, parts: *const libc::iovec, count: c_int) -> isize, |next| {
        // SAFETY: the caller's arguments.
        unsafe { read_next(descriptor, parts, count) }.unwrap_or_else(next)
    }

    fn writev(descriptor: c_int, parts: *const libc::iovec, count: c_int) -> isize, |next| {
        // SAFETY: the caller's arguments.
        unsafe { write_next(descriptor, parts, count) }.unwrap_or_else(next)
    }

    fn ioctl(descriptor: c_int, request: libc::c_ulong, argument: *mut c_void) -> c_int, |next| {
        if request == libc::TCGETS
            && let Some(error) = is_no_terminal(descriptor)
        {
            return refused(error) as c_int;
        }
        if request == libc::FICLONE
            && let Some(error) = copies::is_not_cloned(descriptor, argument as c_int)
        {
            return refused(error) as c_int;
        }
        before_request(descriptor, request);
        next()
    }

    fn isatty(descriptor: c_int) -> c_int, |next| {
        match is_no_terminal(descriptor) {
            Some(error) => {
                refused(error);
                0
            }
            None => next(),
        }
    }

    fn tcgetattr(descriptor: c_int, into: *mut libc::termios) -> c_int, |next| {
        is_no_terminal(descriptor).map_or_else(next, |error| refused(error) as c_int)
    }

    fn fsync(descriptor: c_int) -> c_int, |next| {
        change(Call::Sync, descriptor, |open| open.file.sync_all()).unwrap_or_else(next)
    }

    fn fdatasync(descriptor: c_int) -> c_int, |next| {
        change(Call::Sync, descriptor, |open| open.file.sync_data()).unwrap_or_else(next)
    }

    fn fchmod(descriptor: c_int, mode: libc::mode_t) -> c_int, |next| {
        change(Call::ChangeOpen, descriptor, |open| open.file.set_mode(mode)).unwrap_or_else(next)
    }

    fn fchown(descriptor: c_int, user: libc::uid_t, group: libc::gid_t) -> c_int, |next| {
        let id = |number: u32| (number != u32::MAX).then_some(number);
        change(Call::ChangeOpen, descriptor, |open| open.file.set_owner(id(user), id(group))).unwrap_or_else(next)
    }

    fn futimens(descriptor: c_int, times: *const libc::timespec) -> c_int, |next| {
        if !descriptions::is_taken(descriptor) {
            return next();
        }
        // SAFETY: the caller's times.
        let Some([accessed, modified]): Option<[TimeToSet; 2]> = (unsafe { two(times, of_timespec) }) else {
            descriptions::real(descriptor);
            return next();
        };
        change(Call::ChangeOpen, descriptor, |open| open.file.set_times(accessed, modified)).unwrap_or_else(next)
    }
}
