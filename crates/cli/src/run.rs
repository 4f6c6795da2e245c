//! `tandemfs run`: runs a program by the direct door of a mount, with the library of `crates/preload` in front of libc.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use tandemfs_client::{Door, Options};
use tandemfs_fuse::mounts::{self, Mounted};

use crate::arguments::RunArguments;
use crate::failure::{self, Failure};
use crate::inherited;
use crate::known_code;
use crate::run_report::Report;
use crate::umount;

const LIBRARY: &str = "libtandemfs_preload.so";
const PRELOAD: &str = "LD_PRELOAD";
const STORES: &str = "TANDEMFS_RUN_STORES";
const NOT_FOUND: u8 = 127;
const NOT_RUN: u8 = 126;
/// Signals of a shell's exit status.
const SIGNALLED: i32 = 128;

/// Runs the program.
pub fn run(arguments: &RunArguments) -> Result<u8, Failure> {
    let mount = mount(arguments)?;
    let mut command = Command::new(&arguments.command[0]);
    command.args(&arguments.command[1..]);
    inherited::keep_broken_pipes(&mut command);
    let entered = match enter(&mount.mountpoint) {
        Ok(entered) => Some(entered),
        Err(why) => {
            failure::warn(&format!("{why}; the program runs by the mount"));
            None
        }
    };
    if let Some((library, door)) = &entered {
        command.env(PRELOAD, preloaded(library));
        command.env("TANDEMFS_RUN_MOUNT", &mount.mountpoint);
        if let Some(filters) = inherited::filters() {
            command.env("TANDEMFS_RUN_FILTERS", filters.to_string());
        }
        command.env("TANDEMFS_RUN_SOCKET", &door.socket).env("TANDEMFS_RUN_USER", door.user.to_string());
        match arguments.stores {
            true => command.env(STORES, "1"),
            false => command.env_remove(STORES),
        };
        if arguments.real {
            command.env_remove("TANDEMFS_RUN_PLACEHOLDERS");
        } else {
            command.env("TANDEMFS_RUN_PLACEHOLDERS", "1").envs(known_code::table().map(|table| ("TANDEMFS_RUN_CODE", table)));
        }
    }
    match (arguments.report, entered) {
        (true, Some(_)) => reported(arguments, command),
        (true, None) => {
            failure::warn("no report: nothing goes by the door");
            Err(not_run(arguments, &command.exec()))
        }
        (false, _) => Err(not_run(arguments, &command.exec())),
    }
}

/// The mount that is meant.
fn mount(arguments: &RunArguments) -> Result<Mounted, Failure> {
    if let Some(path) = &arguments.mount {
        return umount::find(path);
    }
    let here = env::current_dir().ok().and_then(|here| mounts::containing(&here).ok().flatten());
    if let Some((mount, _)) = here {
        return Ok(mount);
    }
    let mut all = mounts::mounted().map_err(|error| Failure::at("/proc/self/mountinfo", error))?;
    match (all.pop(), all.is_empty()) {
        (Some(only), true) => Ok(only),
        (Some(_), false) => Err(Failure::Failed("there are several TandemFS mounts; say which one with --mount".into())),
        (None, _) => Err(Failure::Failed("no TandemFS is mounted".into())),
    }
}

/// The library, and the door, by which this process was let in.
fn enter(mountpoint: &Path) -> Result<(PathBuf, Door), String> {
    let library = library()?;
    // Otherwise nobody would say to the program's user that it is of another version, or may not enter.
    let options = Options { slots: 1, data_bytes: 4096, umask: Some(0), ..Options::default() };
    let (door, _mount) = Door::enter(mountpoint, &options).map_err(|error| error.to_string())?;
    Ok((library, door))
}

/// The library: where tests say, beside the program, or where it is installed.
fn library() -> Result<PathBuf, String> {
    let program = env::current_exe().map_err(|error| format!("/proc/self/exe: {error}"))?;
    let beside = program.parent().unwrap_or(Path::new("/"));
    let told = env::var_os("TANDEMFS_PRELOAD").map(PathBuf::from);
    let places = told.map_or_else(|| vec![beside.join(LIBRARY), beside.join("../lib/tandemfs").join(LIBRARY)], |told| vec![told]);
    let found = places.iter().find_map(|place| place.canonicalize().ok());
    let found = found.ok_or_else(|| format!("{}: there is no such library", places[0].display()))?;
    // The loader takes these as separators.
    match found.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b':' | b' ')) {
        true => Err(format!("{}: a library whose path has a colon or a space cannot be loaded", found.display())),
        false => Ok(found),
    }
}

/// What is preloaded: the libraries of the user first, then this one, so that theirs are called as without it. The library of an outer `tandemfs run` is
/// replaced.
fn preloaded(library: &Path) -> OsString {
    let list = env::var_os(PRELOAD).unwrap_or_default();
    let is_separator = |byte: &u8| matches!(byte, b':' | b' ');
    let is_other = |path: &&[u8]| !path.is_empty() && Path::new(OsStr::from_bytes(path)).file_name() != Some(OsStr::new(LIBRARY));
    let others = list.as_bytes().split(is_separator).filter(is_other);
    let all: Vec<&[u8]> = others.chain([library.as_os_str().as_bytes()]).collect();
    OsString::from_vec(all.join(&b':'))
}

fn not_run(arguments: &RunArguments, error: &io::Error) -> Failure {
    let status = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_RUN };
    Failure::Status(status, format!("{}: {error}", Path::new(&arguments.command[0]).display()))
}

/// Runs the program, waits for it and prints the report.
fn reported(arguments: &RunArguments, mut command: Command) -> Result<u8, Failure> {
    let report = Report::new().map_err(|error| Failure::at("the report", error))?;
    // What a terminal sends goes to the program as well, and what others send is passed on. What is ignored stays so, here and there.
    let handled = [SIGINT, SIGQUIT, SIGTERM, SIGHUP].into_iter().filter(|signal| !inherited::is_ignored(*signal));
    let mut signals = Signals::new(handled).map_err(|error| Failure::at("signals", error))?;
    let mut child = command.env("TANDEMFS_RUN_REPORT", report.path()).spawn().map_err(|error| not_run(arguments, &error))?;
    let id = Pid::from_child(&child);
    std::thread::spawn(move || {
        for signal in signals.forever() {
            let passed_on = match signal {
                SIGTERM => Some(Signal::TERM),
                SIGHUP => Some(Signal::HUP),
                _ => None,
            };
            if let Some(signal) = passed_on {
                let _ended_already = kill_process(id, signal);
            }
        }
    });
    let status = child.wait().map_err(|error| Failure::at("the program", error))?;
    report.print();
    Ok(exit_status(status))
}

fn exit_status(status: ExitStatus) -> u8 {
    status.code().or_else(|| Some(SIGNALLED + status.signal()?)).and_then(|code| code.try_into().ok()).unwrap_or(u8::MAX)
}
