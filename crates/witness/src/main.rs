//! The program `witness`; `witness --help` lists what it does.

use std::process::ExitCode;

fn main() -> ExitCode {
    tandemfs_witness::command::run(std::env::args_os())
}
