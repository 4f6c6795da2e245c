//! Deliberate bugs, which show that the tests of this crate can fail (`docs/TESTING.md`). Without the feature `mutants` every switch is
//! `false` at compile time; no program enables it. A bug is selected for one thread, so that parallel tests do not affect each other.

/// A deliberate bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "mutants", allow(missing_docs))]
pub enum Mutant {
    #[cfg(feature = "mutants")]
    None,
    /// The journal is not replayed before the tree is read.
    JournalIgnored,
    /// Space that two inodes share is not detected.
    SharedSpaceIgnored,
    /// The first inode that names a page has it, whoever its lines verify for.
    FirstClaimWins,
    /// Lines of attributes are claimed before they are verified.
    SetsClaimedUnread,
    /// What two claims of a block's lines name is lost for the second.
    SecondClaimLost,
    /// Link counts are not compared with the names.
    LinkCountsIgnored,
    /// Saved maps are not compared with the tree.
    MapsIgnored,
    /// File data is not read.
    DataIgnored,
    /// A repair leaves the clean flag set, so that the next mount uses maps that the repair made wrong.
    RepairKeepsClean,
    /// A repair raises the generation before its first record, so that maps prove nothing once it is cut.
    MapsEndFirst,
    /// A repair passes the journal without writing its records home.
    RepairDropsJournal,
    /// A repair changes lines at home before its record is persistent.
    RepairHomeFirst,
    /// Older sectors below a lost log stay.
    OldBytesKept,
    /// A log across the end of its file is lost as a whole.
    LogsAcrossEndDropped,
    /// Bytes of a cut line are not listed.
    LossUnlisted,
    /// A damaged name takes its whole page with it.
    NeighboursCut,
    /// Pages that a directory's mapping lost are not searched.
    PagesNotSalvaged,
    /// Files without a name get one before their directories do.
    FilesFirst,
    /// A directory may be put below itself.
    PlacedBelowItself,
    /// New pages are written after the record that links them.
    LinkedBeforeWritten,
    /// The old bytes of superblocks and journal are not kept.
    UndoForgets,
    /// What cannot be read has no old bytes, so a repair that keeps them ends there.
    UndoNeedsBytes,
    /// Entries of a file for undoing are not verified.
    UndoUnverified,
    /// Sectors of a block half that may be another's become zeros.
    ForeignSectorsZeroed,
    /// Valid records behind a damaged one are not looked for.
    RingEndsAtDamage,
    /// A ring goes on at its front though the record there would have fitted before the end.
    FrontFollowsDamage,
    /// Bytes that do not match their checksums are restored as good ones.
    RestoresUnverified,
    /// A single line shows where a unit of inodes or a page of names belongs.
    OneLineProves,
    /// Units without a segment are not looked for.
    LostUnitsUnseen,
    /// A tree that verifies is taken for the content of a file, whatever the file's space and the saved maps say.
    StaleTreesTaken,
    /// Names that went with a directory count as removed.
    LostNamesRemoved,
    /// A page with a line that cannot be read is lost as a whole.
    PagesReadWhole,
    /// New pages and sectors may be those of inodes that a repair saves.
    HalvesOverwritten,
    /// Units keep their place though a page beyond the mark of a rebuilt segment is in use.
    MarksTooLow,
    /// Pages whose checksums are of what they hold with the logs over it are verified without them.
    OverlaidCheckedBare,
    /// Pages below logs are read again without the logs where a sector of another file cannot be read.
    LogsNotLaidAgain,
    /// Of an extent with a sector that cannot be read nothing is verified.
    ExtentsReadWhole,
    /// What open pages hold behind the end of the file is not read.
    OpenEndUnread,
    /// What programs appended in lent room is not seen.
    AppendedIgnored,
    /// Names of a damaged image are used as they are.
    NamesTrusted,
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
