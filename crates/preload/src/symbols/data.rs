//! pread, pwrite and their vectored forms: bytes of a descriptor of the kernel's at an offset that the call says ([PRL7]–[PRL11] of `lib.rs`).
//! Not read, write and lseek of real descriptors: the offset is the kernel's, and whoever shares the descriptor may move it at any moment. Not fstat, with which the
//! kernel learns sizes that mappings, sendfile and copy_file_range go by; nor fsync, which costs the mount nothing.

use std::borrow::Cow;
use std::ffi::{c_int, c_void};

use rustix::io::ReadWriteFlags;
use tandemfs_client::{Crossed, Errno, Error, File, Result, Unless, Why};

use super::refused;
use crate::call::{Kind, by_door};
use crate::descriptions;
use crate::files::{self, Transfer};
use crate::hints;
use crate::mutant::{Mutant, on};
use crate::next::interpose;
use crate::report::{Call, Way, count};
use crate::settings;

/// Most bytes of a call by the door: as much as its daemon serves without handing it on.
const BYTES_MAX: usize = 16 << 10;
const PARTS_MAX: usize = 64;
/// Most bytes of several parts by a placeholder, and of an append: what one request may have.
const TOGETHER_MAX: usize = 1 << 20;
/// Calls of a descriptor that is elsewhere before the kernel is asked again.
const ELSEWHERE: u32 = 64;

/// Most parts of a call, and most bytes of several together.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub(super) parts: usize,
    pub(super) bytes: usize,
}

/// Where the bytes of a call are.
#[derive(Clone, Copy)]
pub(super) struct Parts<'p> {
    parts: &'p [libc::iovec],
    bytes: usize,
}

impl<'p> Parts<'p> {
    /// None for what is left to the kernel.
    ///
    /// # Safety
    /// The parts can be read.
    unsafe fn of(parts: *const libc::iovec, count: c_int) -> Option<Self> {
        // SAFETY: the caller's parts.
        unsafe { Self::within(parts, count, Limits { parts: PARTS_MAX, bytes: BYTES_MAX }) }.filter(|parts| parts.bytes <= BYTES_MAX)
    }

    /// None for what is beyond the limits, for no bytes, and for null pointers.
    ///
    /// # Safety
    /// The parts can be read.
    pub(super) unsafe fn within(parts: *const libc::iovec, count: c_int, most: Limits) -> Option<Self> {
        let count = usize::try_from(count).ok().filter(|count| (1..=most.parts).contains(count) && !parts.is_null())?;
        // SAFETY: so many parts of the caller's.
        let parts = unsafe { std::slice::from_raw_parts(parts, count) };
        let is_there = |part: &libc::iovec| part.iov_len == 0 || !part.iov_base.is_null();
        let bytes = parts.iter().try_fold(0_usize, |sum, part| sum.checked_add(part.iov_len))?;
        let fits = bytes <= if count == 1 { isize::MAX as usize } else { most.bytes };
        (bytes > 0 && fits && parts.iter().all(is_there)).then_some(Self { parts, bytes })
    }

    fn filled(self) -> impl Iterator<Item = &'p libc::iovec> {
        self.parts.iter().filter(|part| part.iov_len > 0)
    }

    /// What is appended and is more than one request of the door goes by the mount, where it is one call ([PRL22] of `lib.rs`).
    fn must_be_one_request(self, appends: bool) -> Result<()> {
        let is_one = !appends || self.bytes <= TOGETHER_MAX || on(Mutant::LongAppendsDivided);
        if is_one { Ok(()) } else { Err(Error::Crossed(Crossed { why: Why::NotServed, argument: 0 })) }
    }

    /// # Safety
    /// The parts are memory of the caller's.
    pub(super) unsafe fn write_to(self, file: &File, offset: u64, unless: Unless) -> Result<usize> {
        // SAFETY: the caller's memory.
        file.write_at_unless(&unsafe { self.together() }, offset, unless)
    }

    /// As [`File::write_at_with`].
    ///
    /// # Safety
    /// The parts are memory of the caller's.
    unsafe fn write_with(self, file: &File, offset: u64, flags: ReadWriteFlags) -> Result<usize> {
        self.must_be_one_request(flags == ReadWriteFlags::APPEND)?;
        // SAFETY: the caller's memory.
        file.write_at_with(&unsafe { self.together() }, offset, flags)
    }

    /// The bytes of all parts, copied where there are several.
    ///
    /// # Safety
    /// The parts are memory of the caller's.
    unsafe fn together(self) -> Cow<'p, [u8]> {
        // SAFETY: the caller's memory.
        let of = |part: &libc::iovec| unsafe { std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len) };
        match self.parts {
            [only] => of(only).into(),
            _ => self.filled().map(of).collect::<Vec<_>>().concat().into(),
        }
    }

    /// As [`File::append`].
    ///
    /// # Safety
    /// The parts are memory of the caller's.
    pub(super) unsafe fn append_to(self, file: &File) -> Result<(usize, u64)> {
        self.must_be_one_request(true)?;
        // SAFETY: the caller's memory.
        file.append(&unsafe { self.together() })
    }

    /// # Safety
    /// The parts are memory of the caller's that can be written.
    pub(super) unsafe fn read_from(self, file: &File, offset: u64, unless: Unless) -> Result<usize> {
        if let [only] = self.parts {
            // SAFETY: the caller's memory.
            let into = unsafe { std::slice::from_raw_parts_mut(only.iov_base.cast::<u8>(), only.iov_len) };
            return file.read_at_unless(into, offset, unless);
        }
        let mut bytes = vec![0; self.bytes];
        let done = file.read_at_unless(&mut bytes, offset, unless)?;
        let mut rest = &bytes[..done];
        for part in self.filled() {
            let (here, later) = rest.split_at(part.iov_len.min(rest.len()));
            // SAFETY: the caller's memory has room for that.
            unsafe { part.iov_base.cast::<u8>().copy_from_nonoverlapping(here.as_ptr(), here.len()) };
            rest = later;
        }
        Ok(done)
    }
}

/// A transfer by the door; none if the mount has to do it, or the descriptor is elsewhere.
///
/// # Safety
/// As preadv(2)'s and pwritev(2)'s.
unsafe fn by_offset(transfer: Transfer, descriptor: c_int, parts: *const libc::iovec, parts_count: c_int, offset: i64) -> Option<isize> {
    let settings = settings::get()?;
    if descriptions::is_taken(descriptor) {
        // SAFETY: the caller's arguments.
        return unsafe { by_placeholder(transfer, descriptor, parts, parts_count, offset) };
    }
    let is_read = transfer == Transfer::Read;
    if is_read && !files::are_open() {
        return None; // no file has its turn by the door
    }
    // SAFETY: the caller's parts.
    let parts = unsafe { Parts::of(parts, parts_count) }?;
    let from = u64::try_from(offset).ok()?;
    let (call, kind) = if is_read { (Call::Read, Kind::Looks) } else { (Call::Write, Kind::Changes) };
    if let Some(is_ours) = hints::passes(descriptor, is_read) {
        if is_ours {
            count(call, Way::Pages);
        }
        return None;
    }
    let Some(seen) = files::described(settings, descriptor) else {
        hints::pass(descriptor, false, ELSEWHERE.min(settings.calls_before), ELSEWHERE);
        return None;
    };
    let is_inside = from.checked_add(parts.bytes as u64).is_some_and(|end| end <= seen.size);
    let is_ignored = on(Mutant::GrowsByDoor) && from < 1 << 40;
    let grows = !is_read && !is_inside && !is_ignored;
    if grows {
        count(call, Way::Grows); // [PRL9]
        return None;
    }
    let done = by_door(settings, call, kind, |inside| {
        let (file, mut unless) = files::of(inside.door(), settings, descriptor, seen, transfer)?;
        unless.grows &= !on(Mutant::GrowsByDoor);
        // SAFETY: the caller's memory.
        let done = unsafe { if is_read { parts.read_from(&file, from, unless) } else { parts.write_to(&file, from, unless) } };
        match done {
            Err(Error::Crossed(crossed)) if matches!(crossed.why, Why::Cached | Why::Watched) => {
                files::cached(inside.door(), seen.inode);
                Err(if crossed.why == Why::Watched { Way::Watched } else { Way::Pages })
            }
            // Nothing was written: the mount waits for memory and for space that is about to come back.
            Err(Error::Errno(Errno::NOMEM)) => Err(Way::NoMemory),
            Err(Error::Errno(Errno::NOSPC)) => Err(Way::NoSpace),
            other => Ok(other),
        }
    })?;
    Some(done.map_or_else(refused, |bytes| bytes as isize))
}

/// A transfer by the open file that a placeholder stands for.
///
/// # Safety
/// As preadv(2)'s and pwritev(2)'s.
unsafe fn by_placeholder(transfer: Transfer, descriptor: c_int, parts: *const libc::iovec, count: c_int, offset: i64) -> Option<isize> {
    // SAFETY: the caller's parts.
    let parts = unsafe { Parts::within(parts, count, Limits { parts: PARTS_MAX, bytes: TOGETHER_MAX }) };
    let (Some(parts), Ok(from)) = (parts, u64::try_from(offset)) else {
        descriptions::real(descriptor);
        return None;
    };
    let call = if transfer == Transfer::Read { Call::Read } else { Call::Write };
    // SAFETY: the caller's memory.
    let done = descriptions::by(call, descriptor, |open| unsafe {
        match transfer {
            Transfer::Read => parts.read_from(&open.file, from, open.reads()?),
            Transfer::Write => {
                parts.must_be_one_request(open.appends())?;
                parts.write_to(&open.file, from, Unless::default())
            }
        }
    })?;
    Some(done.map_or_else(refused, |bytes| bytes as isize))
}

/// pwritev2(2) with a flag that says where the bytes go, by the open file that a placeholder stands for.
///
/// # Safety
/// As pwritev2(2)'s.
unsafe fn placed_by_placeholder(descriptor: c_int, parts: *const libc::iovec, count: c_int, offset: i64, flags: c_int) -> Option<isize> {
    if !matches!(flags, libc::RWF_APPEND | libc::RWF_NOAPPEND) || !descriptions::is_taken(descriptor) {
        return None;
    }
    // SAFETY: the caller's parts.
    let parts = unsafe { Parts::within(parts, count, Limits { parts: PARTS_MAX, bytes: TOGETHER_MAX }) }?;
    let from = u64::try_from(offset).ok()?;
    let flags = ReadWriteFlags::from_bits_retain(flags.cast_unsigned());
    // SAFETY: the caller's memory.
    let done = descriptions::by(Call::Write, descriptor, |open| unsafe { parts.write_with(&open.file, from, flags) })?;
    Some(done.map_or_else(refused, |bytes| bytes as isize))
}

/// # Safety
/// As pread(2)'s and pwrite(2)'s.
unsafe fn one(transfer: Transfer, descriptor: c_int, bytes: *mut c_void, count: usize, offset: i64) -> Option<isize> {
    let part = libc::iovec { iov_base: bytes, iov_len: count };
    // SAFETY: one part; the rest is the caller's.
    unsafe { by_offset(transfer, descriptor, &raw const part, 1, offset) }
}

macro_rules! reads {
    ($($name:ident)*) => { interpose! {$(
        fn $name(descriptor: c_int, into: *mut c_void, count: usize, offset: libc::off_t) -> isize, |next| {
            // SAFETY: the caller's arguments.
            unsafe { one(Transfer::Read, descriptor, into, count, offset) }.unwrap_or_else(next)
        }
    )*} };
}

macro_rules! writes {
    ($($name:ident)*) => { interpose! {$(
        fn $name(descriptor: c_int, from: *const c_void, count: usize, offset: libc::off_t) -> isize, |next| {
            // SAFETY: the caller's arguments.
            unsafe { one(Transfer::Write, descriptor, from.cast_mut(), count, offset) }.unwrap_or_else(next)
        }
    )*} };
}

macro_rules! vectored {
    ($($name:ident $transfer:ident)*) => { interpose! {$(
        fn $name(descriptor: c_int, parts: *const libc::iovec, count: c_int, offset: libc::off_t) -> isize, |next| {
            // SAFETY: the caller's arguments.
            unsafe { by_offset(Transfer::$transfer, descriptor, parts, count, offset) }.unwrap_or_else(next)
        }
    )*} };
}

macro_rules! vectored_with_flags {
    ($($name:ident $transfer:ident)*) => { interpose! {$(
        fn $name(descriptor: c_int, parts: *const libc::iovec, count: c_int, offset: libc::off_t, flags: c_int) -> isize, |next| {
            // SAFETY: the caller's arguments. With an offset of −1 the kernel's counts.
            let done = unsafe {
                match Transfer::$transfer {
                    transfer if flags == 0 => by_offset(transfer, descriptor, parts, count, offset),
                    Transfer::Read => None,
                    Transfer::Write => placed_by_placeholder(descriptor, parts, count, offset, flags),
                }
            };
            if done.is_none() {
                descriptions::real(descriptor);
            }
            done.unwrap_or_else(next)
        }
    )*} };
}

macro_rules! checked_reads {
    ($($name:ident)*) => { interpose! {$(
        fn $name(descriptor: c_int, into: *mut c_void, count: usize, offset: libc::off_t, has: usize) -> isize, |next| {
            // SAFETY: the caller's arguments. libc ends a program whose buffer is shorter than it says.
            let done = if count <= has { unsafe { one(Transfer::Read, descriptor, into, count, offset) } } else { None };
            done.unwrap_or_else(next)
        }
    )*} };
}

reads! { pread pread64 __pread64 }
checked_reads! { __pread_chk __pread64_chk }
writes! { pwrite pwrite64 __pwrite64 }
vectored! { preadv Read preadv64 Read pwritev Write pwritev64 Write }
vectored_with_flags! { preadv2 Read preadv64v2 Read pwritev2 Write pwritev64v2 Write }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_are_left_to_the_kernel_are_none() {
        let somewhere = std::ptr::dangling_mut::<u8>().cast();
        let part = |length| libc::iovec { iov_base: somewhere, iov_len: length };
        let nowhere = |length| libc::iovec { iov_base: std::ptr::null_mut(), iov_len: length };
        // SAFETY: so many parts; nobody reads what they name.
        let of = |parts: &[libc::iovec]| unsafe { Parts::of(parts.as_ptr(), parts.len() as c_int) }.map(|parts| parts.bytes);
        assert_eq!(of(&[part(3), nowhere(0), part(5)]), Some(8));
        assert_eq!(of(&[part(BYTES_MAX)]), Some(BYTES_MAX));
        for parts in [&[part(0)][..], &[nowhere(1)], &[part(BYTES_MAX), part(1)], &[part(usize::MAX), part(2)], &[part(1); PARTS_MAX + 1]] {
            assert_eq!(of(parts), None);
        }
        let one = part(1);
        // SAFETY: nothing is read.
        assert!(unsafe { Parts::of(std::ptr::null(), 1).is_none() && Parts::of(&raw const one, -1).is_none() });
    }
}
