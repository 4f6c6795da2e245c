//! Limits of an execution: a watchdog for time, and a counting allocator.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use tandemfs_fuzz_targets::Target;

/// Longest execution, on a busy machine.
const EXECUTION_MAX: Duration = Duration::from_secs(60);
/// Largest allocation: the zones of an image are 16 MiB.
const ALLOCATION_BYTES_MAX: usize = 20 << 20;
/// Most memory that one execution may hold at a time.
const HELD_BYTES_MAX: usize = 512 << 20;

/// Counts allocated bytes, and records the largest request.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static HELD_MOST: AtomicUsize = AtomicUsize::new(0);
static LARGEST: AtomicUsize = AtomicUsize::new(0);

fn count(bytes: usize) {
    LARGEST.fetch_max(bytes, Relaxed);
    HELD_MOST.fetch_max(HELD.fetch_add(bytes, Relaxed) + bytes, Relaxed);
}

// SAFETY: every call goes to the system's allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's contract is that of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        HELD.fetch_sub(layout.size(), Relaxed);
        count(size);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One execution at a time, with limits.
pub struct Guard;

impl Guard {
    /// Runs a target. A panic, a hang or too much memory fails the test and reports the input.
    pub fn run(target: &Target, input: &[u8]) {
        if let Err(what) = Self::attempt(target.run, input) {
            panic!("{}: {what}\ninput: &{input:?}", target.name);
        }
    }

    /// Runs a target and returns what went wrong. A hang ends the process.
    pub fn attempt(run: fn(&[u8]), input: &[u8]) -> Result<(), String> {
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let held = HELD.load(Relaxed);
        HELD_MOST.store(held, Relaxed);
        LARGEST.store(0, Relaxed);
        let (done, waiting) = channel::<()>();
        let shown = format!("&{input:?}");
        let watchdog = std::thread::spawn(move || {
            if waiting.recv_timeout(EXECUTION_MAX) == Err(RecvTimeoutError::Timeout) {
                eprintln!("no end after {EXECUTION_MAX:?}; input: {shown}");
                std::process::abort();
            }
        });
        let outcome = catch_unwind(AssertUnwindSafe(|| run(input)));
        drop(done);
        let _ = watchdog.join();
        let (largest, most) = (LARGEST.load(Relaxed), HELD_MOST.load(Relaxed) - held);
        match outcome {
            Err(panic) => Err(panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                .unwrap_or_default()),
            Ok(()) if largest > ALLOCATION_BYTES_MAX => Err(format!("one allocation of {largest} B")),
            Ok(()) if most > HELD_BYTES_MAX => Err(format!("{most} B held at a time")),
            Ok(()) => Ok(()),
        }
    }
}
