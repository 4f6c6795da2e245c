//! `tandemfs scrub`: makes the daemon of a mount read and verify everything on its device.

use std::cell::OnceCell;
use std::fmt::Write;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use tandemfs_fuse::control;

use crate::arguments::ScrubArguments;
use crate::failure::Failure;
use crate::output;
use crate::size;
use crate::umount;

/// No damage.
const CLEAN: u8 = 0;
/// Damage found.
const DAMAGED: u8 = 4;
/// Not done, or not completed.
const NOT_RUN: u8 = 8;

/// Scrubs a mount.
pub fn run(arguments: &ScrubArguments) -> Result<u8, Failure> {
    if arguments.limit == Some(0) {
        return Err(Failure::Usage("--limit 0 would never end; leave it out for no limit".into()));
    }
    let mount = umount::find(&arguments.mountpoint).map_err(not_run)?;
    let place = mount.mountpoint.display();
    let bar = Bar::default();
    let result = control::scrub(&mount, arguments.limit, &mut |progress| bar.show(progress));
    bar.clear();
    let mut result = result.map_err(|error| Failure::Status(NOT_RUN, format!("{place}: the scrub did not complete: {error}")))?;
    let status = if result["clean"] == json!(true) { CLEAN } else { DAMAGED };
    if arguments.json {
        result["mountpoint"] = json!(mount.mountpoint.to_string_lossy());
        result["exit_status"] = json!(status);
        output::print_json(&result)?;
    } else {
        output::print(&text(&place.to_string(), &result))?;
    }
    Ok(status)
}

fn not_run(failure: Failure) -> Failure {
    match failure {
        Failure::Failed(message) => Failure::Status(NOT_RUN, message),
        other => other,
    }
}

fn text(place: &str, result: &Value) -> String {
    let mut text = String::new();
    let mut line = |line: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{place}: {line}");
    };
    let number = |name: &str| result[name].as_u64().unwrap_or(0);
    for finding in result["findings"].as_array().into_iter().flatten() {
        let path = finding["path"].as_str().map(printable).unwrap_or_default();
        let separator = if path.is_empty() { "" } else { ": " };
        line(format!("error: {path}{separator}{}", finding["text"].as_str().unwrap_or_default()));
    }
    if number("findings_left_out") > 0 {
        line(format!("{} more findings are not listed; the daemon's log has them", number("findings_left_out")));
    }
    line(format!(
        "{} inodes, {} lines of metadata, {} data logs, {} sectors, {} read in {:.1} s",
        number("inodes"),
        number("lines"),
        number("logs"),
        number("sectors"),
        size::show(number("read_bytes")),
        result["milliseconds"].as_f64().unwrap_or(0.0) / 1e3
    ));
    line(match result["clean"] == json!(true) {
        true => "clean".into(),
        false => "NOT clean; copy what is readable, restore the rest, then unmount and run tandemfs check".into(),
    });
    text
}

/// A path with control characters escaped.
fn printable(path: &str) -> String {
    path.chars().flat_map(|character| if character.is_control() { character.escape_default().collect() } else { vec![character] }).collect()
}

/// A progress bar on a terminal, made when there is something to show.
#[derive(Default)]
struct Bar(OnceCell<ProgressBar>);

impl Bar {
    fn show(&self, progress: &Value) {
        if !output::shows_progress() {
            return;
        }
        let number = |name: &str| progress[name].as_u64().unwrap_or(0);
        let bar = self.0.get_or_init(|| {
            let style = ProgressStyle::with_template("{msg} [{wide_bar}] {percent:>3} % {binary_bytes_per_sec}");
            ProgressBar::new(1).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        bar.set_message(match number("findings") {
            0 => "scrub".into(),
            findings => format!("scrub, {findings} findings"),
        });
        bar.set_length(number("total_bytes"));
        bar.set_position(number("done_bytes"));
    }

    fn clear(&self) {
        if let Some(bar) = self.0.get() {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_named_and_the_last_line_is_the_verdict() {
        let result = json!({
            "clean": false, "findings": [{ "path": "/a\u{1b}b", "text": "inode 5: 4096 B of data at byte 8192" }], "findings_left_out": 2,
            "inodes": 3, "lines": 9, "logs": 1, "sectors": 2, "read_bytes": 4096, "milliseconds": 1500.0,
        });
        let text = text("/mnt", &result);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "/mnt: error: /a\\u{1b}b: inode 5: 4096 B of data at byte 8192");
        assert!(lines[1].contains("2 more") && lines[2].contains("1.5 s") && lines[3].starts_with("/mnt: NOT clean"), "{text}");
    }
}
