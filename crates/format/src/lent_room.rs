//! Room behind the end of a file that is lent to a program: which file, and how far the program has come.
//!
//! A slot of the table has two lines. The first is the file system's: it says what is lent, and is in use if its first eight bytes are not zero. The
//! second begins with the only word of a file system that programs store: how many bytes of the room belong to the file.

use zerocopy::{FromBytes, IntoBytes};

use crate::checksum::Place;
use crate::inode::FILE_BYTES_MAX;
use crate::integer::{U32, U48, U64};
use crate::{Corrupt, EMPTY_LINE, InodeNumber, LINE_BYTES, Line, LineAddress, PairSeed};

/// Where the table begins in the memory zone: between the copies of the superblock.
pub const LENT_TABLE_OFFSET: u64 = 4096;
/// Slots of the table.
pub const LENT_SLOTS: u64 = 256;
/// Lines of a slot.
pub const LENT_SLOT_LINES: u64 = 2;
/// Bytes of the table.
pub const LENT_TABLE_BYTES: usize = (LENT_SLOTS * LENT_SLOT_LINES) as usize * LINE_BYTES;
/// Bytes at the start of a line of the table, stored at once, that say whether it is in use.
pub const LENT_MARK_BYTES: usize = 8;
/// Epochs are below this.
pub const LENT_EPOCHS: u32 = 1 << 24;
/// Bits of a word that are the length.
pub const LENGTH_BITS: u32 = 40;

persistent! {
    /// What is lent, as the file system says it.
    pub struct LentRoomLine [64] {
        /// CRC-32C, see *Checksums*.
        crc: U32 = 0,
        /// The epoch that a word must have to count; 0 in a line that is not in use.
        epoch: U32 = 4,
        /// The file.
        inode: U48 = 8,
        /// Zero.
        zero: [u8; 2] = 14,
        /// The generation of the file.
        generation: U32 = 16,
        /// Its size when the room was lent, in bytes.
        size: U64 = 20,
        /// The room, in bytes.
        room_bytes: U64 = 28,
        /// Zero.
        reserved: [u8; 28] = 36,
    }
}

persistent! {
    /// What the program says.
    pub struct LentWordLine [64] {
        /// Epoch and length.
        word: U64 = 0,
        /// Means nothing.
        rest: [u8; 56] = 8,
    }
}

/// The first line of a slot.
pub fn lent_line(slot: u64) -> LineAddress {
    assert!(slot < LENT_SLOTS, "slot {slot} of {LENT_SLOTS}");
    LineAddress::new(LENT_TABLE_OFFSET / LINE_BYTES as u64).nth(slot * LENT_SLOT_LINES)
}

/// Room behind the end of a file that is lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LentRoom {
    /// The file.
    pub inode: InodeNumber,
    /// Its generation.
    pub generation: u32,
    /// The epoch of the words that count, from 1.
    pub epoch: u32,
    /// The size of the file when it was lent, in bytes.
    pub size: u64,
    /// The room, in bytes.
    pub bytes: u64,
}

impl LentRoom {
    fn place(pair: PairSeed, address: LineAddress) -> Place {
        Place { pair, address, inode: InodeNumber::new(0), generation: 0 }
    }

    /// The sealed line.
    pub fn encode(&self, pair: PairSeed, address: LineAddress) -> Line {
        let line = LentRoomLine {
            crc: 0.into(),
            epoch: self.epoch.into(),
            inode: U48::new(self.inode.get()),
            zero: [0; 2],
            generation: self.generation.into(),
            size: self.size.into(),
            room_bytes: self.bytes.into(),
            reserved: [0; 28],
        };
        let mut bytes = EMPTY_LINE;
        bytes.copy_from_slice(line.as_bytes());
        Self::place(pair, address).seal(bytes)
    }

    /// Verifies the first line of a slot; `None` where it is not in use.
    pub fn decode(line: &Line, pair: PairSeed, address: LineAddress) -> Result<Option<Self>, Corrupt> {
        if line[..LENT_MARK_BYTES] == [0; LENT_MARK_BYTES] {
            return Ok(None);
        }
        Self::place(pair, address).verify(line)?;
        let Ok(bytes) = LentRoomLine::read_from_bytes(line) else { unreachable!("a line has the size of a line") };
        let field = |field, found| Corrupt::Field { address, field, found };
        let room = Self {
            inode: InodeNumber::new(bytes.inode.get()),
            generation: bytes.generation.get(),
            epoch: bytes.epoch.get(),
            size: bytes.size.get(),
            bytes: bytes.room_bytes.get(),
        };
        if room.epoch == 0 || room.epoch >= LENT_EPOCHS {
            return Err(field("epoch", room.epoch.into()));
        }
        if room.bytes == 0 || room.bytes >= 1 << LENGTH_BITS {
            return Err(field("room_bytes", room.bytes));
        }
        if room.size > FILE_BYTES_MAX - room.bytes {
            return Err(field("size", room.size));
        }
        Ok(Some(room))
    }

    /// The word that says so many bytes of the room.
    pub fn word(&self, length: u64) -> u64 {
        lent_word(self.epoch, length)
    }

    /// The size of the file that a word says. A word of another epoch says none of the room. `None` beyond what was lent.
    pub fn size_by(&self, word: u64) -> Option<u64> {
        if epoch_of(word) != self.epoch {
            return Some(self.size);
        }
        let length = word & ((1 << LENGTH_BITS) - 1);
        (length <= self.bytes).then_some(self.size + length)
    }
}

/// The slots of a table: number, first line and word of each.
pub fn lent_slots(table: &[u8; LENT_TABLE_BYTES]) -> impl Iterator<Item = (u64, Line, u64)> {
    let lines = table.as_chunks::<LINE_BYTES>().0.as_chunks::<{ LENT_SLOT_LINES as usize }>().0;
    (0..).zip(lines).map(|(slot, [line, said])| {
        let mut word = [0; 8];
        word.copy_from_slice(&said[..8]);
        (slot, *line, u64::from_le_bytes(word))
    })
}

/// A word of an epoch.
pub fn lent_word(epoch: u32, length: u64) -> u64 {
    u64::from(epoch) << LENGTH_BITS | length
}

/// The epoch after that of a word.
pub fn next_epoch(word: u64) -> u32 {
    let next = epoch_of(word) + 1;
    if next < LENT_EPOCHS { next } else { 1 }
}

/// The epoch of a word.
pub fn epoch_of(word: u64) -> u32 {
    (word >> LENGTH_BITS) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::SUPERBLOCK_OFFSETS;

    fn room() -> LentRoom {
        LentRoom { inode: InodeNumber::new(77), generation: 5, epoch: 9, size: 1000, bytes: 64_536 }
    }

    #[test]
    fn the_table_lies_between_the_superblocks() {
        let end = LENT_TABLE_OFFSET + LENT_TABLE_BYTES as u64;
        assert!(SUPERBLOCK_OFFSETS[0] + 1024 <= LENT_TABLE_OFFSET && end <= SUPERBLOCK_OFFSETS[1]);
        assert_eq!(lent_line(LENT_SLOTS - 1).offset_bytes() + 2 * LINE_BYTES as u64, end);
    }

    #[test]
    fn lines_survive_and_damage_shows() {
        let (pair, at) = (PairSeed::new(uuid::Uuid::from_u128(3)), lent_line(4));
        let line = room().encode(pair, at);
        assert_eq!(LentRoom::decode(&line, pair, at), Ok(Some(room())));
        assert_eq!(LentRoom::decode(&EMPTY_LINE, pair, at), Ok(None));
        assert!(LentRoom::decode(&line, pair, lent_line(5)).is_err(), "elsewhere");
        let mut unused = line;
        unused[..LENT_MARK_BYTES].fill(0);
        assert_eq!(LentRoom::decode(&unused, pair, at), Ok(None), "the rest means nothing then");
        for bit in 0..LINE_BYTES * 8 {
            let mut damaged = line;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(LentRoom::decode(&damaged, pair, at).is_err(), "bit {bit}");
        }
        for wrong in [
            LentRoom { epoch: 0, ..room() },
            LentRoom { epoch: LENT_EPOCHS, ..room() },
            LentRoom { bytes: 0, ..room() },
            LentRoom { bytes: 1 << LENGTH_BITS, ..room() },
            LentRoom { size: FILE_BYTES_MAX - 10, ..room() },
        ] {
            assert!(matches!(LentRoom::decode(&wrong.encode(pair, at), pair, at), Err(Corrupt::Field { .. })), "{wrong:?}");
        }
    }

    #[test]
    fn words_are_believed_within_the_room() {
        let room = room();
        assert_eq!((room.size_by(room.word(0)), room.size_by(room.word(64_536))), (Some(1000), Some(65_536)));
        assert_eq!((room.size_by(room.word(64_537)), room.size_by(lent_word(8, 500)), room.size_by(0)), (None, Some(1000), Some(1000)));
        assert_eq!((next_epoch(0), next_epoch(room.word(3)), next_epoch(lent_word(LENT_EPOCHS - 1, 7))), (1, 10, 1));
    }
}
