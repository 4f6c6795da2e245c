//! Time sources for waits: the host's clock, or virtual clocks ([TI4], [TI5]).
//!
//! [TI4]: super
//! [TI5]: super

use std::cell::Cell;
use std::hint::spin_loop;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::{sleep, yield_now};
use std::time::{Duration, Instant};

use tandemfs_device::VirtualTime as _;

/// Longer waits sleep until this many nanoseconds before their end: the kernel's timer slack, by which a sleep may be late.
const AWAKE_NS_MAX: u64 = 60_000;
/// Waits up to this many nanoseconds spin, since a yield takes about as long.
const SPIN_NS_MAX: u64 = 4_000;

/// A drive's time, in nanoseconds.
#[derive(Debug)]
pub(crate) enum Time {
    /// Since the first use in this process; waits are real.
    Real,
    /// Of the thread that asks; nothing waits ([TI5]).
    Virtual(ThreadClocks),
}

/// Clocks of threads that add up what their accesses would take.
#[derive(Debug)]
pub(crate) struct ThreadClocks {
    /// Which drive the clock of a thread belongs to.
    identity: u64,
    latest_ns: AtomicU64,
}

thread_local! {
    /// The drive that this thread used last, and its clock there.
    static CLOCK: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

impl ThreadClocks {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { identity: NEXT.fetch_add(1, Relaxed), latest_ns: AtomicU64::new(0) }
    }

    fn set_forward(&self, deadline: u64) {
        if deadline > self.now_ns() {
            self.set_now_ns(deadline);
            tandemfs_device::sync::advanced(deadline);
        }
    }
}

impl tandemfs_device::VirtualTime for ThreadClocks {
    fn now_ns(&self) -> u64 {
        let (identity, now) = CLOCK.get();
        if identity == self.identity {
            return now;
        }
        let now = self.latest_ns();
        CLOCK.set((self.identity, now));
        now
    }

    fn set_now_ns(&self, now: u64) {
        CLOCK.set((self.identity, now));
        self.latest_ns.fetch_max(now, Relaxed);
    }

    fn latest_ns(&self) -> u64 {
        self.latest_ns.load(Relaxed)
    }
}

impl Time {
    pub(crate) fn new(is_virtual: bool) -> Self {
        if is_virtual { Self::Virtual(ThreadClocks::new()) } else { Self::Real }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        match self {
            Self::Real => real_now_ns(),
            Self::Virtual(time) => time.now_ns(),
        }
    }

    /// Returns at `deadline`, or at once where it is past: as a thread that waits for a drive's answer.
    pub(crate) fn wait_until(&self, deadline: u64) {
        match self {
            Self::Real => wait_until(deadline),
            Self::Virtual(time) => time.set_forward(deadline),
        }
    }

    /// The same, as a processor that waits for a load or a store: it does nothing else meanwhile.
    pub(crate) fn stall_until(&self, deadline: u64) {
        match self {
            Self::Real => {
                while real_now_ns() < deadline {
                    spin_loop();
                }
            }
            Self::Virtual(time) => time.set_forward(deadline),
        }
    }

    pub(crate) fn as_virtual(&self) -> Option<&ThreadClocks> {
        match self {
            Self::Real => None,
            Self::Virtual(time) => Some(time),
        }
    }
}

fn real_now_ns() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_nanos() as u64
}

fn wait_until(deadline: u64) {
    loop {
        let remaining = deadline.saturating_sub(real_now_ns());
        if remaining == 0 {
            return;
        }
        if remaining <= SPIN_NS_MAX {
            spin_loop();
        } else if remaining <= AWAKE_NS_MAX {
            // On a real drive the processor does other work during this wait.
            yield_now();
        } else {
            sleep(Duration::from_nanos(remaining - AWAKE_NS_MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_no_shorter_than_asked() {
        for wait in [500, 40_000, 300_000] {
            let start = Time::Real.now_ns();
            Time::Real.wait_until(start + wait);
            assert!(Time::Real.now_ns() - start >= wait);
            let start = Time::Real.now_ns();
            Time::Real.stall_until(start + wait);
            assert!(Time::Real.now_ns() - start >= wait);
        }
    }

    #[test]
    fn clocks_of_threads_go_by_themselves_and_begin_at_the_latest() {
        let time = Time::new(true);
        assert_eq!(time.now_ns(), 0);
        time.wait_until(3_600_000_000_000);
        time.wait_until(5);
        assert_eq!(time.now_ns(), 3_600_000_000_000, "an hour passes at once, and never back");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(time.now_ns(), 3_600_000_000_000);
                time.wait_until(3_600_000_000_007);
            });
        });
        assert_eq!(time.now_ns(), 3_600_000_000_000);
        assert_eq!(time.as_virtual().map(|clocks| clocks.latest_ns()), Some(3_600_000_000_007));
        assert_eq!(Time::new(true).now_ns(), 0, "another drive has its own");
    }
}
