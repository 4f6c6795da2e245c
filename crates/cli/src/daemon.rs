//! The process behind a mount: opens the device, mounts, serves until the unmount, and closes the device.

use std::backtrace::Backtrace;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::panic;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tandemfs_device::Drive;
use tandemfs_emulator::{DeviceSpec, HeaderState};
use tandemfs_fs::FileSystem;
use tandemfs_fuse::{SettingsInUse, mounts};

use crate::arguments::MountArguments;
use crate::claim;
use crate::device::{self, Opening};
use crate::direct;
use crate::failure::Failure;
use crate::inherited;
use crate::logging;
use crate::metrics_server::{Place, Server, Taken};
use crate::mount::{self, READY};
use crate::mount_options::Options;
use crate::probe;
use crate::remount;
use crate::settings::SettingsOfMount;

/// Runs as the daemon of a `tandemfs mount` that waits at the other end of standard output.
pub fn run(arguments: &MountArguments) -> Result<u8, Failure> {
    // Standard output is needed as the pipe until the end of the start, and must not be written to by anything else.
    let mut pipe = Some(File::from(take_standard_output()?));
    let mut say = move |line: &str| {
        if let Some(mut pipe) = pipe.take() {
            // Nobody waits any more: then nobody needs to know.
            let _ = writeln!(pipe, "{line}");
        }
    };
    let options = mount::options(arguments)?;
    let result = logging::start(options.log.as_deref(), false, arguments.verbose, options.log_level).and_then(|level| {
        serve(arguments, &options, level, || {
            if let Err(error) = detach() {
                tracing::warn!("the daemon stays in the terminal's session: {error}");
            }
            say(READY);
        })
    });
    match result {
        Ok(()) => Ok(0),
        Err(failure) => {
            let (status, message) = match failure {
                Failure::Usage(message) => (2, message),
                Failure::Status(status, message) => (status, message),
                Failure::Failed(message) => (0, message),
                Failure::Arguments(error) => (2, error.to_string()),
                Failure::OutputClosed => (0, "the output was closed".into()),
            };
            tracing::error!("{message}");
            say(&format!("{status} {}", message.replace('\n', " ")));
            // The waiting command has said it already.
            Err(Failure::OutputClosed)
        }
    }
}

/// Programs to which a daemon that was killed has lent the memory zone see it within 20 ms of its end ([VER7] of the ring). What they load
/// until then must be what it was: nothing is changed before.
const LOADERS_STOP_WITHIN: Duration = Duration::from_millis(50);

/// Mounts, calls `ready` when the mount answers, and returns after the unmount, when everything is on the device.
pub fn serve(arguments: &MountArguments, options: &Options, level: logging::Level, ready: impl FnOnce()) -> Result<(), Failure> {
    abort_on_panic();
    inherited::raise_descriptors();
    tandemfs_fuse::check_mountpoint(&arguments.mountpoint).map_err(Failure::because)?;
    let read_only = options.file_system.read_only;
    let opening = Opening { read_only, timing: options.timing, domain: options.domain, formats: false };
    let device = probe::completed(device::absolute(&arguments.device))?;
    let drive = with_nodes(device::open(&device, opening)?, options)?;
    if let Ok(DeviceSpec::Image(path)) = device.parse()
        && tandemfs_emulator::header_state(&path).is_ok_and(|state| state == HeaderState::Damaged)
    {
        tracing::warn!(device, "the image's header is damaged, its copy is used; run tandemfs check --repair after the unmount");
    }
    let metrics = options.metrics.as_ref().map(Place::take).transpose().map_err(Failure::Failed)?; // [MTS3]
    let superblock = tandemfs_fs::read_superblock(&drive).map_err(Failure::because)?;
    let _claim = claim::claim(superblock.uuid(), &device, !options.nouuid)?;
    if !superblock.clean && !read_only && drive.mapping_unit().is_some() {
        std::thread::sleep(LOADERS_STOP_WITHIN);
    }
    let fs = Arc::new(FileSystem::mount(drive, &options.file_system).map_err(Failure::because)?);
    let recovery = fs.recovery();
    tracing::info!(
        device,
        clean = recovery.clean,
        records_replayed = recovery.records_replayed,
        orphans_removed = recovery.orphans_removed,
        milliseconds = recovery.duration.as_millis() as u64,
        "recovered"
    );
    for warning in &options.warnings {
        tracing::warn!("{warning}");
    }
    let settings = tandemfs_fuse::MountSettings { source: device, options: remount::lasting(options, &fs), ..options.settings.clone() };
    let mut answers = None;
    let stands = || {
        answers = metrics.and_then(|taken| answer_metrics(taken, &arguments.mountpoint));
        ready();
    };
    let in_use: Arc<dyn SettingsInUse> = Arc::new(SettingsOfMount::new(Arc::clone(&fs), level));
    let served = tandemfs_fuse::serve_beside(&fs, &arguments.mountpoint, (&settings, Some(in_use)), stands, |beside| {
        direct::open(&fs, &settings, &options.direct, beside)
    });
    drop(answers);
    let ended = fs.unmount();
    if let Err(error) = &ended {
        tracing::error!("the unmount was not clean, the next mount recovers: {error}");
    }
    served.map_err(Failure::because).and(ended.map_err(Failure::because))
}

/// Answers metrics of the mount that stands there.
fn answer_metrics(taken: Taken, mountpoint: &Path) -> Option<Server> {
    let mount = mounts::find(mountpoint).and_then(|mount| mount.ok_or_else(|| std::io::ErrorKind::NotFound.into()));
    let server = mount.and_then(|mount| taken.answer(mount));
    server.inspect_err(|error| tracing::warn!("metrics are not answered: {error}")).ok()
}

/// The drive with the nodes of memory that the options name.
fn with_nodes(drive: Drive, options: &Options) -> Result<Drive, Failure> {
    let Some(spec) = &options.nodes else { return Ok(drive) };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let nodes = spec.over(drive.description().memory_bytes, cpus);
    nodes.map(|nodes| drive.with_nodes(nodes)).map_err(|reason| Failure::Usage(format!("numa_nodes: {reason}")))
}

/// A panic leaves locks and memory in no known state, and a serving thread that is gone would hang its callers. What was acknowledged is
/// on the device: end at once, the next mount recovers.
fn abort_on_panic() {
    panic::set_hook(Box::new(|info| {
        tracing::error!("{info}; the daemon ends, the next mount recovers\n{}", Backtrace::force_capture());
        std::process::abort();
    }));
}

fn take_standard_output() -> Result<OwnedFd, Failure> {
    let taken = rustix::io::fcntl_dupfd_cloexec(std::io::stdout(), 3);
    let pipe = taken.map_err(|error| Failure::at("standard output", error))?;
    null().and_then(rustix::stdio::dup2_stdout).map_err(|error| Failure::at("/dev/null", error))?;
    Ok(pipe)
}

/// Leaves the terminal, its session and the current directory.
fn detach() -> rustix::io::Result<()> {
    rustix::process::setsid()?;
    rustix::process::chdir("/")?;
    rustix::stdio::dup2_stdin(null()?)?;
    rustix::stdio::dup2_stderr(null()?)
}

fn null() -> rustix::io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}
