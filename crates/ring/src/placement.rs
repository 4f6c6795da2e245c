//! The daemon's thread and threads of clients on the same CPU.
//!
//! On one CPU each looks for the other, which waits for that CPU: the daemon's thread looks for the next request until it sleeps, then the client
//! runs and rings, and the scheduler wakes the thread on the same CPU although another is idle. A request takes 60 us then instead of 7.
//!
//! [CPU1] The daemon says to its active clients on which CPU its thread is. It looks there with each look at the clock, so it may be wrong for
//!        a moment, and for as long as the thread waits for a CPU.
//! [CPU2] A client's thread that finds no answer at once and is on that CPU says so by a counter, and yields between two looks instead of
//!        spinning. It looks on for a millisecond, although the daemon's thread may have left the CPU meanwhile: if it slept, it would be woken on
//!        the CPU to which that thread has gone. It also says so before it rings for a daemon that slept on its CPU.
//! [CPU3] When a counter has changed, the daemon's thread moves to another CPU if one is idle: two threads are on one CPU, so one is idle if
//!        no more threads are ready than there are CPUs. It tries so at most once in [`BETWEEN_MOVES`], so a client that lies about its CPU
//!        costs it little. Otherwise it dozes, and the client runs at once.

use std::time::Duration;

use crate::sync::{self, Moment};

/// [CPU3]: a move takes some tens of microseconds.
const BETWEEN_MOVES: Duration = Duration::from_millis(1);

/// Where the daemon's thread is.
#[derive(Debug, Default)]
pub(crate) struct Placement {
    /// What clients are told: the CPU from 1.
    told: u32,
    last_try: Option<Moment>,
}

impl Placement {
    /// [CPU1]: what clients are told.
    pub(crate) fn told(&self) -> u32 {
        self.told
    }

    /// Looks where the thread is. Returns whether that is somewhere else than was told.
    pub(crate) fn look(&mut self) -> bool {
        let here = word_of(sync::cpu());
        std::mem::replace(&mut self.told, here) != here
    }

    /// [CPU3]: a client shares the CPU, one of so many that this process may use. Returns whether the thread has moved.
    pub(crate) fn move_away(&mut self, now: Moment, cpus: usize) -> bool {
        if cpus < 2 || self.last_try.is_some_and(|last| !now.is_past(last, BETWEEN_MOVES)) {
            return false;
        }
        self.last_try = Some(now);
        sync::ready_threads().is_some_and(|ready| ready <= cpus) && sync::leave_cpu(sync::cpu())
    }
}

/// A CPU as a word of shared memory.
pub(crate) fn word_of(cpu: usize) -> u32 {
    u32::try_from(cpu).map_or(0, |cpu| cpu.saturating_add(1))
}

#[cfg(all(test, not(feature = "schedules")))]
mod tests {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use super::*;

    /// In a thread of its own, whose CPUs are nobody else's.
    fn apart(body: impl FnOnce() + Send + 'static) {
        std::thread::spawn(body).join().unwrap();
    }

    #[test]
    fn a_thread_leaves_a_cpu_and_keeps_what_it_may_use() {
        apart(|| {
            let allowed = sched_getaffinity(None).unwrap();
            let Some(first) = (0..CpuSet::MAX_CPU).find(|&cpu| allowed.is_set(cpu)) else { return };
            assert_eq!(sync::leave_cpu(first), allowed.count() > 1);
            assert_eq!(sched_getaffinity(None).unwrap(), allowed);
        });
    }

    #[test]
    fn a_thread_that_may_use_one_cpu_stays() {
        apart(|| {
            let allowed = sched_getaffinity(None).unwrap();
            let mut one = CpuSet::new();
            one.set((0..CpuSet::MAX_CPU).find(|&cpu| allowed.is_set(cpu)).unwrap());
            sched_setaffinity(None, &one).unwrap();
            assert!(!sync::leave_cpu(sync::cpu()));
            assert_eq!(sched_getaffinity(None).unwrap(), one);
        });
    }

    #[test]
    fn moves_have_time_between_them() {
        let mut placement = Placement::default();
        let now = Moment::now();
        placement.move_away(now, usize::MAX);
        assert!(!placement.move_away(now, usize::MAX));
    }
}
