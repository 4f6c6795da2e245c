//! Deliberate bugs of every part, which the comparison of the whole drive with its model must catch (`docs/TESTING.md`).

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::rig::SHAPES;
use super::runs::{run_cut, run_plain};
use crate::mutant::{self, Mutant};

/// Seeds that are tried. Without a bug none of them finds anything (`runs`).
const SEEDS: std::ops::RangeInclusive<u64> = 1..=12;

fn what_is_found() -> Option<String> {
    SEEDS.into_iter().find_map(|seed| {
        SHAPES.into_iter().find_map(|shape| {
            let run = || run_plain(shape, seed, 600).err().or_else(|| run_cut(shape, seed, 600).err());
            catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
                Some(panic.downcast_ref::<String>().cloned().unwrap_or_else(|| format!("{}, seed {seed}: a panic", shape.name)))
            })
        })
    })
}

fn is_caught(bug: Mutant) {
    mutant::select(bug);
    let what = what_is_found();
    mutant::select(Mutant::None);
    println!("{bug:?}: {}", what.unwrap_or_else(|| panic!("{bug:?} was not caught")));
}

macro_rules! caught {
    ($($name:ident: $bug:ident;)*) => { $(#[test] fn $name() { is_caught(Mutant::$bug); })* };
}

caught! {
    uncommitted_lines_kept: UncommittedKept;
    oldest_version_recovered: OldestRecovered;
    log_emptied_before_its_pages_are_written: EmptiedBeforeFlush;
    transaction_log_kept: TransactionLogKept;
    uncommitted_lines_dropped: UncommittedDropped;
    latest_version_taken: LatestTaken;
    hidden_lines_shown: HiddenShown;
    tail_before_pages: TailBeforePages;
    transaction_log_emptied_early: TransactionLogEmptiedEarly;
    transaction_log_fill_ignored: TransactionLogFillIgnored;
    stamp_ignored: StampIgnored;
    valid_before_bytes: ValidBeforeBytes;
    commit_order_ignored: CommitOrderIgnored;
    switched_before_programmed: SwitchedBeforeProgrammed;
    buffered_page_overwritten: BufferedPageOverwritten;
    begun_not_noted: BegunNotNoted;
    cut_erasure_forgotten: CutErasureForgotten;
    dead_page_revived: DeadPageRevived;
    moved_page_loses_stamp: MovedPageLosesStamp;
    discard_stamp_lost: DiscardStampLost;
    cached_page_stays_clean: CachedPageStaysClean;
    slot_cleared_before_write: SlotClearedBeforeWrite;
    slot_named_before_filled: SlotNamedBeforeFilled;
    dirty_page_dropped_before_write: DirtyPageDroppedBeforeWrite;
    cache_write_back_forgotten: CacheWriteBackForgotten;
    block_read_not_merged: BlockReadNotMerged;
    block_write_keeps_lines: BlockWriteKeepsLines;
    block_write_without_stamp: BlockWriteWithoutStamp;
    discard_keeps_lines: DiscardKeepsLines;
    discard_of_logged_page_skipped: DiscardOfLoggedPageSkipped;
    partial_line_from_flash: PartialLineFromFlash;
    memory_zone_reversed: MemoryZoneReversed;
}
