//! A drive's cache of flash pages in battery-backed DRAM, for drives without a write log. Every load and store that misses fills it, and
//! waits for the flash.
//!
//! [EC1] A slot's word says which page it holds and whether the page is newer than the flash: `(page + 1) << 1 | dirty`, 0 for an empty
//!       slot. It is one word, stored after the slot's bytes, so a power failure leaves the slot complete or empty. Volatile state (slot of
//!       each page, recency) is derived from the words.
//! [EC2] A slot is marked dirty before its bytes change. An evicted dirty page is written to the flash before its word is cleared; if that
//!       is interrupted, it is written again.
//! [EC3] A block write goes to the flash. A clean slot of the page is cleared before it, a dirty one after it. If that is interrupted, the
//!       page is the old one, which is allowed as long as the write has not returned. A discard works the same way.
//! [EC4] A miss evicts a page: with *clock* the first slot, in turn, that was not used since the hand last
//!       passed it; with *LRU* the least recently used one. If eviction fails, a load reads the page without caching it.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use tandemfs_device::{DeviceError, FirmwareCounts};

use crate::lists::Lists;
use crate::medium::{FLASH_PAGE_BYTES, Medium, PageBytes, Pages};
use crate::model::Replacement;
use crate::mutant::{Mutant, on};

const PAGE: u64 = FLASH_PAGE_BYTES as u64;
const WORD: u64 = 8;
const DIRTY: u64 = 1;
/// Lists of slots: those that hold nothing, and those that hold a page, least recently used first.
const EMPTY: u32 = 0;
const USED: u32 = 1;

/// Persistent DRAM that a cache of so many bytes takes, in bytes.
pub(crate) fn dram_bytes(cache_bytes: u64) -> u64 {
    table_bytes(cache_bytes / PAGE).saturating_add(cache_bytes)
}

fn table_bytes(slot_count: u64) -> u64 {
    (slot_count * WORD).div_ceil(PAGE) * PAGE
}

/// The cache.
#[derive(Debug)]
pub(crate) struct PageCache<M: Medium> {
    medium: Arc<M>,
    replacement: Replacement,
    words_at: u64,
    pages_at: u64,
    slot_count: u32,
    /// Host copies of the slots' words.
    words: Vec<u64>,
    slot_of: HashMap<u64, u32>,
    lists: Lists,
    /// Of the clock: which slots were used since the hand passed, and where it is.
    was_used: Vec<bool>,
    hand: u32,
    counts: FirmwareCounts,
    page: Box<PageBytes>,
}

fn word_of(page: u64, is_dirty: bool) -> u64 {
    (page + 1) << 1 | if is_dirty { DIRTY } else { 0 }
}

impl<M: Medium> PageCache<M> {
    /// Opens the cache of a drive; DRAM of all zeros is an empty cache.
    pub(crate) fn open(
        medium: Arc<M>,
        dram_offset: u64,
        cache_bytes: u64,
        replacement: Replacement,
        name: &str,
        logical_pages: u64,
    ) -> Result<Self, DeviceError> {
        let slot_count = u32::try_from(cache_bytes / PAGE).unwrap_or(u32::MAX);
        let mut bytes = vec![0; slot_count as usize * WORD as usize];
        medium.load(dram_offset, &mut bytes)?;
        let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let mut cache = Self {
            medium,
            replacement,
            words_at: dram_offset,
            pages_at: dram_offset + table_bytes(u64::from(slot_count)),
            slot_count,
            words,
            slot_of: HashMap::new(),
            lists: Lists::new(2, slot_count),
            was_used: vec![false; slot_count as usize],
            hand: 0,
            counts: FirmwareCounts::default(),
            page: Box::new([0; FLASH_PAGE_BYTES]),
        };
        for slot in 0..slot_count {
            let word = cache.words[slot as usize];
            if word == 0 {
                cache.lists.push(EMPTY, slot);
                continue;
            }
            let page = (word >> 1).checked_sub(1).filter(|page| *page < logical_pages);
            if page.is_none_or(|page| cache.slot_of.insert(page, slot).is_some()) {
                let page = page.map_or("a page".to_owned(), |page| format!("page {page}"));
                let reason = format!("slot {slot} of the page cache holds {page}, which is outside the drive or in another slot too");
                return Err(DeviceError::Open { path: name.to_owned(), reason });
            }
            cache.lists.push(USED, slot);
        }
        Ok(cache)
    }

    /// Pages that are in the cache, and that it has room for.
    pub(crate) fn fill(&self) -> (u64, u64) {
        (self.slot_of.len() as u64, u64::from(self.slot_count))
    }

    pub(crate) fn counts(&self) -> FirmwareCounts {
        self.counts
    }

    /// Loads a part of a page.
    pub(crate) fn load(&mut self, pages: &mut impl Pages, page: u64, within: usize, into: &mut [u8]) -> Result<(), DeviceError> {
        match self.slot_for(pages, page) {
            Ok(slot) => self.medium.load(self.byte_at(slot) + within as u64, into),
            // No page can leave the cache, on flash that is worn out ([EC4]).
            Err(_) => {
                pages.read(page, &mut self.page)?;
                into.copy_from_slice(&self.page[within..within + into.len()]);
                Ok(())
            }
        }
    }

    /// Stores a part of a page.
    pub(crate) fn store(&mut self, pages: &mut impl Pages, page: u64, within: usize, from: &[u8]) -> Result<(), DeviceError> {
        let slot = self.slot_for(pages, page)?;
        if !on(Mutant::CachedPageStaysClean) {
            self.set_word(slot, word_of(page, true))?; // [EC2]
        }
        self.medium.store(self.byte_at(slot) + within as u64, from)
    }

    /// Reads a whole page for a block command, which brings nothing into the cache.
    pub(crate) fn read_page(&mut self, pages: &mut impl Pages, page: u64, into: &mut PageBytes) -> Result<(), DeviceError> {
        match self.slot_of.get(&page) {
            Some(&slot) => self.medium.load(self.byte_at(slot), into),
            None => pages.read(page, into),
        }
    }

    /// Writes a whole page for a block command ([EC3]).
    pub(crate) fn write_page(&mut self, pages: &mut impl Pages, page: u64, from: &PageBytes) -> Result<(), DeviceError> {
        self.replace(page, |_| pages.write(page, from, 0))
    }

    /// Discards a page ([EC3]).
    pub(crate) fn discard(&mut self, pages: &mut impl Pages, page: u64) -> Result<(), DeviceError> {
        self.replace(page, |is_cached| if is_cached || pages.is_mapped(page)? { pages.discard(page, 0) } else { Ok(()) })
    }

    fn replace(&mut self, page: u64, change: impl FnOnce(bool) -> Result<(), DeviceError>) -> Result<(), DeviceError> {
        let Some(slot) = self.slot_of.get(&page).copied() else { return change(false) };
        let is_dirty = self.words[slot as usize] & DIRTY != 0;
        let is_cleared_before = !is_dirty || on(Mutant::DirtyPageDroppedBeforeWrite);
        if is_cleared_before {
            self.empty(slot)?;
        }
        change(true)?;
        if is_cleared_before { Ok(()) } else { self.empty(slot) }
    }

    /// Writes every dirty page to the flash. All pages stay cached.
    pub(crate) fn clean(&mut self, pages: &mut impl Pages) -> Result<(), DeviceError> {
        for slot in 0..self.slot_count {
            if self.words[slot as usize] & DIRTY != 0 {
                self.write_back(pages, slot)?;
                self.set_word(slot, self.words[slot as usize] & !DIRTY)?;
            }
        }
        Ok(())
    }

    /// The slot of a page; a miss fills one.
    fn slot_for(&mut self, pages: &mut impl Pages, page: u64) -> Result<u32, DeviceError> {
        if let Some(&slot) = self.slot_of.get(&page) {
            self.counts.cache_hits += 1;
            match self.replacement {
                Replacement::Clock => self.was_used[slot as usize] = true,
                Replacement::Lru => self.lists.push(USED, slot),
            }
            return Ok(slot);
        }
        self.counts.cache_misses += 1;
        let slot = match self.lists.first(EMPTY) {
            Some(slot) => slot,
            None => {
                let victim = self.victim();
                self.evict(pages, victim)?;
                victim
            }
        };
        self.fill_slot(pages, slot, page)?;
        Ok(slot)
    }

    /// [EC4]
    fn victim(&mut self) -> u32 {
        if self.replacement == Replacement::Lru {
            return self.lists.first(USED).unwrap_or(0);
        }
        loop {
            let slot = self.hand;
            self.hand = (self.hand + 1) % self.slot_count;
            if !std::mem::take(&mut self.was_used[slot as usize]) {
                return slot;
            }
        }
    }

    fn fill_slot(&mut self, pages: &mut impl Pages, slot: u32, page: u64) -> Result<(), DeviceError> {
        pages.read(page, &mut self.page)?;
        if on(Mutant::SlotNamedBeforeFilled) {
            self.set_word(slot, word_of(page, false))?;
        }
        self.medium.store(self.byte_at(slot), &self.page[..])?;
        self.set_word(slot, word_of(page, false))?; // [EC1]
        self.slot_of.insert(page, slot);
        self.lists.push(USED, slot);
        Ok(())
    }

    /// [EC2]
    fn evict(&mut self, pages: &mut impl Pages, slot: u32) -> Result<(), DeviceError> {
        let word = self.words[slot as usize];
        if on(Mutant::SlotClearedBeforeWrite) {
            self.medium.store(self.words_at + u64::from(slot) * WORD, &[0; 8])?;
        }
        if word & DIRTY != 0 && !on(Mutant::CacheWriteBackForgotten) {
            self.write_back(pages, slot)?;
        }
        self.empty(slot)?;
        self.counts.cache_evictions += 1;
        Ok(())
    }

    fn write_back(&mut self, pages: &mut impl Pages, slot: u32) -> Result<(), DeviceError> {
        let page = (self.words[slot as usize] >> 1) - 1;
        self.medium.load(self.byte_at(slot), &mut self.page[..])?;
        pages.write(page, &self.page, 0)
    }

    fn empty(&mut self, slot: u32) -> Result<(), DeviceError> {
        let page = (self.words[slot as usize] >> 1).checked_sub(1);
        self.set_word(slot, 0)?;
        if let Some(page) = page {
            self.slot_of.remove(&page);
        }
        self.was_used[slot as usize] = false;
        self.lists.push(EMPTY, slot);
        Ok(())
    }

    fn set_word(&mut self, slot: u32, word: u64) -> Result<(), DeviceError> {
        if self.words[slot as usize] != word {
            self.medium.store(self.words_at + u64::from(slot) * WORD, &word.to_le_bytes())?;
            self.words[slot as usize] = word;
        }
        Ok(())
    }

    fn byte_at(&self, slot: u32) -> u64 {
        self.pages_at + u64::from(slot) * PAGE
    }
}
