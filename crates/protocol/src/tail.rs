//! The last bytes of a file with the room that is lent behind them, in a data area: six integers of 8 bytes.
//!
//! [MSG8] A client stores nothing by a tail that it has not decoded: bytes and room lie in the zone, one behind the other; the word is eight aligned
//!        bytes of the zone elsewhere; the words of all lengths up to the room differ from the first one in their length alone.

use crate::{LentRange, Malformed};

/// Bytes of a tail in a data area.
pub const LENT_TAIL_BYTES: usize = 48;
/// Bits of a word that are the length.
pub const TAIL_LENGTH_BITS: u32 = 40;

/// What a client may append to by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LentTail {
    /// The last bytes of the file, up to its size when it was lent.
    pub last: LentRange,
    /// The room, in bytes. It follows `last`, in the file and in the zone.
    pub room_bytes: u64,
    /// Where in the zone the word is, in bytes.
    pub word_offset: u64,
    /// The word that says that none of the room is the file's. One that says `n` bytes is `word + n`.
    pub word: u64,
}

impl LentTail {
    /// As bytes.
    pub fn encode(&self) -> [u8; LENT_TAIL_BYTES] {
        let LentRange { file_offset, zone_offset, bytes } = self.last;
        let mut encoded = [0; LENT_TAIL_BYTES];
        let words = [file_offset, zone_offset, bytes, self.room_bytes, self.word_offset, self.word];
        encoded.as_chunks_mut().0.iter_mut().zip(words).for_each(|(place, word)| *place = word.to_le_bytes());
        encoded
    }

    /// From a data area, in a zone of so many bytes ([MSG8]).
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(encoded: &[u8], zone_bytes: u64) -> Result<Self, Malformed> {
        let malformed = Malformed::Field("room behind a file that is none");
        let (words, rest) = encoded.as_chunks::<8>();
        let [file_offset, zone_offset, bytes, room_bytes, word_offset, word] = words else { return Err(malformed) };
        let tail = Self {
            last: LentRange {
                file_offset: u64::from_le_bytes(*file_offset),
                zone_offset: u64::from_le_bytes(*zone_offset),
                bytes: u64::from_le_bytes(*bytes),
            },
            room_bytes: u64::from_le_bytes(*room_bytes),
            word_offset: u64::from_le_bytes(*word_offset),
            word: u64::from_le_bytes(*word),
        };
        match rest.is_empty() && tail.is_sound(zone_bytes) {
            true => Ok(tail),
            false => Err(malformed),
        }
    }

    fn is_sound(&self, zone_bytes: u64) -> bool {
        let LentRange { file_offset, zone_offset, bytes } = self.last;
        let end_of = |offset: u64, most: u64| {
            let end = offset.checked_add(bytes).and_then(|end| end.checked_add(self.room_bytes));
            end.filter(|end| *end <= most)
        };
        let Some(end) = end_of(zone_offset, zone_bytes) else { return false };
        let word_end = self.word_offset.checked_add(8).filter(|end| *end <= zone_bytes);
        let is_elsewhere = word_end.is_some_and(|word_end| word_end <= zone_offset || end <= self.word_offset);
        let says_none = self.word & ((1 << TAIL_LENGTH_BITS) - 1) == 0;
        let is_whole = self.word_offset.is_multiple_of(8) && bytes > 0 && (1..1 << TAIL_LENGTH_BITS).contains(&self.room_bytes);
        end_of(file_offset, i64::MAX as u64).is_some() && is_elsewhere && says_none && is_whole
    }

    /// The size of the file when it was lent, in bytes.
    pub fn size(&self) -> u64 {
        self.last.file_offset + self.last.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZONE: u64 = 64 << 20;

    fn tail() -> LentTail {
        let last = LentRange { file_offset: 3 << 16, zone_offset: 7 << 16, bytes: 100 };
        LentTail { last, room_bytes: 65_436, word_offset: 4096 + 64, word: 9 << TAIL_LENGTH_BITS }
    }

    #[test]
    fn tails_survive_their_bytes() {
        let whole = LentTail { last: LentRange { zone_offset: ZONE - (1 << 16), ..tail().last }, ..tail() };
        for tail in [tail(), whole, LentTail { word_offset: (7 << 16) - 8, ..tail() }, LentTail { word_offset: 8 << 16, ..tail() }] {
            assert_eq!(LentTail::decode(&tail.encode(), ZONE), Ok(tail));
        }
        assert_eq!(tail().size(), (3 << 16) + 100);
    }

    /// [MSG8]
    #[test]
    fn a_tail_that_is_none_is_malformed() {
        let with = |last: LentRange| LentTail { last, ..tail() };
        let last = tail().last;
        for wrong in [
            with(LentRange { bytes: 0, ..last }),
            with(LentRange { bytes: u64::MAX, ..last }),
            with(LentRange { zone_offset: ZONE - (1 << 16) + 1, ..last }),
            with(LentRange { zone_offset: u64::MAX, ..last }),
            with(LentRange { file_offset: i64::MAX as u64 - 65_535, ..last }),
            LentTail { room_bytes: 0, ..tail() },
            LentTail { room_bytes: 1 << TAIL_LENGTH_BITS, ..tail() },
            LentTail { room_bytes: u64::MAX, ..tail() },
            LentTail { word_offset: 4097, ..tail() },
            LentTail { word_offset: ZONE, ..tail() },
            LentTail { word_offset: u64::MAX - 7, ..tail() },
            LentTail { word_offset: 7 << 16, ..tail() },
            LentTail { word_offset: (8 << 16) - 8, ..tail() },
            LentTail { word: tail().word + 1, ..tail() },
        ] {
            assert!(LentTail::decode(&wrong.encode(), ZONE).is_err(), "{wrong:?}");
        }
        for length in [0, 8, 47, 49, 56] {
            assert!(LentTail::decode(&vec![1; length], ZONE).is_err(), "{length} bytes");
        }
    }
}
