//! Sparse units of the data area that are being emptied, so that whole units become free: for extents, for metadata, for slots. `compaction/`
//! finds what is in them, and `data/gather.rs` moves it.
//!
//! [GA1] Slots and pages of a unit that is being emptied are given to nobody as long as there are others. Who finds no others ends the
//!       emptying, and takes these: an operation comes before it.
//! [GA2] What is moved out goes to slots or holes of other units with the same use ([`Need::Move`](super::Need)). So a move takes no free
//!       unit, and no transient room that an operation could have.
//! [GA3] The emptiest units are chosen, and only if the other units of their use have room for all that is in them beside the transient
//!       room. At most [`MOVED_LINES_MAX`] are moved by a pass, so that whoever waits for a unit waits for no more.
//! [GA4] If a unit that was emptied did not become free, its use is left alone until it has changed by a quarter of a unit. An operation without space tries
//!       again, once in a while ([EU4] of `emptying.rs`).
//! [GA5] Only file systems that may have files in the memory zone do this: elsewhere write-back empties units, into the block zone. Which
//!       units are emptied is known in host memory alone, and nothing on the device depends on it.
//! [GA6] Units of extents are emptied also while nobody needs one, so that aligned extents stay, by the rules [SX1], [SX2] and [SX4] of
//!       `scattered.rs`, for the same reason. But in a zone that files share with metadata little may be free, so the limit is relative to
//!       that: 1/[`SCATTERED_FREE_SHARE`] of what is free may lie in holes, if that is less than the part of the zone, beside a unit that
//!       each pool fills. And a unit is emptied however little of it is free, as moving costs no drive's time here; ends of files may go to
//!       rests of blocks, which are most of the holes then. Whether that was given up says nothing about [GA4].
//! [GA7] A compaction by hand does that as if it had never been given up, leaves the pools no unit, and goes on with passes as long as one
//!       gains a unit: a pass fills holes whose places the next one can choose from.

use std::ops::Range;

use tandemfs_format::{LineAddress, PAGE_LINES, UNIT_LINES};

use super::data_area::TRANSIENT_DATA_LINES;
use super::memory::MemoryAllocator;
use super::scattered::{SCATTERED_SHARE, choose, given_up_after, given_up_at_once, is_scattered};
use super::units::UnitOwner;
use crate::mutant::{Mutant, on};
use crate::sync::Mutex;
use crate::sync::atomic::Ordering::SeqCst;

/// Lines that must have become free or taken before a use is tried again ([GA4]).
const AGAIN_LINES: u64 = UNIT_LINES / 4;
/// Most lines that one pass moves, 64 MiB, unless a single unit has more.
const MOVED_LINES_MAX: u64 = 32 * UNIT_LINES;

/// Units of extents are emptied if more than this part (1/N) of what is free lies in holes ([GA6]).
const SCATTERED_FREE_SHARE: u64 = 32;

/// What units of the data area are used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Slots,
    Extents,
}

/// Free lines of each use when it was last given up ([GA4]).
#[derive(Debug, Default)]
pub(super) struct Gathering {
    given_up_at: Mutex<[Option<u64>; 2]>,
    aligning: Mutex<Aligning>,
}

/// Emptying for [GA6].
#[derive(Debug, Default)]
struct Aligning {
    /// Units that are being emptied for it.
    units: u64,
    /// Free lines in holes from which and up to which the zone is given up ([SX4] of `scattered.rs`).
    given_up: Option<Range<u64>>,
}

impl MemoryAllocator {
    /// Whether units of the data area with these uses might be emptied. `anew`: also where that failed ([GA4]).
    pub(crate) fn may_gather(&self, uses: &[Use], anew: bool) -> bool {
        if on(Mutant::SparseUnitsKept) {
            return false;
        }
        let given_up_at = *self.gathering.given_up_at.lock();
        uses.iter().any(|of| !self.is_given_up(*of, given_up_at[*of as usize], anew) && self.choose_sparse(*of).1 > 0)
    }

    /// Chooses units of the data area with these uses that are emptied from now on ([GA3]). Returns the number of lines that are in them.
    pub(crate) fn begin_gathering(&self, uses: &[Use], anew: bool) -> u64 {
        if on(Mutant::SparseUnitsKept) {
            return 0;
        }
        let mut given_up_at = self.gathering.given_up_at.lock();
        let mut lines = 0;
        for of in uses.iter().copied() {
            let then = &mut given_up_at[of as usize];
            if self.is_given_up(of, *then, anew) {
                continue;
            }
            if of == Use::Slots {
                self.spare_pages.give_back(self, usize::MAX); // copies are in slots, and no record names them
            }
            let (units, moved) = self.choose_sparse(of);
            self.empty_units_of(of, units);
            (*then, lines) = (None, lines + moved);
        }
        lines
    }

    fn empty_units_of(&self, of: Use, units: Vec<u64>) {
        for unit in units {
            match of {
                Use::Slots => self.map.set_emptied(unit),
                Use::Extents => _ = self.hide_extents(unit), // one that became free meanwhile stays so
            }
        }
    }

    /// Whether so much lies in holes that units of extents are to be emptied ([GA6]).
    pub(crate) fn is_scattered(&self, by_hand: bool) -> bool {
        let of_zone = self.total_units() / SCATTERED_SHARE * UNIT_LINES;
        let of_free = self.free_for_extents() / SCATTERED_FREE_SHARE;
        let kept = if by_hand { 0 } else { self.extents.pool_count() * UNIT_LINES };
        let given_up = if by_hand { None } else { self.gathering.aligning.lock().given_up.clone() };
        is_scattered(self.extents.free_lines(), of_zone.min(of_free) + kept, given_up)
    }

    /// Chooses units of extents that are emptied from now on, if so much lies in holes ([GA6]). Returns the number of lines that are in them.
    pub(crate) fn begin_aligning(&self, by_hand: bool) -> u64 {
        if !self.is_scattered(by_hand) {
            return 0;
        }
        let (units, moved) = self.choose_scattered();
        let mut aligning = self.gathering.aligning.lock();
        aligning.units = units.len() as u64;
        aligning.given_up = units.is_empty().then(|| given_up_at_once(self.extents.free_lines()));
        self.empty_units_of(Use::Extents, units);
        moved
    }

    /// Chooses units of extents for [GA6]. Growth has its transient room besides, as far as free units are not enough for it.
    fn choose_scattered(&self) -> (Vec<u64>, u64) {
        let units = (0..self.total_units()).filter(|unit| use_of(self.map.owner(*unit)) == Some(Use::Extents));
        let sparse = units.filter_map(|unit| self.extents.sparse(unit)).collect();
        let (units, moved) = choose(sparse, self.kept_for_extents() / PAGE_LINES, 1);
        (units, moved * PAGE_LINES)
    }

    /// Lines of holes that the transient room of extents needs, beside free units.
    fn kept_for_extents(&self) -> u64 {
        let free_units = self.free_units.load(SeqCst).saturating_sub(self.metadata_reserve_units());
        self.extents.room_lines().saturating_sub(free_units * UNIT_LINES)
    }

    /// No unit of the data area is emptied any more ([GA1], [GA4]). False if none was.
    pub(crate) fn end_gathering(&self) -> bool {
        if self.is_shrinking() {
            return false; // [DZ3] of `shrinking.rs`
        }
        let mut given_up_at = self.gathering.given_up_at.lock();
        let (mut any, mut extents_left) = (false, 0);
        for unit in self.map.emptied_units() {
            let owner = self.map.owner(unit);
            if !self.map.clear_emptied(unit) {
                continue; // it became free
            }
            any = true;
            let Some(of) = use_of(owner) else { continue };
            given_up_at[of as usize] = Some(self.free_lines_of(of));
            extents_left += u64::from(of == Use::Extents);
            match owner {
                UnitOwner::Pool(pool) => {
                    let mut lists = self.pools[pool as usize].lock();
                    if self.map.owner(unit) == owner {
                        self.list_slots(&mut lists, unit);
                    }
                }
                _ => self.show_extents(unit),
            }
        }
        let mut aligning = self.gathering.aligning.lock();
        if let units @ 1.. = std::mem::take(&mut aligning.units) {
            aligning.given_up = given_up_after(units, extents_left, self.extents.free_lines());
        }
        any
    }

    /// Whether a unit that is being emptied is not free yet.
    pub(crate) fn is_any_left_to_gather(&self) -> bool {
        self.map.is_any_emptied()
    }

    /// Whether what is here is to leave its unit.
    pub(crate) fn is_gathered(&self, address: LineAddress) -> bool {
        self.map.is_emptied(address.unit())
    }

    /// Units of the data area that became free by being emptied, since the mount.
    pub(crate) fn gathered_units(&self) -> u64 {
        self.map.gathered.load(SeqCst)
    }

    /// Whether these lines are in use in a unit of the data area: as slots, or as pages of an extent. A forged image may name others.
    pub(crate) fn has_data(&self, address: LineAddress, lines: u64) -> bool {
        let (unit, start) = (address.unit(), address.number() % UNIT_LINES);
        unit < self.total_units()
            && start + lines <= UNIT_LINES
            && use_of(self.map.owner(unit)).is_some()
            && self.map.bits[unit as usize].lock().is_taken(start, lines)
    }

    fn is_given_up(&self, of: Use, then: Option<u64>, anew: bool) -> bool {
        !anew && then.is_some_and(|then| self.free_lines_of(of).abs_diff(then) < AGAIN_LINES)
    }

    fn free_lines_of(&self, of: Use) -> u64 {
        match of {
            Use::Slots => self.free_data_lines.load(SeqCst),
            Use::Extents => self.extents.free_lines(),
        }
    }

    /// Units of a use that can be emptied ([GA3]), and the lines in them.
    fn choose_sparse(&self, of: Use) -> (Vec<u64>, u64) {
        let taken = |unit: u64| UNIT_LINES - u64::from(self.map.bits[unit as usize].lock().free());
        let mut by_load: Vec<(u64, u64)> =
            (0..self.total_units()).filter(|unit| use_of(self.map.owner(*unit)) == Some(of)).map(|unit| (taken(unit), unit)).collect();
        by_load.sort_unstable();
        let kept = match of {
            Use::Slots => TRANSIENT_DATA_LINES,
            Use::Extents => self.kept_for_extents(),
        };
        let mut room: u64 = by_load.iter().map(|(taken, _)| UNIT_LINES - taken).sum();
        let (mut units, mut moved) = (Vec::new(), 0);
        for (taken, unit) in by_load.into_iter().filter(|(taken, _)| *taken > 0) {
            room = room.saturating_sub(UNIT_LINES - taken);
            if room < moved + taken + kept || moved + taken > MOVED_LINES_MAX && !units.is_empty() {
                break;
            }
            moved += taken;
            units.push(unit);
        }
        (units, moved)
    }
}

fn use_of(owner: UnitOwner) -> Option<Use> {
    match owner {
        UnitOwner::Pool(_) => Some(Use::Slots),
        UnitOwner::Extents(_) => Some(Use::Extents),
        UnitOwner::Free | UnitOwner::Fixed | UnitOwner::Region(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use tandemfs_device::MemoryNodes;
    use tandemfs_format::geometry::Geometry;
    use tandemfs_format::mapping::SlotClass;

    use super::*;
    use crate::alloc::Need;
    use crate::alloc::spare_pages::SparePages;
    use crate::numa::Numa;
    use crate::sync::atomic::Ordering::SeqCst;

    const BOTH: [Use; 2] = [Use::Slots, Use::Extents];

    fn allocator() -> MemoryAllocator {
        allocator_of(64 << 20)
    }

    fn allocator_of(memory_bytes: u64) -> MemoryAllocator {
        let geometry = Geometry::new(memory_bytes, 64 << 20, 64 << 10, 4, 256 << 10).expect("fits");
        let memory = MemoryAllocator::new(&geometry, 1, Numa::new(MemoryNodes::default(), true), SparePages::new(0, 10));
        memory.finish_loading();
        for region in [1, 3] {
            memory.region_free[region].store(1 << 20, SeqCst); // regions that are not short of room
        }
        memory
    }

    /// Slots of four units, of which each eighth is still taken.
    fn sparse_slots(memory: &MemoryAllocator) -> Vec<LineAddress> {
        let taken: Vec<_> = (0..4 * 512).map(|_| memory.take_slot(SlotClass::Page, Need::Transient).expect("room")).collect();
        let (kept, freed): (Vec<_>, Vec<_>) = taken.into_iter().enumerate().partition(|(index, _)| index % 8 == 0);
        freed.into_iter().for_each(|(_, slot)| assert!(memory.free_slot(slot, PAGE_LINES)));
        kept.into_iter().map(|(_, slot)| slot).collect()
    }

    #[test]
    fn sparse_units_are_emptied_into_the_others_and_become_free() {
        let memory = allocator();
        let free = memory.free_units.load(SeqCst);
        let slots = sparse_slots(&memory);
        assert_eq!(memory.free_units.load(SeqCst), free - 4);
        assert!(memory.may_gather(&BOTH, false));
        assert_eq!(memory.begin_gathering(&BOTH, false), 3 * 64 * PAGE_LINES, "one unit has room for the four");
        for slot in slots.iter().filter(|slot| memory.is_gathered(**slot)) {
            let to = memory.take_slot(SlotClass::Page, Need::Move).expect("room");
            assert!(!memory.is_gathered(to), "[GA1]");
            assert!(memory.free_slot(*slot, PAGE_LINES));
        }
        assert_eq!((memory.free_units.load(SeqCst), memory.gathered_units()), (free - 1, 3));
        assert!(!memory.is_any_left_to_gather() && !memory.end_gathering());
        assert!(!memory.may_gather(&BOTH, true), "one unit is left");
    }

    #[test]
    fn who_finds_no_other_slots_ends_the_emptying() {
        let memory = allocator();
        let _slots = sparse_slots(&memory);
        assert!(memory.begin_gathering(&BOTH, false) > 0);
        while memory.take_slot(SlotClass::Page, Need::Move).is_ok() {}
        assert!(memory.is_any_left_to_gather(), "a move ends nothing, and takes no unit");
        while memory.take_slot(SlotClass::Page, Need::Transient).is_ok() {}
        assert!(!memory.is_any_left_to_gather());
        let lines = memory.free_data_lines.load(SeqCst);
        assert_eq!(lines, 0, "each slot is found again");
    }

    #[test]
    fn units_with_few_extents_are_emptied_into_holes() {
        let memory = allocator();
        let free = memory.free_units.load(SeqCst);
        let taken: Vec<_> = (0..3 * 32).map(|_| memory.take_extent(16, Need::Growth).expect("room")).collect();
        let (kept, freed): (Vec<_>, Vec<_>) = taken.into_iter().enumerate().partition(|(index, _)| index % 4 == 0);
        freed.into_iter().for_each(|(_, extent)| assert!(memory.free_extent(extent, 16)));
        assert_eq!(memory.begin_gathering(&BOTH, false), 2 * 8 * 16 * PAGE_LINES);
        for (_, extent) in kept.iter().filter(|(_, extent)| memory.is_gathered(*extent)) {
            assert!(memory.has_data(*extent, 16 * PAGE_LINES));
            let to = memory.take_extent(16, Need::Move).expect("room");
            assert!(!memory.is_gathered(to));
            assert!(memory.free_extent(*extent, 16));
        }
        assert_eq!(memory.free_units.load(SeqCst), free - 1);
    }

    /// Extents of four units, of which each fourth is still taken.
    fn sparse_extents(memory: &MemoryAllocator) -> Vec<LineAddress> {
        let taken: Vec<_> = (0..4 * 32).map(|_| memory.take_extent(16, Need::Growth).expect("room")).collect();
        let (kept, freed): (Vec<_>, Vec<_>) = taken.into_iter().enumerate().partition(|(index, _)| index % 4 == 0);
        freed.into_iter().for_each(|(_, extent)| assert!(memory.free_extent(extent, 16)));
        kept.into_iter().map(|(_, extent)| extent).collect()
    }

    /// [GA6]
    #[test]
    fn scattered_extents_are_moved_together_while_nobody_needs_a_unit() {
        let memory = allocator();
        let free = memory.free_units.load(SeqCst);
        let extents = sparse_extents(&memory);
        assert!(memory.is_scattered(false));
        assert_eq!(memory.begin_aligning(false), 2 * 8 * 16 * PAGE_LINES, "a third would leave no quarter more ([SX2])");
        for extent in extents.iter().filter(|extent| memory.is_gathered(**extent)) {
            let to = memory.take_extent(16, Need::Move).expect("room");
            assert!(!memory.is_gathered(to) && memory.free_extent(*extent, 16));
        }
        assert_eq!((memory.free_units.load(SeqCst), memory.gathered_units()), (free - 2, 2));
        assert!(!memory.end_gathering() && !memory.is_scattered(false) && memory.begin_aligning(false) == 0);
    }

    /// [GA6], [GA7]: three units in holes are less than a forty-eighth of the zone, and most of what is free.
    #[test]
    fn the_limit_is_relative_to_what_is_free() {
        let memory = allocator_of(512 << 20);
        let taken: Vec<_> = std::iter::from_fn(|| memory.take_extent(16, Need::Growth).ok()).collect();
        let (gone, kept): (Vec<_>, Vec<_>) = taken.into_iter().enumerate().partition(|(index, _)| index % 60 == 0);
        gone.into_iter().for_each(|(_, extent)| assert!(memory.free_extent(extent, 16)));
        let in_units = |lines: u64| lines as f64 / UNIT_LINES as f64;
        let (in_holes, of_zone) = (in_units(memory.extents.free_lines()), memory.total_units() / SCATTERED_SHARE);
        assert!(in_holes > 2.0 && in_holes < of_zone as f64 + 1.0, "{in_holes} units in holes");
        assert!(memory.is_scattered(false) && memory.is_scattered(true));
        assert!(memory.begin_aligning(true) > 0);
        for (_, extent) in kept.iter().filter(|(_, extent)| memory.is_gathered(*extent)) {
            memory.take_extent(16, Need::Move).expect("room");
            assert!(memory.free_extent(*extent, 16));
        }
        assert!(!memory.end_gathering(), "none is left");
        assert!(memory.gathered_units() > 0 && !memory.is_scattered(false));
    }

    /// [GA6], [SX4]
    #[test]
    fn scattered_extents_are_given_up_if_most_units_stay() {
        for moved in [false, true] {
            let memory = allocator();
            let extents = sparse_extents(&memory);
            assert!(memory.begin_aligning(false) > 0);
            let first = extents.iter().find(|extent| memory.is_gathered(**extent)).expect("one").unit();
            for extent in extents.iter().filter(|extent| moved && extent.unit() == first) {
                memory.take_extent(16, Need::Move).expect("room");
                assert!(memory.free_extent(*extent, 16));
            }
            assert!(memory.end_gathering());
            assert_eq!(memory.is_scattered(false), moved, "one unit of two is not most of them");
            let left: Vec<_> = extents.iter().filter(|extent| extent.unit() != first).collect();
            left[..14].iter().for_each(|extent| assert!(memory.free_extent(**extent, 16)));
            assert!(memory.is_scattered(false), "more than an eighth more lies in holes");
        }
    }

    #[test]
    fn what_could_not_be_emptied_is_left_alone_until_more_is_free() {
        let memory = allocator();
        let slots = sparse_slots(&memory);
        assert!(memory.begin_gathering(&BOTH, false) > 0 && memory.end_gathering());
        assert!(!memory.may_gather(&BOTH, false) && memory.may_gather(&BOTH, true));
        slots[..160].iter().for_each(|slot| assert!(memory.free_slot(*slot, PAGE_LINES)));
        assert!(memory.may_gather(&BOTH, false));
    }
}
