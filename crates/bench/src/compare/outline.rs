//! The results in one table, for the terminal.

use std::path::Path;

use super::peer::Peer;
use super::reach::{beside, judge, yardstick};
use super::record::{Line, Record};
use super::statistics::{Summary, ratio, summaries};
use crate::failure::Result;
use crate::table::Table;

/// Reads a file of results; the table of them.
///
/// # Errors
/// It cannot be read.
pub fn write(results: &Path, directory: &Path) -> Result<String> {
    let text = std::fs::read_to_string(results)?;
    let records = text.lines().filter_map(|line| match serde_json::from_str(line) {
        Ok(Line::Run(record)) => Some(*record),
        _ => None,
    });
    let text = outline(&records.collect::<Vec<Record>>());
    std::fs::write(directory.join("outline.md"), &text)?;
    Ok(text)
}

fn outline(records: &[Record]) -> String {
    let all = summaries(records);
    let mut table = Table::new(["case", "on", "who", "rate", "to the better of ext4 and XFS", "95 %", "CPU s a unit", "noise"]);
    for summary in &all {
        let found = yardstick(summary, &all).map(|other| ratio(&summary.rates, &other.rates));
        table.row([
            summary.case.clone(),
            summary.place.name().to_owned(),
            summary.peer.name().to_owned(),
            rate(summary.rate.median, &summary.unit),
            found.map_or_else(String::new, |found| format!("{:.2}", found.median)),
            found.map_or_else(String::new, |found| format!("{:.2} to {:.2}", found.low, found.high)),
            format!("{:.2e}", summary.cpu_seconds_per_unit.median),
            format!("{:.0} %{}", summary.noise * 100.0, if summary.is_noisy() { ", too much" } else { "" }),
        ]);
    }
    let mut text = table.markdown();
    let mut reaches = Table::new(["what has to be reached", "case", "on", "ratio", "95 %", "verdict"]);
    for judgement in judge(&all) {
        reaches.row([
            judgement.reach.title.to_owned(),
            judgement.case.clone(),
            judgement.place.name().to_owned(),
            format!("{:.2} to {}", judgement.ratio.median, judgement.other.name()),
            format!("{:.2} to {:.2}", judgement.ratio.low, judgement.ratio.high),
            judgement.verdict.name().to_owned(),
        ]);
    }
    text += &format!("\n{}", reaches.markdown());
    text + &lost(&all)
}

/// Where the best of ours through the mount is slower than FUSE that does nothing by more than half: what is to be mended first.
fn lost(all: &[Summary]) -> String {
    let ours = all.iter().filter(|summary| summary.peer == Peer::TandemfsRelaxed);
    let lines = ours.filter_map(|summary| {
        let null = beside(summary, Peer::Null, all)?;
        let found = ratio(&summary.rates, &null.rates).inverse();
        (found.low > 1.5).then(|| format!("- {}: {:.2} times what FUSE alone takes\n", summary.case, found.median))
    });
    let lines: String = lines.collect();
    if lines.is_empty() { lines } else { format!("\nFar from what the way through FUSE costs by itself:\n\n{lines}") }
}

/// One run, for people.
pub fn of_run(record: &Record) -> String {
    let mut text = format!("{} on {}: {} in {:.3} s", record.case, record.peer.name(), rate(record.rate(), &record.unit), record.seconds);
    if let Some(latency) = &record.latency_ns {
        text += &format!("; median {:.1} us, p99 {:.1} us", latency.p50 / 1e3, latency.p99 / 1e3);
    }
    text + "\n"
}

fn rate(rate: f64, unit: &str) -> String {
    match unit {
        "bytes" => format!("{:.0} MB/s", rate / 1e6),
        _ if rate >= 10_000.0 => format!("{:.1} k {unit}/s", rate / 1e3),
        _ => format!("{rate:.1} {unit}/s"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::statistics::tests::record;
    use super::*;

    #[test]
    fn everybody_has_a_row_and_what_is_slow_is_named() {
        let name = "durable-overwrite-4k-c1";
        let sides = [(Peer::TandemfsRelaxed, 10.0), (Peer::TandemfsStrict, 400.0), (Peer::Ext4, 100.0), (Peer::Null, 50.0)];
        let records: Vec<Record> =
            (0..5).flat_map(|round| sides.map(|(peer, rate)| record(name, peer, round, rate + f64::from(round) / 100.0))).collect();
        let text = outline(&records);
        assert!(sides.iter().all(|(peer, _)| text.contains(peer.name())), "{text}");
        assert!(text.contains("4.00 to ext4") && text.contains("met"), "{text}");
        assert!(text.contains("- durable-overwrite-4k-c1: 4.99 times what FUSE alone takes"), "{text}");
    }

    #[test]
    fn rates_have_a_fitting_unit() {
        assert_eq!(
            [rate(2.5e9, "bytes"), rate(123.45, "operations"), rate(123_456.0, "operations")],
            ["2500 MB/s", "123.5 operations/s", "123.5 k operations/s"]
        );
    }
}
