//! Single reads and writes of files, by fio: a table of jobs, one thread and one file a client, engine `psync`; results from fio's JSON.
//!
//! [FI1] The number of requests is fixed, not the time: all file systems do the same work, shared by the clients.
//! [FI2] A durable write is one call with O_DSYNC. Through FUSE and in kernel file systems it is a write and the fdatasync behind it.
//! [FI3] The time of a job is what its calls take: the mean latency times their number, for each client. So it has neither fio's start nor
//!       its work between calls. The fsync at the end of a job belongs to no call: such jobs have fio's own time.
//! [FI4] A file to read or overwrite is first written completely and durably. *Cold*: then caches are dropped; *warm*: it is read once.
//! [FI5] Each written block of 8-byte words holds its own offset. Afterwards as many blocks as fio wrote must hold it, and all others what
//!       was laid out. What fio read is compared by reading some places once more.
//! [FI6] The library has no file for fio: its jobs run in `library.rs`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use super::clients::scaled;
use super::{library, programs};
use crate::compare::case::{Case, Cases, Group, Outcome, Stage};
use crate::compare::record::Percentiles;
use crate::failure::{Failure, Result};
use crate::workloads::content;
use crate::workloads::random::Random;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Places of a file that are read again after a reading job.
const PLACES: u64 = 64;

/// The state of the files when a job begins ([FI4]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    New,
    Written,
    Cold,
    Warm,
}

/// A kind of job, for several numbers of clients.
#[derive(Debug, Clone, Copy)]
struct Kind {
    name: &'static str,
    what: &'static str,
    arguments: &'static [&'static str],
    clients: &'static [u32],
    start: Start,
    request_bytes: u64,
    /// Requests of all clients at scale 1.
    requests: u64,
    /// Bytes of all files.
    file_bytes: u64,
    share_least: f64,
    /// Whether `--quick` has it with one client.
    is_quick: bool,
}

const DSYNC: &str = "--sync=dsync";
const DURABLE: &[&str] = &["--rw=randwrite", DSYNC];
const ANYWHERE: &[&str] = &["--rw=randwrite", DSYNC, "--blockalign=1", "--norandommap"];

const fn kind(name: &'static str, what: &'static str, arguments: &'static [&'static str], start: Start) -> Kind {
    let (request_bytes, requests, file_bytes) = (4 * KIB, 4000, 64 * MIB);
    Kind { name, what, arguments, clients: &[1, 2, 4, 16], start, request_bytes, requests, file_bytes, share_least: 1.0, is_quick: true }
}

const fn anywhere(name: &'static str, request_bytes: u64, requests: u64, clients: &'static [u32]) -> Kind {
    let what = "durable writes at any byte of 64 MiB (RomeFS Fig. 6)";
    let base = kind(name, what, ANYWHERE, Start::Written);
    Kind { request_bytes, requests, clients, share_least: 0.25, is_quick: request_bytes == 512, ..base }
}

const fn random_read(name: &'static str, what: &'static str, start: Start, requests: u64) -> Kind {
    let base = kind(name, what, &["--rw=randread", "--norandommap"], start);
    Kind { requests, file_bytes: 128 * MIB, share_least: 0.25, ..base }
}

const fn sequential(name: &'static str, what: &'static str, arguments: &'static [&'static str], start: Start, times: u64) -> Kind {
    let base = kind(name, what, arguments, start);
    let is_quick = !matches!(start, Start::Cold);
    Kind { clients: &[1, 4], request_bytes: MIB, requests: 256 * times, file_bytes: 256 * MIB, is_quick, ..base }
}

impl Kind {
    /// Whether its requests begin at any byte.
    fn is_unaligned(&self) -> bool {
        self.arguments.contains(&"--blockalign=1")
    }
}

/// All kinds of jobs.
const KINDS: &[Kind] = &[
    kind("durable-overwrite-4k", "durable overwrites of random pages of 64 MiB", DURABLE, Start::Written),
    kind("append-fsync-4k", "durable appends", &["--rw=write", DSYNC], Start::New),
    anywhere("unaligned-fsync-64", 64, 4000, &[1, 4]),
    anywhere("unaligned-fsync-512", 512, 4000, &[1]),
    anywhere("unaligned-fsync-4k", 4 * KIB, 4000, &[1, 4]),
    anywhere("unaligned-fsync-64k", 64 * KIB, 2000, &[1]),
    anywhere("unaligned-fsync-1m", MIB, 300, &[1, 4]),
    random_read("read-4k-random-cold", "reads of random pages of 128 MiB, from the drive", Start::Cold, 8000),
    random_read("read-4k-random-warm", "reads of random pages of 128 MiB, from memory", Start::Warm, 400_000),
    sequential("read-1m-sequential-cold", "reads from start to end of 256 MiB, from the drive", &["--rw=read"], Start::Cold, 1),
    sequential(
        "read-1m-sequential-warm",
        "reads from start to end of 256 MiB, sixteen times, from memory",
        &["--rw=read"],
        Start::Warm,
        16,
    ),
    sequential("write-1m-sequential", "writes of 256 MiB, one fsync at the end", &["--rw=write", "--end_fsync=1"], Start::New, 1),
];

/// The cases of this file.
pub fn cases() -> Cases {
    KINDS.iter().flat_map(|kind| kind.clients.iter().map(|clients| Job { kind: *kind, clients: *clients }.case())).collect()
}

#[derive(Clone, Copy)]
struct Job {
    kind: Kind,
    clients: u32,
}

impl Job {
    fn case(self) -> Case {
        let Kind { name, what, requests, request_bytes, .. } = self.kind;
        let description =
            format!("fio: {requests} requests of {request_bytes} bytes: {what}; clients, each with a file of its own: {}", self.clients);
        let name = format!("{name}-c{}", self.clients);
        // Durable writes leave pages and logs behind; the more, the less they are aligned.
        let times = match self.kind.start {
            Start::Written if self.kind.is_unaligned() => 6,
            Start::Written => 4,
            Start::New | Start::Cold | Start::Warm => 2,
        };
        Case {
            clients: self.clients,
            has_library_form: library::form(self.kind.name).is_some(),
            is_durable: self.kind.arguments.contains(&DSYNC),
            programs: &["fio"],
            share_least: self.kind.share_least,
            is_quick: self.kind.is_quick && self.clients == 1,
            bytes_needed: self.kind.file_bytes * times,
            ..Case::new(Group::Micro, name, description, move |stage| self.run(stage))
        }
    }

    fn run(self, stage: &mut Stage<'_>) -> Result<Outcome> {
        let kind = self.kind;
        let clients = u64::from(self.clients);
        let each = (scaled(kind.requests, stage.scale, clients) / clients).max(1);
        if let (Some(fs), Some(form)) = (stage.library, library::form(kind.name)) {
            return library::run(form, stage, fs, self.clients, each);
        }
        let times = if kind.request_bytes == MIB && kind.start != Start::Written { kind.requests * MIB / kind.file_bytes } else { 1 };
        // A sequential job covers its whole file, once or several times; others have as large a file at any scale.
        let bytes = if kind.arguments[0] == "--rw=read" || kind.request_bytes == MIB && kind.start == Start::New {
            (each / times).max(1) * MIB
        } else {
            scaled(kind.file_bytes / MIB, stage.scale.max(0.25), clients) / clients * MIB
        };
        // fio chooses unaligned places up to the end of the file, and ends if a request does not fit behind one.
        let room = if kind.is_unaligned() { kind.request_bytes } else { 0 };
        let each = if kind.request_bytes == MIB && kind.start != Start::Written { bytes / MIB * times } else { each };
        let paths: Vec<_> = (0..clients).map(|client| stage.directory.join(format!("file-{client}"))).collect();
        if kind.start != Start::New {
            paths.iter().zip(0..).try_for_each(|(path, client)| lay_out(path, client, bytes + room))?;
        }
        match kind.start {
            Start::New | Start::Written => {}
            Start::Cold => stage.make_cold()?,
            Start::Warm => {
                for path in &paths {
                    std::io::copy(&mut File::open(path)?, &mut std::io::sink())?;
                }
            }
        }
        let mut command = programs::command("fio", stage.scratch)?;
        command.args(["--name=job", "--ioengine=psync", "--thread", "--group_reporting=1", "--filename_format=file-$jobnum"]);
        command.args(["--fallocate=none", "--invalidate=0", "--output-format=json", "--lat_percentiles=1", "--clat_percentiles=0"]);
        command.args(["--percentile_list=50:90:99:99.9", "--verify_state_save=0"]);
        command.args(kind.arguments.iter().filter(|word| stage.is_durable || **word != DSYNC));
        if self.is_checked() {
            command.args(["--verify=pattern", "--verify_pattern=%o", "--do_verify=0"]); // [FI5]
        }
        command.arg(format!("--directory={}", stage.directory.display())).arg(format!("--aux-path={}", stage.scratch.display()));
        command.arg(format!("--numjobs={clients}")).arg(format!("--bs={}", kind.request_bytes)).arg(format!("--size={bytes}"));
        command.arg(format!("--io_size={}", each * kind.request_bytes)).arg(format!("--randseed={}", stage.seed & 0xffff_ffff));
        let scratch = stage.scratch.to_owned();
        let said = stage.time(|| programs::run(&mut command, &scratch))?;
        self.outcome(&said, each)
            .and_then(|outcome| paths.iter().zip(0..).try_for_each(|(path, client)| self.check(path, client, each)).map(|()| outcome))
    }

    /// Whether written blocks are compared: those whose places fio does not repeat.
    fn is_checked(&self) -> bool {
        self.kind.arguments.contains(&DSYNC) && !self.kind.arguments.contains(&"--norandommap")
    }

    fn outcome(&self, said: &str, each: u64) -> Result<Outcome> {
        let job = parse(said)?.pop().ok_or_else(|| Failure::new("fio's JSON has no job"))?;
        let clients = f64::from(self.clients);
        let requests = job.read.total_ios + job.write.total_ios;
        if job.error != 0 || requests != each * u64::from(self.clients) {
            return Err(Failure::new(format!(
                "fio did {requests} requests with error {} instead of {}",
                job.error,
                each * u64::from(self.clients)
            )));
        }
        let has_rest = self.kind.arguments.contains(&"--end_fsync=1");
        let in_calls = (job.read.in_calls_ns() + job.write.in_calls_ns()) / clients;
        let seconds = if has_rest { job.job_runtime.max(1) as f64 / 1e3 / clients } else { in_calls / 1e9 };
        let direction = if job.write.total_ios > 0 { &job.write } else { &job.read };
        let is_bytes = self.kind.arguments.contains(&"--rw=read") || self.kind.arguments.contains(&"--end_fsync=1");
        let units = if is_bytes { requests * self.kind.request_bytes } else { requests };
        Ok(Outcome {
            units: units as f64,
            unit: if is_bytes { "bytes" } else { "operations" }.to_owned(),
            latencies: Some(direction.percentiles()),
            own_time: Some(Duration::from_secs_f64(seconds)),
        })
    }

    /// [FI5]
    fn check(&self, path: &Path, key: u64, each: u64) -> Result<()> {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        let wrong = |offset: u64| Failure::new(format!("{}: what is at offset {offset} is not what was written there", self.kind.name));
        if self.is_checked() {
            let (mut block, mut written) = (vec![0; self.kind.request_bytes as usize], 0);
            for offset in (0..size).step_by(block.len()) {
                file.read_exact_at(&mut block, offset)?;
                match block.chunks_exact(8).all(|word| word == offset.to_le_bytes()) {
                    true => written += 1,
                    false if self.kind.start == Start::Written && content::is(key, offset, &block) => {}
                    false => return Err(wrong(offset)),
                }
            }
            return if written == each { Ok(()) } else { Err(Failure::new(format!("{written} of {each} blocks hold what was written"))) };
        }
        if matches!(self.kind.start, Start::Cold | Start::Warm) {
            let (mut random, mut piece) = (Random::new(key, size), vec![0; 4096]);
            for offset in (0..PLACES).map(|_| random.below(size / 4096) * 4096) {
                file.read_exact_at(&mut piece, offset)?;
                if !content::is(key, offset, &piece) {
                    return Err(wrong(offset));
                }
            }
        }
        Ok(())
    }
}

/// Creates a durable file with the content of a key.
///
/// # Errors
/// A call failed, or a signal came.
fn lay_out(path: &Path, key: u64, bytes: u64) -> Result<()> {
    let file = File::create_new(path)?;
    let mut buffer = vec![0; MIB as usize];
    for offset in (0..bytes).step_by(buffer.len()) {
        crate::machine::check()?;
        let piece = &mut buffer[..MIB.min(bytes - offset) as usize];
        content::fill(key, offset, piece);
        file.write_all_at(piece, offset)?;
    }
    Ok(file.sync_all()?)
}

/// Part of fio's result for a group of jobs.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct JobResult {
    error: i64,
    /// Milliseconds of all clients together.
    job_runtime: u64,
    /// Its reads.
    pub read: Direction,
    /// Its writes.
    pub write: Direction,
    /// Its flushes.
    pub sync: Direction,
}

/// Requests of a kind.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Direction {
    total_ios: u64,
    lat_ns: Latency,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Latency {
    mean: f64,
    max: f64,
    percentile: std::collections::BTreeMap<String, f64>,
}

impl Direction {
    fn in_calls_ns(&self) -> f64 {
        self.lat_ns.mean * self.total_ios as f64
    }

    fn percentile(&self, name: &str) -> f64 {
        self.lat_ns.percentile.get(name).copied().unwrap_or_default()
    }

    /// Median in nanoseconds; 0 if no request completed.
    pub fn median_ns(&self) -> f64 {
        self.percentile("50.000000")
    }

    fn percentiles(&self) -> Percentiles {
        Percentiles {
            count: self.total_ios,
            mean: self.lat_ns.mean,
            p50: self.median_ns(),
            p90: self.percentile("90.000000"),
            p99: self.percentile("99.000000"),
            p999: self.percentile("99.900000"),
            max: self.lat_ns.max,
        }
    }
}

/// The jobs of fio's output, which may have other text before its JSON.
///
/// # Errors
/// There is no such JSON.
pub fn parse(said: &str) -> Result<Vec<JobResult>> {
    #[derive(Deserialize)]
    struct Results {
        jobs: Vec<JobResult>,
    }
    let json = said.find('{').map(|start| &said[start..]).unwrap_or_default();
    let results: Results = serde_json::from_str(json).map_err(|error| Failure::new(format!("fio's JSON: {error}")))?;
    Ok(results.jobs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::cases::support::run_all;

    #[test]
    fn every_job_runs_and_is_checked() {
        run_all(&cases(), 0.005, |case, outcome, clock| {
            assert_eq!(clock.cold > 0, case.name.contains("-cold"), "{}", case.name);
            assert!(outcome.units >= 1.0 && outcome.own_time.is_some_and(|time| !time.is_zero()), "{}", case.name);
        });
    }

    #[test]
    fn a_block_that_was_not_written_or_is_wrong_is_found() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file-0");
        let job = Job { kind: KINDS[0], clients: 1 };
        lay_out(&path, 0, 16 * KIB).expect("laid out");
        let file = File::options().write(true).open(&path).expect("opened");
        let block = |offset: u64| offset.to_le_bytes().repeat(512);
        file.write_all_at(&block(8192), 8192).expect("written");
        job.check(&path, 0, 1).expect("one block");
        assert!(job.check(&path, 0, 2).is_err_and(|failure| failure.to_string().starts_with("1 of 2")), "a lost write");
        file.write_all_at(&block(8192), 4096).expect("written");
        assert!(job.check(&path, 0, 1).is_err_and(|failure| failure.to_string().contains("offset 4096")), "a misplaced write");
    }

    #[test]
    fn json_is_found_behind_other_words() {
        let direction = |count: u64| {
            format!(r#"{{"total_ios": {count}, "lat_ns": {{"mean": 500.0, "max": 900, "percentile": {{"50.000000": 450}}}}}}"#)
        };
        let said = format!(r#"note: {{"jobs": [{{"error": 0, "job_runtime": 12, "read": {}, "write": {}}}]}}"#, direction(0), direction(4));
        let job = &parse(&said).expect("parsed")[0];
        assert_eq!((job.job_runtime, job.write.in_calls_ns(), job.write.percentiles().p50), (12, 2000.0, 450.0));
        assert!(parse("no json").is_err());
    }
}
