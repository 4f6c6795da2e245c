//! The order of runs ([CM2]).
//!
//! [CM2]: super

use std::collections::BTreeSet;

use super::backing::Place;
use super::peer::Peer;

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
}

/// Identifies a run when a comparison is resumed.
pub type Key = (String, Place, Peer, u32);

/// All cases, places, peers and rounds of a plan.
pub struct Grid<'a> {
    /// Names of the cases.
    pub cases: &'a [String],
    /// Drives.
    pub places: &'a [Place],
    /// Peers that take part.
    pub peers: &'a [Peer],
    /// Rounds that are stored.
    pub rounds: u32,
    /// Whether a case runs on a peer at a place.
    pub applies: &'a dyn Fn(usize, Place, Peer) -> bool,
    /// Whether a case has a warm-up.
    pub warms_up: &'a dyn Fn(usize) -> bool,
}

impl Grid<'_> {
    /// All runs that are not done yet, in order, round by round. Each peer with a remaining run is warmed up first.
    pub fn runs(&self, done: &BTreeSet<Key>) -> Vec<Planned> {
        let is_open = |case: usize, place, peer, round: u32| !done.contains(&(self.cases[case].clone(), place, peer, round));
        let mut runs = Vec::new();
        for round in std::iter::once(None).chain((0..self.rounds).map(Some)) {
            for case in 0..self.cases.len() {
                for place in self.places {
                    let peers = || self.peers.iter().filter(|peer| (self.applies)(case, *place, **peer));
                    for peer in turned(peers(), round) {
                        let is_wanted = match round {
                            None => (self.warms_up)(case) && (0..self.rounds).any(|round| is_open(case, *place, *peer, round)),
                            Some(round) => is_open(case, *place, *peer, round),
                        };
                        if is_wanted {
                            runs.push(Planned { case, place: *place, peer: *peer, round });
                        }
                    }
                }
            }
        }
        runs
    }
}

/// Alternately forward and backward, rotated by one each time, so that no peer is always first or always after the same peer.
fn turned<'p>(peers: impl Iterator<Item = &'p Peer>, round: Option<u32>) -> Vec<&'p Peer> {
    let mut peers: Vec<&Peer> = peers.collect();
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

    use super::*;

    const PEERS: [Peer; 4] = [Peer::TandemfsRelaxed, Peer::Ext4, Peer::Xfs, Peer::Null];

    fn plan(cases: &[String], peers: &[Peer], rounds: u32, done: &BTreeSet<Key>) -> Vec<Planned> {
        Grid { cases, places: &[Place::Free, Place::Same(25)], peers, rounds, applies: &|_, _, _| true, warms_up: &|_| true }.runs(done)
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("case-{number}")).collect()
    }

    #[test]
    fn all_have_had_a_case_before_one_has_it_again() {
        let runs = plan(&names(3), &PEERS, 5, &BTreeSet::new());
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
    fn a_case_without_a_form_for_somebody_leaves_him_out() {
        let applies = |_: usize, _: Place, peer: Peer| peer != Peer::Xfs;
        let cases = names(1);
        let runs = Grid { cases: &cases, places: &[Place::Free], peers: &PEERS, rounds: 1, applies: &applies, warms_up: &|_| true }
            .runs(&BTreeSet::new());
        assert!(runs.len() == 6 && runs.iter().all(|run| run.peer != Peer::Xfs));
    }

    proptest! {
        #[test]
        fn what_is_resumed_is_what_was_left(cases in 1_usize..4, peers in 1_usize..5, rounds in 1_u32..5, cut in any::<prop::sample::Index>()) {
            let (names, peers) = (names(cases), &PEERS[..peers]);
            let key = |run: &Planned| Some((names[run.case].clone(), run.place, run.peer, run.round?));
            let all = plan(&names, peers, rounds, &BTreeSet::new());
            let done: BTreeSet<Key> = all[..cut.index(all.len())].iter().filter_map(key).collect();
            let left = plan(&names, peers, rounds, &done);
            let kept: Vec<Key> = left.iter().filter_map(key).collect();
            let expected: Vec<Key> = all.iter().filter_map(key).filter(|key| !done.contains(key)).collect();
            prop_assert_eq!(&kept, &expected);
            // Every measured peer is warmed up, and no other.
            for run in &left {
                let is_warmed = left.iter().any(|other| other.round.is_none() && (other.case, other.place, other.peer) == (run.case, run.place, run.peer));
                let is_measured = left.iter().any(|other| other.round.is_some() && (other.case, other.place, other.peer) == (run.case, run.place, run.peer));
                prop_assert!(is_warmed && is_measured);
            }
        }
    }
}
