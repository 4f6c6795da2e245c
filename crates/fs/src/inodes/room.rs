//! Finds the page of a directory with room for an entry. The first level has the longest run of free slots of every page, each further
//! level the maximum of every 64 numbers below. Finding the first page with room, and noting a page's room, take one step per level
//! whatever names come and go. A list of hints would be walked from its start after every removal in front.
//!
//! [RM1] The numbers follow the `used` masks of the index; they are noted where the masks change, nowhere else.

use tandemfs_format::dentry::ENTRY_SLOTS_MAX;

/// Numbers that one number of the next level covers.
const FAN_OUT: usize = 64;

/// Longest runs of free slots, at most [`ENTRY_SLOTS_MAX`] each. The first level has one number per page; the last level has at most
/// [`FAN_OUT`].
#[derive(Debug)]
pub(super) struct Room {
    levels: Vec<Vec<u8>>,
}

impl Default for Room {
    fn default() -> Self {
        Self { levels: vec![Vec::new()] }
    }
}

impl Room {
    /// Number of known pages.
    fn pages(&self) -> usize {
        self.levels[0].len()
    }

    /// Notes the used slots of a page; a page behind the last known one is added.
    pub(super) fn note(&mut self, page: usize, used: u64) {
        if page == self.pages() {
            self.join();
        }
        let mut longest = longest_run(used);
        let mut at = page;
        for level in 0..self.levels.len() {
            if std::mem::replace(&mut self.levels[level][at], longest) == longest {
                return;
            }
            at /= FAN_OUT;
            let group = &self.levels[level][at * FAN_OUT..];
            longest = group.iter().take(FAN_OUT).copied().max().unwrap_or(0);
        }
    }

    /// Adds a number on every level that needs one, and a level where the last one has more than [`FAN_OUT`].
    fn join(&mut self) {
        let mut numbers = self.pages() + 1;
        for level in 0.. {
            match self.levels.get_mut(level) {
                Some(known) => known.resize(numbers, 0),
                None => {
                    let below = self.levels[level - 1].chunks(FAN_OUT);
                    let longest = below.map(|group| group.iter().copied().max().unwrap_or(0)).collect();
                    self.levels.push(longest);
                }
            }
            if numbers <= FAN_OUT {
                return;
            }
            numbers = numbers.div_ceil(FAN_OUT);
        }
    }

    /// The first page with a run of `count` free slots.
    pub(super) fn first_with(&self, count: usize) -> Option<usize> {
        let mut at = 0;
        for (level, numbers) in self.levels.iter().enumerate().rev() {
            let group = &numbers[at * FAN_OUT..];
            match first_at_least(&group[..group.len().min(FAN_OUT)], count) {
                Some(index) => at = at * FAN_OUT + index,
                None if level + 1 == self.levels.len() => return None,
                None => unreachable!("the level above says that there is one"),
            }
        }
        Some(at)
    }

    /// Host memory taken, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.levels.iter().map(Vec::capacity).sum()
    }
}

/// The first number that is at least `count`, eight at a time. No number exceeds [`ENTRY_SLOTS_MAX`], so a byte that reaches 128 by the
/// addition carries nothing into the next byte.
fn first_at_least(numbers: &[u8], count: usize) -> Option<usize> {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let (words, rest) = numbers.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let reached = (u64::from_le_bytes(*word) + EACH * (0x80 - count as u64)) & (EACH * 0x80);
        if reached != 0 {
            return Some(index * 8 + reached.trailing_zeros() as usize / 8);
        }
    }
    rest.iter().position(|number| usize::from(*number) >= count).map(|index| words.len() * 8 + index)
}

/// The longest run of zeros of a word, at most as long as an entry.
fn longest_run(used: u64) -> u8 {
    let mut starts = !used;
    let mut length = 0;
    while starts != 0 && usize::from(length) < ENTRY_SLOTS_MAX {
        starts &= starts >> 1;
        length += 1;
    }
    length
}

#[cfg(test)]
mod tests {
    use tandemfs_crash::Random;

    use super::*;

    #[test]
    fn runs_of_free_slots() {
        let runs = [u64::MAX, !1, !0b110, !0b11101, !(0b1111 << 60), !(0b11111 << 59), 0x5555_5555_5555_5555, 0];
        assert_eq!(runs.map(longest_run), [0, 1, 2, 3, 4, 5, 1, 5]);
    }

    /// Compared with a plain list of masks, past the numbers of pages at which a level is added.
    #[test]
    fn the_first_page_with_room_is_found() {
        for pages in [0, 60, 4090] {
            let (mut random, mut room) = (Random::new(pages), Room::default());
            let mut masks = vec![u64::MAX; pages as usize];
            (0..masks.len()).for_each(|page| room.note(page, u64::MAX));
            for step in 0..400 {
                let mask = match random.below(4) {
                    0 => u64::MAX,
                    1 => random.next(),
                    _ => !(((1 << (1 + random.below(6))) - 1) << random.below(64)),
                };
                // A third of the changes add a page.
                let page = if masks.is_empty() || random.one_in(3) { masks.len() } else { random.below(masks.len() as u64) as usize };
                if page == masks.len() {
                    masks.push(mask)
                } else {
                    masks[page] = mask
                }
                room.note(page, mask);
                for count in 1..=ENTRY_SLOTS_MAX {
                    let expected = masks.iter().position(|used| usize::from(longest_run(*used)) >= count);
                    assert_eq!(room.first_with(count), expected, "{pages} pages, step {step}, {count} slots");
                }
            }
            assert!(room.levels.iter().all(|level| !level.is_empty()) && room.levels[room.levels.len() - 1].len() <= FAN_OUT);
        }
    }
}
