//! Tables of inodes and pages keep neighbours near each other: numbers are given out one after the other, so their entries share cache
//! lines and pages of host memory, where a scattering hash makes every step of a large table a miss.

use std::hash::{BuildHasherDefault, Hasher};

use crate::sync::EXPLORED;

/// Shards of such a table; neighbours lie in different ones.
pub(crate) const SHARDS: usize = if EXPLORED { 2 } else { 64 };

/// A map by number.
pub(crate) type NearMap<V> = hashbrown::HashMap<u64, V, BuildHasherDefault<NearHasher>>;

/// The shard of a number.
pub(crate) fn shard_of(number: u64) -> usize {
    (number % SHARDS as u64) as usize
}

/// Numbers of one shard that follow each other get places that follow each other; the table's tags, the upper seven bits, are scattered.
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
