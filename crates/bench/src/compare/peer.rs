use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Who is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Peer {
    /// TandemFS through the mount, writes durable with fsync
    TandemfsRelaxed,
    /// TandemFS through the mount, each write durable when it returns
    TandemfsStrict,
    /// TandemFS by its direct door: unchanged programs under `tandemfs run`
    TandemfsDirect,
    /// The same with a daemon that sleeps whenever nobody asks (direct_spin=0)
    TandemfsDirectAsleep,
    /// The mount of the direct door, its programs without `tandemfs run`
    TandemfsBeside,
    /// TandemFS as a library in the measuring process; for the cases that have such a form
    TandemfsLibrary,
    /// ext4 with its defaults (data=ordered)
    Ext4,
    /// ext4 with data=journal
    Ext4Journal,
    /// ext4, with what programs do for durability switched off; for the cases in which they do something
    Ext4Volatile,
    /// XFS with its defaults
    Xfs,
    /// Btrfs with its defaults
    Btrfs,
    /// A FUSE file system that keeps everything in memory and nothing safe: what the way through FUSE costs by itself
    Null,
}

impl Peer {
    /// All, TandemFS first.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::value_variants().iter().copied()
    }

    /// The name on the command line, in records and in reports.
    pub fn name(self) -> String {
        name_of(&self)
    }

    /// The name for readers of reports.
    pub fn title(self) -> &'static str {
        match self {
            Self::TandemfsRelaxed => "TandemFS relaxed",
            Self::TandemfsStrict => "TandemFS strict",
            Self::TandemfsDirect => "TandemFS direct",
            Self::TandemfsDirectAsleep => "TandemFS direct, asleep",
            Self::TandemfsBeside => "TandemFS direct, by its mount",
            Self::TandemfsLibrary => "TandemFS library",
            Self::Ext4 => "ext4",
            Self::Ext4Journal => "ext4 data=journal",
            Self::Ext4Volatile => "ext4, volatile",
            Self::Xfs => "XFS",
            Self::Btrfs => "Btrfs",
            Self::Null => "null FUSE",
        }
    }

    /// Who takes part if these are named. Without a name, all but the direct door and what only its reaches need; the direct door alone, with
    /// all that it is held against.
    pub fn taking_part(named: &[Self]) -> Vec<Self> {
        let is_meant = |peer: &Self| match named {
            [] => !peer.is_direct() && !matches!(peer, Self::TandemfsBeside | Self::Ext4Volatile),
            [Self::TandemfsDirect] => !matches!(peer, Self::Ext4Journal | Self::Btrfs),
            named => named.contains(peer),
        };
        Self::all().filter(is_meant).collect()
    }

    /// Whether it is a form of TandemFS.
    pub fn is_ours(self) -> bool {
        self.is_mount() || self.is_direct() || matches!(self, Self::TandemfsBeside | Self::TandemfsLibrary)
    }

    /// Whether it is TandemFS's mount without a direct door.
    pub fn is_mount(self) -> bool {
        matches!(self, Self::TandemfsRelaxed | Self::TandemfsStrict)
    }

    /// Whether its programs run under `tandemfs run`.
    pub fn is_direct(self) -> bool {
        matches!(self, Self::TandemfsDirect | Self::TandemfsDirectAsleep)
    }

    /// Whether ratios are taken relative to it: the best such peer of the same run is used.
    pub fn is_yardstick(self) -> bool {
        matches!(self, Self::Ext4 | Self::Xfs)
    }
}

/// The name of a value on the command line.
pub fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
