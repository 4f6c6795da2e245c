//! `tandemfs bench`: every row of the speed table, each next to the bare limit measured in the same run; `tandemfs bench romefs` and
//! `tandemfs bench bytefs`, the evaluations of the two papers on emulated drives; `tandemfs bench compare`, the same work on TandemFS and on
//! the file systems of the kernel.
//!
//! [BE1] A row and its limit are measured interleaved, A B B A, on devices of the same kind with their memory touched before, so that what
//!       drifts on the machine drifts for both.
//! [BE2] The limit does the least that anyone would have to do: the same bytes to the same pattern of addresses, nothing else.
//! [BE3] Each operation is timed by itself; medians and p99 are over all of them. Reading the clock costs both sides the same.
//! [BE4] Whatever is made is removed, on an error too: directories and mounts are guards, and SIGINT or SIGTERM is an error.
//!
//! `cases/` has a file a row of the table, `romefs/` and `bytefs/` one an experiment of the papers, `workloads/` the loads of the latter;
//! `measure.rs` takes the times, `report.rs` judges and prints them, `scene.rs` makes devices and file systems, `probe.rs` sees what the
//! engine stores and `stopwatch.rs` how long it takes, `null_fs.rs` is the FUSE file system that does nothing,
//! `served.rs` mounts it and others like it.

#![forbid(unsafe_code)]

mod arguments;
mod bytefs;
mod cases;
mod compare;
mod failure;
mod machine;
mod measure;
mod null_fs;
mod output;
mod plot;
mod probe;
mod report;
mod romefs;
mod scene;
mod segments;
mod served;
mod stopwatch;
mod table;
mod workloads;

pub use crate::arguments::{
    Arguments, BytefsArguments, BytefsExperiment, Case, Command, Common, CompareArguments, ComparisonCommon, Experiment, ReportArguments,
    RomefsArguments, RunArguments,
};
pub use crate::compare::backing::Place;
pub use crate::compare::peer::Peer;
pub use crate::compare::settings::Pinning;
pub use crate::failure::Failure;
pub use crate::workloads::Workload;

/// Measures what the arguments ask for.
///
/// # Errors
/// A sentence on what could not be measured. A reader of standard output who has seen enough is none.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let result = match (&arguments.child, &arguments.command) {
        (Some(order), _) => compare::session::child(order).unwrap_or_else(|| cases::mount_time::child(order)),
        (None, Some(Command::Romefs(romefs))) => machine::listen_for_signals().and_then(|()| romefs::run(romefs)),
        (None, Some(Command::Bytefs(bytefs))) => machine::listen_for_signals().and_then(|()| bytefs::run(bytefs)),
        (None, Some(Command::Compare(asked))) => machine::listen_for_signals().and_then(|()| compare::session::compare(asked)),
        (None, Some(Command::Run(asked))) => machine::listen_for_signals().and_then(|()| compare::session::run(asked)),
        (None, Some(Command::Report(asked))) => compare::report::run(asked),
        (None, None) => machine::listen_for_signals().and_then(|()| run_cases(arguments)),
    };
    match result {
        Err(failure) if failure.is_output_closed() => Ok(()),
        // A signal also unmounts what is mounted; the calls that fail then are not the reason.
        Err(failure) => Err(machine::check().err().unwrap_or(failure)),
        Ok(()) => Ok(()),
    }
}

fn run_cases(arguments: &Arguments) -> Result<(), Failure> {
    let common = &arguments.common;
    report::header(common.json)?;
    let cases = if arguments.cases.is_empty() { Case::ALL.to_vec() } else { arguments.cases.clone() };
    for case in cases {
        let rows = match case {
            Case::Overwrite => cases::overwrite::run(common)?,
            Case::Namespace => cases::namespace::run(common)?,
            Case::Sequential => cases::sequential::run(common)?,
            Case::Fuse => cases::fuse::run(common)?,
            Case::ManyFiles => cases::many_files::run(common)?,
            Case::Mount => cases::mount_time::run(common)?,
        };
        report::print(case.name(), &rows, common.json)?;
    }
    Ok(())
}
