//! Records which lines and sectors are in use: one bit each, in groups of 32,768 that are allocated when something in them is used.

use std::collections::HashMap;

use crate::mutant::{Mutant, on};

/// Words of 64 bits in a group.
const WORDS: usize = 512;
/// Bits of a group: the lines of a unit, or the sectors of a map piece.
const GROUP_BITS: u64 = WORDS as u64 * 64;

/// A set of lines or sectors in use.
#[derive(Debug, Default, Clone)]
pub(crate) struct Claims {
    /// Bits that were claimed, those twice that were claimed twice.
    total: u64,
    groups: HashMap<u64, Box<[u64; WORDS]>>,
}

impl Claims {
    /// Claims `count` bits from `start`. Returns false if one of them was claimed before; the others are claimed anyway.
    pub(crate) fn claim(&mut self, start: u64, count: u64) -> bool {
        self.total += count;
        let mut clean = true;
        let end = start.saturating_add(count);
        let mut at = start;
        while at < end {
            let here = (64 - at % 64).min(end - at);
            let mask = if here == 64 { u64::MAX } else { ((1 << here) - 1) << (at % 64) };
            let group = self.groups.entry(at / GROUP_BITS).or_insert_with(|| Box::new([0; WORDS]));
            let word = &mut group[(at % GROUP_BITS / 64) as usize];
            clean &= *word & mask == 0;
            *word |= mask;
            at += here;
        }
        clean || on(Mutant::SharedSpaceIgnored)
    }

    /// Claims what another set claims.
    pub(crate) fn claim_all(&mut self, other: &Self) {
        self.total += other.total;
        for (group, words) in &other.groups {
            let own = self.groups.entry(*group).or_insert_with(|| Box::new([0; WORDS]));
            own.iter_mut().zip(words.iter()).for_each(|(own, word)| *own |= word);
        }
    }

    /// How many bits were claimed so far.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Whether none of `count` bits from `start` is claimed.
    pub(crate) fn is_free(&self, start: u64, count: u64) -> bool {
        (start..start.saturating_add(count)).all(|bit| {
            let word = self.groups.get(&(bit / GROUP_BITS)).map_or(0, |group| group[(bit % GROUP_BITS / 64) as usize]);
            word >> (bit % 64) & 1 == 0
        })
    }

    /// Whether nothing is claimed here and there.
    pub(crate) fn is_disjoint(&self, other: &Self) -> bool {
        self.groups.iter().all(|(group, words)| {
            other.groups.get(group).is_none_or(|others| words.iter().zip(others.iter()).all(|(word, other)| word & other == 0))
        })
    }

    /// The bits of a group; `None` if nothing in it is used.
    pub(crate) fn group(&self, group: u64) -> Option<&[u64; WORDS]> {
        self.groups.get(&group).map(Box::as_ref)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_is_claimed_once() {
        let mut claims = Claims::default();
        assert!(claims.claim(60, 10));
        assert!(claims.claim(70, 1));
        assert!(!claims.claim(69, 1));
        assert!(claims.claim(32_760, 16));
        assert!(!claims.claim(32_768, 1));
        assert_eq!(claims.group(0).expect("used")[0], 0xf << 60);
        assert!(claims.group(2).is_none());
        assert_eq!(claims.total(), 29);
        let mut other = Claims::default();
        other.claim(71, 100);
        assert!(claims.is_disjoint(&other) && other.is_disjoint(&claims));
        other.claim(32_775, 1);
        assert!(!claims.is_disjoint(&other) && !other.is_disjoint(&claims));
        claims.claim_all(&other);
        assert!(!claims.is_free(170, 1) && claims.is_free(171, 1) && !claims.is_free(32_775, 1));
        assert_eq!(claims.total(), 130);
    }
}
