//! `tandemfs restore`: copies out what can be read of a device that cannot be mounted, or not repaired.

use std::fmt::Write;

use serde_json::json;
use tandemfs_check::{RestoreError, RestoreOptions, RestoreReport};

use crate::arguments::RestoreArguments;
use crate::check::Bar;
use crate::device::{self, Opening};
use crate::failure::Failure;
use crate::output;
use crate::size;

/// Everything was copied.
const WHOLE: u8 = 0;
/// Everything was read; the target refused owners, modes or the like.
const REFUSED: u8 = 1;
/// Part of it is damaged or missing, and listed.
const DAMAGED: u8 = 4;
/// Nothing could be restored, or the run ended early.
const NOT_RUN: u8 = 8;

/// Lines of each list for people; JSON has all of them.
const SHOWN_MAX: usize = 1000;

/// Restores a device into a directory.
pub fn run(arguments: &RestoreArguments) -> Result<u8, Failure> {
    let not_run = |failure: Failure| match failure {
        Failure::Failed(message) => Failure::Status(NOT_RUN, message),
        other => other,
    };
    let drive = device::open(&arguments.device, Opening { read_only: true, ..Opening::default() }).map_err(not_run)?;
    let options = RestoreOptions {
        inode: arguments.inode,
        ignore_errors: arguments.ignore_errors,
        dry_run: arguments.dry_run,
        force: arguments.force,
    };
    let bar = Bar::default();
    let report = tandemfs_check::restore(&drive, &arguments.directory, &options, &mut |progress| bar.show(progress));
    bar.clear();
    let report = report.map_err(|error| match error {
        RestoreError::NotEmpty(_) => Failure::Usage(error.to_string()),
        error => Failure::Status(NOT_RUN, error.to_string()),
    })?;
    let status = status(&report);
    if arguments.json {
        let mut value = serde_json::to_value(&report).map_err(Failure::because)?;
        value["whole"] = json!(report.is_whole());
        value["exit_status"] = json!(status);
        output::print_json(&value)?;
    } else {
        output::print(&text(&report))?;
    }
    Ok(status)
}

fn status(report: &RestoreReport) -> u8 {
    if report.stopped.is_some() {
        NOT_RUN
    } else if !report.is_whole() {
        DAMAGED
    } else if !report.refused.is_empty() {
        REFUSED
    } else {
        WHOLE
    }
}

fn text(report: &RestoreReport) -> String {
    let mut text = String::new();
    let mut line = |line: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}: {line}", report.device);
    };
    report.notes.iter().for_each(|note| line(note.clone()));
    for missing in report.missing.iter().take(SHOWN_MAX) {
        line(format!("missing: {} (inode {}): {}", missing.path, missing.inode, missing.reason));
    }
    for range in report.damaged.iter().take(SHOWN_MAX) {
        let became = if range.copied { "copied as it is" } else { "left as a hole" };
        line(format!("damaged: {} (inode {}): {} B at byte {}, {became}", range.path, range.inode, range.bytes, range.offset));
    }
    let hidden = report.missing.len().saturating_sub(SHOWN_MAX) + report.damaged.len().saturating_sub(SHOWN_MAX);
    if hidden as u64 + report.left_out > 0 {
        line(format!("{} not listed; --json lists more", output::count(hidden as u64 + report.left_out, "more is", "more are")));
    }
    for refused in &report.refused {
        let times = output::count(refused.count, "time", "times");
        line(format!("the target refused: {}: {}, {times}, first {}", refused.what, refused.error, refused.first_path));
    }
    let done = if report.dry_run { "would copy" } else { "copied" };
    line(format!(
        "{done} {}, {}, {}, {}, {}; {} of data",
        output::count(report.files, "file", "files"),
        output::count(report.hard_links, "further name", "further names"),
        output::count(report.directories, "directory", "directories"),
        output::count(report.links, "symbolic link", "symbolic links"),
        output::count(report.special, "device or FIFO", "devices and FIFOs"),
        size::show(report.bytes),
    ));
    if report.nameless > 0 {
        line(format!(
            "{} to lost+found, as #NUMBER",
            output::count(report.nameless, "inode without a name went", "inodes without names went")
        ));
    }
    if report.complete_before > 0 {
        line(format!(
            "{} there already and not read again; damage in them is in the report of the run that copied them",
            output::count(report.complete_before, "file was", "files were")
        ));
    }
    line(conclusion(report));
    text
}

fn conclusion(report: &RestoreReport) -> String {
    match &report.stopped {
        Some(reason) => format!("NOT finished: {reason}"),
        None if report.damaged_bytes > 0 => {
            format!("NOT whole: {} of data are damaged; the list above says where", size::show(report.damaged_bytes))
        }
        None if !report.is_whole() => "NOT whole: the list above says what is missing".into(),
        None if report.dry_run => "everything can be read".into(),
        None => "everything was copied".into(),
    }
}
