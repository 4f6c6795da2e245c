//! Finds the generation of an inode whose lines are lost, from a line that the inode owns.
//!
//! [GN1] A CRC is linear: two generations whose difference is d change a line's checksum by M d, whatever the line, with one invertible
//!       32 x 32 matrix M of bits. So a line and the number of its owner give exactly one generation with which the line verifies.
//! [GN2] One line of anything gives some generation. Only a second line of the same page, or the hash of a name in the line, shows that
//!       the owner was the right one.

use tandemfs_format::{EMPTY_LINE, InodeNumber, Line, LineAddress, PairSeed, Place, UNIT_LINES};

/// The inverse of M: for each bit of a checksum, the bits of the word that change it. `checksum_of` is the checksum as a function of the word.
fn inverse_of(checksum_of: impl Fn(u32) -> u32) -> [u32; 32] {
    let base = checksum_of(0);
    // Gauss-Jordan over columns: (what a bit of the word changes in the checksum, the bits of the word).
    let mut columns = [(0_u32, 0_u32); 32];
    for (bit, column) in columns.iter_mut().enumerate() {
        *column = (checksum_of(1 << bit) ^ base, 1 << bit);
    }
    for bit in 0..32 {
        // M is invertible, so each bit has a column left that contains it.
        let Some(position) = (bit..32).find(|at| columns.get(*at).is_some_and(|(change, _)| change >> bit & 1 == 1)) else { continue };
        columns.swap(bit, position);
        let (pivot, word) = columns.get(bit).copied().unwrap_or_default();
        for (at, column) in columns.iter_mut().enumerate() {
            if at != bit && column.0 >> bit & 1 == 1 {
                column.0 ^= pivot;
                column.1 ^= word;
            }
        }
    }
    columns.map(|(_, word)| word)
}

/// The word that makes a change of a checksum.
fn word_of(inverse: &[u32; 32], change: u32) -> u32 {
    inverse.iter().enumerate().fold(0, |word, (bit, of)| word ^ if change >> bit & 1 == 1 { *of } else { 0 })
}

fn place(pair: PairSeed, address: LineAddress, inode: u64, generation: u32) -> Place {
    Place { pair, address, inode: InodeNumber::new(inode), generation }
}

/// By how much the checksum in a line differs from the right one.
fn change_of(place: &Place, line: &Line) -> u32 {
    place.checksum(line) ^ u32::from_le_bytes([line[0], line[1], line[2], line[3]])
}

/// Finds generations.
pub(crate) struct Generations {
    pair: PairSeed,
    inverse: [u32; 32],
}

impl Generations {
    pub(crate) fn new(pair: PairSeed) -> Self {
        let inverse = inverse_of(|generation| place(pair, LineAddress::new(0), 0, generation).checksum(&EMPTY_LINE));
        Self { pair, inverse }
    }

    /// The place at which a line verifies if this inode owns it ([GN1]).
    pub(crate) fn place(&self, inode: u64, address: LineAddress, line: &Line) -> Place {
        let mut place = place(self.pair, address, inode, 0);
        place.generation = word_of(&self.inverse, change_of(&place, line));
        place
    }
}

/// Finds the numbers of inodes from their own lines, whose checksums cover them as [GN1] says of generations.
pub(crate) struct Numbers {
    pair: PairSeed,
    inverse: [u32; 32],
}

impl Numbers {
    pub(crate) fn new(pair: PairSeed) -> Self {
        let inverse = inverse_of(|number| place(pair, LineAddress::new(0), number.into(), 0).checksum(&EMPTY_LINE));
        Self { pair, inverse }
    }

    /// The numbers with which a line is an inode's, as far as a zone of `units` has so many inodes: one for each 2^32.
    pub(crate) fn of(&self, address: LineAddress, line: &Line, units: u64) -> impl Iterator<Item = u64> {
        let limit = units * UNIT_LINES / 2;
        (0..limit.div_ceil(1 << 32))
            .map(move |high| {
                let change = change_of(&place(self.pair, address, high << 32, 0), line);
                high << 32 | u64::from(word_of(&self.inverse, change))
            })
            .filter(move |number| *number < limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandemfs_format::LINE_BYTES;

    #[test]
    fn a_line_and_its_owner_give_the_generation() {
        let pair = PairSeed::new(uuid::Uuid::from_u128(77));
        let generations = Generations::new(pair);
        for generation in [0, 1, 2, 0x8000_0000, 0xdead_beef, u32::MAX] {
            for (inode, address) in [(1, 5), (1 << 33, 1 << 39), (70_000, 123_456)] {
                let place = Place { pair, address: LineAddress::new(address), inode: InodeNumber::new(inode), generation };
                let mut line = [0; LINE_BYTES];
                for (at, byte) in line.iter_mut().enumerate() {
                    *byte = (at as u64 * inode) as u8 ^ 0x5a;
                }
                let sealed = place.seal(line);
                assert_eq!(generations.place(inode, place.address, &sealed), place);
                assert_ne!(generations.place(inode + 1, place.address, &sealed).generation, generation, "another owner");
            }
        }
    }
    #[test]
    fn a_line_of_an_inode_gives_its_number() {
        let pair = PairSeed::new(uuid::Uuid::from_u128(78));
        let numbers = Numbers::new(pair);
        for number in [1, 2, 16_384, 4_000_000_000, 5_000_000_000] {
            let at = LineAddress::new(7 * UNIT_LINES + 2 * number % UNIT_LINES);
            let sealed = place(pair, at, number, 0).seal([0x33; LINE_BYTES]);
            assert!(numbers.of(at, &sealed, 1 << 20).any(|found| found == number), "{number}");
            assert!(numbers.of(at.nth(1), &sealed, 8).all(|found| found != number), "another place");
        }
    }
}
