//! A part of a drive that serves one piece of work at a time ([TI6]).
//!
//! [TI6]: super

use std::collections::VecDeque;

/// Gaps that are remembered: enough for threads whose clocks are some thousand accesses apart.
const GAP_COUNT_MAX: usize = 16_384;
/// Shorter gaps are useless: a line takes longer on any link.
const GAP_NS_MIN: u64 = 16;

/// Busy intervals of a part. New work is served in a gap between them, else behind them.
#[derive(Debug, Default, Clone)]
pub(crate) struct Resource {
    free_at: u64,
    /// Times at which it was, or will be, idle before `free_at`: start and end, in order.
    gaps: VecDeque<(u64, u64)>,
}

impl Resource {
    /// When it is idle for good, as far as is known.
    pub(crate) fn free_at(&self) -> u64 {
        self.free_at
    }

    /// Takes work of `service` nanoseconds that arrives at `arrival` and is done in one piece. Returns when it ends.
    pub(crate) fn reserve(&mut self, arrival: u64, service: u64) -> u64 {
        if let Some(end) = self.take_idle(arrival, service) {
            return end;
        }
        let first = self.first_gap(arrival);
        let fits = |&(start, end): &(u64, u64)| end - start.max(arrival) >= service;
        if let Some(index) = self.gaps.range(first..).position(fits).map(|index| first + index) {
            let begin = self.gaps[index].0.max(arrival);
            self.cut(index, begin, begin + service);
            return begin + service;
        }
        self.free_at += service;
        self.free_at
    }

    /// The same for work that others may interrupt, as packets share a link.
    pub(crate) fn share(&mut self, arrival: u64, service: u64) -> u64 {
        if let Some(end) = self.take_idle(arrival, service) {
            return end;
        }
        let mut left = service;
        let mut index = self.first_gap(arrival);
        while let Some(&(start, end)) = self.gaps.get(index) {
            let begin = start.max(arrival);
            if end - begin > left {
                self.cut(index, begin, begin + left);
                return begin + left;
            }
            left -= end - begin;
            if begin > start {
                index += 1;
            }
            self.cut(index - usize::from(begin > start), begin, end);
        }
        self.free_at += left;
        self.free_at
    }

    fn first_gap(&self, arrival: u64) -> usize {
        self.gaps.partition_point(|&(_, end)| end <= arrival)
    }

    /// Takes a part out of a gap.
    fn cut(&mut self, index: usize, begin: u64, end: u64) {
        let Some((start, stop)) = self.gaps.remove(index) else { return };
        for gap in [(end, stop), (start, begin)] {
            if gap.0 < gap.1 {
                self.gaps.insert(index, gap);
            }
        }
    }

    /// The common case: the part is idle and no later work is scheduled.
    fn take_idle(&mut self, arrival: u64, service: u64) -> Option<u64> {
        if arrival < self.free_at {
            return None;
        }
        if arrival - self.free_at >= GAP_NS_MIN {
            while self.gaps.len() >= GAP_COUNT_MAX {
                self.gaps.pop_front();
            }
            self.gaps.push_back((self.free_at, arrival));
        }
        self.free_at = arrival + service;
        Some(self.free_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_one_after_another() {
        let mut resource = Resource::default();
        assert_eq!([0, 0, 5, 100].map(|arrival| resource.reserve(arrival, 10)), [10, 20, 30, 110]);
    }

    #[test]
    fn who_comes_late_uses_the_time_that_was_idle() {
        let mut resource = Resource::default();
        assert_eq!(resource.reserve(100, 10), 110);
        assert_eq!(resource.reserve(20, 30), 50);
        assert_eq!(resource.reserve(10, 30), 80, "0 to 20 is too short from 10 on");
        assert_eq!(resource.reserve(10, 10), 20);
        assert_eq!(resource.reserve(0, 21), 131, "80 to 100 is too short");
        assert_eq!(resource.reserve(0, 20), 100);
    }

    #[test]
    fn a_link_is_shared_without_loss() {
        let mut resource = Resource::default();
        for number in 0..10 {
            assert_eq!(resource.share(number * 100, 30), number * 100 + 30);
        }
        assert_eq!(resource.share(50, 10), 60);
        assert_eq!(resource.share(40, 35), 85, "10 before, 25 after what is there");
        assert_eq!(resource.share(0, 100), 235, "10, 15 and 70 are idle, then 5 more");
        assert_eq!(resource.share(0, 600), 1045, "485 are idle before 930, the rest comes behind");
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
            let end = resource.reserve(arrival, service);
            let begin = end - service;
            assert!(begin >= arrival);
            assert!(taken.iter().all(|&(start, stop)| stop <= begin || end <= start), "{begin} for {service}");
            taken.push((begin, end));
        }
    }
}
