//! The CPU's cache: sets of lines in the order of their last use, with ways that can be reserved ([PMM2], [PMM3]). Pure: it knows which lines
//! are there, not what they contain.
//!
//! [PMM2]: super
//! [PMM3]: super

use tandemfs_device::Structure;

use crate::mutant::{Mutant, on};

/// A line in the cache, in one word, since there are many: its number, whose it is, and whether it is modified. Zero: no line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Slot(u64);

/// What the number of a line takes: the largest region has 2^40 lines.
const NUMBER_BITS: u32 = 48;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
const IS_THERE: u64 = 1 << 63;
const IS_DIRTY: u64 = 1 << 62;

impl Slot {
    fn clean(line: u64) -> Self {
        Self(IS_THERE | (line & NUMBER_MASK))
    }

    /// With the structure that the line was last stored for.
    fn dirty(line: u64, owner: Option<Structure>) -> Self {
        let owner = owner.map_or(0, |structure| 1 + structure as u64);
        Self(IS_THERE | IS_DIRTY | (owner << NUMBER_BITS) | (line & NUMBER_MASK))
    }

    fn holds(self, line: u64) -> bool {
        self.0 & (IS_THERE | NUMBER_MASK) == IS_THERE | line
    }

    fn is_there(self) -> bool {
        self.0 != 0
    }

    fn is_dirty(self) -> bool {
        self.0 & IS_DIRTY != 0
    }

    fn line(self) -> u64 {
        self.0 & NUMBER_MASK
    }

    fn owner(self) -> Option<Structure> {
        let number = (self.0 >> NUMBER_BITS) & 0xff;
        Structure::ALL.get((number as usize).checked_sub(1)?).copied()
    }
}

/// A modified line that leaves the cache for the media, or is written to them and stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Leaving {
    /// Its number.
    pub(crate) line: u64,
    /// The structure that it was last stored for.
    pub(crate) owner: Option<Structure>,
    /// Whether it was in a reserved way.
    pub(crate) is_pinned: bool,
}

/// What an access to a line did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Touched {
    /// Whether the line was there.
    pub(crate) is_hit: bool,
    /// The modified line that gave its place.
    pub(crate) evicted: Option<Leaving>,
}

/// The cache.
#[derive(Debug)]
pub(crate) struct CpuCache {
    sets: u64,
    ways: usize,
    /// The last ways of each set are reserved.
    reserved: usize,
    /// Set after set. In a set, ordinary ways come first; both parts begin with the line that was used last, and end with free slots.
    slots: Vec<Slot>,
}

impl CpuCache {
    /// An empty cache without reserved ways.
    pub(crate) fn new(sets: u64, ways: u32) -> Self {
        let slots = vec![Slot::default(); sets as usize * ways as usize];
        Self { sets, ways: ways as usize, reserved: 0, slots }
    }

    /// The ordinary and the reserved ways of a line's set.
    fn parts(&mut self, line: u64) -> (&mut [Slot], &mut [Slot]) {
        let first = (line % self.sets) as usize * self.ways;
        self.slots[first..first + self.ways].split_at_mut(self.ways - self.reserved)
    }

    /// A load of a line.
    pub(crate) fn load(&mut self, line: u64) -> Touched {
        self.touch(line, false, Slot::clean(line), |found| found)
    }

    /// A store to a line; `is_pinned` moves it to a reserved way, where there is one.
    pub(crate) fn store(&mut self, line: u64, owner: Option<Structure>, is_pinned: bool) -> Touched {
        let stored = Slot::dirty(line, owner);
        self.touch(line, is_pinned, stored, |_| stored)
    }

    /// Finds a line and changes its slot, or brings it in as `new`.
    fn touch(&mut self, line: u64, pins: bool, new: Slot, change: impl FnOnce(Slot) -> Slot) -> Touched {
        let shares = on(Mutant::ReservedWaysShared);
        let (ordinary, reserved) = self.parts(line);
        if let Some(at) = position(reserved, line) {
            reserved[at] = change(reserved[at]);
            reserved[..=at].rotate_right(1);
            return Touched { is_hit: true, evicted: None };
        }
        let pins = pins && !reserved.is_empty();
        let found = position(ordinary, line);
        let new = match found {
            Some(at) if !pins => {
                ordinary[at] = change(ordinary[at]);
                ordinary[..=at].rotate_right(1);
                return Touched { is_hit: true, evicted: None };
            }
            Some(at) => change(remove(ordinary, at)),
            None => new,
        };
        let evicted = match pins {
            true => insert(reserved, new, true),
            // [PMM3]
            false if shares && !reserved.is_empty() => insert(reserved, new, false),
            false => insert(ordinary, new, false),
        };
        Touched { is_hit: found.is_some(), evicted }
    }

    /// A flush: a modified line is written and stays, clean ([PMM2]).
    pub(crate) fn flush(&mut self, line: u64) -> Option<Leaving> {
        let (ordinary, reserved) = self.parts(line);
        let slot = [(ordinary, false), (reserved, true)].into_iter().find_map(|(part, is_pinned)| {
            let at = position(part, line)?;
            Some((&mut part[at], is_pinned))
        });
        let (slot, is_pinned) = slot.filter(|(slot, _)| slot.is_dirty())?;
        let leaving = Leaving { line, owner: slot.owner(), is_pinned };
        if !on(Mutant::FlushedLineStaysDirty) {
            *slot = Slot::clean(line);
        }
        Some(leaving)
    }

    /// A line that a store past the caches replaces as a whole: what was modified in it is of no use any more.
    pub(crate) fn discard(&mut self, line: u64) {
        let (ordinary, reserved) = self.parts(line);
        for part in [ordinary, reserved] {
            if let Some(at) = position(part, line) {
                remove(part, at);
            }
        }
    }

    /// Reserves so many ways of each set. `evicted` is told of the modified lines that lose their places: ordinary lines, the least recently used
    /// first, where more ways are reserved. Where fewer are, pinned lines that were used longest ago become ordinary ones, and no line leaves.
    pub(crate) fn reserve(&mut self, ways: usize, mut evicted: impl FnMut(Leaving)) {
        let before = std::mem::replace(&mut self.reserved, ways);
        let ordinary_before = self.ways - before;
        for set in self.slots.chunks_exact_mut(self.ways) {
            let (old, pinned) = set.split_at(ordinary_before);
            let pinned: Vec<Slot> = pinned.iter().copied().filter(|slot| slot.is_there()).collect();
            let (kept, freed) = pinned.split_at(pinned.len().min(ways));
            let mut ordinary: Vec<Slot> = freed.iter().chain(old).copied().filter(|slot| slot.is_there()).collect();
            for slot in ordinary.drain(ordinary.len().min(self.ways - ways)..).rev() {
                leaving(slot, false).into_iter().for_each(&mut evicted);
            }
            let (first, last) = set.split_at_mut(self.ways - ways);
            for (part, slots) in [(first, &ordinary[..]), (last, kept)] {
                part.fill(Slot::default());
                part[..slots.len()].copy_from_slice(slots);
            }
        }
    }

    /// Writes all modified lines, set after set; they stay, clean.
    pub(crate) fn write_back_all(&mut self, mut written: impl FnMut(Leaving)) {
        let ordinary = self.ways - self.reserved;
        for set in self.slots.chunks_exact_mut(self.ways) {
            for (way, slot) in set.iter_mut().enumerate() {
                if let Some(leaving) = leaving(*slot, way >= ordinary) {
                    written(leaving);
                    *slot = Slot::clean(slot.line());
                }
            }
        }
    }
}

fn leaving(slot: Slot, is_pinned: bool) -> Option<Leaving> {
    slot.is_dirty().then(|| Leaving { line: slot.line(), owner: slot.owner(), is_pinned })
}

fn position(part: &[Slot], line: u64) -> Option<usize> {
    part.iter().position(|slot| slot.holds(line))
}

/// Takes a line out of a part of a set.
fn remove(part: &mut [Slot], at: usize) -> Slot {
    part[at..].rotate_left(1);
    part.last_mut().map(std::mem::take).unwrap_or_default()
}

/// Brings a line in, in the place of the least recently used one where no slot is free. Returns that one, if it is modified.
fn insert(part: &mut [Slot], new: Slot, is_pinned: bool) -> Option<Leaving> {
    if !on(Mutant::NewestLineEvicted) {
        part.rotate_right(1);
    }
    leaving(std::mem::replace(&mut part[0], new), is_pinned)
}
