//! Streams of directories ([PRL18] of `lib.rs`): opendir and what takes its result. A stream of the door is an address of a table here, which no
//! function of libc has seen; libc's own are left to libc.
//!
//! A stream knows its number, what it has read and not yet returned, and behind which entry it goes on. While the number is a placeholder the
//! daemon lists; once it is real, the kernel does, from the same place: both count entries alike.

use std::ffi::{c_char, c_int, c_long};
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tandemfs_client::{Errno, Listed};

use super::{HERE, open, refused};
use crate::descriptions;
use crate::inside::Within;
use crate::mutant::{Mutant, on};
use crate::report::Call;
use crate::sys;

/// Streams at once; further ones are libc's.
const STREAMS: usize = 256;
/// Bytes that the kernel is asked for at once.
const KERNEL_BYTES: usize = 32 << 10;
/// Programs copy whole entries as they are declared, though these are shorter.
const BEHIND_LAST: usize = size_of::<libc::dirent64>();
const NAME_AT: usize = offset_of!(libc::dirent64, d_name);
const FLAGS: c_int = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC | libc::O_NONBLOCK;

/// What libc's functions are given; only its address counts.
#[derive(Debug)]
#[repr(align(16))]
struct Place(Mutex<Stream>);

#[derive(Debug)]
struct Stream {
    number: c_int,
    /// Entries as getdents64(2) has them, in whole words.
    entries: Vec<u64>,
    /// Where the next one begins, and where they end.
    next: usize,
    end: usize,
    /// Behind which entry the next one stands.
    cookie: u64,
    /// Nothing stood behind the last one a moment ago, which is said once.
    is_at_end: bool,
}

impl Stream {
    const EMPTY: Self = Self { number: -1, entries: Vec::new(), next: 0, end: 0, cookie: 0, is_at_end: false };
}

static PLACES: [Place; STREAMS] = [const { Place(Mutex::new(Stream::EMPTY)) }; STREAMS];
static TAKEN: [AtomicBool; STREAMS] = [const { AtomicBool::new(false) }; STREAMS];

fn locked(place: &Place) -> MutexGuard<'_, Stream> {
    place.0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The stream of an address; none for one of libc's.
fn of(address: *mut libc::DIR) -> Option<(usize, &'static Place)> {
    let offset = (address as usize).checked_sub(PLACES.as_ptr() as usize)?;
    let index = offset / size_of::<Place>();
    (offset % size_of::<Place>() == 0 && TAKEN.get(index)?.load(SeqCst)).then(|| (index, &PLACES[index]))
}

/// A stream of a number, if there is room.
fn begin(number: c_int) -> Option<*mut libc::DIR> {
    let index = TAKEN.iter().position(|taken| !taken.swap(true, SeqCst))?;
    *locked(&PLACES[index]) = Stream { number, ..Stream::EMPTY };
    Some(std::ptr::from_ref(&PLACES[index]).cast_mut().cast())
}

/// Writes an entry as getdents64(2) does.
fn push(entries: &mut Vec<u64>, entry: &Listed<'_>) {
    let words = (NAME_AT + entry.name.len() + 1).div_ceil(8);
    let mut bytes = [0; BEHIND_LAST];
    bytes[..8].copy_from_slice(&entry.inode.to_ne_bytes());
    bytes[8..16].copy_from_slice(&entry.cookie.to_ne_bytes());
    bytes[16..18].copy_from_slice(&((8 * words) as u16).to_ne_bytes());
    bytes[18] = entry.kind;
    bytes[NAME_AT..NAME_AT + entry.name.len()].copy_from_slice(entry.name);
    entries.extend(bytes.as_chunks::<8>().0[..words].iter().map(|word| u64::from_ne_bytes(*word)));
}

impl Stream {
    /// Reads on, by the daemon or by the kernel; leaves nothing at the end.
    fn fill(&mut self) -> Result<(), Errno> {
        (self.next, self.end) = (0, 0);
        let (entries, cookie) = (&mut self.entries, self.cookie);
        let listed = descriptions::by(Call::ListOpen, self.number, |open| {
            entries.clear();
            let is_end = open.file.list_behind(cookie, |entry| push(entries, entry))?;
            let end = 8 * entries.len();
            entries.resize(entries.len() + BEHIND_LAST.div_ceil(8), 0);
            Ok((end, is_end))
        });
        match listed {
            Some(listed) => (self.end, self.is_at_end) = listed?,
            None => self.fill_by_kernel()?,
        }
        Ok(())
    }

    fn fill_by_kernel(&mut self) -> Result<(), Errno> {
        let Some(_within) = Within::enter() else { return Err(Errno::BADF) };
        let start = if on(Mutant::StreamRestarted) { 0 } else { self.cookie };
        self.entries.clear();
        self.entries.resize((KERNEL_BYTES + BEHIND_LAST).div_ceil(8), 0);
        let number = self.number as usize;
        // SAFETY: the kernel writes into the buffer, whose length it is told.
        let read = unsafe {
            match sys::call(libc::SYS_lseek, [number, start as usize, libc::SEEK_SET as usize, 0, 0]) {
                failed @ ..0 => failed,
                _ => sys::call(libc::SYS_getdents64, [number, self.entries.as_mut_ptr() as usize, KERNEL_BYTES, 0, 0]),
            }
        };
        self.end = usize::try_from(read).map_err(|_| Errno::from_raw_os_error(-read as i32))?;
        Ok(())
    }

    /// The next entry, null at the end.
    fn entry(&mut self) -> Result<*mut libc::dirent64, Errno> {
        if self.next >= self.end {
            if std::mem::take(&mut self.is_at_end) {
                return Ok(std::ptr::null_mut());
            }
            match self.fill() {
                Ok(()) => {}
                // Of a removed directory, as libc.
                Err(Errno::NOENT) => (self.end, self.is_at_end) = (0, false),
                Err(error) => return Err(error),
            }
            if self.end == 0 {
                self.is_at_end = false;
                return Ok(std::ptr::null_mut());
            }
        }
        let entry = self.entries.as_mut_ptr().wrapping_byte_add(self.next).cast::<libc::dirent64>();
        // SAFETY: an entry begins there, with more words behind the last one than an entry has. Its fields are read without a reference to all of it.
        let (length, cookie) = unsafe { ((&raw const (*entry).d_reclen).read(), (&raw const (*entry).d_off).read()) };
        self.next += usize::from(length).max(1);
        self.cookie = cookie.cast_unsigned();
        Ok(entry)
    }

    /// Goes on behind an entry.
    fn seek(&mut self, cookie: u64) {
        (self.next, self.end, self.cookie, self.is_at_end) = (0, 0, cookie, false);
    }
}

/// opendir(3) by the door.
///
/// # Safety
/// As opendir(3)'s.
unsafe fn open_stream(path: *const c_char) -> Option<*mut libc::DIR> {
    // SAFETY: the caller's path.
    let number = unsafe { open::open_by_door((HERE, path), FLAGS, 0) }?;
    if number < 0 {
        return Some(std::ptr::null_mut());
    }
    stream_of(number).or_else(|| {
        descriptions::close(number);
        None
    })
}

/// fdopendir(3) of a placeholder.
fn stream_of(number: c_int) -> Option<*mut libc::DIR> {
    if descriptions::is_directory(number) { begin(number) } else { None }
}

fn close_stream(address: *mut libc::DIR) -> Option<c_int> {
    let (index, place) = of(address)?;
    // The memory is given back inside ([PRL3] of `lib.rs`).
    let within = Within::enter();
    let stream = std::mem::replace(&mut *locked(place), Stream::EMPTY);
    let number = stream.number;
    drop(stream);
    drop(within);
    TAKEN[index].store(false, SeqCst);
    if descriptions::close(number) {
        return Some(0);
    }
    // SAFETY: the stream's own descriptor.
    let closed = unsafe { sys::call(libc::SYS_close, [number as usize, 0, 0, 0, 0]) };
    Some(if closed < 0 { refused(Errno::from_raw_os_error(-closed as i32)) as c_int } else { 0 })
}

fn next_entry(address: *mut libc::DIR) -> Option<*mut libc::dirent64> {
    let (_, place) = of(address)?;
    let found = locked(place).entry();
    Some(found.unwrap_or_else(|error| {
        refused(error);
        std::ptr::null_mut()
    }))
}

/// readdir_r(3).
///
/// # Safety
/// Both are the caller's, with room for an entry.
unsafe fn copy_entry(address: *mut libc::DIR, into: *mut libc::dirent64, result: *mut *mut libc::dirent64) -> Option<c_int> {
    let (_, place) = of(address)?;
    let mut stream = locked(place);
    let (found, error) = match stream.entry() {
        Ok(found) => (found, 0),
        Err(error) => (std::ptr::null_mut(), error.raw_os_error()),
    };
    // SAFETY: the caller's memory; the entry has its length in it and lies in the stream's, which is locked.
    unsafe {
        if !found.is_null() {
            let length = usize::from((&raw const (*found).d_reclen).read());
            into.cast::<u8>().copy_from_nonoverlapping(found.cast(), length);
        }
        *result = if found.is_null() { found } else { into };
    }
    Some(error)
}

/// Declares a function that takes a stream: one of the door's is served here.
macro_rules! of_streams {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty $body:block)*) => {$(
        /// As libc's.
        ///
        /// # Safety
        /// As libc's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            let done: Option<$result> = $body;
            done.unwrap_or_else(|| {
                // SAFETY: libc's function of this name, which has this type; the arguments are the caller's. No program that has a stream of libc's
                // lacks it.
                unsafe {
                    let next = std::mem::transmute::<*mut std::ffi::c_void, Option<unsafe extern "C" fn($($type),*) -> $result>>(crate::next::next!(stringify!($name)).get());
                    next.unwrap_or_else(|| std::process::abort())($($argument),*)
                }
            })
        }
    )*};
}

of_streams! {
    fn opendir(path: *const c_char) -> *mut libc::DIR {
        // SAFETY: the caller's path.
        let opened = unsafe { open_stream(path) };
        if opened.is_none() {
            // SAFETY: as above.
            unsafe { open::before_path(path) };
        }
        opened
    }

    fn fdopendir(number: c_int) -> *mut libc::DIR {
        let stream = stream_of(number);
        if stream.is_none() {
            descriptions::real(number);
        }
        stream
    }

    fn readdir(stream: *mut libc::DIR) -> *mut libc::dirent64 { next_entry(stream) }
    fn readdir64(stream: *mut libc::DIR) -> *mut libc::dirent64 { next_entry(stream) }

    fn readdir_r(stream: *mut libc::DIR, into: *mut libc::dirent64, result: *mut *mut libc::dirent64) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { copy_entry(stream, into, result) }
    }

    fn readdir64_r(stream: *mut libc::DIR, into: *mut libc::dirent64, result: *mut *mut libc::dirent64) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { copy_entry(stream, into, result) }
    }

    fn closedir(stream: *mut libc::DIR) -> c_int { close_stream(stream) }
    fn dirfd(stream: *mut libc::DIR) -> c_int { of(stream).map(|(_, place)| locked(place).number) }
    fn telldir(stream: *mut libc::DIR) -> c_long { of(stream).map(|(_, place)| locked(place).cookie.cast_signed()) }
    fn seekdir(stream: *mut libc::DIR, cookie: c_long) -> () { of(stream).map(|(_, place)| locked(place).seek(cookie.cast_unsigned())) }
    fn rewinddir(stream: *mut libc::DIR) -> () { of(stream).map(|(_, place)| locked(place).seek(0)) }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn entries_are_as_the_kernel_writes_them() {
        let mut entries = Vec::new();
        for name in [&b"a"[..], b"four", b"fives", &[b'x'; 255]] {
            push(&mut entries, &Listed { inode: 7, cookie: name.len() as u64, kind: libc::DT_REG, name });
        }
        let end = 8 * entries.len();
        entries.resize(entries.len() + BEHIND_LAST.div_ceil(8), 0);
        let mut stream = Stream { entries, end, ..Stream::EMPTY };
        for length in [1, 4, 5, 255] {
            let entry = stream.entry().expect("there");
            // SAFETY: a whole entry, which ends with NUL.
            let (inode, kind, name) = unsafe { ((*entry).d_ino, (*entry).d_type, CStr::from_ptr((&raw const (*entry).d_name).cast())) };
            assert_eq!((inode, kind, name.to_bytes().len(), stream.cookie), (7, libc::DT_REG, length, length as u64));
        }
        assert_eq!(stream.next, stream.end);
    }

    #[test]
    fn addresses_of_others_are_none() {
        let stream = begin(-1).expect("room");
        assert!(of(stream).is_some() && of(stream.wrapping_byte_add(1)).is_none() && of(std::ptr::null_mut()).is_none());
        assert!(of(stream.wrapping_byte_add(STREAMS * size_of::<Place>())).is_none());
        assert_eq!(close_stream(stream), Some(-1), "EBADF");
        assert!(of(stream).is_none());
    }
}
