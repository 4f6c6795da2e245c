//! Sparse units of the block zone that are being emptied, so that they are aligned extents again. `compaction/` finds what is in them, and
//! `data/gather.rs` moves it.
//!
//! [SX1] What files have in holes grows and shrinks with the files that come and go. While it grows, aligned extents are broken; while it
//!       shrinks, space is left in nearly all broken units, and few of them lose their last piece. No order in which holes are filled changes
//!       that (by address is the best that was tried; the fullest unit first is worse). So when more than 1/[`SCATTERED_SHARE`] of the zone
//!       lies in holes, the emptiest units are emptied.
//! [SX2] The emptiest units come first, and only those of which an eighth or more is free, so at most 7 B move for each byte that becomes
//!       aligned. (With a quarter, a zone that is 90 % full has times when no unit is empty enough, although a third of what is free lies in
//!       holes.) What moves must fit into whole blocks of holes of other units, with a quarter more: ends of files lie in rests of blocks,
//!       where no block fits. At most [`MOVED_PAGES_MAX`] are moved by a pass.
//! [SX3] Holes of these units are hidden ([AG5] of `aligned_space.rs`). What moves goes to holes of other units, and breaks none
//!       ([`Need::Move`](super::Need)). Who finds no other place ends the emptying, and takes these holes.
//! [SX4] If a pass empties fewer than half of its units, because what is in them is in use or does not fit elsewhere, the zone is left alone
//!       until an eighth more or less than then lies in holes; if no unit can be chosen, until a thirty-second more or less does.
//! [SX5] Which units are emptied is known in host memory alone, and nothing on the device depends on it.
//!
//! Lock order: the room, then the list of units, then a pool.

use std::ops::Range;

use tandemfs_format::Sector;

use super::aligned_space::AlignedSpace;
use super::sectors::{GROUP_UNITS, SectorAllocator};
use super::unit_pages::UNIT_PAGES;
use crate::mutant::{Mutant, on};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use crate::sync::{Mutex, RwLock};

/// A zone is scattered if more than this part (1/N) of it is free in holes: of a zone that is 90 % full that is a fifth of what is free.
pub(super) const SCATTERED_SHARE: u64 = 48;
/// Most pages that one pass moves, 64 MiB.
const MOVED_PAGES_MAX: u64 = 32 * UNIT_PAGES;
/// A unit of the block zone is emptied only if at least so many of its pages are free, an eighth ([SX2]).
const LEAST_FREE: u64 = UNIT_PAGES / 8;

/// A unit with holes.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Sparse {
    /// Pages in use.
    pub(super) taken: u64,
    pub(super) unit: u64,
    /// Pages of its free blocks.
    pub(super) in_blocks: u64,
    /// Of the pages in use those in blocks that are free in part, if rests of blocks of other units count as room for them.
    pub(super) ends: u64,
    /// Pages of these rests.
    pub(super) in_rests: u64,
}

/// Chooses units that are emptied, of all with holes: those with so many free pages at least, so that free blocks of the others have room for
/// what is moved beside what is kept ([SX2]). Also returns how many pages are in use there.
pub(super) fn choose(mut units: Vec<Sparse>, kept: u64, least_free: u64) -> (Vec<u64>, u64) {
    let mut room = units.iter().map(|unit| unit.in_blocks).sum::<u64>().saturating_sub(kept);
    let mut rests: u64 = units.iter().map(|unit| unit.in_rests).sum();
    units.retain(|unit| UNIT_PAGES - unit.taken >= least_free);
    units.sort_unstable();
    let (mut moved, mut moved_ends, mut chosen) = (0, 0, Vec::new());
    for Sparse { taken, unit, in_blocks, ends, in_rests } in units {
        (room, rests) = (room.saturating_sub(in_blocks), rests - in_rests);
        let (all, in_whole) = (moved + taken, moved + taken - moved_ends - ends);
        if room < in_whole * 5 / 4 || room + rests < all * 5 / 4 || all > MOVED_PAGES_MAX {
            break;
        }
        (moved, moved_ends) = (all, moved_ends + ends);
        chosen.push(unit);
    }
    chosen.sort_unstable();
    (chosen, moved)
}

/// How much in holes lets a zone be given up when no unit could be chosen ([SX4]).
pub(super) fn given_up_at_once(in_holes: u64) -> Range<u64> {
    about(in_holes, 32)
}

/// The same when of so many units that were being emptied so many are left.
pub(super) fn given_up_after(units: u64, left: u64, in_holes: u64) -> Option<Range<u64>> {
    (2 * left > units).then(|| about(in_holes, 8))
}

/// What is being emptied.
#[derive(Debug, Default)]
pub(super) struct Scattered {
    /// Units, ascending.
    units: RwLock<Vec<u64>>,
    /// The list is not empty.
    is_any: AtomicBool,
    /// Free sectors in holes from which and up to which the zone is given up ([SX4]).
    given_up: Mutex<Option<Range<u64>>>,
    /// Units that became aligned extents by being emptied, since the mount.
    emptied: AtomicU64,
}

/// How much in holes lets a zone be given up in which so much is ([SX4]): one part in `parts` more or less.
fn about(in_holes: u64, parts: u64) -> Range<u64> {
    in_holes - in_holes / parts..in_holes + in_holes / parts + 1
}

/// Whether so much is free in holes of a zone that aligned extents are to be made of them ([SX1], [SX4]).
pub(super) fn is_scattered(in_holes: u64, most: u64, given_up: Option<Range<u64>>) -> bool {
    let is_much = in_holes > most && !on(Mutant::ScatteredSpaceKept);
    is_much && given_up.is_none_or(|given_up| !given_up.contains(&in_holes))
}

impl SectorAllocator {
    /// Whether units are to be emptied ([SX1]).
    pub(crate) fn is_scattered(&self) -> bool {
        is_scattered(self.in_holes(), self.most_in_holes(), self.scattered.given_up.lock().clone())
    }

    /// So many sectors may be free in holes ([SX1]): beside the share those of a unit that each pool fills, and of the one with the identity.
    fn most_in_holes(&self) -> u64 {
        self.total() / SCATTERED_SHARE + (self.pools.count() as u64 + 1) * UNIT_PAGES
    }

    /// Free sectors in holes.
    fn in_holes(&self) -> u64 {
        (0..self.pools.count()).map(|pool| self.pools.with(pool, AlignedSpace::in_holes)).sum()
    }

    /// Chooses units that are emptied from now on ([SX2]). Returns the number of sectors that are in use there.
    pub(crate) fn begin_gathering(&self) -> u64 {
        if !self.is_scattered() {
            return 0;
        }
        let may_be_whole = |unit: u64| unit > 0 && (unit + 1) * UNIT_PAGES <= self.total(); // the identity is in the first
        let mut sparse = Vec::new();
        for group in 0..self.groups() {
            let (pool, first) = self.place_of(group);
            self.pools.with(pool, |space| {
                for index in 0..GROUP_UNITS {
                    let (unit, in_pool) = ((group * GROUP_UNITS + index) as u64, (first / UNIT_PAGES) as usize + index);
                    let free = space.free_of(in_pool);
                    if free == 0 || free == UNIT_PAGES {
                        continue;
                    }
                    let in_blocks = space.free_in_blocks(in_pool);
                    let taken = if may_be_whole(unit) { UNIT_PAGES - free } else { UNIT_PAGES }; // never sparse enough
                    sparse.push(Sparse { taken, unit, in_blocks, ends: 0, in_rests: 0 });
                }
            });
        }
        let (units, moved) = choose(sparse, 0, LEAST_FREE);
        let mut list = self.scattered.units.write();
        list.extend(units.into_iter().filter(|unit| self.in_unit(*unit, |space, index| space.hide(index))));
        list.sort_unstable();
        list.dedup();
        self.scattered.is_any.store(!list.is_empty(), SeqCst);
        if list.is_empty() {
            *self.scattered.given_up.lock() = Some(given_up_at_once(self.in_holes()));
            return 0;
        }
        moved
    }

    /// No unit is emptied any more. False if none was ([SX3]).
    pub(super) fn show_scattered(&self) -> bool {
        let units = std::mem::take(&mut *self.scattered.units.write());
        self.scattered.is_any.store(false, SeqCst);
        let shown = |unit: &&u64| {
            self.in_unit(**unit, |space, index| {
                let was = space.is_hidden(index);
                space.show(index);
                was
            })
        };
        let (count, shown) = (units.len(), units.iter().filter(shown).count());
        self.scattered.emptied.fetch_add((count - shown) as u64, SeqCst);
        if count > 0 {
            *self.scattered.given_up.lock() = given_up_after(count as u64, shown as u64, self.in_holes());
        }
        shown > 0
    }

    /// Ends a pass.
    pub(crate) fn end_gathering(&self) {
        self.show_scattered();
    }

    /// Whether a unit that is being emptied is not an aligned extent yet.
    pub(crate) fn is_any_left_to_gather(&self) -> bool {
        if self.is_shrinking() {
            return self.doomed_left.load(SeqCst) > 0;
        }
        let is_left = |unit: &u64| self.in_unit(*unit, |space, index| space.is_hidden(index));
        self.scattered.is_any.load(SeqCst) && self.scattered.units.read().iter().any(is_left)
    }

    /// Whether what is here is to leave its unit. A unit that became whole meanwhile, and was taken again, is not hidden.
    pub(crate) fn is_gathered(&self, sector: Sector) -> bool {
        if self.is_shrinking() {
            return self.doomed_of(sector.number(), self.block_sectors) > 0; // whatever of its block it is
        }
        let unit = sector.number() / UNIT_PAGES;
        self.scattered.is_any.load(SeqCst)
            && self.scattered.units.read().binary_search(&unit).is_ok()
            && self.in_unit(unit, |space, index| space.is_hidden(index))
    }

    /// Units that became aligned extents by being emptied, since the mount.
    pub(crate) fn gathered_units(&self) -> u64 {
        self.scattered.emptied.load(SeqCst)
    }

    /// Whether all of these sectors are in use. A forged image may name others.
    pub(crate) fn has_data(&self, sector: Sector, count: u64) -> bool {
        let mut taken = sector.number() + count <= self.total();
        if taken {
            self.pools.each_part(sector.number(), count, |space, start, here| taken &= space.is_taken(start, here));
        }
        taken
    }

    /// Uses the pool of a unit, and its number there.
    fn in_unit<T>(&self, unit: u64, work: impl FnOnce(&mut AlignedSpace, usize) -> T) -> T {
        let pool = self.pools.pool_of(unit * UNIT_PAGES);
        let index = unit - self.pools.start_of(pool) / UNIT_PAGES;
        self.pools.with(pool, |space| work(space, index as usize))
    }
}

#[cfg(test)]
mod tests {
    use tandemfs_format::geometry::Geometry;

    use super::*;
    use crate::alloc::Need;

    const EACH: u64 = 16;

    /// A zone of 32 units, and blocks that fill some of them beside the identity.
    fn filled(units: u64) -> (SectorAllocator, Vec<Sector>) {
        let geometry = Geometry::new(64 << 20, 64 << 20, 64 << 10, 4, 256 << 10).expect("fits");
        let sectors = SectorAllocator::new(&geometry, 1);
        let taken = (1..units * UNIT_PAGES / EACH).map(|_| sectors.take(EACH, Need::Growth).expect("room")).collect();
        (sectors, taken)
    }

    /// All but one in `kept` of the blocks of each unit are freed; of the first four units none.
    fn sparse(kept: usize) -> (SectorAllocator, Vec<Sector>) {
        let (sectors, taken) = filled(8);
        let in_first = |sector: &Sector| sector.number() < 4 * UNIT_PAGES;
        let (stays, goes): (Vec<_>, Vec<_>) =
            taken.into_iter().enumerate().partition(|(index, sector)| in_first(sector) && index % 2 == 0 || index % kept == 0);
        goes.into_iter().for_each(|(_, sector)| assert!(sectors.free(sector, EACH)));
        (sectors, stays.into_iter().map(|(_, sector)| sector).collect())
    }

    /// [SX2]
    #[test]
    fn the_emptiest_units_are_chosen_as_long_as_whole_blocks_of_the_others_have_room() {
        let unit = |unit: u64, taken: u64| Sparse { taken, unit, in_blocks: UNIT_PAGES - taken, ends: 0, in_rests: 0 };
        let sparse = |loads: &[u64]| (0..).zip(loads).map(|(index, taken)| unit(index, *taken)).collect::<Vec<_>>();
        // Room of units that are too full to be emptied themselves.
        let beside = |loads: &[u64], room: u64| {
            let full = Sparse { taken: UNIT_PAGES, unit: 99, in_blocks: room, ends: 0, in_rests: 0 };
            sparse(loads).into_iter().chain([full]).collect::<Vec<_>>()
        };
        let few = choose(sparse(&[300, 100, 448, 449]), 0, LEAST_FREE);
        assert_eq!(few, (vec![1], 100), "399 of 687 are left, of which a quarter more than 400 are none");
        assert_eq!(choose(beside(&[300, 100, 448, 449], 800), 0, LEAST_FREE), (vec![0, 1], 400));
        assert_eq!(choose(beside(&[300, 100, 448, 449], 800), 800, LEAST_FREE), few, "what is kept is no room");
        assert_eq!(choose(beside(&[448, 449], 10_000), 0, LEAST_FREE), (vec![0], 448), "an eighth of the other is not free");
        assert_eq!(choose(beside(&[448, 449], 10_000), 0, 63), (vec![0, 1], 897), "where that is asked for");
        assert_eq!(choose(beside(&[100], 124), 0, 1), (vec![], 0));
        assert_eq!(choose(beside(&[100], 125), 0, 1), (vec![0], 100), "a quarter more");
        assert_eq!(choose(beside(&[256; 90], 1 << 20), 0, 1).1, MOVED_PAGES_MAX);
    }

    #[test]
    fn rests_of_blocks_are_room_for_ends_alone() {
        let units = |ends| {
            let sparse = Sparse { taken: 100, unit: 0, in_blocks: 400, ends, in_rests: 12 };
            vec![sparse, Sparse { taken: UNIT_PAGES, unit: 1, in_blocks: 100, ends: 0, in_rests: 25 }]
        };
        assert_eq!(choose(units(19), 0, 1), (vec![], 0), "81 in whole blocks, and a quarter more than 100 have no room");
        assert_eq!(choose(units(20), 0, 1), (vec![0], 100));
        assert_eq!(choose(units(20), 1, 1), (vec![], 0));
    }

    #[test]
    fn a_zone_is_given_up_if_more_than_half_of_its_units_stay() {
        assert_eq!((given_up_after(4, 2, 800), given_up_after(4, 3, 800)), (None, Some(700..901)));
        assert!(
            !is_scattered(900, 100, Some(700..901)) && is_scattered(901, 100, Some(700..901)) && is_scattered(699, 100, Some(700..901))
        );
    }

    #[test]
    fn the_emptiest_units_are_emptied_into_others_and_are_aligned_again() {
        let (sectors, blocks) = sparse(8);
        let before = sectors.aligned_free_bytes();
        assert!(sectors.is_scattered());
        let moved = sectors.begin_gathering();
        assert!(moved > 0 && sectors.is_any_left_to_gather());
        let leaving: Vec<_> = blocks.iter().filter(|sector| sectors.is_gathered(**sector)).collect();
        assert_eq!(leaving.len() as u64 * EACH, moved);
        for sector in leaving {
            assert!(sectors.has_data(*sector, EACH));
            let to = sectors.take(EACH, Need::Move).expect("room");
            assert!(!sectors.is_gathered(to), "[SX3]");
            assert!(sectors.free(*sector, EACH));
        }
        assert!(!sectors.is_any_left_to_gather());
        sectors.end_gathering();
        let gained = (sectors.aligned_free_bytes() - before) >> 21;
        assert!(gained >= 3 && gained == sectors.gathered_units(), "{gained} of {}", sectors.gathered_units());
    }

    #[test]
    fn who_finds_no_other_place_ends_the_emptying() {
        let (sectors, _blocks) = sparse(8);
        assert!(sectors.begin_gathering() > 0);
        while sectors.take(EACH, Need::Move).is_ok() {}
        assert!(sectors.is_any_left_to_gather(), "a move ends nothing, and breaks no aligned extent");
        while sectors.take(EACH, Need::Growth).is_ok() {}
        assert!(!sectors.is_any_left_to_gather());
        assert!(sectors.space().available_bytes < EACH * 4096, "each hole is found again: {:?}", sectors.space());
    }

    #[test]
    fn what_could_not_be_emptied_is_left_alone_until_holes_change() {
        let (sectors, blocks) = sparse(8);
        assert!(sectors.begin_gathering() > 0);
        sectors.end_gathering();
        assert!(!sectors.is_scattered() && sectors.begin_gathering() == 0, "[SX4]");
        blocks[..64].iter().for_each(|sector| assert!(sectors.free(*sector, EACH)));
        assert!(sectors.is_scattered());
    }

    #[test]
    fn nearly_full_units_stay() {
        // Three blocks of each unit, and of a fourth one as much as leaves an eighth free, or a sector less.
        for (of_fourth, is_chosen) in [(EACH - 1, false), (EACH, true)] {
            let (sectors, taken) = filled(28);
            sectors.fill_room(); // otherwise the first blocks that are freed go there
            for sector in taken {
                let count = match sector.number() % UNIT_PAGES / EACH {
                    1..=3 => EACH,
                    4 => of_fourth,
                    _ => continue,
                };
                assert!(sectors.free(sector, count));
            }
            assert!(sectors.is_scattered() && (sectors.begin_gathering() > 0) == is_chosen, "[SX2]: {of_fourth} of the fourth");
            assert_eq!(sectors.is_scattered(), is_chosen, "[SX4]");
        }
    }

    #[test]
    fn a_unit_that_became_whole_and_was_taken_again_does_not_move() {
        let (sectors, blocks) = sparse(8);
        assert!(sectors.begin_gathering() > 0);
        let leaving: Vec<_> = blocks.into_iter().filter(|sector| sectors.is_gathered(*sector)).collect();
        leaving.iter().for_each(|sector| assert!(sectors.free(*sector, EACH)));
        while sectors.take_row(UNIT_PAGES..=UNIT_PAGES, false).is_some() {}
        assert!(leaving.iter().any(|sector| sectors.has_data(*sector, EACH)));
        assert!(!leaving.iter().any(|sector| sectors.is_gathered(*sector)));
    }
}
