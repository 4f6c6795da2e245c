//! What a transaction takes and frees, and for whom.
//!
//! A transaction notes space as it takes and frees it. Whoever knows the owner then says whose it was ([`Charges::attribute`]), before the
//! next owner's space follows.

use smallvec::SmallVec;

use super::table::Sums;
use super::usage::{Change, Ids, add_change, change_of};
use crate::space::Space;

/// What a transaction takes and frees.
#[derive(Debug, Default)]
pub(crate) struct Charges {
    /// Not yet attributed.
    pending: Change,
    attributed: SmallVec<[(Ids, Change); 2]>,
}

impl Charges {
    /// Space was taken.
    #[inline]
    pub(crate) fn took(&mut self, space: Space) {
        add_change(&mut self.pending, change_of(space));
    }

    /// Space is freed.
    #[inline]
    pub(crate) fn freed(&mut self, space: Space) {
        add_change(&mut self.pending, change_of(space).map(|amount| -amount));
    }

    /// What was noted since the last call belongs to these.
    #[inline]
    pub(crate) fn attribute(&mut self, ids: Ids) {
        let pending = std::mem::take(&mut self.pending);
        if pending != [0; 3] {
            self.attributed.push((ids, pending));
        }
    }

    /// An inode that uses so much gets other ids ([QT6]).
    pub(crate) fn moves(&mut self, from: Ids, to: Ids, usage: Change) {
        self.attributed.push((from, usage.map(|amount| -amount)));
        self.attributed.push((to, usage));
    }

    /// Whether everything noted belongs to somebody.
    pub(crate) fn is_attributed(&self) -> bool {
        self.pending == [0; 3]
    }

    /// The change of each id.
    pub(super) fn sums(&self) -> Sums {
        let mut sums = Sums::new();
        for (ids, change) in &self.attributed {
            for key in ids.each() {
                match sums.iter_mut().find(|(other, _)| *other == key) {
                    Some((_, sum)) => add_change(sum, *change),
                    None => sums.push((key, *change)),
                }
            }
        }
        sums.retain(|(_, change)| *change != [0; 3]);
        sums
    }
}
