//! Deliberate bugs, which show that the crash tests can fail (`docs/TESTING.md`). Without the feature `mutants` every switch is `false` at
//! compile time; no program enables the feature.

use tandemfs_format::LineAddress;
use tandemfs_format::journal::{JournalRecord, RECORD_MAGIC, TX_LINES_MAX, record_bytes};

/// A deliberate bug and the rule that it breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "mutants", allow(missing_docs))]
#[repr(u8)]
pub enum Mutant {
    #[cfg(feature = "mutants")]
    None,
    /// R1: the watermark is durable before the lines below it are home.
    WatermarkBeforeHome,
    /// R1: rings are released although the watermark is not durable.
    TailReleasedEarly,
    /// R1, R3: replay goes ring by ring instead of by txid.
    ReplayInRingOrder,
    /// R1: a checkpoint does not wait for transactions whose txid is taken.
    CheckpointPassesCommits,
    /// R2: a ring's lock is released before the record is persistent.
    RingReleasedEarly,
    /// R2: a txid is taken before the ring is locked.
    TxidBeforeRing,
    /// R3: a record is not flushed before it is acknowledged.
    RecordNotFlushed,
    /// R3: replay takes records whose checksum does not fit.
    RecordChecksumIgnored,
    /// R4: metadata goes home before its record is persistent.
    HomeBeforeRecord,
    /// R4: a name is removed or moved as it was found before the locks.
    NamesNotRevalidated,
    /// R5: a write builds the inode's lines from a version that it read before it took the lock.
    InodeBeforeLock,
    /// [NW3] of `wait.rs`: the in-core inode changes before the commit, which may refuse.
    InodeBeforeRefusal,
    /// [NW3] of `wait.rs`: a refused operation keeps the space that it took.
    RefusedKeepsSpace,
    /// [NW6] of `wait.rs`: a wait is not announced.
    WaitNotAnnounced,
    /// R5: an inode that is in use is evicted, so that it gets a second lock.
    EvictedInUse,
    /// R6: freed metadata space is given out again at once.
    FreedMetadataAtOnce,
    /// R6: a unit leaves its region before the watermark has passed the records that name its lines ([GU1]).
    UnitLeavesBeforeWatermark,
    /// A unit that leaves its region and the one that takes its position are changed in two transactions ([GU2]).
    UnitRenumberedApart,
    /// Compaction moves lines into units that it empties ([EU1]).
    MovedIntoEmptied,
    /// Operations get lines of units that are being emptied although others are free.
    GivenFromEmptied,
    /// The index of a directory in memory does not follow a page that compaction moved ([CZ5]).
    MovedPageNotFollowed,
    /// Compaction moves the checksums of a block while it is read ([CZ3]).
    MovedUnderReaders,
    /// Compaction gives damaged lines a valid checksum ([CZ4]).
    DamagedMoved,
    /// A directory whose names a repair would give back counts as empty ([DI5]).
    CorrectableIsEmpty,
    /// Compaction leaves the entries of a page in its old place ([CZ9]).
    MovedEntriesLeft,
    /// R7: sectors are given out before the transaction that frees them is persistent.
    DataFreedBeforeCommit,
    /// [DQ2]: sectors are discarded before the transaction that frees them is persistent.
    DiscardedBeforeCommit,
    /// [DQ1]: sectors are discarded although they were taken again.
    DiscardedWhileTaken,
    /// R7, R9: a read holds its range only until it knows where the bytes are.
    ReadRangeReleasedEarly,
    /// R8: a record is persisted before the logs that it names are fenced.
    LogsNotFenced,
    /// [HM1] of `data/home.rs`: the feature bit is not durable before the first record that needs it.
    HomeBitForgotten,
    /// [CS1] of `changing.rs`: a part of a change holds although another part of it is refused.
    SettingsChangedInPart,
    /// [CS3] of `changing.rs`: what a lower limit of host memory does not allow stays.
    LowerMemoryNotGivenBack,
    /// [MV1] of `data/moves.rs`: a mount does not search for moves that were interrupted.
    InterruptedMoveForgotten,
    /// [MV2] of `data/moves.rs`: a file whose data could not move, or had no room at home, is not tried again.
    WaitingMoveForgotten,
    /// [FX4] of `alloc/extents.rs`: files take more of the memory zone than the limit of the mount.
    HomeLimitIgnored,
    /// [HX1] of `namespace/home_attribute.rs`: what is made in a directory does not inherit its home.
    HomeNotInherited,
    /// [HN1] of `namespace/aligned_attribute.rs`: a directory inherits the hint *aligned*.
    HintInheritedByDirectories,
    /// [HX2] of `namespace/home_attribute.rs`: an attribute that is copied gives a file system the feature.
    FeatureByAttribute,
    /// No bug: this build does not know homes, as older ones ([HX3] of `namespace/home_attribute.rs`).
    HomesUnknown,
    /// [HX3] of `namespace/home_attribute.rs`: an attribute that an older build stored is listed.
    OldHomeShown,
    /// R8: a record is persisted before the pages of the memory zone that it names are fenced ([XI1] of `data/extent_io.rs`).
    HomePagesNotFenced,
    /// [OG1] of `data/open_pages.rs`: pages are mapped for stores, and their records do not say that they are open.
    OpenMarkForgotten,
    /// [OG3] of `data/open_pages.rs`: the checksums of closed pages are of bytes that are not durable.
    ClosedUnflushed,
    /// [OG2] of `data/open_pages.rs`: a mount after a crash does not look for open pages.
    UncheckedForgotten,
    /// [FM3] of `data/mapped.rs`: holes become open pages before the zeros there are durable.
    FillNotFenced,
    /// [FM5] of `data/mapped.rs`: the end of a mapping for stores leaves the times of a file without checksums.
    MappingsUntimed,
    /// [TX6]: what a transaction took is free again when nobody knows whether it was committed.
    UnknownGivesBack,
    /// R1: an unmount lets transactions commit behind its last checkpoint.
    UnmountClosesLate,
    /// [SA5]: a line of a removed file's mapping that cannot be read keeps the inode.
    UnreadableKeepsInodes,
    /// [RE5]: a page of metadata that cannot be read whole refuses mounts that only read.
    UnreadableRefusesReaders,
    /// [SC2]: a scrub takes an older version of a superblock copy for the right one.
    LostWritesUnnoticed,
    /// [OG7]: what is opened was not read, so damage gets a checksum when it is closed.
    OpenedUnverified,
    /// [MC3]: whether the end of a mapped file may be stale is what it was before the last block got its pages.
    MappedEndOfOldView,
    /// [FM5]: an unmap flushes what it closes alone.
    UnmappedUnflushed,
    /// [MC5]: mapped blocks that could not be zeroed stay unwritten.
    UnzeroedStaysUnwritten,
    /// [MC6]: a write that fails leaves the file as long as it would have become.
    GrownStays,
    /// [OG2]: an open page that cannot be read keeps all behind it in its file from being closed.
    UnreadableEndsClosing,
    /// [FM5] of `data/mapped.rs`: a sync of a file flushes nothing of what was stored by its mappings.
    MappedNotSynced,
    /// [FM8] of `data/mapped.rs`: pages that a program may still store to are closed and given up before an unmount.
    StoresLeftUnpinned,
    /// [FM8] of `data/mapped.rs`: a file that a program may still store to leaves memory, and its pin with it.
    LeftPinEvicted,
    /// [MW2] of `data/mapped_write.rs`: bytes are in mapped pages before the data logs are durable that make the call atomic.
    MappedHomeFirst,
    /// [MW2] of `data/mapped_write.rs`: the data logs go, and their bytes were not copied to the mapped pages.
    MappedHomeForgotten,
    /// [MW4] of `data/mapped_write.rs`: pages that are mapped for loads stay open when a change of them fails, and nobody notes it.
    FailedStaysOpen,
    /// [MW5] of `data/mapped_write.rs`: a write up to mapped blocks fails if a truncation comes between its growth and its bytes.
    MetMidwayFails,
    /// [MW6] of `data/mapped_write.rs`: who maps blocks once more rewrites those that have logs of a copy home that failed.
    MappedLogsFolded,
    /// [MW6] of `data/mapped_write.rs`: a truncation leaves the logs of a copy home that failed behind the new end.
    MappedEndKeepsLogs,
    /// [MC1] of `data/mapped_change.rs`: mapped blocks behind a new end become unwritten before the end moves.
    MappedEndLater,
    /// [MC3] of `data/mapped_change.rs`: the inode does not say that mapped pages may hold anything behind the end.
    MappedEndUnmarked,
    /// [MC3], [MC4] of `data/mapped_change.rs`: mapped pages that come inside a file again are not zeroed.
    RegrownNotZeroed,
    /// [MC5] of `data/mapped_change.rs`: mapped blocks that are punched stay unwritten.
    PunchedStaysUnwritten,
    /// [MC8] of `data/mapped_change.rs`: who maps the end of a file does not hold the blocks behind it.
    MappedEndUnlocked,
    /// [OG4] of `data/open_pages.rs`: pages are closed with what was stored behind the end.
    ClosedBehindEnd,
    /// [MG1] of `data/mapped_steps.rs`: what is not aligned is mapped as it lies.
    StepsNotAligned,
    /// [MG2] of `data/mapped_steps.rs`: what others left in pages behind the end of a file can be seen.
    StepsShowOthers,
    /// [MG3] of `data/mapped_steps.rs`: a mapping that found no room keeps what it took.
    StepExtentsKept,
    /// [KP1] of `data/kept_place.rs`: write-back moves blocks of aligned extents like others.
    PlacesLost,
    /// [KP2] of `data/kept_place.rs`: logs are dropped before their bytes are durable at home.
    KeptHomeNotFenced,
    /// [KP2] of `data/kept_place.rs`: pages keep the checksums that they had before the logs were copied over them.
    KeptChecksumsOld,
    /// [KP2] of `data/kept_place.rs`: logs are copied home before a record says of which bytes the checksums are.
    CopiedUnmarked,
    /// [KP2] of `data/kept_place.rs`: checksums are made of pages that were not verified.
    CopiedUnverified,
    /// [BL7] of `index/block.rs`: checksums of pages with logs over them stay when these logs change.
    OverlaidByOthers,
    /// [KP3] of `data/kept_place.rs`: pages that are verified with their logs are verified without.
    OverlaidReadBare,
    /// [KP4] of `data/kept_place.rs`: a block that has no entries left for an overwrite is not written back first.
    EntriesNotMade,
    /// [KP4] of `data/kept_place.rs`: blocks whose logs took the transient room are not written back.
    TransientLogsKept,
    /// [KP5] of `data/kept_place.rs`: a mount leaves copies that a crash interrupted.
    InterruptedCopyLeft,
    /// [FM2] of `data/mapped.rs`: mapped blocks are rewritten, moved and freed like others.
    PinsIgnored,
    /// [BR4] of `index/runs.rs`: a block of a run gets a record of its own, and the run keeps the block too.
    RunNotSplit,
    /// [BR3] of `index/runs.rs`: the checksum lines of a group of blocks that is taken apart stay taken.
    RunLinesKept,
    /// [HM4] of `data/home.rs`: a file without a home of its own goes to the block zone, also where there is none.
    MissingZoneIgnored,
    /// [MP3] of `data/move_pieces.rs`: what a piece took for a block that does not move stays taken.
    PieceRestKept,
    /// [AE3] of `data/align.rs`: a piece that changed while it was copied is committed.
    WatchIgnored,
    /// [AH3] of `data/hint.rs`: a file that has data is not rewritten when it gets the hint.
    HintQueuesNothing,
    /// [AS1] of `data/grown.rs`: what a file got before it was large stays where it is.
    GrowthForgotten,
    /// [AS3] of `data/grown.rs`: aligned extents that a long overwrite takes apart stay so.
    TakenApartForgotten,
    /// R8: a record is persisted before the blocks that it names are flushed.
    BlocksNotFlushed,
    /// R9: a write releases its range before its commit.
    WriteRangeReleasedEarly,
    /// R8: data of a block goes into the sectors that its record names, as if they were unwritten.
    WrittenFilledInPlace,
    /// R9: the inode is locked while its data is on the way to the device.
    InodeHeldOverIo,
    /// R10: the checksum of an extended log is recomputed from bytes that are read back.
    ChecksumFromReadBack,
    /// R11: the first piece of a long write already sets the size that the last piece reaches.
    SizeBeforePieces,
    /// R12: a file whose last holder goes while its last name is removed is forgotten.
    LateOrphanForgotten,
    /// [VS9]: who holds an inode for later use is not told that its last name went.
    NamelessUntold,
    /// R12: recovery does not remove inodes without names.
    OrphansForgotten,
    /// R13: a truncation forgets that stale bytes stay beyond the end.
    StaleTailForgotten,
    /// R14: growth takes the transient room.
    TransientRoomGiven,
    /// R15: the file system goes on after a failed flush.
    FailedFlushIgnored,
    /// R16: host copies change before COMMIT.
    HostCopyBeforeCommit,
    /// R16: COMMIT is given before the tagged stores are fenced.
    CommitWithoutFence,
    /// R16: a transaction of the drive is never committed.
    CommitForgotten,
    /// R16: only the first line of a run belongs to the transaction.
    StoredUntagged,
    /// R16: pages that a transaction stored and did not commit are evicted and loaded again ([CA5] of `cache/`).
    FailedPagesUnpinned,
    /// R16: a fresh page that was zeroed by blocks is not flushed before lines are stored to it.
    FreshPageNotFlushed,
    /// R17: numbers of transactions are used again while the drive's log knows them.
    NumbersReused,
    /// ByteFS §4.7: a mount does not let the drive recover.
    RecoverSkipped,
    /// R23: a load that failed is taken for zeros.
    FailedLoadIsZeros,
    /// R25: a mount leaves the clean flag set.
    CleanKept,
    /// [IS3]: the superblock takes the new stamp before the identity that has it is flushed.
    IdentityNotFlushed,
    /// [IS2]: the identity has the new stamp before the superblock names it.
    IdentityBeforePending,
    /// [IS2]: after an interrupted change of the stamp, the superblock keeps the one that the identity may no longer have.
    InterruptedStampKept,
    /// R25: saved maps are accepted although they mark space that nothing can have taken.
    MapBeyondMarkTaken,
    /// R26: space that damaged metadata may name is given out ([HB1]).
    HiddenSpaceGiven,
    /// R26: an unmount is clean although space is held back ([HB4]).
    CleanWhileHeldBack,
    /// R3: a ring ends at a damaged record although later ones prove themselves ([RL4]).
    DamagedRecordEndsRing,
    /// R27: a fresh mapping page is linked with empty lines ([CA9]).
    FreshPageUnsealed,
    /// R28: what a repair gave up reads as a hole.
    LostReadsAsHole,
    /// A leaf of zeros reads as no logs ([BL6]).
    EmptyLeavesRead,
    /// The second copy of the superblock is not written.
    SecondSuperblockSkipped,
    /// A rename removes the old name in a transaction of its own.
    RenameInTwoTransactions,
    /// A further name does not raise the link count.
    LinkCountKept,
    /// A directory that moves keeps its old parent.
    ParentKept,
    /// A new name of a rename is not added to the index in memory.
    NameNotIndexed,
    /// R19: the sub-writes of one write are committed one by one.
    SubWritesApart,
    /// A write that merges old logs into a new one loses the bytes of the old ones.
    MergedBytesForgotten,
    /// A rewritten sector counts as covered if any log touches it.
    TouchedTakenForCovered,
    /// R8: the blocks that are written back together are not flushed before their transactions.
    BatchNotFlushed,
    /// R9: of the blocks that are written back together only the first is locked.
    BatchRangeNotLocked,
    /// Write-back: the logs of all but the first block are forgotten.
    BatchLogsForgotten,
    /// Write-back: the sectors of a block whose write-back failed are given out although the block still uses them.
    BatchFailedBlockFreed,
    /// Write-back: all blocks that are written together get the checksums of the first.
    BatchChecksumsKept,
    /// Write-back uses the root of the inode that has a candidate's number now, although it is another file ([WB7]).
    CandidateOfAnotherInode,
    /// A copied hole is punched one block behind its place.
    CopiedHoleMisplaced,
    /// A copy of several pieces ends after the first.
    CopyTailForgotten,
    /// A scrub reads a sector and ignores its checksum.
    ScrubPassesOver,
    /// A scrub verifies the host copy of a line instead of the device's.
    ScrubFromCache,
    /// [FP2] of `cache/file_pages.rs`: a page outlives a write to it.
    PageOutlivesWrite,
    /// [FP2] of `cache/file_pages.rs`: a write puts its pages back before it is committed.
    PageBeforeCommit,
    /// [FP1] of `cache/file_pages.rs`: pages of a read that failed are kept.
    UnverifiedKept,
    /// [FP3] of `cache/file_pages.rs`: pages of a file are kept while it is mapped.
    PagesOfMappedKept,
    /// [FP4] of `cache/file_pages.rs`: a look-up reads the size and gives the inode's lock up before it copies.
    PageEndApart,
    /// [FP4] of `cache/file_pages.rs`: it is not noted what an answer from pages depends on.
    PageNotNoted,
    /// [FP2]: a write that is refused puts pages back when it has no range any more.
    PagesBackBehindRange,
    /// Only the first part of a request is verified.
    LaterPartsNotVerified,
    /// A promoted copy outlives the sector that it copies ([PR2]).
    PromotedKept,
    /// An unmount saves maps before promoted slots are given back ([SP3]).
    PromotedSlotsSaved,
    /// The slot of an evicted copy is freed, but the copy is still found.
    PromotedSlotTwice,
    /// [FP2], [FP3] of `cache/file_pages.rs`: a page outlives a change of its bytes by something other than a write.
    PageOutlivesChange,
    /// R18: the checksum of a sector is not updated when lines are stored in it in place.
    ChecksumNotRenewed,
    /// Lines are stored in place although a data log covers them ([IP1]).
    InPlaceOverLog,
    /// R16, R18: lines are stored in place before the transaction that updates their checksum is committed ([IP2]).
    InPlaceBeforeCommit,
    /// The old bytes of a line come from a file page although a log covers them ([IP6]).
    OldLineUnderLog,
    /// R13: a file grows in place and forgets the stale bytes that a truncation left behind its end ([IP5]).
    StaleTailInPlace,
    /// R11: a collapse frees its blocks in a transaction of its own ([SF1]).
    CollapseInTwoTransactions,
    /// R6: the pages of a mapping that was shifted are linked before they are fenced ([SH1]).
    ShiftedPagesNotFenced,
    /// Sparse units of the data area are never emptied ([GA3]).
    SparseUnitsKept,
    /// A compaction by hand ends after a pass, whatever it gained ([GA7]).
    GatheringEndsEarly,
    /// [SX1] of `alloc/scattered.rs`: units of extents are never emptied so that aligned extents stay.
    ScatteredSpaceKept,
    /// [SX3] of `alloc/scattered.rs`: who finds no other place does not get the holes of units that are being emptied.
    HiddenForGood,
    /// A log that moves out of a sparse unit is not verified, and gets a new checksum ([GT3]).
    GatheredUnverified,
    /// A log is stored from shared memory after its checksum was made of a copy ([SM3] of `data/write_path.rs`).
    SharedLogReadAgain,
    /// Pages of shared memory are kept as copies of what was written ([SM3]).
    SharedPagesKept,
    /// Sectors that were read into shared memory are not verified ([SM4] of `data/read_path.rs`).
    SharedPartsNotVerified,
    /// [AL5] of `data/allocate.rs`: what a punch cuts off a block is decided before zeros may give the block more sectors.
    CutDecidedEarly,
    /// The blocks that a collapse removes are not freed.
    CollapsedBlocksKept,
    /// Lines of new attributes are linked before they are fenced ([ST1]).
    AttributesNotFenced,
    /// A removed file keeps the lines of its attributes.
    AttributesKept,
    /// An attribute is overwritten in place.
    AttributesInPlace,
    /// A rebuild of the maps ignores attributes.
    AttributesNotMarked,
    /// Map pieces grow in place even if the units behind them belong to something else ([RS3]).
    MapGrowsInPlace,
    /// The superblock has smaller sizes although something lies behind the new ends ([SR4] of `shrinking.rs`).
    ShrunkUnmoved,
    /// The segment table names a new unit of inodes before these are there ([SR3]).
    InodesNotCopied,
    /// Map pieces of a zone that grows in use lie in units that others get still ([ON3]).
    MapUnitsNotTaken,
    /// New space is given out before the superblock has the new sizes (R30, [ON4]).
    GrownUnwritten,
    /// The superblock with the new sizes is marked clean before their maps are saved ([RS4]).
    GrownBeforeMaps,
    /// A change of a file's blocks goes on without recalling their leases ([LY2]).
    LeasesNotRecalled,
    /// A lease is registered only after the range of its look-up was unlocked ([LY2]).
    LeaseAfterRange,
    /// Sectors that the holder of a revoked lease may still read are given out again ([LY4]).
    LeasedSectorsFreed,
    /// The version of an inode's rights is not raised ([VS1] of `versions.rs`).
    RightsNotRaised,
    /// The version of an inode's attributes is not raised ([VS1]).
    AttributesNotRaised,
    /// The version of a name is not raised ([VS1]).
    NameNotRaised,
    /// [VS7] of `versions.rs`: the version of a directory's entries is not raised.
    EntriesNotRaised,
    /// The version of a file's bytes is not raised ([VS1]).
    BytesNotRaised,
    /// [VS6] of `versions.rs`: a file that is mapped counts as synced.
    SyncedThoughMapped,
    /// [LM2]: who gets a range exclusively does not revoke what was lent of it.
    PlacesNotRaised,
    /// [LM1]: the version of what is lent is noted after its range was released.
    PlacesNotedLate,
    /// [LM3]: blocks with data logs are lent, too.
    LentBelowLogs,
    /// [LM3]: bytes are lent that were not verified.
    LentUnverified,
    /// [LM4]: an inode leaves memory and what was lent of it is not revoked.
    LentPastEviction,
    /// [SL2] of `data/lent_stores.rs`: nobody ends a lease for stores before he takes its blocks.
    StoresNotEnded,
    /// [SL3]: a lease ends while somebody is storing.
    StoresNotWaitedFor,
    /// [SL5]: pages that were taken away are given out although somebody can store to them.
    TakenPagesFreed,
    /// [SL5]: a mount does not look whether a program of an earlier one can still store.
    ProgramsLeftIgnored,
    /// [SL6]: the times of a file do not change when a lease on it was used.
    StoresUntimed,
    /// [SL1] of `data/lent_stores.rs`: blocks around an offset take the room that the same program has.
    OwnRoomTaken,
    /// [LR1] of `data/lent_room.rs`: the inode does not say that anything may be behind the end.
    LentEndUnmarked,
    /// [LR2]: a line of the table is put into use together with what it says.
    LentLineAtOnce,
    /// [LR2]: a slot is put into use with the word of its last lease.
    LentWordStale,
    /// [LR4]: who asks for the size of a file gets the one before a program appended.
    LentSizeForgotten,
    /// [LR5]: a slot stays in use when its lease has ended.
    LentSlotLeft,
    /// [LR6]: a mount does not adopt what programs appended.
    LentRoomsNotAdopted,
    /// [LR9]: the size that a lease has reached is folded when the lease has ended.
    LentSizeFoldedLate,
    /// [LR7]: a slot whose bytes were taken away is unused when they are copied.
    LentSlotKeptForCopy,
    /// [LR7]: a slot is lent again while somebody may store to its word.
    LentWordReused,
    /// [LR8]: the feature bit is not durable before the first slot is used.
    LentBitForgotten,
    /// [SL8]: a file that gives rights to who starts it is lent for stores.
    RightsLent,
    /// [SL9]: a lease is put on the list of all when others may have ended it.
    LeaseListedLate,
    /// Attributes are noted when their inode is not locked any more ([VS2]).
    NotedBehindLock,
    /// [QT2] of `quota/`: limits refuse nothing.
    LimitsIgnored,
    /// [QT2] of `quota/`: what a transaction frees stays counted.
    FreedStaysCounted,
    /// [QT2] of `quota/`: what a refused transaction would have taken stays counted.
    RefusedStaysCounted,
    /// [QT6] of `quota/`: the usage of an inode does not follow its owner.
    ChownUncounted,
    /// [PJ2] of `namespace/project.rs`: files of another project enter a tree.
    ProjectsMixed,
    /// [PJ4] of `namespace/project.rs`: what left a tree meanwhile gets its project.
    ProjectOfStaleName,
    /// [LW1] of `data/plan.rs`: all blocks of a long write may change their leaves.
    LeavesUnbounded,
    /// [QL1] of `namespace/quota_limits.rs`: limits are stored without the feature bit.
    QuotaBitForgotten,
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

/// Decodes a record without verifying its checksum.
pub(crate) fn decode_unproved(bytes: &[u8], wrap: u32) -> Option<JournalRecord> {
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let count = word(12)? as usize;
    if word(4)? != RECORD_MAGIC || word(24)? != wrap || count > TX_LINES_MAX || record_bytes(count) > bytes.len() {
        return None;
    }
    let change = |index: usize| {
        let at = 32 + 72 * index;
        Some((LineAddress::new(long(at)?), bytes.get(at + 8..at + 72)?.try_into().ok()?))
    };
    Some(JournalRecord { txid: long(16)?, changes: (0..count).map(change).collect::<Option<_>>()?, bytes: record_bytes(count) })
}
