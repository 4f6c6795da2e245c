//! The rows of the speed table.

mod many_files;
pub mod mount_time;
mod namespace;
mod overwrite;
mod sequential;

use crate::arguments::{Case, Evaluation};
use crate::failure::Result;
use crate::output::{Outcome, run_all};

/// Measures the cases.
pub fn run(cases: &Evaluation<Case>) -> Result<()> {
    let common = &cases.common;
    run_all(cases, "speed table", |case| {
        let (name, title, rows) = match case {
            Case::Overwrite => ("overwrite", "a durable 4 KiB overwrite in a data log, and its parts", overwrite::run(common)?),
            Case::Namespace => ("namespace", "names, each beside one journal record of the same size", namespace::run(common)?),
            Case::Sequential => ("sequential", "1 MiB at a time by blocks", sequential::run(common)?),
            Case::ManyFiles => ("many-files", "creations beside the first ones", many_files::run(common)?),
            Case::Mount => ("mount", "mounts of many files, and host memory", mount_time::run(common)?),
        };
        let mut outcome = Outcome::new(name, title);
        outcome.rows("Each operation beside its bare limit in the same run", &rows);
        Ok(outcome)
    })
}
