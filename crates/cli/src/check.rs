//! `tandemfs check`: exit status as of fsck(8).

use std::cell::OnceCell;
use std::fmt::Write;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tandemfs_check::{CheckOptions, Progress, Report};

use crate::arguments::CheckArguments;
use crate::device::{self, Opening};
use crate::failure::Failure;
use crate::findings;
use crate::output;
use crate::size;

/// No errors.
const CLEAN: u8 = 0;
/// Errors were found and repaired.
const REPAIRED: u8 = 1;
/// Errors remain.
const ERRORS_LEFT: u8 = 4;
/// The device could not be checked.
const NOT_RUN: u8 = 8;

/// Checks a device.
pub fn run(arguments: &CheckArguments) -> Result<u8, Failure> {
    let opening = Opening { read_only: !arguments.repair, ..Opening::default() };
    let drive = device::open(&arguments.device, opening).map_err(not_run)?;
    let options = CheckOptions { repair: arguments.repair, ..CheckOptions::default() };
    let bar = Bar::default();
    let report = tandemfs_check::check(&drive, &options, &mut |progress| bar.show(progress));
    bar.clear();
    let report = report.map_err(|error| not_run(Failure::because(error)))?;
    let status = status(&report);
    if arguments.json {
        let mut value = serde_json::to_value(&report).map_err(Failure::because)?;
        for (name, all) in [("findings", &report.findings), ("repaired", &report.repaired)] {
            value[name] = all.iter().map(findings::of_check).collect();
        }
        value["consistent"] = json!(report.is_consistent());
        value["exit_status"] = json!(status);
        output::print_json(&value)?;
    } else {
        output::print(&text(&report, arguments.repair))?;
    }
    Ok(status)
}

fn not_run(failure: Failure) -> Failure {
    match failure {
        Failure::Failed(message) => Failure::Status(NOT_RUN, message),
        other => other,
    }
}

fn status(report: &Report) -> u8 {
    if !report.is_consistent() {
        ERRORS_LEFT
    } else if !report.repaired.is_empty() {
        REPAIRED
    } else {
        CLEAN
    }
}

fn text(report: &Report, repair: bool) -> String {
    let mut text = String::new();
    let mut line = |line: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}: {line}", report.device);
    };
    for located in &report.repaired {
        line(format!("repaired: {located}"));
    }
    findings::lines(&report.findings).into_iter().for_each(&mut line);
    if report.findings_left_out > 0 {
        line(format!("{} not listed", output::count(report.findings_left_out, "more finding is", "more findings are")));
    }
    let counts = &report.counts;
    line(format!(
        "{}, {}, {}, {} verified",
        output::count(counts.files, "file", "files"),
        output::count(counts.directories, "directory", "directories"),
        output::count(counts.names, "name", "names"),
        size::show(counts.data_bytes)
    ));
    if counts.journal_records > 0 {
        line(format!(
            "not unmounted cleanly: the next mount replays {}",
            output::count(counts.journal_records, "journal record", "journal records")
        ));
    }
    if report.superblock_copy_behind {
        line("one copy of the superblock is torn or older, as after a power cut: the next mount rewrites it".into());
    }
    let repairable = report.findings.iter().any(|located| located.repairable);
    line(match (report.is_consistent(), report.repaired.is_empty()) {
        (true, true) => "clean".into(),
        (true, false) => format!("clean after {}", output::count(report.repaired.len() as u64, "repair", "repairs")),
        (false, _) if repairable && !repair => "NOT clean; tandemfs check --repair makes the repairs that need no guess".into(),
        (false, _) => "NOT clean; the remaining damage cannot be repaired without guessing: copy readable files, restore the others".into(),
    });
    text
}

/// A progress bar on a terminal, made when there is something to show.
#[derive(Default)]
struct Bar(OnceCell<ProgressBar>);

impl Bar {
    fn show(&self, progress: Progress) {
        if !output::shows_progress() {
            return;
        }
        let bar = self.0.get_or_init(|| {
            let style = ProgressStyle::with_template("{msg:9} [{wide_bar}] {percent:>3} %");
            ProgressBar::new(progress.total).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        bar.set_message(progress.stage.name());
        bar.set_length(progress.total);
        bar.set_position(progress.done);
    }

    fn clear(&self) {
        if let Some(bar) = self.0.get() {
            bar.finish_and_clear();
        }
    }
}
