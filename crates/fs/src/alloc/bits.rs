//! 32,768 bits, 1 = taken: the lines of a unit of the memory zone, or a group of sectors. A word is a 4 KiB page of lines.
//!
//! Where all are free, or all are taken, there are no words in host memory: neither free units nor those of whole aligned extents need any.

use tandemfs_format::UNIT_LINES;

pub(crate) const WORDS: usize = (UNIT_LINES / 64) as usize;

#[derive(Debug, Clone)]
pub(crate) struct Bits {
    /// None if no bit is taken, and if all are: `free` says which.
    words: Option<Box<[u64; WORDS]>>,
    free: u32,
}

const ALL_FREE: &[u64; WORDS] = &[0; WORDS];
const ALL_TAKEN: &[u64; WORDS] = &[u64::MAX; WORDS];
const BITS: u32 = UNIT_LINES as u32;

/// The start of a run of bits: its word and the bit in that word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) word: usize,
    pub(crate) bit: u32,
}

impl Found {
    pub(crate) fn index(self) -> u64 {
        self.word as u64 * 64 + u64::from(self.bit)
    }
}

fn mask(count: u32) -> u64 {
    if count == 64 { u64::MAX } else { (1 << count) - 1 }
}

/// Bits where an aligned run of `count` (a power of two) may start.
fn aligned_starts(count: u32) -> u64 {
    match count {
        1 => u64::MAX,
        2 => 0x5555_5555_5555_5555,
        4 => 0x1111_1111_1111_1111,
        8 => 0x0101_0101_0101_0101,
        16 => 0x0001_0001_0001_0001,
        32 => 0x0000_0001_0000_0001,
        64 => 1,
        other => unreachable!("runs are aligned to powers of two, not {other}"),
    }
}

impl Bits {
    /// All free.
    pub(crate) fn new() -> Self {
        Self { words: None, free: BITS }
    }

    /// From a saved map.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        let (whole, rest) = bytes.as_chunks::<8>();
        assert!(whole.len() == WORDS && rest.is_empty());
        let mut words = Box::new(*ALL_FREE);
        words.iter_mut().zip(whole).for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
        let taken: u32 = words.iter().map(|word| word.count_ones()).sum();
        let mut bits = Self { words: Some(words), free: BITS - taken };
        bits.drop_equal_words();
        bits
    }

    fn words(&self) -> &[u64; WORDS] {
        let equal = if self.free == 0 { ALL_TAKEN } else { ALL_FREE };
        self.words.as_deref().unwrap_or(equal)
    }

    /// The words to change. Who has changed them counts `free`, and calls [`drop_equal_words`](Self::drop_equal_words).
    fn words_mut(&mut self) -> &mut [u64; WORDS] {
        let equal = if self.free == 0 { ALL_TAKEN } else { ALL_FREE };
        self.words.get_or_insert_with(|| Box::new(*equal))
    }

    fn drop_equal_words(&mut self) {
        if self.free == 0 || self.free == BITS {
            self.words = None;
        }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        self.words().iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Number of free bits.
    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    pub(crate) fn word(&self, word: usize) -> u64 {
        self.words()[word]
    }

    /// The start of a run of `count` ≤ 64 free bits inside one word.
    pub(crate) fn fit(word: u64, count: u32, aligned: bool) -> Option<u32> {
        let mut starts = !word;
        let mut length = 1;
        while length < count {
            let shift = length.min(count - length);
            starts &= starts >> shift;
            length += shift;
        }
        if aligned {
            starts &= aligned_starts(count);
        }
        (starts != 0).then(|| starts.trailing_zeros())
    }

    /// Takes a run inside one word, if there is one.
    pub(crate) fn take_in_word(&mut self, word: usize, count: u32, aligned: bool) -> Option<Found> {
        let bit = Self::fit(self.words()[word], count, aligned)?;
        self.words_mut()[word] |= mask(count) << bit;
        self.free -= count;
        self.drop_equal_words();
        Some(Found { word, bit })
    }

    /// Takes a run of any length, from the words `from..to`. A run over 64 bits starts at a word boundary. Bits after it in its last word
    /// may be taken, so that it fits the hole that a run of its length left.
    pub(crate) fn take(&mut self, from: usize, to: usize, count: u32, aligned: bool) -> Option<Found> {
        if self.free < count {
            return None;
        }
        if count <= 64 {
            return (from..to).find_map(|word| if self.word(word) == u64::MAX { None } else { self.take_in_word(word, count, aligned) });
        }
        let words = count.div_ceil(64) as usize;
        let step = if aligned { words.next_power_of_two() } else { 1 };
        let mut word = from.next_multiple_of(step);
        while word + words <= to {
            if self.is_free(word as u64 * 64, count.into()) {
                let found = Found { word, bit: 0 };
                self.set(found.index(), u64::from(count));
                return Some(found);
            }
            word += step;
        }
        None
    }

    /// Counts aligned runs of `count` (a power of two) free bits, as found by [`Bits::take`], in the words before `to`.
    pub(crate) fn count_runs(&self, to: usize, count: u32) -> u64 {
        if self.free < count {
            return 0;
        }
        if count > 64 {
            let words = (count / 64) as usize;
            return self.words()[..to].chunks_exact(words).filter(|run| run.iter().all(|word| *word == 0)).count() as u64;
        }
        let runs = |word: &u64| {
            let (mut starts, mut length) = (!word, 1);
            while length < count {
                starts &= starts >> length;
                length *= 2;
            }
            u64::from((starts & aligned_starts(count)).count_ones())
        };
        self.words()[..to].iter().map(runs).sum()
    }

    /// Whether all of these bits are free.
    pub(crate) fn is_free(&self, start: u64, count: u64) -> bool {
        let mut at = start;
        while at < start + count {
            let bit = (at % 64) as u32;
            let here = (64 - u64::from(bit)).min(start + count - at);
            if self.word((at / 64) as usize) & (mask(here as u32) << bit) != 0 {
                return false;
            }
            at += here;
        }
        true
    }

    /// Takes these bits. False if any of them was already taken.
    pub(crate) fn set(&mut self, start: u64, count: u64) -> bool {
        let mut were_free = true;
        self.each_word(start, count, |word, bits| {
            were_free &= *word & bits == 0;
            let newly = bits & !*word;
            *word |= bits;
            -i64::from(newly.count_ones())
        });
        were_free
    }

    /// Whether all of these bits are taken.
    pub(crate) fn is_taken(&self, start: u64, count: u64) -> bool {
        let mut at = start;
        while at < start + count {
            let bit = at % 64;
            let here = (64 - bit).min(start + count - at);
            let bits = mask(here as u32) << bit;
            if self.word((at / 64) as usize) & bits != bits {
                return false;
            }
            at += here;
        }
        true
    }

    /// Frees these bits, which must be taken: a caller that frees space named by an on-device pointer checks [`Bits::is_taken`] first.
    pub(crate) fn clear(&mut self, start: u64, count: u64) {
        self.each_word(start, count, |word, bits| {
            assert_eq!(*word & bits, bits, "space is freed once");
            *word &= !bits;
            i64::from(bits.count_ones())
        });
    }

    /// Changes words by `change`, which says how many bits it has freed.
    fn each_word(&mut self, start: u64, count: u64, mut change: impl FnMut(&mut u64, u64) -> i64) {
        let mut freed = 0;
        let words = self.words_mut();
        let mut at = start;
        while at < start + count {
            let bit = (at % 64) as u32;
            let here = (64 - u64::from(bit)).min(start + count - at);
            freed += change(&mut words[(at / 64) as usize], mask(here as u32) << bit);
            at += here;
        }
        self.free = (i64::from(self.free) + freed) as u32;
        self.drop_equal_words();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run over 64 bits did not find the hole of an earlier run of its length if the rest of its last word was taken since: a block of
    /// the transient room was never returned to it.
    #[test]
    fn regression_a_long_run_fits_into_the_hole_of_its_length() {
        let mut bits = Bits::new();
        let first = bits.take(0, WORDS, 65, false).expect("room").index();
        bits.set(65, WORDS as u64 * 64 - 65);
        bits.clear(first, 65);
        assert_eq!(bits.take(0, WORDS, 65, false).map(|found| found.index()), Some(first));
        assert_eq!(bits.free(), 0);
    }

    #[test]
    fn as_many_runs_are_counted_as_can_be_taken() {
        for count in [1, 2, 4, 8, 16, 32, 64, 128, 256] {
            let mut bits = Bits::new();
            for step in 0..97 {
                bits.set(step * 311 % UNIT_LINES, 1 + step % 40);
            }
            for to in [WORDS, WORDS / 2, 0] {
                let mut left = bits.clone();
                let mut taken = 0;
                while left.take(0, to, count, true).is_some() {
                    taken += 1;
                }
                assert_eq!(bits.count_runs(to, count), taken, "{count} before {to}");
            }
        }
    }

    #[test]
    fn runs_fit_where_they_are_free_and_aligned() {
        assert_eq!(Bits::fit(0, 64, true), Some(0));
        assert_eq!(Bits::fit(1, 64, true), None);
        assert_eq!(Bits::fit(0b0111, 4, true), Some(4));
        assert_eq!(Bits::fit(0b0111, 4, false), Some(3));
        assert_eq!(Bits::fit(u64::MAX >> 5, 5, false), Some(59));
        assert_eq!(Bits::fit(u64::MAX >> 5, 6, false), None);
        assert_eq!(Bits::fit(u64::MAX, 1, false), None);
    }

    #[test]
    fn everything_can_be_taken_once_and_given_back() {
        for (count, aligned) in [(1, true), (4, true), (16, true), (64, true), (3, false), (256, true), (70, false)] {
            let mut bits = Bits::new();
            let mut found = Vec::new();
            while let Some(run) = bits.take(0, WORDS, count, aligned) {
                assert!(!aligned || run.index() % u64::from(count) == 0);
                found.push(run.index());
            }
            let spare = if count > 64 { count.next_multiple_of(64) - count } else { 64 % count }; // a run over 64 bits starts at a word
            assert!(bits.free() <= (found.len() as u32 + 512) * spare, "{count}: {} left", bits.free());
            for index in found {
                bits.clear(index, count.into());
            }
            assert_eq!(bits.free(), UNIT_LINES as u32);
        }
    }

    #[test]
    fn taking_twice_is_seen_and_saving_keeps_all() {
        let mut bits = Bits::new();
        assert!(bits.set(100, 1000));
        assert!(!bits.set(1099, 2));
        assert_eq!(bits.free(), UNIT_LINES as u32 - 1001);
        let again = Bits::from_bytes(&bits.to_bytes());
        assert_eq!((again.free(), again.to_bytes()), (bits.free(), bits.to_bytes()));
    }

    #[test]
    fn where_all_bits_are_equal_they_take_no_host_memory() {
        let held = |bits: &Bits| bits.words.is_some();
        let mut bits = Bits::new();
        assert!(!held(&bits) && bits.is_free(0, UNIT_LINES) && !bits.is_taken(5, 1) && bits.count_runs(WORDS, 64) == WORDS as u64);
        let found = bits.take(0, WORDS, 3, false).expect("room");
        assert!(bits.set(100, 1000) && held(&bits));
        bits.clear(100, 1000);
        assert!(held(&bits) && !bits.is_free(found.index(), 1));
        bits.clear(found.index(), 3);
        assert!(!held(&bits) && !held(&Bits::from_bytes(&bits.to_bytes())));
        assert_eq!((bits.free(), bits.to_bytes()), (BITS, vec![0; WORDS * 8]));
        assert!(bits.set(0, UNIT_LINES) && !held(&bits) && bits.is_taken(0, UNIT_LINES) && bits.count_runs(WORDS, 1) == 0);
        assert!(!held(&Bits::from_bytes(&bits.to_bytes())) && bits.take(0, WORDS, 1, false).is_none());
        assert!(!bits.set(7, 1), "it was taken");
        bits.clear(UNIT_LINES - 1, 1);
        assert!(held(&bits) && bits.free() == 1 && bits.is_free(UNIT_LINES - 1, 1) && bits.is_taken(0, UNIT_LINES - 1));
        assert_eq!(bits.take(0, WORDS, 1, true).map(|found| found.index()), Some(UNIT_LINES - 1));
        assert!(!held(&bits) && bits.to_bytes() == vec![0xff; WORDS * 8]);
    }

    #[test]
    fn what_is_taken_is_told_from_what_is_free() {
        let mut bits = Bits::new();
        assert!(bits.set(60, 10));
        assert!(bits.is_taken(60, 10) && !bits.is_taken(59, 5) && !bits.is_taken(65, 6));
        bits.clear(60, 10);
        assert!(!bits.is_taken(60, 10) && bits.is_free(60, 10));
    }

    #[test]
    #[should_panic(expected = "space is freed once")]
    fn freeing_twice_is_a_bug() {
        Bits::new().clear(0, 1);
    }
}
