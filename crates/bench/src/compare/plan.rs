//! The order of runs ([CM2]), and which of them are made whatever the time.
//!
//! [PL1] Round by round, and in a round case by case and drive by drive; all peers of a round of a case follow each other.
//! [PL2] If time is limited, cases that decide a target come first, and get the least number of rounds for a decision ([`ROUNDS_LEAST`])
//!       in any case. Then come their other rounds; then one round of each other case; then, one case after the other, its other rounds: so
//!       at most one case ends with two rounds, which decide as little as one.
//!
//! [CM2]: super

use std::collections::BTreeSet;

use super::backing::{Kind, Place};
use super::case::Case;
use super::peer::Peer;
use super::statistics::ROUNDS_LEAST;
use super::targets;

/// A planned run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Planned {
    /// Index of the case.
    pub case: usize,
    /// The drive.
    pub place: Place,
    /// The file system.
    pub peer: Peer,
    /// From 0; `None` is a warm-up run, which is not stored.
    pub round: Option<u32>,
    /// Whether it is made even if no time is left ([PL2]).
    pub is_due: bool,
}

/// Identifies a run when a comparison is resumed.
pub type Key = (String, Place, Peer, u32);

/// All cases, places, peers and rounds of a plan.
pub struct Plan<'a> {
    /// The cases.
    pub cases: &'a [Case],
    /// Drives; those with longer block commands behind those with shorter ones.
    pub places: &'a [Place],
    /// Peers that take part.
    pub peers: &'a [Peer],
    /// Rounds that are stored.
    pub rounds: u32,
    /// Whether time is limited.
    pub is_limited: bool,
}

impl Plan<'_> {
    /// All runs that are not done yet, in order. Each peer with a remaining run is warmed up first, except if that takes time from cases that
    /// decide nothing.
    pub fn runs(&self, done: &BTreeSet<Key>) -> Vec<Planned> {
        let is_open = |case: usize, place, peer, round: u32| !done.contains(&(self.cases[case].name.clone(), place, peer, round));
        let mut runs = Vec::new();
        for round in std::iter::once(None).chain((0..self.rounds).map(Some)) {
            for case in 0..self.cases.len() {
                for place in self.places.iter().copied() {
                    let peers = self.peers.iter().copied().filter(|peer| self.applies(case, place, *peer));
                    let is_wanted = |peer: &Peer| match round {
                        None => self.warms_up(case, place) && (0..self.rounds).any(|round| is_open(case, place, *peer, round)),
                        Some(round) => is_open(case, place, *peer, round),
                    };
                    let is_due = !self.is_limited || self.part(case, place, round) == 0;
                    let planned = |peer| Planned { case, place, peer, round, is_due };
                    runs.extend(turned(peers, round).into_iter().filter(is_wanted).map(planned));
                }
            }
        }
        if self.is_limited {
            runs.sort_by_key(|run| {
                let part = self.part(run.case, run.place, run.round);
                (part, (part == 3).then_some((run.case, run.place)))
            });
        }
        runs
    }

    /// Whether a case runs on a peer at a place. Longer latencies only complete the curves of verdicts.
    fn applies(&self, case: usize, place: Place, peer: Peer) -> bool {
        let lowest = self.places.iter().find(|place| place.kind() == Kind::Same);
        let is_for_curves = place.kind() == Kind::Same && lowest != Some(&place);
        let takes_part =
            !is_for_curves || (self.decides(case, place) && (peer.is_ours() || peer.is_yardstick() || peer == Peer::Ext4Volatile));
        takes_part && self.cases[case].applies_to(peer)
    }

    fn decides(&self, case: usize, place: Place) -> bool {
        targets::decides(&self.cases[case].name, place)
    }

    /// Without time for warm-ups, at least the memory of the drive has been touched.
    fn warms_up(&self, case: usize, place: Place) -> bool {
        !self.is_limited || self.decides(case, place)
    }

    /// The part of a limited time to which a round belongs, from 0 to 3 ([PL2]).
    fn part(&self, case: usize, place: Place, round: Option<u32>) -> u32 {
        match round {
            None => 0,
            Some(round) if self.decides(case, place) => u32::from(round >= ROUNDS_LEAST as u32),
            Some(0) => 2,
            Some(_) => 3,
        }
    }
}

/// Alternately forward and backward, rotated by one each time, so that no peer is always first or always after the same peer.
fn turned(peers: impl Iterator<Item = Peer>, round: Option<u32>) -> Vec<Peer> {
    let mut peers: Vec<Peer> = peers.collect();
    let round = round.unwrap_or_default() as usize;
    let first = round / 2 % peers.len().max(1);
    peers.rotate_left(first);
    if round % 2 == 1 {
        peers.reverse();
    }
    peers
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::case::Group;
    use super::*;

    const PEERS: [Peer; 4] = [Peer::TandemfsRelaxed, Peer::Ext4, Peer::Xfs, Peer::Btrfs];
    const PLACES: [Place; 2] = [Place::Free, Place::Same(25)];

    fn named(name: &str) -> Case {
        Case::new(Group::Micro, name.to_owned(), String::new(), |_| unreachable!("it is only planned"))
    }

    fn plan(cases: &[Case], peers: &[Peer], rounds: u32, done: &BTreeSet<Key>) -> Vec<Planned> {
        Plan { cases, places: &PLACES, peers, rounds, is_limited: false }.runs(done)
    }

    #[test]
    fn all_have_had_a_case_before_one_has_it_again() {
        let runs = plan(&["a", "b", "c"].map(named), &PEERS, 5, &BTreeSet::new());
        assert_eq!(runs.len(), 3 * 2 * PEERS.len() * 6);
        assert!(runs.windows(2).all(|pair| pair[0].round <= pair[1].round), "warm-up, then round by round");
        for group in runs.chunks(PEERS.len()) {
            let same: BTreeSet<_> = group.iter().map(|run| (run.case, run.place, run.round)).collect();
            let peers: BTreeSet<Peer> = group.iter().map(|run| run.peer).collect();
            assert_eq!((same.len(), peers.len()), (1, PEERS.len()), "next to each other");
        }
        let firsts: BTreeSet<Peer> = runs.chunks(PEERS.len()).map(|group| group[0].peer).collect();
        assert_eq!(firsts.len(), PEERS.len(), "everybody begins at times");
    }

    #[test]
    fn a_case_without_a_form_for_somebody_leaves_him_out_and_longer_latencies_are_for_verdicts() {
        let peers = [Peer::Ext4, Peer::TandemfsLibrary];
        let places = [Place::Same(25), Place::Same(50)];
        let of = |cases: &[Case]| Plan { cases, places: &places, peers: &peers, rounds: 1, is_limited: false }.runs(&BTreeSet::new());
        let runs = of(&[named("a")]);
        assert!(runs.len() == 2 && runs.iter().all(|run| (run.peer, run.place) == (Peer::Ext4, places[0])), "{runs:?}");
        let longer = |run: &&Planned| run.place == places[1];
        assert_eq!(of(&[named("oltp")]).iter().filter(longer).map(|run| run.peer).collect::<BTreeSet<_>>(), BTreeSet::from([Peer::Ext4]));
    }

    #[test]
    fn with_limited_time_what_decides_a_target_comes_first_and_three_rounds_of_it_are_due() {
        let cases = ["a", "untar", "b"].map(named);
        let plan = Plan { cases: &cases, places: &PLACES[..1], peers: &PEERS[..1], rounds: 5, is_limited: true };
        let order: Vec<_> = plan.runs(&BTreeSet::new()).iter().map(|run| (run.case, run.round, run.is_due)).collect();
        let decides =
            [None, Some(0), Some(1), Some(2)].map(|round| (1, round, true)).into_iter().chain([3, 4].map(|round| (1, Some(round), false)));
        let others = [(0, 0), (2, 0), (0, 1), (0, 2), (0, 3), (0, 4), (2, 1), (2, 2), (2, 3), (2, 4)];
        let expected: Vec<_> = decides.chain(others.map(|(case, round)| (case, Some(round), false))).collect();
        assert_eq!(order, expected);
    }

    proptest! {
        #[test]
        fn what_is_resumed_is_what_was_left(
            cases in 1_usize..4, peers in 1_usize..5, rounds in 1_u32..5, cut in any::<prop::sample::Index>(), is_limited: bool
        ) {
            let cases = &["a", "untar", "b"].map(named)[..cases];
            let plan = Plan { cases, places: &PLACES, peers: &PEERS[..peers], rounds, is_limited };
            let key = |run: &Planned| Some((cases[run.case].name.clone(), run.place, run.peer, run.round?));
            let all = plan.runs(&BTreeSet::new());
            let done: BTreeSet<Key> = all[..cut.index(all.len())].iter().filter_map(key).collect();
            let left = plan.runs(&done);
            let kept: Vec<Key> = left.iter().filter_map(key).collect();
            let expected: Vec<Key> = all.iter().filter_map(key).filter(|key| !done.contains(key)).collect();
            prop_assert_eq!(&kept, &expected);
            // Every measured peer is warmed up before, and no other.
            let of = |run: &Planned| (run.case, run.place, run.peer);
            let warm: BTreeSet<_> = left.iter().filter(|run| run.round.is_none()).map(of).collect();
            let measured: BTreeSet<_> = left.iter().filter(|run| run.round.is_some() && plan.warms_up(run.case, run.place)).map(of).collect();
            prop_assert_eq!(warm, measured);
        }
    }
}
