//! All code that needs `unsafe`: mappings of memory that another process may change at any moment, and entries of an io_uring.
//!
//! No reference into shared memory leaves this module but to atomics; bytes are copied. A word or byte of any value is valid, so a change by
//! the other process never makes a value that the compiler excludes.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
use std::time::Duration;

use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

/// Waits of io_uring: a futex of 32 bits that several processes map (`FUTEX2_SIZE_U32`, not private).
const FUTEX_SHARED_U32: u32 = 2;
const FUTEX_ANY_BIT: u64 = u32::MAX as u64;

/// The socket option SO_PEERPIDFD, whose number the C library's headers may not know yet.
const PEER_PIDFD: libc::c_int = 77;

/// The process that connected the other end of a UNIX socket, for [`crate::Lifeline::Process`] (Linux 6.5).
///
/// # Errors
/// What the kernel refuses.
pub fn process_of(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut descriptor: libc::c_int = -1;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    let place = (&raw mut descriptor).cast();
    // SAFETY: the kernel writes at most `length` bytes to `descriptor`, which has as many.
    if unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, PEER_PIDFD, place, &raw mut length) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if descriptor < 0 {
        return Err(io::ErrorKind::NotConnected.into());
    }
    // SAFETY: a new descriptor, which nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// The supplementary groups that the other end of a UNIX socket had when it connected (Linux 4.13).
///
/// # Errors
/// What the kernel refuses.
pub fn groups_of(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0_u32; 32];
    loop {
        let mut length = size_of_val(&groups[..]) as libc::socklen_t;
        let place = groups.as_mut_ptr().cast();
        // SAFETY: the kernel writes at most `length` bytes to `groups`, which has as many.
        let result = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERGROUPS, place, &raw mut length) };
        let count = length as usize / size_of::<u32>();
        match result {
            0 => {
                groups.truncate(count);
                return Ok(groups);
            }
            _ if count > groups.len() => groups.resize(count, 0), // it was too short, and the kernel says how long it has to be
            _ => return Err(io::Error::last_os_error()),
        }
    }
}

/// From now on nobody can send descriptors to a UNIX socket, or to sockets that it accepts (Linux 6.16): who tries gets EPERM.
///
/// # Errors
/// What the kernel refuses, `ENOPROTOOPT` where it cannot.
pub fn refuse_descriptors(socket: BorrowedFd<'_>) -> io::Result<()> {
    const SO_PASSRIGHTS: libc::c_int = 83;
    let (off, length) = (0 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the kernel reads an `int`.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const off).cast(), length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A mapping of a sealed file.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: shared memory, accessed by atomics and copies of bytes.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a file whose size is sealed. A child process does not inherit the mapping.
    pub(crate) fn new(file: BorrowedFd<'_>, bytes: usize, is_writable: bool) -> io::Result<Self> {
        let protection = if is_writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let start = unsafe { mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Self { start, bytes };
        // SAFETY: the mapping of this length is ours; the advice changes what fork copies.
        unsafe { madvise(mapping.start.as_ptr().cast(), bytes, Advice::LinuxDontFork)? };
        Ok(mapping)
    }

    fn place(&self, at: usize, bytes: usize) -> *mut u8 {
        assert!(at.checked_add(bytes).is_some_and(|end| end <= self.bytes), "an access beyond the mapping");
        // SAFETY: within the mapping.
        unsafe { self.start.as_ptr().add(at) }
    }

    /// A word of 4 bytes. In a mapping that is not writable it must only be loaded.
    #[inline]
    pub(crate) fn word32(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4), "a word lies at its alignment");
        // SAFETY: within the mapping, which starts at a page, and aligned; others access it by atomics alone.
        unsafe { AtomicU32::from_ptr(self.place(at, 4).cast()) }
    }

    /// A word of 8 bytes; see [`Mapping::word32`].
    #[inline]
    pub(crate) fn word64(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8), "a word lies at its alignment");
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.place(at, 8).cast()) }
    }

    /// Copies bytes into the mapping.
    pub(crate) fn copy_in(&self, at: usize, bytes: &[u8]) {
        let place = self.place(at, bytes.len());
        // SAFETY: both are that long and do not overlap, since no slice of the mapping exists. Another process may change the bytes
        // meanwhile; then they have any value.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
    }

    /// Copies bytes out of the mapping.
    pub(crate) fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        let place = self.place(at, bytes.len());
        // SAFETY: as above.
        unsafe { ptr::copy_nonoverlapping(place, bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Bytes of the mapping, for transfers of a device.
    pub(crate) fn atomics(&self, at: usize, bytes: usize) -> &[AtomicU8] {
        // SAFETY: within the mapping, of which nothing is borrowed but as atomics.
        unsafe { std::slice::from_raw_parts(self.place(at, bytes).cast(), bytes) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length, and its one owner is gone.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "a mapping of ours");
    }
}

/// How long, and how often in a row, the kernel is left alone that has no memory for a wait.
const REST: Duration = Duration::from_millis(1);
const TRIES_MAX: u32 = 1000;

/// Whether the kernel may take a little later what it has refused with this error.
fn is_of_the_moment(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, OutOfMemory, ResourceBusy, WouldBlock};
    matches!(error.kind(), Interrupted | ResourceBusy | WouldBlock | OutOfMemory)
}

/// An io_uring that waits for words and descriptors.
pub(crate) struct Waits(IoUring);

impl std::fmt::Debug for Waits {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Waits")
    }
}

impl Waits {
    pub(crate) fn new(entries: u32) -> io::Result<Self> {
        Ok(Self(IoUring::new(entries)?))
    }

    /// Whether the kernel can wait for futexes here.
    pub(crate) fn has_futexes(&self) -> bool {
        let mut probe = Probe::new();
        self.0.submitter().register_probe(&mut probe).is_ok() && probe.is_supported(opcode::FutexWait::CODE)
    }

    /// Waits until a word is woken; at once if it has another value.
    pub(crate) fn word(&mut self, mapping: &Mapping, at: usize, value: u32, key: u64) -> io::Result<()> {
        let word = mapping.word32(at).as_ptr();
        self.push(&opcode::FutexWait::new(word, value.into(), FUTEX_ANY_BIT, FUTEX_SHARED_U32).build().user_data(key))
    }

    /// Waits until a descriptor is ready, once.
    pub(crate) fn descriptor(&mut self, descriptor: BorrowedFd<'_>, events: u32, key: u64) -> io::Result<()> {
        self.push(&opcode::PollAdd::new(types::Fd(descriptor.as_raw_fd()), events).build().user_data(key))
    }

    /// Ends the wait of this key; both complete.
    pub(crate) fn cancel(&mut self, key: u64, own: u64) -> io::Result<()> {
        self.push(&opcode::AsyncCancel::new(key).build().user_data(own))
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        let mut tries = 0;
        loop {
            // SAFETY: the kernel reads a word of this process when the entry is submitted, and polls a descriptor; it writes no memory of
            // ours. An address or descriptor that is gone by then completes with an error.
            if unsafe { self.0.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            tries += 1;
            match self.0.submit() {
                Err(error) if tries < TRIES_MAX && is_of_the_moment(&error) => std::thread::sleep(REST),
                submitted => drop(submitted?),
            }
        }
    }

    /// Hands new waits to the kernel, and with `wait` returns only when one has completed. False where it has not taken all of them, as it has
    /// no memory or asks to be asked again: then it may have waited for nothing, and is to be asked again.
    pub(crate) fn submit(&mut self, wait: bool) -> io::Result<bool> {
        match self.0.submit_and_wait(usize::from(wait)) {
            Err(error) if !is_of_the_moment(&error) => Err(error),
            _ if self.0.submission().is_empty() => Ok(true),
            _ => {
                if wait {
                    std::thread::sleep(REST);
                }
                Ok(false)
            }
        }
    }

    /// The keys and results of completed waits.
    #[inline]
    pub(crate) fn completed(&mut self, mut each: impl FnMut(u64, i32)) {
        self.0.completion().for_each(|completion| each(completion.user_data(), completion.result()));
    }
}
