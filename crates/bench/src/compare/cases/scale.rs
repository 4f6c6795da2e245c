//! How cost grows with files in a directory, file size and fill level.
//!
//! [SL1] A case is one point of a series; only its parameter differs between points. Each operation is timed.
//! [SL2] A parameter is never scaled. `--quick` does fewer operations and omits these cases, since their setup does not shrink.
//! [SL3] Existing files are made by mknod, the cheapest way; files with a size are written completely and durably.
//! [SL4] Fill level is that of statfs: files of at most 64 MiB are added to the overwritten file until the percentage is reached.
//! [SL5] Overwritten blocks are read back.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FileType, Mode, mknodat, statvfs};

use super::clients::{scaled, timed};
use super::fio::lay_out;
use crate::compare::case::{Case, Cases, Group, Outcome, Stage};
use crate::failure::{Failure, Result};
use crate::machine;
use crate::workloads::content;
use crate::workloads::random::Random;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const BLOCK: usize = 4096;
/// Content keys of overwrites start here; lower keys are those of files as they were laid out.
const WRITTEN: u64 = 1 << 32;

/// All points of all series.
pub fn cases() -> Cases {
    let mut all: Vec<Point> = Vec::new();
    for files in [1000, 10_000, 100_000, 1_000_000] {
        all.extend([Point::CreateIn { files }, Point::LookUpIn { files }]);
    }
    all.extend([MIB, 16 * MIB, 256 * MIB, GIB, 10 * GIB].map(|bytes| Point::OverwriteIn { bytes }));
    all.extend([10, 50, 80, 90, 95].map(|percent| Point::Fill { percent }));
    all.into_iter().map(Point::case).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Point {
    CreateIn { files: u64 },
    LookUpIn { files: u64 },
    OverwriteIn { bytes: u64 },
    Fill { percent: u64 },
}

/// Operations at scale 1.
const OPERATIONS: u64 = 5000;
/// Size of the file that is overwritten on a full drive.
const FILE_BYTES: u64 = 64 * MIB;
/// Drive size requested for it.
const DRIVE_BYTES: u64 = GIB;

impl Point {
    fn case(self) -> Case {
        let operations = OPERATIONS;
        let overwrites = format!("{operations} random overwrites of 4 KiB with fdatasync in a file of");
        let (name, parameter, description) = match self {
            Self::CreateIn { files } => {
                (format!("scale-create-in-{files}"), files, format!("{operations} empty files are made in a directory of {files}"))
            }
            Self::LookUpIn { files } => {
                let what = format!("{operations} random names of a directory of {files} are looked up, after a mount");
                (format!("scale-lookup-in-{files}"), files, what)
            }
            Self::OverwriteIn { bytes } => {
                let size = if bytes < GIB { format!("{}mib", bytes / MIB) } else { format!("{}gib", bytes / GIB) };
                (format!("scale-overwrite-in-{size}"), bytes, format!("{overwrites} {} MiB", bytes / MIB))
            }
            Self::Fill { percent } => {
                let what = format!("{overwrites} {} MiB while {percent} % of the file system is used", FILE_BYTES / MIB);
                (format!("scale-fill-{percent}"), percent, what)
            }
        };
        Case {
            parameter: Some(parameter as f64),
            needs_drive: matches!(self, Self::Fill { .. }),
            share_least: 0.25,
            bytes_needed: match self {
                // An inode, a name and index entries.
                Self::CreateIn { files } | Self::LookUpIn { files } => files * KIB + 256 * MIB,
                Self::OverwriteIn { bytes } => bytes + 256 * MIB,
                Self::Fill { .. } => DRIVE_BYTES,
            },
            files_needed: match self {
                Self::CreateIn { files } | Self::LookUpIn { files } => Some(files + operations + 1000),
                _ => None,
            },
            ..Case::new(Group::Scale, name, description, move |stage| self.run(stage))
        }
    }

    fn run(self, stage: &mut Stage<'_>) -> Result<Outcome> {
        let operations = scaled(OPERATIONS, stage.scale, 64);
        match self {
            Self::CreateIn { files } => create_in(stage, files, operations),
            Self::LookUpIn { files } => look_up_in(stage, files, operations),
            Self::OverwriteIn { bytes } => overwrite(stage, bytes, operations),
            Self::Fill { percent } => {
                fill(stage.directory, percent, FILE_BYTES)?;
                overwrite(stage, FILE_BYTES, operations)
            }
        }
    }
}

fn file_name(number: u64) -> String {
    format!("file-{number:07}")
}

/// [SL3].
fn make_empty(directory: &Path, files: u64) -> Result<()> {
    fs::create_dir(directory)?;
    let directory = File::open(directory)?;
    for number in 0..files {
        if number.is_multiple_of(1024) {
            machine::check()?;
        }
        mknodat(&directory, file_name(number), FileType::RegularFile, Mode::from_raw_mode(0o644), 0)?;
    }
    Ok(())
}

fn create_in(stage: &mut Stage<'_>, files: u64, operations: u64) -> Result<Outcome> {
    let directory = stage.directory.join("wide");
    make_empty(&directory, files)?;
    stage.make_cold()?;
    let samples = timed(stage, &mut [()], |(), watch| {
        (files..files + operations).try_for_each(|number| {
            let path = directory.join(file_name(number));
            watch.time(|| Ok(File::create_new(path)?)).map(drop)
        })
    })?;
    let found = fs::read_dir(&directory)?.count() as u64;
    if found != files + operations {
        return Err(Failure::new(format!("the directory has {found} names instead of {}", files + operations)));
    }
    Ok(Outcome::timed(&samples))
}

fn look_up_in(stage: &mut Stage<'_>, files: u64, operations: u64) -> Result<Outcome> {
    let directory = stage.directory.join("wide");
    make_empty(&directory, files)?;
    stage.make_cold()?;
    let mut random = Random::new(stage.seed, files);
    let samples = timed(stage, &mut [&mut random], |random, watch| {
        (0..operations).try_for_each(|_| {
            let path = directory.join(file_name(random.below(files)));
            let found = watch.time(|| Ok(fs::symlink_metadata(path)?))?;
            if found.is_file() { Ok(()) } else { Err(Failure::new("a name is of something else")) }
        })
    })?;
    Ok(Outcome::timed(&samples))
}

fn overwrite(stage: &mut Stage<'_>, bytes: u64, operations: u64) -> Result<Outcome> {
    let path = stage.directory.join("file");
    lay_out(&path, 0, bytes)?;
    stage.make_cold()?;
    let (file, seed) = (OpenOptions::new().read(true).write(true).open(&path)?, stage.seed);
    // The last write to each place.
    let mut last: HashMap<u64, u64> = HashMap::new();
    let samples = timed(stage, &mut [&mut last], |last, watch| {
        let (mut random, mut page) = (Random::new(seed, 1), [0; BLOCK]);
        for operation in 0..operations {
            let offset = random.below(bytes / BLOCK as u64) * BLOCK as u64;
            content::fill(WRITTEN + operation, offset, &mut page);
            watch.time(|| {
                file.write_all_at(&page, offset)?;
                Ok(file.sync_data()?)
            })?;
            last.insert(offset, operation);
        }
        Ok(())
    })?;
    let (file, mut found) = (File::open(&path)?, [0; BLOCK]); // [SL5]
    for (offset, operation) in last {
        file.read_exact_at(&mut found, offset)?;
        if !content::is(WRITTEN + operation, offset, &found) {
            return Err(Failure::new(format!("what is at offset {offset} is not what was written there")));
        }
    }
    Ok(Outcome::timed(&samples))
}

/// Used percentage of the file system after `more` additional bytes.
fn used_percent(directory: &Path, more: u64) -> Result<f64> {
    let space = statvfs(directory)?;
    let unit = space.f_frsize.max(1) as f64;
    let (all, free) = (space.f_blocks as f64 * unit, space.f_bavail as f64 * unit);
    Ok((all - free + more as f64) / all * 100.0)
}

/// [SL4].
fn fill(directory: &Path, percent: u64, beside: u64) -> Result<()> {
    let (mut number, mut bytes) = (0, 64 * MIB);
    let fillers = directory.join("fill");
    fs::create_dir(&fillers)?;
    while bytes >= MIB {
        if used_percent(directory, beside + bytes)? > percent as f64 {
            bytes /= 2;
            continue;
        }
        lay_out(&fillers.join(file_name(number)), number, bytes)?;
        number += 1;
    }
    let used = used_percent(directory, beside)?;
    match (used - percent as f64).abs() <= 5.0 {
        true => Ok(()),
        false => Err(Failure::new(format!("{used:.0} % of the file system are used instead of {percent} %"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::cases::support::run_all;

    #[test]
    fn points_are_measured_and_checked() {
        // Fill needs its own file system.
        let points = [Point::CreateIn { files: 1000 }, Point::LookUpIn { files: 1000 }, Point::OverwriteIn { bytes: MIB }];
        run_all(&points.map(Point::case), 1e-2, |case, outcome, _| {
            assert_eq!((outcome.units, outcome.latencies.is_some()), (64.0, true), "{}", case.name);
        });
    }

    #[test]
    fn a_fill_level_that_is_passed_already_is_refused() {
        let place = tempfile::tempdir().expect("a directory");
        let space = statvfs(place.path()).expect("statvfs");
        // With a file as large as the whole file system, no fill level is low enough.
        let failure = fill(place.path(), 50, space.f_blocks * space.f_frsize).expect_err("full");
        assert!(failure.to_string().ends_with("% of the file system are used instead of 50 %"), "{failure}");
        assert_eq!(fs::read_dir(place.path().join("fill")).expect("listed").count(), 0);
    }

    #[test]
    fn every_point_names_its_parameter() {
        assert!(cases().iter().all(|case| case.parameter.is_some() && !case.is_quick && case.name.starts_with("scale-")));
    }
}
