//! Many small numbers, and the first of them that is large enough: maxima of 32 numbers, of 32 such maxima, and so on.

/// Numbers below each maximum.
const FAN: usize = 32;

#[derive(Debug, Clone)]
pub(super) struct Maxima {
    /// The numbers, then the maxima of each level, up to a level that is searched from its start.
    levels: Vec<Box<[u16]>>,
}

impl Maxima {
    /// So many zeros.
    pub(super) fn new(count: usize) -> Self {
        let mut levels = vec![vec![0; count].into_boxed_slice()];
        while let Some(below) = levels.last().map(|level| level.len()).filter(|length| *length > FAN) {
            levels.push(vec![0; below.div_ceil(FAN)].into_boxed_slice());
        }
        Self { levels }
    }

    /// So many numbers from now on: the new ones are zeros.
    pub(super) fn grow(&mut self, count: usize) {
        let mut grown = Self::new(count);
        self.levels[0].iter().enumerate().filter(|(_, number)| **number > 0).for_each(|(index, number)| grown.set(index, *number));
        *self = grown;
    }

    /// Changes a number.
    pub(super) fn set(&mut self, index: usize, number: u16) {
        let (mut at, mut old, mut new) = (index, self.levels[0][index], number);
        self.levels[0][index] = number;
        for level in 1..self.levels.len() {
            let (below, above) = self.levels.split_at_mut(level);
            let (below, first) = (&below[level - 1], at / FAN * FAN);
            let maximum = &mut above[0][at / FAN];
            let next = match new >= *maximum {
                true => new,
                false if old < *maximum => return, // another number is the maximum
                false => below[first..below.len().min(first + FAN)].iter().copied().max().unwrap_or(0),
            };
            (old, new) = (*maximum, next);
            if old == new {
                return;
            }
            *maximum = next;
            at /= FAN;
        }
    }

    /// The first number that is at least `least`, which is not 0.
    pub(super) fn first(&self, least: u16) -> Option<usize> {
        let mut range = 0..self.levels.last().map_or(0, |top| top.len());
        for level in self.levels.iter().rev() {
            let end = range.end.min(level.len());
            let found = range.start + level[range.start..end].iter().position(|number| *number >= least)?;
            range = found * FAN..(found + 1) * FAN;
        }
        Some(range.start / FAN)
    }

    /// Host memory, in bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.levels.iter().map(|level| size_of_val(&**level)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_first_large_enough_is_that_of_a_list(
            count in 1_usize..3000,
            steps in prop::collection::vec((any::<prop::sample::Index>(), 0_u16..9), 1..200),
        ) {
            let mut maxima = Maxima::new(count);
            let mut list = vec![0_u16; count];
            for (index, number) in steps {
                let index = index.index(count);
                maxima.set(index, number);
                list[index] = number;
                for least in 1..10 {
                    prop_assert_eq!(maxima.first(least), list.iter().position(|number| *number >= least));
                }
            }
        }
    }
}
