//! Pools of the data area: units of 2 MiB, one pool per CPU. Small slots fill partly used pages ("holes") first; a fresh aligned unit is
//! split only if no hole fits, and becomes aligned space again when it is empty (WineFS §3.4).

use hashbrown::HashSet;
use tandemfs_format::mapping::SlotClass;

use super::bits::WORDS;
use super::units::{DataPage, UnitMap};

#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// The current page for slots of each class below 4 KiB.
    open: [Option<DataPage>; 3],
    /// Pages with space for a slot of the class, not open. Entries may be out of date: check a page after popping it.
    partial: [Vec<DataPage>; 3],
    /// Recently freed pages: taken next.
    free_pages: Vec<DataPage>,
    /// Units that may have a free page.
    units: Vec<u32>,
    listed: HashSet<u32>,
}

/// Maximum freed pages listed one by one; beyond that, their units are searched.
const FREE_PAGES_MAX: usize = 256;

fn class_index(class: SlotClass) -> usize {
    match class {
        SlotClass::Line => 0,
        SlotClass::Quarter => 1,
        SlotClass::Kilobyte | SlotClass::Page => 2,
    }
}

impl Pool {
    /// Adds a unit that is new in the pool, or has free pages again.
    pub(crate) fn add_unit(&mut self, unit: u32) {
        if self.listed.insert(unit) {
            self.units.push(unit);
        }
    }

    /// Adds a page of the pool that became free.
    pub(crate) fn add_free_page(&mut self, page: DataPage) {
        if self.free_pages.len() < FREE_PAGES_MAX {
            self.free_pages.push(page);
        } else {
            self.add_unit(page.unit);
        }
    }

    /// Adds a partly used page, found when maps are loaded or one of its slots is freed.
    pub(crate) fn add_partial(&mut self, class: SlotClass, page: DataPage) {
        self.partial[class_index(class)].push(page);
    }

    /// The device failed a slot of this page: its other slots are not tried next.
    pub(crate) fn avoid(&mut self, page: DataPage) {
        for open in &mut self.open {
            open.take_if(|open| *open == page);
        }
        for partial in &mut self.partial {
            partial.retain(|other| *other != page);
        }
    }

    /// Removes a unit that became completely free.
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

    /// Takes a slot from the pool's pages.
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
                    // A page with space for a larger slot also fits a smaller one.
                    None => (index + 1..3).find_map(|larger| self.partial[larger].pop())?,
                },
            });
        }
    }

    /// A page without slots; it is not marked until a slot is taken in it.
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
