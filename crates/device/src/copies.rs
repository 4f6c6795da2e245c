//! Copies of descriptors in processes that tests start. Tests of one process run beside each other, and a program that one of them starts has the
//! descriptors of all, with their locks, until it is executed.

use std::time::{Duration, Instant};

/// Waits until something is so that such a copy puts off. False if it does not come about within a minute.
pub fn comes_without_copies(is_so: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !is_so() {
        if begun.elapsed() > Duration::from_secs(60) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}
