//! Deliberate bugs, which show that the tests of answers without a request can fail (`docs/TESTING.md`). Without the feature `mutants` every
//! switch is `false` at compile time; no program enables it. The selected bug is that of the whole process.

/// A deliberate bug and the rule that it breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "mutants", allow(missing_docs))]
#[repr(u8)]
pub enum Mutant {
    #[cfg(feature = "mutants")]
    None,
    /// [KN1]: whether a link is followed is not part of the question.
    FlagsNotAsked,
    /// [KN2]: an answer is given whatever has changed.
    AnswersNotCompared,
    /// [ANS1]: an answer that is changed meanwhile counts.
    TurnNotCompared,
    /// [FEN1]: first entries are given whatever has changed.
    EntriesNotCompared,
    /// [WHO1]: bytes that came with an open are given whatever has changed.
    WholeNotCompared,
    /// [IDF1]: a file is opened again whatever has changed.
    IdleNotCompared,
    /// [KN7]: the first entries of a directory count as all of them.
    PartsCountAsAll,
    /// [KN2]: bytes are given whatever has changed.
    BytesNotCompared,
    /// [AHC1]: what came ahead answers the other question about links.
    AheadFlagsLost,
    /// [KN6]: a file whose attributes are known has nothing extended.
    ExtendedNotSought,
    /// [KBY2]: bytes that are known count as all that there are.
    EndNotKnown,
    /// [LDS1]: bytes are loaded whatever has changed.
    LoadsNotCompared,
    /// [STR1]: what was stored counts although the lease was taken away.
    TakenStoresCount,
    /// [STR2]: what was stored is not flushed.
    StoresUnflushed,
    /// [STR2]: what was stored is not fenced.
    StoresUnfenced,
    /// [STR3]: threads store to a window at once.
    StoresUnordered,
    /// [STR4]: a file that may not be read is loaded.
    LoadsUnread,
    /// [STR6]: what lets a file grow counts as an overwrite.
    GrowthLeased,
    /// [STR9]: what was synced once counts as synced for ever.
    SyncNotCompared,
    /// [STR7]: the zone stays mapped when the connection has ended.
    ZoneKept,
    /// [APN1]: the word says that bytes are the file's before they are.
    WordBeforeBytes,
    /// [APN1]: the word is not flushed.
    WordUnflushed,
    /// [APN2]: what was appended counts although the lease was taken away.
    TakenAppendsCount,
    /// [APN2]: what was appended is appended again when the lease was taken away.
    TakenAppendsAgain,
    /// [APN3]: an append begins where the one before it began.
    EndForgotten,
    /// [APN4]: more is appended than there is room for.
    RoomExceeded,
    /// [APN5]: O_APPEND is what it was when the file was opened.
    AppendFlagKept,
    /// [APN7]: a file that is written in long pieces gets a tail.
    LongAppendsCount,
    /// [CN3]: a write is divided where memory is scarce.
    WritesTorn,
    /// [CN3]: what slots keep is taken when it is first needed.
    KeptTakenLate,
    /// [CN4]: who comes later may have memory first.
    NewcomersFirst,
    /// [CMP1]: the daemon is not told that a mapping is gone.
    UnmapNotTold,
    /// [CMP4]: lines that need it are not flushed.
    SyncUnflushed,
}

#[cfg(feature = "mutants")]
static SELECTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(Mutant::None as u8);

/// Held by the unit test whose bug it is.
#[cfg(all(test, feature = "mutants"))]
pub(crate) static ALONE: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

/// Selects the bug of this process; [`Mutant::None`] for none.
#[cfg(feature = "mutants")]
pub fn select(mutant: Mutant) {
    SELECTED.store(mutant as u8, std::sync::atomic::Ordering::SeqCst);
}

#[cfg(feature = "mutants")]
pub(crate) fn on(mutant: Mutant) -> bool {
    SELECTED.load(std::sync::atomic::Ordering::Relaxed) == mutant as u8
}

#[cfg(not(feature = "mutants"))]
pub(crate) const fn on(_: Mutant) -> bool {
    false
}
