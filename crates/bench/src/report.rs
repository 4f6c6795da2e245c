//! Rows of the speed table, their targets, and how they are printed.

use serde_json::{Value, json};

use crate::failure::Result;
use crate::machine;
use crate::measure::Samples;
use crate::output::say;
use crate::table::Table;

/// Target of a row.
#[derive(Debug, Clone, Copy)]
pub enum RowTarget {
    /// Median at most this many nanoseconds above the limit's.
    OverAtMost(f64),
    /// Median at most this many times the limit's.
    RatioAtMost(f64),
    /// At least this share of the limit's speed.
    SpeedAtLeast(f64),
    /// Value below this many nanoseconds.
    Below(f64),
    /// Memory of at most this many bytes.
    BytesAtMost(f64),
    /// No target: the row explains another one.
    Shown,
}

/// One line of the table. Times in nanoseconds, memory in bytes.
#[derive(Debug, Clone)]
pub struct Row {
    /// The operation.
    pub name: String,
    /// Median of the samples, or the single value.
    pub median: f64,
    /// 99th percentile of the samples.
    pub p99: Option<f64>,
    /// The limit's median and p99.
    pub limit: Option<(f64, Option<f64>)>,
    /// The target.
    pub target: RowTarget,
    /// Bytes per operation, for rows that show a bandwidth.
    pub bytes: Option<u64>,
    /// Repetitions lie on both sides of the target, so the row decides nothing.
    pub undecided: bool,
    /// A short explanation.
    pub note: String,
}

impl Row {
    /// A row of times with its limit.
    pub fn beside(name: impl Into<String>, samples: &Samples, limit: &Samples, target: RowTarget) -> Self {
        let limit = Some((limit.median_ns(), Some(limit.p99_ns())));
        Self { limit, target, ..Self::alone(name, samples) }
    }

    /// A row of times without a limit.
    pub fn alone(name: impl Into<String>, samples: &Samples) -> Self {
        Self { p99: Some(samples.p99_ns()), ..Self::value(name, samples.median_ns()) }
    }

    /// A row of one value.
    pub fn value(name: impl Into<String>, median: f64) -> Self {
        Self {
            name: name.into(),
            median,
            p99: None,
            limit: None,
            target: RowTarget::Shown,
            bytes: None,
            undecided: false,
            note: String::new(),
        }
    }

    /// Adds a short explanation.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// The value that is compared with the target: nanoseconds above the limit, a ratio, a share or the value itself.
    fn result(&self) -> Option<f64> {
        let limit = self.limit.map(|(median, _)| median);
        match self.target {
            RowTarget::OverAtMost(_) => limit.map(|limit| self.median - limit),
            RowTarget::RatioAtMost(_) => limit.map(|limit| self.median / limit),
            RowTarget::SpeedAtLeast(_) => limit.map(|limit| limit / self.median),
            RowTarget::Below(_) | RowTarget::BytesAtMost(_) => Some(self.median),
            RowTarget::Shown => None,
        }
    }

    /// Whether the target is met. A median of zero is a failure: nothing was measured.
    fn met(&self) -> Option<bool> {
        let result = self.result()?;
        if self.undecided {
            return None;
        }
        if self.median <= 0.0 || self.limit.is_some_and(|(median, _)| median <= 0.0) {
            return Some(false);
        }
        match self.target {
            RowTarget::OverAtMost(most) | RowTarget::RatioAtMost(most) | RowTarget::BytesAtMost(most) => Some(result <= most),
            RowTarget::SpeedAtLeast(least) => Some(result >= least),
            RowTarget::Below(bound) => Some(result < bound),
            RowTarget::Shown => None,
        }
    }

    fn cells(&self) -> [String; 8] {
        let show = |value: f64| if matches!(self.target, RowTarget::BytesAtMost(_)) { bytes(value) } else { time(value) };
        let or_dash = |value: Option<String>| value.unwrap_or_else(|| "–".to_owned());
        let result = self.result().map(|result| match self.target {
            RowTarget::OverAtMost(_) if result < 0.0 => time(result),
            RowTarget::OverAtMost(_) => format!("+{}", time(result)),
            RowTarget::RatioAtMost(_) => format!("{result:.2} x"),
            RowTarget::SpeedAtLeast(_) => format!("{:.0} %", result * 100.0),
            _ => show(result),
        });
        let target = match self.target {
            RowTarget::OverAtMost(most) => Some(format!("≤ +{}", time(most))),
            RowTarget::RatioAtMost(most) => Some(format!("≤ {most} x")),
            RowTarget::SpeedAtLeast(least) => Some(format!("≥ {:.0} %", least * 100.0)),
            RowTarget::Below(bound) => Some(format!("< {}", time(bound))),
            RowTarget::BytesAtMost(most) => Some(format!("≤ {}", bytes(most))),
            RowTarget::Shown => None,
        };
        let mut name = self.name.clone();
        if let Some(size) = self.bytes {
            name = format!("{name}, {:.2} GB/s", size as f64 / self.median);
        }
        [
            name,
            show(self.median),
            or_dash(self.p99.map(show)),
            or_dash(self.limit.map(|(median, _)| show(median))),
            or_dash(self.limit.and_then(|(_, p99)| p99).map(show)),
            or_dash(result),
            or_dash(target),
            match self.met() {
                _ if self.undecided => "undecided".to_owned(),
                met => or_dash(met.map(|met| if met { "yes" } else { "NO" }.to_owned())),
            },
        ]
    }

    /// The row as a JSON object.
    pub fn json(&self, case: &str) -> Value {
        json!({
            "case": case,
            "name": self.name,
            "unit": if matches!(self.target, RowTarget::BytesAtMost(_)) { "bytes" } else { "nanoseconds" },
            "median": self.median,
            "p99": self.p99,
            "limit_median": self.limit.map(|(median, _)| median),
            "limit_p99": self.limit.and_then(|(_, p99)| p99),
            "result": self.result(),
            "target": match self.target {
                RowTarget::OverAtMost(most) => json!({ "over_at_most": most }),
                RowTarget::RatioAtMost(most) => json!({ "ratio_at_most": most }),
                RowTarget::SpeedAtLeast(least) => json!({ "speed_at_least": least }),
                RowTarget::Below(bound) => json!({ "below": bound }),
                RowTarget::BytesAtMost(most) => json!({ "bytes_at_most": most }),
                RowTarget::Shown => Value::Null,
            },
            "met": self.met(),
            "undecided": self.undecided,
            "bytes": self.bytes,
            "note": self.note,
        })
    }
}

/// Prints the facts of the machine.
pub fn header(as_json: bool) -> Result<()> {
    let facts = machine::facts();
    if as_json {
        let machine: serde_json::Map<String, Value> = facts.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
        return say(&format!("{}\n", json!({ "machine": machine })));
    }
    let facts: Vec<String> = facts.into_iter().map(|(name, value)| format!("{name}: {value}")).collect();
    say(&format!("{}\n\n", facts.join("; ")))
}

/// Prints the header of a paper's evaluation: facts of the machine and the description. Returns both as one line, for published files.
pub fn begin(description: &str, as_json: bool) -> Result<String> {
    header(as_json)?;
    if !as_json {
        say(&format!("{description}\n\n"))?;
    }
    let facts: Vec<String> = machine::facts().into_iter().map(|(name, value)| format!("{name}: {value}")).collect();
    Ok(format!("{}; {description}", facts.join("; ")))
}

/// Prints the rows of a case as a Markdown table, or as one JSON line each.
pub fn print(case: &str, rows: &[Row], as_json: bool) -> Result<()> {
    if as_json {
        return rows.iter().try_for_each(|row| say(&format!("{}\n", row.json(case))));
    }
    say(&format!("{}\n", table(case, rows).markdown()))?;
    for row in rows.iter().filter(|row| !row.note.is_empty()) {
        say(&format!("- {}: {}\n", row.name, row.note))?;
    }
    say("\n")
}

/// The rows as a table.
pub fn table(case: &str, rows: &[Row]) -> Table {
    let mut table = Table::new([case, "median", "p99", "limit", "limit p99", "result", "target", "met"]);
    rows.iter().for_each(|row| table.row(row.cells()));
    table
}

/// A time with a suitable unit.
pub fn time(nanoseconds: f64) -> String {
    match nanoseconds.abs() {
        below if below < 10_000.0 => format!("{:.2} us", nanoseconds / 1e3),
        below if below < 1_000_000.0 => format!("{:.1} us", nanoseconds / 1e3),
        below if below < 1_000_000_000.0 => format!("{:.1} ms", nanoseconds / 1e6),
        _ => format!("{:.2} s", nanoseconds / 1e9),
    }
}

fn bytes(bytes: f64) -> String {
    if bytes < f64::from(1 << 20) { format!("{bytes:.0} B") } else { format!("{:.0} MiB", bytes / f64::from(1 << 20)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_judged_by_its_reach() {
        let row = |target| Row { limit: Some((100.0, None)), target, ..Row::value("x", 120.0) };
        assert_eq!(row(RowTarget::OverAtMost(20.0)).met(), Some(true));
        assert_eq!(row(RowTarget::OverAtMost(19.0)).met(), Some(false));
        assert_eq!(row(RowTarget::RatioAtMost(1.2)).met(), Some(true));
        assert_eq!(row(RowTarget::SpeedAtLeast(0.9)).met(), Some(false));
        assert_eq!(row(RowTarget::Below(120.0)).met(), Some(false));
        assert_eq!(row(RowTarget::Shown).met(), None);
        assert_eq!(Row { undecided: true, ..row(RowTarget::OverAtMost(20.0)) }.met(), None);
        assert_eq!(Row { target: RowTarget::Below(1.0), ..Row::value("nothing", 0.0) }.met(), Some(false));
    }

    #[test]
    fn times_are_shown_in_a_fitting_unit() {
        assert_eq!([1_234.0, 56_789.0, 2_500_000.0, 3e9].map(time), ["1.23 us", "56.8 us", "2.5 ms", "3.00 s"]);
    }
}
