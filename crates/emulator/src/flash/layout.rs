//! Layout of the translation layer's tables in the persistent DRAM.
//!
//! | part | bytes | meaning |
//! |---|---|---|
//! | header | 4 KiB | that the drive is formatted, and its geometry |
//! | touched | a bit for 512 entries | pieces of the translation table that were ever stored to; all others are zeros |
//! | translation | 8 a logical page | [`Place`] |
//! | blocks | 8 a block | [`BlockRecord`] |
//! | slots | 16 a slot | logical page plus one and stamp of a buffered page |
//! | buffer | 4 KiB a slot | bytes of a buffered page |
//!
//! DRAM of all zeros is a drive on which nothing was ever written, so a new image stays sparse.

use std::sync::Arc;

use tandemfs_device::DeviceError;

use super::geometry::{FlashGeometry, FlashOptions};
use crate::medium::{FLASH_PAGE_BYTES, Medium, PageBytes, PhysicalPage, Spare};

const PART_BYTES: u64 = FLASH_PAGE_BYTES as u64;
const MAGIC: u64 = u64::from_le_bytes(*b"TNDMFTL\n");
const VERSION: u64 = 1;
/// Entries of the translation table for which there is one touched bit: a page of the DRAM.
pub(super) const PIECE_ENTRIES: u64 = 512;

/// Offsets of the parts in the DRAM.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    header: u64,
    touched: u64,
    touched_words: u64,
    translation: u64,
    blocks: u64,
    slots: u64,
    buffer: u64,
    /// End of the last part, relative to the first.
    pub(super) end: u64,
}

impl Layout {
    pub(super) fn new(geometry: &FlashGeometry, write_buffer_pages: u32, dram_offset: u64) -> Self {
        let touched_words = geometry.logical_pages.div_ceil(PIECE_ENTRIES).div_ceil(64);
        let mut next = dram_offset;
        let mut part = |bytes: u64| {
            let start = next;
            next = next.saturating_add(bytes.div_ceil(PART_BYTES).saturating_mul(PART_BYTES));
            start
        };
        let header = part(PART_BYTES);
        let touched = part(touched_words.saturating_mul(8));
        let translation = part(geometry.logical_pages.saturating_mul(8));
        let blocks = part(geometry.blocks().saturating_mul(8));
        let slots = part(u64::from(write_buffer_pages) * 16);
        let buffer = part(u64::from(write_buffer_pages) * PART_BYTES);
        Self { header, touched, touched_words, translation, blocks, slots, buffer, end: next - dram_offset }
    }
}

/// Where a logical page is: an entry of the translation table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// No place; the page reads as zeros. With the stamp of the discard, 0 for a page that was never written.
    Nowhere { stamp: u64 },
    /// In a flash page, whose spare area has the stamp.
    Cells(PhysicalPage),
    /// In a slot of the write buffer.
    Slot(u32),
}

const KIND_SHIFT: u32 = 62;
const VALUE_MASK: u64 = (1 << KIND_SHIFT) - 1;
/// Largest stamp: the largest that fits into the entry of a page without a place.
pub(super) const STAMP_MAX: u64 = VALUE_MASK;

impl Place {
    fn to_word(self) -> u64 {
        match self {
            Self::Nowhere { stamp } => stamp & VALUE_MASK,
            Self::Cells(page) => 1 << KIND_SHIFT | page.0,
            Self::Slot(slot) => 2 << KIND_SHIFT | u64::from(slot),
        }
    }

    pub(super) fn from_word(word: u64) -> Option<Self> {
        let value = word & VALUE_MASK;
        match word >> KIND_SHIFT {
            0 => Some(Self::Nowhere { stamp: value }),
            1 => Some(Self::Cells(PhysicalPage(value))),
            2 => u32::try_from(value).ok().map(Self::Slot),
            _ => None,
        }
    }
}

/// Persistent state of a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct BlockRecord {
    pub(super) erasures: u32,
    /// Pages whose programming has begun since the last erasure: pages from here on are erased.
    pub(super) begun: u16,
    pub(super) state: BlockState,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum BlockState {
    #[default]
    Good,
    /// Its erasure has begun; it holds no valid page.
    Erasing,
    /// A program failed: it is not written again, and bad once its valid pages are elsewhere.
    Retiring,
    /// Out of use since the drive was made.
    BadFromFactory,
    /// Taken out of use.
    BadGrown,
}

impl BlockRecord {
    fn to_word(self) -> u64 {
        let state = match self.state {
            BlockState::Good => 0u64,
            BlockState::Erasing => 1,
            BlockState::Retiring => 2,
            BlockState::BadFromFactory => 3,
            BlockState::BadGrown => 4,
        };
        u64::from(self.erasures) | u64::from(self.begun) << 32 | state << 48
    }

    fn from_word(word: u64) -> Option<Self> {
        let state = match word >> 48 {
            0 => BlockState::Good,
            1 => BlockState::Erasing,
            2 => BlockState::Retiring,
            3 => BlockState::BadFromFactory,
            4 => BlockState::BadGrown,
            _ => return None,
        };
        Some(Self { erasures: word as u32, begun: (word >> 32) as u16, state })
    }
}

/// The parts of the DRAM, with typed access. Each setter of one word is one atomic step ([MD1]).
#[derive(Debug)]
pub(super) struct Tables<M> {
    medium: Arc<M>,
    layout: Layout,
    logical_pages: u64,
    /// Copy of the touched bits.
    touched: Vec<u64>,
}

impl<M: Medium> Tables<M> {
    /// Tables of a drive that is all zeros.
    pub(super) fn new(medium: Arc<M>, dram_offset: u64, geometry: &FlashGeometry, options: &FlashOptions) -> Self {
        let layout = Layout::new(geometry, options.write_buffer_pages, dram_offset);
        let touched = vec![0; layout.touched_words as usize];
        Self { medium, layout, logical_pages: geometry.logical_pages, touched }
    }

    fn header(geometry: &FlashGeometry, options: &FlashOptions) -> [u64; 9] {
        [
            MAGIC,
            VERSION,
            geometry.channel_count.into(),
            geometry.dies_per_channel.into(),
            geometry.planes_per_die.into(),
            geometry.blocks_per_plane.into(),
            geometry.pages_per_block.into(),
            geometry.logical_pages,
            options.write_buffer_pages.into(),
        ]
    }

    /// Stores the header, its first word last: without that the drive is not formatted.
    pub(super) fn store_header(&self, geometry: &FlashGeometry, options: &FlashOptions) -> Result<(), DeviceError> {
        let words = Self::header(geometry, options);
        for (index, word) in words.into_iter().enumerate().rev() {
            self.store_word(self.layout.header + index as u64 * 8, word)?;
        }
        Ok(())
    }

    /// Checks the header and loads the touched bits.
    pub(super) fn load(&mut self, geometry: &FlashGeometry, options: &FlashOptions) -> Result<(), DeviceError> {
        let expected = Self::header(geometry, options);
        let names = ["", "version", "channels", "dies a channel", "planes a die", "blocks a plane", "pages a block", "logical pages"];
        for (index, expected) in expected.into_iter().enumerate() {
            let found = self.load_word(self.layout.header + index as u64 * 8)?;
            if index == 0 && found != expected {
                return Err(open_error("its flash was never formatted".into()));
            }
            if found != expected {
                let name = names.get(index).unwrap_or(&"pages of the write buffer");
                return Err(open_error(format!("its flash was formatted with another geometry: {name} {found}, not {expected}")));
            }
        }
        for (index, word) in self.touched.iter_mut().enumerate() {
            let mut bytes = [0; 8];
            self.medium.load(self.layout.touched + index as u64 * 8, &mut bytes)?;
            *word = u64::from_le_bytes(bytes);
        }
        Ok(())
    }

    fn load_word(&self, offset: u64) -> Result<u64, DeviceError> {
        let mut bytes = [0; 8];
        self.medium.load(offset, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn store_word(&self, offset: u64, word: u64) -> Result<(), DeviceError> {
        self.medium.store(offset, &word.to_le_bytes())
    }

    /// Place of a logical page. A piece of the table that was never stored to is not read, since opening the drive did not check it.
    pub(super) fn place(&self, logical: u64) -> Result<Place, DeviceError> {
        let piece = logical / PIECE_ENTRIES;
        if self.touched[(piece / 64) as usize] & 1 << (piece % 64) == 0 {
            return Ok(Place::Nowhere { stamp: 0 });
        }
        let word = self.load_word(self.layout.translation + logical * 8)?;
        Place::from_word(word).ok_or_else(|| open_error(format!("the translation of logical page {logical} is damaged ({word:#x})")))
    }

    /// Switches a logical page: one atomic store, after the touched bit where it is the first of its piece.
    pub(super) fn set_place(&mut self, logical: u64, place: Place) -> Result<(), DeviceError> {
        let piece = logical / PIECE_ENTRIES;
        let (index, bit) = ((piece / 64) as usize, 1u64 << (piece % 64));
        if self.touched[index] & bit == 0 {
            self.check_untouched(piece)?;
            self.store_word(self.layout.touched + index as u64 * 8, self.touched[index] | bit)?;
            self.touched[index] |= bit;
        }
        self.store_word(self.layout.translation + logical * 8, place.to_word())
    }

    /// A piece of the table that becomes visible now must be empty: its entries were not counted when the drive was opened.
    fn check_untouched(&self, piece: u64) -> Result<(), DeviceError> {
        let first = piece * PIECE_ENTRIES;
        let mut bytes = [0u8; PIECE_ENTRIES as usize * 8];
        let piece = &mut bytes[..PIECE_ENTRIES.min(self.logical_pages - first) as usize * 8];
        self.medium.load(self.layout.translation + first * 8, piece)?;
        if piece.iter().all(|&byte| byte == 0) {
            return Ok(());
        }
        Err(open_error(format!(
            "the translation of logical page {first} and the next ones is damaged: it was never stored, and is not empty"
        )))
    }

    /// Calls `call` for each logical page that has a place, in order. Pieces of the table that were never stored to are not loaded.
    pub(super) fn for_each_place(&self, mut call: impl FnMut(u64, Place) -> Result<(), DeviceError>) -> Result<(), DeviceError> {
        let mut bytes = [0u8; PIECE_ENTRIES as usize * 8];
        for (index, &word) in self.touched.iter().enumerate() {
            let mut rest = word;
            while rest != 0 {
                let piece = index as u64 * 64 + u64::from(rest.trailing_zeros());
                rest &= rest - 1;
                let first = piece * PIECE_ENTRIES;
                if first >= self.logical_pages {
                    return Err(open_error("the list of stored pieces of its translation table is damaged".into()));
                }
                let count = PIECE_ENTRIES.min(self.logical_pages - first);
                let piece = &mut bytes[..count as usize * 8];
                self.medium.load(self.layout.translation + first * 8, piece)?;
                for (logical, entry) in (first..).zip(piece.chunks_exact(8)) {
                    let word = u64::from_le_bytes(entry.try_into().expect("chunks of 8"));
                    match Place::from_word(word) {
                        Some(Place::Nowhere { .. }) => {}
                        Some(place) => call(logical, place)?,
                        None => return Err(open_error(format!("the translation of logical page {logical} is damaged ({word:#x})"))),
                    }
                }
            }
        }
        Ok(())
    }

    pub(super) fn block(&self, block: u32) -> Result<BlockRecord, DeviceError> {
        let word = self.load_word(self.layout.blocks + u64::from(block) * 8)?;
        BlockRecord::from_word(word).ok_or_else(|| open_error(format!("the record of flash block {block} is damaged ({word:#x})")))
    }

    pub(super) fn set_block(&self, block: u32, record: BlockRecord) -> Result<(), DeviceError> {
        self.store_word(self.layout.blocks + u64::from(block) * 8, record.to_word())
    }

    /// Page and stamp of a slot of the write buffer. Valid only if the page's entry names the slot.
    pub(super) fn slot(&self, slot: u32) -> Result<Spare, DeviceError> {
        let offset = self.layout.slots + u64::from(slot) * 16;
        Ok(Spare { logical_plus_one: self.load_word(offset)?, stamp: self.load_word(offset + 8)? })
    }

    pub(super) fn load_slot(&self, slot: u32, into: &mut PageBytes) -> Result<(), DeviceError> {
        self.medium.load(self.layout.buffer + u64::from(slot) * PART_BYTES, into)
    }

    /// Fills a slot that no entry names.
    pub(super) fn store_slot(&self, slot: u32, from: &PageBytes, spare: Spare) -> Result<(), DeviceError> {
        self.medium.store(self.layout.buffer + u64::from(slot) * PART_BYTES, from)?;
        let mut words = [0; 16];
        words[..8].copy_from_slice(&spare.logical_plus_one.to_le_bytes());
        words[8..].copy_from_slice(&spare.stamp.to_le_bytes());
        self.medium.store(self.layout.slots + u64::from(slot) * 16, &words)
    }
}

/// Error for an unusable image.
pub(super) fn open_error(reason: String) -> DeviceError {
    DeviceError::Firmware { device: "flash".into(), command: "open", reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_as_they_were() {
        let places = [
            Place::Nowhere { stamp: 0 },
            Place::Nowhere { stamp: STAMP_MAX },
            Place::Cells(PhysicalPage(0)),
            Place::Cells(PhysicalPage(1 << 41)),
            Place::Slot(0),
            Place::Slot(u32::MAX),
        ];
        for place in places {
            assert_eq!(Place::from_word(place.to_word()), Some(place));
        }
        assert_eq!(Place::from_word(0), Some(Place::Nowhere { stamp: 0 }));
        assert_eq!(Place::from_word(u64::MAX), None);
        use BlockState::*;
        for state in [Good, Erasing, Retiring, BadFromFactory, BadGrown] {
            let record = BlockRecord { erasures: u32::MAX, begun: 8192, state };
            assert_eq!(BlockRecord::from_word(record.to_word()), Some(record));
        }
        assert_eq!(BlockRecord::from_word(0), Some(BlockRecord::default()));
        assert_eq!(BlockRecord::from_word(9 << 48), None);
    }
}
