//! Free space of a data area. Only the client's own memory knows it.

use std::collections::BTreeMap;

use crate::layout::{PAGE_BYTES, Range};

/// Ranges start at multiples of this, and end there.
const UNIT: u64 = 64;

/// Free runs by their start, first fit.
#[derive(Debug)]
pub(crate) struct Space(BTreeMap<u64, u64>);

impl Space {
    pub(crate) fn new(bytes: u64) -> Self {
        Self(BTreeMap::from_iter((bytes > 0).then_some((0, bytes))))
    }

    /// A range of this length, at least one byte; from a page on it starts at a page. The first that there is.
    pub(crate) fn take(&mut self, bytes: u32) -> Option<Range> {
        let (length, alignment) = Self::fitted(bytes);
        let fits = |(start, run): (&u64, &u64)| {
            let first = start.next_multiple_of(alignment);
            (first + length <= start + run).then_some((*start, *run, first))
        };
        let place = self.0.iter().find_map(fits)?;
        self.cut(place, length, bytes)
    }

    /// As [`Space::take`], the last that there is: what is kept for long lies together and divides no space.
    pub(crate) fn take_last(&mut self, bytes: u32) -> Option<Range> {
        let (length, alignment) = Self::fitted(bytes);
        let fits = |(start, run): (&u64, &u64)| {
            let first = (start + run).checked_sub(length)? / alignment * alignment;
            (first >= *start).then_some((*start, *run, first))
        };
        let place = self.0.iter().rev().find_map(fits)?;
        self.cut(place, length, bytes)
    }

    /// Length and alignment of a range for so many bytes.
    fn fitted(bytes: u32) -> (u64, u64) {
        let length = u64::from(bytes.max(1)).next_multiple_of(UNIT);
        (length, if length >= PAGE_BYTES { PAGE_BYTES } else { UNIT })
    }

    /// Takes a range out of a run.
    fn cut(&mut self, (start, run, first): (u64, u64, u64), length: u64, bytes: u32) -> Option<Range> {
        self.0.remove(&start);
        if first > start {
            self.0.insert(start, first - start);
        }
        if first + length < start + run {
            self.0.insert(first + length, start + run - first - length);
        }
        Some(Range { start: u32::try_from(first).ok()?, length: bytes.max(1) })
    }

    /// Gives a taken range back.
    pub(crate) fn give_back(&mut self, range: Range) {
        let (mut start, mut length) = (u64::from(range.start), u64::from(range.length).next_multiple_of(UNIT));
        if let Some((&before, &run)) = self.0.range(..start).next_back() {
            assert!(before + run <= start, "a range is given back twice");
            if before + run == start {
                self.0.remove(&before);
                (start, length) = (before, run + length);
            }
        }
        if let Some(run) = self.0.remove(&(start + length)) {
            length += run;
        }
        self.0.insert(start, length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_overlap_and_come_back_whole() {
        let mut space = Space::new(16 * PAGE_BYTES);
        let mut random = 1_u64;
        let mut held: Vec<Range> = Vec::new();
        for _ in 0..5000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let choice = (random >> 33) as u32;
            if choice.is_multiple_of(2) {
                let bytes = choice % 9000;
                if let Some(range) = if choice & 4 == 0 { space.take(bytes) } else { space.take_last(bytes) } {
                    let ends = |range: &Range| u64::from(range.start) + u64::from(range.length);
                    assert!(range.is_within(16 * PAGE_BYTES));
                    assert!(range.length < 4096 || range.start.is_multiple_of(4096), "{range:?}");
                    let is_apart = |other: &Range| ends(other) <= range.start.into() || ends(&range) <= other.start.into();
                    assert!(held.iter().all(is_apart), "{range:?} in {held:?}");
                    held.push(range);
                }
            } else if !held.is_empty() {
                space.give_back(held.swap_remove(choice as usize % held.len()));
            }
        }
        held.into_iter().for_each(|range| space.give_back(range));
        assert_eq!(space.0, BTreeMap::from([(0, 16 * PAGE_BYTES)]));
        assert_eq!((space.take(16 * 4096 + 1), space.take_last(16 * 4096 + 1)), (None, None));
        let [first, last] = [space.take(4096), space.take_last(8000)].map(|range| range.expect("room"));
        assert_eq!((first.start, last.start), (0, 14 * 4096));
        space.give_back(first);
        space.give_back(last);
        assert_eq!(space.take(16 * 4096), Some(Range { start: 0, length: 16 * 4096 }));
        assert_eq!(space.take(0), None);
    }
}
