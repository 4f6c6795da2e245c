//! Pools of the data area: units of 2 MiB, each in the pool of a CPU. Small slots fill pages that are in pieces already ("holes"); a fresh aligned
//! unit is broken only when no hole serves, and becomes aligned room again when it empties (WineFS §3.4).

use hashbrown::HashSet;
use tandemfs_format::mapping::SlotClass;

use super::bits::WORDS;
use super::units::{DataPage, UnitMap};

#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// The page that each class below 4 KiB takes slots from.
    open: [Option<DataPage>; 3],
    /// Pages with room for a slot of the class, not open. May name pages that have changed since: whoever pops one looks again.
    partial: [Vec<DataPage>; 3],
    /// Pages that were freed lately: the next to be taken.
    free_pages: Vec<DataPage>,
    /// Units that may have a free page.
    units: Vec<u32>,
    listed: HashSet<u32>,
}

/// Freed pages that are remembered by themselves; beyond them their units are searched.
const FREE_PAGES_MAX: usize = 256;

fn class_index(class: SlotClass) -> usize {
    match class {
        SlotClass::Line => 0,
        SlotClass::Quarter => 1,
        SlotClass::Kilobyte | SlotClass::Page => 2,
    }
}

impl Pool {
    /// A unit joins the pool, or has free pages again.
    pub(crate) fn add_unit(&mut self, unit: u32) {
        if self.listed.insert(unit) {
            self.units.push(unit);
        }
    }

    /// A page of the pool became free.
    pub(crate) fn add_free_page(&mut self, page: DataPage) {
        if self.free_pages.len() < FREE_PAGES_MAX {
            self.free_pages.push(page);
        } else {
            self.add_unit(page.unit);
        }
    }

    /// A page in pieces, found when maps are loaded or a slot in it is freed.
    pub(crate) fn add_partial(&mut self, class: SlotClass, page: DataPage) {
        self.partial[class_index(class)].push(page);
    }

    /// The device failed a slot of this page: others in it are not tried next.
    pub(crate) fn avoid(&mut self, page: DataPage) {
        for open in &mut self.open {
            open.take_if(|open| *open == page);
        }
        for partial in &mut self.partial {
            partial.retain(|other| *other != page);
        }
    }

    /// A unit leaves the pool: it became wholly free.
    pub(crate) fn remove_unit(&mut self, unit: u32) {
        for open in &mut self.open {
            if open.is_some_and(|page| page.unit == unit) {
                *open = None;
            }
        }
        if self.listed.remove(&unit) {
            self.units.retain(|other| *other != unit);
        }
    }

    /// Takes a slot from what the pool has.
    pub(crate) fn take(&mut self, map: &UnitMap, pool: u32, class: SlotClass) -> Option<(u32, u64)> {
        let lines = class.lines() as u32;
        if class == SlotClass::Page {
            let page = self.free_page(map, pool)?;
            return map.take_in_page(pool, page, lines).map(|line| (page.unit, line));
        }
        let index = class_index(class);
        loop {
            if let Some(page) = self.open[index] {
                if let Some(line) = map.take_in_page(pool, page, lines) {
                    return Some((page.unit, line));
                }
                self.open[index] = None;
            }
            self.open[index] = Some(match self.partial[index].pop() {
                Some(page) => page,
                None => match self.free_page(map, pool) {
                    Some(page) => page,
                    // Room for a larger slot is room for a smaller one.
                    None => (index + 1..3).find_map(|larger| self.partial[larger].pop())?,
                },
            });
        }
    }

    /// A page without any slot; it stays unmarked until something is taken in it.
    fn free_page(&mut self, map: &UnitMap, pool: u32) -> Option<DataPage> {
        while let Some(page) = self.free_pages.pop() {
            if map.is_free_page(pool, page) {
                return Some(page);
            }
        }
        while let Some(&unit) = self.units.last() {
            if let Some(word) = map.free_word(pool, unit) {
                debug_assert!(word < WORDS);
                return Some(DataPage { unit, word: word as u16 });
            }
            self.units.pop();
            self.listed.remove(&unit);
        }
        None
    }
}
