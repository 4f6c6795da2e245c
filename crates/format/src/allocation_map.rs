//! Map pieces: the allocation maps as a clean unmount saves them. They are derived state: after a crash they are ignored and rebuilt.
//!
//! A piece is a header line and 32,768 bits, where 1 means allocated: lines of one unit of the memory zone, or sectors of the block zone.
//! It is valid only with the superblock's clean flag and for the mount generation in its header (RULES R25).

use zerocopy::{FromBytes, IntoBytes};

use crate::checksum::{PairSeed, crc32c_extend};
use crate::integer::{U32, U64};
use crate::{EMPTY_LINE, Line};

/// Bytes of bits in a piece.
pub const PIECE_BYTES: usize = 4096;

persistent! {
    /// Header of a map piece; its bits follow in the next 64 lines.
    pub struct PieceHeader [64] {
        /// CRC-32C of bytes 4..64 and of the bits, seeded with the pair.
        crc: U32 = 0,
        /// 1 memory unit with data logs, 2 unit of a region, 3 fixed part, 4 free unit, 5 sectors, 6 memory unit with extents of files.
        kind: U32 = 4,
        /// Number of the piece.
        index: U64 = 8,
        /// Mount generation that saved it.
        generation: U64 = 16,
        /// Zero.
        zero: [u8; 40] = 24,
    }
}

/// Kind of space that a piece covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceKind {
    /// A unit of the data area with slots of data logs.
    Data,
    /// A unit that a segment names.
    Region,
    /// A unit of the fixed parts.
    Fixed,
    /// A free unit.
    Free,
    /// Sectors of the block zone.
    Sectors,
    /// A unit of the data area with extents of files.
    Extents,
}

impl PieceKind {
    const ALL: [Self; 6] = [Self::Data, Self::Region, Self::Fixed, Self::Free, Self::Sectors, Self::Extents];

    fn number(self) -> u32 {
        match self {
            Self::Data => 1,
            Self::Region => 2,
            Self::Fixed => 3,
            Self::Free => 4,
            Self::Sectors => 5,
            Self::Extents => 6,
        }
    }
}

/// The sealed header of a piece.
pub fn encode(pair: PairSeed, kind: PieceKind, index: u64, generation: u64, bits: &[u8]) -> Line {
    let mut header =
        PieceHeader { crc: 0.into(), kind: kind.number().into(), index: index.into(), generation: generation.into(), zero: [0; 40] };
    header.crc = checksum(pair, &header, bits).into();
    let mut line = EMPTY_LINE;
    line.copy_from_slice(header.as_bytes());
    line
}

/// What the piece covers, if it is valid for this generation.
pub fn decode(pair: PairSeed, index: u64, generation: u64, line: &Line, bits: &[u8]) -> Option<PieceKind> {
    let header = PieceHeader::read_from_bytes(line).ok()?;
    if header.crc.get() != checksum(pair, &header, bits) || header.index.get() != index || header.generation.get() != generation {
        return None;
    }
    PieceKind::ALL.into_iter().find(|kind| kind.number() == header.kind.get())
}

fn checksum(pair: PairSeed, header: &PieceHeader, bits: &[u8]) -> u32 {
    crc32c_extend(pair.data(&header.as_bytes()[4..]), bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_valid_for_its_generation_and_bits_only() {
        let pair = PairSeed::new(uuid::Uuid::from_u128(1));
        let mut bits = vec![0x5a; PIECE_BYTES];
        let header = encode(pair, PieceKind::Data, 3, 8, &bits);
        assert_eq!(decode(pair, 3, 8, &header, &bits), Some(PieceKind::Data));
        assert_eq!(decode(pair, 3, 9, &header, &bits), None);
        assert_eq!(decode(pair, 4, 8, &header, &bits), None);
        bits[100] ^= 4;
        assert_eq!(decode(pair, 3, 8, &header, &bits), None);
    }
}
