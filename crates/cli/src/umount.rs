//! `tandemfs umount`: unmounts, and waits until the daemon has put everything on the device and is gone.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};
use serde_json::Value;
use tandemfs_fuse::control::{self, Request};
use tandemfs_fuse::mounts::{self, Mounted};
use tandemfs_fuse::{MountError, Unmount, unmount};

use crate::arguments::UmountArguments;
use crate::failure::Failure;

/// How long a daemon may take to write what it holds.
const GONE_WITHIN: Duration = Duration::from_secs(120);
/// How long somebody else may use the mount before it counts as in use.
const UNUSED_WITHIN: Duration = Duration::from_secs(1);
const TRY_EVERY: Duration = Duration::from_millis(20);

/// Unmounts.
pub fn run(arguments: &UmountArguments) -> Result<u8, Failure> {
    let mount = find(&arguments.mountpoint)?;
    let how = match (arguments.lazy, arguments.force) {
        (true, _) => Unmount::Lazy,
        (_, true) => Unmount::Force,
        _ => Unmount::Normal,
    };
    // Asked before: afterwards the daemon may be gone any moment. One that hangs or died does not answer.
    let daemon = (how == Unmount::Normal).then(|| daemon(&mount)).flatten();
    patiently(|| unmount(&mount.mountpoint, how))?;
    if let Some((process_id, daemon)) = daemon {
        wait(&daemon, process_id)?;
    }
    Ok(0)
}

/// Tries again for a moment where the mount is in use: by an indexer, or by a process that is just ending.
fn patiently(unmount: impl Fn() -> Result<(), MountError>) -> Result<(), Failure> {
    let start = Instant::now();
    loop {
        match unmount() {
            Err(MountError::InUse { .. }) if start.elapsed() < UNUSED_WITHIN => std::thread::sleep(TRY_EVERY),
            other => return other.map_err(Failure::because),
        }
    }
}

/// The TandemFS mounted at a path.
pub fn find(path: &Path) -> Result<Mounted, Failure> {
    let found = mounts::find(path).map_err(|error| Failure::at(path.display(), error))?;
    found.ok_or_else(|| {
        Failure::Failed(format!("{}: no TandemFS is mounted there; 'findmnt -t fuse.tandemfs' lists the mounts", path.display()))
    })
}

/// The daemon of a mount, held by a descriptor: a process number can be given to another process, this cannot.
fn daemon(mount: &Mounted) -> Option<(i64, OwnedFd)> {
    let info = control::ask(mount, Request::Info).ok()?;
    let process_id = info.get("process_id").and_then(Value::as_i64)?;
    let pid = Pid::from_raw(i32::try_from(process_id).ok()?)?;
    Some((process_id, rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?))
}

/// The descriptor is readable when the process has ended, and with it every lock that it held.
fn wait(daemon: &OwnedFd, process_id: i64) -> Result<(), Failure> {
    let timeout = Timespec { tv_sec: GONE_WITHIN.as_secs() as i64, tv_nsec: 0 };
    let ended = rustix::io::retry_on_intr(|| rustix::event::poll(&mut [PollFd::new(daemon, PollFlags::IN)], Some(&timeout)));
    match ended {
        Ok(0) => Err(Failure::Failed(format!(
            "unmounted, but the daemon (process {process_id}) has been writing for {} s; the device is in use until it ends",
            GONE_WITHIN.as_secs()
        ))),
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::at("waiting for the daemon", error)),
    }
}
