//! RocksDB's own `db_bench`.
//!
//! [RO1] Keys of 16 and values of 400 bytes, no compression (snappy's cost is not the file system's), the default log settings.
//! [RO2] A separate run fills the database before. The measured run opens it, works and closes it; db_bench's own time is used.
//! [RO3] db_bench has no YCSB driver, so its mixes are approximated. A and B: `readrandomwriterandom` with 50 and 95 % reads. C:
//!       `readrandom`. D, which reads the newest keys: `readrandom` with keys from an exponential distribution of range 8, without D's 5 %
//!       writes. E: `mixgraph` with 95 % scans of up to 100 keys and 5 % puts; its few values have mixgraph's own sizes, about 60 bytes. F:
//!       `updaterandom`, which reads, changes and writes a key, for half of F's operations, then `readrandom` for the other half. Keys are
//!       uniform except in D; YCSB's are zipfian, which suits caches better.

use std::path::Path;
use std::process::Command;

use super::clients::scaled;
use super::programs;
use crate::compare::case::{Case, Cases, Group, Outcome, Stage};
use crate::failure::{Failure, Result};

/// Bytes of a value.
const VALUE_BYTES: u64 = 400;
/// Keys at scale 1.
const KEYS: u64 = 200_000;

/// One db_bench run.
#[derive(Clone, Copy)]
struct Bench {
    name: &'static str,
    what: &'static str,
    /// db_bench's benchmark names, in the order in which they run.
    benchmarks: &'static str,
    arguments: &'static [&'static str],
    /// Operations per benchmark at scale 1.
    operations: u64,
    threads: u32,
    /// Whether the database is filled before.
    is_filled: bool,
    is_quick: bool,
}

/// The cases of this file.
pub fn cases() -> Cases {
    let base = Bench {
        name: "",
        what: "",
        benchmarks: "readrandomwriterandom",
        arguments: &[],
        operations: 100_000,
        threads: 1,
        is_filled: true,
        is_quick: false,
    };
    let all = [
        Bench {
            name: "fillsync",
            what: "writes of new keys, each durable",
            benchmarks: "fillsync",
            operations: 20_000,
            is_filled: false,
            is_quick: true,
            ..base
        },
        Bench {
            name: "overwrite",
            what: "writes of keys that exist, not synchronised",
            benchmarks: "overwrite",
            operations: 200_000,
            ..base
        },
        Bench {
            name: "readwhilewriting",
            what: "reads by four threads while one writes",
            benchmarks: "readwhilewriting",
            operations: 40_000,
            threads: 4,
            ..base
        },
        Bench { name: "ycsb-a", what: "like YCSB A: 50 % reads, 50 % writes", arguments: &["--readwritepercent=50"], ..base },
        Bench { name: "ycsb-b", what: "like YCSB B: 95 % reads, 5 % writes", arguments: &["--readwritepercent=95"], ..base },
        Bench { name: "ycsb-c", what: "like YCSB C: reads alone", benchmarks: "readrandom", ..base },
        Bench {
            name: "ycsb-d",
            what: "like YCSB D: reads, most of them of a few keys; its 5 % of writes are left out",
            benchmarks: "readrandom",
            arguments: &["--read_random_exp_range=8"],
            ..base
        },
        Bench {
            name: "ycsb-e",
            what: "like YCSB E: 95 % scans of up to 100 keys, 5 % writes",
            benchmarks: "mixgraph",
            arguments: &["--mix_get_ratio=0", "--mix_put_ratio=0.05", "--mix_seek_ratio=0.95", "--mix_max_scan_len=100"],
            operations: 20_000,
            ..base
        },
        Bench {
            name: "ycsb-f",
            what: "like YCSB F: keys are read, changed and written, then as many are read",
            benchmarks: "updaterandom,readrandom",
            operations: 50_000,
            ..base
        },
    ];
    all.map(Bench::case).into()
}

impl Bench {
    fn case(self) -> Case {
        let filled = if self.is_filled { format!(" in a database of {KEYS} keys") } else { String::new() };
        let each = if self.threads > 1 { " by each" } else { "" };
        let description = format!(
            "RocksDB's db_bench: {}{filled}; values of {VALUE_BYTES} bytes, {} operations{each} ({})",
            self.what, self.operations, self.benchmarks
        );
        Case {
            clients: self.threads,
            is_durable: self.benchmarks == "fillsync",
            programs: &["db_bench"],
            share_least: 0.25,
            is_quick: self.is_quick,
            // Compaction rewrites levels: old and new data exist at once.
            bytes_needed: (KEYS + self.operations) * (VALUE_BYTES + 100) * 3 + (256 << 20),
            ..Case::new(Group::Applications, format!("rocksdb-{}", self.name), description, move |stage| self.run(stage))
        }
    }

    fn run(self, stage: &mut Stage<'_>) -> Result<Outcome> {
        let (directory, scratch) = (stage.directory.join("database"), stage.scratch);
        let keys = scaled(KEYS, stage.scale, 2000);
        let operations = scaled(self.operations, stage.scale, 200);
        if self.is_filled {
            let mut fill = command(&directory, scratch, stage.seed)?;
            fill.args(["--benchmarks=fillrandom", "--use_existing_db=0"]).arg(format!("--num={keys}"));
            programs::run(&mut fill, scratch)?;
            stage.make_cold()?;
        }
        let mut bench = command(&directory, scratch, stage.seed)?;
        // `fillsync` is `fillrandom` with durable writes, and divides the number of keys by 1,000, but not the number of writes.
        let (benchmarks, times) = if stage.is_durable { (self.benchmarks, 1000) } else { ("fillrandom", 1) };
        bench.arg(format!("--benchmarks={benchmarks}")).arg(format!("--threads={}", self.threads)).args(self.arguments);
        if self.is_filled {
            bench.args(["--use_existing_db=1"]).arg(format!("--num={keys}")).arg(format!("--reads={operations}"));
            // A writing benchmark does this many operations; a reading one does this many reads.
            bench.arg(format!("--writes={operations}"));
        } else {
            bench.arg(format!("--num={}", operations * times)).arg(format!("--writes={operations}"));
        }
        let said = stage.time(|| programs::run(&mut bench, scratch))?;
        let results = benchmarks.split(',').map(|benchmark| parse(&said, benchmark)).collect::<Result<Vec<_>>>()?;
        let done: f64 = results.iter().map(|(_, done)| done).sum();
        let seconds: f64 = results.iter().map(|(seconds, _)| seconds).sum();
        if done < operations as f64 {
            return Err(Failure::new(format!("db_bench did {done} operations instead of {operations}")));
        }
        check(&directory, scratch, stage.seed, if self.is_filled { keys } else { operations })?;
        Ok(Outcome::of_own_time(done, "operations", seconds))
    }
}

/// [RO1].
fn command(directory: &Path, scratch: &Path, seed: u64) -> Result<Command> {
    let mut command = programs::command("db_bench", scratch)?;
    command
        .arg(format!("--db={}", directory.display()))
        .arg(format!("--value_size={VALUE_BYTES}"))
        .arg(format!("--seed={}", seed & 0xffff | 1));
    command.args(["--compression_type=none", "--key_size=16"]);
    Ok(command)
}

/// Reads keys back: of uniform random keys some exist, and db_bench verifies checksums of what it reads.
fn check(directory: &Path, scratch: &Path, seed: u64, keys: u64) -> Result<()> {
    let mut command = command(directory, scratch, seed)?;
    command.args(["--benchmarks=readrandom", "--use_existing_db=1", "--readonly=1", "--verify_checksum=1"]);
    let said = programs::run(command.arg(format!("--num={keys}")).arg("--reads=200"), scratch)?;
    let found = said.rsplit_once(" found)").and_then(|(before, _)| before.rsplit_once('(')).map(|(_, counts)| counts);
    let found = found.and_then(|counts| counts.split_once(" of ")?.0.parse::<u64>().ok()).unwrap_or_default();
    // Filling draws keys with repetition: a share of 1 - 1/e exists.
    if found < 80 { Err(Failure::new(format!("{found} of 200 keys were found again"))) } else { Ok(()) }
}

/// Seconds and operations of a benchmark. Seconds follow from the rate: db_bench prints them in milliseconds, and none for shorter runs.
fn parse(said: &str, benchmark: &str) -> Result<(f64, f64)> {
    let line = said.lines().find(|line| line.split_whitespace().next() == Some(benchmark) && line.contains("micros/op"));
    let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
    let before = |unit: &str| {
        let index = words.iter().position(|word| word.trim_end_matches(';') == unit)?;
        words.get(index.checked_sub(1)?)?.parse::<f64>().ok()
    };
    match (before("ops/sec"), before("operations")) {
        (Some(rate), Some(operations)) if rate > 0.0 => Ok((operations / rate, operations)),
        _ => Err(Failure::new(format!("db_bench said nothing of {benchmark}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::cases::support::run_all;

    #[test]
    fn every_benchmark_runs_and_keys_are_found_again() {
        run_all(&cases(), 1e-3, |case, outcome, _| assert!(outcome.units >= 200.0 && outcome.own_time.is_some(), "{}", case.name));
    }

    #[test]
    fn lines_of_benchmarks_are_understood() {
        let said = "Keys: 16 bytes each\nupdaterandom :  125.000 micros/op 8000 ops/sec 2.500 seconds 20000 operations;    6.6 MB/s ( updates)\n\
                    readrandom   :       0.550 micros/op 1600000 ops/sec 0.000 seconds 200 operations;  194.1 MB/s (200 of 200 found)\n";
        assert_eq!(parse(said, "updaterandom").expect("a line"), (2.5, 20_000.0));
        assert_eq!(parse(said, "readrandom").expect("a line"), (125e-6, 200.0), "shorter than it says seconds");
        assert!(parse(said, "random").is_err());
    }
}
