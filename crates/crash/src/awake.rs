//! Time in which the process of a test really ran. By the clock of the machine a process that was stopped for some seconds, or that got no CPU,
//! looks like one that has waited: a bound on such time says more about the machine than about what is tested.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The thread that counts looks at the clock this often.
const TICK: Duration = Duration::from_millis(2);
/// What counts at most of the time between two looks.
const TICK_COUNTS_MAX: Duration = Duration::from_millis(5);

/// How long a race goes on where what it is for does not come about.
const RACE_MAX: Duration = Duration::from_secs(60);

static AWAKE_NANOSECONDS: AtomicU64 = AtomicU64::new(0);

/// A moment, like [`Instant`]. What has elapsed since then is never more than by the clock, and less by the time in which nobody ran. For upper
/// bounds; what must have lasted is measured by the clock.
#[derive(Debug, Clone, Copy)]
pub struct Awake(u64);

impl Awake {
    /// This moment.
    pub fn now() -> Self {
        static COUNTING: Once = Once::new();
        COUNTING.call_once(|| drop(std::thread::spawn(count)));
        Self(AWAKE_NANOSECONDS.load(Relaxed))
    }

    /// The time in which the process ran since then, to some milliseconds.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(AWAKE_NANOSECONDS.load(Relaxed) - self.0)
    }

    /// Whether a race that began then is to go on: for so long, then until enough was seen, at most for [`RACE_MAX`].
    pub fn goes_on(&self, at_least: Duration, is_enough: bool) -> bool {
        let elapsed = self.elapsed();
        elapsed < at_least || !is_enough && elapsed < RACE_MAX
    }
}

fn count() {
    loop {
        let look = Instant::now();
        std::thread::sleep(TICK);
        AWAKE_NANOSECONDS.fetch_add(look.elapsed().min(TICK_COUNTS_MAX).as_nanos() as u64, Relaxed);
    }
}

/// Waits until something is so. False if that does not come within this time of the process ([`Awake`]).
pub fn comes_within(time: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let (begun, mut pause) = (Awake::now(), Duration::from_micros(50));
    loop {
        let is_over = begun.elapsed() >= time;
        if is_so() {
            return true;
        }
        if is_over {
            return false;
        }
        std::thread::sleep(pause);
        pause = (2 * pause).min(TICK);
    }
}

/// What a thread says within this time of the process. `None` if it says nothing; also where it has ended without a word.
pub fn heard_within<T>(time: Duration, receiver: &Receiver<T>) -> Option<T> {
    let begun = Awake::now();
    loop {
        let is_over = begun.elapsed() >= time;
        match receiver.recv_timeout(TICK) {
            Ok(said) => return Some(said),
            Err(RecvTimeoutError::Timeout) if !is_over => {}
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_and_not_faster_than_the_clock() {
        let (begun, clock) = (Awake::now(), Instant::now());
        assert!(comes_within(Duration::from_secs(60), || clock.elapsed() > Duration::from_millis(100)));
        assert!(begun.elapsed() <= clock.elapsed() + TICK_COUNTS_MAX);
        assert!(!comes_within(Duration::from_millis(20), || false), "it ends");
        assert!(begun.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn what_is_said_is_heard_once() {
        let (sender, receiver) = std::sync::mpsc::channel();
        assert_eq!(heard_within(Duration::ZERO, &receiver), None);
        sender.send(7).expect("somebody listens");
        assert_eq!(heard_within(Duration::ZERO, &receiver), Some(7));
        drop(sender);
        assert_eq!(heard_within(Duration::from_secs(600), &receiver), None);
    }
}
