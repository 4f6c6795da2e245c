//! Rows of the speed table, their targets, and how they are shown.

use serde::Serialize;
use serde_json::{Value, json};

use crate::figures::{bytes, time};
use crate::measure::Samples;
use crate::table::Table;

/// Target of a row.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
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
#[derive(Debug, Clone, Serialize)]
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

    /// What is held against the target, the target, and whether it is met.
    fn judged(&self) -> Option<(String, String, bool)> {
        let limit = self.limit.map(|(median, _)| median);
        let (result, target, is_met) = match self.target {
            RowTarget::OverAtMost(most) => {
                let over = self.median - limit?;
                (format!("{}{}", if over < 0.0 { "" } else { "+" }, time(over)), format!("≤ +{}", time(most)), over <= most)
            }
            RowTarget::RatioAtMost(most) => {
                let ratio = self.median / limit?;
                (format!("{ratio:.2} x"), format!("≤ {most} x"), ratio <= most)
            }
            RowTarget::SpeedAtLeast(least) => {
                let share = limit? / self.median;
                (format!("{:.0} %", share * 100.0), format!("≥ {:.0} %", least * 100.0), share >= least)
            }
            RowTarget::Below(bound) => (time(self.median), format!("< {}", time(bound)), self.median < bound),
            RowTarget::BytesAtMost(most) => (bytes(self.median), format!("≤ {}", bytes(most)), self.median <= most),
            RowTarget::Shown => return None,
        };
        // A median of zero is a failure: nothing was measured.
        Some((result, target, is_met && self.median > 0.0 && limit.is_none_or(|limit| limit > 0.0)))
    }

    /// Whether the target is met; `None` without one, or where the row decides nothing.
    fn met(&self) -> Option<bool> {
        self.judged().map(|(_, _, is_met)| is_met).filter(|_| !self.undecided)
    }

    fn show(&self, value: Option<f64>) -> String {
        let unit = if matches!(self.target, RowTarget::BytesAtMost(_)) { bytes } else { time };
        value.map_or_else(|| "–".to_owned(), unit)
    }

    /// The row as a record of a case.
    pub fn json(&self, case: &str) -> Value {
        let mut record = json!(self);
        (record["case"], record["met"], record["result"]) = (json!(case), json!(self.met()), json!(self.judged().map(|judged| judged.0)));
        record
    }
}

/// The rows of a case.
pub fn table(case: &str, rows: &[Row]) -> Table {
    let bandwidth = |row: &Row| row.bytes.map_or_else(String::new, |bytes| format!(", {:.2} GB/s", bytes as f64 / row.median));
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
    Table::of(
        rows,
        &[
            (case, &|row| format!("{}{}", row.name, bandwidth(row))),
            ("median", &|row| row.show(Some(row.median))),
            ("p99", &|row| row.show(row.p99)),
            ("limit", &|row| row.show(row.limit.map(|(median, _)| median))),
            ("limit p99", &|row| row.show(row.limit.and_then(|(_, p99)| p99))),
            ("result", &|row| or_dash(row.judged().map(|judged| judged.0))),
            ("target", &|row| or_dash(row.judged().map(|judged| judged.1))),
            ("met", &|row| match row.met() {
                _ if row.undecided => "undecided".to_owned(),
                Some(is_met) => if is_met { "yes" } else { "NO" }.to_owned(),
                None => "–".to_owned(),
            }),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_judged_by_its_reach() {
        let row = |target| Row { limit: Some((100.0, None)), target, ..Row::value("x", 120.0) };
        let met = |row: Row| row.met();
        assert_eq!(met(row(RowTarget::OverAtMost(20.0))), Some(true));
        assert_eq!(met(row(RowTarget::OverAtMost(19.0))), Some(false));
        assert_eq!(met(row(RowTarget::RatioAtMost(1.2))), Some(true));
        assert_eq!(met(row(RowTarget::SpeedAtLeast(0.9))), Some(false));
        assert_eq!(met(row(RowTarget::Below(120.0))), Some(false));
        assert_eq!(met(row(RowTarget::Shown)), None);
        assert_eq!(met(Row { undecided: true, ..row(RowTarget::OverAtMost(20.0)) }), None);
        assert_eq!(met(Row { target: RowTarget::Below(1.0), ..Row::value("nothing", 0.0) }), Some(false));
    }
}
