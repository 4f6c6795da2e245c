//! Memory of the caller. Each function here takes the caller's promise that a pointer which is not null points to what it stands for, and that
//! nobody else changes that during the call.

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::failure::{Failure, Result};
use crate::held::Handle;
use crate::mutant::{Mutant, on};

/// Most bytes of a call, as the kernel's limit.
const CALL_BYTES_MAX: usize = 0x7fff_f000;

const NULL: fn() -> Failure = || Failure::of(libc::EFAULT);

/// A value of the caller, or null.
///
/// # Safety
/// It is null or points to a value, for the time of the call.
pub(crate) unsafe fn value<'c, T>(pointer: *const T) -> Result<&'c T> {
    // SAFETY: by the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(NULL)
}

/// What a handle stands for.
///
/// # Safety
/// As [`value`].
pub(crate) unsafe fn handle<'c, H: Handle + 'c>(pointer: *const H) -> Result<&'c H::Of> {
    // SAFETY: by the caller's promise.
    unsafe { value(pointer) }?.held().get()
}

/// What a handle stands for, without the handle, which is freed.
///
/// # Safety
/// It is null or was made by [`Answer::give`], and nobody uses it any more.
pub(crate) unsafe fn take<H: Handle>(pointer: *mut H) -> Result<H::Of> {
    if pointer.is_null() {
        return Err(NULL());
    }
    // SAFETY: by the caller's promise.
    unsafe { Box::from_raw(pointer) }.into_held().into_inner()
}

/// A path.
///
/// # Safety
/// It is null or points to text that ends with NUL, which stays for the call.
pub(crate) unsafe fn path<'c>(text: *const c_char) -> Result<&'c Path> {
    if text.is_null() {
        return Err(NULL());
    }
    // SAFETY: by the caller's promise.
    Ok(OsStr::from_bytes(unsafe { CStr::from_ptr(text) }.to_bytes()).as_ref())
}

fn is_nothing<T>(pointer: *const T, length: usize) -> Result<bool> {
    match length == 0 || pointer.is_null() && on(Mutant::NullIsEmpty) {
        false if pointer.is_null() => Err(NULL()),
        is_nothing => Ok(is_nothing),
    }
}

/// Bytes that the caller gives, as many as one call takes.
///
/// # Safety
/// It is null or points to so many bytes, which stay as they are for the call.
pub(crate) unsafe fn bytes<'c>(pointer: *const c_void, length: usize) -> Result<&'c [u8]> {
    if is_nothing(pointer, length)? {
        return Ok(&[]);
    }
    // SAFETY: by the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(pointer.cast(), length.min(CALL_BYTES_MAX)) })
}

/// Room for bytes, for as many as one call takes.
///
/// # Safety
/// It is null or points to so many bytes, which nobody else uses during the call.
pub(crate) unsafe fn room<'c>(pointer: *mut c_void, length: usize) -> Result<&'c mut [u8]> {
    if is_nothing(pointer, length)? {
        return Ok(&mut []);
    }
    // SAFETY: by the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer.cast(), length.min(CALL_BYTES_MAX)) })
}

/// Where an answer goes. It is asked for before the call is made ([CAP1]), and stored to behind it ([CAP5]).
pub(crate) struct Answer<T>(*mut T);

impl<T> Answer<T> {
    /// # Safety
    /// It is null or points to room for a value, which nobody else uses during the call.
    pub(crate) unsafe fn at(pointer: *mut T) -> Result<Self> {
        if pointer.is_null() { Err(NULL()) } else { Ok(Self(pointer)) }
    }

    pub(crate) fn store(self, value: T) {
        // SAFETY: by the promise of who made it.
        unsafe { self.0.write(value) };
    }
}

impl<H: Handle> Answer<*mut H> {
    /// Stores a handle of what was made, if it was.
    pub(crate) fn give(self, made: Result<H::Of>) -> Result<()> {
        match made.and_then(H::of) {
            Ok(handle) => self.store(Box::into_raw(Box::new(handle))),
            Err(failure) => {
                if on(Mutant::ClearedOnFailure) {
                    self.store(std::ptr::null_mut());
                }
                return Err(failure);
            }
        }
        Ok(())
    }
}

/// Stores text with a NUL behind it, cut where there is no room ([CAP6]).
pub(crate) fn store_text(text: &str, room: &mut [u8]) {
    let for_end = usize::from(!on(Mutant::NoRoomForEnd));
    let Some(most) = room.len().checked_sub(for_end) else { return };
    let end = text.floor_char_boundary(most);
    room[..end].copy_from_slice(&text.as_bytes()[..end]);
    if let Some(behind) = room.get_mut(end) {
        *behind = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutant::ALONE;

    fn stored(text: &str, bytes: usize) -> Vec<u8> {
        let mut room = vec![b'#'; bytes];
        store_text(text, &mut room);
        room
    }

    #[test]
    fn text_ends_with_nul_within_its_room() {
        let _alone = ALONE.lock();
        assert_eq!((stored("abc", 5), stored("abc", 4), stored("abc", 3)), (b"abc\0#".into(), b"abc\0".into(), b"ab\0".into()));
        assert_eq!((stored("abc", 1), stored("abc", 0), stored("", 2)), (b"\0".into(), b"".into(), b"\0#".into()));
        assert_eq!(stored("a\u{e4}", 3), b"a\0#", "half a character is none");
        #[cfg(feature = "mutants")]
        {
            crate::mutant::select(Mutant::NoRoomForEnd);
            let found = stored("abc", 3);
            crate::mutant::select(Mutant::None);
            assert_eq!(found, b"abc", "NoRoomForEnd escaped");
        }
    }
}
