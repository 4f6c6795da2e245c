//! Journal records: images of whole lines, persisted once; the CRC detects a torn record (RULES R3).
//!
//! A record always contains whole lines, so that replay repairs a home line that a power cut tore (in `adr` only 8 B words are atomic).

use zerocopy::{FromBytes, IntoBytes};

use crate::checksum::{PairSeed, crc32c_extend};
use crate::geometry::RING_BYTES_MIN;
use crate::integer::{U32, U64};
use crate::superblock::COUNTER_MAX;
use crate::{LINE_BYTES, Line, LineAddress};

/// Most lines that one transaction changes (RULES R11).
pub const TX_LINES_MAX: usize = 512;
/// Most bytes of data that one transaction of a write covers. Beyond it a write is several transactions.
pub const TX_DATA_MAX: u64 = 1 << 20;
/// Size of the largest record in a ring, in bytes.
pub const RECORD_BYTES_MAX: usize = record_bytes(TX_LINES_MAX);
/// First word of a record after its checksum.
pub const RECORD_MAGIC: u32 = 0x5444_4d52;

const _: () = assert!(2 * RECORD_BYTES_MAX as u64 <= RING_BYTES_MIN, "two of the largest records fit the smallest ring");

persistent! {
    /// Head of a journal record.
    pub struct RecordHeader [32] {
        /// CRC-32C of bytes 4..`length_bytes`, seeded with pair, ring, wrap and generation.
        crc: U32 = 0,
        /// 0x54444d52.
        magic: U32 = 4,
        /// Bytes of header and changes, without padding.
        length_bytes: U32 = 8,
        /// Number of changes.
        change_count: U32 = 12,
        /// Transaction number, of one counter for all rings.
        txid: U64 = 16,
        /// Wrap count of the ring.
        wrap: U32 = 24,
        /// Zero.
        zero: U32 = 28,
    }
}

persistent! {
    /// One change of a record: the new image of a line.
    pub struct ChangeBytes [72] {
        /// Line of the memory zone.
        address: U64 = 0,
        /// Its bytes.
        image: [u8; 64] = 8,
    }
}

/// Bytes that a record of `changes` lines takes in a ring, padding included.
pub const fn record_bytes(changes: usize) -> usize {
    (size_of::<RecordHeader>() + changes * size_of::<ChangeBytes>()).next_multiple_of(LINE_BYTES)
}

/// Writes a record into `buffer` (cleared first): header, changes, padding. Returns nothing; `buffer` is what goes to the ring.
pub fn encode(buffer: &mut Vec<u8>, seed: u32, wrap: u32, txid: u64, addresses: &[LineAddress], images: &[Line]) {
    assert!(addresses.len() == images.len() && addresses.len() <= TX_LINES_MAX, "a transaction is bounded (R11)");
    let length_bytes = size_of::<RecordHeader>() + addresses.len() * size_of::<ChangeBytes>();
    let mut header = RecordHeader {
        crc: 0.into(),
        magic: RECORD_MAGIC.into(),
        length_bytes: (length_bytes as u32).into(),
        change_count: (addresses.len() as u32).into(),
        txid: txid.into(),
        wrap: wrap.into(),
        zero: 0.into(),
    };
    buffer.clear();
    buffer.extend_from_slice(header.as_bytes());
    for (address, image) in addresses.iter().zip(images) {
        buffer.extend_from_slice(&address.number().to_le_bytes());
        buffer.extend_from_slice(image);
    }
    header.crc = crc32c_extend(seed, &buffer[4..]).into();
    buffer[..4].copy_from_slice(header.crc.as_bytes());
    buffer.resize(record_bytes(addresses.len()), 0);
}

/// A valid record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalRecord {
    /// Transaction number.
    pub txid: u64,
    /// The changes: line and new image.
    pub changes: Vec<(LineAddress, Line)>,
    /// Bytes taken in the ring.
    pub bytes: usize,
}

/// The record at the start of `bytes`; `None` if no record there is valid for this ring position.
pub fn decode(bytes: &[u8], pair: PairSeed, ring: u32, wrap: u32, generation: u64) -> Option<JournalRecord> {
    let (header, _) = RecordHeader::read_from_prefix(bytes).ok()?;
    let (length, count) = (header.length_bytes.get() as usize, header.change_count.get() as usize);
    if header.magic.get() != RECORD_MAGIC
        || header.wrap.get() != wrap
        || header.txid.get() > COUNTER_MAX
        || count > TX_LINES_MAX
        || length != size_of::<RecordHeader>() + count * size_of::<ChangeBytes>()
        || record_bytes(count) > bytes.len()
        || crc32c_extend(pair.journal(ring, wrap, generation), &bytes[4..length]) != header.crc.get()
    {
        return None;
    }
    let changes = bytes[size_of::<RecordHeader>()..length]
        .chunks_exact(size_of::<ChangeBytes>())
        .map(|chunk| match ChangeBytes::read_from_bytes(chunk) {
            Ok(change) => (LineAddress::new(change.address.get()), change.image),
            Err(_) => unreachable!("chunks have the size of a change"),
        })
        .collect();
    Some(JournalRecord { txid: header.txid.get(), changes, bytes: record_bytes(count) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed() -> (PairSeed, Vec<u8>) {
        let pair = PairSeed::new(uuid::Uuid::from_u128(1));
        let mut buffer = Vec::new();
        let addresses = [LineAddress::new(7), LineAddress::new(9)];
        encode(&mut buffer, pair.journal(2, 5, 3), 5, 41, &addresses, &[[1; 64], [2; 64]]);
        (pair, buffer)
    }

    #[test]
    fn record_round_trips_in_its_place_only() {
        let (pair, buffer) = sealed();
        assert_eq!(buffer.len() % LINE_BYTES, 0);
        let record = decode(&buffer, pair, 2, 5, 3).expect("valid");
        assert_eq!((record.txid, record.changes.len(), record.bytes), (41, 2, buffer.len()));
        assert_eq!(record.changes[1], (LineAddress::new(9), [2; 64]));
        assert!(decode(&buffer, pair, 1, 5, 3).is_none(), "another ring");
        assert!(decode(&buffer, pair, 2, 4, 3).is_none(), "another wrap");
        assert!(decode(&buffer, pair, 2, 5, 4).is_none(), "another mount");
        let mut beyond = Vec::new();
        encode(&mut beyond, pair.journal(2, 5, 3), 5, COUNTER_MAX + 1, &[], &[]);
        assert!(decode(&beyond, pair, 2, 5, 3).is_none(), "a txid that nobody counted");
    }

    #[test]
    fn a_record_torn_anywhere_is_none() {
        let (pair, buffer) = sealed();
        for word in 0..(32 + 2 * 72) / 8 {
            let mut torn = buffer.clone();
            if torn[word * 8..word * 8 + 8] == [0; 8] {
                continue;
            }
            torn[word * 8..word * 8 + 8].fill(0);
            assert!(decode(&torn, pair, 2, 5, 3).is_none(), "word {word}");
        }
    }
}
