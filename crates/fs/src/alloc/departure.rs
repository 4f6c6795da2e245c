//! Units that leave a region: empty ones become data area again.
//!
//! [GU1] A unit leaves only when none of its lines is taken. A freed line stays taken until the watermark has passed the transaction that
//!       freed it ([ME1] of `memory.rs`), so no record above the watermark names a line of the unit, and no replay stores a line into what
//!       is data by then (RULES R6). No host copy of its lines is dirty, so no checkpoint does so either.
//! [GU2] One transaction changes the segment table. Positions in a region have no gap: in regions 2-5, whose lines are named by address,
//!       the last unit takes the position of the one that leaves. The position of an inode is its number, so of that region only the last
//!       unit leaves.
//! [GU3] The region is locked from the look at the unit's bits until the transaction is durable; only then the unit gets another owner.
//!       Host copies of its lines are dropped before that, and again before a mark rises over lines that were data: a reader that knew an
//!       address, and no lock, may have loaded a page in between.
//! [GU4] Only inodes are found without a lock, by their numbers. Who finds anything but an inode in use at the address of a number asks for
//!       the address again ([`MemoryAllocator::inode_address`]), or keeps the unit from leaving ([`MemoryAllocator::while_inode_at`]).
//! [GU5] A region keeps free lines beside the unit that leaves, so that units do not go to and fro. As long as there is no shortage these
//!       are a whole unit's, and the unit was empty at two looks. Of the leaves they are in long runs, since an overwrite on a full device
//!       needs a leaf of several lines, or a vector (RULES R14).
//! [GU6] No unit leaves while space is held back (`held_back.rs`): the maps are not exact, and the search is repeated at the next mount.
//! [GU7] A unit inside a segment splits it, which takes up to two more lines of the segment table. A part of the table is left to growth.

use std::collections::BTreeMap;

use tandemfs_format::geometry::SEGMENT_TABLE_LINES;
use tandemfs_format::segment::{Region, Segment};
use tandemfs_format::{InodeNumber, LineAddress, UNIT_LINES};

use super::memory::{MemoryAllocator, inode_address_in};
use super::region_state::{RegionState, slot};
use crate::health::Health;
use crate::mutant::{Mutant, on};
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering::SeqCst;

/// Used lines of the segment table from which no segment is split ([GU7]).
const SPLIT_BELOW_LINES: u64 = SEGMENT_TABLE_LINES / 4 * 3;

/// Why units leave ([GU5]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// A zone has little free space, or an operation found none.
    Short,
    /// At a mount or an unmount, or after a compaction: nobody uses the unit.
    Ends,
    /// Units that have been empty for some time.
    Rested,
}

impl Pace {
    /// Free lines that the region keeps.
    pub(super) fn kept_lines(self) -> u64 {
        match self {
            Self::Short => UNIT_LINES / 8,
            Self::Ends | Self::Rested => UNIT_LINES,
        }
    }
}

/// A line of the segment table, and what it will contain.
pub(crate) type TableChange = (u64, Option<Segment>);

/// A unit about to leave. The region is locked while this value lives; dropping it without [`Departure::done`] changes nothing.
pub(crate) struct Departure<'m> {
    memory: &'m MemoryAllocator,
    state: MutexGuard<'m, RegionState>,
    region: Region,
    pub(crate) unit: u64,
    /// Its lines below the mark.
    below: u64,
    /// The region's segments without it.
    segments: Vec<(u64, Segment)>,
    /// What changes in the segment table ([GU2]).
    pub(crate) changes: Vec<TableChange>,
    /// Lines of the table that were taken for it.
    taken: Vec<u64>,
}

impl Departure<'_> {
    /// The first line of the unit.
    pub(crate) fn first_line(&self) -> LineAddress {
        LineAddress::new(self.unit * UNIT_LINES)
    }

    /// After the commit: the unit is data area. The caller has dropped the host copies of its lines ([GU3]).
    pub(crate) fn done(mut self) {
        self.taken.clear();
        let (memory, region, unit) = (self.memory, self.region, self.unit);
        self.state.segments = std::mem::take(&mut self.segments);
        self.state.rebuild_units();
        self.state.hint = 0;
        self.state.empty_twice.retain(|other| *other != unit);
        self.state.emptying.has_left(unit);
        if region == Region::Inodes {
            *memory.inode_units.write() = self.state.units.clone(); // waits for [GU4]
        }
        memory.region_free[slot(region)].fetch_sub(self.below, SeqCst);
        {
            let mut lines = memory.units.lock();
            self.changes.iter().filter(|(_, segment)| segment.is_none()).for_each(|(line, _)| lines.give(*line));
        }
        memory.return_unit(unit);
    }
}

impl Drop for Departure<'_> {
    fn drop(&mut self) {
        let mut lines = self.memory.units.lock();
        self.taken.drain(..).for_each(|line| lines.give(line));
    }
}

impl MemoryAllocator {
    /// Whether a region has so many free lines that a unit could leave it, once the watermark has passed what waits for it; and whether
    /// a unit is empty but for lines that wait.
    pub(crate) fn may_give(&self, region: Region, pace: Pace) -> (bool, bool) {
        let state = self.regions[slot(region)].lock_waiting();
        let mut waiting: BTreeMap<u64, u64> = BTreeMap::new();
        for (_, address, lines) in &state.pending {
            *waiting.entry(address.unit()).or_default() += lines;
        }
        let free = self.region_free[slot(region)].load(SeqCst) + state.lines_above_mark() + waiting.values().sum::<u64>();
        let is_empty_then = |(unit, lines): (&u64, &u64)| u64::from(self.map.bits[*unit as usize].lock().free()) + lines == UNIT_LINES;
        (free >= UNIT_LINES + pace.kept_lines(), waiting.iter().any(is_empty_then))
    }

    /// Looks for units without a taken line ([GU5]).
    pub(crate) fn look_for_empty_units(&self, region: Region) {
        let mut state = self.regions[slot(region)].lock_waiting();
        let empty = match self.region_free[slot(region)].load(SeqCst) + state.lines_above_mark() < UNIT_LINES {
            true => Vec::new(),
            false => state.units.iter().map(|(unit, _)| *unit).filter(|unit| self.is_empty(*unit)).collect(),
        };
        let before = std::mem::replace(&mut state.empty, empty);
        state.empty_twice = before.into_iter().filter(|unit| state.empty.contains(unit)).collect();
    }

    fn is_empty(&self, unit: u64) -> bool {
        u64::from(self.map.bits[unit as usize].lock().free()) == UNIT_LINES
    }

    /// Finds a unit that can leave a region ([GU1], [GU5]). Calls `watermark` under the region's lock.
    pub(crate) fn plan_departure(&self, health: &Health, watermark: impl Fn() -> u64, region: Region, pace: Pace) -> Option<Departure<'_>> {
        let mut state = self.regions[slot(region)].lock_waiting();
        let watermark = if on(Mutant::UnitLeavesBeforeWatermark) { u64::MAX } else { watermark() };
        self.release_pending(health, watermark, region, &mut state);
        let free = self.region_free[slot(region)].load(SeqCst) + state.lines_above_mark();
        if free < UNIT_LINES + pace.kept_lines() {
            return None;
        }
        let position = self.departing_position(region, &state, pace)?;
        if region == Region::Leaves && self.connected_lines(&state, position) < pace.kept_lines() {
            return None;
        }
        let (unit, below) = state.units[position];
        let (mut segments, mut changes) = without(&state.segments, position as u64);
        // Runs that are new need lines of the table.
        let mut taken = Vec::new();
        let mut lines = self.units.lock();
        for segment in &mut segments {
            if segment.0 != NO_LINE {
                continue;
            }
            if let Some((line, emptied)) = changes.iter_mut().find(|(_, after)| after.is_none()) {
                *emptied = Some(segment.1);
                segment.0 = *line;
                continue;
            }
            let Some(line) = lines.take() else {
                taken.into_iter().for_each(|line| lines.give(line));
                return None;
            };
            taken.push(line);
            segment.0 = line;
            changes.push((line, Some(segment.1)));
        }
        drop(lines);
        Some(Departure { memory: self, state, region, unit, below, segments, changes, taken })
    }

    /// Free lines of the other units that are certainly in long runs: above their marks, and of whole units.
    fn connected_lines(&self, state: &RegionState, position: usize) -> u64 {
        let others = state.units.iter().enumerate().filter(|(other, _)| *other != position);
        others.map(|(_, (unit, below))| if self.is_empty(*unit) { UNIT_LINES } else { UNIT_LINES - below }).sum()
    }

    /// The position of a unit that may leave: the last one if possible, else one that makes no segment more, else any ([GU2], [GU7]).
    fn departing_position(&self, region: Region, state: &RegionState, pace: Pace) -> Option<usize> {
        let may_leave = |position: usize| {
            let (unit, _) = state.units[position];
            self.is_empty(unit) && (pace != Pace::Rested || state.empty_twice.contains(&unit))
        };
        let last = state.units.len().checked_sub(1)?;
        if may_leave(last) {
            return Some(last);
        }
        if region == Region::Inodes {
            return None;
        }
        let empty: Vec<usize> = (0..last).rev().filter(|position| may_leave(*position)).collect();
        let alone: Vec<u64> =
            state.segments.iter().filter(|(_, segment)| segment.unit_count == 1).map(|(_, segment)| segment.region_unit).collect();
        let is_alone = |position: &&usize| alone.binary_search(&(**position as u64)).is_ok();
        let may_split = self.units.lock().used() + 2 <= SPLIT_BELOW_LINES;
        empty.iter().find(is_alone).or(empty.first().filter(|_| may_split)).copied()
    }

    /// The units of a region, in order.
    #[cfg(test)]
    pub(crate) fn units_of(&self, region: Region) -> Vec<u64> {
        self.regions[slot(region)].lock_waiting().units.iter().map(|(unit, _)| *unit).collect()
    }

    /// Calls `look` while the inode with this number is at this address ([GU4]); `None` if it is not. `look` asks for no address.
    pub(crate) fn while_inode_at<T>(&self, number: InodeNumber, address: LineAddress, look: impl FnOnce() -> T) -> Option<T> {
        let units = self.inode_units.read();
        (inode_address_in(&units, number) == Some(address)).then(look)
    }
}

/// A segment that has no line of the table yet.
const NO_LINE: u64 = u64::MAX;

/// The segments of a region without the unit at a position, which the last unit takes ([GU2]), and the lines of the table that change. New
/// segments have no line yet.
fn without(segments: &[(u64, Segment)], position: u64) -> (Vec<(u64, Segment)>, Vec<TableChange>) {
    let last = segments.len() - 1;
    let holds = |segment: &Segment| (segment.region_unit..segment.region_unit + segment.unit_count).contains(&position);
    let own = segments.iter().position(|(_, segment)| holds(segment)).unwrap_or(last);
    let mut units = units_of(&segments[own].1);
    let mut last_units = if own == last { Vec::new() } else { units_of(&segments[last].1) };
    let filler = if own == last { units.pop() } else { last_units.pop() };
    let offset = (position - segments[own].1.region_unit) as usize;
    if let (Some(place), Some(filler)) = (units.get_mut(offset), filler) {
        *place = filler;
    }
    let mut after = Vec::with_capacity(segments.len() + 2);
    let mut changes = Vec::new();
    let mut replace = |after: &mut Vec<(u64, Segment)>, (line, old): &(u64, Segment), units: &[(u64, u64)]| {
        let runs = runs_of(old, units);
        match runs.first() {
            Some(first) if first == old => {}
            first => changes.push((*line, first.copied())),
        }
        after.extend(runs.into_iter().enumerate().map(|(index, run)| (if index == 0 { *line } else { NO_LINE }, run)));
    };
    for (index, segment) in segments.iter().enumerate() {
        match index {
            _ if index == own => replace(&mut after, segment, &units),
            _ if index == last => replace(&mut after, segment, &last_units),
            _ => after.push(*segment),
        }
    }
    (after, changes)
}

/// The units of a segment, with their lines below the mark.
fn units_of(segment: &Segment) -> Vec<(u64, u64)> {
    let below = |unit| segment.high_water_lines.saturating_sub(unit * UNIT_LINES).min(UNIT_LINES);
    (0..segment.unit_count).map(|unit| (segment.start_unit + unit, below(unit))).collect()
}

/// Units in place of those of a segment, as few segments as possible: valid lines of a segment are at its start.
fn runs_of(old: &Segment, units: &[(u64, u64)]) -> Vec<Segment> {
    let mut runs: Vec<Segment> = Vec::new();
    for ((unit, below), region_unit) in units.iter().zip(old.region_unit..) {
        match runs.last_mut() {
            Some(run)
                if run.start_unit + run.unit_count == *unit && (*below == 0 || run.high_water_lines == run.unit_count * UNIT_LINES) =>
            {
                run.unit_count += 1;
                run.high_water_lines += below;
            }
            _ => runs.push(Segment { start_unit: *unit, unit_count: 1, region_unit, high_water_lines: *below, ..*old }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(start_unit: u64, unit_count: u64, region_unit: u64, high_water_lines: u64) -> Segment {
        Segment { region: Region::Leaves, start_unit, unit_count, region_unit, high_water_lines }
    }

    fn all_units(segments: &[(u64, Segment)]) -> Vec<(u64, u64)> {
        segments.iter().flat_map(|(_, segment)| units_of(segment)).collect()
    }

    #[test]
    fn the_last_unit_takes_the_place_of_the_one_that_leaves() {
        const FULL: u64 = UNIT_LINES;
        let table = [(5, segment(10, 4, 0, 4 * FULL)), (2, segment(20, 1, 4, FULL)), (9, segment(30, 2, 5, FULL + 4096))];
        let (after, changes) = without(&table, 4);
        assert_eq!(after, [table[0], (2, segment(31, 1, 4, 4096)), (9, segment(30, 1, 5, FULL))]);
        assert_eq!(changes, [(2, Some(after[1].1)), (9, Some(after[2].1))]);
        // A unit inside a segment splits it.
        let (after, changes) = without(&table, 1);
        let split = [(5, segment(10, 1, 0, FULL)), (NO_LINE, segment(31, 1, 1, 4096)), (NO_LINE, segment(12, 2, 2, 2 * FULL))];
        assert_eq!(after, [split[0], split[1], split[2], table[1], (9, segment(30, 1, 5, FULL))]);
        assert_eq!(changes, [(5, Some(split[0].1)), (9, Some(segment(30, 1, 5, FULL)))]);
        // The last one takes nobody's place.
        let (after, changes) = without(&table, 6);
        assert_eq!((after[..2].to_vec(), after[2]), (table[..2].to_vec(), (9, segment(30, 1, 5, FULL))));
        assert_eq!(changes.len(), 1);
        // A segment of one unit empties its line.
        let (after, changes) = without(&table[..2], 4);
        assert_eq!((after, changes), (vec![table[0]], vec![(2, None)]));
        let (after, changes) = without(&table[..2], 3);
        assert_eq!(after, [(5, segment(10, 3, 0, 3 * FULL)), (NO_LINE, segment(20, 1, 3, FULL))]);
        assert_eq!(changes, [(5, Some(after[0].1)), (2, None)]);
    }

    #[test]
    fn whatever_leaves_the_others_stay_without_a_gap() {
        let mut random = tandemfs_crash::Random::new(7);
        for _ in 0..300 {
            let (mut table, mut region_unit, mut start) = (Vec::new(), 0, 8);
            for line in 0..1 + random.below(5) {
                start += random.below(3);
                let count = 1 + random.below(4);
                table.push((line, segment(start, count, region_unit, random.below(count * 8 + 1) * 4096)));
                (region_unit, start) = (region_unit + count, start + count);
            }
            while region_unit > 0 {
                let before = all_units(&table);
                let position = random.below(region_unit);
                let (mut after, changes) = without(&table, position);
                let mut expected = before.clone();
                expected.swap_remove(position as usize);
                assert_eq!(all_units(&after), expected, "{table:?} without {position}");
                region_unit -= 1;
                for ((_, segment), next) in after.iter().zip(after.iter().skip(1).map(|(_, next)| next.region_unit).chain([region_unit])) {
                    assert_eq!(segment.region_unit + segment.unit_count, next, "{table:?} without {position}");
                }
                // Whatever is not said to change is as it was.
                for old in &table {
                    let now = after.iter().find(|(line, _)| *line == old.0).map(|(_, segment)| *segment);
                    let said = changes.iter().find(|(line, _)| *line == old.0).map_or(Some(old.1), |(_, segment)| *segment);
                    assert_eq!(now, said, "{table:?} without {position}");
                }
                let used = table.iter().map(|(line, _)| *line + 1).max().unwrap_or(0);
                after.iter_mut().filter(|(line, _)| *line == NO_LINE).zip(used..).for_each(|(segment, line)| segment.0 = line);
                table = after;
            }
        }
    }
}
