//! A part of a drive that does one thing after another ([T6]).
//!
//! [T6]: super

use std::collections::VecDeque;

/// Gaps that are remembered: enough for threads whose clocks are some hundred accesses apart.
const GAP_COUNT_MAX: usize = 64;

/// When a part is busy. What comes is served in a gap between what is there already, else behind it.
#[derive(Debug, Default, Clone)]
pub(crate) struct Resource {
    free_at: u64,
    /// Times at which it was, or will be, idle before `free_at`: start and end, in order.
    gaps: VecDeque<(u64, u64)>,
}

impl Resource {
    /// Takes work of `service` nanoseconds that arrives at `arrival`. Returns when it begins.
    pub(crate) fn reserve(&mut self, arrival: u64, service: u64) -> u64 {
        if arrival >= self.free_at {
            if arrival > self.free_at {
                while self.gaps.len() >= GAP_COUNT_MAX {
                    self.gaps.pop_front();
                }
                self.gaps.push_back((self.free_at, arrival));
            }
            self.free_at = arrival + service;
            return arrival;
        }
        let first = self.gaps.partition_point(|&(_, end)| end <= arrival);
        let fits = |&(start, end): &(u64, u64)| end - start.max(arrival) >= service;
        if let Some(index) = self.gaps.range(first..).position(fits).map(|index| first + index) {
            let (start, end) = self.gaps[index];
            let begin = start.max(arrival);
            let left = [(start, begin), (begin + service, end)].into_iter().filter(|(start, end)| start < end);
            self.gaps.remove(index);
            for gap in left.rev() {
                self.gaps.insert(index, gap);
            }
            return begin;
        }
        let begin = self.free_at;
        self.free_at += service;
        begin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_one_after_another() {
        let mut resource = Resource::default();
        assert_eq!([0, 0, 5, 100].map(|arrival| resource.reserve(arrival, 10)), [0, 10, 20, 100]);
    }

    #[test]
    fn who_comes_late_uses_the_time_that_was_idle() {
        let mut resource = Resource::default();
        assert_eq!(resource.reserve(100, 10), 100);
        assert_eq!(resource.reserve(20, 30), 20);
        assert_eq!(resource.reserve(10, 30), 50, "0 to 20 is too short from 10 on");
        assert_eq!(resource.reserve(10, 10), 10);
        assert_eq!(resource.reserve(0, 21), 110, "80 to 100 is too short");
        assert_eq!(resource.reserve(0, 20), 80);
    }

    /// Whatever the order, no two pieces of work overlap and none begins before it arrived.
    #[test]
    fn no_two_overlap() {
        let mut resource = Resource::default();
        let mut taken: Vec<(u64, u64)> = Vec::new();
        let mut state = 1_u64;
        for _ in 0..2000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (arrival, service) = ((state >> 33) % 100_000, 1 + (state >> 20) % 97);
            let begin = resource.reserve(arrival, service);
            assert!(begin >= arrival);
            assert!(taken.iter().all(|&(start, end)| end <= begin || begin + service <= start), "{begin} for {service}");
            taken.push((begin, begin + service));
        }
    }
}
