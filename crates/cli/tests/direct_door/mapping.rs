//! A shared mapping of a file.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Mapped for reading and writing.
pub struct Mapped {
    start: *mut u8,
    length: usize,
}

impl Mapped {
    pub fn new(file: BorrowedFd<'_>, length: usize) -> Self {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let start = unsafe { mmap(std::ptr::null_mut(), length, rights, MapFlags::SHARED, file, 0) }.expect("mapped");
        Self { start: start.cast(), length }
    }

    fn byte(&self, at: usize) -> &AtomicU8 {
        assert!(at < self.length);
        // SAFETY: within the mapping, and every access to it is atomic.
        unsafe { AtomicU8::from_ptr(self.start.add(at)) }
    }

    pub fn store(&self, at: usize, bytes: &[u8]) {
        bytes.iter().enumerate().for_each(|(index, byte)| self.byte(at + index).store(*byte, SeqCst));
    }

    pub fn load(&self, at: usize, length: usize) -> Vec<u8> {
        (at..at + length).map(|at| self.byte(at).load(SeqCst)).collect()
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length.
        let _unmapped = unsafe { munmap(self.start.cast(), self.length) };
    }
}
