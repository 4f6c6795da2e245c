//! The program `witness`; see `witness --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    tandemfs_witness::command::run(std::env::args_os())
}
