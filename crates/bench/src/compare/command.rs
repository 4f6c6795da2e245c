//! Programs that a measurement runs: tandemfs, mkfs, mount, losetup, and this program itself.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::failure::{Failure, Result};

/// Directories of system programs, for users whose PATH lacks them.
const SYSTEM_DIRECTORIES: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];
/// Variable with the path of another TandemFS program to measure, such as an older version.
const PROGRAM_VARIABLE: &str = "TANDEMFS_BENCH_PROGRAM";

/// Debian's directory of PostgreSQL versions, which is not in PATH.
const POSTGRESQL: &str = "/usr/lib/postgresql";

/// Finds a program in PATH, the system directories or PostgreSQL's directory.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut versions: Vec<PathBuf> =
        fs::read_dir(POSTGRESQL).map(|all| all.flatten().map(|entry| entry.path()).collect()).unwrap_or_default();
    versions.sort_by_key(|version| version.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok()));
    let newest = versions.pop().map(|version| version.join("bin"));
    let directories = std::env::split_paths(&path).chain(SYSTEM_DIRECTORIES.iter().map(PathBuf::from)).chain(newest);
    directories.map(|directory| directory.join(program)).find(|path| path.is_file())
}

/// A command of a program that must be installed.
///
/// # Errors
/// It is not installed.
pub fn command(program: &str) -> Result<Command> {
    find(program).map(Command::new).ok_or_else(|| Failure::new(format!("{program} is not installed")))
}

/// A command of TandemFS as users run it: the program named by the environment, else the one beside this program, else an installed one.
pub fn tandemfs() -> Command {
    let beside = || own_path().with_file_name("tandemfs");
    let found = std::env::var_os(PROGRAM_VARIABLE).map(PathBuf::from);
    Command::new(found.or_else(|| Some(beside()).filter(|path| path.is_file())).unwrap_or_else(|| "tandemfs".into()))
}

/// This program.
pub fn own_path() -> PathBuf {
    std::env::current_exe().ok().filter(|path| path.exists()).unwrap_or_else(|| "/proc/self/exe".into())
}

/// Runs a command to its end and returns its output.
///
/// # Errors
/// It cannot be started, or it failed: its last error output, on one line.
pub fn run(command: &mut Command) -> Result<String> {
    let name = Path::new(command.get_program()).file_name().unwrap_or_else(|| OsStr::new("?")).to_string_lossy().into_owned();
    // Own process group: an interrupt from the terminal reaches only the caller, which then cleans up in order.
    let output = command.stdin(Stdio::null()).process_group(0).output().map_err(|error| Failure::new(format!("{name}: {error}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let words: Vec<String> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().rev().find(|line| !line.trim().is_empty()).map_or_else(|| output.status.to_string(), str::to_owned);
    Err(Failure::new(format!("{name} {}: {}", words.join(" "), said.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_the_last_words() {
        let failure = run(command("sh").expect("a shell").args(["-c", "echo first >&2; echo last >&2; exit 3"])).expect_err("failed");
        assert_eq!(failure.to_string(), "sh -c echo first >&2; echo last >&2; exit 3: last");
        assert_eq!(run(command("sh").expect("a shell").args(["-c", "echo said"])).expect("ran"), "said\n");
        assert_eq!(command("no-such-program").map(drop).expect_err("absent").to_string(), "no-such-program is not installed");
    }
}
