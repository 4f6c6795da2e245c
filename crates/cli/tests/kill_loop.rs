//! A short run of the kill loop, and two that must fail. `make kill-loop` is the long one.
//!
//! Without the standard harness: the loop starts this program as its writers.

use std::process::ExitCode;

use tandemfs_witness::command;
use tandemfs_witness::kill_loop::{self, Arguments, Canary, Summary};

/// As the first word it makes this program a witness.
const WITNESS: &str = "witness";

type Test<'t> = &'t dyn Fn() -> Result<(), String>;

fn run(rounds: u64, canary: Option<Canary>) -> Result<Summary, String> {
    let arguments = Arguments {
        tandemfs: env!("CARGO_BIN_EXE_tandemfs").into(),
        rounds,
        mount_until_cut: None,
        seed: 1,
        mode: None,
        canary,
        directory: "/dev/shm".into(),
        keep: None,
    };
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    kill_loop::run(&arguments, &[this.into(), WITNESS.into()], &mut |line| println!("{line}"))
}

fn kept_through_kills() -> Result<(), String> {
    let summary = run(12, None)?;
    println!("{}", summary.to_json());
    let kills = [summary.killed_at_work, summary.killed_in_mount, summary.killed_in_unmount + summary.unmounted];
    let tried = summary.promises > 500 && summary.verifications > 30 && summary.checks > 0 && !kills.contains(&0);
    if tried { Ok(()) } else { Err("too little was tried".into()) }
}

fn missed(canary: Canary, said: &[&str]) -> Result<(), String> {
    match run(6, Some(canary)) {
        Err(error) if said.iter().any(|said| error.contains(said)) => {
            println!("found, as it must be: {error}");
            Ok(())
        }
        Err(error) => Err(format!("{canary:?}: found something else: {error}")),
        Ok(_) => Err(format!("{canary:?}: the damage was not found")),
    }
}

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    if words.first().is_some_and(|word| word == WITNESS) {
        return command::run(words);
    }
    let tests: [(&str, Test<'_>); 3] = [
        ("what_was_acknowledged_survives_twelve_rounds_of_kills", &kept_through_kills),
        ("what_was_never_synced_is_missed_after_a_kill", &|| missed(Canary::Unsynced, &["acknowledged", "no part of the write"])),
        ("one_wrong_bit_of_an_acknowledged_file_is_found", &|| missed(Canary::Bit, &["Input/output error"])),
    ];
    let filters: Vec<_> = words.iter().filter_map(|word| word.to_str()).filter(|word| !word.starts_with('-')).collect();
    let mut failed = 0;
    for (name, test) in tests {
        if words.iter().any(|word| word == "--list") {
            println!("{name}: test");
        } else if filters.is_empty() || filters.iter().any(|filter| name.contains(filter)) {
            match test() {
                Ok(()) => println!("test {name} ... ok"),
                Err(error) => {
                    failed += 1;
                    println!("test {name} ... FAILED\n{error}");
                }
            }
        }
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
