//! Standard output. A reader that closes the pipe early is no error.

use std::io::{self, IsTerminal, Write};

use serde_json::Value;

use crate::failure::Failure;
use crate::size;

/// Prints text as it is.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    Ok(output.flush()?)
}

/// Prints indented JSON.
pub fn print_json(value: &Value) -> Result<(), Failure> {
    print(&format!("{value:#}\n"))
}

/// Prints what a command did: JSON, or a sentence.
pub fn print_result(as_json: bool, value: &Value, sentence: &str) -> Result<(), Failure> {
    if as_json { print_json(value) } else { print(sentence) }
}

/// Converts JSON to rows: one for each value, named by its path; sizes in readable units.
pub fn rows(value: &Value) -> Vec<(String, String)> {
    let mut rows = Vec::new();
    flatten("", value, &mut rows);
    rows
}

fn flatten(name: &str, value: &Value, rows: &mut Vec<(String, String)>) {
    let shown = match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                let name = if name.is_empty() { field.clone() } else { format!("{name}.{field}") };
                flatten(&name, value, rows);
            }
            return;
        }
        Value::Array(list) if list.iter().all(Value::is_object) && !list.is_empty() => {
            for (number, value) in (1..).zip(list) {
                flatten(&format!("{name}.{number}"), value, rows);
            }
            return;
        }
        Value::Array(list) if list.is_empty() => "-".to_owned(),
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let number = value.as_u64();
    let (name, shown) = match (name.rsplit_once('_'), number) {
        (Some((name, "bytes")), Some(bytes)) => (name.to_owned(), size::show(bytes)),
        (Some((name, "seconds")), Some(0)) if name.ends_with("_time") => (name.to_owned(), "never".to_owned()),
        (Some((name, "seconds")), Some(seconds)) if name.ends_with("_time") || name == "created" => (name.to_owned(), date(seconds)),
        (Some((name, "seconds")), Some(seconds)) => (format!("{name}_for"), duration(seconds)),
        _ => match value.as_f64() {
            Some(milliseconds) if name.ends_with("milliseconds") => (name.to_owned(), format!("{milliseconds:.1}")),
            _ => (name.to_owned(), shown),
        },
    };
    rows.push((name, shown));
}

/// A time since 1970 as a date, in UTC (Hinnant's algorithm of days and civil dates).
fn date(seconds: u64) -> String {
    let (days, of_day) = (seconds / 86400 + 719_468, seconds % 86400);
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

/// `3 d 4 h`, `4 h 5 min`, `5 min 6 s`, `6 s`.
fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min {} s", seconds % 60),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

/// Prints rows of names and values, the values in one column.
pub fn print_rows(rows: &[(String, String)]) -> Result<(), Failure> {
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let text: String = rows.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect();
    print(&text)
}

/// Text with control characters escaped.
pub fn printable(text: &str) -> String {
    text.chars().flat_map(|character| if character.is_control() { character.escape_default().collect() } else { vec![character] }).collect()
}

/// A number and what it counts: `1 file`, `2 files`.
pub fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Whether to show a progress bar: only on a terminal, and not mixed with other output.
pub fn shows_progress() -> bool {
    io::stderr().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn times_are_dates_and_durations() {
        for (seconds, shown) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_700_000_000, "2023-11-14 22:13:20 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(date(seconds), shown);
        }
        for (seconds, shown) in [(6, "6 s"), (306, "5 min 6 s"), (14_700, "4 h 5 min"), (273_600, "3 d 4 h")] {
            assert_eq!(duration(seconds), shown);
        }
        let values = json!({
            "created_seconds": 0, "mounted_seconds": 6, "check_time_seconds": 0, "scrub_time_seconds": 1_700_000_000, "milliseconds": 0.630_33,
        });
        let rows: Vec<String> = rows(&values).into_iter().map(|(name, value)| format!("{name}: {value}")).collect();
        let expected = [
            "check_time: never",
            "created: 1970-01-01 00:00:00 UTC",
            "milliseconds: 0.6",
            "mounted_for: 6 s",
            "scrub_time: 2023-11-14 22:13:20 UTC",
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn json_becomes_rows() {
        let rows = rows(&json!({ "a": { "used_bytes": 2048, "count": 3 }, "b": null, "c": "text", "d": true }));
        let rows: Vec<(&str, &str)> = rows.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(rows, [("a.count", "3"), ("a.used", "2 KiB"), ("b", "-"), ("c", "text"), ("d", "true")]);
    }
}
