//! Settings of a comparison.

use std::path::PathBuf;

use clap::ValueEnum;

use super::case::Case;
use super::peer::name_of;

/// Whether client and daemon are pinned together to one CPU. Kernel threads are not pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Pinning {
    /// Cases with a single client
    Single,
    /// Everything
    All,
    /// Nothing
    None,
}

/// Settings of all runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Share of the work of each case.
    pub scale: f64,
    /// Whether a case does more work if runs would be too short ([`Case::share_least`]).
    pub keeps_least: bool,
    /// Share of that work for a warm-up run.
    pub warm_up_share: f64,
    /// Seed of all random choices.
    pub seed: u64,
    /// Which cases are pinned to one CPU.
    pub pinning: Pinning,
    /// Profile of TandemFS's drive.
    pub profile: String,
    /// Memory zone of TandemFS's drive, in bytes.
    pub memory_bytes: u64,
    /// Least size of drives, in bytes.
    pub drive_bytes: u64,
    /// Directory of the backing files.
    pub directory: PathBuf,
}

impl Settings {
    /// Share of the work of a case.
    pub fn share(&self, case: &Case) -> f64 {
        if self.keeps_least { self.scale.max(case.share_least) } else { self.scale }
    }

    /// For the header of results: name and value.
    pub fn named(&self) -> Vec<(String, String)> {
        let pairs = [
            (
                "scale",
                if self.keeps_least { format!("{}, more where runs would be too short", self.scale) } else { self.scale.to_string() },
            ),
            ("warm-up", format!("{} of the work", self.warm_up_share)),
            ("seed", self.seed.to_string()),
            ("pinned", name_of(&self.pinning)),
            ("profile", self.profile.clone()),
            ("memory zone", format!("{} MiB", self.memory_bytes >> 20)),
            ("drives", format!("at least {} MiB", self.drive_bytes >> 20)),
            ("directory", self.directory.display().to_string()),
        ];
        pairs.map(|(name, value)| (name.to_owned(), value)).into()
    }
}
