//! `tandemfs-bench`: every row of the speed table, each next to the bare limit measured in the same run.
//!
//! [B1] A row and its limit are measured interleaved, A B B A, on devices of the same kind with their memory touched before, so that what
//!      drifts on the machine drifts for both.
//! [B2] The limit does the least that anyone would have to do: the same bytes to the same pattern of addresses, nothing else.
//! [B3] Each operation is timed by itself; medians and p99 are over all of them. Reading the clock costs both sides the same.
//! [B4] Whatever is made is removed, on an error too: directories and mounts are guards, and SIGINT or SIGTERM is an error.
//!
//! `cases/` has a file a row of the table; `measure.rs` takes the times, `report.rs` judges and prints them, `scene.rs` makes devices and
//! file systems, `probe.rs` sees what the engine stores, `null_fs.rs` is the FUSE file system that does nothing.

mod arguments;
mod cases;
mod failure;
mod machine;
mod measure;
mod null_fs;
mod probe;
mod report;
mod scene;

use std::process::ExitCode;

use clap::Parser;

use crate::arguments::{Arguments, Case};
use crate::failure::Failure;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // A signal also unmounts what is mounted; the calls that fail then are not the reason.
            let failure = machine::check().err().unwrap_or(failure);
            eprintln!("tandemfs-bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    if let Some(order) = &arguments.child {
        return cases::mount_time::child(order);
    }
    machine::listen_for_signals()?;
    report::header(arguments.json);
    let mut cases = arguments.cases.clone();
    if cases.is_empty() {
        cases = Case::ALL.to_vec();
    }
    for case in cases {
        let rows = match case {
            Case::Overwrite => cases::overwrite::run(arguments)?,
            Case::Namespace => cases::namespace::run(arguments)?,
            Case::Sequential => cases::sequential::run(arguments)?,
            Case::Fuse => cases::fuse::run(arguments)?,
            Case::ManyFiles => cases::many_files::run(arguments)?,
            Case::Mount => cases::mount_time::run(arguments)?,
        };
        report::print(case, &rows, arguments.json);
    }
    Ok(())
}
