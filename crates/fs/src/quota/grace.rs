//! Soft limits: usage may be above one for the grace period, which begins when it gets there and is forgotten when it is back.

use tandemfs_format::quota::Limit;

/// The time that grace periods go by, in seconds since 1970.
pub(crate) fn seconds_now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    u64::try_from(time.tv_sec).unwrap_or_default().max(1)
}

/// Since when usage is above a soft limit, 0 if it is not, after it changed to `used`.
pub(super) fn over_since(limit: Limit, used: u64, since: u64, now: u64) -> u64 {
    match limit.soft > 0 && used > limit.soft {
        true if since > 0 => since,
        true => now,
        false => 0,
    }
}

/// Whether usage may not grow to `used`.
pub(super) fn refuses(limit: Limit, used: u64, since: u64, grace_seconds: u32, now: u64) -> bool {
    let is_over_hard = limit.hard > 0 && used > limit.hard;
    let is_over_soft = limit.soft > 0 && used > limit.soft && since > 0 && seconds_left(since, grace_seconds, now) == 0;
    is_over_hard || is_over_soft
}

/// How much of a grace period that began at `since` is left, in seconds. A clock that was set back does not lengthen it.
pub(super) fn seconds_left(since: u64, grace_seconds: u32, now: u64) -> u64 {
    since.saturating_add(grace_seconds.into()).saturating_sub(now).min(grace_seconds.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Limit = Limit { soft: 10, hard: 20 };

    #[test]
    fn a_soft_limit_may_be_passed_for_the_grace_period() {
        assert_eq!(over_since(LIMIT, 10, 0, 100), 0);
        let since = over_since(LIMIT, 11, 0, 100);
        assert_eq!((since, over_since(LIMIT, 15, since, 200), over_since(LIMIT, 10, since, 200)), (100, 100, 0));
        assert!(!refuses(LIMIT, 11, 0, 50, 100), "the period begins");
        assert!(!refuses(LIMIT, 12, since, 50, 149));
        assert!(refuses(LIMIT, 12, since, 50, 150) && !refuses(LIMIT, 10, since, 50, 150));
        assert_eq!((seconds_left(100, 50, 120), seconds_left(100, 50, 150), seconds_left(100, 50, 1)), (30, 0, 50));
    }

    #[test]
    fn a_hard_limit_is_never_passed_and_zero_is_none() {
        assert!(!refuses(LIMIT, 20, 0, 50, 100) && refuses(LIMIT, 21, 0, 50, 100));
        let none = Limit::default();
        assert!(!refuses(none, u64::MAX, 1, 0, 100) && over_since(none, u64::MAX, 0, 100) == 0);
    }
}
