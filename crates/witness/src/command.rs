//! The command line of `witness`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::kill_loop;
use crate::plan::Profile;
use crate::promises::{Mode, Writer};
use crate::write::Options;
use crate::{drive_cache, mapped, patterns, verify, write};

/// Writes through a mount, logs acknowledged operations, and later verifies that they were kept. Exit 1: they were not, or
/// another failure; one sentence says what.
#[derive(Debug, Parser)]
#[command(name = "witness")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Work until stopped; LOG gets a line after each acknowledged operation
    Write {
        directory: PathBuf,
        log: PathBuf,
        /// Mode of the mount: in relaxed mode the writer syncs data, in the others a returned write is a promise
        #[arg(long, default_value = "relaxed")]
        mode: Mode,
        /// Kind of program
        #[arg(long, default_value = "mixed")]
        profile: Profile,
        /// Seed of the sequence of operations
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Stop after so many operations
        #[arg(long, default_value_t = u64::MAX)]
        operations: u64,
        /// Print "acknowledged N" every N operations
        #[arg(long, default_value_t = 0)]
        announce: u64,
        /// Sync nothing, keep files open, and log operations as acknowledged anyway: verification must then fail
        #[arg(long)]
        unsynced: bool,
        /// Cut the machine's power right after this acknowledgement (tests/vm)
        #[arg(long)]
        power_cut_after: Option<u64>,
    },
    /// Compare a directory with its log
    Verify { directory: PathBuf, log: PathBuf },
    /// Write a known pattern by requests of 1 MiB, then fsync
    Fill { file: PathBuf, bytes: u64 },
    /// Read it back
    Compare { file: PathBuf, bytes: u64 },
    /// 4 KiB overwrites, each with fsync: medians in microseconds, "write fsync p99-of-both"
    Fsync { file: PathBuf, count: usize },
    /// Map a fragmented file of a device that is not mounted, and store to each page: extents and page faults, as JSON
    Map {
        device: String,
        bytes: u64,
        /// Map the file that an earlier run has left, and compare it
        #[arg(long)]
        again: bool,
    },
    /// Mount, write, kill the daemon, verify, again and again
    KillLoop(kill_loop::Arguments),
    /// From a log of dm-log-writes, make a drive that lost part of its cache
    DriveCache(drive_cache::Arguments),
}

/// Runs the program with these arguments, the first of which is its name.
pub fn run(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> ExitCode {
    let arguments = match Arguments::try_parse_from(words) {
        Ok(arguments) => arguments,
        Err(error) => error.exit(),
    };
    let result = match arguments.command {
        Command::Write { directory, log, mode, profile, seed, operations, announce, unsynced, power_cut_after } => {
            let writer = Writer { seed, profile, mode };
            write::write(&directory, &log, &Options { writer, unsynced, operations, announce, power_cut_after })
        }
        Command::Verify { directory, log } => verify::verify(&directory, &log).map(|verified| {
            let verify::Verified { promises, names, bytes, under_way } = verified;
            println!("{promises} acknowledged operations kept: {names} names, {bytes} bytes as promised; under way: {under_way}");
        }),
        Command::Fill { file, bytes } => patterns::fill(&file, bytes),
        Command::Compare { file, bytes } => patterns::compare(&file, bytes),
        Command::Fsync { file, count } => patterns::time_fsync(&file, count).map(|times| {
            println!("{}", times.map(|time| format!("{:.1}", time.as_secs_f64() * 1e6)).join(" "));
        }),
        Command::Map { device, bytes, again } => {
            let found = if again { mapped::map_again(&device, bytes) } else { mapped::map(&device, bytes) };
            found.map(|found| println!("{found}"))
        }
        Command::KillLoop(arguments) => {
            let writer = std::env::current_exe().map(|program| vec![program.into()]).map_err(|error| error.to_string());
            writer.and_then(|writer| kill_loop::run(&arguments, &writer, &mut |line| println!("{line}"))).map(|summary| {
                println!("{}", summary.to_json());
            })
        }
        Command::DriveCache(arguments) => drive_cache::run(&arguments).map(|line| println!("{line}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            println!("witness: {sentence}");
            ExitCode::FAILURE
        }
    }
}
