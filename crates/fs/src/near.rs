//! Tables of inodes and pages that keep neighbours close. Numbers are given out in sequence, so the entries of neighbours share cache lines
//! and host pages. With a scattering hash every step in a large table would be a cache miss.

use std::hash::{BuildHasherDefault, Hasher};

use crate::sync::EXPLORED;

/// Shards of such a table; consecutive numbers lie in different shards.
pub(crate) const SHARDS: usize = if EXPLORED { 2 } else { 64 };

/// A map keyed by number.
pub(crate) type NearMap<V> = hashbrown::HashMap<u64, V, BuildHasherDefault<NearHasher>>;

/// The shard of a number.
pub(crate) fn shard_of(number: u64) -> usize {
    (number % SHARDS as u64) as usize
}

/// Consecutive numbers of one shard get consecutive buckets. Only the upper seven bits, the table's tags, are scattered.
#[derive(Debug, Default)]
pub(crate) struct NearHasher(u64);

impl Hasher for NearHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        const TAG: u64 = 0x7f << 57;
        self.0 = (number / SHARDS as u64) & !TAG | number.wrapping_mul(0x9e37_79b9_7f4a_7c15) & TAG;
    }
}
