//! Interrupts that overtook their requests.
//!
//! Over the device the kernel says an interrupt again when it is asked to. Over io_uring it does not (Linux 6.18 looks for the request
//! where the device's are), so a session keeps those for which it should:
//!
//! [IT1] An interrupt that is kept is tried once more at once, and every request that was handled looks for its own: one of both happens
//!       after the other, so none is lost.
//! [IT2] Most of them are of requests that were answered already, so few are kept, and not for long.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const KEPT_MAX: usize = 256;
const KEPT_FOR: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct EarlyInterrupts {
    kept: Mutex<VecDeque<(u64, Instant)>>,
    /// Their number: nearly always none, and then no request needs the lock.
    count: AtomicUsize,
}

impl EarlyInterrupts {
    pub(crate) fn keep(&self, unique: u64) {
        self.change(|kept| {
            if kept.len() == KEPT_MAX {
                kept.pop_front();
            }
            kept.push_back((unique, Instant::now()));
        });
    }

    /// Whether this request was interrupted before it came; it is forgotten by that.
    pub(crate) fn take(&self, unique: u64) -> bool {
        if self.count.load(SeqCst) == 0 {
            return false;
        }
        self.change(|kept| {
            kept.retain(|(_, since)| since.elapsed() < KEPT_FOR);
            let place = kept.iter().position(|(other, _)| *other == unique);
            place.and_then(|place| kept.remove(place)).is_some()
        })
    }

    fn change<R>(&self, change: impl FnOnce(&mut VecDeque<(u64, Instant)>) -> R) -> R {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut kept);
        self.count.store(kept.len(), SeqCst);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_waits_for_its_request_and_is_taken_once() {
        let early = EarlyInterrupts::default();
        assert!(!early.take(5));
        early.keep(5);
        early.keep(7);
        assert!(!early.take(6) && early.take(5) && !early.take(5) && early.take(7));
        assert_eq!(early.count.load(SeqCst), 0);
    }

    #[test]
    fn the_oldest_goes_when_there_are_too_many() {
        let early = EarlyInterrupts::default();
        (0..=KEPT_MAX as u64).for_each(|unique| early.keep(unique));
        assert!(!early.take(0) && early.take(1) && early.take(KEPT_MAX as u64));
    }
}
