//! How threads that look at shared memory, of clients and of the daemon ([BEL6] of `poller.rs`), leave CPUs to others.
//!
//! Who spins while others wait for the CPU keeps from running what he waits for. Yielding the CPU between two looks takes about a microsecond
//! where nobody else has anything to do; sleeping and being woken costs both sides several.
//!
//! [GIV1] A client's thread spins while no other thread of the process waits for an answer and the daemon polls (it has a CPU of its own then).
//!        Otherwise it yields between two looks.
//! [GIV2] Yields that take long go to somebody who computes and does not give the CPU back. Who is woken from sleep runs before such a thread,
//!        who yields runs behind its whole turn. What yields take beyond [`USUAL_NS`] each is added up, what they take less is taken off. At
//!        [`TOO_LONG_NS`] nobody yields for a pause: [`PAUSE_LEAST_MS`], doubled up to [`PAUSE_MOST_MS`] if the last one has just ended.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use crate::sync::{self, Moment};

/// [GIV2]: threads of one process that yield to each other take tens of microseconds.
const USUAL_NS: i64 = 300_000;
/// [GIV2]
const TOO_LONG_NS: i64 = 200_000_000;
/// [GIV2]
const PAUSE_LEAST_MS: u64 = 50;
/// [GIV2]
const PAUSE_MOST_MS: u64 = 3200;
/// [GIV2]: a pause this soon after another is longer.
const SOON_MS: u64 = 500;

/// What the threads of a client, or the daemon's thread, know of each other's waiting. Of two that write at once one may be lost, which changes when a pause begins.
#[derive(Debug, Default)]
pub(crate) struct GivingWay {
    /// Threads that look for an answer.
    looking: AtomicU64,
    /// What yields took too long, in nanoseconds.
    excess_ns: AtomicI64,
    /// No yields before that, in milliseconds.
    pause_until: AtomicU64,
    /// The last pause, in milliseconds.
    pause: AtomicU64,
}

impl GivingWay {
    /// A thread looks for an answer now.
    pub(crate) fn begin(&self) {
        self.looking.fetch_add(1, Relaxed);
    }

    /// It does not any more.
    pub(crate) fn end(&self) {
        self.looking.fetch_sub(1, Relaxed);
    }

    /// Whether another thread looks too ([GIV1]).
    pub(crate) fn is_beside_others(&self) -> bool {
        self.looking.load(Relaxed) > 1
    }

    pub(crate) fn is_paused(&self) -> bool {
        let until = self.pause_until.load(Relaxed);
        until != 0 && sync::milliseconds() < until
    }

    /// Lets others have the CPU.
    pub(crate) fn give_way(&self) {
        let before = Moment::now();
        sync::give_way();
        self.took(before.elapsed_ns());
    }

    /// [GIV2]
    fn took(&self, elapsed_ns: i64) {
        let excess = (self.excess_ns.load(Relaxed) + elapsed_ns - USUAL_NS).max(0);
        self.excess_ns.store(excess, Relaxed);
        if excess > TOO_LONG_NS {
            let (now, until) = (sync::milliseconds(), self.pause_until.load(Relaxed));
            let pause = if now < until + SOON_MS { (2 * self.pause.load(Relaxed)).min(PAUSE_MOST_MS) } else { PAUSE_LEAST_MS };
            self.excess_ns.store(0, Relaxed);
            self.pause.store(pause, Relaxed);
            self.pause_until.store(now + pause, Relaxed);
        }
    }
}

#[cfg(all(test, not(feature = "schedules")))]
mod tests {
    use super::*;

    /// [GIV2]: a turn of somebody who computes, among nine short yields each.
    #[test]
    fn yields_that_take_long_end_in_a_pause_and_others_do_not() {
        let (with_computing, among_waiting) = (GivingWay::default(), GivingWay::default());
        for yields in 0..10_000 {
            with_computing.took(if yields % 10 == 0 { 2 * 10 * USUAL_NS } else { 1_000 });
            among_waiting.took(if yields % 100 == 0 { 2 * 10 * USUAL_NS } else { 30_000 });
        }
        assert!(with_computing.is_paused());
        assert_eq!(among_waiting.pause_until.load(Relaxed), 0);
    }

    #[test]
    fn a_pause_soon_behind_another_is_longer() {
        let giving_way = GivingWay::default();
        let pauses: Vec<u64> = (0..20)
            .map(|_| {
                giving_way.took(TOO_LONG_NS + 2 * USUAL_NS);
                giving_way.pause.load(Relaxed)
            })
            .collect();
        assert_eq!(pauses[..3], [PAUSE_LEAST_MS, 2 * PAUSE_LEAST_MS, 4 * PAUSE_LEAST_MS]);
        assert_eq!(pauses[19], PAUSE_MOST_MS);
    }
}
