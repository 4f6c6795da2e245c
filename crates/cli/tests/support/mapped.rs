//! Files of a mount that a test maps.

use std::fs::File;

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

/// A shared mapping of the start of a file.
pub struct Mapped {
    start: *mut u8,
    length: usize,
}

impl Mapped {
    /// Maps so many bytes.
    pub fn new(file: &File, length: usize) -> Self {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place that the kernel chooses; the file is as long as the mapping while it is used.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file, 0) }.expect("mapped");
        Self { start: start.cast(), length }
    }

    /// Stores bytes at an offset.
    pub fn store(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.length);
        // SAFETY: inside the mapping, as asserted; nobody holds a reference into it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(offset), bytes.len()) }
    }

    /// Loads bytes of an offset.
    pub fn load(&self, offset: usize, length: usize) -> Vec<u8> {
        assert!(offset + length <= self.length);
        let mut bytes = vec![0; length];
        // SAFETY: inside the mapping, as asserted, to memory of its own.
        unsafe { std::ptr::copy_nonoverlapping(self.start.add(offset), bytes.as_mut_ptr(), length) }
        bytes
    }

    /// msync(2) of all of it.
    pub fn sync(&self, flags: MsyncFlags) -> rustix::io::Result<()> {
        // SAFETY: the mapping is there until it is dropped.
        unsafe { rustix::mm::msync(self.start.cast(), self.length, flags) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and not used any more.
        let _ = unsafe { rustix::mm::munmap(self.start.cast(), self.length) };
    }
}
