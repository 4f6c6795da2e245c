//! How a comparison is asked for.

use std::path::PathBuf;

use clap::ValueEnum;

use super::case::Case;

/// Who is kept on one CPU: client and daemon together. What the kernel does for its file systems by itself goes wherever it likes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Pinning {
    /// Cases with a single client
    Single,
    /// Everything
    All,
    /// Nothing
    None,
}

impl Pinning {
    /// The name on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::All => "all",
            Self::None => "none",
        }
    }
}

/// What holds for all runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Share of the work of each case.
    pub scale: f64,
    /// Whether a case does more than that where runs would be too short ([`Case::share_least`]).
    pub keeps_least: bool,
    /// Share of that for a run to warm up.
    pub warm_up_share: f64,
    /// Chooses everything that is drawn.
    pub seed: u64,
    /// Who is kept on one CPU.
    pub pinning: Pinning,
    /// Profile of TandemFS's drive.
    pub profile: String,
    /// Memory zone of TandemFS's drive, in bytes.
    pub memory_bytes: u64,
    /// Least size of drives, in bytes.
    pub drive_bytes: u64,
    /// Where files that stand for drives are made.
    pub directory: PathBuf,
}

impl Settings {
    /// Share of the work of a case.
    pub fn share(&self, case: &dyn Case) -> f64 {
        if self.keeps_least { self.scale.max(case.share_least()) } else { self.scale }
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
            ("pinned", self.pinning.name().to_owned()),
            ("profile", self.profile.clone()),
            ("memory zone", format!("{} MiB", self.memory_bytes >> 20)),
            ("drives", format!("at least {} MiB", self.drive_bytes >> 20)),
            ("directory", self.directory.display().to_string()),
        ];
        pairs.map(|(name, value)| (name.to_owned(), value)).into()
    }
}
