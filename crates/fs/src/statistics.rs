//! Counters of the file system since the mount (`tandemfs stats`).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tandemfs_device::DriveCounts;

use crate::sync::Mutex;
use crate::sync::patience::{Patience, patience};

macro_rules! counters {
    ($(#[$meta:meta])* $live:ident, $(#[$snapshot_meta:meta])* $snapshot:ident { $($(#[$field_meta:meta])* $field:ident),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        pub(crate) struct $live { $(pub(crate) $field: AtomicU64),* }

        $(#[$snapshot_meta])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct $snapshot { $($(#[$field_meta])* pub $field: u64),* }

        impl $live {
            pub(crate) fn snapshot(&self) -> $snapshot {
                $snapshot { $($field: self.$field.load(Relaxed)),* }
            }

            pub(crate) fn reset(&self) {
                $(self.$field.store(0, Relaxed);)*
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
    LiveOperations,
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
    LiveWork,
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
        /// Bytes of blocks that moved to the homes of their files.
        home_moved_bytes,
        /// Pieces of writes by calls that went to mapped pages, by data logs that were copied home.
        mapped_writes,
        /// Pages that were open for a mapping and have checksums again.
        pages_closed,
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
        /// Reads that read-ahead buffers answered, fully or at their start.
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

#[derive(Debug, Default)]
pub(crate) struct Live {
    pub(crate) operations: LiveOperations,
    pub(crate) work: LiveWork,
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

/// An operation that is counted at its end, unless it was refused and will be repeated ([NW3] of `wait.rs`).
#[must_use = "dropped at the end of the operation"]
pub(crate) struct Counted<'c>(&'c AtomicU64);

pub(crate) fn counted(counter: &AtomicU64) -> Counted<'_> {
    Counted(counter)
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        if patience() != Patience::Refused {
            count(self.0);
        }
    }
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Relaxed);
}
