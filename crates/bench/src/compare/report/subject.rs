//! The unit of comparison: one case on one drive, with all file systems.
//!
//! [SU1] TandemFS's mount and library are judged separately: a fast library must not hide a slow mount. At the mount the better of
//!       *relaxed* and *strict* is compared with the better of ext4 and XFS.
//! [SU2] Faster or slower requires the whole interval on one side of 1. Results with noise above [`NOISE_MAX`] or fewer rounds than
//!       [`ROUNDS_LEAST`] decide nothing. A median below 1 is still listed as a loss, with that remark.
//!
//! [`NOISE_MAX`]: crate::compare::statistics::NOISE_MAX
//! [`ROUNDS_LEAST`]: crate::compare::statistics::ROUNDS_LEAST

use super::document::Mark;
use crate::compare::backing::Place;
use crate::compare::case::Group;
use crate::compare::peer::Peer;
use crate::compare::statistics::{Ratio, Summary, ratio};

/// A case on a drive.
#[derive(Debug)]
pub struct Subject<'a> {
    /// Name of the case.
    pub case: &'a str,
    /// Its group, and so its chapter.
    pub group: Group,
    /// The drive.
    pub place: Place,
    /// Its varied parameter.
    pub parameter: Option<f64>,
    /// Its unit.
    pub unit: &'a str,
    /// All file systems, in the order of [`Peer::ALL`].
    pub peers: Vec<Measured<'a>>,
}

/// A file system's result in a case.
#[derive(Debug)]
pub struct Measured<'a> {
    /// The summary of its rounds.
    pub summary: &'a Summary,
    /// Ratio of its rate to the yardstick's; `None` without a yardstick, and for the yardstick itself.
    pub ratio: Option<Ratio>,
}

/// TandemFS's mount or library compared with the better of ext4 and XFS.
#[derive(Debug, Clone, Copy)]
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

impl Comparison<'_> {
    /// Ratio of CPU time of the whole machine per unit of work, ours to theirs, if both were measured.
    pub fn cpu_ratio(&self) -> Option<f64> {
        Some(self.ours.cpu_seconds_per_unit? / self.theirs.cpu_seconds_per_unit?)
    }
}

/// Conclusion of a comparison ([SU2]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Certainly slower.
    Slower,
    /// Slower, but the interval includes 1.
    RatherSlower,
    /// Faster, but the interval includes 1.
    RatherFaster,
    /// Certainly faster.
    Faster,
    /// The machine was too noisy.
    Noisy,
    /// One side has too few rounds.
    FewRounds,
}

impl Standing {
    fn of(ratio: Ratio, sides: [&Summary; 2]) -> Self {
        match () {
            () if sides.iter().any(|side| side.is_noisy()) => Self::Noisy,
            () if sides.iter().any(|side| side.is_of_few_rounds()) => Self::FewRounds,
            () if ratio.high < 1.0 => Self::Slower,
            () if ratio.median < 1.0 => Self::RatherSlower,
            () if ratio.low > 1.0 => Self::Faster,
            () => Self::RatherFaster,
        }
    }

    /// The conclusion in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Slower => "slower",
            Self::RatherSlower => "slower, within the interval",
            Self::RatherFaster => "faster, within the interval",
            Self::Faster => "faster",
            Self::Noisy => "noisy: decides nothing",
            Self::FewRounds => "too few rounds to decide",
        }
    }

    /// Its mark on the page.
    pub fn mark(self) -> Mark {
        match self {
            Self::Slower => Mark::Loss,
            Self::Faster => Mark::Win,
            _ => Mark::Open,
        }
    }
}

/// All subjects, by case and drive, in the order of measurement.
pub fn subjects(summaries: &[Summary]) -> Vec<Subject<'_>> {
    let mut subjects: Vec<Subject<'_>> = Vec::new();
    for summary in summaries {
        let measured = Measured { summary, ratio: None };
        match subjects.iter_mut().find(|subject| subject.case == summary.case && subject.place == summary.place) {
            Some(subject) => subject.peers.push(measured),
            None => subjects.push(Subject {
                case: &summary.case,
                group: summary.group,
                place: summary.place,
                parameter: summary.parameter,
                unit: &summary.unit,
                peers: vec![measured],
            }),
        }
    }
    for subject in &mut subjects {
        subject.peers.sort_by_key(|measured| measured.summary.peer);
        let Some(yardstick) = subject.yardstick() else { continue };
        for measured in subject.peers.iter_mut().filter(|measured| measured.summary.peer != yardstick.peer) {
            measured.ratio = Some(ratio(&measured.summary.rates, &yardstick.rates));
        }
    }
    subjects
}

impl<'a> Subject<'a> {
    /// The better of ext4 and XFS.
    pub fn yardstick(&self) -> Option<&'a Summary> {
        self.best(Peer::is_yardstick).map(|measured| measured.summary)
    }

    /// The result of a file system.
    pub fn of(&self, peer: Peer) -> Option<&Measured<'a>> {
        self.peers.iter().find(|measured| measured.summary.peer == peer)
    }

    fn best(&self, is_meant: fn(Peer) -> bool) -> Option<&Measured<'a>> {
        let meant = self.peers.iter().filter(|measured| is_meant(measured.summary.peer));
        meant.max_by(|one, other| one.summary.rate.median.total_cmp(&other.summary.rate.median))
    }

    /// The better of the two mount modes ([SU1]).
    pub fn mount(&self) -> Option<Comparison<'a>> {
        self.comparison(self.best(|peer| matches!(peer, Peer::TandemfsRelaxed | Peer::TandemfsStrict))?)
    }

    /// The library, if the case has an implementation for it.
    pub fn library(&self) -> Option<Comparison<'a>> {
        self.comparison(self.of(Peer::TandemfsLibrary)?)
    }

    /// Mount and library, if there is a yardstick.
    pub fn comparisons(&self) -> impl Iterator<Item = Comparison<'a>> {
        self.mount().into_iter().chain(self.library())
    }

    fn comparison(&self, ours: &Measured<'a>) -> Option<Comparison<'a>> {
        let (theirs, ratio) = (self.yardstick()?, ours.ratio?);
        let standing = Standing::of(ratio, [ours.summary, theirs]);
        Some(Comparison { ours: ours.summary, theirs, ratio, standing })
    }

    /// Anchor of the case's details on the page.
    pub fn link(&self) -> String {
        format!("case-{}", super::document::identifier(self.case))
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
    fn intervals_and_noise_are_said() {
        let ext4 = rounds(Peer::Ext4, &[100.0, 100.0, 100.0]);
        for (rates, expected) in [
            ([50.0, 51.0, 52.0], Standing::Slower),
            ([90.0, 95.0, 110.0], Standing::RatherSlower),
            ([90.0, 105.0, 110.0], Standing::RatherFaster),
            ([150.0, 151.0, 152.0], Standing::Faster),
        ] {
            let mut ours = rounds(Peer::TandemfsStrict, &rates);
            assert_eq!(standing(&[ours.clone(), ext4.clone()].concat())[0].2, expected, "{rates:?}");
            ours.iter_mut().for_each(|record| record.noise = 0.5);
            assert_eq!(standing(&[ours, ext4.clone()].concat())[0].2, Standing::Noisy);
        }
    }

    #[test]
    fn one_round_decides_nothing() {
        let sides = [rounds(Peer::TandemfsStrict, &[900.0]), rounds(Peer::Ext4, &[100.0, 100.0, 100.0])].concat();
        assert_eq!(standing(&sides)[0].2, Standing::FewRounds);
    }

    #[test]
    fn without_a_yardstick_nothing_is_compared() {
        let sides = [rounds(Peer::TandemfsRelaxed, &[80.0]), rounds(Peer::Btrfs, &[90.0])].concat();
        assert_eq!(standing(&sides), []);
    }
}
