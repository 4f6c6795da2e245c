//! File contents: bytes that follow from a key and an offset ([WO3]).
//!
//! [WO3]: super

use std::sync::OnceLock;

use super::random::Random;

/// A prime, so that different offsets used by workloads do not map to the same bytes.
const PATTERN_BYTES: usize = 1_048_583;

fn pattern() -> &'static [u8] {
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    PATTERN.get_or_init(|| {
        let mut random = Random::new(0x7a6e, 0);
        (0..PATTERN_BYTES.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).take(PATTERN_BYTES).collect()
    })
}

fn pieces(key: u64, offset: u64, length: usize) -> impl Iterator<Item = &'static [u8]> {
    let mut at = ((key as u128 + offset as u128) % PATTERN_BYTES as u128) as usize;
    let mut left = length;
    std::iter::from_fn(move || {
        let piece = &pattern()[at..PATTERN_BYTES.min(at + left)];
        at = 0;
        left -= piece.len();
        (!piece.is_empty()).then_some(piece)
    })
}

/// Fills the buffer with the bytes at `offset` of the file with this key.
pub fn fill(key: u64, offset: u64, into: &mut [u8]) {
    let mut at = 0;
    for piece in pieces(key, offset, into.len()) {
        into[at..at + piece.len()].copy_from_slice(piece);
        at += piece.len();
    }
}

/// Whether these are the bytes at `offset` of the file with this key.
pub fn is(key: u64, offset: u64, bytes: &[u8]) -> bool {
    let mut at = 0;
    pieces(key, offset, bytes.len()).all(|piece| {
        at += piece.len();
        bytes[at - piece.len()..at] == *piece
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_follow_from_key_and_offset() {
        let mut whole = vec![0; 3 << 20];
        fill(9, 5, &mut whole);
        let mut part = vec![0; 100_000];
        fill(9, 5 + 1_000_000, &mut part);
        assert_eq!(part, whole[1_000_000..1_100_000]);
        assert!(is(9, 5, &whole) && !is(10, 5, &whole) && !is(9, 6, &whole) && is(u64::MAX, u64::MAX, &[]));
        whole[2_000_000] ^= 1;
        assert!(!is(9, 5, &whole));
    }
}
