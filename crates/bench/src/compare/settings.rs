//! Settings of all runs of a comparison, which its results state.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::Value;

use super::case::Case;
use crate::arguments::mebibytes;

/// Share of the work for a warm-up run.
pub const WARM_UP_SHARE: f64 = 0.2;

/// Whether client and daemon are pinned together to one CPU. Kernel threads are not pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pinning {
    /// Cases with a single client
    Single,
    /// Everything
    All,
    /// Nothing
    None,
}

/// Settings of all runs.
#[derive(Debug, Clone, Args, Serialize)]
pub struct Settings {
    /// Share of the work of each case.
    #[arg(skip)]
    pub share: f64,
    /// Whether a case does more work if runs would be too short ([`Case::share_least`]).
    #[arg(skip)]
    pub keeps_least_share: bool,
    /// Where files that stand for drives are made; needs 3 GiB for most cases; best in memory
    #[arg(long, value_name = "DIRECTORY", default_value = "/dev/shm")]
    pub directory: PathBuf,
    /// Profile of TandemFS's emulated drive
    #[arg(long, value_name = "PROFILE", default_value = "romefs-a")]
    pub profile: String,
    /// Memory zone of TandemFS's emulated drive
    #[arg(long = "memory", value_name = "SIZE", value_parser = mebibytes, default_value = "256M")]
    pub memory_bytes: u64,
    /// Least size of drives; a case that needs more gets more
    #[arg(long = "drive", value_name = "SIZE", value_parser = mebibytes, default_value = "1G")]
    pub drive_bytes: u64,
    /// Whose client and daemon share one CPU
    #[arg(long, value_name = "CASES", value_enum, default_value = "single")]
    pub pin: Pinning,
    /// Chooses everything that is drawn
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
}

impl Settings {
    /// Share of the work of a case.
    pub fn share(&self, case: &Case) -> f64 {
        if self.keeps_least_share { self.share.max(case.share_least) } else { self.share }
    }

    /// Whether a case with this number of clients is pinned.
    pub fn pins(&self, clients: u32) -> bool {
        self.pin == Pinning::All || (self.pin == Pinning::Single && clients == 1)
    }

    /// For the header of results: name and value.
    pub fn named(&self) -> Vec<(String, String)> {
        let Ok(Value::Object(named)) = serde_json::to_value(self) else { return Vec::new() };
        named.into_iter().map(|(name, value)| (name, value.as_str().map_or_else(|| value.to_string(), str::to_owned))).collect()
    }
}
