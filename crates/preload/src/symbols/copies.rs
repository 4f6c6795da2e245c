//! copy_file_range(2) and FICLONE between two placeholders.

use std::ffi::{c_int, c_uint};

use tandemfs_client::{Errno, Result};

use super::{refused, used_by_kernel};
use crate::descriptions::{self, Description};
use crate::next::interpose;
use crate::report::Call;

/// What is copied by a read and a write: the daemon hands longer copies on to another thread.
const TOGETHER_MAX: usize = 16 << 10;

/// What both calls demand of two regular files.
fn may_be_copied(source: &Description, target: &Description) -> Result<()> {
    source.must_be_a_file()?;
    target.must_be_a_file()?;
    let is_allowed = source.rights().0 && target.rights().1 && !target.appends();
    if is_allowed { Ok(()) } else { Err(Errno::BADF.into()) }
}

/// Copies from one offset to another; returns how much.
fn copy(source: &Description, from: u64, target: &Description, to: u64, length: u64) -> Result<u64> {
    may_be_copied(source, target)?;
    let is_possible = from.checked_add(length).is_some() && to.checked_add(length).is_some_and(|end| i64::try_from(end).is_ok());
    if source.inode() != target.inode() && is_possible && length > 0 {
        let mut bytes = vec![0; TOGETHER_MAX.min(usize::try_from(length).unwrap_or(TOGETHER_MAX))];
        let found = source.file.read_at(&mut bytes, from)?;
        if found == 0 {
            return Ok(0);
        }
        if found < TOGETHER_MAX || length == TOGETHER_MAX as u64 {
            return target.file.write_at(&bytes[..found], to).map(|done| done as u64);
        }
    }
    source.file.copy_range(from, &target.file, to, length)
}

/// copy_file_range(2) between two placeholders; none if the mount has to do it.
///
/// # Safety
/// As copy_file_range(2)'s.
unsafe fn copy_by_door(source: c_int, from: *mut i64, target: c_int, to: *mut i64, length: usize, flags: c_uint) -> Option<isize> {
    if flags != 0 {
        return None;
    }
    let copied = descriptions::by_two(Call::Copy, [source, target], |source, target| {
        descriptions::with_offsets(source, target, |source_offset, target_offset| {
            // SAFETY: null, or offsets of the caller.
            let said = |offset: *mut i64, own: u64| if offset.is_null() { Ok(own) } else { u64::try_from(unsafe { *offset }) };
            let (Ok(begin), Ok(into)) = (said(from, *source_offset), said(to, *target_offset)) else { return Err(Errno::INVAL.into()) };
            let copied = copy(source, begin, target, into, length as u64)?;
            let move_to = |offset: *mut i64, own: &mut u64, end: u64| match offset.is_null() {
                true => *own = end,
                // SAFETY: an offset of the caller.
                false => unsafe { *offset = end.cast_signed() },
            };
            move_to(from, source_offset, begin + copied);
            move_to(to, target_offset, into + copied);
            Ok(copied as isize)
        })
    })?;
    copied.transpose().map(|copied| copied.unwrap_or_else(refused))
}

/// FICLONE of two placeholders: what the mount says, which has no such thing. None if it has to say so itself.
pub(super) fn is_not_cloned(target: c_int, source: c_int) -> Option<Errno> {
    let said = descriptions::by_two::<()>(Call::CloneFile, [source, target], |source, target| {
        may_be_copied(source, target)?;
        Err(Errno::OPNOTSUPP.into())
    });
    said?.err()
}

interpose! {
    fn copy_file_range(source: c_int, from: *mut i64, target: c_int, to: *mut i64, length: usize, flags: c_uint) -> isize, |next| {
        // SAFETY: the caller's arguments.
        unsafe { copy_by_door(source, from, target, to, length, flags) }.unwrap_or_else(|| {
            // [PRL14] of `lib.rs`
            [source, target].into_iter().for_each(used_by_kernel);
            next()
        })
    }
}
