//! What is compared: one case on one drive, everybody side by side.
//!
//! [SU1] TandemFS has two doors, the mount and the library, and they are judged apart: a fast library hides no slow mount. At the mount it is
//!       the better of *relaxed* and *strict* that is compared, as on the other side it is the better of ext4 and XFS.
//! [SU2] Faster or slower is what the whole interval of the ratio says; what lies on both sides of 1 is neither, and what was measured on a
//!       disturbed machine ([`NOISE_MAX`]) or in fewer rounds than [`ROUNDS_LEAST`] decides nothing. A median below 1 counts as a loss all the same, with that said.
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
    /// Its name.
    pub case: &'a str,
    /// Its chapter.
    pub group: Group,
    /// On what.
    pub place: Place,
    /// What it varies.
    pub parameter: Option<f64>,
    /// What it counts.
    pub unit: &'a str,
    /// Everybody, in the order of [`Peer::ALL`].
    pub peers: Vec<Measured<'a>>,
}

/// A file system in a case.
#[derive(Debug)]
pub struct Measured<'a> {
    /// What was measured.
    pub summary: &'a Summary,
    /// Of its rate to that of the yardstick; none where there is none, and for the yardstick itself.
    pub ratio: Option<Ratio>,
}

/// A door of TandemFS beside the best of ext4 and XFS.
#[derive(Debug, Clone, Copy)]
pub struct Comparison<'a> {
    /// Ours.
    pub ours: &'a Summary,
    /// Theirs.
    pub theirs: &'a Summary,
    /// Of our rate to theirs.
    pub ratio: Ratio,
    /// What follows.
    pub standing: Standing,
}

impl Comparison<'_> {
    /// CPU time of the whole machine for a unit of work, ours to theirs, where both could be counted.
    pub fn cpu_ratio(&self) -> Option<f64> {
        Some(self.ours.cpu_seconds_per_unit? / self.theirs.cpu_seconds_per_unit?)
    }
}

/// What a comparison says ([SU2]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Surely slower.
    Slower,
    /// Slower, within the interval.
    RatherSlower,
    /// Faster, within the interval.
    RatherFaster,
    /// Surely faster.
    Faster,
    /// The machine was too disturbed.
    Noisy,
    /// One of the sides has too few rounds.
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

    /// In words.
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

    /// On the page.
    pub fn mark(self) -> Mark {
        match self {
            Self::Slower => Mark::Loss,
            Self::Faster => Mark::Win,
            _ => Mark::Open,
        }
    }
}

/// All that was measured, by case and drive, in the order in which it was.
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

    /// A file system here.
    pub fn of(&self, peer: Peer) -> Option<&Measured<'a>> {
        self.peers.iter().find(|measured| measured.summary.peer == peer)
    }

    fn best(&self, is_meant: fn(Peer) -> bool) -> Option<&Measured<'a>> {
        let meant = self.peers.iter().filter(|measured| is_meant(measured.summary.peer));
        meant.max_by(|one, other| one.summary.rate.median.total_cmp(&other.summary.rate.median))
    }

    /// The better of the two modes at the mount ([SU1]).
    pub fn mount(&self) -> Option<Comparison<'a>> {
        self.comparison(self.best(|peer| matches!(peer, Peer::TandemfsRelaxed | Peer::TandemfsStrict))?)
    }

    /// The library, where the case has a form for it.
    pub fn library(&self) -> Option<Comparison<'a>> {
        self.comparison(self.of(Peer::TandemfsLibrary)?)
    }

    /// Both doors, as far as there is something to compare.
    pub fn comparisons(&self) -> impl Iterator<Item = Comparison<'a>> {
        self.mount().into_iter().chain(self.library())
    }

    fn comparison(&self, ours: &Measured<'a>) -> Option<Comparison<'a>> {
        let (theirs, ratio) = (self.yardstick()?, ours.ratio?);
        let standing = Standing::of(ratio, [ours.summary, theirs]);
        Some(Comparison { ours: ours.summary, theirs, ratio, standing })
    }

    /// Where the page has all of the case.
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
