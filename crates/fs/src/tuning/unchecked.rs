//! Which files have open pages that nobody maps (`data/open_pages.rs`).

use std::collections::{BTreeMap, BTreeSet};

use tandemfs_format::InodeNumber;

/// Files with open pages that nobody maps, each with the block to go on with ([OG2] of `data/open_pages.rs`).
#[derive(Debug, Default)]
pub(crate) struct Unchecked {
    pub(crate) files: BTreeMap<u64, u64>,
    /// Files with such pages in blocks that were in use, for the next round.
    pub(crate) later: BTreeSet<u64>,
    /// Pages closed so far of the file that is being closed.
    pub(crate) closed: u64,
}

impl Unchecked {
    pub(crate) fn of(files: &[InodeNumber]) -> Self {
        Self { files: files.iter().map(|number| (number.get(), 0)).collect(), ..Self::default() }
    }

    /// A file may have such pages.
    pub(crate) fn add(&mut self, number: InodeNumber) {
        self.files.insert(number.get(), 0);
    }
}
