//! Deliberate bugs, which show that the tests of this crate's modules can fail (`docs/TESTING.md`). They exist in those tests alone: elsewhere
//! every switch is `false` at compile time. The selected bug is that of the thread.

/// A deliberate bug and the rule that it breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// [NT1]: a note goes with whoever has the file no more, though others have it.
    ForgottenThoughHeld,
    /// [NT1]: a note goes that says what is going on.
    ForgottenUnderWay,
    /// [NT2]: a file for whose note there was no room counts as not noted.
    UnnotedWhereFull,
    /// [BS3]: the note is removed when the pages are dropped, and not before.
    UnnotedBehindDrop,
    /// [BS5]: a change counts when it has ended.
    ChangesUnderWayIgnored,
    /// [PC4]: writeback takes a change of a range for one that replaces all of it.
    ChangesUnawaited,
    /// [OT6]: pages are dropped while the kernel is told bytes for them.
    DropsWhileFilled,
    /// [BS5]: a change by a client counts as a piece of the kernel's call.
    ClientsWritePieces,
    /// [BS5]: a direct WRITE behind the end of a file that clients have cut goes to its end, before the pieces that belong before it.
    PiecesOutOfOrder,
    /// [BS5]: a client that cuts a file off counts as one that changes it.
    CutsForgotten,
    /// [BS5]: what was changed is that of whatever file has the number.
    GenerationIgnored,
    /// [BS6]: pages that somebody else drops count as dropped.
    DroppingIsSettled,
    /// [BS11]: pages of a file that is mapped for stores stay.
    MappedPagesKept,
    /// [BS11]: it is asked whether a file is mapped for stores before it is noted.
    MappedAskedBeforeNote,
    /// [BS12]: an fsync is left to the kernel though stores of mappings have to be flushed.
    FsyncUnasked,
    /// [FOP2]: an open is counted when it is known that the file is not mapped.
    OpenCountedLate,
    /// [FOP3]: the end of an open past the cache ends one that counts.
    AllReleasesCounted,
    /// [TN1]: a name is dropped though the kernel has it again.
    NamesDroppedAnew,
    /// [TN1]: a name is kept for a file that clients alone have.
    ClientsKeepNames,
    /// [AO1]: no idle thread is kept.
    NoThreadKept,
    /// [AO2]: nobody waits for jobs at the end of the session.
    JobsOutliveTheEnd,
    /// [PRI1]: files and directories are opened without the daemon.
    OpensUnchecked,
    /// [PRI2]: the kernel checks the way to a file by what it knows.
    WaysUnchecked,
    /// [SGN1]: a signal unmounts whatever is at the place of the mount.
    ForeignMountUnmounted,
    /// [SGN2]: a mount that somebody else has detached is never cut off.
    DetachedByOthersForgotten,
    /// [SGN3]: the connection of a device number is aborted, whosever it is.
    AbortedUnasked,
    /// [SGN3]: it is asked whether the connection stands before its file is opened.
    AskedBeforeOpening,
    /// [CTL1]: sockets are believed wherever they are.
    AnySocketBelieved,
    /// [CTL2]: a caller that says nothing is heard beyond the end of the mount.
    CallersHoldTheEnd,
    /// [CTL3]: a caller that cannot be accepted is tried at once again.
    AcceptsWithoutRest,
    /// [RTS4]: a file that the kernel does not have is waited for by each operation.
    AbsentAwaitedEachTime,
    /// [LT6]: a job runs though who waited for it has gone on.
    RunsThoughGivenUp,
    /// [RV5]: limits of quota refuse what was acknowledged.
    WriteBackBound,
    /// [OT1]: READs are not recorded.
    ReadsUnrecorded,
    /// [OT1]: the end of a drop ends the records of READs that began during it.
    EndsAllReads,
    /// [OT2]: a WRITE takes the mark while pages are being dropped.
    MarkTakenDuringDrop,
    /// [OT3]: a WRITE waits for no drop that is under way.
    WaitsForNone,
    /// [OT4]: READs behind a WRITE are waited for as if they had come before it.
    AllReadsBefore,
}

#[cfg(test)]
thread_local! {
    static SELECTED: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

#[cfg(test)]
pub(crate) fn on(mutant: Mutant) -> bool {
    SELECTED.get() == Some(mutant)
}

#[cfg(not(test))]
pub(crate) const fn on(_: Mutant) -> bool {
    false
}

/// Runs a test of one thread without a bug, and then with it, when it has to fail.
#[cfg(test)]
#[track_caller]
pub(crate) fn is_caught(bug: Mutant, test: fn()) {
    test();
    SELECTED.set(Some(bug));
    let result = std::panic::catch_unwind(test);
    SELECTED.set(None);
    assert!(result.is_err(), "{bug:?} escaped");
}
