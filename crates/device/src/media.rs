//! Persistent memory behind a CPU's caches: the ways by which a store reaches the media, and what a device that models them counts.
//!
//! What a store costs the media depends on the way that it takes (FusionFS §1): media of persistent memory are written in lines of 256 B, CPU
//! caches give lines of 64 B away one by one, in the order in which they are evicted. A device that models this is asked by
//! [`Device::media`](crate::Device::media); others have nothing to count.

use crate::Structure;

/// How a store goes to the media (FusionFS §2.1). It says nothing about durability: that follows from the persistence domain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum StoreWay {
    /// Through the CPU's caches. The line reaches the media when it is flushed or evicted.
    #[default]
    Cached,
    /// Whole lines go past the caches (non-temporal stores), the incomplete ones at both ends through them. For bytes that are not read soon.
    NonTemporal,
    /// Into ways of the cache that are reserved ([`Media::reserve_ways`]): only other pinned lines evict the line. As `Cached` where no way is
    /// reserved, and on devices that do not model a cache.
    Pinned,
}

/// By what a line left the CPU's caches for the media.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mechanism {
    /// Another line needed its place.
    Evicted,
    /// A flush.
    Flushed,
    /// It was stored past the caches.
    NonTemporal,
    /// It was pinned, and another pinned line needed its place, or the cache was written back as a whole.
    Pinned,
}

impl Mechanism {
    /// All of them, in the order of `stats`.
    pub const ALL: [Self; 4] = [Self::Evicted, Self::Flushed, Self::NonTemporal, Self::Pinned];

    /// The name in JSON, to which `_bytes` is added.
    pub fn name(self) -> &'static str {
        match self {
            Self::Evicted => "evicted",
            Self::Flushed => "flushed",
            Self::NonTemporal => "non_temporal",
            Self::Pinned => "pinned",
        }
    }
}

/// Bytes of one structure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MediaBytes {
    /// Stored by the host.
    pub stored_bytes: u64,
    /// Written to the media, by the mechanism that brought them there, in the order of [`Mechanism::ALL`]. A media line that several lines share
    /// is divided among them evenly.
    pub written_bytes: [u64; 4],
    /// Read from the media for lines that were not in the cache: loads, and stores, which fetch the line first.
    pub read_bytes: u64,
    /// Read from the media to complete media lines of which only a part was written.
    pub merge_read_bytes: u64,
}

impl MediaBytes {
    /// Written to the media by any mechanism.
    pub fn written(&self) -> u64 {
        self.written_bytes.iter().sum()
    }
}

/// Structures that are told apart: those of [`Structure::ALL`], and accesses of which the device was not told.
const OWNERS: usize = 1 + Structure::ALL.len();
/// Counters of a structure.
const BYTES: usize = 7;

/// What a model of persistent memory has counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MediaCounts {
    /// Lines that accesses found in the cache.
    pub hit_lines: u64,
    /// Lines that they did not find there.
    pub missed_lines: u64,
    /// First accesses of which the structure is unknown, then those of [`Structure::ALL`].
    by_owner: [MediaBytes; OWNERS],
}

impl MediaCounts {
    /// Numbers that [`words`](Self::words) returns.
    pub const WORDS: usize = 2 + OWNERS * BYTES;

    /// The bytes of a structure; `None`: of accesses whose structure the device was not told.
    pub fn of(&self, structure: Option<Structure>) -> &MediaBytes {
        &self.by_owner[owner(structure)]
    }

    /// The same, to count.
    pub fn of_mut(&mut self, structure: Option<Structure>) -> &mut MediaBytes {
        &mut self.by_owner[owner(structure)]
    }

    /// All structures with their bytes, those without a name last.
    pub fn by_structure(&self) -> impl Iterator<Item = (&'static str, &MediaBytes)> {
        let named = Structure::ALL.iter().map(|structure| (structure.name(), self.of(Some(*structure))));
        named.chain([("other", self.of(None))])
    }

    /// All structures together.
    pub fn total(&self) -> MediaBytes {
        self.by_owner.iter().fold(MediaBytes::default(), |sum, bytes| MediaBytes {
            stored_bytes: sum.stored_bytes + bytes.stored_bytes,
            written_bytes: std::array::from_fn(|mechanism| sum.written_bytes[mechanism] + bytes.written_bytes[mechanism]),
            read_bytes: sum.read_bytes + bytes.read_bytes,
            merge_read_bytes: sum.merge_read_bytes + bytes.merge_read_bytes,
        })
    }

    /// Bytes written to the media for each byte that was stored; `None` where nothing was stored.
    pub fn write_amplification(&self) -> Option<f64> {
        let total = self.total();
        (total.stored_bytes > 0).then(|| total.written() as f64 / total.stored_bytes as f64)
    }

    /// All counters, in an order to which later versions only append.
    pub fn words(&self) -> [u64; Self::WORDS] {
        let mut words = [0; Self::WORDS];
        (words[0], words[1]) = (self.hit_lines, self.missed_lines);
        for (words, bytes) in words[2..].chunks_exact_mut(BYTES).zip(&self.by_owner) {
            words[0] = bytes.stored_bytes;
            words[1..5].copy_from_slice(&bytes.written_bytes);
            (words[5], words[6]) = (bytes.read_bytes, bytes.merge_read_bytes);
        }
        words
    }

    /// The counters of these words; missing ones are 0.
    pub fn from_words(words: impl IntoIterator<Item = u64>) -> Self {
        let mut words = words.into_iter();
        let mut next = || words.next().unwrap_or(0);
        let (hit_lines, missed_lines) = (next(), next());
        let by_owner = std::array::from_fn(|_| MediaBytes {
            stored_bytes: next(),
            written_bytes: std::array::from_fn(|_| next()),
            read_bytes: next(),
            merge_read_bytes: next(),
        });
        Self { hit_lines, missed_lines, by_owner }
    }

    /// Both counts together.
    pub fn plus(&self, other: &Self) -> Self {
        Self::from_words(self.words().into_iter().zip(other.words()).map(|(one, other)| one.wrapping_add(other)))
    }

    /// The difference to earlier counters.
    pub fn since(&self, earlier: &Self) -> Self {
        Self::from_words(self.words().into_iter().zip(earlier.words()).map(|(now, before)| now.saturating_sub(before)))
    }
}

fn owner(structure: Option<Structure>) -> usize {
    structure.map_or(0, |structure| 1 + structure as usize)
}

/// A model of a CPU's caches and of persistent memory behind them. It counts and takes time; it changes nothing that is stored.
pub trait Media: Send + Sync {
    /// What was counted since the device was opened.
    fn counts(&self) -> MediaCounts;

    /// Size of the cache, in bytes.
    fn cache_bytes(&self) -> u64;

    /// Reserves so many ways of each set of the cache for lines that are stored as [`StoreWay::Pinned`], in place of as many as were reserved
    /// before. Lines in ways that become reserved are evicted; with fewer ways the pinned lines that were used last stay pinned.
    ///
    /// # Errors
    /// The largest number of ways that can be reserved, if that is less.
    fn reserve_ways(&self, ways: u32) -> Result<(), u32>;

    /// Writes everything that is modified in the cache and in the buffers of the DIMMs to the media, so that the counts hold all that was
    /// stored before. Lines stay in the cache. Takes no time of the model: it ends a measurement.
    fn write_back_all(&self);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_hold_every_counter() {
        let counts = MediaCounts::from_words(1..);
        assert_eq!(counts.words().to_vec(), (1..=MediaCounts::WORDS as u64).collect::<Vec<_>>());
        assert_eq!(counts.of(None).stored_bytes, 3);
        assert_eq!(counts.of(Some(Structure::Superblock)).written_bytes, [11, 12, 13, 14]);
        let sum: u64 = counts.by_structure().map(|(_, bytes)| bytes.written()).sum();
        assert_eq!(sum, counts.total().written());
        assert_eq!(MediaCounts::from_words([7]).words().iter().sum::<u64>(), 7, "missing words are zeros");
    }

    #[test]
    fn counts_add_and_subtract() {
        let (one, two) = (MediaCounts::from_words(1..), MediaCounts::from_words((1..).map(|word| word * 10)));
        assert_eq!(one.plus(&two).since(&one), two);
        assert_eq!(one.since(&two), MediaCounts::default(), "never below zero");
        assert_eq!(MediaCounts::default().write_amplification(), None);
    }
}
