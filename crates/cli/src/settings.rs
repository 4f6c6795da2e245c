//! Settings of a mount that can change while it is in use, in its daemon: what they are, and changes of them (`tandemfs set`, `-o remount`).

use std::sync::{Arc, Mutex, PoisonError};

use tandemfs_format::PAGE_LINES;
use tandemfs_fs::{FileSystem, Threshold};
use tandemfs_fuse::SettingsInUse;
use tracing::level_filters::LevelFilter;

use crate::logging;
use crate::mount::machine_bytes;
use crate::mount_options::{self, DISCARDS, LOG_LEVELS, PROMOTE, WRITE_BACK, name_of};
use crate::size;

/// The settings of the file system, and how much is logged.
pub struct SettingsOfMount {
    fs: Arc<FileSystem>,
    level: logging::Level,
    /// Held by whoever changes them, so that each line of the log says one change.
    changing: Mutex<()>,
}

impl SettingsOfMount {
    /// Of this mount.
    pub fn new(fs: Arc<FileSystem>, level: logging::Level) -> Self {
        Self { fs, level, changing: Mutex::default() }
    }

    fn value(&self, name: &str) -> String {
        self.values().into_iter().find(|(known, _)| *known == name).map_or_else(String::new, |(_, value)| value)
    }

    /// Sets the level, and logs a line while the more verbose one of both levels holds.
    fn log(&self, level: LevelFilter, line: impl FnOnce() -> String) {
        let is_more = level > self.level.get();
        if is_more {
            self.level.set(level);
        }
        tracing::info!("{}", line());
        if !is_more {
            self.level.set(level);
        }
    }
}

impl SettingsInUse for SettingsOfMount {
    fn values(&self) -> Vec<(&'static str, String)> {
        let options = self.fs.options();
        let threshold = match options.threshold {
            Threshold::BlockSize => size::word(self.fs.superblock().geometry.block_bytes().into()),
            Threshold::Bytes(bytes) => size::word(bytes.into()),
            Threshold::Auto => "auto".into(),
            Threshold::BlocksOnly => "0".into(),
        };
        vec![
            ("threshold", threshold),
            ("write_back", name_of(&WRITE_BACK, options.write_back)),
            ("write_back_limit", format!("{}%", options.write_back_percent)),
            ("promote", name_of(&PROMOTE, options.promote)),
            ("read_ahead", size::word(options.read_ahead_bytes.into())),
            ("in_place", size::word(options.in_place_bytes.into())),
            ("modified_ratio", format!("{}/{PAGE_LINES}", options.modified_lines)),
            ("discard", name_of(&DISCARDS, options.discard)),
            ("memory", size::word(options.memory_bytes)),
            ("log_level", name_of(&LOG_LEVELS, self.level.get())),
        ]
    }

    fn change(&self, words: &[String]) -> Result<Vec<String>, String> {
        let _one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.fs.options();
        let change = mount_options::change(words.iter().map(String::as_str), &before, machine_bytes())?;
        let mut names = change.names;
        names.sort_unstable();
        names.dedup();
        let was: Vec<String> = names.iter().map(|name| self.value(name)).collect();
        let now = self.fs.change_settings(&change.file_system).map_err(|error| error.to_string())?;
        if now.memory_bytes < before.memory_bytes {
            tandemfs_device::give_back_free_heap();
        }
        let level = change.log_level.unwrap_or_else(|| self.level.get());
        let value = |name: &str| if name == "log_level" { name_of(&LOG_LEVELS, level) } else { self.value(name) };
        self.log(level, || {
            let changes = names.iter().zip(&was).map(|(name, was)| format!("{name} from {was} to {}", value(name)));
            format!("settings changed: {}", changes.collect::<Vec<_>>().join(", "))
        });
        Ok(change.warnings)
    }
}
