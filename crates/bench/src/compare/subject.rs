//! The unit of comparison: one case on one drive, with all file systems.
//!
//! [SU1] TandemFS's mount, direct door and library are judged separately: a fast library must not hide a slow mount. At the mount the better
//!       of *relaxed* and *strict* is compared with the better of ext4 and XFS.
//! [SU2] Faster or slower requires the whole interval on one side of 1. Results with noise above [`NOISE_MAX`] or fewer rounds than
//!       [`ROUNDS_LEAST`] decide nothing. A median below 1 is still listed as a loss, with that remark.
//!
//! [`NOISE_MAX`]: crate::compare::statistics::NOISE_MAX
//! [`ROUNDS_LEAST`]: crate::compare::statistics::ROUNDS_LEAST

use std::ops::Deref;

use serde::Serialize;

use crate::compare::peer::Peer;
use crate::compare::statistics::{Ratio, Summary, ratio};

/// A case on a drive: the summaries of all file systems, in the order of [`Peer::all`]; never empty.
#[derive(Debug)]
pub struct Subject<'a>(pub Vec<&'a Summary>);

impl Deref for Subject<'_> {
    type Target = Summary;

    /// Any of them: case, group, drive and unit are the same in all.
    fn deref(&self) -> &Summary {
        self.0[0]
    }
}

/// TandemFS's mount, direct door or library compared with the better of ext4 and XFS.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Comparison<'a> {
    /// TandemFS.
    pub ours: &'a Summary,
    /// The yardstick.
    pub theirs: &'a Summary,
    /// Ratio of our rate to theirs.
    pub ratio: Ratio,
    /// The conclusion.
    pub standing: Standing,
}

impl<'a> Comparison<'a> {
    fn new(ours: &'a Summary, theirs: &'a Summary) -> Self {
        let ratio = ratio(&ours.rates, &theirs.rates);
        let sides = [ours, theirs];
        let standing = match () {
            () if sides.iter().any(|side| side.is_noisy()) => Standing::Noisy,
            () if sides.iter().any(|side| side.is_of_few_rounds()) => Standing::FewRounds,
            () if ratio.high < 1.0 => Standing::Slower,
            () if ratio.low > 1.0 => Standing::Faster,
            () => Standing::Within,
        };
        Self { ours, theirs, ratio, standing }
    }

    /// Ratio of CPU time of the whole machine per unit of work, ours to theirs, if both were measured.
    pub fn cpu_ratio(&self) -> Option<f64> {
        Some(self.ours.cpu_seconds_per_unit? / self.theirs.cpu_seconds_per_unit?)
    }
}

/// Conclusion of a comparison ([SU2]), in words in the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Standing {
    /// Certainly slower.
    #[serde(rename = "slower")]
    Slower,
    /// The interval includes 1.
    #[serde(rename = "within the interval")]
    Within,
    /// Certainly faster.
    #[serde(rename = "faster")]
    Faster,
    /// The machine was too noisy.
    #[serde(rename = "noisy: decides nothing")]
    Noisy,
    /// One side has too few rounds.
    #[serde(rename = "too few rounds to decide")]
    FewRounds,
}

/// All subjects, by case and drive, in the order of measurement.
pub fn subjects(summaries: &[Summary]) -> Vec<Subject<'_>> {
    let mut subjects: Vec<Subject<'_>> = Vec::new();
    for summary in summaries {
        match subjects.iter_mut().find(|subject| subject.case == summary.case && subject.place == summary.place) {
            Some(subject) => subject.0.push(summary),
            None => subjects.push(Subject(vec![summary])),
        }
    }
    subjects.iter_mut().for_each(|subject| subject.0.sort_by_key(|summary| summary.peer));
    subjects
}

impl<'a> Subject<'a> {
    /// The better of ext4 and XFS.
    pub fn yardstick(&self) -> Option<&'a Summary> {
        self.best(Peer::is_yardstick)
    }

    /// The result of a file system.
    pub fn of(&self, peer: Peer) -> Option<&'a Summary> {
        self.best(|other| other == peer)
    }

    fn best(&self, is_meant: impl Fn(Peer) -> bool) -> Option<&'a Summary> {
        let meant = self.0.iter().copied().filter(|summary| is_meant(summary.peer));
        meant.max_by(|one, other| one.rate.median.total_cmp(&other.rate.median))
    }

    /// The better of the two modes at the mount.
    pub fn best_mount(&self) -> Option<&'a Summary> {
        self.best(Peer::is_mount)
    }

    /// The better of the two mount modes beside the yardstick, the direct door, and the library, if the case has a form for it ([SU1]).
    pub fn comparisons(&self) -> impl Iterator<Item = Comparison<'a>> {
        let ours = [self.best_mount(), self.of(Peer::TandemfsDirect), self.of(Peer::TandemfsLibrary)];
        let theirs = self.yardstick();
        ours.into_iter().flatten().filter_map(move |ours| Some(Comparison::new(ours, theirs?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::record::Record;
    use crate::compare::statistics::summaries;
    use crate::compare::statistics::tests::record;

    fn rounds(peer: Peer, rates: &[f64]) -> Vec<Record> {
        rates.iter().zip(0..).map(|(rate, round)| record("x", peer, round, *rate)).collect()
    }

    fn standing(records: &[Record]) -> Vec<(Peer, Peer, Standing)> {
        let summaries = summaries(records);
        subjects(&summaries)[0].comparisons().map(|found| (found.ours.peer, found.theirs.peer, found.standing)).collect()
    }

    #[test]
    fn a_fast_library_hides_no_slow_mount() {
        let sides = [
            rounds(Peer::TandemfsRelaxed, &[80.0, 81.0, 80.0]),
            rounds(Peer::TandemfsStrict, &[70.0, 71.0, 70.0]),
            rounds(Peer::TandemfsLibrary, &[900.0, 901.0, 900.0]),
            rounds(Peer::Ext4, &[90.0, 90.0, 90.0]),
            rounds(Peer::Xfs, &[100.0, 100.0, 100.0]),
            rounds(Peer::Btrfs, &[500.0, 500.0, 500.0]),
        ];
        let expected = [(Peer::TandemfsRelaxed, Peer::Xfs, Standing::Slower), (Peer::TandemfsLibrary, Peer::Xfs, Standing::Faster)];
        assert_eq!(standing(&sides.concat()), expected);
    }

    #[test]
    fn intervals_noise_and_few_rounds_are_said() {
        let ext4 = rounds(Peer::Ext4, &[100.0, 100.0, 100.0]);
        for (rates, expected) in [
            (vec![50.0, 51.0, 52.0], Standing::Slower),
            (vec![90.0, 95.0, 110.0], Standing::Within),
            (vec![150.0, 151.0, 152.0], Standing::Faster),
            (vec![900.0], Standing::FewRounds),
        ] {
            let mut ours = rounds(Peer::TandemfsStrict, &rates);
            assert_eq!(standing(&[ours.clone(), ext4.clone()].concat())[0].2, expected, "{rates:?}");
            if rates.len() == 3 {
                ours.iter_mut().for_each(|record| record.noise = 0.5);
                assert_eq!(standing(&[ours, ext4.clone()].concat())[0].2, Standing::Noisy);
            }
        }
        assert_eq!(standing(&[rounds(Peer::TandemfsRelaxed, &[80.0]), rounds(Peer::Btrfs, &[90.0])].concat()), [], "no yardstick");
    }
}
