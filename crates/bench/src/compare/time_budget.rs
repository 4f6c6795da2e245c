//! Which rounds are run when time is limited.
//!
//! [RN1] Cases that decide a target come first and get the least number of rounds for a decision ([`ROUNDS_LEAST`]), regardless of time.
//!       Then they get all requested rounds while time remains.
//! [RN2] Then each other case gets one round, and later the requested rounds, while time remains. A second round is run only if there is
//!       time for a third too. A case that missed a round gets no later one.

use std::collections::BTreeSet;
use std::time::Duration;

use super::backing::Place;
use super::statistics::ROUNDS_LEAST;

const LEAST: u32 = ROUNDS_LEAST as u32;

/// A case on one drive, with all its peers.
pub type Group = (usize, Place);

/// The order in which rounds run when time is limited: part 0 to 3 ([RN1], [RN2]). A warm-up has no round.
pub fn part(decides: bool, round: Option<u32>) -> u32 {
    match round {
        None => 0,
        Some(round) if decides => u32::from(round >= LEAST),
        Some(0) => 2,
        Some(_) => 3,
    }
}

/// Which rounds the time limit allows; remembers the cases that exceeded it.
#[derive(Debug, Default)]
pub struct TimeBudget {
    given_up: BTreeSet<Group>,
}

impl TimeBudget {
    /// Whether to run a round that is expected to take `time`, when `left` remains.
    pub fn allows(&mut self, group: Group, decides: bool, round: Option<u32>, time: Duration, left: Duration) -> bool {
        let Some(round) = round else { return true };
        if self.given_up.contains(&group) {
            return false;
        }
        let rounds = if round == 0 { 1 } else { LEAST.saturating_sub(round).max(1) };
        let allows = part(decides, Some(round)) == 0 || time * rounds <= left;
        if !allows {
            self.given_up.insert(group);
        }
        allows
    }

    /// How many cases, counted for each drive, got fewer rounds than requested.
    pub fn given_up(&self) -> usize {
        self.given_up.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const CASE: Group = (0, Place::Free);

    #[test]
    fn what_decides_a_target_comes_first_and_gets_three_rounds_in_any_case() {
        let mut budget = TimeBudget::default();
        for round in 0..3 {
            assert!(budget.allows(CASE, true, Some(round), SECOND, Duration::ZERO));
            assert!(part(true, Some(round)) < part(false, Some(0)));
        }
        assert!(budget.allows(CASE, true, Some(3), SECOND, SECOND));
        assert!(part(true, Some(2)) < part(true, Some(3)) && part(true, Some(4)) < part(false, Some(0)));
        assert!(!budget.allows(CASE, true, Some(4), SECOND, Duration::ZERO));
        assert_eq!(budget.given_up(), 1);
    }

    #[test]
    fn a_second_round_is_begun_only_if_there_is_time_for_a_third() {
        let mut budget = TimeBudget::default();
        assert!(budget.allows(CASE, false, Some(0), SECOND, SECOND));
        assert!(budget.allows(CASE, false, Some(1), SECOND, 2 * SECOND));
        assert!(budget.allows(CASE, false, Some(2), SECOND, SECOND));
        let other = (1, Place::Free);
        assert!(!budget.allows(other, false, Some(1), SECOND, SECOND));
        assert!(!budget.allows(other, false, Some(2), SECOND, 100 * SECOND), "who missed a round gets no later one");
        assert!(budget.allows((0, Place::Same(25)), false, None, SECOND, Duration::ZERO), "a warm-up belongs to the rounds behind it");
    }
}
