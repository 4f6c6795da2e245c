//! How fast files come, if not as fast as they can ([AX3] of `age`).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Waits shorter than this are left to the next file: a sleep takes longer than was asked for.
const SHORT: Duration = Duration::from_millis(1);

/// Bytes and their time.
#[derive(Debug)]
pub struct Pace {
    began: Instant,
    bytes_a_second: u64,
    bytes: AtomicU64,
}

impl Pace {
    /// Begins now. The rate is not zero.
    pub fn new(bytes_a_second: u64) -> Self {
        Self { began: Instant::now(), bytes_a_second, bytes: AtomicU64::new(0) }
    }

    /// Waits until the bytes before these have had their time.
    pub fn wait(&self, bytes: u64) {
        let before = self.bytes.fetch_add(bytes, Relaxed);
        let due = Duration::from_secs_f64(before as f64 / self.bytes_a_second as f64);
        let early = due.saturating_sub(self.began.elapsed());
        if early >= SHORT {
            std::thread::sleep(early);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_their_time_whatever_their_pieces() {
        for pieces in [10, 1000] {
            let (pace, began) = (Pace::new(100_000), Instant::now());
            (0..pieces).for_each(|_| pace.wait(10_000 / pieces));
            let took = began.elapsed();
            assert!(took >= Duration::from_millis(85), "{pieces} pieces: {took:?}");
        }
    }
}
