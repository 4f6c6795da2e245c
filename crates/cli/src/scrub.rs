//! `tandemfs scrub`: makes the daemon of a mount read and verify everything on its device.

use std::cell::OnceCell;
use std::fmt::Write;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use tandemfs_fuse::control;

use crate::arguments::ScrubArguments;
use crate::failure::{Failure, no_answer};
use crate::findings;
use crate::output;
use crate::size;
use crate::umount;

/// No damage.
const CLEAN: u8 = 0;
/// Damage found.
const DAMAGED: u8 = 4;
/// Not done, or not completed.
const NOT_RUN: u8 = 8;

/// Smallest limit, in bytes a second: a terabyte takes half a year.
const LIMIT_BYTES_MIN: u64 = 64 << 10;

/// Scrubs a mount.
pub fn run(arguments: &ScrubArguments) -> Result<u8, Failure> {
    if let Some(limit) = arguments.limit.filter(|limit| *limit < LIMIT_BYTES_MIN) {
        let (limit, least) = (size::word(limit), size::show(LIMIT_BYTES_MIN));
        return Err(Failure::Usage(format!("--limit {limit}: name at least {least} a second, or leave it out for no limit")));
    }
    let mount = umount::find(&arguments.mountpoint).map_err(not_run)?;
    let place = mount.mountpoint.display();
    let bar = Bar::default();
    let result = control::scrub(&mount, arguments.limit, &mut |progress| bar.show(progress));
    bar.clear();
    let mut result = result.map_err(|error| not_run(no_answer(&mount, &error)))?;
    let status = if result["clean"] == json!(true) { CLEAN } else { DAMAGED };
    if arguments.json {
        result["mountpoint"] = json!(mount.mountpoint.to_string_lossy());
        result["exit_status"] = json!(status);
        result["consistent"] = result["clean"].clone();
        result["repaired"] = json!([]);
        result["findings"] = result["findings"].as_array().into_iter().flatten().map(findings::of_scrub).collect();
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
    let found = result["findings"].as_array().map(Vec::as_slice).unwrap_or_default();
    for finding in findings::lines_of_scrub(found) {
        line(format!("error: {finding}"));
    }
    if number("findings_left_out") > 0 {
        let more = output::count(number("findings_left_out"), "more finding is", "more findings are");
        line(format!("{more} not listed; the daemon's log has all"));
    }
    line(format!(
        "{}, {}, {}, {}, {} read in {:.1} s",
        output::count(number("inodes"), "inode", "inodes"),
        output::count(number("lines"), "line of metadata", "lines of metadata"),
        output::count(number("logs"), "data log", "data logs"),
        output::count(number("sectors"), "sector", "sectors"),
        size::show(number("read_bytes")),
        result["milliseconds"].as_f64().unwrap_or(0.0) / 1e3
    ));
    line(match result["clean"] == json!(true) {
        true => "clean".into(),
        false => "NOT clean; copy what is readable, restore the rest, then unmount and run tandemfs check".into(),
    });
    text
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
            found => format!("scrub, {}", output::count(found, "finding", "findings")),
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
