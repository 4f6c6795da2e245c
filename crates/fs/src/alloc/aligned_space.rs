//! Space in aligned extents of 2 MiB (units) and in holes, the free pages of units that are taken in part (WineFS §3.4, §3.6). Only host
//! memory; whoever has it says where its first page is.
//!
//! [AG1] A unit of which nothing is taken is an *aligned extent*. They are taken oldest first: one that becomes free goes behind the others.
//! [AG2] What is smaller comes from holes: the lowest place that fits. [`AlignedSpace::take_hole`] never breaks an aligned extent, so its
//!       caller decides when no hole serves. Neighbours are one hole as soon as both are free, and a unit without taken pages is an aligned
//!       extent again.
//! [AG3] Less than a block comes from the rest of a block that is taken in part, as long as there is one: ends of files share blocks, and
//!       whole blocks fit into all other holes without loss.
//! [AG4] The maps are loaded before anything is looked for: until then a change touches its bits alone, and the first search finds out once
//!       what is free where.
//! [AG5] A unit that is to be emptied is *hidden*: its holes are found by nobody. It is shown again when it is an aligned extent.
//!
//! Host memory: the bits (64 B a unit), and 10 B a unit at most to find free space by. So a free extent costs 10 B or less beside them.

use std::collections::VecDeque;

use super::maxima::Maxima;
use super::unit_pages::{
    FreeRuns, UNIT_PAGES, UNIT_WORDS, UnitPages, first_rest, first_row, free_block_count, free_runs, full_block_count,
};

/// The unit is an aligned extent.
const WHOLE: u8 = 1;
/// The unit is in the queue.
const QUEUED: u8 = 2;
/// The unit is hidden ([AG5]).
const HIDDEN: u8 = 4;

#[derive(Debug)]
pub(super) struct AlignedSpace {
    /// Pages of a block.
    each: u32,
    units: Vec<UnitPages>,
    free: u64,
    /// What is free where is known ([AG4]).
    is_indexed: bool,
    /// Of each unit with holes: its longest row of free blocks, and its longest rest of a block.
    rows: Maxima,
    rests: Maxima,
    states: Vec<u8>,
    /// Aligned extents, oldest first. Some were taken in another way since: `states` says which.
    queue: VecDeque<u32>,
    whole: u64,
}

/// Free aligned extents, and free pages of holes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FreeCounts {
    pub(super) whole: u64,
    pub(super) in_holes: u64,
}

impl AlignedSpace {
    /// So many units with nothing taken, and blocks of `each` pages (a power of two up to 256).
    pub(super) fn new(units: usize, each: u32) -> Self {
        Self {
            each,
            units: vec![[0; UNIT_WORDS]; units],
            free: units as u64 * UNIT_PAGES,
            is_indexed: false,
            rows: Maxima::new(0),
            rests: Maxima::new(0),
            states: Vec::new(),
            queue: VecDeque::new(),
            whole: 0,
        }
    }

    /// So many units from now on, if there are fewer: all of the new ones is taken.
    pub(super) fn grow(&mut self, units: usize) {
        if units <= self.units.len() {
            return;
        }
        self.units.resize(units, [u64::MAX; UNIT_WORDS]);
        if self.is_indexed {
            self.rows.grow(units);
            self.rests.grow(units);
            self.states.resize(units, 0);
        }
    }

    /// Free pages.
    pub(super) fn free(&self) -> u64 {
        self.free
    }

    /// Free aligned extents.
    pub(super) fn whole(&mut self) -> u64 {
        self.index();
        self.whole
    }

    /// Free pages of holes.
    pub(super) fn in_holes(&mut self) -> u64 {
        self.free - self.whole() * UNIT_PAGES
    }

    /// What is free, unless it would have to be found out ([AG4]).
    pub(super) fn known_counts(&self) -> Option<FreeCounts> {
        self.is_indexed.then(|| FreeCounts { whole: self.whole, in_holes: self.free - self.whole * UNIT_PAGES })
    }

    /// Free blocks.
    pub(super) fn free_blocks(&self) -> u64 {
        self.units.iter().map(|pages| free_block_count(pages, self.each)).sum()
    }

    /// 64 pages: 1 = taken.
    pub(super) fn word(&self, word: u64) -> u64 {
        self.units[word as usize / UNIT_WORDS][word as usize % UNIT_WORDS]
    }

    /// Number of units.
    pub(super) fn units(&self) -> u64 {
        self.units.len() as u64
    }

    /// The bits of a unit: 1 = taken.
    pub(super) fn unit(&self, unit: usize) -> &UnitPages {
        &self.units[unit]
    }

    /// Replaces the bits of a unit.
    pub(super) fn load(&mut self, unit: usize, pages: UnitPages) {
        let free = |pages: &UnitPages| pages.iter().map(|word| u64::from(word.count_zeros())).sum::<u64>();
        self.free = self.free - free(&self.units[unit]) + free(&pages);
        self.units[unit] = pages;
        self.note(unit);
    }

    // ---- taking --------------------------------------------------------------------------------------------------------------------

    /// Takes the oldest aligned extent. Returns its first page.
    pub(super) fn take_unit(&mut self) -> Option<u64> {
        self.index();
        while let Some(unit) = self.queue.pop_front() {
            let unit = unit as usize;
            self.states[unit] &= !QUEUED;
            if self.states[unit] & WHOLE != 0 {
                self.units[unit] = [u64::MAX; UNIT_WORDS];
                self.free -= UNIT_PAGES;
                self.note(unit);
                return Some(unit as u64 * UNIT_PAGES);
            }
        }
        None
    }

    /// Takes at least `least` pages in a row from a hole, and the blocks behind them that are free too, up to `most`. Both are blocks.
    /// Returns how many were taken.
    pub(super) fn take_hole_of(&mut self, least: u32, most: u32) -> Option<(u64, u32)> {
        let start = self.take_hole(least)?;
        let mut count = least;
        let room = (UNIT_PAGES - start % UNIT_PAGES) as u32;
        while count + self.each <= most.min(room) && self.take_hole_at(start + u64::from(count), self.each.into()) {
            count += self.each;
        }
        Some((start, count))
    }

    /// Takes `count` pages in a row from a hole ([AG2]): blocks, where that is a block or more.
    pub(super) fn take_hole(&mut self, count: u32) -> Option<u64> {
        self.index();
        let of_rest = if count < self.each { self.rests.first(count as u16) } else { None }; // [AG3]
        let (unit, page) = match of_rest {
            Some(unit) => (unit, first_rest(&self.units[unit], self.each, count)),
            None => {
                let unit = self.rows.first(count.next_multiple_of(self.each) as u16)?;
                (unit, first_row(&self.units[unit], self.each, count))
            }
        };
        let Some(page) = page else { unreachable!("a unit has the run that is noted for it") };
        let start = unit as u64 * UNIT_PAGES + u64::from(page);
        self.set(start, count.into());
        Some(start)
    }

    /// Takes these pages, if they are free and in holes of one unit.
    pub(super) fn take_hole_at(&mut self, start: u64, count: u64) -> bool {
        let (unit, last) = (start / UNIT_PAGES, (start + count - 1) / UNIT_PAGES);
        let is_hole =
            unit == last && !self.is_hidden(unit as usize) && self.units[unit as usize] != [0; UNIT_WORDS] && self.is_free(start, count);
        is_hole && self.set(start, count)
    }

    /// Takes pages of the oldest aligned extent; the others of it are a hole.
    pub(super) fn break_unit(&mut self, count: u32) -> Option<u64> {
        let start = self.take_unit()?;
        self.clear(start + u64::from(count), UNIT_PAGES - u64::from(count));
        Some(start)
    }

    /// Takes the first free pages in a row, wherever blocks and units begin: for a file's end, when nothing else is left.
    pub(super) fn take_anywhere(&mut self, count: u64) -> Option<u64> {
        if self.free < count {
            return None;
        }
        let mut from = 0;
        while let Some((start, free)) = self.next_free_run(from) {
            if free >= count {
                self.set(start, count);
                return Some(start);
            }
            from = start + free;
        }
        None
    }

    /// Hides the holes of a unit ([AG5]). False if it is an aligned extent.
    pub(super) fn hide(&mut self, unit: usize) -> bool {
        self.index();
        let hides = self.states[unit] & WHOLE == 0;
        if hides {
            self.states[unit] |= HIDDEN;
            self.note(unit);
        }
        hides
    }

    /// Shows the holes of a unit again.
    pub(super) fn show(&mut self, unit: usize) {
        self.index();
        self.states[unit] &= !HIDDEN;
        self.note(unit);
    }

    /// Whether the holes of a unit are hidden.
    pub(super) fn is_hidden(&self, unit: usize) -> bool {
        self.states.get(unit).is_some_and(|state| state & HIDDEN != 0)
    }

    /// Free pages of a unit.
    pub(super) fn free_of(&self, unit: usize) -> u64 {
        self.units[unit].iter().map(|word| u64::from(word.count_zeros())).sum()
    }

    /// Pages of the free blocks of a unit.
    pub(super) fn free_in_blocks(&self, unit: usize) -> u64 {
        free_block_count(&self.units[unit], self.each) * u64::from(self.each)
    }

    /// Taken pages of a unit in blocks that are free in part.
    pub(super) fn in_ends(&self, unit: usize) -> u64 {
        UNIT_PAGES - self.free_of(unit) - full_block_count(&self.units[unit], self.each) * u64::from(self.each)
    }

    /// Takes everything that is free.
    pub(super) fn take_all(&mut self) {
        self.set(0, self.units.len() as u64 * UNIT_PAGES);
    }

    // ---- pages by their place ------------------------------------------------------------------------------------------------------

    /// Takes these pages. False if some of them were taken.
    pub(super) fn set(&mut self, start: u64, count: u64) -> bool {
        let mut were_free = true;
        self.each_word(start, count, |word, bits, free| {
            were_free &= *word & bits == 0;
            *free -= u64::from((bits & !*word).count_ones());
            *word |= bits;
        });
        were_free
    }

    /// Frees these pages.
    pub(super) fn clear(&mut self, start: u64, count: u64) {
        self.each_word(start, count, |word, bits, free| {
            assert_eq!(*word & bits, bits, "space is freed once");
            *free += u64::from(bits.count_ones());
            *word &= !bits;
        });
    }

    /// Whether all of these pages are free.
    pub(super) fn is_free(&self, start: u64, count: u64) -> bool {
        words(start, count).all(|(unit, word, bits)| self.units[unit][word] & bits == 0)
    }

    /// Whether all of these pages are taken.
    pub(super) fn is_taken(&self, start: u64, count: u64) -> bool {
        words(start, count).all(|(unit, word, bits)| self.units[unit][word] & bits == bits)
    }

    /// The first run of free pages that ends behind `from`, cut to what lies at or behind `from`: its start and its length.
    pub(super) fn next_free_run(&self, from: u64) -> Option<(u64, u64)> {
        let end = self.units.len() as u64 * UNIT_PAGES;
        let next = |from: u64, is_free: bool| {
            let mut at = from;
            while at < end {
                let word = self.units[(at / UNIT_PAGES) as usize][(at % UNIT_PAGES / 64) as usize];
                let wanted = (if is_free { !word } else { word }) >> (at % 64);
                if wanted != 0 {
                    return at + u64::from(wanted.trailing_zeros());
                }
                at = (at / 64 + 1) * 64;
            }
            end
        };
        let start = next(from, true);
        (start < end).then(|| (start, next(start, false) - start))
    }

    // ---- what is free where --------------------------------------------------------------------------------------------------------

    fn each_word(&mut self, start: u64, count: u64, mut change: impl FnMut(&mut u64, u64, &mut u64)) {
        let mut changed = None;
        for (unit, word, bits) in words(start, count) {
            if let Some(before) = changed.replace(unit).filter(|before| *before != unit) {
                self.note(before);
            }
            change(&mut self.units[unit][word], bits, &mut self.free);
        }
        if let Some(last) = changed {
            self.note(last);
        }
    }

    /// Finds out what is free where ([AG4]).
    fn index(&mut self) {
        if self.is_indexed {
            return;
        }
        self.is_indexed = true;
        let count = self.units.len();
        (self.rows, self.rests, self.states) = (Maxima::new(count), Maxima::new(count), vec![0; count]);
        (0..count).for_each(|unit| self.note(unit));
    }

    /// The bits of a unit have changed.
    fn note(&mut self, unit: usize) {
        if !self.is_indexed {
            return;
        }
        let (is_whole, was_whole) = (self.units[unit].iter().all(|word| *word == 0), self.states[unit] & WHOLE != 0);
        let is_full = self.units[unit].iter().all(|word| *word == u64::MAX);
        let none = FreeRuns { row: 0, rest: 0 };
        let is_hidden = !is_whole && self.states[unit] & HIDDEN != 0;
        let FreeRuns { row, rest } = if is_whole || is_full || is_hidden { none } else { free_runs(&self.units[unit], self.each) };
        self.rows.set(unit, row);
        self.rests.set(unit, rest);
        if is_whole && !was_whole {
            self.whole += 1;
            if self.states[unit] & QUEUED == 0 {
                self.queue.push_back(unit as u32); // [AG1]
            }
            self.states[unit] = WHOLE | QUEUED;
        } else if was_whole && !is_whole {
            self.whole -= 1;
            self.states[unit] &= !WHOLE;
        }
    }
}

/// The words of a range of pages, with the bits of the range in them.
fn words(start: u64, count: u64) -> impl Iterator<Item = (usize, usize, u64)> {
    let end = start + count;
    let mut at = start;
    std::iter::from_fn(move || {
        let bit = at % 64;
        let here = (64 - bit).min(end - at);
        let found = ((at / UNIT_PAGES) as usize, (at % UNIT_PAGES / 64) as usize, (u64::MAX >> (64 - here)) << bit);
        at += here;
        Some(found)
    })
    .take((end.div_ceil(64) - start / 64) as usize * usize::from(count > 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// [AG5]
    #[test]
    fn holes_of_a_hidden_unit_are_found_when_it_is_shown_or_free() {
        let mut space = AlignedSpace::new(2, 1);
        assert_eq!((space.break_unit(8), space.hide(1)), (Some(0), false), "an aligned extent has no holes");
        assert!(space.hide(0));
        assert_eq!((space.take_hole(4), space.take_hole_at(100, 4)), (None, false));
        space.show(0);
        assert_eq!((space.take_hole(4), space.take_hole_at(100, 4)), (Some(8), true));
        assert!(space.hide(0));
        space.clear(0, 12);
        space.clear(100, 4);
        assert_eq!((space.whole(), space.break_unit(8), space.break_unit(8)), (2, Some(UNIT_PAGES), Some(0)));
        assert_eq!(space.take_hole(4), Some(8), "shown again");
    }

    #[derive(Debug, Clone)]
    enum Step {
        Unit,
        Hole(u32),
        Break(u32),
        At(prop::sample::Index, u32),
        Anywhere(u32),
        Set(prop::sample::Index, u64),
        Free(prop::sample::Index, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            1 => Just(Step::Unit),
            6 => (1_u32..20).prop_map(Step::Hole),
            2 => (1_u32..512).prop_map(Step::Hole),
            3 => (1_u32..512).prop_map(Step::Break),
            2 => (any::<prop::sample::Index>(), 1_u32..100).prop_map(|(at, count)| Step::At(at, count)),
            1 => (1_u32..600).prop_map(Step::Anywhere),
            1 => (any::<prop::sample::Index>(), 1_u64..700).prop_map(|(at, count)| Step::Set(at, count)),
            9 => (any::<prop::sample::Index>(), 1_u64..600).prop_map(|(which, count)| Step::Free(which, count)),
        ]
    }

    /// The same space as a list of pages and a list of aligned extents.
    struct Model {
        each: usize,
        taken: Vec<bool>,
        whole: Vec<usize>,
    }

    impl Model {
        fn is_whole(&self, unit: usize) -> bool {
            !self.taken[unit * 512..(unit + 1) * 512].contains(&true)
        }

        fn change(&mut self, start: usize, count: usize, taken: bool) {
            self.taken[start..start + count].fill(taken);
            let units = self.taken.len() / 512;
            self.whole = std::mem::take(&mut self.whole).into_iter().filter(|unit| self.is_whole(*unit)).collect();
            let fresh: Vec<usize> = (0..units).filter(|unit| self.is_whole(*unit) && !self.whole.contains(unit)).collect();
            self.whole.extend(fresh);
        }

        fn is_block_free(&self, page: usize) -> bool {
            let block = page / self.each * self.each;
            !self.taken[block..block + self.each].contains(&true)
        }

        /// The first place in a hole for so many pages.
        fn hole(&self, count: usize) -> Option<usize> {
            let holes = || (0..self.taken.len()).filter(|page| !self.is_whole(page / 512));
            let fits = |page: usize, count: usize, in_one: usize| {
                page + count <= self.taken.len()
                    && page / in_one == (page + count - 1) / in_one
                    && !self.taken[page..page + count].contains(&true)
            };
            let in_rest = |page: &usize| !self.is_block_free(*page) && fits(*page, count, self.each);
            let whole = count.next_multiple_of(self.each);
            let rest = if count < self.each { holes().find(in_rest) } else { None };
            rest.or_else(|| holes().find(|page| page % self.each == 0 && fits(*page, whole, 512)))
        }
    }

    proptest! {
        #[test]
        fn it_gives_what_a_list_of_pages_gives(
            units in 1_usize..8,
            shift in 0_u32..9,
            late in any::<bool>(),
            steps in prop::collection::vec(step(), 1..120),
        ) {
            let each = 1 << shift;
            let mut space = AlignedSpace::new(units, each);
            let mut model = Model { each: each as usize, taken: vec![false; units * 512], whole: (0..units).collect() };
            if !late {
                prop_assert_eq!(space.whole(), units as u64);
            }
            let mut held: Vec<(u64, u64)> = Vec::new();
            for step in steps {
                let (taken, expected, count) = match step {
                    Step::Unit => (space.take_unit(), None, 512),
                    Step::Hole(count) => (space.take_hole(count), Some(model.hole(count as usize)), count),
                    Step::Break(count) => (space.break_unit(count), None, count),
                    Step::Anywhere(count) => {
                        let fits = |page: &usize| !model.taken[*page..(page + count as usize)].contains(&true);
                        let places = 0..(model.taken.len() + 1).saturating_sub(count as usize);
                        (space.take_anywhere(count.into()), Some(places.into_iter().find(fits)), count)
                    }
                    Step::At(at, count) => {
                        let start = at.index(units * 512 - count as usize);
                        let is_in_one = start / 512 == (start + count as usize - 1) / 512;
                        let fits = is_in_one && !model.is_whole(start / 512) && !model.taken[start..start + count as usize].contains(&true);
                        let taken = space.take_hole_at(start as u64, count.into()).then_some(start as u64);
                        (taken, Some(fits.then_some(start)), count)
                    }
                    Step::Set(at, count) => {
                        let start = at.index(units * 512) as u64;
                        let count = count.min(units as u64 * 512 - start);
                        let were_free = !model.taken[start as usize..(start + count) as usize].contains(&true);
                        prop_assert_eq!(space.is_free(start, count), were_free);
                        if were_free {
                            prop_assert!(space.set(start, count));
                            model.change(start as usize, count as usize, true);
                            held.push((start, count));
                        }
                        continue;
                    }
                    Step::Free(which, most) => {
                        if !held.is_empty() {
                            let index = which.index(held.len());
                            let (start, count) = held.swap_remove(index);
                            let cut = most.min(count);
                            prop_assert!(space.is_taken(start, count));
                            space.clear(start, cut);
                            model.change(start as usize, cut as usize, false);
                            if cut < count {
                                held.push((start + cut, count - cut));
                            }
                        }
                        continue;
                    }
                };
                match expected {
                    Some(expected) => prop_assert_eq!(taken, expected.map(|page| page as u64)),
                    None => {
                        prop_assert_eq!(taken.is_some(), !model.whole.is_empty());
                        if let Some(start) = taken {
                            prop_assert!(start % 512 == 0 && model.whole.contains(&(start as usize / 512)));
                        }
                    }
                }
                if let Some(start) = taken {
                    prop_assert!(!model.taken[start as usize..][..count as usize].contains(&true), "free before");
                    model.change(start as usize, count as usize, true);
                    held.push((start, count.into()));
                }
                let free = model.taken.iter().filter(|taken| !**taken).count() as u64;
                prop_assert_eq!((space.free(), space.whole()), (free, model.whole.len() as u64));
                prop_assert_eq!(space.in_holes(), free - model.whole.len() as u64 * 512);
            }
            // All of it again, with its neighbours.
            for (start, count) in held {
                space.clear(start, count);
            }
            prop_assert_eq!((space.whole(), space.in_holes(), space.next_free_run(0)), (units as u64, 0, Some((0, units as u64 * 512))));
        }
    }

    #[test]
    fn aligned_extents_are_taken_oldest_first() {
        let mut space = AlignedSpace::new(4, 16);
        let take = |space: &mut AlignedSpace| space.take_unit().map(|start| start / UNIT_PAGES);
        assert_eq!((take(&mut space), take(&mut space)), (Some(0), Some(1)));
        space.clear(UNIT_PAGES, UNIT_PAGES);
        space.clear(0, UNIT_PAGES);
        let order: Vec<u64> = std::iter::from_fn(|| take(&mut space)).collect();
        assert_eq!(order, [2, 3, 1, 0]);
    }

    #[test]
    fn ends_of_files_share_blocks_and_leave_holes_to_blocks() {
        let mut space = AlignedSpace::new(2, 16);
        assert_eq!(space.take_hole(3), None, "no aligned extent is broken");
        assert_eq!(space.break_unit(16), Some(0));
        assert_eq!((space.take_hole(3), space.take_hole(12)), (Some(16), Some(19)));
        assert_eq!((space.take_hole(2), space.take_hole(16), space.take_hole(1)), (Some(32), Some(48), Some(31)));
        assert_eq!(space.take_hole(40), Some(64), "three blocks");
    }

    #[test]
    fn a_row_takes_what_it_needs_of_the_first_hole_that_has_the_least_of_it() {
        let mut space = AlignedSpace::new(2, 16);
        assert_eq!(space.break_unit(16), Some(0));
        space.set(48, 16);
        assert_eq!(space.take_hole_of(32, 64), Some((16, 32)), "the hole is short");
        assert_eq!(space.take_hole_of(32, 64), Some((64, 64)), "as much as is wanted");
        assert_eq!(space.take_hole_of(256, 512), Some((128, 384)), "not beyond the unit");
        assert_eq!((space.take_hole_of(16, 16), space.whole()), (None, 1));
    }

    #[test]
    fn a_free_extent_costs_little_host_memory() {
        let mut space = AlignedSpace::new(1 << 16, 16); // 128 GiB
        assert_eq!(space.whole(), 1 << 16);
        let index = space.rows.bytes() + space.rests.bytes() + space.states.len() + space.queue.capacity() * size_of::<u32>();
        assert!(index <= 10 << 16, "{} B a unit", index as f64 / 65536.0);
    }

    /// A class of 1 GiB by the same code (WineFS §4): pages of 2 MiB, so units of 1 GiB. A zone of 64 GiB ages at 75 %, beside one that takes
    /// the next free places.
    #[test]
    fn a_class_of_1_gib_stays_aligned_where_units_of_2_mib_come_and_go() {
        const PAGES: u64 = 64 * UNIT_PAGES;
        let mut space = AlignedSpace::new(64, 1);
        let (mut taken, mut next) = (vec![false; PAGES as usize], 0_usize);
        let mut random = 1_u64;
        let mut draw = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        // Rows of pages here, and places there.
        type Lies = (Vec<(u64, u64)>, Vec<usize>);
        let mut files: Vec<Lies> = Vec::new();
        let (mut used, mut written) = (0, 0);
        while written < 20 * PAGES {
            let length = match draw(100) {
                0 => 2 * UNIT_PAGES,
                1..=20 => 1 + draw(64),
                _ => 1 + draw(8),
            };
            while used + length > PAGES * 3 / 4 {
                let (runs, places) = files.swap_remove(draw(files.len() as u64) as usize);
                runs.iter().for_each(|(start, count)| space.clear(*start, *count));
                places.iter().for_each(|place| taken[*place] = false);
                used -= places.len() as u64;
            }
            let (mut left, mut runs, mut places) = (length, Vec::new(), Vec::new());
            while left > 0 {
                let run = if left >= UNIT_PAGES { space.take_unit().map(|start| (start, UNIT_PAGES)) } else { None };
                let run =
                    run.or_else(|| space.take_hole_of(1, left.min(UNIT_PAGES / 2) as u32).map(|(start, count)| (start, count.into())));
                let run = run.or_else(|| space.break_unit(1).map(|start| (start, 1)));
                left -= run.expect("a quarter is free").1;
                runs.extend(run);
            }
            while places.len() < length as usize {
                if !std::mem::replace(&mut taken[next], true) {
                    places.push(next);
                }
                next = (next + 1) % PAGES as usize;
            }
            (used, written) = (used + length, written + length);
            files.push((runs, places));
        }
        let free = PAGES - used;
        assert_eq!(space.free(), free);
        let beside = taken.chunks(UNIT_PAGES as usize).filter(|unit| !unit.contains(&true)).count() as u64;
        let (share, beside) = ((space.whole() * UNIT_PAGES) as f64 / free as f64, (beside * UNIT_PAGES) as f64 / free as f64);
        println!("free in whole GiB: {share:.2}, by the next free place {beside:.2}");
        assert!(share > 0.3 && share > 2.0 * beside, "{share} and {beside}");
    }

    #[test]
    fn free_runs_are_found_one_after_the_other() {
        let mut space = AlignedSpace::new(2, 16);
        space.set(0, 60);
        space.set(100, 28);
        space.set(130, 2 * UNIT_PAGES - 131);
        let runs = [(60, 40), (128, 2), (2 * UNIT_PAGES - 1, 1)];
        let mut from = 0;
        for run in runs {
            assert_eq!(space.next_free_run(from), Some(run));
            from = run.0 + run.1;
        }
        assert_eq!((space.next_free_run(from), space.next_free_run(70)), (None, Some((70, 30))));
    }

    #[test]
    fn maps_that_are_loaded_are_searched_afterwards() {
        let mut space = AlignedSpace::new(3, 16);
        assert!(space.set(600, 5) && !space.set(604, 1));
        let mut pages: UnitPages = [u64::MAX; UNIT_WORDS];
        pages[0] = !0xffff_0000;
        space.load(2, pages);
        assert_eq!((space.free(), space.whole(), space.in_holes()), (512 + 507 + 16, 1, 507 + 16));
        let by_unit: BTreeMap<usize, u32> =
            (0..3).map(|unit| (unit, space.unit(unit).iter().map(|word| word.count_ones()).sum())).collect();
        assert_eq!(by_unit, [(0, 0), (1, 5), (2, 496)].into());
        assert_eq!((space.take_hole(400), space.take_hole(16), space.take_unit()), (Some(608), Some(512), Some(0)));
    }
}
