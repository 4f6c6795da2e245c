//! The life of a mount: mount, serve requests, unmount on a signal or by any program.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use serde_json::{Map, Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tandemfs_format::SECTOR_BYTES;
use tandemfs_format::geometry::Geometry;
use tandemfs_fs::{FileSystem, Grown, Growth};
use tandemfs_trace::Recorder;
use tandemfs_vfs::Caches;
use tandemfs_wire::Session;

use crate::control::{Answer, Listener, Request, Server};
use crate::door::Door;
use crate::mounting::{self, MountError};
use crate::mounts::{self, Mounted};
use crate::negotiation::request_bytes_max;
use crate::operations::Operations;
use crate::report;
use crate::settings::{MountSettings, SettingsInUse};
use crate::signals::SignalWatch;
use crate::{compacting, quota, scrubbing, traced, trimming};

/// Read-ahead of the mount if this process may set it (root): the largest READ by default. The kernel's default is 128 KiB.
const READ_AHEAD_KIB: u32 = 1024;

/// Mounts `fs`, calls `ready` once the mount answers, and returns when it is unmounted: by umount(8), fusermount3, or SIGTERM, SIGINT or
/// SIGHUP to this process. The caller then ends the file system (`FileSystem::unmount`), also if this returns an error.
///
/// A signal while files are open detaches the mount from the tree; requests are served until the last file is closed. A second signal
/// aborts the connection, and so does one when somebody else has detached the mount and a signal has come before (`signals.rs`).
pub fn serve(fs: &Arc<FileSystem>, mountpoint: &Path, settings: &MountSettings, ready: impl FnOnce()) -> Result<(), MountError> {
    serve_beside(fs, mountpoint, (settings, None), ready, |_| None::<()>)
}

/// Says in JSON what clients beside the kernel do, for `tandemfs stats` (`direct`). It is called while the mount is served, and shortly after.
pub type BesideReport = Box<dyn Fn() -> Value + Send + Sync>;

/// What clients beside the kernel need to know of a mount.
pub struct Beside<'m> {
    /// The mount.
    pub mounted: &'m Mounted,
    /// The kernel's pages.
    pub caches: Arc<dyn Caches>,
    /// Whether the mount still stands. It ends before its device number and its place can be those of another mount.
    pub stands: Box<dyn Fn() -> bool + Send + Sync>,
    /// Takes what says what they do.
    pub report: Arc<OnceLock<BesideReport>>,
    /// What a trace records.
    pub recorder: Arc<Recorder>,
}

/// As [`serve`]; `open` lets clients reach the files beside the kernel while the mount is served (`MountSettings::direct`). What it returns
/// is dropped when the mount has ended. Settings that can change meanwhile come with the others.
pub fn serve_beside<T>(
    fs: &Arc<FileSystem>,
    mountpoint: &Path,
    (settings, in_use): (&MountSettings, Option<Arc<dyn SettingsInUse>>),
    ready: impl FnOnce(),
    open: impl FnOnce(Beside<'_>) -> Option<T>,
) -> Result<(), MountError> {
    let mountpoint = check_mountpoint(mountpoint)?;
    let failed = |source| MountError::Serve { path: mountpoint.clone(), source };

    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(failed)?;
    // The guard unmounts if serving ends early.
    let (channel, guard) = mounting::mount(&mountpoint, settings)?;
    let session = Answering::start(fs, channel, settings, request_bytes_max()).map_err(failed)?;
    let (ring_threads, door) = (session.ring_threads(), Arc::clone(&session.door));
    let mounted = mounts::find(&mountpoint).map_err(failed)?;
    if let Some(mounted) = &mounted {
        read_ahead(mounted);
    }
    if let (Some(mounted), Some(watches)) = (&mounted, &door.watches) {
        watches.of_device(&mounted.device_number);
    }
    let kernel = door.kernel.clone();
    let watch = SignalWatch::start(signals, guard.place(), mounted.clone(), move || kernel.is_connected()).map_err(failed)?;
    let serving = std::thread::Builder::new().name("session".into()).spawn(move || session.run()).map_err(failed)?;
    if !settings.read_only
        && let Err(error) = fs.start_background()
    {
        tracing::warn!("no thread behind the foreground, so operations checkpoint and write back themselves: {error}");
    }
    // INIT is answered and a thread serves. The daemon itself never accesses its own mount: if it were killed meanwhile, the accessing
    // thread would wait forever for the dead threads, and keep the mount and the device.
    let report = Arc::<OnceLock<BesideReport>>::default();
    let recorder = Arc::clone(&door.recorder);
    let control = mounted.as_ref().and_then(|mounted| control(fs, (settings, in_use), ring_threads, mounted, (&report, &recorder)));
    let beside = mounted.as_ref().filter(|_| settings.direct).and_then(|mounted| {
        let kernel = Arc::clone(&door);
        open(Beside { mounted, caches: door, stands: Box::new(move || kernel.kernel.is_connected()), report, recorder })
    });
    tracing::info!(mountpoint = %mountpoint.display(), source = settings.source, mode = settings.mode.name(), ring_threads, "mounted");
    ready();

    let result = serving.join().unwrap_or_else(|_| Err(io::Error::other("a serving thread panicked")));
    watch.stop(); // [SGN4]
    if result.is_ok() {
        // Served to the end: a mount at this path now belongs to another process.
        guard.disarm();
    }
    drop(beside);
    drop(control);
    tracing::info!(mountpoint = %mountpoint.display(), "unmounted");
    result.map_err(failed)
}

/// The server of a FUSE connection: [`serve`] runs it on a mount, tests run it on their own channel.
pub struct Answering {
    session: Session<Operations>,
    door: Arc<Door>,
}

impl Answering {
    /// Waits for the first request, INIT, and negotiates flags and sizes. No WRITE or READ is larger than `request_bytes_max`.
    pub fn start(fs: &Arc<FileSystem>, channel: OwnedFd, settings: &MountSettings, request_bytes_max: u32) -> io::Result<Self> {
        let door = Arc::new(Door::new(fs, settings, request_bytes_max)?);
        let session = Session::start(channel, Operations(Arc::clone(&door)), &door.wanted(), settings.serving())?;
        let missing = session.agreed().missing;
        if !missing.is_empty() {
            tracing::info!(?missing, "the kernel does not offer all abilities");
        }
        door.kernel.connect(session.notifier());
        Ok(Self { session, door })
    }

    /// Threads that serve requests over io_uring; 0 if all requests come over the device.
    pub fn ring_threads(&self) -> usize {
        self.session.threads().ring
    }

    /// Serves until the connection ends. A protocol violation is an error.
    pub fn run(self) -> io::Result<()> {
        let Self { session, door } = self;
        let result = session.run();
        // Where the connection may stand, with nobody to serve it, its jobs might wait for ever.
        match &result {
            Ok(()) => door.kernel.dropping.stop(), // [AO2]
            Err(_) => door.kernel.dropping.close(),
        }
        door.space.stop();
        door.pages.stop();
        door.names.stop();
        door.mapped.stop();
        door.watches.iter().for_each(|watches| watches.stop());
        result
    }
}

/// The absolute path of a directory that can be mounted on. Checked early, so that a typing error does not cost a recovery.
pub fn check_mountpoint(mountpoint: &Path) -> Result<PathBuf, MountError> {
    let given = |source| MountError::Mountpoint { path: mountpoint.to_owned(), source };
    // The kernel's list comes first: a mountpoint whose daemon died is not accessible.
    if mounts::find(mountpoint).map_err(given)?.is_some() {
        return Err(MountError::Occupied { path: mountpoint.to_owned() });
    }
    let absolute = mountpoint.canonicalize().map_err(given)?;
    if !absolute.is_dir() {
        return Err(MountError::NotDirectory { path: mountpoint.to_owned() });
    }
    Ok(absolute)
}

fn control(
    fs: &Arc<FileSystem>,
    (settings, in_use): (&MountSettings, Option<Arc<dyn SettingsInUse>>),
    ring_threads: usize,
    mounted: &Mounted,
    (beside, recorder): (&Arc<OnceLock<BesideReport>>, &Arc<Recorder>),
) -> Option<Server> {
    let (fs, settings, mountpoint) = (Arc::clone(fs), settings.clone(), mounted.mountpoint.clone());
    let desk = Desk {
        fs,
        settings,
        in_use,
        ring_threads,
        mountpoint,
        since: Instant::now(),
        beside: Arc::clone(beside),
        recorder: Arc::clone(recorder),
        scrubs: AtomicBool::new(false),
        trims: AtomicBool::new(false),
        compacts: AtomicBool::new(false),
    };
    Server::start(mounted, Arc::new(desk))
        .inspect_err(|error| tracing::warn!("no control socket, so 'tandemfs stats' cannot ask this mount: {error}"))
        .ok()
}

/// Answers requests of the control socket.
struct Desk {
    fs: Arc<FileSystem>,
    settings: MountSettings,
    /// Settings that can change while the mount is served.
    in_use: Option<Arc<dyn SettingsInUse>>,
    ring_threads: usize,
    mountpoint: PathBuf,
    since: Instant,
    /// What clients beside the kernel do.
    beside: Arc<OnceLock<BesideReport>>,
    recorder: Arc<Recorder>,
    /// A scrub is running. Only one runs at a time: two would halve each other's rate.
    scrubs: AtomicBool,
    /// A trim is running.
    trims: AtomicBool,
    /// A compaction by hand is running.
    compacts: AtomicBool,
}

impl Answer for Desk {
    fn answer(&self, request: Request) -> Value {
        match request {
            Request::Stats { reset } => {
                let mut stats = report::stats(&self.fs);
                // Null without a direct door.
                stats["direct"] = self.beside.get().map_or(Value::Null, |report| report());
                if reset {
                    report::reset(&self.fs);
                }
                stats
            }
            Request::Info => {
                let mut info = report::info(&self.fs, &self.settings, self.since);
                if self.ring_threads > 0 {
                    info["requests_over"] = json!("io_uring");
                    info["threads"] = json!(self.ring_threads + 1);
                }
                info["mountpoint"] = json!(self.mountpoint.to_string_lossy());
                for (name, value) in self.in_use.iter().flat_map(|in_use| in_use.values()) {
                    info["options"][name] = json!(value);
                }
                info
            }
            Request::Label { text } => match self.fs.set_label(&text) {
                Ok(()) => json!({ "label": text }),
                Err(error) => json!({ "error": error.to_string() }),
            },
            Request::EnableHomes => match self.fs.enable_homes() {
                Ok(()) => json!({ "homes": true }),
                Err(error) => json!({ "error": error.to_string() }),
            },
            Request::Scrub { .. }
            | Request::Trim { .. }
            | Request::Compact
            | Request::Trace
            | Request::Set { .. }
            | Request::Resize { .. }
            | Request::QuotaReport
            | Request::QuotaGet { .. }
            | Request::QuotaSet { .. }
            | Request::QuotaGrace { .. }
            | Request::QuotaProject { .. } => {
                unreachable!("a long job has a thread of its own")
            }
        }
    }

    fn work(&self, request: Request, listener: &Listener<'_>) -> Value {
        let (is_running, name) = match request {
            Request::Scrub { .. } => (&self.scrubs, "scrub"),
            Request::Trim { .. } => (&self.trims, "trim"),
            Request::Compact => (&self.compacts, "compaction"),
            Request::Trace => return traced::run(&self.recorder, listener),
            Request::Set { settings } => return self.set(&settings),
            Request::Resize { memory, block } => return self.resize(Growth { memory_bytes: memory, block_bytes: block }),
            request if request.is_of_quota() => return quota::run(&self.fs, &request, listener),
            other => return self.answer(other),
        };
        if is_running.swap(true, SeqCst) {
            return json!({ "error": format!("a {name} of this mount is running already; wait for its end, or end it") });
        }
        let result = match request {
            Request::Scrub { limit } => scrubbing::run(&self.fs, limit, listener),
            Request::Trim { minimum } => trimming::run(&self.fs, minimum, listener),
            Request::Compact => compacting::run(&self.fs, listener),
            other => self.answer(other),
        };
        is_running.store(false, SeqCst);
        result
    }
}

impl Desk {
    /// Grows the zones.
    fn resize(&self, growth: Growth) -> Value {
        let begun = Instant::now();
        let Grown { before, after, is_memory_left } = match self.fs.grow_zones(&growth) {
            Ok(grown) => grown,
            Err(error) => return json!({ "error": error.to_string() }),
        };
        let bytes = |geometry: &Geometry| (geometry.memory_bytes(), geometry.block_sectors() * SECTOR_BYTES as u64);
        let ((memory_before, block_before), (memory, block)) = (bytes(&before), bytes(&after));
        if before != after {
            tracing::info!(memory_before, memory, block_before, block, elapsed = ?begun.elapsed(), "the zones have grown");
        }
        json!({
            "device": self.fs.drive().description().name,
            "grown": before != after,
            "memory_bytes": memory,
            "block_bytes": block,
            "memory_bytes_before": memory_before,
            "block_bytes_before": block_before,
            "memory_left": is_memory_left,
        })
    }

    /// Changes settings, if any are named, and says all that can be changed.
    fn set(&self, words: &[String]) -> Value {
        let Some(in_use) = &self.in_use else { return json!({ "error": "no setting of this mount can change while it is in use" }) };
        let warnings = if words.is_empty() { Ok(Vec::new()) } else { in_use.change(words) };
        match warnings {
            Ok(warnings) => {
                let settings: Map<_, _> = in_use.values().into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
                json!({ "mountpoint": self.mountpoint.to_string_lossy(), "settings": settings, "warnings": warnings })
            }
            Err(error) => json!({ "error": error }),
        }
    }
}

/// Sets the read-ahead if permitted; an ordinary user keeps the kernel's default.
fn read_ahead(mounted: &Mounted) {
    let path = format!("/sys/class/bdi/{}/read_ahead_kb", mounted.device_number);
    if let Err(error) = fs::write(&path, READ_AHEAD_KIB.to_string()) {
        tracing::debug!(path, %error, "read-ahead stays as it is");
    }
}
