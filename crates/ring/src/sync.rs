//! How threads and processes order themselves: words of shared memory, futexes, locks, time. With the feature `schedules` all of it comes
//! from a runtime that chooses the next thread at every access and delays stores as a CPU does, so that tests can explore schedules and
//! repeat one by its seed. No program enables the feature.

#[cfg(not(feature = "schedules"))]
pub(crate) use self::plain::*;

#[cfg(feature = "schedules")]
pub(crate) use crate::explored::*;

#[cfg(not(feature = "schedules"))]
mod plain {
    use std::cell::Cell;
    use std::sync::atomic::{Ordering, fence as atomic_fence};
    use std::time::{Duration, Instant};

    pub(crate) use parking_lot::Mutex;
    use rustix::fs::Timespec;
    use rustix::thread::{CpuSet, futex, sched_getaffinity, sched_setaffinity};

    pub(crate) use crate::events::{Events, WOKEN, Waker, drain};
    use crate::sys::Mapping;

    pub(crate) mod atomic {
        pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
    }

    /// A client looks so often between two looks at the clock.
    pub(crate) const LOOKS_BETWEEN_CLOCKS: u32 = 16;
    /// The daemon scans so often between two looks at the clock.
    pub(crate) const ROUNDS_BETWEEN_CLOCKS: u32 = 32;

    /// A sleeper looks this often whether the other side still lives.
    const SLEEP_MAX: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

    #[inline]
    pub(crate) fn load32(mapping: &Mapping, at: usize) -> u32 {
        mapping.word32(at).load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn store32(mapping: &Mapping, at: usize, value: u32) {
        mapping.word32(at).store(value, Ordering::Release);
    }

    #[inline]
    pub(crate) fn load64(mapping: &Mapping, at: usize) -> u64 {
        mapping.word64(at).load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn store64(mapping: &Mapping, at: usize, value: u64) {
        mapping.word64(at).store(value, Ordering::Relaxed);
    }

    pub(crate) fn increment(mapping: &Mapping, at: usize) {
        mapping.word32(at).fetch_add(1, Ordering::SeqCst);
    }

    /// Adds one to 8 bytes, before whatever follows.
    #[inline]
    pub(crate) fn raise(mapping: &Mapping, at: usize) {
        mapping.word64(at).fetch_add(1, Ordering::SeqCst);
        // Also before ordinary stores, which the addition alone does not keep behind it on every processor.
        std::sync::atomic::fence(Ordering::Release);
    }

    #[inline]
    pub(crate) fn load_version(mapping: &Mapping, at: usize) -> u64 {
        mapping.word64(at).load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn add64(mapping: &Mapping, at: usize, value: u64) -> u64 {
        mapping.word64(at).fetch_add(value, Ordering::SeqCst)
    }

    #[inline]
    pub(crate) fn or64(mapping: &Mapping, at: usize, bits: u64) -> u64 {
        mapping.word64(at).fetch_or(bits, Ordering::SeqCst)
    }

    #[inline]
    pub(crate) fn and64(mapping: &Mapping, at: usize, bits: u64) -> u64 {
        mapping.word64(at).fetch_and(bits, Ordering::SeqCst)
    }

    #[inline]
    pub(crate) fn exchange64(mapping: &Mapping, at: usize, from: u64, to: u64) -> bool {
        mapping.word64(at).compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    thread_local! {
        static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    }

    /// The thread goes inside of a lease. False if it is inside already, or about to end.
    #[inline]
    pub(crate) fn begin_inside() -> bool {
        IS_INSIDE.try_with(|is_inside| !is_inside.replace(true)).unwrap_or(false)
    }

    #[inline]
    pub(crate) fn end_inside() {
        let _ends = IS_INSIDE.try_with(|is_inside| is_inside.set(false));
    }

    /// Milliseconds of a clock that costs no system call, and may be 10 ms behind.
    #[inline]
    pub(crate) fn milliseconds() -> u64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
        now.tv_sec.cast_unsigned() * 1000 + now.tv_nsec.cast_unsigned() / 1_000_000
    }

    /// Earlier stores are visible before later loads.
    #[inline]
    pub(crate) fn fence() {
        atomic_fence(Ordering::SeqCst);
    }

    /// Earlier loads are done before later ones.
    #[inline]
    pub(crate) fn loads_fence() {
        atomic_fence(Ordering::Acquire);
    }

    /// Bytes are about to be copied.
    #[inline]
    pub(crate) fn bytes() {}

    /// Sleeps while a word has this value, or until it is woken, or for 100 ms; it may also wake for no reason.
    pub(crate) fn sleep(mapping: &Mapping, at: usize, value: u32) {
        let _woken_or_late = futex::wait(mapping.word32(at), futex::Flags::empty(), value, Some(&SLEEP_MAX));
    }

    /// Wakes all who sleep on a word.
    pub(crate) fn wake(mapping: &Mapping, at: usize) {
        let _count = futex::wake(mapping.word32(at), futex::Flags::empty(), i32::MAX as u32);
    }

    /// A turn of a loop that looks at a word.
    #[inline]
    pub(crate) fn relax() {
        std::hint::spin_loop();
    }

    /// A turn of a loop that others may need the CPU of.
    pub(crate) fn give_way() {
        std::thread::yield_now();
    }

    /// The CPU on which the thread is now.
    #[inline]
    pub(crate) fn cpu() -> usize {
        rustix::thread::sched_getcpu()
    }

    /// Moves the thread to another CPU that it may use, and lets it be moved again as before. Returns whether there was one.
    pub(crate) fn leave_cpu(cpu: usize) -> bool {
        let Ok(allowed) = sched_getaffinity(None) else { return false };
        let mut others = allowed;
        if cpu >= CpuSet::MAX_CPU {
            return false;
        }
        others.unset(cpu);
        others.count() > 0 && sched_setaffinity(None, &others).is_ok() && sched_setaffinity(None, &allowed).is_ok()
    }

    /// How many threads of the machine run or wait for a CPU, if the kernel says so (`proc(5)`, *loadavg*).
    pub(crate) fn ready_threads() -> Option<usize> {
        let loads = std::fs::read_to_string("/proc/loadavg").ok()?;
        loads.split_whitespace().nth(3)?.split_once('/')?.0.parse().ok()
    }

    /// A moment.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Moment(Instant);

    impl Moment {
        pub(crate) fn now() -> Self {
            Self(Instant::now())
        }

        /// Whether so much time lies between an earlier moment and this one.
        pub(crate) fn is_past(self, earlier: Self, by: Duration) -> bool {
            self.0.saturating_duration_since(earlier.0) >= by
        }
    }

    /// How many CPUs this process may use.
    pub(crate) fn cpus() -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }
}
