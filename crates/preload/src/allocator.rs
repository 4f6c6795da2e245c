//! Memory of this library. Not malloc's: a signal handler may make a call while the code that it interrupted is inside malloc, and a program
//! may bring a malloc that makes calls itself ([PRL3] of `lib.rs`).
//!
//! Blocks are powers of two from regions that are never given back; large ones are mappings of their own. Little is kept: a connection, its
//! slots, directories.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys;

const REGION_BYTES: usize = 256 << 10;
const SMALLEST_BITS: u32 = 4;
/// Larger blocks are mappings of their own.
const LARGEST_BITS: u32 = 15;
const CLASSES: usize = (LARGEST_BITS - SMALLEST_BITS + 1) as usize;

/// The allocator.
pub(crate) struct Allocator {
    taken: AtomicBool,
    inner: UnsafeCell<Inner>,
}

struct Inner {
    /// First free block of each size; its first word is the next one.
    free: [*mut u8; CLASSES],
    next: usize,
    end: usize,
}

// SAFETY: `inner` is used by whoever has set `taken`, alone.
unsafe impl Sync for Allocator {}

/// The class of a layout; none for a mapping of its own.
fn class(layout: &Layout) -> Option<u32> {
    let bytes = layout.size().max(layout.align()).max(1 << SMALLEST_BITS).checked_next_power_of_two()?;
    (bytes <= 1 << LARGEST_BITS).then(|| bytes.trailing_zeros() - SMALLEST_BITS)
}

fn map(bytes: usize) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping where the kernel likes. libc's function does nothing but the call.
    let start = unsafe { libc::mmap(null_mut(), bytes, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED { null_mut() } else { start.cast() }
}

impl Allocator {
    pub(crate) const fn new() -> Self {
        Self { taken: AtomicBool::new(false), inner: UnsafeCell::new(Inner { free: [null_mut(); CLASSES], next: 0, end: 0 }) }
    }

    /// With the lock, which is held for a few instructions, or one call of the kernel.
    fn with<T>(&self, work: impl FnOnce(&mut Inner) -> T) -> T {
        while self.taken.swap(true, Ordering::Acquire) {
            std::hint::spin_loop();
            if self.taken.load(Ordering::Relaxed) {
                sys::pause(); // its owner may have lost its CPU
            }
        }
        // SAFETY: `taken` is ours.
        let result = work(unsafe { &mut *self.inner.get() });
        self.taken.store(false, Ordering::Release);
        result
    }
}

impl Inner {
    fn take(&mut self, class: u32) -> *mut u8 {
        let first = self.free[class as usize];
        if !first.is_null() {
            // SAFETY: a free block begins with the address of the next.
            self.free[class as usize] = unsafe { first.cast::<*mut u8>().read() };
            return first;
        }
        let bytes = 1_usize << (class + SMALLEST_BITS);
        let start = self.next.next_multiple_of(bytes);
        if self.next == 0 || start + bytes > self.end {
            let region = map(REGION_BYTES) as usize;
            if region == 0 {
                return null_mut();
            }
            (self.next, self.end) = (region, region + REGION_BYTES);
        }
        let start = self.next.next_multiple_of(bytes);
        self.next = start + bytes;
        start as *mut u8
    }

    fn give(&mut self, class: u32, block: *mut u8) {
        // SAFETY: a block of at least a word that nobody uses any more.
        unsafe { block.cast::<*mut u8>().write(self.free[class as usize]) };
        self.free[class as usize] = block;
    }
}

// SAFETY: blocks are as large and as aligned as asked for (a power of two of both; regions and mappings begin at pages, and no
// class is larger than a region), and nobody else has them until they are given back.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class(&layout) {
            Some(class) => self.with(|inner| inner.take(class)),
            None if layout.align() <= 4096 => map(layout.size()),
            None => null_mut(),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class(&layout) {
            Some(class) => self.with(|inner| inner.give(class, block)),
            // SAFETY: a mapping of its own, of this size. Not by libc's function, which this library stands in front of.
            None => unsafe {
                sys::call(libc::SYS_munmap, [block as usize, layout.size(), 0, 0, 0]);
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_apart_and_used_again() {
        let allocator = Allocator::new();
        let mut taken: Vec<(usize, usize)> = Vec::new();
        for round in 0..2000_usize {
            let (bytes, align) = (1 + round * 37 % 5000, 1 << (round % 8));
            let layout = Layout::from_size_align(bytes, align).expect("valid");
            // SAFETY: a layout of some bytes.
            let block = unsafe { allocator.alloc(layout) };
            assert!(!block.is_null() && (block as usize).is_multiple_of(align));
            // SAFETY: so many bytes are ours.
            unsafe { block.write_bytes(0x5a, bytes) };
            taken.push((block as usize, bytes));
        }
        taken.sort_unstable();
        assert!(taken.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "two blocks overlap");
        for layout in [Layout::new::<[u8; 100]>(), Layout::new::<[u8; 100_000]>()] {
            // SAFETY: each block goes back with its layout, once.
            unsafe {
                let first = allocator.alloc(layout);
                allocator.dealloc(first, layout);
                let second = allocator.alloc(layout);
                assert!(layout.size() > 4096 || first == second);
                allocator.dealloc(second, layout);
            }
        }
    }

    #[test]
    fn threads_do_not_share_blocks() {
        let allocator = Allocator::new();
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let allocator = &allocator;
                scope.spawn(move || {
                    for _ in 0..5000 {
                        let layout = Layout::new::<[u8; 64]>();
                        // SAFETY: a block of 64 bytes, which only this thread has, and which goes back once.
                        unsafe {
                            let block = allocator.alloc(layout);
                            block.write_bytes(thread, 64);
                            assert!((0..64).all(|at| block.add(at).read() == thread));
                            allocator.dealloc(block, layout);
                        }
                    }
                });
            }
        });
    }
}
