//! Deliberate bugs, which show that the tests of `tandemfs run` can fail (`docs/TESTING.md`). Without the feature `mutants` every switch is
//! `false` at compile time; no program enables it. The variable `TANDEMFS_RUN_MUTANT` has the name of the bug of a process.

/// A deliberate bug and the rule of `lib.rs` that it breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "mutants", allow(missing_docs))]
#[repr(u8)]
pub(crate) enum Mutant {
    #[cfg(feature = "mutants")]
    None,
    /// [PRL1]: what is mounted at the mountpoint is not asked for at each call.
    MountpointRemembered,
    /// [PRL1]: the inode of the working directory is asked for once.
    DirectoryRemembered,
    /// [PRL2]: ids are those of the connection for ever.
    IdsRemembered,
    /// [PRL2]: any process with this memory uses the connection.
    ProcessNotAsked,
    /// [PRL3]: signals are taken inside.
    SignalsTaken,
    /// [PRL6]: a program may close descriptors of the connection.
    OursClosed,
    /// [PRL7]: the file of a number is asked for once.
    NumberRemembered,
    /// [PRL7]: what is opened by a path is not held against the descriptor.
    OpenedNotCompared,
    /// [PRL8]: it is not asked how a descriptor was opened.
    AccessNotAsked,
    /// [PRL22]: an append is as many requests as it takes.
    LongAppendsDivided,
    /// [PRL9]: O_APPEND is not asked for.
    AppendNotAsked,
    /// [PRL9]: a file grows by the door.
    GrowsByDoor,
    /// [PRL11]: a file stays open behind its close.
    KeptBehindClose,
    /// [PRL4]: a fork does not wait until nobody is inside.
    ForkInside,
    /// [PRL5]: a change whose answer did not come is made again by the mount.
    ChangeRepeated,
    /// [PRL12]: it is not asked whether a number still is a placeholder.
    PlaceholderNotAsked,
    /// [PRL13]: a child inherits placeholders.
    ForkedPlaceholders,
    /// [PRL13]: what becomes real begins at its start.
    OffsetLost,
    /// [PRL14]: what becomes real is still opened by the door, too.
    BothWays,
    /// [PRL14], [PRL16]: an open that is under way is not met by who locks its file, or ends placeholders.
    OpensNotMet,
    /// [PRL13]: threads whose descriptors are not shared any more use placeholders.
    UnsharedNotLeft,
    /// [PRL16]: who loads libc by its name uses placeholders.
    LibcLoaded,
    /// [PRL20]: a mapping for loads becomes the mount's when the file is locked.
    MappedWhenLocked,
    /// [PRL23]: functions are looked up when they are needed.
    LookedUpLate,
    /// [PRL15]: it is not asked whether a file is a program.
    ProgramsWritten,
    /// [PRL16]: code is not looked through.
    OwnCallsNotSought,
    /// [PRL16]: it is looked through once.
    LoadedNotSought,
    /// [PRL16]: what is loaded meets placeholders.
    LoadedAmongPlaceholders,
    /// [PRL17]: what is watched is changed by the door.
    WatchersUntold,
    /// [PRL17]: a file becomes real without the directory by which it was opened.
    DirectoryKept,
    /// [PRL18]: a stream of a directory that has become real goes on at its start.
    StreamRestarted,
    /// [PRL18]: a number that shares a placeholder's description stays a placeholder.
    SharedKept,
    /// [PRL19]: a fault of lent memory is not mended.
    FaultsBlocked,
    /// [PRL21]: what is shown is not withdrawn.
    AnswersKept,
    /// [PRL20]: mappings for loads are not the mount's before a fork.
    MappingsNotInherited,
}

#[cfg(feature = "mutants")]
static SELECTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(Mutant::None as u8);

/// Selects the bug of this process by its name.
///
/// # Panics
/// If there is none of this name.
#[cfg(feature = "mutants")]
pub(crate) fn select(name: &str) {
    use Mutant::*;
    const ALL: [Mutant; 35] = [
        MountpointRemembered,
        DirectoryRemembered,
        IdsRemembered,
        ProcessNotAsked,
        SignalsTaken,
        OursClosed,
        NumberRemembered,
        OpenedNotCompared,
        AccessNotAsked,
        AppendNotAsked,
        GrowsByDoor,
        KeptBehindClose,
        ForkInside,
        ChangeRepeated,
        PlaceholderNotAsked,
        ForkedPlaceholders,
        OffsetLost,
        BothWays,
        OpensNotMet,
        UnsharedNotLeft,
        LibcLoaded,
        MappedWhenLocked,
        LookedUpLate,
        ProgramsWritten,
        OwnCallsNotSought,
        LoadedNotSought,
        LoadedAmongPlaceholders,
        WatchersUntold,
        DirectoryKept,
        StreamRestarted,
        SharedKept,
        FaultsBlocked,
        AnswersKept,
        MappingsNotInherited,
        LongAppendsDivided,
    ];
    let Some(mutant) = ALL.into_iter().find(|mutant| format!("{mutant:?}") == name) else { panic!("{name}: no such bug") };
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
