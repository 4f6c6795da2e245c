//! Deliberate bugs that show that the tests of this crate can fail (`docs/TESTING.md`). Without the feature `mutants` every switch is
//! `false` at compile time; no program enables it. Selected by thread, so that tests beside each other do not meet.

/// A deliberate bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "mutants", allow(missing_docs))]
pub enum Mutant {
    #[cfg(feature = "mutants")]
    None,
    /// The journal is not replayed before the tree is read.
    JournalIgnored,
    /// Space that two inodes name is not noticed.
    SharedSpaceIgnored,
    /// Link counts are not compared with the names.
    LinkCountsIgnored,
    /// Saved maps are not compared with the tree.
    MapsIgnored,
    /// File data is not read.
    DataIgnored,
    /// A repair leaves the clean flag, so that the next mount takes maps that it made wrong.
    RepairKeepsClean,
    /// A repair passes the journal without writing its records home.
    RepairDropsJournal,
    /// A repair changes lines at home before its record is persistent.
    RepairHomeFirst,
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
