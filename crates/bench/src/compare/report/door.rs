//! The chapter of the direct door: its reaches, and its programs beside those by the mount.

use super::chapters::{curve, interval, or_dash, rate};
use super::markdown::Page;
use crate::compare::peer::Peer;
use crate::compare::statistics::Summary;
use crate::compare::subject::Subject;
use crate::compare::targets::{Judgement, Limit, Measure};
use crate::figures;

/// Writes the chapter; nothing if nothing ran under `tandemfs run`.
pub fn door(page: &mut Page, subjects: &[Subject<'_>], judgements: &[Judgement]) {
    let of_door = judgements.iter().filter(|judgement| judgement.peer.is_direct());
    let (beside_mount, reaches): (Vec<_>, Vec<_>) = of_door.partition(|judgement| judgement.target.measure == Measure::NotSlowerThanMount);
    if beside_mount.is_empty() && reaches.is_empty() {
        return;
    }
    page.heading(2, "Under tandemfs run");
    page.text(
        "A reach is the least of three in the same rounds: its figure times the better of ext4 and XFS, 0.8 of what the library does, 0.9 of what \
         the program does on ext4 with durability switched off. Met, missed and undecided as above.",
    );
    let limit = |judgement: &Judgement, is_meant: fn(Peer) -> bool| {
        let text = |limit: &Limit| {
            let least = if limit.other == judgement.other { " least" } else { "" };
            format!("{} = {} × {}{least}", figures::count(limit.rate), figures::three_digits(limit.times), limit.other.title())
        };
        or_dash(judgement.limits.iter().find(|limit| is_meant(limit.other)), text)
    };
    let reach = |judgement: &&Judgement| {
        let of_table = match judgement.target.measure {
            Measure::RateAtLeast(times) => format!("{} × {}", figures::three_digits(times), judgement.other.title()),
            _ => limit(judgement, Peer::is_yardstick),
        };
        vec![
            judgement.case.clone(),
            judgement.place.title(),
            or_dash(summary(subjects, judgement, judgement.peer), rate),
            of_table,
            limit(judgement, |peer| peer == Peer::TandemfsLibrary),
            limit(judgement, |peer| peer == Peer::Ext4Volatile),
            format!("{} ({})", figures::ratio(judgement.ratio.median), interval(judgement.ratio)),
            judgement.verdict.name().to_owned(),
            curve(judgement),
        ]
    };
    page.table(
        "Reaches; units a second",
        &[
            "case",
            "drive",
            "found",
            "of the table",
            "of the library",
            "of the program without durability",
            "to the least (95 %)",
            "verdict",
            "by latency",
        ],
        reaches.iter().map(reach).collect(),
    );
    let beside = |judgement: &&Judgement| {
        let of = |peer| summary(subjects, judgement, peer);
        let cpu = |peer| of(peer)?.cpu_seconds_per_unit;
        let more = |peer| Some(cpu(peer)? / cpu(judgement.other)?);
        vec![
            judgement.case.clone(),
            judgement.place.title(),
            or_dash(of(judgement.peer), rate),
            format!("{} ({})", or_dash(of(judgement.other), rate), judgement.other.title()),
            format!("{} ({})", figures::ratio(judgement.ratio.median), interval(judgement.ratio)),
            judgement.verdict.name().to_owned(),
            or_dash(cpu(judgement.peer), |seconds| figures::time(seconds * 1e9)),
            or_dash(more(judgement.peer), figures::ratio),
            or_dash(more(Peer::TandemfsDirectAsleep), figures::ratio),
            or_dash(of(Peer::TandemfsDirectAsleep), rate),
            or_dash(of(judgement.peer).and_then(|summary| summary.connections), |count| count.to_string()),
        ]
    };
    page.table(
        "Beside the better mode at the mount, which is to be no faster; CPU: time of the machine for one unit, with a daemon that polls and one that sleeps",
        &["case", "drive", "found", "mount", "ratio (95 %)", "verdict", "CPU", "to the mount's", "asleep", "rate asleep", "processes at the door"],
        beside_mount.iter().map(beside).collect(),
    );
}

/// A peer's result in the case of a judgement.
fn summary<'a>(subjects: &[Subject<'a>], judgement: &Judgement, peer: Peer) -> Option<&'a Summary> {
    let subject = subjects.iter().find(|subject| subject.case == judgement.case && subject.place == judgement.place)?;
    subject.of(peer)
}
