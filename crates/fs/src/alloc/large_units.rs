//! A class of larger aligned extents, *large extents*: groups of units of 2 MiB, 512 of them where the next huge page of the processor is to map
//! them (WineFS §4). By the code of aligned extents (`aligned_space.rs`): a unit is there what pages are here, a group is what a unit is here.
//!
//! [LX1] Without the option of the mount there is no such class. With it, whoever takes a free unit, for extents, data logs or metadata, gets the
//!       lowest one of a group of which some unit is taken already; a whole group is broken only when no other unit serves, the oldest first.
//!       Both are so across the pools: a thread that is now on one CPU and now on another would break groups of all of them otherwise.
//! [LX2] This says which unit to take. Whose a unit is says the map of owners, and every change of it is noted here, under the same lock
//!       (`units` of the allocator): so both agree whatever a unit is used for, and a group is whole again when its last unit is free.
//! [LX3] Who asks for a whole group gets all of its units as extents of files. They go back one by one.

use super::aligned_space::AlignedSpace;
use super::unit_pages::UNIT_PAGES;
use crate::sync::Mutex;

pub(super) struct LargeUnits {
    /// Units of a group: a power of two from 2 to 512.
    group_units: u64,
    /// Units of each part, as many as those of a pool of extents; whole groups.
    part_units: u64,
    parts: Vec<Mutex<AlignedSpace>>,
}

impl LargeUnits {
    /// Nothing is taken.
    pub(super) fn new(units: u64, part_units: u64, group_units: u64) -> Self {
        let each = UNIT_PAGES / group_units;
        let part = |first: u64| {
            let here = part_units.min(units - first);
            let groups = here.div_ceil(group_units);
            let mut space = AlignedSpace::new(groups as usize, each as u32);
            let behind = groups * group_units - here;
            if behind > 0 {
                space.set(here * each, behind * each); // a group that the zone ends in is never whole
            }
            Mutex::new(space)
        };
        Self { group_units, part_units, parts: (0..units).step_by(part_units as usize).map(part).collect() }
    }

    pub(super) fn group_units(&self) -> u64 {
        self.group_units
    }

    /// A page stands for a unit's part of a group.
    fn each(&self) -> u64 {
        UNIT_PAGES / self.group_units
    }

    /// A unit has become free, or is taken ([LX2]).
    pub(super) fn note(&self, unit: u64, is_free: bool) {
        let (part, page) = ((unit / self.part_units) as usize, unit % self.part_units * self.each());
        let mut space = self.parts[part].lock();
        if !is_free {
            space.set(page, self.each());
        } else if space.is_taken(page, self.each()) {
            space.clear(page, self.each());
        }
    }

    /// Takes the unit that is to be taken next, of all parts ([LX1]). The caller gives it an owner.
    pub(super) fn take_unit(&self) -> Option<u64> {
        let mut parts: Vec<usize> = (0..self.parts.len()).collect();
        let broken = parts.iter().find_map(|part| self.take_unit_of_broken(*part));
        if broken.is_some() {
            return broken;
        }
        parts.sort_by_key(|part| u64::MAX - self.parts[*part].lock().whole());
        parts.iter().find_map(|part| self.break_group(*part))
    }

    /// Takes the lowest free unit of the groups of a part that are broken.
    pub(super) fn take_unit_of_broken(&self, part: usize) -> Option<u64> {
        let page = self.parts[part].lock().take_hole(self.each() as u32)?;
        Some(self.unit_of(part, page))
    }

    /// Breaks the oldest whole group of a part, and takes its first unit.
    pub(super) fn break_group(&self, part: usize) -> Option<u64> {
        let page = self.parts[part].lock().break_unit(self.each() as u32)?;
        Some(self.unit_of(part, page))
    }

    fn unit_of(&self, part: usize, page: u64) -> u64 {
        part as u64 * self.part_units + page / self.each()
    }

    /// Takes a whole group of a part ([LX3]). Returns its first unit. The caller gives all of them an owner.
    pub(super) fn take_group(&self, part: usize) -> Option<u64> {
        let page = self.parts[part].lock().take_unit()?;
        Some(self.unit_of(part, page))
    }

    /// Whole groups.
    #[cfg(test)]
    fn whole(&self) -> u64 {
        self.parts.iter().map(|part| part.lock().whole()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_come_from_broken_groups_and_a_group_is_whole_again() {
        for group in [2, 4, 512] {
            let large = LargeUnits::new(3 * group + 1, 2 * group, group);
            assert_eq!((large.parts.len(), large.whole()), (2, 3));
            assert_eq!(large.take_unit(), Some(3 * group), "the zone's end is no group");
            let of_part = |part| large.take_unit_of_broken(part).or_else(|| large.break_group(part));
            let taken: Vec<u64> = (0..group).filter_map(|_| of_part(1)).collect();
            assert_eq!(taken, (2 * group..3 * group).collect::<Vec<_>>());
            assert_eq!((of_part(1), large.whole()), (None, 2));
            assert_eq!(large.take_unit(), Some(0));
            assert_eq!((large.take_group(0), large.take_group(0), large.whole()), (Some(group), None, 0));
            large.note(2 * group, true);
            assert_eq!(large.take_unit(), Some(1), "the lowest");
            large.note(0, true);
            large.note(1, true);
            large.note(1, true);
            assert_eq!((large.whole(), large.take_group(0)), (1, Some(0)));
        }
    }
}
