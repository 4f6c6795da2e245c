//! A superblock of two damaged copies.
//!
//! [BH1] A superblock is rebuilt only if its own checksum then verifies, and only from bytes of the copies: one wrong bit of a copy is
//!       corrected, or each 64 B come from the copy where they are not damaged, as the copies are equal except during a change.
//! [BH2] Of several results the one with the larger sequence counts, as of two valid copies.

use tandemfs_format::LINE_BYTES;
use tandemfs_format::superblock::{Superblock, SuperblockBytes};

/// The bytes of a copy.
pub(crate) type Copy = [u8; size_of::<SuperblockBytes>()];

/// The superblock that two damaged copies show, with its bytes.
pub(crate) fn rebuild(copies: &[Copy; 2]) -> Option<(Superblock, Copy)> {
    let mut found: Vec<(Superblock, Copy)> = copies.iter().filter_map(corrected).collect();
    found.extend(merged(copies));
    found.into_iter().max_by_key(|(superblock, _)| superblock.sequence)
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

/// A copy of the undamaged pieces of both.
fn merged([first, second]: &[Copy; 2]) -> Option<(Superblock, Copy)> {
    let pieces = || first.chunks(LINE_BYTES).zip(second.chunks(LINE_BYTES));
    let differing: Vec<usize> = pieces().enumerate().filter(|(_, (first, second))| first != second).map(|(index, _)| index).collect();
    // At most 2^16 choices: a copy has sixteen pieces.
    (1..1_usize << differing.len()).find_map(|choice| {
        let mut candidate = *first;
        for (_, index) in differing.iter().enumerate().filter(|(position, _)| choice >> position & 1 == 1) {
            let range = index * LINE_BYTES..(index + 1) * LINE_BYTES;
            if let (Some(to), Some(from)) = (candidate.get_mut(range.clone()), second.get(range)) {
                to.copy_from_slice(from);
            }
        }
        accepted(&candidate)
    })
}
