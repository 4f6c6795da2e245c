//! Deliberate bugs, which show that the tests of this crate can fail (`docs/TESTING.md`). Without the feature `mutants` every switch is `false`
//! at compile time; no program enables it. The selected bug is that of the whole process, whose threads serve.

/// A deliberate bug and the rule that it breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "mutants", allow(missing_docs))]
#[repr(u8)]
pub enum Mutant {
    #[cfg(feature = "mutants")]
    None,
    /// [SRV1]: the poller runs an operation that may wait.
    PollerWaits,
    /// [SRV5]: the thread that polls runs what may wait, without handing the poller on.
    PollerNotHandedOn,
    /// [SRV3]: files whose last holder went are left to the background thread.
    FilesLeft,
    /// [SRV3]: an answer comes before pages of the mount are dropped.
    AnsweredBeforeOwed,
    /// [D1]: the number of open files is not bounded.
    FilesUnbounded,
    /// [D1]: the memory of all clients is not bounded.
    MemoryUnbounded,
    /// [D3]: open files of a client stay open behind its end.
    FilesOutliveClients,
    /// [CRD1]: credentials are those of the greeting for ever.
    CredentialsKept,
    /// [CRD2]: any root directory of a mount will do.
    AnyRoot,
    /// [CRD2]: it is not asked whether the mount still stands.
    MountNotAsked,
    /// [CRD4]: a process with RLIMIT_FSIZE is served.
    SizeLimitIgnored,
    /// [CRD5]: rights count that a process has got since it connected.
    ConnectedAsSomebodyElse,
    /// [CRD6]: descriptors that clients send are taken.
    DescriptorsTaken,
    /// [KNW1]: every answer may be kept as long as its path leads to the same inode.
    AttributesNotSeen,
    /// [KNW5]: bytes are kept of files of which the kernel has pages.
    KernelPagesKept,
    /// [KNW2]: who answers itself is not looked after.
    AnswerersNotLookedAfter,
    /// [KNW3]: answers that were made by an older list of mounts stay right.
    MountsNotRevoked,
    /// [D14]: a mount point is forgotten when a directory above it has another name.
    MountPointsForgotten,
    /// [CRD3]: a mount that was made read-only by others is served.
    ClosedMountServed,
    /// [LND1]: whoever asks for the memory zone gets it.
    ZoneForEverybody,
    /// [LND2]: who has no zone is told where bytes lie.
    LentWithoutZone,
    /// [MAP1]: a client may have any number of mappings.
    MappingsUnbounded,
    /// [MAP8]: clients that end may leave any number of mappings for loads.
    LoadsLeftUnbounded,
    /// [MAP2]: pages that are mapped may move once the client has ended.
    PinsEndWithClients,
    /// [MAP3]: who has no zone maps files.
    MappedWithoutZone,
    /// [AHD1]: what is told ahead depends on what was asked for.
    ForetoldByTheAsked,
    /// [AHD2]: whoever asks about a name is told of all others.
    ForetoldToAll,
    /// [AHD4]: who may list a directory is told which names are not there, though he may not search it.
    ListedUnsearched,
    /// [KNW6]: an open may be repeated while somebody watches.
    WatchersUnasked,
    /// [IDL1]: files that lose their last name stay with whoever keeps them for later.
    IdleKept,
    /// [LNS1]: whoever asks for the memory zone for stores gets it.
    StoresForEverybody,
    /// [LNS3]: a lease lasts when its file is closed, or gets other flags.
    LeasesOutliveFiles,
    /// [LNS3]: a lease lasts when its client has ended.
    LeasesOutliveClients,
    /// [LNS4]: what somebody watches is stored to.
    WatchedStoredTo,
    /// [LNS5]: a process that did not stop storing gets leases by its next connection.
    LateForgotten,
    /// [LNS8]: who asks how far appends count is told before the lease has ended.
    AppendedAtOnce,
    /// [MAP7]: who has the zone for loads maps for stores, though it is not trusted with them.
    StoresMappedByAll,
    /// [MAP6]: a mapping for stores is gone when the client says so, or ends.
    EndsBelieved,
    /// [DSC2]: descriptors can read and write, whatever the open file may.
    AccessNotKept,
    /// [DSC2]: whatever is open becomes a descriptor.
    DescriptorsOfAll,
    /// [DSC2]: which of the files that have had the number is not said.
    GenerationNotSaid,
    /// [DSC3]: descriptors go to another client.
    SentToAnother,
}

#[cfg(feature = "mutants")]
static SELECTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(Mutant::None as u8);

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
