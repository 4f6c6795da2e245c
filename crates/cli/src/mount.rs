//! `tandemfs mount`: starts the daemon and waits until its mount answers.
//!
//! The daemon is this program again, not a fork, so no thread is ever lost on the way. Its standard output is a pipe on which it says one
//! line: `ready`, or a status and a sentence. A pipe that closes without a line means that it died.

use std::env;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::json;
use tandemfs_emulator::DeviceSpec;

use crate::arguments::MountArguments;
use crate::daemon;
use crate::failure::{self, Failure};
use crate::logging;
use crate::mount_options::Options;
use crate::output;
use crate::remount;

/// Heaps of the C library (mallopt(3)). A serving thread with a heap of its own gives nothing back that another one could take: after a million
/// files made and removed the daemon had 209 MiB that way, and 150 MiB with two heaps (`memory=128M`), which bounds what is in use.
const ARENAS: (&str, &str) = ("MALLOC_ARENA_MAX", "2");

/// What the daemon says when its mount answers.
pub const READY: &str = "ready";

/// Reads the options of a line.
pub fn options(arguments: &MountArguments) -> Result<Options, Failure> {
    let is_root = rustix::process::geteuid().is_root();
    let mut options = Options::parse(arguments.options.iter().map(String::as_str), is_root).map_err(Failure::Usage)?;
    options.fit(machine_bytes());
    Ok(options)
}

/// Memory of this machine, in bytes.
pub fn machine_bytes() -> u64 {
    let found = rustix::system::sysinfo();
    (found.totalram as u64).saturating_mul(found.mem_unit.into())
}

/// Mounts a device.
pub fn run(arguments: &MountArguments) -> Result<u8, Failure> {
    let options = options(arguments)?;
    if options.remount && !arguments.fake {
        return remount::run(arguments); // its daemon warns, which knows what the mount has
    }
    for warning in &options.warnings {
        failure::warn(warning);
    }
    if arguments.fake {
        return Ok(0);
    }
    if options.nofail && is_absent(&arguments.device) {
        return Ok(0);
    }
    if arguments.foreground {
        let level = logging::start(options.log.as_deref(), true, arguments.verbose, options.log_level)?;
        daemon::serve(arguments, &options, level, || {})?;
        return Ok(0);
    }
    let failed = |error: io::Error| Failure::at("the daemon cannot be started", error);
    let (mut reader, writer) = io::pipe().map_err(failed)?;
    let mut daemon = Command::new(program())
        .arg0("tandemfs")
        .env(ARENAS.0, env::var_os(ARENAS.0).unwrap_or_else(|| ARENAS.1.into()))
        .args(["mount", "--daemon"])
        .args(arguments.verbose.then_some("--verbose"))
        .args(arguments.options.iter().flat_map(|list| ["-o", list]))
        .arg("--")
        .arg(&arguments.device)
        .arg(&arguments.mountpoint)
        .stdin(Stdio::null())
        .stdout(writer)
        .spawn()
        .map_err(failed)?;
    let mut line = String::new();
    reader.read_to_string(&mut line).map_err(failed)?;
    let line = line.trim_end();
    if line == READY {
        if arguments.json {
            let place = arguments.mountpoint.to_string_lossy();
            output::print_json(&json!({ "device": arguments.device, "mountpoint": place, "warnings": options.warnings }))?;
        }
        return Ok(0);
    }
    match line.split_once(' ').and_then(|(status, message)| Some((status.parse().ok()?, message))) {
        Some((0, message)) => Err(Failure::Failed(message.to_owned())),
        Some((status, message)) => Err(Failure::Status(status, message.to_owned())),
        None => Err(died(&mut daemon)),
    }
}

/// Whether a device, or a half of one, does not exist.
fn is_absent(device: &str) -> bool {
    let is_gone = |path: &Path| path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    match device.parse() {
        Ok(DeviceSpec::Image(path) | DeviceSpec::Memory(path)) => is_gone(&path),
        Ok(DeviceSpec::Pair { memory, block, .. }) => is_gone(&memory) || is_gone(&block),
        Err(_) => false,
    }
}

/// This program. Its path, so that process lists show its name; after an upgrade the path is gone, the program is still there.
fn program() -> PathBuf {
    env::current_exe().ok().filter(|path| path.exists()).unwrap_or_else(|| "/proc/self/exe".into())
}

fn died(daemon: &mut Child) -> Failure {
    let how = daemon.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
    Failure::Failed(format!("the daemon ended before the mount answered ({how}); see its log, or try --foreground"))
}
