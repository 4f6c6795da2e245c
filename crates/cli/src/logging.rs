//! Where a daemon logs, and how much: to a named file, otherwise to the system journal if there is one, otherwise to a file in the default place. In
//! the foreground, to standard error. The level can change while the daemon runs.

use std::env;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

use crate::failure::Failure;

const JOURNAL_SOCKET: &str = "/run/systemd/journal/socket";

/// The level that a log has now. An event below it costs a load and a branch.
pub struct Level {
    level: Mutex<LevelFilter>,
    handle: reload::Handle<LevelFilter, Registry>,
}

/// The filter of a log.
type Filter = reload::Layer<LevelFilter, Registry>;

impl Level {
    fn new(level: LevelFilter) -> (Filter, Self) {
        let (filter, handle) = reload::Layer::new(level);
        (filter, Self { level: Mutex::new(level), handle })
    }

    /// What is logged now.
    pub fn get(&self) -> LevelFilter {
        *self.level.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs that much from now on.
    pub fn set(&self, level: LevelFilter) {
        let mut known = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        *known = level;
        // Fails only where nothing is logged at all.
        let _ = self.handle.reload(level);
    }
}

/// Starts logging; without a level that was asked for, as a daemon that was asked to log more, or not.
pub fn start(file: Option<&Path>, foreground: bool, verbose: bool, level: Option<LevelFilter>) -> Result<Level, Failure> {
    let (filter, level) = Level::new(level.unwrap_or(if verbose { LevelFilter::DEBUG } else { LevelFilter::INFO }));
    match file {
        Some(path) => to_file(open(path).map_err(|error| Failure::at(path.display(), error))?, filter),
        None if foreground => {
            let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(false).with_target(false);
            init(tracing_subscriber::registry().with(filter).with(lines));
        }
        None => match journal() {
            Some(journal) => init(tracing_subscriber::registry().with(filter).with(journal)),
            // A mount does not fail because it cannot log.
            None => {
                if let Some(file) = default_file().and_then(|path| open(&path).ok()) {
                    to_file(file, filter);
                }
            }
        },
    }
    Ok(level)
}

fn journal() -> Option<tracing_journald::Layer> {
    Path::new(JOURNAL_SOCKET).exists().then(|| tracing_journald::layer().ok()).flatten()
}

fn to_file(file: File, filter: Filter) {
    let lines = tracing_subscriber::fmt::layer().with_writer(Mutex::new(file)).with_ansi(false);
    init(tracing_subscriber::registry().with(filter).with(lines));
}

fn init(subscriber: impl SubscriberInitExt) {
    // Fails only if logging was started before; then it continues unchanged.
    let _ = subscriber.try_init();
}

fn open(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    File::options().append(true).create(true).open(path)
}

fn default_file() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some("/var/log/tandemfs.log".into());
    }
    let state = env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let state = state.or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".local/state")))?;
    Some(state.join("tandemfs/tandemfs.log"))
}
