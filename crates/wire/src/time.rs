//! Timestamps in the kernel's format.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A point in time: seconds since 1970, plus nanoseconds; also for times before 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time {
    /// Seconds since 1970.
    pub seconds: i64,
    /// 0 to 999,999,999.
    pub nanoseconds: u32,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The current time of the file system's clock.
    Now,
    /// This time.
    At(Time),
}

impl Time {
    /// The kernel sends signed seconds in an unsigned field. `None` if the nanoseconds are out of range.
    pub(crate) fn from_kernel(seconds: u64, nanoseconds: u32) -> Option<Self> {
        (nanoseconds < 1_000_000_000).then_some(Self { seconds: seconds.cast_signed(), nanoseconds })
    }

    pub(crate) fn kernel_seconds(self) -> u64 {
        self.seconds.cast_unsigned()
    }
}

impl From<SystemTime> for Time {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(since) => Self { seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanoseconds: since.subsec_nanos() },
            Err(before) => {
                let until = before.duration();
                let whole = i64::try_from(until.as_secs()).map_or(i64::MIN, |seconds| -seconds);
                match until.subsec_nanos() {
                    0 => Self { seconds: whole, nanoseconds: 0 },
                    part => Self { seconds: whole.saturating_sub(1), nanoseconds: 1_000_000_000 - part },
                }
            }
        }
    }
}

/// A cache validity in the kernel's format: seconds and nanoseconds.
pub(crate) fn validity(duration: Duration) -> (u64, u32) {
    (duration.as_secs(), duration.subsec_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanoseconds_count_on_from_the_second_on_both_sides_of_the_epoch() {
        assert_eq!(Time::from(UNIX_EPOCH + Duration::new(5, 7)), Time { seconds: 5, nanoseconds: 7 });
        assert_eq!(Time::from(UNIX_EPOCH - Duration::from_millis(1750)), Time { seconds: -2, nanoseconds: 250_000_000 });
        assert_eq!(Time::from(UNIX_EPOCH - Duration::from_secs(2)), Time { seconds: -2, nanoseconds: 0 });
        let early = Time { seconds: -2, nanoseconds: 1 };
        assert_eq!(Time::from_kernel(early.kernel_seconds(), 1), Some(early));
        assert_eq!(Time::from_kernel(0, 1_000_000_000), None);
    }
}
