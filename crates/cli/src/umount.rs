//! `tandemfs umount`: unmounts, and waits until the daemon has put everything on the device and is gone.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};
use serde_json::{Value, json};
use tandemfs_fuse::control::{self, Request};
use tandemfs_fuse::holders::{holders, in_words};
use tandemfs_fuse::mounts::{self, Mounted};
use tandemfs_fuse::{MountError, Unmount, unmount};

use crate::arguments::{MountArguments, UmountArguments};
use crate::device::{self, Opening};
use crate::failure::{self, Failure};
use crate::output;
use crate::remount;

/// How long a daemon may take to write what it holds.
const GONE_WITHIN: Duration = Duration::from_secs(120);
/// How long somebody else may use the mount before it counts as in use.
const UNUSED_WITHIN: Duration = Duration::from_secs(1);
/// How long a disconnected daemon may take to write what it holds before the command says so and returns.
const DISCONNECTED_WITHIN: Duration = Duration::from_secs(5);
const TRY_EVERY: Duration = Duration::from_millis(20);
/// How long somebody may go on to use the file system after its mount is gone: a program that has just got mounts of its own, for one.
const LEFT_WITHIN: Duration = Duration::from_secs(3);
/// How often a daemon that is still there is asked why.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Unmounts.
pub fn run(arguments: &UmountArguments) -> Result<u8, Failure> {
    let mount = find(&arguments.mountpoint)?;
    let how = match (arguments.lazy, arguments.force) {
        (true, _) => Unmount::Lazy,
        (_, true) => Unmount::Force,
        _ => Unmount::Normal,
    };
    if how == Unmount::Force {
        let ended = force(&mount)?;
        return done(arguments, &mount, ended);
    }
    // Asked before: afterwards the daemon may be gone any moment. One that hangs or died does not answer.
    let daemon = (how == Unmount::Normal).then(|| daemon(&mount)).flatten();
    if let Err(failure) = patiently(&mount, || unmount(&mount.mountpoint, how)) {
        return if arguments.or_read_only { make_read_only(&mount, failure) } else { Err(failure) };
    }
    if let Some(daemon) = &daemon {
        wait(&mount, daemon)?;
        left_clean(&mount, daemon)?;
    }
    done(arguments, &mount, daemon.is_some())
}

fn done(arguments: &UmountArguments, mount: &Mounted, daemon_ended: bool) -> Result<u8, Failure> {
    if arguments.json {
        let (mountpoint, device) = (mount.mountpoint.to_string_lossy(), mount.source.to_string_lossy());
        output::print_json(&json!({ "mountpoint": mountpoint, "device": device, "daemon_ended": daemon_ended }))?;
    }
    Ok(0)
}

/// Disconnects the daemon and takes the mount out of the tree. The kernel does the first at once and refuses the second while the mount is in
/// use; a mount that nobody serves any more is of no use to its users, so it goes too. Their calls fail with ENOTCONN. Returns whether the
/// daemon has ended.
fn force(mount: &Mounted) -> Result<bool, Failure> {
    // Its socket tells who it is even if it hangs.
    let id = control::process_id(mount).and_then(Pid::from_raw);
    let daemon = id.and_then(|id| Some((id, rustix::process::pidfd_open(id, PidfdFlags::empty()).ok()?)));
    match unmount(&mount.mountpoint, Unmount::Force) {
        Err(MountError::InUse { .. }) => unmount(&mount.mountpoint, Unmount::Lazy),
        other => other,
    }
    .map_err(Failure::because)?;
    let Some((id, descriptor)) = daemon else { return Ok(true) };
    let ended = ends_within(&descriptor, DISCONNECTED_WITHIN)?;
    if !ended {
        let (place, id) = (mount.mountpoint.display(), id.as_raw_nonzero());
        failure::warn(&format!(
            "{place}: disconnected, but its daemon (process {id}) has not ended yet; until it does, the device is in use"
        ));
    }
    Ok(ended)
}

/// Tries again for a moment where the mount is in use: by an indexer, or by a process that is just ending.
fn patiently(mount: &Mounted, unmount: impl Fn() -> Result<(), MountError>) -> Result<(), Failure> {
    let start = Instant::now();
    loop {
        match unmount() {
            Err(MountError::InUse { .. }) if start.elapsed() < UNUSED_WITHIN => std::thread::sleep(TRY_EVERY),
            Err(error @ MountError::InUse { .. }) => return Err(in_use(mount, error)),
            other => return other.map_err(Failure::because),
        }
    }
}

/// What `umount -r` asks for where the mount cannot be taken away, for the reason of the failure.
fn make_read_only(mount: &Mounted, failure: Failure) -> Result<u8, Failure> {
    let arguments = MountArguments { mountpoint: mount.mountpoint.clone(), options: vec!["ro".into()], ..MountArguments::default() };
    match remount::run(&arguments) {
        Ok(status) => {
            failure::warn(&format!("{}: in use, so it is read-only now and stays mounted", mount.mountpoint.display()));
            Ok(status)
        }
        // What keeps it mounted is what there is to end, also if it is a file that is written.
        Err(_also_in_use) => Err(failure),
    }
}

fn in_use(mount: &Mounted, error: MountError) -> Failure {
    match in_words(&holders(mount)) {
        Some(holders) => Failure::Failed(format!("{}: in use by {holders}; end that, or use --lazy", mount.mountpoint.display())),
        None => Failure::because(error),
    }
}

/// The TandemFS mounted at a path.
pub fn find(path: &Path) -> Result<Mounted, Failure> {
    let found = mounts::find(path).map_err(|error| Failure::at(path.display(), error))?;
    found.ok_or_else(|| {
        Failure::Failed(format!("{}: no TandemFS is mounted there; 'findmnt -t fuse.tandemfs' lists the mounts", path.display()))
    })
}

/// A daemon, and what it said of itself.
struct Daemon {
    process_id: i64,
    /// A process number can be given to another process, this cannot.
    descriptor: OwnedFd,
    read_only: bool,
    /// Damaged metadata may name free space, so the unmount leaves the file system as a crash would.
    holds_back: bool,
    /// Why it stopped writing, if it had.
    stopped: Option<String>,
}

/// The daemon of a mount.
fn daemon(mount: &Mounted) -> Option<Daemon> {
    let info = control::ask(mount, Request::Info).ok()?;
    let process_id = info.get("process_id").and_then(Value::as_i64)?;
    let pid = Pid::from_raw(i32::try_from(process_id).ok()?)?;
    Some(Daemon {
        process_id,
        descriptor: rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?,
        read_only: info.get("read_only").and_then(Value::as_bool).unwrap_or(false),
        holds_back: info["damage"]["holds_back"].as_bool().unwrap_or(false),
        stopped: info.get("stopped").and_then(Value::as_str).map(str::to_owned),
    })
}

/// Whether the daemon could put everything in its place. It is nobody's child here, so the device is asked.
fn left_clean(mount: &Mounted, daemon: &Daemon) -> Result<(), Failure> {
    let failed = |what: &str| {
        let place = mount.mountpoint.display();
        Err(Failure::Failed(format!(
            "{place}: unmounted, but {what}; what was acknowledged is in the journal, and the next mount recovers it once the device works"
        )))
    };
    if daemon.read_only {
        return Ok(());
    }
    if let Some(cause) = &daemon.stopped {
        return failed(&format!("the file system had stopped writing ({cause})"));
    }
    let Some(source) = mount.source.to_str() else { return Ok(()) };
    // Not for this user to open, or in use again already: then there is nothing to say.
    let Ok(drive) = device::open(source, Opening { read_only: true, ..Opening::default() }) else { return Ok(()) };
    match tandemfs_fs::read_superblock(&drive) {
        Ok(superblock) if superblock.clean => Ok(()),
        Ok(_) if daemon.holds_back => {
            let place = mount.mountpoint.display();
            failure::warn(&format!("{place}: damaged metadata holds space back until 'tandemfs check --repair' has run"));
            Ok(())
        }
        Ok(_) if drive.is_zone_held() => {
            let place = mount.mountpoint.display();
            failure::warn(&format!(
                "{place}: programs still have files of it mapped for stores; the device cannot be mounted for writing before they have ended, and \
                 the next mount recovers"
            ));
            Ok(())
        }
        Ok(_) => failed("the daemon ended before everything was in its place (see its log)"),
        Err(error) => failed(&format!("its device cannot be read: {error}")),
    }
}

/// Waits until the daemon is gone. The kernel takes the file system from it when nobody uses it any more, at whatever place; while somebody
/// does, there is nothing to wait for.
fn wait(mount: &Mounted, daemon: &Daemon) -> Result<(), Failure> {
    let start = Instant::now();
    while !ends_within(&daemon.descriptor, ASK_EVERY)? {
        // In this order: as long as the daemon serves, the device number is that of its file system and of no later one.
        let held = in_words(&holders(mount)).filter(|_| start.elapsed() > LEFT_WITHIN && serves(mount, daemon));
        let (place, process_id) = (mount.mountpoint.display(), daemon.process_id);
        if let Some(holders) = held {
            return Err(Failure::Failed(format!(
                "{place}: unmounted, but the file system is still used by {holders}; until that ends, its daemon (process {process_id}) serves \
                 it and the device is in use"
            )));
        }
        if start.elapsed() > GONE_WITHIN {
            let doing = if serves(mount, daemon) { "serving somebody whom this user cannot see" } else { "writing" };
            return Err(Failure::Failed(format!(
                "{place}: unmounted, but the daemon (process {process_id}) has been {doing} for {} s; the device is in use until it ends",
                GONE_WITHIN.as_secs()
            )));
        }
    }
    Ok(())
}

/// Whether the daemon still answers requests of the kernel, so that something keeps its file system.
fn serves(mount: &Mounted, serving: &Daemon) -> bool {
    daemon(mount).is_some_and(|found| found.process_id == serving.process_id)
}

/// The descriptor is readable when the process has ended, and with it every lock that it held.
fn ends_within(daemon: &OwnedFd, time: Duration) -> Result<bool, Failure> {
    let timeout = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    let ended = rustix::io::retry_on_intr(|| rustix::event::poll(&mut [PollFd::new(daemon, PollFlags::IN)], Some(&timeout)));
    ended.map(|count| count > 0).map_err(|error| Failure::at("waiting for the daemon", error))
}
