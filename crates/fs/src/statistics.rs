//! Counters of the file system since the mount (`tandemfs stats`).

use std::time::Instant;

use tandemfs_device::{DriveCounts, KindTimes, LATENCY_SAMPLED_1_IN, Latencies, LatencyCounts, SplitCounter};

use crate::sync::Mutex;
use crate::sync::patience::{Patience, patience};
use crate::waits::LOCK_WAITS;

/// What the counters below consist of.
trait Cell {
    fn value(&self) -> u64;
    fn clear(&self);
}

impl Cell for SplitCounter {
    fn value(&self) -> u64 {
        self.value()
    }

    fn clear(&self) {
        self.clear();
    }
}

/// How often operations of a kind ended, and how long those took that were timed.
#[derive(Debug, Default)]
pub(crate) struct LiveOperation {
    ended: SplitCounter,
    latencies: Latencies,
}

impl Cell for LiveOperation {
    fn value(&self) -> u64 {
        self.ended.value()
    }

    fn clear(&self) {
        self.ended.clear();
        self.latencies.reset();
    }
}

macro_rules! counters {
    ($(#[$meta:meta])* $live:ident of $cell:ty, $(#[$snapshot_meta:meta])* $snapshot:ident { $($(#[$field_meta:meta])* $field:ident),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        pub(crate) struct $live { $(pub(crate) $field: $cell),* }

        $(#[$snapshot_meta])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct $snapshot { $($(#[$field_meta])* pub $field: u64),* }

        impl $live {
            pub(crate) fn snapshot(&self) -> $snapshot {
                $snapshot { $($field: self.$field.value()),* }
            }

            pub(crate) fn reset(&self) {
                self.cells().iter().for_each(|(_, cell)| cell.clear());
            }

            fn cells(&self) -> Vec<(&'static str, &$cell)> {
                vec![$((stringify!($field), &self.$field)),*]
            }
        }

        impl $snapshot {
            /// Names and values, in the order of `stats --json`.
            pub fn entries(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field)),*]
            }
        }
    };
}

counters! {
    /// Operations, live.
    LiveOperations of LiveOperation,
    /// Operations since the mount.
    OperationCounts {
        /// Files created.
        create,
        /// Directories made.
        mkdir,
        /// Symbolic links made.
        symlink,
        /// Special files made.
        mknod,
        /// Names added.
        link,
        /// Names removed.
        unlink,
        /// Directories removed.
        rmdir,
        /// Renames.
        rename,
        /// Look-ups of a name.
        lookup,
        /// Attributes read.
        getattr,
        /// Attributes set.
        setattr,
        /// Reads.
        read,
        /// Writes.
        write,
        /// Directory listings.
        readdir,
        /// Syncs.
        fsync,
        /// Space given out, taken back or zeroed.
        fallocate,
        /// Searches for data or holes.
        lseek,
        /// Ranges copied between files; their seeks, reads and writes are counted as well.
        copy_range,
        /// Extended attributes read.
        getxattr,
        /// Lists of extended attributes.
        listxattr,
        /// Extended attributes set.
        setxattr,
        /// Extended attributes removed.
        removexattr,
    }
}

counters! {
    /// Work of the engine, live.
    LiveWork of SplitCounter,
    /// Work of the engine since the mount.
    WorkCounts {
        /// Bytes that callers read.
        user_read_bytes,
        /// Bytes that callers wrote.
        user_written_bytes,
        /// Committed transactions.
        transactions,
        /// Checkpoints.
        checkpoints,
        /// Data logs merged into a newer one (RomeFS §3.5.1).
        merges,
        /// Data logs extended in place.
        appends_in_place,
        /// Blocks composed anew from sectors and logs (RomeFS §3.5.2).
        block_write_backs,
        /// Times that several blocks were written back together.
        write_back_batches,
        /// Bytes written to sectors by write-back, and when a block moved or was lengthened.
        write_back_bytes,
        /// Bytes of new extents in the memory zone.
        home_written_bytes,
        /// Bytes stored to the memory zone that stay in the CPU's caches, where ways to the media are chosen (FusionFS §2.1).
        stored_in_place_bytes,
        /// The same, in reserved ways of the caches.
        stored_pinned_bytes,
        /// Bytes that were flushed at once.
        stored_flushed_bytes,
        /// Bytes that went past the caches.
        stored_past_caches_bytes,
        /// Bytes of blocks that moved to the homes of their files.
        home_moved_bytes,
        /// Pieces of writes by calls that went to mapped pages, by data logs that were copied home.
        mapped_writes,
        /// Blocks of aligned extents that were written back in place.
        kept_places,
        /// Pages that were open for a mapping and have checksums again.
        pages_closed,
        /// Bytes of files that were rewritten into aligned extents.
        aligned_bytes,
        /// Times that 2 MiB were copied to be aligned and changed meanwhile.
        aligned_again,
        /// Bytes of the memory zone that write-back freed.
        write_back_freed_bytes,
        /// Blocks that write-back left for later because they were in use.
        write_back_busy,
        /// Blocks that write-back skipped because they, or the path to them, are damaged.
        write_back_damaged,
        /// Reads that data logs alone answered (RomeFS Algorithm 1).
        early_terminations,
        /// Metadata pages loaded from the device.
        metadata_page_loads,
        /// Reads that needed no drive: file pages in host memory had all bytes.
        page_hits,
        /// Reads that asked the drive, by readers for whom file pages are kept.
        page_misses,
        /// File pages that came to host memory.
        pages_kept,
        /// File pages that were evicted for others.
        pages_evicted,
        /// Reads of pages that were read ahead.
        read_ahead_hits,
        /// Sectors copied into spare space of the memory zone.
        promotions,
        /// Blocks whose sectors were read from promoted copies.
        promoted_reads,
        /// Lines of file data stored in place (ByteFS §4.6).
        in_place_lines,
        /// Pages compared with an older copy (ByteFS §4.6).
        pages_compared,
        /// Pages of which only the changed lines, or nothing, were written.
        pages_by_lines,
        /// Bytes of free sectors that were discarded.
        discarded_bytes,
        /// Empty units of metadata that became data area again.
        units_given_back,
        /// Passes of compaction over the metadata.
        compactions,
        /// Bytes of metadata that compaction moved.
        compacted_bytes,
    }
}

/// How long threads waited for the engine.
#[derive(Debug, Default)]
pub(crate) struct LiveWaits {
    /// A transaction becomes durable, from its record to the proof; of one in [`LATENCY_SAMPLED_1_IN`].
    pub(crate) journal: Latencies,
    /// A checkpoint, without the wait for another one.
    pub(crate) checkpoint: Latencies,
    /// A batch of blocks is written back. Writers of its blocks wait for it.
    pub(crate) write_back: Latencies,
    /// An operation that found no space, until it runs again or fails.
    pub(crate) space: Latencies,
}

impl LiveWaits {
    fn all(&self) -> [(&'static str, u64, &Latencies); 6] {
        [
            ("lock", 1, &LOCK_WAITS.lock),
            ("range_lock", 1, &LOCK_WAITS.range_lock),
            ("journal", LATENCY_SAMPLED_1_IN, &self.journal),
            ("checkpoint", 1, &self.checkpoint),
            ("write_back", 1, &self.write_back),
            ("space", 1, &self.space),
        ]
    }

    /// By name.
    pub(crate) fn times(&self) -> [KindTimes; 6] {
        self.all().map(|(name, sampled_1_in, times)| KindTimes { name, sampled_1_in, counts: times.counts() })
    }

    pub(crate) fn reset(&self) {
        self.all().iter().for_each(|(_, _, times)| times.reset());
    }
}

#[derive(Debug, Default)]
pub(crate) struct Live {
    pub(crate) operations: LiveOperations,
    pub(crate) work: LiveWork,
    pub(crate) waits: LiveWaits,
    /// The drive's own counters at the mount or the last reset.
    pub(crate) drive_before: Mutex<DriveCounts>,
}

/// Counters of the file system since the mount or the last reset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Operations.
    pub operations: OperationCounts,
    /// Work of the engine.
    pub work: WorkCounts,
}

impl LiveOperations {
    /// Names, and the times of what was timed.
    pub(crate) fn latencies(&self) -> Vec<(&'static str, LatencyCounts)> {
        self.cells().into_iter().map(|(name, operation)| (name, operation.latencies.counts())).collect()
    }
}

/// An operation that is counted at its end, unless it was refused and will be repeated ([NW3] of `wait.rs`).
#[must_use = "dropped at the end of the operation"]
pub(crate) struct Counted<'c> {
    operation: &'c LiveOperation,
    since: Option<Instant>,
}

pub(crate) fn counted(operation: &LiveOperation) -> Counted<'_> {
    Counted { operation, since: Latencies::start(operation.ended.here()) }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        if patience() != Patience::Refused {
            count(&self.operation.ended);
            self.operation.latencies.end(self.since);
        }
    }
}

pub(crate) fn count(counter: &SplitCounter) {
    counter.add(1);
}

pub(crate) fn add(counter: &SplitCounter, amount: u64) {
    counter.add(amount);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_counted_and_one_in_sixteen_is_timed() {
        let live = LiveOperations::default();
        (0..1600).for_each(|_| drop(counted(&live.write)));
        let (ended, timed) =
            (live.snapshot().write, live.latencies().iter().find(|(name, _)| *name == "write").map(|(_, times)| times.samples()));
        assert_eq!(ended, 1600);
        assert!(timed.is_some_and(|timed| (80..120).contains(&timed)), "{timed:?}");
        live.reset();
        assert_eq!((live.snapshot(), live.latencies().iter().map(|(_, times)| times.samples()).sum()), (OperationCounts::default(), 0));
    }

    /// What the times cost beside the count alone: `cargo test --profile soak -p tandemfs-fs --lib times_cost -- --ignored --nocapture`.
    #[test]
    #[ignore = "measures"]
    fn times_cost() {
        const TURNS: u32 = 10_000_000;
        let (live, alone) = (LiveOperations::default(), SplitCounter::default());
        for _ in 0..5 {
            let start = Instant::now();
            (0..TURNS).for_each(|_| {
                if patience() != Patience::Refused {
                    count(std::hint::black_box(&alone));
                }
            });
            let counting = start.elapsed() / TURNS;
            let start = Instant::now();
            (0..TURNS).for_each(|_| drop(counted(std::hint::black_box(&live.write))));
            println!("counted {counting:?}, counted and timed {:?}", start.elapsed() / TURNS);
        }
    }
}
