//! `tandemfs-bench` prints the rows of the speed table, each with a bare limit measured in the same run. `tandemfs-bench romefs` and
//! `tandemfs-bench bytefs` repeat the evaluations of the two papers on emulated drives, `tandemfs-bench hybrid` measures a drive whose cache
//! the host manages. `tandemfs-bench compare` runs the same work on
//! TandemFS and on kernel file systems. The program `tandemfs` does not contain it; mounts are measured through the one beside it.
//!
//! [BE1] A row and its limit are measured interleaved (A B B A), on devices of the same kind whose memory was touched before. So drift of
//!       the machine affects both sides.
//! [BE2] The limit does only the necessary minimum: the same bytes to the same pattern of addresses.
//! [BE3] Each operation is timed separately; medians and p99 are over all operations. Both sides pay the same for reading the clock.
//! [BE4] Directories and mounts are guards, so they are removed on errors too. SIGINT and SIGTERM are handled as errors.
//!
//! `cases/` has one file for each row of the table, `romefs/` one for each experiment of its paper, `bytefs/` one for the figures that run
//! loads and one for each other experiment, `hybrid/` one for each experiment, `workloads/` the loads of the ByteFS paper. `measure.rs` takes the times, `report.rs` judges
//! them, `figures.rs` writes numbers, `output.rs` runs cases and experiments and prints their results, `scene.rs` makes devices and file
//! systems. `probe.rs` records where the engine stores, `stopwatch.rs` how long each access takes. `null_fs.rs` is the FUSE file system
//! that keeps everything in memory and nothing safe, and `served.rs` serves such file systems. `age/` makes file systems old, `replay/` repeats
//! what programs did.

#![forbid(unsafe_code)]

mod age;
mod arguments;
mod bytefs;
mod cases;
mod compare;
mod failure;
mod figures;
mod hybrid;
mod machine;
mod measure;
mod null_fs;
mod output;
mod probe;
mod replay;
mod report;
mod romefs;
mod scene;
mod segments;
mod served;
mod stopwatch;
mod table;
mod workloads;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use arguments::{Arguments, Command};
use failure::Failure;

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Nobody may be there to read it.
            let _unread = writeln!(std::io::stderr(), "tandemfs-bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Writes the manual pages to a directory.
fn write_manual(directory: &Path) -> failure::Result<()> {
    let written = std::fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(Arguments::command(), directory));
    written.map_err(|error| Failure::new(format!("{}: {error}", directory.display())))
}

/// Runs the measurements selected by the arguments. Closed standard output is not an error.
fn run(arguments: &Arguments) -> Result<(), Failure> {
    let result = match (&arguments.child, &arguments.command) {
        (Some(order), _) => compare::child::Order::carry_out(order),
        (None, command) => machine::listen_for_signals().and_then(|()| match command {
            Some(Command::Romefs(romefs)) => romefs::run(romefs),
            Some(Command::Bytefs(bytefs)) => bytefs::run(bytefs),
            Some(Command::Hybrid(hybrid)) => hybrid::run(hybrid),
            Some(Command::Compare(asked)) => compare::session::compare(asked),
            Some(Command::Report(asked)) => compare::report::run(asked),
            Some(Command::Age(asked)) => age::run(asked),
            Some(Command::Replay(asked)) => replay::run(asked),
            Some(Command::Man { output }) => write_manual(output),
            None => cases::run(&arguments.evaluation),
        }),
    };
    match result {
        Err(failure) if failure.is_output_closed() => Ok(()),
        // What a replay has made stays, and it says so.
        Err(failure) if matches!(arguments.command, Some(Command::Replay(_))) => Err(failure),
        // A signal also unmounts file systems; calls that fail because of that are not reported as the cause.
        Err(failure) => Err(machine::check().err().unwrap_or(failure)),
        Ok(()) => Ok(()),
    }
}
