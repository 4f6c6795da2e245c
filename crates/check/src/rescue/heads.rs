//! A superblock of two damaged copies.
//!
//! [BH1] A superblock is rebuilt only if its own checksum then verifies ([BH3] says when not), and from bytes of the copies: one wrong bit
//!       of a copy is corrected, or each 64 B come from the copy where they are not damaged, as the copies are equal except during a change.
//! [BH2] Of several results the one with the larger sequence counts, as of two valid copies. Further knowledge is used only if there is none:
//!       constants, zeros, the identity (pair, stamp, UUID), the sizes of the device, the features of new file systems.
//! [BH3] Label, error counters and, after a clean unmount, the tails of the rings exist nowhere else, and nothing else depends on them: they
//!       become empty. The checksum proves nothing then. So the copies must differ in the 64 B that have only such fields and those of
//!       [BH2], and be equal in all others: damage there would have to be the same twice.

use tandemfs_format::LINE_BYTES;
use tandemfs_format::checksum::crc32c;
use tandemfs_format::error_counters::ErrorCounters;
use tandemfs_format::identity::BlockIdentity;
use tandemfs_format::superblock::{ChecksumKind, MAGIC, Superblock, SuperblockBytes, VERSION, compat, incompat, ro_compat};
use zerocopy::IntoBytes;

/// The bytes of a copy.
pub(crate) type Copy = [u8; size_of::<SuperblockBytes>()];

/// Pieces that may be damaged in both copies for [`merged`]: it tries all choices.
const DIFFERING_MAX: usize = 16;
/// The same with further knowledge, which multiplies the choices.
const DIFFERING_MAX_KNOWN: usize = 8;

const PAIR: usize = 40;
const LABEL: std::ops::Range<usize> = 56..120;
const MEMORY_BYTES: usize = 120;
const BLOCK_SECTORS: usize = 128;
const CHECKSUM_KIND: usize = 140;
const CLEAN: usize = 141;
const STAMP_PENDING: usize = 188;
const STAMP: usize = 196;
const VOLUME_UUID: usize = 204;
const COUNTERS: std::ops::Range<usize> = 220..340;
const RESERVED: std::ops::Range<usize> = 340..512;
const TAILS: std::ops::Range<usize> = 512..1024;

/// What is known beside the copies.
pub(crate) struct Known {
    pub(crate) identity: Option<BlockIdentity>,
    pub(crate) memory_bytes: u64,
    pub(crate) block_sectors: u64,
}

/// A superblock that was put together.
pub(crate) struct Rebuilt {
    pub(crate) superblock: Superblock,
    pub(crate) bytes: Copy,
    /// What it lost, for people.
    pub(crate) lost: Option<String>,
}

/// The superblock that two damaged copies show, with its bytes.
pub(crate) fn rebuild(copies: &[Copy; 2], known: &Known) -> Option<Rebuilt> {
    let mut found: Vec<(Superblock, Copy)> = copies.iter().filter_map(corrected).collect();
    found.extend(merged(copies, DIFFERING_MAX, accepted));
    let found = found.into_iter().max_by_key(|(superblock, _)| superblock.sequence);
    let found = found.or_else(|| merged(copies, DIFFERING_MAX_KNOWN, |copy| with_known(copy, known)));
    match found {
        Some((superblock, bytes)) => Some(Rebuilt { superblock, bytes, lost: None }),
        None => without_proof(copies, known),
    }
}

fn accepted(copy: &Copy) -> Option<(Superblock, Copy)> {
    Superblock::decode(copy).ok().map(|superblock| (superblock, *copy))
}

/// The copy with one bit corrected. CRC-32C detects any three wrong bits of a message of this length, so there is one such bit at most
/// unless more are wrong.
fn corrected(copy: &Copy) -> Option<(Superblock, Copy)> {
    let mut candidate = *copy;
    for bit in 0..copy.len() * 8 {
        let mask = 1 << (bit % 8);
        if let Some(byte) = candidate.get_mut(bit / 8) {
            *byte ^= mask;
        }
        let found = accepted(&candidate);
        if found.is_some() {
            return found;
        }
        if let Some(byte) = candidate.get_mut(bit / 8) {
            *byte ^= mask;
        }
    }
    None
}

/// Pieces of 64 B in which the copies differ.
fn differing([first, second]: &[Copy; 2]) -> Vec<usize> {
    let pieces = first.chunks(LINE_BYTES).zip(second.chunks(LINE_BYTES));
    pieces.enumerate().filter(|(_, (first, second))| first != second).map(|(index, _)| index).collect()
}

/// The first choice of pieces of both copies that `accept` takes.
fn merged<T>(copies: &[Copy; 2], most: usize, accept: impl Fn(&Copy) -> Option<T>) -> Option<T> {
    let [first, second] = copies;
    let differing = differing(copies);
    if differing.len() > most {
        return None;
    }
    (0..1_usize << differing.len()).find_map(|choice| {
        let mut candidate = *first;
        for (_, index) in differing.iter().enumerate().filter(|(position, _)| choice >> position & 1 == 1) {
            let range = index * LINE_BYTES..(index + 1) * LINE_BYTES;
            if let (Some(to), Some(from)) = (candidate.get_mut(range.clone()), second.get(range)) {
                to.copy_from_slice(from);
            }
        }
        accept(&candidate)
    })
}

fn put(copy: &mut Copy, at: usize, bytes: &[u8]) {
    if let Some(target) = copy.get_mut(at..at + bytes.len()) {
        target.copy_from_slice(bytes);
    }
}

/// What every superblock of this version has.
fn put_constants(copy: &mut Copy) {
    put(copy, 4, &MAGIC);
    put(copy, 12, &VERSION.to_le_bytes());
    copy[142..144].fill(0);
    copy[RESERVED].fill(0);
}

fn put_identity(copy: &mut Copy, identity: &BlockIdentity) {
    put(copy, PAIR, &identity.pair);
    for at in [STAMP_PENDING, STAMP] {
        put(copy, at, &identity.stamp.get().to_le_bytes());
    }
    put(copy, VOLUME_UUID, &identity.volume_uuid);
}

fn put_sizes(copy: &mut Copy, known: &Known) {
    put(copy, MEMORY_BYTES, &known.memory_bytes.to_le_bytes());
    put(copy, BLOCK_SECTORS, &known.block_sectors.to_le_bytes());
}

fn put_features(copy: &mut Copy, has_memory_homes: bool) {
    let unchecked = if copy[CHECKSUM_KIND] == 0 { incompat::UNCHECKED_DATA } else { 0 };
    let home = if has_memory_homes { incompat::MEMORY_HOME } else { 0 };
    for (at, bits) in [(16, compat::KNOWN), (24, ro_compat::KNOWN), (32, unchecked | home)] {
        put(copy, at, &bits.to_le_bytes());
    }
}

/// Any choice of what is known in place of what the copy has, if its checksum then verifies ([BH2]).
fn with_known(copy: &Copy, known: &Known) -> Option<(Superblock, Copy)> {
    let rings = u32::from_le_bytes([copy[144], copy[145], copy[146], copy[147]]);
    let tails_end = TAILS.start + (rings.min(64) * 8) as usize;
    (0..1_u32 << 7).find_map(|choice| {
        let is_chosen = |bit: u32| choice >> bit & 1 == 1;
        let mut candidate = *copy;
        put_constants(&mut candidate);
        if let Some(identity) = known.identity.as_ref().filter(|_| is_chosen(0)) {
            put_identity(&mut candidate, identity);
        }
        if is_chosen(1) {
            put_sizes(&mut candidate, known);
        }
        if is_chosen(2) {
            put_features(&mut candidate, is_chosen(6));
        }
        if is_chosen(3) {
            candidate[LABEL].fill(0);
        }
        if is_chosen(4) {
            put(&mut candidate, COUNTERS.start, ErrorCounters::default().encode().as_bytes());
        }
        if is_chosen(5)
            && let Some(unused) = candidate.get_mut(tails_end..)
        {
            unused.fill(0);
        }
        accepted(&candidate)
    })
}

/// A superblock whose checksum does not show that it is right ([BH3]).
fn without_proof(copies: &[Copy; 2], known: &Known) -> Option<Rebuilt> {
    let differing = differing(copies);
    let has = |range: std::ops::Range<usize>| {
        let pieces = range.start / LINE_BYTES..range.end.div_ceil(LINE_BYTES);
        differing.iter().any(|piece| pieces.contains(piece))
    };
    let mut copy = copies[0];
    let has_identity = has(STAMP..COUNTERS.start);
    // The rest of the first 64 B, and the sizes and counters of the third, exist nowhere else.
    if differing.is_empty() || has(0..LINE_BYTES) || has(BLOCK_SECTORS..BLOCK_SECTORS + LINE_BYTES) || has(TAILS) && copy[CLEAN] != 1 {
        return None;
    }
    let mut lost = Vec::new();
    put_constants(&mut copy);
    if has(LABEL.start + 8..LABEL.end) {
        copy[LABEL].fill(0);
        put(&mut copy, MEMORY_BYTES, &known.memory_bytes.to_le_bytes());
        lost.push("its label");
    }
    if has_identity {
        put_identity(&mut copy, known.identity.as_ref()?);
    }
    if has(COUNTERS) {
        put(&mut copy, COUNTERS.start, ErrorCounters::default().encode().as_bytes());
        lost.push("the counters of errors");
    }
    if has(TAILS) {
        copy[TAILS].fill(0);
        lost.push("the positions in the empty journal");
    }
    let crc = crc32c(&copy[4..]);
    put(&mut copy, 0, &crc.to_le_bytes());
    let (superblock, bytes) = accepted(&copy)?;
    let is_right = match superblock.checksum_kind {
        ChecksumKind::None => superblock.incompat & incompat::UNCHECKED_DATA != 0,
        ChecksumKind::Crc32c => true,
    };
    let said = format!("superblock: both copies were damaged in the same places; made anew without {}", lost.join(" and "));
    is_right.then_some(Rebuilt { superblock, bytes, lost: (!lost.is_empty()).then_some(said) })
}
