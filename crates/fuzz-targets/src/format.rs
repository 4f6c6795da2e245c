//! Arbitrary bytes for every decoder of the format: each must refuse them, or return a value that survives encoding.

use std::collections::HashSet;

use tandemfs_format::allocation_map::{self, PIECE_BYTES};
use tandemfs_format::attributes::{AttributePointer, decode_set, encode_set};
use tandemfs_format::dentry::{Dentry, PAGE_SLOTS, decode_slot};
use tandemfs_format::identity::BlockIdentity;
use tandemfs_format::inode::Inode;
use tandemfs_format::journal::{self, TX_LINES_MAX};
use tandemfs_format::mapping::{LINE_RECORDS, Record, RecordBytes, line_entries, line_records};
use tandemfs_format::segment::Segment;
use tandemfs_format::superblock::Superblock;
use tandemfs_format::{EMPTY_LINE, InodeNumber, LINE_BYTES, Line, LineAddress, PairSeed, Place};

use crate::Input;

fn line(input: &mut Input<'_>) -> Line {
    let mut line = EMPTY_LINE;
    let bytes = input.take(LINE_BYTES);
    line[..bytes.len()].copy_from_slice(bytes);
    line
}

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let pair = PairSeed::new(uuid::Uuid::from_u128(7));
    let address = LineAddress::new(640);
    let place = Place { pair, address, inode: InodeNumber::new(5), generation: 3 };
    match input.below(8) {
        0 => {
            let mut copies = [vec![0; 1024], vec![0; 1024]];
            for copy in &mut copies {
                let at = input.number(2) as usize % 1024;
                for (byte, new) in copy[at..].iter_mut().zip(input.take(400)) {
                    *byte = *new;
                }
                copy[4..12].copy_from_slice(b"TandemFS");
                let crc = tandemfs_format::checksum::crc32c(&copy[4..]);
                copy[..4].copy_from_slice(&crc.to_le_bytes());
            }
            if let Ok(superblock) = Superblock::choose([&copies[0], &copies[1]]) {
                let again = zerocopy::IntoBytes::as_bytes(&superblock.encode()).to_vec();
                assert_eq!(Superblock::decode(&again), Ok(superblock), "a superblock changes when it is written");
            }
            let _pair = BlockIdentity::decode(&copies[0]);
        }
        1 => {
            let at = Place { inode: InodeNumber::new(0), generation: 0, ..place };
            if let Ok(Some(segment)) = Segment::decode(&at.seal(line(&mut input)), pair, address, 64) {
                assert_eq!(Segment::decode(&segment.encode(pair, address), pair, address, 64), Ok(Some(segment)));
            }
        }
        2 => {
            let at = |line: LineAddress| Inode::place(pair, place.inode, line);
            let (hot, cold) = (at(address).seal(line(&mut input)), at(address.nth(1)).seal(line(&mut input)));
            if let Ok(Some(inode)) = Inode::decode(pair, place.inode, address, &hot, &cold) {
                let (hot, cold) = (inode.encode_hot(&at(address)), inode.encode_cold(&at(address.nth(1))));
                let again = Inode::decode(pair, place.inode, address, &hot, &cold);
                // Timestamps are clamped to their valid range, so the values may differ.
                assert!(again.is_ok_and(|again| again.is_some()), "an inode that cannot be read again: {inode:?}");
            }
        }
        3 => {
            let sealed = place.seal(line(&mut input));
            for record in line_records(&sealed) {
                check_record(record, address, Record::encode);
            }
            if let Ok(logs) = line_entries(&sealed, address) {
                for log in logs.iter().flatten() {
                    assert!(log.length > 0 && log.length as usize <= log.class.bytes(), "{log:?}");
                }
            }
            assert_eq!(line_records(&sealed).len(), LINE_RECORDS);
        }
        4 => {
            let lines: Vec<Line> = (0..6).map(|_| line(&mut input)).collect();
            let place_of = |slot: usize| Place { address: LineAddress::new(640 + slot as u64), ..place };
            let sealed = |slot: usize| lines.get(slot.wrapping_sub(58)).map_or(EMPTY_LINE, |line| place_of(slot).seal(*line));
            for slot in 0..PAGE_SLOTS as usize {
                let _slot = decode_slot(&sealed(slot), &place_of(slot));
                if let Ok(Some(entry)) = Dentry::decode(slot, sealed, place_of) {
                    let encoded = entry.encode(|index| place_of(slot + index));
                    let again = Dentry::decode(slot, |at| encoded.get(at.wrapping_sub(slot)).copied().unwrap_or(EMPTY_LINE), place_of);
                    assert_eq!(again, Ok(Some(entry)), "an entry changes when it is written");
                }
            }
        }
        5 => {
            let (ring, wrap, generation) = (input.byte() % 4, input.number(4) as u32, input.number(8));
            let mut bytes = input.take(100_000).to_vec();
            bytes.resize(bytes.len().max(32), 0);
            bytes[4..8].copy_from_slice(&journal::RECORD_MAGIC.to_le_bytes());
            bytes[24..28].copy_from_slice(&wrap.to_le_bytes());
            let length = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize;
            if (32..=bytes.len()).contains(&length) {
                let crc = tandemfs_format::checksum::crc32c_extend(pair.journal(ring.into(), wrap, generation), &bytes[4..length]);
                bytes[..4].copy_from_slice(&crc.to_le_bytes());
            }
            if let Some(record) = journal::decode(&bytes, pair, ring.into(), wrap, generation) {
                assert!(record.changes.len() <= TX_LINES_MAX && record.bytes <= bytes.len(), "a record beyond its bytes");
            }
        }
        7 => {
            // An attribute set with a valid checksum; its attributes may be valid.
            let mut stream = vec![0; 8];
            while !input.is_empty() && stream.len() < 4000 {
                let (name, value) = (input.take(1 + usize::from(input_low(&stream))).to_vec(), input.below(40));
                stream.extend([1 + (name.len() % 6) as u8, name.len() as u8, value as u8, 0, 0, 0]);
                stream.extend(name);
                stream.extend(input.take(value));
            }
            let length = stream.len() as u32;
            stream[4..8].copy_from_slice(&length.to_le_bytes());
            let crc = pair.data(&stream[4..]);
            stream[..4].copy_from_slice(&crc.to_le_bytes());
            let pointer = AttributePointer::new(address, stream.len());
            if let Ok(set) = decode_set(pair, pointer, &stream) {
                assert_eq!(encode_set(pair, &set), stream, "a set changes when it is written");
            }
        }
        _ => {
            let (index, generation) = (input.number(2), input.number(2));
            let mut header = line(&mut input);
            header[8..16].copy_from_slice(&index.to_le_bytes());
            header[16..24].copy_from_slice(&generation.to_le_bytes());
            let bits = vec![input.byte(); PIECE_BYTES];
            let crc = tandemfs_format::checksum::crc32c_extend(pair.data(&header[4..]), &bits);
            header[..4].copy_from_slice(&crc.to_le_bytes());
            if let Some(kind) = allocation_map::decode(pair, index, generation, &header, &bits) {
                let again = allocation_map::encode(pair, kind, index, generation, &bits);
                assert_eq!(allocation_map::decode(pair, index, generation, &again, &bits), Some(kind));
            }
        }
    }
}

/// A length derived from the bytes so far.
fn input_low(stream: &[u8]) -> u8 {
    stream.last().copied().unwrap_or(0) % 12
}

/// A record must decode to the same value after it is encoded and decoded again.
fn check_record(bytes: RecordBytes, address: LineAddress, encode: fn(&Record) -> RecordBytes) {
    if let Ok(record) = bytes.decode(address) {
        assert_eq!(encode(&record).decode(address), Ok(record), "a record changes when it is written");
    }
}

pub(crate) fn corpus() -> Vec<Vec<u8>> {
    let mut seen = HashSet::new();
    let noise = (0..8_u8).flat_map(|kind| (0..6_u8).map(move |seed| (kind, seed)));
    let inputs = noise.map(|(kind, seed)| {
        let bytes = (0..200_u16).map(|at| if seed < 3 { u8::from(at % 8 == u16::from(seed)) } else { (at as u8).wrapping_mul(seed) });
        std::iter::once(kind).chain(bytes).collect::<Vec<u8>>()
    });
    inputs.filter(|input| seen.insert(input.clone())).collect()
}

/// See [`crate::Target::lies`].
pub(crate) const LIES: &[(&str, fn())] = &[("a record that is written as a hole", || {
    let page = Record::Memory(LineAddress::new(640)).encode();
    check_record(page, LineAddress::new(640), |_| Record::HOLE.encode());
})];
