//! Lines of a mapping page whose records are all holes: empty, or sealed like every other line.
//!
//! A sealed line of holes tells holes from a line that was lost: with [`ro_compat::SEALED_HOLES`], zeros are a valid mapping line only
//! where their checksum is 0.

use crate::checksum::Place;
use crate::mapping::{LINE_RECORDS, Record, RecordBytes, mapping_line};
use crate::superblock::ro_compat;
use crate::{Corrupt, EMPTY_LINE, LINE_BYTES, Line, PAGE_BYTES};

/// How lines of holes are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoleLines {
    /// As empty lines (file systems without [`ro_compat::SEALED_HOLES`]). Sealed lines of holes are valid, too.
    Empty,
    /// With their checksum.
    Sealed,
}

impl HoleLines {
    /// How a file system with these features stores them.
    pub fn of(ro_compat: u64) -> Self {
        if ro_compat & ro_compat::SEALED_HOLES == 0 { Self::Empty } else { Self::Sealed }
    }

    /// The line of a mapping page with these records.
    pub fn line(self, records: &[RecordBytes; LINE_RECORDS], place: &Place) -> Line {
        let sealed = mapping_line(records, place);
        if self == Self::Empty && holds_only_holes(&sealed) { EMPTY_LINE } else { sealed }
    }

    /// The line of a mapping page without records.
    pub fn line_of_holes(self, place: &Place) -> Line {
        self.line(&[Record::HOLE.encode(); LINE_RECORDS], place)
    }

    /// A mapping page with these records (192). `place` is that of its first line.
    pub fn page(self, records: &[RecordBytes], place: &Place) -> Box<[u8; PAGE_BYTES]> {
        let mut page = Box::new([0; PAGE_BYTES]);
        let lines = page.as_chunks_mut::<LINE_BYTES>().0;
        for ((line, records), index) in lines.iter_mut().zip(records.as_chunks::<LINE_RECORDS>().0).zip(0..) {
            *line = self.line(records, &Place { address: place.address.nth(index), ..*place });
        }
        page
    }

    /// Verifies a line of a mapping page in use.
    pub fn verify(self, line: &Line, place: &Place) -> Result<(), Corrupt> {
        if self == Self::Empty || *line != EMPTY_LINE {
            return place.verify(line);
        }
        match place.checksum(line) {
            0 => Ok(()),
            expected => Err(Corrupt::Checksum { address: place.address, found: 0, expected }),
        }
    }

    /// Whether it is a valid line of a mapping page in use, without records.
    pub fn are_all(self, line: &Line, place: &Place) -> bool {
        holds_only_holes(line) && self.verify(line, place).is_ok()
    }
}

/// Whether a mapping line holds no record.
pub fn holds_only_holes(line: &Line) -> bool {
    line[4..] == EMPTY_LINE[4..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{InodeNumber, LineAddress, PairSeed};

    fn place(address: u64) -> Place {
        let pair = PairSeed::new(uuid::Uuid::from_u128(1));
        Place { pair, address: LineAddress::new(address), inode: InodeNumber::new(2), generation: 1 }
    }

    #[test]
    fn zeros_are_a_line_of_holes_only_where_lines_of_holes_have_no_checksum() {
        let place = place(640);
        assert_eq!(HoleLines::Empty.line_of_holes(&place), EMPTY_LINE);
        let sealed = HoleLines::Sealed.line_of_holes(&place);
        assert!(sealed != EMPTY_LINE && holds_only_holes(&sealed));
        for holes in [HoleLines::Empty, HoleLines::Sealed] {
            assert!(holes.are_all(&sealed, &place), "sealed lines were always valid");
            assert_eq!(holes.are_all(&EMPTY_LINE, &place), holes == HoleLines::Empty);
            assert!(!holes.are_all(&sealed, &Place { address: LineAddress::new(641), ..place }));
        }
        assert!(matches!(HoleLines::Sealed.verify(&EMPTY_LINE, &place), Err(Corrupt::Checksum { found: 0, .. })));
    }

    /// One place in 2^32 has the checksum 0 for zeros; the seed of a pair that makes one is easy to find for a given line.
    #[test]
    fn zeros_are_valid_where_their_checksum_is_zero() {
        let mut found = None;
        for inode in 0..u64::from(u32::MAX) {
            // The checksum is linear: solving for the four bytes of the generation takes 33 tries.
            let base = Place { inode: InodeNumber::new(inode), generation: 0, ..place(64) };
            let target = base.checksum(&EMPTY_LINE);
            let columns: Vec<u32> = (0..32).map(|bit| Place { generation: 1 << bit, ..base }.checksum(&EMPTY_LINE) ^ target).collect();
            found = solve(&columns, target).map(|generation| Place { generation, ..base });
            if found.is_some() {
                break;
            }
        }
        let place = found.expect("CRC-32 of four bytes takes every value");
        assert_eq!(place.checksum(&EMPTY_LINE), 0);
        assert_eq!(HoleLines::Sealed.line_of_holes(&place), EMPTY_LINE);
        assert!(HoleLines::Sealed.are_all(&EMPTY_LINE, &place));
    }

    /// The combination of columns whose XOR is `target`.
    fn solve(columns: &[u32], mut target: u32) -> Option<u32> {
        let mut basis: [(u32, u32); 32] = [(0, 0); 32];
        for (bit, column) in columns.iter().enumerate() {
            let (mut value, mut mask) = (*column, 1 << bit);
            while value != 0 {
                let top = value.ilog2() as usize;
                if basis[top].0 == 0 {
                    basis[top] = (value, mask);
                    break;
                }
                (value, mask) = (value ^ basis[top].0, mask ^ basis[top].1);
            }
        }
        let mut chosen = 0;
        while target != 0 {
            let (value, mask) = basis[target.ilog2() as usize];
            if value == 0 {
                return None;
            }
            (target, chosen) = (target ^ value, chosen ^ mask);
        }
        Some(chosen)
    }

    #[test]
    fn every_line_of_a_page_is_sealed_for_its_place() {
        for (holes, record) in [(HoleLines::Sealed, Record::HOLE), (HoleLines::Empty, Record::Memory(LineAddress::new(64)))] {
            let page = holes.page(&[record.encode(); 192], &place(640));
            for (line, index) in page.as_chunks::<64>().0.iter().zip(0..) {
                assert!(*line != EMPTY_LINE && holes.verify(line, &place(640 + index)).is_ok(), "{record:?}, line {index}");
            }
        }
        assert_eq!(*HoleLines::Empty.page(&[Record::HOLE.encode(); 192], &place(640)), [0; PAGE_BYTES]);
    }
}
