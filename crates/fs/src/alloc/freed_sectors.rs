//! Which sectors were freed during this mount and not yet discarded: a bit for each sector, in groups of 32,768 as in `sectors.rs`. A note
//! may be about a sector that was taken again: who discards compares it with the allocator.

use tandemfs_device::Growing;
use tandemfs_format::Sector;
use tandemfs_format::geometry::PIECE_SECTORS;

use super::bits::WORDS;
use crate::sync::Mutex;

/// The notes of one group; nothing while there are none.
pub(super) type Notes = Option<Box<[u64]>>;

#[derive(Debug, Default)]
pub(super) struct FreedSectors {
    groups: Growing<Mutex<Notes>>,
}

impl FreedSectors {
    /// Nothing was freed.
    pub(super) fn new(groups: usize) -> Self {
        Self { groups: (0..groups).map(|_| Mutex::default()).collect() }
    }

    /// So many groups from now on.
    pub(super) fn grow(&self, groups: usize) {
        self.groups.grow(groups, |_| Mutex::default());
    }

    /// These sectors were freed.
    pub(super) fn note(&self, sector: Sector, count: u64) {
        let (mut at, end) = (sector.number(), sector.number() + count);
        while at < end {
            let of_group = (PIECE_SECTORS - at % PIECE_SECTORS).min(end - at);
            let mut group = self.groups[(at / PIECE_SECTORS) as usize].lock();
            let words = group.get_or_insert_with(|| vec![0; WORDS].into_boxed_slice());
            let stop = at + of_group;
            while at < stop {
                let (word, bit) = ((at % PIECE_SECTORS / 64) as usize, at % 64);
                let here = (64 - bit).min(stop - at);
                words[word] |= (u64::MAX >> (64 - here)) << bit;
                at += here;
            }
        }
    }

    /// The notes of a group, for the caller to look through and to set to `None` when nothing is left in them.
    pub(super) fn group(&self, group: usize) -> &Mutex<Notes> {
        &self.groups[group]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_covers_its_sectors_alone_across_words_and_groups() {
        let freed = FreedSectors::new(2);
        freed.note(Sector::new(63), 2);
        freed.note(Sector::new(128), 64);
        freed.note(Sector::new(PIECE_SECTORS - 1), 3);
        let first = freed.group(0).lock().clone().expect("notes");
        assert_eq!((first[0], first[1], first[2], first[3], first[WORDS - 1]), (1 << 63, 1, u64::MAX, 0, 1 << 63));
        let second = freed.group(1).lock().clone().expect("notes");
        assert_eq!((second[0], second[1]), (3, 0));
    }
}
