//! Rows of the speed table, their targets, and how they are shown.

use serde_json::{Value, json};

use crate::figures::{bytes, time};
use crate::measure::Samples;
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

    /// The comparison with the target.
    fn judged(&self) -> Option<Judged> {
        let limit = self.limit.map(|(median, _)| median);
        let judged = |name, bound, result, is_met, result_text, target_text| {
            // A median of zero is a failure: nothing was measured.
            let is_measured = self.median > 0.0 && limit.is_none_or(|limit| limit > 0.0);
            Some(Judged { name, bound, result, is_met: (!self.undecided).then_some(is_met && is_measured), result_text, target_text })
        };
        match self.target {
            RowTarget::OverAtMost(most) => {
                let over = self.median - limit?;
                let sign = if over < 0.0 { "" } else { "+" };
                judged("over_at_most", most, over, over <= most, format!("{sign}{}", time(over)), format!("≤ +{}", time(most)))
            }
            RowTarget::RatioAtMost(most) => {
                let ratio = self.median / limit?;
                judged("ratio_at_most", most, ratio, ratio <= most, format!("{ratio:.2} x"), format!("≤ {most} x"))
            }
            RowTarget::SpeedAtLeast(least) => {
                let share = limit? / self.median;
                let percent = |share: f64| format!("{:.0} %", share * 100.0);
                judged("speed_at_least", least, share, share >= least, percent(share), format!("≥ {}", percent(least)))
            }
            RowTarget::Below(bound) => {
                judged("below", bound, self.median, self.median < bound, time(self.median), format!("< {}", time(bound)))
            }
            RowTarget::BytesAtMost(most) => {
                judged("bytes_at_most", most, self.median, self.median <= most, bytes(self.median), format!("≤ {}", bytes(most)))
            }
            RowTarget::Shown => None,
        }
    }

    fn cells(&self) -> [String; 8] {
        let show = |value: f64| if matches!(self.target, RowTarget::BytesAtMost(_)) { bytes(value) } else { time(value) };
        let or_dash = |value: Option<String>| value.unwrap_or_else(|| "–".to_owned());
        let bandwidth = |bytes: u64| format!("{}, {:.2} GB/s", self.name, bytes as f64 / self.median);
        let met = |judged: &Judged| match judged.is_met {
            _ if self.undecided => "undecided",
            Some(true) => "yes",
            _ => "NO",
        };
        let judged = self.judged();
        [
            self.bytes.map_or_else(|| self.name.clone(), bandwidth),
            show(self.median),
            or_dash(self.p99.map(show)),
            or_dash(self.limit.map(|(median, _)| show(median))),
            or_dash(self.limit.and_then(|(_, p99)| p99).map(show)),
            or_dash(judged.as_ref().map(|judged| judged.result_text.clone())),
            or_dash(judged.as_ref().map(|judged| judged.target_text.clone())),
            or_dash(judged.as_ref().map(|judged| met(judged).to_owned())),
        ]
    }

    /// The row as a JSON object.
    pub fn json(&self, case: &str) -> Value {
        let judged = self.judged();
        let target = |judged: &Judged| [(judged.name.to_owned(), json!(judged.bound))].into_iter().collect::<Value>();
        json!({
            "case": case,
            "name": self.name,
            "unit": if matches!(self.target, RowTarget::BytesAtMost(_)) { "bytes" } else { "nanoseconds" },
            "median": self.median,
            "p99": self.p99,
            "limit_median": self.limit.map(|(median, _)| median),
            "limit_p99": self.limit.and_then(|(_, p99)| p99),
            "result": judged.as_ref().map(|judged| judged.result),
            "target": judged.as_ref().map(target),
            "met": judged.and_then(|judged| judged.is_met),
            "undecided": self.undecided,
            "bytes": self.bytes,
            "note": self.note,
        })
    }
}

/// The result of a row beside its target.
struct Judged {
    name: &'static str,
    bound: f64,
    result: f64,
    /// `None`: undecided.
    is_met: Option<bool>,
    result_text: String,
    target_text: String,
}

/// The rows as a table.
pub fn table(case: &str, rows: &[Row]) -> Table {
    let mut table = Table::new([case, "median", "p99", "limit", "limit p99", "result", "target", "met"]);
    rows.iter().for_each(|row| table.row(row.cells()));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_judged_by_its_reach() {
        let row = |target| Row { limit: Some((100.0, None)), target, ..Row::value("x", 120.0) };
        let met = |row: Row| row.judged().and_then(|judged| judged.is_met);
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
