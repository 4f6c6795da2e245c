//! Buffers of transfers: slices of this program, or memory that others may change at any moment ([`SharedBytes`]).
//!
//! [SM1] Nobody refers to shared bytes but as atomics, and only the copy routines touch them (`copy.rs`), or the kernel. So whatever others do
//!       meanwhile, a copy consists of some bytes, and a page that cannot be had reads as zeros.
//! [SM2] Each look at shared bytes may show others. Who must know them (a checksum, a comparison, a decision) makes one private copy and uses
//!       that; what was verified in shared memory proves something of the device, and nothing of what stands there afterwards.

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU8;

use tandemfs_format::SECTOR_BYTES;

use crate::copy;

/// Memory that other processes or threads may change at any moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedBytes<'a> {
    start: NonNull<u8>,
    length: usize,
    memory: PhantomData<&'a [AtomicU8]>,
}

// SAFETY: borrowed as atomics, which threads share; it is accessed by copies in assembly and by the kernel alone.
unsafe impl Send for SharedBytes<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedBytes<'_> {}

impl<'a> SharedBytes<'a> {
    /// Bytes that may change although they are borrowed. They may be memory of other processes, of which pages fail with SIGBUS ([SM1]).
    pub fn new(bytes: &'a [AtomicU8]) -> Self {
        let _refused = copy::install(); // then a page that fails ends this process, as it does elsewhere
        Self { start: NonNull::from(bytes).cast(), length: bytes.len(), memory: PhantomData }
    }

    /// Their number.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// A part of them.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.length, "bytes {range:?} of {}", self.length);
        // SAFETY: within the bytes.
        let start = unsafe { self.start.add(range.start) };
        Self { start, length: range.end - range.start, memory: PhantomData }
    }

    /// Copies all of them.
    ///
    /// # Panics
    /// If `into` has another length.
    pub fn copy_to(&self, into: &mut [u8]) {
        assert_eq!(into.len(), self.length, "bytes to copy");
        // SAFETY: both have this length, and shared memory is borrowed as atomics, so it is no part of a slice ([SM1]).
        if unsafe { copy::copy(into.as_mut_ptr(), self.start.as_ptr(), self.length) }.is_err() {
            into.fill(0);
        }
    }

    /// Copies bytes to their start.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn copy_from(&self, from: &[u8]) {
        let target = self.slice(0..from.len());
        // SAFETY: as in `copy_to`. Bytes that do not get there are the others' loss.
        let _lost = unsafe { copy::copy(target.start.as_ptr(), from.as_ptr(), from.len()) };
    }

    pub(crate) fn address(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

/// Bytes to be written: ordinary ones, or shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source<'a> {
    /// Bytes that nobody changes.
    Private(&'a [u8]),
    /// Bytes that others may change.
    Shared(SharedBytes<'a>),
}

impl<'a> Source<'a> {
    /// Number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Private(bytes) => bytes.len(),
            Self::Shared(bytes) => bytes.len(),
        }
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, if nobody changes them.
    #[inline]
    pub fn private(&self) -> Option<&'a [u8]> {
        match self {
            Self::Private(bytes) => Some(bytes),
            Self::Shared(_) => None,
        }
    }

    /// A part of them.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> Self {
        match self {
            Self::Private(bytes) => Self::Private(&bytes[range]),
            Self::Shared(bytes) => Self::Shared(bytes.slice(range)),
        }
    }

    /// The first `length` bytes, and the others.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub fn split_at(&self, length: usize) -> (Self, Self) {
        (self.slice(0..length), self.slice(length..self.len()))
    }

    /// Pieces of `length` bytes; the last may be shorter.
    pub fn chunks(self, length: usize) -> impl Iterator<Item = Self> {
        (0..self.len()).step_by(length).map(move |start| self.slice(start..self.len().min(start + length)))
    }

    /// Copies all of them.
    ///
    /// # Panics
    /// If `into` has another length.
    #[inline]
    pub fn copy_to(&self, into: &mut [u8]) {
        match self {
            Self::Private(bytes) => into.copy_from_slice(bytes),
            Self::Shared(bytes) => bytes.copy_to(into),
        }
    }

    /// The bytes as nobody changes them: shared ones as a copy, in `copy` ([SM2]).
    #[inline]
    pub fn stable<'b>(self, copy: &'b mut Vec<u8>) -> &'b [u8]
    where
        'a: 'b,
    {
        match self {
            Self::Private(bytes) => bytes,
            Self::Shared(bytes) => {
                copy.resize(bytes.len(), 0);
                bytes.copy_to(copy);
                copy
            }
        }
    }

    /// A copy.
    pub fn to_vec(&self) -> Vec<u8> {
        match self {
            Self::Private(bytes) => bytes.to_vec(),
            Self::Shared(bytes) => {
                let mut copy = vec![0; bytes.len()];
                bytes.copy_to(&mut copy);
                copy
            }
        }
    }

    /// Passes the bytes on in whole sectors as they are now, each once ([SM2]): shared ones as copies. What is left of a sector is not passed.
    pub fn each_sector(&self, mut each: impl FnMut(&[u8])) {
        match self {
            Self::Private(bytes) => bytes.chunks_exact(SECTOR_BYTES).for_each(each),
            Self::Shared(bytes) => {
                let mut sector = [0; SECTOR_BYTES];
                for start in (0..bytes.len() / SECTOR_BYTES).map(|index| index * SECTOR_BYTES) {
                    bytes.slice(start..start + SECTOR_BYTES).copy_to(&mut sector);
                    each(&sector);
                }
            }
        }
    }

    /// Writes all of them to a file at an offset.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn write_all_at(&self, file: &File, offset: u64) -> io::Result<()> {
        match self {
            Self::Private(bytes) => file.write_all_at(bytes, offset),
            // SAFETY: the kernel reads memory that is mapped ([SM1]).
            Self::Shared(bytes) => unsafe { write_all_at(file, bytes.address(), bytes.len(), offset) },
        }
    }

    pub(crate) fn address(&self) -> *const u8 {
        match self {
            Self::Private(bytes) => bytes.as_ptr(),
            Self::Shared(bytes) => bytes.address(),
        }
    }
}

impl<'a> From<&'a [u8]> for Source<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        Self::Private(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Source<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::Private(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for Source<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self::Private(bytes)
    }
}

impl<'a> From<&'a mut [u8]> for Source<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        Self::Private(bytes)
    }
}

impl PartialEq<[u8]> for Source<'_> {
    fn eq(&self, other: &[u8]) -> bool {
        self.len() == other.len() && self.to_vec() == other
    }
}

/// Where bytes that are read go: ordinary memory, or shared.
#[derive(Debug)]
pub enum Sink<'a> {
    /// Memory that nobody else uses.
    Private(&'a mut [u8]),
    /// Memory that others may look at and change.
    Shared(SharedBytes<'a>),
}

impl<'a> Sink<'a> {
    /// Number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Private(bytes) => bytes.len(),
            Self::Shared(bytes) => bytes.len(),
        }
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, if nobody else uses them.
    #[inline]
    pub fn private(&mut self) -> Option<&mut [u8]> {
        match self {
            Self::Private(bytes) => Some(bytes),
            Self::Shared(_) => None,
        }
    }

    /// Whether others may change them.
    #[inline]
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// All of it, for a while.
    #[inline]
    pub fn reborrow(&mut self) -> Sink<'_> {
        match self {
            Self::Private(bytes) => Sink::Private(bytes),
            Self::Shared(bytes) => Sink::Shared(*bytes),
        }
    }

    /// A part, for a while.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub fn part(&mut self, range: Range<usize>) -> Sink<'_> {
        match self {
            Self::Private(bytes) => Sink::Private(&mut bytes[range]),
            Self::Shared(bytes) => Sink::Shared(bytes.slice(range)),
        }
    }

    /// The first `length` bytes, and the others.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub fn split_at(self, length: usize) -> (Self, Self) {
        match self {
            Self::Private(bytes) => {
                let (first, others) = bytes.split_at_mut(length);
                (Self::Private(first), Self::Private(others))
            }
            Self::Shared(bytes) => (Self::Shared(bytes.slice(0..length)), Self::Shared(bytes.slice(length..bytes.len()))),
        }
    }

    /// Pieces of `length` bytes; the last may be shorter.
    pub fn chunks(self, length: usize) -> impl Iterator<Item = Self> {
        let mut rest = Some(self);
        std::iter::from_fn(move || {
            let all = rest.take().filter(|all| !all.is_empty())?;
            let cut = length.min(all.len());
            let (first, others) = all.split_at(cut);
            rest = Some(others);
            Some(first)
        })
    }

    /// Copies bytes to an offset.
    ///
    /// # Panics
    /// If they do not fit.
    #[inline]
    pub fn copy_from(&mut self, at: usize, from: &[u8]) {
        match self {
            Self::Private(bytes) => bytes[at..at + from.len()].copy_from_slice(from),
            Self::Shared(bytes) => bytes.slice(at..at + from.len()).copy_from(from),
        }
    }

    /// Fills a part with zeros.
    ///
    /// # Panics
    /// If there are fewer bytes.
    pub fn fill_zeros(&mut self, range: Range<usize>) {
        match self {
            Self::Private(bytes) => bytes[range].fill(0),
            Self::Shared(bytes) => {
                let zeros = [0; SECTOR_BYTES];
                for part in Source::Shared(bytes.slice(range)).chunks(SECTOR_BYTES) {
                    let Source::Shared(part) = part else { unreachable!("parts of shared bytes are shared") };
                    part.copy_from(&zeros[..part.len()]);
                }
            }
        }
    }

    /// The bytes as they are now.
    #[inline]
    pub fn bytes(&self) -> Source<'_> {
        match self {
            Self::Private(bytes) => Source::Private(bytes),
            Self::Shared(bytes) => Source::Shared(*bytes),
        }
    }

    /// Fills all of them from a file at an offset.
    ///
    /// # Errors
    /// Those of the kernel; `UnexpectedEof` at the end of the file.
    pub fn read_exact_at(&mut self, file: &File, offset: u64) -> io::Result<()> {
        match self {
            Self::Private(bytes) => file.read_exact_at(bytes, offset),
            // SAFETY: the kernel writes memory that is mapped ([SM1]).
            Self::Shared(bytes) => unsafe { read_exact_at(file, bytes.address(), bytes.len(), offset) },
        }
    }

    /// Uses them as an ordinary slice: shared ones by a copy that is copied back.
    pub fn with_private<T>(&mut self, work: impl FnOnce(&mut [u8]) -> T) -> T {
        match self {
            Self::Private(bytes) => work(bytes),
            Self::Shared(bytes) => {
                let mut copy = Source::Shared(*bytes).to_vec();
                let done = work(&mut copy);
                bytes.copy_from(&copy);
                done
            }
        }
    }

    pub(crate) fn address(&mut self) -> *mut u8 {
        match self {
            Self::Private(bytes) => bytes.as_mut_ptr(),
            Self::Shared(bytes) => bytes.address(),
        }
    }
}

impl<'a> From<&'a mut [u8]> for Sink<'a> {
    #[inline]
    fn from(bytes: &'a mut [u8]) -> Self {
        Self::Private(bytes)
    }
}

impl<'a, const N: usize> From<&'a mut [u8; N]> for Sink<'a> {
    fn from(bytes: &'a mut [u8; N]) -> Self {
        Self::Private(bytes)
    }
}

impl<'a> From<&'a mut Vec<u8>> for Sink<'a> {
    fn from(bytes: &'a mut Vec<u8>) -> Self {
        Self::Private(bytes)
    }
}

/// # Safety
/// `length` bytes from `from` on are mapped for reads.
pub(crate) unsafe fn write_all_at(file: &File, from: *const u8, length: usize, offset: u64) -> io::Result<()> {
    moved_at(length, offset, io::ErrorKind::WriteZero, |done, rest, at| {
        // SAFETY: the rest of the caller's bytes.
        unsafe { libc::pwrite(file.as_raw_fd(), from.add(done).cast(), rest, at) }
    })
}

/// # Safety
/// `length` bytes from `into` on are mapped for writes, and no reference to them is used meanwhile.
pub(crate) unsafe fn read_exact_at(file: &File, into: *mut u8, length: usize, offset: u64) -> io::Result<()> {
    moved_at(length, offset, io::ErrorKind::UnexpectedEof, |done, rest, at| {
        // SAFETY: the rest of the caller's bytes.
        unsafe { libc::pread(file.as_raw_fd(), into.add(done).cast(), rest, at) }
    })
}

/// Repeats a call that moves bytes until all have moved. `call` gets the bytes done, those that are left, and the offset of these.
fn moved_at(length: usize, offset: u64, end: io::ErrorKind, call: impl Fn(usize, usize, libc::off_t) -> isize) -> io::Result<()> {
    let mut done = 0;
    while done < length {
        let at = libc::off_t::try_from(offset + done as u64).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        match call(done, length - done, at) {
            0 => return Err(end.into()),
            moved if moved > 0 => done += moved.cast_unsigned(),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory that is shared with nobody, for tests of copies.
    struct Memory(Vec<AtomicU8>);

    impl Memory {
        fn new(bytes: &[u8]) -> Self {
            Self(bytes.iter().map(|byte| AtomicU8::new(*byte)).collect())
        }

        fn shared(&self) -> SharedBytes<'_> {
            SharedBytes::new(&self.0)
        }
    }

    #[test]
    fn shared_bytes_are_copied_in_parts() {
        let bytes: Vec<u8> = (0..3 * SECTOR_BYTES + 5).map(|at| (at / 3) as u8).collect();
        let memory = Memory::new(&bytes);
        let source = Source::Shared(memory.shared());
        assert!(source == *bytes && source.private().is_none());
        let (first, rest) = source.split_at(1000);
        assert!(first == bytes[..1000] && rest == bytes[1000..]);
        let joined: Vec<u8> = source.chunks(777).flat_map(|part| part.to_vec()).collect();
        assert_eq!(joined, bytes);
        let mut sectors = Vec::new();
        source.each_sector(|sector| sectors.extend_from_slice(sector));
        assert_eq!(sectors, bytes[..3 * SECTOR_BYTES]);

        let mut sink = Sink::Shared(memory.shared());
        sink.fill_zeros(10..SECTOR_BYTES + 20);
        sink.copy_from(15, &[7, 8, 9]);
        let mut expected = bytes.clone();
        expected[10..SECTOR_BYTES + 20].fill(0);
        expected[15..18].copy_from_slice(&[7, 8, 9]);
        assert!(sink.bytes() == *expected);
        sink.with_private(|bytes| bytes[0] = 99);
        assert_eq!(sink.part(0..1).bytes().to_vec(), [99]);
        assert_eq!(sink.chunks(4096).map(|part| part.len()).collect::<Vec<_>>(), [4096, 4096, 4096, 5]);
    }

    #[test]
    fn files_are_read_and_written_by_shared_memory() {
        let file = tempfile::tempfile().expect("a temporary file");
        let memory = Memory::new(&[5; 10_000]);
        Source::Shared(memory.shared()).write_all_at(&file, 3).expect("written");
        let other = Memory::new(&[0; 10_003]);
        Sink::Shared(other.shared()).read_exact_at(&file, 0).expect("read");
        let found = Source::Shared(other.shared()).to_vec();
        assert!(found[..3] == [0; 3] && found[3..].iter().all(|byte| *byte == 5));
        let ended = Sink::Shared(other.shared()).read_exact_at(&file, 1).expect_err("one byte is missing");
        assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof);
    }

    /// [SM1]
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_page_that_is_gone_reads_as_zeros() {
        use std::os::fd::AsFd;

        use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(8192).expect("sized");
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let start = unsafe { mmap(std::ptr::null_mut(), 8192, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file.as_fd(), 0) };
        let start = start.expect("mapped");
        // SAFETY: mapped to the end of the test.
        let bytes = SharedBytes::new(unsafe { std::slice::from_raw_parts(start.cast(), 8192) });
        bytes.copy_from(&[3; 8192]);
        file.set_len(4096).expect("cut");
        bytes.copy_from(&[4; 8192]);
        let mut found = [9; 8192];
        bytes.copy_to(&mut found);
        assert_eq!(found, [0; 8192]);
        bytes.slice(0..4096).copy_to(&mut found[..4096]);
        assert_eq!(found[..4096], [4; 4096]);
        // SAFETY: mapped above with this length; nothing uses it any more.
        unsafe { munmap(start, 8192) }.expect("unmapped");
    }
}
