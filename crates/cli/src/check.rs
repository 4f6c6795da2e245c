//! `tandemfs check`: exit status as of fsck(8).

use std::cell::OnceCell;
use std::fmt::Write;
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tandemfs_check::{CheckOptions, Finding, Progress, Report};
use tandemfs_device::DeviceError;
use tandemfs_emulator::{DeviceSpec, HeaderState};

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
/// The command line makes no sense.
const USAGE: u8 = 16;

/// Checks a device.
pub fn run(arguments: &CheckArguments) -> Result<u8, Failure> {
    if let Some(file) = &arguments.undo_apply {
        return undo(arguments, file);
    }
    let repairs = arguments.repair || arguments.preen || arguments.rescue;
    if arguments.undo.is_some() && !repairs {
        return Err(Failure::Status(USAGE, "--undo needs --repair, --rescue or --preen".into()));
    }
    if arguments.zero_data && !repairs && !arguments.dry_run {
        return Err(Failure::Status(USAGE, "--zero-data needs --repair, --rescue or --dry-run".into()));
    }
    let writes = repairs && !arguments.dry_run;
    let header = Header::of(&arguments.device, writes).map_err(|error| not_run(Failure::because(error)))?;
    let opening = Opening { read_only: !writes, ..Opening::default() };
    let drive = device::open(&arguments.device, opening).map_err(not_run)?;
    let options = CheckOptions {
        repair: repairs || arguments.dry_run,
        preen: arguments.preen,
        zero_data: arguments.zero_data,
        rescue: arguments.rescue,
        dry_run: arguments.dry_run,
        data: !arguments.metadata_only,
        one_drive: header != Header::None,
        undo: arguments.undo.clone(),
        ..CheckOptions::default()
    };
    let bar = Bar::default();
    let report = tandemfs_check::check(&drive, &options, &mut |progress| bar.show(progress));
    bar.clear();
    let report = report.map_err(|error| not_run(Failure::because(error)))?;
    let status = header.status(status(&report));
    if arguments.json {
        let mut value = serde_json::to_value(&report).map_err(Failure::because)?;
        for (name, all) in [("findings", &report.findings), ("repaired", &report.repaired)] {
            value[name] = all.iter().map(findings::of_check).collect();
        }
        value["consistent"] = json!(report.is_consistent());
        value["image_header"] = json!(header.name());
        value["exit_status"] = json!(status);
        output::print_json(&value)?;
    } else {
        output::print(&format!("{}{}", header.sentence(&arguments.device), text(&report, &options)))?;
    }
    Ok(status)
}

/// The header of the image that a device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Header {
    /// The device is a pair.
    None,
    Whole,
    /// It is read from its copy.
    Damaged,
    Repaired,
}

impl Header {
    /// Looks at it; a repair writes it again from its copy. Without a header nothing else is known of an image, so this is not undone.
    fn of(device: &str, repair: bool) -> Result<Self, DeviceError> {
        let Some(path) = device.parse().ok().and_then(DeviceSpec::image).filter(|path| path.is_file()) else { return Ok(Self::None) };
        if repair && tandemfs_emulator::restore_header(&path)? {
            return Ok(Self::Repaired);
        }
        Ok(match tandemfs_emulator::header_state(&path)? {
            HeaderState::Whole => Self::Whole,
            HeaderState::Damaged => Self::Damaged,
        })
    }

    fn name(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Whole => Some("whole"),
            Self::Damaged => Some("damaged"),
            Self::Repaired => Some("repaired"),
        }
    }

    fn sentence(self, device: &str) -> String {
        match self {
            Self::None | Self::Whole => String::new(),
            Self::Damaged => format!("{device}: the image's header is damaged, its copy is used; a repair writes the header again\n"),
            Self::Repaired => format!("{device}: the image's header was damaged, and was written again from its copy\n"),
        }
    }

    /// The exit status, with that of the file system.
    fn status(self, of_file_system: u8) -> u8 {
        match (self, of_file_system) {
            (Self::Damaged, CLEAN | REPAIRED) => ERRORS_LEFT,
            (Self::Repaired, CLEAN) => REPAIRED,
            (_, status) => status,
        }
    }
}

/// Puts back what a repair changed.
fn undo(arguments: &CheckArguments, file: &Path) -> Result<u8, Failure> {
    let drive = device::open(&arguments.device, Opening::default()).map_err(not_run)?;
    let undone = tandemfs_check::undo(&drive, file).map_err(|error| not_run(Failure::because(error)))?;
    let (device, lines, sectors) = (&drive.description().name, undone.lines, undone.sectors);
    if arguments.json {
        output::print_json(&json!({ "device": device, "lines": lines, "sectors": sectors }))?;
    } else {
        output::print(&format!("{device}: put back {lines} lines and {sectors} sectors of {}\n", file.display()))?;
    }
    Ok(CLEAN)
}

fn not_run(failure: Failure) -> Failure {
    match failure {
        Failure::Failed(message) => Failure::Status(NOT_RUN, message),
        other => other,
    }
}

fn status(report: &Report) -> u8 {
    if !report.is_consistent() || report.dry_run && !report.repaired.is_empty() {
        ERRORS_LEFT
    } else if !report.repaired.is_empty() {
        REPAIRED
    } else {
        CLEAN
    }
}

fn text(report: &Report, options: &CheckOptions) -> String {
    let mut text = String::new();
    let mut line = |line: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}: {line}", report.device);
    };
    let (repaired, gave_up, placed) =
        if report.dry_run { ("would repair", "would give up", "would give a name to") } else { ("repaired", "gave up", "gave a name to") };
    let rebuilt = if options.rescue { "rescue" } else { "repair" };
    report.rescued.iter().for_each(|sentence| line(format!("{rebuilt}: {sentence}")));
    for located in &report.repaired {
        line(format!("{repaired}: {located}"));
    }
    for lost in &report.lost {
        line(format!("{gave_up}: {lost}"));
    }
    for place in &report.placed {
        line(format!("{placed}: inode {}, {}", place.inode, place.path));
    }
    for lost in &report.lost_before {
        line(format!("lost since an earlier repair: {lost}"));
    }
    findings::lines(&report.findings).into_iter().for_each(&mut line);
    if report.findings_left_out > 0 {
        line(format!("{} not listed", output::count(report.findings_left_out, "more finding is", "more findings are")));
    }
    let counts = &report.counts;
    let verified = if options.data { format!("{} verified", size::show(counts.data_bytes)) } else { "data not read".into() };
    line(format!(
        "{}, {}, {}, {verified}",
        output::count(counts.files, "file", "files"),
        output::count(counts.directories, "directory", "directories"),
        output::count(counts.names, "name", "names"),
    ));
    if counts.open_pages > 0 {
        line(format!(
            "{} without checksums: a mapping may have changed them when a crash came; the next mount gives them some",
            output::count(counts.open_pages, "page", "pages")
        ));
    }
    if counts.journal_records > 0 {
        line(format!(
            "not unmounted cleanly: the next mount replays {}",
            output::count(counts.journal_records, "journal record", "journal records")
        ));
    }
    if report.superblock_copy_behind {
        line("one copy of the superblock is torn or older, as after a power cut: the next mount rewrites it".into());
    }
    if report.identity_behind {
        line("the identity of the block half is torn or older, as after a power cut: the next mount writes it again".into());
    }
    if let Some(file) = options.undo.as_ref().filter(|_| report.undo_bytes > 0) {
        line(format!("tandemfs check --undo-apply {} {} takes this repair back", file.display(), report.device));
    }
    line(conclusion(report, options));
    text
}

/// Whether only file data are damaged.
fn is_of_data(report: &Report) -> bool {
    report.findings.iter().all(|located| matches!(located.finding, Finding::DataDamaged { .. } | Finding::LogDamaged { .. }))
}

fn conclusion(report: &Report, options: &CheckOptions) -> String {
    let repairable = report.findings.iter().any(|located| located.repairable);
    let repairs = output::count(report.repaired.len() as u64, "repair", "repairs");
    match (report.is_consistent(), report.repaired.is_empty()) {
        (true, true) => "clean".into(),
        (true, false) if report.dry_run => format!("NOT clean; it would be clean after {repairs}"),
        (true, false) => format!("clean after {repairs}"),
        (false, _) if options.repair && is_of_data(report) => {
            "NOT clean; damaged file data stay as they are, and reading them fails: restore these files, or see --zero-data".into()
        }
        (false, _) if !options.rescue && report.findings.iter().any(|located| located.finding.is_of_table()) => {
            "NOT clean; the segment table is damaged: copy the files out with tandemfs restore, then tandemfs check --rescue rebuilds the \
             table from what the units contain"
                .into()
        }
        (false, _) if repairable && options.preen => "NOT clean; tandemfs check --repair repairs the rest, which may lose data".into(),
        (false, _) if repairable && !options.repair => {
            "NOT clean; tandemfs check --dry-run says what a repair would do, tandemfs check --repair does it".into()
        }
        (false, _) => "NOT clean; the remaining damage cannot be repaired: copy out what is readable with tandemfs restore".into(),
    }
}

/// A progress bar on a terminal, made when there is something to show.
#[derive(Default)]
pub struct Bar(OnceCell<ProgressBar>);

impl Bar {
    /// Shows how far a stage is.
    pub fn show(&self, progress: Progress) {
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

    /// Takes the bar away.
    pub fn clear(&self) {
        if let Some(bar) = self.0.get() {
            bar.finish_and_clear();
        }
    }
}
