use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::MoveDirection;
use crate::apart::Split;
use crate::error::DeviceError;
use crate::latency::{BYTE_PATH_SAMPLED_1_IN, KindTimes, LATENCY_SAMPLED_1_IN, Latencies};

/// Purpose of an access: the rows of `by_structure` in `stats`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Structure {
    /// Superblocks and the identity.
    Superblock,
    /// Saved maps and the segment table.
    AllocationMap,
    /// Inodes.
    Inode,
    /// Directory entries.
    Dentry,
    /// Mapping records, leaves, checksums.
    Mapping,
    /// Journal records.
    Journal,
    /// Data logs.
    DataLog,
    /// Blocks of file data.
    Data,
}

impl Structure {
    /// All of them, in the order of `stats`.
    pub const ALL: [Self; 8] =
        [Self::Superblock, Self::AllocationMap, Self::Inode, Self::Dentry, Self::Mapping, Self::Journal, Self::DataLog, Self::Data];

    /// The name in `stats --json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Superblock => "superblock",
            Self::AllocationMap => "allocation_map",
            Self::Inode => "inode",
            Self::Dentry => "dentry",
            Self::Mapping => "mapping",
            Self::Journal => "journal",
            Self::DataLog => "data_log",
            Self::Data => "data",
        }
    }
}

/// Bytes of one structure on the two paths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PathBytes {
    /// Loaded.
    pub byte_read_bytes: u64,
    /// Stored.
    pub byte_written_bytes: u64,
    /// Read by blocks.
    pub block_read_bytes: u64,
    /// Written by blocks.
    pub block_written_bytes: u64,
}

#[derive(Debug, Default)]
struct PathCounters {
    byte_read: AtomicU64,
    byte_written: AtomicU64,
    block_read: AtomicU64,
    block_written: AtomicU64,
}

/// What the threads of one slot sent.
#[derive(Debug, Default)]
struct Sent {
    by_structure: [PathCounters; 8],
    flushed_lines: AtomicU64,
    fences: AtomicU64,
    block_reads: AtomicU64,
    block_writes: AtomicU64,
    block_flushes: AtomicU64,
    moves: AtomicU64,
    moved_to_cache: AtomicU64,
    moved_to_flash: AtomicU64,
}

impl Sent {
    /// Every counter, with its value in a snapshot.
    fn each<'s>(&'s self, snapshot: &'s mut CountersSnapshot) -> impl Iterator<Item = (&'s AtomicU64, &'s mut u64)> {
        let CountersSnapshot {
            by_structure,
            flushed_lines,
            fences,
            block_reads,
            block_writes,
            block_flushes,
            moves,
            moved_to_cache_bytes,
            moved_to_flash_bytes,
        } = snapshot;
        let paths = self.by_structure.iter().zip(by_structure).flat_map(|(counters, bytes)| {
            [
                (&counters.byte_read, &mut bytes.byte_read_bytes),
                (&counters.byte_written, &mut bytes.byte_written_bytes),
                (&counters.block_read, &mut bytes.block_read_bytes),
                (&counters.block_written, &mut bytes.block_written_bytes),
            ]
        });
        paths.chain([
            (&self.flushed_lines, flushed_lines),
            (&self.fences, fences),
            (&self.block_reads, block_reads),
            (&self.block_writes, block_writes),
            (&self.block_flushes, block_flushes),
            (&self.moves, moves),
            (&self.moved_to_cache, moved_to_cache_bytes),
            (&self.moved_to_flash, moved_to_flash_bytes),
        ])
    }
}

/// How long accesses took, of those that were timed: one in [`BYTE_PATH_SAMPLED_1_IN`] on the byte path, one in [`LATENCY_SAMPLED_1_IN`] on
/// the block path.
#[derive(Debug, Default)]
pub(crate) struct Times {
    pub(crate) load: Latencies,
    pub(crate) store: Latencies,
    pub(crate) fence: Latencies,
    /// Block requests that were sent together, with a read first.
    pub(crate) read: Latencies,
    /// With a write first.
    pub(crate) write: Latencies,
    pub(crate) flush: Latencies,
}

impl Times {
    fn all(&self) -> [(&'static str, u64, &Latencies); 6] {
        [
            ("byte_load", BYTE_PATH_SAMPLED_1_IN, &self.load),
            ("byte_store", BYTE_PATH_SAMPLED_1_IN, &self.store),
            ("byte_fence", BYTE_PATH_SAMPLED_1_IN, &self.fence),
            ("block_read", LATENCY_SAMPLED_1_IN, &self.read),
            ("block_write", LATENCY_SAMPLED_1_IN, &self.write),
            ("block_flush", LATENCY_SAMPLED_1_IN, &self.flush),
        ]
    }
}

/// Bytes and commands sent to the device since it was opened, or since the last reset. Threads count apart from each other ([APT2] of
/// `apart.rs`): each store, flush and fence is counted.
#[derive(Debug, Default)]
pub struct Counters {
    sent: Split<Sent>,
    failed_reads: AtomicU64,
    failed_writes: AtomicU64,
    last_failed_seconds: AtomicU64,
    pub(crate) times: Times,
}

/// Accesses that the device failed since it was opened; a reset does not change them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FailureCounts {
    /// Loads and block reads.
    pub reads: u64,
    /// Stores, block writes and flushes.
    pub writes: u64,
    /// Time of the last one, seconds since 1970; 0 none.
    pub last_seconds: u64,
}

/// The counters at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CountersSnapshot {
    /// Bytes by structure, in the order of [`Structure::ALL`].
    pub by_structure: [PathBytes; 8],
    /// Lines flushed from CPU caches.
    pub flushed_lines: u64,
    /// Fences.
    pub fences: u64,
    /// Block reads.
    pub block_reads: u64,
    /// Block writes.
    pub block_writes: u64,
    /// FLUSH commands.
    pub block_flushes: u64,
    /// MOVE commands.
    pub moves: u64,
    /// Bytes that MOVE commands brought to the cache that the host manages.
    pub moved_to_cache_bytes: u64,
    /// Bytes that they wrote from there to the flash.
    pub moved_to_flash_bytes: u64,
}

impl Counters {
    /// A load begins. Returns when, if it is to be timed.
    #[inline]
    pub(crate) fn loaded(&self, structure: Structure, bytes: u64) -> Option<Instant> {
        let before = self.sent.here().by_structure[structure as usize].byte_read.fetch_add(bytes, Relaxed);
        Latencies::start_of(BYTE_PATH_SAMPLED_1_IN, before)
    }

    /// A store begins. Returns when, if it is to be timed.
    #[inline]
    pub(crate) fn stored(&self, structure: Structure, bytes: u64) -> Option<Instant> {
        let before = self.sent.here().by_structure[structure as usize].byte_written.fetch_add(bytes, Relaxed);
        Latencies::start_of(BYTE_PATH_SAMPLED_1_IN, before)
    }

    /// A block read begins. Returns how many came before.
    pub(crate) fn block_read(&self, structure: Structure, bytes: u64) -> u64 {
        let sent = self.sent.here();
        sent.by_structure[structure as usize].block_read.fetch_add(bytes, Relaxed);
        sent.block_reads.fetch_add(1, Relaxed)
    }

    /// A block write begins. Returns how many came before.
    pub(crate) fn block_written(&self, structure: Structure, bytes: u64) -> u64 {
        let sent = self.sent.here();
        sent.by_structure[structure as usize].block_written.fetch_add(bytes, Relaxed);
        sent.block_writes.fetch_add(1, Relaxed)
    }

    pub(crate) fn flushed(&self, lines: u64) {
        self.sent.here().flushed_lines.fetch_add(lines, Relaxed);
    }

    /// A fence begins. Returns when, if it is to be timed.
    #[inline]
    pub(crate) fn fenced(&self) -> Option<Instant> {
        Latencies::start_of(BYTE_PATH_SAMPLED_1_IN, self.sent.here().fences.fetch_add(1, Relaxed))
    }

    /// A FLUSH begins. Returns when, if it is to be timed.
    pub(crate) fn block_flushed(&self) -> Option<Instant> {
        Latencies::start(self.sent.here().block_flushes.fetch_add(1, Relaxed))
    }

    pub(crate) fn moved(&self, direction: MoveDirection, bytes: u64) {
        let sent = self.sent.here();
        sent.moves.fetch_add(1, Relaxed);
        let counter = match direction {
            MoveDirection::ToCache => &sent.moved_to_cache,
            MoveDirection::ToFlash => &sent.moved_to_flash,
        };
        counter.fetch_add(bytes, Relaxed);
    }

    /// Counts an access that failed for what the device is, not for what was asked of it.
    pub(crate) fn failed(&self, is_read: bool, error: &DeviceError) {
        let is_read = match error {
            DeviceError::Block { operation, .. } => *operation == "read" || *operation == MoveDirection::ToCache.operation(),
            DeviceError::Poisoned { .. } => is_read,
            _ => return,
        };
        (if is_read { &self.failed_reads } else { &self.failed_writes }).fetch_add(1, Relaxed);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        self.last_failed_seconds.store(now, Relaxed);
    }

    /// Accesses that failed.
    pub fn failures(&self) -> FailureCounts {
        FailureCounts {
            reads: self.failed_reads.load(Relaxed),
            writes: self.failed_writes.load(Relaxed),
            last_seconds: self.last_failed_seconds.load(Relaxed),
        }
    }

    /// The counters now.
    pub fn snapshot(&self) -> CountersSnapshot {
        let mut snapshot = CountersSnapshot::default();
        for sent in self.sent.all() {
            sent.each(&mut snapshot).for_each(|(counter, value)| *value += counter.load(Relaxed));
        }
        snapshot
    }

    /// How long accesses took since the device was opened, or since the last reset, by path and access. Block requests that were sent together
    /// count as one access.
    pub fn times(&self) -> [KindTimes; 6] {
        self.times.all().map(|(name, sampled_1_in, times)| KindTimes { name, sampled_1_in, counts: times.counts() })
    }

    /// Sets all counters to zero.
    pub fn reset(&self) {
        self.times.all().iter().for_each(|(_, _, times)| times.reset());
        for sent in self.sent.all() {
            sent.each(&mut CountersSnapshot::default()).for_each(|(counter, _)| counter.store(0, Relaxed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_access_of_so_many_is_timed_and_forgotten_with_the_rest() {
        let counters = Counters::default();
        for _ in 0..6400 {
            counters.times.store.end(counters.stored(Structure::Journal, 64));
            counters.times.fence.end(counters.fenced());
            counters.times.flush.end(counters.block_flushed());
        }
        let samples =
            |name: &str| counters.times().iter().find(|kind| kind.name == name).map(|kind| (kind.sampled_1_in, kind.counts.samples()));
        for name in ["byte_store", "byte_fence"] {
            assert!(
                samples(name).is_some_and(|(one_in, samples)| one_in == 64 && (80..=120).contains(&samples)),
                "{name}: {:?}",
                samples(name)
            );
        }
        assert!(samples("block_flush").is_some_and(|(one_in, samples)| one_in == 16 && (350..=450).contains(&samples)));
        assert_eq!(samples("byte_load"), Some((64, 0)));
        counters.reset();
        assert!(counters.times().iter().all(|kind| kind.counts.samples() == 0));
        assert_eq!(counters.snapshot(), CountersSnapshot::default());
    }

    /// What the times of an access cost beside its count: `cargo test --profile soak -p tandemfs-device --lib times_cost -- --ignored
    /// --nocapture`.
    #[test]
    #[ignore = "measures"]
    fn times_cost() {
        const TURNS: u32 = 10_000_000;
        let counters = Counters::default();
        for _ in 0..5 {
            let start = Instant::now();
            (0..TURNS).for_each(|_| {
                std::hint::black_box(&counters).sent.here().fences.fetch_add(1, Relaxed);
            });
            let counting = start.elapsed() / TURNS;
            let start = Instant::now();
            (0..TURNS).for_each(|_| counters.times.fence.end(std::hint::black_box(&counters).fenced()));
            println!("counted {counting:?}, counted and timed {:?}", start.elapsed() / TURNS);
        }
    }
}
