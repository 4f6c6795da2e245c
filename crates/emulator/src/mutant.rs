//! Deliberate bugs, which show that the tests of the firmware can fail (`docs/TESTING.md`). Without the feature `mutants` every switch is
//! `false` at compile time; no program enables it. A bug is selected for one thread, so that parallel tests do not affect each other.

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
    /// Recovery empties the log before it has written the pages.
    EmptiedBeforeFlush,
    /// Recovery does not empty the TxLog.
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
    /// A nearly full TxLog starts no cleaning.
    TransactionLogFillIgnored,
    /// Opening the log accepts lines that are older than their page.
    StampIgnored,
    /// A line is valid before its bytes are stored.
    ValidBeforeBytes,
    /// A COMMIT does not override lines that others stored since.
    CommitOrderIgnored,
    // Flash.
    /// The translation entry is switched before the new page is programmed.
    SwitchedBeforeProgrammed,
    /// A buffered page that is rewritten is changed in its slot.
    BufferedPageOverwritten,
    /// The record of a block does not name the pages whose programming began.
    BegunNotNoted,
    /// An interrupted erasure counts as complete when the drive is opened.
    CutErasureForgotten,
    /// Garbage collection moves pages without asking whether they are still valid.
    DeadPageRevived,
    /// A page that is moved gets the stamp 0.
    MovedPageLosesStamp,
    /// A discarded page loses its stamp.
    DiscardStampLost,
    /// A block past its endurance stays in use.
    WornBlockKept,
    /// A block in which a program failed is not marked.
    FailedBlockForgotten,
    /// Blocks with cold data are never emptied to level wear.
    ColdDataStays,
    /// New pages are taken although the host's disk has no space for them.
    HostSpaceIgnored,
    // Page cache.
    /// A store to a cached page does not mark it dirty.
    CachedPageStaysClean,
    /// A slot is cleared before its dirty page is on the flash.
    SlotClearedBeforeWrite,
    /// A slot names its page before its bytes are stored.
    SlotNamedBeforeFilled,
    /// A block write drops the dirty page in the cache before the new one is on the flash.
    DirtyPageDroppedBeforeWrite,
    /// A dirty page that leaves the cache is not written to the flash.
    CacheWriteBackForgotten,
    // A cache that the host manages.
    /// A MOVE of several pages leaves out the last one.
    MovedPageForgotten,
    /// A MOVE to the flash takes the page out of the cache.
    MoveClearsSource,
    // Persistent memory behind a CPU's cache.
    /// The line that was used last is evicted.
    NewestLineEvicted,
    /// Ordinary lines take reserved ways.
    ReservedWaysShared,
    /// A flush leaves the line modified.
    FlushedLineStaysDirty,
    /// Each line that reaches a DIMM is written as a media line of its own.
    LinesNotCombined,
    // The whole drive.
    /// A block read ignores the log.
    BlockReadNotMerged,
    /// A block write leaves the page's log lines in the index.
    BlockWriteKeepsLines,
    /// A block write does not make the page's log lines obsolete.
    BlockWriteWithoutStamp,
    /// A discard leaves the page's log lines.
    DiscardKeepsLines,
    /// A page that is not in the flash counts as discarded even if the log has lines of it.
    DiscardOfLoggedPageSkipped,
    /// A store to part of a line reads the rest of the line from the flash and ignores the log.
    PartialLineFromFlash,
    /// The block window numbers the pages of the memory zone from its end.
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
