//! Sparse units that are being emptied, so that they can leave their region (`departure.rs`). `compaction/` moves what is in them.
//!
//! [EU1] Lines of a unit that is being emptied are given to nobody as long as the region has others. Who finds no others takes these, and
//!       nothing of the region is emptied any more: an operation comes before a compaction.
//! [EU2] What is moved out of these units goes to free lines below the marks of the other ones ([`Need::Move`]). So a move never raises a
//!       mark, adds a unit or forces a checkpoint.
//! [EU3] The emptiest units are chosen, as many as can leave then ([GU5] of `departure.rs`), and only if the other units have room for all
//!       that is in them. Without a shortage nothing is emptied unless half of the region's lines are free, so no more bytes are moved
//!       than come back.
//! [EU4] If a unit that was emptied did not leave, its region is left alone until more of it is free: what was in use, damaged or too long
//!       for the room that is left would be met again. An operation without space tries again, once in a while: what was in use may not be
//!       now. Whether anything can be chosen is known before a checkpoint is forced for it.
//! [EU5] Which units are emptied is known in host memory alone, and nothing on the device depends on it.

use std::collections::BTreeMap;

use tandemfs_format::inode::INODE_LINES;
use tandemfs_format::segment::Region;
use tandemfs_format::{InodeNumber, LineAddress, UNIT_LINES};

use super::Need;
use super::departure::Pace;
use super::memory::{MemoryAllocator, inode_address_in};
use super::region_state::{RegionState, slot};
use super::regions::TRANSIENT_REGION_LINES;
use super::units::UnitOwner;
use crate::mutant::{Mutant, on};
use crate::sync::atomic::Ordering::SeqCst;

/// Lines that must have become free before a region is tried again ([EU4]).
const AGAIN_LINES: u64 = UNIT_LINES / 4;

/// What is known of units that are being emptied, for a region's state.
#[derive(Debug, Default)]
pub(super) struct Emptying {
    /// Sorted.
    pub(super) units: Vec<u64>,
    /// Free lines of the region when it was last given up, those that waited for the watermark with them ([EU4]).
    given_up_at: Option<u64>,
}

impl Emptying {
    /// Whether lines of a unit are not given for this need ([EU1]).
    pub(super) fn keeps(&self, unit: u64, need: Need) -> bool {
        let is_given = on(if need == Need::Move { Mutant::MovedIntoEmptied } else { Mutant::GivenFromEmptied });
        self.units.binary_search(&unit).is_ok() && !is_given
    }

    /// Whether too little has become free since ([EU4]).
    fn is_given_up(&self, free: u64) -> bool {
        self.given_up_at.is_some_and(|then| free < then + AGAIN_LINES)
    }

    /// Ends ([EU1], [EU4]).
    fn give_up(&mut self, free: u64) {
        self.units.clear();
        self.given_up_at = Some(free);
    }

    pub(super) fn has_left(&mut self, unit: u64) {
        self.units.retain(|other| *other != unit);
        self.given_up_at = None;
    }
}

impl MemoryAllocator {
    /// Whether units of a region might be emptied, once the watermark has passed what waits for it. `anew`: also where that failed ([EU4]).
    pub(crate) fn may_empty(&self, region: Region, pace: Pace, anew: bool) -> bool {
        if region == Region::Inodes {
            return false;
        }
        let state = self.regions[slot(region)].lock_waiting();
        if !anew && state.emptying.is_given_up(self.free_then(region, &state)) {
            return false;
        }
        let (units, lines) = self.choose(region, &state, pace, true);
        lines > 0 || anew && !units.is_empty() // empty ones only leave
    }

    /// Chooses units of a region that are emptied from now on ([EU3]). Returns the number of lines that are in them. `anew`: also where that
    /// has failed ([EU4]).
    pub(crate) fn begin_emptying(&self, region: Region, pace: Pace, anew: bool) -> u64 {
        if region == Region::Inodes {
            return 0; // the place of an inode is its number
        }
        let mut state = self.regions[slot(region)].lock_waiting();
        if !anew && state.emptying.is_given_up(self.free_then(region, &state)) {
            return 0;
        }
        let (units, lines) = self.choose(region, &state, pace, false);
        if lines > 0 {
            state.emptying = Emptying { units, given_up_at: None };
        }
        lines
    }

    /// Free lines of a region, once the watermark has passed what waits for it.
    fn free_then(&self, region: Region, state: &RegionState) -> u64 {
        self.region_free[slot(region)].load(SeqCst) + state.pending.iter().map(|(.., lines)| lines).sum::<u64>()
    }

    /// Nothing of a region is emptied any more ([EU1], [EU4]).
    pub(super) fn give_up_emptying(&self, region: Region, state: &mut RegionState) {
        let free = self.free_then(region, state);
        state.emptying.give_up(free);
    }

    /// Units that can be emptied ([EU3]), and the lines in them. `then`: once the watermark has passed what waits for it.
    fn choose(&self, region: Region, state: &RegionState, pace: Pace, then: bool) -> (Vec<u64>, u64) {
        let mut waiting: BTreeMap<u64, u64> = BTreeMap::new();
        for (_, address, lines) in state.pending.iter().filter(|_| then) {
            *waiting.entry(address.unit()).or_default() += lines;
        }
        let free = self.region_free[slot(region)].load(SeqCst) + waiting.values().sum::<u64>();
        let above = state.lines_above_mark();
        let below: u64 = state.units.iter().map(|(_, below)| below).sum();
        // Of the leaves a whole empty unit stays, unless there are long runs above the marks.
        let stays_whole = region == Region::Leaves && above < pace.kept_lines();
        let kept = if stays_whole { UNIT_LINES } else { pace.kept_lines() };
        if pace != Pace::Short && free * 2 < below {
            return (Vec::new(), 0);
        }
        let can_leave = (free + above).saturating_sub(kept) / UNIT_LINES;
        if can_leave == 0 {
            return (Vec::new(), 0);
        }
        let taken = |unit: &u64| {
            let free = u64::from(self.map.bits[*unit as usize].lock().free()) + waiting.get(unit).copied().unwrap_or_default();
            UNIT_LINES.saturating_sub(free)
        };
        let mut by_load: Vec<(u64, u64, u64)> = state.units.iter().map(|(unit, below)| (taken(unit), *unit, *below)).collect();
        by_load.sort_unstable();
        let (mut units, mut moved, mut room) = (Vec::new(), 0, free);
        for (taken, unit, below) in by_load.into_iter().take((can_leave + u64::from(stays_whole)) as usize) {
            room = room.saturating_sub(below.saturating_sub(taken));
            if room < moved + taken + TRANSIENT_REGION_LINES {
                break;
            }
            moved += taken;
            units.push(unit);
        }
        if units.len() <= usize::from(stays_whole) {
            return (Vec::new(), 0); // none of them would leave
        }
        units.sort_unstable();
        (units, moved)
    }

    /// Units that are being emptied, and their regions.
    pub(crate) fn emptied_units(&self) -> BTreeMap<u64, Region> {
        let of = |region| self.regions[slot(region)].lock_waiting().emptying.units.clone().into_iter().map(move |unit| (unit, region));
        Region::ALL.into_iter().flat_map(of).collect()
    }

    /// Whether anything is left in units that are being emptied, beside what waits for the watermark.
    pub(crate) fn is_any_left_in_emptied(&self) -> bool {
        self.regions.iter().any(|region| {
            let state = region.lock_waiting();
            let taken = |unit: &u64| UNIT_LINES - u64::from(self.map.bits[*unit as usize].lock().free());
            let is_emptied = |address: LineAddress| state.emptying.units.binary_search(&address.unit()).is_ok();
            let waiting: u64 = state.pending.iter().filter(|(_, address, _)| is_emptied(*address)).map(|(.., lines)| lines).sum();
            state.emptying.units.iter().map(taken).sum::<u64>() > waiting
        })
    }

    /// Nothing of these regions is emptied any more. Notes those with units that did not leave ([EU4]).
    pub(crate) fn end_emptying(&self, regions: &[Region]) {
        if self.is_shrinking() {
            return; // [DZ3] of `shrinking.rs`
        }
        for region in regions {
            let mut state = self.regions[slot(*region)].lock_waiting();
            if !state.emptying.units.is_empty() {
                self.give_up_emptying(*region, &mut state);
            }
        }
    }

    /// Whether an object of this many lines, a power of two, may be here: the lines belong to the region, and are in use.
    pub(crate) fn has_object(&self, region: Region, address: LineAddress, lines: u64) -> bool {
        let (unit, start) = (address.unit(), address.number() % UNIT_LINES);
        start.is_multiple_of(lines)
            && unit < self.total_units()
            && self.map.owner(unit) == UnitOwner::Region(region)
            && self.map.bits[unit as usize].lock().is_taken(start, lines)
    }

    /// Whether an inode with this number may be in use: without this, a pass over few files among many free numbers would load them all.
    pub(crate) fn is_inode_taken(&self, number: InodeNumber) -> bool {
        let units = self.inode_units.read();
        inode_address_in(&units, number)
            .is_some_and(|address| self.map.bits[address.unit() as usize].lock().is_taken(address.number() % UNIT_LINES, INODE_LINES))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tandemfs_crash::MemoryDevice;
    use tandemfs_device::{Drive, PersistenceDomain, Structure};
    use tandemfs_format::PAGE_LINES;

    use super::*;
    use crate::{FileSystem, FormatOptions, MountOptions, make_file_system};

    const PAGES: u64 = UNIT_LINES / PAGE_LINES;

    /// A file system with this many units of directory pages, of which every n-th page of a unit is in use; no inode names them. Returns the
    /// pages in use.
    fn with_pages(used_one_in: &[u64]) -> (FileSystem, Vec<LineAddress>) {
        let drive = Drive::new(Arc::new(MemoryDevice::new(64 << 20, 64 << 20, PersistenceDomain::Gpf)));
        make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
        let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
        let pages: Vec<LineAddress> = (0..used_one_in.len() as u64 * PAGES).map(|_| take(&fs, Need::Growth).expect("room")).collect();
        let units = fs.volume.memory.units_of(Region::Dentries);
        let (kept, freed): (Vec<LineAddress>, Vec<LineAddress>) = pages.into_iter().partition(|page| {
            let position = units.iter().position(|unit| *unit == page.unit()).expect("a unit of the region");
            (page.number() / PAGE_LINES).is_multiple_of(used_one_in[position])
        });
        freed.into_iter().for_each(|page| assert!(fs.volume.memory.free_now(Region::Dentries, page, PAGE_LINES)));
        (fs, kept)
    }

    fn take(fs: &FileSystem, need: Need) -> crate::Result<LineAddress> {
        fs.volume.take_page(Region::Dentries, Structure::Dentry, need)
    }

    fn begin(fs: &FileSystem, pace: Pace) -> (u64, Vec<usize>) {
        let lines = fs.volume.memory.begin_emptying(Region::Dentries, pace, false);
        let (emptied, units) = (fs.volume.memory.emptied_units(), fs.volume.memory.units_of(Region::Dentries));
        (lines, (0..units.len()).filter(|position| emptied.contains_key(&units[*position])).collect())
    }

    #[test]
    fn the_emptiest_units_are_chosen_that_can_leave() {
        let (fs, _) = with_pages(&[1, 16, 4, 8]);
        // Free are 2.56 units: two can leave, and an eighth of a unit stays free.
        assert_eq!(begin(&fs, Pace::Short), (UNIT_LINES / 16 + UNIT_LINES / 8, vec![1, 3]));
        let (fs, _) = with_pages(&[1, 16, 4, 8]);
        assert_eq!(begin(&fs, Pace::Rested), (UNIT_LINES / 16, vec![1]), "a whole unit stays free");
        let (fs, _) = with_pages(&[1, 1, 1, 16, 16]);
        assert_eq!(begin(&fs, Pace::Rested), (0, vec![]), "less than half is free");
        let (fs, _) = with_pages(&[1, 1, 1, 1, 16, 16, 16]);
        assert!(!fs.volume.memory.may_empty(Region::Dentries, Pace::Rested, false), "no checkpoint is forced for nothing");
        assert!(fs.volume.memory.may_empty(Region::Dentries, Pace::Short, false));
        let (fs, _) = with_pages(&[2, 2]);
        assert_eq!(begin(&fs, Pace::Short), (0, vec![]), "the other unit has no room beside what stays free");
        assert_eq!(fs.volume.memory.begin_emptying(Region::Inodes, Pace::Short, true), 0);
    }

    #[test]
    fn lines_of_emptied_units_are_given_last() {
        let (fs, kept) = with_pages(&[4, 16]);
        assert_eq!(begin(&fs, Pace::Short).1, [1]);
        let emptied = fs.volume.memory.emptied_units();
        let in_second = kept.iter().filter(|page| emptied.contains_key(&page.unit())).count() as u64;
        assert_eq!(in_second, PAGES / 16);
        for _ in 0..PAGES * 3 / 4 {
            assert!(!emptied.contains_key(&take(&fs, Need::Growth).expect("room").unit()));
        }
        assert!(take(&fs, Need::Move).is_err(), "a move adds no unit and takes nothing there");
        assert_eq!(fs.volume.memory.emptied_units(), emptied);
        assert!(emptied.contains_key(&take(&fs, Need::Growth).expect("room").unit()), "no unit is added while this one has room");
        assert!(fs.volume.memory.emptied_units().is_empty());
    }

    #[test]
    fn what_failed_is_tried_again_when_more_is_free() {
        let (fs, kept) = with_pages(&[1, 16, 4, 8]);
        let is_begun = |fs: &FileSystem| begin(fs, Pace::Short).0 > 0;
        assert!(is_begun(&fs));
        fs.volume.memory.end_emptying(&[Region::Dentries]);
        assert!(!fs.volume.memory.may_empty(Region::Dentries, Pace::Short, false) && !is_begun(&fs));
        assert!(fs.volume.memory.may_empty(Region::Dentries, Pace::Short, true), "by hand");
        for page in &kept[..(AGAIN_LINES / PAGE_LINES) as usize] {
            assert!(fs.volume.memory.free_now(Region::Dentries, *page, PAGE_LINES));
        }
        assert!(fs.volume.memory.may_empty(Region::Dentries, Pace::Short, false) && is_begun(&fs));
    }
}
