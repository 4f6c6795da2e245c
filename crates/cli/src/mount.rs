//! `tandemfs mount`: starts the daemon and waits until its mount answers.
//!
//! The daemon is this program again, not a fork, so no thread is ever lost on the way. Its standard output is a pipe on which it says one
//! line: `ready`, or a status and a sentence. A pipe that closes without a line means that it died.

use std::env;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::arguments::MountArguments;
use crate::daemon;
use crate::failure::Failure;
use crate::logging;
use crate::mount_options::Options;
use tandemfs_fuse::control::{self, Request};
use tandemfs_fuse::mounts;

/// Heaps of the C library (mallopt(3)). A serving thread with a heap of its own gives nothing back that another one could take: after a million
/// files made and removed the daemon had 209 MiB that way, and 150 MiB with two heaps (`memory=128M`), which bounds what is in use.
const ARENAS: (&str, &str) = ("MALLOC_ARENA_MAX", "2");

/// What the daemon says when its mount answers.
pub const READY: &str = "ready";

/// Reads the options of a line.
pub fn options(arguments: &MountArguments) -> Result<Options, Failure> {
    let is_root = rustix::process::geteuid().is_root();
    Options::parse(arguments.options.iter().map(String::as_str), is_root).map_err(Failure::Usage)
}

/// Mounts a device.
pub fn run(arguments: &MountArguments) -> Result<u8, Failure> {
    let options = options(arguments)?;
    if arguments.fake {
        return Ok(0);
    }
    if options.remount {
        return remount(arguments, &options);
    }
    if arguments.foreground {
        logging::start(options.log.as_deref(), true, arguments.verbose)?;
        daemon::serve(arguments, &options, || {})?;
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
        return Ok(0);
    }
    match line.split_once(' ').and_then(|(status, message)| Some((status.parse().ok()?, message))) {
        Some((0, message)) => Err(Failure::Failed(message.to_owned())),
        Some((status, message)) => Err(Failure::Status(status, message.to_owned())),
        None => Err(died(&mut daemon)),
    }
}

/// What the kernel can change of a mount. What its daemon does stays as it is, so a word that asks for something else is refused.
fn remount(arguments: &MountArguments, options: &Options) -> Result<u8, Failure> {
    let place = arguments.mountpoint.display();
    let mount = mounts::find(&arguments.mountpoint).map_err(|error| Failure::at(&place, error))?;
    let mount = mount.ok_or_else(|| Failure::Failed(format!("{place}: no TandemFS is mounted there, so there is nothing to remount")))?;
    let info =
        control::ask(&mount, Request::Info).map_err(|error| Failure::Failed(format!("{place}: its daemon does not answer: {error}")))?;
    let mode = info["mode"].as_str().unwrap_or_default();
    if options.names_mode && mode != options.settings.mode.name() {
        let wanted = options.settings.mode.name();
        return Err(Failure::Failed(format!("{place}: a remount cannot make {wanted} of {mode}: unmount, and mount with the new options")));
    }
    if info["read_only"].as_bool() == Some(true) && !options.settings.read_only {
        return Err(Failure::Failed(format!("{place}: the device was opened for reading only: unmount, and mount again without 'ro'")));
    }
    tandemfs_fuse::remount(&mount.mountpoint, &options.settings).map_err(Failure::because)?;
    Ok(0)
}

/// This program. Its path, so that process lists show its name; after an upgrade the path is gone, the program is still there.
fn program() -> PathBuf {
    env::current_exe().ok().filter(|path| path.exists()).unwrap_or_else(|| "/proc/self/exe".into())
}

fn died(daemon: &mut Child) -> Failure {
    let how = daemon.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
    Failure::Failed(format!("the daemon ended before the mount answered ({how}); see its log, or try --foreground"))
}
