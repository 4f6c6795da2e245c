//! Who gets another round when time is short.
//!
//! [R1] A warm-up and a first round are made of everything: they say what a round of each case takes.
//! [R2] From then on a case gets a round only if there is time for as many as decide something ([`ROUNDS_LEAST`]); those that decide a reach
//!      come first, then the cheapest. Who missed a round gets no later one.

use std::collections::BTreeSet;
use std::time::Duration;

use super::backing::Place;
use super::plan::Planned;

/// Fewer rounds than this decide nothing.
pub const ROUNDS_LEAST: u32 = 3;

/// A case on a drive, with all of its peers.
pub type Group = (usize, Place);

/// Who is out of time.
#[derive(Debug, Default)]
pub struct Ration {
    given_up: BTreeSet<Group>,
}

impl Ration {
    /// Chooses who gets round `round`, from 1, whose runs are `runs`, with so much time left.
    pub fn begin(
        &mut self,
        round: u32,
        runs: &[Planned],
        left: Duration,
        decides: impl Fn(Group) -> bool,
        estimate: impl Fn(&[Planned]) -> Option<Duration>,
    ) {
        let groups: BTreeSet<Group> = runs.iter().map(group).filter(|group| !self.given_up.contains(group)).collect();
        let time = |wanted: Group| {
            let of_it: Vec<Planned> = runs.iter().filter(|run| group(run) == wanted).copied().collect();
            estimate(&of_it).unwrap_or_default()
        };
        let mut by_need: Vec<(bool, Duration, Group)> = groups.into_iter().map(|group| (!decides(group), time(group), group)).collect();
        by_need.sort();
        let rounds = ROUNDS_LEAST.saturating_sub(round).max(1);
        let mut left = left;
        for (_, time, group) in by_need {
            match left.checked_sub(time * rounds) {
                Some(rest) => left = rest,
                None => _ = self.given_up.insert(group),
            }
        }
    }

    /// Whether a run is still to be made.
    pub fn allows(&self, run: &Planned) -> bool {
        !self.given_up.contains(&group(run))
    }

    /// How many cases, each drive by itself, got fewer rounds than were wanted.
    pub fn given_up(&self) -> usize {
        self.given_up.len()
    }
}

fn group(run: &Planned) -> Group {
    (run.case, run.place)
}

#[cfg(test)]
mod tests {
    use super::super::peer::Peer;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn runs(cases: usize) -> Vec<Planned> {
        let peers = [Peer::Ext4, Peer::Xfs];
        (0..cases).flat_map(|case| peers.map(|peer| Planned { case, place: Place::Free, peer, round: Some(1) })).collect()
    }

    /// A run of case n takes n + 1 s.
    fn estimate(runs: &[Planned]) -> Option<Duration> {
        Some(runs.iter().map(|run| SECOND * (run.case as u32 + 1)).sum())
    }

    fn allowed(ration: &Ration) -> Vec<usize> {
        let mut cases: Vec<usize> = runs(4).iter().filter(|run| ration.allows(run)).map(|run| run.case).collect();
        cases.dedup();
        cases
    }

    #[test]
    fn with_time_enough_everybody_goes_on() {
        let mut ration = Ration::default();
        ration.begin(1, &runs(4), SECOND * 40, |_| false, estimate);
        assert_eq!((allowed(&ration), ration.given_up()), (vec![0, 1, 2, 3], 0));
    }

    #[test]
    fn a_case_goes_on_only_if_it_can_have_three_rounds() {
        // Two more rounds of a case take four times its run: 4, 8, 12 and 16 s.
        let mut ration = Ration::default();
        ration.begin(1, &runs(4), SECOND * 13, |_| false, estimate);
        assert_eq!(allowed(&ration), [0, 1]);
        // With three rounds made each more decides by itself; who missed one stays away.
        ration.begin(3, &runs(4), SECOND * 100, |_| false, estimate);
        assert_eq!(allowed(&ration), [0, 1]);
        ration.begin(4, &runs(4), SECOND * 5, |_| false, estimate);
        assert_eq!(allowed(&ration), [0]);
        ration.begin(4, &runs(4), Duration::ZERO, |_| false, estimate);
        assert_eq!(ration.given_up(), 4);
    }

    #[test]
    fn what_decides_a_reach_comes_first() {
        let mut ration = Ration::default();
        ration.begin(1, &runs(4), SECOND * 21, |(case, _)| case == 3, estimate);
        assert_eq!(allowed(&ration), [0, 3]);
    }
}
