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
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match (name.strip_suffix("_bytes"), value.as_u64()) {
        (Some(name), Some(bytes)) => rows.push((name.to_owned(), size::show(bytes))),
        _ => rows.push((name.to_owned(), shown)),
    }
}

/// Prints rows of names and values, the values in one column.
pub fn print_rows(rows: &[(String, String)]) -> Result<(), Failure> {
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let text: String = rows.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect();
    print(&text)
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
    fn json_becomes_rows() {
        let rows = rows(&json!({ "a": { "used_bytes": 2048, "count": 3 }, "b": null, "c": "text", "d": true }));
        let rows: Vec<(&str, &str)> = rows.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(rows, [("a.count", "3"), ("a.used", "2 KiB"), ("b", "-"), ("c", "text"), ("d", "true")]);
    }
}
