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
