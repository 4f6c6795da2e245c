//! Which files have open pages that nobody maps (`data/open_pages.rs`).

use std::collections::{BTreeMap, BTreeSet};

use tandemfs_format::InodeNumber;

/// Files with open pages that nobody maps, each with the block to go on with ([OG2] of `data/open_pages.rs`).
#[derive(Debug, Default)]
pub(crate) struct Unchecked {
    /// Each with the block to go on with.
    files: BTreeMap<u64, u64>,
    /// Files with such pages in blocks that were in use, for the next round.
    later: BTreeSet<u64>,
    /// Files of which somebody closes pages now; they are not among `files` but if they were added meanwhile.
    closing: BTreeSet<u64>,
}

impl Unchecked {
    pub(crate) fn of(files: &[InodeNumber]) -> Self {
        Self { files: files.iter().map(|number| (number.get(), 0)).collect(), ..Self::default() }
    }

    /// A file may have such pages.
    pub(crate) fn add(&mut self, number: InodeNumber) {
        self.files.insert(number.get(), 0);
    }

    /// Blocks of a file have moved: it is gone through once more if it is here.
    pub(crate) fn moved(&mut self, number: InodeNumber) {
        if self.files.contains_key(&number.get()) || self.closing.contains(&number.get()) {
            self.add(number);
        }
    }

    /// A file may have such pages in blocks that are in use.
    pub(crate) fn add_later(&mut self, number: InodeNumber) {
        self.later.insert(number.get());
    }

    /// Those that were added for later count from now on. Whether there are any.
    pub(crate) fn begin_round(&mut self) -> bool {
        self.files.extend(std::mem::take(&mut self.later).into_iter().map(|number| (number, 0)));
        !self.files.is_empty()
    }

    /// Takes a file, to close some of its pages from a block on; [`Unchecked::has_closed`] follows.
    pub(crate) fn take(&mut self) -> Option<(InodeNumber, u64)> {
        let (number, from) = self.files.pop_first()?;
        self.closing.insert(number);
        Some((InodeNumber::new(number), from))
    }

    /// A file that was taken has such pages at the earliest from a block on, if any. What was added meanwhile stays.
    pub(crate) fn has_closed(&mut self, number: InodeNumber, next: Option<u64>) {
        self.closing.remove(&number.get());
        if let Some(next) = next {
            self.files.entry(number.get()).or_insert(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeNumber = InodeNumber::new(7);

    #[test]
    fn regression_a_file_that_was_added_meanwhile_is_gone_through_once_more() {
        for next in [None, Some(9)] {
            let mut unchecked = Unchecked::of(&[FILE]);
            assert_eq!(unchecked.take(), Some((FILE, 0)));
            unchecked.add(FILE);
            unchecked.has_closed(FILE, next);
            assert_eq!(unchecked.take(), Some((FILE, 0)));
        }
    }

    #[test]
    fn regression_blocks_that_moved_are_gone_through_once_more() {
        let mut unchecked = Unchecked::of(&[FILE]);
        unchecked.moved(InodeNumber::new(8));
        assert_eq!(unchecked.take(), Some((FILE, 0)));
        unchecked.has_closed(FILE, Some(5));
        unchecked.moved(FILE);
        assert_eq!(unchecked.take(), Some((FILE, 0)));
        unchecked.moved(FILE);
        unchecked.has_closed(FILE, Some(5));
        assert_eq!(unchecked.take(), Some((FILE, 0)));
        unchecked.has_closed(FILE, Some(5));
        assert_eq!(unchecked.take(), Some((FILE, 5)));
        unchecked.has_closed(FILE, None);
        unchecked.moved(FILE);
        assert_eq!(unchecked.take(), None);
    }
}
