//! Interrupts that arrive before their requests.
//!
//! Over the device the kernel resends an interrupt if asked to. Over io_uring it does not (Linux 6.18 searches only the device's requests).
//! So a session keeps the interrupts that should be resent:
//!
//! [IT1] After an interrupt is kept, the handler is tried once more, and after every request its kept interrupt is looked up. One of the
//!       two comes second, so no interrupt is lost.
//! [IT2] Most kept interrupts belong to requests that were already answered, so only a few are kept, for a short time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const KEPT_MAX: usize = 256;
const KEPT_FOR: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct EarlyInterrupts {
    kept: Mutex<VecDeque<(u64, Instant)>>,
    /// Their number. It is nearly always 0, and then requests take no lock.
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

    /// Whether this request was interrupted before it arrived. Forgets the interrupt.
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
