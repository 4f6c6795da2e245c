//! RocksDB's own `db_bench`.
//!
//! [RO1] Keys of 16 and values of 400 bytes, no compression (snappy's cost is not the file system's), the default log settings.
//! [RO2] A separate run fills the database before. The measured run opens it, works and closes it; db_bench's own time is used.

use std::path::Path;
use std::process::Command;

use super::clients::scaled;
use super::programs::{self, number_after};
use crate::compare::case::{Case, Cases, Group, Outcome, Stage};
use crate::failure::{Failure, Result};

/// Bytes of a value.
const VALUE_BYTES: u64 = 400;
/// Keys at scale 1.
const KEYS: u64 = 200_000;

/// A benchmark of db_bench, what it does, operations of each thread at scale 1, threads.
type Bench = (&'static str, &'static str, u64, u32);

const FILLSYNC: Bench = ("fillsync", "writes of new keys, each durable", 20_000, 1);
const OTHERS: [Bench; 2] = [
    ("overwrite", "writes of keys that exist, not synchronised, in a database of 200,000 keys", 200_000, 1),
    ("readwhilewriting", "reads by four threads while one writes, in a database of 200,000 keys", 40_000, 4),
];

/// The cases of this file.
pub fn cases() -> Cases {
    OTHERS.into_iter().chain([FILLSYNC]).map(case).collect()
}

fn case(bench: Bench) -> Case {
    let (name, what, operations, threads) = bench;
    let description = format!("RocksDB's db_bench: {what}; values of {VALUE_BYTES} bytes, {operations} operations by each thread");
    Case {
        clients: threads,
        is_durable: bench == FILLSYNC,
        programs: &["db_bench"],
        share_least: 0.25,
        is_quick: bench == FILLSYNC,
        // Compaction rewrites levels: old and new data exist at once.
        bytes_needed: (KEYS + operations) * (VALUE_BYTES + 100) * 3 + (256 << 20),
        ..Case::new(Group::Applications, format!("rocksdb-{name}"), description, move |stage| run(bench, stage))
    }
}

fn run(bench: Bench, stage: &mut Stage<'_>) -> Result<Outcome> {
    let (mut name, _, operations, threads) = bench;
    let (directory, scratch, seed) = (stage.directory.join("database"), stage.scratch, stage.seed);
    let (mut keys, operations) = (scaled(KEYS, stage.scale, 2000), scaled(operations, stage.scale, 200));
    let mut measured = command(&directory, scratch, seed)?;
    if bench == FILLSYNC {
        // It is `fillrandom` with durable writes, and divides the number of keys by 1,000, but not the number of writes.
        let times = if stage.is_durable { 1000 } else { 1 };
        (name, keys) = (if stage.is_durable { name } else { "fillrandom" }, operations);
        measured.arg(format!("--num={}", keys * times));
    } else {
        let mut fill = command(&directory, scratch, seed)?;
        programs::run(fill.args(["--benchmarks=fillrandom", "--use_existing_db=0"]).arg(format!("--num={keys}")), scratch)?;
        stage.make_cold()?;
        measured.arg("--use_existing_db=1").arg(format!("--num={keys}")).arg(format!("--reads={operations}"));
    }
    measured.args([format!("--benchmarks={name}"), format!("--writes={operations}"), format!("--threads={threads}")]);
    let said = stage.time(|| programs::run(&mut measured, scratch))?;
    // Its seconds are in milliseconds, and none for shorter runs.
    let rate = number_after(&said, "micros/op")?;
    let done = said.split_once(" operations;").and_then(|(before, _)| before.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0);
    if done < operations as f64 || rate <= 0.0 {
        return Err(Failure::new(format!("db_bench did {done} operations instead of {operations}")));
    }
    check(&directory, scratch, seed, keys)?;
    Ok(Outcome::of_own_time(done, "operations", done / rate))
}

/// [RO1].
fn command(directory: &Path, scratch: &Path, seed: u64) -> Result<Command> {
    let mut command = programs::command("db_bench", scratch)?;
    command.args([format!("--db={}", directory.display()), format!("--value_size={VALUE_BYTES}"), format!("--seed={}", seed & 0xffff | 1)]);
    command.args(["--compression_type=none", "--key_size=16"]);
    Ok(command)
}

/// Reads keys back: of uniform random keys some exist, and db_bench verifies checksums of what it reads.
fn check(directory: &Path, scratch: &Path, seed: u64, keys: u64) -> Result<()> {
    let mut command = command(directory, scratch, seed)?;
    command.args(["--benchmarks=readrandom", "--use_existing_db=1", "--readonly=1", "--verify_checksum=1"]);
    let said = programs::run(command.arg(format!("--num={keys}")).arg("--reads=200"), scratch)?;
    let found = said.rsplit_once(" of 200 found)").and_then(|(before, _)| before.rsplit_once('(')?.1.parse().ok()).unwrap_or(0);
    // Filling draws keys with repetition: a share of 1 - 1/e exists.
    if found < 80 { Err(Failure::new(format!("{found} of 200 keys were found again"))) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::cases::support::run_all;

    #[test]
    fn every_benchmark_runs_and_keys_are_found_again() {
        run_all(&cases(), 1e-3, |case, outcome, _| assert!(outcome.units >= 200.0 && outcome.own_time.is_some(), "{}", case.name));
    }
}
