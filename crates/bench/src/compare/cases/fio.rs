//! fio jobs: one file, the `psync` engine, buffered; results from fio's JSON output.
//!
//! [FI1] A file to read or overwrite is first written completely and durably; then caches are dropped.
//! [FI2] The number of requests is fixed, not the time: all file systems do the same work.
//! [FI3] fio's own time measurement is used: it excludes fio's start and the parsing of its job.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use super::clients::scaled;
use super::programs;
use crate::compare::case::{Case, Cases, Group, Outcome, Stage};
use crate::failure::{Failure, Result};
use crate::workloads::random::Random;

const MIB: u64 = 1 << 20;
/// Size of the file at scale 1.
const FILE_BYTES: u64 = 512 * MIB;

/// The cases of this file.
pub fn cases() -> Cases {
    [Job::RandomWriteFsync, Job::RandomReadWrite, Job::SequentialWrite, Job::SequentialRead]
        .into_iter()
        .map(|job| Box::new(job) as Box<dyn Case>)
        .collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Job {
    RandomWriteFsync,
    RandomReadWrite,
    SequentialWrite,
    SequentialRead,
}

impl Job {
    /// fio's arguments.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::RandomWriteFsync => &["--rw=randwrite", "--bs=4k", "--fsync=1"],
            Self::RandomReadWrite => &["--rw=randrw", "--bs=4k", "--rwmixread=50", "--fdatasync=16"],
            Self::SequentialWrite => &["--rw=write", "--bs=1m", "--end_fsync=1"],
            Self::SequentialRead => &["--rw=read", "--bs=1m"],
        }
    }

    /// Total bytes of all requests at scale 1.
    fn bytes(self) -> u64 {
        match self {
            Self::RandomWriteFsync => 40 * MIB,
            Self::RandomReadWrite => 80 * MIB,
            Self::SequentialWrite | Self::SequentialRead => FILE_BYTES,
        }
    }

    fn is_sequential(self) -> bool {
        matches!(self, Self::SequentialWrite | Self::SequentialRead)
    }
}

impl Case for Job {
    fn name(&self) -> String {
        match self {
            Self::RandomWriteFsync => "fio-randwrite-fsync",
            Self::RandomReadWrite => "fio-randrw",
            Self::SequentialWrite => "fio-write",
            Self::SequentialRead => "fio-read",
        }
        .to_owned()
    }

    fn group(&self) -> Group {
        Group::Applications
    }

    fn description(&self) -> String {
        let what = match self {
            Self::RandomWriteFsync => "random writes of 4 KiB, an fsync after each, over a file that is laid out",
            Self::RandomReadWrite => {
                "as many random reads as writes of 4 KiB, fdatasync after every 16th write, in a file that is laid out and cold"
            }
            Self::SequentialWrite => "a new file in writes of 1 MiB, an fsync at the end",
            Self::SequentialRead => "reads of 1 MiB from the start to the end of a cold file",
        };
        format!("fio: {what}; {} MiB of requests, file of {} MiB", self.bytes() / MIB, FILE_BYTES / MIB)
    }

    fn programs(&self) -> &'static [&'static str] {
        &["fio"]
    }

    fn share_least(&self) -> f64 {
        0.25
    }

    fn is_quick(&self) -> bool {
        // `durable-overwrite-4k` is the same work.
        false
    }

    fn bytes_needed(&self, _share: f64) -> u64 {
        FILE_BYTES * 3 / 2
    }

    fn run(&self, stage: &mut Stage<'_>) -> Result<Outcome> {
        let file = stage.directory.join("fio");
        let size = scaled(FILE_BYTES / MIB, stage.scale, 4) * MIB;
        let request = if self.is_sequential() { MIB } else { 4096 };
        // A random job may have at most as many requests as the file has blocks: fio visits each once.
        let total = (scaled(self.bytes() / request, stage.scale, 4) * request).min(size);
        if *self != Self::SequentialWrite {
            lay_out(&file, size, stage.seed)?;
        }
        stage.make_cold()?;
        let mut command = programs::command("fio", stage.scratch)?;
        command.args([
            "--name=job",
            "--ioengine=psync",
            "--thread",
            "--fallocate=none",
            "--invalidate=0",
            "--randrepeat=1",
            "--output-format=json",
        ]);
        command
            .args(self.arguments())
            .arg(format!("--filename={}", file.display()))
            .arg(format!("--randseed={}", stage.seed & 0xffff_ffff));
        command.arg(format!("--size={size}")).arg(format!("--io_size={total}")).arg(format!("--aux-path={}", stage.scratch.display()));
        let scratch = stage.scratch.to_owned();
        let said = stage.time(|| programs::run(&mut command, &scratch))?;
        let job = parse(&said)?;
        let (requests, found) = (job.read.total_ios + job.write.total_ios, job.read.io_bytes + job.write.io_bytes);
        if job.error != 0 || found != total || requests != total / request {
            return Err(Failure::new(format!(
                "fio did {requests} requests of {found} bytes with error {} instead of {total} bytes",
                job.error
            )));
        }
        if std::fs::metadata(&file)?.len() != size {
            return Err(Failure::new("the file has another size than fio was told"));
        }
        let (units, unit) = if self.is_sequential() { (total as f64, "bytes") } else { (requests as f64, "operations") };
        Ok(Outcome { units, unit, latencies: None, own_time: Some(Duration::from_millis(job.job_runtime.max(1))) })
    }
}

/// Part of fio's result for a job.
#[derive(Debug, Deserialize)]
struct JobResult {
    error: i64,
    /// Milliseconds.
    job_runtime: u64,
    read: Direction,
    write: Direction,
}

#[derive(Debug, Deserialize)]
struct Direction {
    io_bytes: u64,
    total_ios: u64,
}

#[derive(Debug, Deserialize)]
struct Results {
    jobs: Vec<JobResult>,
}

/// fio may print other text before its JSON.
fn parse(said: &str) -> Result<JobResult> {
    let json = said.find('{').map(|start| &said[start..]).unwrap_or_default();
    let results: Results = serde_json::from_str(json).map_err(|error| Failure::new(format!("fio's JSON: {error}")))?;
    results.jobs.into_iter().next().ok_or_else(|| Failure::new("fio's JSON has no job"))
}

/// [FI1].
fn lay_out(path: &Path, size: u64, seed: u64) -> Result<()> {
    let mut file = File::create(path)?;
    let mut random = Random::new(seed, 0xf10);
    let piece: Vec<u8> = (0..MIB / 8).flat_map(|_| random.next().to_le_bytes()).collect();
    for _ in 0..size / MIB {
        file.write_all(&piece)?;
    }
    Ok(file.sync_all()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::cases::support::run_once;
    use crate::compare::command::find;

    #[test]
    fn every_job_runs() {
        if find("fio").is_none() {
            eprintln!("fio is not installed: not tested");
            return;
        }
        for case in cases() {
            let (outcome, clock) = run_once(&*case, 1e-3).unwrap_or_else(|failure| panic!("{}: {failure}", case.name()));
            assert!(outcome.units >= 10.0 && outcome.own_time.is_some() && clock.ended == 1, "{}: {}", case.name(), outcome.units);
        }
    }

    #[test]
    fn json_is_found_behind_other_words() {
        let said = r#"note: something
{"jobs": [{"error": 0, "job_runtime": 12, "read": {"io_bytes": 0, "total_ios": 0}, "write": {"io_bytes": 4096, "total_ios": 1}}]}"#;
        let job = parse(said).expect("parsed");
        assert_eq!((job.job_runtime, job.write.total_ios), (12, 1));
        assert!(parse("no json").is_err() && parse(r#"{"jobs": []}"#).is_err());
    }
}
