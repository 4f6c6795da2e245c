//! CRC-32C for everything, seeded so that a checksum also proves the place of the bytes.
//!
//! - A metadata line: bytes 4..64, seeded with (pair, line address, owning inode, its generation). The first four bytes of the line store
//!   the result.
//! - File data: one checksum for each sector or data log, seeded with (pair) only, not with the owner, so that several owners can share
//!   data. The pointer next to the checksum proves the place.
//!
//! When a few lines of a sector change, its new checksum is computed by linearity ([`crate::linearity`], RULES R18).
//!
//! Not detected: a lost write of a line, which leaves the older, valid version in place.

use crc_fast::{CrcAlgorithm, Digest};

use crate::{Corrupt, EMPTY_LINE, InodeNumber, LINE_BYTES, Line, LineAddress};

/// CRC-32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c_extend(0, bytes)
}

/// The CRC-32C of a message whose first part has `crc`, extended by `bytes`.
pub fn crc32c_extend(crc: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}

/// Seed of all checksums of one pair: the CRC of its UUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairSeed(u32);

impl PairSeed {
    /// The seed of the pair with this UUID.
    pub fn new(pair: uuid::Uuid) -> Self {
        Self(crc32c(pair.as_bytes()))
    }

    /// The checksum of file data (a sector, a data log).
    pub fn data(self, bytes: &[u8]) -> u32 {
        crc32c_extend(self.0, bytes)
    }

    /// The checksum of data that had `crc` and got `bytes` appended (RULES R10).
    pub fn data_extend(self, crc: u32, bytes: &[u8]) -> u32 {
        crc32c_extend(crc, bytes)
    }

    /// The seed for a journal record: it proves ring, wrap and mount generation (RULES R3).
    pub fn journal(self, ring: u32, wrap: u32, generation: u64) -> u32 {
        let mut place = [0; 16];
        place[..4].copy_from_slice(&ring.to_le_bytes());
        place[4..8].copy_from_slice(&wrap.to_le_bytes());
        place[8..].copy_from_slice(&generation.to_le_bytes());
        crc32c_extend(self.0, &place)
    }

    /// The hash of a name in a directory: seeded with the pair, so that collisions made for one file system do not fit another.
    pub fn name_hash(self, name: &[u8]) -> u32 {
        crc32c_extend(!self.0, name)
    }
}

/// Place of a metadata line; the seed of its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The pair's seed.
    pub pair: PairSeed,
    /// The line's address.
    pub address: LineAddress,
    /// The inode that owns the line; 0 for the segment table.
    pub inode: InodeNumber,
    /// That inode's generation; 0 for inode lines themselves and the segment table.
    pub generation: u32,
}

impl Place {
    /// The correct checksum of `line` at this place.
    pub fn checksum(&self, line: &Line) -> u32 {
        let mut message = [0; 20 + LINE_BYTES - 4];
        message[..8].copy_from_slice(&self.address.number().to_le_bytes());
        message[8..16].copy_from_slice(&self.inode.get().to_le_bytes());
        message[16..20].copy_from_slice(&self.generation.to_le_bytes());
        message[20..].copy_from_slice(&line[4..]);
        crc32c_extend(self.pair.0, &message)
    }

    /// `line` with its checksum set.
    pub fn seal(&self, mut line: Line) -> Line {
        let checksum = self.checksum(&line);
        line[..4].copy_from_slice(&checksum.to_le_bytes());
        line
    }

    /// Accepts a line that is empty or has the correct checksum.
    pub fn verify(&self, line: &Line) -> Result<(), Corrupt> {
        let found = u32::from_le_bytes([line[0], line[1], line[2], line[3]]);
        // Most lines are written ones, so the checksum comes first; an empty line has a zero where it would be.
        let expected = self.checksum(line);
        if found == expected || (found == 0 && *line == EMPTY_LINE) {
            Ok(())
        } else {
            Err(Corrupt::Checksum { address: self.address, found, expected })
        }
    }

    /// The line that verifies here and differs from `line` in one bit, if there is one. CRC-32C detects any five wrong bits of so short a
    /// message, so at most one line does unless more bits are wrong; of lines of noise one in eight million has such a neighbour.
    pub fn corrected(&self, line: &Line) -> Option<Line> {
        let mut candidate = *line;
        for bit in 0..LINE_BYTES * 8 {
            let (byte, mask) = (bit / 8, 1 << (bit % 8));
            if let Some(byte) = candidate.get_mut(byte) {
                *byte ^= mask;
            }
            if candidate != EMPTY_LINE && self.verify(&candidate).is_ok() {
                return Some(candidate);
            }
            if let Some(byte) = candidate.get_mut(byte) {
                *byte ^= mask;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(address: u64, inode: u64, generation: u32) -> Place {
        Place {
            pair: PairSeed::new(uuid::Uuid::from_u128(7)),
            address: LineAddress::new(address),
            inode: InodeNumber::new(inode),
            generation,
        }
    }

    #[test]
    fn crc_is_castagnoli_and_extends() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c_extend(crc32c(b"1234"), b"56789"), 0xe306_9283);
    }

    #[test]
    fn a_line_verifies_only_where_it_was_sealed() {
        let sealed = place(9, 3, 1).seal([5; LINE_BYTES]);
        assert_eq!(place(9, 3, 1).verify(&sealed), Ok(()));
        for other in [place(10, 3, 1), place(9, 4, 1), place(9, 3, 2)] {
            assert!(matches!(other.verify(&sealed), Err(Corrupt::Checksum { .. })));
        }
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let sealed = place(9, 3, 1).seal([5; LINE_BYTES]);
        for bit in 0..LINE_BYTES * 8 {
            let mut damaged = sealed;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(place(9, 3, 1).verify(&damaged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn one_wrong_bit_is_corrected_and_nothing_else_is() {
        let sealed = place(9, 3, 1).seal([5; LINE_BYTES]);
        for bit in 0..LINE_BYTES * 8 {
            let mut damaged = sealed;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(place(9, 3, 1).corrected(&damaged), Some(sealed), "bit {bit}");
            damaged[(bit / 8 + 20) % LINE_BYTES] ^= 1 << (bit % 8);
            assert_eq!(place(9, 3, 1).corrected(&damaged), None, "two bits, the first {bit}");
        }
        assert_eq!(place(10, 3, 1).corrected(&sealed), None, "a valid line of another place");
        let mut one = EMPTY_LINE;
        one[50] = 8;
        assert_eq!(place(9, 3, 1).corrected(&one), None, "an empty line proves nothing");
    }
}
