//! Deliberate bugs that show that the tests of the firmware can fail (`docs/TESTING.md`). Without the feature `mutants` every switch is
//! `false` at compile time; no program enables it. Selected by thread, so that tests beside each other do not meet.

/// A deliberate bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "mutants", allow(missing_docs))]
pub enum Mutant {
    #[cfg(feature = "mutants")]
    None,
    // Write log and transactions.
    /// Recovery keeps lines of transactions that were never committed.
    UncommittedKept,
    /// Recovery takes the oldest committed version of a line.
    OldestRecovered,
    /// Recovery gives the log back before it has written its pages.
    EmptiedBeforeFlush,
    /// Recovery leaves the TxLog as it was.
    TransactionLogKept,
    /// A cleaning drops the uncommitted lines that it meets.
    UncommittedDropped,
    /// A cleaning takes the latest version of a line, committed or not.
    LatestTaken,
    /// An uncommitted line below a committed one is visible after a cleaning.
    HiddenShown,
    /// The tail moves when a cleaning begins.
    TailBeforePages,
    /// The TxLog loses its entries when a cleaning begins.
    TransactionLogEmptiedEarly,
    /// The fill of the TxLog starts no cleaning.
    TransactionLogFillIgnored,
    /// Lines that are older than their page are taken when the log is opened.
    StampIgnored,
    /// A line is valid before its bytes are stored.
    ValidBeforeBytes,
    /// A commit does not come up over what others stored since.
    CommitOrderIgnored,
    // Flash.
    /// The translation entry is switched before the new page is programmed.
    SwitchedBeforeProgrammed,
    /// A buffered page that is rewritten is changed in its slot.
    BufferedPageOverwritten,
    /// The record of a block does not say which pages were begun.
    BegunNotNoted,
    /// An erasure that was cut counts as done when the drive is opened.
    CutErasureForgotten,
    /// Garbage collection moves pages without asking whether they are still valid.
    DeadPageRevived,
    /// A page that is moved gets the stamp 0.
    MovedPageLosesStamp,
    /// A discarded page keeps no stamp.
    DiscardStampLost,
    /// A block past its endurance stays in use.
    WornBlockKept,
    /// A block in which a program failed is not marked.
    FailedBlockForgotten,
    /// Blocks with cold data are never emptied to level wear.
    ColdDataStays,
    // Page cache.
    /// A store to a cached page does not mark it dirty.
    CachedPageStaysClean,
    /// A slot is cleared before its dirty page is on the flash.
    SlotClearedBeforeWrite,
    /// A slot says that it holds a page before it does.
    SlotNamedBeforeFilled,
    /// A block write drops the dirty page in the cache before the new one is on the flash.
    DirtyPageDroppedBeforeWrite,
    /// A dirty page that leaves the cache is not written to the flash.
    CacheWriteBackForgotten,
    // The drive put together.
    /// A block read shows the flash alone.
    BlockReadNotMerged,
    /// A block write leaves the lines that the log has of the page in its index.
    BlockWriteKeepsLines,
    /// A block write does not make the lines older that the log has of the page.
    BlockWriteWithoutStamp,
    /// A discard leaves the lines that the log has of the page.
    DiscardKeepsLines,
    /// A page that the flash does not have counts as discarded, whatever the log has of it.
    DiscardOfLoggedPageSkipped,
    /// A store of part of a line takes the rest from the flash, past the log.
    PartialLineFromFlash,
    /// Behind the last sector of the block zone comes nothing of the memory zone: its pages are counted from the end.
    MemoryZoneReversed,
}

#[cfg(feature = "mutants")]
thread_local!(static SELECTED: std::cell::Cell<Mutant> = const { std::cell::Cell::new(Mutant::None) });

/// Selects the bug of this thread; [`Mutant::None`] for none.
#[cfg(feature = "mutants")]
pub fn select(mutant: Mutant) {
    SELECTED.set(mutant);
}

#[cfg(feature = "mutants")]
pub(crate) fn on(mutant: Mutant) -> bool {
    SELECTED.get() == mutant
}

#[cfg(not(feature = "mutants"))]
pub(crate) const fn on(_: Mutant) -> bool {
    false
}
